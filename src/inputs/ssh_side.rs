//! What is asked over ssh beside a fetch: the refs, and whether the key may push.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::git_text::{self, Said};
use super::process::{Bounds, End, Ended, Running};
use super::protocol::{self, ProtocolError};
use super::ssh::{Service, Ssh};
use super::{CredentialProof, ListError, Listing, Remote, Settings, Wants, list_error};
use crate::api::{Failure, Fault as _, Reason};

/// A program that has lost its streams ends by itself; what it printed is worth this long a wait.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Lists refs.
pub(super) async fn list(
    ssh: &Ssh,
    remote: &Remote,
    wants: &Wants,
    settings: &Settings,
) -> Result<Listing, Failure> {
    let (mut running, bounds) = ssh
        .start(Service::UploadPack)
        .map_err(|e| e.failure(None))?;
    let Some((stdin, stdout)) = running.streams() else {
        return Err(Failure::new(Reason::Bug, "ssh was started without streams"));
    };
    let stdout = Idle::new(stdout, settings.times.stall);
    let listed = protocol::list_over(stdout, stdin, wants, settings.limits.listing_bytes).await;
    match listed {
        Ok(listing) => Ok(listing),
        Err(error) => Err(why(&error, running, bounds, remote).await),
    }
}

/// Whether the key may push: asks for the refs as one does before a push, and pushes nothing.
pub(super) async fn prove(ssh: &Ssh, settings: &Settings) -> CredentialProof {
    let Ok((mut running, bounds)) = ssh.start(Service::ReceivePack) else {
        return CredentialProof::Unknown;
    };
    let Some((mut stdin, mut stdout)) = running.streams() else {
        return CredentialProof::Unknown;
    };
    let mut head = [0_u8; 8];
    let read = tokio::time::timeout(settings.times.stall, stdout.read_exact(&mut head)).await;
    // A listing begins with a length in hex and then an id or a version; a refusal with ERR.
    let (length, start) = head.split_at(4);
    let is_hex = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_hexdigit);
    if matches!(read, Ok(Ok(_))) && is_hex(length) && (is_hex(start) || start == b"vers") {
        // What has gone already needs no good-bye.
        let _gone = stdin.write_all(b"0000").await;
        return CredentialProof::CanWrite;
    }
    let mut said = head.to_vec();
    let _what_there_is =
        tokio::time::timeout(LAST_WORDS, (&mut stdout).take(4096).read_to_end(&mut said)).await;
    drop((stdin, stdout));
    let Ok(ended) = last_words(running, bounds).await else {
        return CredentialProof::Unknown;
    };
    if refuses(&ended, &said) {
        CredentialProof::ReadOnly
    } else {
        CredentialProof::Unknown
    }
}

/// Only a server that says why has refused: no answer at all may mean anything.
fn refuses(ended: &Ended, said: &[u8]) -> bool {
    const REFUSALS: &[&str] = &[
        "denied",
        "read only",
        "read-only",
        "only read",
        "not allowed",
        "write access",
        "permission",
        "forbidden",
    ];
    // 255 is ssh's own: no connection, or no log-in.
    let by_server = matches!(ended.end, End::Exited(status) if status.code() != Some(255));
    let text = [said, &ended.stderr].concat();
    let text = String::from_utf8_lossy(&text).to_ascii_lowercase();
    by_server && REFUSALS.iter().any(|words| text.contains(words))
}

/// What the words of `ssh`, of the server's program, or the streams themselves say about a listing that failed.
pub(super) async fn why(
    error: &ProtocolError,
    running: Running,
    bounds: Bounds,
    remote: &Remote,
) -> Failure {
    let ended = last_words(running, bounds).await;
    let text = ended.map(|ended| String::from_utf8_lossy(&ended.stderr).into_owned());
    let text = text.unwrap_or_default();
    match git_text::read(&text) {
        Said::Reason(reason) => {
            let words = git_text::words(&text, &remote.credential);
            Failure::new(reason, format!("{}: {words}", remote.repository))
        }
        Said::Unknown if !text.trim().is_empty() && is_end(error) => {
            let words = git_text::words(&text, &remote.credential);
            Failure::new(
                Reason::FetchFailed,
                format!("{}: {words}", remote.repository),
            )
        }
        Said::NotAdvertised | Said::NoSuchRef | Said::Damaged | Said::Unknown => {
            let error = if is_silence(error) {
                ListError::Stalled
            } else {
                list_error::protocol(error)
            };
            error.failure(remote)
        }
    }
}

async fn last_words(running: Running, bounds: Bounds) -> io::Result<Ended> {
    running
        .finish(
            b"",
            &Bounds {
                deadline: LAST_WORDS,
                ..bounds
            },
        )
        .await
}

fn is_silence(error: &ProtocolError) -> bool {
    use super::pkt::PktError;
    matches!(error, ProtocolError::Framing(PktError::Io(e)) if e.kind() == io::ErrorKind::TimedOut)
}

fn is_end(error: &ProtocolError) -> bool {
    use super::pkt::PktError;
    matches!(
        error,
        ProtocolError::Framing(PktError::Truncated) | ProtocolError::Asking(_)
    )
}

/// A stream that fails when nothing comes for too long.
pub(super) struct Idle<R> {
    inner: R,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
}

impl<R> Idle<R> {
    pub(super) fn new(inner: R, patience: Duration) -> Self {
        Self {
            inner,
            patience,
            timer: Box::pin(tokio::time::sleep(patience)),
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Idle<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if read.is_ready() {
            let until = Instant::now() + self.patience;
            self.timer.as_mut().reset(until);
            return read;
        }
        match self.timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}
