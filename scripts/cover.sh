#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the unit tests of the product's rooms and prints the share of statements that they
# reach, as figures: of each room, least first, and of all. Generated code does not count.
# What only the real binaries reach (test/integration, test/e2e, test/chaos) does not either.
# PROFILE reads a profile that is there, and runs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${PROFILE:-.cache/cover.out}
if [ -z "${PROFILE:-}" ]; then
	mkdir -p .cache
	echo "cover: running the unit tests (some minutes)" >&2
	# shellcheck disable=SC2046 # a list
	go test -timeout 20m -coverprofile="$profile" ${PACKAGES:-./internal/... ./receiver/... ./processor/... ./exporter/... ./extension/... ./pkg/...} >.cache/cover.log 2>&1 ||
		{ grep -E '^(---|FAIL|panic)' .cache/cover.log >&2; exit 1; }
fi
module=$(go list -m)
# mode line, then FILE:FROM,TO STATEMENTS COUNT
awk -v module="$module/" '
	NR > 1 && $1 !~ /generated_|\/metadata\/|\.pb\.go|\/metadatatest\// {
		sub(module, "", $1); split($1, at, ":"); room = at[1]; sub(/\/[^\/]*$/, "", room)
		all[room] += $2; total += $2
		if ($3 > 0) {hit[room] += $2; reached += $2}
	}
	END {
		if (!total) {print "cover: " FILENAME " has no statement" >"/dev/stderr"; exit 1}
		for (r in all) printf "figure cover_%s %.1f %%\n", r, 100 * hit[r] / all[r] | "sort -k3,3n -k2,2"
		close("sort -k3,3n -k2,2")
		printf "figure cover_counted %d statements\n", total
		printf "figure cover_statements %.1f %%\n", 100 * reached / total
	}' "$profile"
