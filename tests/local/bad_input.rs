//! Bad input: named, with the rule and what to write instead; nothing is begun.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Stdio;

use rstest::rstest;
use serde_json::json;

use super::support::{Done, World, open_to_all, which};

#[track_caller]
fn assert_nothing_begun(world: &World, done: &Done, code: i32, parts: &[&str]) {
    assert_eq!(done.code, code, "{}", done.stderr);
    for part in parts {
        assert!(
            done.stderr.contains(part),
            "no `{part}` in:\n{}",
            done.stderr
        );
    }
    assert!(done.stderr.contains("sandbox."), "{}", done.stderr);
    assert_eq!(done.stdout, "");
    assert!(world.runs_left().is_empty());
    assert_eq!(world.forge.requests().len(), 0);
}

#[rstest]
#[case::an_unknown_field("    cpus: 3", &["spec.agent", "cpus"])]
#[case::a_duplicate_key("    image: again", &["image"])]
#[case::a_wrong_type("    env: 7", &["spec.agent.env"])]
#[case::a_field_of_a_later_version("  artifacts: {paths: [a]}", &["artifacts"])]
#[case::a_broken_rule("    timeout: 3s", &["spec.agent.timeout", "1m"])]
#[case::no_yaml("  : [", &["run.yaml"])]
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_is_refused_with_the_field_that_has(#[case] line: &str, #[case] parts: &[&str]) {
    let world = World::new().await;
    let text = format!(
        "apiVersion: sandboxrun.dev/v1alpha1\nkind: SandboxRun\nmetadata: {{name: test}}\nspec:\n  agent:\n    \
         image: none\n    command: [\"true\"]\n{line}\n"
    );
    let file = world.path("run.yaml");
    fs::write(&file, text).unwrap();
    let mut command = bare(&world);
    let done = world.finish(command.arg("-f").arg(&file));
    let mut all = vec!["run.yaml", "sandbox.spec_invalid"];
    all.extend(parts);
    assert_nothing_begun(&world, &done, 240, &all);
    assert!(!world.state().exists());
}

