//! The sentences and numbers of every rule of the manifests, once.
//!
//! [`super::RunSpec::parse`] and the CEL rules of the CRDs ([`super::crd`]) both take them from here, so that
//! `kubectl apply`, `sandboxrun validate` and a run that ends with `sandbox.spec_invalid` say the same words. Each
//! sentence goes after the name of a field and says what to write instead. None quotes a value: it may be a secret.

/// Inputs of a run.
pub(super) const MAX_INPUTS: usize = 16;
/// Characters of an input's or lookup's name: with a prefix of ours it still fits into a DNS label of 63.
pub(super) const MAX_LABEL: usize = 40;
/// Characters of a DNS subdomain, which names of Kubernetes objects are.
pub(super) const MAX_SUBDOMAIN: usize = 253;
/// Characters of a URL. Servers and proxies stop at 4 to 8 KiB.
pub(super) const MAX_URL: usize = 2048;
/// Characters of a path inside the workspace, of a context file, of a pattern.
pub(super) const MAX_PATH: usize = 255;
/// Bytes of a ref's full name.
pub(super) const MAX_REF: usize = 255;
/// Characters of an image name.
pub(super) const MAX_IMAGE: usize = 1024;
/// Parts of a command.
pub(super) const MAX_COMMAND: usize = 64;
/// Arguments beside the command.
pub(super) const MAX_ARGS: usize = 256;
/// Characters of one argument, 64 KiB: half of what Linux takes, and what an API server lets a rule read 256 times.
pub(super) const MAX_ARG: usize = 65_536;
/// Environment variables.
pub(super) const MAX_ENV: usize = 256;
/// Characters of a variable's name.
pub(super) const MAX_ENV_NAME: usize = 255;
/// Characters of a variable's value.
pub(super) const MAX_ENV_VALUE: usize = 32_768;
/// Writable places beside `/tmp` and the home directory.
pub(super) const MAX_SCRATCH: usize = 16;
/// Context files.
pub(super) const MAX_CONTEXT_FILES: usize = 64;
/// Bytes of prompt and context together, 192 KiB: an eighth of what an API server takes as one object.
pub(super) const MAX_CONTEXT_BYTES: usize = 192 * 1024;
/// Characters of a duration or a quantity.
pub(super) const MAX_UNIT: usize = 32;
/// Bytes of an output schema as JSON.
pub(super) const MAX_SCHEMA_BYTES: usize = 64 * 1024;
/// Levels of an output schema.
pub(super) const MAX_SCHEMA_DEPTH: usize = 40;
/// Lookups of a run.
pub(super) const MAX_LOOKUPS: usize = 32;
/// Methods of a lookup.
pub(super) const MAX_METHODS: usize = 16;
/// Characters of a method.
pub(super) const MAX_METHOD: usize = 32;
/// Path patterns of a lookup or connector, repositories of a connector.
pub(super) const MAX_PATTERNS: usize = 64;
/// Characters of a path pattern. A rule that reads 32 times 64 of them is as dear as an API server allows.
pub(super) const MAX_PATTERN: usize = 512;
/// The largest number of calls that a limit can say.
pub(super) const MAX_CALLS: i64 = 1_000_000_000;
/// Egress rules.
pub(super) const MAX_EGRESS: usize = 64;
/// Resources that every node has. Others are extended ones, with a domain before their name.
pub(super) const RESOURCES: &[&str] = &["cpu", "memory", "ephemeral-storage"];
/// Names of resources in requests and in limits.
pub(super) const MAX_RESOURCES: usize = 16;
/// The largest user id that Linux and Kubernetes share.
pub(super) const MAX_USER: i64 = 2_147_483_647;
/// Pull secrets.
pub(super) const MAX_PULL_SECRETS: usize = 8;
/// Labels of a node selector.
pub(super) const MAX_NODE_LABELS: usize = 16;
/// Tolerations.
pub(super) const MAX_TOLERATIONS: usize = 16;
/// Characters of a label's name: 253 before the slash, 63 after it.
pub(super) const MAX_LABEL_NAME: usize = 317;
/// Characters of a label's value.
pub(super) const MAX_LABEL_VALUE: usize = 63;
/// Further attempts.
pub(super) const MAX_RETRIES: i32 = 10;
/// Characters of `rerun`.
pub(super) const MAX_RERUN: usize = 63;
/// Characters of a `known_hosts` text.
pub(super) const MAX_KNOWN_HOSTS: usize = 64 * 1024;
/// Characters of a header's name, prefix, or of a user name.
pub(super) const MAX_HEADER: usize = 255;

