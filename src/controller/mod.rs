//! The kube shell around `run`: watches, observes, acts; and what the operator's process needs besides.

mod act;
mod authority;
mod calls;
mod desk;
mod health;
mod identity;
mod leader;
mod life;
mod metrics;
mod namespaces;
mod objects;
mod observe;
mod outcome;
mod pods;
mod policies;
mod prepare;
mod publish;
mod queue;
mod reconcile;
mod refusals;
mod restore;
mod settings;
mod sources;
mod start;
mod store;
mod sweep;
mod watches;

pub use authority::{Authority, AuthorityError};
pub use desk::DeskParts;
pub use health::{Readiness, serve_health, serve_metrics};
pub use identity::{Lives, Reviews};
pub use leader::{Candidate, LeaderError};
pub use metrics::Metrics;
pub use namespaces::INPUTS_ANNOTATION;
pub use settings::{
    CanaryPort, ControllerSettings, GatewaySettings, InputsSettings, LeaderSettings,
    MirrorSettings, PolicySettings, RecordSettings, Settings, SettingsError,
};
pub use start::{Place, StartError, start};

/// An error with all its causes, in one line.
#[must_use]
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
