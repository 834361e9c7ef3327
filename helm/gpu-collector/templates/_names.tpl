{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "gpu-collector.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that tier and suffix fit into the 63 of a label. */}}
{{- define "gpu-collector.fullname" -}}
{{- $name := include "gpu-collector.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* selectorLabels: of the pods of a tier. Takes root and tier. */}}
{{- define "gpu-collector.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gpu-collector.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .tier }}
{{- end -}}

{{/* labels: of an object of a tier. Takes root and tier. */}}
{{- define "gpu-collector.labels" -}}
{{ include "gpu-collector.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata: name, namespace and labels of an object. Takes root, tier, and suffix and labels if any. */}}
{{- define "gpu-collector.metadata" -}}
name: {{ include "gpu-collector.fullname" .root }}-{{ .tier }}{{ .suffix }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "gpu-collector.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "gpu-collector.serviceAccountName" -}}
{{- $account := (get .root.Values .tier).serviceAccount -}}
{{- if $account.name -}}
{{- $account.name -}}
{{- else if $account.create -}}
{{- include "gpu-collector.fullname" .root }}-{{ .tier -}}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{/* image: takes root and the section image of a tier. */}}
{{- define "gpu-collector.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* listen: the address that the pods' servers listen on, as in host:port. */}}
{{- define "gpu-collector.listen" -}}
{{- if contains ":" .Values.listenAddress -}}
[{{ .Values.listenAddress }}]
{{- else -}}
{{ .Values.listenAddress }}
{{- end -}}
{{- end -}}

{{/* bytes: a quantity such as 256Mi in bytes. */}}
{{- define "gpu-collector.bytes" -}}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]+$" $text -}}
{{- $number := trimSuffix $unit $text -}}
{{- if not $unit -}}
{{- int64 (float64 $number) -}}
{{- else if hasKey $units $unit -}}
{{- int64 (mulf (float64 $number) (get $units $unit)) -}}
{{- else -}}
{{- fail (printf "%q is not understood as memory, must be a number with Ki, Mi, Gi, Ti, k, M, G or T" $text) -}}
{{- end -}}
{{- end -}}