/// The places that a run always has; scratch can be neither at, below nor above one of them.
pub(super) const OWN_PLACES: &[&str] = &[
    super::layout::WORKSPACE,
    super::layout::SANDBOX,
    "/sandboxrun",
    super::layout::BASELINE,
    super::layout::HOME,
    "/tmp",
    "/proc",
    "/sys",
    "/dev",
];
/// Below one of these, or of the run's own scratch, the agent may begin.
pub(super) const WORKING_PLACES: &[&str] = &[
    super::layout::WORKSPACE,
    super::layout::SANDBOX,
    super::layout::HOME,
    "/tmp",
];

/// Headers that say how a message is sent, not what: the connection's own.
pub(super) const CONNECTION_HEADERS: &[&str] = &[
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "upgrade",
    "te",
    "trailer",
    "expect",
];

/// Of entries that share a name: the name, once.
pub(super) const ONE_NAMED: usize = 1;
/// Of entries that are in each other's way: the first two.
pub(super) const TWO_NAMED: usize = 2;

/// Every field of `spec` but the last five, against the stored one.
pub(super) const IMMUTABLE: &str = "cannot be changed: make a new SandboxRun, under another name";
/// The fields that this is said of.
pub(super) const IMMUTABLE_FIELDS: &[&str] = &[
    "inputs",
    "agent",
    "lookups",
    "egress",
    "policy",
    "workspace",
    "scheduling",
    "infrastructureRetries",
];

/// Names of inputs and lookups.
pub(super) const LABEL: &str =
    "must be a DNS label: at most 40 of a-z, 0-9 and '-', first and last a letter or digit";
/// Names of connectors.
pub(super) const CONNECTOR_NAME: &str =
    "must be a DNS subdomain: at most 253 of a-z, 0-9, '-' and '.', and no namespace";
/// Names of Secrets and runtime classes.
pub(super) const OBJECT_NAME: &str =
    "must be a DNS subdomain: at most 253 of a-z, 0-9, '-' and '.'";
/// Keys of Secrets.
pub(super) const SECRET_KEY: &str =
    "must be a Secret's key: at most 253 of a-z, A-Z, 0-9, '-', '_' and '.'";

/// `inputs`: what goes before the names of those that share one.
pub(super) const INPUT_NAMES: &str = "each input needs a name of its own: ";
/// `inputs`: what goes before the names of those whose paths are equal or nested.
pub(super) const INPUT_PATHS: &str = "each input needs a path of its own, not below another's: ";
/// `inputs[].path`.
pub(super) const INPUT_PATH: &str = "must be a path below /workspace, such as app or libs/app: not absolute, without '.', '..', '.git', empty segments or control characters";
/// `inputs[].depth`.
pub(super) const DEPTH: &str = "must be 0 (the whole history) or more";
/// `inputs[].repository`, without a connector.
pub(super) const REPOSITORY_SCHEME: &str = "must be https://HOST/PATH, ssh://HOST/PATH or git@HOST:PATH; a path such as acme/app needs a connector beside it";
/// `inputs[].repository`, a path below a connector's url.
pub(super) const REPOSITORY_PATH: &str = "must be a path below the connector's url, such as acme/app: no leading '/' or '-', no '?', '#', '\\', '%2f', control characters, empty segments, '.' or '..'";
/// `inputs[].ref`.
pub(super) const ONE_REF: &str = "set exactly one of branch, tag, commit, name";
/// `inputs[].ref.commit`.
pub(super) const COMMIT: &str = "must be a whole id: write all 40 or 64 hex digits";
/// `inputs[].ref.name`.
pub(super) const REF_NOT_FULL: &str =
    "must begin with refs/: write the full name, such as refs/pull/7/head";
/// `inputs[].ref.{branch,tag,name}`.
pub(super) const REF_MALFORMED: &str = "is no ref name that git takes: no part may be empty, begin with '.' or '-' or end in '.lock', and '..', '@{', spaces, control characters and any of ~^:?*[\\ are forbidden";
/// `inputs[].ref.{branch,tag,name}`.
pub(super) const REF_TOO_LONG: &str = "is longer than 255 bytes";

