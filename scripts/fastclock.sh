#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds commands whose clock runs faster than the machine's, for test/bench/week: the
# same sources, with a runtime whose time since FAST_CLOCK's begin counts several times.
# Timers, deadlines, timestamps and Go's own periods all go by that clock; the kernel's
# accounts of CPU do not. Everything is compiled once for it, some minutes.
# Usage: scripts/fastclock.sh DIRECTORY COMMAND..., as in .cache/week gpu-collector fleetsim
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
dir=$PWD/.cache/fastclock
mkdir -p "$dir" "$out"
src=$(go env GOROOT)/src
[ "$(go env GOOS)" = linux ] || { echo "fastclock: needs Linux, whose runtime it knows" >&2; exit 1; }

# edit FILE TEXT SCRIPT writes FILE of the standard library as the script changes it,
# into which TEXT has to come.
replace=
edit() {
	local to=$dir/${1//\//_}
	sed "$3" "$src/$1" >"$to"
	grep -qF "$2" "$to" || { echo "fastclock: $src/$1 is not as this script knows it: it lacks the place for \"$2\"" >&2; exit 1; }
	replace+="\"$src/$1\": \"$to\", "
}
edit runtime/time_nofake.go 'fast.nano(nanotime1())' 's|^\treturn nanotime1()$|\treturn fast.nano(nanotime1())|'
edit runtime/time.go 'fast.now(time_now())' 's|^\treturn time_now()$|\treturn fast.now(time_now())|'
edit runtime/os_linux.go 'ns = fast.wait(ns)' 's|^\tts.setNsec(ns)$|\tns = fast.wait(ns)\n&|'
edit runtime/netpoll_epoll.go 'delay = fast.wait(delay)' 's|^\tvar waitms int32$|\tdelay = fast.wait(delay)\n&|'
edit time/time.go 'func SetSpeed(' '$a\\n// SetSpeed has the clock run faster since a time in Unix nanoseconds.\n//\n//go:linkname SetSpeed\nfunc SetSpeed(speed, since int64)'
replace+="\"$src/runtime/fastclock.go\": \"$PWD/test/bench/week/clock/runtime.go.txt\""
for command; do replace+=", \"$PWD/cmd/$command/fastclock.go\": \"$PWD/test/bench/week/clock/main.go.txt\""; done
printf '{"Replace": {%s}}\n' "$replace" >"$dir/overlay.json"
echo "building $* with a clock of their own (the first time takes some minutes)" >&2
for command; do
	CGO_ENABLED=0 go build -buildvcs=false -overlay "$dir/overlay.json" -ldflags '-s -w' -o "$out/$command" "./cmd/$command"
done
