//! The program `demo-forge`, as the quickstart starts it.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A child that is killed if the test ends before it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn git(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(dir)
        .args(args)
        .env("GIT_SSL_CAINFO", dir.join("ca.pem"));
    command
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap()
}

fn wait_for(file: &Path) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !file.exists() {
        assert!(Instant::now() < deadline, "{} never came", file.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::read_to_string(file).unwrap().trim_end().to_owned()
}

#[test]
fn it_serves_until_sigterm_and_keeps_secrets_out_of_its_arguments() {
    let dir = TempDir::new().unwrap();
    let at = dir.path();
    for args in [
        &["init", "-q", "work"][..],
        &[
            "-C",
            "work",
            "-c",
            "user.name=n",
            "-c",
            "user.email=e",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "m",
        ],
    ] {
        assert!(git(at, args).status.success());
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo-forge"));
    command
        .current_dir(at)
        .env("TOKEN", "s3cr3t")
        .stderr(Stdio::null());
    command.args(["--root", "data", "--ca-out", "ca.pem", "--url-out", "url"]);
    command.args([
        "--token",
        "app-read=env:TOKEN:read",
        "--ticket-token",
        "env:TOKEN",
    ]);
    command.args(["--repo", "acme/app=work:private", "--sample", "acme/tools"]);
    let mut server = Server(command.spawn().unwrap());
    let url = wait_for(&at.join("url"));

    let listed = git(
        at,
        &["ls-remote", "--tags", &format!("{url}/acme/tools.git")],
    );
    assert!(String::from_utf8_lossy(&listed.stdout).contains("refs/tags/v1.0.0"));
    assert!(
        !git(at, &["ls-remote", &format!("{url}/acme/app")])
            .status
            .success()
    );
    let with = url.replace("https://", "https://x:s3cr3t@");
    let listed = git(at, &["ls-remote", &format!("{with}/acme/app"), "HEAD"]);
    assert!(
        listed.status.success(),
        "{}",
        String::from_utf8_lossy(&listed.stderr)
    );

    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn bad_arguments_say_what_to_write_instead() {
    for (args, words) in [
        (["--token", "name"], "NAME=VALUE:read"),
        (["--repo", "acme/app"], "OWNER/NAME=PATH"),
        (["--repo", "app=."], "OWNER/NAME"),
        (
            ["--token", "a=env:NO_SUCH_VARIABLE:read"],
            "NO_SUCH_VARIABLE",
        ),
    ] {
        let dir = TempDir::new().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_demo-forge"));
        let ended = command
            .arg("--root")
            .arg(dir.path())
            .args(args)
            .output()
            .unwrap();
        assert!(!ended.status.success());
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.contains(words), "{args:?}: {said}");
    }
}
