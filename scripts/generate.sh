#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes everything that is generated: components.go of the distributions
# (OCB), the metadata of each component (mdatagen), the API's document and its
# client (oapi-codegen), and the chart's copies of configs/ and dashboards/. The
# versions of the tools are pinned in tools/pinned/go.mod.
set -euo pipefail
cd "$(dirname "$0")/.."

{ read -r ocb && read -r mdatagen && read -r oapi_codegen; } < <(scripts/tool.sh ocb mdatagen oapi-codegen)

# OCB writes a main.go too; ours is ours, so only components.go is taken.
generate_components() { # MANIFEST DIRECTORY
	local out
	out=$(mktemp -d)
	sed "s|^  output_path:.*|  output_path: $out|" "$1" >"$out/manifest.yaml"
	# `path: .` in the manifest is relative to it.
	sed -i "s|path: \.\$|path: $PWD|" "$out/manifest.yaml"
	"$ocb" --config "$out/manifest.yaml" --skip-get-modules --skip-compilation >"$out/log" 2>&1 \
		|| { cat "$out/log" >&2; return 1; }
	cp "$out/components.go" "$2/components.go"
	gofmt -w "$2/components.go"
	rm -rf "$out"
}
generate_components builder-config.yaml cmd/gpu-collector
generate_components builder-config-agent.yaml cmd/gpu-collector-agent
generate_components builder-config-demo.yaml cmd/gpu-collector-demo

for metadata in $(git ls-files -co --exclude-standard '*/metadata.yaml' | grep -E '^(receiver|processor|exporter|extension|connector)/'); do
	(cd "$(dirname "$metadata")" && "$mdatagen" metadata.yaml)
	# mdatagen knows no address of a distribution that is not the Collector project's own.
	sed -i 's|^\[gpu-collector\]: *$|[gpu-collector]: https://github.com/gpu-collector/gpu-collector|' "$(dirname "$metadata")/README.md"
done

# Before what imports the receiver: it writes code of the receiver too.
go run ./tools/metricdoc

# The documents come from the code: the API's, and tables of docs/ and of the chart.
go run ./tools/docs
(cd pkg/fleetclient && "$oapi_codegen" -config codegen.yaml openapi.json)

# A chart cannot read what lies outside of its directory.
chart=helm/gpu-collector/files
rm -rf "$chart"
mkdir -p "$chart"/{configs,grafana,prometheus}
cp configs/{agent,gateway,shard,kafka-shard,kafka-root}.yaml configs/overlays/{dcgm-names,nccl,remote-write}.yaml configs/kubernetes/cluster.yaml "$chart/configs/"
cp dashboards/grafana/*.json "$chart/grafana/"
cp dashboards/prometheus/{alerts,rules}.yaml "$chart/prometheus/"
