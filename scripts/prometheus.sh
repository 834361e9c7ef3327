#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the directories of a Prometheus server, of VictoriaMetrics and of nginx, for the
# PATH of the tests that run them: where they are installed, or Debian's
# packages, unpacked into .cache and not installed, which would start them as
# services.
set -euo pipefail
cd "$(dirname "$0")/.."

# directory PACKAGE BINARY [DIRECTORY] prints where the binary is.
directory() {
	if command -v "$2" >/dev/null; then
		dirname "$(command -v "$2")"
		return
	fi
	local cache=$PWD/.cache/$1 dir=${3:-usr/bin}
	if [ ! -x "$cache/$dir/$2" ]; then
		if ! command -v apt-get >/dev/null; then
			echo "a test needs $2: install $1, so that it is on the PATH" >&2
			return 1
		fi
		echo "fetching Debian's package $1 (once)" >&2
		mkdir -p "$cache"
		(
			cd "$cache"
			apt-get download -q "$1" || { apt-get update -q && apt-get download -q "$1"; }
			dpkg-deb -x "$1"_*.deb .
			rm "$1"_*.deb
		) >&2
	fi
	echo "$cache/$dir"
}

prometheus=$(directory prometheus prometheus)
victoria=$(directory victoria-metrics victoria-metrics)
router=$(directory nginx nginx usr/sbin)
echo "$prometheus:$victoria:$router"
