//! Other ways to the same run: inputs over ssh, and a user who is not root.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use demo_forge::{Change, KeyType, Scope, Ssh};
use serde_json::json;

use super::support::{World, audit, files_below, is_root};

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_run_on_an_input_over_ssh() {
    let world = World::new().await;
    let feature = world
        .app
        .commit_from("feature", Some(&world.head), &[Change::file("new", "n\n")])
        .unwrap();
    let ssh = Ssh::start(&world.forge).await.unwrap();
    let key = ssh.authorize(Scope::Read).unwrap();
    fs::write(world.path("key"), key.text()).unwrap();
    let origin = format!("ssh://{}", ssh.addr());
    let mut manifest = world.script(
        "exec 2> /sandbox/output/said; git log --format=%H > /sandbox/output/pinned; \
         git fetch -q origin feature && git rev-parse FETCH_HEAD > /sandbox/output/feature; \
         git fetch -q --unshallow; git log --format=%H > /sandbox/output/log; \
         git push -q origin HEAD:refs/heads/mine || echo refused > /sandbox/output/push; \
         git config remote.origin.url > /sandbox/output/origin; \
         cat README.md > /sandbox/output/readme; echo more >> README.md",
    );
    manifest.spec["inputs"] = json!([{
        "name": "app", "repository": ssh.url("acme/app"), "connector": "shell",
        "ref": {"branch": "main"},
    }]);
    manifest.others.push(json!({
        "apiVersion": "sandboxrun.dev/v1alpha1", "kind": "Connector", "metadata": {"name": "shell"},
        "spec": {
            "type": "Git", "url": origin, "uses": ["Inputs"],
            "auth": {"ssh": {
                "privateKeyRef": {"name": "shell-key", "key": "id"},
                "knownHosts": ssh.known_hosts(&KeyType::ALL).unwrap(),
            }},
        },
    }));
    manifest.others.push(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "shell-key", "annotations": {"sandboxrun.dev/origin": origin}},
    }));
    let mut command = world.command(&manifest);
    command
        .arg("--secret")
        .arg(format!("shell-key/id=file:{}", world.path("key").display()))
        .arg("--allow-address")
        .arg(format!("127.0.0.1=127.0.0.1/32:{}", ssh.addr().port()));
    let done = world.finish(&mut command).ended_with(0);
    let input = done.input("app");
    assert_eq!(input["commit"], world.head.as_str());
    assert_eq!(input["credential"]["proof"], "ReadOnly");
    assert_eq!(input["drift"]["state"], "Drifted");
    assert_eq!(done.output("pinned").lines().count(), 1);
    let said = done.output("said");
    assert_eq!(done.output("feature").trim(), feature, "{said}");
    assert_eq!(done.output("log").lines().count(), 2, "{said}");
    assert_eq!(done.output("push"), "refused\n");
    assert_eq!(done.output("log").lines().next(), Some(world.head.as_str()));
    assert_eq!(done.output("readme"), "second\n");
    assert_eq!(done.output("origin").trim(), ssh.url("acme/app"));
    assert!(!ssh.requests().unwrap().is_empty());
    // The key is gone with the run; a line of it is enough to find it.
    let line = key.text().lines().nth(2).unwrap();
    let whole = done.stderr + &done.stdout + &world.audit(&["export"]).1;
    assert!(!whole.contains(line));
    for file in files_below(&world.state()) {
        let bytes = fs::read(&file).unwrap_or_default();
        let found = bytes.windows(line.len()).any(|w| w == line.as_bytes());
        assert!(!found, "{}", file.display());
    }
}

/// Nobody's uid, and nobody else's.
const USER: u32 = 61_234;

