//! What holds the run up fails between two of its steps: the record, the disks, the gateway's socket. The agent never
//! starts or the run ends truthfully, nothing half done is left, and the next run works.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use demo_forge::{Change, Options, noise};
use rstest::rstest;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::once::nothing_runs_of;
use super::support::{Manifest, World, audit, code, files_below, is_root, kinds, soon};

async fn record(world: &World) -> SqliteConnection {
    let path = world.state().join("record.sqlite");
    let options = SqliteConnectOptions::new().filename(path);
    options.connect().await.unwrap()
}

/// Makes the record, by a run that leaves nothing else.
fn begun(world: &World) {
    let first = named(world.script("true"), "first");
    world
        .finish(world.command(&first).arg("--discard"))
        .ended_with(0);
}

/// From now on the record takes no event of this kind.
async fn refuse(world: &World, kind: &str) {
    let mut record = record(world).await;
    let trigger = "CREATE TABLE refused (kind TEXT);
        CREATE TRIGGER refuse BEFORE INSERT ON events WHEN NEW.kind IN (SELECT kind FROM refused)
        BEGIN SELECT RAISE(ABORT, 'refused by the test'); END";
    sqlx::raw_sql(trigger).execute(&mut record).await.unwrap();
    let insert = sqlx::query("INSERT INTO refused VALUES (?)").bind(kind);
    insert.execute(&mut record).await.unwrap();
    record.close().await.unwrap();
}

/// From now on it takes everything again.
async fn heal(world: &World) {
    let mut record = record(world).await;
    let heal = sqlx::raw_sql("DROP TRIGGER refuse; DROP TABLE refused");
    heal.execute(&mut record).await.unwrap();
    record.close().await.unwrap();
}

fn named(mut manifest: Manifest, name: &str) -> Manifest {
    name.clone_into(&mut manifest.name);
    manifest
}

/// The events of all runs of this name.
fn of<'e>(events: &'e [Value], name: &str) -> Vec<&'e Value> {
    let own = events.iter().filter(|event| event["name"] == name);
    own.map(|event| &event["event"]).collect()
}

/// Every run of the record has one last word, and nothing in it was changed.
#[track_caller]
fn assert_whole(record: &Path) {
    assert_each_ended(|args| audit(record, args));
}

#[track_caller]
fn assert_each_ended(audit: impl Fn(&[&str]) -> (i32, String)) {
    let (code, lines) = audit(&["export"]);
    assert_eq!(code, 0, "{lines}");
    let events: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut runs: Vec<&str> = events.iter().map(|e| e["uid"].as_str().unwrap()).collect();
    runs.sort_unstable();
    runs.dedup();
    let ended = kinds(&events);
    let ended = ended.iter().filter(|kind| **kind == "run.ended").count();
    assert_eq!(ended, runs.len());
    let (code, verdicts) = audit(&["verify"]);
    assert_eq!(code, 0, "{verdicts}");
}

// L02, before the start.
#[rstest]
#[case::before_anything("run.created")]
#[case::before_its_attempt("attempt.dispatched")]
#[case::once_its_inputs_are_pinned("input.resolved")]
#[case::before_its_sandboxes("pod.creating")]
#[case::after_provision("inputs.provisioned")]
#[case::after_the_proof("policy.proof")]
#[case::at_the_grant("agent.started")]
#[tokio::test(flavor = "multi_thread")]
async fn l02_no_agent_starts_when_the_record_refuses(#[case] kind: &str) {
    let world = World::new().await;
    begun(&world);
    refuse(&world, kind).await;
    let manifest = world.script("touch /sandbox/output/started");
    let done = world.run(&manifest).ended_with(244);
    if done.status.is_null() {
        assert!(done.stderr.contains("RecordWriteFailed"), "{}", done.stderr);
        assert_eq!(world.runs_left(), Vec::<PathBuf>::new());
    } else {
        assert_eq!(done.status["error"]["reason"], "RecordWriteFailed");
    }
    let started = files_below(&world.state());
    assert!(!started.iter().any(|path| path.ends_with("started")));
    nothing_runs_of(&world, kind);

    heal(&world).await;
    world.run(&named(manifest, "next")).ended_with(0);
    let events = world.events();
    let own = of(&events, "test");
    assert!(own.iter().all(|event| event["kind"] != "agent.started"));
    assert_whole(&world.state().join("record.sqlite"));
}

