//! Lookups: the agent asks a connector's server, and the gateway adds the credential.
//!
//! Method and normalised path are matched against the run's rules and the connector's own bound; the agent's credentials,
//! cookies and hop-by-hop headers are dropped; bodies stream both ways. A redirect is an answer of ours: following it
//! would carry the credential elsewhere.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use futures::stream::{BoxStream, Stream, StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, HeaderName, Method, Response, StatusCode, header};
use tokio::time::Instant;

use http_body_util::BodyDataStream;
use hyper::body::{Body as _, Incoming};

use super::calls::{self, Counter, Denied, OpenCall};
use super::live::Live;
use super::server::{Answer, Caller, PodRequest};
use crate::api::wire::TOKEN_HEADER;
use crate::api::{
    ConnectorUse, Failure, Fault as _, Lookup, Origin, ParsedConnector, PathPattern, Reason,
};
use crate::audit::Via;
use crate::inputs::Credential;

/// Headers that end at each hop (RFC 9110, 7.6.1), whether or not `Connection` names them.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];
/// What an agent may not say to a server that trusts our credential: who it is, for whom, or another method.
const DROPPED: [&str; 11] = [
    TOKEN_HEADER,
    "authorization",
    "cookie",
    "host",
    "keep-alive",
    "forwarded",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
];

/// `/lookups/{name}/{path}`.
pub(super) async fn call(request: PodRequest, caller: Caller) -> Answer {
    let (parts, body) = request.into_parts();
    let target = parts.uri.path().to_owned();
    let (name, path) = split(&target, "/lookups/");
    let run = caller.live.clone();
    let lookup = run
        .parts
        .spec
        .lookups
        .iter()
        .find(|lookup| lookup.name.as_str() == name);
    let Some(lookup) = lookup else {
        let detail = "the run has no lookup of this name";
        return Err(calls::unknown(&caller, &parts, detail, "lookups").await);
    };
    let via = Via::Lookup(lookup.name.clone());
    let query = parts.uri.query();
    let Some(segments) = normalised(path) else {
        let call = calls::open(&caller, via, &parts.method, path, query);
        let detail = "the path has '.', '..', an empty segment, or an encoded '/', '\\' or control character";
        return Err(call
            .refuse(400, Reason::NoRuleAllows, detail, "lookups")
            .await);
    };
    let clean = encoded(&segments);
    let call = calls::open(&caller, via, &parts.method, &clean, query);
    let admitted = admitted(&caller, lookup, &parts.method, &segments).await;
    let count = || {
        run.count_call(lookup, Instant::now()).map_err(|reason| {
            let rule = format!("lookups[{}].limits", lookup.name);
            Denied::by(rule, 429, reason, reason.hint())
        })
    };
    let (call, (credential, origin), _turn) = call.take_up(&run, admitted, count).await?;
    let query = parts
        .uri
        .query()
        .map(|query| format!("?{query}"))
        .unwrap_or_default();
    match send(
        &caller,
        &credential,
        lookup,
        format!("{origin}{clean}{query}"),
        parts,
        body,
    )
    .await
    {
        Ok(answer) => answer_of(answer, call, &run, lookup).await,
        Err((status, reason, detail)) => Err(call.fail(status, reason, &detail).await),
    }
}

/// The credential and the origin of a call that both the run and its connector allow.
async fn admitted(
    caller: &Caller,
    lookup: &Lookup,
    method: &Method,
    segments: &[String],
) -> Result<(Credential, Origin), Denied> {
    let by_rule = |(detail, rule): Broken| Denied::by(rule, 403, Reason::NoRuleAllows, detail);
    let unusable = |detail: String| Denied {
        status: 502,
        reason: Reason::UpstreamCredential,
        detail,
        rule: None,
    };
    allowed_by_run(lookup, method, segments).map_err(by_rule)?;
    let namespace = &caller.live.parts.key.namespace;
    let inputs = &caller.gateway.inputs;
    let credential = inputs
        .credential(namespace, &lookup.connector, ConnectorUse::Lookups)
        .await;
    let credential = credential.map_err(|failure| unusable(failure.message))?;
    let connector = credential
        .connector()
        .ok_or_else(|| unusable("the lookup has no connector".to_owned()))?;
    allowed_by_connector(connector, method, segments).map_err(by_rule)?;
    let origin = connector.origin.clone();
    Ok((credential, origin))
}

