//! What the reader says about manifests that people get wrong.

use std::fmt::Write as _;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// Stands wherever a secret could: no message may hold it.
const CANARY: &str = "c4n4ry";

const RUN: &str = "apiVersion: sandboxrun.dev/v1alpha1\nkind: SandboxRun\nmetadata: {name: a}\n";
const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n";

fn errors(text: &str) -> String {
    let found = read("run.yaml", text.as_bytes());
    let errors = found
        .iter()
        .filter_map(|one| one.as_ref().err())
        .map(ToString::to_string);
    let errors = errors.collect::<Vec<_>>().join("\n");
    assert!(!errors.contains(CANARY), "a value is quoted: {errors}");
    errors
}

/// A run whose `spec` is `{agent: {image: a, command: [a]}, ...}`.
fn run(more: &str) -> String {
    format!("{RUN}spec: {{agent: {{image: a, command: [a]}}{more}}}\n")
}

#[rstest]
#[case::typo(
    "spec: {agent: {image: a, command: [x], imagee: 1}}",
    "run.yaml:4: document 1 (SandboxRun a): spec.agent.imagee: is no field here: write one of image, command, args, env, workingDir, scratch, prompt, context, timeout, stallTimeout, output, resources, runAsUser, imagePullSecrets"
)]
#[case::field_of_a_later_version(
    "spec: {deliver: {}, agent: {image: a, command: [x]}}",
    "run.yaml:4: document 1 (SandboxRun a): spec.deliver: is no field here: write one of inputs, agent, lookups, egress, policy, workspace, scheduling, infrastructureRetries, suspend, cancel, rerun, ttlAfterFinished, deleteAfterFinished"
)]
#[case::text_for_a_list(
    "spec: {agent: {image: a, command: c4n4ry}}",
    "run.yaml:4: document 1 (SandboxRun a): spec.agent.command: must be a list, and is text"
)]
#[case::bare_yes(
    "spec: {agent: {image: a, command: [yes]}}",
    "run.yaml:4: document 1 (SandboxRun a): spec.agent.command[0]: must be text, and is true or false: put it in quotes"
)]
#[case::bare_number(
    "spec: {agent: {image: 1.5, command: [a]}}",
    "run.yaml:4: document 1 (SandboxRun a): spec.agent.image: must be text, and is a number: put it in quotes"
)]
#[case::missing_field(
    "spec: {agent: {command: [a]}}",
    "run.yaml:4: document 1 (SandboxRun a): spec.agent.image: is missing"
)]
#[case::a02_duration(
    "spec: {agent: {image: a, command: [a], timeout: 1d}}",
    "run.yaml:4: document 1 (SandboxRun a): spec.agent.timeout: must be a duration from 1m to 24h, such as 20m or 1h30m"
)]
#[case::unknown_word(
    "spec: {agent: {image: a, command: [a]}, policy: {onDrift: c4n4ry}}",
    "run.yaml:4: document 1 (SandboxRun a): spec.policy.onDrift: must be one of Report, Fail"
)]
#[case::text_for_a_mapping(
    "spec: {agent: {image: a, command: [a]}, inputs: [c4n4ry]}",
    "run.yaml:4: document 1 (SandboxRun a): spec.inputs[0]: must be a mapping, and is text"
)]
#[case::out_of_range(
    "spec:\n  agent: {image: a, command: [a]}\n  inputs:\n  - name: a\n    repository: https://h/a\n    depth: 99999999999",
    "run.yaml:9: document 1 (SandboxRun a): spec.inputs[0].depth: is out of range: must be a whole number"
)]
#[case::empty_list(
    "spec: {agent: {image: a, command: [a]}, inputs: }",
    "run.yaml:4: document 1 (SandboxRun a): spec.inputs: must be a list, and is empty: fill it in or remove the field"
)]
#[case::duplicate_key(
    "spec:\n  agent: {image: a, command: [a]}\n  agent: {image: b}\n",
    "run.yaml:6: document 1: has the key agent twice in one mapping: remove one of the two"
)]
#[case::unknown_anchor(
    "spec: *c4n4ry",
    "run.yaml:4: document 1: begins with '*' but names no anchor of this document: put the text in quotes"
)]
#[case::open_quote("spec: \"c4n4ry", "run.yaml:4: document 1: is no YAML: unclosed quote")]
#[case::tab(
    "spec:\n\t- c4n4ry",
    "run.yaml:5: document 1: is no YAML: tabs disallowed within this context (block indentation)"
)]
#[case::not_finite(
    "spec: {agent: {image: a, command: [.nan]}}",
    "run.yaml:4: document 1: holds a number that is not finite: write it in quotes"
)]
#[case::top_level_typo(
    "sepc: {}",
    "run.yaml:4: document 1 (SandboxRun a): sepc: is no field of a SandboxRun: it has spec, status\nrun.yaml:1: document 1 (SandboxRun a): spec: is missing"
)]
#[case::two_rules(
    "spec:\n  agent: {image: a, command: [a]}\n  inputs:\n  - name: app\n    repository: https://user:c4n4ry@h/a\n  - name: lib\n    repository: https://h/b\n    ref: {branch: main, tag: v1}\n",
    "run.yaml:8: document 1 (SandboxRun a): spec.inputs[0].repository: must not hold a user name or password: put the credential into a Secret and name its connector\nrun.yaml:11: document 1 (SandboxRun a): spec.inputs[1].ref: set exactly one of branch, tag, commit, name"
)]
fn a_wrong_run_is_told_where_and_what(#[case] rest: &str, #[case] want: &str) {
    assert_eq!(errors(&format!("{RUN}{rest}")), want);
}