/// What everybody may run: the built programs may lie where only root may look.
fn programs(to: &Path) {
    fs::create_dir(to).unwrap();
    for program in [
        env!("CARGO_BIN_EXE_sandboxrun"),
        env!("CARGO_BIN_EXE_sandboxrun-pod"),
    ] {
        let program = Path::new(program);
        let copy = to.join(program.file_name().unwrap());
        fs::copy(program, &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_run_by_a_normal_user() {
    let world = World::new().await;
    let (home, bin) = (world.path("home"), world.path("programs"));
    fs::create_dir(&home).unwrap();
    programs(&bin);
    let manifest =
        world.script("id -u > /sandbox/output/uid; cat README.md > /sandbox/output/readme");
    let rooted = world.command(&manifest);
    // Without --state-dir: in the home directory.
    let mut args: Vec<_> = rooted.get_args().map(ToOwned::to_owned).collect();
    let at = args.iter().position(|arg| arg == "--state-dir").unwrap();
    args.drain(at..=at + 1);
    let as_user = |args: &[std::ffi::OsString]| {
        let mut command = Command::new(if is_root() { "setpriv" } else { "env" });
        if is_root() {
            chown(&home, Some(USER), Some(USER)).unwrap();
            let (uid, gid) = (format!("--reuid={USER}"), format!("--regid={USER}"));
            command.args([&uid, &gid, "--clear-groups"]);
        }
        command
            .arg(bin.join("sandboxrun"))
            .args(args)
            .envs(
                rooted
                    .get_envs()
                    .filter_map(|(key, value)| Some((key, value?))),
            )
            .env("HOME", &home)
            .env_remove("XDG_STATE_HOME")
            .env_remove("SANDBOXRUN_STATE_DIR")
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        command
    };
    let done = world.finish(&mut as_user(&args)).ended_with(0);
    assert!(!done.stderr.contains("started as root"), "{}", done.stderr);
    let state = home.join(".local/state/sandboxrun");
    let meta = fs::metadata(&state).unwrap();
    assert_eq!(meta.mode() & 0o777, 0o700);
    if is_root() {
        assert_eq!(meta.uid(), USER);
    }
    let run = fs::read_dir(state.join("runs")).unwrap().next().unwrap();
    let output = run.unwrap().path().join("sandbox/output");
    assert_eq!(
        fs::read_to_string(output.join("readme")).unwrap(),
        "second\n"
    );
    let uid = fs::read_to_string(output.join("uid")).unwrap();
    assert_ne!(uid.trim(), "0");
    assert!(!world.state().exists(), "nothing lies anywhere else");
    // The same user finds his record without being told where it is.
    let verify = ["audit", "verify"].map(std::ffi::OsString::from);
    world.finish(&mut as_user(&verify)).ended_with(0);
    let (code, _) = audit(&state.join("record.sqlite"), &["verify"]);
    assert_eq!(code, 0);
}

/// The most memory that a process has held so far, in KiB; `None` once it is gone.
fn most_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// A whole run, and the most memory that its program held.
fn measured(world: &World, manifest: &super::support::Manifest) -> u64 {
    let running = world.start(&mut world.command(manifest));
    let pid = running.pid();
    let watch = std::thread::spawn(move || {
        let mut most = 0;
        while let Some(now) = most_memory(pid) {
            most = now;
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        most
    });
    running.wait().ended_with(0);
    watch.join().unwrap()
}

// T04: the slope shows with some hundred megabytes that nothing can compress.
#[tokio::test(flavor = "multi_thread")]
async fn t04_memory_stays_flat_while_a_large_repository_is_fetched_and_served() {
    let world = World::new().await;
    let mut manifest = world.script("true");
    let small = measured(&world, &manifest);
    // The server's own work is not what is measured: it neither packs nor compares what cannot become smaller.
    for (name, value) in [("core.compression", "0"), ("core.bigFileThreshold", "1m")] {
        world.app.git(&["config", name, value]).unwrap();
    }
    let bytes = demo_forge::noise(300 << 20);
    for (number, part) in bytes.chunks(20 << 20).enumerate() {
        let change = Change::file(format!("large/{number}"), part);
        world.app.commit("main", &[change]).unwrap();
    }
    drop(bytes);
    "large".clone_into(&mut manifest.name);
    let large = measured(&world, &manifest);
    assert!(
        large < small + (64 << 10),
        "{small} KiB for a small one, {large} KiB for a large one"
    );
}