/// Any URL.
pub(super) const URL_CREDENTIAL: &str = "must not hold a user name or password: put the credential into a Secret and name its connector";
/// Any URL.
pub(super) const URL_HOST: &str =
    "must name a host in ASCII: a DNS name or an address, with an optional port";
/// Any URL.
pub(super) const URL_PATH: &str = "must name a repository after the host";
/// Any URL.
pub(super) const URL_QUERY: &str = "must not have '?' or '#'";
/// Any URL.
pub(super) const URL_UNSAFE: &str = "must not have control characters, '\\', '%2f', empty path segments, or '.' and '..' (also as '%2e') as path segments";

/// `agent.image`.
pub(super) const IMAGE: &str =
    "must be an image name without spaces, such as registry.example.com/team/agent:1.2";
/// `agent.command`.
pub(super) const COMMAND_EMPTY: &str =
    "must name a program, such as [\"sh\", \"-c\", \"make test\"]";
/// Arguments, values of variables.
pub(super) const NUL: &str = "must not hold a NUL character";
/// `agent.env[].name`.
pub(super) const ENV_NAME: &str =
    "must be a variable's name: letters, digits, '_', '-' and '.', not beginning with a digit";
/// `agent.env[].name`.
pub(super) const ENV_RESERVED: &str =
    "is set by sandboxrun itself (HOME, *_PROXY, GIT_CONFIG*, SANDBOXRUN_*): choose another name";
/// `agent.env`: what goes before the names that are given twice.
pub(super) const ENV_NAMES: &str = "each variable can be given once: ";
/// `agent.workingDir`.
pub(super) const WORKING_DIR: &str = "must be an absolute path at or below /workspace, /sandbox, /home/agent, /tmp or an entry of agent.scratch, without '.', '..' or empty segments";
/// `agent.scratch[]`.
pub(super) const SCRATCH: &str = "must be an absolute path without '.', '..' or empty segments, and not at, below or above /workspace, /sandbox, /sandboxrun, /baseline, /home/agent, /tmp, /proc, /sys or /dev";
/// `agent.scratch`: what goes before the paths.
pub(super) const SCRATCH_PATHS: &str = "each path can be given once, and not below another one: ";
/// `agent.context[].path`.
pub(super) const CONTEXT_PATH: &str = "must be a path below /sandbox/context, such as notes.md: not absolute, without '.', '..', empty segments or control characters";
/// `agent.context`: what goes before the paths.
pub(super) const CONTEXT_PATHS: &str = "each file needs a path of its own, not below another's: ";
/// `agent`.
pub(super) const CONTEXT_BYTES: &str =
    "prompt and context can have at most 196608 bytes (192 KiB) together: put more into an input";
/// `agent.timeout`.
pub(super) const TIMEOUT: &str = "must be a duration from 1m to 24h, such as 20m or 1h30m";
/// `agent.stallTimeout`, `lookups[].limits.idleTimeout`.
pub(super) const SHORT_TIMEOUT: &str = "must be a duration from 1s to 24h, such as 90s or 5m";

/// `agent.resources.{requests,limits}`, their names.
pub(super) const RESOURCE_NAMES: &str =
    "must name cpu, memory, ephemeral-storage, or extended resources such as nvidia.com/gpu";
/// `agent.resources.{requests,limits}`, their amounts.
pub(super) const AMOUNTS: &str = "must hold amounts above 0, such as 500m, 2 or 4Gi";
/// `agent.resources`: what goes before the names of what does not fit.
pub(super) const REQUESTS_FIT: &str = "requests must not be above limits: ";
/// `agent.runAsUser`.
pub(super) const USER: &str =
    "must be a user id from 1 to 2147483647: nothing in the pod runs as root";
/// `agent.imagePullSecrets`: what goes before the names that are given twice.
pub(super) const PULL_SECRETS: &str = "each Secret can be given once: ";
/// `scheduling.nodeSelector`.
pub(super) const NODE_SELECTOR: &str =
    "must hold labels of nodes, such as kubernetes.io/arch: arm64";
/// `scheduling.tolerations[].key`.
pub(super) const TOLERATION_KEY: &str =
    "must be the key of a taint, such as example.com/pool; it can be left out with operator Exists";
/// `scheduling.tolerations[].value`.
pub(super) const TOLERATION_VALUE: &str =
    "must be the value of a taint, and left out with operator Exists";
