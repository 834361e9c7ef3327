#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks another commit out to a directory and builds its collector there, for
# benchmarks that put this tree beside it. A build of that commit there stays.
# An empty COMMIT is the commit before the last that changed the collector.
# Usage: scripts/basetree.sh COMMIT DIR
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:-$(git rev-list -1 HEAD -- '*.go' ':!*_test.go' ':!test' go.mod go.sum)~1} dir=$2
base=$(git rev-parse --verify --quiet "$commit^{commit}") || { echo "BASE=$commit: no such commit here; in a shallow clone run: git fetch --unshallow" >&2; exit 1; }
if [ "$(git -C "$dir" rev-parse HEAD 2>/dev/null || true)" != "$base" ] || [ ! -x "$dir/bin/gpu-collector" ]; then
	git worktree remove --force "$dir" 2>/dev/null || rm -rf "$dir"
	git worktree prune
	git worktree add --quiet --detach "$dir" "$base"
	echo "building the collector of $commit" >&2
	(cd "$dir" && go build -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o bin/gpu-collector ./cmd/gpu-collector)
fi
