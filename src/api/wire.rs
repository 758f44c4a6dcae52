//! What a pod and its gateway say to each other: JSON over HTTP/1.1, below `/v1/`.
//!
//! | call | who | what |
//! | --- | --- | --- |
//! | `GET /v1/plan` | provision, collect | [`Plan`] |
//! | `GET /v1/packs/{input}/pack`, `.../idx` | provision | bytes, with `Range` |
//! | `POST /v1/provisioned` | provision | [`ProvisionReport`] |
//! | `GET /v1/proof` | whoever proves the policy | [`ProofPlan`] |
//! | `POST /v1/proof` | the same | [`ProofReport`]; 200 only if the policy is proved |
//! | `POST /v1/grant` | exec | [`GrantRequest`]; 200: a stream of JSON lines, each a [`GrantLine`], open while the agent lives |
//! | `POST /v1/ended` | exec | [`AgentEnd`] |
//! | `POST /v1/outcome` | collect | [`Outcome`] |
//! | `/lookups/{name}/...`, `/git/{input}/...`, `CONNECT host:port` | the agent, through the relay | what the run allows |
//!
//! Every refusal is a [`Problem`]. A local run has two sockets: one for provision and collect, one for the agent that
//! serves proof, grant, ended, lookups, git and `CONNECT` only.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{Attempt, CommitId, Failure, Fault as _, InputName, Reason, RefName, RunUid};

/// The header in which a pod's own containers show their token, over TLS. Not `Authorization`: that is the agent's. An
/// answer holds it only where the token itself was refused.
pub const TOKEN_HEADER: &str = "x-sandboxrun-token";

/// What provision puts into the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The run.
    pub run: RunUid,
    /// The attempt that this pod is.
    pub attempt: Attempt,
    /// The inputs, all or nothing.
    pub inputs: Vec<PlannedInput>,
    /// Written to [`super::layout::PROMPT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Files below [`super::layout::CONTEXT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<ContextFile>,
}

/// One input of a [`Plan`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedInput {
    /// Its name.
    pub name: InputName,
    /// Where it goes, relative to [`super::layout::WORKSPACE`]; no `..`, no leading `/`.
    pub path: String,
    /// The pinned commit.
    pub commit: CommitId,
    /// The full name that led there; absent for a plain commit. A branch is checked out as a branch of that name,
    /// everything else as a detached HEAD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_ref: Option<RefName>,
    /// The clean address for `remote.origin.url`.
    pub origin: String,
    /// Whether the agent's mount is read-only.
    #[serde(default)]
    pub read_only: bool,
    /// Commits whose parents are not in the pack: the lines of `.git/shallow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shallow: Vec<CommitId>,
    /// The pack, from `/v1/packs/{name}/pack`.
    pub pack: Blob,
    /// Its index (`.idx`, version 2), from `/v1/packs/{name}/idx`.
    pub index: Blob,
}

/// Bytes that the gateway serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 in lower-case hex.
    pub sha256: String,
}

/// A file below [`super::layout::CONTEXT`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextFile {
    /// Relative path; no `..`, no leading `/`.
    pub path: String,
    /// The whole content.
    pub content: String,
}

/// How provision ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "result")]
pub enum ProvisionReport {
    /// Every input is in place and its baseline is written.
    Done {
        /// One for each input, in the plan's order.
        inputs: Vec<ProvisionedInput>,
    },
    /// Nothing may start.
    Failed {
        /// Why.
        failure: Failure,
    },
}

/// What one input turned out to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionedInput {
    /// Its name.
    pub name: InputName,
    /// Files and symlinks in the work tree.
    pub files: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Paths of submodules: left empty, not fetched. The first 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub submodules: Vec<String>,
    /// Files that are LFS pointers and stay so.
    #[serde(default)]
    pub lfs_pointers: u64,
    /// How long it took, in milliseconds.
    pub millis: u64,
}

/// Addresses that must not be reachable from where the agent will run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofPlan {
    /// A fresh word, sent to every canary. The gateway knows which arrived.
    pub nonce: String,
    /// What is tried.
    pub canaries: Vec<Canary>,
    /// What is tried of the node that the pod is on. Its addresses the pod itself knows, from
    /// [`super::layout::NODE_ADDRESSES_ENV`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeCanary>,
}

/// A port of the pod's own node. Many network plugins exempt the node from every policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCanary {
    /// The port, by TCP: the kubelet's.
    pub port: u16,
    /// Reachable is a fact and no refusal.
    pub tolerated: bool,
}

/// One address that must not be reachable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Canary {
    /// What it stands for, such as `this machine` or `metadata`.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// How it is tried.
    pub protocol: Protocol,
    /// Reachable is a fact for the record and no refusal: the administrator accepts it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tolerated: bool,
}

impl Canary {
    /// How the name of a canary on the pod's own node begins.
    pub const OWN_NODE: &str = "the pod's own node";
}

/// How a canary is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Open means: a connection was established.
    Tcp,
    /// Open means: the nonce arrived.
    Udp,
}

