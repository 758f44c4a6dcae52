//! The request log: what each client asked, and with which credential.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::HeaderMap;

use crate::fault::Phase;

/// What a request's `Authorization` header held.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// No such header.
    None,
    /// Basic, decoded.
    Basic {
        /// What stood before the first colon.
        user: Vec<u8>,
        /// What stood after it, byte for byte.
        password: Vec<u8>,
    },
    /// Bearer, byte for byte.
    Bearer(Vec<u8>),
    /// Anything else, as it was sent.
    Other(Vec<u8>),
}

impl Credential {
    /// The secret part, as the server understood it.
    #[must_use]
    pub fn secret(&self) -> Option<&[u8]> {
        match self {
            Self::None => None,
            Self::Basic { password, .. } => Some(password),
            Self::Bearer(secret) | Self::Other(secret) => Some(secret),
        }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Basic { .. } => "Basic(..)",
            Self::Bearer(_) => "Bearer(..)",
            Self::Other(_) => "Other(..)",
        })
    }
}

/// One request as the forge saw it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The query, without its question mark.
    pub query: Option<String>,
    /// The repository (`acme/app`), if the path is one of git's.
    pub repo: Option<String>,
    /// Which part of a git conversation this is.
    pub phase: Option<Phase>,
    /// The status that was answered; `None` while there is no answer, and when the connection was
    /// dropped in place of one.
    pub status: Option<u16>,
    /// The credential that came with it.
    pub credential: Credential,
    /// The name of the token that was recognised.
    pub token: Option<String>,
    /// The header `Git-Protocol`.
    pub git_protocol: Option<String>,
    /// All headers, as they came.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The first bytes of the body of a POST to `git-upload-pack`, inflated; at most 4 KiB.
    pub body_head: Vec<u8>,
    /// Whether the answer held (the beginning of) a pack.
    pub pack_sent: bool,
    /// Bytes of body that were sent in answer, so far.
    pub bytes_sent: u64,
}

/// How a pack of version 2 begins.
const PACK: &[u8] = b"PACK\0\0\0\x02";

/// All requests of a forge, in the order in which they came.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Arc<Entry>>>>);

/// A request while it is being answered.
pub(crate) struct Entry {
    request: Mutex<Request>,
    sent: AtomicU64,
}

impl Log {
    /// Enters a request.
    pub(crate) fn enter(
        &self,
        parts: &axum::http::request::Parts,
        credential: Credential,
    ) -> Arc<Entry> {
        let entry = Arc::new(Entry {
            request: Mutex::new(Request {
                method: parts.method.to_string(),
                path: parts.uri.path().to_owned(),
                query: parts.uri.query().map(ToOwned::to_owned),
                repo: None,
                phase: None,
                status: None,
                credential,
                token: None,
                git_protocol: text(&parts.headers, "git-protocol"),
                headers: parts
                    .headers
                    .iter()
                    .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                    .collect(),
                body_head: Vec::new(),
                pack_sent: false,
                bytes_sent: 0,
            }),
            sent: AtomicU64::new(0),
        });
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(&entry));
        entry
    }

    /// A copy of the log.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let entries = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        entries.iter().map(|entry| entry.snapshot()).collect()
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

impl Entry {
    /// Changes what is known about the request.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Request)) {
        change(&mut self.request.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts a piece of the answer's body.
    pub(crate) fn sent(&self, piece: &[u8]) {
        self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        let mut request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
        if request.phase == Some(Phase::Fetch) && !request.pack_sent {
            // git sends a pack's header in one piece of its own.
            request.pack_sent = piece.windows(PACK.len()).any(|window| window == PACK);
        }
    }

    fn snapshot(&self) -> Request {
        let mut request = self
            .request
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        request.bytes_sent = self.sent.load(Ordering::Relaxed);
        request
    }
}

/// A header as text, if it is there and is text.
pub(crate) fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .map(ToOwned::to_owned)
}
