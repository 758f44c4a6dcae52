//! The parsed twins of the resources: a value here keeps every rule. Only these travel on.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{
    ConnectorName, ConnectorType, ConnectorUse, ContextFileSpec, CredentialProofPolicy, EnvVar,
    InputName, LookupName, OnDrift, Origin, Quantity, RefSelector, RepoUrl, SecretKeyRef,
    TolerationSpec,
};

/// A run that keeps every rule.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSpec {
    /// At most 16; names unique, paths neither equal nor nested.
    pub inputs: Vec<Input>,
    /// What runs.
    pub agent: Agent,
    /// What the agent may ask.
    pub lookups: Vec<Lookup>,
    /// Hosts that the agent may reach.
    pub egress: Vec<EgressHost>,
    /// What drift means for the result.
    pub on_drift: OnDrift,
    /// Whether credentials must be shown to be read-only.
    pub credential_proof: CredentialProofPolicy,
    /// Refused by a local run.
    pub runtime_class_name: Option<String>,
    /// What it asks of a cluster. A local run uses none of it.
    pub placement: Placement,
}

/// What a run asks of a cluster: whose, where, how much and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// Of the agent's container, by name of the resource; never above [`Placement::limits`].
    pub requests: BTreeMap<String, Quantity>,
    /// Of the agent's container, by name of the resource.
    pub limits: BTreeMap<String, Quantity>,
    /// 1 to 2,147,483,647.
    pub run_as_user: i64,
    /// Names of Secrets.
    pub image_pull_secrets: Vec<String>,
    /// What the workspace may hold.
    pub workspace_size: Quantity,
    /// Labels of the node.
    pub node_selector: BTreeMap<String, String>,
    /// Taints of the node.
    pub tolerations: Vec<TolerationSpec>,
    /// A `PriorityClass`.
    pub priority_class_name: Option<String>,
    /// From the pod being wanted to the start grant.
    pub start_timeout: Duration,
    /// Attempts after the first one, for pods that are lost before the start grant.
    pub infrastructure_retries: u32,
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            requests: BTreeMap::new(),
            limits: BTreeMap::new(),
            run_as_user: 1000,
            image_pull_secrets: Vec::new(),
            workspace_size: Quantity::gibibytes(10),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            priority_class_name: None,
            start_timeout: Duration::from_mins(10),
            infrastructure_retries: 2,
        }
    }
}

/// The five fields that may be changed while the run lives, and after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wishes {
    /// No pod is made, and one whose agent has not started is deleted.
    pub suspend: bool,
    /// The run is to end.
    pub cancel: bool,
    /// Part of the run's identity: another text is another run of the same object.
    pub rerun: String,
    /// From the run's end to the deletion of its pod.
    pub ttl_after_finished: Duration,
    /// Then the object goes too.
    pub delete_after_finished: bool,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            suspend: false,
            cancel: false,
            rerun: String::new(),
            ttl_after_finished: Duration::from_hours(24),
            delete_after_finished: false,
        }
    }
}

/// One repository at one commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Unique in the run.
    pub name: InputName,
    /// Where it is.
    pub repository: Repository,
    /// Its credential; absent: anonymous.
    pub connector: Option<ConnectorName>,
    /// Which commit.
    pub selector: RefSelector,
    /// Below `/workspace`: relative, no `.`, `..`, `.git` or empty segment.
    pub path: String,
    /// 1..; `None`: the whole history.
    pub depth: Option<u32>,
    /// The agent's mount is read-only.
    pub read_only: bool,
    /// The agent may `git fetch` more of it.
    pub fetch: bool,
}

/// Where an input is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repository {
    /// A whole address.
    Url(RepoUrl),
    /// A path such as `acme/app` below the connector's url.
    BelowConnector(String),
}

impl std::fmt::Display for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => url.fmt(f),
            Self::BelowConnector(path) => f.write_str(path),
        }
    }
}

