//! A real `sshd` in front of a forge's repositories, on a free port of 127.0.0.1.
//!
//! One `sshd` is started for each connection, on the accepted socket. So there is no port to fight for, host
//! keys can change between two connections, and whoever runs the tests (root or not) logs in as himself.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::error::doing;
use crate::process::Processes;
use crate::{Forge, ForgeError, Scope, git};

/// The types of host key that the server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    /// The one that clients like best.
    Ed25519,
    /// Elliptic curve, NIST P-256.
    Ecdsa,
    /// RSA, 2048 bits.
    Rsa,
}

impl KeyType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ed25519, Self::Ecdsa, Self::Rsa];

    fn name(self) -> &'static str {
        match self {
            Self::Ed25519 => "ed25519",
            Self::Ecdsa => "ecdsa",
            Self::Rsa => "rsa",
        }
    }
}

/// A private key that the server knows.
#[derive(Clone)]
pub struct SshKey {
    text: String,
}

impl SshKey {
    /// The private key as `ssh-keygen` wrote it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same with CRLF line ends, as it comes from some editors.
    #[must_use]
    pub fn with_crlf(&self) -> String {
        self.text.replace('\n', "\r\n")
    }

    /// The same without its last newline, as it comes from some secret stores.
    #[must_use]
    pub fn without_last_newline(&self) -> String {
        self.text.trim_end_matches('\n').to_owned()
    }
}

/// A command that a client asked for over ssh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshRequest {
    /// The command, as it was sent.
    pub command: String,
    /// The environment variable `GIT_PROTOCOL` that came with it.
    pub git_protocol: String,
    /// What the key may do.
    pub scope: Scope,
}

/// A running ssh server. Dropped, it stops.
pub struct Ssh {
    addr: SocketAddr,
    user: String,
    dir: PathBuf,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    sshd: PathBuf,
    config: PathBuf,
    processes: Processes,
    connections: AtomicU64,
    silent: AtomicBool,
}