/// The upstream's answer as ours: refused where it must not reach the agent, else streamed, counted and bounded.
async fn answer_of(
    answer: reqwest::Response,
    call: OpenCall,
    run: &Arc<Live>,
    lookup: &Lookup,
) -> Answer {
    if let Some((reason, detail)) = refused_upstream(&answer) {
        return Err(call.fail(502, reason, &detail).await);
    }
    if answer
        .content_length()
        .is_some_and(|bytes| !run.has_room(lookup, bytes))
    {
        return Err(call
            .fail(429, Reason::ByteLimit, Reason::ByteLimit.hint())
            .await);
    }
    let (run, lookup) = (Arc::clone(run), lookup.clone());
    Ok(counted(answer, call, move |bytes| {
        run.count_bytes(&lookup, bytes)
    }))
}

/// Sends the call on with the connector's credential, its body streamed.
async fn send(
    caller: &Caller,
    credential: &Credential,
    lookup: &Lookup,
    url: String,
    parts: http::request::Parts,
    body: Incoming,
) -> Result<reqwest::Response, (u16, Reason, String)> {
    let asked = prepare(caller, credential, lookup, &url, &parts).map_err(|failure| {
        let refused = failure.reason() == Reason::AddressRefused;
        let reason = if refused {
            Reason::DestinationRefused
        } else {
            Reason::UpstreamUnreachable
        };
        (502, reason, failure.message)
    })?;
    answered(asked, &parts.headers, body).await
}

/// The request with the connector's credential; nothing has been sent yet.
fn prepare(
    caller: &Caller,
    credential: &Credential,
    lookup: &Lookup,
    url: &str,
    parts: &http::request::Parts,
) -> Result<reqwest::RequestBuilder, Failure> {
    let client = caller
        .gateway
        .inputs
        .client(credential, lookup.idle_timeout)?;
    let url = url
        .parse()
        .map_err(|_| Failure::new(Reason::Bug, "the call's address does not parse"))?;
    client.request(parts.method.clone(), url, forwarded(&parts.headers))
}