/// What runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    /// The container image.
    pub image: String,
    /// Command and arguments, at least one.
    pub command: Vec<String>,
    /// Literal variables; none of ours.
    pub env: Vec<EnvVar>,
    /// Absolute.
    pub working_dir: String,
    /// Absolute, none of ours.
    pub scratch: Vec<String>,
    /// For [`super::layout::PROMPT`].
    pub prompt: Option<String>,
    /// For [`super::layout::CONTEXT`].
    pub context: Vec<ContextFileSpec>,
    /// 1 minute to 24 hours (tests of a local run may go lower).
    pub timeout: Duration,
    /// `None`: off.
    pub stall_timeout: Option<Duration>,
    /// A JSON Schema without outside references; `None`: the file is optional.
    pub output_schema: Option<serde_json::Value>,
}

/// One connector that the agent may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Lookup {
    /// Unique in the run.
    pub name: LookupName,
    /// Whose server and credential.
    pub connector: ConnectorName,
    /// Upper case, at least one.
    pub methods: Vec<String>,
    /// Patterns, at least one.
    pub paths: Vec<PathPattern>,
    /// Calls in the whole run.
    pub max_calls: Option<u64>,
    /// Bytes of answers in the whole run.
    pub max_bytes: Option<u64>,
    /// Calls in any 60 seconds.
    pub per_minute: Option<u64>,
    /// How long a call may be silent.
    pub idle_timeout: Duration,
}

/// A path pattern, as segments: `*` is exactly one, `**` any number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern(Vec<String>);

impl PathPattern {
    /// A pattern from its text, which begins with `/` for paths of lookups and not for repositories.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(
            text.trim_start_matches('/')
                .split('/')
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Whether the segments of a normalised path match.
    #[must_use]
    pub fn matches<S: AsRef<str>>(&self, segments: &[S]) -> bool {
        fn go<S: AsRef<str>>(pattern: &[String], path: &[S]) -> bool {
            match (pattern.split_first(), path.split_first()) {
                (None, None) => true,
                (Some((first, rest)), _) if first == "**" => {
                    go(rest, path)
                        || path
                            .split_first()
                            .is_some_and(|(_, tail)| go(pattern, tail))
                }
                (Some((first, rest)), Some((segment, tail))) => {
                    (first == "*" || first == segment.as_ref()) && go(rest, tail)
                }
                (None, Some(_)) | (Some(_), None) => false,
            }
        }
        go(&self.0, segments)
    }
}

impl std::fmt::Display for PathPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/{}", self.0.join("/"))
    }
}

/// A host and port that the agent may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressHost {
    /// Lower case; `*.suffix` matches one or more labels before the suffix, never the suffix itself.
    pub host: String,
    /// 1 to 65535.
    pub port: u16,
}

impl EgressHost {
    /// Whether `host` (lower case, no trailing dot) and `port` are allowed by this rule.
    #[must_use]
    pub fn matches(&self, host: &str, port: u16) -> bool {
        self.port == port
            && match self.host.strip_prefix('*') {
                Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
                None => host == self.host,
            }
    }
}

/// A connector that keeps every rule.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedConnector {
    /// Its name.
    pub name: ConnectorName,
    /// What kind of server.
    pub kind: ConnectorType,
    /// What the credential is bound to.
    pub origin: Origin,
    /// How we show who we are.
    pub auth: Auth,
    /// A CA beside the system's.
    pub ca: Option<SecretKeyRef>,
    /// What it may be used for.
    pub uses: Vec<ConnectorUse>,
    /// Repositories; empty: all.
    pub allowed_repositories: Vec<PathPattern>,
    /// Methods; empty: all.
    pub allowed_methods: Vec<String>,
    /// Paths; empty: all.
    pub allowed_paths: Vec<PathPattern>,
}

/// How a connector shows who we are.
#[derive(Debug, Clone, PartialEq)]
pub enum Auth {
    /// Not at all.
    Anonymous,
    /// HTTP Basic with this user name (`None`: what the type of server expects).
    Token {
        /// Where the token is.
        secret: SecretKeyRef,
        /// The user name.
        username: Option<String>,
    },
    /// An ssh key.
    Ssh {
        /// Where the key is.
        private_key: SecretKeyRef,
        /// Lines of a `known_hosts` file.
        known_hosts: String,
    },
    /// A header.
    Header {
        /// Its name.
        name: String,
        /// Before the value.
        prefix: String,
        /// Where the value is.
        secret: SecretKeyRef,
    },
}
