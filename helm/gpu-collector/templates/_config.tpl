{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/*
The configurations are those of configs/ in the repository, which `make
generate` copies into files/, with what Kubernetes and the values ask for
merged over them. The templates below that take `config` change it in place.
*/}}

{{- define "gpu-collector.config.base" -}}
{{- $config := .root.Files.Get (printf "files/configs/%s.yaml" .file) | fromYaml -}}
{{- if not (hasKey $config "service") -}}
{{- fail (printf "files/configs/%s.yaml is not a configuration: %s" .file (toString $config)) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* extension: adds one. Takes config, id and settings. */}}
{{- define "gpu-collector.config.extension" -}}
{{- $_ := set .config.extensions .id .settings -}}
{{- $_ := set .config.service "extensions" (concat (list .id) .config.service.extensions) -}}
{{- end -}}

{{/* exporter: adds one to the metrics pipeline. Takes config, id and settings. */}}
{{- define "gpu-collector.config.exporter" -}}
{{- $_ := set .config.exporters .id .settings -}}
{{- $_ := set .config.service.pipelines.metrics "exporters" (append .config.service.pipelines.metrics.exporters .id) -}}
{{- end -}}

{{/* common: what every tier has: health and its own metrics beyond loopback, for the kubelet and for who scrapes. */}}
{{- define "gpu-collector.config.common" -}}
{{- with .config.extensions.healthcheckv2 -}}
{{- $_ := set .http "endpoint" "${env:GPU_COLLECTOR_LISTEN:-0.0.0.0}:13133" -}}
{{- end -}}
{{- $_ := mustMergeOverwrite .config (dict
  "service" (dict "telemetry" (dict
    "logs" (dict "level" .root.Values.logs.level "encoding" .root.Values.logs.encoding)
    "metrics" (dict "readers" (list (dict "pull" (dict "exporter" (dict "prometheus" (dict "host" .root.Values.listenAddress "port" 8888)))))))))
-}}
{{- end -}}

{{/* auth: the extension that makes and checks tokens, once, or those for passwords. Takes root, tier and config. */}}
{{- define "gpu-collector.config.auth" -}}
{{- $type := .root.Values.auth.type -}}
{{- if and (ne $type "none") (not .root.Values.tls.enabled) -}}
{{- fail (printf "auth.type is %s and tls.enabled is false: gRPC sends no token over a connection without TLS and no password, set tls.enabled" $type) -}}
{{- end -}}
{{- if eq $type "basic" -}}
{{- if include "gpu-collector.basic.server" . -}}
{{- include "gpu-collector.config.extension" (dict "config" .config "id" "basicauth/agents" "settings" (dict "htpasswd" (dict "file" "/var/run/gpu-collector/passwords/htpasswd"))) -}}
{{- end -}}
{{- if include "gpu-collector.basic.client" . -}}
{{- $path := "/var/run/gpu-collector/credentials" -}}
{{- include "gpu-collector.config.extension" (dict "config" .config "id" "basicauth/client" "settings" (dict "client_auth" (dict "username_file" (printf "%s/username" $path) "password_file" (printf "%s/password" $path)))) -}}
{{- end -}}
{{- else if eq $type "bearer" -}}
{{- include "gpu-collector.config.extension" (dict "config" .config "id" "bearertokenauth" "settings" (dict "filename" (printf "/var/run/gpu-collector/auth/%s" .root.Values.auth.bearer.key))) -}}
{{- end -}}
{{- end -}}

{{/* tls: certificate and key of a tier, read anew when they change. Takes root. */}}
{{- define "gpu-collector.config.tls" -}}
cert_file: /var/run/gpu-collector/tls/tls.crt
key_file: /var/run/gpu-collector/tls/tls.key
reload_interval: {{ .root.Values.tls.reloadInterval }}
{{- end -}}

