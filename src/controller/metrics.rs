//! What Prometheus reads. Labels come from small closed sets; no object's name is one.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::api::{Failure, Fault as _, Phase, Reason};

/// The operator's numbers. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    runs: Family<PhaseLabel, Gauge>,
    ended: Family<CodeLabel, Counter>,
    abandoned: Family<ReasonLabel, Counter>,
    created_to_pod: Histogram,
    created_to_started: Histogram,
    reconcile: Histogram,
    reconcile_errors: Counter,
    api_requests: Family<RequestLabel, Counter>,
    watch_errors: Family<KindLabel, Counter>,
    policies_repaired: Counter,
    leading: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabel {
    request: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sandboxrun");
        // From 1 ms to about 9 minutes.
        let seconds = || Histogram::new(exponential_buckets(0.001, 3.0, 13));
        let runs = Family::default();
        let ended = Family::default();
        let abandoned = Family::default();
        let (created_to_pod, created_to_started, reconcile) = (seconds(), seconds(), seconds());
        let reconcile_errors = Counter::default();
        let api_requests = Family::default();
        let watch_errors = Family::default();
        let policies_repaired = Counter::default();
        let leading = Gauge::default();
        registry.register("runs", "Runs that have not ended, by phase", runs.clone());
        registry.register(
            "runs_ended",
            "Runs that ended, by the code of their error; `none` where they succeeded",
            ended.clone(),
        );
        registry.register(
            "attempts_abandoned",
            "Attempts that were lost before their agent started, by reason",
            abandoned.clone(),
        );
        registry.register_with_unit(
            "created_to_pod",
            "From the creation of a run without a wait to its pod",
            Unit::Seconds,
            created_to_pod.clone(),
        );
        registry.register_with_unit(
            "created_to_started",
            "From the creation of a run to the start of its agent",
            Unit::Seconds,
            created_to_started.clone(),
        );
        registry.register_with_unit(
            "reconcile",
            "How long one look at a run takes",
            Unit::Seconds,
            reconcile.clone(),
        );
        registry.register(
            "reconcile_errors",
            "Looks at a run that failed and are tried again",
            reconcile_errors.clone(),
        );
        registry.register(
            "api_requests",
            "Writes to the API server, by kind and result",
            api_requests.clone(),
        );
        registry.register(
            "watch_errors",
            "Watches that broke and were begun again, by kind",
            watch_errors.clone(),
        );
        registry.register(
            "policies_repaired",
            "Network policies of ours that were changed or deleted and put back",
            policies_repaired.clone(),
        );
        registry.register("leading", "1 while this operator leads", leading.clone());
        Self(Arc::new(Inner {
            registry,
            runs,
            ended,
            abandoned,
            created_to_pod,
            created_to_started,
            reconcile,
            reconcile_errors,
            api_requests,
            watch_errors,
            policies_repaired,
            leading,
        }))
    }
}

impl Metrics {
    /// Everything in the text format of `OpenMetrics`.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _written = encode(&mut text, &self.0.registry);
        text
    }

    /// So many runs are in this phase now.
    pub fn set_runs(&self, phase: Phase, count: i64) {
        let phase = phase_word(phase);
        self.0.runs.get_or_create(&PhaseLabel { phase }).set(count);
    }

    /// A run ended.
    pub fn run_ended(&self, failure: Option<&Failure>) {
        let code = failure.map_or("none", |failure| failure.code().as_str());
        self.0.ended.get_or_create(&CodeLabel { code }).inc();
    }

    /// An attempt was lost before its agent started.
    pub fn attempt_abandoned(&self, reason: Reason) {
        let reason = reason.as_str();
        self.0
            .abandoned
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    /// A pod was made this long after its run.
    pub fn pod_created(&self, after: Duration) {
        self.0.created_to_pod.observe(after.as_secs_f64());
    }

    /// An agent was started this long after its run was created.
    pub fn agent_started(&self, after: Duration) {
        self.0.created_to_started.observe(after.as_secs_f64());
    }

    /// A run was looked at.
    pub fn reconciled(&self, took: Duration, well: bool) {
        self.0.reconcile.observe(took.as_secs_f64());
        if !well {
            self.0.reconcile_errors.inc();
        }
    }

    /// A write was sent: `pod_create`, `pod_delete`, `status_patch`, `policy_apply`, `event_create`; `ok`, `conflict`,
    /// `refused` or `unknown` (no answer).
    pub fn api_request(&self, request: &'static str, result: &'static str) {
        let label = RequestLabel { request, result };
        self.0.api_requests.get_or_create(&label).inc();
    }

    /// A watch broke.
    pub fn watch_error(&self, kind: &'static str) {
        self.0.watch_errors.get_or_create(&KindLabel { kind }).inc();
    }

    /// A policy of ours was put back.
    pub fn policy_repaired(&self) {
        self.0.policies_repaired.inc();
    }

    /// Whether we lead.
    pub fn set_leading(&self, leading: bool) {
        self.0.leading.set(i64::from(leading));
    }
}

fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Pending => "Pending",
        Phase::Resolving => "Resolving",
        Phase::Provisioning => "Provisioning",
        Phase::Running => "Running",
        Phase::Collecting => "Collecting",
        Phase::Succeeded => "Succeeded",
        Phase::Failed => "Failed",
        Phase::Cancelled => "Cancelled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_counted() {
        let metrics = Metrics::default();
        metrics.run_ended(None);
        metrics.run_ended(Some(&Failure::new(Reason::ExitStatus, "x")));
        metrics.api_request("pod_create", "ok");
        metrics.pod_created(Duration::from_millis(5));
        metrics.set_runs(Phase::Running, 3);
        let text = metrics.text();
        for line in [
            "sandboxrun_runs_ended_total{code=\"none\"} 1",
            "sandboxrun_runs_ended_total{code=\"sandbox.agent_failed\"} 1",
            "sandboxrun_api_requests_total{request=\"pod_create\",result=\"ok\"} 1",
            "sandboxrun_created_to_pod_seconds_count 1",
            "sandboxrun_runs{phase=\"Running\"} 3",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }
}
