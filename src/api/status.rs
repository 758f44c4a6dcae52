//! `status` of a `SandboxRun`: what `kubectl get -o yaml` and `sandboxrun run -o json` show.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is known of a run. The record is the authority; this is its short form, below 32 KiB.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxRunStatus {
    /// The `metadata.generation` that this speaks about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// For people. Machines read the conditions.
    pub phase: Phase,
    /// The number of the attempt, from 1; absent: none was begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 1))]
    pub attempt: Option<u32>,
    /// When the agent was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub started_at: Option<String>,
    /// When the last word was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    /// Short texts for the columns.
    pub summary: StatusSummary,
    /// Ready, Reconciling, Stalled, Complete, Failed, `InputsResolved`, `WorkspaceReady`, `PolicyEnforced`, Drifted, Recorded.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// One for each input, in the spec's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub inputs: Vec<InputStatus>,
    /// Why it failed, or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorStatus>,
    /// What came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultStatus>,
    /// Where it is written down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordStatus>,
    /// A list or text was cut so that this stays small. The record has all.
    #[serde(skip_serializing_if = "is_false")]
    pub truncated: bool,
}

/// `observedGeneration` of a status that nobody has written: the CRD's default, so that kstatus does not take a run that
/// nobody has looked at for one that is as it should be.
pub const UNSEEN: i64 = -1;

/// Where a run is. A column for people.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Phase {
    /// Nothing has begun.
    #[default]
    Pending,
    /// Refs become commits.
    Resolving,
    /// The pod starts, inputs go into it.
    Provisioning,
    /// The agent runs.
    Running,
    /// Drift and output are read.
    Collecting,
    /// It ended well.
    Succeeded,
    /// It did not.
    Failed,
    /// It was ended by a wish.
    Cancelled,
}

/// Short texts for the columns of `kubectl get`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusSummary {
    /// `app@1a2b3c4d5e`, with a comma between two.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub inputs: String,
    /// `Unchanged`, `Drifted (3)` or `Unknown`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub drift: String,
    /// Why it is where it is, in one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// From the agent's start to the end.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub duration: String,
}

/// One condition, as Kubernetes has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its name.
    #[serde(rename = "type")]
    pub kind: ConditionType,
    /// True, False or Unknown.
    pub status: ConditionStatus,
    /// A `CamelCase` word.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// The `metadata.generation` that it speaks about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Since when it has this status: the time of the recorded event that made it so.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
}

/// The conditions of a run. Each is there from the first status on.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum ConditionType {
    /// True: it succeeded.
    Ready,
    /// True: it is under way.
    Reconciling,
    /// True: it failed and does not go on by itself.
    Stalled,
    /// True: it succeeded.
    Complete,
    /// True: it failed or was cancelled.
    Failed,
    /// True: every ref is a recorded commit.
    InputsResolved,
    /// True: every input is in the workspace.
    WorkspaceReady,
    /// True: the policy was proved from inside.
    PolicyEnforced,
    /// True: the workspace differs from its commits. Unknown until it was compared.
    Drifted,
    /// False: something could not be written to the record yet.
    Recorded,
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Not known (yet).
    Unknown,
}

/// What became of an input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InputStatus {
    /// Its name.
    pub name: String,
    /// Its address, without secrets.
    pub repository: String,
    /// What was asked for, such as `branch main`.
    pub requested_ref: String,
    /// The full name that led to the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_ref: Option<String>,
    /// The pinned commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The annotated tag's own id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag_object: Option<String>,
    /// `sha1` or `sha256`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_format: Option<String>,
    /// When the ref was looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub resolved_at: Option<String>,
    /// Whose credential, and what its proof showed; absent: anonymous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialStatus>,
    /// Where HEAD was at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<HeadStatus>,
    /// Whether it still was what was provisioned; absent: not compared yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftStatus>,
}

/// Whose credential an input used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CredentialStatus {
    /// The Connector.
    pub connector: String,
    /// `ReadOnly`, `CanWrite`, `Unknown` or `NotAsked`.
    pub proof: String,
}

/// Where HEAD was after the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeadStatus {
    /// `Pinned`, `Moved` or `Unreadable`.
    pub state: String,
    /// The commit that it led to, if it moved to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether the pinned commit is an ancestor of it; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_is_ancestor: Option<bool>,
    /// What `.git` was: `Intact`, `Missing` or `Replaced`.
    pub git_dir: String,
}

/// Whether an input still was what was provisioned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftStatus {
    /// `Unchanged`, `Drifted` or `Unknown`.
    pub state: String,
    /// Why it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A sentence about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Counts; absent where nothing differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<DriftCounts>,
    /// The first paths that changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathStatus>,
    /// More paths changed than are listed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// A part could not be read: the counts are a lower bound.
    #[serde(default, skip_serializing_if = "is_false")]
    pub incomplete: bool,
}

/// How many entries of a work tree differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftCounts {
    /// Other bytes or target.
    pub modified: i64,
    /// Gone.
    pub deleted: i64,
    /// New.
    pub added: i64,
    /// Of another type.
    pub type_changed: i64,
    /// With another exec bit.
    pub mode_changed: i64,
}

/// A path that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PathStatus {
    /// Relative to the input.
    pub path: String,
    /// `modified`, `deleted`, `added`, `typeChanged` or `modeChanged`.
    pub change: String,
}

/// Why a run failed, or what it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorStatus {
    /// Such as `sandbox.input_resolution_failed`; `sandboxrun explain CODE` says more.
    pub code: String,
    /// What exactly happened.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// Whether running again can help without a change.
    pub retryable: bool,
    /// What to do.
    pub hint: String,
    /// The input that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
}

/// What came of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResultStatus {
    /// The agent's exit status; 128 + signal if one killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// `Succeeded`, or the reason of the error.
    pub reason: String,
    /// The result file; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputStatus>,
    /// The pod of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The node that it ran on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// The result file of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputStatus {
    /// Of the whole file, in hex.
    pub sha256: String,
    /// Its length.
    pub bytes: i64,
    /// The file's text, up to 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// Where a run is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordStatus {
    /// The run's uid: `sandboxrun audit show ID`.
    pub id: String,
    /// `SEQUENCE:HASH` of the newest entry: `sandboxrun audit verify ID --head HEAD`.
    pub head: String,
    /// How many events there are.
    pub events: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
