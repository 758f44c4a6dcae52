//! What a forge is started with: names, tokens, where it listens.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use crate::ForgeError;

/// What a token may do with a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Clone and fetch.
    Read,
    /// Clone, fetch and push.
    Write,
}

/// Who may see a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Anybody may read; a push needs a token.
    Public,
    /// Only a token that reaches it may read.
    Private,
}

/// A token that git clients may use, as the password of Basic or as Bearer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub(crate) name: String,
    pub(crate) value: Vec<u8>,
    pub(crate) scope: Scope,
    pub(crate) repos: Option<Vec<String>>,
}

impl Token {
    /// A token that reaches every repository.
    pub fn new(name: impl Into<String>, value: impl Into<Vec<u8>>, scope: Scope) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            scope,
            repos: None,
        }
    }

    /// A token that reads every repository.
    pub fn read(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self::new(name, value, Scope::Read)
    }

    /// A token that reads and writes every repository.
    pub fn write(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self::new(name, value, Scope::Write)
    }

    /// Narrows the token to the named repositories (`acme/app`); to it all other private ones do not exist.
    #[must_use]
    pub fn only<S: Into<String>>(mut self, repos: impl IntoIterator<Item = S>) -> Self {
        self.repos = Some(repos.into_iter().map(Into::into).collect());
        self
    }

    /// Whether the token may see this repository at all.
    pub(crate) fn reaches(&self, repo: &str) -> bool {
        self.repos
            .as_ref()
            .is_none_or(|repos| repos.iter().any(|r| r == repo))
    }
}

/// Reads `NAME=VALUE:read` or `NAME=VALUE:write`; a value `env:VAR` is read from the environment.
impl FromStr for Token {
    type Err = ForgeError;

    fn from_str(text: &str) -> Result<Self, ForgeError> {
        let bad =
            || ForgeError::Bad("a token is written NAME=VALUE:read or NAME=VALUE:write".to_owned());
        let (name, rest) = text.split_once('=').ok_or_else(bad)?;
        let (value, scope) = rest.rsplit_once(':').ok_or_else(bad)?;
        let scope = match scope {
            "read" => Scope::Read,
            "write" => Scope::Write,
            _ => return Err(bad()),
        };
        if name.is_empty() || value.is_empty() {
            return Err(bad());
        }
        Ok(Self::new(name, literal_or_env(value)?, scope))
    }
}

/// The value itself, or that of the environment variable which `env:VAR` names.
///
/// # Errors
/// When the variable is not set.
pub fn literal_or_env(value: &str) -> Result<String, ForgeError> {
    let Some(name) = value.strip_prefix("env:") else {
        return Ok(value.to_owned());
    };
    std::env::var(name)
        .map_err(|_| ForgeError::Bad(format!("the environment variable `{name}` is not set")))
}

/// How a forge is started. [`Options::new`] listens on a free port of 127.0.0.1 and keeps all in a
/// temporary directory.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) listen: SocketAddr,
    pub(crate) root: Option<PathBuf>,
    pub(crate) hosts: Vec<String>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) user_name: Option<String>,
    pub(crate) hide_missing: bool,
    pub(crate) ticket_token: Option<String>,
    pub(crate) ticket_header: Option<String>,
    pub(crate) bad_certificates: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            root: None,
            hosts: Vec::new(),
            tokens: Vec::new(),
            user_name: None,
            hide_missing: false,
            ticket_token: None,
            ticket_header: None,
            bad_certificates: false,
        }
    }
}

impl Options {
    /// A forge without tokens on a free port of 127.0.0.1.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps repositories, certificates and keys below this directory, which outlives the forge.
    #[must_use]
    pub fn root(mut self, dir: impl Into<PathBuf>) -> Self {
        self.root = Some(dir.into());
        self
    }

    /// Listens here; port 0 takes a free one.
    #[must_use]
    pub fn listen(mut self, addr: SocketAddr) -> Self {
        self.listen = addr;
        self
    }

    /// Puts one more host name or address into the certificate.
    #[must_use]
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.push(name.into());
        self
    }

    /// Knows this token.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.tokens.push(token);
        self
    }

    /// Takes a token in Basic with this user name only (`x-access-token` as one forge wants it, `oauth2`
    /// as another). Without it any user name will do.
    #[must_use]
    pub fn user_name(mut self, name: impl Into<String>) -> Self {
        self.user_name = Some(name.into());
        self
    }

    /// Answers 401 and not 404 when nobody has signed in and the repository does not exist, so that
    /// a stranger cannot tell a private repository from none.
    #[must_use]
    pub fn hide_missing(mut self) -> Self {
        self.hide_missing = true;
        self
    }

    /// The token of the ticket API. Without one the API is open to all.
    #[must_use]
    pub fn ticket_token(mut self, value: impl Into<String>) -> Self {
        self.ticket_token = Some(value.into());
        self
    }

    /// The header in which the ticket API wants its token, bare, in place of `Authorization: Bearer`.
    #[must_use]
    pub fn ticket_header(mut self, name: impl Into<String>) -> Self {
        self.ticket_header = Some(name.into());
        self
    }

    /// Opens further listeners of the same forge whose certificates are bad, one kind each.
    #[must_use]
    pub fn bad_certificates(mut self) -> Self {
        self.bad_certificates = true;
        self
    }
}
