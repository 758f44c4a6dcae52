//! Connectors and Secrets of a local run: the manifests that it was given, and `--secret`.

use std::collections::BTreeMap;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::api::{ConnectorName, Namespace, ParsedConnector, RunName, RunSpec};
use crate::inputs::{SecretObject, SourceError, Sources};

/// What the manifests of one local run say, every rule kept.
#[derive(Debug, Clone)]
pub struct Manifests {
    /// `metadata.namespace`, or `default`.
    pub namespace: Namespace,
    /// `metadata.name`.
    pub name: RunName,
    /// What it asks for.
    pub spec: RunSpec,
    /// SHA-256 over the canonical spec.
    pub digest: String,
    /// By name.
    pub connectors: BTreeMap<ConnectorName, ParsedConnector>,
    /// By name.
    pub secrets: BTreeMap<String, SecretObject>,
}

/// The same, as a source. What is not in the manifests will not come later: an absent one is an error at once.
#[derive(Debug)]
pub(super) struct ManifestSources(pub(super) Manifests);

impl Sources for ManifestSources {
    fn connector<'a>(
        &'a self,
        _: &'a Namespace,
        name: &'a ConnectorName,
    ) -> BoxFuture<'a, Result<Option<ParsedConnector>, SourceError>> {
        std::future::ready(Ok(self.0.connectors.get(name).cloned())).boxed()
    }

    fn secret<'a>(
        &'a self,
        _: &'a Namespace,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<SecretObject>, SourceError>> {
        std::future::ready(Ok(self.0.secrets.get(name).cloned())).boxed()
    }
}
