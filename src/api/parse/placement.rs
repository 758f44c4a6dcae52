//! What a run asks of a cluster (`spec.agent.resources` and its like, `spec.workspace`, `spec.scheduling`), and the
//! fields that may change.

use std::collections::BTreeMap;
use std::time::Duration;

use super::agent::{LONGEST, short_timeout};
use super::text::{is_label_name, is_label_value, is_resource_name, is_subdomain, repeated};
use super::{Checks, SpecError};
use crate::api::{
    AgentSpec, Placement, Quantity, SandboxRunSpec, SchedulingSpec, TaintEffect,
    TolerationOperator, TolerationSpec, Wishes, rules, units,
};

pub(super) fn parse(checks: &mut Checks, spec: &SandboxRunSpec) -> Placement {
    let default = Placement::default();
    let (requests, limits) = resources(checks, &spec.agent);
    let run_as_user = spec.agent.run_as_user.unwrap_or(default.run_as_user);
    let users = 1..=rules::MAX_USER;
    checks.rule(
        users.contains(&run_as_user),
        "spec.agent.runAsUser",
        rules::USER,
    );
    let retries = spec.infrastructure_retries;
    let retries = retries.map(|number| match u32::try_from(number) {
        Ok(good) if number <= rules::MAX_RETRIES => good,
        Ok(_) | Err(_) => {
            checks.refuse("spec.infrastructureRetries", rules::RETRIES);
            0
        }
    });
    let size = spec.workspace.as_ref().and_then(|it| it.size.as_deref());
    let size = size.and_then(|text| {
        let size = units::quantity(text).and_then(|_| text.parse().ok());
        checks.value("spec.workspace.size", size.ok_or(rules::QUANTITY))
    });
    let scheduling = spec.scheduling.clone().unwrap_or_default();
    Placement {
        requests,
        limits,
        run_as_user,
        image_pull_secrets: pull_secrets(checks, &spec.agent),
        workspace_size: size.unwrap_or(default.workspace_size),
        start_timeout: place(checks, &scheduling).unwrap_or(default.start_timeout),
        node_selector: scheduling.node_selector,
        tolerations: scheduling.tolerations,
        priority_class_name: scheduling.priority_class_name,
        infrastructure_retries: retries.unwrap_or(default.infrastructure_retries),
    }
}

type Amounts = BTreeMap<String, Quantity>;

/// Requests and limits of the agent; what stands in one of them only counts for both.
fn resources(checks: &mut Checks, spec: &AgentSpec) -> (Amounts, Amounts) {
    let spec = spec.resources.clone().unwrap_or_default();
    let mut requests = amounts(checks, "spec.agent.resources.requests", &spec.requests);
    let mut limits = amounts(checks, "spec.agent.resources.limits", &spec.limits);
    let above: Vec<&str> = requests
        .iter()
        .filter(|(name, request)| limits.get(*name).is_some_and(|limit| *request > limit))
        .map(|(name, _)| name.as_str())
        .collect();
    checks.distinct(
        "spec.agent.resources",
        rules::REQUESTS_FIT,
        &above,
        rules::ONE_NAMED,
    );
    for (name, limit) in &limits {
        requests
            .entry(name.clone())
            .or_insert_with(|| limit.clone());
    }
    for (name, request) in &requests {
        limits
            .entry(name.clone())
            .or_insert_with(|| request.clone());
    }
    (requests, limits)
}

fn amounts(checks: &mut Checks, field: &str, map: &BTreeMap<String, String>) -> Amounts {
    let most = rules::MAX_RESOURCES;
    if map.len() > most {
        checks.refuse(field, format!("must have at most {most} entries"));
    }
    let named = map.keys().all(|name| is_resource_name(name));
    checks.rule(named, field, rules::RESOURCE_NAMES);
    let found: Amounts = map
        .iter()
        .filter_map(|(name, text)| Some((name.clone(), text.parse().ok()?)))
        .collect();
    checks.rule(found.len() == map.len(), field, rules::AMOUNTS);
    found
}

fn pull_secrets(checks: &mut Checks, spec: &AgentSpec) -> Vec<String> {
    let field = "spec.agent.imagePullSecrets";
    let list = checks.at_most(field, &spec.image_pull_secrets, rules::MAX_PULL_SECRETS);
    let names: Vec<&str> = list.iter().map(|secret| secret.name.as_str()).collect();
    checks.distinct(
        field,
        rules::PULL_SECRETS,
        &repeated(&names),
        rules::ONE_NAMED,
    );
    for (at, name) in names.iter().enumerate() {
        let field = format!("{field}[{at}].name");
        checks.rule(is_subdomain(name), field, rules::OBJECT_NAME);
    }
    names.into_iter().map(str::to_owned).collect()
}

/// The rules of `spec.scheduling`; gives its `startTimeout`.
fn place(checks: &mut Checks, spec: &SchedulingSpec) -> Option<Duration> {
    let field = "spec.scheduling.nodeSelector";
    let most = rules::MAX_NODE_LABELS;
    if spec.node_selector.len() > most {
        checks.refuse(field, format!("must have at most {most} entries"));
    }
    let mut labels = spec.node_selector.iter();
    let good = labels.all(|(name, value)| is_label_name(name) && is_label_value(value));
    checks.rule(good, field, rules::NODE_SELECTOR);
    let field = "spec.scheduling.tolerations";
    let list = checks.at_most(field, &spec.tolerations, rules::MAX_TOLERATIONS);
    for (at, toleration) in list.iter().enumerate() {
        tolerate(checks, &format!("{field}[{at}]"), toleration);
    }
    if let Some(name) = &spec.priority_class_name {
        let field = "spec.scheduling.priorityClassName";
        checks.rule(is_subdomain(name), field, rules::OBJECT_NAME);
    }
    let text = spec.start_timeout.as_deref()?;
    short_timeout(checks, "spec.scheduling.startTimeout", text)
}

