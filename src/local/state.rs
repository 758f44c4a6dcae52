//! What a local run keeps on disk: one directory for all runs, one below it for each.
//!
//! ```text
//! STATE/record.sqlite    the record of all runs
//! STATE/mirror/          fetched repositories
//! STATE/runs/UID/        one run; its `lock` is held while the program that watches it lives
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::api::{Fault, Reason, RunUid};

/// Ended runs whose workspace is kept; older ones are removed by the next run.
const KEPT_RUNS: usize = 20;

/// Held while the program that watches a run lives.
const LOCK: &str = "lock";
/// There once the workspace is safe for its owner.
const KEPT: &str = "kept";

/// The state directory of local runs.
#[derive(Debug, Clone)]
pub struct State(PathBuf);

/// The directories of one run.
#[derive(Debug, Clone)]
pub(super) struct RunPaths(PathBuf);

/// Says that somebody watches a run, as long as it lives.
#[derive(Debug)]
pub(super) struct RunLock(#[expect(dead_code, reason = "held, not read")] File);

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {path}: it must be writable, with free space")]
pub struct StateError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Fault for StateError {
    fn reason(&self) -> Reason {
        Reason::HostDiskFull
    }
}

impl State {
    /// State below this directory, which exists.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self(root)
    }

    /// Where the record is.
    #[must_use]
    pub fn record(&self) -> PathBuf {
        self.0.join("record.sqlite")
    }

    /// Where fetched repositories are.
    #[must_use]
    pub fn mirror(&self) -> PathBuf {
        self.0.join("mirror")
    }

    /// Makes the directories of a new run and takes its lock.
    pub(super) fn make_run(&self, uid: &RunUid) -> Result<(RunPaths, RunLock), StateError> {
        let _alone = self.alone()?;
        let root = self.runs().join(uid.as_str());
        for part in [
            "workspace",
            "sandbox/context",
            "sandbox/output",
            "baseline",
            "run",
            "etc",
        ] {
            make_dir(&root.join(part))?;
        }
        let path = root.join(LOCK);
        let lock = File::create(&path).map_err(failed(&path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| failed(&path)(errno.into()))?;
        Ok((RunPaths(root), RunLock(lock)))
    }

    /// Whether the program that watches this run still lives.
    pub(super) fn is_watched(&self, uid: &RunUid) -> bool {
        File::open(self.runs().join(uid.as_str()).join(LOCK))
            .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err())
    }

    /// Whether the workspace of this run was made safe for its owner.
    pub(super) fn is_kept(&self, uid: &RunUid) -> bool {
        self.runs().join(uid.as_str()).join(KEPT).exists()
    }

    /// Removes what a run left, whatever modes an agent gave it.
    pub(super) fn remove_run(&self, uid: &RunUid) -> Result<(), StateError> {
        remove_tree(&self.runs().join(uid.as_str()))
    }

    /// Removes what is not to be kept: the older workspaces, and whatever a program left that was killed before it had
    /// made a workspace safe.
    pub(super) fn prune(&self) -> Result<(), StateError> {
        let _alone = self.alone()?;
        let entries = fs::read_dir(self.runs()).map_err(failed(&self.runs()))?;
        let mut kept: Vec<_> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let made = entry.metadata().ok()?.modified().ok()?;
                Some((made, entry.file_name().to_str()?.parse::<RunUid>().ok()?))
            })
            .filter(|(_, uid)| !self.is_watched(uid))
            .collect();
        kept.sort();
        let (safe, unsafe_): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|(_, uid)| self.is_kept(uid));
        let surplus = safe.len().saturating_sub(KEPT_RUNS);
        unsafe_
            .iter()
            .chain(safe.iter().take(surplus))
            .try_for_each(|(_, uid)| self.remove_run(uid))
    }

    /// Held while directories of runs are made or removed, so that one program does not remove what another is making.
    fn alone(&self) -> Result<RunLock, StateError> {
        make_dir(&self.runs())?;
        let runs = File::open(self.runs()).map_err(failed(&self.runs()))?;
        flock(&runs, FlockOperation::LockExclusive)
            .map_err(|errno| failed(&self.runs())(errno.into()))?;
        Ok(RunLock(runs))
    }

    fn runs(&self) -> PathBuf {
        self.0.join("runs")
    }
}

impl RunPaths {
    pub(super) fn root(&self) -> &Path {
        &self.0
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.0.join("workspace")
    }

    pub(super) fn sandbox(&self) -> PathBuf {
        self.0.join("sandbox")
    }

    pub(super) fn baseline(&self) -> PathBuf {
        self.0.join("baseline")
    }

    pub(super) fn etc(&self) -> PathBuf {
        self.0.join("etc")
    }

    /// The socket of provision and collect.
    pub(super) fn pod_socket(&self) -> PathBuf {
        self.0.join("run/pod.sock")
    }

    /// The socket of the agent's sandbox.
    pub(super) fn agent_socket(&self) -> PathBuf {
        self.0.join("run/agent.sock")
    }

    /// The agent's output as it was.
    pub(super) fn agent_log(&self) -> PathBuf {
        self.0.join("agent.log")
    }

    /// Says that the workspace is safe for its owner.
    pub(super) fn mark_kept(&self) -> Result<(), StateError> {
        let path = self.0.join(KEPT);
        File::create(&path).map(drop).map_err(failed(&path))
    }

    /// What only the run itself needed: all but the workspace, the output and the log.
    pub(super) fn remove_inner(&self) {
        for part in ["baseline", "run", "etc"] {
            if let Err(error) = remove_tree(&self.0.join(part)) {
                tracing::warn!(%error, "a part of the run could not be removed");
            }
        }
    }
}

fn make_dir(path: &Path) -> Result<(), StateError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError { path, source }
}

/// Removes a tree. Directories that an agent made unreadable are opened first; no link is followed.
pub(super) fn remove_tree(path: &Path) -> Result<(), StateError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_directories(path);
            fs::remove_dir_all(path)
        }
        result => result,
    }
    .or_else(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            Ok(())
        } else {
            Err(error)
        }
    })
    .map_err(|source| StateError {
        path: path.to_owned(),
        source,
    })
}

/// Gives the owner back its rights on every directory below, breadth first, without following links.
fn open_directories(top: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        let is_dir = fs::symlink_metadata(&dir).is_ok_and(|meta| meta.is_dir());
        if is_dir
            && fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).is_ok()
            && let Ok(entries) = fs::read_dir(&dir)
        {
            todo.extend(entries.filter_map(Result::ok).map(|entry| entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_tree_that_was_made_unreadable_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let inner = temp.path().join("tree/a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), "x").unwrap();
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(
            temp.path().join("tree/a"),
            fs::Permissions::from_mode(0o000),
        )
        .unwrap();
        remove_tree(&temp.path().join("tree")).unwrap();
        assert!(!temp.path().join("tree").exists());
    }

    #[test]
    fn a_run_is_watched_while_its_lock_is_held() {
        let temp = tempfile::tempdir().unwrap();
        let state = State::new(temp.path().to_owned());
        let uid: RunUid = "0a".parse().unwrap();
        let run = state.make_run(&uid).unwrap();
        assert!(state.is_watched(&uid));
        drop(run);
        assert!(!state.is_watched(&uid));
    }
}
