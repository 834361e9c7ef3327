#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a stock collector with two of our components as a user of OCB would, in a
# module of its own outside this one. The collector validates a config. Then the
# builder writes a collector for each component alone.
set -euo pipefail
cd "$(dirname "$0")"

root=$(cd ../.. && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
step() { printf 'ocb: %s (%ss)\n' "$1" "$SECONDS"; }
fail() { printf 'ocb: %s\n' "$1" >&2; exit 1; }

step "the pinned builder"
ocb=$("$root/scripts/tool.sh" ocb)

step "sources and modules, with strict versions"
sed -e "s|^  output_path:.*|  output_path: $work/dist|" -e "s|path: \.\./\.\.\$|path: $root|" builder-config.yaml >"$work/manifest.yaml"
"$ocb" --config "$work/manifest.yaml" --skip-compilation >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

# As OCB compiles, but without -trimpath: that would build every dependency
# anew, beside what the cache has from this module.
step "compile"
(cd "$work/dist" && CGO_ENABLED=0 go build -ldflags '-s -w' -o collector .)

step "both components are in"
"$work/dist/collector" components >"$work/components"
for name in straggler straggler_threshold; do
	grep -q "name: $name\$" "$work/components" || fail "component $name is missing"
done

step "a good config passes"
"$work/dist/collector" validate --config config.yaml

step "a bad one does not"
if "$work/dist/collector" validate --config config.yaml --config 'yaml:processors::straggler::mode: judge' >"$work/log" 2>&1; then
	fail "validate accepted mode: judge"
fi
grep -q '`mode` is "judge"' "$work/log" || { cat "$work/log" >&2; fail "the refusal does not name \`mode\`"; }

# Each component alone: the builder resolves its modules with strict versions
# and writes a Collector, which then has to hold together. To link each one
# would take longer than all the rest.
kinds=(receivers processors exporters extensions)
for metadata in "$root"/{receiver,processor,exporter,extension}/*/metadata.yaml; do
	dir=${metadata%/metadata.yaml}
	dir=${dir#"$root"/}
	step "$dir alone"
	alone=$work/alone
	rm -rf "$alone"
	mkdir "$alone"
	{
		printf 'dist: {module: example.com/alone, name: alone, output_path: %s}\n' "$alone"
		for kind in "${kinds[@]}"; do
			printf '%s:\n' "$kind"
			case $kind in
			receivers) printf '  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver v0.155.0\n' ;;
			exporters) printf '  - gomod: go.opentelemetry.io/collector/exporter/debugexporter v0.155.0\n' ;;
			esac
			[ "${dir%%/*}s" = "$kind" ] || continue
			printf '  - gomod: github.com/gpu-collector/gpu-collector v0.0.0\n    import: github.com/gpu-collector/gpu-collector/%s\n    path: %s\n' "$dir" "$root"
		done
		printf 'providers:\n  - gomod: go.opentelemetry.io/collector/confmap/provider/fileprovider v1.61.0\n'
	} >"$work/alone.yaml"
	"$ocb" --config "$work/alone.yaml" --skip-compilation >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$dir alone"; }
	(cd "$alone" && CGO_ENABLED=0 go vet .) || fail "$dir alone"
done
step "ok"
