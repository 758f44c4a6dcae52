//! The same server over TLS, for pods that are not on this machine: each request shows a token, and the token says whose
//! request it is.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::live::Live;
use super::server::{Caller, Gateway, PodRequest, Role, lead, refusal, serve_connection};
use crate::api::Reason;
use crate::api::wire::{Problem, TOKEN_HEADER};

/// A handshake takes a few round trips.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections that are open at once, over all pods: each pod's relay keeps a few.
const CONNECTIONS: usize = 4096;

/// Says whose request it is.
pub trait Identity: Send + Sync {
    /// The run and attempt that a token belongs to; `None`: to none that lives. The token is a secret: never log it.
    fn identify<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Option<Arc<Live>>>;
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
        let (gateway, acceptor) = (self.clone(), TlsAcceptor::from(tls));
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        self.tracker
            .spawn(stop.clone().run_until_cancelled_owned(async move {
                while let Ok(place) = Arc::clone(&places).acquire_owned().await {
                    let stream = match listener.accept().await {
                        Ok((stream, _)) => stream,
                        Err(error) => {
                            tracing::warn!(%error, "a connection could not be accepted");
                            tokio::time::sleep(Duration::from_millis(50)).await;
                            continue;
                        }
                    };
                    let one = connection(
                        gateway.clone(),
                        acceptor.clone(),
                        stream,
                        Arc::clone(&identity),
                        stop.clone(),
                    );
                    gateway
                        .tracker
                        .spawn(stop.clone().run_until_cancelled_owned(async move {
                            one.await;
                            drop(place);
                        }));
                }
            }));
    }
}

async fn connection(
    gateway: Gateway,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    identity: Arc<dyn Identity>,
    stop: CancellationToken,
) {
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
        tracing::debug!("a TLS handshake failed");
        return;
    };
    let service = service_fn(move |request: PodRequest| {
        let (gateway, identity, stop) = (gateway.clone(), Arc::clone(&identity), stop.clone());
        async move {
            let token = request
                .headers()
                .get(TOKEN_HEADER)
                .and_then(|value| value.to_str().ok());
            let live = match token {
                Some(token) => identity.identify(token).await,
                None => None,
            };
            let answer = match live {
                Some(live) => lead(request, Role::Broker, Caller::new(gateway, live, stop)).await,
                None => Err(refusal(&Problem::new(
                    401,
                    Reason::IdentityUnknown,
                    "no such pod",
                    "",
                ))),
            };
            Ok::<_, std::convert::Infallible>(answer.unwrap_or_else(|refusal| refusal))
        }
    });
    serve_connection(stream, service).await;
}
