//! One foreign program with everything it starts: bounded in time, memory and disk, and never left behind.
//!
//! `git` and `ssh` start children of their own, so a child is a process group here. The group is killed when its
//! leader ends, when a bound is crossed, and when whoever waits goes away.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// How much is kept of what a program prints: its first words say what happened, the rest is read and dropped.
const KEPT_OUTPUT: u64 = 1 << 20;
/// How often the disk is looked at. A disk that takes 1 GB/s overshoots a bound by a quarter of a gigabyte.
const DISK_EVERY: Duration = Duration::from_millis(250);
/// A killed group ends at once; only a process that hangs in the kernel does not, and nobody waits for that.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// A program, how it is called, and what it may use up.
#[derive(Debug)]
pub(super) struct Job {
    /// An absolute path.
    pub(super) program: PathBuf,
    /// Its arguments. Never a secret.
    pub(super) args: Vec<OsString>,
    /// Its whole environment. Never a secret.
    pub(super) env: Vec<(&'static str, OsString)>,
    /// Where it runs.
    pub(super) dir: PathBuf,
    /// What it may use up.
    pub(super) bounds: Bounds,
}

/// What a program and all that it starts may use up.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    /// Its longest life.
    pub(super) deadline: Duration,
    /// Address space of each of its processes, in bytes.
    pub(super) memory_bytes: u64,
    /// How much disk it may take.
    pub(super) disk: Option<DiskBound>,
    /// It ends when it neither reads, writes nor computes for so long.
    pub(super) stall: Option<Duration>,
}

/// How much disk a program may take.
#[derive(Debug, Clone)]
pub(super) struct DiskBound {
    /// The directory that it writes to.
    pub(super) dir: PathBuf,
    /// The most that the directory may hold, in bytes.
    pub(super) most_bytes: u64,
    /// What must stay free on the volume, in bytes.
    pub(super) keep_free_bytes: u64,
}

/// How a program ended, and what it printed.
#[derive(Debug)]
pub(super) struct Ended {
    /// How.
    pub(super) end: End,
    /// Up to a mebibyte of its standard output.
    pub(super) stdout: Vec<u8>,
    /// Up to a mebibyte of its standard error.
    pub(super) stderr: Vec<u8>,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// By itself.
    Exited(ExitStatus),
    /// Its time was over.
    Deadline,
    /// It did nothing for too long.
    Stalled,
    /// It took more disk than it may.
    TooLarge,
    /// The volume is nearly full.
    DiskFull,
}

impl Ended {
    /// Whether it ended by itself and well.
    pub(super) fn is_success(&self) -> bool {
        matches!(self.end, End::Exited(status) if status.success())
    }
}

/// A program that is being talked to. Dropped, its whole group is killed.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    group: Group,
}

#[derive(Debug)]
struct Group(Option<Pid>);

impl Group {
    fn kill(&self) {
        if let Some(leader) = self.0 {
            // Nothing to do when all are gone already.
            let _gone = kill_process_group(leader, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Running {
    /// The process group that the program leads.
    pub(super) fn group(&self) -> Option<i32> {
        self.group.0.map(|pid| pid.as_raw_nonzero().get())
    }

    /// Its input and output, to talk to it. Once.
    pub(super) fn streams(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        Some((self.child.stdin.take()?, self.child.stdout.take()?))
    }

    /// Waits for its end within the bounds. What is in `input` goes to its standard input first.
    pub(super) async fn finish(mut self, input: &[u8], bounds: &Bounds) -> io::Result<Ended> {
        let (stdin, stdout, stderr) = (
            self.child.stdin.take(),
            self.child.stdout.take(),
            self.child.stderr.take(),
        );
        let child = &mut self.child;
        let group = &self.group;
        let work = async {
            tokio::join!(
                async {
                    let status = child.wait().await;
                    // What it left behind would keep the pipes open.
                    group.kill();
                    status
                },
                async {
                    if let Some(mut stdin) = stdin {
                        // A program that ends before it has read all says so by its status.
                        let _broken_pipe = stdin.write_all(input).await;
                    }
                },
                kept(stdout),
                kept(stderr),
            )
        };
        tokio::pin!(work);
        let cut = tokio::select! {
            biased;
            (status, (), stdout, stderr) = &mut work => {
                return Ok(Ended { end: End::Exited(status?), stdout, stderr });
            }
            cut = crossed(bounds, group.0) => cut,
        };
        group.kill();
        let rest = tokio::time::timeout(AFTER_KILL, work).await;
        let (stdout, stderr) = rest.map(|(_, (), out, err)| (out, err)).unwrap_or_default();
        Ok(Ended {
            end: cut,
            stdout,
            stderr,
        })
    }
}

/// Starts a program with pipes to all its streams.
///
/// The shell sets the memory limit before the program is there, so nothing that it starts can escape it. A limit
/// that is lower already stays.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place of this room that starts programs"
)]
pub(super) fn spawn(job: &Job) -> io::Result<Running> {
    const LIMITED: &str = r#"ulimit -c 0; ulimit -v "$0" 2>/dev/null; exec "$@""#;
    let child = Command::new("/bin/sh")
        .args(["-c", LIMITED])
        .arg((job.bounds.memory_bytes / 1024).to_string())
        .arg(&job.program)
        .args(&job.args)
        .env_clear()
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&job.dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let pid = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw);
    Ok(Running {
        child,
        group: Group(pid),
    })
}

/// Runs a program to its end.
pub(super) async fn run(job: &Job, input: &[u8]) -> io::Result<Ended> {
    spawn(job)?.finish(input, &job.bounds).await
}

/// Finds a program in the directories of a `PATH`.
pub(super) fn find(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let executable = |file: &Path| {
        rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file()
    };
    let named = Path::new(program);
    if named.components().count() > 1 {
        return executable(named).then(|| named.to_owned());
    }
    std::env::split_paths(path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(program))
        .find(|file| executable(file))
}

/// The bytes that a directory takes on disk, counting a file with several names once.
pub(super) fn disk_usage(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let mut seen = std::collections::HashSet::new();
    let mut sum = 0_u64;
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                todo.push(entry.path());
            } else if meta.nlink() == 1 || seen.insert((meta.dev(), meta.ino())) {
                sum = sum.saturating_add(meta.blocks().saturating_mul(512));
            }
        }
    }
    sum
}

