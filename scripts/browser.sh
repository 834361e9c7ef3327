#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes ready what the test of the web page needs: Node, Chromium and packages of npm.
# Prints the directory of node_modules. Chromium is Debian's package; the others go
# into the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."

PLAYWRIGHT=1.64.1 # drives Chromium
AXE=4.14.1        # finds what people with disabilities cannot use

die() { echo "the browser test: $*" >&2; exit 1; }

packages=()
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)
command -v "${CHROMIUM:-chromium}" >/dev/null || packages+=(chromium)
if [ ${#packages[@]} -gt 0 ]; then
	command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] ||
		die "needs ${packages[*]}: install them, or set CHROMIUM to a Chromium of your own"
	echo "installing Debian's ${packages[*]} (once)" >&2
	{
		apt-get install -y --no-install-recommends "${packages[@]}" ||
			{ apt-get update -q && apt-get install -y --no-install-recommends "${packages[@]}"; }
	} >&2 || die "${packages[*]} cannot be installed"
fi

cache=$(scripts/tool.sh --cache)/browser-$PLAYWRIGHT-$AXE
if [ ! -d "$cache/node_modules/axe-core" ]; then
	echo "fetching playwright-core $PLAYWRIGHT and axe-core $AXE (once)" >&2
	npm install --prefix "$cache" --no-save --no-audit --no-fund --ignore-scripts --silent \
		"playwright-core@$PLAYWRIGHT" "axe-core@$AXE" >&2 || die "the packages of npm cannot be fetched"
fi
echo "$cache/node_modules"
