//! Addresses of repositories and of the servers that credentials are bound to.
//!
//! The user's own text is what goes to the server; the parsed form is for checks and keys only.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use url::Url;

use super::rules;

/// How a repository is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Smart HTTP over TLS.
    Https,
    /// git over ssh.
    Ssh,
}

impl Transport {
    /// The scheme of its addresses.
    fn scheme(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Ssh => "ssh",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Https => 443,
            Self::Ssh => 22,
        }
    }
}

/// Why a text is no repository address (or no origin). Never quotes the text: it may hold a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RepoUrlError {
    /// Another scheme, or none.
    #[error("must be https://HOST/PATH, ssh://HOST/PATH or git@HOST:PATH")]
    Scheme,
    /// A user name or password in an https address.
    #[error("{}", rules::URL_CREDENTIAL)]
    Credential,
    /// No host, or one that is no host name.
    #[error("{}", rules::URL_HOST)]
    Host,
    /// No path.
    #[error("{}", rules::URL_PATH)]
    Path,
    /// A query or a fragment.
    #[error("{}", rules::URL_QUERY)]
    QueryOrFragment,
    /// A control character, a backslash, or a path segment that two readers could read in two ways.
    #[error("{}", rules::URL_UNSAFE)]
    Unsafe,
}

#[cfg(feature = "host")]
impl RepoUrlError {
    /// The sentence, with another one for a wrong scheme: which are right depends on the field.
    pub(super) fn said_as(self, scheme: &str) -> String {
        if self == Self::Scheme {
            scheme.to_owned()
        } else {
            self.to_string()
        }
    }
}

/// Where something is: what a repository and an origin have in common, and are compared by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    transport: Transport,
    /// In lower case; IPv6 with its brackets.
    host: String,
    port: u16,
    /// As written.
    segments: Vec<String>,
}

impl Place {
    /// Whether this lies at or below that, by whole path segments.
    fn is_within(&self, other: &Self) -> bool {
        self.transport == other.transport
            && self.host == other.host
            && self.port == other.port
            && self.segments.starts_with(&other.segments)
    }
}

/// A server that a credential is bound to: scheme, host, port and a path prefix of whole segments.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Origin(Place);

/// The address of a repository: https, ssh, or `git@host:path`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RepoUrl {
    text: String,
    user: Option<String>,
    place: Place,
}

impl RepoUrl {
    /// The user's own text: what is sent to the server, shown, and recorded.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// How the repository is reached.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.place.transport
    }

    /// The ssh user; `None` for https, or where none is written.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The host, in lower case; IPv6 with its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.place.host
    }

    /// The port, also when it is the scheme's default.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.place.port
    }

    /// The path's segments as written.
    #[must_use]
    pub fn segments(&self) -> &[String] {
        &self.place.segments
    }

    /// A cleaned form for keys: scheme, host, port and path without a last `.git` or `/`. Case of the path is kept.
    #[must_use]
    pub fn key(&self) -> String {
        let Place {
            transport,
            host,
            port,
            segments,
        } = &self.place;
        let path = segments.join("/");
        let path = path.strip_suffix(".git").unwrap_or(&path);
        format!("{}://{host}:{port}/{path}", transport.scheme())
    }

    /// Whether this repository lies at or below the origin, by whole path segments.
    #[must_use]
    pub fn is_within(&self, origin: &Origin) -> bool {
        self.place.is_within(&origin.0)
    }

    fn https(text: &str) -> Result<Self, RepoUrlError> {
        let at = Authority::of(text)?;
        if at.user.is_some() {
            return Err(RepoUrlError::Credential);
        }
        Self::with_authority(text, &at, Transport::Https)
    }

    fn ssh(text: &str) -> Result<Self, RepoUrlError> {
        let at = Authority::of(text)?;
        match at.user {
            Some(user) if user.contains(':') => return Err(RepoUrlError::Credential),
            Some(user) if !is_plain(user) => return Err(RepoUrlError::Host),
            Some(_) | None => {}
        }
        Self::with_authority(text, &at, Transport::Ssh)
    }

    fn with_authority(
        text: &str,
        at: &Authority<'_>,
        transport: Transport,
    ) -> Result<Self, RepoUrlError> {
        let (host, port) = at.host_and_port(transport.default_port())?;
        Ok(Self {
            text: text.to_owned(),
            user: at.user.map(str::to_owned),
            place: Place {
                transport,
                host,
                port,
                segments: segments(at.path)?,
            },
        })
    }

    fn scp_like(text: &str) -> Result<Self, RepoUrlError> {
        let (user, rest) = text.split_once('@').ok_or(RepoUrlError::Scheme)?;
        let (host, path) = rest.split_once(':').ok_or(RepoUrlError::Scheme)?;
        if !is_plain(user) || !is_plain(host) {
            return Err(RepoUrlError::Host);
        }
        Ok(Self {
            text: text.to_owned(),
            user: Some(user.to_owned()),
            place: Place {
                transport: Transport::Ssh,
                host: host.to_ascii_lowercase(),
                port: Transport::Ssh.default_port(),
                segments: segments(path)?,
            },
        })
    }
}

