//! What an administrator allows runs to ask for.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use super::Installation;
use crate::api::{Failure, Placement, Quantity, Reason, RunSpec, Wishes};

/// Whether a run asks for no more than this installation allows.
///
/// # Errors
/// `sandbox.spec_invalid` (`AboveLimit`): each field that asks for more, and its bound.
pub fn within_limits(spec: &RunSpec, installation: &Installation) -> Result<(), Failure> {
    let mut found = Found(Vec::new());
    let (limits, place) = (&installation.limits, &spec.placement);
    found.listed(
        "spec.policy.runtimeClassName",
        spec.runtime_class_name.as_deref(),
        limits.runtime_classes.as_deref(),
    );
    if limits.require_runtime_class && spec.runtime_class_name.is_none() {
        let allowed = limits.runtime_classes.as_deref().unwrap_or_default();
        found.push(
            "spec.policy.runtimeClassName",
            &format!("must be set here{}", one_of(allowed)),
        );
    }
    found.listed(
        "spec.scheduling.priorityClassName",
        place.priority_class_name.as_deref(),
        limits.priority_classes.as_deref(),
    );
    if let Some(prefixes) = &limits.image_prefixes {
        let image = &spec.agent.image;
        if !prefixes.iter().any(|prefix| is_below(image, prefix)) {
            let text = format!("must begin with what is allowed here{}", one_of(prefixes));
            found.push("spec.agent.image", &text);
        }
    }
    for label in place.node_selector.keys() {
        found.listed(
            "spec.scheduling.nodeSelector",
            Some(label),
            limits.node_selector_labels.as_deref(),
        );
    }
    for (at, toleration) in place.tolerations.iter().enumerate() {
        found.listed(
            &format!("spec.scheduling.tolerations[{at}].key"),
            Some(toleration.key.as_deref().unwrap_or("(every taint)")),
            limits.toleration_keys.as_deref(),
        );
    }
    resources(&mut found, place, installation);
    if let Some(most) = &limits.max_workspace_size {
        found.at_most("spec.workspace.size", &place.workspace_size, most);
    }
    let times = [
        ("spec.agent.timeout", spec.agent.timeout, limits.max_timeout),
        (
            "spec.scheduling.startTimeout",
            place.start_timeout,
            limits.max_start_timeout,
        ),
    ];
    for (field, time, most) in times {
        found.at_most(field, &Time(time), &Time(most));
    }
    found.at_most(
        "spec.infrastructureRetries",
        &place.infrastructure_retries,
        &limits.max_infrastructure_retries,
    );
    found.finish()
}

/// When the pod of an ended run goes: as the run wishes, and no later than the installation allows.
#[must_use]
pub fn ttl_after_finished(wishes: &Wishes, installation: &Installation) -> Duration {
    let most = installation.limits.max_ttl_after_finished;
    wishes.ttl_after_finished.min(most)
}

fn resources(found: &mut Found, place: &Placement, installation: &Installation) {
    let limits = &installation.limits;
    let fields: [(&str, &BTreeMap<String, Quantity>); 2] = [
        ("spec.agent.resources.requests", &place.requests),
        ("spec.agent.resources.limits", &place.limits),
    ];
    for (field, amounts) in fields {
        for (name, amount) in amounts {
            match limits.max_resources.get(name) {
                Some(most) => found.at_most(&format!("{field}.{name}"), amount, most),
                None if limits.only_listed_resources => {
                    found.push(&format!("{field}.{name}"), "cannot be asked for here");
                }
                None => {}
            }
        }
    }
}

/// Whether an image's name begins with whole parts: `example.com/team` allows `example.com/team/agent:1` and
/// `example.com/team:1`, and neither `example.com/teams` nor `example.com.other.org/team`.
fn is_below(image: &str, prefix: &str) -> bool {
    let ends = |text: &str| text.is_empty() || text.starts_with(['/', ':', '@']);
    !prefix.is_empty()
        && image
            .strip_prefix(prefix)
            .is_some_and(|rest| prefix.ends_with(['/', ':', '@']) || ends(rest))
}

/// A duration as people write it.
#[derive(PartialEq, PartialOrd)]
struct Time(Duration);

impl Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.as_secs();
        match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
            (0, 0, seconds) => write!(f, "{seconds}s"),
            (0, minutes, 0) => write!(f, "{minutes}m"),
            (hours, 0, 0) => write!(f, "{hours}h"),
            (_, _, 0) => write!(f, "{}m", seconds / 60),
            (..) => write!(f, "{seconds}s"),
        }
    }
}

/// What was found to be too much.
struct Found(Vec<String>);

impl Found {
    fn push(&mut self, field: &str, text: &str) {
        let text = format!("{field}: {text}");
        if !self.0.contains(&text) {
            self.0.push(text);
        }
    }

    /// Notes down a value that is not among those allowed.
    fn listed(&mut self, field: &str, value: Option<&str>, allowed: Option<&[String]>) {
        if let (Some(value), Some(allowed)) = (value, allowed)
            && !allowed.iter().any(|one| one == value)
        {
            let text = if allowed.is_empty() {
                "cannot be set here: remove it".to_owned()
            } else {
                format!("{value} is not allowed here{}", one_of(allowed))
            };
            self.push(field, &text);
        }
    }

    /// Notes down a value that is above its bound.
    fn at_most<T: PartialOrd + Display>(&mut self, field: &str, value: &T, most: &T) {
        if value > most {
            self.push(
                field,
                &format!("is {value}, and at most {most} is allowed here"),
            );
        }
    }

    fn finish(self) -> Result<(), Failure> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(Failure::new(Reason::AboveLimit, self.0.join("; ")))
    }
}

/// What may be written, as the end of a sentence.
fn one_of(allowed: &[String]) -> String {
    match allowed {
        [] => String::new(),
        [one] => format!(": write {one}"),
        more => format!(": write one of {}", more.join(", ")),
    }
}
