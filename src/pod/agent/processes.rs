//! All processes of the agent: seen, signalled and reaped to the last.
//!
//! As pid 1 of its own namespace, `kill(-1)` reaches everything there at once, so not even a fork bomb outruns it.
//! Elsewhere (tests, a container that shares its namespace) `exec` adopts orphans and walks its descendants.

use std::collections::HashMap;
use std::io;

use rustix::io::Errno;
use rustix::process::{self, DumpableBehavior, Pid, Signal, WaitOptions, WaitStatus};

/// The supervisor's hold on the agent's processes. There is one in a process.
#[derive(Debug)]
pub struct Processes {
    is_init: bool,
}

/// A process that ended.
#[derive(Debug, Clone, Copy)]
pub struct Reaped {
    /// Which.
    pub pid: Pid,
    /// How.
    pub status: WaitStatus,
}

impl Processes {
    /// Makes this process the one that orphans come to, and closes its memory to others of its uid.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn prepare() -> io::Result<Self> {
        process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        let own = process::getpid();
        let is_init = own == Pid::INIT;
        if !is_init {
            process::set_child_subreaper(Some(own))?;
        }
        Ok(Self { is_init })
    }

    /// Takes one child that ended, if there is one. `Err`: there are no children at all.
    ///
    /// # Errors
    /// When no child is left.
    pub fn reap(&self) -> Result<Option<Reaped>, NoChildren> {
        loop {
            match process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => return Ok(Some(Reaped { pid, status })),
                Ok(None) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(_) => return Err(NoChildren),
            }
        }
    }

    /// Sends a signal to every process of the agent.
    pub fn signal(&self, signal: Signal) {
        if self.is_init {
            // Everything in this pid namespace but ourselves.
            let _nobody = process::kill_process_group(Pid::INIT, signal);
            return;
        }
        for pid in descendants() {
            let _gone = process::kill_process(pid, signal);
        }
    }

    /// Kills every process of the agent. What is forked meanwhile is met by the next call.
    pub fn kill(&self) {
        if !self.is_init {
            // Stopped processes do not fork, so the kill then meets them all.
            self.signal(Signal::STOP);
        }
        self.signal(Signal::KILL);
    }
}

/// Nothing is left to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoChildren;

/// All processes below this one, by the parents that `/proc` names.
fn descendants() -> Vec<Pid> {
    let mut children = HashMap::<i32, Vec<i32>>::new();
    let Ok(listing) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    for entry in listing.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<i32>().ok())
        else {
            continue;
        };
        let stat = std::fs::read(entry.path().join("stat")).unwrap_or_default();
        if let Some(parent) = parent_of(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut pending = vec![process::getpid().as_raw_nonzero().get()];
    while let Some(pid) = pending.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            pending.push(child);
            found.extend(Pid::from_raw(child));
        }
    }
    found
}

/// The parent in a line of `/proc/PID/stat`: the second word after the command, which is in parentheses and may hold any.
fn parent_of(stat: &[u8]) -> Option<i32> {
    let end = stat.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_may_look_like_anything() {
        assert_eq!(parent_of(b"7 (sh) S 3 7 7 0"), Some(3));
        assert_eq!(parent_of(b"7 (a) b) 9 (\n) S 42 7"), Some(42));
        assert_eq!(parent_of(b"garbage"), None);
    }
}
