//! The `SandboxRun` resource, flat, as users write it. [`super::RunSpec`] is its parsed twin.

#![allow(
    clippy::duplicated_attributes,
    reason = "the derive takes one printcolumn for each column"
)]

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SandboxRunStatus;

/// A run of one agent on pinned inputs.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "sandboxrun.dev",
    version = "v1alpha1",
    kind = "SandboxRun",
    shortname = "sbr",
    category = "all",
    namespaced,
    status = "SandboxRunStatus",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.summary.reason"
    ),
    printcolumn(
        name = "Inputs",
        type_ = "string",
        json_path = ".status.summary.inputs"
    ),
    printcolumn(name = "Drift", type_ = "string", json_path = ".status.summary.drift"),
    printcolumn(
        name = "Exit",
        type_ = "integer",
        json_path = ".status.result.exitCode"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Pod",
        type_ = "string",
        json_path = ".status.result.pod",
        priority = 1
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".status.result.node",
        priority = 1
    ),
    printcolumn(
        name = "Duration",
        type_ = "string",
        json_path = ".status.summary.duration",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxRunSpec {
    /// Repositories that the agent works on: at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputSpec>,
    /// What runs.
    pub agent: AgentSpec,
    /// What the agent may ask through the broker. Deny by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lookups: Vec<LookupSpec>,
    /// Hosts that the agent may reach through the proxy. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressSpec>,
    /// How strict the run is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicySpec>,
    /// The volume that holds the inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceSpec>,
    /// Which node the pod may be on, and how long it may take to get there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<SchedulingSpec>,
    /// Further attempts for pods that are lost before the agent starts: 0 to 10. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_retries: Option<i32>,
    /// True: no pod is made, and one whose agent has not started is deleted. Can be changed. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// True: the run is ended. Can be changed: to true at any time, back to false together with `rerun`. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
    /// Change it to run again: any text. Default: empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun: Option<String>,
    /// When the pod of an ended run goes; the `SandboxRun` stays. Can be changed. Default: 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_after_finished: Option<String>,
    /// True: then the `SandboxRun` goes too; not where a tool would apply it again. Can be changed. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_after_finished: Option<bool>,
}

/// One repository at one commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InputSpec {
    /// A DNS label, unique in the run, at most 40 characters.
    pub name: String,
    /// `https://`, `ssh://`, `git@host:path`; or a path such as `acme/app` with a connector.
    pub repository: String,
    /// A Connector in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connector: Option<String>,
    /// Which commit. Absent: the remote's HEAD.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<RefSpec>,
    /// Where it goes below `/workspace`. Default: the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How much history: 1 is the commit alone, 0 the whole. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<i32>,
    /// The agent gets it read-only. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Whether the agent may `git fetch` more of it through the relay. Default: Origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<FetchSpec>,
}

/// Exactly one of its fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RefSpec {
    /// The branch `refs/heads/...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The tag `refs/tags/...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// A whole commit id: 40 or 64 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Any full name, such as `refs/pull/7/head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Whether the agent may fetch more of an input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FetchSpec {
    /// From the input's own repository, through the relay.
    #[default]
    Origin,
    /// Not at all.
    None,
}

/// What runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentSpec {
    /// The container image. A local run does not use it.
    pub image: String,
    /// The command: no shell, no entry point of the image.
    pub command: Vec<String>,
    /// Appended to the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables, literal values only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Default: the first input, or `/workspace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Writable places beside `/tmp` and the home directory: absolute paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scratch: Vec<String>,
    /// Written to `/sandbox/prompt.md`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Files below `/sandbox/context`; with the prompt at most 192 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<ContextFileSpec>,
    /// From the agent's start: 1m to 24h. Default: 20m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// No output for that long and the agent is stopped. Absent: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_timeout: Option<String>,
    /// What `/sandbox/output/output.json` must be. Absent: the file is optional.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputSpec>,
    /// What the agent's container asks for and may use at most. Default: as set at installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourcesSpec>,
    /// The user id of everything in the pod, never 0. Default: 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<i64>,
    /// Secrets with which the kubelet pulls the image. Never mounted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<PullSecretSpec>,
}

/// What a container asks for and may use at most. A resource that stands in one of the two counts for both.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourcesSpec {
    /// What a node must have free: `cpu`, `memory`, `ephemeral-storage` and extended resources, such as `{cpu: 500m}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, String>,
    /// What it may use at most, such as `{memory: 4Gi}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
}

/// A Secret of type `kubernetes.io/dockerconfigjson` in the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullSecretSpec {
    /// Its name.
    pub name: String,
}

/// The volume that holds the inputs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkspaceSpec {
    /// What it may hold; the pod of a run that writes more is evicted. Default: 10Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
}

/// Which node the pod may be on, and how long it may take to get there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SchedulingSpec {
    /// Labels that the node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pod tolerates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<TolerationSpec>,
    /// A `PriorityClass`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// From the pod being wanted to the agent's start: 1s to 24h. Default: 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout: Option<String>,
}

/// A taint that the pod tolerates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TolerationSpec {
    /// The taint's key. Absent: every taint, with operator Exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Default: Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// The taint's value, with operator Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Absent: every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// How long the taint is tolerated, with effect `NoExecute`. Absent: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// How a toleration is compared with a taint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// Key and value are equal.
    #[default]
    Equal,
    /// The key is equal.
    Exists,
}

/// What a taint does to pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// They are not put on the node.
    NoSchedule,
    /// They are put there last.
    PreferNoSchedule,
    /// They are removed from it, too.
    NoExecute,
}

/// A literal environment variable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value. Default: empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// A file below `/sandbox/context`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextFileSpec {
    /// Relative path.
    pub path: String,
    /// The whole content.
    pub content: String,
}

/// What the agent's output must be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutputSpec {
    /// A JSON Schema (draft 2020-12 unless `$schema` says otherwise) that points to nothing outside itself.
    #[schemars(schema_with = "any_object")]
    pub schema: serde_json::Value,
}

/// One connector that the agent may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LookupSpec {
    /// A DNS label, unique in the run: `http://127.0.0.1:7070/lookups/NAME/...`.
    pub name: String,
    /// A Connector in the same namespace whose uses hold `Lookups`.
    pub connector: String,
    /// Default: GET and HEAD.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// What may be asked: `*` is one path segment, `**` any number.
    pub paths: Vec<String>,
    /// Upper bounds. Each absent: none, but 10m of idle time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LookupLimits>,
}

/// Upper bounds of a lookup.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LookupLimits {
    /// Calls in the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<i64>,
    /// Bytes of answers in the whole run, such as `10Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<String>,
    /// Calls in any 60 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<i64>,
    /// How long a call may be silent. Default: 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<String>,
}

/// Hosts that the agent may reach.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressSpec {
    /// Host and port pairs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<EgressRule>,
}

/// A host and port that the agent may reach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressRule {
    /// An exact host name, or `*.suffix`.
    pub host: String,
    /// Default: 443.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// How strict the run is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicySpec {
    /// What drift means for the result. Default: Report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_drift: Option<OnDrift>,
    /// A `RuntimeClass`, such as `gvisor`. A local run refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Whether each input credential must be shown to be read-only. Default: Warn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_proof: Option<CredentialProofPolicy>,
}

/// What drift means for the result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDrift {
    /// It is reported.
    #[default]
    Report,
    /// The run fails with `sandbox.drift_detected`.
    Fail,
}

/// Whether each input credential must be shown to be read-only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CredentialProofPolicy {
    /// `CanWrite` and `Unknown` end the run.
    Enforce,
    /// They are recorded.
    #[default]
    Warn,
    /// Nothing is asked.
    Off,
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
