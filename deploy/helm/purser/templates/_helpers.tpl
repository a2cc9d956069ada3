{{- define "purser.selector" -}}
app.kubernetes.io/name: purser
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "purser.labels" -}}
{{ include "purser.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* A pod that runs one command of the Procfile; `container` adds to it. */}}
{{- define "purser.pod" -}}
metadata:
  labels: {{- include "purser.labels" . | nindent 4 }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets: {{ range . }}
    - name: {{ . }}{{ end }}
  {{- end }}
  restartPolicy: {{ .restartPolicy | default "Always" }}
  terminationGracePeriodSeconds: 40
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    # Chromium's own sandbox needs user namespaces.
    seccompProfile: {type: {{ eq .component "shopper" | ternary "Unconfined" "RuntimeDefault" }}}
  {{- $signs := and .root.Values.signer.enabled (ne .component "release") }}
  {{- if $signs }}
  initContainers: {{- include "purser.signer" .root | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .component }}
      {{- with .root.Values.image }}
      image: {{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ $.root.Chart.AppVersion }}{{ end }}
      {{- end }}
      args: {{ .command | toJson }}
      envFrom:
        - secretRef: {name: {{ .root.Values.secretName }}}
      env:
        - {name: PORT, value: "8000"}
        {{- range $name, $value := .root.Values.settings }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
        {{- end }}
        {{- if $signs }}
        - {name: SIGNER_SOCKET, value: /run/purser-signer/own/socket}
        {{- end }}
      securityContext:
        readOnlyRootFilesystem: true
        allowPrivilegeEscalation: false
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: var, mountPath: /srv/purser/var}
        - {name: tmp, mountPath: /tmp}
        {{- if $signs }}
        - {name: signer-socket, mountPath: /run/purser-signer, readOnly: true}
        {{- end }}
      {{- with .resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .container }}
      {{- . | nindent 6 }}
      {{- end }}
  volumes:
    - {name: var, emptyDir: {}}
    - {name: tmp, emptyDir: {}}
    {{- if $signs }}
    - {name: signer-socket, emptyDir: {medium: Memory}}
    - {name: signer-tmp, emptyDir: {}}
    - name: signer-key
      secret:
        secretName: {{ .root.Values.signer.secretName }}
        items: [{key: wallet.key, path: wallet.key}]
        optional: true
        defaultMode: 288
    {{- end }}
{{- end }}

{{/* Starts before the other container of its pod and ends after it, as another user, who alone gets its Secret. */}}
{{- define "purser.signer" -}}
- name: signer
  {{- with .Values.image }}
  image: {{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ $.Chart.AppVersion }}{{ end }}
  {{- end }}
  args: [python, -m, signer]
  restartPolicy: Always
  envFrom:
    - secretRef: {name: {{ .Values.signer.secretName }}}
  env:
    {{- range $name := list "NETWORK" "LOG_LEVEL" "WALLET_EXPORT_WAIT_SECONDS" "DATABASE_PREPARED_STATEMENTS" }}
    {{- with index $.Values.settings $name }}
    - {name: {{ $name }}, value: {{ . | quote }}}
    {{- end }}
    {{- end }}
    - {name: SIGNER_SOCKET, value: /run/purser-signer/own/socket}
    - {name: SIGNER_CLIENT_UIDS, value: "10001"}
  securityContext:
    runAsUser: 10002
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL]}
  startupProbe:
    exec:
      command:
        - python
        - -c
        - "from signer.client import SignerClient as C; C('/run/purser-signer/own/socket').ask('ping')"
    periodSeconds: 2
    timeoutSeconds: 12
    failureThreshold: 60
  volumeMounts:
    - {name: signer-socket, mountPath: /run/purser-signer}
    - {name: signer-tmp, mountPath: /tmp}
    - {name: signer-key, mountPath: /etc/purser-signer, readOnly: true}
  {{- with .Values.signer.resources }}
  resources: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "purser.web" -}}
ports: [{name: http, containerPort: 8000}]
startupProbe:
  httpGet: {path: /v1/health/live, port: http}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /v1/health/live, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /v1/health, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
# Until no router sends new connections.
lifecycle:
  preStop: {exec: {command: [sleep, "5"]}}
{{- end }}

{{/* A worker ends by itself when a job blocks it: nothing is to be restarted while Redis is away. */}}
{{- define "purser.queue" -}}
readinessProbe:
  exec:
    command:
      - python
      - -c
      - |
        import socket, redis, rq
        from app.config import Settings
        queue = redis.Redis.from_url(Settings.load().redis_address)
        raise SystemExit(not any(w.hostname == socket.gethostname() for w in rq.Worker.all(connection=queue)))
  initialDelaySeconds: 5
  periodSeconds: 60
  timeoutSeconds: 10
{{- end }}
