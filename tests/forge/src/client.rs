//! Stock `git` as a client of a forge: what tests and benches compare with.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::error::doing;
use crate::process::Processes;
use crate::{Forge, ForgeError, git};

/// A stock git that trusts the forge's CA and sees nothing of this machine's configuration.
#[derive(Clone, Debug)]
pub struct Client {
    ca_file: String,
    config: Vec<(String, String)>,
    deadline: Duration,
}

/// How a client's call ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The exit status; `None` if the deadline came first and git was killed.
    pub status: Option<ExitStatus>,
    /// What it printed, without white space at the end.
    pub stdout: String,
    /// What it said about it.
    pub stderr: String,
}

impl Outcome {
    /// Whether git says that all went well.
    #[must_use]
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

impl Client {
    /// A client without a credential. It gives up after a minute.
    ///
    /// # Errors
    /// When the CA's certificate cannot be written into the forge's directory.
    pub fn new(forge: &Forge) -> Result<Self, ForgeError> {
        let ca_file = forge.root().join("client-ca.pem");
        forge.write_ca(&ca_file)?;
        Ok(Self {
            ca_file: ca_file.display().to_string(),
            config: Vec::new(),
            deadline: Duration::from_mins(1),
        })
    }

    /// Answers the forge's challenge with this user name and token.
    #[must_use]
    pub fn token(self, user: &str, value: &str) -> Self {
        let quoted = |text: &str| text.replace('\'', "'\\''");
        let (user, value) = (quoted(user), quoted(value));
        let helper = format!("!printf 'username=%s\\npassword=%s\\n' '{user}' '{value}' #");
        self.config("credential.helper", &helper)
    }

    /// Sets a configuration variable.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.config.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Kills git after this time.
    #[must_use]
    pub fn deadline(mut self, time: Duration) -> Self {
        self.deadline = time;
        self
    }

    /// Runs git in a directory.
    ///
    /// # Errors
    /// When git cannot be started. That it fails is an [`Outcome`].
    pub async fn git(&self, dir: &Path, args: &[&str]) -> Result<Outcome, ForgeError> {
        let mut command = Command::new("git");
        git::hermetic(command.as_std_mut(), &self.config);
        command
            .arg("-C")
            .arg(dir)
            .args(args)
            .env("GIT_SSL_CAINFO", &self.ca_file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut running = Processes::default()
            .spawn(&mut command)
            .map_err(doing("starting git"))?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let pipes = (running.child.stdout.take(), running.child.stderr.take());
        let (Some(mut out), Some(mut err)) = pipes else {
            return Err(ForgeError::Bad("git without pipes".to_owned()));
        };
        let end = async {
            tokio::try_join!(out.read_to_end(&mut stdout), err.read_to_end(&mut stderr))?;
            running.child.wait().await
        };
        let status = match tokio::time::timeout(self.deadline, end).await {
            Ok(ended) => Some(ended.map_err(doing("waiting for git"))?),
            Err(_) => None,
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        Ok(Outcome {
            status,
            stdout: text(&stdout),
            stderr: text(&stderr),
        })
    }

    /// Clones a URL into a directory that is not there yet.
    ///
    /// # Errors
    /// When git cannot be started.
    pub async fn clone_into(&self, url: &str, dir: &Path) -> Result<Outcome, ForgeError> {
        let dir = dir.display().to_string();
        self.git(Path::new("/"), &["clone", "--quiet", url, &dir])
            .await
    }
}
