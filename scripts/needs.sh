#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints at once all that is missing on this machine for `make run` or `make test`, each with what
# brings it, and fails then. Usage: scripts/needs.sh run|test
set -uo pipefail
cd "${0%/*}/.."

missing=()
need() { missing+=("  $1: $2"); }
packages() { echo "apt install $1 (Debian, Ubuntu), dnf install ${2:-$1} (Fedora)"; }
have() { command -v "$1" >/dev/null; }
at_least() { # VERSION MAJOR.MINOR
	local major minor
	IFS=. read -r major minor _ <<<"${1//[!0-9.]/}."
	((${major:-0} > ${2%.*} || (${major:-0} == ${2%.*} && ${minor:-0} >= ${2#*.})))
}

for tool in git make; do
	have $tool || need $tool "$(packages $tool)"
done

while read -r word version _; do [ "$word" != go ] || wanted=$version; done <go.mod
# The version that would build this module: Go may fetch it by itself.
found=$(go env GOVERSION 2>&1) && at_least "$found" "$wanted" ||
	need "Go $wanted or later (here: ${found##*: })" "https://go.dev/dl/"

# Without a C compiler Go builds the demo without C.
if have gcc || [ "$1" = test ]; then
	gcc -fsyntax-only -x c - <<<'#include <stdlib.h>' 2>/dev/null || need "gcc, with the headers of the C library" "$(packages 'gcc libc6-dev' gcc)"
fi

if [ "$1" = test ]; then
	found=$(node --version 2>&1) && at_least "$found" 18.0 ||
		need "Node 18 or later (here: ${found##*: })" "$(packages nodejs), or https://nodejs.org/en/download"
	python=${PYTHON:-python3}
	# scripts/python.sh makes an environment, or as root installs Debian's packages.
	"$python" -c 'import sys, mypy, pytest, setuptools, wheel; assert sys.version_info >= (3, 9)' 2>/dev/null ||
		{ [ -z "${PYTHON:-}" ] && { "$python" -c 'import sys, ensurepip, venv; assert sys.version_info >= (3, 9)' 2>/dev/null || { [ $UID = 0 ] && have apt-get; }; }; } ||
		need "Python 3.9 or later with venv and pip" "$(packages 'python3-venv' python3)"
fi

[ ${#missing[@]} = 0 ] && exit
echo "make $1 needs, besides what is here:" >&2
printf '%s\n' "${missing[@]}" >&2
exit 1
