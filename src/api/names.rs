//! Names and ids of Kubernetes and git, each a type of its own.
//!
//! The inner value is private and `FromStr` is the only way in, so whoever holds a name knows it is a good one.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::rules;

/// Why a text is not the name it was given as.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {rule}")]
pub struct NameError {
    /// What was being read, such as `input name`.
    pub what: &'static str,
    /// The rule that it breaks, as a sentence's end: `must be ...`.
    pub rule: &'static str,
}

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:expr, $ok:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                let ok: fn(&str) -> bool = $ok;
                if ok(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(NameError { what: $what, rule: $rule })
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_type!(
    /// The name of an input: a DNS label of at most 40 characters, unique in its run.
    InputName,
    "input name",
    rules::LABEL,
    |t| is_dns_label(t, rules::MAX_LABEL)
);
text_type!(
    /// The name of a lookup: a DNS label of at most 40 characters, unique in its run.
    LookupName,
    "lookup name",
    rules::LABEL,
    |t| is_dns_label(t, rules::MAX_LABEL)
);
text_type!(
    /// The name of a Connector in the run's own namespace: a DNS subdomain of at most 253 characters.
    ConnectorName,
    "connector name",
    rules::CONNECTOR_NAME,
    is_dns_subdomain
);
text_type!(
    /// The name of a `SandboxRun`: a DNS subdomain of at most 253 characters.
    RunName,
    "run name",
    rules::OBJECT_NAME,
    is_dns_subdomain
);
text_type!(
    /// A Kubernetes namespace, which is also the tenant in the record.
    Namespace,
    "namespace",
    "must be a DNS label of at most 63 characters",
    |t| is_dns_label(t, 63)
);
text_type!(
    /// The uid that the API server (or a local run) gave to one run object. Never used twice.
    RunUid,
    "run uid",
    "must be a uid: at most 64 of 0-9, a-f and '-'",
    |t| {
        !t.is_empty()
            && t.len() <= 64
            && t.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-'))
            && !t.starts_with('-')
    }
);

/// The number of an attempt, from 1. Counted through the life of the run object, never starting again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(NonZeroU32);

impl Attempt {
    /// The first attempt of a run.
    pub const FIRST: Self = Self(NonZeroU32::MIN);

    /// An attempt by its number; `None` for 0.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    /// The attempt after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The plain number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The hash that a repository names its objects by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectFormat {
    /// 40 hex digits.
    Sha1,
    /// 64 hex digits.
    Sha256,
}

impl ObjectFormat {
    /// git's own word: `sha1` or `sha256`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    /// How many hex digits an id has.
    #[must_use]
    pub fn hex_len(self) -> usize {
        match self {
            Self::Sha1 => 40,
            Self::Sha256 => 64,
        }
    }
}

impl fmt::Display for ObjectFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The full id of a git object, usually a commit: 40 or 64 hex digits, kept in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CommitId(String);

impl CommitId {
    /// The id in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first ten digits, for people.
    #[must_use]
    pub fn short(&self) -> &str {
        self.0.get(..10).unwrap_or(&self.0)
    }

    /// The object format, known by the length.
    #[must_use]
    pub fn format(&self) -> ObjectFormat {
        if self.0.len() == 64 {
            ObjectFormat::Sha256
        } else {
            ObjectFormat::Sha1
        }
    }
}

impl FromStr for CommitId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit()) {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(NameError {
                what: "commit",
                rule: rules::COMMIT,
            })
        }
    }
}

impl TryFrom<String> for CommitId {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<CommitId> for String {
    fn from(id: CommitId) -> Self {
        id.0
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_dns_label(text: &str, max: usize) -> bool {
    !text.is_empty()
        && text.len() <= max
        && text
            .bytes()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|label| is_dns_label(label, 253))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::short("1a2b3c4", false)] // R07
    #[case::upper_case("ABCDEF0123456789ABCDEF0123456789ABCDEF01", true)]
    #[case::sha256(
        "abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789",
        true
    )]
    #[case::not_hex("zbcdef0123456789abcdef0123456789abcdef01", false)]
    fn a_commit_is_a_whole_id_in_lower_case(#[case] text: &str, #[case] good: bool) {
        let parsed = text.parse::<CommitId>();
        assert_eq!(parsed.is_ok(), good);
        if let Ok(id) = parsed {
            assert_eq!(id.as_str(), text.to_ascii_lowercase());
        }
    }

    #[rstest]
    #[case::plain("app", true)]
    #[case::empty("", false)]
    #[case::dot("a.b", false)]
    #[case::dash_first("-a", false)]
    #[case::upper("App", false)]
    #[case::forty_one("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false)]
    fn an_input_name_is_a_dns_label(#[case] text: &str, #[case] good: bool) {
        assert_eq!(text.parse::<InputName>().is_ok(), good);
    }
}
