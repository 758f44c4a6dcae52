//! The registry of error codes: what can go wrong with a run or a call, whether it can heal, what to do.
//!
//! A [`Reason`] is the exact thing that happened and belongs to one [`Code`]. One table says everything about it, so
//! status, events, record, exit codes and `docs/errors.md` can never disagree.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::InputName;

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Healing {
    /// Tried again with backoff for up to 5 minutes.
    Transient,
    /// Tried again for 10 s only (a forge that is a moment behind), then permanent.
    Brief,
    /// The same input gives the same answer.
    Permanent,
}

/// Something that fails and knows its place in the registry.
pub trait Fault: std::error::Error {
    /// What happened, as the registry names it.
    fn reason(&self) -> Reason;

    /// The code that the reason belongs to.
    fn code(&self) -> Code {
        self.reason().code()
    }

    /// What the user should do, as an instruction.
    fn hint(&self) -> &'static str {
        self.reason().hint()
    }

    /// Whether trying again can help.
    fn healing(&self) -> Healing {
        self.reason().healing()
    }

    /// The failure as it is kept in status and record: the messages of the whole source chain, in one line.
    fn failure(&self, input: Option<InputName>) -> Failure
    where
        Self: Sized,
    {
        let mut message = self.to_string();
        let mut source = self.source();
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        Failure {
            reason: self.reason(),
            message: super::safe_text(message.as_bytes()),
            input,
        }
    }
}

/// A failure of a run or of a call: `status.error`. Code and `retryable` follow from the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What happened.
    pub reason: Reason,
    /// One sentence without secrets: names the field, repository or file.
    pub message: String,
    /// The input that failed, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<InputName>,
}

impl Failure {
    /// A failure that concerns the whole run.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            input: None,
        }
    }
}

impl Fault for Failure {
    fn reason(&self) -> Reason {
        self.reason
    }
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $code:ident = $text:literal, $exit:expr;)*) => {
        /// An error code: what users match on. Its text never changes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($(#[doc = $doc])* $code,)* }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$code,)*];

            /// The code's text, such as `sandbox.spec_invalid`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => $text,)* }
            }

            /// What it stands for: one sentence.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$code => concat!($($doc),*).trim(),)* }
            }

            /// The exit code of `sandboxrun run`, 240 to 254; `None`: the agent's own, or a code of a call.
            #[must_use]
            pub const fn exit_code(self) -> Option<u8> {
                match self { $(Self::$code => $exit,)* }
            }
        }
    };
}

