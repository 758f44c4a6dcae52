//! Credentials: a connector together with the values of its Secrets, checked before anything is sent anywhere.
//!
//! A credential holds no way out of its origin: [`Credential::covers`] is asked before each connection, and nothing of
//! the host's own git configuration, ssh agent or environment is ever looked at.

use std::fmt;
use std::sync::{Arc, LazyLock};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{SecretBytes, SecretObject, SourceError, Sources};
use crate::api::{
    Auth, Code, ConnectorName, ConnectorType, ConnectorUse, Failure, Namespace, Origin,
    ParsedConnector, PathPattern, Reason, RepoUrl, Secret, SecretKeyRef,
};

/// The annotation by which a Secret says where it may go: the connector's url.
pub const ORIGIN_ANNOTATION: &str = "sandboxrun.dev/origin";

/// A connector with the values of its Secrets, or nobody. Cheap to clone; prints no secret.
#[derive(Clone)]
pub struct Credential(Arc<Inner>);

struct Inner {
    namespace: Namespace,
    connector: Option<ParsedConnector>,
    shown: Shown,
    ca: Option<String>,
    key: CredentialKey,
}

/// How a credential shows who we are.
#[derive(Debug, Clone)]
pub enum Shown {
    /// Not at all.
    Anonymous,
    /// HTTP Basic.
    Basic {
        /// The user name that the type of server expects, or the connector's own.
        username: String,
        /// The token or password.
        password: Secret,
    },
    /// A header of its own.
    Header {
        /// Its name.
        name: String,
        /// What stands before the value.
        prefix: String,
        /// The value.
        value: Secret,
    },
    /// An ssh key.
    Ssh {
        /// The private key as it lies in the Secret.
        private_key: Secret,
        /// Lines of a `known_hosts` file.
        known_hosts: String,
    },
}

/// Tells credentials apart without holding them: a keyed hash that means nothing outside this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CredentialKey([u8; 32]);

impl fmt::Debug for CredentialKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialKey(..)")
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("namespace", &self.0.namespace)
            .field("connector", &self.0.connector.as_ref().map(|c| &c.name))
            .finish_non_exhaustive()
    }
}

impl Credential {
    /// Nobody: what an input without a connector is asked for with.
    #[must_use]
    pub fn anonymous(namespace: &Namespace) -> Self {
        Self::new(namespace, None, Shown::Anonymous, None)
    }

    /// The namespace whose Secrets it came from.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    /// The connector; `None`: anonymous.
    #[must_use]
    pub fn connector(&self) -> Option<&ParsedConnector> {
        self.0.connector.as_ref()
    }

    /// The connector's name; `None`: anonymous.
    #[must_use]
    pub fn name(&self) -> Option<&ConnectorName> {
        self.connector().map(|connector| &connector.name)
    }

    /// How it shows who we are.
    #[must_use]
    pub fn shown(&self) -> &Shown {
        &self.0.shown
    }

    /// Whether anything secret is sent at all.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        matches!(self.0.shown, Shown::Anonymous)
    }

    /// A CA certificate in PEM that counts beside the system's.
    #[must_use]
    pub fn ca(&self) -> Option<&str> {
        self.0.ca.as_deref()
    }

    /// Equal for equal credentials of one namespace, and for nothing else.
    #[must_use]
    pub fn key(&self) -> CredentialKey {
        self.0.key
    }

    /// Whether this credential may be used for a repository: below the connector's url, and allowed by it.
    ///
    /// # Errors
    /// `OriginMismatch` or `UseNotAllowed`; both name the connector.
    pub fn covers(&self, repository: &RepoUrl) -> Result<(), Failure> {
        let Some(connector) = self.connector() else {
            return Ok(());
        };
        if !repository.is_within(&connector.origin) {
            return Err(Failure::new(
                Reason::OriginMismatch,
                format!(
                    "repository {repository} is not below {}, the url of connector `{}`",
                    connector.origin, connector.name
                ),
            ));
        }
        if allows(
            &connector.allowed_repositories,
            repository,
            &connector.origin,
        ) {
            return Ok(());
        }
        Err(Failure::new(
            Reason::UseNotAllowed,
            format!(
                "allow.repositories of connector `{}` does not cover {repository}",
                connector.name
            ),
        ))
    }

    /// The text without this credential's secret, in each form in which it goes to a server. For words of others:
    /// a server may send back what it got.
    #[must_use]
    pub fn scrub(&self, text: &str) -> String {
        let replaced = |text: String, secret: &str| {
            // One or two characters would blank half the text and are no secret that text could give away.
            if secret.len() < 3 {
                text
            } else {
                text.replace(secret, "***")
            }
        };
        match &self.0.shown {
            Shown::Anonymous => text.to_owned(),
            Shown::Basic { username, password } => {
                let pair = basic(username, password);
                replaced(replaced(text.to_owned(), &pair), password.expose())
            }
            Shown::Header { value, .. } => replaced(text.to_owned(), value.expose()),
            Shown::Ssh { private_key, .. } => private_key
                .expose()
                .lines()
                .filter(|line| line.len() >= 16)
                .fold(text.to_owned(), replaced),
        }
    }

    fn new(
        namespace: &Namespace,
        connector: Option<ParsedConnector>,
        shown: Shown,
        ca: Option<String>,
    ) -> Self {
        let key = key(namespace, connector.as_ref(), &shown, ca.as_deref());
        Self(Arc::new(Inner {
            namespace: namespace.clone(),
            connector,
            shown,
            ca,
            key,
        }))
    }
}

