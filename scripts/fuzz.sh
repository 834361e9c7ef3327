#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fuzzes each target of the module in turn. Usage: scripts/fuzz.sh 60s
set -euo pipefail
cd "$(dirname "$0")/.."
fuzztime=${1:-60s}

grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do
	dir=$(dirname "$file")
	for target in $(grep -oE '^func Fuzz[A-Za-z0-9_]*' "$file" | awk '{print $2}'); do
		echo "fuzzing $dir $target for $fuzztime"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" "$dir"
	done
done