impl Ssh {
    /// Serves the repositories of a forge. It needs a tokio runtime.
    ///
    /// # Errors
    /// [`ForgeError::Missing`] when `sshd` is not installed; others when keys or files cannot be made.
    #[expect(
        clippy::unused_async,
        reason = "starting needs a runtime, and the signature says so"
    )]
    pub async fn start(forge: &Forge) -> Result<Self, ForgeError> {
        let sshd = find("sshd", "openssh-server")?;
        find("ssh-keygen", "openssh-client")?;
        let user = run("id", &["-un"])?;
        if rustix::process::getuid().is_root() {
            // sshd wants it; Debian makes it when the service starts, which is not so in a container.
            fs::create_dir_all("/run/sshd").map_err(doing("making /run/sshd"))?;
        }
        let dir = forge.root().join("ssh");
        fs::create_dir_all(&dir).map_err(doing(format!("making {}", dir.display())))?;
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(doing("listening for ssh"))?;
        let addr = listener
            .local_addr()
            .map_err(doing("asking for the own address"))?;
        listener
            .set_nonblocking(true)
            .map_err(doing("listening for ssh"))?;
        let listener =
            tokio::net::TcpListener::from_std(listener).map_err(doing("listening for ssh"))?;
        let shared = Arc::new(Shared {
            sshd,
            config: dir.join("sshd_config"),
            processes: Processes::default(),
            connections: AtomicU64::new(0),
            silent: AtomicBool::new(false),
        });
        write(&dir.join("authorized_keys"), "", 0o600)?;
        write(&dir.join("requests"), "", 0o600)?;
        write(
            &dir.join("command"),
            &command(&dir, &forge.root().join("repos")),
            0o755,
        )?;
        write(&shared.config, &config(&dir), 0o600)?;
        new_host_keys(&dir)?;
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            addr,
            user,
            dir,
            shared,
            task,
        })
    }

    /// The URL of a repository: `ssh://USER@127.0.0.1:PORT/acme/app.git`.
    #[must_use]
    pub fn url(&self, repo: &str) -> String {
        format!("ssh://{}@{}/{repo}.git", self.user, self.addr)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The user name that it logs in.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Makes a key and lets it in.
    ///
    /// # Errors
    /// When `ssh-keygen` fails.
    pub fn authorize(&self, scope: Scope) -> Result<SshKey, ForgeError> {
        self.authorize_with_passphrase(scope, "")
    }

    /// Makes a key that is locked with a passphrase and lets it in.
    ///
    /// # Errors
    /// When `ssh-keygen` fails.
    pub fn authorize_with_passphrase(
        &self,
        scope: Scope,
        passphrase: &str,
    ) -> Result<SshKey, ForgeError> {
        let file = self.dir.join("client-key");
        let public = keygen(&file, KeyType::Ed25519, passphrase)?;
        let text = fs::read_to_string(&file).map_err(doing("reading a new key"))?;
        fs::remove_file(&file).map_err(doing("removing a new key"))?;
        let scope = match scope {
            Scope::Read => "read",
            Scope::Write => "write",
        };
        let command = self.dir.join("command");
        let line = format!(
            "restrict,command=\"{} {scope}\" {public}\n",
            quoted(&command)
        );
        let keys = self.dir.join("authorized_keys");
        let mut all = fs::read_to_string(&keys).map_err(doing("reading the known keys"))?;
        all.push_str(&line);
        write(&keys, &all, 0o600)?;
        Ok(SshKey { text })
    }

    /// Lines for a `known_hosts` file, one for each of these types of host key.
    ///
    /// # Errors
    /// When the keys cannot be read.
    pub fn known_hosts(&self, types: &[KeyType]) -> Result<String, ForgeError> {
        let mut out = String::new();
        for kind in types {
            let file = host_key(&self.dir, *kind).with_extension("pub");
            let public = fs::read_to_string(file).map_err(doing("reading a host key"))?;
            let mut words = public.split_ascii_whitespace();
            let (name, key) = (
                words.next().unwrap_or_default(),
                words.next().unwrap_or_default(),
            );
            _ = writeln!(
                out,
                "[{}]:{} {name} {key}",
                self.addr.ip(),
                self.addr.port()
            );
        }
        Ok(out)
    }

    /// Shows other host keys from the next connection on: an attack, or a server that was set up anew.
    ///
    /// # Errors
    /// When `ssh-keygen` fails.
    pub fn change_host_keys(&self) -> Result<(), ForgeError> {
        new_host_keys(&self.dir)
    }

    /// Takes connections and says nothing on them, from the next connection on.
    pub fn go_silent(&self, silent: bool) {
        self.shared.silent.store(silent, Ordering::SeqCst);
    }

    /// How many connections were made.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// What was asked for, in order.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn requests(&self) -> Result<Vec<SshRequest>, ForgeError> {
        let text = fs::read_to_string(self.dir.join("requests"))
            .map_err(doing("reading the ssh requests"))?;
        let request = |line: &str| {
            let (scope, rest) = line.split_once('\t')?;
            let (git_protocol, command) = rest.split_once('\t')?;
            Some(SshRequest {
                command: command.to_owned(),
                git_protocol: git_protocol.to_owned(),
                scope: if scope == "write" {
                    Scope::Write
                } else {
                    Scope::Read
                },
            })
        };
        Ok(text.lines().filter_map(request).collect())
    }

    /// What `sshd` itself had to say; for the message of a test that fails.
    #[must_use]
    pub fn server_log(&self) -> String {
        fs::read_to_string(self.dir.join("sshd.log")).unwrap_or_default()
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.processes.close();
    }
}

async fn accept(listener: tokio::net::TcpListener, shared: Arc<Shared>) {
    // Those that get no answer; they are kept open until the server ends.
    let mut silent = Vec::new();
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::SeqCst);
        if shared.silent.load(Ordering::SeqCst) {
            silent.push(stream);
        } else if let Ok(stream) = stream.into_std() {
            // A client whose server could not be started sees a closed connection.
            drop(serve(&shared, stream));
        }
    }
}

fn serve(shared: &Shared, stream: std::net::TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    let output: OwnedFd = stream.try_clone()?.into();
    let mut command = Command::new(&shared.sshd);
    command
        .arg("-i")
        .arg("-f")
        .arg(&shared.config)
        .arg("-E")
        .arg(shared.config.with_file_name("sshd.log"))
        .stdin(Stdio::from(OwnedFd::from(stream)))
        .stdout(Stdio::from(output))
        .stderr(Stdio::null());
    let mut running = shared.processes.spawn(&mut command)?;
    drop(command);
    tokio::spawn(async move { drop(running.child.wait().await) });
    Ok(())
}

