//! Connections to the gateway: made, kept warm for a while, and handed out again.
//!
//! A TLS handshake costs more than a lookup may, so a TLS connection whose answer has ended waits for the next call. It
//! waits less long than the gateway lets it, so that no call meets a connection that is just being closed. A connection
//! over a socket costs next to nothing, and is made anew.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::{CallError, GatewayError};

/// A request's body, whoever made it.
pub(crate) type RequestBody = BoxBody<Bytes, hyper::Error>;

/// How long a connection may take to be there, handshake included.
const CONNECT: Duration = Duration::from_secs(10);
/// Connections that wait for their next call: as many as the gateway serves at once for one run. Each takes some 40 KiB.
const IDLE: usize = 64;
/// How long they wait: the gateway closes one that is silent for 30 s.
const IDLE_FOR: Duration = Duration::from_secs(20);
/// How long a connection may take to be ready again after its answer has ended: it is a matter of one turn.
const READY: Duration = Duration::from_millis(50);
/// A peer that confirms nothing for this long is gone, though nobody said so: a node that was switched off.
const PEER_GONE: Duration = Duration::from_secs(20);
/// A silent connection is asked this often whether its peer is there.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// Ways to one gateway.
pub(super) struct Ways {
    way: Way,
    idle: Mutex<Vec<Idle>>,
}

enum Way {
    Unix(PathBuf),
    Tls {
        address: SocketAddr,
        name: ServerName<'static>,
        connector: TlsConnector,
    },
}

struct Idle {
    sender: SendRequest<RequestBody>,
    since: Instant,
}

impl Ways {
    pub(super) fn unix(path: PathBuf) -> Self {
        Self {
            way: Way::Unix(path),
            idle: Mutex::default(),
        }
    }

    /// TLS 1.3 to an address, trusted by these certificates (PEM) alone.
    pub(super) fn tls(address: SocketAddr, ca: &[u8]) -> Result<Self, GatewayError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca) {
            let certificate = certificate.map_err(|error| GatewayError::Ca(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| GatewayError::Ca(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(GatewayError::Ca("it holds no certificate".to_owned()));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| GatewayError::Ca(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            way: Way::Tls {
                address,
                name: ServerName::IpAddress(address.ip().into()),
                connector: TlsConnector::from(Arc::new(config)),
            },
            idle: Mutex::default(),
        })
    }

    /// A connection that waits and is still good.
    pub(super) async fn warm(&self) -> Option<SendRequest<RequestBody>> {
        loop {
            let Idle { mut sender, since } = self
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop()?;
            if since.elapsed() < IDLE_FOR
                && let Ok(Ok(())) = tokio::time::timeout(READY, sender.ready()).await
            {
                return Some(sender);
            }
        }
    }

    /// A connection of its own.
    pub(super) async fn fresh(&self) -> Result<SendRequest<RequestBody>, CallError> {
        let connect = async {
            match &self.way {
                Way::Unix(path) => {
                    shaken(
                        UnixStream::connect(path)
                            .await
                            .map_err(CallError::Connect)?,
                    )
                    .await
                }
                Way::Tls {
                    address,
                    name,
                    connector,
                } => {
                    let stream = TcpStream::connect(address)
                        .await
                        .map_err(CallError::Connect)?;
                    watchful(&stream).map_err(CallError::Connect)?;
                    let stream = connector.connect(name.clone(), stream).await;
                    shaken(stream.map_err(CallError::Connect)?).await
                }
            }
        };
        // In a box: a handshake's state is large, and every call would carry it along.
        tokio::time::timeout(CONNECT, Box::pin(connect))
            .await
            .map_err(|_| CallError::TimedOut { limit: CONNECT })?
    }

    /// Keeps a connection whose answer has ended, if there is room. The one that waited longest goes.
    fn keep(&self, sender: SendRequest<RequestBody>) {
        if sender.is_closed() || matches!(self.way, Way::Unix(_)) {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() >= IDLE {
            idle.remove(0);
        }
        idle.push(Idle {
            sender,
            since: Instant::now(),
        });
    }
}

/// Small packets go at once, and a peer that vanished is noticed.
fn watchful(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let millis = u32::try_from(PEER_GONE.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, millis)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    Ok(())
}

async fn shaken(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<RequestBody>, CallError> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(CallError::Broken)?;
    // Ends by itself when the sender and the answer's body are dropped.
    crate::pod::spawn(async move {
        let _ended = connection.with_upgrades().await;
    });
    Ok(sender)
}

/// The body of an answer. Its connection lives as long as it does, and waits for the next call when it has ended.
pub(crate) struct AnswerBody {
    body: Incoming,
    sender: Option<SendRequest<RequestBody>>,
    /// Where the connection goes then; `None`: nowhere.
    ways: Option<Arc<Ways>>,
}

impl AnswerBody {
    pub(super) fn new(
        body: Incoming,
        sender: SendRequest<RequestBody>,
        ways: Option<Arc<Ways>>,
    ) -> Self {
        let mut answer = Self {
            body,
            sender: Some(sender),
            ways,
        };
        answer.release_at_end();
        answer
    }

    fn release_at_end(&mut self) {
        if self.body.is_end_stream() {
            self.release();
        }
    }

    fn release(&mut self) {
        if let (Some(sender), Some(ways)) = (self.sender.take(), self.ways.take()) {
            ways.keep(sender);
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            None => self.release(),
            Some(Ok(_)) => self.release_at_end(),
            Some(Err(_)) => self.ways = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
