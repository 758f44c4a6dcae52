//! Several processes on one file, a process that is killed, a disk that is full: this test program runs itself again.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use sandboxrun::api::{Fault as _, Reason};
use sandboxrun::audit::{Head, Record, RecordError};

use super::desk::{Desk, begun, call, key};

const TASK: &str = "RECORD_TEST_TASK";
const DIRECTORY: &str = "RECORD_TEST_DIRECTORY";

/// Runs [`child`] in a process of its own.
fn start(task: &str, directory: &Path) -> Child {
    command(
        task,
        directory,
        Command::new(std::env::current_exe().unwrap()),
    )
    .spawn()
    .unwrap()
}

fn command(task: &str, directory: &Path, mut command: Command) -> Command {
    command
        .args([
            "--exact",
            "record::processes::child",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(TASK, task)
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped());
    command
}

/// No test of its own: what a child process does. It says each confirmed head on its own line.
#[tokio::test]
async fn child() {
    let (Ok(task), Ok(directory)) = (std::env::var(TASK), std::env::var(DIRECTORY)) else {
        return;
    };
    let path = Path::new(&directory).join("record.sqlite");
    match task.as_str() {
        "append for ever" => append_for_ever(&path).await,
        "append 50" => {
            let record = Record::open(&path).await.unwrap();
            for n in 0..50 {
                record.append(&key(1), call(n)).await.unwrap();
            }
        }
        "fill the disk" => fill_the_disk(&path).await,
        "write where it is forbidden" => {
            let error = Record::open(&path).await.unwrap_err();
            assert!(
                matches!(error, RecordError::NotWritable { .. }),
                "{error:?}"
            );
            assert_eq!(error.reason(), Reason::RecordWriteFailed);
            let reader = Record::open_read(&path).await.unwrap();
            assert!(reader.verify_all().await.unwrap()[0].finding.holds());
            let new = Record::open(&path.with_file_name("new.sqlite"))
                .await
                .unwrap_err();
            assert!(matches!(new, RecordError::Open { .. }), "{new:?}");
        }
        other => panic!("{other}"),
    }
}

async fn append_for_ever(path: &Path) {
    let record = Record::open(path).await.unwrap();
    let appender = |n: u64| {
        let record = record.clone();
        async move {
            loop {
                let head = record.append(&key(1), call(n)).await.unwrap();
                // One write for each line, so that a kill cannot cut one that was confirmed.
                std::io::stdout()
                    .write_all(format!("CONFIRMED {head}\n").as_bytes())
                    .unwrap();
            }
        }
    };
    futures::future::join_all((0..4).map(appender)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_survives_sigkill_at_any_point() {
    let desk = Desk::new();
    begun(&desk.open().await, &key(1)).await;
    let mut confirmed = BTreeSet::new();
    for round in 0..12_usize {
        let mut child = start("append for ever", desk.directory());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut heads = lines.map_while(Result::ok).filter_map(|line| {
            let head: Head = line.split_once("CONFIRMED ")?.1.parse().ok()?;
            Some((head.sequence, head.hash))
        });
        // Killed after another number of appends each time; what it said until it was gone counts, too.
        let before_kill = 1 + round * 7 % 40;
        confirmed.extend(heads.by_ref().take(before_kill));
        child.kill().unwrap();
        confirmed.extend(heads);
        child.wait().unwrap();
        let record = Record::open(&desk.path()).await.unwrap();
        let verdict = record.verify(&key(1).uid, None).await.unwrap().unwrap();
        assert!(verdict.finding.holds(), "round {round}: {verdict:?}");
        record.close().await;
    }
    let entries = desk.open().await.entries(&key(1).uid).await.unwrap();
    let stored: BTreeSet<_> = entries.into_iter().map(|e| (e.sequence, e.hash)).collect();
    let lost: Vec<_> = confirmed.difference(&stored).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert!(confirmed.len() > 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_processes_open_a_new_record_and_share_a_chain() {
    let desk = Desk::new();
    begun(&desk.open().await, &key(1)).await;
    let children: Vec<_> = (0..6)
        .map(|_| start("append 50", desk.directory()))
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    let verdict = desk
        .open()
        .await
        .verify(&key(1).uid, None)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((verdict.events, verdict.finding.holds()), (302, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_may_make_the_file_at_the_same_moment() {
    for _ in 0..5 {
        let desk = Desk::new();
        let path = desk.path();
        let opens = (0..8).map(|_| {
            let path = path.clone();
            tokio::spawn(async move { Record::open(&path).await })
        });
        let mut installations = BTreeSet::new();
        for opened in futures::future::join_all(opens).await {
            installations.insert(opened.unwrap().unwrap().installation().to_owned());
        }
        assert_eq!(installations.len(), 1, "{installations:?}");
    }
}

/// The same program on a small file system of its own, or on a read-only one.
fn in_a_mount_namespace(task: &str, directory: &Path, mount: &str) {
    let script = format!("{mount} && exec \"$0\" \"$@\"");
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    unshare.arg(std::env::current_exe().unwrap());
    let output = command(task, directory, unshare)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}\n{complained}"
    );
}

#[test]
fn a_full_disk_is_said_to_be_full_and_heals() {
    let desk = Desk::new();
    let at = desk.directory().display();
    let mount = format!("mount -t tmpfs -o size=600k none {at}");
    in_a_mount_namespace("fill the disk", desk.directory(), &mount);
}

async fn fill_the_disk(path: &Path) {
    let record = Record::open(path).await.unwrap();
    begun(&record, &key(1)).await;
    let ballast = path.with_file_name("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let mut confirmed = 2;
    let error = loop {
        match record.append(&key(1), call(confirmed)).await {
            Ok(_) => confirmed += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, RecordError::Full { .. }), "{error:?}");
    assert!(error.failure(None).message.contains("full"), "{error:?}");
    drop(file);
    std::fs::remove_file(&ballast).unwrap();
    record.append(&key(1), call(0)).await.unwrap();
    let verdict = record.verify(&key(1).uid, None).await.unwrap().unwrap();
    assert_eq!(
        (verdict.events, verdict.finding.holds()),
        (confirmed + 1, true)
    );
}

#[tokio::test]
async fn a_read_only_directory_is_said_and_can_still_be_verified() {
    let desk = Desk::new();
    let record = desk.open().await;
    begun(&record, &key(1)).await;
    record.close().await;
    let at = desk.directory().display();
    let mount = format!("mount --bind {at} {at} && mount -o remount,bind,ro {at}");
    in_a_mount_namespace("write where it is forbidden", desk.directory(), &mount);
}
