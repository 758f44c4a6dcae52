//! A gateway of one run: real HTTP on a Unix socket, with switchable faults.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_RANGE, RANGE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use sandboxrun::api::Reason;
use sandboxrun::api::wire::{
    AgentEnd, GrantLine, GrantRequest, Outcome, Plan, PlannedInput, Problem, ProofPlan,
    ProofReport, ProvisionReport,
};
use serde::de::DeserializeOwned;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use crate::repository::PackOf;

type Body = BoxBody<Bytes, std::io::Error>;

/// What the gateway says, and what it heard.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) plan: Option<Plan>,
    pub(crate) files: HashMap<String, Vec<u8>>,
    /// Breaks the first connections for a path after so many bytes.
    pub(crate) cuts: HashMap<String, Vec<usize>>,
    /// Answers a path this way, so many times.
    pub(crate) refusals: HashMap<String, (usize, Problem)>,
    /// Sends the head for this path, and then nothing.
    pub(crate) hang: Option<String>,
    /// Takes so many grant requests and then loses the answer.
    pub(crate) lost_grants: usize,
    /// What a grant is answered with, instead of a yes.
    pub(crate) grant_answer: Option<String>,
    /// Answers nothing any more, but stays connected.
    pub(crate) deaf: bool,
    /// Says that a nonce arrived.
    pub(crate) udp_open: bool,
    pub(crate) canaries: Vec<sandboxrun::api::wire::Canary>,
    pub(crate) timeout_secs: u64,
    pub(crate) stall_secs: Option<u64>,
    pub(crate) provisioned: Option<ProvisionReport>,
    pub(crate) proofs: Vec<ProofReport>,
    pub(crate) nonces: Vec<String>,
    pub(crate) ended: Option<AgentEnd>,
    pub(crate) outcome: Option<Outcome>,
    /// Method, path and `Range` of every request.
    pub(crate) requests: Vec<String>,
    /// Open grant streams.
    pub(crate) streams: Vec<mpsc::UnboundedSender<GrantLine>>,
}

/// A server that ends with the test.
pub(crate) struct Server {
    dir: tempfile::TempDir,
    pub(crate) state: Arc<Mutex<State>>,
    _runtime: tokio::runtime::Runtime,
}

impl Server {
    pub(crate) fn new(inputs: Vec<(PlannedInput, PackOf)>) -> Self {
        let mut state = State {
            timeout_secs: 60,
            ..State::default()
        };
        let mut planned = Vec::new();
        for (input, pack) in inputs {
            state
                .files
                .insert(format!("/v1/packs/{}/pack", input.name), pack.pack);
            state
                .files
                .insert(format!("/v1/packs/{}/idx", input.name), pack.index);
            planned.push(input);
        }
        state.plan = Some(Plan {
            run: "0a1b".parse().unwrap(),
            attempt: sandboxrun::api::Attempt::FIRST,
            inputs: planned,
            prompt: None,
            context: Vec::new(),
        });
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Mutex::new(state));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = {
            let _guard = runtime.enter();
            UnixListener::bind(dir.path().join("gateway.sock")).unwrap()
        };
        runtime.spawn(serve(listener, Arc::clone(&state)));
        Self {
            dir,
            state,
            _runtime: runtime,
        }
    }

    /// One input that is called `app`.
    pub(crate) fn of(pack: PackOf) -> Self {
        Self::new(vec![(pack.planned("app"), pack)])
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("gateway.sock")
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap())
    }

    pub(crate) fn refuse(&self, path: &str, times: usize, status: u16, reason: Reason) {
        let problem = Problem::new(status, reason, "as the test wants", "");
        self.with(|state| state.refusals.insert(path.to_owned(), (times, problem)));
    }

    pub(crate) fn send(&self, line: &GrantLine) {
        self.with(|state| {
            for stream in &state.streams {
                let _gone = stream.send(line.clone());
            }
        });
    }
}

async fn serve(listener: UnixListener, state: Arc<Mutex<State>>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&state), request));
            let _broken = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
                .await;
        });
    }
}

fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed()
}

fn problem(problem: &Problem) -> Response<Body> {
    Response::builder()
        .status(problem.status)
        .header("content-type", Problem::CONTENT_TYPE)
        .body(whole(serde_json::to_vec(problem).unwrap()))
        .unwrap()
}

fn json<T: serde::Serialize>(value: &T) -> Response<Body> {
    Response::new(whole(serde_json::to_vec(value).unwrap()))
}

async fn read<T: DeserializeOwned>(body: Incoming) -> T {
    serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap()
}