/// What the tries showed, from inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProofReport {
    /// The plan's nonce.
    pub nonce: String,
    /// How many whole rounds were tried.
    pub rounds: u32,
    /// The canaries that were open in the last round. Empty is what is wanted.
    pub open: Vec<Canary>,
    /// For how long, from the first try, some canary was open; in milliseconds.
    pub open_millis: u64,
    /// Addresses of the pod's own node that were tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<SocketAddr>,
    /// There is time for another proof if this one is not taken: a network that is still open is then no failure yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tries_again: bool,
    /// How long ago the last proof of this pod was taken, in milliseconds; 0 for the first.
    #[serde(default)]
    pub unproven_millis: u64,
}

/// `exec` asks to start the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantRequest {
    /// 32 hex digits made by this `exec`. The same nonce gets the same yes again; another one never does.
    pub nonce: String,
}

/// A line of the answer to a grant. The connection stays open while the agent lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "line")]
pub enum GrantLine {
    /// `agent.started` is in the record: start now. Always the first line.
    Granted {
        /// The agent is stopped after this long, in seconds.
        #[serde(rename = "timeoutSecs")]
        timeout_secs: u64,
        /// The agent is stopped after this long without output, in seconds.
        #[serde(rename = "stallSecs", default, skip_serializing_if = "Option::is_none")]
        stall_secs: Option<u64>,
    },
    /// Nothing: sent every few seconds, so that a lost gateway is noticed.
    Alive,
    /// Stop the agent now.
    Stop {
        /// Why; what [`AgentExit::Stopped`] then says.
        reason: Reason,
    },
}

/// How the agent's command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentEnd {
    /// The grant's nonce.
    pub nonce: String,
    /// How it ended.
    pub exit: AgentExit,
}

/// How the agent's command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "end")]
pub enum AgentExit {
    /// It exited by itself.
    Exited {
        /// Its status, 0 to 255.
        code: i32,
    },
    /// It was killed by a signal that we did not send.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
    /// The command could not be started.
    NotStarted {
        /// Why: the system's words.
        message: String,
    },
    /// We stopped it.
    Stopped {
        /// `TimeoutReached`, `NoOutput`, `CancelRequested`, `PolicyLost`, `GatewayLost`, ...
        reason: Reason,
    },
}

impl AgentExit {
    /// The exit status as a shell would give it: 128 + signal, 127 for a command that is not there; `None` if we stopped it.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Exited { code } => Some(*code),
            Self::Signalled { signal } => Some(128_i32.saturating_add(*signal)),
            Self::NotStarted { .. } => Some(127),
            Self::Stopped { .. } => None,
        }
    }
}

/// What the run left, as `collect` found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// One for each input, in the plan's order.
    pub inputs: Vec<InputOutcome>,
    /// What lay at [`super::layout::OUTPUT_FILE`].
    pub output: OutputFile,
}

/// What became of one input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputOutcome {
    /// Its name.
    pub name: InputName,
    /// Whether it still is what was provisioned.
    pub drift: Drift,
}

/// Whether an input still is what was provisioned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Drift {
    /// Every file has the bytes, mode and type of the baseline, nothing was added, and HEAD is the pinned commit.
    Unchanged,
    /// Something is proven to differ.
    Drifted(DriftFacts),
    /// Not known: never fine, never an alarm.
    Unknown {
        /// Why.
        reason: UnknownReason,
        /// One sentence.
        message: String,
    },
}

impl Drift {
    /// What nobody read is not known.
    #[must_use]
    pub fn unread(reason: UnknownReason) -> Self {
        let message = match reason {
            UnknownReason::AgentMayRun => "the agent may still have been alive",
            UnknownReason::CollectorFailed
            | UnknownReason::Unreadable
            | UnknownReason::Budget
            | UnknownReason::NoBaseline => "what the agent left was not read",
        };
        Self::Unknown {
            reason,
            message: message.to_owned(),
        }
    }
}

/// Why a drift is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnknownReason {
    /// A part could not be read, in a tree that is otherwise equal.
    Unreadable,
    /// The time or size budget was used up.
    Budget,
    /// The baseline is missing or damaged.
    NoBaseline,
    /// The agent may still have been alive.
    AgentMayRun,
    /// The collector did not report.
    CollectorFailed,
}

/// What is proven to differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftFacts {
    /// Files whose bytes differ, and symlinks whose target differs.
    pub modified: u64,
    /// Entries of the baseline that are gone.
    pub deleted: u64,
    /// Entries that the baseline does not have; a whole new directory counts each of its entries.
    pub added: u64,
    /// Entries of another type than before.
    pub type_changed: u64,
    /// Files whose exec bit changed.
    pub mode_changed: u64,
    /// The first few, sorted by path.
    pub paths: Vec<ChangedPath>,
    /// More paths changed than are listed.
    pub truncated: bool,
    /// A part could not be read: the counts are a lower bound.
    pub incomplete: bool,
    /// Where HEAD is now.
    pub head: HeadSeen,
    /// What `.git` is now.
    pub git_dir: GitDir,
}

