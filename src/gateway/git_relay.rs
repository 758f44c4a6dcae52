//! `git fetch` of the run's own inputs, for the agent: `git-upload-pack` of exactly that repository, forwarded to its
//! origin with its credential. Nothing else of git: an agent cannot push.

use http::{HeaderMap, Method, header};

use super::calls;
use super::lookups::{answered, counted, forwarded, split};
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
        let call = calls::open(
            &caller,
            Via::Other,
            &parts.method,
            &target,
            parts.uri.query(),
        );
        return Err(call
            .refuse(
                403,
                Reason::NoRuleAllows,
                "the run has no input of this name",
                "inputs",
            )
            .await);
    };
    let mut call = calls::open(
        &caller,
        Via::Git(input.name.clone()),
        &parts.method,
        &format!("/{path}"),
        parts.uri.query(),
    );
    let query = match asked(&parts.method, path, parts.uri.query()) {
        Ok(query) => query,
        Err((reason, detail)) => return Err(call.refuse(403, reason, detail, "git").await),
    };
    if let Some((detail, field)) = closed(input) {
        let rule = format!("inputs[{}].{field}", input.name);
        return Err(call.refuse(403, Reason::NoRuleAllows, detail, &rule).await);
    }
    let Ok(_turn) = live.calls.acquire().await else {
        return Err(call
            .fail(503, Reason::GatewayBusy, "the run has ended")
            .await);
    };
    call.begin().await?;
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

/// The request to the input's own repository, with its credential.
async fn prepare(
    caller: &Caller,
    input: &ResolvedInput,
    parts: &http::request::Parts,
    path: &str,
) -> Result<reqwest::RequestBuilder, Failure> {
    let inputs = &caller.gateway.inputs;
    let namespace = &caller.live.parts.key.namespace;
    let credential = match &input.connector {
        Some(connector) => {
            inputs
                .credential(namespace, connector, ConnectorUse::Inputs)
                .await?
        }
        None => Credential::anonymous(namespace),
    };
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

/// Why an input cannot be fetched, and the field that says so.
fn closed(input: &ResolvedInput) -> Option<(&'static str, &'static str)> {
    if !input.fetch {
        return Some(("the input does not allow git fetch", "fetch"));
    }
    (input.repository.transport() == Transport::Ssh).then_some((
        "git fetch through the relay works for https repositories only",
        "repository",
    ))
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
