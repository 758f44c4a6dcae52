//! The one network policy of each namespace that has runs: made before the first pod, and put back when it was changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, Patch, PatchParams};
use kube::core::ResourceExt as _;

use super::calls::{CallError, within};
use super::desk::Desk;
use crate::api::Namespace;
use crate::manifest;

/// Who we are to server-side apply.
const FIELD_MANAGER: &str = "sandboxrun";

/// One turn for each namespace, so that a burst of runs makes its policy once.
#[derive(Debug, Default)]
pub(super) struct Policies(Mutex<HashMap<Namespace, Arc<tokio::sync::Mutex<()>>>>);

impl Policies {
    /// Puts the policy of a namespace in place, unless it is there as we make it.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub(super) async fn ensure(&self, desk: &Desk, namespace: &Namespace) -> Result<(), CallError> {
        let turn = self.turn(namespace);
        let _turn = turn.lock().await;
        let ours = desk.store.own_policy(namespace.as_str());
        if ours == Some(true) {
            return Ok(());
        }
        let policy = manifest::network_policy(namespace, &desk.installation, &(desk.door)());
        let api: Api<NetworkPolicy> = Api::namespaced(desk.client.clone(), namespace.as_str());
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&policy);
        let applied = api.patch(manifest::POLICY_NAME, &params, &patch);
        let applied = within(desk.api_timeout, "apply the network policy", applied).await;
        let result = applied.as_ref().map_or_else(CallError::result, |_| "ok");
        desk.metrics.api_request("policy_apply", result);
        let applied = applied?;
        if ours.is_some() {
            tracing::warn!(%namespace, "the network policy of runs had been changed and was put back");
            desk.metrics.policy_repaired();
        }
        let as_made = desk.is_as_made(&applied);
        let version = applied.resource_version();
        desk.store
            .put_policy(namespace.as_str(), version.as_deref(), as_made);
        if as_made {
            Ok(())
        } else {
            // A webhook changes it: ours is not what counts here, and no pod is made.
            Err(CallError::Changed {
                doing: "apply the network policy",
            })
        }
    }

    fn turn(&self, namespace: &Namespace) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(namespace.clone()).or_default())
    }
}
