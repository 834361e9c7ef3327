#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes ready what the tests of the Python package need: pytest, mypy, build and
# PyTorch for the CPU, all Debian's packages. Prints the interpreter that has them.
# PYTHON names one of your own.
set -euo pipefail

die() { echo "the Python tests: $*" >&2; exit 1; }

python=${PYTHON:-/usr/bin/python3}
if ! "$python" -c 'from importlib.util import find_spec
exit(None in map(find_spec, "pytest mypy build setuptools wheel torch".split()))'; then
	packages=(python3-pytest mypy python3-build python3-setuptools python3-wheel python3-torch)
	[ -z "${PYTHON:-}" ] || die "$python lacks pytest, mypy, build, setuptools, wheel or torch"
	command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] ||
		die "needs ${packages[*]}: install them, or set PYTHON to an interpreter that has them"
	echo "installing Debian's ${packages[*]} (once, some 150 MB)" >&2
	{
		apt-get install -y --no-install-recommends "${packages[@]}" ||
			{ apt-get update -q && apt-get install -y --no-install-recommends "${packages[@]}"; }
	} >&2 || die "${packages[*]} cannot be installed"
fi
echo "$python"