{{/* server: TLS and authentication of the receiver of pushes; who has a name speaks for it alone, as in overlays/tenants.yaml. Takes root, tier and config. */}}
{{- define "gpu-collector.config.server" -}}
{{- $settings := dict -}}
{{- if .root.Values.tls.enabled -}}
{{- $tls := include "gpu-collector.config.tls" . | fromYaml -}}
{{- if .root.Values.tls.clientAuth -}}
{{- $_ := mustMergeOverwrite $tls (dict "client_ca_file" "/var/run/gpu-collector/tls/ca.crt" "client_ca_file_reload" true) -}}
{{- end -}}
{{- $_ := set $settings "tls" $tls -}}
{{- end -}}
{{- if eq .root.Values.auth.type "bearer" -}}
{{- $_ := set $settings "auth" (dict "authenticator" "bearertokenauth") -}}
{{- else if eq .root.Values.auth.type "basic" -}}
{{- $_ := set $settings "auth" (dict "authenticator" "basicauth/agents") -}}
{{- $identity := dict "cluster_auth_attribute" "username" "node_auth_attribute" "username" -}}
{{- $_ := set .config.receivers.fleet_otlp "identity" $identity -}}
{{- $_ := set .config.extensions "straggler_threshold" (merge (dict) $identity (.config.extensions.straggler_threshold | default dict)) -}}
{{- end -}}
{{- range $protocol := list "grpc" "http" -}}
{{- $_ := mustMergeOverwrite (get $.config.receivers.fleet_otlp.protocols $protocol) (deepCopy $settings) -}}
{{- end -}}
{{- end -}}

{{/* client: TLS and authentication towards the next tier. Takes root, tier and config. */}}
{{- define "gpu-collector.config.client" -}}
{{- $settings := dict -}}
{{- if and .root.Values.tls.enabled (include "gpu-collector.tlsSecret" .) -}}
{{- $tls := include "gpu-collector.config.tls" . | fromYaml -}}
{{- $_ := set $tls "ca_file" "/var/run/gpu-collector/tls/ca.crt" -}}
{{- $_ := set $settings "tls" $tls -}}
{{- end -}}
{{- if eq .root.Values.auth.type "bearer" -}}
{{- $_ := set $settings "auth" (dict "authenticator" "bearertokenauth") -}}
{{- else if eq .root.Values.auth.type "basic" -}}
{{- $_ := set $settings "auth" (dict "authenticator" "basicauth/client") -}}
{{- end -}}
{{- range $exporter := list "otlp_grpc" "otlp_grpc/events" -}}
{{- $_ := mustMergeOverwrite (get $.config.exporters $exporter) (deepCopy $settings) -}}
{{- end -}}
{{- $hash := ternary (include "gpu-collector.consistentHash" .root) "cluster" (eq .tier "agent") -}}
{{- if and (include "gpu-collector.gateway.several" .root) (eq $hash "cluster") -}}
{{- /* Events go to the gateway that has the cluster's nodes; the extension chooses it. */ -}}
{{- $_ := set (get .config.exporters "otlp_grpc/events") "middlewares" (list (dict "id" "straggler_threshold")) -}}
{{- end -}}
{{- end -}}