fn tolerate(checks: &mut Checks, field: &str, spec: &TolerationSpec) {
    let exists = spec.operator == Some(TolerationOperator::Exists);
    let key = spec.key.as_deref();
    checks.rule(
        key.map_or(exists, is_label_name),
        format!("{field}.key"),
        rules::TOLERATION_KEY,
    );
    let value = spec.value.as_deref();
    checks.rule(
        value.is_none_or(|value| !exists && is_label_value(value)),
        format!("{field}.value"),
        rules::TOLERATION_VALUE,
    );
    let evicts = spec.effect == Some(TaintEffect::NoExecute);
    let seconds = spec.toleration_seconds;
    checks.rule(
        seconds.is_none_or(|seconds| seconds >= 0 && evicts),
        format!("{field}.tolerationSeconds"),
        rules::TOLERATION_SECONDS,
    );
}

impl Wishes {
    /// Reads the fields that may change. The rest of the spec may be broken.
    ///
    /// # Errors
    /// Every broken rule of these fields.
    pub fn parse(spec: &SandboxRunSpec) -> Result<Self, Vec<SpecError>> {
        let mut checks = Checks::default();
        let wishes = wishes(&mut checks, spec);
        checks.finish(Some(wishes))
    }

    /// Reads each field that keeps its rule, and takes the default of one that does not: a run with a bad
    /// `ttlAfterFinished` can still be cancelled.
    #[must_use]
    pub fn of_good_fields(spec: &SandboxRunSpec) -> Self {
        wishes(&mut Checks::default(), spec)
    }
}

pub(super) fn wishes(checks: &mut Checks, spec: &SandboxRunSpec) -> Wishes {
    let default = Wishes::default();
    let rerun = spec.rerun.clone().unwrap_or_default();
    checks.rule(
        !rerun.chars().any(char::is_control),
        "spec.rerun",
        rules::RERUN,
    );
    checks.fits("spec.rerun", &rerun, rules::MAX_RERUN);
    let ttl = spec.ttl_after_finished.as_deref();
    let ttl = ttl.and_then(|text| {
        // A year: longer than any record is likely to be kept.
        let longest = LONGEST * 365;
        let ttl = units::duration(text).filter(|ttl| *ttl <= longest);
        checks.value("spec.ttlAfterFinished", ttl.ok_or(rules::TTL))
    });
    Wishes {
        suspend: spec.suspend.unwrap_or(default.suspend),
        cancel: spec.cancel.unwrap_or(default.cancel),
        rerun,
        ttl_after_finished: ttl.unwrap_or(default.ttl_after_finished),
        delete_after_finished: spec
            .delete_after_finished
            .unwrap_or(default.delete_after_finished),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RunSpec;
    use serde_json::json;

    #[test]
    fn a02_one_bad_wish_hides_no_other() {
        let spec = json!({"agent": {"image": "i", "command": ["true"]},
            "cancel": true, "suspend": true, "ttlAfterFinished": "soon", "rerun": "2"});
        let spec: SandboxRunSpec = serde_json::from_value(spec).unwrap();
        assert!(Wishes::parse(&spec).is_err());
        let wishes = Wishes::of_good_fields(&spec);
        assert!(wishes.cancel && wishes.suspend);
        assert_eq!(wishes.rerun, "2");
        let default = Wishes::default().ttl_after_finished;
        assert_eq!(wishes.ttl_after_finished, default);
    }

    #[test]
    fn a_resource_that_stands_once_counts_twice() {
        let spec = json!({"agent": {"image": "a", "command": ["true"], "resources": {
            "requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "4Gi", "nvidia.com/gpu": "1"},
        }}});
        let spec: SandboxRunSpec = serde_json::from_value(spec).unwrap();
        let placement = RunSpec::parse(&spec).unwrap().placement;
        let texts = |map: &Amounts| -> Vec<String> {
            map.iter().map(|(k, v)| format!("{k}={v}")).collect()
        };
        assert_eq!(
            texts(&placement.requests),
            ["cpu=500m", "memory=1Gi", "nvidia.com/gpu=1"]
        );
        assert_eq!(
            texts(&placement.limits),
            ["cpu=500m", "memory=4Gi", "nvidia.com/gpu=1"]
        );
    }

    #[test]
    fn what_may_change_is_read_though_the_rest_is_broken() {
        let spec = json!({"agent": {"image": "", "command": []}, "cancel": true, "rerun": "2", "ttlAfterFinished": "0s"});
        let spec: SandboxRunSpec = serde_json::from_value(spec).unwrap();
        let wishes = Wishes::parse(&spec).unwrap();
        assert!(wishes.cancel && !wishes.suspend);
        assert_eq!(wishes.rerun, "2");
        assert_eq!(wishes.ttl_after_finished, Duration::ZERO);
    }
}
