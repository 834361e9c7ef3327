{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* several: whether more than one gateway of this release may run, and each cluster has to keep to one. */}}
{{- define "gpu-collector.gateway.several" -}}
{{- if and (not .Values.gatewayEndpoint) (or (gt (int .Values.gateway.replicas) 1) (ne .Values.gateway.autoscaling.type "none")) -}}true{{- end -}}
{{- end -}}

{{/* serves: which of its ports the gateway has: otlp, fleetView, prometheus. */}}
{{- define "gpu-collector.gateway.serves" -}}
otlp: {{ ne .Values.kafka.role "root" }}
fleetView: {{ and (ne .Values.kafka.role "shard") .Values.gateway.fleetView.enabled }}
prometheus: {{ and (ne .Values.kafka.role "shard") .Values.gateway.prometheus.enabled }}
{{- end -}}

{{/* hasDirectory: the history's file and the state file have a volume. */}}
{{- define "gpu-collector.gateway.hasDirectory" -}}
{{- $serves := include "gpu-collector.gateway.serves" . | fromYaml -}}
{{- if and $serves.fleetView (eq .Values.gateway.fleetView.history.storage "sqlite") -}}true{{- end -}}
{{- end -}}

{{- define "gpu-collector.fleetView.tls" -}}
{{- if and .Values.tls.enabled .Values.tls.fleetView (not .Values.gateway.fleetView.oidc.enabled) -}}true{{- end -}}
{{- end -}}

{{/* nextHop: where a tier pushes to, as gRPC's target. Takes root and tier. */}}
{{- define "gpu-collector.nextHop" -}}
{{- $name := include "gpu-collector.fullname" .root -}}
{{- if and (eq .tier "agent") .root.Values.shard.enabled -}}
dns:///{{ $name }}-shard.{{ .root.Release.Namespace }}.svc:4317
{{- else if .root.Values.gatewayEndpoint -}}
{{ .root.Values.gatewayEndpoint }}
{{- else if not .root.Values.gateway.enabled -}}
{{- fail (printf "%s.enabled is true, gateway.enabled is false and gatewayEndpoint is empty: name a gateway to push to" .tier) -}}
{{- else if eq .root.Values.kafka.role "root" -}}
{{- fail (printf "%s.enabled is true and kafka.role is root: that gateway takes no pushes, name another one in gatewayEndpoint" .tier) -}}
{{- else -}}
dns:///{{ $name }}-gateway{{ if include "gpu-collector.gateway.several" .root }}-pods{{ end }}.{{ .root.Release.Namespace }}.svc:4317
{{- end -}}
{{- end -}}

{{/* consistentHash: what the agents choose among several addresses by. */}}
{{- define "gpu-collector.consistentHash" -}}
{{- if .Values.shard.enabled -}}node
{{- else if include "gpu-collector.gateway.several" . -}}cluster
{{- else -}}none
{{- end -}}
{{- end -}}

{{/* replicas: the most that a tier may have. Takes the tier's section. */}}
{{- define "gpu-collector.maxReplicas" -}}
{{- ternary .replicas .autoscaling.maxReplicas (eq .autoscaling.type "none") -}}
{{- end -}}

{{/* clientEnv: where to push, for agents and shards. Takes root and tier. */}}
{{- define "gpu-collector.clientEnv" -}}
- {name: GPU_COLLECTOR_GATEWAY, value: {{ include "gpu-collector.nextHop" . | quote }}}
- {name: GPU_COLLECTOR_INSECURE, value: {{ not .root.Values.tls.enabled | quote }}}
{{- end -}}

{{/* tlsSecret: the secret with a tier's certificate, if it has one. Takes root and tier. */}}
{{- define "gpu-collector.tlsSecret" -}}
{{- if .root.Values.tls.certManager.enabled -}}
{{ include "gpu-collector.fullname" .root }}-{{ .tier }}-tls
{{- else -}}
{{ get .root.Values.tls.secrets .tier }}
{{- end -}}
{{- end -}}

{{/* basic.server, basic.client: whether a tier asks for passwords, and whether it sends one. Take root and tier. */}}
{{- define "gpu-collector.basic.server" -}}
{{- if and (eq .root.Values.auth.type "basic") (or (eq .tier "shard") (and (eq .tier "gateway") (ne .root.Values.kafka.role "root"))) -}}true{{- end -}}
{{- end -}}
{{- define "gpu-collector.basic.client" -}}
{{- if and (eq .root.Values.auth.type "basic") (has .tier (list "agent" "shard")) -}}true{{- end -}}
{{- end -}}

