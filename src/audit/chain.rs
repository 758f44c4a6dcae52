//! The hash chain: what is hashed, and how a chain is checked. Pure.
//!
//! The hash of an entry is SHA-256 over its canonical JSON (RFC 8785) without the member `hash`, so whoever holds an
//! export can check it with a JSON tool and `sha256sum`. It covers the installation, the run's identity, the sequence,
//! the time, the hash before and the event, so that no entry can stand in another place or another run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Event, RunKey};
use crate::api::{canonical_json, safe_text, sha256_hex};

/// What stands in the place of a previous hash at the first entry: 64 zeros.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The newest entry of a chain. Written `SEQUENCE:HASH`; whoever keeps it can later show that nothing was cut off.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Head {
    /// From 1, without gaps.
    pub sequence: u64,
    /// SHA-256 in lower-case hex.
    pub hash: String,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.sequence, self.hash)
    }
}

/// The text is no head of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be SEQUENCE:HASH, such as `12:` and 64 hex digits, as `sandboxrun run` prints it")]
pub struct HeadError;

impl FromStr for Head {
    type Err = HeadError;

    fn from_str(text: &str) -> Result<Self, HeadError> {
        let (sequence, hash) = text.trim().split_once(':').ok_or(HeadError)?;
        let sequence = sequence.parse().map_err(|_| HeadError)?;
        if sequence == 0 || hash.len() != 64 || !hash.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(HeadError);
        }
        Ok(Self {
            sequence,
            hash: hash.to_ascii_lowercase(),
        })
    }
}

/// One link of a chain, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The installation that wrote it.
    pub installation: String,
    /// The run.
    pub run: RunKey,
    /// From 1, without gaps.
    pub sequence: u64,
    /// When, by the writer's clock: RFC 3339 with microseconds, UTC.
    pub at: String,
    /// The event as canonical JSON.
    pub body: String,
    /// The hash of the entry before, or [`GENESIS`].
    pub previous: String,
    /// This entry's hash.
    pub hash: String,
}

impl Entry {
    /// The entry that follows `previous`, with its hash.
    #[must_use]
    pub fn next(
        installation: &str,
        run: &RunKey,
        previous: Option<&Head>,
        at: String,
        body: String,
    ) -> Self {
        let mut entry = Self {
            installation: installation.to_owned(),
            run: run.clone(),
            sequence: previous.map_or(1, |head| head.sequence + 1),
            at,
            body,
            previous: previous.map_or(GENESIS, |head| &head.hash).to_owned(),
            hash: String::new(),
        };
        entry.hash = entry.computed_hash();
        entry
    }

    /// This entry's place and hash.
    #[must_use]
    pub fn head(&self) -> Head {
        Head {
            sequence: self.sequence,
            hash: self.hash.clone(),
        }
    }

    /// The event itself; `None` when the text is no event that this version knows.
    #[must_use]
    pub fn event(&self) -> Option<Event> {
        serde_json::from_str(&self.body).ok()
    }

    /// The hash that the stored texts lead to.
    #[must_use]
    pub fn computed_hash(&self) -> String {
        sha256_hex(self.text(false).as_bytes())
    }

    /// The entry as one line of an export: canonical JSON.
    #[must_use]
    pub fn line(&self) -> String {
        self.text(true)
    }

    /// Members in canonical order. The body goes in byte for byte: it is hashed as it is stored.
    fn text(&self, with_hash: bool) -> String {
        let text = |s: &str| canonical_json(&Value::String(s.to_owned()));
        let hash = if with_hash {
            format!("\"hash\":{},", text(&self.hash))
        } else {
            String::new()
        };
        format!(
            "{{\"at\":{at},\"event\":{body},{hash}\"installation\":{installation},\"name\":{name},\
             \"namespace\":{namespace},\"previous\":{previous},\"sequence\":{sequence},\"uid\":{uid}}}",
            at = text(&self.at),
            body = self.body,
            installation = text(&self.installation),
            name = text(self.run.name.as_str()),
            namespace = text(self.run.namespace.as_str()),
            previous = text(&self.previous),
            sequence = self.sequence,
            uid = text(self.run.uid.as_str()),
        )
    }
}

/// The canonical text of an event. Texts that some store cannot hold (NUL) or that could act on a terminal (escape
/// sequences) are made safe by [`safe_text`], and `madeSafe` lists where, as JSON pointers.
#[must_use]
pub fn event_text(event: &Event) -> String {
    let mut value = serde_json::to_value(event).unwrap_or_default();
    let mut made_safe = Vec::new();
    make_safe(&mut value, &mut String::new(), &mut made_safe);
    if let (Value::Object(members), false) = (&mut value, made_safe.is_empty()) {
        members.insert("madeSafe".to_owned(), made_safe.into());
    }
    canonical_json(&value)
}

