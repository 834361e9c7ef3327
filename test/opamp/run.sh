#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the lean agent with contrib's OpAMP extension, as docs/operations.md
# says, and shows that each of the extension's keys takes effect. The tools of
# test/ocb/run.sh, a C compiler.
set -euo pipefail
cd "$(dirname "$0")"

extension=github.com/open-telemetry/opentelemetry-collector-contrib/extension/opampextension
version=v0.149.0
root=$(cd ../.. && pwd)
tools=$root/.cache/tools
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
step() { printf 'opamp: %s (%ss)\n' "$1" "$SECONDS"; }

step "the lean agent's manifest, and a line more"
mkdir -p "$tools"
(cd "$root/tools/pinned" && go build -o "$tools/ocb" go.opentelemetry.io/collector/cmd/builder)
sed -e "s|^  module:.*|  module: example.com/agent|" -e "s|^  output_path:.*|  output_path: $work/dist|" -e "s|path: \.\$|path: $root|" \
	-e "s|^extensions:|&\n  - gomod: $extension $version|" "$root/builder-config-agent.yaml" >"$work/manifest.yaml"
grep -qF -- "- gomod: $extension $version" "$root/docs/operations.md" || { echo "opamp: docs/operations.md does not have the line of $version" >&2; exit 1; }
"$tools/ocb" --config "$work/manifest.yaml" --skip-compilation >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

step "compile" # as the builder does, but from the cache: without -trimpath
(cd "$work/dist" && CGO_ENABLED=1 go build -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o agent .)

step "each key"
OPAMP_EXTENSION=$(cd "$work/dist" && go list -m -f '{{.Dir}}' "$extension")
COLLECTOR=$work/dist/agent OPAMP_EXTENSION=$OPAMP_EXTENSION CGO_ENABLED=0 go test -count=1 -timeout 8m ./...
step "ok"