// L02, at the end.
#[rstest]
#[case::what_it_left("drift")]
#[case::its_output("output")]
#[case::its_last_word("run.ended")]
#[tokio::test(flavor = "multi_thread")]
async fn l02_what_an_agent_left_stays_when_the_record_refuses(#[case] kind: &str) {
    let world = World::new().await;
    begun(&world);
    refuse(&world, kind).await;
    let manifest = world.script("echo ran >> /sandbox/output/ran; echo mine > mine");
    let done = world.run(&manifest).ended_with(244);
    assert!(done.stderr.contains("tried again"), "{}", done.stderr);
    assert!(
        done.stderr.contains("what the agent left is in"),
        "{}",
        done.stderr
    );
    nothing_runs_of(&world, kind);
    let left = || {
        let mut left = world.runs_left().into_iter();
        left.find(|run| run.join("workspace/app/mine").exists())
            .unwrap()
    };
    let ran = fs::read_to_string(left().join("sandbox/output/ran")).unwrap();
    assert_eq!(ran, "ran\n");

    heal(&world).await;
    let next = named(world.script("true"), "next");
    let next = world.run(&next).ended_with(0);
    assert!(
        next.stderr.contains("could not write the record"),
        "{}",
        next.stderr
    );
    left();
    let events = world.events();
    let own = of(&events, "test");
    let count = |kind| own.iter().filter(|event| event["kind"] == kind).count();
    assert_eq!((count("agent.started"), count("run.ended")), (1, 1));
    assert_whole(&world.state().join("record.sqlite"));
}

#[tokio::test(flavor = "multi_thread")]
async fn l02_an_end_that_was_not_recorded_is_not_made_up() {
    let world = World::new().await;
    begun(&world);
    refuse(&world, "agent.ended").await;
    let done = world.run(&world.script("echo ran >> /sandbox/output/ran"));
    assert_ne!(done.code, 0, "{}", done.stderr);
    nothing_runs_of(&world, "agent.ended");
    heal(&world).await;
    world
        .run(&named(world.script("true"), "next"))
        .ended_with(0);
    assert_whole(&world.state().join("record.sqlite"));
}

#[tokio::test(flavor = "multi_thread")]
async fn l02_a_record_that_heals_within_seconds_gets_its_last_word() {
    let world = World::new().await;
    begun(&world);
    refuse(&world, "run.ended").await;
    let running = world.start(&mut world.command(&world.script("true")));
    running.step("tried again");
    heal(&world).await;
    let done = running.wait().ended_with(0);
    assert_eq!(done.condition("Recorded"), "True");
    assert_whole(&world.state().join("record.sqlite"));
}

// L02, during the run.
#[tokio::test(flavor = "multi_thread")]
async fn l02_a_call_that_cannot_be_recorded_is_not_made() {
    let world = World::new().await;
    begun(&world);
    refuse(&world, "call").await;
    let manifest = world
        .script("curl -sS --noproxy '*' $SANDBOXRUN_RELAY/lookups/tickets/rest/api/2/issue/DEMO-1 > /sandbox/output/answer")
        .tickets(&json!({"paths": ["/rest/api/2/issue/*"]}));
    let done = world.run(&manifest).ended_with(0);
    let answer: Value = serde_json::from_str(&done.output("answer")).unwrap();
    assert_eq!(answer["code"], "broker.not_recorded", "{answer}");
    assert!(!kinds(&world.events()).contains(&"call"));
}

#[tokio::test(flavor = "multi_thread")]
async fn l02_an_agent_is_stopped_though_the_record_does_not_take_that_it_is() {
    let world = World::new().await;
    begun(&world);
    refuse(&world, "agent.stopping").await;
    let running = world.start(&mut world.command(&world.script("sleep 1000")));
    running.step("agent.started");
    running.signal("INT");
    let done = running.wait();
    assert_ne!(done.code, 0, "{}", done.stderr);
    nothing_runs_of(&world, "a stop");
    heal(&world).await;
    world
        .run(&named(world.script("true"), "next"))
        .ended_with(0);
    assert_whole(&world.state().join("record.sqlite"));
}

