#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs vale over the docs and READMEs that a person wrote. It prints the flagged
# sentences and their number per 10,000 words, and fails above the limit. FILES names
# some pages alone. Usage: scripts/prose.sh VALE
set -euo pipefail
cd "$(dirname "$0")/.."

limit=10
# mdatagen's tables have their texts elsewhere.
mapfile -t files < <(git ls-files -co --exclude-standard -- ${FILES:-'*.md'} |
	grep -v -e '^CHANGELOG\.md$' -e '/documentation\.md$' -e '/testdata/')
check() { "$1" --config=tools/prose/vale.ini --no-global --no-exit --output=line "${@:2}"; }
diff tools/prose/testdata/expected.txt <(check "$1" tools/prose/testdata/sample.md) ||
	{ echo "the rules in tools/prose no longer flag what their sample says" >&2; exit 1; }
flagged=$(check "$1" "${files[@]}")
[ -z "$flagged" ] || printf '%s\n' "$flagged"
n=$(grep -c ':House\.' <<<"$flagged" || true)
cat "${files[@]}" | wc -w | awk -v n="$n" -v limit=$limit '{
	x = 10000 * n / $1
	printf "figure prose_flagged_per_10000_words %.4g sentences limit %d %s\n", x, limit, (x > limit) ? "short" : "pass"
	exit (x > limit)
}'
