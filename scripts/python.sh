#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints a Python that has what the tests of python/ need, and the modules that it is asked for:
# PYTHON's, the PATH's, or Debian's, whose packages it installs where root may.
# Usage: scripts/python.sh [MODULE...]
set -euo pipefail

modules=(pytest mypy setuptools wheel "$@")
lacks() { "$1" -c 'import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if not u.find_spec(m)])' "${modules[@]}" 2>&1; }

for python in ${PYTHON:-python3 /usr/bin/python3}; do
	missing=$(lacks "$python") || true
	[ -n "$missing" ] || { echo "$python"; exit; }
done
packages=$(printf '%s\n' "${modules[@]}" | sed 's/^/python3-/; s/^python3-mypy$/mypy/' | paste -sd' ')
if [ -n "${PYTHON:-}" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "the tests of python/: $python lacks $missing. Install Debian's $packages, or let PYTHON be an interpreter that has them" >&2
	exit 1
fi
echo "installing Debian's $packages (once)" >&2
install() { apt-get install -qq -y --no-install-recommends $packages; } # shellcheck disable=SC2086
{ install || { apt-get update -q && install; }; } >&2
missing=$(lacks /usr/bin/python3)
[ -z "$missing" ] || { echo "the tests of python/: /usr/bin/python3 lacks $missing after apt-get install $packages" >&2; exit 1; }
echo /usr/bin/python3
