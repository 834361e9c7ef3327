#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compares the benchmarks of the hot paths with those of another commit. Both
# run in turns, so that other load on the machine meets both.
# Without BASE it is the commit before the last that changed the collector: a later
# commit would have the same code.
# Usage: BASE=v0.1.0 COUNT=6 BENCHTIME=100ms scripts/benchcompare.sh
set -euo pipefail
cd "$(dirname "$0")/.."
BASE=${BASE:-$(git rev-list -1 HEAD -- '*.go' ':!*_test.go' ':!test' go.mod go.sum)~1}
base=$(git rev-parse --verify --quiet --short "$BASE") || { echo "BASE=$BASE: no such commit here; in a shallow clone run: git fetch --unshallow"; exit 1; }
count=${COUNT:-6} benchtime=${BENCHTIME:-100ms}

# Per push, per point, per tick: a package, its benchmarks, and where the package
# was before it moved.
hot='
internal/delta Wire|Buffer internal/metricdiff
internal/delta/statetable Report internal/statetable
processor/diffprocessor Diff
internal/nodescore Evaluate
internal/straggler Observe|Tick
processor/stragglerprocessor ObserveNode|CollectReading|Facts
internal/threshold Respond
extension/thresholdextension Answer
internal/admission AcquireRelease|Refuse
extension/admissionextension Tap
internal/gpuhealth Observe
exporter/fleetviewexporter Report
'

tmp=$(mktemp -d)
trap 'git worktree remove --force "$tmp/base" 2>/dev/null || true; rm -rf "$tmp"' EXIT
git worktree add --quiet --detach "$tmp/base" "$base"
mkdir -p "$tmp/old" "$tmp/new"
benchstat=$(scripts/tool.sh benchstat)

echo "building the benchmarks of this tree and of $base" >&2
# at prints where a package lies on a side, nothing where that side lacks it.
at() { # side dir [former dir]
	tree=$PWD
	[ "$1" = new ] || tree=$tmp/base
	for dir in "${@:2}"; do
		if compgen -G "$tree/$dir/*_test.go" >/dev/null; then echo "$tree/$dir"; return; fi
	done
}

while read -r dir benches before; do
	[ -n "$dir" ] || continue
	for side in old new; do
		# A package that the other commit lacks has nothing to be compared with.
		where=$(at $side "$dir" $before)
		[ -z "$where" ] || (cd "$where" && go test -c -o "$tmp/$side/${dir//\//_}" .)
	done
done <<<"$hot"

for ((round = 1; round <= count; round++)); do
	echo "round $round of $count" >&2
	while read -r dir benches before; do
		[ -n "$dir" ] || continue
		for side in old new; do
			bin=$tmp/$side/${dir//\//_}
			[ -x "$bin" ] || continue
			# Under one name, or benchstat would not compare what has moved.
			(cd "$(at $side "$dir" $before)" && "$bin" -test.run '^$' -test.bench "^Benchmark($benches)" -test.benchmem -test.benchtime "$benchtime" -test.cpu 1) |
				sed "s|^pkg: .*|pkg: $dir|" >>"$tmp/$side.txt"
		done
	done <<<"$hot"
done

"$benchstat" "$base=$tmp/old.txt" "this=$tmp/new.txt"
# A figure for each whose time changed more than by chance, and the mean of all.
"$benchstat" -format csv "$base=$tmp/old.txt" "this=$tmp/new.txt" 2>/dev/null | awk -F, '
	# The mean of a package is of what both sides have: geomean is of all that each has.
	function close_package() { if (rows) { logs += sum / rows; packages++ } sum = rows = 0 }
	/^pkg: / { close_package(); n = split(substr($1, 6), part, "/"); pkg = part[n]; time = 0 }
	/,sec\/op,/ { time = 1; next }
	/,(B|allocs)\/op,/ { time = 0; next }
	!time || NF < 6 || $1 == "geomean" || $2 <= 0 || $4 <= 0 { next }
	{ sum += log($4 / $2); rows++ }
	$6 ~ /%/ { name = pkg "_" $1; gsub(/[^A-Za-z0-9_]/, "_", name); printf "figure compare_%s %.3f x limit 1.1 %s\n", name, $4 / $2, $4 / $2 <= 1.1 ? "pass" : "short" }
	END { close_package(); if (packages) printf "figure compare_geomean %.3f x limit 1.05 %s\n", exp(logs / packages), exp(logs / packages) <= 1.05 ? "pass" : "short" }'