{{/* remoteWrite: the push to Mimir, Prometheus or VictoriaMetrics. Behind diff it is configs/overlays/remote-write.yaml: no queue, and a diff that holds what the server has not taken. Takes root and config. */}}
{{- define "gpu-collector.config.remoteWrite" -}}
{{- $write := .root.Values.remoteWrite -}}
{{- if $write.enabled -}}
{{- $settings := dict
  "endpoint" (required "remoteWrite.endpoint is empty, must be a URL such as http://mimir/api/v1/push" $write.endpoint)
  "resource_to_telemetry_conversion" (dict "enabled" true)
  "disable_scope_info" true
  "target_info" (dict "enabled" false)
  "external_labels" $write.externalLabels
  "headers" $write.headers -}}
{{- if $write.caSecret -}}
{{- $_ := set $settings "tls" (dict "ca_file" "/var/run/gpu-collector/remote-write-ca/ca.crt" "reload_interval" .root.Values.tls.reloadInterval) -}}
{{- end -}}
{{- $path := "/var/run/gpu-collector/remote-write" -}}
{{- if eq $write.auth.type "basic" -}}
{{- include "gpu-collector.config.extension" (dict "config" .config "id" "basicauth/remote_write" "settings" (dict "client_auth" (dict "username_file" (printf "%s/username" $path) "password_file" (printf "%s/password" $path)))) -}}
{{- $_ := set $settings "auth" (dict "authenticator" "basicauth/remote_write") -}}
{{- else if eq $write.auth.type "bearer" -}}
{{- include "gpu-collector.config.extension" (dict "config" .config "id" "bearertokenauth/remote_write" "settings" (dict "filename" (printf "%s/token" $path))) -}}
{{- $_ := set $settings "auth" (dict "authenticator" "bearertokenauth/remote_write") -}}
{{- end -}}
{{- if has "diff" .config.service.pipelines.metrics.processors -}}
{{- $overlay := .root.Files.Get "files/configs/remote-write.yaml" | fromYaml -}}
{{- $exporter := merge $settings (omit $overlay.exporters.prometheus_remote_write "endpoint" "headers" "tls") -}}
{{- $_ := set .config.exporters "prometheus_remote_write" $exporter -}}
{{- $_ := set .config "connectors" (dict "forward/push" dict) -}}
{{- $metrics := .config.service.pipelines.metrics -}}
{{- $_ := set $metrics "exporters" (append $metrics.exporters "forward/push") -}}
{{- $_ := mustMergeOverwrite .config.processors $overlay.processors -}}
{{- include "gpu-collector.config.extension" (dict "config" .config "id" "exposition/push" "settings" (get $overlay.extensions "exposition/push")) -}}
{{- with .config.receivers.fleet_otlp -}}
{{- $_ := mustMergeOverwrite . $overlay.receivers.fleet_otlp -}}
{{- end -}}
{{- $_ := set .config.service.pipelines "metrics/push" (get $overlay.service.pipelines "metrics/push") -}}
{{- else -}}
{{- include "gpu-collector.config.exporter" (dict "config" .config "id" "prometheus_remote_write" "settings" $settings) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* kafka: brokers, topic and access, for receiver or exporter. Takes root and the section to change. */}}
{{- define "gpu-collector.config.kafka" -}}
{{- $kafka := .root.Values.kafka -}}
{{- if not $kafka.brokers -}}
{{- fail "kafka.brokers is empty, must be a list such as [kafka-0:9092, kafka-1:9092]" -}}
{{- end -}}
{{- $_ := set .section "brokers" $kafka.brokers -}}
{{- if $kafka.tls.enabled -}}
{{- $tls := dict -}}
{{- if $kafka.tls.secret -}}
{{- $_ := set $tls "ca_file" "/var/run/gpu-collector/kafka-tls/ca.crt" -}}
{{- $_ := set $tls "reload_interval" .root.Values.tls.reloadInterval -}}
{{- if $kafka.tls.clientCertificate -}}
{{- $_ := mustMergeOverwrite $tls (dict "cert_file" "/var/run/gpu-collector/kafka-tls/tls.crt" "key_file" "/var/run/gpu-collector/kafka-tls/tls.key") -}}
{{- end -}}
{{- end -}}
{{- $_ := set .section "tls" $tls -}}
{{- end -}}
{{- if $kafka.sasl.enabled -}}
{{- $_ := set .section "auth" (dict "sasl" (dict "mechanism" $kafka.sasl.mechanism "username" "${env:KAFKA_USERNAME}" "password" "${env:KAFKA_PASSWORD}")) -}}
{{- end -}}
{{- end -}}

