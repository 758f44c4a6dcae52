//! A namespace with Connectors to the demo forge, and `kubectl` in it. Everything goes through `kubectl`, as people do it.

use std::env;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Where the operator is installed.
pub(crate) const OPERATOR: &str = "sandboxrun-system";

/// A variable that `e2e/run` sets.
pub(crate) fn setting(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: start these tests by `make e2e`"))
}

/// Every credential of the demo forge. None of them may be found in anything that a run leaves.
pub(crate) fn canaries() -> [String; 3] {
    ["E2E_READ_TOKEN", "E2E_WRITE_TOKEN", "E2E_TICKET_TOKEN"].map(setting)
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) ok: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self {
            ok: output.status.success(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Its stdout, if it did not fail.
    #[track_caller]
    pub(crate) fn good(self) -> String {
        assert!(self.ok, "{}{}", self.out, self.err);
        self.out
    }

    /// Its stderr, if it failed.
    #[track_caller]
    pub(crate) fn refused(self) -> String {
        assert!(!self.ok, "this was to be refused: {}", self.out);
        self.err
    }
}

/// Runs a program to its end.
pub(crate) fn program(name: &str, args: &[&str], stdin: &str) -> Said {
    let mut child = Command::new(name)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut pipe = child.stdin.take().unwrap();
    let text = stdin.to_owned();
    let writer = thread::spawn(move || pipe.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let _closed_early = writer.join().unwrap();
    Said::of(output)
}

/// `kubectl`, anywhere.
pub(crate) fn kubectl(args: &[&str]) -> Said {
    program("kubectl", args, "")
}

/// Waits until something is there. `what` says what it is, for the message when it does not come.
#[track_caller]
pub(crate) fn until<T>(seconds: u64, what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        match look() {
            Ok(found) => return found,
            Err(instead) if Instant::now() >= deadline => {
                panic!("after {seconds} s, instead of {what}:\n{instead}")
            }
            Err(_) => thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// A namespace of one test. It goes at the test's end, unless the test failed and `E2E_KEEP` is set.
pub(crate) struct Space {
    name: String,
}

impl Space {
    /// An empty namespace, held to the restricted Pod Security Standard.
    pub(crate) fn empty(purpose: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("e2e-{purpose}-{}-{number}", std::process::id());
        let space = Self { name };
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space.name, "labels": {
            "pod-security.kubernetes.io/enforce": "restricted"}}});
        program("kubectl", &["apply", "-f", "-"], &object.to_string()).good();
        // a pod is refused until it is there
        until(30, "the namespace's service account", || {
            let said = space.kubectl(&["get", "serviceaccount", "default"]);
            if said.ok { Ok(()) } else { Err(said.err) }
        });
        space
    }

    /// A namespace with Connectors to the demo forge: `forge` (private repositories), `public`, `tracker` (tickets).
    pub(crate) fn new(purpose: &str) -> Self {
        let space = Self::empty(purpose);
        space.apply(&connectors()).good();
        space
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// `kubectl` in this namespace.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Said {
        let args: Vec<&str> = ["-n", &self.name].iter().chain(args).copied().collect();
        kubectl(&args)
    }

    /// `kubectl` in this namespace, with this on its stdin.
    pub(crate) fn kubectl_with(&self, args: &[&str], stdin: &str) -> Said {
        let args: Vec<&str> = ["-n", &self.name].iter().chain(args).copied().collect();
        program("kubectl", &args, stdin)
    }

    /// `kubectl apply` of this text.
    pub(crate) fn apply(&self, yaml: &str) -> Said {
        self.kubectl_with(&["apply", "-f", "-"], yaml)
    }

    /// An object as it is now.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Result<Value, String> {
        let said = self.kubectl(&["get", kind, name, "-o", "json"]);
        if said.ok {
            Ok(serde_json::from_str(&said.out).unwrap())
        } else {
            Err(said.err)
        }
    }

    /// Objects as they are now.
    pub(crate) fn list(&self, kind: &str) -> Vec<Value> {
        let text = self.kubectl(&["get", kind, "-o", "json"]).good();
        let list: Value = serde_json::from_str(&text).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// Waits until a run is like this.
    #[track_caller]
    pub(crate) fn until_run(
        &self,
        seconds: u64,
        name: &str,
        what: &str,
        like_this: impl Fn(&Value) -> bool,
    ) -> Value {
        until(seconds, what, || {
            let run = self.get("sandboxrun", name)?;
            if like_this(&run) {
                Ok(run)
            } else {
                Err(self.story(name))
            }
        })
    }

    /// Waits until a run has ended, well or not.
    #[track_caller]
    pub(crate) fn ended(&self, seconds: u64, name: &str) -> Value {
        self.until_run(seconds, name, "the run's end", |run| {
            holds(run, "Complete") || holds(run, "Failed")
        })
    }

    /// Waits until a run has ended well.
    #[track_caller]
    pub(crate) fn succeeded(&self, seconds: u64, name: &str) -> Value {
        let run = self.ended(seconds, name);
        assert!(holds(&run, "Ready"), "{}", self.story(name));
        run
    }

    /// Waits until a run has failed for this reason.
    #[track_caller]
    pub(crate) fn failed(&self, seconds: u64, name: &str, code: &str, reason: &str) -> Value {
        let run = self.ended(seconds, name);
        let error = &run["status"]["error"];
        assert_eq!(
            (error["code"].as_str(), error["reason"].as_str()),
            (Some(code), Some(reason)),
            "{}",
            self.story(name)
        );
        run
    }

    /// Everything there is to say about a run that is not as it should be.
    pub(crate) fn story(&self, name: &str) -> String {
        let yaml = self.kubectl(&["get", "sandboxrun", name, "-o", "yaml"]).out;
        let pods = self.kubectl(&["describe", "pods"]).out;
        let logs = self.kubectl(&[
            "logs",
            "-l",
            "sandboxrun.dev/run",
            "--all-containers",
            "--prefix",
            "--tail=20",
        ]);
        format!("{yaml}\n{pods}\n{}{}", logs.out, logs.err)
    }

    /// The pods of a run, by its full name.
    pub(crate) fn pods_of(&self, run: &str) -> Vec<Value> {
        let of_run = |pod: &Value| pod["metadata"]["annotations"]["sandboxrun.dev/run-name"] == run;
        self.list("pods").into_iter().filter(of_run).collect()
    }

    /// The log of the agent of a run.
    pub(crate) fn agent_log(&self, run: &str) -> String {
        let pods = self.pods_of(run);
        let name = pods.last().expect("a pod of this run")["metadata"]["name"].clone();
        self.kubectl(&["logs", name.as_str().unwrap(), "-c", "agent"])
            .good()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if !(thread::panicking() && env::var_os("E2E_KEEP").is_some()) {
            let _gone = kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
        }
    }
}

/// Whether a condition is `True`.
pub(crate) fn holds(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// A condition.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
}

/// Connectors to the demo forge, with their Secrets.
pub(crate) fn connectors() -> String {
    let forge = setting("E2E_FORGE");
    let ca = std::fs::read_to_string(setting("E2E_FORGE_CA")).unwrap();
    let secret = |name: &str, key: &str, value: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "annotations": {
            "sandboxrun.dev/origin": forge}}, "stringData": {key: value}})
    };
    let connector = |name: &str, spec: Value| {
        json!({"apiVersion": "sandboxrun.dev/v1alpha1", "kind": "Connector",
        "metadata": {"name": name}, "spec": spec})
    };
    let ca_ref = json!({"name": "forge-ca", "key": "ca.crt"});
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        secret("forge-token", "token", &setting("E2E_READ_TOKEN")),
        secret("tracker-token", "token", &setting("E2E_TICKET_TOKEN")),
        secret("forge-ca", "ca.crt", &ca),
        connector("forge", json!({"type": "Git", "url": forge, "caRef": ca_ref, "uses": ["Inputs"],
            "auth": {"token": {"secretRef": {"name": "forge-token", "key": "token"}}}})),
        connector("public", json!({"type": "Git", "url": forge, "caRef": ca_ref, "uses": ["Inputs"]})),
        connector("tracker", json!({"type": "HTTP", "url": forge, "caRef": ca_ref, "uses": ["Lookups"],
            "auth": {"header": {"name": "Authorization", "prefix": "Bearer ",
                "secretRef": {"name": "tracker-token", "key": "token"}}},
            "allow": {"methods": ["GET"], "paths": ["/rest/api/2/**"]}})),
    ]});
    objects.to_string()
}

/// A run without inputs whose agent is this shell script; `more` is merged into `spec` (objects by field).
pub(crate) fn run(name: &str, script: &str, more: &Value) -> String {
    let mut spec = json!({
        "agent": {"image": setting("E2E_AGENT_IMAGE"), "command": ["/bin/sh", "-c", script], "timeout": "2m"},
    });
    merge(&mut spec, more);
    json!({"apiVersion": "sandboxrun.dev/v1alpha1", "kind": "SandboxRun", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
