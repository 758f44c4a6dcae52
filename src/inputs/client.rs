//! HTTP clients that reach one origin: checked addresses, verified TLS, no redirects, no proxy, no environment.
//!
//! The credential is added here, last, so that no caller can forget it, send it elsewhere, or let an agent's header of
//! the same name win.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Method, RequestBuilder, Url, redirect};

use super::credential::basic;
use super::{AddressGuard, Credential, Shown};
use crate::api::{Failure, Fault as _, Namespace, Origin, Reason, RepoUrl};

/// A server's address as a client is made for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    host: String,
    port: u16,
}

impl From<&Origin> for Endpoint {
    fn from(origin: &Origin) -> Self {
        Self {
            host: origin.host().to_owned(),
            port: origin.port(),
        }
    }
}

impl From<&RepoUrl> for Endpoint {
    fn from(repository: &RepoUrl) -> Self {
        Self {
            host: repository.host().to_owned(),
            port: repository.port(),
        }
    }
}

/// A client for one origin with one credential. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OriginClient {
    http: reqwest::Client,
    endpoint: Endpoint,
    credential: Credential,
}

impl OriginClient {
    /// A request to this origin. `headers` are the caller's; the credential's header replaces one of the same name.
    ///
    /// # Errors
    /// `OriginMismatch` for any other scheme, host or port; `SecretInvalid` if the credential is no header value.
    pub fn request(
        &self,
        method: Method,
        url: Url,
        mut headers: HeaderMap,
    ) -> Result<RequestBuilder, Failure> {
        let within = url.scheme() == "https"
            && url.host_str() == Some(self.endpoint.host.as_str())
            && url.port_or_known_default() == Some(self.endpoint.port)
            && url.username().is_empty()
            && url.password().is_none();
        if !within {
            return Err(Failure::new(
                Reason::OriginMismatch,
                format!(
                    "the request would leave https://{}:{}",
                    self.endpoint.host, self.endpoint.port
                ),
            ));
        }
        if let Some((name, value)) = self.header()? {
            headers.insert(name, value);
        }
        Ok(self.http.request(method, url).headers(headers))
    }

    /// Whose credential is sent.
    #[must_use]
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    fn header(&self) -> Result<Option<(HeaderName, HeaderValue)>, Failure> {
        let (name, text) = match self.credential.shown() {
            Shown::Anonymous | Shown::Ssh { .. } => return Ok(None),
            Shown::Basic { username, password } => (
                Ok(AUTHORIZATION),
                format!("Basic {}", basic(username, password)),
            ),
            Shown::Header {
                name,
                prefix,
                value,
            } => (
                HeaderName::try_from(name.as_str()),
                format!("{prefix}{}", value.expose()),
            ),
        };
        let value = HeaderValue::from_bytes(text.as_bytes());
        match (name, value) {
            (Ok(name), Ok(mut value)) => {
                value.set_sensitive(true);
                Ok(Some((name, value)))
            }
            (Err(_), _) | (_, Err(_)) => Err(Failure::new(
                Reason::SecretInvalid,
                format!(
                    "the header of connector `{}` cannot be sent: write a header name and a value on one line",
                    self.credential.name().map_or("", |name| name.as_str())
                ),
            )),
        }
    }
}

/// The clients in use, so that connections are used again. Never shared between namespaces.
#[derive(Default)]
pub(super) struct Clients(Mutex<HashMap<Kind, reqwest::Client>>);

#[derive(PartialEq, Eq, Hash)]
struct Kind {
    namespace: Namespace,
    endpoint: Endpoint,
    ca: Option<String>,
    stall: Duration,
}

/// Clients that are kept. Each holds its idle connections for 90 s and some 100 KiB of certificates.
const KEPT: usize = 256;

impl Clients {
    fn kept(&self) -> MutexGuard<'_, HashMap<Kind, reqwest::Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client for this endpoint. `stall` without a byte ends a request.
    pub(super) fn client(
        &self,
        guard: &AddressGuard,
        credential: &Credential,
        endpoint: Endpoint,
        connect: Duration,
        stall: Duration,
    ) -> Result<OriginClient, Failure> {
        guard
            .check_literal(&endpoint.host, endpoint.port)
            .map_err(|error| error.failure(None))?;
        let kind = Kind {
            namespace: credential.namespace().clone(),
            endpoint: endpoint.clone(),
            ca: credential.ca().map(str::to_owned),
            stall,
        };
        let known = self.kept().get(&kind).cloned();
        let http = if let Some(http) = known {
            http
        } else {
            // Made without the lock: reading the system's certificates takes milliseconds.
            let http = build(guard, &kind, connect)?;
            let mut kept = self.kept();
            if kept.len() >= KEPT {
                kept.clear();
            }
            kept.insert(kind, http.clone());
            http
        };
        Ok(OriginClient {
            http,
            endpoint,
            credential: credential.clone(),
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that makes clients for other servers"
)]
fn build(guard: &AddressGuard, kind: &Kind, connect: Duration) -> Result<reqwest::Client, Failure> {
    let resolver = Checked {
        guard: guard.clone(),
        endpoint: kind.endpoint.clone(),
    };
    let mut builder = reqwest::Client::builder()
        .dns_resolver(resolver)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .https_only(true)
        .user_agent(super::protocol::AGENT)
        .connect_timeout(connect)
        .read_timeout(kind.stall);
    if let Some(ca) = &kind.ca {
        let certificates = Certificate::from_pem_bundle(ca.as_bytes()).map_err(unbuildable)?;
        builder = builder.tls_certs_merge(certificates);
    }
    builder.build().map_err(unbuildable)
}

fn unbuildable(error: reqwest::Error) -> Failure {
    Failure::new(
        Reason::Bug,
        format!("an HTTP client cannot be made: {}", error.without_url()),
    )
}

/// Resolves the one name that a client may connect to, and gives out checked addresses only.
struct Checked {
    guard: AddressGuard,
    endpoint: Endpoint,
}

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, endpoint) = (self.guard.clone(), self.endpoint.clone());
        Box::pin(async move {
            if name.as_str() != endpoint.host {
                return Err("a name of another origin".into());
            }
            let addresses = guard.resolve(&endpoint.host, endpoint.port).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}
