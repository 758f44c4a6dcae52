//! The kube shell around `run`: watches, observes, acts; and what the operator's process needs besides.

mod authority;
mod health;
mod identity;
mod leader;
mod metrics;
mod settings;
mod sources;

pub use authority::{Authority, AuthorityError};
pub use health::{Readiness, serve_health, serve_metrics};
pub use identity::{AUDIENCE, Lives, Reviews};
pub use leader::{Candidate, LeaderError};
pub use metrics::Metrics;
pub use settings::{
    CanaryPort, ControllerSettings, GatewaySettings, InputsSettings, LeaderSettings,
    MirrorSettings, PolicySettings, RecordSettings, Settings, SettingsError,
};

/// An error with all its causes, in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
