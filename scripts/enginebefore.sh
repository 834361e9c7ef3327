#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Plays the families of test/scenarios to the straggler engine of another commit, as
# the decider "before": this tree's generators and judge, that commit's
# internal/straggler. An empty COMMIT is the commit before the last that changed the
# engine. An engine that this tree's evaluation does not know how to ask is left out;
# the tag enginebefore leaves out whatever asks for more than verdicts.
# Usage: scripts/enginebefore.sh COMMIT [ARGUMENTS OF test/bench/eval]
set -euo pipefail
cd "$(dirname "$0")/.."
engine=internal/straggler dir=$PWD/.cache/engine-before
commit=${1:-$(git rev-list -1 HEAD -- $engine ":!$engine/*_test.go")~1}
base=$(git rev-parse --verify --quiet "$commit^{commit}") || { echo "BASE=$commit: no such commit here; in a shallow clone run: git fetch --unshallow" >&2; exit 1; }
rm -rf "$dir"
mkdir -p "$dir"
git archive "$base" $engine | tar -x -C "$dir"
# The build takes that commit's files in the place of this tree's; "" is no such file.
replace=
while IFS= read -r file; do
	there=$dir/$file
	[ -e "$there" ] || there=
	replace+="${replace:+,}\"$PWD/$file\":\"$there\""
done < <({ find $engine -name '*.go'; cd "$dir" && find $engine -name '*.go'; } | sort -u)
echo "{\"Replace\":{$replace}}" >"$dir/overlay.json"
if ! go build -tags enginebefore -overlay "$dir/overlay.json" -o "$dir/eval" ./test/bench/eval; then
	echo "the engine of $commit does not build with this evaluation, and is left out" >&2
	exit 0
fi
echo "the families, with the engine of $commit ($base)" >&2
"$dir/eval" -as before "${@:2}"
