//! Git over HTTP: which repository, who asks, which faults, and then the real backend.

use std::io;
use std::sync::Arc;

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderValue, Response, header, request::Parts};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, stream};

use crate::auth::{self, Verdict};
use crate::body::{self, Then};
use crate::cgi::{self, Call};
use crate::fault::{Effect, Hook, Phase};
use crate::log::{Credential, Entry, text};
use crate::options::Scope;
use crate::{State, git, pkt, process};

/// The connection is to be closed in place of an answer.
#[derive(Debug, thiserror::Error)]
#[error("dropped by order of the test")]
pub(crate) struct Dropped;

/// No request for refs or objects that a test makes is larger; it bounds what two faults hold in memory.
const BUFFER: usize = 256 << 20;

/// What a URL asks of git.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) repo: String,
    service: &'static str,
    listing: bool,
}

impl Target {
    /// Reads `/acme/app.git/info/refs?service=...` and `/acme/app/git-upload-pack`; `None` is not git's.
    pub(crate) fn parse(path: &str, query: Option<&str>) -> Option<Self> {
        const UPLOAD: &str = "git-upload-pack";
        const RECEIVE: &str = "git-receive-pack";
        let path = percent_decode(path.strip_prefix('/')?)?;
        let (repo, service, listing) = if let Some(repo) = path.strip_suffix("/info/refs") {
            let asked = query?
                .split('&')
                .find_map(|pair| pair.strip_prefix("service="))?;
            (
                repo,
                [UPLOAD, RECEIVE]
                    .into_iter()
                    .find(|service| *service == asked)?,
                true,
            )
        } else {
            let (repo, asked) = path.rsplit_once('/')?;
            (
                repo,
                [UPLOAD, RECEIVE]
                    .into_iter()
                    .find(|service| *service == asked)?,
                false,
            )
        };
        let repo = repo.strip_suffix(".git").unwrap_or(repo);
        crate::is_repo_name(repo).then(|| Self {
            repo: repo.to_owned(),
            service,
            listing,
        })
    }

    fn wanted(&self) -> Scope {
        if self.service == "git-upload-pack" {
            Scope::Read
        } else {
            Scope::Write
        }
    }

    fn tail(&self) -> &'static str {
        if self.listing {
            "info/refs"
        } else {
            self.service
        }
    }
}

/// Answers one git request.
pub(crate) async fn answer(
    state: &Arc<State>,
    target: Target,
    parts: Parts,
    body: Body,
    credential: &Credential,
    entry: &Entry,
) -> Result<Response<Body>, Dropped> {
    let mut incoming = Incoming {
        head: Bytes::new(),
        rest: body.into_data_stream(),
    };
    let phase = phase(&target, &parts, &mut incoming, entry).await;
    entry.note(|request| {
        request.repo = Some(target.repo.clone());
        request.phase = Some(phase);
    });
    for effect in state.faults.early(&target.repo, phase) {
        if let Some(answer) = instead(effect, &target, &parts).await? {
            return Ok(answer);
        }
    }
    let verdict = auth::decide(
        credential,
        &state.tokens(),
        state.options.user_name.as_deref(),
        state.options.hide_missing,
        &target.repo,
        state.visibility(&target.repo),
        target.wanted(),
    );
    match verdict {
        Verdict::Allowed(token) => entry.note(|request| request.token = token),
        Verdict::Unauthorized => {
            let challenge = (
                "www-authenticate".to_owned(),
                "Basic realm=\"demo forge\"".to_owned(),
            );
            return Ok(plain(401, &[challenge], b"sign in\n".to_vec()));
        }
        Verdict::Forbidden => return Ok(plain(403, &[], b"this token may not do that\n".to_vec())),
        Verdict::NotFound => return Ok(plain(404, &[], b"no such repository\n".to_vec())),
    }
    let effects = state.faults.late(&target.repo, phase);
    match serve(state, &target, &parts, incoming, effects).await {
        Ok(response) => Ok(response),
        Err(error) => Ok(plain(500, &[], format!("{error}\n").into_bytes())),
    }
}

