//! Child processes, each the head of its own process group, none of which outlives the forge.

use std::collections::HashSet;
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// The groups that are alive.
#[derive(Clone, Default)]
pub(crate) struct Processes(Arc<Mutex<Alive>>);

#[derive(Default)]
struct Alive {
    groups: HashSet<i32>,
    closed: bool,
}

/// A running child. When it is dropped before its end, its whole group is killed.
pub(crate) struct Running {
    pub(crate) child: Child,
    group: Option<Pid>,
    all: Processes,
}

impl Processes {
    /// Starts a program as the head of a new group.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Running> {
        let mut alive = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if alive.closed {
            return Err(io::Error::other("the forge is shutting down"));
        }
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let group = child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            alive.groups.insert(group.as_raw_nonzero().get());
        }
        Ok(Running {
            child,
            group,
            all: self.clone(),
        })
    }

    /// Kills every group and starts no more.
    pub(crate) fn close(&self) {
        let mut alive = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        alive.closed = true;
        for group in alive.groups.drain().filter_map(Pid::from_raw) {
            _ = kill_process_group(group, Signal::KILL);
        }
    }

    fn forget(&self, group: Pid) -> bool {
        let mut alive = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        alive.groups.remove(&group.as_raw_nonzero().get())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The id is known as long as the child was not waited for, so nobody else can have it yet.
        let waited_for = self.child.id().is_none();
        if let Some(group) = self.group
            && self.all.forget(group)
            && !waited_for
        {
            _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Inflates as much of a gzip'ed request body as is there.
pub(crate) async fn inflate(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut child = Command::new("gzip")
        .arg("-dcq")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let (Some(mut stdin), Some(mut stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("gzip without pipes"));
    };
    let mut out = Vec::new();
    let feed = async {
        // A cut body makes gzip stop early; what it has written until then is the answer.
        drop(stdin.write_all(bytes).await);
        drop(stdin);
    };
    let ((), read) = tokio::join!(feed, stdout.read_to_end(&mut out));
    read?;
    child.wait().await?;
    Ok(out)
}
