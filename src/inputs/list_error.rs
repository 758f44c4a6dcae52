//! What can go wrong when a server is asked for its refs, and which reason that is: the table of what servers really
//! say, as types.
//!
//! Decided by what our own client saw (status, headers, content type, TLS), never by an exit code.

use std::error::Error;
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::StatusCode;
use reqwest::header::{DATE, HeaderMap, LOCATION, RETRY_AFTER};
use url::Url;

use super::pkt::PktError;
use super::protocol::ProtocolError;
use super::trace::Heard;
use super::{AddressError, Remote};
use crate::api::{ConnectorType, Failure, Fault as _, Reason, safe_text};

/// Why a server did not list its refs. Each is the end of a sentence that begins with the repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// 401, and nothing was sent.
    #[error("asks for a credential, and none was given")]
    AuthenticationRequired,
    /// 401, in spite of a credential.
    #[error("does not take the credential that was given")]
    AuthenticationFailed,
    /// 403 and the like.
    #[error("does not let this credential read (status {0})")]
    AccessDenied(u16),
    /// 404.
    #[error("is not found, or this credential may not see it")]
    NotFound,
    /// 410.
    #[error("is gone: the server says that it was removed")]
    Gone,
    /// 429, or 403 that is a limit.
    #[error("limits requests{}", wait_text(*.wait))]
    RateLimited {
        /// How long the server asks to be left alone.
        wait: Option<Duration>,
    },
    /// 5xx.
    #[error("has a fault on the server (status {0})")]
    ServerError(u16),
    /// The answer ended in the middle.
    #[error("broke off its answer: {0}")]
    BrokenOff(String),
    /// No connection.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// A connection, and then nothing.
    #[error("went silent")]
    Stalled,
    /// The certificate does not pass.
    #[error("shows a certificate that does not pass: {0}")]
    Tls(String),
    /// 3xx, with the new address of the repository if one can be told.
    #[error("redirects{}, and redirects are not followed", to_text(.to.as_ref()))]
    Redirect {
        /// The new address, without query and user.
        to: Option<String>,
    },
    /// 200 with something else, or bytes that are not git's.
    #[error("is not served by git: {0}")]
    NotGit(String),
    /// A hash that we do not know.
    #[error("uses the object format `{0}`, which is not known")]
    UnknownFormat(String),
    /// A status or words that nobody foresaw.
    #[error("answers with {0}")]
    Odd(String),
    /// The address guard said no, or found no address.
    #[error("cannot be reached: {0}")]
    Address(#[source] AddressError),
    /// What the half that runs git and ssh said.
    #[error("{0}")]
    Git(#[source] Failure),
}

fn wait_text(wait: Option<Duration>) -> String {
    wait.map(|wait| format!("; it asks to wait {} s", wait.as_secs()))
        .unwrap_or_default()
}

fn to_text(to: Option<&String>) -> String {
    to.map(|to| format!(" to {to}")).unwrap_or_default()
}

impl ListError {
    /// Its place in the registry.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::AuthenticationRequired => Reason::AuthenticationRequired,
            Self::AuthenticationFailed => Reason::AuthenticationFailed,
            Self::AccessDenied(_) => Reason::AccessDenied,
            Self::NotFound => Reason::RepositoryNotFoundOrNoAccess,
            Self::Gone => Reason::RepositoryGone,
            Self::RateLimited { .. } => Reason::RateLimited,
            Self::ServerError(_) | Self::BrokenOff(_) => Reason::ServerError,
            Self::Unreachable(_) => Reason::HostUnreachable,
            Self::Stalled => Reason::TransferStalled,
            Self::Tls(_) => Reason::TLSVerificationFailed,
            Self::Redirect { .. } => Reason::RedirectRefused,
            Self::NotGit(_) => Reason::NotAGitServer,
            Self::UnknownFormat(_) => Reason::UnsupportedObjectFormat,
            Self::Odd(_) => Reason::FetchFailed,
            Self::Address(error) => error.reason(),
            Self::Git(failure) => failure.reason,
        }
    }

    /// The failure as a run sees it: it names the repository and holds no secret.
    #[must_use]
    pub fn failure(&self, remote: &Remote) -> Failure {
        let text = match (self, remote.credential.name()) {
            (Self::Git(failure), _) => failure.message.clone(),
            (_, Some(connector)) => {
                format!("{} {self} (connector `{connector}`)", remote.repository)
            }
            (_, None) => format!("{} {self}", remote.repository),
        };
        let text = remote.credential.scrub(&text);
        // Most of it is safe already, and to be made safe twice doubles its backslashes.
        let unsafe_text = text.chars().any(char::is_control);
        let text = if unsafe_text {
            safe_text(text.as_bytes())
        } else {
            text
        };
        Failure::new(self.reason(), text)
    }
}

