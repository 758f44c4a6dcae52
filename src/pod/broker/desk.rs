//! Where `exec` asks: a Unix socket that offers the start grant and the agent's end, and nothing else.
//!
//! To `exec` the broker is what answers: once the start is granted, it keeps that connection alive by itself, whether or
//! not the gateway is there, and looks for the gateway on its own ([`super::line`]). So an operator that restarts ends no
//! agent, while a broker that is gone does.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::de::DeserializeOwned;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::timeout;

use super::line;
use super::notes::{Granted, Notes};
use crate::api::Reason;
use crate::api::wire::{AgentEnd, GrantLine, GrantRequest, Problem};
use crate::pod::client::{CallError, Gateway};
use crate::pod::grant::{self, Grant, GrantError};
use crate::pod::retry;

/// A broker that is lost is noticed by `exec` after 30 s without a line: six of these.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// `exec` needs one or two connections; whoever else opens some only waits for himself.
const CONNECTIONS: usize = 16;
/// A client that asks nothing for this long loses its place.
const IDLE: Duration = Duration::from_secs(30);
/// A nonce or an end: a few hundred bytes.
const REQUEST_BYTES: usize = 64 * 1024;
/// `exec` makes a connection that broke again at once. Who does not come back within this time is gone.
const COMES_BACK: Duration = Duration::from_secs(1);
/// The same for a broker that has just been restarted and has not seen its `exec` yet.
const FINDS_US: Duration = Duration::from_secs(3);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What is known of `exec` and its agent.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// The yes, once there is one.
    pub(super) granted: Option<Granted>,
    /// Questions for a yes that are under way.
    pub(super) asking: usize,
    /// Open grant connections.
    pub(super) streams: usize,
    /// Whether one was ever open in this process.
    pub(super) met: bool,
    /// Why the agent is to be stopped.
    pub(super) stop: Option<Reason>,
    /// Whether the gateway knows how the agent ended.
    pub(super) end_told: bool,
    /// The pod is going: nothing starts any more.
    pub(super) closing: bool,
}

impl Seen {
    fn end(&self) -> Option<&AgentEnd> {
        self.granted.as_ref()?.end.as_ref()
    }
}

/// The desk.
#[derive(Debug)]
pub(super) struct Desk {
    gateway: Gateway,
    notes: Notes,
    seen: watch::Sender<Seen>,
    turn: Mutex<()>,
}

impl Desk {
    /// Takes up what an earlier broker of this pod noted.
    pub(super) fn new(gateway: Gateway, baseline: &Path) -> Arc<Self> {
        let notes = Notes::beside(baseline);
        let seen = Seen {
            granted: notes.read(),
            ..Seen::default()
        };
        let desk = Arc::new(Self {
            gateway,
            notes,
            seen: watch::Sender::new(seen.clone()),
            turn: Mutex::default(),
        });
        if let Some(granted) = seen.granted {
            tokio::spawn(line::hold(Arc::clone(&desk), granted.nonce, None));
            if let Some(end) = granted.end {
                tokio::spawn(tell_end(Arc::clone(&desk), end));
            }
        }
        desk
    }