async fn answer(
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().to_string();
    let range = request
        .headers()
        .get(RANGE)
        .map(|r| r.to_str().unwrap().to_owned());
    {
        let mut state = state.lock().unwrap();
        let ranged = range.as_deref().unwrap_or_default();
        state.requests.push(
            format!("{} {path} {ranged}", request.method())
                .trim_end()
                .to_owned(),
        );
        if let Some((times, refusal)) = state.refusals.get_mut(&path)
            && *times > 0
        {
            *times -= 1;
            return Ok(problem(refusal));
        }
    }
    if state.lock().unwrap().deaf && path == "/v1/grant" {
        std::future::pending::<()>().await;
    }
    let method = request.method().clone();
    Ok(match (method, path.as_str()) {
        (Method::GET, "/v1/plan") => json(state.lock().unwrap().plan.as_ref().unwrap()),
        (Method::POST, "/v1/provisioned") => {
            let report = read(request.into_body()).await;
            state.lock().unwrap().provisioned = Some(report);
            Response::new(whole(""))
        }
        (Method::GET, "/v1/proof") => {
            let state = state.lock().unwrap();
            let canaries = state.canaries.clone();
            json(&ProofPlan {
                nonce: format!("nonce-{}", state.proofs.len()),
                canaries,
                node: None,
            })
        }
        (Method::POST, "/v1/proof") => {
            let report: ProofReport = read(request.into_body()).await;
            let mut state = state.lock().unwrap();
            let open = !report.open.is_empty() || state.udp_open;
            state.proofs.push(report);
            if open {
                problem(&Problem::new(
                    403,
                    Reason::CanaryOpen,
                    "a canary is open",
                    "",
                ))
            } else {
                Response::new(whole(""))
            }
        }
        (Method::POST, "/v1/grant") => grant(&state, read(request.into_body()).await).await,
        (Method::POST, "/v1/ended") => {
            let end = read(request.into_body()).await;
            state.lock().unwrap().ended = Some(end);
            Response::new(whole(""))
        }
        (Method::POST, "/v1/outcome") => {
            let outcome = read(request.into_body()).await;
            state.lock().unwrap().outcome = Some(outcome);
            Response::new(whole(""))
        }
        (Method::CONNECT, target) => tunnel(target, request),
        (_, "/lookups/echo/all") => {
            // As it comes, without waiting for the end.
            Response::new(request.into_body().map_err(std::io::Error::other).boxed())
        }
        (_, path) if path.starts_with("http://") || path.starts_with("/lookups/") => {
            let text = format!("{} {path}\n{:?}", request.method(), request.headers());
            Response::new(whole(text))
        }
        (_, path) => file(&state, path, range.as_deref()),
    })
}

/// The target of a tunnel says everything back.
fn tunnel(target: &str, request: Request<Incoming>) -> Response<Body> {
    if target != "echo.example.com:443" {
        return problem(&Problem::new(
            403,
            Reason::NoRuleAllows,
            "not this one",
            "egress",
        ));
    }
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(request).await.unwrap();
        let (mut from, mut to) = tokio::io::split(TokioIo::new(upgraded));
        let _broken = tokio::io::copy(&mut from, &mut to).await;
    });
    Response::new(whole(""))
}

async fn grant(state: &Mutex<State>, request: GrantRequest) -> Response<Body> {
    let lost = {
        let mut state = state.lock().unwrap();
        state.nonces.push(request.nonce);
        let lost = state.lost_grants > 0;
        state.lost_grants = state.lost_grants.saturating_sub(1);
        lost
    };
    let (sender, mut receiver) = mpsc::unbounded_channel::<GrantLine>();
    let (frames, body) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(4);
    if lost {
        frames
            .send(Err(std::io::Error::other("lost")))
            .await
            .unwrap();
    } else if let Some(answer) = state.lock().unwrap().grant_answer.clone() {
        return Response::new(whole(answer));
    } else {
        let state = &mut *state.lock().unwrap();
        let (timeout_secs, stall_secs) = (state.timeout_secs, state.stall_secs);
        sender
            .send(GrantLine::Granted {
                timeout_secs,
                stall_secs,
            })
            .unwrap();
        state.streams.push(sender);
    }
    tokio::spawn(async move {
        while let Some(line) = receiver.recv().await {
            let text = serde_json::to_string(&line).unwrap() + "\n";
            if frames.send(Ok(Frame::data(text.into()))).await.is_err() {
                return;
            }
        }
    });
    Response::new(channel_body(body))
}

fn channel_body(receiver: mpsc::Receiver<Result<Frame<Bytes>, std::io::Error>>) -> Body {
    let stream = futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|frame| (frame, receiver))
    });
    BodyExt::boxed(StreamBody::new(stream))
}

fn file(state: &Mutex<State>, path: &str, range: Option<&str>) -> Response<Body> {
    let mut state = state.lock().unwrap();
    let Some(bytes) = state.files.get(path).cloned() else {
        return problem(&Problem::new(
            404,
            Reason::NotThroughRelay,
            "no such thing",
            "",
        ));
    };
    if state.hang.as_deref() == Some(path) {
        let nothing = futures::stream::pending::<Result<Frame<Bytes>, std::io::Error>>();
        return Response::new(BodyExt::boxed(StreamBody::new(nothing)));
    }
    let start: usize = range
        .and_then(|r| r.strip_prefix("bytes="))
        .and_then(|r| r.strip_suffix('-'))
        .map_or(0, |n| n.parse().unwrap());
    let rest = Bytes::from(bytes[start..].to_vec());
    let cut = state
        .cuts
        .get_mut(path)
        .filter(|c| !c.is_empty())
        .map(|c| c.remove(0));
    let mut response = Response::builder();
    if range.is_some() {
        let whole = bytes.len();
        response = response.status(206).header(
            CONTENT_RANGE,
            format!("bytes {start}-{}/{whole}", whole - 1),
        );
    }
    let body = match cut {
        None => whole(rest),
        Some(cut) => {
            let head = rest.slice(..cut.min(rest.len()));
            let frames = futures::stream::unfold(0, move |step| {
                let head = head.clone();
                async move {
                    match step {
                        0 => Some((Ok(Frame::data(head)), 1)),
                        1 => {
                            // The first part is on its way before the connection breaks.
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            Some((Err(std::io::Error::other("cut")), 2))
                        }
                        _ => None,
                    }
                }
            });
            BodyExt::boxed(StreamBody::new(Box::pin(frames)))
        }
    };
    response.body(body).unwrap()
}
