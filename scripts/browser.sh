#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes ready what the test of the web page needs: Node, Chromium and
# playwright-core, which drives it. Prints the directory of node_modules.
# Chromium is Debian's package; playwright-core goes into the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."

PLAYWRIGHT=1.64.1

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

cache=$(scripts/tool.sh --cache)/playwright-core-$PLAYWRIGHT
if [ ! -d "$cache/node_modules/playwright-core" ]; then
	echo "fetching playwright-core $PLAYWRIGHT (once)" >&2
	npm install --prefix "$cache" --no-save --no-audit --no-fund --ignore-scripts --silent \
		"playwright-core@$PLAYWRIGHT" >&2 || die "playwright-core $PLAYWRIGHT cannot be fetched"
fi
echo "$cache/node_modules"
