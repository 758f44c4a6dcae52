//! The system's `ssh`, with the connector's key and known hosts and nothing of this machine's.
//!
//! Host keys are strict and never learned; no agent, no configuration file and no other key is looked at. The connection
//! goes to the address that the guard has checked, while the host key is that of the name.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::credential_helper::{decoded, quoted};
use super::git::{GitError, environment, start_error};
use super::process::{self, Bounds, Job, Running};
use super::session::{PrivateDir, Session};
use super::ssh_key::{self, KeyError};
use super::{FetchSettings, Shown, Times};
use crate::api::{Fault, Reason, RepoUrl, Transport};

/// Why a connection over ssh cannot be tried.
#[derive(Debug, thiserror::Error)]
pub(super) enum SshError {
    /// No key.
    #[error(
        "an address over ssh needs a connector with `auth.ssh`: a private key, and the host keys to trust"
    )]
    NoKey,
    /// A key that cannot be used.
    #[error(transparent)]
    Key(KeyError),
    /// `ssh` is not there.
    #[error(transparent)]
    Program(GitError),
    /// The key could not be put where `ssh` reads it.
    #[error("cannot write to the state directory")]
    State(#[source] io::Error),
}

impl Fault for SshError {
    fn reason(&self) -> Reason {
        match self {
            Self::NoKey => Reason::AuthenticationRequired,
            Self::Key(error) => error.reason(),
            Self::Program(error) => error.reason(),
            Self::State(error) if error.kind() == io::ErrorKind::StorageFull => {
                Reason::HostDiskFull
            }
            Self::State(_) => Reason::StateUnusable,
        }
    }
}

/// A service that a server runs for git over ssh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    /// Reading.
    UploadPack,
    /// Writing.
    ReceivePack,
}

/// One repository over ssh: the key lies in a private directory until this is dropped.
#[derive(Debug)]
pub(super) struct Ssh {
    program: PathBuf,
    path: OsString,
    home: PathBuf,
    files: PrivateDir,
    repository: RepoUrl,
    address: SocketAddr,
    times: Times,
}

impl Ssh {
    /// Puts key and known hosts where `ssh` reads them.
    pub(super) fn open(
        settings: &FetchSettings,
        times: Times,
        session: &Arc<Session>,
        repository: &RepoUrl,
        address: SocketAddr,
        shown: &Shown,
    ) -> Result<Self, SshError> {
        let Shown::Ssh {
            private_key,
            known_hosts,
        } = shown
        else {
            return Err(SshError::NoKey);
        };
        let key = ssh_key::clean(private_key).map_err(SshError::Key)?;
        let program = process::find(&settings.ssh, &settings.path).ok_or(SshError::Program(
            GitError::Missing {
                program: "ssh",
                install: "install it with `apt-get install openssh-client`, or your system's like",
            },
        ))?;
        let files = session.dir().map_err(SshError::State)?;
        let write = |name: &str, text: &str| {
            let file = files.path().join(name);
            fs::write(&file, text)?;
            fs::set_permissions(&file, Permissions::from_mode(0o400))
        };
        let hosts: Vec<&str> = known_hosts.lines().map(str::trim).collect();
        write("known_hosts", &(hosts.join("\n") + "\n")).map_err(SshError::State)?;
        write("key", key.expose()).map_err(SshError::State)?;
        Ok(Self {
            program,
            path: settings.path.clone(),
            home: session.home(),
            files,
            repository: repository.clone(),
            address,
            times,
        })
    }