/// User name and password as HTTP Basic wants them, in standard base64. As secret as the password.
pub(super) fn basic(username: &str, password: &Secret) -> String {
    STANDARD.encode(format!("{username}:{}", password.expose()))
}

fn allows(patterns: &[PathPattern], repository: &RepoUrl, origin: &Origin) -> bool {
    let below = repository
        .segments()
        .get(origin.prefix().len()..)
        .unwrap_or_default();
    let mut below: Vec<&str> = below.iter().map(String::as_str).collect();
    if let Some(last) = below.last_mut() {
        *last = last.strip_suffix(".git").unwrap_or(last);
    }
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(&below))
}

fn key(
    namespace: &Namespace,
    connector: Option<&ParsedConnector>,
    shown: &Shown,
    ca: Option<&str>,
) -> CredentialKey {
    static KEY: LazyLock<Option<hmac::Key>> = LazyLock::new(|| {
        hmac::Key::generate(hmac::HMAC_SHA256, &aws_lc_rs::rand::SystemRandom::new()).ok()
    });
    let fallback = hmac::Key::new(hmac::HMAC_SHA256, &[]);
    let mut hash = hmac::Context::with_key(KEY.as_ref().unwrap_or(&fallback));
    let mut part = |text: &str| {
        hash.update(&(text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    };
    part(namespace.as_str());
    part(connector.map_or("", |c| c.name.as_str()));
    part(&connector.map(|c| c.origin.to_string()).unwrap_or_default());
    part(ca.unwrap_or_default());
    match shown {
        Shown::Anonymous => part("anonymous"),
        Shown::Basic { username, password } => {
            part("basic");
            part(username);
            part(password.expose());
        }
        Shown::Header {
            name,
            prefix,
            value,
        } => {
            part("header");
            part(name);
            part(prefix);
            part(value.expose());
        }
        Shown::Ssh {
            private_key,
            known_hosts,
        } => {
            part("ssh");
            part(private_key.expose());
            part(known_hosts);
        }
    }
    let mut key = [0; 32];
    key.iter_mut()
        .zip(hash.sign().as_ref())
        .for_each(|(to, from)| *to = *from);
    CredentialKey(key)
}

/// The user name that goes with a token where the connector does not write one.
fn username(kind: ConnectorType) -> &'static str {
    match kind {
        ConnectorType::GitHub => "x-access-token",
        ConnectorType::GitLab => "oauth2",
        ConnectorType::Bitbucket => "x-token-auth",
        ConnectorType::Gitea
        | ConnectorType::AzureRepos
        | ConnectorType::Git
        | ConnectorType::Http => "git",
    }
}

/// Reads a connector and the Secrets that it names, and checks them for a use.
pub(super) async fn load(
    sources: &dyn Sources,
    namespace: &Namespace,
    name: &ConnectorName,
    wanted: ConnectorUse,
) -> Result<Credential, Failure> {
    let connector = match sources.connector(namespace, name).await {
        Ok(Some(connector)) => connector,
        Ok(None) => {
            return Err(Failure::new(
                Reason::ConnectorNotFound,
                format!("there is no Connector `{name}` in namespace `{namespace}`"),
            ));
        }
        Err(error) => return Err(source_failure(&error, &format!("Connector `{name}`"))),
    };
    if !connector.uses.contains(&wanted) {
        return Err(Failure::new(
            Reason::UseNotAllowed,
            format!("the uses of connector `{name}` do not hold {wanted:?}"),
        ));
    }
    let reader = Reader {
        sources,
        namespace,
        connector: &connector,
    };
    let shown = reader.shown().await?;
    let ca = reader.ca().await?;
    Ok(Credential::new(namespace, Some(connector), shown, ca))
}

/// The same failure as lookups name it.
pub(super) fn for_lookups(failure: Failure) -> Failure {
    let reason = if matches!(
        failure.reason,
        Reason::ConnectorNotFound | Reason::SecretNotFound
    ) {
        Reason::LookupConnectorNotFound
    } else if failure.reason == Reason::UseNotAllowed {
        Reason::LookupUseNotAllowed
    } else if failure.reason.code() == Code::InputCredentialFailed {
        Reason::LookupSecretFailed
    } else {
        failure.reason
    };
    Failure { reason, ..failure }
}

struct Reader<'a> {
    sources: &'a dyn Sources,
    namespace: &'a Namespace,
    connector: &'a ParsedConnector,
}