fn bare(world: &World) -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sandboxrun"));
    command
        .args(["run", "-o", "json", "--state-dir"])
        .arg(world.state())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_runs_neither_is_taken() {
    let world = World::new().await;
    let manifest = world.script("true");
    let mut second = manifest.clone();
    second.name = "second".to_owned();
    second.others.clear();
    let file = world.path("second.yaml");
    fs::write(&file, second.text()).unwrap();
    let done = world.finish(world.command(&manifest).arg("-f").arg(&file));
    assert_nothing_begun(&world, &done, 240, &["2 SandboxRuns", "exactly one"]);
    let mut none = bare(&world);
    fs::write(&file, "# nothing\n").unwrap();
    let done = world.finish(none.arg("-f").arg(&file));
    assert_eq!(done.code, 240, "{}", done.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_of_10_mb_is_refused_before_it_is_read_whole() {
    let world = World::new().await;
    let file = world.path("big.yaml");
    fs::write(&file, "# ".repeat(5 << 20)).unwrap();
    let done = world.finish(bare(&world).arg("-f").arg(&file));
    assert_nothing_begun(&world, &done, 240, &["big.yaml", "MiB"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_byte_order_mark_a_link_and_stdin_are_taken() {
    let world = World::new().await;
    let manifest = world.script("true");
    let real = world.path("real.yaml");
    fs::write(&real, format!("\u{feff}{}", manifest.text())).unwrap();
    let link = world.path("link.yaml");
    symlink(&real, &link).unwrap();
    world
        .finish(world.bare().arg("-f").arg(&link))
        .ended_with(0);

    let mut command = world.bare();
    command.args(["-f", "-"]).stdin(Stdio::piped());
    let mut running = world.start(&mut command);
    let mut stdin = running.child.stdin.take().unwrap();
    stdin.write_all(manifest.text().as_bytes()).unwrap();
    drop(stdin);
    running.wait().ended_with(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_not_there_is_named() {
    let world = World::new().await;
    let done = world.finish(bare(&world).args(["-f", "nowhere/run.yaml"]));
    assert_nothing_begun(&world, &done, 240, &["nowhere/run.yaml", "No such file"]);
    let done = world.finish(bare(&world).arg("-f").arg(world.dir.path()));
    assert_nothing_begun(&world, &done, 240, &["directory"]);
}

#[rstest]
#[case::not_set("forge-token/token=env:NO_SUCH_VARIABLE", &["forge-token/token", "NO_SUCH_VARIABLE", "not set"])]
#[case::not_there("forge-token/token=file:/no/such/file", &["forge-token/token", "/no/such/file"])]
#[case::no_secret("nobodys/token=env:PATH", &["nobodys/token", "sandboxrun.dev/origin"])]
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_flag_is_refused_that_is(#[case] flag: &str, #[case] parts: &[&str]) {
    let world = World::new().await;
    let done = world.finish(
        world
            .command(&world.script("true"))
            .args(["--secret", flag]),
    );
    assert_nothing_begun(&world, &done, 242, parts);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_for_another_origin_goes_nowhere() {
    let world = World::new().await;
    let mut manifest = world.script("true");
    for other in &mut manifest.others {
        if other["metadata"]["name"] == "forge-token" {
            other["metadata"]["annotations"] =
                json!({"sandboxrun.dev/origin": "https://elsewhere.example"});
        }
    }
    let done = world.run(&manifest).failed_by(242, "OriginNotAllowed");
    assert!(done.message().contains("forge-token"), "{}", done.message());
    assert_eq!(world.forge.requests().len(), 0);
    assert!(world.runs_left().is_empty());
}

/// A PATH that has these programs only.
fn path_of(world: &World, programs: &[&str]) -> std::path::PathBuf {
    let bin = world.path("some-programs");
    fs::create_dir(&bin).unwrap();
    open_to_all(&bin);
    for program in programs {
        symlink(which(program), bin.join(program)).unwrap();
    }
    bin
}

#[tokio::test(flavor = "multi_thread")]
async fn without_bubblewrap_it_says_how_to_install_it() {
    let world = World::new().await;
    let mut command = world.command(&world.script("true"));
    command.env("PATH", path_of(&world, &["git", "ssh"]));
    let done = world
        .finish(&mut command)
        .failed_by(246, "SandboxUnavailable");
    assert!(
        done.message().contains("apt-get install bubblewrap"),
        "{}",
        done.message()
    );
    assert_eq!(world.forge.fetches("acme/app"), 0);
    assert!(world.runs_left().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_git_it_says_how_to_install_it() {
    let world = World::new().await;
    let mut command = world.command(&world.script("true"));
    command.env("PATH", path_of(&world, &["bwrap", "ssh"]));
    let done = world.finish(&mut command).failed_by(254, "ProgramMissing");
    assert!(
        done.message().contains("git") && done.message().contains("apt-get install git"),
        "{}",
        done.message()
    );
    assert!(world.runs_left().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_ssh_it_says_how_to_install_it() {
    let world = World::new().await;
    let key = world.path("key");
    let made = std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&key)
        .status()
        .unwrap();
    assert!(made.success());
    let mut manifest = world.script("true");
    let ssh = "ssh://127.0.0.1:22";
    manifest.spec["inputs"][0]["connector"] = json!("by-ssh");
    let public = fs::read_to_string(world.path("key.pub")).unwrap();
    let known: Vec<&str> = public.split(' ').take(2).collect();
    manifest.others.push(json!({
        "apiVersion": "sandboxrun.dev/v1alpha1", "kind": "Connector", "metadata": {"name": "by-ssh"},
        "spec": {"type": "Git", "url": ssh, "uses": ["Inputs"], "auth": {"ssh": {
            "privateKeyRef": {"name": "key", "key": "id"}, "knownHosts": format!("127.0.0.1 {}", known.join(" ")),
        }}},
    }));
    manifest.others.push(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "key", "annotations": {"sandboxrun.dev/origin": ssh}},
    }));
    let mut command = world.command(&manifest);
    command
        .env("PATH", path_of(&world, &["bwrap", "git"]))
        .args(["--secret", &format!("key/id=file:{}", key.display())])
        .args(["--allow-address", "127.0.0.1=127.0.0.1/32:22"]);
    let done = world.finish(&mut command).failed_by(254, "ProgramMissing");
    assert!(
        done.message().contains("ssh") && done.message().contains("openssh-client"),
        "{}",
        done.message()
    );
    assert!(world.runs_left().is_empty());
}

#[rstest]
#[case::in_a_closed_directory("closed/state", 0o700)]
#[case::below_a_file("ca.pem/state", 0o755)]
#[tokio::test(flavor = "multi_thread")]
async fn a_state_directory_that_cannot_be_used_is_named(#[case] path: &str, #[case] mode: u32) {
    let world = World::new().await;
    let closed = world.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
    if !super::support::is_root() {
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    }
    let state = world.path(path);
    let done = world.finish(&mut world.command_at(&world.script("true"), &state));
    let parts = [path, "--state-dir"];
    assert!((240..=254).contains(&done.code), "{}", done.stderr);
    for part in parts {
        assert!(
            done.stderr.contains(part),
            "no `{part}` in:\n{}",
            done.stderr
        );
    }
    assert_eq!(world.forge.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_program_for_sandboxes_it_says_where_it_should_be() {
    let world = World::new().await;
    let mut command = world.command(&world.script("true"));
    command.args(["--pod-program", "/no/such/sandboxrun-pod"]);
    let done = world.finish(&mut command);
    assert_nothing_begun(
        &world,
        &done,
        246,
        &["/no/such/sandboxrun-pod", "--pod-program"],
    );
}
