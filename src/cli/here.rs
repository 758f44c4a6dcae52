//! What a manifest asks of a cluster and this machine cannot give: said once, or refused.

use crate::api::SandboxRunSpec;

/// Why a run of this spec would not be one here, with what to write instead.
pub(super) fn refused(spec: &SandboxRunSpec) -> Option<&'static str> {
    if spec.suspend == Some(true) {
        Some(
            "spec.suspend: is true, and a run on this machine begins at once: remove it, or set it to false",
        )
    } else if spec.cancel == Some(true) {
        Some("spec.cancel: is true, so there is nothing to run: remove it, or set it to false")
    } else {
        None
    }
}

/// The fields that are there and change nothing here.
pub(super) fn unused(spec: &SandboxRunSpec) -> Vec<&'static str> {
    let agent = &spec.agent;
    [
        ("agent.resources", agent.resources.is_some()),
        ("agent.runAsUser", agent.run_as_user.is_some()),
        (
            "agent.imagePullSecrets",
            !agent.image_pull_secrets.is_empty(),
        ),
        ("workspace", spec.workspace.is_some()),
        ("scheduling", spec.scheduling.is_some()),
        (
            "infrastructureRetries",
            spec.infrastructure_retries.is_some(),
        ),
        ("rerun", spec.rerun.is_some()),
        ("ttlAfterFinished", spec.ttl_after_finished.is_some()),
        ("deleteAfterFinished", spec.delete_after_finished.is_some()),
    ]
    .into_iter()
    .filter_map(|(field, there)| there.then_some(field))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(patch: &Value) -> SandboxRunSpec {
        let mut spec = json!({"agent": {"image": "a", "command": ["true"]}});
        let fields = patch.as_object().cloned().unwrap();
        spec.as_object_mut().unwrap().extend(fields);
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn what_would_make_it_no_run_is_refused() {
        assert_eq!(
            refused(&spec(&json!({"suspend": false, "cancel": false}))),
            None
        );
        for field in ["suspend", "cancel"] {
            let said = refused(&spec(&json!({field: true}))).unwrap();
            assert!(said.starts_with(&format!("spec.{field}: ")), "{said}");
        }
    }

    #[test]
    fn what_changes_nothing_is_named() {
        assert_eq!(unused(&spec(&json!({}))), Vec::<&str>::new());
        let asked = spec(&json!({
            "scheduling": {"startTimeout": "1m"}, "workspace": {"size": "1Gi"}, "rerun": "2", "ttlAfterFinished": "1h",
        }));
        assert_eq!(
            unused(&asked),
            ["workspace", "scheduling", "rerun", "ttlAfterFinished"]
        );
    }
}
