//! Smart HTTP: the two requests of a listing, and the one that shows whether a credential may push.

use std::io;

use futures::TryStreamExt as _;
use reqwest::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, StatusCode, Url};
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use super::list_error::{self, ListError};
use super::pkt::PktReader;
use super::protocol::{self, Capabilities, Greeting};
use super::{CredentialProof, Listing, OriginClient, Remote, Wants};
use crate::api::RepoUrl;

const UPLOAD: &str = "git-upload-pack";
const RECEIVE: &str = "git-receive-pack";

/// How much of a refusal's body is read: enough to see the words that forges use for their limits.
const REFUSAL_BYTES: usize = 4096;

/// Lists refs, once. `close` is called when the question is sent, and says what is wanted.
pub(super) async fn list(
    client: &OriginClient,
    remote: &Remote,
    close: impl FnOnce() -> Wants,
    limit: u64,
) -> Result<Listing, ListError> {
    let asked = address(&remote.repository, "info/refs", Some(UPLOAD))?;
    let response = send(client, Method::GET, asked, Vec::new(), remote).await?;
    let mut from = packets(response, &advertisement(UPLOAD), limit)?;
    let mut close = Some(close);
    let mut wants = move || close.take().map(|close| close()).unwrap_or_default();
    let greeting = protocol::greeting(&mut from, &mut wants).await;
    let server = match greeting.map_err(|error| list_error::protocol(&error))? {
        Greeting::Refs(listing) => return Ok(listing),
        Greeting::V2(server) => server,
    };
    drop(from);
    let wants = wants();
    let question = protocol::question(&server, &wants);
    let mut from = ask(client, remote, question, limit).await?;
    let listing = protocol::answer(&mut from, &server, &wants).await;
    let mut listing = listing.map_err(|error| list_error::protocol(&error))?;
    if listing.says_nothing() {
        listing.empty = !any(client, remote, &server, limit).await?;
    }
    Ok(listing)
}

/// Whether the credential may push, asked by the question that begins a push. Only worth something if the same
/// credential could list.
pub(super) async fn prove(
    client: &OriginClient,
    remote: &Remote,
) -> Result<CredentialProof, ListError> {
    let asked = address(&remote.repository, "info/refs", Some(RECEIVE))?;
    match send(client, Method::GET, asked, Vec::new(), remote).await {
        Ok(response) if is_type(&response, &advertisement(RECEIVE)) => {
            Ok(CredentialProof::CanWrite)
        }
        Ok(_) => Ok(CredentialProof::Unknown),
        Err(
            ListError::AuthenticationFailed
            | ListError::AuthenticationRequired
            | ListError::AccessDenied(403),
        ) => Ok(CredentialProof::ReadOnly),
        Err(error) => Err(error),
    }
}

async fn any(
    client: &OriginClient,
    remote: &Remote,
    server: &Capabilities,
    limit: u64,
) -> Result<bool, ListError> {
    let mut from = ask(client, remote, protocol::question_for_any(server), limit).await?;
    protocol::answer_for_any(&mut from)
        .await
        .map_err(|error| list_error::protocol(&error))
}

async fn ask(
    client: &OriginClient,
    remote: &Remote,
    question: Vec<u8>,
    limit: u64,
) -> Result<PktReader<impl AsyncRead + Unpin + use<>>, ListError> {
    let to = address(&remote.repository, UPLOAD, None)?;
    let response = send(client, Method::POST, to, question, remote).await?;
    packets(response, &format!("application/x-{UPLOAD}-result"), limit)
}

/// Sends a request and takes nothing but 200 for an answer.
async fn send(
    client: &OriginClient,
    method: Method,
    url: Url,
    body: Vec<u8>,
    remote: &Remote,
) -> Result<Response, ListError> {
    let mut headers = HeaderMap::new();
    headers.insert(
        HeaderName::from_static("git-protocol"),
        HeaderValue::from_static("version=2"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if method == Method::POST {
        let kind = HeaderValue::from_static("application/x-git-upload-pack-request");
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/x-git-upload-pack-result"),
        );
    } else {
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    }
    let request = client
        .request(method, url.clone(), headers)
        .map_err(ListError::Git)?;
    let response = request
        .body(body)
        .send()
        .await
        .map_err(|e| list_error::transport(&e))?;
    if response.status() == StatusCode::OK {
        return Ok(response);
    }
    let (status, headers) = (response.status(), response.headers().clone());
    let body = beginning(response).await;
    Err(list_error::refusal(status, &headers, &body, &url, remote))
}

async fn beginning(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    while body.len() < REFUSAL_BYTES
        && let Ok(Some(chunk)) = response.chunk().await
    {
        body.extend_from_slice(&chunk);
    }
    body.truncate(REFUSAL_BYTES);
    body
}

fn packets(
    response: Response,
    kind: &str,
    limit: u64,
) -> Result<PktReader<impl AsyncRead + Unpin + use<>>, ListError> {
    if !is_type(&response, kind) {
        let said = response
            .headers()
            .get(CONTENT_TYPE)
            .map(HeaderValue::as_bytes);
        let said: String = match said {
            Some(said) => crate::api::safe_text(said).chars().take(80).collect(),
            None => "none".to_owned(),
        };
        return Err(ListError::NotGit(format!(
            "it answers with content type {said}, not {kind}"
        )));
    }
    let stream = response.bytes_stream().map_err(io::Error::other);
    Ok(PktReader::new(StreamReader::new(Box::pin(stream)), limit))
}

fn is_type(response: &Response, kind: &str) -> bool {
    response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split(';').next())
        .is_some_and(|said| said.trim().eq_ignore_ascii_case(kind))
}

fn advertisement(service: &str) -> String {
    format!("application/x-{service}-advertisement")
}

/// The user's own text, and what git appends to it.
fn address(repository: &RepoUrl, tail: &str, service: Option<&str>) -> Result<Url, ListError> {
    let text = repository.as_str().trim_end_matches('/');
    let mut url = Url::parse(&format!("{text}/{tail}"))
        .map_err(|_| ListError::Odd("an address that is no URL".to_owned()))?;
    url.set_query(
        service
            .map(|service| format!("service={service}"))
            .as_deref(),
    );
    Ok(url)
}