/// Sends a request, its body streamed, and waits for the answer's head.
pub(super) async fn answered(
    request: reqwest::RequestBuilder,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<reqwest::Response, (u16, Reason, String)> {
    let has_body = headers.contains_key(header::CONTENT_LENGTH) || !body.is_end_stream();
    let request = if has_body {
        request.body(reqwest::Body::wrap_stream(BodyDataStream::new(body)))
    } else {
        request
    };
    request.send().await.map_err(|error| {
        let (status, reason) = if error.is_timeout() {
            (504, Reason::UpstreamTimeout)
        } else {
            (502, Reason::UpstreamUnreachable)
        };
        (status, reason, plain(error))
    })
}

/// An upstream answer as ours: hop-by-hop headers and cookies dropped, the body streamed and counted. `within` is asked
/// about each chunk; the first `false` breaks the answer off.
pub(super) fn counted(
    answer: reqwest::Response,
    call: OpenCall,
    within: impl Fn(u64) -> bool + Unpin + Send + 'static,
) -> Response<Body> {
    let status = answer.status();
    let mut headers = answer.headers().clone();
    for name in named_by_connection(&headers).into_iter().chain(HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove(header::SET_COOKIE);
    let chunks = answer.bytes_stream().map_err(|error| {
        let reason = if error.is_timeout() {
            Reason::UpstreamTimeout
        } else {
            Reason::UpstreamUnreachable
        };
        (reason, plain(error))
    });
    let mut response = streamed(chunks, status, call, within);
    *response.headers_mut() = headers;
    response
}

/// An answer whose body is streamed and counted.
pub(super) fn streamed(
    chunks: impl Stream<Item = Result<Bytes, BrokenOff>> + Send + 'static,
    status: StatusCode,
    call: OpenCall,
    within: impl Fn(u64) -> bool + Unpin + Send + 'static,
) -> Response<Body> {
    let chunks = Counted {
        chunks: Box::pin(chunks),
        counter: call.answered(status.as_u16()),
        within,
        over: false,
    };
    let mut response = Response::new(Body::from_stream(chunks));
    *response.status_mut() = status;
    response
}

/// Why a body ended early, for the record and for whoever reads it.
pub(super) type BrokenOff = (Reason, String);

/// A body that is counted while it passes. Dropped with its connection, which writes the call's last line.
struct Counted<W> {
    chunks: BoxStream<'static, Result<Bytes, BrokenOff>>,
    counter: Counter,
    within: W,
    over: bool,
}

impl<W: Fn(u64) -> bool + Unpin> Stream for Counted<W> {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        match std::task::ready!(self.chunks.poll_next_unpin(context)) {
            None => Poll::Ready(None),
            Some(Err((reason, words))) => {
                self.over = true;
                self.counter.broke_off(reason);
                Poll::Ready(Some(Err(std::io::Error::other(words))))
            }
            Some(Ok(bytes)) if (self.within)(bytes.len() as u64) => {
                self.counter.add(bytes.len());
                Poll::Ready(Some(Ok(bytes)))
            }
            Some(Ok(_)) => {
                self.over = true;
                self.counter.broke_off(Reason::ByteLimit);
                Poll::Ready(Some(Err(std::io::Error::other("limits.bytes is reached"))))
            }
        }
    }
}

/// What of an upstream's answer is a refusal of ours: a redirect, which is not followed, and a refused credential, which
/// is not the agent's business.
fn refused_upstream(answer: &reqwest::Response) -> Option<(Reason, String)> {
    let status = answer.status();
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
        let to = answer
            .headers()
            .get(header::LOCATION)
            .and_then(|l| l.to_str().ok())
            .unwrap_or_default();
        let to = answer
            .url()
            .join(to)
            .ok()
            .and_then(|url| url.host_str().map(str::to_owned));
        let to = to.unwrap_or_else(|| "nowhere".to_owned());
        return Some((
            Reason::UpstreamRedirect,
            format!("the server redirects to {to}, which is not followed"),
        ));
    }
    let credential = matches!(
        status,
        StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED
    );
    credential.then(|| {
        (
            Reason::UpstreamCredential,
            "the server refused the connector's credential".to_owned(),
        )
    })
}

/// The agent's headers without what it may not say; the connector's own are added after.
pub(super) fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for name in named_by_connection(headers).into_iter().chain(HOP_BY_HOP) {
        kept.remove(name);
    }
    let dropped = |name: &HeaderName| {
        let name = name.as_str();
        DROPPED.contains(&name) || name.starts_with("proxy-") || name.starts_with("x-forwarded-")
    };
    let names: Vec<HeaderName> = kept.keys().filter(|name| dropped(name)).cloned().collect();
    for name in names {
        kept.remove(name);
    }
    kept
}

/// The headers that `Connection` names: they end at this hop too.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect()
}

