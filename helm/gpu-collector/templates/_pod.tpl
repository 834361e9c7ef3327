{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/*
pod: the pod template of a tier, what differs being arguments:
root, tier, config (its configuration, as text), image (the section), env,
ports, volumes, volumeMounts, containers (lists), podSecurityContext, and
apiToken for a tier that asks the API server. The agents' nccl has hostPID,
hostNetwork and securityContext besides.
*/}}
{{- define "gpu-collector.pod" -}}
{{- $values := get .root.Values .tier -}}
{{- $env := list (dict "name" "GPU_COLLECTOR_LISTEN" "value" (include "gpu-collector.listen" .root)) -}}
{{- with dig "limits" "memory" "" ($values.resources | default dict) -}}
{{- /* Go collects garbage more often before the kernel kills. */ -}}
{{- $env = append $env (dict "name" "GOMEMLIMIT" "value" (printf "%dMiB" (div (mul (include "gpu-collector.bytes" . | int64) 80) 104857600))) -}}
{{- end -}}
{{- /* The user's variables take the place of ours: a name must not come twice. */ -}}
{{- $names := list -}}
{{- range $values.extraEnv }}{{ $names = append $names .name }}{{ end -}}
{{- $volumes := .volumes | default list -}}
{{- $mounts := .volumeMounts | default list -}}
{{- range (include "gpu-collector.secretVolumes" . | fromYaml).volumes }}
{{- $volumes = append $volumes . -}}
{{- $mounts = append $mounts (dict "name" .name "mountPath" (printf "/var/run/gpu-collector/%s" .name) "readOnly" true) -}}
{{- end -}}
{{- $all := list -}}
{{- range concat $env (.env | default list) }}{{ if not (has .name $names) }}{{ $all = append $all . }}{{ end }}{{ end -}}
{{- $all = concat $all ($values.extraEnv | default list) -}}
metadata:
  labels:
    {{- include "gpu-collector.selectorLabels" . | nindent 4 }}
    {{- with merge (dict) ($values.podLabels | default dict) (.root.Values.commonLabels | default dict) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # The collector takes a changed file on a reload only.
    checksum/config: {{ .config | sha256sum }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "gpu-collector.serviceAccountName" . }}
  automountServiceAccountToken: {{ .apiToken | default false }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- if or $values.hostPID .hostPID }}
  hostPID: true
  {{- end }}
  {{- if .hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  securityContext:
    {{- toYaml .podSecurityContext | nindent 4 }}
  containers:
    - name: collector
      image: {{ include "gpu-collector.image" . }}
      imagePullPolicy: {{ .image.pullPolicy }}
      args: [--config=/etc/gpu-collector/config.yaml]
      env:
        {{- toYaml $all | nindent 8 }}
      {{- with $values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        {{- toYaml (concat .ports (list (dict "name" "metrics" "containerPort" 8888) (dict "name" "health" "containerPort" 13133))) | nindent 8 }}
      {{- range $probe, $settings := $values.probes }}
      {{ $probe }}:
        httpGet: {path: /status, port: health}
        {{- toYaml $settings | nindent 8 }}
      {{- end }}
      {{- with $values.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- toYaml (.securityContext | default $values.securityContext) | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/gpu-collector, readOnly: true}
        {{- with concat $mounts ($values.extraVolumeMounts | default list) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with .containers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "gpu-collector.fullname" .root }}-{{ .tier }}}
    {{- with concat $volumes ($values.extraVolumes | default list) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- $selector := dict "labelSelector" (dict "matchLabels" (include "gpu-collector.selectorLabels" $ | fromYaml)) }}
    {{- range . }}
    - {{- if hasKey . "labelSelector" }}{{ toYaml . | nindent 6 }}{{ else }}{{ toYaml (merge (dict) . $selector) | nindent 6 }}{{ end }}
    {{- end }}
  {{- end }}
{{- end -}}
