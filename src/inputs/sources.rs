//! Where Connectors and Secrets come from: the API server in a cluster, the manifests in a local run.
//!
//! They are asked one by one, by name, in the run's own namespace, and at the moment of use: nothing is listed,
//! watched or kept.

use std::collections::BTreeMap;
use std::fmt;

use futures::future::BoxFuture;
use secrecy::{ExposeSecret as _, SecretSlice};

use crate::api::{ConnectorName, Namespace, ParsedConnector};

/// Reads Connectors and Secrets by name.
pub trait Sources: Send + Sync {
    /// The Connector of that name in that namespace; `None`: there is none.
    fn connector<'a>(
        &'a self,
        namespace: &'a Namespace,
        name: &'a ConnectorName,
    ) -> BoxFuture<'a, Result<Option<ParsedConnector>, SourceError>>;

    /// The Secret of that name in that namespace; `None`: there is none.
    fn secret<'a>(
        &'a self,
        namespace: &'a Namespace,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<SecretObject>, SourceError>>;
}

/// Why a Connector or Secret could not be read. Holds no value of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// There is one, but it breaks a rule; the text names the field and what to write.
    #[error("{0}")]
    Invalid(String),
    /// It could not be asked for now.
    #[error("{0}")]
    Unavailable(String),
}

/// A Secret as it was read.
#[derive(Debug, Clone, Default)]
pub struct SecretObject {
    /// Its annotations; `sandboxrun.dev/origin` says where it may go.
    pub annotations: BTreeMap<String, String>,
    /// Its keys and values.
    pub data: BTreeMap<String, SecretBytes>,
}

/// Bytes that cannot be printed, and that are wiped when dropped.
#[derive(Clone)]
pub struct SecretBytes(SecretSlice<u8>);

impl SecretBytes {
    /// Takes the bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }

    /// The bytes, for the one place that reads them. Never format them.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(***)")
    }
}
