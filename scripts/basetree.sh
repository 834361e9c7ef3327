#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks another commit out to a directory and builds its collector there, for
# benchmarks that put this tree beside it. What is there of that commit stays.
# Usage: scripts/basetree.sh COMMIT DIR
set -euo pipefail
cd "$(dirname "$0")/.."
base=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "BASE=$1: no such commit here; name one, or clone with history" >&2; exit 1; }
dir=$2
if [ "$(git -C "$dir" rev-parse HEAD 2>/dev/null || true)" != "$base" ] || [ ! -x "$dir/bin/gpu-collector" ]; then
	git worktree remove --force "$dir" 2>/dev/null || rm -rf "$dir"
	git worktree prune
	git worktree add --quiet --detach "$dir" "$base"
	echo "building the collector of $1" >&2
	(cd "$dir" && go build -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o bin/gpu-collector ./cmd/gpu-collector)
fi