fn config(dir: &Path) -> String {
    let mut out = String::new();
    for kind in KeyType::ALL {
        _ = writeln!(out, "HostKey \"{}\"", host_key(dir, kind).display());
    }
    _ = writeln!(
        out,
        "AuthorizedKeysFile \"{}\"",
        dir.join("authorized_keys").display()
    );
    out.push_str(
        "AuthenticationMethods publickey\nPermitRootLogin forced-commands-only\nUsePAM no\n\
         StrictModes no\nAcceptEnv GIT_PROTOCOL\nUseDNS no\nPidFile none\nPrintMotd no\n\
         PrintLastLog no\nLogLevel VERBOSE\n",
    );
    out
}

/// The program that each key is tied to: it serves git below the repositories' directory, and nothing else.
fn command(dir: &Path, repos: &Path) -> String {
    let (log, repos) = (quoted(&dir.join("requests")), quoted(repos));
    let mut environment = std::process::Command::new("git");
    git::hermetic(&mut environment, &[]);
    let mut exports = String::new();
    for (name, value) in environment.get_envs() {
        if let Some(value) = value {
            let (name, value) = (name.to_string_lossy(), quoted(Path::new(value)));
            _ = writeln!(exports, "export {name}={value}");
        }
    }
    format!(
        r#"#!/bin/sh
# The argument says what the key may do: read or write.
asked=${{SSH_ORIGINAL_COMMAND-}}
printf '%s\t%s\t%s\n' "$1" "${{GIT_PROTOCOL-}}" "$asked" >> {log}
refuse() {{ echo "$1" >&2; exit 128; }}
case $asked in
  "git-upload-pack '"*"'" | "git upload-pack '"*"'") service=upload-pack ;;
  "git-receive-pack '"*"'" | "git receive-pack '"*"'") service=receive-pack ;;
  *) refuse 'only git is served here' ;;
esac
path=${{asked#*\'}}
path=${{path%\'}}
path=${{path#/}}
path=${{path%.git}}
case $path in
  '' | .* | */.* | -* | *\'*) refuse 'ERROR: repository not found' ;;
esac
[ -e {repos}/"$path.git" ] || refuse 'ERROR: repository not found'
[ "$service" = upload-pack ] || [ "$1" = write ] || refuse 'ERROR: this key may only read'
{exports}exec git "$service" {repos}/"$path.git"
"#
    )
}

fn new_host_keys(dir: &Path) -> Result<(), ForgeError> {
    for kind in KeyType::ALL {
        keygen(&host_key(dir, kind), kind, "")?;
    }
    Ok(())
}

fn host_key(dir: &Path, kind: KeyType) -> PathBuf {
    dir.join(format!("host_{}", kind.name()))
}

/// Makes a key pair and returns the public half.
fn keygen(file: &Path, kind: KeyType, passphrase: &str) -> Result<String, ForgeError> {
    let public = file.with_extension("pub");
    for old in [file, &public] {
        if old.exists() {
            fs::remove_file(old).map_err(doing("removing an old key"))?;
        }
    }
    let bits = if kind == KeyType::Rsa { "2048" } else { "256" };
    let path = file.display().to_string();
    let args = [
        "-q",
        "-t",
        kind.name(),
        "-b",
        bits,
        "-N",
        passphrase,
        "-C",
        "demo",
        "-f",
        &path,
    ];
    run("ssh-keygen", &args)?;
    let text = fs::read_to_string(public).map_err(doing("reading a new key"))?;
    Ok(text.trim_end().to_owned())
}

fn run(program: &str, args: &[&str]) -> Result<String, ForgeError> {
    let mut command = std::process::Command::new(program);
    command.args(args);
    let output = git::finish(command, args, b"")?;
    Ok(String::from_utf8_lossy(&output).trim_end().to_owned())
}

/// The full path of a program. `sshd` insists on being called by it, and lies where only root looks.
fn find(program: &str, package: &'static str) -> Result<PathBuf, ForgeError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/usr/bin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| ForgeError::Missing {
            program: program.to_owned(),
            package,
        })
}

fn write(file: &Path, text: &str, mode: u32) -> Result<(), ForgeError> {
    let draft = file.with_extension("part");
    fs::write(&draft, text)
        .and_then(|()| fs::set_permissions(&draft, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&draft, file))
        .map_err(doing(format!("writing {}", file.display())))
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