{{/* agent: configs/agent.yaml for a pod of the DaemonSet. */}}
{{- define "gpu-collector.config.agent" -}}
{{- $values := .Values.agent -}}
{{- $config := include "gpu-collector.config.base" (dict "root" . "file" "agent") | fromYaml -}}
{{- $arguments := dict "root" . "tier" "agent" "config" $config -}}
{{- include "gpu-collector.config.common" $arguments -}}
{{- include "gpu-collector.config.auth" $arguments -}}
{{- include "gpu-collector.config.client" $arguments -}}
{{- $node := "${env:K8S_NODE_NAME}" -}}
{{- /* The host's name in a pod is the pod's. */ -}}
{{- $_ := mustMergeOverwrite $config (dict
  "receivers" (dict "nvml" (dict
    "collection_interval" .Values.pushInterval
    "resource_attributes" (dict "host.name" (dict "override_value" $node))))
  "processors" (dict "straggler" (dict "push_interval" .Values.pushInterval "agent" (dict "node_name" $node))))
-}}
{{- /* Whoever reaches the pod may push: as this node, and as nobody else. */ -}}
{{- $_ := set $config.receivers.fleet_otlp "identity" (dict
  "cluster" "${env:GPU_COLLECTOR_CLUSTER:-default}" "node" $node "foreign" "overwrite") -}}
{{- with $values.libraryPath -}}
{{- $_ := set $config.receivers.nvml "library_path" . -}}
{{- end -}}
{{- with dig "limits" "memory" "" ($values.resources | default dict) -}}
{{- $limit := div (include "gpu-collector.bytes" . | int64) 1048576 -}}
{{- $_ := mustMergeOverwrite $config.processors.memory_limiter (dict
  "limit_mib" (div (mul $limit 90) 100) "spike_limit_mib" (div (mul $limit 10) 100)) -}}
{{- /* A pod has GOMEMLIMIT, and parts of it. */ -}}
{{- $_ := unset $config.processors.straggler "max_bytes" -}}
{{- $_ := unset $config.receivers.fleet_otlp.admission "max_bytes" -}}
{{- end -}}
{{- if $values.otlp.enabled -}}
{{- $listen := "${env:GPU_COLLECTOR_LISTEN:-0.0.0.0}" -}}
{{- $_ := mustMergeOverwrite $config.receivers.fleet_otlp.protocols (dict
  "grpc" (dict "endpoint" (printf "%s:4317" $listen))
  "http" (dict "endpoint" (printf "%s:4318" $listen))) -}}
{{- end -}}
{{- if $values.podResources.enabled -}}
{{- $_ := mustMergeOverwrite $config.receivers.nvml (dict
  "pod_resources" (dict "socket" (printf "%s/kubelet.sock" $values.podResources.hostPath))) -}}
{{- end -}}
{{- $_ := set $config.receivers.nvml "state_directory" (ternary "/var/lib/gpu-collector" "" $values.state.enabled) -}}
{{- if $values.control.enabled -}}
{{- $_ := mustMergeOverwrite $config.receivers.nvml (dict
  "release_file" "/run/gpu-collector/release" "acknowledge_file" "/run/gpu-collector/acknowledge") -}}
{{- end -}}
{{- if .Values.dcgmNames.enabled -}}
{{- $_ := mustMergeOverwrite $config (.Files.Get "files/configs/dcgm-names.yaml" | fromYaml) (dict
  "extensions" (dict "exposition" (dict "http" (dict "endpoint" "${env:GPU_COLLECTOR_LISTEN:-0.0.0.0}:9400")))) -}}
{{- end -}}
{{- if $values.nccl.enabled -}}
{{- $_ := mustMergeOverwrite $config (include "gpu-collector.config.base" (dict "root" . "file" "nccl") | fromYaml) (dict "receivers" (dict "nccl" (dict
  "collection_interval" .Values.pushInterval
  "directories" (list (printf "%s/*" (trimSuffix "/" $values.nccl.directory)))))) -}}
{{- if $values.nccl.ras -}}
{{- $_ := set $config.receivers.nccl "ras" (dict "endpoint" "127.0.0.1:28028") -}}
{{- end -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite $config (deepCopy ($values.config | default dict))) -}}
{{- end -}}

