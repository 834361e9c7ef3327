#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs make targets one after the other, goes on where one fails, and ends with a table of
# seconds and results. Fails where one failed. Usage: scripts/suites.sh TARGET...
set -uo pipefail
cd "$(dirname "$0")/.."

trap 'exit 130' INT
table='' passed=0 failed=0
for target; do
	printf '\n=== %s\n' "$target"
	begin=$SECONDS
	if make --no-print-directory "$target"; then
		result=pass passed=$((passed + 1))
	else
		result=fail failed=$((failed + 1))
	fi
	line=$(printf '%-22s %5d s  %s' "${target#proof-}" $((SECONDS - begin)) $result)
	printf '=== %s\n' "$line"
	table+=$line$'\n'
done
printf '\n%s%d passed, %d failed\n' "$table" $passed $failed
[ $failed = 0 ]
