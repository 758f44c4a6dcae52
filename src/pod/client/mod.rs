//! Calls to the gateway: over a Unix socket in a local run (and from `exec` to its broker), over TLS in a pod.
//!
//! One client type for everything in a pod. Each call has a deadline and a bounded answer; nothing is retried here but a
//! request of which no byte was sent, since only the caller knows whether a call may be made twice. How patient a caller
//! is says [`Patience`].

mod address;
mod connect;
mod patience;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::wire::{Problem, TOKEN_HEADER};
use crate::api::{Fault, Reason, Secret, SecretError};
use connect::Ways;

pub use address::{GatewayAddress, GatewayAddressError};
pub(crate) use connect::{AnswerBody, RequestBody};
pub(crate) use patience::Patience;

/// The gateway, and the connections to it. A clone shares them.
#[derive(Clone)]
pub struct Gateway {
    ways: Arc<Ways>,
    token_file: Option<PathBuf>,
    patience: Duration,
}

/// Why there is no way to the gateway at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// No certificate to trust.
    #[error("the CA of the gateway (in SANDBOXRUN_GATEWAY_CA) cannot be used: {0}")]
    Ca(String),
    /// No token to show.
    #[error("a gateway at https:// needs `--token-file`")]
    NoToken,
}

impl Fault for GatewayError {
    fn reason(&self) -> Reason {
        Reason::Bug
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
    /// The token that says who we are cannot be read.
    #[error("the token in {} cannot be read: {message}", file.display())]
    Token {
        /// Where it should be.
        file: PathBuf,
        /// Why; never its content.
        message: String,
    },
}

impl CallError {
    /// Whether the same call may succeed a moment later: the gateway is away or has a fault.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Broken(_) | Self::TimedOut { .. } | Self::Token { .. } => true,
            Self::Refused { status, .. } | Self::NotUnderstood { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Unwritable(_) => false,
        }
    }

    /// Whether the gateway does not know whose call it is. It may have restarted, and learn it in a moment.
    #[must_use]
    pub fn is_unknown_identity(&self) -> bool {
        matches!(self, Self::Refused { problem, .. } if problem.reason == Reason::IdentityUnknown)
    }
}

impl Fault for CallError {
    fn reason(&self) -> Reason {
        match self {
            Self::Refused { problem, .. } => problem.reason,
            Self::Connect(_) | Self::Broken(_) | Self::TimedOut { .. } => Reason::GatewayLost,
            Self::NotUnderstood { .. } | Self::Unwritable(_) | Self::Token { .. } => Reason::Bug,
        }
    }
}

/// Bounds the largest JSON answer: a plan holds at most 192 KiB of prompt and context, and 16 inputs.
const MAX_ANSWER: usize = 8 << 20;

/// How long a call with a short answer may take.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(30);

/// How long a gateway in a cluster may be away before provision gives up: its pod may move to another node.
const AWAY_IN_CLUSTER: Duration = Duration::from_mins(3);

impl Gateway {
    /// A gateway on a socket of this machine: no token, no patience beyond a few tries.
    #[must_use]
    pub fn on_socket(path: PathBuf) -> Self {
        Self {
            ways: Arc::new(Ways::unix(path)),
            token_file: None,
            patience: Duration::ZERO,
        }
    }

    /// A gateway by its address. Over TLS it needs a CA (PEM) and a file with the token that is shown.
    ///
    /// # Errors
    /// When one of them is missing or cannot be used.
    pub fn new(
        address: GatewayAddress,
        ca: Option<&str>,
        token_file: Option<PathBuf>,
    ) -> Result<Self, GatewayError> {
        match address {
            GatewayAddress::Unix(path) => Ok(Self::on_socket(path)),
            GatewayAddress::Https(address) => Ok(Self {
                ways: Arc::new(Ways::tls(address, ca.unwrap_or_default().as_bytes())?),
                token_file: Some(token_file.ok_or(GatewayError::NoToken)?),
                patience: AWAY_IN_CLUSTER,
            }),
        }
    }

    /// The same gateway, with another patience.
    #[must_use]
    pub(crate) fn patient_for(&self, patience: Duration) -> Self {
        Self {
            patience,
            ..self.clone()
        }
    }

