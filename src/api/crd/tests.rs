//! Accept and refuse pairs: what the CRD's CEL rules say about a manifest is what the code says, word for word.
//!
//! Bounds that OpenAPI states (`maxItems`, `maxLength`, enums, types) are the API server's own words and not here.

#![allow(clippy::too_many_lines, reason = "tables")]
#![allow(clippy::needless_pass_by_value, reason = "literals are handed over")]
#![allow(
    clippy::redundant_closure_for_method_calls,
    reason = "the type has no public path"
)]

use std::sync::LazyLock;

use kube::core::cel::{CompiledSchema, Validator, compile_schema};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::{ConnectorSpec, ParsedConnector, RunSpec, SandboxRunSpec, SpecError, rules};

static SCHEMAS: LazyLock<[CompiledSchema; 2]> = LazyLock::new(|| {
    let crds = all();
    [
        compile_schema(crds[0].schema()),
        compile_schema(crds[1].schema()),
    ]
});

/// What CEL says, as `field: sentence`.
fn cel(schema: usize, spec: &Value, old: Option<&Value>) -> Vec<String> {
    let object = |spec: &Value| json!({"metadata": {"name": "a"}, "spec": spec});
    let old = old.map(object);
    let found = Validator::new().validate_compiled(&SCHEMAS[schema], &object(spec), old.as_ref());
    let errors = found
        .err()
        .map(|errors| errors.into_vec())
        .unwrap_or_default();
    errors.iter().map(ToString::to_string).collect()
}

fn texts(errors: &[SpecError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn run_errors(spec: &Value) -> Vec<String> {
    let spec: SandboxRunSpec = serde_json::from_value(spec.clone()).unwrap();
    RunSpec::parse(&spec)
        .err()
        .map(|errors| texts(&errors))
        .unwrap_or_default()
}

fn connector_errors(spec: &Value) -> Vec<String> {
    let spec: ConnectorSpec = serde_json::from_value(spec.clone()).unwrap();
    let name = "forge".parse().unwrap();
    ParsedConnector::parse(&name, &spec)
        .err()
        .map(|errors| texts(&errors))
        .unwrap_or_default()
}

/// RFC 7396: what is given replaces, null removes.
fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    into.remove(&key);
                } else {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (into, patch) => *into = patch,
    }
}

fn run(patch: Value) -> Value {
    let mut spec = json!({"agent": {"image": "img", "command": ["sh"]}});
    merge(&mut spec, patch);
    spec
}

fn agent(patch: Value) -> Value {
    run(json!({"agent": patch}))
}

fn input(patch: Value) -> Value {
    let mut input = json!({"name": "app", "repository": "https://git.example.com/acme/app.git"});
    merge(&mut input, patch);
    run(json!({"inputs": [input]}))
}

fn lookup(patch: Value) -> Value {
    let mut lookup = json!({"name": "tickets", "connector": "tracker", "paths": ["/a/*"]});
    merge(&mut lookup, patch);
    run(json!({"lookups": [lookup]}))
}

fn resources(patch: Value) -> Value {
    agent(json!({"resources": patch}))
}

fn scheduling(patch: Value) -> Value {
    run(json!({"scheduling": patch}))
}

fn toleration(toleration: Value) -> Value {
    scheduling(json!({"tolerations": [toleration]}))
}

fn egress(host: &str, port: Option<i32>) -> Value {
    let mut rule = json!({"host": host});
    if let Some(port) = port {
        rule["port"] = json!(port);
    }
    run(json!({"egress": {"allow": [rule]}}))
}

fn inputs(list: &[(&str, Option<&str>)]) -> Value {
    let input = |(name, path): &(&str, Option<&str>)| {
        let mut input = json!({"name": name, "repository": "https://h/a"});
        if let Some(path) = path {
            input["path"] = json!(path);
        }
        input
    };
    run(json!({"inputs": list.iter().map(input).collect::<Vec<_>>()}))
}

fn connector(patch: Value) -> Value {
    let mut spec = json!({"type": "Gitea", "url": "https://git.example.com", "uses": ["Inputs"]});
    merge(&mut spec, patch);
    spec
}

fn secret() -> Value {
    json!({"name": "forge-token", "key": "token"})
}

const OBJECT: &str = "must be a DNS subdomain: at most 253 of a-z, 0-9, '-' and '.'";
const USER: &str = "must be a user id from 1 to 2147483647: nothing in the pod runs as root";
const NAMES: &str =
    "must name cpu, memory, ephemeral-storage, or extended resources such as nvidia.com/gpu";
const AMOUNTS: &str = "must hold amounts above 0, such as 500m, 2 or 4Gi";
const LABELS: &str = "must hold labels of nodes, such as kubernetes.io/arch: arm64";
const KEY: &str =
    "must be the key of a taint, such as example.com/pool; it can be left out with operator Exists";
const SECONDS: &str = "must be 0 or more, and needs effect NoExecute";
const LABEL: &str =
    "must be a DNS label: at most 40 of a-z, 0-9 and '-', first and last a letter or digit";
const SCHEME: &str = "must be https://HOST/PATH, ssh://HOST/PATH or git@HOST:PATH; a path such as acme/app needs a connector beside it";
const CREDENTIAL: &str = "must not hold a user name or password: put the credential into a Secret and name its connector";
const HOST: &str = "must name a host in ASCII: a DNS name or an address, with an optional port";
const UNSAFE: &str = "must not have control characters, '\\', '%2f', empty path segments, or '.' and '..' (also as '%2e') as path segments";
const BELOW: &str = "must be a path below the connector's url, such as acme/app: no leading '/' or '-', no '?', '#', '\\', '%2f', control characters, empty segments, '.' or '..'";
const REF: &str = "is no ref name that git takes: no part may be empty, begin with '.' or '-' or end in '.lock', and '..', '@{', spaces, control characters and any of ~^:?*[\\ are forbidden";
const COMMIT: &str = "must be a whole id: write all 40 or 64 hex digits";
const ONE_REF: &str = "set exactly one of branch, tag, commit, name";
const PATH: &str = "must be a path below /workspace, such as app or libs/app: not absolute, without '.', '..', '.git', empty segments or control characters";
const SCRATCH: &str = "must be an absolute path without '.', '..' or empty segments, and not at, below or above /workspace, /sandbox, /sandboxrun, /baseline, /home/agent, /tmp, /proc, /sys or /dev";
const WORKING_DIR: &str = "must be an absolute path at or below /workspace, /sandbox, /home/agent, /tmp or an entry of agent.scratch, without '.', '..' or empty segments";
const CONTEXT_PATH: &str = "must be a path below /sandbox/context, such as notes.md: not absolute, without '.', '..', empty segments or control characters";
const RESERVED: &str =
    "is set by sandboxrun itself (HOME, *_PROXY, GIT_CONFIG*, SANDBOXRUN_*): choose another name";