/// What an early effect answers in place of git, if it does.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the late effects have their turn after the credential"
)]
async fn instead(
    effect: Effect,
    target: &Target,
    parts: &Parts,
) -> Result<Option<Response<Body>>, Dropped> {
    match effect {
        Effect::Answer {
            status,
            headers,
            body,
        } => Ok(Some(plain(status, &headers, body))),
        Effect::Redirect { status, to } => Ok(Some(redirect(status, &to, target, parts))),
        Effect::Silence => std::future::pending().await,
        Effect::Drop => Err(Dropped),
        Effect::Delay(time) => {
            tokio::time::sleep(time).await;
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// A request's body, of which the first bytes may have been read already.
struct Incoming {
    head: Bytes,
    rest: BodyDataStream,
}

impl Incoming {
    /// Reads until there are `enough` bytes or no more.
    async fn peek(&mut self, enough: usize) -> &Bytes {
        let mut head = BytesMut::from(self.head.as_ref());
        while head.len() < enough
            && let Some(Ok(chunk)) = self.rest.next().await
        {
            head.extend_from_slice(&chunk);
        }
        self.head = head.freeze();
        &self.head
    }

    fn stream(self) -> impl futures::Stream<Item = Result<Bytes, axum::Error>> + Send + 'static {
        stream::iter([Ok(self.head)]).chain(self.rest)
    }
}

/// How much of a request's body the log keeps.
const HEAD: usize = 4096;

/// Tells what part of the conversation a request is, looking into the body only where it must.
async fn phase(target: &Target, parts: &Parts, incoming: &mut Incoming, entry: &Entry) -> Phase {
    match (target.wanted(), target.listing) {
        (Scope::Read, true) => return Phase::Listing,
        (Scope::Write, true) => return Phase::PushListing,
        (Scope::Write, false) => return Phase::Push,
        (Scope::Read, false) => {}
    }
    let zipped = text(&parts.headers, "content-encoding").is_some_and(|name| name.contains("gzip"));
    let head = incoming.peek(if zipped { HEAD } else { 64 }).await.clone();
    let mut head = if zipped {
        process::inflate(&head).await.unwrap_or_default()
    } else {
        head.into()
    };
    head.truncate(HEAD);
    let listing = head
        .get(4..)
        .is_some_and(|rest| rest.starts_with(b"command=ls-refs"));
    entry.note(|request| request.body_head = head);
    if listing { Phase::LsRefs } else { Phase::Fetch }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the other effects act on the answer"
)]
async fn serve(
    state: &Arc<State>,
    target: &Target,
    parts: &Parts,
    mut incoming: Incoming,
    effects: Vec<Effect>,
) -> io::Result<Response<Body>> {
    let git_dir = state.git_dir(&target.repo);
    let mut call = Call {
        translated: git_dir.join(target.tail()),
        method: parts.method.to_string(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        content_type: text(&parts.headers, "content-type"),
        content_length: text(&parts.headers, "content-length"),
        content_encoding: text(&parts.headers, "content-encoding"),
        git_protocol: text(&parts.headers, "git-protocol"),
        config: Vec::new(),
    };
    for effect in &effects {
        match effect {
            Effect::OnlyV0 => call.git_protocol = None,
            Effect::Config(name, value) => call.config.push((name.clone(), value.clone())),
            Effect::Before(hook) => run_hook(hook).await,
            Effect::RefuseUnadvertised if !target.listing => {
                if let Some(refusal) = refusal(&git_dir, parts, &mut incoming).await? {
                    return Ok(refusal);
                }
            }
            _ => {}
        }
    }
    let mut response = cgi::run(&state.processes, call, incoming.stream()).await?;
    for effect in effects {
        response = altered(response, effect).await?;
    }
    Ok(response)
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the other effects have acted on the request"
)]
async fn altered(response: Response<Body>, effect: Effect) -> io::Result<Response<Body>> {
    Ok(match effect {
        Effect::StallAfter(bytes) => response.map(|b| body::cut(b, bytes, Then::Stall)),
        Effect::Truncate(bytes) => response.map(|b| body::cut(b, bytes, Then::End)),
        Effect::DropAfter(bytes) => response.map(|b| body::cut(b, bytes, Then::Drop)),
        Effect::Corrupt(at) => response.map(|b| body::corrupt(b, at)),
        Effect::ObjectFormat(name) => {
            rewritten(response, |listing| pkt::with_object_format(listing, &name)).await?
        }
        Effect::After(hook) => {
            let response = rewritten(response, <[u8]>::to_vec).await?;
            run_hook(&hook).await;
            response
        }
        _ => response,
    })
}

/// Reads the whole answer and changes it.
async fn rewritten(
    response: Response<Body>,
    change: impl FnOnce(&[u8]) -> Vec<u8>,
) -> io::Result<Response<Body>> {
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, BUFFER)
        .await
        .map_err(io::Error::other)?;
    Ok(Response::from_parts(parts, Body::from(change(&bytes))))
}