codes! {
    /// The manifest breaks a rule.
    SpecInvalid = "sandbox.spec_invalid", Some(240);
    /// Inputs are switched off for this installation or namespace.
    WorkspaceInputsDisabled = "sandbox.workspace_inputs_disabled", Some(240);
    /// A repository, ref or commit could not be resolved or fetched.
    InputResolutionFailed = "sandbox.input_resolution_failed", Some(241);
    /// A credential is missing, refused, or not what it has to be.
    InputCredentialFailed = "sandbox.input_credential_failed", Some(242);
    /// A credential would have gone to another server than its own.
    InputHostMismatch = "sandbox.input_host_mismatch", Some(242);
    /// The inputs could not be put into the workspace.
    InputCheckoutFailed = "sandbox.input_checkout_failed", Some(243);
    /// A lookup's connector cannot be used.
    LookupConnectorFailed = "sandbox.lookup_connector_failed", Some(242);
    /// The record cannot be written.
    RecordUnavailable = "sandbox.record_unavailable", Some(244);
    /// The API server or a webhook refused or changed the pod.
    PodRejected = "sandbox.pod_rejected", Some(245);
    /// No node took the pod in time.
    Unschedulable = "sandbox.unschedulable", Some(245);
    /// The agent's image cannot be pulled.
    ImageFailed = "sandbox.image_failed", Some(245);
    /// A container cannot be made from its configuration.
    ContainerConfigFailed = "sandbox.container_config_failed", Some(245);
    /// The network policy is not proved to be in force.
    PolicyNotEnforced = "sandbox.policy_not_enforced", Some(246);
    /// The node or the scheduler took the pod away.
    Disrupted = "sandbox.disrupted", Some(247);
    /// Somebody deleted the pod.
    PodDeleted = "sandbox.pod_deleted", Some(247);
    /// The broker failed.
    BrokerFailed = "sandbox.broker_failed", Some(247);
    /// The workspace outgrew its size while the agent ran.
    WorkspaceFull = "sandbox.workspace_full", Some(248);
    /// A container ran out of memory.
    OutOfMemory = "sandbox.out_of_memory", Some(248);
    /// The agent ended with a status other than 0.
    AgentFailed = "sandbox.agent_failed", None;
    /// The agent ran longer than `agent.timeout`.
    AgentTimeout = "sandbox.agent_timeout", Some(249);
    /// The agent printed nothing for `agent.stallTimeout`.
    AgentStalled = "sandbox.agent_stalled", Some(250);
    /// `output.json` does not fit.
    OutputInvalid = "sandbox.output_invalid", Some(251);
    /// The workspace drifted and `policy.onDrift` is `Fail`.
    DriftDetected = "sandbox.drift_detected", Some(252);
    /// The run was cancelled.
    Cancelled = "sandbox.cancelled", Some(253);
    /// A fault of sandboxrun itself.
    Internal = "sandbox.internal", Some(254);
    /// No rule allows the call.
    BrokerDenied = "broker.denied", None;
    /// The call is over a limit of its lookup.
    BrokerLimitReached = "broker.limit_reached", None;
    /// The other server could not be reached or broke off.
    BrokerUpstreamFailed = "broker.upstream_failed", None;
    /// The other server refused our credential or answered with a redirect.
    BrokerUpstreamRefused = "broker.upstream_refused", None;
    /// The call could not be written to the record.
    BrokerNotRecorded = "broker.not_recorded", None;
    /// The gateway is not there or too busy.
    BrokerUnavailable = "broker.unavailable", None;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Code {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL
            .iter()
            .copied()
            .find(|c| c.as_str() == text)
            .ok_or(UnknownName)
    }
}

/// The text names no code or reason of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not in the registry: `docs/errors.md` lists all codes and reasons")]
pub struct UnknownName;

macro_rules! reasons {
    ($($name:ident: $code:ident, $healing:ident, $hint:literal;)*) => {
        /// What exactly happened. A `CamelCase` word in `status.error.reason` and in conditions.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "the hint of each row is its documentation")]
        pub enum Reason { $($name,)* }

        impl Reason {
            /// Every reason, grouped by code.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The `CamelCase` word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The code that this reason belongs to.
            #[must_use]
            pub const fn code(self) -> Code {
                match self { $(Self::$name => Code::$code,)* }
            }

            /// Whether trying again can help.
            #[must_use]
            pub const fn healing(self) -> Healing {
                match self { $(Self::$name => Healing::$healing,)* }
            }

            /// What the user should do, as an instruction.
            #[must_use]
            pub const fn hint(self) -> &'static str {
                match self { $(Self::$name => $hint,)* }
            }
        }
    };
}

