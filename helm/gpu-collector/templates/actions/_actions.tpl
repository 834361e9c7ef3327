{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* rungs: the enabled rungs of Kubernetes, as a list under rungs, by their names in the configuration. Takes the root. */}}
{{- define "gpu-collector.actions.rungs" -}}
{{- $on := list -}}
{{- range $rung, $enabled := .Values.actions.rungs -}}
{{- if $enabled }}{{ $on = append $on (snakecase $rung) }}{{ end -}}
{{- end -}}
{{- dict "rungs" $on | toYaml -}}
{{- end -}}

{{/* job: the template of a burn-in as text, empty without that rung. Takes the root. */}}
{{- define "gpu-collector.actions.job" -}}
{{- if .Values.actions.rungs.burnIn -}}
{{- $burnIn := .Values.actions.burnIn -}}
{{- if and $burnIn.sample $burnIn.job -}}
{{- fail "actions.burnIn has a job and a sample: leave one of them out" -}}
{{- end -}}
{{- if and (not $burnIn.sample) (ne (get $burnIn.job "kind" | default "") "Job") -}}
{{- fail "actions.rungs.burnIn is true and actions.burnIn.job is none: give it a Job with apiVersion batch/v1 and kind Job, or name a sample" -}}
{{- end -}}
{{- with $burnIn.sample -}}
{{- $.Files.Get (printf "files/burn-in/%s.yaml" .) -}}
{{- else -}}
{{- toYaml $burnIn.job -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* config.actions: configs/actions.yaml for the actor's pod. */}}
{{- define "gpu-collector.config.actions" -}}
{{- $values := .Values.actions -}}
{{- if not .Values.gateway.enabled -}}
{{- fail "actions.enabled is true and gateway.enabled is false: install the actor with the gateway that compares its nodes" -}}
{{- end -}}
{{- $config := include "gpu-collector.config.base" (dict "root" . "file" "actions") | fromYaml -}}
{{- $arguments := dict "root" . "tier" "actions" "config" $config -}}
{{- include "gpu-collector.config.common" $arguments -}}
{{- $grpc := $config.receivers.otlp.protocols.grpc -}}
{{- if .Values.tls.enabled -}}
{{- $tls := include "gpu-collector.config.tls" $arguments | fromYaml -}}
{{- $_ := set $grpc "tls" (mustMergeOverwrite $tls (dict "client_ca_file" "/var/run/gpu-collector/tls/ca.crt" "client_ca_file_reload" true)) -}}
{{- end -}}
{{- include "gpu-collector.config.actionsToken" $arguments -}}
{{- if $values.tokenSecret -}}
{{- $auth := dict "authenticator" "bearertokenauth/actions" -}}
{{- $_ := set $grpc "auth" $auth -}}
{{- $_ := mustMergeOverwrite $config.extensions.admission $auth -}}
{{- end -}}
{{- $actor := $config.exporters.verdict_actions -}}
{{- $breaker := $values.breaker -}}
{{- $_ := mustMergeOverwrite $actor (dict
  "dry_run" $values.dryRun
  "breaker" (dict "max_nodes" (int $breaker.maxNodes) "max_fraction" $breaker.maxFraction "max_per_hour" (int $breaker.maxPerHour) "reset" $breaker.reset)
  "burn_in" (dict "after_drain" $values.burnIn.afterDrain "retest" $values.burnIn.retest))
-}}
{{- $on := dict -}}
{{- range (include "gpu-collector.actions.rungs" . | fromYaml).rungs }}{{ $_ := set $on . true }}{{ end -}}
{{- if $on -}}
{{- $kubernetes := dict "namespace" .Release.Namespace "lease" (printf "%s-actions" (include "gpu-collector.fullname" .)) "rungs" $on -}}
{{- if include "gpu-collector.actions.job" . -}}
{{- $_ := set $kubernetes "burn_in_job" "/etc/gpu-collector/burn-in.yaml" -}}
{{- end -}}
{{- $_ := set $actor "kubernetes" $kubernetes -}}
{{- end -}}
{{- with $values.webhook.endpoint -}}
{{- $webhook := dict "http" (dict "endpoint" .) "rungs" (dict "notify" true) -}}
{{- if $values.webhook.secret -}}
{{- $_ := set $webhook "secret" "${file:/var/run/gpu-collector/webhook/secret}" -}}
{{- end -}}
{{- $_ := set $actor "webhook" $webhook -}}
{{- end -}}
{{- if $values.audit.gateway -}}
{{- include "gpu-collector.config.auth" $arguments -}}
{{- $otlp := dict "endpoint" (printf "dns:///%s-gateway.%s.svc:4317" (include "gpu-collector.fullname" .) .Release.Namespace) "tls" (dict "insecure" true) -}}
{{- if .Values.tls.enabled -}}
{{- $_ := set $otlp "tls" (mustMergeOverwrite (include "gpu-collector.config.tls" $arguments | fromYaml) (dict "ca_file" "/var/run/gpu-collector/tls/ca.crt")) -}}
{{- end -}}
{{- if eq .Values.auth.type "bearer" -}}
{{- $_ := set $otlp "auth" (dict "authenticator" "bearertokenauth") -}}
{{- else if eq .Values.auth.type "basic" -}}
{{- $_ := set $otlp "auth" (dict "authenticator" "basicauth/client") -}}
{{- end -}}
{{- $_ := set $actor.audit "otlp_grpc" $otlp -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite $config (deepCopy $values.config)) -}}
{{- end -}}

{{/* toActions: the gateway's side of the actor, configs/overlays/actions-gateway.yaml. Takes root and config. */}}
{{- define "gpu-collector.config.toActions" -}}
{{- $root := .root -}}
{{- if ne $root.Values.kafka.role "none" -}}
{{- fail (printf "actions.enabled is true and kafka.role is %s: the actor needs the gateway that compares the nodes, and keeps the events" $root.Values.kafka.role) -}}
{{- end -}}
{{- $overlay := $root.Files.Get "files/configs/actions-gateway.yaml" | fromYaml -}}
{{- $settings := dict "endpoint" (printf "dns:///%s-actions.%s.svc:4319" (include "gpu-collector.fullname" $root) $root.Release.Namespace) -}}
{{- if $root.Values.tls.enabled -}}
{{- $_ := set $settings "tls" (mustMergeOverwrite (include "gpu-collector.config.tls" . | fromYaml) (dict "insecure" false "ca_file" "/var/run/gpu-collector/tls/ca.crt")) -}}
{{- end -}}
{{- with $root.Values.actions.tokenSecret -}}
{{- $_ := set $settings "auth" (dict "authenticator" "bearertokenauth/actions") -}}
{{- end -}}
{{- range $overlay.exporters -}}
{{- $_ := mustMergeOverwrite . (deepCopy $settings) -}}
{{- end -}}
{{- $pipelines := .config.service.pipelines -}}
{{- range $pipeline := list "logs" "metrics" -}}
{{- $_ := unset $overlay.service.pipelines $pipeline -}}
{{- $_ := set (get $pipelines $pipeline) "exporters" (append (get $pipelines $pipeline).exporters "forward/actions") -}}
{{- end -}}
{{- $_ := set $overlay "connectors" (dict "forward/actions" dict) -}}
{{- $_ := mustMergeOverwrite .config $overlay -}}
{{- include "gpu-collector.config.actionsToken" . -}}
{{- end -}}

{{/* actionsToken: the token of gateway and actor. Takes root and config. */}}
{{- define "gpu-collector.config.actionsToken" -}}
{{- if .root.Values.actions.tokenSecret -}}
{{- if not .root.Values.tls.enabled -}}
{{- fail "actions.tokenSecret is set and tls.enabled is false: gRPC sends no token over a connection without TLS, set tls.enabled" -}}
{{- end -}}
{{- include "gpu-collector.config.extension" (dict "config" .config "id" "bearertokenauth/actions" "settings" (dict "filename" "/var/run/gpu-collector/actions/token")) -}}
{{- end -}}
{{- end -}}
