//! O03: what Argo CD, Flux and kstatus make of a run in each of its phases. Argo CD's script is run by a real Lua, Flux's expressions by
//! a CEL interpreter, over the statuses that `run::status` writes.

// `cfg(test)` is always so here; it tells clippy that helpers of tests may unwrap, too.
#![cfg(test)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use rstest::rstest;
use sandboxrun::api::wire::AgentExit;
use sandboxrun::api::{Attempt, Event, Failure, ObjectFormat, OnDrift, Reason};
use sandboxrun::run::{
    InputFacts, Limits, Observed, Pod, Policy, RecordFacts, Resolution, SpecFacts, Wish, status,
};
use serde_json::{Value, json};

const FIRST: Attempt = Attempt::FIRST;

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The operator has not seen it: what the CRD's default says of it.
    Unseen,
    Pending,
    Resolving,
    Waiting,
    Provisioning,
    Running,
    Collecting,
    Succeeded,
    Failed,
    FailedBeforeItsPod,
    Cancelled,
    Suspended,
    /// It succeeded, and then its spec was changed: the operator has not answered yet.
    Outdated,
}

fn at(seconds: u64) -> Timestamp {
    let start: Timestamp = "2026-03-01T10:00:00Z".parse().unwrap();
    start + Duration::from_secs(seconds)
}

/// The events of a run up to a state.
fn events(state: State) -> Vec<Event> {
    let begun = vec![
        Event::RunCreated {
            digest: "d".repeat(64),
            rerun: String::new(),
            writer: "test".into(),
        },
        Event::AttemptDispatched { attempt: FIRST },
    ];
    let resolved = Event::InputResolved {
        attempt: FIRST,
        input: "app".parse().unwrap(),
        repository: "https://git.example.com/acme/app.git".into(),
        requested_ref: "branch main".into(),
        resolved_ref: Some("refs/heads/main".parse().unwrap()),
        commit: "1".repeat(40).parse().unwrap(),
        tag_object: None,
        object_format: ObjectFormat::Sha1,
        connector: None,
        credential_proof: "NotAsked".into(),
    };
    let pod = Event::PodCreating {
        attempt: FIRST,
        pod: "sandboxrun-0a-1".into(),
    };
    let started = Event::AgentStarted {
        attempt: FIRST,
        nonce: "n".into(),
    };
    let exited = Event::AgentEnded {
        attempt: FIRST,
        exit: Some(AgentExit::Exited { code: 0 }),
        millis: 1000,
    };
    let ended = |failure: Option<Failure>| Event::RunEnded {
        attempt: Some(FIRST),
        exit_code: Some(0),
        failure,
        millis: 9000,
    };
    let more = match state {
        State::Unseen | State::Pending | State::Suspended => return Vec::new(),
        State::Resolving | State::Waiting => Vec::new(),
        State::Provisioning => vec![resolved, pod],
        State::Running => vec![resolved, pod, started],
        State::Collecting => vec![resolved, pod, started, exited],
        State::Succeeded | State::Outdated => vec![resolved, pod, started, exited, ended(None)],
        State::Failed => {
            let failure = Failure::new(Reason::ExitStatus, "the agent ended with status 3");
            vec![resolved, pod, started, exited, ended(Some(failure))]
        }
        State::FailedBeforeItsPod => {
            let failure = Failure::new(Reason::RefNotFound, "there is no branch `mian`");
            let attempt = FIRST;
            vec![
                Event::AttemptFailed {
                    attempt,
                    failure: failure.clone(),
                },
                ended(Some(failure)),
            ]
        }
        State::Cancelled => {
            let failure = Failure::new(Reason::CancelRequested, "the run was cancelled");
            vec![ended(Some(failure))]
        }
    };
    begun.into_iter().chain(more).collect()
}

