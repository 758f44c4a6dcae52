//! What the API server says about manifests: each bad one is refused, with the sentence that `sandboxrun validate` has too.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::support::{Space, program, run, setting};

/// `title`, `kind`, `spec`, and `says`: the field and the sentence.
fn refused() -> Vec<Value> {
    serde_json::from_str(include_str!("../manifests/refused.json")).unwrap()
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn a01_a04_a05_every_bad_manifest_is_refused_with_the_sentence_of_validate() {
    let space = Space::empty("refused");
    let rows = refused();
    assert!(rows.len() >= 40, "{}", rows.len());
    let mut all = String::new();
    for (at, row) in rows.iter().enumerate() {
        let object = json!({"apiVersion": "sandboxrun.dev/v1alpha1", "kind": row["kind"],
            "metadata": {"name": format!("row-{at}")}, "spec": row["spec"]});
        writeln!(all, "---\n{object}").unwrap();
    }
    let server = space.apply(&all).refused();
    let offline = program(&setting("E2E_PROGRAM"), &["validate", "-f", "-"], &all);
    assert!(!offline.ok);
    let mut wrong = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let (field, sentence) = row["says"].as_str().unwrap().split_once(": ").unwrap();
        let name = format!("row-{at}\" is invalid: ");
        let said = server
            .split("\nThe ")
            .find(|said| said.contains(&name))
            .unwrap_or_default();
        let line = said
            .lines()
            .any(|line| line.contains(&format!("{field}: ")) && line.contains(sentence));
        if !line {
            wrong.push(format!("{}: the API server says {said:?}", row["title"]));
        }
        let of_row = format!("{} row-{at})", row["kind"].as_str().unwrap());
        let said = offline
            .out
            .lines()
            .any(|line| line.contains(&of_row) && line.contains(&format!("{field}: {sentence}")));
        if !said {
            wrong.push(format!(
                "{}: validate does not say {field}: {sentence}",
                row["title"]
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n"),
        offline.out
    );
    assert!(space.list("sandboxruns,connectors").is_empty());
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn the_sum_of_all_rules_is_cheap_enough_for_the_largest_manifest() {
    let space = Space::empty("largest");
    let wide = |count: usize, one: &dyn Fn(usize) -> Value| (0..count).map(one).collect::<Vec<_>>();
    let spec = json!({
        "inputs": wide(16, &|at| json!({"name": format!("input-{at}"), "path": format!("{}{at}", "d/".repeat(100)),
            "repository": format!("https://git.example.com/{}/{at}", "x".repeat(1900)), "ref": {"branch": "b".repeat(200)}})),
        "lookups": wide(32, &|at| json!({"name": format!("lookup-{at}"), "connector": "tracker",
            "paths": wide(64, &|at| json!(format!("/{}/{at}", "p".repeat(200))))})),
        "egress": {"allow": wide(64, &|at| json!({"host": format!("h{at}.{}.example.com", "a".repeat(60))}))},
        "agent": {
            "args": wide(256, &|at| json!(format!("{at}"))),
            "env": wide(256, &|at| json!({"name": format!("V{at}_{}", "v".repeat(200)), "value": "x"})),
            "scratch": wide(16, &|at| json!(format!("/var/{}{at}", "s/".repeat(100)))).into_iter().map(|path| json!(
                path.as_str().unwrap())).collect::<Vec<_>>(),
            "context": wide(64, &|at| json!({"path": format!("{}{at}", "c/".repeat(100)), "content": "x".repeat(1024)})),
            "prompt": "x".repeat(120_000),
        },
    });
    let largest = run("largest", "true", &spec);
    space
        .kubectl_with(
            &["apply", "--server-side", "--dry-run=server", "-f", "-"],
            &largest,
        )
        .good();
}
