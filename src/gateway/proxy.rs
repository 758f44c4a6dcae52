//! The proxy: tunnels (`CONNECT`) and plain requests to the hosts that the run allows.
//!
//! The gateway resolves the allowed name, checks every address, and connects to the one it checked. It does not look into
//! TLS but for one thing: a client hello that names another host than the tunnel was opened for ends the tunnel.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use http::{Response, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::calls::{self, Counter, OpenCall};
use super::lookups::forwarded;
use super::server::{Answer, Caller, PodRequest};
use crate::api::{Fault as _, Reason};
use crate::audit::Via;

/// How long one address may take to connect; then the next is tried.
const CONNECT: Duration = Duration::from_secs(10);
/// A client hello is smaller than this; more is no client hello.
const HELLO_BYTES: usize = 64 * 1024;
/// What is copied at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// First byte of a TLS handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

/// `CONNECT host:port`.
pub(super) async fn connect(request: PodRequest, caller: Caller) -> Answer {
    let (host, port) = host_and_port(request.uri(), None);
    let call = calls::open(
        &caller,
        Via::Proxy,
        request.method(),
        &format!("{host}:{port}"),
        None,
    );
    let (call, upstream) = dialled(call, &caller, &host, port).await?;
    let counter = call.answered(200);
    // Not longer than the run: the other side of a tunnel may stay silent for ever.
    caller.spawn(async move {
        match hyper::upgrade::on(request).await {
            Ok(agent) => tunnel(TokioIo::new(agent), upstream, &host, counter).await,
            Err(error) => tracing::debug!(%error, "a tunnel was not taken up"),
        }
    });
    Ok(Response::new(Body::empty()))
}

/// `GET http://host/path`: the same rule, without TLS.
pub(super) async fn forward(request: PodRequest, caller: Caller) -> Answer {
    let (host, port) = host_and_port(request.uri(), Some(80));
    let target = format!("{host}:{port}");
    let call = calls::open(
        &caller,
        Via::Proxy,
        request.method(),
        &target,
        request.uri().query(),
    );
    if request.uri().scheme_str() != Some("http") {
        return Err(call
            .refuse(
                400,
                Reason::NoRuleAllows,
                "use CONNECT for anything but http",
                "egress.allow",
            )
            .await);
    }
    let (call, upstream) = dialled(call, &caller, &host, port).await?;
    send(request, upstream, call, &caller, &target).await
}

/// Connects a call to where it may go, once it is announced.
async fn dialled(
    mut call: OpenCall,
    caller: &Caller,
    host: &str,
    port: u16,
) -> Result<(OpenCall, TcpStream), Response<Body>> {
    if let Err(detail) = allowed(caller, host, port) {
        return Err(call
            .refuse(403, Reason::NoRuleAllows, detail, "egress.allow")
            .await);
    }
    call.begin().await?;
    match dial(caller, host, port).await {
        Ok(upstream) => Ok((call, upstream)),
        Err((status, reason, detail)) => Err(call.fail(status, reason, &detail).await),
    }
}

async fn send(
    request: PodRequest,
    upstream: TcpStream,
    call: OpenCall,
    caller: &Caller,
    target: &str,
) -> Answer {
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(upstream)).await;
    let (mut sender, connection) = match shaken {
        Ok(pair) => pair,
        Err(error) => {
            return Err(call
                .fail(502, Reason::UpstreamUnreachable, &error.to_string())
                .await);
        }
    };
    caller.spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a plain connection ended early");
        }
    });
    let (mut parts, body) = request.into_parts();
    // The agent speaks for itself here: its own credentials may go along, hop-by-hop headers may not.
    let own = [header::AUTHORIZATION, header::COOKIE]
        .map(|name| (parts.headers.get(&name).cloned(), name));
    parts.headers = forwarded(&parts.headers);
    for (value, name) in own {
        if let Some(value) = value {
            parts.headers.insert(name, value);
        }
    }
    if let Ok(host) = target.trim_end_matches(":80").parse() {
        parts.headers.insert(header::HOST, host);
    }
    parts.uri = parts
        .uri
        .path_and_query()
        .map_or_else(|| Uri::from_static("/"), |path| Uri::from(path.clone()));
    match sender
        .send_request(http::Request::from_parts(parts, body))
        .await
    {
        Ok(answer) => {
            let counter = call.answered(answer.status().as_u16());
            Ok(answer.map(|body| Body::new(CountedBody { body, counter })))
        }
        Err(error) => Err(call
            .fail(502, Reason::UpstreamUnreachable, &error.to_string())
            .await),
    }
}

