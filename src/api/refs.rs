//! What names a commit in a repository: the rules of `git check-ref-format`, and the five ways to write `ref`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{CommitId, rules};

/// A full ref name, such as `refs/heads/main` or `refs/pull/7/head`. Never begins with `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RefName(String);

/// Why a text is no ref name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RefError {
    /// Not below `refs/`.
    #[error("{}", rules::REF_NOT_FULL)]
    NotFull,
    /// A rule of `git check-ref-format` is broken.
    #[error("{}", rules::REF_MALFORMED)]
    Malformed,
    /// Longer than 255 bytes.
    #[error("{}", rules::REF_TOO_LONG)]
    TooLong,
}

impl RefName {
    /// The branch `refs/heads/NAME`.
    ///
    /// # Errors
    /// When the name breaks a rule of git.
    pub fn branch(name: &str) -> Result<Self, RefError> {
        Self::below("refs/heads/", name)
    }

    /// The tag `refs/tags/NAME`.
    ///
    /// # Errors
    /// When the name breaks a rule of git.
    pub fn tag(name: &str) -> Result<Self, RefError> {
        Self::below("refs/tags/", name)
    }

    /// The full name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn below(prefix: &str, name: &str) -> Result<Self, RefError> {
        if name.is_empty() {
            return Err(RefError::Malformed);
        }
        format!("{prefix}{name}").parse()
    }
}

impl FromStr for RefName {
    type Err = RefError;

    fn from_str(text: &str) -> Result<Self, RefError> {
        if text.len() > rules::MAX_REF {
            return Err(RefError::TooLong);
        }
        let Some(rest) = text.strip_prefix("refs/") else {
            return Err(RefError::NotFull);
        };
        let bad_char = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
        let bad_part = |part: &str| {
            part.is_empty() || part.starts_with(['.', '-']) || part.as_bytes().ends_with(b".lock")
        };
        let malformed = rest.chars().any(bad_char)
            || rest.contains("..")
            || rest.contains("@{")
            || rest.ends_with('.')
            || rest.split('/').any(bad_part);
        if malformed {
            Err(RefError::Malformed)
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

impl TryFrom<String> for RefName {
    type Error = RefError;

    fn try_from(text: String) -> Result<Self, RefError> {
        text.parse()
    }
}

impl From<RefName> for String {
    fn from(name: RefName) -> Self {
        name.0
    }
}

impl fmt::Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an input asks for. Branch and tag keep the full name; a name is looked up exactly, never by its end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefSelector {
    /// Whatever the remote's `HEAD` points to.
    Head,
    /// `refs/heads/...`
    Branch(RefName),
    /// `refs/tags/...`, peeled to the end.
    Tag(RefName),
    /// Exactly this commit; no name is asked for.
    Commit(CommitId),
    /// Any full name, as written.
    Name(RefName),
}

impl RefSelector {
    /// The full name that is looked up; `None` for the remote's HEAD and for a commit.
    #[must_use]
    pub fn name(&self) -> Option<&RefName> {
        match self {
            Self::Branch(name) | Self::Tag(name) | Self::Name(name) => Some(name),
            Self::Head | Self::Commit(_) => None,
        }
    }
}

impl fmt::Display for RefSelector {
    /// What a person would write: `branch main`, `HEAD`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short =
            |n: &RefName, p: &str| n.as_str().strip_prefix(p).unwrap_or(n.as_str()).to_owned();
        match self {
            Self::Head => f.write_str("HEAD"),
            Self::Branch(name) => write!(f, "branch {}", short(name, "refs/heads/")),
            Self::Tag(name) => write!(f, "tag {}", short(name, "refs/tags/")),
            Self::Commit(id) => write!(f, "commit {id}"),
            Self::Name(name) => write!(f, "{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::option("--upload-pack=touch x", false)]
    #[case::range("a..b", false)]
    #[case::reflog("x@{1}", false)]
    #[case::lock("x.lock", false)]
    #[case::control("a\u{7}b", false)]
    #[case::empty("", false)]
    #[case::slash_last("a/", false)]
    #[case::nested("feat/a/b", true)]
    #[case::unicode("grün/ß", true)]
    fn r11_a_branch_follows_the_rules_of_git(#[case] name: &str, #[case] good: bool) {
        assert_eq!(RefName::branch(name).is_ok(), good);
    }
}
