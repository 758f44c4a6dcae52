//! Calls of stock `git` that see nothing of the machine's own configuration.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::ForgeError;
use crate::error::doing;

/// The first of the made-up times at which commits are made: 2023-11-14 22:13:20 UTC.
pub(crate) const EPOCH: u64 = 1_700_000_000;

/// Takes the machine's configuration away from a `git` call, makes every directory safe (a repository may
/// belong to another user) and sets these variables.
pub(crate) fn hermetic(command: &mut Command, config: &[(String, String)]) {
    command
        .env_clear()
        .env(
            "PATH",
            std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()),
        )
        .env("HOME", "/nonexistent")
        .env("LC_ALL", "C")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0");
    let fixed = [
        ("safe.directory", "*"),
        ("gc.auto", "0"),
        ("core.hooksPath", "/dev/null"),
    ];
    let all = fixed.into_iter().chain(
        config
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    );
    let mut count = 0_usize;
    for (name, value) in all {
        command
            .env(format!("GIT_CONFIG_KEY_{count}"), name)
            .env(format!("GIT_CONFIG_VALUE_{count}"), value);
        count += 1;
    }
    command.env("GIT_CONFIG_COUNT", count.to_string());
}

/// Runs `git -C DIR ARGS` with `input` and returns what it printed, as bytes.
pub(crate) fn run(
    dir: &Path,
    args: &[&str],
    env: &[(&str, String)],
    input: &[u8],
) -> Result<Vec<u8>, ForgeError> {
    let mut command = Command::new("git");
    hermetic(&mut command, &[]);
    command
        .arg("-C")
        .arg(dir)
        .args(args)
        .envs(env.iter().map(|(name, value)| (*name, value)));
    finish(command, args, input)
}

/// Runs a prepared command to its end.
pub(crate) fn finish(
    mut command: Command,
    args: &[&str],
    input: &[u8],
) -> Result<Vec<u8>, ForgeError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(doing(format!("starting `{program}`")))?;
    let mut stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Some(stdin) = &mut stdin {
                // A program that wants no more input says so by its exit status.
                drop(stdin.write_all(input));
            }
            drop(stdin);
        });
        child.wait_with_output()
    })
    .map_err(doing(format!("waiting for `{program}`")))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(ForgeError::Command {
        command: format!("{program} {}", args.join(" ")),
        status: output.status,
        stderr: String::from_utf8_lossy(&output.stderr)
            .trim()
            .replace('\n', " / "),
    })
}
