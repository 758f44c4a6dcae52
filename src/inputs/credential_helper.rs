//! How `git` gets a credential: over a socket in a private directory, once, for one repository.
//!
//! No argument, variable, address or file ever holds the value. git starts our own program as its helper
//! ([`main`]); that asks the socket of the fetch it belongs to ([`Helper`]), which answers only a process of this
//! fetch's group, only for the protocol, host and path that the credential is bound to, and only the first time.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream as Connection;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::session::{PrivateDir, Session};
use crate::api::{RepoUrl, Secret};

/// The command by which our own program becomes the helper: `sandboxrun credential-helper SOCKET ACTION`.
pub const COMMAND: &str = "credential-helper";

/// The longest question: git sends a few short lines.
const LONGEST: u64 = 16 << 10;
/// A question comes at once or not at all.
const PATIENCE: Duration = Duration::from_secs(5);
/// The socket's name in its directory.
const SOCKET: &str = "socket";

/// Runs as git's helper: passes git's question on to the socket and the answer back.
///
/// `store` and `erase` do nothing. What goes wrong gives no answer: git then says itself that it has no credential.
#[must_use]
pub fn main(socket: &Path, action: &str) -> ExitCode {
    if action == "get" {
        // There is nobody to tell: git shows a helper's standard error to the caller, who has the cause at hand.
        let _no_answer = ask(socket);
    }
    ExitCode::SUCCESS
}

fn ask(socket: &Path) -> io::Result<()> {
    let mut question = Vec::new();
    io::stdin().take(LONGEST).read_to_end(&mut question)?;
    let (dir, name) = (socket.parent(), socket.file_name());
    let (Some(dir), Some(name)) = (dir, name) else {
        return Ok(());
    };
    let dir = File::open(dir)?;
    let mut connection = Connection::connect(short(&dir).join(name))?;
    connection.write_all(&question)?;
    connection.shutdown(std::net::Shutdown::Write)?;
    let mut answer = Vec::new();
    connection.take(LONGEST).read_to_end(&mut answer)?;
    io::stdout().write_all(&answer)
}

/// A path to a directory that fits into a socket's address, however deep the directory lies.
fn short(dir: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

/// The socket of one fetch.
#[derive(Debug)]
pub(super) struct Helper {
    listener: UnixListener,
    dir: PrivateDir,
}

/// What a socket gives, and for what.
pub(super) struct Bound {
    host: String,
    path: String,
    username: String,
    password: Secret,
}

impl Bound {
    /// A credential for one repository.
    pub(super) fn new(repository: &RepoUrl, username: &str, password: &Secret) -> Self {
        Self {
            host: authority(repository),
            path: decoded(&repository.segments().join("/")),
            username: username.to_owned(),
            password: password.clone(),
        }
    }

    /// The answer to git's question; `None`: it is about something else.
    fn answer(&self, question: &[u8]) -> Option<String> {
        let question = std::str::from_utf8(question).ok()?;
        let value = |name: &str| {
            let mut lines = question.lines().filter_map(|line| line.split_once('='));
            lines.find_map(|(key, value)| (key == name).then_some(value))
        };
        let host = value("host")?.to_ascii_lowercase();
        let host = host.strip_suffix(":443").unwrap_or(&host);
        let fits = value("protocol")? == "https"
            && host == self.host
            && value("path")?.trim_matches('/') == self.path;
        fits.then(|| {
            format!(
                "username={}\npassword={}\n",
                self.username,
                self.password.expose()
            )
        })
    }
}

impl Helper {
    /// Opens a socket in a new private directory.
    pub(super) fn open(session: &Arc<Session>) -> io::Result<Self> {
        let dir = session.dir()?;
        let open = File::open(dir.path())?;
        let listener = UnixListener::bind(short(&open).join(SOCKET))?;
        Ok(Self { listener, dir })
    }

    /// What makes git ask this socket, and nobody else, for this repository's host.
    pub(super) fn config(&self, program: &Path, repository: &RepoUrl) -> [(String, String); 2] {
        let socket = self.dir.path().join(SOCKET);
        let helper = format!(
            "!{} {COMMAND} {}",
            quoted(&program.to_string_lossy()),
            quoted(&socket.to_string_lossy())
        );
        [
            (
                format!("credential.https://{}.helper", authority(repository)),
                helper,
            ),
            ("credential.useHttpPath".to_owned(), "true".to_owned()),
        ]
    }

    /// Answers until it is dropped. Only processes of this group are heard.
    pub(super) async fn serve(&self, bound: &Bound, group: Option<i32>) -> io::Result<()> {
        let mut given = false;
        loop {
            let (connection, _) = self.listener.accept().await?;
            if !is_of(&connection, group) {
                continue;
            }
            let answered = tokio::time::timeout(PATIENCE, answer(connection, bound, given)).await;
            given |= matches!(answered, Ok(Ok(true)));
        }
    }
}

/// Answers one question. True: the credential was given.
async fn answer(mut connection: UnixStream, bound: &Bound, given: bool) -> io::Result<bool> {
    let mut question = Vec::new();
    (&mut connection)
        .take(LONGEST)
        .read_to_end(&mut question)
        .await?;
    let Some(answer) = bound.answer(&question).filter(|_| !given) else {
        return Ok(false);
    };
    let answer = zeroize(answer);
    connection.write_all(answer.as_bytes()).await?;
    Ok(true)
}

/// A text that is wiped when dropped.
fn zeroize(text: String) -> impl std::ops::Deref<Target = str> {
    struct Wiped(secrecy::SecretString);
    impl std::ops::Deref for Wiped {
        type Target = str;
        fn deref(&self) -> &str {
            secrecy::ExposeSecret::expose_secret(&self.0)
        }
    }
    Wiped(secrecy::SecretString::from(text))
}

/// Whether a connection comes from this user and this process group.
fn is_of(connection: &UnixStream, group: Option<i32>) -> bool {
    let Ok(peer) = connection.peer_cred() else {
        return false;
    };
    let theirs = peer.pid().and_then(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name in brackets: state, parent, group.
        stat.rsplit_once(')')?
            .1
            .split_ascii_whitespace()
            .nth(2)?
            .parse::<i32>()
            .ok()
    });
    peer.uid() == rustix::process::geteuid().as_raw() && theirs.is_some() && theirs == group
}