async fn run_hook(hook: &Hook) {
    let hook = Arc::clone(hook);
    // A hook that panics fails the test by what it did not do, not the server.
    drop(tokio::task::spawn_blocking(move || hook()).await);
}

/// The answer of a server that gives out only what its refs point to, if the request wants more.
async fn refusal(
    git_dir: &std::path::Path,
    parts: &Parts,
    incoming: &mut Incoming,
) -> io::Result<Option<Response<Body>>> {
    let body = incoming.peek(BUFFER).await.clone();
    let zipped = text(&parts.headers, "content-encoding").is_some_and(|name| name.contains("gzip"));
    let body = if zipped {
        process::inflate(&body).await?
    } else {
        body.into()
    };
    let format = "--format=%(objectname) %(*objectname)";
    let refs = git::run(git_dir, &["for-each-ref", format], &[], b"").map_err(io::Error::other)?;
    let refs = String::from_utf8_lossy(&refs).into_owned();
    let unknown = pkt::wants(&body)
        .into_iter()
        .find(|want| !refs.split_ascii_whitespace().any(|id| id == want));
    Ok(unknown.map(|id| {
        let kind = "application/x-git-upload-pack-result".to_owned();
        let body = pkt::data(format!("ERR upload-pack: not our ref {id}").as_bytes());
        plain(200, &[("content-type".to_owned(), kind)], body)
    }))
}

fn redirect(status: u16, to: &str, target: &Target, parts: &Parts) -> Response<Body> {
    let query = parts
        .uri
        .query()
        .map(|query| format!("?{query}"))
        .unwrap_or_default();
    let location = format!("{}/{}{query}", to.trim_end_matches('/'), target.tail());
    plain(status, &[("location".to_owned(), location)], Vec::new())
}

/// An answer of the forge's own.
pub(crate) fn plain(status: u16, headers: &[(String, String)], body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = axum::http::StatusCode::from_u16(status).unwrap_or_default();
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (
            header::HeaderName::try_from(name),
            HeaderValue::try_from(value),
        ) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// Undoes `%41`; `None` if what comes out is not text.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let pair = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gits_own_paths_are_gits() {
        let repo = |path, query| Target::parse(path, query).map(|target| target.repo);
        let listing = Some("service=git-upload-pack");
        assert_eq!(
            repo("/acme/app.git/info/refs", listing).as_deref(),
            Some("acme/app")
        );
        assert_eq!(
            repo("/acme/a%20b/git-upload-pack", None).as_deref(),
            Some("acme/a b")
        );
        assert_eq!(repo("/acme/app.git/info/refs", None), None);
        assert_eq!(repo("/acme/../app/git-upload-pack", None), None);
        assert_eq!(repo("/acme/%2e%2e/git-upload-pack", None), None);
        assert_eq!(repo("/rest/api/2/issue/X-1", None), None);
    }
}