    /// For how long, beyond a few tries, a gateway that is away is asked again.
    pub(crate) fn patience(&self) -> Patience {
        Patience::new(self.patience)
    }

    /// Sends a request over a warm connection, or a new one, and returns the answer as it is, once its head is there.
    pub(crate) async fn exchange(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<AnswerBody>, CallError> {
        self.show_token(&mut request)?;
        let reuse = (request.method() != Method::CONNECT).then(|| Arc::clone(&self.ways));
        while let Some(mut sender) = self.ways.warm().await {
            match sender.try_send_request(request).await {
                Ok(answer) => return Ok(answer.map(|body| AnswerBody::new(body, sender, reuse))),
                Err(mut error) => match error.take_message() {
                    // Nothing of it was sent: it may go another way.
                    Some(unsent) => request = unsent,
                    None => return Err(CallError::Broken(error.into_error())),
                },
            }
        }
        self.exchange_on(self.ways.fresh().await?, request, reuse)
            .await
    }

    /// As [`Self::exchange`], over a connection of its own that is closed with the answer.
    pub(crate) async fn exchange_apart(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<AnswerBody>, CallError> {
        self.show_token(&mut request)?;
        self.exchange_on(self.ways.fresh().await?, request, None)
            .await
    }

    async fn exchange_on(
        &self,
        mut sender: hyper::client::conn::http1::SendRequest<RequestBody>,
        request: Request<RequestBody>,
        reuse: Option<Arc<Ways>>,
    ) -> Result<Response<AnswerBody>, CallError> {
        let answer = sender
            .send_request(request)
            .await
            .map_err(CallError::Broken)?;
        Ok(answer.map(|body| AnswerBody::new(body, sender, reuse)))
    }

    /// Puts the token into the request, as the file has it now: the kubelet renews it.
    fn show_token(&self, request: &mut Request<RequestBody>) -> Result<(), CallError> {
        let Some(file) = &self.token_file else {
            return Ok(());
        };
        let failed = |message: String| CallError::Token {
            file: file.clone(),
            message,
        };
        let token = read_token(file).map_err(failed)?;
        let mut value = HeaderValue::from_str(token.expose())
            .map_err(|_| failed("it is no header value".to_owned()))?;
        value.set_sensitive(true);
        request.headers_mut().insert(TOKEN_HEADER, value);
        Ok(())
    }

    /// Sends a request and returns its answer once its head is there.
    ///
    /// # Errors
    /// When the connection fails, `limit` passes, or the answer is not a success.
    pub(crate) async fn send(
        &self,
        request: Request<RequestBody>,
        limit: Duration,
    ) -> Result<Response<AnswerBody>, CallError> {
        within(limit, self.exchange(request)).await
    }

    /// As [`Self::send`], over a connection of its own.
    pub(crate) async fn send_apart(
        &self,
        request: Request<RequestBody>,
        limit: Duration,
    ) -> Result<Response<AnswerBody>, CallError> {
        within(limit, self.exchange_apart(request)).await
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
        request: Request<RequestBody>,
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

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

fn read_token(file: &Path) -> Result<Secret, String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    Secret::from_line(&bytes).map_err(|error: SecretError| format!("it {error}"))
}

/// The answer within `limit`; an answer that is no success is the error that it says.
async fn within(
    limit: Duration,
    exchange: impl Future<Output = Result<Response<AnswerBody>, CallError>>,
) -> Result<Response<AnswerBody>, CallError> {
    let exchange = async {
        let response = exchange.await?;
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

/// A request with a JSON body.
///
/// # Errors
/// When the value or path cannot be written.
pub(super) fn post_request<T: Serialize>(
    path: &str,
    value: &T,
) -> Result<Request<RequestBody>, CallError> {
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
) -> Result<Request<RequestBody>, CallError> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "gateway")
        .body(Full::new(body).map_err(|never| match never {}).boxed())
        .map_err(|error| CallError::Unwritable(error.to_string()))
}

/// Reads a body of at most [`MAX_ANSWER`] bytes; `None` if it is longer.
async fn read_bounded(mut body: AnswerBody) -> Result<Option<Bytes>, CallError> {
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

async fn refusal(response: Response<AnswerBody>) -> CallError {
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
