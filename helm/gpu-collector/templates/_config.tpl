{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/*
The configurations are those of configs/ in the repository, which `make
generate` copies into files/, with what Kubernetes and the values ask for
merged over them. These templates change the dictionary `config` in place.
*/}}

{{- define "gpu-collector.config.base" -}}
{{- $config := .root.Files.Get (printf "files/configs/%s.yaml" .file) | fromYaml -}}
{{- if not (hasKey $config "service") -}}
{{- fail (printf "files/configs/%s.yaml is not a configuration: %s" .file (toString $config)) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* server: what every tier has: health and its own metrics beyond loopback, for the kubelet and for who scrapes. */}}
{{- define "gpu-collector.config.common" -}}
{{- $listen := "${env:GPU_COLLECTOR_LISTEN:-0.0.0.0}" -}}
{{- $_ := mustMergeOverwrite .config (dict
  "extensions" (dict "healthcheckv2" (dict "http" (dict "endpoint" (printf "%s:13133" $listen))))
  "service" (dict "telemetry" (dict
    "logs" (dict "level" .root.Values.logs.level "encoding" .root.Values.logs.encoding)
    "metrics" (dict "readers" (list (dict "pull" (dict "exporter" (dict "prometheus" (dict "host" .root.Values.listenAddress "port" 8888)))))))))
-}}
{{- end -}}

{{/* agent: configs/agent.yaml for a pod of the DaemonSet. */}}
{{- define "gpu-collector.config.agent" -}}
{{- $values := .Values.agent -}}
{{- $config := include "gpu-collector.config.base" (dict "root" . "file" "agent") | fromYaml -}}
{{- include "gpu-collector.config.common" (dict "root" . "config" $config) -}}
{{- $node := "${env:K8S_NODE_NAME}" -}}
{{- /* The host's name in a pod is the pod's. */ -}}
{{- $_ := mustMergeOverwrite $config (dict
  "receivers" (dict "nvml" (dict "resource_attributes" (dict "host.name" (dict "override_value" $node))))
  "processors" (dict "straggler" (dict "agent" (dict "node_name" $node))))
-}}
{{- with dig "limits" "memory" "" $values.resources -}}
{{- $limit := div (include "gpu-collector.bytes" . | int64) 1048576 -}}
{{- $_ := mustMergeOverwrite $config (dict "processors" (dict "memory_limiter" (dict
  "limit_mib" (div (mul $limit 80) 100) "spike_limit_mib" (div (mul $limit 16) 100)))) -}}
{{- end -}}
{{- if $values.otlp.enabled -}}
{{- $listen := "${env:GPU_COLLECTOR_LISTEN:-0.0.0.0}" -}}
{{- $_ := mustMergeOverwrite $config (dict "receivers" (dict "otlp" (dict "protocols" (dict
  "grpc" (dict "endpoint" (printf "%s:4317" $listen))
  "http" (dict "endpoint" (printf "%s:4318" $listen)))))) -}}
{{- end -}}
{{- if $values.podResources.enabled -}}
{{- $_ := mustMergeOverwrite $config (dict "receivers" (dict "nvml" (dict
  "pod_resources" (dict "socket" (printf "%s/kubelet.sock" $values.podResources.hostPath))
  "metrics" (dict "hw.gpu.allocation" (dict "enabled" true))))) -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite $config (deepCopy $values.config)) -}}
{{- end -}}

{{/* gateway: configs/gateway.yaml for a pod of the gateway. */}}
{{- define "gpu-collector.config.gateway" -}}
{{- $values := .Values.gateway -}}
{{- $config := include "gpu-collector.config.base" (dict "root" . "file" "gateway") | fromYaml -}}
{{- include "gpu-collector.config.common" (dict "root" . "config" $config) -}}
{{- $listen := "${env:GPU_COLLECTOR_LISTEN:-0.0.0.0}" -}}
{{- $_ := mustMergeOverwrite $config (dict "extensions" (dict "fleet_view" (dict "http" (dict "endpoint" (printf "%s:8086" $listen))))) -}}
{{- toYaml (mustMergeOverwrite $config (deepCopy $values.config)) -}}
{{- end -}}
