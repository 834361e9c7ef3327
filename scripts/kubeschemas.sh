#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes test/chart/schemas anew, the schemas that kubeconform holds the chart's
# objects to. They come from the Go modules of Kubernetes and of the makers of
# the custom resources. Run it after a change of a version below.
set -euo pipefail
cd "$(dirname "$0")/.."

# An object that is valid in these versions is of an API that newer ones serve too.
kubernetes=k8s.io/kubernetes@v1.36.3
kinds='admissionregistration.v1.ValidatingAdmissionPolicy admissionregistration.v1.ValidatingAdmissionPolicyBinding core.v1.ConfigMap core.v1.PersistentVolumeClaim core.v1.Pod core.v1.Service core.v1.ServiceAccount
	apps.v1.DaemonSet apps.v1.Deployment apps.v1.StatefulSet autoscaling.v2.HorizontalPodAutoscaler
	networking.v1.Ingress networking.v1.NetworkPolicy policy.v1.PodDisruptionBudget rbac.v1.ClusterRole rbac.v1.ClusterRoleBinding rbac.v1.Role rbac.v1.RoleBinding'
prometheus=github.com/prometheus-operator/prometheus-operator@v0.85.0:example/prometheus-operator-crd/monitoring.coreos.com
gateway=sigs.k8s.io/gateway-api@v1.6.3:config/crd/standard/gateway.networking.k8s.io
custom="github.com/cert-manager/cert-manager@v1.21.2:deploy/crds/cert-manager.io_certificates
	github.com/kedacore/keda/v2@v2.21.0:config/crd/bases/keda.sh_scaledobjects
	${prometheus}_podmonitors ${prometheus}_prometheusrules ${prometheus}_servicemonitors
	${gateway}_grpcroutes ${gateway}_httproutes"

out=$PWD/test/chart/schemas
mkdir -p .cache/tools
GOBIN=$PWD/.cache/tools CGO_ENABLED=0 go install github.com/itchyny/gojq/cmd/gojq@v0.12.17
run() { .cache/tools/gojq -c -L scripts "$@"; }
# Not this module's requirements.
module() { (cd / && go mod download -json "$1" | jq -r .Dir); }

names=()
for kind in $kinds; do
	names+=("io.k8s.api.$kind")
	IFS=. read -r group version name <<<"$kind"
	file=$(tr '[:upper:]' '[:lower:]' <<<"$name")-${group/#core/}-$version.json
	jq -cn --arg name "io.k8s.api.$kind" '{"$ref": "_definitions.json#/definitions/\($name)"}' >"$out/${file/--/-}"
done
run 'include "kubeschemas"; core($ARGS.positional)' "$(module $kubernetes)/api/openapi-spec/swagger.json" --args "${names[@]}" >"$out/_definitions.json"
for c in $custom; do
	text=$(run --yaml-input 'include "kubeschemas"; custom' "$(module "${c%%:*}")/${c#*:}.yaml")
	jq -c .schema <<<"$text" >"$out/$(jq -r .file <<<"$text").json"
done
