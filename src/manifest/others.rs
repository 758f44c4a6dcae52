//! Policies that others made: they add up with ours, so one that opens anything for a pod of a run opens it.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::names::RUN_LABEL;
use super::policy::POLICY_NAME;
use crate::api::{Fault, Reason};

/// A policy that opens more than ours for a pod of a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "NetworkPolicy {policy} selects pods of runs and opens {what}, and policies add up: let its podSelector leave them \
     out, with matchExpressions: [{{key: {RUN_LABEL}, operator: DoesNotExist}}]"
)]
pub struct Opening {
    /// Its name, in the run's namespace.
    pub policy: String,
    /// `egress`, `ingress` or both.
    pub what: &'static str,
}

impl Fault for Opening {
    fn reason(&self) -> Reason {
        Reason::PolicyOpened
    }
}

/// The first policy (by name) of a namespace that is not ours and opens more for a pod with these labels.
///
/// One that selects the pod and allows nothing is harmless. What an unknown selector selects is taken to be the pod.
#[must_use]
pub fn opens_more<'a>(
    policies: impl IntoIterator<Item = &'a NetworkPolicy>,
    labels: &BTreeMap<String, String>,
) -> Option<Opening> {
    let mut found: Vec<Opening> = policies
        .into_iter()
        .filter_map(|policy| {
            let name = policy.metadata.name.as_deref().unwrap_or_default();
            let spec = policy.spec.as_ref().filter(|_| name != POLICY_NAME)?;
            let selector = spec.pod_selector.as_ref();
            let selected = selector.is_none_or(|selector| selects(selector, labels));
            let what = selected.then(|| opened(spec))??;
            Some(Opening {
                policy: name.to_owned(),
                what,
            })
        })
        .collect();
    found.sort_by(|one, other| one.policy.cmp(&other.policy));
    found.into_iter().next()
}

/// What a policy allows of what it governs. `policyTypes` absent means ingress, and egress if it has rules for it.
fn opened(spec: &NetworkPolicySpec) -> Option<&'static str> {
    let types = spec.policy_types.as_deref().unwrap_or_default();
    let governs = |kind: &str| types.is_empty() || types.iter().any(|found| found == kind);
    let egress = governs("Egress") && spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
    let ingress =
        governs("Ingress") && spec.ingress.as_ref().is_some_and(|rules| !rules.is_empty());
    match (egress, ingress) {
        (true, true) => Some("egress and ingress"),
        (true, false) => Some("egress"),
        (false, true) => Some("ingress"),
        (false, false) => None,
    }
}

/// Whether a selector selects an object with these labels.
fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = |(name, value): (&String, &String)| labels.get(name) == Some(value);
    let mut pairs = selector.match_labels.iter().flatten();
    let mut rules = selector.match_expressions.iter().flatten();
    pairs.all(equal) && rules.all(|rule| holds(rule, labels))
}

fn holds(rule: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&rule.key);
    let listed = |value: &String| rule.values.iter().flatten().any(|one| one == value);
    match rule.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => true,
    }
}