fn make_safe(value: &mut Value, path: &mut String, made_safe: &mut Vec<String>) {
    let unsafe_char = |c: char| c.is_control() && !matches!(c, '\n' | '\t' | '\r');
    match value {
        Value::String(text) if text.contains(unsafe_char) => {
            *text = safe_text(text.as_bytes());
            made_safe.push(path.clone());
        }
        Value::Array(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                step(path, &i.to_string(), |path| {
                    make_safe(item, path, made_safe);
                });
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                step(path, name, |path| make_safe(member, path, made_safe));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn step(path: &mut String, name: &str, inside: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push('/');
    path.push_str(name);
    inside(path);
    path.truncate(length);
}

/// Why a chain does not hold, at the first place where it shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(
    rename_all = "camelCase",
    tag = "fault",
    rename_all_fields = "camelCase"
)]
pub enum ChainFault {
    /// The bytes are not those that were hashed.
    #[error("event {sequence} was changed: its bytes do not lead to its hash")]
    Changed {
        /// Where.
        sequence: u64,
    },
    /// A row is gone.
    #[error("event {sequence} is missing")]
    Missing {
        /// The first one that is gone.
        sequence: u64,
    },
    /// Hashes do not join.
    #[error("event {sequence} does not follow the one before: it belongs to another chain")]
    Broken {
        /// Where.
        sequence: u64,
    },
    /// Another installation or run wrote it.
    #[error("event {sequence} was written by another installation or for another run")]
    Foreign {
        /// Where.
        sequence: u64,
    },
    /// The hash holds, and the text is no event.
    #[error("event {sequence} is no event that this version knows")]
    NotAnEvent {
        /// Where.
        sequence: u64,
    },
    /// The column that queries use says something else than the event.
    #[error("event {sequence} is filed under another kind than its own")]
    Misfiled {
        /// Where.
        sequence: u64,
    },
    /// The chain ends before the head that somebody kept.
    #[error(
        "the end was cut off: {found} events are there, and the head that was kept is event {kept}"
    )]
    Cut {
        /// How many there are.
        found: u64,
        /// The sequence of the kept head.
        kept: u64,
    },
    /// The chain is whole, and is not the one whose head was kept.
    #[error("event {sequence} has another hash than the head that was kept: this is another chain")]
    OtherHead {
        /// Where.
        sequence: u64,
    },
    /// The run is listed and none of its events are there.
    #[error("all events are missing")]
    Empty,
}

/// Checks the entries of one run, in order. `Ok`: the head that they lead to.
///
/// # Errors
/// The first place where the chain does not hold.
pub fn check<'a>(
    installation: &str,
    run: &RunKey,
    entries: impl IntoIterator<Item = &'a Entry>,
    kept: Option<&Head>,
) -> Result<Head, ChainFault> {
    let mut checker = Checker::new(installation, run, kept);
    for entry in entries {
        checker.take(entry)?;
    }
    checker.finish()
}

/// Checks a chain entry by entry, so that a long one need not be held.
#[derive(Debug)]
pub struct Checker<'a> {
    installation: &'a str,
    run: &'a RunKey,
    kept: Option<&'a Head>,
    /// Up to here retention took events out.
    pruned: Option<&'a Head>,
    head: Option<Head>,
}

impl<'a> Checker<'a> {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(installation: &'a str, run: &'a RunKey, kept: Option<&'a Head>) -> Self {
        Self {
            installation,
            run,
            kept,
            pruned: None,
            head: None,
        }
    }

    /// Takes gaps before this entry for retention's work.
    #[must_use]
    pub fn pruned(self, pruned: Option<&'a Head>) -> Self {
        Self { pruned, ..self }
    }

    /// Takes the next entry.
    ///
    /// # Errors
    /// When it does not hold, or does not follow.
    pub fn take(&mut self, entry: &Entry) -> Result<(), ChainFault> {
        let sequence = entry.sequence;
        let expected = self.head.as_ref().map_or(1, |head| head.sequence + 1);
        let thinned = self
            .pruned
            .is_some_and(|pruned| sequence <= pruned.sequence);
        let gap = sequence > expected;
        if gap && !thinned {
            return Err(ChainFault::Missing { sequence: expected });
        }
        if sequence < expected {
            return Err(ChainFault::Broken { sequence });
        }
        if entry.installation != self.installation || entry.run != *self.run {
            return Err(ChainFault::Foreign { sequence });
        }
        if entry.computed_hash() != entry.hash {
            return Err(ChainFault::Changed { sequence });
        }
        let previous = self.head.as_ref().map_or(GENESIS, |head| &head.hash);
        if entry.previous != previous && !gap {
            return Err(ChainFault::Broken { sequence });
        }
        if entry.event().is_none() {
            return Err(ChainFault::NotAnEvent { sequence });
        }
        let other =
            |head: &Head| head.sequence == sequence && !head.hash.eq_ignore_ascii_case(&entry.hash);
        if self.kept.is_some_and(other) || self.pruned.is_some_and(other) {
            return Err(ChainFault::OtherHead { sequence });
        }
        self.head = Some(entry.head());
        Ok(())
    }

    /// The head, when all entries were taken.
    ///
    /// # Errors
    /// When there was none, or fewer than the kept head says.
    pub fn finish(self) -> Result<Head, ChainFault> {
        let found = self.head.as_ref().map_or(0, |head| head.sequence);
        let newest = self
            .kept
            .into_iter()
            .chain(self.pruned)
            .map(|head| head.sequence)
            .max();
        if let Some(kept) = newest
            && kept > found
        {
            return Err(ChainFault::Cut { found, kept });
        }
        self.head.ok_or(ChainFault::Empty)
    }
}