/// `host` or `host:port`, as git compares it.
fn authority(repository: &RepoUrl) -> String {
    match repository.port() {
        443 => repository.host().to_owned(),
        port => format!("{}:{port}", repository.host()),
    }
}

/// A text with its `%xx` resolved, as git does it before it asks.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = (*first == b'%').then(|| tail.get(..2)).flatten();
        let byte = hex
            .filter(|hex| hex.iter().all(u8::is_ascii_hexdigit))
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() {
            tail.get(2..).unwrap_or_default()
        } else {
            tail
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A text as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn bound(url: &str) -> Bound {
        let secret = Secret::from_line(br"@:/%#\,").unwrap();
        Bound::new(&url.parse().unwrap(), "git", &secret)
    }

    #[rstest]
    #[case::same("https://h/a/b.git", "protocol=https\nhost=h\npath=a/b.git\n", true)]
    #[case::port("https://H:8443/a", "protocol=https\nhost=h:8443\npath=a\n", true)]
    #[case::default_port("https://h:443/a", "protocol=https\nhost=h:443\npath=a\n", true)]
    #[case::escaped("https://h/a%20b", "protocol=https\nhost=h\npath=a b\n", true)]
    #[case::other_host("https://h/a", "protocol=https\nhost=g\npath=a\n", false)]
    #[case::other_port("https://h/a", "protocol=https\nhost=h:444\npath=a\n", false)]
    #[case::other_path("https://h/a", "protocol=https\nhost=h\npath=b\n", false)]
    #[case::no_path("https://h/a", "protocol=https\nhost=h\n", false)]
    #[case::no_tls("https://h/a", "protocol=http\nhost=h\npath=a\n", false)]
    fn c02_the_answer_is_for_one_repository(
        #[case] url: &str,
        #[case] question: &str,
        #[case] answered: bool,
    ) {
        let answer = bound(url).answer(question.as_bytes());
        assert_eq!(
            answer.as_deref(),
            answered.then_some("username=git\npassword=@:/%#\\,\n")
        );
    }

    async fn ask(dir: &Path) -> String {
        let open = File::open(dir).unwrap();
        let mut connection = UnixStream::connect(short(&open).join(SOCKET))
            .await
            .unwrap();
        // Who is not heard may find the connection closed already.
        let mut answer = String::new();
        let _closed = connection
            .write_all(b"protocol=https\nhost=h\npath=a\n")
            .await;
        let _closed = connection.shutdown().await;
        let _closed = connection.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn c05_the_socket_answers_its_own_group_and_only_once() {
        // Deeper than a socket's address is long.
        let state = tempfile::tempdir().unwrap();
        let state = state.path().join("deep".repeat(40));
        let session = Session::open(&state).unwrap();
        let helper = Helper::open(&session).unwrap();
        let dir = helper.dir.path().to_owned();
        let bound = bound("https://h/a");
        let own = rustix::process::getpgrp().as_raw_nonzero().get();
        let others = helper.serve(&bound, Some(own + 1));
        tokio::select! {
            _ = others => panic!("it ended"),
            answer = ask(&dir) => assert_eq!(answer, ""),
        }
        let ours = helper.serve(&bound, Some(own));
        let asked = async { (ask(&dir).await, ask(&dir).await) };
        tokio::select! {
            _ = ours => panic!("it ended"),
            (first, second) = asked => {
                assert_eq!(first, "username=git\npassword=@:/%#\\,\n");
                assert_eq!(second, "");
            }
        }
    }

    #[rstest]
    #[case("a b", "'a b'")]
    #[case("it's", r"'it'\''s'")]
    fn a_word_of_a_shell_is_quoted(#[case] text: &str, #[case] want: &str) {
        assert_eq!(quoted(text), want);
    }
}
