//! What a namespace says about its runs: whether workspace inputs are allowed in it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use kube::api::{Api, PartialObjectMeta};
use tokio::time::Instant;

use super::calls::{CallError, within};
use super::desk::Desk;
use crate::api::Namespace;

/// `Disabled` on a namespace: its runs may have no inputs.
pub const INPUTS_ANNOTATION: &str = "sandboxrun.dev/workspace-inputs";
/// How long an answer counts: a burst of runs asks once.
const CACHED: Duration = Duration::from_secs(5);

/// What namespaces said, for a moment.
#[derive(Debug, Default)]
pub(super) struct Namespaces(Mutex<HashMap<Namespace, (bool, Instant)>>);

impl Namespaces {
    /// Whether a namespace lets its runs have inputs.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) async fn allow(
        &self,
        desk: &Desk,
        namespace: &Namespace,
    ) -> Result<bool, CallError> {
        let now = Instant::now();
        if let Some(known) = self.known(namespace, now) {
            return Ok(known);
        }
        let api: Api<PartialObjectMeta<NamespaceObject>> = Api::all(desk.client.clone());
        let read = api.get_metadata_opt(namespace.as_str());
        let read = within(desk.api_timeout, "read a namespace", read).await?;
        let annotations = read.and_then(|namespace| namespace.metadata.annotations);
        let disabled = annotations.is_some_and(|annotations| {
            let value = annotations.get(INPUTS_ANNOTATION);
            value.is_some_and(|value| value.eq_ignore_ascii_case("disabled"))
        });
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (_, at)| now.duration_since(*at) < CACHED);
        known.insert(namespace.clone(), (!disabled, now));
        Ok(!disabled)
    }

    /// Whether a namespace is being deleted, and with it everything inside, in whatever order. `false` if nobody says.
    pub(super) async fn is_ending(desk: &Desk, namespace: &Namespace) -> bool {
        let api: Api<PartialObjectMeta<NamespaceObject>> = Api::all(desk.client.clone());
        let read = api.get_metadata_opt(namespace.as_str());
        match within(desk.api_timeout, "read a namespace", read).await {
            Ok(Some(found)) => found.metadata.deletion_timestamp.is_some(),
            Ok(None) => true,
            Err(error) => {
                tracing::debug!(%namespace, %error, "whether a namespace ends is not known");
                false
            }
        }
    }

    fn known(&self, namespace: &Namespace, now: Instant) -> Option<bool> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (allow, at) = known.get(namespace)?;
        (now.duration_since(*at) < CACHED).then_some(*allow)
    }
}
