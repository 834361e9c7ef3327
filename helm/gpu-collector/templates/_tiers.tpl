{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* nextHop: where a tier pushes to, as gRPC's target. Takes root and tier. */}}
{{- define "gpu-collector.nextHop" -}}
{{- if .root.Values.agent.endpoint -}}
{{- .root.Values.agent.endpoint -}}
{{- else -}}
dns:///{{ include "gpu-collector.fullname" .root }}-gateway.{{ .root.Release.Namespace }}.svc:4317
{{- end -}}
{{- end -}}

{{/*
The kubelet's socket and its directory belong to root, mode 0750. So who asks
for pods is user 0, without any capability: it may open what belongs to root,
and nothing else. Without pod resources the agent is nobody in particular.
*/}}
{{- define "gpu-collector.agent.podSecurityContext" -}}
{{- $user := ternary 0 65532 .Values.agent.podResources.enabled -}}
{{- $default := dict "runAsUser" $user "runAsGroup" $user "runAsNonRoot" (ne (int $user) 0) "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mustMergeOverwrite $default (deepCopy .Values.agent.podSecurityContext)) -}}
{{- end -}}
