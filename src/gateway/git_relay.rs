//! `git fetch` of the run's own inputs, for the agent: `git-upload-pack` of exactly that repository, forwarded to its
//! origin with its credential. Nothing else of git: an agent cannot push.

use std::io::Read as _;
use std::sync::Arc;

use axum::body::Bytes;
use flate2::read::GzDecoder;
use futures::stream::{self, StreamExt as _};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use tokio_util::io::ReaderStream;

use super::calls::{self, Denied, OpenCall};
use super::lookups::{answered, counted, forwarded, split, streamed};
use super::server::{Answer, Caller, PodRequest};
use crate::api::{ConnectorUse, Failure, Fault as _, Reason, Transport};
use crate::audit::Via;
use crate::inputs::{Credential, ResolvedInput};

/// What git needs its server to hear; everything else of the agent's headers stays here.
const KEPT: [&str; 6] = [
    "accept",
    "accept-encoding",
    "content-encoding",
    "content-length",
    "content-type",
    "git-protocol",
];

/// What git asks at once is some ten thousand ids at the most.
const QUESTION_BYTES: usize = 8 << 20;
const TOO_LARGE: &str = "the question is larger than 8 MiB";

/// `/git/{input}/info/refs?service=git-upload-pack` and `/git/{input}/git-upload-pack`.
pub(super) async fn call(request: PodRequest, caller: Caller) -> Answer {
    let (parts, body) = request.into_parts();
    let target = parts.uri.path().to_owned();
    let (name, path) = split(&target, "/git/");
    let live = caller.live.clone();
    let input = live
        .parts
        .resolved
        .iter()
        .find(|input| input.name.as_str() == name);
    let Some(input) = input else {
        let detail = "the run has no input of this name";
        return Err(calls::unknown(&caller, &parts, detail, "inputs").await);
    };
    let call = calls::open(
        &caller,
        Via::Git(input.name.clone()),
        &parts.method,
        &format!("/{path}"),
        parts.uri.query(),
    );
    let admitted = asked(&parts.method, path, parts.uri.query())
        .map_err(|(reason, detail)| Denied::by("git", 403, reason, detail))
        .and_then(|query| open_to_agent(input).map(|()| query));
    let (call, query, _turn) = call.take_up(&live, admitted, || Ok(())).await?;
    if input.repository.transport() == Transport::Ssh {
        return over_ssh(&caller, input, parts, body, call).await;
    }
    let request = match prepare(&caller, input, &parts, &format!("{path}{query}")).await {
        Ok(request) => request,
        Err(failure) => return Err(call.fail(502, failure.reason(), &failure.message).await),
    };
    match answered(request, &parts.headers, body).await {
        Ok(answer) if answer.status().is_redirection() => Err(call
            .fail(
                502,
                Reason::UpstreamRedirect,
                "the server answered with a redirect",
            )
            .await),
        Ok(mut answer) => {
            // Git would ask its user for a password: there is none to give.
            answer.headers_mut().remove(header::WWW_AUTHENTICATE);
            Ok(counted(answer, call, |_| true))
        }
        Err((status, reason, detail)) => Err(call.fail(status, reason, &detail).await),
    }
}

/// The same over ssh, where a request is a connection of its own. Git must ask in protocol v2, as it does by itself.
async fn over_ssh(
    caller: &Caller,
    input: &ResolvedInput,
    parts: http::request::Parts,
    body: Incoming,
    call: OpenCall,
) -> Answer {
    let version = parts.headers.get("git-protocol").map(HeaderValue::as_bytes);
    if version != Some(b"version=2") {
        let detail = "over ssh the relay passes on git's protocol v2 only: remove protocol.version from git's settings";
        return Err(call.fail(400, Reason::UpstreamUnreachable, detail).await);
    }
    let listing = parts.method == Method::GET;
    let question = match question(&parts.headers, body).await {
        Ok(question) => question,
        Err(detail) => return Err(call.fail(400, Reason::UpstreamUnreachable, detail).await),
    };
    let Ok(place) = Arc::clone(&caller.live.over_ssh).acquire_owned().await else {
        let gone = call.fail(503, Reason::GatewayBusy, "the run has ended");
        return Err(gone.await);
    };
    let asked = async {
        let credential = credential(caller, input).await?;
        let inputs = &caller.gateway.inputs;
        inputs
            .ask_over_ssh(&credential, &input.repository, &question)
            .await
    };
    let answer = match asked.await {
        Ok(answer) => answer,
        Err(failure) => return Err(call.fail(502, failure.reason(), &failure.message).await),
    };
    let (kind, chunks) = if listing {
        let greeting = Bytes::copy_from_slice(answer.greeting());
        ("advertisement", stream::iter([Ok(greeting)]).boxed())
    } else {
        let chunks = ReaderStream::new(answer).map(move |chunk| {
            let _held = &place;
            chunk.map_err(|error| (Reason::UpstreamUnreachable, error.to_string()))
        });
        ("result", chunks.boxed())
    };
    let mut answer = streamed(chunks, StatusCode::OK, call, |_| true);
    let kind = format!("application/x-git-upload-pack-{kind}");
    if let Ok(kind) = HeaderValue::try_from(kind) {
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    Ok(answer)
}

/// The body of a request: one question of protocol v2, which git may have packed.
async fn question(headers: &HeaderMap, body: Incoming) -> Result<Vec<u8>, &'static str> {
    let body = Limited::new(body, QUESTION_BYTES).collect().await;
    let bytes = body.map_err(|_| TOO_LARGE)?.to_bytes();
    let encoding = headers.get(header::CONTENT_ENCODING);
    unpacked(encoding.map(HeaderValue::as_bytes), &bytes)
}

