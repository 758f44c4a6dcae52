//! The relay: what the agent may reach of the gateway, on 127.0.0.1.
//!
//! Lookups, git and the proxy are passed on as they come, both ways, without holding a body; everything else of the
//! gateway's API is refused here. It holds no credential, and decides nothing: rules and record are the gateway's.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::api::wire::{Problem, TOKEN_HEADER};
use crate::api::{Fault, Reason};
use crate::pod::client::{CallError, Gateway};

/// Why there is no relay.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The port is taken, or loopback is down.
    #[error("cannot listen on 127.0.0.1:{port}")]
    Bind {
        /// The port.
        port: u16,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl Fault for RelayError {
    fn reason(&self) -> Reason {
        Reason::SandboxUnavailable
    }
}

/// Connections at once; more wait to be accepted. Each takes about 40 KiB, so all of them stay below 15 MiB.
const CONNECTIONS: usize = 256;
/// A client that sends no request for this long loses its connection, and makes room.
const IDLE: Duration = Duration::from_mins(1);

/// A relay that listens.
pub(super) struct Relay {
    listener: TcpListener,
    gateway: Gateway,
    port: u16,
}

type Body = BoxBody<Bytes, hyper::Error>;

impl Relay {
    /// Listens on 127.0.0.1.
    ///
    /// # Errors
    /// When the port is taken.
    pub(super) async fn bind(port: u16, gateway: Gateway) -> Result<Self, RelayError> {
        let failed = |source| RelayError::Bind { port, source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .await
            .map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        Ok(Self {
            listener,
            gateway,
            port,
        })
    }

    /// Relays until it is dropped.
    pub(super) async fn serve(self) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let gateway = self.gateway.clone();
                    let port = self.port;
                    crate::pod::spawn(async move {
                        serve_connection(stream, gateway, port).await;
                        drop(place);
                    });
                }
                // Out of descriptors: wait until some are free again.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, gateway: Gateway, port: u16) {
    let _unimportant = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let gateway = gateway.clone();
        async move { Ok::<_, Infallible>(answer(&gateway, port, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // A client that breaks off is its own affair.
    let _broken = connection.await;
}

async fn answer(gateway: &Gateway, port: u16, request: Request<Incoming>) -> Response<Body> {
    let refused = |detail: &str| problem(&Problem::new(403, Reason::NotThroughRelay, detail, ""));
    let Some(target) = target(&request, port) else {
        return refused("the relay does not offer this");
    };
    match forward(gateway, request, target).await {
        Ok(response) => response,
        Err(error @ CallError::Unwritable(_)) => refused(&error.to_string()),
        Err(error) => problem(&Problem::new(
            503,
            Reason::GatewayBusy,
            error.to_string(),
            "",
        )),
    }
}

/// What the gateway is asked for; `None`: the relay does not offer it.
fn target<B>(request: &Request<B>, port: u16) -> Option<Uri> {
    let uri = request.uri();
    if request.method() == Method::CONNECT {
        let authority = uri.authority()?;
        authority.port_u16()?;
        return Some(uri.clone());
    }
    match uri.authority() {
        // Absolute form: a plain request through the proxy, or one of a client that uses the proxy for us, too.
        Some(authority) if !is_ourselves(authority.as_str(), port) => {
            (uri.scheme_str() == Some("http")).then(|| uri.clone())
        }
        Some(_) | None => {
            let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
            is_offered(uri.path()).then(|| path.parse().ok()).flatten()
        }
    }
}

fn is_ourselves(authority: &str, port: u16) -> bool {
    ["127.0.0.1", "localhost"]
        .iter()
        .any(|host| authority == format!("{host}:{port}"))
}

/// Whether a path leads to lookups or git, with whatever `..` in it.
fn is_offered(path: &str) -> bool {
    let mut parts: Vec<String> = Vec::new();
    for part in path.split('/').skip(1) {
        match part.to_ascii_lowercase().replace("%2e", ".").as_str() {
            ".." => {
                parts.pop();
                if parts.is_empty() {
                    return false;
                }
            }
            "." => {}
            plain => parts.push(plain.to_owned()),
        }
    }
    path.starts_with('/')
        && parts.len() >= 2
        && matches!(parts.first().map(String::as_str), Some("lookups" | "git"))
}

async fn forward(
    gateway: &Gateway,
    mut request: Request<Incoming>,
    target: Uri,
) -> Result<Response<Body>, CallError> {
    let tunnel = (request.method() == Method::CONNECT).then(|| hyper::upgrade::on(&mut request));
    *request.uri_mut() = target;
    drop_hop_by_hop(request.headers_mut());
    if !request.headers().contains_key(HOST) {
        request
            .headers_mut()
            .insert(HOST, HeaderValue::from_static("gateway"));
    }
    let mut response = gateway.exchange(request.map(BodyExt::boxed)).await?;
    if let Some(client) = tunnel
        && response.status().is_success()
    {
        let upstream = hyper::upgrade::on(&mut response);
        crate::pod::spawn(async move {
            if let Ok((client, upstream)) = tokio::try_join!(client, upstream) {
                let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
                let _broken = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
            }
        });
        return Ok(Response::new(empty()));
    }
    if is_about_us(&response) {
        // The agent did nothing wrong, and a moment later it works.
        let detail = "the gateway does not know this pod yet";
        return Ok(problem(&Problem::new(503, Reason::GatewayBusy, detail, "")));
    }
    drop_hop_by_hop(response.headers_mut());
    Ok(response.map(BodyExt::boxed))
}

/// Whether the gateway refused the broker's own token. An upstream's 401 never comes through as such.
fn is_about_us<B>(response: &Response<B>) -> bool {
    response.status() == StatusCode::UNAUTHORIZED && response.headers().contains_key(TOKEN_HEADER)
}

/// Headers that belong to one connection. How a body is framed is decided anew for the next one.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

fn problem(problem: &Problem) -> Response<Body> {
    let body = serde_json::to_vec(problem).unwrap_or_default();
    let mut response = Response::new(
        Full::new(Bytes::from(body))
            .map_err(|never| match never {})
            .boxed(),
    );
    *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::FORBIDDEN);
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static(Problem::CONTENT_TYPE),
    );
    response
}

fn empty() -> Body {
    Full::new(Bytes::new())
        .map_err(|never| match never {})
        .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn asked(method: &str, uri: &str) -> Option<String> {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        target(&request, 7070).map(|uri| uri.to_string())
    }

    #[rstest]
    #[case::lookup("GET", "/lookups/tickets/1?q=a%2e", Some("/lookups/tickets/1?q=a%2e"))]
    #[case::git("POST", "/git/app/git-upload-pack", Some("/git/app/git-upload-pack"))]
    #[case::proxy("GET", "http://example.com/x", Some("http://example.com/x"))]
    #[case::tunnel("CONNECT", "example.com:443", Some("example.com:443"))]
    #[case::proxy_to_ourselves("GET", "http://127.0.0.1:7070/lookups/a/b", Some("/lookups/a/b"))]
    #[case::dots_inside("GET", "/lookups/a/x/../y", Some("/lookups/a/x/../y"))]
    #[case::grant("POST", "/v1/grant", None)]
    #[case::grant_by_proxy("POST", "http://127.0.0.1:7070/v1/grant", None)]
    #[case::climbing("POST", "/lookups/../v1/grant", None)]
    #[case::climbing_coded("POST", "/lookups/a/%2e%2E/%2e./v1/grant", None)]
    #[case::only_a_prefix("GET", "/lookupsx/a", None)]
    #[case::no_name("GET", "/lookups", None)]
    #[case::root("GET", "/", None)]
    #[case::tunnel_without_port("CONNECT", "example.com", None)]
    fn the_relay_offers_lookups_git_and_the_proxy_only(
        #[case] method: &str,
        #[case] uri: &str,
        #[case] want: Option<&str>,
    ) {
        assert_eq!(asked(method, uri).as_deref(), want);
    }

    #[test]
    fn headers_of_one_connection_do_not_travel() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "x-own, close"),
            ("x-own", "1"),
            ("te", "trailers"),
            ("x-kept", "1"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        drop_hop_by_hop(&mut headers);
        assert_eq!(
            headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["x-kept"]
        );
    }
}
