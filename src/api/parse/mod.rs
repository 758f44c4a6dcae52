//! From the flat resources to their parsed twins: every rule of the manifests, in code.
//!
//! The CRDs state the same rules in CEL. They are checked again here since an object may have got past an older
//! CRD, and since `sandboxrun run` and `sandboxrun validate` have no API server.

mod agent;
mod connector;
mod inputs;
mod lookups;
mod placement;
mod schema;
mod text;

use std::borrow::Cow;
use std::fmt::Display;

use super::{Failure, Fault, Reason, RunSpec, SandboxRunSpec};

/// A field that breaks a rule, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct SpecError {
    /// Where, such as `spec.inputs[0].ref`.
    pub field: String,
    /// What to write instead. Never quotes the value.
    pub message: Cow<'static, str>,
}

impl Fault for SpecError {
    fn reason(&self) -> Reason {
        Reason::RuleBroken
    }
}

impl SpecError {
    /// All broken rules of one manifest as the one failure of its run: the first ten, and how many more.
    #[must_use]
    pub fn all(errors: &[Self]) -> Failure {
        const SHOWN: usize = 10;
        let mut message: Vec<String> = errors.iter().take(SHOWN).map(Self::to_string).collect();
        if let Some(more) = errors.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            message.push(format!("and {more} more"));
        }
        Failure::new(Reason::RuleBroken, message.join("; "))
    }
}

impl RunSpec {
    /// Checks every rule of a run and fills in what is left out.
    ///
    /// # Errors
    /// Every broken rule, in the order of the fields.
    pub fn parse(spec: &SandboxRunSpec) -> Result<Self, Vec<SpecError>> {
        let mut checks = Checks::default();
        let inputs = inputs::parse(&mut checks, &spec.inputs);
        let agent = agent::parse(&mut checks, &spec.agent, &inputs);
        let lookups = lookups::parse(&mut checks, &spec.lookups);
        let egress = lookups::egress(&mut checks, spec.egress.as_ref());
        let policy = spec.policy.clone().unwrap_or_default();
        if let Some(name) = &policy.runtime_class_name {
            let good = text::is_subdomain(name);
            checks.rule(
                good,
                "spec.policy.runtimeClassName",
                super::rules::OBJECT_NAME,
            );
        }
        let placement = placement::parse(&mut checks, spec);
        placement::wishes(&mut checks, spec);
        checks.finish(agent.map(|agent| Self {
            inputs,
            agent,
            lookups,
            egress,
            on_drift: policy.on_drift.unwrap_or_default(),
            credential_proof: policy.credential_proof.unwrap_or_default(),
            runtime_class_name: policy.runtime_class_name,
            placement,
        }))
    }
}

/// The broken rules so far.
#[derive(Default)]
struct Checks {
    errors: Vec<SpecError>,
}

impl Checks {
    fn refuse(&mut self, field: impl Into<String>, message: impl Into<Cow<'static, str>>) {
        self.errors.push(SpecError {
            field: field.into(),
            message: message.into(),
        });
    }

    fn rule(&mut self, good: bool, field: impl Into<String>, message: &'static str) {
        if !good {
            self.refuse(field, message);
        }
    }

    /// The value, or its error noted down.
    fn value<T, E: Display>(&mut self, field: impl Into<String>, value: Result<T, E>) -> Option<T> {
        value
            .map_err(|error| self.refuse(field, error.to_string()))
            .ok()
    }

    /// Notes down that some share something which each must have alone, and names the first few of them.
    fn distinct(&mut self, field: &str, message: &str, offenders: &[&str], named: usize) {
        if !offenders.is_empty() {
            let named = offenders.get(..named).unwrap_or(offenders);
            self.refuse(field, format!("{message}{}", named.join(", ")));
        }
    }

    /// Notes down a list that is too long, and gives what is to be looked at.
    fn at_most<'a, T>(&mut self, field: &str, list: &'a [T], most: usize) -> &'a [T] {
        if list.len() > most {
            self.refuse(field, format!("must have at most {most} entries"));
        }
        list.get(..most).unwrap_or(list)
    }

    /// Notes down a text that is too long.
    fn fits(&mut self, field: impl Into<String>, text: &str, most: usize) {
        if text.chars().count() > most {
            self.refuse(field, format!("must have at most {most} characters"));
        }
    }

    fn finish<T>(self, value: Option<T>) -> Result<T, Vec<SpecError>> {
        value.filter(|_| self.errors.is_empty()).ok_or(self.errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_gets_its_defaults() {
        let spec = serde_json::json!({
            "inputs": [{"name": "app", "repository": "https://git.example.com/acme/app.git"}],
            "agent": {"image": "a", "command": ["true"]},
        });
        let spec: SandboxRunSpec = serde_json::from_value(spec).unwrap();
        let run = RunSpec::parse(&spec).unwrap();
        assert_eq!(run.inputs[0].path, "app");
        assert_eq!(run.inputs[0].depth, Some(1));
        assert_eq!(run.agent.working_dir, "/workspace/app");
        assert_eq!(run.agent.timeout.as_secs(), 1200);
    }
}