{{/* shard: configs/shard.yaml for a pod of the StatefulSet. */}}
{{- define "gpu-collector.config.shard" -}}
{{- $config := include "gpu-collector.config.base" (dict "root" . "file" "shard") | fromYaml -}}
{{- $arguments := dict "root" . "tier" "shard" "config" $config -}}
{{- include "gpu-collector.config.common" $arguments -}}
{{- include "gpu-collector.config.auth" $arguments -}}
{{- include "gpu-collector.config.server" $arguments -}}
{{- include "gpu-collector.config.client" $arguments -}}
{{- if include "gpu-collector.gateway.several" . -}}
{{- /* A gateway has to see the whole of a cluster, so all shards must choose the same one. */ -}}
{{- $_ := set $config.extensions "straggler_threshold" (merge (dict "cluster" .Values.clusterName "consistent_hash" "cluster") ($config.extensions.straggler_threshold | default dict)) -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite $config (deepCopy (.Values.shard.config | default dict))) -}}
{{- end -}}

{{/* gateway: configs/gateway.yaml, or the end of the Kafka hop that it is. */}}
{{- define "gpu-collector.config.gateway" -}}
{{- $values := .Values.gateway -}}
{{- $role := .Values.kafka.role -}}
{{- $file := get (dict "none" "gateway" "shard" "kafka-shard" "root" "kafka-root") $role -}}
{{- $config := include "gpu-collector.config.base" (dict "root" . "file" $file) | fromYaml -}}
{{- $arguments := dict "root" . "tier" "gateway" "config" $config -}}
{{- $listen := "${env:GPU_COLLECTOR_LISTEN:-0.0.0.0}" -}}
{{- include "gpu-collector.config.common" $arguments -}}
{{- include "gpu-collector.config.auth" $arguments -}}
{{- if ne $role "root" -}}
{{- include "gpu-collector.config.server" $arguments -}}
{{- $_ := set $config.processors.straggler "push_interval" .Values.pushInterval -}}
{{- if not (include "gpu-collector.gateway.hasDirectory" .) -}}
{{- $_ := set $config.processors.straggler "state_directory" "" -}}
{{- end -}}
{{- end -}}
{{- if eq $role "shard" -}}
{{- include "gpu-collector.config.kafka" (dict "root" . "section" $config.exporters.kafka) -}}
{{- $_ := set $config.exporters.kafka.metrics "topic" .Values.kafka.topic -}}
{{- else -}}
{{- if eq $role "root" -}}
{{- include "gpu-collector.config.kafka" (dict "root" . "section" $config.receivers.kafka) -}}
{{- $_ := set $config.receivers.kafka.metrics "topics" (list .Values.kafka.topic) -}}
{{- $_ := set $config.receivers.kafka "group_id" .Values.kafka.group -}}
{{- end -}}
{{- if $values.fleetView.enabled -}}
{{- include "gpu-collector.config.fleetView" $arguments -}}
{{- else -}}
{{- $_ := unset $config.exporters "fleet_view" -}}
{{- $_ := unset $config.extensions "fleet_view" -}}
{{- with get $config.processors "straggler" -}}
{{- $_ := unset . "fleet_view_extension" -}}
{{- end -}}
{{- $_ := set $config.service "extensions" (without $config.service.extensions "fleet_view") -}}
{{- range $config.service.pipelines -}}
{{- $_ := set . "exporters" (without .exporters "fleet_view") -}}
{{- end -}}
{{- with $config.service.pipelines.logs -}}
{{- if not .exporters -}}
{{- $_ := set $config.exporters "nop" dict -}}
{{- $_ := set . "exporters" (list "nop") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $values.prometheus.enabled -}}
{{- $_ := unset $config.extensions.exposition "http" -}}
{{- end -}}
{{- end -}}
{{- include "gpu-collector.config.remoteWrite" $arguments -}}
{{- $served := hasKey ($config.extensions.exposition | default dict) "http" -}}
{{- if and (not $config.service.pipelines.metrics.exporters) $served -}}
{{- /* Prometheus is served from the table of diff; a pipeline needs an exporter all the same. */ -}}
{{- include "gpu-collector.config.exporter" (dict "config" $config "id" "nop" "settings" dict) -}}
{{- end -}}
{{- if not $config.service.pipelines.metrics.exporters -}}
{{- fail "the gateway has nowhere to send metrics: gateway.fleetView.enabled, gateway.prometheus.enabled and remoteWrite.enabled are all false, one must be true" -}}
{{- end -}}
{{- if and .Values.dcgmNames.enabled $served -}}
{{- $_ := set $config.extensions.exposition "dcgm_names" true -}}
{{- end -}}
{{- /* NAME.NAMESPACE is the one name of a service that might be registered in the web. */ -}}
{{- range $extension := concat (ternary (list "exposition") list $served) (list "fleet_view" "straggler_threshold") -}}
{{- with get $config.extensions $extension -}}
{{- $_ := set . "allowed_hosts" (append (.allowed_hosts | default list) (printf "%s-gateway.%s" (include "gpu-collector.fullname" $) $.Release.Namespace)) -}}
{{- end -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite $config (deepCopy ($values.config | default dict))) -}}
{{- end -}}

