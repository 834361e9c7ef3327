#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints how many lines of Go people wrote, by room: code and tests. Generated files and
# testdata do not count.
set -euo pipefail
cd "$(dirname "$0")/.."

git ls-files '*.go' | grep -v -e /testdata/ | xargs grep -L '^// Code generated .* DO NOT EDIT\.$' |
	xargs wc -l | awk '
		$2 == "total" { next }
		{
			n = split($2, part, "/")
			room = n == 1 ? "." : part[1] (n > 2 ? "/" part[2] : "")
			if ($2 ~ /_test\.go$/) { tests[room] += $1; test += $1 } else { lines[room] += $1; code += $1 }
			rooms[room]
		}
		END {
			for (room in rooms) printf "%-34s %7d %7d\n", room, lines[room], tests[room] | "sort"
			close("sort")
			printf "%-34s %7d %7d\n", "all", code, test
		}'