/// `scheduling.tolerations[].tolerationSeconds`.
pub(super) const TOLERATION_SECONDS: &str = "must be 0 or more, and needs effect NoExecute";
/// `infrastructureRetries`.
pub(super) const RETRIES: &str = "must be a number from 0 to 10";
/// `rerun`.
pub(super) const RERUN: &str = "must not hold control characters";
/// `ttlAfterFinished`.
pub(super) const TTL: &str = "must be a duration from 0s to 8760h, such as 24h";
/// `cancel`, against the stored one.
pub(super) const CANCEL_LATCHES: &str =
    "stays true: change spec.rerun in the same update to run again";

/// `lookups`: what goes before the names of those that share one.
pub(super) const LOOKUP_NAMES: &str = "each lookup needs a name of its own: ";
/// `lookups[].methods`, `allow.methods`.
pub(super) const METHODS: &str =
    "must be HTTP methods in capital letters, such as GET or POST, and neither CONNECT nor TRACE";
/// `lookups[].paths`.
pub(super) const PATHS_EMPTY: &str = "must allow at least one path, such as /rest/api/2/issue/*";
/// `lookups[].paths`, `allow.paths`.
pub(super) const PATHS: &str = "must be paths such as /rest/api/2/issue/*: each begins with '/', '*' and '**' stand for whole segments, and '?', '#', '%', '\\', control characters, empty segments, '.' and '..' are not allowed";
/// `lookups[].limits.{calls,perMinute}`.
pub(super) const COUNT: &str = "must be a number from 1 to 1000000000";
/// `lookups[].limits.bytes`.
pub(super) const QUANTITY: &str = "must be a number of bytes above 0, such as 500k, 10Mi or 1Gi";
/// `egress.allow[].host`.
pub(super) const HOST: &str = "must be a host name such as packages.example.com, or *.example.com for all names below it: no address, port or path";
/// `egress.allow[].port`.
pub(super) const PORT: &str = "must be a port from 1 to 65535";

/// `Connector` `spec.url`.
pub(super) const CONNECTOR_SCHEME: &str =
    "must be https://HOST[:PORT][/PREFIX] or ssh://HOST[:PORT][/PREFIX]";
/// `Connector` `spec.auth`.
pub(super) const ONE_AUTH: &str =
    "set exactly one of token, ssh, header, or remove auth to stay anonymous";
/// `Connector` `spec.auth`, against the url.
pub(super) const AUTH_FITS_URL: &str =
    "auth.ssh goes with an ssh:// url, auth.token and auth.header go with an https:// url";
/// `Connector` `spec.url` of ssh without a key.
pub(super) const SSH_NEEDS_KEY: &str =
    "an ssh:// url needs auth.ssh with privateKeyRef and knownHosts";
/// `Connector` `spec.uses`.
pub(super) const USES_EMPTY: &str = "must hold Inputs, Lookups or both";
/// `Connector` `spec.uses`.
pub(super) const USES_TWICE: &str = "must hold each use once";
/// `Connector` `spec.uses`, against the type.
pub(super) const HTTP_INPUTS: &str =
    "type HTTP serves Lookups only: remove Inputs from uses, or write the type of the git server";
/// `Connector` `spec.uses`, against the url.
pub(super) const SSH_LOOKUPS: &str =
    "an ssh:// url serves Inputs only: remove Lookups from uses, or write an https:// url";
/// `Connector` `spec.auth.token.username`.
pub(super) const USERNAME: &str = "must be a user name without ':' and control characters";
/// `Connector` `spec.auth.ssh.knownHosts`.
pub(super) const KNOWN_HOSTS: &str = "must hold lines of a known_hosts file, HOST KEYTYPE KEY: `ssh-keyscan HOST` prints them, check them before use";
/// `Connector` `spec.auth.header.name`.
pub(super) const HEADER_NAME: &str = "must be a header's name such as Authorization or x-api-key, and none that belongs to the connection";
/// `Connector` `spec.auth.header.prefix`.
pub(super) const HEADER_PREFIX: &str =
    "must be visible ASCII characters and spaces, such as 'Bearer '";
/// `Connector` `spec.allow.repositories`.
pub(super) const REPOSITORIES: &str = "must be paths below the url such as acme/app or acme/*: no leading '/', '*' and '**' stand for whole segments, and '?', '#', '%', '\\', control characters, empty segments, '.' and '..' are not allowed";
