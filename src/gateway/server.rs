//! Accepts connections and leads each request to its handler.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::canary::Canaries;
use super::live::Live;
use super::{agent_api, calls, git_relay, lookups, pod_api, proxy};
use crate::api::Reason;
use crate::api::wire::Problem;
use crate::audit::{Record, Via};
use crate::inputs::Inputs;

/// A peer that has not sent its request's head by then is dropped.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections of one socket that are open at once; more wait. An agent that opens thousands waits for itself.
const CONNECTIONS: usize = 256;

/// What all runs share.
#[derive(Clone)]
pub struct Gateway {
    /// Where everything is written down.
    pub record: Record,
    /// Credentials, addresses, packs.
    pub inputs: Inputs,
    /// What must not be reachable from inside.
    pub canaries: Canaries,
    /// Waits for what is under way when the process ends.
    pub tracker: TaskTracker,
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Our own provision or collect, by the socket that it came through.
    Pod,
    /// Relay and exec of the agent's sandbox, by the socket: the agent's own requests come through here.
    Agent,
    /// The broker of a pod, by its token: it speaks for all of them, and lets an agent say only what the relay offers.
    Broker,
}

impl Role {
    fn speaks_for(self, role: Self) -> bool {
        self == role || self == Self::Broker
    }
}

/// One request's surroundings.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) gateway: Gateway,
    pub(super) live: Arc<Live>,
    stop: CancellationToken,
}

impl Caller {
    /// What a request to this run needs.
    pub(super) fn new(gateway: Gateway, live: Arc<Live>, stop: CancellationToken) -> Self {
        Self {
            gateway,
            live,
            stop,
        }
    }

    /// Does something beside the answer, until the run is no longer served.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.gateway
            .tracker
            .spawn(self.stop.clone().run_until_cancelled_owned(task));
    }
}

/// A request as it comes in, and every answer. A refusal is an answer too, so handlers return it as their error.
pub(super) type PodRequest = Request<Incoming>;
/// A handler's answer; `Err` is a refusal, already in its final shape.
pub(super) type Answer = Result<Response<Body>, Response<Body>>;

impl Gateway {
    /// Serves one run on one socket until `stop`.
    pub fn serve(
        &self,
        listener: UnixListener,
        role: Role,
        live: Arc<Live>,
        stop: CancellationToken,
    ) {
        let caller = Caller::new(self.clone(), live, stop.clone());
        let tracker = self.tracker.clone();
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        self.tracker
            .spawn(stop.clone().run_until_cancelled_owned(async move {
                while let Ok(place) = Arc::clone(&places).acquire_owned().await {
                    match listener.accept().await {
                        Ok((stream, _)) => {
                            let one = connection(stream, role, caller.clone());
                            tracker.spawn(stop.clone().run_until_cancelled_owned(async move {
                                one.await;
                                drop(place);
                            }));
                        }
                        Err(error) => {
                            tracing::warn!(%error, "a connection could not be accepted");
                            tokio::time::sleep(Duration::from_millis(50)).await;
                        }
                    }
                }
            }));
    }
}

async fn connection(stream: UnixStream, role: Role, caller: Caller) {
    let service = service_fn(move |request| {
        let caller = caller.clone();
        async move {
            let answer = lead(request, role, caller).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|refusal| refusal))
        }
    });
    serve_connection(stream, service).await;
}

/// HTTP/1.1 on one connection, to its end.
pub(super) async fn serve_connection<S, F>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: S,
) where
    S: Service<PodRequest, Response = Response<Body>, Error = Infallible, Future = F>,
    F: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
{
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Leads a request to its handler. What a role may not ask is refused like what does not exist.
pub(super) async fn lead(request: PodRequest, role: Role, caller: Caller) -> Answer {
    let (pod, agent) = (role.speaks_for(Role::Pod), role.speaks_for(Role::Agent));
    if agent && request.method() == Method::CONNECT {
        return proxy::connect(request, caller).await;
    }
    if agent && request.uri().scheme().is_some() {
        return proxy::forward(request, caller).await;
    }
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_start_matches('/').splitn(3, '/').collect();
    match (request.method().as_str(), parts.as_slice()) {
        ("GET", ["v1", "plan"]) if pod => Ok(pod_api::plan(&caller)),
        ("GET", ["v1", "packs", rest]) if pod => pod_api::pack(rest, request, &caller).await,
        ("POST", ["v1", "provisioned"]) if pod => pod_api::provisioned(request, &caller).await,
        ("POST", ["v1", "outcome"]) if pod => pod_api::outcome(request, &caller).await,
        ("GET", ["v1", "proof"]) if agent => agent_api::proof_plan(&caller).await,
        ("POST", ["v1", "proof"]) if agent => agent_api::proof(request, &caller).await,
        ("POST", ["v1", "grant"]) if agent => agent_api::grant(request, &caller).await,
        ("POST", ["v1", "ended"]) if agent => agent_api::ended(request, &caller).await,
        (_, ["lookups", ..]) if agent => lookups::call(request, caller).await,
        (_, ["git", ..]) if agent => git_relay::call(request, caller).await,
        _ if agent => {
            let call = calls::open(&caller, Via::Other, request.method(), &path, None);
            Err(call
                .refuse(404, Reason::NotThroughRelay, "no such call", "")
                .await)
        }
        _ => Err(refusal(&Problem::new(
            404,
            Reason::NotThroughRelay,
            "no such call",
            "",
        ))),
    }
}

/// A refusal as an answer: `application/problem+json`.
pub(super) fn refusal(problem: &Problem) -> Response<Body> {
    let body = serde_json::to_vec(problem).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() =
        StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let problem_json = http::HeaderValue::from_static(Problem::CONTENT_TYPE);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, problem_json);
    response
}

/// An answer in JSON.
pub(super) fn json<T: serde::Serialize>(value: &T) -> Response<Body> {
    let mut response = Response::new(Body::from(serde_json::to_vec(value).unwrap_or_default()));
    let json = http::HeaderValue::from_static("application/json");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, json);
    response
}

/// Reads a whole JSON body of at most `limit` bytes.
pub(super) async fn read_json<T: serde::de::DeserializeOwned>(
    request: PodRequest,
    limit: usize,
) -> Result<T, Response<Body>> {
    let wrong = |detail: String| refusal(&Problem::new(400, Reason::Bug, detail, ""));
    let body = axum::body::to_bytes(Body::new(request.into_body()), limit)
        .await
        .map_err(|_| {
            wrong(format!(
                "the body breaks off or is larger than {limit} bytes"
            ))
        })?;
    serde_json::from_slice(&body)
        .map_err(|error| wrong(format!("the body does not decode: {error}")))
}
