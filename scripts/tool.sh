#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the path of each tool that it is asked for, and builds what is missing: once per
# machine and version, into the user's cache, so that a new clone builds none.
# Usage: scripts/tool.sh NAME...          a path per line
#        scripts/tool.sh --path NAME...   their folders, for the PATH
#        scripts/tool.sh --cache          the folder of the cache
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-collector
# A tool must not depend on the caller's flags.
export GOFLAGS=-trimpath GOWORK=off

# pinned DIRECTORY PACKAGE [TAGS]: the version is the one of a module in tools/.
pinned() { version=$(sha256sum "$1/go.mod" | cut -c 1-12) from=$1 package=$2 tags=${3:-}; }
# released PACKAGE VERSION
released() { version=$2 from='' package=$1@$2 tags=''; }

# Debian's prometheus and victoria-metrics speak no OTLP: hence the two of metricstores.
describe() {
	cgo=0
	case $1 in
	golangci-lint) released github.com/golangci/golangci-lint/v2/cmd/golangci-lint v2.12.0 ;;
	govulncheck) released golang.org/x/vuln/cmd/govulncheck v1.3.0 ;;
	vale) released github.com/vale-cli/vale/v3/cmd/vale v3.21.0 && cgo=1 ;; # parsers in C
	helm) released helm.sh/helm/v4/cmd/helm v4.3.1 ;;
	kubeconform) released github.com/yannh/kubeconform/cmd/kubeconform v0.8.0 ;;
	gojq) released github.com/itchyny/gojq/cmd/gojq v0.12.17 ;;
	# Its module replaces another one, which `go install` refuses; so does ours.
	helm-unittest) pinned tools/pinned/helm-unittest github.com/helm-unittest/helm-unittest/cmd/helm-unittest ;;
	prometheus-otlp) pinned tools/pinned/metricstores github.com/prometheus/prometheus/cmd/prometheus remove_all_sd ;;
	victoria-metrics-otlp) pinned tools/pinned/metricstores github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics ;;
	cyclonedx-gomod) pinned packaging/check github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod ;;
	ocb) pinned tools/pinned go.opentelemetry.io/collector/cmd/builder ;;
	mdatagen) pinned tools/pinned go.opentelemetry.io/collector/cmd/mdatagen ;;
	oapi-codegen) pinned tools/pinned github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen ;;
	*) echo "tool: $1 is no tool of this script; it knows $(sed -n 's/^\t\([a-z-]*\)) .*/\1/p' "$0" | paste -sd' ')" >&2; exit 1 ;;
	esac
}

build() { # NAME FILE
	local work
	work=$(mktemp -d "$cache/$1.XXXXXX")
	echo "building $1 $version (once per machine, some minutes)" >&2
	if [ -n "$from" ]; then
		(cd "$from" && CGO_ENABLED=$cgo CGO_CFLAGS=-w go build -tags "$tags" -ldflags '-s -w' -o "$work/$1" "$package") >&2
	else
		(cd "$work" && GOBIN=$work CGO_ENABLED=$cgo CGO_CFLAGS=-w go install -ldflags '-s -w' "$package") >&2
	fi
	mkdir -p "$(dirname "$2")"
	mv "$work/$1" "$2" # at once: another clone may look for it
	rm -r "$work"
}

mkdir -p "$cache"
case ${1:-} in
--cache) echo "$cache" && exit ;;
--path) shift; files=$(scripts/tool.sh "$@") && xargs dirname <<<"$files" | paste -sd:; exit ;;
esac
for name; do
	describe "$name"
	file=$cache/$name-$version/$name
	[ -x "$file" ] || build "$name" "$file"
	echo "$file"
done