{{/* fleetView: API and page on the pod's address, or on loopback behind the OIDC proxy. Takes root and config. */}}
{{- define "gpu-collector.config.fleetView" -}}
{{- $view := .root.Values.gateway.fleetView -}}
{{- $http := dict "endpoint" "${env:GPU_COLLECTOR_LISTEN:-0.0.0.0}:8086" -}}
{{- if $view.oidc.enabled -}}
{{- $_ := set $http "endpoint" "127.0.0.1:8086" -}}
{{- else -}}
{{- if include "gpu-collector.fleetView.tls" .root -}}
{{- $_ := set $http "tls" (include "gpu-collector.config.tls" . | fromYaml) -}}
{{- end -}}
{{- if eq .root.Values.auth.type "bearer" -}}
{{- $_ := set $http "auth" (dict "authenticator" "bearertokenauth") -}}
{{- end -}}
{{- end -}}
{{- $history := dict "storage" $view.history.storage -}}
{{- if eq $view.history.storage "prometheus" -}}
{{- $_ := set $history "prometheus" (dict "http" (dict "endpoint" (required "gateway.fleetView.history.prometheusURL is empty, must be the URL before /api/v1 while storage is prometheus" $view.history.prometheusURL))) -}}
{{- else if eq $view.history.storage "sqlite" -}}
{{- $_ := set $history "sqlite" (dict "retention" $view.history.retention "max_size_mib" (int $view.history.maxSizeMiB)) -}}
{{- end -}}
{{- $names := concat (list .root.Values.ingress.fleetView.host | compact) (.root.Values.gatewayAPI.fleetView.hostnames | default list) -}}
{{- $_ := set .config.extensions "fleet_view" (dict "http" $http "history" $history "allowed_hosts" $names) -}}
{{- if $view.oidc.enabled -}}
{{- /* The proxy asks by address, and is the one reader. */ -}}
{{- $_ := set .config.extensions.fleet_view "stream" (dict "reader_share" 1) -}}
{{- end -}}
{{- end -}}

{{/* cluster: configs/kubernetes/cluster.yaml, for the Collector project's own image. */}}
{{- define "gpu-collector.config.cluster" -}}
{{- $config := include "gpu-collector.config.base" (dict "root" . "file" "cluster") | fromYaml -}}
{{- $arguments := dict "root" . "tier" "cluster" "config" $config -}}
{{- include "gpu-collector.config.common" $arguments -}}
{{- include "gpu-collector.config.remoteWrite" $arguments -}}
{{- toYaml (mustMergeOverwrite $config (deepCopy (.Values.cluster.config | default dict))) -}}
{{- end -}}