reasons! {
    RuleBroken: SpecInvalid, Permanent, "write the field as the message says and apply it again";
    NotDecodable: SpecInvalid, Permanent, "correct the field that the message names; `sandboxrun validate -f FILE` checks it offline";
    NotOnThisMachine: SpecInvalid, Permanent, "remove the field, or run this manifest in a cluster";
    AboveLimit: SpecInvalid, Permanent, "ask for no more than the message says, or let the administrator raise the limit";
    InputsDisabled: WorkspaceInputsDisabled, Permanent, "ask the administrator to switch workspace inputs on, or remove spec.inputs";

    RefNotFound: InputResolutionFailed, Brief, "write the exact name of a ref that the repository has; `git ls-remote URL` lists them";
    NotACommit: InputResolutionFailed, Permanent, "name a ref or an id that leads to a commit; the message gives the commit to write, if there is one";
    EmptyRepository: InputResolutionFailed, Permanent, "push a first commit to the repository";
    CommitNotFound: InputResolutionFailed, Permanent, "name a commit that the repository still has and that this credential may read";
    RepositoryNotFoundOrNoAccess: InputResolutionFailed, Brief, "check the repository's address, and that the connector's credential may read it";
    RepositoryGone: InputResolutionFailed, Permanent, "the server says that the repository was removed: name another one";
    NotAGitServer: InputResolutionFailed, Brief, "check the repository's address: the server answered with something that is not git, such as a login page";
    UnsupportedObjectFormat: InputResolutionFailed, Permanent, "write a commit id of the repository's own object format";
    RateLimited: InputResolutionFailed, Transient, "the server limits requests: it is asked again later; a connector with a token of its own has a higher limit";
    ServerError: InputResolutionFailed, Transient, "the server has a fault: it is asked again; if it lasts, ask its operator";
    HostUnreachable: InputResolutionFailed, Transient, "check the host name and port, and that this machine reaches it";
    TransferStalled: InputResolutionFailed, Transient, "the server went silent: it is asked again; if it lasts, ask its operator";
    TLSVerificationFailed: InputResolutionFailed, Permanent, "put the server's CA into the connector's caRef, or give the server a certificate for its name";
    RedirectRefused: InputResolutionFailed, Permanent, "write the address that the message gives: redirects are not followed";
    AddressRefused: InputResolutionFailed, Permanent, "the host leads to a private or reserved address: the administrator can allow it by host, range and port";
    FetchFailed: InputResolutionFailed, Transient, "git failed as the message says: it is tried again";

    SecretNotFound: InputCredentialFailed, Transient, "make the Secret (or its key) that the message names, in the run's namespace";
    ConnectorNotFound: InputCredentialFailed, Transient, "make the Connector that the message names, in the run's namespace";
    SourceUnavailable: InputCredentialFailed, Transient, "the API server did not give the Connector or Secret: it is asked again; if it lasts, check what the operator may read";
    ConnectorInvalid: InputCredentialFailed, Permanent, "write the Connector's field as the message says";
    SecretInvalid: InputCredentialFailed, Permanent, "write the Secret's key as the message says";
    OriginNotAllowed: InputCredentialFailed, Permanent, "annotate the Secret with `sandboxrun.dev/origin: URL`, the connector's url, to say that it may go there";
    UseNotAllowed: InputCredentialFailed, Permanent, "add the use to the connector's spec.uses, or the repository to its spec.allow";
    AuthenticationRequired: InputCredentialFailed, Brief, "give the input a connector whose credential may read the repository";
    AuthenticationFailed: InputCredentialFailed, Brief, "put a valid credential into the connector's Secret";
    AccessDenied: InputCredentialFailed, Permanent, "let the connector's credential read this repository";
    KeyUnusable: InputCredentialFailed, Permanent, "put a private key without passphrase, in OpenSSH or PEM format, into the connector's Secret";
    HostKeyUnknown: InputCredentialFailed, Permanent, "add the server's host key to the connector's knownHosts";
    HostKeyMismatch: InputCredentialFailed, Permanent, "the server shows another host key than knownHosts: check that it is the right server, then correct knownHosts";
    CredentialCanWrite: InputCredentialFailed, Permanent, "give the connector a read-only credential, or set policy.credentialProof to Warn";
    CredentialProofUnknown: InputCredentialFailed, Permanent, "the server does not say whether the credential is read-only: set policy.credentialProof to Warn";

    OriginMismatch: InputHostMismatch, Permanent, "name a repository below the connector's url, or another connector";

    PackInvalid: InputCheckoutFailed, Permanent, "the pack did not arrive whole: run again; if it lasts, report it";
    CheckoutFailed: InputCheckoutFailed, Permanent, "the commit cannot be checked out as the message says";
    UnsafePath: InputCheckoutFailed, Permanent, "the commit holds a path that is unsafe to check out: remove it from the repository";
    InputTooLarge: InputCheckoutFailed, Permanent, "take a smaller input, or let the administrator raise what one fetch may use";
    NoSpaceForInputs: InputCheckoutFailed, Permanent, "raise spec.workspace.size, or take smaller inputs";
    ProvisionKilled: InputCheckoutFailed, Permanent, "provisioning was ended from outside: run again";

    LookupConnectorNotFound: LookupConnectorFailed, Transient, "make the Connector that the message names, in the run's namespace";
    LookupSecretFailed: LookupConnectorFailed, Permanent, "write the Secret of the lookup's connector as the message says";
    LookupUseNotAllowed: LookupConnectorFailed, Permanent, "let the connector's spec.uses and spec.allow cover the lookup";

    RecordWriteFailed: RecordUnavailable, Transient, "make the record's disk or database writable, with free space";
    RecordLocked: RecordUnavailable, Transient, "another process holds the record: wait for it, or stop it";
    RecordUnreadable: RecordUnavailable, Permanent, "name another record, restore this one from a copy, or use the version that wrote it";

    PodRejectedByPolicy: PodRejected, Permanent, "let the namespace admit the pod as the message says";
    PodMutated: PodRejected, Permanent, "exempt run pods from the webhook that changes them, or accept the change at installation";
    NameTaken: PodRejected, Permanent, "remove the pod of that name: it is not ours";
    PodRefusedForNow: PodRejected, Transient, "the API server does not take the pod for now, as the message says: it is asked again";
    QuotaExceeded: PodRejected, Transient, "raise the namespace's quota, or wait for other pods to end";
    NoNodeFits: Unschedulable, Transient, "give the cluster a node that fits, or ask for less";
    ImagePullFailed: ImageFailed, Transient, "check the image name and imagePullSecrets";
    ImageNameInvalid: ImageFailed, Permanent, "write a valid image name";
    ContainerConfigInvalid: ContainerConfigFailed, Transient, "correct the pod's configuration as the message says";

    CanaryOpen: PolicyNotEnforced, Permanent, "the network let the sandbox out: use a network plugin that enforces NetworkPolicy, or remove what opens it";
    CanaryDown: PolicyNotEnforced, Permanent, "the canaries did not listen, so nothing is proved: run again; if it lasts, report it";
    SandboxUnavailable: PolicyNotEnforced, Permanent, "install or allow what the message names, so that a sealed sandbox can be made";
    PolicyOpened: PolicyNotEnforced, Permanent, "let the other policy that the message names leave out pods of runs";
    PolicyRefused: PolicyNotEnforced, Transient, "let the operator write the network policy of runs into the namespace, as the message says: it is asked again";
    PolicyLost: PolicyNotEnforced, Permanent, "keep the network policy as sandboxrun made it, and add no other one that selects run pods";

    PodEvicted: Disrupted, Permanent, "run again: the pod was taken away after the agent had started";
    SandboxEnding: Disrupted, Permanent, "run again: the sandbox was told to end while the agent ran";
    NodeLost: Disrupted, Permanent, "run again: the node was lost after the agent had started";
    RunAbandoned: Disrupted, Permanent, "run again: the program that watched this run was killed";
    PodDeletedByHand: PodDeleted, Permanent, "run again: the pod was deleted after the agent had started";
    GatewayLost: BrokerFailed, Permanent, "the sandbox lost its gateway: run again";
    BrokerNotReady: BrokerFailed, Transient, "the broker beside the agent does not get ready: its log and the message say why";
    GrantLost: BrokerFailed, Permanent, "the start of the agent could not be granted: run again";
    CollectFailed: BrokerFailed, Permanent, "what the run left could not be read: run again; if it lasts, report it";
    WorkspaceEvicted: WorkspaceFull, Permanent, "raise spec.workspace.size, or let the agent write less";
    MemoryLimitReached: OutOfMemory, Permanent, "raise the container's memory limit, or let it use less";

    ExitStatus: AgentFailed, Permanent, "the agent's own log says why";
    KilledBySignal: AgentFailed, Permanent, "the agent's own log says why";
    CommandNotFound: AgentFailed, Permanent, "write a command that the image (or this machine) has";
    TimeoutReached: AgentTimeout, Permanent, "raise agent.timeout, or let the agent do less";
    NoOutput: AgentStalled, Permanent, "raise agent.stallTimeout, or let the agent print as it works";
    OutputMissing: OutputInvalid, Permanent, "let the agent write /sandbox/output/output.json";
    OutputNotJson: OutputInvalid, Permanent, "let the agent write one JSON value, at most 1 MiB and 64 levels deep, as a regular file";
    SchemaMismatch: OutputInvalid, Permanent, "let the agent write what agent.output.schema asks for";
    WorkspaceDrifted: DriftDetected, Permanent, "see what changed in status.inputs; set policy.onDrift to Report if changes are wanted";
    DriftNotKnown: DriftDetected, Permanent, "the workspace could not be compared, and policy.onDrift is Fail: run again";
    CancelRequested: Cancelled, Permanent, "change spec.rerun to run again";
    SuspendRequested: Cancelled, Permanent, "set spec.suspend to false to let it go on";
    ObjectDeleted: Cancelled, Permanent, "apply the run again with another spec.rerun";
    Bug: Internal, Permanent, "report this with the record of the run";
    ProgramMissing: Internal, Permanent, "install the program that the message names, and run again";
    StateUnusable: Internal, Permanent, "let this user write the directory that the message names, or name another one";
    CallFailed: Internal, Transient, "the API server did not do what the message says: it is asked again; if it lasts, see what keeps the operator from it";
    HostDiskFull: Internal, Transient, "free space on the host side's volumes";
    SettingsInvalid: Internal, Permanent, "correct the named field in the chart's values";
    ClusterUnusable: Internal, Permanent, "give the operator what the message names: a right, an object, or a newer Kubernetes";

    NoRuleAllows: BrokerDenied, Permanent, "add the call to spec.lookups or spec.egress";
    NotThroughRelay: BrokerDenied, Permanent, "the relay offers lookups, git fetch and the proxy, and nothing else";
    IdentityUnknown: BrokerDenied, Permanent, "the token must be that of the pod of the run's current attempt";
    PushRefused: BrokerDenied, Permanent, "leave changes in the workspace: an agent cannot push";
    DestinationRefused: BrokerDenied, Permanent, "the host leads to a private or reserved address: the administrator can allow it";
    RefusalLimit: BrokerDenied, Permanent, "so many calls of this run were refused that further ones have no line in the record: let the agent stop asking";
    CallLimit: BrokerLimitReached, Permanent, "raise limits.calls of the lookup";
    ByteLimit: BrokerLimitReached, Permanent, "raise limits.bytes of the lookup";
    RunCallLimit: BrokerLimitReached, Permanent, "the run has made as many calls as one run may have in the record: do the rest in another run";
    RateLimit: BrokerLimitReached, Transient, "call less often, or raise limits.perMinute of the lookup";
    UpstreamUnreachable: BrokerUpstreamFailed, Transient, "check that the gateway reaches the connector's url";
    UpstreamTimeout: BrokerUpstreamFailed, Transient, "the other server went silent: try again";
    UpstreamRedirect: BrokerUpstreamRefused, Permanent, "write the final address into the connector: redirects are not followed";
    UpstreamCredential: BrokerUpstreamRefused, Permanent, "give the connector a valid credential for this server";
    RecordNotWritten: BrokerNotRecorded, Transient, "try again: a call that cannot be recorded is not made";
    GatewayBusy: BrokerUnavailable, Transient, "try again later";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Reason {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL
            .iter()
            .copied()
            .find(|r| r.as_str() == text)
            .ok_or(UnknownName)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a08_every_code_has_a_reason_and_every_text_leads_back() {
        for code in Code::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
            assert!(
                Reason::ALL.iter().any(|r| r.code() == *code),
                "{code} has no reason"
            );
            if let Some(exit) = code.exit_code() {
                assert!((240..=254).contains(&exit));
            }
        }
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(*reason));
        }
    }
}