/// Passes everything on to the gateway, until somebody asks for the grant: then the socket is gone.
async fn gone_at_the_grant(listener: UnixListener, real: PathBuf, path: PathBuf) {
    let (asked, mut asking) = tokio::sync::watch::channel(false);
    loop {
        let (client, _) = tokio::select! {
            accepted = listener.accept() => accepted.unwrap(),
            _ = asking.changed() => break,
        };
        let server = UnixStream::connect(&real).await.unwrap();
        let asked = asked.clone();
        tokio::spawn(async move {
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let back = tokio::io::copy(&mut from_server, &mut to_client);
            let forth = async {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
                    let bytes = &bytes[..length];
                    if bytes.windows(14).any(|w| w == b"POST /v1/grant") {
                        asked.send_replace(true);
                        return;
                    }
                    to_server.write_all(bytes).await.unwrap();
                }
            };
            tokio::select! {
                _ = back => {}
                () = forth => {}
            }
        });
    }
    drop(listener);
    fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_agent_starts_when_the_gateway_goes_between_proof_and_grant() {
    let world = World::new().await;
    let lines = "if [ $what = agent ]; then run=$(echo $state/runs/*/run); touch $run/here\n\
        until [ -e $run/go ]; do sleep 0.01; done; fi";
    let manifest = world.script("touch /sandbox/output/started");
    let running = world.start(&mut world.breaking(&manifest, lines));
    let run = running.dir().join("run");
    soon("the agent's sandbox is about to begin", || {
        run.join("here").exists().then_some(())
    });
    let (path, real) = (run.join("agent.sock"), run.join("real.sock"));
    fs::rename(&path, &real).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let proxy = tokio::spawn(gone_at_the_grant(listener, real, path));
    fs::write(run.join("go"), "").unwrap();
    let done = tokio::task::spawn_blocking(|| running.wait())
        .await
        .unwrap()
        .failed_by(247, "GrantLost");
    proxy.await.unwrap();
    let events = world.events();
    let kinds = kinds(&events);
    assert!(kinds.contains(&"policy.proof"), "{kinds:?}");
    assert!(!kinds.contains(&"agent.started"), "{kinds:?}");
    assert_eq!(done.status["startedAt"], Value::Null);
    assert!(!done.kept().join("sandbox/output/started").exists());
    nothing_runs_of(&world, "the gateway was gone");
    world.run(&manifest).ended_with(0);
}

/// What the mirror keeps free is half a gibibyte, so a mirror that works is larger; memory is used for what is in it.
///
/// A mount namespace where parts of the state directory are small volumes of their own.
struct Volumes {
    holder: Child,
    state: PathBuf,
}

impl Volumes {
    /// Volumes at these places below the state directory, `""` being itself, of these sizes.
    fn new(world: &World, volumes: &[(&str, &str)]) -> Self {
        let state = world.state();
        let programs = world.path("programs");
        fs::create_dir(&programs).unwrap();
        let mounts = volumes.iter().map(|(place, size)| {
            let place = state.join(place);
            let place = place.display();
            format!("mkdir -p {place}; mount -t tmpfs -o size={size},mode=0777 none {place}")
        });
        // The programs' copies are larger than these volumes.
        let (bin, own) = (state.join("bin"), programs.display());
        let bin = bin.display();
        let rest =
            format!("mkdir -p {bin}; mount --bind {own} {bin}; touch {own}/ready; exec sleep 1000");
        let script: Vec<String> = std::iter::once("set -e".to_owned())
            .chain(mounts)
            .chain([rest])
            .collect();
        let holder = Command::new("unshare")
            .args(["--mount", "/bin/sh", "-c", &script.join("\n")])
            .spawn()
            .unwrap();
        soon("the volumes are there", || {
            programs.join("ready").exists().then_some(())
        });
        Self { holder, state }
    }

    /// The same command, inside.
    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .arg("--")
            .arg(command.get_program())
            .args(command.get_args())
            .envs(
                command
                    .get_envs()
                    .filter_map(|(key, value)| Some((key, value?))),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        inside
    }

    fn shell(&self, script: &str) {
        let mut shell = Command::new("sh");
        let output = self
            .inside(shell.args(["-c", script]).current_dir("/"))
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Leaves no byte in the state directory's own volume.
    fn fill(&self) {
        let full = self.state.join("full");
        self.shell(&format!(
            "head -c 1G /dev/zero > {} 2>/dev/null || true",
            full.display()
        ));
    }

    fn free(&self) {
        fs::remove_file(self.outside("full")).unwrap();
    }

    /// A path of the state directory as it is seen from here.
    fn outside(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.state.strip_prefix("/").unwrap()).join(name)
    }

