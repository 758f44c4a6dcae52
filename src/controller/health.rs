//! `/healthz`, `/readyz` and `/metrics`, for the kubelet and for Prometheus.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;

/// Whether the operator works. Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// From now on it is ready: it leads, its caches are filled and its gateway listens. Or it is not any more.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Whether it is.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Serves `/healthz` and `/readyz` until `stop`.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn serve_health(
    at: SocketAddr,
    ready: Readiness,
    stop: CancellationToken,
) -> std::io::Result<impl Future<Output = ()>> {
    let ready = move || {
        let ready = ready.clone();
        async move {
            if ready.get() {
                (StatusCode::OK, "ready\n")
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
            }
        }
    };
    let router = Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready));
    serve(at, router, stop).await
}

/// Serves `/metrics` until `stop`.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn serve_metrics(
    at: SocketAddr,
    metrics: Metrics,
    stop: CancellationToken,
) -> std::io::Result<impl Future<Output = ()>> {
    let text = move || {
        let text = metrics.text();
        async move {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
    };
    serve(at, Router::new().route("/metrics", get(text)), stop).await
}

async fn serve(
    at: SocketAddr,
    router: Router,
    stop: CancellationToken,
) -> std::io::Result<impl Future<Output = ()>> {
    let listener = TcpListener::bind(at).await?;
    Ok(async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = served.await {
            tracing::error!(%error, "the health server ended");
        }
    })
}
