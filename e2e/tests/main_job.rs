//! From `kubectl apply` to `Ready=True`: a private repository over TLS with its own CA, by branch and by tag, a public
//! one, a lookup, an edit, an output.

use serde_json::json;

use crate::support::{Space, canaries, condition, holds, program, run, setting};

const AGENT: &str = r#"
set -e
git -C /workspace/app log --oneline -1
git -C /workspace/app status --short
git -C /workspace/at-tag describe --tags --exact-match
curl -fsS http://127.0.0.1:7070/lookups/tickets/rest/api/2/issue/DEMO-1
echo
echo "Fixed as DEMO-1 asks." >> /workspace/app/README.md
if touch /workspace/at-tag/x 2>/dev/null; then echo "the read-only input can be written"; exit 3; fi
printf '{"ticket": "DEMO-1", "fixed": true}' > /sandbox/output/output.json
env
"#;

#[test]
#[ignore = "needs a cluster: make e2e"]
fn the_main_job_from_apply_to_ready() {
    let space = Space::new("main");
    let forge = setting("E2E_FORGE");
    let spec = json!({
        "inputs": [
            {"name": "app", "repository": "acme/app", "connector": "forge", "ref": {"branch": "main"}},
            {"name": "at-tag", "repository": "acme/app", "connector": "forge", "ref": {"tag": "v1.0.0"},
             "depth": 0, "readOnly": true},
            {"name": "tools", "repository": format!("{forge}/acme/tools.git"), "connector": "public"},
        ],
        "agent": {"output": {"schema": {"type": "object", "required": ["ticket", "fixed"]}}},
        "lookups": [{"name": "tickets", "connector": "tracker", "paths": ["/rest/api/2/issue/*"]}],
    });
    space.apply(&run("fix", AGENT, &spec)).good();
    let ended = space.succeeded(120, "fix");
    let status = &ended["status"];

    assert_eq!(status["phase"], "Succeeded");
    assert_eq!(status["attempt"], 1);
    assert_eq!(status["result"]["exitCode"], 0);
    let output = status["result"]["output"]["value"].as_str().unwrap();
    let output: serde_json::Value = serde_json::from_str(output).unwrap();
    assert_eq!(output, json!({"ticket": "DEMO-1", "fixed": true}));
    for kind in [
        "Complete",
        "InputsResolved",
        "WorkspaceReady",
        "PolicyEnforced",
        "Drifted",
        "Recorded",
    ] {
        assert!(holds(&ended, kind), "{kind}: {:?}", condition(&ended, kind));
    }
    for kind in ["Reconciling", "Stalled", "Failed"] {
        assert!(
            !holds(&ended, kind),
            "{kind}: {:?}",
            condition(&ended, kind)
        );
    }
    let input = |name: &str| {
        let inputs = status["inputs"].as_array().unwrap();
        inputs
            .iter()
            .find(|input| input["name"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(input("app")["resolvedRef"], "refs/heads/main");
    assert_eq!(input("app")["drift"]["state"], "Drifted");
    assert_eq!(
        input("app")["credential"],
        json!({"connector": "forge", "proof": "ReadOnly"})
    );
    assert_eq!(input("at-tag")["resolvedRef"], "refs/tags/v1.0.0");
    assert_eq!(input("at-tag")["drift"]["state"], "Unchanged");
    assert!(input("at-tag")["tagObject"].is_string());
    assert_eq!(input("tools")["drift"]["state"], "Unchanged");
    assert_ne!(input("app")["commit"], input("at-tag")["commit"]);

    let log = space.agent_log("fix");
    let commit = input("app")["commit"].as_str().unwrap().to_owned();
    assert!(log.contains(commit.get(..7).unwrap()), "{log}");
    assert!(log.contains("DEMO-1"), "{log}");

    let uid = ended["metadata"]["uid"].as_str().unwrap();
    let record = program(
        &setting("E2E_PROGRAM"),
        &["audit", "show", "--cluster", uid],
        "",
    );
    assert!(
        record.ok && record.out.contains(commit.get(..10).unwrap()),
        "{record:?}"
    );
    for canary in canaries() {
        for (place, text) in [
            ("status", ended.to_string()),
            ("log", log.clone()),
            ("record", record.out.clone()),
        ] {
            assert!(!text.contains(&canary), "a credential is in the {place}");
        }
    }
}
