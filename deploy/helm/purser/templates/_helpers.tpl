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
      securityContext:
        readOnlyRootFilesystem: true
        allowPrivilegeEscalation: false
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: var, mountPath: /srv/purser/var}
        - {name: tmp, mountPath: /tmp}
      {{- with .resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .container }}
      {{- . | nindent 6 }}
      {{- end }}
  volumes:
    - {name: var, emptyDir: {}}
    - {name: tmp, emptyDir: {}}
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
