//! A whole local run of `true`: `sandboxrun run` against a clone and a bare sandbox.

use std::time::{Duration, Instant};

use demo_forge::Change;
use tokio::process::Command;

use crate::rounds::Times;
use crate::table::Row;
use crate::world::{Done, World, succeed};

/// What a run may add to a clone and a sandbox.
const OWN: Duration = Duration::from_millis(500);

/// One small input, the mirror warm, the agent `true`.
pub(crate) async fn rows(world: &World) -> Done<Vec<Row>> {
    let name = "bench/small";
    let repo = world.repository(name)?;
    repo.commit("main", &[Change::file("README.md", "hello\n")])?;
    let manifest = world.disk.path().join("run.yaml");
    std::fs::write(&manifest, manifest_text(&world.forge.origin(), name))?;
    let (mut ours, mut rival) = (Times::default(), Times::default());
    // Fills the mirror, makes the state directory, and copies the programs to where an unprivileged user finds them.
    whole_run(world).await?;
    for _ in 0..world.rounds(11) {
        ours.push(whole_run(world).await?);
        rival.push(clone_and_sandbox(world, name).await?);
    }
    Ok(vec![Row::added(
        "local: a whole run of `true`, mirror warm",
        ours.median(),
        rival.median(),
        OWN,
    )])
}

async fn whole_run(world: &World) -> Done<Duration> {
    let disk = world.disk.path();
    let port = world.forge.addr().port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxrun"));
    command
        .args(["run", "--quiet", "--discard", "-f"])
        .arg(disk.join("run.yaml"))
        .arg("--state-dir")
        .arg(disk.join("state"))
        .arg("--pod-program")
        .arg(&world.pod)
        .arg("--secret")
        .arg(format!("ca/ca.crt=file:{}", disk.join("ca.pem").display()))
        .arg("--allow-address")
        .arg(format!("127.0.0.1=127.0.0.1/32:{port}"));
    let start = Instant::now();
    succeed(&mut command).await?;
    Ok(start.elapsed())
}

async fn clone_and_sandbox(world: &World, name: &str) -> Done<Duration> {
    let cloned = world.clone_shallow(name).await?;
    let mut command = Command::new("bwrap");
    command
        .args(["--unshare-all", "--die-with-parent", "--ro-bind", "/", "/"])
        .args(["--proc", "/proc", "--dev", "/dev", "true"]);
    let start = Instant::now();
    succeed(&mut command).await?;
    Ok(cloned + start.elapsed())
}

fn manifest_text(origin: &str, repository: &str) -> String {
    format!(
        r#"apiVersion: sandboxrun.dev/v1alpha1
kind: SandboxRun
metadata: {{name: speed}}
spec:
  inputs: [{{name: app, repository: {repository}, connector: forge, ref: {{branch: main}}}}]
  agent: {{image: "debian:12", command: ["true"]}}
---
apiVersion: sandboxrun.dev/v1alpha1
kind: Connector
metadata: {{name: forge}}
spec:
  type: Git
  url: {origin}
  caRef: {{name: ca, key: ca.crt}}
  uses: [Inputs]
---
apiVersion: v1
kind: Secret
metadata:
  name: ca
  annotations: {{sandboxrun.dev/origin: "{origin}"}}
"#
    )
}