impl Reader<'_> {
    async fn shown(&self) -> Result<Shown, Failure> {
        Ok(match &self.connector.auth {
            Auth::Anonymous => Shown::Anonymous,
            Auth::Token {
                secret,
                username: own,
            } => Shown::Basic {
                username: own
                    .clone()
                    .unwrap_or_else(|| username(self.connector.kind).to_owned()),
                password: self.line(secret).await?,
            },
            Auth::Header {
                name,
                prefix,
                secret,
            } => Shown::Header {
                name: name.clone(),
                prefix: prefix.clone(),
                value: self.line(secret).await?,
            },
            Auth::Ssh {
                private_key,
                known_hosts,
            } => {
                let bytes = self.bound(private_key).await?;
                let private_key = Secret::from_block(bytes.expose())
                    .map_err(|error| self.unusable(private_key, &error.to_string()))?;
                Shown::Ssh {
                    private_key,
                    known_hosts: known_hosts.clone(),
                }
            }
        })
    }

    async fn ca(&self) -> Result<Option<String>, Failure> {
        let Some(reference) = &self.connector.ca else {
            return Ok(None);
        };
        let object = self.object(reference).await?;
        let bytes = self.value(&object, reference)?;
        let text = std::str::from_utf8(bytes.expose()).unwrap_or_default();
        let good = reqwest::Certificate::from_pem_bundle(text.as_bytes());
        if good.is_ok_and(|certificates| !certificates.is_empty()) {
            Ok(Some(text.to_owned()))
        } else {
            Err(self.unusable(reference, "holds no certificate in PEM"))
        }
    }

    async fn line(&self, reference: &SecretKeyRef) -> Result<Secret, Failure> {
        let bytes = self.bound(reference).await?;
        Secret::from_line(bytes.expose())
            .map_err(|error| self.unusable(reference, &error.to_string()))
    }

    /// The value of a key, of a Secret that says itself that it may go to the connector's origin.
    async fn bound(&self, reference: &SecretKeyRef) -> Result<SecretBytes, Failure> {
        let object = self.object(reference).await?;
        let said = object.annotations.get(ORIGIN_ANNOTATION);
        let origin = said.and_then(|text| text.parse::<Origin>().ok());
        if origin.as_ref() != Some(&self.connector.origin) {
            return Err(Failure::new(
                Reason::OriginNotAllowed,
                format!(
                    "Secret `{}` does not say that it may go to {}, the url of connector `{}`",
                    reference.name, self.connector.origin, self.connector.name
                ),
            ));
        }
        self.value(&object, reference)
    }

    async fn object(&self, reference: &SecretKeyRef) -> Result<SecretObject, Failure> {
        match self.sources.secret(self.namespace, &reference.name).await {
            Ok(Some(object)) => Ok(object),
            Ok(None) => Err(Failure::new(
                Reason::SecretNotFound,
                format!(
                    "there is no Secret `{}` in namespace `{}`; connector `{}` names it",
                    reference.name, self.namespace, self.connector.name
                ),
            )),
            Err(error) => Err(source_failure(
                &error,
                &format!("Secret `{}`", reference.name),
            )),
        }
    }

    fn value(
        &self,
        object: &SecretObject,
        reference: &SecretKeyRef,
    ) -> Result<SecretBytes, Failure> {
        object.data.get(&reference.key).cloned().ok_or_else(|| {
            Failure::new(
                Reason::SecretNotFound,
                format!(
                    "Secret `{}` has no key `{}`; connector `{}` names it",
                    reference.name, reference.key, self.connector.name
                ),
            )
        })
    }

    fn unusable(&self, reference: &SecretKeyRef, rule: &str) -> Failure {
        Failure::new(
            Reason::SecretInvalid,
            format!(
                "key `{}` of Secret `{}`, which connector `{}` names, {rule}",
                reference.key, reference.name, self.connector.name
            ),
        )
    }
}

