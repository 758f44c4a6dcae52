//! `sandboxrun validate`, `explain`, `crd` and `version` as people start them.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at clocks and start programs as they need"
)]
// `cfg(test)` is always so here; it tells clippy that helpers of tests may unwrap, too.
#![cfg(test)]

use std::fs;
use std::path::Path;

use assert_cmd::Command;

const RUN: &str = "apiVersion: sandboxrun.dev/v1alpha1
kind: SandboxRun
metadata: {name: fix}
spec:
  inputs:
  - name: app
    repository: acme/app
    connector: forge
  agent: {image: a, command: [sh]}
  lookups:
  - {name: tickets, connector: tracker, paths: ['/**']}
";
const FORGE: &str = "apiVersion: sandboxrun.dev/v1alpha1
kind: Connector
metadata: {name: forge}
spec:
  type: Gitea
  url: https://git.example.com
  uses: [Inputs]
  auth: {token: {secretRef: {name: forge-token, key: token}}}
";
const SECRET: &str = "apiVersion: v1
kind: Secret
metadata: {name: forge-token, annotations: {sandboxrun.dev/origin: 'https://git.example.com'}}
stringData: {token: c4n4ry}
";

fn sandboxrun(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("sandboxrun").unwrap();
    command.current_dir(dir).args(args).env("NO_COLOR", "1");
    command
}

/// Exit code, stdout and stderr.
fn validate(dir: &Path, args: &[&str], stdin: &str) -> (i32, String, String) {
    let args: Vec<&str> = ["validate"].iter().chain(args).copied().collect();
    let output = sandboxrun(dir, &args).write_stdin(stdin).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(
        !out.contains("c4n4ry") && !err.contains("c4n4ry"),
        "a secret is printed"
    );
    (output.status.code().unwrap(), out, err)
}

#[test]
fn several_files_a_symlink_and_stdin_are_checked_together() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("run.yaml"), RUN).unwrap();
    fs::write(dir.path().join("forge.yaml"), format!("\u{feff}{FORGE}")).unwrap();
    std::os::unix::fs::symlink("forge.yaml", dir.path().join("link.yaml")).unwrap();
    let got = validate(
        dir.path(),
        &["-f", "run.yaml", "link.yaml", "-f", "-"],
        SECRET,
    );
    let want = "note: run.yaml: document 1 (SandboxRun fix): spec.lookups[0].connector: no Connector tracker is among these files: it has to be in namespace default already
valid: SandboxRun fix, Connector forge, Secret forge-token
";
    assert_eq!(got, (0, want.to_owned(), String::new()));
}

#[test]
fn what_is_wrong_is_named_by_file_document_and_field() {
    let dir = tempfile::tempdir().unwrap();
    let broken = RUN.replace("command: [sh]", "command: []").replace(
        "repository: acme/app",
        "repository: https://other.example.com/app",
    );
    fs::write(dir.path().join("run.yaml"), format!("{FORGE}---\n{broken}")).unwrap();
    let (code, out, _) = validate(dir.path(), &["-f", "run.yaml"], "");
    assert_eq!(code, 240);
    assert_eq!(
        out,
        "error: run.yaml:18: document 2 (SandboxRun fix): spec.agent.command: must name a program, such as [\"sh\", \"-c\", \"make test\"]\ninvalid: 1 error\n"
    );
}

#[test]
fn documents_that_do_not_fit_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = RUN
        .replace("acme/app", "https://other.example.com/app")
        .replace("tracker", "forge");
    let secret = SECRET
        .replace("git.example.com", "evil.example.com")
        .replace("token: c4n4ry", "tok: c4n4ry");
    let all = [&run, FORGE, &secret, FORGE].join("---\n");
    let (code, out, _) = validate(dir.path(), &["-f", "-"], &all);
    assert_eq!(code, 240);
    assert_eq!(
        out.lines().collect::<Vec<_>>(),
        [
            "error: -: document 4 (Connector forge): metadata.name: is the name of document 2 of - too: keep one of the two",
            "error: -: document 1 (SandboxRun fix): spec.inputs[0].repository: is not below https://git.example.com, the url of connector forge: name a repository there, or another connector",
            "error: -: document 1 (SandboxRun fix): spec.lookups[0].connector: connector forge is not for Lookups: add it to its spec.uses",
            "error: -: document 2 (Connector forge): spec.auth.token.secretRef.key: Secret forge-token has no key token: add it, or name one that it has",
            "error: -: document 2 (Connector forge): spec.auth.token.secretRef.name: Secret forge-token does not say that it may go there: annotate it with sandboxrun.dev/origin: https://git.example.com",
            "error: -: document 4 (Connector forge): spec.auth.token.secretRef.key: Secret forge-token has no key token: add it, or name one that it has",
            "error: -: document 4 (Connector forge): spec.auth.token.secretRef.name: Secret forge-token does not say that it may go there: annotate it with sandboxrun.dev/origin: https://git.example.com",
            "invalid: 7 errors",
        ]
    );
}

#[test]
fn json_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, _) = validate(
        dir.path(),
        &["-f", "-", "-o", "json"],
        &RUN.replace("[sh]", "[sh, 1]"),
    );
    let got: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 240);
    let want = serde_json::json!({
        "valid": false, "documents": [], "notes": [],
        "errors": [{
            "file": "-", "line": 9, "document": 1, "object": "SandboxRun fix", "field": "spec.agent.command[1]",
            "message": "must be text, and is a number: put it in quotes",
            "code": "sandbox.spec_invalid", "reason": "NotDecodable",
        }],
    });
    assert_eq!(got, want);
}

#[test]
fn a_file_that_cannot_be_read_is_a_usage_error() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, err) = validate(dir.path(), &["-f", "none.yaml"], "");
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(
        err,
        "error: cannot read none.yaml: No such file or directory (os error 2)\n"
    );
    let (code, _, err) = validate(dir.path(), &["-f", "."], "");
    assert_eq!(
        (code, err.as_str()),
        (
            2,
            "error: cannot read .: it is a directory: name the files in it\n"
        )
    );
    let (code, _, _) = validate(dir.path(), &[], "");
    assert_eq!(code, 2);
}

#[test]
fn ten_megabytes_are_refused_with_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("large.yaml"), "# x\n".repeat(2_621_440)).unwrap();
    let (code, out, _) = validate(dir.path(), &["-f", "large.yaml"], "");
    assert_eq!(code, 240);
    assert!(out.contains("has more than 4194304 bytes (4 MiB)"), "{out}");
}

#[test]
fn explain_crd_and_version_print() {
    let dir = tempfile::tempdir().unwrap();
    sandboxrun(dir.path(), &["explain", "241"])
        .assert()
        .success();
    sandboxrun(dir.path(), &["explain"]).assert().success();
    sandboxrun(dir.path(), &["explain", "nothing"])
        .assert()
        .code(2);
    sandboxrun(dir.path(), &["version"]).assert().success();
    sandboxrun(dir.path(), &["crd", "--dir", "crds"])
        .assert()
        .success();
    for name in ["sandboxruns", "connectors"] {
        assert!(
            dir.path()
                .join(format!("crds/{name}.sandboxrun.dev.yaml"))
                .is_file()
        );
    }
    let printed = sandboxrun(dir.path(), &["crd"]).output().unwrap().stdout;
    assert_eq!(
        String::from_utf8(printed)
            .unwrap()
            .matches("kind: CustomResourceDefinition")
            .count(),
        2
    );
}
