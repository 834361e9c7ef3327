#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the directory of prometheus-otlp and victoria-metrics-otlp, for the PATH of
# the tests that push OTLP to them: servers that Debian's packages are too old for,
# of the versions that tools/pinned/metricstores pins, built once into .cache/tools.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/.cache/tools
mkdir -p "$tools"

# server NAME TAGS PACKAGE builds a server unless it is there with that version.
server() {
	local stamp=$tools/$1.sum
	if [ ! -x "$tools/$1" ] || ! cmp -s tools/pinned/metricstores/go.mod "$stamp"; then
		echo "building $1 (once, a minute or two)" >&2
		(cd tools/pinned/metricstores && CGO_ENABLED=0 go build -tags "$2" -ldflags '-s -w' -o "$tools/$1" "$3") >&2
		cp tools/pinned/metricstores/go.mod "$stamp"
	fi
}

# Without service discovery, which is most of it.
server prometheus-otlp remove_all_sd github.com/prometheus/prometheus/cmd/prometheus
server victoria-metrics-otlp '' github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics
echo "$tools"