    /// The command that git uses in place of `ssh`. It holds paths and no secret.
    pub(super) fn command(&self) -> String {
        let words = self.options().into_iter().map(|option| quoted(&option));
        let program = quoted(&self.program.to_string_lossy());
        std::iter::once(program)
            .chain(words)
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Starts a service of the server, to be talked to. Protocol v2 is asked for.
    pub(super) fn start(&self, service: Service) -> Result<(Running, Bounds), GitError> {
        let bounds = Bounds {
            // A listing has no end of its own: its silence and its length are the caller's to bound.
            deadline: self.times.give_up,
            memory_bytes: 1 << 30,
            disk: None,
            stall: None,
        };
        let mut args: Vec<OsString> = self.options().into_iter().map(Into::into).collect();
        for arg in ["-o", "SendEnv=GIT_PROTOCOL", "-p"] {
            args.push(arg.into());
        }
        args.push(self.repository.port().to_string().into());
        args.push("--".into());
        args.push(self.destination().into());
        args.push(format!("{} {}", service.program(), quoted(&self.path_on_server())).into());
        let mut env = environment(&self.path, &self.home);
        env.push(("GIT_PROTOCOL", "version=2".into()));
        let job = Job {
            program: self.program.clone(),
            args,
            env,
            dir: self.files.path().to_owned(),
            bounds: bounds.clone(),
        };
        let running = process::spawn(&job).map_err(start_error("ssh"))?;
        Ok((running, bounds))
    }

    fn destination(&self) -> String {
        let host = self.repository.host().trim_matches(['[', ']']);
        format!("{}@{host}", self.repository.user().unwrap_or("git"))
    }

    /// The path as the server gets it: relative for `host:path`, and for `ssh://host/~user`.
    fn path_on_server(&self) -> String {
        let path = self.repository.segments().join("/");
        let text = self.repository.as_str();
        if !text.starts_with("ssh://") {
            let absolute = text
                .split_once(':')
                .is_some_and(|(_, path)| path.starts_with('/'));
            return if absolute { format!("/{path}") } else { path };
        }
        let path = decoded(&path);
        if path.starts_with('~') {
            path
        } else {
            format!("/{path}")
        }
    }

    /// The name under which known hosts hold the server.
    fn alias(&self) -> String {
        let host = self.repository.host().trim_matches(['[', ']']);
        match self.repository.port() {
            22 => host.to_owned(),
            port => format!("[{host}]:{port}"),
        }
    }

    fn options(&self) -> Vec<String> {
        debug_assert_eq!(self.repository.transport(), Transport::Ssh);
        let file = |name: &str| self.files.path().join(name).to_string_lossy().into_owned();
        // Three lost answers are a dead connection.
        let alive = (self.times.stall / 3).max(Duration::from_secs(1)).as_secs();
        let mut options = vec!["-F".to_owned(), "/dev/null".to_owned()];
        let own = [
            format!("Hostname={}", self.address.ip()),
            format!("HostKeyAlias={}", self.alias()),
            format!(
                "UserKnownHostsFile={}",
                words_in_quotes(&file("known_hosts"))
            ),
            format!("IdentityFile={}", words_in_quotes(&file("key"))),
            format!("ConnectTimeout={}", self.times.connect.as_secs().max(1)),
            format!("ServerAliveInterval={alive}"),
        ];
        let user = self
            .repository
            .user()
            .is_none()
            .then(|| "User=git".to_owned());
        for option in FIXED
            .iter()
            .map(|&option| option.to_owned())
            .chain(own)
            .chain(user)
        {
            options.push("-o".to_owned());
            options.push(option);
        }
        options
    }
}

const FIXED: &[&str] = &[
    "BatchMode=yes",
    "CanonicalizeHostname=no",
    "CheckHostIP=no",
    "ClearAllForwardings=yes",
    "ControlMaster=no",
    "ControlPath=none",
    "EscapeChar=none",
    "ForwardAgent=no",
    "GlobalKnownHostsFile=/dev/null",
    "IdentitiesOnly=yes",
    "IdentityAgent=none",
    "KbdInteractiveAuthentication=no",
    "LogLevel=ERROR",
    "PasswordAuthentication=no",
    "PermitLocalCommand=no",
    "PreferredAuthentications=publickey",
    "ProxyCommand=none",
    "ServerAliveCountMax=3",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
];

/// A path as one word of an option's value, with `%` as itself.
fn words_in_quotes(path: &str) -> String {
    format!("\"{}\"", path.replace('%', "%%"))
}

impl Service {
    fn program(self) -> &'static str {
        match self {
            Self::UploadPack => "git-upload-pack",
            Self::ReceivePack => "git-receive-pack",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Secret;
    use rstest::rstest;
    use std::process::Command;

    fn ssh(url: &str) -> (tempfile::TempDir, Ssh) {
        let state = tempfile::tempdir().unwrap();
        let key = state.path().join("k");
        let mut keygen = Command::new("ssh-keygen");
        keygen
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(&key);
        assert!(keygen.status().unwrap().success());
        let bent = fs::read_to_string(&key)
            .unwrap()
            .trim_end()
            .replace('\n', "\r\n");
        let shown = Shown::Ssh {
            private_key: Secret::from_block(bent.as_bytes()).unwrap(),
            known_hosts: "h ssh-ed25519 AAAA\r\n".to_owned(),
        };
        let session = Session::open(&state.path().join("state")).unwrap();
        let address = "192.0.2.7:22".parse().unwrap();
        let times = Times::default();
        let settings = FetchSettings::default();
        let repository = url.parse().unwrap();
        let ssh = Ssh::open(&settings, times, &session, &repository, address, &shown).unwrap();
        (state, ssh)
    }

    #[rstest]
    #[case::scp("git@h:acme/a.git", "acme/a.git", "h", "git@h")]
    #[case::scp_absolute("me@h:/srv/a b", "/srv/a b", "h", "me@h")]
    #[case::url("ssh://git@h:2222/acme/a%20b", "/acme/a b", "[h]:2222", "git@h")]
    #[case::home("ssh://h/~me/a", "~me/a", "h", "git@h")]
    fn a06_a_server_gets_the_path_as_git_would_send_it(
        #[case] url: &str,
        #[case] path: &str,
        #[case] alias: &str,
        #[case] destination: &str,
    ) {
        let (_state, ssh) = ssh(url);
        assert_eq!(ssh.path_on_server(), path);
        assert_eq!(ssh.alias(), alias);
        assert_eq!(ssh.destination(), destination);
    }

    #[test]
    fn c06_the_key_is_a_private_copy_that_ssh_can_read() {
        let (_state, ssh) = ssh("git@h:a");
        let key = ssh.files.path().join("key");
        assert_eq!(
            fs::metadata(&key).unwrap().permissions().mode() & 0o777,
            0o400
        );
        let read = Command::new("ssh-keygen")
            .args(["-y", "-P", "", "-f"])
            .arg(&key)
            .output();
        let read = read.unwrap();
        assert!(
            read.status.success(),
            "{}",
            String::from_utf8_lossy(&read.stderr)
        );
        drop(ssh);
        assert!(!key.exists());
    }

    #[test]
    fn t10_the_connection_goes_to_the_checked_address_and_no_setting_of_this_machine_counts() {
        let (_state, ssh) = ssh("ssh://git@h:2222/a");
        // What ssh makes of it, in its own words.
        let mut command = Command::new("ssh");
        command
            .arg("-G")
            .args(ssh.options())
            .args(["-p", "2222", "git@h"]);
        let seen = command.output().unwrap();
        let seen = String::from_utf8(seen.stdout).unwrap();
        for line in [
            "hostname 192.0.2.7",
            "hostkeyalias [h]:2222",
            "stricthostkeychecking true",
            "identitiesonly yes",
            "identityagent none",
            "batchmode yes",
            "updatehostkeys false",
            "globalknownhostsfile /dev/null",
        ] {
            assert!(seen.lines().any(|l| l == line), "{line} is not in\n{seen}");
        }
        assert_eq!(
            seen.lines()
                .filter(|l| l.starts_with("identityfile "))
                .count(),
            1,
            "{seen}"
        );
    }
}