fn source_failure(error: &SourceError, what: &str) -> Failure {
    let reason = match error {
        SourceError::Invalid(_) => Reason::ConnectorInvalid,
        SourceError::Unavailable(_) => Reason::SourceUnavailable,
    };
    Failure::new(reason, format!("{what} cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::{BoxFuture, ready};
    use rstest::rstest;

    /// A source that has nothing to give, and says why.
    struct Broken(SourceError);

    impl Sources for Broken {
        fn connector<'a>(
            &'a self,
            _: &'a Namespace,
            _: &'a ConnectorName,
        ) -> BoxFuture<'a, Result<Option<ParsedConnector>, SourceError>> {
            Box::pin(ready(Err(self.0.clone())))
        }

        fn secret<'a>(
            &'a self,
            _: &'a Namespace,
            _: &'a str,
        ) -> BoxFuture<'a, Result<Option<SecretObject>, SourceError>> {
            Box::pin(ready(Err(self.0.clone())))
        }
    }

    fn credential(namespace: &str, shown: Shown) -> Credential {
        Credential::new(&namespace.parse().unwrap(), None, shown, None)
    }

    fn token(value: &str) -> Shown {
        let password = Secret::from_line(value.as_bytes()).unwrap();
        Shown::Basic {
            username: "git".to_owned(),
            password,
        }
    }

    #[rstest]
    #[case::down(SourceError::Unavailable("the API server is down".to_owned()), Reason::SourceUnavailable)]
    #[case::bad(SourceError::Invalid("spec.url must name a host".to_owned()), Reason::ConnectorInvalid)]
    #[tokio::test]
    async fn a_source_that_fails_is_told_from_one_that_has_nothing(
        #[case] error: SourceError,
        #[case] reason: Reason,
    ) {
        let (namespace, name) = ("team-a".parse().unwrap(), "forge".parse().unwrap());
        let sources = Broken(error.clone());
        let failure = load(&sources, &namespace, &name, ConnectorUse::Inputs)
            .await
            .unwrap_err();
        assert_eq!(failure.reason, reason);
        assert!(
            failure.message.contains("`forge`") && failure.message.contains(&error.to_string())
        );
    }

    #[test]
    fn equal_credentials_of_one_namespace_have_one_key_and_no_others() {
        let key = |namespace, value| credential(namespace, token(value)).key();
        assert_eq!(key("team-a", "canary"), key("team-a", "canary"));
        assert_ne!(key("team-a", "canary"), key("team-a", "canary2"));
        assert_ne!(key("team-a", "canary"), key("team-b", "canary"));
        assert_eq!(
            format!("{:?}", key("team-a", "canary")),
            "CredentialKey(..)"
        );
    }

    #[test]
    fn c05_each_form_of_a_secret_is_struck_out_of_foreign_words() {
        let basic = credential("team-a", token("canary-1"));
        assert_eq!(
            basic.scrub("got canary-1, Z2l0OmNhbmFyeS0x"),
            "got ***, ***"
        );
        let key = "-----BEGIN KEY-----\nAAAAcanaryAAAAcanaryAAAA\n-----END KEY-----\n";
        let private_key = Secret::from_block(key.as_bytes()).unwrap();
        let ssh = credential(
            "team-a",
            Shown::Ssh {
                private_key,
                known_hosts: String::new(),
            },
        );
        assert_eq!(
            ssh.scrub("bad line AAAAcanaryAAAAcanaryAAAA"),
            "bad line ***"
        );
        assert_eq!(
            Credential::anonymous(&"a".parse().unwrap()).scrub("as it is"),
            "as it is"
        );
    }

    #[rstest]
    #[case::within("acme/*", "https://h/team/acme/app.git", true)]
    #[case::deeper("acme/*", "https://h/team/acme/app/x", false)]
    #[case::any_depth("acme/**", "https://h/team/acme/app/x", true)]
    #[case::other_case("acme/*", "https://h/team/Acme/app", false)]
    #[case::escaped("acme/app", "https://h/team/acme/%61pp", false)]
    fn repositories_are_matched_below_the_prefix(
        #[case] pattern: &str,
        #[case] url: &str,
        #[case] allowed: bool,
    ) {
        let origin = "https://h/team".parse().unwrap();
        let url = url.parse().unwrap();
        assert_eq!(allows(&[PathPattern::new(pattern)], &url, &origin), allowed);
        assert!(allows(&[], &url, &origin), "no pattern is no bound");
    }
}
