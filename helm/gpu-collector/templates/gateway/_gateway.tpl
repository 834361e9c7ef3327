{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* claim: what the history asks of a volume. */}}
{{- define "gpu-collector.gateway.claim" -}}
{{- $persistence := .Values.gateway.fleetView.persistence -}}
spec:
  accessModes: {{ toJson $persistence.accessModes }}
  {{- with $persistence.storageClass }}
  storageClassName: {{ . | quote }}
  {{- end }}
  resources:
    requests:
      storage: {{ $persistence.size }}
{{- end -}}

{{/*
oidc: oauth2-proxy beside the gateway. People log in with their browser;
programs send a token of the same issuer. Behind it the fleet view listens on
loopback only.
*/}}
{{- define "gpu-collector.oidc.container" -}}
{{- $oidc := .Values.gateway.fleetView.oidc -}}
{{- $secret := required "gateway.fleetView.oidc.secret is empty, must name a secret with client-secret and cookie-secret" $oidc.secret -}}
name: oidc
image: {{ include "gpu-collector.image" (dict "root" . "image" $oidc.image) }}
imagePullPolicy: {{ $oidc.image.pullPolicy }}
args:
  - --provider=oidc
  - --oidc-issuer-url={{ required "gateway.fleetView.oidc.issuerURL is empty, must be the issuer's URL" $oidc.issuerURL }}
  - --client-id={{ required "gateway.fleetView.oidc.clientID is empty" $oidc.clientID }}
  - --client-secret-file=/var/run/gpu-collector/oidc/client-secret
  - --http-address={{ include "gpu-collector.listen" . }}:4180
  - --upstream=http://127.0.0.1:8086
  # The fleet view knows no name of the proxy's.
  - --pass-host-header=false
  # The live stream is a response that never ends.
  - --flush-interval=1s
  - --skip-provider-button
  - --skip-jwt-bearer-tokens
  - --reverse-proxy
  {{- range $oidc.emailDomains }}
  - --email-domain={{ . }}
  {{- end }}
  {{- range $oidc.allowedGroups }}
  - --allowed-group={{ . }}
  {{- end }}
  {{- range $oidc.extraArgs }}
  - {{ . | quote }}
  {{- end }}
env:
  - name: OAUTH2_PROXY_COOKIE_SECRET
    valueFrom: {secretKeyRef: {name: {{ $secret }}, key: cookie-secret}}
ports:
  - {name: fleet-view, containerPort: 4180}
readinessProbe:
  httpGet: {path: /ping, port: fleet-view}
resources:
  {{- toYaml $oidc.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.gateway.securityContext | nindent 2 }}
volumeMounts:
  - {name: oidc, mountPath: /var/run/gpu-collector/oidc, readOnly: true}
{{- end -}}
