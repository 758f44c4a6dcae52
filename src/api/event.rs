//! What is written down: one typed event per thing that happened, in the words of the CRD.
//!
//! The record (`audit/`) stores them, `run/` reads its facts from them.

use serde::{Deserialize, Serialize};

use super::wire::{AgentExit, Canary, InputOutcome, ProvisionedInput};
use super::{
    Attempt, CommitId, ConnectorName, Failure, InputName, LookupName, Namespace, ObjectFormat,
    Reason, RefName, RunName, RunUid,
};

/// Which run a chain of events belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunKey {
    /// The tenant.
    pub namespace: Namespace,
    /// The object's name.
    pub name: RunName,
    /// The object's uid.
    pub uid: RunUid,
}

/// Something that happened to a run. Written *before* the action it announces, and after with its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all_fields = "camelCase")]
pub enum Event {
    /// The first event of every run: its identity.
    #[serde(rename = "run.created")]
    RunCreated {
        /// SHA-256 over the canonical spec, hex.
        digest: String,
        /// `spec.rerun`.
        rerun: String,
        /// The program and version that wrote this.
        writer: String,
    },
    /// The dispatch marker: this attempt is about to begin. Nothing external has happened yet.
    #[serde(rename = "attempt.dispatched")]
    AttemptDispatched {
        /// From 1.
        attempt: Attempt,
    },
    /// An input became a commit.
    #[serde(rename = "input.resolved")]
    InputResolved {
        /// The attempt.
        attempt: Attempt,
        /// Its name.
        input: InputName,
        /// The address, without secrets.
        repository: String,
        /// What was asked for, such as `branch main`.
        requested_ref: String,
        /// The full name that led there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resolved_ref: Option<RefName>,
        /// The commit.
        commit: CommitId,
        /// The annotated tag's own id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tag_object: Option<CommitId>,
        /// SHA-1 or SHA-256.
        object_format: ObjectFormat,
        /// Whose credential.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connector: Option<ConnectorName>,
        /// `ReadOnly`, `CanWrite`, `Unknown` or `NotAsked`.
        credential_proof: String,
    },
    /// Resolution, credentials or provisioning failed: nothing starts in this attempt.
    #[serde(rename = "attempt.failed")]
    AttemptFailed {
        /// The attempt.
        attempt: Attempt,
        /// Why.
        failure: Failure,
    },
    /// The pod (or local sandbox) is about to be made.
    #[serde(rename = "pod.creating")]
    PodCreating {
        /// The attempt.
        attempt: Attempt,
        /// Its name.
        pod: String,
    },
    /// The inputs are in the workspace.
    #[serde(rename = "inputs.provisioned")]
    InputsProvisioned {
        /// The attempt.
        attempt: Attempt,
        /// What they turned out to be.
        inputs: Vec<ProvisionedInput>,
    },
    /// The policy was proved from inside, or it was shown not to hold.
    #[serde(rename = "policy.proof")]
    PolicyProof {
        /// The attempt.
        attempt: Attempt,
        /// Proved.
        enforced: bool,
        /// What was tried.
        canaries: Vec<Canary>,
        /// What answered in the last round, by the pod's word or ours.
        open: Vec<Canary>,
        /// For how long something was open at first, in milliseconds.
        open_millis: u64,
        /// For how long nothing was proved before this, while the agent lived; in milliseconds. Only where it was long.
        #[serde(default, skip_serializing_if = "is_zero")]
        unproven_millis: u64,
    },
    /// The start grant: given once for each attempt, to one nonce.
    #[serde(rename = "agent.started")]
    AgentStarted {
        /// The attempt.
        attempt: Attempt,
        /// The nonce of the `exec` that got the yes.
        nonce: String,
    },
    /// No agent will ever start in this attempt.
    #[serde(rename = "attempt.abandoned")]
    AttemptAbandoned {
        /// The attempt.
        attempt: Attempt,
        /// Why.
        reason: Reason,
    },
    /// The agent was asked to stop.
    #[serde(rename = "agent.stopping")]
    AgentStopping {
        /// The attempt.
        attempt: Attempt,
        /// Why.
        reason: Reason,
    },
    /// The agent's command ended.
    #[serde(rename = "agent.ended")]
    AgentEnded {
        /// The attempt.
        attempt: Attempt,
        /// How, by the word of our own `exec`; absent if it was lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit: Option<AgentExit>,
        /// From the grant to the end, in milliseconds.
        millis: u64,
    },
    /// One call of the agent through the relay.
    #[serde(rename = "call")]
    Call(Call),
    /// What became of an input.
    #[serde(rename = "drift")]
    Drift {
        /// The attempt.
        attempt: Attempt,
        /// The input and its drift.
        outcome: InputOutcome,
    },
    /// What the agent left as its result.
    #[serde(rename = "output")]
    Output {
        /// The attempt.
        attempt: Attempt,
        /// SHA-256 of the whole, hex; absent: no file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sha256: Option<String>,
        /// Its length.
        bytes: u64,
        /// The whole text, when it is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// Why it does not count.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
    /// The last word on the run.
    #[serde(rename = "run.ended")]
    RunEnded {
        /// The attempt that it ended in; absent: none was begun.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<Attempt>,
        /// The agent's exit status.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// Why it failed; absent: it succeeded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        /// From the creation to here, in milliseconds.
        millis: u64,
    },
}

impl Event {
    /// The word that names this kind of event, as it is stored.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RunCreated { .. } => "run.created",
            Self::AttemptDispatched { .. } => "attempt.dispatched",
            Self::InputResolved { .. } => "input.resolved",
            Self::AttemptFailed { .. } => "attempt.failed",
            Self::PodCreating { .. } => "pod.creating",
            Self::InputsProvisioned { .. } => "inputs.provisioned",
            Self::PolicyProof { .. } => "policy.proof",
            Self::AgentStarted { .. } => "agent.started",
            Self::AttemptAbandoned { .. } => "attempt.abandoned",
            Self::AgentStopping { .. } => "agent.stopping",
            Self::AgentEnded { .. } => "agent.ended",
            Self::Call(_) => "call",
            Self::Drift { .. } => "drift",
            Self::Output { .. } => "output",
            Self::RunEnded { .. } => "run.ended",
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands over a reference"
)]
fn is_zero(millis: &u64) -> bool {
    *millis == 0
}

