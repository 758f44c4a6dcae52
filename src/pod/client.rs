//! The connection to the gateway: a Unix socket in a local run.
//!
//! One client type for provision, agent and collect. Each call has a deadline and a bounded answer; nothing is retried
//! here, since only the caller knows whether a call may be made twice.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::api::wire::Problem;
use crate::api::{Fault, Reason};

/// Where the gateway listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gateway {
    /// A Unix socket, `unix:/path`.
    Unix(PathBuf),
}

/// The text names no gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be `unix:` and the absolute path of a socket")]
pub struct GatewayAddressError;

impl FromStr for Gateway {
    type Err = GatewayAddressError;

    fn from_str(text: &str) -> Result<Self, GatewayAddressError> {
        text.strip_prefix("unix:")
            .filter(|path| path.starts_with('/'))
            .map(|path| Self::Unix(PathBuf::from(path)))
            .ok_or(GatewayAddressError)
    }
}

/// Why a call to the gateway did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens there.
    #[error("cannot connect to the gateway")]
    Connect(#[source] std::io::Error),
    /// The connection broke, or what came was no HTTP.
    #[error("the connection to the gateway broke")]
    Broken(#[source] hyper::Error),
    /// No answer in time.
    #[error("the gateway did not answer within {} s", limit.as_secs())]
    TimedOut {
        /// How long was waited.
        limit: Duration,
    },
    /// The gateway says no.
    #[error("the gateway refused: {}", problem.detail)]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// Its answer.
        problem: Box<Problem>,
    },
    /// An answer that is neither what was asked for nor a refusal.
    #[error("the gateway gave an answer that is not understood ({status}): {message}")]
    NotUnderstood {
        /// The HTTP status.
        status: StatusCode,
        /// What is wrong with it.
        message: String,
    },
    /// A request could not be made from what we have.
    #[error("the request cannot be written: {0}")]
    Unwritable(String),
}

impl CallError {
    /// Whether the same call may succeed a moment later: the gateway is away or has a fault.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Broken(_) | Self::TimedOut { .. } => true,
            Self::Refused { status, .. } | Self::NotUnderstood { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Unwritable(_) => false,
        }
    }
}

impl Fault for CallError {
    fn reason(&self) -> Reason {
        match self {
            Self::Refused { problem, .. } => problem.reason,
            Self::Connect(_) | Self::Broken(_) | Self::TimedOut { .. } => Reason::GatewayLost,
            Self::NotUnderstood { .. } | Self::Unwritable(_) => Reason::Bug,
        }
    }
}

/// Bounds the largest JSON answer: a plan holds at most 192 KiB of prompt and context, and 16 inputs.
const MAX_ANSWER: usize = 8 << 20;

/// How long a call with a short answer may take.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(30);

impl Gateway {
    /// Opens a connection of its own for one exchange.
    ///
    /// # Errors
    /// When nobody listens or the peer is no HTTP server.
    pub async fn open<B>(&self) -> Result<SendRequest<B>, CallError>
    where
        B: hyper::body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path)
                    .await
                    .map_err(CallError::Connect)?;
                let (sender, connection) = http1::handshake(TokioIo::new(stream))
                    .await
                    .map_err(CallError::Broken)?;
                // Ends by itself when the sender and the answer's body are dropped.
                tokio::spawn(async move {
                    let _ended = connection.with_upgrades().await;
                });
                Ok(sender)
            }
        }
    }

    /// Sends a request and returns its answer once its head is there.
    ///
    /// # Errors
    /// When the connection fails, `limit` passes, or the answer is not a success.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Response<Incoming>, CallError> {
        let exchange = async {
            let mut sender = self.open().await?;
            let response = sender
                .send_request(request)
                .await
                .map_err(CallError::Broken)?;
            if response.status().is_success() {
                Ok(response)
            } else {
                Err(refusal(response).await)
            }
        };
        tokio::time::timeout(limit, exchange)
            .await
            .map_err(|_| CallError::TimedOut { limit })?
    }

    /// Asks for a JSON value.
    ///
    /// # Errors
    /// As [`Self::send`], or when the answer is another value.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CallError> {
        let request = request(Method::GET, path, Bytes::new())?;
        self.json(request).await
    }

    /// Sends a JSON value; the answer's body is not looked at.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn post<T: Serialize>(&self, path: &str, value: &T) -> Result<(), CallError> {
        self.send(post_request(path, value)?, CALL_LIMIT)
            .await
            .map(drop)
    }

    async fn json<T: DeserializeOwned>(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<T, CallError> {
        let response = self.send(request, CALL_LIMIT).await?;
        let status = response.status();
        let body = tokio::time::timeout(CALL_LIMIT, read_bounded(response.into_body()))
            .await
            .map_err(|_| CallError::TimedOut { limit: CALL_LIMIT })??;
        let body = body.ok_or_else(|| CallError::NotUnderstood {
            status,
            message: format!("longer than {MAX_ANSWER} bytes"),
        })?;
        serde_json::from_slice(&body).map_err(|error| CallError::NotUnderstood {
            status,
            message: error.to_string(),
        })
    }
}

/// A request with a JSON body.
///
/// # Errors
/// When the value or path cannot be written.
pub(super) fn post_request<T: Serialize>(
    path: &str,
    value: &T,
) -> Result<Request<Full<Bytes>>, CallError> {
    let body = serde_json::to_vec(value).map_err(|e| CallError::Unwritable(e.to_string()))?;
    let mut request = request(Method::POST, path, Bytes::from(body))?;
    request
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(request)
}

/// A request in the form that the gateway expects.
///
/// # Errors
/// When the path is no path.
pub(super) fn request(
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, CallError> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "gateway")
        .body(Full::new(body))
        .map_err(|error| CallError::Unwritable(error.to_string()))
}

/// Reads a body of at most [`MAX_ANSWER`] bytes; `None` if it is longer.
async fn read_bounded(mut body: Incoming) -> Result<Option<Bytes>, CallError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(CallError::Broken)?.into_data() {
            if bytes.len() + data.len() > MAX_ANSWER {
                return Ok(None);
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(Some(bytes.freeze()))
}

async fn refusal(response: Response<Incoming>) -> CallError {
    let status = response.status();
    match read_bounded(response.into_body()).await {
        Ok(Some(body)) => match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => CallError::Refused {
                status,
                problem: Box::new(problem),
            },
            Err(error) => CallError::NotUnderstood {
                status,
                message: error.to_string(),
            },
        },
        Ok(None) => CallError::NotUnderstood {
            status,
            message: "too long".to_owned(),
        },
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::unix("unix:/run/g.sock", true)]
    #[case::relative("unix:g.sock", false)]
    #[case::no_scheme("/run/g.sock", false)]
    fn a_gateway_is_a_socket_with_an_absolute_path(#[case] text: &str, #[case] good: bool) {
        assert_eq!(text.parse::<Gateway>().is_ok(), good);
    }
}
