//! The one wrapper of the system's `git`: fixed flags first, user text last, and nothing of this machine's settings.
//!
//! It is called by the mirror, and later by `deliver`. A call sees an empty home directory, no system or global
//! configuration, no agent, no terminal and no hooks. What it may reach is https and ssh, without redirects. It knows
//! no secret: those come over a socket, from [`super::credential_helper`].

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::FetchSettings;
use super::process::{self, Bounds, Ended, Job, Running};
use crate::api::{Fault, Reason};

/// The oldest version that connects to the address we checked (`http.curloptResolve`).
const OLDEST: (u32, u32) = (2, 37);
/// The variable by which processes of ours are found again after a crash.
pub(super) const MARK: &str = "SANDBOXRUN_MIRROR";

/// Findings of `git fsck` that old, honest history has. All others refuse the fetch: names such as `.git` or `..`, hostile
/// `.gitmodules`, objects that are no objects.
const HONEST: &[&str] = &[
    "badDateOverflow",
    "badEmail",
    "badName",
    "badTimezone",
    "emptyName",
    "missingEmail",
    "missingNameBeforeEmail",
    "missingSpaceBeforeDate",
    "missingSpaceBeforeEmail",
    "missingTaggerEntry",
    "multipleAuthors",
    "nulInCommit",
    "zeroPaddedDate",
    "zeroPaddedFilemode",
];

/// Settings of every call, whatever it does.
const FIXED: &[(&str, &str)] = &[
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.packedGitLimit", "256m"),
    ("core.packedGitWindowSize", "32m"),
    ("core.bigFileThreshold", "32m"),
    ("core.deltaBaseCacheLimit", "64m"),
    ("credential.helper", ""),
    ("fetch.fsckObjects", "true"),
    ("fetch.unpackLimit", "1"),
    ("fetch.writeCommitGraph", "false"),
    ("gc.auto", "0"),
    ("http.followRedirects", "false"),
    ("maintenance.auto", "false"),
    ("pack.windowMemory", "64m"),
    ("pack.writeReverseIndex", "false"),
    ("protocol.version", "2"),
    ("submodule.recurse", "false"),
    ("transfer.bundleURI", "false"),
];

/// Why `git` or `ssh` could not be called.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// It is not installed.
    #[error("`{program}` is not installed, and inputs need it: {install}")]
    Missing {
        /// Its name.
        program: &'static str,
        /// How to install it.
        install: &'static str,
    },
    /// It is too old.
    #[error("git {found} is too old: inputs need git {}.{} or newer", OLDEST.0, OLDEST.1)]
    TooOld {
        /// What it says of itself.
        found: String,
    },
    /// It could not be started.
    #[error("cannot start {program}")]
    Start {
        /// Its name.
        program: &'static str,
        /// Why.
        #[source]
        cause: io::Error,
    },
}

impl Fault for GitError {
    fn reason(&self) -> Reason {
        match self {
            Self::Missing { .. } | Self::TooOld { .. } => Reason::ProgramMissing,
            Self::Start { cause, .. } if cause.kind() == io::ErrorKind::StorageFull => {
                Reason::HostDiskFull
            }
            Self::Start { .. } => Reason::Bug,
        }
    }
}

/// The system's `git`, found and new enough.
#[derive(Debug, Clone)]
pub struct Git {
    program: PathBuf,
    path: OsString,
    home: PathBuf,
}

impl Git {
    /// Finds it, and asks for its version.
    ///
    /// # Errors
    /// When it is missing or too old.
    pub(super) async fn find(settings: &FetchSettings, home: PathBuf) -> Result<Self, GitError> {
        let program = process::find(&settings.git, &settings.path).ok_or(GitError::Missing {
            program: "git",
            install: "install it with `apt-get install git`, or your system's like",
        })?;
        let git = Self {
            program,
            path: settings.path.clone(),
            home,
        };
        let bounds = Bounds {
            deadline: Duration::from_secs(20),
            memory_bytes: settings.memory_bytes,
            disk: None,
            stall: None,
        };
        let said = git
            .call(Path::new("/"))
            .arg("version")
            .run(b"", bounds)
            .await?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let found = said.trim().trim_start_matches("git version ").to_owned();
        if version(&found).is_some_and(|version| version >= OLDEST) {
            Ok(git)
        } else {
            Err(GitError::TooOld { found })
        }
    }

    /// A call that runs in this directory.
    #[must_use]
    pub fn call(&self, dir: &Path) -> Call<'_> {
        Call {
            git: self,
            dir: dir.to_owned(),
            config: Vec::new(),
            env: Vec::new(),
            args: Vec::new(),
        }
    }
}

/// One call of `git`, as it is put together.
#[derive(Debug)]
pub struct Call<'a> {
    git: &'a Git,
    dir: PathBuf,
    config: Vec<String>,
    env: Vec<(&'static str, OsString)>,
    args: Vec<OsString>,
}