    /// Serves `exec` until it is dropped.
    pub(super) async fn serve(self: Arc<Self>, listener: UnixListener) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let desk = Arc::clone(&self);
                    tokio::spawn(async move {
                        desk.connection(stream).await;
                        drop(place);
                    });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    pub(super) fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    pub(super) fn watch(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// Stops the agent. The first reason stays.
    pub(super) fn stop(&self, reason: Reason) {
        self.seen.send_if_modified(|seen| {
            let first = seen.stop.is_none();
            seen.stop.get_or_insert(reason);
            first
        });
    }

    /// The pod is going: no start is granted any more. Waits for questions that are under way.
    pub(super) async fn close(&self, limit: Duration) {
        self.seen.send_modify(|seen| seen.closing = true);
        let mut seen = self.watch();
        let _too_slow = timeout(limit, seen.wait_for(|seen| seen.asking == 0)).await;
    }

    /// Until `exec`, and so its agent, is gone.
    pub(super) async fn agent_gone(&self) {
        let mut watching = self.watch();
        loop {
            let patience = match watching.wait_for(|seen| seen.streams == 0).await {
                Ok(seen) if seen.end().is_some() => return,
                Ok(seen) if seen.met => COMES_BACK,
                Ok(_) => FINDS_US,
                Err(_) => return,
            };
            let back = watching.wait_for(|seen| seen.streams > 0);
            if timeout(patience, back).await.is_err() {
                return;
            }
        }
    }

    /// Until nobody has come back for a while, but at once when the agent is known to have ended.
    pub(super) async fn left_alone(&self) {
        self.agent_gone().await;
    }

    async fn connection(self: Arc<Self>, stream: UnixStream) {
        let service = service_fn(move |request| {
            let desk = Arc::clone(&self);
            async move { Ok::<_, Infallible>(desk.answer(request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .serve_connection(TokioIo::new(stream), service);
        // A client that breaks off is its own affair.
        let _broken = connection.await;
    }

    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let post = request.method() == Method::POST;
        match request.uri().path() {
            "/v1/grant" if post => match read(request).await {
                Ok(GrantRequest { nonce }) => self.grant(nonce).await,
                Err(refused) => refused,
            },
            "/v1/ended" if post => match read(request).await {
                Ok(end) => self.ended(end),
                Err(refused) => refused,
            },
            _ => refuse(
                404,
                Reason::NotThroughRelay,
                "the broker does not offer this",
            ),
        }
    }

    /// One yes, to one `exec`. The same one gets it again, without the gateway.
    async fn grant(self: &Arc<Self>, nonce: String) -> Response<Body> {
        // In a task of its own: an `exec` that hangs up must not leave a yes that nobody here knows of.
        let desk = Arc::clone(self);
        let decided = tokio::spawn(async move { desk.decide(nonce).await }).await;
        match decided {
            Ok(Ok(granted)) => self.stream(&granted),
            Ok(Err(problem)) => refusal(&problem),
            Err(_) => refuse(503, Reason::GatewayBusy, "the broker is ending"),
        }
    }

    async fn decide(self: &Arc<Self>, nonce: String) -> Result<Granted, Problem> {
        let _turn = self.turn.lock().await;
        let seen = self.seen.borrow().clone();
        if let Some(granted) = seen.granted {
            let no = || Problem::new(409, Reason::GrantLost, "the start was granted before", "");
            return if granted.nonce == nonce {
                Ok(granted)
            } else {
                Err(no())
            };
        }
        if seen.closing {
            return Err(Problem::new(409, Reason::GrantLost, "the pod is going", ""));
        }
        self.seen.send_modify(|seen| seen.asking += 1);
        let asked = grant::request(&self.gateway, &nonce).await;
        let decided = asked.map(|grant| self.note_grant(&nonce, grant));
        self.seen.send_modify(|seen| seen.asking -= 1);
        decided.map_err(|error| problem_of(&error))
    }

    /// Notes the yes before `exec` hears it, and begins to listen to the gateway.
    fn note_grant(self: &Arc<Self>, nonce: &str, grant: Grant) -> Granted {
        let granted = Granted {
            nonce: nonce.to_owned(),
            timeout_secs: grant.timeout.as_secs(),
            stall_secs: grant.stall.map(|stall| stall.as_secs()),
            end: None,
        };
        self.note(&granted);
        let desk = Arc::clone(self);
        tokio::spawn(line::hold(desk, nonce.to_owned(), Some(grant)));
        granted
    }

    fn note(&self, granted: &Granted) {
        if let Err(error) = self.notes.write(granted) {
            eprintln!("sandboxrun-pod broker: a restarted broker will not know the grant: {error}");
        }
        self.seen
            .send_modify(|seen| seen.granted = Some(granted.clone()));
    }

    /// The agent's end, by the word of the `exec` that holds the grant. The gateway learns it when it is there.
    fn ended(self: &Arc<Self>, end: AgentEnd) -> Response<Body> {
        let granted = self.seen.borrow().granted.clone();
        let Some(mut granted) = granted.filter(|granted| granted.nonce == end.nonce) else {
            return refuse(409, Reason::GrantLost, "this exec holds no grant");
        };
        if granted.end.is_none() {
            granted.end = Some(end.clone());
            self.note(&granted);
            tokio::spawn(tell_end(Arc::clone(self), end));
        }
        Response::new(whole("{}"))
    }

    /// The open answer to a grant: lives as long as `exec` does.
    fn stream(self: &Arc<Self>, granted: &Granted) -> Response<Body> {
        let held = Held::new(Arc::clone(self));
        let first = GrantLine::Granted {
            timeout_secs: granted.timeout_secs,
            stall_secs: granted.stall_secs,
        };
        let lines = stream::once(std::future::ready(text(&first))).chain(later_lines(held));
        let frames = lines.map(|line| Ok(Frame::data(line)));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

/// `Stop` as soon as there is a reason, else `Alive` now and then. Never ends by itself.
fn later_lines(held: Held) -> impl Stream<Item = Bytes> + Send {
    let seen = held.0.watch();
    stream::unfold((held, seen, false), |(held, mut seen, told)| async move {
        let reason = next_stop(&mut seen, told).await;
        let line = reason.map_or(GrantLine::Alive, |reason| GrantLine::Stop { reason });
        Some((text(&line), (held, seen, told || reason.is_some())))
    })
}

/// Waits for a reason to stop that was not told yet, but no longer than a line may take.
async fn next_stop(seen: &mut watch::Receiver<Seen>, told: bool) -> Option<Reason> {
    if told {
        tokio::time::sleep(ALIVE_EVERY).await;
        return None;
    }
    let stopped = timeout(ALIVE_EVERY, seen.wait_for(|seen| seen.stop.is_some())).await;
    stopped.ok()?.ok()?.stop
}

/// An open grant connection. Dropped with it.
struct Held(Arc<Desk>);

impl Held {
    fn new(desk: Arc<Desk>) -> Self {
        desk.seen.send_modify(|seen| {
            seen.streams += 1;
            seen.met = true;
        });
        Self(desk)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0
            .seen
            .send_modify(|seen| seen.streams = seen.streams.saturating_sub(1));
    }
}

/// Tells the gateway how the agent ended, for as long as it takes.
async fn tell_end(desk: Arc<Desk>, end: AgentEnd) {
    let gateway = desk.gateway.clone();
    match retry(&gateway, || gateway.post("/v1/ended", &end)).await {
        Ok(()) => desk.seen.send_modify(|seen| seen.end_told = true),
        Err(error) => {
            eprintln!("sandboxrun-pod broker: cannot report the agent's end: {error}");
        }
    }
}

/// Listens where `exec` asks. The new socket takes the place of an old one in one step, so that there is always one.
pub(super) fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let mut made = path.as_os_str().to_owned();
    made.push(".new");
    match fs::remove_file(&made) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&made)?;
    // One uid for all containers of the pod, and nobody else.
    fs::set_permissions(&made, fs::Permissions::from_mode(0o600))?;
    fs::rename(&made, path)?;
    Ok(listener)
}

fn problem_of(error: &GrantError) -> Problem {
    match error {
        GrantError::NotGranted(CallError::Refused { problem, .. }) => (**problem).clone(),
        GrantError::NotGranted(error) => {
            Problem::new(503, Reason::GatewayBusy, error.to_string(), "")
        }
        GrantError::NoYes(_) | GrantError::Nonce => {
            Problem::new(409, Reason::GrantLost, error.to_string(), "")
        }
    }
}

async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Response<Body>> {
    let body = Limited::new(request.into_body(), REQUEST_BYTES);
    let wrong = |detail: String| refuse(400, Reason::Bug, &detail);
    let bytes = body
        .collect()
        .await
        .map_err(|error| wrong(error.to_string()))?
        .to_bytes();
    serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))
}

fn text(line: &GrantLine) -> Bytes {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

fn refuse(status: u16, reason: Reason, detail: &str) -> Response<Body> {
    refusal(&Problem::new(status, reason, detail, ""))
}

fn refusal(problem: &Problem) -> Response<Body> {
    let mut response = Response::new(whole(serde_json::to_vec(problem).unwrap_or_default()));
    *response.status_mut() =
        StatusCode::from_u16(problem.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let problem_json = HeaderValue::from_static(Problem::CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, problem_json);
    response
}