/// What is wrong with a call, and the rule that says so.
type Broken = (&'static str, String);

fn allowed_by_run(lookup: &Lookup, method: &Method, segments: &[String]) -> Result<(), Broken> {
    let rule = |field: &str| format!("lookups[{}].{field}", lookup.name);
    if !lookup.methods.iter().any(|m| m == method.as_str()) {
        return Err(("the lookup does not allow this method", rule("methods")));
    }
    if !lookup.paths.iter().any(|pattern| pattern.matches(segments)) {
        return Err(("the lookup does not allow this path", rule("paths")));
    }
    Ok(())
}

fn allowed_by_connector(
    connector: &ParsedConnector,
    method: &Method,
    segments: &[String],
) -> Result<(), Broken> {
    let rule = |field: &str| format!("connector {} allow.{field}", connector.name);
    let methods = &connector.allowed_methods;
    if !methods.is_empty() && !methods.iter().any(|m| m == method.as_str()) {
        return Err(("the connector does not allow this method", rule("methods")));
    }
    let within =
        |patterns: &[PathPattern]| patterns.iter().any(|pattern| pattern.matches(segments));
    if !connector.allowed_paths.is_empty() && !within(&connector.allowed_paths) {
        return Err(("the connector does not allow this path", rule("paths")));
    }
    Ok(())
}

/// `/lookups/NAME/PATH` as name and path.
pub(super) fn split<'a>(path: &'a str, prefix: &str) -> (&'a str, &'a str) {
    let rest = path.strip_prefix(prefix).unwrap_or_default();
    rest.split_once('/').unwrap_or((rest, ""))
}

/// The decoded segments of a path that means the same to everybody; `None` for one that might not.
pub(super) fn normalised(path: &str) -> Option<Vec<String>> {
    path.split('/').map(decoded).collect()
}

/// One decoded segment. An encoded slash, a dot segment or a control character could be read in two ways.
fn decoded(segment: &str) -> Option<String> {
    let text = percent_encoding::percent_decode_str(segment)
        .decode_utf8()
        .ok()?;
    let odd = text
        .chars()
        .any(|c| c == '/' || c == '\\' || c.is_control());
    (!odd && !matches!(text.as_ref(), "" | "." | "..")).then(|| text.into_owned())
}

/// Decoded segments as a path again, each with a `/` before it.
pub(super) fn encoded(segments: &[String]) -> String {
    segments.iter().fold(String::new(), |mut path, segment| {
        path.push('/');
        path.extend(percent_encoding::utf8_percent_encode(segment, PATH_SEGMENT));
        path
    })
}

/// All but the characters that RFC 3986 lets stand in a path segment.
const PATH_SEGMENT: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// An error of our client, without the address: its query may hold what must not be read.
pub(super) fn plain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    crate::api::safe_text(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("rest/api/2/issue/A-1", Some("/rest/api/2/issue/A-1"))]
    #[case::encoded_dots("rest/%2e%2e/admin", None)] // G07
    #[case::dots("rest/../admin", None)]
    #[case::encoded_slash("rest/a%2Fb", None)]
    #[case::backslash("rest/a%5cb", None)]
    #[case::nul("rest/a%00b", None)]
    #[case::empty_segment("rest//a", None)]
    #[case::needless_encoding("rest/%61pi", Some("/rest/api"))]
    #[case::needed_encoding("a%20b", Some("/a%20b"))]
    #[case::not_utf8("a%ffb", None)]
    fn g07_a_path_is_cleaned_before_it_is_matched(#[case] path: &str, #[case] want: Option<&str>) {
        assert_eq!(normalised(path).map(|s| encoded(&s)).as_deref(), want);
    }

    #[test]
    fn g08_the_agents_own_credentials_and_hop_by_hop_headers_are_dropped() {
        let mut headers = HeaderMap::new();
        for name in [
            "authorization",
            "cookie",
            "proxy-authorization",
            "x-mine",
            "te",
            "x-http-method-override",
            "accept",
        ] {
            headers.insert(HeaderName::from_static(name), "v".parse().unwrap());
        }
        headers.insert(header::CONNECTION, "x-mine, close".parse().unwrap());
        let kept: Vec<_> = forwarded(&headers)
            .keys()
            .map(ToString::to_string)
            .collect();
        assert_eq!(kept, ["accept"]);
    }
}
