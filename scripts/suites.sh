#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs make targets one after the other, goes on where one fails, and ends with a table of
# seconds and results. Fails where one failed. A suite that cannot run here fails too, and
# writes why into the file NOT_RUN: that counts by itself, and as a failure where CI=true.
# Usage: scripts/suites.sh TARGET...
set -uo pipefail
cd "$(dirname "$0")/.."

NOT_RUN=$(mktemp)
export NOT_RUN
trap 'rm -f "$NOT_RUN"' EXIT
trap 'exit 130' INT
table='' passed=0 failed=0 skipped=0
for target; do
	printf '\n=== %s\n' "$target"
	begin=$SECONDS
	: >"$NOT_RUN"
	if make --no-print-directory "$target"; then
		result=pass passed=$((passed + 1))
	elif [ -s "$NOT_RUN" ] && [ "${CI:-}" != true ]; then
		result="skip  $(head -n 1 "$NOT_RUN")" skipped=$((skipped + 1))
	else
		result=fail failed=$((failed + 1))
	fi
	line=$(printf '%-22s %5d s  %s' "${target#proof-}" $((SECONDS - begin)) "$result")
	printf '=== %s\n' "$line"
	table+=$line$'\n'
done
[ $skipped = 0 ] && skipped='' || skipped=", $skipped not run"
printf '\n%s%d passed, %d failed%s\n' "$table" $passed $failed "$skipped"
[ $failed = 0 ]