impl FromStr for RepoUrl {
    type Err = RepoUrlError;

    fn from_str(text: &str) -> Result<Self, RepoUrlError> {
        if text.chars().any(|c| c.is_control() || c == '\\') {
            return Err(RepoUrlError::Unsafe);
        }
        if text.contains(['?', '#']) {
            return Err(RepoUrlError::QueryOrFragment);
        }
        match text.split_once("://") {
            Some(("https", _)) => Self::https(text),
            Some(("ssh", _)) => Self::ssh(text),
            Some(_) => Err(RepoUrlError::Scheme),
            None if text.contains("::") => Err(RepoUrlError::Scheme),
            None => Self::scp_like(text),
        }
    }
}

impl Origin {
    /// `https` or `ssh`.
    #[must_use]
    pub fn scheme(&self) -> &str {
        self.0.transport.scheme()
    }

    /// The host, in lower case.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.0.host
    }

    /// The port, also when it is the scheme's default.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// The path prefix's segments.
    #[must_use]
    pub fn prefix(&self) -> &[String] {
        &self.0.segments
    }

    /// The repository `PATH` (such as `acme/app`) below this origin, over https or ssh as the origin says.
    ///
    /// # Errors
    /// When the path is not one.
    pub fn repository(&self, path: &str) -> Result<RepoUrl, RepoUrlError> {
        format!("{self}/{}", path.trim_start_matches('/')).parse()
    }
}

impl fmt::Display for Origin {
    /// `https://host[:port][/prefix]`, without the scheme's default port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place {
            transport,
            host,
            port,
            segments,
        } = &self.0;
        write!(f, "{}://{host}", transport.scheme())?;
        if *port != transport.default_port() {
            write!(f, ":{port}")?;
        }
        segments
            .iter()
            .try_for_each(|segment| write!(f, "/{segment}"))
    }
}

impl FromStr for Origin {
    type Err = RepoUrlError;

    fn from_str(text: &str) -> Result<Self, RepoUrlError> {
        if text.chars().any(|c| c.is_control() || c == '\\') {
            return Err(RepoUrlError::Unsafe);
        }
        if text.contains(['?', '#']) {
            return Err(RepoUrlError::QueryOrFragment);
        }
        let transport = match text.split_once("://") {
            Some(("https", _)) => Transport::Https,
            Some(("ssh", _)) => Transport::Ssh,
            Some(_) | None => return Err(RepoUrlError::Scheme),
        };
        let at = Authority::of(text)?;
        if at.user.is_some() {
            return Err(RepoUrlError::Credential);
        }
        let (host, port) = at.host_and_port(transport.default_port())?;
        let segments = if at.path.trim_matches('/').is_empty() {
            Vec::new()
        } else {
            segments(at.path)?
        };
        Ok(Self(Place {
            transport,
            host,
            port,
            segments,
        }))
    }
}

impl fmt::Display for RepoUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for RepoUrl {
    type Error = RepoUrlError;

    fn try_from(text: String) -> Result<Self, RepoUrlError> {
        text.parse()
    }
}

impl From<RepoUrl> for String {
    fn from(url: RepoUrl) -> Self {
        url.text
    }
}

impl TryFrom<String> for Origin {
    type Error = RepoUrlError;

    fn try_from(text: String) -> Result<Self, RepoUrlError> {
        text.parse()
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> Self {
        origin.to_string()
    }
}

/// A path such as `acme/app`, to stand below an origin: what [`Origin::repository`] takes.
#[cfg(feature = "host")]
pub(super) fn path_below(text: &str) -> Result<(), RepoUrlError> {
    if text.contains(['?', '#']) {
        return Err(RepoUrlError::QueryOrFragment);
    }
    if text.starts_with('/') || text.chars().any(char::is_control) {
        return Err(RepoUrlError::Unsafe);
    }
    segments(text).map(|_| ())
}

/// What stands between `://` and the path, as the user wrote it. `Url` repairs what it reads (`https:///host`,
/// `h%6fst`, `a/../b`); git reads the user's own text, and both must mean the same server.
struct Authority<'a> {
    text: &'a str,
    user: Option<&'a str>,
    host: &'a str,
    path: &'a str,
}

