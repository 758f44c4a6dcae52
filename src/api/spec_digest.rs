//! The identity of a run's spec: a hash that says whether two specs ask for the same.
//!
//! A field that holds its default counts as one that is not written, so that a later version, which brings further
//! fields with defaults, gives an old spec its old digest. The defaults here are those of the version that brought
//! the field. They are added to and never changed, also when the default itself changes: a golden test holds digests.

use std::time::Duration;

use super::{
    AgentSpec, CredentialProofPolicy, EgressSpec, FetchSpec, InputSpec, LookupLimits, LookupSpec,
    OnDrift, PolicySpec, Quantity, ResourcesSpec, SandboxRunSpec, SchedulingSpec,
    TolerationOperator, WorkspaceSpec, layout, units,
};

impl SandboxRunSpec {
    /// SHA-256 over the canonical JSON (RFC 8785) of the spec without the five fields that may change and without
    /// fields that are equal to their default, in lower-case hex.
    #[must_use]
    pub fn digest(&self) -> String {
        // Plain data of texts and numbers always becomes JSON.
        super::digest(&serde_json::to_value(without_defaults(self.clone())).unwrap_or_default())
    }
}

fn without_defaults(mut spec: SandboxRunSpec) -> SandboxRunSpec {
    let working_dir = match spec.inputs.first() {
        Some(first) => {
            format!(
                "{}/{}",
                layout::WORKSPACE,
                first.path.as_deref().unwrap_or(&first.name)
            )
        }
        None => layout::WORKSPACE.to_owned(),
    };
    spec.inputs.iter_mut().for_each(input);
    agent(&mut spec.agent, &working_dir);
    spec.lookups.iter_mut().for_each(lookup);
    for rule in spec.egress.iter_mut().flat_map(|egress| &mut egress.allow) {
        forget(&mut rule.port, &443);
    }
    forget(&mut spec.egress, &EgressSpec::default());
    if let Some(policy) = &mut spec.policy {
        forget(&mut policy.on_drift, &OnDrift::Report);
        forget(&mut policy.credential_proof, &CredentialProofPolicy::Warn);
    }
    forget(&mut spec.policy, &PolicySpec::default());
    if let Some(workspace) = &mut spec.workspace {
        forget_if(&mut workspace.size, |text| {
            text.parse().ok() == Some(Quantity::gibibytes(10))
        });
    }
    forget(&mut spec.workspace, &WorkspaceSpec::default());
    if let Some(scheduling) = &mut spec.scheduling {
        for toleration in &mut scheduling.tolerations {
            forget(&mut toleration.operator, &TolerationOperator::Equal);
        }
        forget_if(&mut scheduling.start_timeout, |text| {
            is(text, Duration::from_mins(10))
        });
    }
    forget(&mut spec.scheduling, &SchedulingSpec::default());
    forget(&mut spec.infrastructure_retries, &2);
    // What is wished of a run and may change is not what it is.
    (spec.suspend, spec.cancel, spec.rerun) = (None, None, None);
    (spec.ttl_after_finished, spec.delete_after_finished) = (None, None);
    spec
}

fn input(spec: &mut InputSpec) {
    forget(&mut spec.path, &spec.name);
    forget(&mut spec.depth, &1);
    forget(&mut spec.read_only, &false);
    forget(&mut spec.fetch, &FetchSpec::Origin);
}

fn agent(spec: &mut AgentSpec, working_dir: &str) {
    forget_if(&mut spec.working_dir, |dir| dir == working_dir);
    forget_if(&mut spec.timeout, |text| is(text, Duration::from_mins(20)));
    forget(&mut spec.resources, &ResourcesSpec::default());
    forget(&mut spec.run_as_user, &1000);
}

fn lookup(spec: &mut LookupSpec) {
    if spec.methods == ["GET", "HEAD"] {
        spec.methods.clear();
    }
    if let Some(limits) = &mut spec.limits {
        forget_if(&mut limits.idle_timeout, |text| {
            is(text, Duration::from_mins(10))
        });
    }
    forget(&mut spec.limits, &LookupLimits::default());
}

/// Whether a duration, however it is written, is this one.
fn is(text: &str, duration: Duration) -> bool {
    units::duration(text) == Some(duration)
}

fn forget<T: PartialEq>(field: &mut Option<T>, default: &T) {
    forget_if(field, |value| value == default);
}

