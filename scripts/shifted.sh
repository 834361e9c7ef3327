#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a collector whose wall clock can be set wrong while it runs, for
# test/chaos. The sources are the same, with a time package whose Now is shifted by
# time.Shift seconds, and test/chaos/shifted/shift.go in the main package. Timers
# and the monotonic clock stay, as they do where a machine's clock is set.
# Everything is compiled once for it, some minutes. Usage: scripts/shifted.sh FILE
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$PWD/.cache/chaos/shifted
mkdir -p "$dir"
source=$(go env GOROOT)/src/time/time.go
sed 's|^\tsec, nsec, mono := runtimeNow()$|&\n\tsec += Shift|; $a\\n// Shift is by how many seconds the wall clock is wrong.\nvar Shift int64' "$source" >"$dir/time.go"
grep -q 'sec += Shift' "$dir/time.go" || { echo "$source is not as this script knows it: Now does not begin with runtimeNow()" >&2; exit 1; }
printf '{"Replace": {"%s": "%s", "%s": "%s"}}\n' "$source" "$dir/time.go" \
	"$PWD/cmd/gpu-collector/shift.go" "$PWD/test/chaos/shifted/shift.go" >"$dir/overlay.json"
echo "building a collector with a clock of its own (the first time takes some minutes)" >&2
CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" go build -tags shifted -overlay "$dir/overlay.json" -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o "$1" ./cmd/gpu-collector