/// A path that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedPath {
    /// Relative to the input, made safe by [`super::safe_text`].
    pub path: String,
    /// How.
    pub change: Change,
}

/// How a path changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// Other bytes or target.
    Modified,
    /// Gone.
    Deleted,
    /// New.
    Added,
    /// Another type.
    TypeChanged,
    /// Exec bit.
    ModeChanged,
}

/// Where HEAD is, read as text: nothing of the agent's is run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum HeadSeen {
    /// The pinned commit, on the same branch (or detached, as provisioned).
    #[default]
    Pinned,
    /// Somewhere else.
    Moved {
        /// The commit, if HEAD leads to one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<CommitId>,
        /// Whether the pinned commit is an ancestor; absent: not known.
        #[serde(
            rename = "pinnedIsAncestor",
            default,
            skip_serializing_if = "Option::is_none"
        )]
        pinned_is_ancestor: Option<bool>,
    },
    /// HEAD cannot be read.
    Unreadable,
}

/// What `.git` is after the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GitDir {
    /// A directory with HEAD and objects.
    #[default]
    Intact,
    /// Not there.
    Missing,
    /// A file, a symlink, or no git directory any more.
    Replaced,
}

/// What lay at [`super::layout::OUTPUT_FILE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "file")]
pub enum OutputFile {
    /// Nothing.
    Absent,
    /// A regular file of at most 1 MiB of UTF-8; whether it is JSON is for the host to say.
    Text {
        /// The whole content.
        text: String,
    },
    /// Something that is not read: a link, a directory, too large, not text.
    Refused {
        /// Why, as a sentence's end.
        message: String,
    },
}

/// The largest [`OutputFile::Text`], in bytes.
pub const OUTPUT_MAX_BYTES: u64 = 1024 * 1024;

/// What the broker leaves as its termination message, so that an outcome outlives a gateway that is down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// What did not fit into 2048 bytes: `paths`, then `facts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// One for each input, in the plan's order.
    pub inputs: Vec<InputSummary>,
    /// `absent`, `refused`, or the length of the text.
    pub output: String,
    /// How the agent's command ended, by the word of our own `exec`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<AgentExit>,
}

/// What a [`Summary`] holds of an input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum InputSummary {
    /// Everything, or everything but the paths.
    Whole {
        /// Its name.
        name: InputName,
        /// Its drift.
        drift: Drift,
    },
    /// `unchanged`, `drifted` or `unknown`: the facts did not fit.
    State {
        /// Its name.
        name: InputName,
        /// The word.
        state: String,
    },
}

impl Summary {
    /// Reads a termination message. `None`: it was cut or is none of ours, and so nothing is known.
    #[must_use]
    pub fn parse(message: &str) -> Option<Self> {
        serde_json::from_str(message).ok()
    }

    /// What it says of every input. A drift whose facts did not fit is marked incomplete.
    #[must_use]
    pub fn outcomes(&self) -> Vec<InputOutcome> {
        self.inputs.iter().map(InputSummary::outcome).collect()
    }
}

impl InputSummary {
    fn outcome(&self) -> InputOutcome {
        match self {
            Self::Whole { name, drift } => InputOutcome {
                name: name.clone(),
                drift: drift.clone(),
            },
            Self::State { name, state } => InputOutcome {
                name: name.clone(),
                drift: match state.as_str() {
                    "unchanged" => Drift::Unchanged,
                    "drifted" => Drift::Drifted(DriftFacts {
                        truncated: true,
                        incomplete: true,
                        ..DriftFacts::default()
                    }),
                    _ => Drift::Unknown {
                        reason: UnknownReason::CollectorFailed,
                        message: "the broker's message holds no more".to_owned(),
                    },
                },
            },
        }
    }
}

/// The one shape of a refusal: `application/problem+json` (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The HTTP status, again.
    pub status: u16,
    /// The code's text, such as `broker.denied`.
    pub code: String,
    /// What exactly happened.
    pub reason: Reason,
    /// One sentence.
    pub detail: String,
    /// The rule that refused, such as `lookups[tickets].paths`; empty where no rule did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// What to do.
    pub hint: String,
}

impl Problem {
    /// The media type of a refusal.
    pub const CONTENT_TYPE: &str = "application/problem+json";

    /// A refusal.
    #[must_use]
    pub fn new(
        status: u16,
        reason: Reason,
        detail: impl Into<String>,
        rule: impl Into<String>,
    ) -> Self {
        Self {
            status,
            code: reason.code().as_str().to_owned(),
            reason,
            detail: detail.into(),
            rule: rule.into(),
            hint: reason.hint().to_owned(),
        }
    }

    /// The refusal of a failed operation.
    #[must_use]
    pub fn of(status: u16, failure: &Failure) -> Self {
        Self::new(status, failure.reason(), failure.message.clone(), "")
    }
}
