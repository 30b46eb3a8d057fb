{{- define "balancer.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 29 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "balancer.image" -}}
{{- $image := index .root.Values.images .name -}}
{{- printf "%s:%s" $image.repository (default .root.Chart.AppVersion $image.tag) -}}
{{- end }}

{{/* By what a part's pods are found; never changes while they live. */}}
{{- define "balancer.selector" -}}
app.kubernetes.io/name: balancer
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "balancer.labels" -}}
{{ include "balancer.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "balancer.discoveryNamespace" -}}
{{- default .Release.Namespace .Values.discovery.namespace -}}
{{- end }}

{{- define "balancer.labelSelector" -}}
{{- $own := include "balancer.selector" (dict "root" . "component" "triton") | fromYaml -}}
{{- $pairs := list -}}
{{- range $key, $value := $own }}{{ $pairs = append $pairs (printf "%s=%s" $key $value) }}{{ end -}}
{{- default (join "," $pairs) .Values.discovery.labelSelector -}}
{{- end }}

{{/* The headless Service of the balancers: agents' reports, metrics. */}}
{{- define "balancer.picks" -}}
{{- include "balancer.fullname" . }}-picks
{{- end }}

{{- define "balancer.balancers" -}}
{{- include "balancer.fullname" . }}-balancers
{{- end }}

{{- define "balancer.relays" -}}
{{- include "balancer.fullname" . }}-relays
{{- end }}

{{- define "balancer.topicIngress" -}}
{{- include "balancer.fullname" . }}-topic-ingress
{{- end }}

{{- define "balancer.pool" -}}
{{- include "balancer.fullname" .root }}-triton-{{ .pool.name }}
{{- end }}

{{/* Of two versions of an API the one that the server knows. */}}
{{- define "balancer.apiVersion" -}}
{{- ternary .newest .older (.root.Capabilities.APIVersions.Has .newest) -}}
{{- end }}

{{- define "balancer.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "balancer.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "balancer.pullSecrets" -}}
{{- with .Values.images.pullSecrets -}}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The Secret that holds a part's certificate: clients, balancer, relays, topicIngress, or agents (of a pool). "": there is none. */}}
{{- define "balancer.secret" -}}
{{- $certificates := .root.Values.certificates -}}
{{- if eq $certificates.source "certManager" -}}
{{- if .pool -}}{{ include "balancer.pool" . }}-agents{{- else -}}{{ include "balancer.fullname" .root }}-{{ kebabcase .part }}{{- end -}}-tls
{{- else if eq $certificates.source "secrets" -}}
{{- index $certificates.secrets .part -}}
{{- end -}}
{{- end }}

{{/* The balancer's config: the values', and what the chart decides. */}}
{{- define "balancer.config" -}}
{{- $gateway := .Values.gateway -}}
{{- $listen := dict "envoy" "unix:/run/balancer/envoy.sock" "fleet" "unix:/run/balancer/fleet.sock" "reports" (printf "0.0.0.0:%d" (int $gateway.ports.reports)) "admin" (printf "0.0.0.0:%d" (int $gateway.ports.admin)) -}}
{{- if $gateway.picks.enabled -}}
{{- $_ := set $listen "gateways" (printf "0.0.0.0:%d" (int $gateway.ports.picks)) -}}
{{- $_ := set $listen "health" (printf "0.0.0.0:%d" (int $gateway.ports.health)) -}}
{{- end -}}
{{- $envoy := dict "listen" (printf "0.0.0.0:%d" (int $gateway.ports.clients)) "admin" (printf "127.0.0.1:%d" (int $gateway.ports.envoyAdmin)) "frontend" $gateway.frontend "shared_folder" "/run/balancer/shared" "max_heap_bytes" (printf "%dMiB" (int $gateway.envoy.heapMiB)) -}}
{{- $pods := dict "namespace" (include "balancer.discoveryNamespace" .) -}}
{{- if .Values.discovery.inferencePool -}}
{{- $_ := set $pods "inference_pool" .Values.discovery.inferencePool -}}
{{- else -}}
{{- $_ := set $pods "label_selector" (include "balancer.labelSelector" .) -}}
{{- end -}}
{{- $own := dict "listen" $listen "processes" (int $gateway.processes) "state_file" "/run/balancer/state.json" "discovery" (dict "kubernetes" $pods) -}}
{{- $peers := dict "addresses" list -}}
{{- range $process := until (int $gateway.processes) -}}
{{- $_ := set $peers "addresses" (append $peers.addresses (printf "%s:%d" (include "balancer.balancers" $) (add $gateway.ports.reports $process))) -}}
{{- end -}}
{{- $_ := set $own "peers" $peers -}}
{{- if $gateway.adminTokenSecret }}{{ $_ := set $own "admin" (dict "token_file" "/etc/balancer/admin/token") }}{{ end -}}
{{- if ne .Values.certificates.source "none" -}}
{{- $files := dict "cert_file" "/etc/balancer/tls/tls.crt" "key_file" "/etc/balancer/tls/tls.key" -}}
{{- $tls := dict "reports" (merge (dict "client_ca_file" "/etc/balancer/tls/ca.crt") $files) -}}
{{- if $gateway.adminTokenSecret }}{{ $_ := set $tls "admin" $files }}{{ end -}}
{{- if and $gateway.picks.enabled (eq $gateway.picks.tls "certificates") }}{{ $_ := set $tls "gateways" $files }}{{ end -}}
{{- $_ := set $own "tls" $tls -}}
{{- $_ := set $peers "tls" (merge (dict "ca_file" "/etc/balancer/tls/ca.crt" "server_name" .Values.certificates.serverName) $files) -}}
{{- $shown := dict "cert_file" "/etc/envoy/tls/tls.crt" "key_file" "/etc/envoy/tls/tls.key" -}}
{{- if .Values.certificates.clientsShowCertificates }}{{ $_ := set $shown "client_ca_file" "/etc/envoy/tls/ca.crt" }}{{ end -}}
{{- $_ := set $envoy "tls" $shown -}}
{{- end -}}
{{- if and $gateway.picks.enabled (eq $gateway.picks.tls "selfSigned") -}}
{{- $_ := set $own "tls" (merge (dict "gateways" (dict "self_signed" true)) (default (dict) $own.tls)) -}}
{{- end -}}
{{- $_ := set $own "envoy" $envoy -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $own) -}}
{{- end }}

{{/* What of the config a running balancer does not take over: pods are replaced when it changes, and only then. */}}
{{- define "balancer.restartFields" -}}
{{- $config := include "balancer.config" . | fromYaml -}}
{{- pick $config "discovery" "listen" "admin" "tls" "processes" "first_process" "peers" "envoy" "state_file" | toYaml -}}
{{- end }}

{{/* Values that fit each for itself but not together; a schema's words would help nobody. */}}
{{- define "balancer.check" -}}
{{- $values := .Values -}}
{{- $owned := dict "listen" "gateway.ports" "processes" "gateway.processes" "first_process" "nothing: each pod is its own" "peers" "nothing: all pods tell each other" "state_file" "nothing: it is in the pod" "discovery" "discovery" "tls" "certificates" -}}
{{- range $field, $remedy := $owned }}
{{- if hasKey $values.config $field }}{{ fail (printf "config.%s: is the chart's to set; use %s" $field $remedy) }}{{ end }}
{{- end }}
{{- range list "listen" "admin" "frontend" "shared_folder" "max_heap_bytes" "overlay" "balancers" "fleet" "tls" "balancer_tls" }}
{{- if hasKey (default dict $values.config.envoy) . }}{{ fail (printf "config.envoy.%s: is the chart's to set; see gateway and certificates" .) }}{{ end }}
{{- end }}
{{- if hasKey (default dict $values.config.admin) "token_file" }}{{ fail "config.admin.token_file: is the chart's to set; use gateway.adminTokenSecret" }}{{ end }}
{{- if and $values.gateway.picks.enabled (eq $values.gateway.picks.tls "certificates") (eq $values.certificates.source "none") }}
{{- fail "gateway.picks.tls: certificates are not there, as certificates.source is none; set that, or selfSigned" }}
{{- end }}
{{- if and $values.gateway.zoneFrom (hasKey (default dict $values.config.zones) "own") }}
{{- fail "config.zones.own: each pod says it, by gateway.zoneFrom; leave out one of the two" }}
{{- end }}
{{- if and (eq $values.gateway.frontend "native") (ne (int $values.gateway.processes) 1) }}
{{- fail (printf "gateway.processes: %d does not go with gateway.frontend native, where Envoys decide over the state of one balancer; set 1, or frontend pick or proxy" (int $values.gateway.processes)) }}
{{- end }}
{{- if and (eq $values.certificates.source "certManager") (not $values.certificates.issuer.name) }}
{{- fail "certificates.issuer.name: empty; name the Issuer that signs" }}
{{- end }}
{{- if eq $values.certificates.source "secrets" }}
{{- range $part, $name := $values.certificates.secrets }}
{{- $unused := or (and (eq $part "relays") (not $values.relays.replicas)) (and (eq $part "topicIngress") (not (and $values.topicIngress.replicas $values.certificates.clientsShowCertificates))) }}
{{- if not (or $name $unused) }}{{ fail (printf "certificates.secrets.%s: empty; name an existing Secret" $part) }}{{ end }}
{{- end }}
{{- end }}
{{- if $values.triton.enabled }}
{{- $models := $values.triton.models }}
{{- $sources := 0 }}
{{- range list $models.repository $models.volume $models.demo }}{{ if . }}{{ $sources = add1 $sources }}{{ end }}{{ end }}
{{- if ne (int $sources) 1 }}{{ fail "triton.models: name one of repository, volume and demo, which is where Triton finds its models" }}{{ end }}
{{- $names := list }}
{{- range $values.triton.pools }}
{{- if has .name $names }}{{ fail (printf "triton.pools: %s twice; give each pool a name of its own" .name) }}{{ end }}
{{- $names = append $names .name }}
{{- with .autoscaling }}
{{- if lt (int .max) (int .min) }}{{ fail (printf "triton.pools.autoscaling: max %d is below min %d" (int .max) (int .min)) }}{{ end }}
{{- end }}
{{- end }}
{{- else if not (or $values.discovery.labelSelector $values.discovery.inferencePool) }}
{{- fail "discovery.labelSelector: empty; with triton.enabled false, say which pods are workers, such as app=triton, or name an inferencePool" }}
{{- end }}
{{- range $values.autoscaling.languageModels }}
{{- if lt (int .max) (int .min) }}{{ fail (printf "autoscaling.languageModels: max %d of %s is below min %d" (int .max) .name (int .min)) }}{{ end }}
{{- if and $values.discovery.namespace (ne $values.discovery.namespace $.Release.Namespace) }}
{{- fail "autoscaling.languageModels: what scales them stands beside them; leave discovery.namespace empty, or install the chart there" }}
{{- end }}
{{- end }}
{{- if and $values.discovery.labelSelector $values.discovery.inferencePool }}
{{- fail "discovery.inferencePool: the pool says which pods are workers; leave labelSelector empty" }}
{{- end }}
{{- end }}

{{/* How long what waits at the broker takes at the pace of now. Of it the workers know what the ingress holds alone. */}}
{{- define "balancer.scaledByLag" -}}
{{- if .root.Values.topicIngress.replicas }}
{{- $pods := printf `namespace="%s",pod=~"%s-[0-9]+"` .root.Release.Namespace (include "balancer.topicIngress" .root) }}
  - name: {{ .name | replace "-" "_" }}_lag_seconds
    series: balancer_ingress_lag_messages
    query: {{ printf "max(balancer_ingress_lag_messages{%s}) / clamp_min(sum(rate(balancer_ingress_settled_total{%s}[2m])), 1)" $pods $pods | squote }}
    target: {{ .root.Values.autoscaling.lagSeconds }}
{{- end }}
{{- end }}

{{/* What is scaled, a YAML list: each workload, and the PromQL that it is scaled by, of workers that are its pods. */}}
{{- define "balancer.scaled" -}}
{{- $root := . }}
{{- $of := .Values.autoscaling }}
{{- if .Values.triton.enabled }}
{{- range .Values.triton.pools }}
{{- if .autoscaling }}
{{- $name := include "balancer.pool" (dict "root" $root "pool" .) }}
{{- $workers := printf `namespace="%s",worker=~"%s-[0-9]+"` $root.Release.Namespace $name }}
- kind: StatefulSet
  name: {{ $name }}
  min: {{ .autoscaling.min }}
  max: {{ .autoscaling.max }}
  metrics:
  - name: {{ $name | replace "-" "_" }}_backlog_seconds
    series: balancer_worker_backlog_seconds
    query: {{ printf "avg(max by (worker) (balancer_worker_backlog_seconds{%s}))" $workers | squote }}
    target: {{ $of.backlogSeconds }}
  - name: {{ $name | replace "-" "_" }}_p99_seconds
    series: balancer_request_duration_seconds_bucket
    query: {{ printf "histogram_quantile(0.99, sum by (le) (rate(balancer_request_duration_seconds_bucket{%s}[2m])))" $workers | squote }}
    target: {{ $of.p99Seconds }}
{{- include "balancer.scaledByLag" (dict "root" $root "name" $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $of.languageModels }}
{{- $workers := printf `namespace="%s",worker=~"%s-.+"` $root.Release.Namespace .name }}
- kind: {{ .kind }}
  name: {{ .name }}
  min: {{ .min }}
  max: {{ .max }}
  metrics:
  - name: {{ .name | replace "-" "_" }}_waiting_tokens
    series: balancer_worker_waiting_tokens
    query: {{ printf "avg(max by (worker) (balancer_worker_waiting_tokens{%s}))" $workers | squote }}
    target: {{ .waitingTokens }}
  - name: {{ .name | replace "-" "_" }}_memory_share
    series: balancer_worker_memory_share
    query: {{ printf "avg(max by (worker) (balancer_worker_memory_share{%s}))" $workers | squote }}
    target: {{ .memoryShare }}
{{- include "balancer.scaledByLag" (dict "root" $root "name" .name) }}
{{- end }}
{{- end }}
