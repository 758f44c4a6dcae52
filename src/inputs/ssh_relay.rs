//! `git fetch` for an agent, over ssh: one question of protocol v2 for each request, answered as a smart HTTP server would.
//!
//! Git keeps one connection over ssh and asks many things on it, and over HTTP one thing at a time. In protocol v2 each
//! question is whole, so a connection for each does. Older protocols cannot be carried that way.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWriteExt as _, ReadBuf};
use tokio::process::ChildStdout;

use super::pkt::{self, Packet, PktError, PktReader};
use super::process::Running;
use super::protocol::ProtocolError;
use super::ssh::{Service, Ssh};
use super::ssh_side::{Idle, why};
use super::{Remote, Settings};
use crate::api::{Failure, Fault as _, Reason};

/// Capabilities are a few lines; an older protocol's list of refs may be any length, and is not carried.
const GREETING_BYTES: u64 = 64 << 10;
/// What a server of protocol v2 begins with.
const VERSION_2: &[u8] = b"000eversion 2\n";

/// The server's `git-upload-pack`. What is read from it is the answer; dropped, `ssh` is ended.
pub struct UploadPack {
    greeting: Vec<u8>,
    stdout: Idle<ChildStdout>,
    _running: Running,
    _key: Ssh,
}

impl UploadPack {
    /// What the server can do, as it said it: the answer to `info/refs`.
    #[must_use]
    pub fn greeting(&self) -> &[u8] {
        &self.greeting
    }
}

impl AsyncRead for UploadPack {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stdout).poll_read(cx, buffer)
    }
}

/// Connects, and asks one question; an empty one asks nothing.
pub(super) async fn ask(
    ssh: Ssh,
    remote: &Remote,
    question: &[u8],
    settings: &Settings,
) -> Result<UploadPack, Failure> {
    let started = ssh.start(Service::UploadPack);
    let (mut running, bounds) = started.map_err(|error| error.failure(None))?;
    let Some((mut stdin, stdout)) = running.streams() else {
        return Err(Failure::new(Reason::Bug, "ssh was started without streams"));
    };
    let mut stdout = Idle::new(stdout, settings.times.stall);
    let greeting = match greeting(&mut stdout).await {
        Ok(greeting) => greeting,
        Err(error) => {
            let error = ProtocolError::Framing(error);
            return Err(why(&error, running, bounds, remote).await);
        }
    };
    if !greeting.starts_with(VERSION_2) {
        let repository = &remote.repository;
        let text = format!(
            "{repository}: the server does not speak git's protocol v2 over ssh, and no other can be passed on"
        );
        return Err(Failure::new(Reason::FetchFailed, text));
    }
    let asked = tokio::time::timeout(settings.times.stall, stdin.write_all(question)).await;
    if !matches!(asked, Ok(Ok(()))) {
        let text = format!("{}: the question could not be sent", remote.repository);
        return Err(Failure::new(Reason::TransferStalled, text));
    }
    // It answers what it was asked, and ends.
    drop(stdin);
    Ok(UploadPack {
        greeting,
        stdout,
        _running: running,
        _key: ssh,
    })
}

/// What a server begins with, to the byte.
async fn greeting(stdout: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, PktError> {
    let mut packets = PktReader::new(stdout, GREETING_BYTES);
    let mut greeting = Vec::new();
    loop {
        match packets.next().await? {
            Some(Packet::Data(payload)) => pkt::write(&mut greeting, payload),
            Some(Packet::Flush) => {
                greeting.extend_from_slice(b"0000");
                return Ok(greeting);
            }
            Some(Packet::Delimiter | Packet::ResponseEnd) | None => {
                return Err(PktError::Truncated);
            }
        }
    }
}
