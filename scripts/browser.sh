#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes ready what the test of the web page needs: Node, Chromium, and packages of
# npm. Prints the directory of node_modules. Chromium is Debian's package; the
# others go into .cache/browser-*.
set -euo pipefail
cd "$(dirname "$0")/.."

PLAYWRIGHT=1.64.1 # drives Chromium
AXE=4.14.1        # finds what people with disabilities cannot use
UPLOT=1.6.32      # the page's plots, to compare with our copy

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

cache=$PWD/.cache/browser-$PLAYWRIGHT-$AXE-$UPLOT
if [ ! -d "$cache/node_modules/uplot" ]; then
	echo "fetching playwright-core $PLAYWRIGHT, axe-core $AXE and uplot $UPLOT (once)" >&2
	npm install --prefix "$cache" --no-save --no-audit --no-fund --ignore-scripts --silent \
		"playwright-core@$PLAYWRIGHT" "axe-core@$AXE" "uplot@$UPLOT" >&2 || die "the packages of npm cannot be fetched"
fi
echo "$cache/node_modules"