fn unpacked(encoding: Option<&[u8]>, bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    match encoding {
        None | Some(b"identity") => Ok(bytes.to_vec()),
        Some(b"gzip" | b"x-gzip") => {
            let mut question = Vec::new();
            let most = u64::try_from(QUESTION_BYTES).unwrap_or(u64::MAX);
            let unpacked = GzDecoder::new(bytes)
                .take(most.saturating_add(1))
                .read_to_end(&mut question);
            match unpacked {
                Ok(length) if length <= QUESTION_BYTES => Ok(question),
                Ok(_) => Err(TOO_LARGE),
                Err(_) => Err("the question is not what its content-encoding says"),
            }
        }
        Some(_) => Err("the question's content-encoding is not gzip"),
    }
}

/// The credential of the input's own connector.
async fn credential(caller: &Caller, input: &ResolvedInput) -> Result<Credential, Failure> {
    let namespace = &caller.live.parts.key.namespace;
    match &input.connector {
        Some(connector) => {
            let inputs = &caller.gateway.inputs;
            inputs
                .credential(namespace, connector, ConnectorUse::Inputs)
                .await
        }
        None => Ok(Credential::anonymous(namespace)),
    }
}

/// The request to the input's own repository, with its credential.
async fn prepare(
    caller: &Caller,
    input: &ResolvedInput,
    parts: &http::request::Parts,
    path: &str,
) -> Result<reqwest::RequestBuilder, Failure> {
    let inputs = &caller.gateway.inputs;
    let credential = credential(caller, input).await?;
    let client = inputs.repository_client(&credential, &input.repository)?;
    let mut headers: HeaderMap = forwarded(&parts.headers);
    let other: Vec<_> = headers
        .keys()
        .filter(|name| !KEPT.contains(&name.as_str()))
        .cloned()
        .collect();
    for name in other {
        headers.remove(name);
    }
    let url = format!("{}/{path}", input.repository.as_str().trim_end_matches('/'));
    let url = url
        .parse()
        .map_err(|_| Failure::new(Reason::Bug, "the repository's address does not parse"))?;
    client.request(parts.method.clone(), url, headers)
}

/// Whether the agent may fetch this input.
fn open_to_agent(input: &ResolvedInput) -> Result<(), Denied> {
    if input.fetch {
        return Ok(());
    }
    let rule = format!("inputs[{}].fetch", input.name);
    let detail = "the input does not allow git fetch";
    Err(Denied::by(rule, 403, Reason::NoRuleAllows, detail))
}

/// Whether this is a fetch, and the query to send on.
fn asked(
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> Result<&'static str, (Reason, &'static str)> {
    let push = (Reason::PushRefused, "an agent cannot push");
    match (method.as_str(), path, query) {
        ("GET", "info/refs", Some("service=git-upload-pack")) => Ok("?service=git-upload-pack"),
        ("POST", "git-upload-pack", None) => Ok(""),
        (_, "info/refs", Some("service=git-receive-pack")) | (_, "git-receive-pack", _) => {
            Err(push)
        }
        _ => Err((
            Reason::NoRuleAllows,
            "the relay offers git fetch (smart HTTP) and nothing else of git",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::io::Write as _;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    }

    #[test]
    fn a_question_is_unpacked_and_bounded() {
        let question = b"0014command=ls-refs\n".as_slice();
        assert_eq!(unpacked(None, question).unwrap(), question);
        let gzip = Some(b"gzip".as_slice());
        assert_eq!(unpacked(gzip, &packed(question)).unwrap(), question);
        let bomb = packed(&vec![0; QUESTION_BYTES + 1]);
        assert_eq!(unpacked(gzip, &bomb), Err(TOO_LARGE));
        assert!(unpacked(gzip, question).is_err());
        assert!(unpacked(Some(b"br"), question).is_err());
    }

    #[rstest]
    #[case::listing("GET", "info/refs", Some("service=git-upload-pack"), None)]
    #[case::fetch("POST", "git-upload-pack", None, None)]
    #[case::push_listing(
        "GET",
        "info/refs",
        Some("service=git-receive-pack"),
        Some(Reason::PushRefused)
    )]
    #[case::push("POST", "git-receive-pack", None, Some(Reason::PushRefused))]
    #[case::dumb("GET", "HEAD", None, Some(Reason::NoRuleAllows))]
    #[case::climbing(
        "POST",
        "../other.git/git-upload-pack",
        None,
        Some(Reason::NoRuleAllows)
    )]
    #[case::second_service(
        "GET",
        "info/refs",
        Some("service=git-upload-pack&service=git-receive-pack"),
        Some(Reason::NoRuleAllows)
    )]
    fn g07_fetch_works_and_push_does_not(
        #[case] method: &str,
        #[case] path: &str,
        #[case] query: Option<&str>,
        #[case] want: Option<Reason>,
    ) {
        assert_eq!(
            asked(&method.parse().unwrap(), path, query)
                .err()
                .map(|(r, _)| r),
            want
        );
    }
}
