//! The ticket API and its neighbours: what a gateway forwards lookups to.
//!
//! | path | answer |
//! | --- | --- |
//! | `GET /healthz` | 200, without a token |
//! | `GET /rest/api/2/issue/ID` | a ticket, with the comments it got |
//! | `POST /rest/api/2/issue/ID/comment` | 201; keeps the comment |
//! | `/v1/stream?events=N&delay_ms=D` | N server-sent events, D ms apart |
//! | `/echo/...` | method, path, query, headers and body length as they arrived |
//! | `/redirect?to=URL` | 302 to it |
//! | `GET /bytes/N` | N bytes, streamed |
//! | `/endless` | a body without an end |
//! | `/slow?ms=N` | 200 after N ms |
//! | `/status/CODE` | that status |

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use serde_json::{Value, json};

use crate::git_http::{percent_decode, plain};

/// The token that the API wants, and where.
struct Guard {
    token: Option<String>,
    header: Option<String>,
}

type Comments = Arc<Mutex<HashMap<String, Vec<Value>>>>;

/// All routes that are not git's.
pub(crate) fn router(token: Option<String>, header: Option<String>) -> Router {
    let guard = Arc::new(Guard { token, header });
    Router::new()
        .route("/rest/api/2/issue/{id}", get(issue))
        .route("/rest/api/2/issue/{id}/comment", post(comment))
        .route("/v1/stream", any(events))
        .route("/echo", any(echo))
        .route("/echo/{*rest}", any(echo))
        .route("/redirect", any(redirect))
        .route("/bytes/{count}", get(bytes))
        .route("/endless", any(endless))
        .route("/slow", any(slow))
        .route("/status/{code}", any(status))
        .route_layer(middleware::from_fn_with_state(guard, check))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(Comments::default())
}

async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let Some(token) = &guard.token else {
        return next.run(request).await;
    };
    let (name, expected) = match &guard.header {
        Some(name) => (name.as_str(), token.clone()),
        None => ("authorization", format!("Bearer {token}")),
    };
    let sent = request
        .headers()
        .get(name)
        .map(axum::http::HeaderValue::as_bytes);
    if sent == Some(expected.as_bytes()) {
        return next.run(request).await;
    }
    let text = if sent.is_some() {
        "this token is not known"
    } else {
        "a token is needed"
    };
    (
        StatusCode::UNAUTHORIZED,
        Json(json!({"errorMessages": [text]})),
    )
        .into_response()
}

async fn issue(State(comments): State<Comments>, Path(id): Path<String>) -> Response {
    let Some((project, number)) = ticket(&id) else {
        return no_ticket(&id);
    };
    let kept = comments
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&id)
        .cloned();
    let ticket = json!({
        "key": id,
        "fields": {
            "project": {"key": project},
            "summary": format!("The greeting is wrong in {number} places"),
            "description": "README.md greets nobody. It should greet the reader by name.",
            "status": {"name": "Open"},
            "comment": {"comments": kept.unwrap_or_default()},
        },
    });
    Json(ticket).into_response()
}

async fn comment(
    State(comments): State<Comments>,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    if ticket(&id).is_none() {
        return no_ticket(&id);
    }
    let mut all = comments.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = all.entry(id).or_default();
    let comment = json!({"id": kept.len() + 1, "body": body.get("body")});
    kept.push(comment.clone());
    (StatusCode::CREATED, Json(comment)).into_response()
}

/// `APP-7` has a project and a number; anything else is no ticket.
fn ticket(id: &str) -> Option<(&str, u32)> {
    let (project, number) = id.split_once('-')?;
    let is_key = !project.is_empty() && project.bytes().all(|byte| byte.is_ascii_uppercase());
    Some((project, number.parse().ok()?)).filter(|_| is_key)
}

fn no_ticket(id: &str) -> Response {
    let text = format!("ticket {id} does not exist");
    (
        StatusCode::NOT_FOUND,
        Json(json!({"errorMessages": [text]})),
    )
        .into_response()
}

async fn events(uri: Uri) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let (count, delay) = (number(&uri, "events", 3), number(&uri, "delay_ms", 10));
    Sse::new(stream::unfold(0, move |sent| async move {
        if sent == count {
            return None;
        }
        if sent > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        let event = Event::default()
            .event("token")
            .data(json!({"index": sent}).to_string());
        Some((Ok(event), sent + 1))
    }))
}

async fn echo(request: Request) -> Json<Value> {
    let (parts, body) = request.into_parts();
    let headers: Vec<_> = parts
        .headers
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
        .collect();
    let mut body = body.into_data_stream();
    let mut length = 0_u64;
    while let Some(Ok(chunk)) = body.next().await {
        length += chunk.len() as u64;
    }
    Json(json!({
        "method": parts.method.as_str(),
        "path": parts.uri.path(),
        "query": parts.uri.query(),
        "headers": headers,
        "body_bytes": length,
    }))
}

async fn redirect(uri: Uri) -> Response {
    let to = param(&uri, "to").unwrap_or_else(|| "https://elsewhere.invalid/".to_owned());
    (StatusCode::FOUND, [(header::LOCATION, to)]).into_response()
}

async fn bytes(Path(count): Path<u64>) -> Body {
    Body::from_stream(stream::unfold(count, |left| async move {
        if left == 0 {
            return None;
        }
        let size = left.min(CHUNK.len() as u64);
        let chunk = Bytes::from_static(CHUNK).slice(..usize::try_from(size).unwrap_or(CHUNK.len()));
        Some((Ok::<_, Infallible>(chunk), left - size))
    }))
}

static CHUNK: &[u8] = &[b'x'; 64 * 1024];

async fn endless() -> Body {
    Body::from_stream(stream::repeat_with(|| {
        Ok::<_, Infallible>(Bytes::from_static(CHUNK))
    }))
}

async fn slow(uri: Uri) -> &'static str {
    tokio::time::sleep(Duration::from_millis(number(&uri, "ms", 1000))).await;
    "at last\n"
}

async fn status(Path(code): Path<u16>) -> Response {
    plain(code, &[], format!("{code}\n").into_bytes())
}

fn param(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri
        .query()?
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    pairs
        .into_iter()
        .find(|(own, _)| *own == name)
        .and_then(|(_, value)| percent_decode(value))
}

fn number(uri: &Uri, name: &str, default: u64) -> u64 {
    param(uri, name)
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}
