//! Switchable faults: what a server does wrong, when, and how often.
//!
//! A fault belongs to one repository and one [`Phase`] of a git conversation (or all of them). Those that
//! answer in place of git ([`Effect::Answer`], [`Effect::Drop`], ...) come before the credential is
//! looked at; all others come after it, so a challenge does not use them up.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A part of a git conversation over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// `GET info/refs?service=git-upload-pack`: capabilities in protocol v2, the refs in v0 and v1.
    Listing,
    /// `POST git-upload-pack` with `command=ls-refs` (v2 only).
    LsRefs,
    /// `POST git-upload-pack` that asks for objects.
    Fetch,
    /// `GET info/refs?service=git-receive-pack`, which is also how a credential is proved.
    PushListing,
    /// `POST git-receive-pack`.
    Push,
}

/// A closure that a test runs inside the server, between two requests of a client.
pub type Hook = Arc<dyn Fn() + Send + Sync>;

/// What happens in place of, or on top of, the right answer.
#[derive(Clone)]
pub enum Effect {
    /// Answers this and does not ask git.
    Answer {
        /// The status.
        status: u16,
        /// The headers.
        headers: Vec<(String, String)>,
        /// The body.
        body: Vec<u8>,
    },
    /// Sends the client to the same request below another repository URL.
    Redirect {
        /// 301, 302, 307 or 308.
        status: u16,
        /// The repository's new URL, without `/info/refs`.
        to: String,
    },
    /// Takes the request and never answers.
    Silence,
    /// Closes the connection in place of an answer.
    Drop,
    /// Waits before it goes on as usual.
    Delay(Duration),
    /// Speaks protocol v0, whatever the client asks for.
    OnlyV0,
    /// Runs git with this configuration variable.
    Config(String, String),
    /// Refuses ids that no ref points to, in v2 as well (where git itself serves any object).
    RefuseUnadvertised,
    /// Claims that the repository has this object format.
    ObjectFormat(String),
    /// Sends this many bytes of the right answer, then nothing, and keeps the connection.
    StallAfter(u64),
    /// Sends this many bytes of the right answer, then a clean end.
    Truncate(u64),
    /// Sends this many bytes of the right answer, then closes the connection.
    DropAfter(u64),
    /// Turns around the bits of the byte at this offset of the answer.
    Corrupt(u64),
    /// Runs a closure before git is asked.
    Before(Hook),
    /// Runs a closure when git has answered and before the client gets to see it.
    After(Hook),
}

impl Effect {
    /// A bare status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::Answer {
            status,
            headers: vec![("content-type".to_owned(), "text/plain".to_owned())],
            body: format!("the demo forge answers {status} by order of the test\n").into_bytes(),
        }
    }

    /// 401 with the challenge that makes a client ask for a password.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::status(401).header("www-authenticate", "Basic realm=\"demo forge\"")
    }

    /// 429 with `Retry-After` in seconds.
    #[must_use]
    pub fn too_many_requests(retry_after_secs: u64) -> Self {
        Self::status(429).header("retry-after", &retry_after_secs.to_string())
    }

    /// 403 as forges use it for their limits: told from a denial by headers and text only.
    #[must_use]
    pub fn rate_limited_403(retry_after_secs: u64) -> Self {
        let Self::Answer {
            status, headers, ..
        } = Self::status(403)
        else {
            return Self::Silence;
        };
        let body = b"{\"message\":\"You have exceeded a secondary rate limit.\"}".to_vec();
        Self::Answer {
            status,
            headers,
            body,
        }
        .header("retry-after", &retry_after_secs.to_string())
        .header("x-ratelimit-limit", "60")
        .header("x-ratelimit-remaining", "0")
    }

    /// 200 with a page that asks a person to sign in.
    #[must_use]
    pub fn login_page() -> Self {
        Self::Answer {
            status: 200,
            headers: vec![(
                "content-type".to_owned(),
                "text/html; charset=utf-8".to_owned(),
            )],
            body:
                b"<!DOCTYPE html><html><body><form action=\"/login\">Sign in</form></body></html>\n"
                    .to_vec(),
        }
    }

    /// A redirect to another repository URL.
    #[must_use]
    pub fn redirect(status: u16, to: impl Into<String>) -> Self {
        Self::Redirect {
            status,
            to: to.into(),
        }
    }

    /// A closure that runs before git is asked.
    pub fn before(hook: impl Fn() + Send + Sync + 'static) -> Self {
        Self::Before(Arc::new(hook))
    }

    /// A closure that runs when git has answered and before the client gets to see it.
    pub fn after(hook: impl Fn() + Send + Sync + 'static) -> Self {
        Self::After(Arc::new(hook))
    }

    /// Adds a header to an [`Effect::Answer`]; to others it does nothing.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// Whether it acts before the credential is looked at.
    fn is_early(&self) -> bool {
        match self {
            Self::Answer { .. }
            | Self::Redirect { .. }
            | Self::Silence
            | Self::Drop
            | Self::Delay(_) => true,
            Self::OnlyV0
            | Self::Config(..)
            | Self::RefuseUnadvertised
            | Self::ObjectFormat(_)
            | Self::StallAfter(_)
            | Self::Truncate(_)
            | Self::DropAfter(_)
            | Self::Corrupt(_)
            | Self::Before(_)
            | Self::After(_) => false,
        }
    }
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer { status, .. } => write!(f, "Answer({status})"),
            Self::Redirect { status, to } => write!(f, "Redirect({status}, {to})"),
            Self::Silence => f.write_str("Silence"),
            Self::Drop => f.write_str("Drop"),
            Self::Delay(time) => write!(f, "Delay({time:?})"),
            Self::OnlyV0 => f.write_str("OnlyV0"),
            Self::Config(name, value) => write!(f, "Config({name}={value})"),
            Self::RefuseUnadvertised => f.write_str("RefuseUnadvertised"),
            Self::ObjectFormat(name) => write!(f, "ObjectFormat({name})"),
            Self::StallAfter(bytes) => write!(f, "StallAfter({bytes})"),
            Self::Truncate(bytes) => write!(f, "Truncate({bytes})"),
            Self::DropAfter(bytes) => write!(f, "DropAfter({bytes})"),
            Self::Corrupt(at) => write!(f, "Corrupt({at})"),
            Self::Before(_) => f.write_str("Before(..)"),
            Self::After(_) => f.write_str("After(..)"),
        }
    }
}