/// What an answer that is no success means. `body` is its beginning.
pub(super) fn refusal(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    asked: &Url,
    remote: &Remote,
) -> ListError {
    let anonymous = remote.credential.is_anonymous();
    match status.as_u16() {
        401 if anonymous => ListError::AuthenticationRequired,
        401 => ListError::AuthenticationFailed,
        403 if is_limit(headers, body) => ListError::RateLimited {
            wait: wait(headers),
        },
        403 | 451 => ListError::AccessDenied(status.as_u16()),
        404 => ListError::NotFound,
        410 => ListError::Gone,
        429 => ListError::RateLimited {
            wait: wait(headers),
        },
        // Azure sends whoever it does not know to a page where people sign in.
        302 | 303 | 203 if is_azure(remote) && signs_in(status, headers) => {
            if anonymous {
                ListError::AuthenticationRequired
            } else {
                ListError::AuthenticationFailed
            }
        }
        300..=399 => ListError::Redirect {
            to: redirected_to(headers, asked),
        },
        503 if headers.contains_key(RETRY_AFTER) => ListError::RateLimited {
            wait: wait(headers),
        },
        500..=599 => ListError::ServerError(status.as_u16()),
        other => ListError::Odd(format!("status {other}")),
    }
}

/// What the last answer means that git heard before it failed; `None`: it is not the answer that git failed by, or git
/// says it better.
pub(super) fn heard(heard: &Heard, remote: &Remote) -> Option<ListError> {
    let (status, headers) = (heard.status, &heard.headers);
    if status.is_success() || status.is_informational() || status == StatusCode::UNAUTHORIZED {
        return None;
    }
    let asked = Url::parse(remote.repository.as_str()).ok()?;
    Some(refusal(status, headers, b"", &asked, remote))
}

fn is_azure(remote: &Remote) -> bool {
    remote
        .credential
        .connector()
        .is_some_and(|c| c.kind == ConnectorType::AzureRepos)
}

fn signs_in(status: StatusCode, headers: &HeaderMap) -> bool {
    let to = headers
        .get(LOCATION)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    status.as_u16() == 203 || to.to_ascii_lowercase().contains("_signin")
}

/// Whether a 403 is a limit and no denial: forges tell the two apart by headers and text only.
fn is_limit(headers: &HeaderMap, body: &[u8]) -> bool {
    let spent = ["x-ratelimit-remaining", "ratelimit-remaining"]
        .iter()
        .any(|name| {
            headers
                .get(*name)
                .is_some_and(|value| value.as_bytes() == b"0")
        });
    let text = String::from_utf8_lossy(body).to_ascii_lowercase();
    spent
        || headers.contains_key(RETRY_AFTER)
        || ["rate limit", "too many requests", "abuse detection"]
            .iter()
            .any(|w| text.contains(w))
}

/// How long a server asks to be left alone. Dates count from the server's own `Date`, so no clock is compared.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let date = |text: &str| rfc2822::parse(text).ok().map(|date| date.timestamp());
    let now = text(DATE.as_str()).and_then(date);
    let until = |end: Timestamp| {
        now.map(|now| Duration::try_from(end.duration_since(now)).unwrap_or(Duration::ZERO))
    };
    if let Some(after) = text(RETRY_AFTER.as_str()) {
        return match after.parse::<u64>() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => date(after).and_then(until),
        };
    }
    ["x-ratelimit-reset", "ratelimit-reset"]
        .iter()
        .find_map(|name| text(name)?.parse::<i64>().ok())
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .and_then(until)
}