/// The whole object, as such a tool reads it.
fn object(state: State) -> Value {
    let events = events(state);
    let facts = RecordFacts::of((0..).map(at).zip(&events));
    let trouble = Failure::new(Reason::SecretNotFound, "Secret `forge-token` is not there");
    let seen = Observed {
        spec: SpecFacts {
            namespace: "team".parse().unwrap(),
            name: "fix-it".parse().unwrap(),
            uid: "0a".parse().unwrap(),
            generation: Some(3),
            rerun: String::new(),
            inputs: vec![InputFacts {
                name: "app".parse().unwrap(),
                repository: "https://git.example.com/acme/app.git".into(),
                requested_ref: "branch main".into(),
            }],
            refused: None,
            on_drift: OnDrift::Report,
            timeout: Duration::from_mins(20),
            start_timeout: Duration::from_mins(10),
            infrastructure_retries: 2,
            ttl_after_finished: Duration::from_hours(24),
        },
        wish: Wish {
            stop: None,
            suspend: state == State::Suspended,
        },
        record: Ok(facts),
        resolution: if state == State::Waiting {
            Resolution::Busy {
                trouble: Some(trouble),
            }
        } else {
            Resolution::Idle
        },
        policy: Policy::InForce,
        pod: Pod::Absent,
        strays: Vec::new(),
        node: None,
        trouble: None,
        limits: Limits::default(),
    };
    let generation = if state == State::Outdated { 4 } else { 3 };
    let status = if state == State::Unseen {
        json!({"observedGeneration": -1})
    } else {
        serde_json::to_value(status(&seen)).unwrap()
    };
    json!({
        "apiVersion": "sandboxrun.dev/v1alpha1",
        "kind": "SandboxRun",
        "metadata": {"name": "fix-it", "namespace": "team", "generation": generation},
        "spec": {"agent": {"image": "a", "command": ["true"]}, "suspend": state == State::Suspended},
        "status": status,
    })
}

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("gitops")
        .join(name)
}

