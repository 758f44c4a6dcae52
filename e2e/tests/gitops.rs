//! What Argo CD and Flux see and do: every state that a run passes through is asked of kstatus' own library and of Argo CD's
//! script; a run that is applied again; one that is changed; what a TTL leaves.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Space, condition, holds, program, run, setting, until};

/// What kstatus says of objects, in their order.
fn kstatus(objects: &[Value]) -> Vec<String> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let said = program(&setting("E2E_KSTATUS"), &[], &list.to_string()).good();
    let word = |line: &str| line.split('\t').nth(1).unwrap().to_owned();
    said.lines().map(word).collect()
}

/// What Argo CD's script says of an object.
fn argo(object: &Value) -> String {
    let script = Path::new(&setting("E2E_CHART")).join("../../gitops/argocd-health.lua");
    let script = std::fs::read_to_string(script).unwrap();
    let lua = format!(
        "obj = {}\nlocal hs = (function()\n{script}\nend)()\nio.write(hs.status)\n",
        lua(object)
    );
    program("lua5.4", &["-"], &lua).good()
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

/// Every version of a run that the API server tells of, from before it is made to its end.
fn versions(space: &Space, name: &str, manifest: &str) -> Vec<Value> {
    let mut watch = Command::new("kubectl")
        .args(["-n", space.name(), "get", "sandboxruns", "--watch"])
        .args(["--output-watch-events", "-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = watch.stdout.take().unwrap();
    let events = serde_json::Deserializer::from_reader(out).into_iter::<Value>();
    space.apply(manifest).good();
    let mut found = Vec::new();
    for event in events {
        let object = event.unwrap()["object"].clone();
        if object["metadata"]["name"] == name {
            let ended = holds(&object, "Complete") || holds(&object, "Failed");
            found.push(object);
            if ended {
                break;
            }
        }
    }
    watch.kill().unwrap();
    watch.wait().unwrap();
    found
}

// O03
#[test]
#[ignore = "needs a cluster: make e2e"]
fn o03_every_state_on_the_way_is_read_as_it_is() {
    let space = Space::new("states");
    for (name, script, kstatus_says, argo_says) in [
        ("good", "sleep 2", "Current", "Healthy"),
        ("bad", "exit 3", "Failed", "Degraded"),
    ] {
        let seen = versions(&space, name, &run(name, script, &json!({})));
        assert!(seen.len() > 1, "{seen:?}");
        let (last, before) = seen.split_last().unwrap();
        let said = kstatus(&seen);
        assert_eq!(said.last().unwrap(), kstatus_says);
        assert!(
            said.iter().rev().skip(1).all(|word| word == "InProgress"),
            "{said:?}"
        );
        for object in before {
            assert_eq!(argo(object), "Progressing", "{object}");
        }
        assert_eq!(argo(last), argo_says);
    }
    // One that the operator has never seen.
    let unseen = json!({"apiVersion": "sandboxrun.dev/v1alpha1", "kind": "SandboxRun", "metadata": {"name": "x", "generation": 1},
        "spec": {}, "status": {"observedGeneration": -1}});
    assert_eq!(kstatus(std::slice::from_ref(&unseen)), ["InProgress"]);
    assert_eq!(argo(&unseen), "Progressing");
}

// O02
#[test]
#[ignore = "needs a cluster: make e2e"]
fn o02_a_run_that_is_deleted_and_applied_again_shows_its_result_and_runs_when_rerun_changes() {
    let space = Space::new("again");
    let manifest = |rerun: &str| run("job", "date +%s%N", &json!({"rerun": rerun}));
    space.apply(&manifest("")).good();
    let first = space.succeeded(120, "job");
    let said = space.agent_log("job");
    space.kubectl(&["delete", "sandboxrun", "job"]).good();
    until(60, "no pod of the deleted run", || {
        let pods = space.pods_of("job");
        if pods.is_empty() {
            Ok(())
        } else {
            Err(format!("{pods:?}"))
        }
    });

    space.apply(&manifest("")).good();
    let again = space.succeeded(60, "job");
    assert_ne!(again["metadata"]["uid"], first["metadata"]["uid"]);
    let ready = condition(&again, "Ready").unwrap();
    assert_eq!(ready["reason"], "RecordedResult", "{ready}");
    assert_eq!(space.pods_of("job"), Vec::<Value>::new());
    assert_eq!(kstatus(std::slice::from_ref(&again)), ["Current"]);

    space.apply(&manifest("2")).good();
    let generation = 2;
    space.until_run(120, "job", "the end of the second run", |run| {
        run["status"]["observedGeneration"] == generation
            && holds(run, "Ready")
            && !space.pods_of("job").is_empty()
    });
    assert_ne!(space.agent_log("job"), said);
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn what_is_fixed_is_changed_by_replacing_the_run_and_the_changed_one_runs() {
    let space = Space::new("replace");
    space.apply(&run("job", "echo one", &json!({}))).good();
    space.succeeded(120, "job");
    let other = run("job", "echo two", &json!({}));
    let sentence = "spec.agent: Invalid value: \"object\": cannot be changed: make a new SandboxRun, under another name";
    for refused in [
        space.apply(&other),
        space.kubectl_with(&["replace", "-f", "-"], &other),
        space.kubectl_with(
            &["apply", "--server-side", "--force-conflicts", "-f", "-"],
            &other,
        ),
    ] {
        let said = refused.refused();
        assert!(said.contains(sentence), "{said}");
    }
    // What Argo CD does for Force=true,Replace=true, and Flux for force.
    space
        .kubectl_with(&["replace", "--force", "-f", "-"], &other)
        .good();
    space.succeeded(120, "job");
    assert_eq!(space.agent_log("job"), "two\n");
}

// O01
#[test]
#[ignore = "needs a cluster: make e2e"]
fn o01_a_ttl_takes_the_pod_and_leaves_nothing_out_of_sync() {
    let space = Space::new("ttl");
    let manifest = run("job", "true", &json!({"ttlAfterFinished": "1s"}));
    space.apply(&manifest).good();
    let ended = space.succeeded(120, "job");
    until(60, "no pod after its time", || {
        let pods = space.pods_of("job");
        if pods.is_empty() {
            Ok(())
        } else {
            Err(format!("{pods:?}"))
        }
    });
    // `diff` ends with 0 only where nothing would change.
    space.kubectl_with(&["diff", "-f", "-"], &manifest).good();
    let later = space.get("sandboxrun", "job").unwrap();
    assert_eq!(later["metadata"]["uid"], ended["metadata"]["uid"]);
    assert_eq!(kstatus(std::slice::from_ref(&later)), ["Current"]);
    assert!(later["metadata"]["finalizers"].is_null());
}
