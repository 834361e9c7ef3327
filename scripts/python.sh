#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints a Python that has what the tests of python/ need, and the modules that it is asked for:
# PYTHON's, the PATH's, or Debian's. Where none has them, it makes an environment in the user's
# cache by venv and pip, or as root installs Debian's packages.
# Usage: scripts/python.sh [MODULE...]
set -euo pipefail
cd "$(dirname "$0")/.."

modules=(pytest mypy setuptools wheel "$@")
pins=(pytest==8.3.5 mypy==1.15.0 setuptools==78.1.1 wheel==0.46.1) # Debian 13's
missing_of() { "$1" -c 'import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if not u.find_spec(m)])' "${modules[@]}" 2>&1; }
found() { missing=$(missing_of "$1") && [ -z "$missing" ] && echo "$1"; }

venv=$(scripts/tool.sh --cache)/python-$(sha256sum <<<"${pins[*]}" | cut -c 1-12)
for python in ${PYTHON:-"$venv/bin/python" python3 /usr/bin/python3}; do
	! found "$python" || exit 0
done

# Others, such as PyTorch, are too large for it.
environment() {
	local work=$venv.$$
	echo "fetching ${pins[*]} into $venv (once)" >&2
	{ python3 -m venv "$work" && "$work/bin/python" -m pip install --quiet --retries 1 "${pins[@]}"; } >&2 || { rm -rf "$work"; return 1; }
	rm -rf "$venv" && mv "$work" "$venv" # at once: another clone may look for it
}
if [ -z "${PYTHON:-}" ] && [ $# = 0 ] && environment && found "$venv/bin/python"; then
	exit 0
fi

packages=$(printf '%s\n' "${modules[@]}" | sed 's/^/python3-/; s/^python3-mypy$/mypy/' | paste -sd' ')
if [ -n "${PYTHON:-}" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "the tests of python/: $python does not have $missing. Install Debian's $packages, or let PYTHON be an interpreter that has them" >&2
	exit 1
fi
echo "installing Debian's $packages (once)" >&2
install() { apt-get install -qq -y --no-install-recommends $packages; } # shellcheck disable=SC2086
{ install || { apt-get update -q && install; }; } >&2
found /usr/bin/python3 || { echo "the tests of python/: /usr/bin/python3 does not have $missing after apt-get install $packages" >&2; exit 1; }