#[rstest]
#[case::text(
    "a",
    "run.yaml:1: document 1: must be a mapping with apiVersion, kind and metadata"
)]
#[case::nothing(
    "# x\n---\n",
    "run.yaml: holds no document: write a SandboxRun, Connector or Secret"
)]
#[case::other_kind(
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
    "run.yaml:2: document 1: kind: must be SandboxRun, Connector or Secret: remove other documents"
)]
#[case::other_version(
    "apiVersion: sandboxrun.dev/v1\nkind: Connector\n",
    "run.yaml:1: document 1: apiVersion: must be sandboxrun.dev/v1alpha1"
)]
#[case::no_name(
    "apiVersion: v1\nkind: Secret\nmetadata: {}\n",
    "run.yaml:3: document 1 (Secret): metadata.name: is missing: give the object a name"
)]
#[case::bad_name(
    "apiVersion: v1\nkind: Secret\nmetadata: {name: A_b}\n",
    "run.yaml:3: document 1 (Secret A_b): metadata.name: must be a DNS subdomain: at most 253 of a-z, 0-9, '-' and '.'"
)]
#[case::metadata_typo(
    "apiVersion: v1\nkind: Secret\nmetadata: {name: a, nmaespace: c4n4ry}\n",
    "run.yaml:3: document 1 (Secret a): metadata.nmaespace: is no field of metadata: write name, namespace, labels or annotations"
)]
#[case::json_twice(
    "{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": {\"name\": \"a\", \"name\": \"b\"}}",
    "run.yaml:1: document 1: has the key name twice in one mapping: remove one of the two"
)]
#[case::nul(
    "a: \"\0\"",
    "run.yaml: holds a NUL character: save it as plain UTF-8 text"
)]
fn a_wrong_document_is_told_where_and_what(#[case] text: &str, #[case] want: &str) {
    assert_eq!(errors(text), want);
}

#[rstest]
#[case::mapping(
    "stringData: {a: {b: c4n4ry}}\ndata: {b: c4n4ry}\n",
    "run.yaml:5: document 1 (Secret s): data.b: must be base64: write the plain text under stringData instead\nrun.yaml:4: document 1 (Secret s): stringData.a: must be text: put the value in quotes"
)]
#[case::no_mapping(
    "stringData: c4n4ry\n",
    "run.yaml:4: document 1 (Secret s): stringData: must be a mapping of keys to texts"
)]
#[case::number(
    "stringData: {a: 12}\nmore: c4n4ry\n",
    "run.yaml:5: document 1 (Secret s): more: is no field of a Secret: it has data, stringData, type, immutable\nrun.yaml:4: document 1 (Secret s): stringData.a: must be text: put the value in quotes"
)]
fn a_wrong_secret_is_never_quoted(#[case] rest: &str, #[case] want: &str) {
    assert_eq!(errors(&format!("{SECRET}{rest}")), want);
}