impl<'a> Authority<'a> {
    fn of(text: &'a str) -> Result<Self, RepoUrlError> {
        let (_, rest) = text.split_once("://").ok_or(RepoUrlError::Scheme)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        Ok(Self {
            text,
            user,
            host,
            path,
        })
    }

    /// A host that can go to a command line: ASCII letters, digits, `.`, `_` and `-`, or an IPv6 address in brackets.
    fn host_and_port(&self, default: u16) -> Result<(String, u16), RepoUrlError> {
        let url = Url::parse(self.text).map_err(|_| RepoUrlError::Host)?;
        let name = self.host.split(':').next().unwrap_or_default();
        let plain = self.host.starts_with('[') || is_plain(name);
        let host = url.host_str().filter(|host| plain && !host.is_empty());
        let host = host.ok_or(RepoUrlError::Host)?;
        Ok((host.to_ascii_lowercase(), url.port().unwrap_or(default)))
    }
}

fn segments(path: &str) -> Result<Vec<String>, RepoUrlError> {
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Err(RepoUrlError::Path);
    }
    let unsafe_segment = |s: &str| {
        let dots = s.to_ascii_lowercase().replace("%2e", ".");
        s.is_empty()
            || dots == "."
            || dots == ".."
            || s.contains('\\')
            || s.to_ascii_lowercase().contains("%2f")
    };
    if path.starts_with('-') || path.split('/').any(unsafe_segment) {
        return Err(RepoUrlError::Unsafe);
    }
    Ok(path.split('/').map(str::to_owned).collect())
}

/// A user or host of an ssh address, which goes to a command line: nothing that an option or a shell could be.
fn is_plain(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::wide_digits("https://１２７.0.0.1/a.git", Err(RepoUrlError::Host))]
    #[case::credential("https://user:tok@host/a.git", Err(RepoUrlError::Credential))]
    #[case::http("http://host/a.git", Err(RepoUrlError::Scheme))]
    #[case::file("file:///a.git", Err(RepoUrlError::Scheme))]
    #[case::ext("ext::sh -c x", Err(RepoUrlError::Scheme))]
    #[case::local("/srv/a.git", Err(RepoUrlError::Scheme))]
    #[case::backslash("https://evil\\@good/a", Err(RepoUrlError::Unsafe))]
    #[case::no_host("https:///host/a", Err(RepoUrlError::Host))]
    #[case::encoded_host("https://h%6fst/a", Err(RepoUrlError::Host))]
    #[case::empty_user("https://@host/a", Err(RepoUrlError::Credential))]
    #[case::unicode_host("https://h\u{f6}st/a", Err(RepoUrlError::Host))]
    #[case::ipv6("ssh://git@[::1]:2222/a", Ok("ssh://[::1]:2222/a"))]
    #[case::odd_ssh_host("ssh://ho$st/a", Err(RepoUrlError::Host))]
    #[case::newline("https://host/a\n.git", Err(RepoUrlError::Unsafe))]
    #[case::dots("https://host/a/%2e%2e/b", Err(RepoUrlError::Unsafe))]
    #[case::option("git@-oProxyCommand=x:a", Err(RepoUrlError::Host))]
    #[case::https("https://Host:8443/a/b.git/", Ok("https://host:8443/a/b"))]
    #[case::scp("git@host:a/b.git", Ok("ssh://host:22/a/b"))]
    #[case::ssh("ssh://git@host:2222/a/b", Ok("ssh://host:2222/a/b"))]
    #[case::space("https://host/a b", Ok("https://host:443/a b"))]
    #[case::at_in_path("https://host/a@b.git", Ok("https://host:443/a@b"))]
    fn a05_a06_only_https_ssh_and_scp_like(
        #[case] text: &str,
        #[case] want: Result<&str, RepoUrlError>,
    ) {
        let parsed = text.parse::<RepoUrl>();
        assert_eq!(
            parsed.as_ref().map(RepoUrl::key).map_err(|e| *e),
            want.map(str::to_owned)
        );
        if let Ok(url) = parsed {
            assert_eq!(url.as_str(), text, "the user's own text is sent");
        }
    }

    #[rstest]
    #[case::same("https://h/p/a.git", "https://h/p", true)]
    #[case::part_of_a_segment("https://h/pa/a.git", "https://h/p", false)]
    #[case::other_port("https://h:444/p/a.git", "https://h/p", false)]
    #[case::other_scheme("ssh://h/p/a.git", "https://h/p", false)]
    fn c02_an_origin_holds_whole_segments(
        #[case] url: &str,
        #[case] origin: &str,
        #[case] within: bool,
    ) {
        let (url, origin): (RepoUrl, Origin) = (url.parse().unwrap(), origin.parse().unwrap());
        assert_eq!(url.is_within(&origin), within);
    }
}