    /// [`assert_whole`] from inside: SQLite wants a path that leads nowhere else.
    #[track_caller]
    fn assert_whole(&self) {
        assert_each_ended(|args| {
            let mut audit = Command::new(env!("CARGO_BIN_EXE_sandboxrun"));
            let record = self.state.join("record.sqlite");
            audit.arg("audit").arg("--record").arg(record).args(args);
            let output = self.inside(&audit).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            (code(output.status), text)
        });
    }

    fn assert_clean(&self) {
        let runs = fs::read_dir(self.outside("runs"));
        assert_eq!(runs.map_or(0, Iterator::count), 0);
    }
}

impl Drop for Volumes {
    fn drop(&mut self) {
        self.holder.kill().unwrap();
        self.holder.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l02_nothing_begins_on_a_full_disk() {
    if !is_root() {
        return; // only root can make a small file system
    }
    let world = World::new().await;
    let volumes = Volumes::new(&world, &[("", "6m"), ("runs", "8m"), ("mirror", "600m")]);
    volumes.fill();
    let command = world.command(&world.script("touch /sandbox/output/started"));
    let done = world.finish(&mut volumes.inside(&command)).ended_with(244);
    assert!(done.stderr.contains("RecordWriteFailed"), "{}", done.stderr);
    assert_eq!(world.forge.fetches("acme/app"), 0);
    volumes.assert_clean();
    volumes.free();
    world.finish(&mut volumes.inside(&command)).ended_with(0);
    volumes.assert_whole();
}

#[tokio::test(flavor = "multi_thread")]
async fn l02_no_agent_starts_when_the_records_disk_fills_up_while_provision_runs() {
    if !is_root() {
        return; // only root can make a small file system
    }
    let world = World::new().await;
    let volumes = Volumes::new(&world, &[("", "6m"), ("runs", "8m"), ("mirror", "600m")]);
    let manifest = world.script("touch /sandbox/output/started");
    let lines = "if [ $what = provision ]; then head -c 1G /dev/zero > $state/full; fi 2>/dev/null";
    let breaking = world.breaking(&manifest, lines);
    let done = world.finish(&mut volumes.inside(&breaking)).ended_with(244);
    assert!(done.stderr.contains("is full"), "{}", done.stderr);
    let left = files_below(&volumes.outside("runs"));
    assert!(!left.iter().any(|path| path.ends_with("started")));
    volumes.assert_clean();
    volumes.free();
    let command = world.command(&named(manifest, "next"));
    world.finish(&mut volumes.inside(&command)).ended_with(0);
    volumes.assert_whole();
}

// T11 and L02: a mirror that is full stops neither the record nor the program.
#[rstest]
#[case::until_there_is_room(true)]
#[case::until_its_user_has_enough(false)]
#[tokio::test(flavor = "multi_thread")]
async fn t11_a_run_waits_for_room_in_the_mirror(#[case] room: bool) {
    if !is_root() {
        return; // only root can make a small file system
    }
    let world = World::with(Options::new()).await;
    world
        .app
        .commit("main", &[Change::file("big", noise(4 << 20))])
        .unwrap();
    let volumes = Volumes::new(&world, &[("", "8m"), ("runs", "32m"), ("mirror", "2m")]);
    let manifest = world.script("touch /sandbox/output/started");
    let command = world.command(&manifest);
    let running = world.start(&mut volumes.inside(&command));
    running.step("waiting");
    soon("it says that the disk is full", || {
        running.said().contains("is full").then_some(())
    });
    assert!(!running.said().contains("pod.creating"));
    let larger = format!(
        "mount -o remount,size=700m {}/mirror",
        volumes.state.display()
    );
    if room {
        volumes.shell(&larger);
        running.wait().ended_with(0);
    } else {
        running.signal("INT");
        let done = running.wait();
        assert_eq!(done.status["error"]["reason"], "CancelRequested");
        volumes.assert_clean();
        volumes.shell(&larger);
        let next = world.command(&named(manifest, "next"));
        world.finish(&mut volumes.inside(&next)).ended_with(0);
    }
    volumes.assert_whole();
}
