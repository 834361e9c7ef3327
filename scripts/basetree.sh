#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Puts another commit into a directory and builds its collectors there, for benchmarks
# that put this tree beside it. A build of that commit there stays.
# Usage: scripts/basetree.sh COMMIT DIR
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$2
base=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "BASE=$1: no such commit here; in a shallow clone run: git fetch --unshallow" >&2; exit 1; }
if [ "$(cat "$dir/.built" 2>/dev/null)" != "$base" ]; then
	rm -rf "$dir"
	mkdir -p "$dir"
	git archive "$base" | tar -x -C "$dir"
	echo "building the collectors of $1" >&2
	for b in gpu-collector gpu-collector-agent; do
		(cd "$dir" && go build -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o bin/$b ./cmd/$b)
	done
	echo "$base" >"$dir/.built"
fi
