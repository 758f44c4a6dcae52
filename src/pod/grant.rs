//! The start grant: one yes for one `exec`, and the line over which the gateway can stop the agent.

use std::time::Duration;

use bytes::BytesMut;
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use crate::api::wire::{GrantLine, GrantRequest};
use crate::api::{Fault, Reason};
use crate::pod::client::{self, AnswerBody, CALL_LIMIT, CallError, Gateway};
use crate::pod::objects::hex;

/// Why there is no yes. The agent then never starts.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// No randomness for the nonce.
    #[error("cannot make a nonce")]
    Nonce,
    /// The gateway said no, or could not be reached within the tries.
    #[error("the start was not granted")]
    NotGranted(#[source] CallError),
    /// An answer came that is no yes.
    #[error("the start was not granted: {0}")]
    NoYes(String),
}

impl Fault for GrantError {
    fn reason(&self) -> Reason {
        match self {
            Self::Nonce => Reason::Bug,
            Self::NotGranted(CallError::Refused { problem, .. }) => problem.reason,
            Self::NotGranted(_) | Self::NoYes(_) => Reason::GrantLost,
        }
    }
}

/// A yes, with its limits, and the connection that stays open while the agent lives.
pub(super) struct Grant {
    nonce: String,
    /// The agent is stopped after this long.
    pub timeout: Duration,
    /// The agent is stopped after this long without output.
    pub stall: Option<Duration>,
    lines: Lines,
}

impl Grant {
    /// The nonce that the yes is for.
    #[must_use]
    pub(super) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// The next line.
    ///
    /// # Errors
    /// When the connection broke, or what came is no line.
    pub(super) async fn next(&mut self) -> Result<GrantLine, CallError> {
        self.lines.next().await
    }

    /// Asks for the same yes again after the connection was lost.
    pub(super) async fn renew(&mut self, gateway: &Gateway) -> Result<(), GrantError> {
        self.lines = request(gateway, &self.nonce).await?.lines;
        Ok(())
    }
}

/// A line is short: a word and two numbers.
const MAX_LINE: usize = 4096;

/// Asks for the start. A lost answer is asked for again with the same nonce, which does no harm: the gateway may just be
/// starting anew.
///
/// # Errors
/// When the gateway says no, or says nothing for `limit`.
pub(super) async fn ask(gateway: &Gateway, limit: Duration) -> Result<Grant, GrantError> {
    let mut random = [0; 16];
    aws_lc_rs::rand::fill(&mut random).map_err(|_| GrantError::Nonce)?;
    let nonce = hex(&random);
    let mut patience = gateway.patient_for(limit).patience();
    loop {
        match request(gateway, &nonce).await {
            Ok(grant) => return Ok(grant),
            Err(GrantError::NotGranted(error)) if patience.outlasts(&error).await => {}
            Err(error) => return Err(error),
        }
    }
}

/// Asks once for the start, with this nonce.
///
/// # Errors
/// When there is no yes.
pub(super) async fn request(gateway: &Gateway, nonce: &str) -> Result<Grant, GrantError> {
    let body = GrantRequest {
        nonce: nonce.to_owned(),
    };
    let request = client::post_request("/v1/grant", &body).map_err(GrantError::NotGranted)?;
    let response = gateway
        .send_apart(request, CALL_LIMIT)
        .await
        .map_err(GrantError::NotGranted)?;
    let mut lines = Lines {
        body: response.into_body(),
        buffer: BytesMut::new(),
    };
    let first = timeout(CALL_LIMIT, lines.next())
        .await
        .map_err(|_| GrantError::NotGranted(CallError::TimedOut { limit: CALL_LIMIT }))?
        .map_err(GrantError::NotGranted)?;
    match first {
        GrantLine::Granted {
            timeout_secs,
            stall_secs,
        } => Ok(Grant {
            nonce: nonce.to_owned(),
            timeout: Duration::from_secs(timeout_secs),
            stall: stall_secs.map(Duration::from_secs),
            lines,
        }),
        GrantLine::Stop { reason } => Err(GrantError::NoYes(format!("stopped before: {reason}"))),
        GrantLine::Alive => Err(GrantError::NoYes("the first line was no yes".to_owned())),
    }
}

/// JSON lines from a body.
struct Lines {
    body: AnswerBody,
    buffer: BytesMut,
}

impl Lines {
    async fn next(&mut self) -> Result<GrantLine, CallError> {
        let not_understood = |message: String| CallError::NotUnderstood {
            status: hyper::StatusCode::OK,
            message,
        };
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(end + 1);
                return serde_json::from_slice(&line).map_err(|e| not_understood(e.to_string()));
            }
            if self.buffer.len() > MAX_LINE {
                return Err(not_understood("a line is too long".to_owned()));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.buffer.extend_from_slice(&bytes);
                    }
                }
                Some(Err(error)) => return Err(CallError::Broken(error)),
                None => {
                    return Err(CallError::Connect(std::io::ErrorKind::UnexpectedEof.into()));
                }
            }
        }
    }
}