const TIMEOUT: &str = "must be a duration from 1m to 24h, such as 20m or 1h30m";
const SHORT: &str = "must be a duration from 1s to 24h, such as 90s or 5m";
const METHODS: &str =
    "must be HTTP methods in capital letters, such as GET or POST, and neither CONNECT nor TRACE";
const PATHS: &str = "must be paths such as /rest/api/2/issue/*: each begins with '/', '*' and '**' stand for whole segments, and '?', '#', '%', '\\', control characters, empty segments, '.' and '..' are not allowed";
const COUNT: &str = "must be a number from 1 to 1000000000";
const QUANTITY: &str = "must be a number of bytes above 0, such as 500k, 10Mi or 1Gi";
const EGRESS: &str = "must be a host name such as packages.example.com, or *.example.com for all names below it: no address, port or path";

#[test]
fn a01_a04_a05_a07_r07_r11_a_bad_run_gets_the_same_sentence_from_cel_and_code() {
    let repository = |text: &str| input(json!({"repository": text}));
    let below = |text: &str| input(json!({"repository": text, "connector": "forge"}));
    let reference = |field: &str, text: &str| input(json!({"ref": {field: text}}));
    let path = |text: &str| input(json!({"path": text}));
    let env = |name: &str| agent(json!({"env": [{"name": name, "value": "x"}]}));
    let scratch = |list: &[&str]| agent(json!({"scratch": list}));
    let context = |list: &[&str]| {
        let file = |path: &&str| json!({"path": path, "content": ""});
        agent(json!({"context": list.iter().map(file).collect::<Vec<_>>()}))
    };
    let at = "spec.inputs[0].repository";
    let rows: Vec<(&str, Value, String)> = vec![
        ("input name in capitals", input(json!({"name": "App"})), format!("spec.inputs[0].name: {LABEL}")),
        ("input name of 41", input(json!({"name": "a".repeat(41)})), format!("spec.inputs[0].name: {LABEL}")),
        ("input name with a dash last", input(json!({"name": "a-"})), format!("spec.inputs[0].name: {LABEL}")),
        ("input names twice", inputs(&[("a", None), ("b", None), ("a", Some("c"))]), "spec.inputs: each input needs a name of its own: a".to_owned()),
        ("A04: nested paths", inputs(&[("app", None), ("b", None), ("lib", Some("app/lib"))]), "spec.inputs: each input needs a path of its own, not below another's: app, lib".to_owned()),
        ("A04: one path twice", inputs(&[("app", None), ("lib", Some("app"))]), "spec.inputs: each input needs a path of its own, not below another's: app, lib".to_owned()),
        ("A04: dots", path("a/../b"), format!("spec.inputs[0].path: {PATH}")),
        ("A04: one dot", path("./a"), format!("spec.inputs[0].path: {PATH}")),
        ("A04: absolute", path("/etc"), format!("spec.inputs[0].path: {PATH}")),
        ("A04: .git", path(".git"), format!("spec.inputs[0].path: {PATH}")),
        ("A04: .git inside", path("a/.Git/b"), format!("spec.inputs[0].path: {PATH}")),
        ("A04: slash last", path("a/"), format!("spec.inputs[0].path: {PATH}")),
        ("A04: empty", path(""), format!("spec.inputs[0].path: {PATH}")),
        ("A04: newline", path("a\nb"), format!("spec.inputs[0].path: {PATH}")),
        ("A05: user and token", repository("https://user:tok@host/a.git"), format!("{at}: {CREDENTIAL}")),
        ("A05: token alone", repository("https://tok@host/a.git"), format!("{at}: {CREDENTIAL}")),
        ("A05: ssh password", repository("ssh://git:pw@host/a.git"), format!("{at}: {CREDENTIAL}")),
        ("A05: http", repository("http://host/a.git"), format!("{at}: {SCHEME}")),
        ("A05: file", repository("file:///a.git"), format!("{at}: {SCHEME}")),
        ("A05: ext", repository("ext::sh -c x"), format!("{at}: {SCHEME}")),
        ("A05: git", repository("git://host/a"), format!("{at}: {SCHEME}")),
        ("A05: a path without connector", repository("acme/app"), format!("{at}: {SCHEME}")),
        ("A05: a local path", repository("/srv/app.git"), format!("{at}: {SCHEME}")),
        ("no host", repository("https:///a"), format!("{at}: {HOST}")),
        ("an option as host", repository("git@-oProxyCommand=x:a"), format!("{at}: {HOST}")),
        ("an encoded host", repository("https://h%6fst/a"), format!("{at}: {HOST}")),
        ("a host in unicode", repository("https://h\u{f6}st/a"), format!("{at}: {HOST}")),
        ("no path", repository("https://host/"), format!("{at}: must name a repository after the host")),
        ("no scp path", repository("git@host:"), format!("{at}: must name a repository after the host")),
        ("a query", repository("https://host/a?b=c"), format!("{at}: must not have '?' or '#'")),
        ("dots in a url", repository("https://host/a/../b"), format!("{at}: {UNSAFE}")),
        ("encoded dots in a url", repository("https://host/a/%2e%2E/b"), format!("{at}: {UNSAFE}")),
        ("dots after a colon", repository("git@host:../a"), format!("{at}: {UNSAFE}")),
        ("an encoded slash", repository("https://host/a%2Fb"), format!("{at}: {UNSAFE}")),
        ("a backslash", repository("https://evil\\@host/a"), format!("{at}: {UNSAFE}")),
        ("an empty segment", repository("https://host/a//b"), format!("{at}: {UNSAFE}")),
        ("an option as path", repository("git@host:-a"), format!("{at}: {UNSAFE}")),
        ("a newline", repository("https://host/a\nb"), format!("{at}: {UNSAFE}")),
        ("below: absolute", below("/acme/app"), format!("{at}: {BELOW}")),
        ("below: dots", below("acme/../x"), format!("{at}: {BELOW}")),
        ("below: a query", below("acme/app?x"), format!("{at}: {BELOW}")),
        ("below: empty", below(""), format!("{at}: {BELOW}")),
        ("below: an option", below("-x/app"), format!("{at}: {BELOW}")),
        ("connector of another namespace", input(json!({"connector": "other/forge"})), "spec.inputs[0].connector: must be a DNS subdomain: at most 253 of a-z, 0-9, '-' and '.', and no namespace".to_owned()),
        ("A01: branch and tag", input(json!({"ref": {"branch": "main", "tag": "v1"}})), format!("spec.inputs[0].ref: {ONE_REF}")),
        ("A01: none", input(json!({"ref": {}})), format!("spec.inputs[0].ref: {ONE_REF}")),
        ("R07: a short id", reference("commit", "1a2b3c4"), format!("spec.inputs[0].ref.commit: {COMMIT}")),
        ("R07: not hex", reference("commit", &"g".repeat(40)), format!("spec.inputs[0].ref.commit: {COMMIT}")),
        ("R11: an option", reference("branch", "--upload-pack=touch x"), format!("spec.inputs[0].ref.branch: {REF}")),
        ("R11: a range", reference("branch", "a..b"), format!("spec.inputs[0].ref.branch: {REF}")),
        ("R11: a reflog entry", reference("tag", "x@{1}"), format!("spec.inputs[0].ref.tag: {REF}")),
        ("R11: .lock", reference("branch", "x.lock"), format!("spec.inputs[0].ref.branch: {REF}")),
        ("R11: .lock inside", reference("branch", "x.lock/y"), format!("spec.inputs[0].ref.branch: {REF}")),
        ("R11: a control character", reference("branch", "a\u{7}b"), format!("spec.inputs[0].ref.branch: {REF}")),
        ("R11: empty", reference("branch", ""), format!("spec.inputs[0].ref.branch: {REF}")),
        ("R11: a dot last", reference("tag", "v1."), format!("spec.inputs[0].ref.tag: {REF}")),
        ("R11: no full name", reference("name", "pull/7/head"), "spec.inputs[0].ref.name: must begin with refs/: write the full name, such as refs/pull/7/head".to_owned()),
        ("R11: refs alone", reference("name", "refs/"), format!("spec.inputs[0].ref.name: {REF}")),
        ("a long ref", reference("branch", &"\u{fc}".repeat(130)), "spec.inputs[0].ref.branch: is longer than 255 bytes".to_owned()),
        ("negative depth", input(json!({"depth": -1})), "spec.inputs[0].depth: must be 0 (the whole history) or more".to_owned()),
        ("image with a space", agent(json!({"image": "a b"})), "spec.agent.image: must be an image name without spaces, such as registry.example.com/team/agent:1.2".to_owned()),
        ("no image", agent(json!({"image": ""})), "spec.agent.image: must be an image name without spaces, such as registry.example.com/team/agent:1.2".to_owned()),
        ("no command", agent(json!({"command": []})), "spec.agent.command: must name a program, such as [\"sh\", \"-c\", \"make test\"]".to_owned()),
        ("an empty program", agent(json!({"command": ["", "x"]})), "spec.agent.command: must name a program, such as [\"sh\", \"-c\", \"make test\"]".to_owned()),
        ("NUL in an argument", agent(json!({"args": ["a", "b\0"]})), "spec.agent.args[1]: must not hold a NUL character".to_owned()),
        ("NUL in a variable", agent(json!({"env": [{"name": "A", "value": "\0"}]})), "spec.agent.env[0].value: must not hold a NUL character".to_owned()),
        ("a variable that begins with a digit", env("1A"), "spec.agent.env[0].name: must be a variable's name: letters, digits, '_', '-' and '.', not beginning with a digit".to_owned()),
        ("a variable with =", env("A=B"), "spec.agent.env[0].name: must be a variable's name: letters, digits, '_', '-' and '.', not beginning with a digit".to_owned()),
        ("HOME", env("HOME"), format!("spec.agent.env[0].name: {RESERVED}")),
        ("https_proxy", env("https_proxy"), format!("spec.agent.env[0].name: {RESERVED}")),
        ("No_Proxy", env("No_Proxy"), format!("spec.agent.env[0].name: {RESERVED}")),
        ("GIT_CONFIG_COUNT", env("GIT_CONFIG_COUNT"), format!("spec.agent.env[0].name: {RESERVED}")),
        ("SANDBOXRUN_X", env("SANDBOXRUN_X"), format!("spec.agent.env[0].name: {RESERVED}")),
        ("working directory elsewhere", agent(json!({"workingDir": "/etc"})), format!("spec.agent.workingDir: {WORKING_DIR}")),
        ("working directory beside", agent(json!({"workingDir": "/workspaces"})), format!("spec.agent.workingDir: {WORKING_DIR}")),
        ("working directory with dots", agent(json!({"workingDir": "/workspace/../etc"})), format!("spec.agent.workingDir: {WORKING_DIR}")),
        ("relative working directory", agent(json!({"workingDir": "app"})), format!("spec.agent.workingDir: {WORKING_DIR}")),
        ("scratch over the workspace", scratch(&["/workspace"]), format!("spec.agent.scratch[0]: {SCRATCH}")),
        ("scratch below proc", scratch(&["/var/cache", "/proc/x"]), format!("spec.agent.scratch[1]: {SCRATCH}")),
        ("scratch above home", scratch(&["/home"]), format!("spec.agent.scratch[0]: {SCRATCH}")),
        ("scratch everything", scratch(&["/"]), format!("spec.agent.scratch[0]: {SCRATCH}")),
        ("relative scratch", scratch(&["var"]), format!("spec.agent.scratch[0]: {SCRATCH}")),
        ("nested scratch", scratch(&["/var/a", "/opt", "/var/a/b"]), "spec.agent.scratch: each path can be given once, and not below another one: /var/a, /var/a/b".to_owned()),
        ("context outside", context(&["../x"]), format!("spec.agent.context[0].path: {CONTEXT_PATH}")),
        ("absolute context", context(&["/x"]), format!("spec.agent.context[0].path: {CONTEXT_PATH}")),
        ("a file where a directory is", context(&["a", "b", "a/c"]), "spec.agent.context: each file needs a path of its own, not below another's: a, a/c".to_owned()),
        ("A07: 192 KiB and one byte", agent(json!({"prompt": "\u{fc}", "context": [{"path": "a", "content": "x".repeat(196_607)}]})), "spec.agent: prompt and context can have at most 196608 bytes (192 KiB) together: put more into an input".to_owned()),
        ("A02: a day", agent(json!({"timeout": "1d"})), format!("spec.agent.timeout: {TIMEOUT}")),
        ("59 seconds", agent(json!({"timeout": "59s"})), format!("spec.agent.timeout: {TIMEOUT}")),
        ("more than a day", agent(json!({"timeout": "24h1s"})), format!("spec.agent.timeout: {TIMEOUT}")),
        ("a number alone", agent(json!({"timeout": "20"})), format!("spec.agent.timeout: {TIMEOUT}")),
        ("a negative duration", agent(json!({"timeout": "-20m"})), format!("spec.agent.timeout: {TIMEOUT}")),
        ("half a second of silence", agent(json!({"stallTimeout": "500ms"})), format!("spec.agent.stallTimeout: {SHORT}")),
        ("lookups twice", run(json!({"lookups": [{"name": "a", "connector": "c", "paths": ["/"]}, {"name": "a", "connector": "c", "paths": ["/"]}]})), "spec.lookups: each lookup needs a name of its own: a".to_owned()),
        ("lookup name with a dot", lookup(json!({"name": "a.b"})), format!("spec.lookups[0].name: {LABEL}")),
        ("lookup without paths", lookup(json!({"paths": []})), "spec.lookups[0].paths: must allow at least one path, such as /rest/api/2/issue/*".to_owned()),
        ("a method in small letters", lookup(json!({"methods": ["get"]})), format!("spec.lookups[0].methods: {METHODS}")),
        ("CONNECT", lookup(json!({"methods": ["GET", "CONNECT"]})), format!("spec.lookups[0].methods: {METHODS}")),
        ("a relative path", lookup(json!({"paths": ["a"]})), format!("spec.lookups[0].paths: {PATHS}")),
        ("a star inside a segment", lookup(json!({"paths": ["/a*"]})), format!("spec.lookups[0].paths: {PATHS}")),
        ("three stars", lookup(json!({"paths": ["/***"]})), format!("spec.lookups[0].paths: {PATHS}")),
        ("a query in a path", lookup(json!({"paths": ["/a?x=*"]})), format!("spec.lookups[0].paths: {PATHS}")),
        ("an encoded path", lookup(json!({"paths": ["/a%20b"]})), format!("spec.lookups[0].paths: {PATHS}")),
        ("dots in a path", lookup(json!({"paths": ["/ok", "/a/../b"]})), format!("spec.lookups[0].paths: {PATHS}")),
        ("no calls", lookup(json!({"limits": {"calls": 0}})), format!("spec.lookups[0].limits.calls: {COUNT}")),
        ("too many calls a minute", lookup(json!({"limits": {"perMinute": 1_000_000_001}})), format!("spec.lookups[0].limits.perMinute: {COUNT}")),
        ("bytes in small letters", lookup(json!({"limits": {"bytes": "10mi"}})), format!("spec.lookups[0].limits.bytes: {QUANTITY}")),
        ("no bytes", lookup(json!({"limits": {"bytes": "0"}})), format!("spec.lookups[0].limits.bytes: {QUANTITY}")),
        ("a tenth of a byte", lookup(json!({"limits": {"bytes": "0.1"}})), format!("spec.lookups[0].limits.bytes: {QUANTITY}")),
        ("idle for two days", lookup(json!({"limits": {"idleTimeout": "48h"}})), format!("spec.lookups[0].limits.idleTimeout: {SHORT}")),
        ("an address", egress("10.0.0.1", None), format!("spec.egress.allow[0].host: {EGRESS}")),
        ("an address in disguise", egress("127.1", None), format!("spec.egress.allow[0].host: {EGRESS}")),
        ("a hex address", egress("0x7f000001", None), format!("spec.egress.allow[0].host: {EGRESS}")),
        ("a number", egress("2130706433", None), format!("spec.egress.allow[0].host: {EGRESS}")),
        ("an IPv6 address", egress("[::1]", None), format!("spec.egress.allow[0].host: {EGRESS}")),
        ("a host with a port", egress("h.example.com:443", None), format!("spec.egress.allow[0].host: {EGRESS}")),
        ("a url", egress("https://h.example.com", None), format!("spec.egress.allow[0].host: {EGRESS}")),
        ("all hosts", egress("*", None), format!("spec.egress.allow[0].host: {EGRESS}")),
        ("a star inside", egress("a.*.com", None), format!("spec.egress.allow[0].host: {EGRESS}")),
        ("a dot last", egress("h.example.com.", None), format!("spec.egress.allow[0].host: {EGRESS}")),
        ("port 0", egress("h", Some(0)), "spec.egress.allow[0].port: must be a port from 1 to 65535".to_owned()),
        ("port 65536", egress("h", Some(65536)), "spec.egress.allow[0].port: must be a port from 1 to 65535".to_owned()),
        ("root", agent(json!({"runAsUser": 0})), format!("spec.agent.runAsUser: {USER}")),
        ("a negative user", agent(json!({"runAsUser": -1})), format!("spec.agent.runAsUser: {USER}")),
        ("a user beyond 31 bits", agent(json!({"runAsUser": 2_147_483_648_i64})), format!("spec.agent.runAsUser: {USER}")),
        ("a pull secret twice", agent(json!({"imagePullSecrets": [{"name": "a"}, {"name": "a"}]})), "spec.agent.imagePullSecrets: each Secret can be given once: a".to_owned()),
        ("a pull secret of another namespace", agent(json!({"imagePullSecrets": [{"name": "b/a"}]})), format!("spec.agent.imagePullSecrets[0].name: {OBJECT}")),
        ("no resource of a node", resources(json!({"limits": {"ram": "1Gi"}})), format!("spec.agent.resources.limits: {NAMES}")),
        ("a resource of no domain", resources(json!({"limits": {"/gpu": "1"}})), format!("spec.agent.resources.limits: {NAMES}")),
        ("no memory", resources(json!({"limits": {"memory": "0"}})), format!("spec.agent.resources.limits: {AMOUNTS}")),
        ("memory in small letters", resources(json!({"requests": {"memory": "4gi"}})), format!("spec.agent.resources.requests: {AMOUNTS}")),
        ("half of a milli", resources(json!({"requests": {"cpu": "0.5m"}})), format!("spec.agent.resources.requests: {AMOUNTS}")),
        ("more than allowed", resources(json!({"requests": {"memory": "2Gi", "cpu": "1"}, "limits": {"memory": "2000M", "cpu": "1000m"}})), "spec.agent.resources: requests must not be above limits: memory".to_owned()),
        ("a workspace of nothing", run(json!({"workspace": {"size": "0Gi"}})), format!("spec.workspace.size: {QUANTITY}")),
        ("a workspace in milli", run(json!({"workspace": {"size": "10m"}})), format!("spec.workspace.size: {QUANTITY}")),
        ("a node's label with a space", scheduling(json!({"nodeSelector": {"a b": "c"}})), format!("spec.scheduling.nodeSelector: {LABELS}")),
        ("a node's label of two slashes", scheduling(json!({"nodeSelector": {"a/b/c": "d"}})), format!("spec.scheduling.nodeSelector: {LABELS}")),
        ("a node's label ends in a dash", scheduling(json!({"nodeSelector": {"a": "d-"}})), format!("spec.scheduling.nodeSelector: {LABELS}")),
        ("a taint without a key", toleration(json!({"value": "a"})), format!("spec.scheduling.tolerations[0].key: {KEY}")),
        ("an empty key", toleration(json!({"key": "", "operator": "Exists"})), format!("spec.scheduling.tolerations[0].key: {KEY}")),
        ("a value that is not asked", toleration(json!({"key": "a", "operator": "Exists", "value": "b"})), "spec.scheduling.tolerations[0].value: must be the value of a taint, and left out with operator Exists".to_owned()),
        ("a value with a space", toleration(json!({"key": "a", "value": "b c"})), "spec.scheduling.tolerations[0].value: must be the value of a taint, and left out with operator Exists".to_owned()),
        ("seconds of no eviction", toleration(json!({"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1})), format!("spec.scheduling.tolerations[0].tolerationSeconds: {SECONDS}")),
        ("negative seconds", toleration(json!({"key": "a", "effect": "NoExecute", "tolerationSeconds": -1})), format!("spec.scheduling.tolerations[0].tolerationSeconds: {SECONDS}")),
        ("a priority class", scheduling(json!({"priorityClassName": "High"})), format!("spec.scheduling.priorityClassName: {OBJECT}")),
        ("no time to start", scheduling(json!({"startTimeout": "0s"})), format!("spec.scheduling.startTimeout: {SHORT}")),
        ("11 retries", run(json!({"infrastructureRetries": 11})), "spec.infrastructureRetries: must be a number from 0 to 10".to_owned()),
        ("-1 retries", run(json!({"infrastructureRetries": -1})), "spec.infrastructureRetries: must be a number from 0 to 10".to_owned()),
        ("a newline in rerun", run(json!({"rerun": "a\nb"})), "spec.rerun: must not hold control characters".to_owned()),
        ("a ttl in days", run(json!({"ttlAfterFinished": "7d"})), "spec.ttlAfterFinished: must be a duration from 0s to 8760h, such as 24h".to_owned()),
        ("a ttl of more than a year", run(json!({"ttlAfterFinished": "8761h"})), "spec.ttlAfterFinished: must be a duration from 0s to 8760h, such as 24h".to_owned()),
        ("a runtime class", run(json!({"policy": {"runtimeClassName": "G_Visor"}})), "spec.policy.runtimeClassName: must be a DNS subdomain: at most 253 of a-z, 0-9, '-' and '.'".to_owned()),
    ];
    refused_alike(0, run_errors, &rows);
}

#[test]
fn a05_a_bad_connector_gets_the_same_sentence_from_cel_and_code() {
    let url = |text: &str| connector(json!({"url": text}));
    let auth = |auth: Value| connector(json!({"auth": auth}));
    let token = json!({"secretRef": secret()});
    let header = |name: &str, prefix: &str| {
        auth(json!({"header": {"name": name, "prefix": prefix, "secretRef": secret()}}))
    };
    let ssh = |known_hosts: &str| {
        let auth = json!({"ssh": {"privateKeyRef": secret(), "knownHosts": known_hosts}});
        connector(json!({"url": "ssh://git.example.com", "auth": auth}))
    };
    let scheme = "spec.url: must be https://HOST[:PORT][/PREFIX] or ssh://HOST[:PORT][/PREFIX]";
    let fits = "spec.auth: auth.ssh goes with an ssh:// url, auth.token and auth.header go with an https:// url";
    let one = "spec.auth: set exactly one of token, ssh, header, or remove auth to stay anonymous";
    let header_name = "spec.auth.header.name: must be a header's name such as Authorization or x-api-key, and none that belongs to the connection";
    let hosts = "spec.auth.ssh.knownHosts: must hold lines of a known_hosts file, HOST KEYTYPE KEY: `ssh-keyscan HOST` prints them, check them before use";
    let key = "spec.auth.token.secretRef.key: must be a Secret's key: at most 253 of a-z, A-Z, 0-9, '-', '_' and '.'";
    let repositories = "spec.allow.repositories: must be paths below the url such as acme/app or acme/*: no leading '/', '*' and '**' stand for whole segments, and '?', '#', '%', '\\', control characters, empty segments, '.' and '..' are not allowed";
    let rows: Vec<(&str, Value, String)> = vec![
        ("http", url("http://git.example.com"), scheme.to_owned()),
        ("no scheme", url("git.example.com"), scheme.to_owned()),
        ("scp-like", url("git@git.example.com:acme"), scheme.to_owned()),
        ("a token in the url", url("https://tok@git.example.com"), format!("spec.url: {CREDENTIAL}")),
        ("a user in the url", url("ssh://git@git.example.com"), format!("spec.url: {CREDENTIAL}")),
        ("no host", url("https://"), format!("spec.url: {HOST}")),
        ("an odd host", url("https://a b/"), format!("spec.url: {HOST}")),
        ("a query", url("https://h/?x"), "spec.url: must not have '?' or '#'".to_owned()),
        ("dots", url("https://h/a/../b"), format!("spec.url: {UNSAFE}")),
        ("no auth field", auth(json!({})), one.to_owned()),
        ("two auth fields", auth(json!({"token": token, "header": {"name": "a", "secretRef": secret()}})), one.to_owned()),
        ("a token over ssh", connector(json!({"url": "ssh://h", "auth": {"token": token}})), fits.to_owned()),
        ("a key over https", connector(json!({"auth": {"ssh": {"privateKeyRef": secret(), "knownHosts": "h t k"}}})), fits.to_owned()),
        ("ssh without a key", url("ssh://h"), "spec.auth: an ssh:// url needs auth.ssh with privateKeyRef and knownHosts".to_owned()),
        ("no uses", connector(json!({"uses": []})), "spec.uses: must hold Inputs, Lookups or both".to_owned()),
        ("a use twice", connector(json!({"uses": ["Inputs", "Inputs"]})), "spec.uses: must hold each use once".to_owned()),
        ("inputs of an API", connector(json!({"type": "HTTP"})), "spec.uses: type HTTP serves Lookups only: remove Inputs from uses, or write the type of the git server".to_owned()),
        ("lookups over ssh", connector(json!({"url": "ssh://h", "uses": ["Lookups"], "auth": {"ssh": {"privateKeyRef": secret(), "knownHosts": "h t k"}}})), "spec.uses: an ssh:// url serves Inputs only: remove Lookups from uses, or write an https:// url".to_owned()),
        ("a user with a colon", auth(json!({"token": {"secretRef": secret(), "username": "a:b"}})), "spec.auth.token.username: must be a user name without ':' and control characters".to_owned()),
        ("no known hosts", ssh(""), hosts.to_owned()),
        ("comments alone", ssh("# a b c\n  # d e f\nx y\n"), hosts.to_owned()),
        ("Host", header("Host", ""), header_name.to_owned()),
        ("proxy header", header("Proxy-Authorization", ""), header_name.to_owned()),
        ("a header with a space", header("x y", ""), header_name.to_owned()),
        ("a prefix with a newline", header("x", "a\n"), "spec.auth.header.prefix: must be visible ASCII characters and spaces, such as 'Bearer '".to_owned()),
        ("a Secret of another namespace", auth(json!({"token": {"secretRef": {"name": "b/a", "key": "k"}}})), "spec.auth.token.secretRef.name: must be a DNS subdomain: at most 253 of a-z, 0-9, '-' and '.'".to_owned()),
        ("a key with a slash", auth(json!({"token": {"secretRef": {"name": "a", "key": "k/x"}}})), key.to_owned()),
        ("a key of dots", auth(json!({"token": {"secretRef": {"name": "a", "key": ".."}}})), key.to_owned()),
        ("the CA's key", connector(json!({"caRef": {"name": "a", "key": ""}})), "spec.caRef.key: must be a Secret's key: at most 253 of a-z, A-Z, 0-9, '-', '_' and '.'".to_owned()),
        ("an absolute repository", connector(json!({"allow": {"repositories": ["/acme/*"]}})), repositories.to_owned()),
        ("a star inside", connector(json!({"allow": {"repositories": ["acme/a*"]}})), repositories.to_owned()),
        ("allowed methods", connector(json!({"allow": {"methods": ["Get"]}})), format!("spec.allow.methods: {METHODS}")),
        ("allowed paths", connector(json!({"allow": {"paths": ["v1"]}})), format!("spec.allow.paths: {PATHS}")),
    ];
    refused_alike(1, connector_errors, &rows);
}

/// Every row is refused by both with its sentence at its field, and neither quotes a value that a URL or Secret holds.
fn refused_alike(schema: usize, code: fn(&Value) -> Vec<String>, rows: &[(&str, Value, String)]) {
    let mut wrong = Vec::new();
    for (name, spec, want) in rows {
        let (by_code, by_cel) = (code(spec), cel(schema, spec, None));
        if !by_code.contains(want) || !by_cel.contains(want) {
            wrong.push(format!(
                "{name}: want {want}\n  code: {by_code:?}\n  cel:  {by_cel:?}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}

#[test]
fn a06_a_good_manifest_is_taken_by_both() {
    let repository = |text: &str| input(json!({"repository": text}));
    let runs = [
        run(json!({})),
        repository("https://git.example.com:8443/acme/app"),
        repository("https://git.example.com/a b@c.git/"),
        repository("https://10.0.0.1/a"),
        repository("https://[2001:db8::1]:8443/a"),
        repository("https://host//a"),
        repository("ssh://git@git.example.com:2222/acme/app.git"),
        repository("ssh://git.example.com/acme/app.git"),
        repository("git@git.example.com:acme/app.git"),
        repository("git@git.example.com:/srv/app.git"),
        input(json!({"repository": "acme/app", "connector": "forge"})),
        input(json!({"repository": "acme/app.git/", "connector": "forge.prod"})),
        input(json!({"repository": "https://h/a", "connector": "forge"})),
        input(
            json!({"ref": {"branch": "feat/gr\u{fc}n/\u{df}"}, "path": "libs/a b", "depth": 0, "readOnly": true, "fetch": "None"}),
        ),
        input(json!({"ref": {"tag": "2024-09-22-test"}})),
        input(json!({"ref": {"commit": "ABCDEF0123456789ABCDEF0123456789ABCDEF01"}})),
        input(json!({"ref": {"commit": "a".repeat(64)}})),
        input(json!({"ref": {"name": "refs/pull/7/head"}})),
        input(json!({"path": ".gitx/a.git"})),
        inputs(&[("app", None), ("app-2", None), ("lib", Some("libs/app"))]),
        agent(
            json!({"args": ["", "a\nb"], "env": [{"name": "PATH", "value": "/usr/bin"}, {"name": "a.b-c"}, {"name": "MY_HOME"}]}),
        ),
        agent(json!({"workingDir": "/workspace/app/src"})),
        agent(
            json!({"workingDir": "/var/cache/x", "scratch": ["/var/cache", "/var/lib", "/opt/x"]}),
        ),
        agent(
            json!({"prompt": "x".repeat(196_607), "context": [{"path": "a/b.md", "content": "y"}, {"path": "a/c", "content": ""}]}),
        ),
        agent(json!({"timeout": "1m", "stallTimeout": "1s"})),
        agent(json!({"timeout": "24h", "stallTimeout": "1h30m"})),
        agent(json!({"timeout": "1.5h", "output": {"schema": {"type": "object"}}})),
        lookup(
            json!({"methods": ["GET", "PROPFIND"], "paths": ["/", "/a/*/b", "/**", "/\u{fc}.x"], "limits": {"calls": 1, "bytes": "1.5Gi", "perMinute": 60, "idleTimeout": "10m"}}),
        ),
        egress("packages.example.com", None),
        egress("*.Example.com", Some(8443)),
        egress("db", Some(1)),
        egress("1.2.3.example", Some(65535)),
        run(
            json!({"egress": {"allow": []}, "policy": {"onDrift": "Fail", "runtimeClassName": "gvisor", "credentialProof": "Off"}}),
        ),
    ];
    let placed = [
        agent(
            json!({"runAsUser": 65532, "imagePullSecrets": [{"name": "pull.one"}, {"name": "b"}]}),
        ),
        resources(
            json!({"requests": {"cpu": "0.5", "memory": "1.5Gi"}, "limits": {"cpu": "500m", "memory": "2G", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "1"}}),
        ),
        resources(json!({"requests": {"memory": "1024Mi"}, "limits": {"memory": "1Gi"}})),
        resources(json!({"requests": {}, "limits": {}})),
        run(json!({"workspace": {"size": "1500"}})),
        run(json!({"workspace": {}, "scheduling": {}})),
        scheduling(
            json!({"nodeSelector": {"kubernetes.io/arch": "arm64", "pool": "", "a.b/C_d.e": "F.g"}, "priorityClassName": "low.priority", "startTimeout": "24h"}),
        ),
        toleration(json!({"operator": "Exists"})),
        toleration(json!({"key": "pool"})),
        toleration(
            json!({"key": "example.com/pool", "operator": "Equal", "value": "agents", "effect": "NoExecute", "tolerationSeconds": 0}),
        ),
        run(
            json!({"infrastructureRetries": 0, "suspend": true, "cancel": false, "rerun": "\u{fc} 2", "ttlAfterFinished": "0s", "deleteAfterFinished": true}),
        ),
        run(json!({"infrastructureRetries": 10, "ttlAfterFinished": "8760h"})),
    ];
    for spec in runs.iter().chain(&placed) {
        assert_eq!(run_errors(spec), Vec::<String>::new(), "{spec}");
        assert_eq!(cel(0, spec, None), Vec::<String>::new(), "{spec}");
    }
    let ssh =
        json!({"ssh": {"privateKeyRef": secret(), "knownHosts": "# c\n[h]:22 ssh-ed25519 AAAA\n"}});
    let connectors = [
        connector(json!({})),
        connector(
            json!({"url": "https://h:8443/git/x/", "uses": ["Inputs", "Lookups"], "auth": {"token": {"secretRef": secret(), "username": "git lab"}}}),
        ),
        connector(json!({"url": "ssh://h:2222/srv", "auth": ssh})),
        connector(
            json!({"type": "HTTP", "uses": ["Lookups"], "auth": {"header": {"name": "Authorization", "prefix": "Bearer ", "secretRef": secret()}}}),
        ),
        connector(
            json!({"caRef": {"name": "a.b", "key": "ca.crt"}, "allow": {"repositories": ["acme/*", "**", "a b"], "methods": ["GET"], "paths": ["/v1/**"]}}),
        ),
    ];
    for spec in &connectors {
        assert_eq!(connector_errors(spec), Vec::<String>::new(), "{spec}");
        assert_eq!(cel(1, spec, None), Vec::<String>::new(), "{spec}");
    }
}

#[test]
fn a_spec_cannot_be_changed_but_for_its_last_five_fields() {
    let old = input(json!({"rerun": "1"}));
    let change = |patch: Value| {
        let mut new = old.clone();
        merge(&mut new, patch);
        cel(0, &new, Some(&old))
    };
    assert_eq!(change(json!({})), Vec::<String>::new());
    let wishes = json!({"suspend": true, "cancel": true, "rerun": "2", "ttlAfterFinished": "1h", "deleteAfterFinished": true});
    assert_eq!(change(wishes), Vec::<String>::new());
    assert_eq!(change(json!({"rerun": null})), Vec::<String>::new());
    let first = json!([{"name": "app", "repository": "https://h/b"}]);
    for (field, patch) in [
        ("inputs", json!({"inputs": first})),
        ("inputs", json!({"inputs": null})),
        ("agent", json!({"agent": {"image": "other"}})),
        ("agent", json!({"agent": {"runAsUser": 1001}})),
        (
            "lookups",
            json!({"lookups": [{"name": "a", "connector": "c", "paths": ["/"]}]}),
        ),
        ("egress", json!({"egress": {"allow": [{"host": "h"}]}})),
        ("policy", json!({"policy": {"onDrift": "Fail"}})),
        ("workspace", json!({"workspace": {"size": "20Gi"}})),
        ("scheduling", json!({"scheduling": {"startTimeout": "1h"}})),
        ("infrastructureRetries", json!({"infrastructureRetries": 3})),
    ] {
        let want =
            format!("spec.{field}: cannot be changed: make a new SandboxRun, under another name");
        assert_eq!(change(patch), [want], "{field}");
    }
}

/// Every field of the spec either may change or is held.
#[test]
fn every_field_of_a_spec_is_decided_upon() {
    let crds = all();
    let schema = &crds[0].schema()["properties"]["spec"]["properties"];
    let mut decided: Vec<&str> = rules::IMMUTABLE_FIELDS.to_vec();
    decided.extend([
        "suspend",
        "cancel",
        "rerun",
        "ttlAfterFinished",
        "deleteAfterFinished",
    ]);
    decided.sort_unstable();
    let fields: Vec<&str> = schema
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(fields, decided);
}

#[test]
fn a10_cancel_goes_back_only_together_with_rerun() {
    let old = run(json!({"cancel": true, "rerun": "1"}));
    let kept = ["spec.cancel: stays true: change spec.rerun in the same update to run again"];
    let none: [&str; 0] = [];
    for (new, want) in [
        (json!({"cancel": true, "rerun": "1"}), none.as_slice()),
        (json!({"cancel": false, "rerun": "1"}), kept.as_slice()),
        (json!({"rerun": "1"}), kept.as_slice()),
        (json!({"cancel": false, "rerun": "2"}), none.as_slice()),
        (json!({"cancel": false}), none.as_slice()),
        (json!({"cancel": true, "rerun": "2"}), none.as_slice()),
    ] {
        assert_eq!(cel(0, &run(new.clone()), Some(&old)), want, "{new}");
    }
    let fresh = run(json!({"cancel": true}));
    assert_eq!(cel(0, &fresh, None), none);
    assert_eq!(cel(0, &fresh, Some(&run(json!({})))), none);
}

#[test]
fn every_place_of_the_tables_is_in_the_schema_and_every_rule_compiles() {
    for (crd, table) in all()
        .iter()
        .zip([run_rules::table(), connector_rules::table()])
    {
        let mut schema = crd.schema().clone();
        for entry in table {
            assert!(find(&mut schema, entry.place).is_some(), "{}", entry.place);
        }
    }
    for schema in SCHEMAS.iter() {
        assert!(!schema.has_errors(), "{:?}", schema.compilation_errors());
    }
}

#[test]
fn the_yaml_of_a_definition_is_the_definition() {
    for crd in all() {
        let back: Value = serde_saphyr::from_str(&crd.yaml()).unwrap();
        assert_eq!(back, crd.object);
    }
}

/// A rule's cost is estimated for the largest value; what has no bound costs too much.
#[test]
fn every_text_and_list_of_a_spec_is_bounded() {
    fn walk(place: &str, schema: &Value, found: &mut Vec<String>) {
        let bounded = |key: &str| schema.get(key).is_some();
        let free = schema.get("x-kubernetes-preserve-unknown-fields").is_some();
        match schema["type"].as_str() {
            Some("string") if !bounded("maxLength") && !bounded("enum") => {
                found.push(place.to_owned());
            }
            Some("array") if !bounded("maxItems") => found.push(place.to_owned()),
            Some("object") if schema.get("additionalProperties").is_some() => {
                if !bounded("maxProperties") {
                    found.push(place.to_owned());
                }
                walk(
                    &format!("{place}{{}}"),
                    &schema["additionalProperties"],
                    found,
                );
            }
            Some("object") if schema.get("properties").is_none() && !free => {
                found.push(place.to_owned());
            }
            _ => {}
        }
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{place}.{name}"), schema, found);
        }
        if let Some(items) = schema.get("items") {
            walk(&format!("{place}[]"), items, found);
        }
    }
    let mut found = Vec::new();
    for crd in all() {
        walk("spec", &crd.schema()["properties"]["spec"], &mut found);
    }
    assert_eq!(found, Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What the code takes, the CRD takes: a rule in CEL that is stricter would refuse what runs locally.
    #[test]
    fn cel_is_never_stricter_than_the_code(
        repository in "((https|ssh|http)://)?(git@|u:p@)?[a-b.%\\[\\]:-]{0,4}[:/]?[a/.%2eF?#\\\\ -]{0,8}",
        path in "[a.gitGIT/]{0,6}|[.]git",
        branch in "[a./@{~lock-]{0,8}",
        host in "([*][.])?[a0x.*-]{0,6}",
        timeout in "[0-9.]{0,3}[hms]{0,2}[0-9]{0,2}[hms]{0,2}",
        pattern in "/?[a*/.%]{0,6}",
        with_connector in any::<bool>(),
        amount in "[0-9]{0,2}[.]?[0-9]{0,2}[mkGi]{0,2}",
        name in "[a/._-]{0,4}|[aA]{0,1}[.]b/[aC_-]{0,3}",
    ) {
        let mut spec = json!({
            "inputs": [{"name": "app", "repository": repository, "path": path, "ref": {"branch": branch}}],
            "agent": {"image": "a", "command": ["a"], "timeout": timeout, "scratch": [pattern],
                "resources": {"requests": {"cpu": amount, "memory": "1Gi"}, "limits": {"memory": amount, name.clone(): "1"}}},
            "workspace": {"size": amount},
            "scheduling": {"nodeSelector": {name.clone(): name}, "tolerations": [{"key": name, "value": name}]},
            "ttlAfterFinished": timeout,
            "lookups": [{"name": "a", "connector": "c", "paths": [pattern]}],
            "egress": {"allow": [{"host": host}]},
        });
        if with_connector {
            spec["inputs"][0]["connector"] = json!("forge");
        }
        let by_code = run_errors(&spec);
        for error in cel(0, &spec, None) {
            let field = error.split(": ").next().unwrap();
            let refused = by_code.iter().any(|other| other.split(": ").next() == Some(field));
            prop_assert!(refused, "CEL alone says {error} of {spec}");
        }
        // And the other way round: whatever of this the code refuses, CEL can state.
        let by_cel = cel(0, &spec, None);
        for error in by_code {
            prop_assert!(by_cel.contains(&error), "the code alone says {error} of {spec}: {by_cel:?}");
        }
    }

    #[test]
    fn no_json_makes_parse_panic(text in "[a-z:/@.*%{}\\[\\]\u{0}-\u{20}\u{fc}0-9]{0,40}", number in any::<i64>()) {
        let small = i32::try_from(number % 100_000).unwrap();
        let spec = json!({
            "inputs": [{"name": text, "repository": text, "connector": text, "path": text, "depth": small, "ref": {"branch": text}}, {"name": text, "repository": text, "ref": {"name": text}}],
            "agent": {
                "image": text, "command": [text], "args": [text], "env": [{"name": text, "value": text}], "workingDir": text,
                "scratch": [text, text], "prompt": text, "context": [{"path": text, "content": text}], "timeout": text,
                "resources": {"requests": {text.clone(): text}, "limits": {text.clone(): text}}, "runAsUser": number, "imagePullSecrets": [{"name": text}],
                "stallTimeout": text, "output": {"schema": {"$ref": text, "pattern": text, text.clone(): text, "type": text}},
            },
            "lookups": [{"name": text, "connector": text, "methods": [text], "paths": [text], "limits": {"calls": number, "bytes": text, "perMinute": number, "idleTimeout": text}}],
            "egress": {"allow": [{"host": text, "port": small}]},
            "policy": {"runtimeClassName": text},
            "workspace": {"size": text}, "infrastructureRetries": small, "rerun": text, "ttlAfterFinished": text,
            "scheduling": {"nodeSelector": {text.clone(): text}, "priorityClassName": text, "startTimeout": text,
                "tolerations": [{"key": text, "value": text, "tolerationSeconds": number}]},
        });
        let spec: SandboxRunSpec = serde_json::from_value(spec).unwrap();
        prop_assert!(RunSpec::parse(&spec).is_err());
        let secret = json!({"name": text, "key": text});
        let spec = json!({
            "type": "Git", "url": text, "uses": ["Inputs"], "caRef": secret,
            "auth": {"token": {"secretRef": secret, "username": text}, "header": {"name": text, "prefix": text, "secretRef": secret}},
            "allow": {"repositories": [text], "methods": [text], "paths": [text]},
        });
        let spec: ConnectorSpec = serde_json::from_value(spec).unwrap();
        prop_assert!(ParsedConnector::parse(&"c".parse().unwrap(), &spec).is_err());
    }
}