/// One call of the agent: never its body or header values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// The attempt.
    pub attempt: Attempt,
    /// What kind of call, and by which rule's name.
    pub via: Via,
    /// The method; `CONNECT` for a tunnel.
    pub method: String,
    /// The normalised path, or `host:port` for a tunnel.
    pub target: String,
    /// The length of the query in bytes, and its SHA-256 in hex; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<QueryDigest>,
    /// Allowed and answered, or why not.
    pub decision: Decision,
    /// The status that the agent got.
    pub status: u16,
    /// Bytes of the answer's body that went to the agent.
    pub bytes: u64,
    /// From the request's head to the answer's last byte.
    pub millis: u64,
}

/// What kind of call it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Via {
    /// A lookup, by name.
    Lookup(LookupName),
    /// A git fetch of an input.
    Git(InputName),
    /// The proxy.
    Proxy,
    /// Something that the relay does not offer.
    Other,
}

/// A query's length and hash: enough to compare, too little to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryDigest {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256, hex.
    pub sha256: String,
}

/// What was decided about a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum Decision {
    /// Allowed and about to be made: written before anything leaves, so an unfinished call is seen.
    Begun,
    /// Allowed and answered.
    Allowed,
    /// Refused by us.
    Refused {
        /// Why.
        reason: Reason,
        /// By which rule.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        rule: String,
    },
    /// Allowed, and failed on the way.
    Failed {
        /// Why.
        reason: Reason,
    },
}