/// The repository's new address: the `Location` without what we appended, and without user, query and fragment.
fn redirected_to(headers: &HeaderMap, asked: &Url) -> Option<String> {
    let location = headers.get(LOCATION)?.to_str().ok()?;
    let mut to = asked.join(location).ok()?;
    to.set_query(None);
    to.set_fragment(None);
    to.set_username("").ok()?;
    to.set_password(None).ok()?;
    let text = to.to_string();
    let text = ["/info/refs", "/git-upload-pack"]
        .iter()
        .find_map(|tail| text.strip_suffix(tail))
        .unwrap_or(&text);
    Some(text.chars().take(300).collect())
}

/// What a failed request means.
pub(super) fn transport(error: &reqwest::Error) -> ListError {
    if let Some(error) = find::<AddressError>(error) {
        return ListError::Address(error.clone());
    }
    if let Some(error) = find::<rustls::Error>(error) {
        return tls(error);
    }
    match (error.is_timeout(), error.is_connect()) {
        (true, true) => ListError::Unreachable("no connection was made in time".to_owned()),
        (true, false) => ListError::Stalled,
        (false, true) => ListError::Unreachable(deepest(error)),
        (false, false) => ListError::BrokenOff(deepest(error)),
    }
}

/// Only a certificate that does not pass stays so: a handshake that breaks off may be a server that restarts.
fn tls(error: &rustls::Error) -> ListError {
    if matches!(error, rustls::Error::InvalidCertificate(_)) {
        ListError::Tls(error.to_string())
    } else if matches!(error, rustls::Error::InvalidMessage(_)) {
        ListError::NotGit("the port does not speak TLS".to_owned())
    } else {
        ListError::Unreachable(error.to_string())
    }
}

/// What bytes that are not as they should be mean.
pub(super) fn protocol(error: &ProtocolError) -> ListError {
    match error {
        ProtocolError::Framing(PktError::Malformed) => {
            ListError::NotGit("its bytes are not git's".to_owned())
        }
        ProtocolError::Framing(PktError::TooLong { limit }) => {
            ListError::NotGit(format!("the listing is longer than {limit} bytes"))
        }
        ProtocolError::Framing(PktError::Truncated) => {
            ListError::BrokenOff("it ends in the middle".to_owned())
        }
        ProtocolError::Framing(PktError::Io(error)) | ProtocolError::Asking(error) => {
            match find::<reqwest::Error>(error) {
                Some(error) => transport(error),
                None => ListError::BrokenOff(error.to_string()),
            }
        }
        ProtocolError::Unexpected(what) => ListError::NotGit((*what).to_owned()),
        ProtocolError::UnknownFormat(name) => ListError::UnknownFormat(name.clone()),
        ProtocolError::Remote(words) => said(words),
    }
}

/// What a server's own error line means. Second source only: most servers use a status.
fn said(words: &str) -> ListError {
    let lower = words.to_ascii_lowercase();
    let holds = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if holds(&["rate limit", "too many requests"]) {
        ListError::RateLimited { wait: None }
    } else if holds(&["not found", "does not exist", "not exported", "no such"]) {
        ListError::NotFound
    } else if holds(&[
        "access denied",
        "permission denied",
        "not allowed",
        "forbidden",
    ]) {
        ListError::AccessDenied(200)
    } else {
        ListError::Odd(format!("an error of its own: {words}"))
    }
}

/// The first error of a type in a chain of causes, also inside an `io::Error`, which hides its own content.
fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = inner(error);
    }
    None
}

fn inner<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let hidden = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match hidden {
        Some(hidden) => Some(hidden),
        None => error.source(),
    }
}