/// What is free for us on the volume of a directory, in bytes; `None`: not known.
pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    let volume = rustix::fs::statvfs(dir).ok()?;
    Some(volume.f_bavail.saturating_mul(volume.f_frsize))
}

/// Kills the processes that carry this variable in their environment: what a program that was itself killed left.
pub(super) fn kill_marked(name: &str, value: &OsStr) {
    let mut mark = name.as_bytes().to_vec();
    mark.push(b'=');
    mark.extend_from_slice(value.as_encoded_bytes());
    for pid in all_pids() {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark)
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _gone = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

async fn kept(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut stream) = stream {
        // A pipe that breaks has ended: what came before counts.
        let _end = (&mut stream).take(KEPT_OUTPUT).read_to_end(&mut kept).await;
        let _end = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
    kept
}

/// Ends when a bound is crossed, and says which.
async fn crossed(bounds: &Bounds, leader: Option<Pid>) -> End {
    let disk = async {
        let Some(bound) = &bounds.disk else {
            return std::future::pending().await;
        };
        let mut every = tokio::time::interval(DISK_EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            if free_bytes(&bound.dir).is_some_and(|free| free < bound.keep_free_bytes) {
                return End::DiskFull;
            }
            if disk_usage(&bound.dir) > bound.most_bytes {
                return End::TooLarge;
            }
        }
    };
    let stall = async {
        let (Some(patience), Some(leader)) = (bounds.stall, leader) else {
            return std::future::pending().await;
        };
        // Looked at four times in the allowed silence, so it is noticed at most a quarter too late.
        let mut every = tokio::time::interval(patience / 4);
        let (mut last, mut silent) = (activity(leader), 0_u32);
        loop {
            every.tick().await;
            let now = activity(leader);
            silent = if now == last {
                silent.saturating_add(1)
            } else {
                0
            };
            last = now;
            if silent > 4 {
                return End::Stalled;
            }
        }
    };
    tokio::select! {
        () = tokio::time::sleep(bounds.deadline) => End::Deadline,
        end = disk => end,
        end = stall => end,
    }
}

/// A number that grows while `git` works: bytes that its processes have moved, and their processor time. `ssh` does not
/// count, since it talks to its server for as long as the connection stands; nor does the time of `git-remote-https`,
/// which looks at its connection again and again.
fn activity(leader: Pid) -> u64 {
    let mut sum = 0_u64;
    for pid in all_pids() {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        let Some((head, tail)) = stat.rsplit_once(')') else {
            continue;
        };
        let name = head.split_once('(').map_or("", |(_, name)| name);
        // After the name: state, parent, group, ...; user and system time are the 12th and 13th.
        let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
        let number = |at: usize| {
            fields
                .get(at)
                .and_then(|f| f.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let group = u64::try_from(leader.as_raw_nonzero().get()).unwrap_or(0);
        if number(2) != group || !name.starts_with("git") {
            continue;
        }
        if name == "git" {
            sum = sum.saturating_add(number(11)).saturating_add(number(12));
        }
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        for line in io.lines().take(2) {
            let bytes = line
                .split_once(": ")
                .and_then(|(_, n)| n.parse::<u64>().ok());
            sum = sum.saturating_add(bytes.unwrap_or(0));
        }
    }
    sum
}

fn all_pids() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(script: &str, bounds: Bounds) -> Job {
        Job {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("PATH", "/usr/bin:/bin".into())],
            dir: std::env::temp_dir(),
            bounds,
        }
    }

    fn bounds() -> Bounds {
        Bounds {
            deadline: Duration::from_secs(20),
            memory_bytes: 4 << 30,
            disk: None,
            stall: None,
        }
    }

    fn is_alive(pid: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
            .is_ok_and(|stat| !stat.contains(") Z "))
    }

    async fn wait_until_dead(pid: &str) {
        for _ in 0..400 {
            if !is_alive(pid) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("process {pid} lives");
    }

    #[tokio::test]
    async fn what_a_program_leaves_behind_ends_with_it() {
        let ended = run(&job("sleep 60 & echo $!", bounds()), b"")
            .await
            .unwrap();
        assert!(ended.is_success());
        wait_until_dead(&String::from_utf8(ended.stdout).unwrap()).await;
    }

    #[tokio::test]
    async fn t03_a_deadline_ends_the_whole_group() {
        let bounds = Bounds {
            deadline: Duration::from_millis(300),
            ..bounds()
        };
        let ended = run(&job("sleep 60 & echo $!; wait", bounds), b"")
            .await
            .unwrap();
        assert_eq!(ended.end, End::Deadline);
        wait_until_dead(&String::from_utf8(ended.stdout).unwrap()).await;
    }

    #[tokio::test]
    async fn a_job_that_nobody_waits_for_ends() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("sleep 60 & echo $! > {}; wait", pid.display());
        let job = job(&script, bounds());
        {
            let running = run(&job, b"");
            tokio::pin!(running);
            while std::fs::read_to_string(&pid)
                .unwrap_or_default()
                .trim()
                .is_empty()
            {
                let short = tokio::time::sleep(Duration::from_millis(5));
                tokio::select! { _ = &mut running => panic!("it ended"), () = short => {} }
            }
        }
        wait_until_dead(&std::fs::read_to_string(&pid).unwrap()).await;
    }

    #[tokio::test]
    async fn t11_memory_is_limited_for_all_that_it_starts() {
        let bounds = Bounds {
            memory_bytes: 64 << 20,
            ..bounds()
        };
        let greedy = "(head -c 200000000 /dev/zero | tail -c 150000000 >/dev/null) || exit 3";
        let ended = run(&job(greedy, bounds), b"").await.unwrap();
        assert!(!ended.is_success());
    }

    #[tokio::test]
    async fn t11_a_directory_that_grows_too_large_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskBound {
            dir: dir.path().to_owned(),
            most_bytes: 1 << 20,
            keep_free_bytes: 0,
        };
        let bounds = Bounds {
            disk: Some(disk),
            ..bounds()
        };
        let file = dir.path().join("f");
        let script = format!("head -c 3000000 /dev/zero > {}; sleep 60", file.display());
        assert_eq!(
            run(&job(&script, bounds), b"").await.unwrap().end,
            End::TooLarge
        );
    }

    #[tokio::test]
    async fn t11_a_volume_that_runs_full_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskBound {
            dir: dir.path().to_owned(),
            most_bytes: u64::MAX,
            keep_free_bytes: u64::MAX,
        };
        let bounds = Bounds {
            disk: Some(disk),
            ..bounds()
        };
        assert_eq!(
            run(&job("sleep 60", bounds), b"").await.unwrap().end,
            End::DiskFull
        );
    }

    #[tokio::test]
    async fn t03_silence_ends_it() {
        let bounds = Bounds {
            stall: Some(Duration::from_millis(200)),
            ..bounds()
        };
        let ended = run(&job("exec sleep 60", bounds), b"").await.unwrap();
        assert_eq!(ended.end, End::Stalled);
    }

    #[tokio::test]
    async fn a_marked_process_is_found_and_killed() {
        let mut job = job("echo up; exec sleep 60", bounds());
        let mark = format!("/none/{}", std::process::id());
        job.env.push(("SANDBOXRUN_TEST_MARK", mark.clone().into()));
        let mut running = spawn(&job).unwrap();
        let (_stdin, mut stdout) = running.streams().unwrap();
        let mut up = [0; 3];
        stdout.read_exact(&mut up).await.unwrap();
        kill_marked("SANDBOXRUN_TEST_MARK", OsStr::new(&mark));
        let ended = running.finish(b"", &bounds()).await.unwrap();
        assert!(matches!(ended.end, End::Exited(status) if !status.success()));
    }

    #[test]
    fn a_program_is_looked_for_in_the_path_only() {
        assert!(find(OsStr::new("sh"), OsStr::new("/usr/bin:/bin")).is_some());
        assert!(find(OsStr::new("sh"), OsStr::new("")).is_none());
        assert!(find(OsStr::new("no-such-program"), OsStr::new("/usr/bin:/bin")).is_none());
    }
}
