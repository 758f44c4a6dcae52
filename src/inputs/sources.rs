//! Where Connectors and Secrets come from: the API server in a cluster, the manifests in a local run.
//!
//! They are asked one by one, by name, in the run's own namespace, and at the moment of use: nothing is listed,
//! watched or kept.

use std::collections::BTreeMap;

use futures::future::BoxFuture;

pub use crate::api::manifest::SecretBytes;
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
