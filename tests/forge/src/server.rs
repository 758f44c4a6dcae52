//! The TLS listeners, and what each request goes through.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{Request, Response};
use axum_server::Handle;
use axum_server::accept::Accept;
use axum_server::tls_rustls::RustlsConfig;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use crate::error::doing;
use crate::git_http::{self, Dropped, Target};
use crate::{ForgeError, State, auth};

/// A listener that is being served until it is dropped.
pub(crate) struct Listener {
    pub(crate) addr: SocketAddr,
    handle: Handle<SocketAddr>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.handle.shutdown();
        self.task.abort();
    }
}

/// Binds and serves.
pub(crate) fn listen(
    state: &Arc<State>,
    addr: SocketAddr,
    tls: RustlsConfig,
) -> Result<Listener, ForgeError> {
    let listener = TcpListener::bind(addr).map_err(doing(format!("listening on {addr}")))?;
    let addr = listener
        .local_addr()
        .map_err(doing("asking for the own address"))?;
    let handle = Handle::new();
    let counters = Arc::clone(&state.counters);
    let server = axum_server::from_tcp_rustls(listener, tls)
        .map_err(doing(format!("listening on {addr}")))?
        .http1_only()
        .handle(handle.clone())
        .map(|inner| Counting { inner, counters });
    let state = Arc::clone(state);
    let connection = tower::service_fn(move |_peer: SocketAddr| {
        let state = Arc::clone(&state);
        ready(Ok::<_, Infallible>(tower::service_fn(move |request| {
            serve(Arc::clone(&state), request)
        })))
    });
    let task = tokio::spawn(async move {
        // It ends with the handle's shutdown; a listener that breaks is seen by the next client.
        drop(server.serve(connection).await);
    });
    Ok(Listener { addr, handle, task })
}

async fn serve(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, Dropped> {
    let (parts, body) = request.into_parts();
    let credential = auth::credential(&parts.headers);
    let entry = state.log.enter(&parts, credential.clone());
    let body = Body::new(body);
    let target = Target::parse(parts.uri.path(), parts.uri.query());
    let response = if let Some(target) = target {
        git_http::answer(&state, target, parts, body, &credential, &entry).await?
    } else {
        match state
            .api
            .clone()
            .oneshot(Request::from_parts(parts, body))
            .await
        {
            Ok(response) => response,
            Err(never) => match never {},
        }
    };
    entry.note(|request| request.status = Some(response.status().as_u16()));
    Ok(response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            if let Some(piece) = frame.data_ref() {
                entry.sent(piece);
            }
            frame
        }))
    }))
}

/// What went over all connections of a forge, above TLS.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
}

/// Counts what passes between TLS and HTTP.
#[derive(Clone)]
struct Counting<A> {
    inner: A,
    counters: Arc<Counters>,
}

type Accepted<I, S> = Pin<Box<dyn Future<Output = io::Result<(Counted<I>, S)>> + Send>>;

impl<A, S> Accept<TcpStream, S> for Counting<A>
where
    A: Accept<TcpStream, S>,
    A::Future: Send + 'static,
{
    type Stream = Counted<A::Stream>;
    type Service = A::Service;
    type Future = Accepted<A::Stream, A::Service>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        let counters = Arc::clone(&self.counters);
        // A test server's small packets are not to wait for each other.
        let prepared = stream.set_nodelay(true);
        let accepted = self.inner.accept(stream, service);
        Box::pin(async move {
            prepared?;
            let (stream, service) = accepted.await?;
            Ok((Counted { stream, counters }, service))
        })
    }
}

/// A stream that is counted.
struct Counted<I> {
    stream: I,
    counters: Arc<Counters>,
}

impl<I: AsyncRead + Unpin> AsyncRead for Counted<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let read = buf.filled().len().saturating_sub(before);
        self.counters
            .received
            .fetch_add(read as u64, Ordering::Relaxed);
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Counted<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(written)) = &polled {
            self.counters
                .sent
                .fetch_add(*written as u64, Ordering::Relaxed);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
