#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Plays the families of test/scenarios to the straggler engine of another commit, as
# the decider "before": this tree's families and judge, in a tree of that commit. An
# engine that this evaluation does not know how to ask is left out.
# Usage: scripts/enginebefore.sh COMMIT [ARGUMENTS OF test/bench/eval]
set -euo pipefail
cd "$(dirname "$0")/.."
commit=$1 dir=$PWD/.cache/engine-before
base=$(git rev-parse --verify --quiet "$commit^{commit}") || { echo "BASE=$commit: no such commit here; in a shallow clone run: git fetch --unshallow" >&2; exit 1; }
rm -rf "$dir"
mkdir -p "$dir"
git archive "$base" | tar -x -C "$dir"
for part in test/scenarios test/bench/eval test/bench/figure tools/page; do
	rm -rf "${dir:?}/$part"
	mkdir -p "$(dirname "$dir/$part")" && cp -R $part "$dir/$part"
done
if ! (cd "$dir" && go build -o eval ./test/bench/eval); then
	echo "the engine of $commit does not build with this evaluation, and is left out" >&2
	exit 0
fi
echo "the families, with the engine of $commit ($base)" >&2
"$dir/eval" -as before "${@:2}"
