//! The pod program as a process, against a real HTTP server on a Unix socket that speaks the wire's contract.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at clocks and start programs as they need"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    clippy::print_stderr,
    reason = "helpers of tests may panic, too"
)]

mod agent;
mod collect;
mod in_pod;
mod provision;
mod relay;
mod repository;
mod server;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub(crate) fn pod() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxrun-pod"));
    command.stdin(Stdio::null());
    command
}

/// Directories of one run, as a pod has them.
pub(crate) struct Volumes {
    pub(crate) root: tempfile::TempDir,
}

impl Volumes {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for name in ["workspace", "sandbox", "baseline"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        Self { root }
    }

    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.path().join(path)
    }

    /// `provision` or `collect` with these volumes.
    pub(crate) fn command(&self, what: &str, server: &server::Server) -> Command {
        let mut command = pod();
        command.arg(what).arg("--gateway").arg(server.address());
        for name in ["workspace", "sandbox", "baseline"] {
            command.arg(format!("--{name}")).arg(self.at(name));
        }
        command.arg("--termination-log").arg(self.at("message"));
        command
    }

    pub(crate) fn run(&self, what: &str, server: &server::Server) -> Output {
        self.command(what, server).output().unwrap()
    }
}

/// Waits for a condition; fails after 20 s.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program that must succeed, and returns what it printed.
pub(crate) fn succeed<S: AsRef<OsStr>>(command: &mut Command, args: &[S]) -> String {
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .unwrap()
        .trim_end()
        .to_owned()
}