/// The words of the deepest cause: those of the ones above it name the URL, or nothing.
fn deepest(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(next) = inner(last) {
        last = next;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::Credential;
    use reqwest::header::{HeaderName, HeaderValue};
    use rstest::rstest;

    fn remote() -> Remote {
        Remote {
            repository: "https://git.example.com/acme/app.git".parse().unwrap(),
            credential: Credential::anonymous(&"team-a".parse().unwrap()),
        }
    }

    fn refused(status: u16, headers: &[(&str, &str)], body: &str) -> ListError {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                (
                    name.parse::<HeaderName>().unwrap(),
                    HeaderValue::from_str(value).unwrap(),
                )
            })
            .collect();
        let asked = "https://git.example.com/acme/app.git/info/refs?service=git-upload-pack";
        let status = StatusCode::from_u16(status).unwrap();
        refusal(
            status,
            &headers,
            body.as_bytes(),
            &asked.parse().unwrap(),
            &remote(),
        )
    }

    const DATE: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");

    #[rstest]
    #[case::seconds(429, &[("retry-after", "20")], Some(20))]
    #[case::a_date(429, &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")], Some(30))]
    #[case::a_date_that_is_past(429, &[DATE, ("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")], Some(0))]
    #[case::a_date_without_a_now(429, &[("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")], None)]
    #[case::nonsense(429, &[("retry-after", "soon")], None)]
    #[case::negative(429, &[("retry-after", "-5")], None)]
    #[case::nothing(429, &[], None)]
    #[case::a_spent_limit(403, &[DATE, ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "784111787")], Some(10))]
    #[case::a_503_that_names_a_time(503, &[("retry-after", "5")], Some(5))]
    fn t02_how_long_to_wait_is_read_in_every_form(
        #[case] status: u16,
        #[case] headers: &[(&str, &str)],
        #[case] seconds: Option<u64>,
    ) {
        let wait = seconds.map(Duration::from_secs);
        assert_eq!(
            refused(status, headers, ""),
            ListError::RateLimited { wait }
        );
    }

    #[rstest]
    #[case::denied(&[], "You may not read this.", false)]
    #[case::secondary(&[], "You have exceeded a secondary rate limit.", true)]
    #[case::some_left(&[("x-ratelimit-remaining", "10")], "", false)]
    fn a_403_is_a_limit_only_if_it_says_so(
        #[case] headers: &[(&str, &str)],
        #[case] body: &str,
        #[case] limit: bool,
    ) {
        let refused = refused(403, headers, body);
        assert_eq!(
            matches!(refused, ListError::RateLimited { .. }),
            limit,
            "{refused:?}"
        );
    }

    #[rstest]
    #[case::absolute(
        "https://u:p@new.example.com/a.git/info/refs?service=x#y",
        "https://new.example.com/a.git"
    )]
    #[case::relative("/a.git/info/refs?token=secret", "https://git.example.com/a.git")]
    #[case::a_login("/login?return_to=secret", "https://git.example.com/login")]
    fn c03_the_new_address_has_no_user_and_no_query(#[case] location: &str, #[case] to: &str) {
        let refused = refused(301, &[("location", location)], "");
        assert_eq!(
            refused,
            ListError::Redirect {
                to: Some(to.to_owned())
            }
        );
        let failure = refused.failure(&remote());
        assert!(
            failure.message.contains(to) && !failure.message.contains("secret"),
            "{failure}"
        );
    }

    #[rstest]
    #[case("Repository not found.", Reason::RepositoryNotFoundOrNoAccess)]
    #[case(
        "access denied or repository not exported: /acme/app",
        Reason::RepositoryNotFoundOrNoAccess
    )]
    #[case("Permission denied", Reason::AccessDenied)]
    #[case("API rate limit exceeded", Reason::RateLimited)]
    #[case("something else", Reason::FetchFailed)]
    fn words_are_the_second_source(#[case] words: &str, #[case] reason: Reason) {
        assert_eq!(said(words).reason(), reason);
    }
}