{{/*
secretVolumes: volumes of certificates and tokens of a tier, each mounted at
/var/run/gpu-collector/NAME. Takes root and tier; returns a list under volumes.
*/}}
{{- define "gpu-collector.secretVolumes" -}}
{{- $values := .root.Values -}}
{{- $volumes := list -}}
{{- if and $values.tls.enabled (ne .tier "cluster") -}}
{{- $secret := include "gpu-collector.tlsSecret" . -}}
{{- if and (not $secret) (ne .tier "agent") -}}
{{- fail (printf "tls.enabled is true and tls.secrets.%s is empty: name a secret with tls.crt, tls.key and ca.crt, or set tls.certManager.enabled" .tier) -}}
{{- end -}}
{{- if $secret -}}
{{- $volumes = append $volumes (dict "name" "tls" "secret" (dict "secretName" $secret)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $values.auth.type "bearer") (ne .tier "cluster") -}}
{{- $volumes = append $volumes (dict "name" "auth" "secret" (dict "secretName" (required "auth.bearer.secret is empty, must name a secret with the token while auth.type is bearer" $values.auth.bearer.secret))) -}}
{{- end -}}
{{- if include "gpu-collector.basic.server" . -}}
{{- $volumes = append $volumes (dict "name" "passwords" "secret" (dict "secretName" (required "auth.basic.passwordsSecret is empty, must name a secret with htpasswd while auth.type is basic" $values.auth.basic.passwordsSecret))) -}}
{{- end -}}
{{- if include "gpu-collector.basic.client" . -}}
{{- $volumes = append $volumes (dict "name" "credentials" "secret" (dict "secretName" (required "auth.basic.credentialsSecret is empty, must name a secret with username and password while auth.type is basic" $values.auth.basic.credentialsSecret))) -}}
{{- end -}}
{{- if and $values.remoteWrite.enabled (has .tier (list "gateway" "cluster")) -}}
{{- if ne $values.remoteWrite.auth.type "none" -}}
{{- $volumes = append $volumes (dict "name" "remote-write" "secret" (dict "secretName" (required "remoteWrite.auth.secret is empty, must name a secret while remoteWrite.auth.type is not none" $values.remoteWrite.auth.secret))) -}}
{{- end -}}
{{- with $values.remoteWrite.caSecret -}}
{{- $volumes = append $volumes (dict "name" "remote-write-ca" "secret" (dict "secretName" .)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .tier "gateway") (ne $values.kafka.role "none") $values.kafka.tls.enabled $values.kafka.tls.secret -}}
{{- $volumes = append $volumes (dict "name" "kafka-tls" "secret" (dict "secretName" $values.kafka.tls.secret)) -}}
{{- end -}}
{{- dict "volumes" $volumes | toYaml -}}
{{- end -}}

{{/*
The kubelet's socket and its directory belong to root, mode 0750, as does a
directory that the kubelet makes on the node. So an agent that needs one of
them is user 0, without any capability: it may open what belongs to root, and
nothing else. Without them it is nobody in particular.
*/}}
{{- define "gpu-collector.agent.podSecurityContext" -}}
{{- $agent := .Values.agent -}}
{{- $user := ternary 0 65532 (or $agent.podResources.enabled $agent.state.enabled $agent.control.enabled $agent.nccl.enabled) -}}
{{- $default := dict "runAsUser" $user "runAsGroup" $user "runAsNonRoot" (ne (int $user) 0) "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mustMergeOverwrite $default (deepCopy ($agent.podSecurityContext | default dict))) -}}
{{- end -}}

{{/* The kernel shows the open files and the environment of others' processes to SYS_PTRACE only, to root too. */}}
{{- define "gpu-collector.agent.securityContext" -}}
{{- $default := ternary (dict "capabilities" (dict "add" (list "SYS_PTRACE"))) (dict) .Values.agent.nccl.enabled -}}
{{- toYaml (mustMergeOverwrite $default (deepCopy (.Values.agent.securityContext | default dict))) -}}
{{- end -}}