/// A value as a Lua expression.
fn lua(value: &Value) -> String {
    let quoted = |text: &str| {
        let bytes: Vec<String> = text.bytes().map(|byte| format!("\\{byte:03}")).collect();
        format!("\"{}\"", bytes.concat())
    };
    match value {
        Value::Null => "nil".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(list) => format!("{{{}}}", list.iter().map(lua).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("[{}]={}", quoted(name), lua(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
    }
}

/// What Argo CD's script says: its health and its message. It is a chunk that finds `obj` and returns a table.
fn argo(object: &Value) -> (String, String) {
    let script = std::fs::read_to_string(shipped("argocd-health.lua")).unwrap();
    let program = format!(
        "obj = {}\nlocal hs = (function()\n{script}\nend)()\nio.write(hs.status, \"\\n\", hs.message)\n",
        lua(object)
    );
    let said = fed(Command::new("lua5.4").arg("-"), &program);
    let (health, message) = said.split_once('\n').unwrap();
    (health.to_owned(), message.to_owned())
}

/// What a program prints, given this on its stdin.
fn fed(command: &mut Command, stdin: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("`make setup` installs what this needs");
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(stdin.as_bytes()).unwrap();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[rstest]
#[case::unseen(State::Unseen, "Progressing")]
#[case::pending(State::Pending, "Progressing")]
#[case::resolving(State::Resolving, "Progressing")]
#[case::waiting(State::Waiting, "Progressing")]
#[case::provisioning(State::Provisioning, "Progressing")]
#[case::running(State::Running, "Progressing")]
#[case::collecting(State::Collecting, "Progressing")]
#[case::succeeded(State::Succeeded, "Healthy")]
#[case::failed(State::Failed, "Degraded")]
#[case::failed_before_its_pod(State::FailedBeforeItsPod, "Degraded")]
#[case::cancelled(State::Cancelled, "Degraded")]
#[case::suspended(State::Suspended, "Suspended")]
#[case::outdated(State::Outdated, "Progressing")]
fn o03_argo_cd_reads_a_run_as_it_is(#[case] state: State, #[case] health: &str) {
    let (found, message) = argo(&object(state));
    assert_eq!(found, health, "{message}");
    if health == "Degraded" {
        assert!(message.contains(": "), "says why: {message}");
    }
}

#[rstest]
#[case::no_status(json!({"metadata": {"generation": 1}}))]
#[case::no_conditions(json!({"metadata": {"generation": 1}, "status": {"observedGeneration": 1}}))]
#[case::conditions_of_tomorrow(json!({"metadata": {}, "status": {"conditions": [{"type": "New", "status": "True"}]}}))]
#[case::nothing(json!({}))]
fn o03_what_is_not_known_is_never_healthy(#[case] object: Value) {
    assert_eq!(argo(&object).0, "Progressing");
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Flux {
    health_check_exprs: Vec<Exprs>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Exprs {
    api_version: String,
    kind: String,
    in_progress: String,
    failed: String,
    current: String,
}

/// What Flux makes of an object: an observed generation of another spec is in progress, then the expressions are asked in
/// their order, and none that is true is in progress.
fn flux(object: &Value) -> &'static str {
    let text = std::fs::read_to_string(shipped("flux-health.yaml")).unwrap();
    let flux: Flux = serde_saphyr::from_str(&text).unwrap();
    let [exprs] = flux.health_check_exprs.as_slice() else {
        panic!("one kind")
    };
    assert_eq!(
        (exprs.api_version.as_str(), exprs.kind.as_str()),
        ("sandboxrun.dev/v1alpha1", "SandboxRun")
    );
    let generation = &object["metadata"]["generation"];
    if object["status"]["observedGeneration"] != *generation {
        return "InProgress";
    }
    let is_true = |expression: &str| {
        let program = cel::Program::compile(expression).unwrap();
        let mut context = cel::Context::default();
        for (name, value) in object.as_object().unwrap() {
            context.add_variable(name.clone(), value.clone()).unwrap();
        }
        program.execute(&context).unwrap() == cel::Value::Bool(true)
    };
    if is_true(&exprs.in_progress) {
        "InProgress"
    } else if is_true(&exprs.failed) {
        "Failed"
    } else if is_true(&exprs.current) {
        "Current"
    } else {
        "InProgress"
    }
}

#[rstest]
#[case::unseen(State::Unseen, "InProgress")]
#[case::pending(State::Pending, "InProgress")]
#[case::resolving(State::Resolving, "InProgress")]
#[case::waiting(State::Waiting, "InProgress")]
#[case::provisioning(State::Provisioning, "InProgress")]
#[case::running(State::Running, "InProgress")]
#[case::collecting(State::Collecting, "InProgress")]
#[case::succeeded(State::Succeeded, "Current")]
#[case::failed(State::Failed, "Failed")]
#[case::failed_before_its_pod(State::FailedBeforeItsPod, "Failed")]
#[case::cancelled(State::Cancelled, "Failed")]
#[case::suspended(State::Suspended, "InProgress")]
#[case::outdated(State::Outdated, "InProgress")]
fn o03_flux_reads_a_run_as_it_is(#[case] state: State, #[case] health: &str) {
    assert_eq!(flux(&object(state)), health);
}

/// What kstatus' own library says: Flux without expressions, `kubectl` plugins and cli-utils ask it. Builds `e2e/kstatus`.
#[test]
#[ignore = "needs Go and its module proxy: `make e2e` runs it"]
fn o03_kstatus_reads_a_run_as_it_is() {
    let rows = [
        (State::Unseen, "InProgress"),
        (State::Pending, "InProgress"),
        (State::Resolving, "InProgress"),
        (State::Waiting, "InProgress"),
        (State::Provisioning, "InProgress"),
        (State::Running, "InProgress"),
        (State::Collecting, "InProgress"),
        (State::Succeeded, "Current"),
        (State::Failed, "Failed"),
        (State::FailedBeforeItsPod, "Failed"),
        (State::Cancelled, "Failed"),
        (State::Suspended, "InProgress"),
        (State::Outdated, "InProgress"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("kstatus");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/kstatus");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .status()
        .expect("go is needed");
    assert!(built.success());
    let objects = rows.map(|(state, _)| {
        let mut object = object(state);
        object["metadata"]["name"] = json!(format!("{state:?}"));
        object
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let said = fed(&mut Command::new(program), &list.to_string());
    let said: Vec<(&str, &str)> = said
        .lines()
        .map(|line| {
            let mut fields = line.split('\t');
            (fields.next().unwrap(), fields.next().unwrap())
        })
        .collect();
    let want = rows.map(|(state, health)| (format!("{state:?}"), health));
    let want: Vec<(&str, &str)> = want
        .iter()
        .map(|(state, health)| (state.as_str(), *health))
        .collect();
    assert_eq!(said, want);
}

/// The page tells people to put in what is shipped, and what it shows is taken.
#[test]
fn the_page_shows_what_is_shipped() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/gitops.md");
    let page = std::fs::read_to_string(page).unwrap();
    for name in ["argocd-health.lua", "flux-health.yaml"] {
        assert!(page.contains(&format!("gitops/{name}")), "{name}");
    }
    let blocks: Vec<&str> = page
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    let shipped: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(shipped("flux-health.yaml")).unwrap())
            .unwrap();
    let mut seen = 0;
    for block in blocks {
        let object: Value = serde_saphyr::from_str(block).unwrap();
        if object["kind"] == "Kustomization" {
            assert_eq!(
                object["spec"]["healthCheckExprs"],
                shipped["healthCheckExprs"]
            );
        } else {
            for read in sandboxrun::api::manifest::read("docs/gitops.md", block.as_bytes()) {
                assert!(read.is_ok(), "{:?}", read.err());
            }
        }
        seen += 1;
    }
    assert_eq!(seen, 2);
}
