#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the directories of helm, helm-unittest and kubeconform, for the PATH of
# the chart's tests: those in $CHART_TOOLS or on the PATH, or pinned versions
# through the Go module proxy, built once into .cache/tools.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/.cache/tools
PATH="${CHART_TOOLS:+$CHART_TOOLS:}$tools:$PATH"

# helm of version 3 is fine for users; the tests say what version 4 says.
suits() { [ "$1" != helm ] || helm version --short 2>/dev/null | grep -q '^v4'; }

# tool NAME COMMAND... prints where it is; the command builds it into $tools.
tool() {
	local name=$1
	shift
	if ! command -v "$name" >/dev/null || ! suits "$name"; then
		echo "building $name (once, some minutes)" >&2
		mkdir -p "$tools"
		"$@" >&2
	fi
	hash -r
	dirname "$(command -v "$name")"
}

install() { (cd "$tools" && GOBIN=$tools CGO_ENABLED=0 go install -ldflags '-s -w' "$1"); }
# Its module replaces another one, which `go install` refuses; so does ours.
build_unittest() { (cd tools/pinned/helm-unittest && CGO_ENABLED=0 go build -ldflags '-s -w' -o "$tools/helm-unittest" github.com/helm-unittest/helm-unittest/cmd/helm-unittest); }

directories=$(tool helm install helm.sh/helm/v4/cmd/helm@v4.3.1)
directories+=:$(tool kubeconform install github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0)
directories+=:$(tool helm-unittest build_unittest)
echo "$directories"
