{{/* The name of everything that the chart makes. */}}
{{- define "sandboxrun.name" -}}
{{- .Values.nameOverride | default (ternary .Release.Name (printf "%s-sandboxrun" .Release.Name) (contains "sandboxrun" .Release.Name)) | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* What selects the operator's pods: in the Deployment, the Service and in the policy of every run. Never changed. */}}
{{- define "sandboxrun.selector" -}}
app.kubernetes.io/name: sandboxrun
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "sandboxrun.labels" -}}
{{ include "sandboxrun.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{- define "sandboxrun.image" -}}
{{- .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "sandboxrun.podImage" -}}
{{- .Values.podImage.repository }}{{ with .Values.podImage.digest }}@{{ . }}{{ else }}:{{ .Values.podImage.tag | default .Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* What the restricted Pod Security Standard wants, and a root that nobody can write to. */}}
{{- define "sandboxrun.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end -}}

{{/* Rules on workloads: a ClusterRole, or a Role in each of watchNamespaces. */}}
{{- define "sandboxrun.workloadRules" -}}
- apiGroups: [sandboxrun.dev]
  resources: [sandboxruns] # delete: only those that say deleteAfterFinished
  verbs: [get, list, watch, delete]
- apiGroups: [sandboxrun.dev]
  resources: [sandboxruns/status]
  verbs: [patch]
- apiGroups: [sandboxrun.dev]
  resources: [connectors]
  verbs: [get]
- apiGroups: [""]
  resources: [secrets] # of connectors, at use: never listed, never watched
  verbs: [get]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch, create, patch]
- apiGroups: [""]
  resources: [namespaces] # an annotation switches inputs off
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* The operator's settings: `config` as it is, and what the chart itself decides. */}}
{{- define "sandboxrun.config" -}}
{{- $name := include "sandboxrun.name" . -}}
{{- $ours := dict
  "pods" (dict
    "podImage" (include "sandboxrun.podImage" .) "podImagePullPolicy" .Values.podImage.pullPolicy
    "operator" (dict "namespace" .Release.Namespace "podLabels" (include "sandboxrun.selector" . | fromYaml) "port" 8443))
  "watchNamespaces" .Values.watchNamespaces
  "record" (dict "file" "/var/lib/sandboxrun/record/record.db")
  "mirror" (dict "directory" "/var/lib/sandboxrun/mirror")
  "gateway" (dict
    "listen" "0.0.0.0:8443" "service" $name "port" 8443 "caSecret" (printf "%s-ca" $name)
    "canaries" (list (dict "port" 8444 "listen" 8444) (dict "port" 53 "listen" 8053) (dict "port" 443 "listen" 8445)))
  "leader" (dict "lease" $name)
  "controller" (dict "health" "0.0.0.0:8081" "metrics" "0.0.0.0:8080")
-}}
{{- toYaml (mustMergeOverwrite (deepCopy .Values.config) $ours) -}}
{{- end -}}