impl Call<'_> {
    /// Sets one configuration variable.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.config.push(format!("{name}={value}"));
        self
    }

    /// Adds an argument. User text comes after `--end-of-options` only.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets one variable of the environment, which holds nothing else of this process's own.
    #[must_use]
    pub fn env(mut self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name, value.as_ref().to_owned()));
        self
    }

    /// Runs it to its end, or to a bound.
    pub(super) async fn run(self, input: &[u8], bounds: Bounds) -> Result<Ended, GitError> {
        process::run(&self.job(bounds), input)
            .await
            .map_err(start_error("git"))
    }

    /// Starts it, to be talked to.
    pub(super) fn spawn(self, bounds: Bounds) -> Result<(Running, Bounds), GitError> {
        let job = self.job(bounds);
        let running = process::spawn(&job).map_err(start_error("git"))?;
        Ok((running, job.bounds))
    }

    fn job(self, bounds: Bounds) -> Job {
        let mut args: Vec<OsString> = Vec::new();
        let fixed = FIXED.iter().map(|(name, value)| format!("{name}={value}"));
        let honest = HONEST
            .iter()
            .map(|finding| format!("fetch.fsck.{finding}=ignore"));
        for setting in fixed.chain(honest).chain(self.config) {
            args.push("-c".into());
            args.push(setting.into());
        }
        args.extend(self.args);
        let mut env = environment(&self.git.path, &self.git.home);
        env.extend(self.env);
        Job {
            program: self.git.program.clone(),
            args,
            env,
            dir: self.dir,
            bounds,
        }
    }
}

/// Which of our errors a failed start is.
pub(super) fn start_error(program: &'static str) -> impl FnOnce(io::Error) -> GitError {
    move |cause| GitError::Start { program, cause }
}

/// The whole environment of `git`, and of `ssh` when it is called alone.
pub(super) fn environment(path: &OsStr, home: &Path) -> Vec<(&'static str, OsString)> {
    vec![
        ("PATH", path.to_owned()),
        ("HOME", home.into()),
        ("LC_ALL", "C".into()),
        ("TZ", "UTC".into()),
        ("GIT_CONFIG_NOSYSTEM", "1".into()),
        ("GIT_CONFIG_GLOBAL", "/dev/null".into()),
        ("GIT_ATTR_NOSYSTEM", "1".into()),
        ("GIT_NO_REPLACE_OBJECTS", "1".into()),
        ("GIT_TERMINAL_PROMPT", "0".into()),
        ("GIT_ALLOW_PROTOCOL", "https:ssh".into()),
        ("GIT_SSH_VARIANT", "ssh".into()),
        // Where no command of ours is named, none is used: never the ssh of somebody's configuration.
        ("GIT_SSH_COMMAND", "false".into()),
    ]
}

/// Major and minor number of `2.39.5 (Apple Git-154)` and the like.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(['.', ' ']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::debian("2.39.5", Some((2, 39)))]
    #[case::other_words("2.50.1 (Apple Git-155)", Some((2, 50)))]
    #[case::build("2.47.0-rc1", Some((2, 47)))]
    #[case::nonsense("hello", None)]
    fn a_version_is_two_numbers(#[case] text: &str, #[case] want: Option<(u32, u32)>) {
        assert_eq!(version(text), want);
    }

    fn git(path: &OsStr) -> (FetchSettings, PathBuf) {
        let settings = FetchSettings {
            path: path.to_owned(),
            ..FetchSettings::default()
        };
        (settings, std::env::temp_dir())
    }

    #[tokio::test]
    async fn a_machine_without_git_is_told_what_to_install() {
        let (settings, home) = git(OsStr::new("/nowhere"));
        let error = Git::find(&settings, home).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ProgramMissing);
        assert!(error.to_string().contains("apt-get install git"), "{error}");
    }

    // R11, A05: what git itself would run or reach if a text got that far.
    #[rstest]
    #[case::program("ext::sh -c touch% x", "transport 'ext' not allowed")]
    #[case::file("file:///srv/x.git", "transport 'file' not allowed")]
    #[case::http("http://127.0.0.1:1/x.git", "transport 'http' not allowed")]
    #[case::git("git://127.0.0.1:1/x", "transport 'git' not allowed")]
    #[case::option("--upload-pack=touch x", "strange pathname")]
    #[tokio::test]
    async fn r11_a05_git_takes_no_other_transport_and_no_option(
        #[case] url: &str,
        #[case] want: &str,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (settings, home) = git(&FetchSettings::default().path);
        let git = Git::find(&settings, home).await.unwrap();
        let bounds = Bounds {
            deadline: Duration::from_secs(20),
            memory_bytes: 1 << 30,
            disk: None,
            stall: None,
        };
        let init = git.call(dir.path()).args(["init", "-q", "--bare", "."]);
        assert!(init.run(b"", bounds.clone()).await.unwrap().is_success());
        let fetch = git
            .call(dir.path())
            .args(["fetch", "--end-of-options", url]);
        let ended = fetch.run(b"", bounds).await.unwrap();
        let text = String::from_utf8(ended.stderr).unwrap();
        assert!(text.contains(want), "{text}");
        assert!(!dir.path().join("x").exists());
    }
}