/// A body that is counted frame by frame.
struct CountedBody {
    body: hyper::body::Incoming,
    counter: Counter,
}

impl hyper::body::Body for CountedBody {
    type Data = axum::body::Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
        let frame = std::task::ready!(std::pin::Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.counter
                .add(frame.data_ref().map_or(0, axum::body::Bytes::len));
        }
        std::task::Poll::Ready(frame)
    }
}

/// Host in lower case without a trailing dot or IPv6 brackets, and port; port 0 where none is named.
fn host_and_port(uri: &Uri, default: Option<u16>) -> (String, u16) {
    let host = uri
        .host()
        .unwrap_or_default()
        .trim_end_matches('.')
        .to_ascii_lowercase();
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    (host, uri.port_u16().or(default).unwrap_or(0))
}

fn allowed(caller: &Caller, host: &str, port: u16) -> Result<(), &'static str> {
    let rules = &caller.live.parts.spec.egress;
    if rules.iter().any(|rule| rule.matches(host, port)) {
        Ok(())
    } else {
        Err("the run does not allow this host and port")
    }
}

/// Connects to a checked address of the host.
async fn dial(caller: &Caller, host: &str, port: u16) -> Result<TcpStream, (u16, Reason, String)> {
    let addresses: Vec<SocketAddr> = caller
        .gateway
        .inputs
        .guard()
        .resolve(host, port)
        .await
        .map_err(|error| {
            let failure = error.failure(None);
            if failure.reason() == Reason::AddressRefused {
                (403, Reason::DestinationRefused, failure.message)
            } else {
                (502, Reason::UpstreamUnreachable, failure.message)
            }
        })?;
    let mut last = "it has no address".to_owned();
    for address in addresses {
        match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => "it does not answer".clone_into(&mut last),
        }
    }
    Err((
        502,
        Reason::UpstreamUnreachable,
        format!("{host}:{port} cannot be reached: {last}"),
    ))
}

/// Copies both ways until both are done. The first bytes of the agent are looked at: another name in a TLS hello is closed.
async fn tunnel(
    agent: impl AsyncRead + AsyncWrite + Unpin,
    upstream: TcpStream,
    host: &str,
    mut counter: Counter,
) {
    let (mut from_agent, mut to_agent) = tokio::io::split(agent);
    let (mut from_upstream, mut to_upstream) = upstream.into_split();
    let up = async {
        let hello = checked_hello(&mut from_agent, host).await?;
        to_upstream.write_all(&hello).await?;
        tokio::io::copy(&mut from_agent, &mut to_upstream).await?;
        to_upstream.shutdown().await
    };
    let passed = counter.bytes();
    let down = async {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = from_upstream.read(&mut chunk).await?;
            if length == 0 {
                return to_agent.shutdown().await;
            }
            to_agent
                .write_all(chunk.get(..length).unwrap_or_default())
                .await?;
            passed.fetch_add(length as u64, Ordering::Relaxed);
        }
    };
    if let Err(error) = tokio::try_join!(up, down) {
        let ours = error.kind() == io::ErrorKind::PermissionDenied;
        counter.broke_off(if ours {
            Reason::NoRuleAllows
        } else {
            Reason::UpstreamUnreachable
        });
    }
}

/// The agent's first bytes, once they are known not to be a TLS hello for another name.
async fn checked_hello(agent: &mut (impl AsyncRead + Unpin), host: &str) -> io::Result<Vec<u8>> {
    let mut first = Vec::with_capacity(2048);
    loop {
        if agent.read_buf(&mut first).await? == 0 || first.first() != Some(&TLS_HANDSHAKE) {
            return Ok(first);
        }
        let mut acceptor = rustls::server::Acceptor::default();
        let mut bytes = first.as_slice();
        while !bytes.is_empty() {
            acceptor.read_tls(&mut bytes)?;
        }
        match acceptor.accept() {
            Ok(None) if first.len() <= HELLO_BYTES => {}
            Ok(Some(accepted)) => {
                let named = accepted
                    .client_hello()
                    .server_name()
                    .map(str::to_ascii_lowercase);
                return match named {
                    Some(name) if name != host => Err(io::ErrorKind::PermissionDenied.into()),
                    Some(_) | None => Ok(first),
                };
            }
            Ok(None) | Err(_) => return Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}
