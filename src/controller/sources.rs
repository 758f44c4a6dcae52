//! Connectors and Secrets from the API server: by name, in the run's own namespace, with `get`, at the moment of use.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, ObjectMeta};

use crate::api::{Connector, ConnectorName, ConnectorSpec, Namespace, ParsedConnector, SpecError};
use crate::inputs::{SecretBytes, SecretObject, SourceError, Sources};

/// Asks the API server.
#[derive(Clone)]
pub(super) struct KubeSources {
    client: Client,
    /// The longest call.
    timeout: Duration,
}

impl KubeSources {
    pub(super) fn new(client: Client, timeout: Duration) -> Self {
        Self { client, timeout }
    }

    async fn connector(
        &self,
        namespace: &Namespace,
        name: &ConnectorName,
    ) -> Result<Option<ParsedConnector>, SourceError> {
        // Untyped, so that an object past our rules is a sentence about it and not a failed call.
        let resource = ApiResource::erase::<Connector>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace.as_str(), &resource);
        let found = self.within("connector", name.as_str(), api.get_opt(name.as_str()));
        let Some(object) = found.await? else {
            return Ok(None);
        };
        let spec = object.data.get("spec").cloned().unwrap_or_default();
        let spec: ConnectorSpec = serde_json::from_value(spec).map_err(|error| {
            SourceError::Invalid(format!("connector `{name}`: spec does not decode: {error}"))
        })?;
        ParsedConnector::parse(name, &spec)
            .map(Some)
            .map_err(|errors| {
                let sentences: Vec<_> = errors.iter().map(SpecError::to_string).collect();
                SourceError::Invalid(format!("connector `{name}`: {}", sentences.join("; ")))
            })
    }

    async fn secret(
        &self,
        namespace: &Namespace,
        name: &str,
    ) -> Result<Option<SecretObject>, SourceError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace.as_str());
        let found = self.within("secret", name, api.get_opt(name)).await?;
        Ok(found.map(|secret| {
            let Secret { metadata, data, .. } = secret;
            let ObjectMeta { annotations, .. } = metadata;
            let data = data.unwrap_or_default().into_iter();
            SecretObject {
                annotations: annotations.unwrap_or_default(),
                data: data
                    .map(|(key, value)| (key, SecretBytes::new(value.0)))
                    .collect(),
            }
        }))
    }

    /// The answer, or that there is none now. What the server says may hold a name, never a value.
    async fn within<T>(
        &self,
        kind: &str,
        name: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, SourceError> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) => Err(SourceError::Unavailable(format!(
                "{kind} `{name}` could not be read: {}",
                status.message
            ))),
            Ok(Err(_)) => Err(SourceError::Unavailable(format!(
                "{kind} `{name}` could not be read: the API server does not answer"
            ))),
            Err(_) => Err(SourceError::Unavailable(format!(
                "{kind} `{name}` could not be read: the API server did not answer in time"
            ))),
        }
    }
}

impl Sources for KubeSources {
    fn connector<'a>(
        &'a self,
        namespace: &'a Namespace,
        name: &'a ConnectorName,
    ) -> BoxFuture<'a, Result<Option<ParsedConnector>, SourceError>> {
        self.connector(namespace, name).boxed()
    }

    fn secret<'a>(
        &'a self,
        namespace: &'a Namespace,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<SecretObject>, SourceError>> {
        self.secret(namespace, name).boxed()
    }
}