fn forget_if<T>(field: &mut Option<T>, is_default: impl FnOnce(&T) -> bool) {
    if field.as_ref().is_some_and(is_default) {
        *field = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn digest(spec: Value) -> String {
        serde_json::from_value::<SandboxRunSpec>(spec)
            .unwrap()
            .digest()
    }

    /// Specs of released versions and their digests. A row is never changed: a run that was finished by that version
    /// would run again.
    #[test]
    fn a09_old_specs_keep_their_digest() {
        let small = json!({"agent": {"image": "a", "command": ["true"]}});
        let whole = json!({
            "inputs": [
                {"name": "app", "repository": "https://git.example.com/acme/app.git", "ref": {"branch": "main"}, "depth": 0},
                {"name": "lib", "repository": "acme/lib", "connector": "forge", "path": "libs/lib", "readOnly": true, "fetch": "None"},
            ],
            "agent": {
                "image": "a", "command": ["sh", "-c"], "args": ["x"], "env": [{"name": "A", "value": "\u{fc}"}],
                "workingDir": "/workspace", "scratch": ["/var/cache"], "prompt": "do it",
                "context": [{"path": "a.md", "content": "b"}], "timeout": "1h", "stallTimeout": "5m",
                "output": {"schema": {"type": "object", "maxProperties": 3}},
            },
            "lookups": [{"name": "t", "connector": "c", "methods": ["POST"], "paths": ["/a/*"],
                "limits": {"calls": 1, "bytes": "1Mi", "perMinute": 2, "idleTimeout": "1m"}}],
            "egress": {"allow": [{"host": "*.example.com", "port": 8443}]},
            "policy": {"onDrift": "Fail", "runtimeClassName": "gvisor", "credentialProof": "Enforce"},
        });
        assert_eq!(
            digest(small),
            "1381c6d37dd94ad23e7b4b8273d91d8874ec9f9987fcd78363a7383edff76ac6"
        );
        assert_eq!(
            digest(whole),
            "0b2769e9279e5b25d9557ceb4b6319d316c74465508021b8ea4a8658b980fa74"
        );
        let placed = json!({
            "agent": {
                "image": "a", "command": ["true"], "runAsUser": 65532, "imagePullSecrets": [{"name": "pull"}],
                "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "4Gi", "nvidia.com/gpu": "1"}},
            },
            "workspace": {"size": "20Gi"},
            "scheduling": {
                "nodeSelector": {"kubernetes.io/arch": "arm64"}, "priorityClassName": "low", "startTimeout": "1h",
                "tolerations": [{"key": "pool", "value": "agents", "effect": "NoExecute", "tolerationSeconds": 60}, {"operator": "Exists"}],
            },
            "infrastructureRetries": 0,
            "rerun": "7", "cancel": true,
        });
        assert_eq!(
            digest(placed),
            "2b909db17562d9de73c095ab2b1a59200ecea4de9d66cb088f73f63fdcfd1cea"
        );
    }

    #[test]
    fn a09_a_field_that_holds_its_default_is_as_if_not_written() {
        let short = json!({
            "inputs": [{"name": "app", "repository": "https://h/a"}],
            "agent": {"image": "a", "command": ["true"], "env": [{"name": "A"}]},
            "lookups": [{"name": "t", "connector": "c", "paths": ["/"]}],
        });
        let long = json!({
            "inputs": [{"name": "app", "repository": "https://h/a", "path": "app", "depth": 1, "readOnly": false, "fetch": "Origin"}],
            "agent": {"image": "a", "command": ["true"], "args": [], "env": [{"name": "A", "value": ""}], "workingDir": "/workspace/app", "timeout": "1200s", "resources": {"requests": {}}, "runAsUser": 1000, "imagePullSecrets": []},
            "lookups": [{"name": "t", "connector": "c", "paths": ["/"], "methods": ["GET", "HEAD"], "limits": {"idleTimeout": "10m"}}],
            "egress": {"allow": []},
            "policy": {"onDrift": "Report", "credentialProof": "Warn"},
            "workspace": {"size": "10240Mi"},
            "scheduling": {"startTimeout": "600s"},
            "infrastructureRetries": 2,
            "suspend": true, "cancel": true, "rerun": "2", "ttlAfterFinished": "1h", "deleteAfterFinished": true,
        });
        assert_eq!(digest(short.clone()), digest(long));
        let mut other = short;
        other["inputs"][0]["depth"] = json!(2);
        assert_ne!(
            digest(other.clone()),
            digest(json!({"agent": {"image": "a", "command": ["true"]}}))
        );
        let with = digest(other.clone());
        other["inputs"][0]["depth"] = json!(3);
        assert_ne!(digest(other), with);
    }
}