/// An effect with its place and its number of times.
#[derive(Clone, Debug)]
pub struct Fault {
    phase: Option<Phase>,
    effect: Effect,
    skip: u32,
    left: Option<u32>,
}

impl Fault {
    /// A fault of one phase, until it is cleared.
    #[must_use]
    pub fn new(phase: Phase, effect: Effect) -> Self {
        Self {
            phase: Some(phase),
            effect,
            skip: 0,
            left: None,
        }
    }

    /// A fault of every phase, until it is cleared.
    #[must_use]
    pub fn everywhere(effect: Effect) -> Self {
        Self {
            phase: None,
            effect,
            skip: 0,
            left: None,
        }
    }

    /// For the first `count` matching requests only.
    #[must_use]
    pub fn first(mut self, count: u32) -> Self {
        self.left = Some(count);
        self
    }

    /// Lets `count` matching requests pass before it acts.
    #[must_use]
    pub fn skip(mut self, count: u32) -> Self {
        self.skip = count;
        self
    }

    fn act(&mut self, phase: Phase) -> Option<Effect> {
        if self.phase.is_some_and(|own| own != phase) || self.left == Some(0) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.left = self.left.map(|left| left - 1);
        Some(self.effect.clone())
    }
}

/// The faults of all repositories.
#[derive(Default)]
pub(crate) struct Faults(Mutex<HashMap<String, Vec<Fault>>>);

impl Faults {
    pub(crate) fn add(&self, repo: &str, fault: Fault) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(repo.to_owned()).or_default().push(fault);
    }

    pub(crate) fn clear(&self, repo: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(repo);
    }

    /// What acts before the credential is looked at.
    pub(crate) fn early(&self, repo: &str, phase: Phase) -> Vec<Effect> {
        self.take(repo, phase, true)
    }

    /// What acts on a request that was let in.
    pub(crate) fn late(&self, repo: &str, phase: Phase) -> Vec<Effect> {
        self.take(repo, phase, false)
    }

    fn take(&self, repo: &str, phase: Phase, early: bool) -> Vec<Effect> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(faults) = all.get_mut(repo) else {
            return Vec::new();
        };
        faults
            .iter_mut()
            .filter(|fault| fault.effect.is_early() == early)
            .filter_map(|fault| fault.act(phase))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_acts_on_its_phase_its_number_of_times() {
        let faults = Faults::default();
        faults.add(
            "a/b",
            Fault::new(Phase::Fetch, Effect::status(503))
                .skip(1)
                .first(2),
        );
        let seen = |phase| faults.early("a/b", phase).len();
        assert_eq!(seen(Phase::Listing), 0);
        assert_eq!([1, 2, 3, 4].map(|_| seen(Phase::Fetch)), [0, 1, 1, 0]);
        assert!(faults.early("a/c", Phase::Fetch).is_empty());
    }
}
