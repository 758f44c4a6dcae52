//! The same server over TLS, for pods that are not on this machine: each request shows a token, and the token says whose
//! request it is.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use http::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::live::Live;
use super::places::{Place, Strangers};
use super::server::{Answer, Caller, Gateway, PodRequest, Role, lead, refusal, serve_connection};
use crate::api::Reason;
use crate::api::wire::{Problem, TOKEN_HEADER};

/// A handshake takes a few round trips.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections that are open at once, over all pods: each live run holds one for its grant, and a few while it calls.
const CONNECTIONS: usize = 32 * 1024;

/// Whose request it is, as far as can be said now.
#[derive(Debug, Clone)]
pub enum Identified {
    /// The current attempt of a run that lives.
    Run(Arc<Live>),
    /// Nobody's: the token is not valid, or its pod is not that of a run's current attempt.
    Nobody,
    /// It cannot be said now: the API server does not answer, or runs are still being read. The pod asks again, for as
    /// long as it takes.
    NotNow,
}

/// Says whose request it is.
pub trait Identity: Send + Sync {
    /// The run and attempt that a token belongs to. The token is a secret: never log it.
    fn identify<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Identified>;
}

/// What every connection needs.
#[derive(Clone)]
struct Door {
    gateway: Gateway,
    acceptor: TlsAcceptor,
    identity: Arc<dyn Identity>,
    stop: CancellationToken,
}

impl Gateway {
    /// Serves all runs that `identity` knows, over TLS, until `stop`.
    pub fn serve_tls(
        &self,
        listener: TcpListener,
        tls: Arc<rustls::ServerConfig>,
        identity: Arc<dyn Identity>,
        stop: CancellationToken,
    ) {
        let door = Door {
            gateway: self.clone(),
            acceptor: TlsAcceptor::from(tls),
            identity,
            stop: stop.clone(),
        };
        self.tracker
            .spawn(stop.run_until_cancelled_owned(accept(listener, door)));
    }
}

async fn accept(listener: TcpListener, door: Door) {
    let strangers = Arc::new(Strangers::default());
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let (stream, peer) = match listener.accept().await {
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(stranger) = strangers.enter(peer, Instant::now()) else {
            tracing::debug!(%peer, "a peer holds too many connections without a token");
            continue;
        };
        let one = connection(door.clone(), stream, peer, stranger);
        door.gateway
            .tracker
            .spawn(door.stop.clone().run_until_cancelled_owned(async move {
                one.await;
                drop(place);
            }));
    }
}

async fn connection(door: Door, stream: TcpStream, peer: IpAddr, stranger: Place) {
    let _unimportant = stream.set_nodelay(true);
    let shaken = tokio::time::timeout(HANDSHAKE, door.acceptor.accept(stream)).await;
    let Ok(Ok(stream)) = shaken else {
        tracing::debug!(%peer, "a TLS handshake failed");
        return;
    };
    let standing = Arc::new(Mutex::new(Standing::Stranger(Some(stranger))));
    let service = service_fn(move |request: PodRequest| {
        let (door, standing) = (door.clone(), Arc::clone(&standing));
        async move {
            let answer = answer(request, door, &standing).await;
            Ok::<_, std::convert::Infallible>(answer.unwrap_or_else(|refusal| refusal))
        }
    });
    serve_connection(stream, service).await;
}

/// Whose connection this is by now, and the place that it takes.
enum Standing {
    /// It has shown nothing yet.
    Stranger(Option<Place>),
    /// One of this run's own places.
    Known {
        live: Arc<Live>,
        _place: OwnedSemaphorePermit,
    },
}

async fn answer(request: PodRequest, door: Door, standing: &Mutex<Standing>) -> Answer {
    let token = request.headers().get(TOKEN_HEADER);
    let identified = match token.and_then(|value| value.to_str().ok()) {
        Some(token) => door.identity.identify(token).await,
        None => Identified::Nobody,
    };
    let live = match identified {
        Identified::Run(live) => live,
        Identified::Nobody => {
            let mut answer = refusal(&Problem::new(
                401,
                Reason::IdentityUnknown,
                "no such pod",
                "",
            ));
            // Who has nothing to show makes room for others.
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
            // So that a relay can tell our 401 from another server's.
            let unknown = HeaderValue::from_static("unknown");
            answer.headers_mut().insert(TOKEN_HEADER, unknown);
            return Err(answer);
        }
        Identified::NotNow => {
            let detail = "it cannot be said yet whose pod this is";
            return Err(refusal(&Problem::new(503, Reason::GatewayBusy, detail, "")));
        }
    };
    if !settle(standing, &live) {
        let detail = "the run holds too many connections";
        let mut answer = refusal(&Problem::new(503, Reason::GatewayBusy, detail, ""));
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
        return Err(answer);
    }
    let caller = Caller::new(door.gateway, live, door.stop);
    lead(request, Role::Broker, caller).await
}

/// Gives the connection one of the run's places. False: the run has none left.
fn settle(standing: &Mutex<Standing>, live: &Arc<Live>) -> bool {
    let mut standing = standing.lock().unwrap_or_else(PoisonError::into_inner);
    if let Standing::Known { live: known, .. } = &*standing
        && Arc::ptr_eq(known, live)
    {
        return true;
    }
    match Arc::clone(&live.places).try_acquire_owned() {
        Ok(place) => {
            if let Standing::Stranger(stranger) = &mut *standing
                && let Some(stranger) = stranger.take()
            {
                stranger.known();
            }
            *standing = Standing::Known {
                live: Arc::clone(live),
                _place: place,
            };
            true
        }
        Err(_) => false,
    }
}