#[test]
fn an_error_does_not_hide_the_documents_around_it() {
    let text = format!("{SECRET}---\n{RUN}spec: [\n---\n\n---\n{}", run(""));
    let found = read("-", text.as_bytes());
    let kinds: Vec<_> = found
        .iter()
        .map(|one| one.as_ref().map(Document::kind).ok())
        .collect();
    assert_eq!(kinds, [Some("Secret"), None, Some("SandboxRun")]);
    let error = found[1].as_ref().unwrap_err();
    assert_eq!((error.document, error.line), (Some(2), Some(8)));
}

#[test]
fn what_kubectl_takes_is_taken() {
    let texts = [
        format!("\u{feff}{}", run("")),
        run("").replace('\n', "\r\n"),
        run(", inputs: [{name: a, repository: 'https://h/a', readOnly: yes, depth: 010}]"),
        format!("{}status: {{}}\n", run("")),
        format!("%YAML 1.2\n---\n{}...\n", run("")),
        format!("{RUN}spec: &a {{agent: &b {{image: a, command: [a]}}}}\n"),
        serde_json::json!({
            "apiVersion": "sandboxrun.dev/v1alpha1", "kind": "SandboxRun", "metadata": {"generateName": "a-"},
            "spec": {"agent": {"image": "a", "command": ["\u{1f600}"]}},
        })
        .to_string(),
    ];
    for text in texts {
        assert_eq!(errors(&text), "", "{text}");
        assert_eq!(read("-", text.as_bytes()).len(), 1, "{text}");
    }
    let two =
        "{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": {\"name\": \"a\"}}".repeat(2);
    assert_eq!(read("-", two.as_bytes()).len(), 2);
}

#[test]
fn a_secret_holds_data_and_string_data_and_prints_neither() {
    let text = format!("{SECRET}data: {{a: YzRuNHJ5, b: YQ==}}\nstringData: {{b: c4n4ry}}\n");
    let found = read("-", text.as_bytes());
    assert!(!format!("{found:?}").contains(CANARY));
    let Ok(Document::Secret(secret)) = &found[0] else {
        panic!("{found:?}")
    };
    for key in ["a", "b"] {
        assert_eq!(secret.values[key].expose(), CANARY.as_bytes());
    }
}

#[test]
fn what_would_take_too_much_is_refused_with_the_limit() {
    let large = "# x\n".repeat(MAX_BYTES / 4 + 1);
    assert_eq!(
        errors(&large),
        "run.yaml: has more than 4194304 bytes (4 MiB), the most that a manifest can have: put what is large into an input"
    );
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
        let _ = writeln!(bomb, "a{level}: &a{level} [{aliases}]");
    }
    assert!(
        errors(&bomb).contains("when its anchors are expanded"),
        "{}",
        errors(&bomb)
    );
    for open in ["[", "{a: ", "- ", "{\"a\":"] {
        for levels in [47, 49, 127, 129, 10_000] {
            let deep = open.repeat(levels);
            assert!(
                errors(&deep).starts_with("run.yaml:1: document 1"),
                "{}",
                errors(&deep)
            );
            let closed = format!("{deep}1{}", "}".repeat(levels));
            assert!(
                errors(&closed).starts_with("run.yaml"),
                "{}",
                errors(&closed)
            );
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        drop(read("-", &bytes));
    }

    #[test]
    fn no_text_that_is_nearly_yaml_makes_the_reader_panic(text in "([a-c&*!|>'\"%@`{}\\[\\]:,#?\\-. \n\t~<]|---\n|kind: Secret\n|spec:\n|metadata: ){0,60}") {
        drop(read("-", format!("{RUN}{text}").as_bytes()));
        drop(read("-", text.as_bytes()));
    }
}
