//! The kube shell around `run`: watches, observes, acts; and what the operator's process needs besides.

mod settings;

pub use settings::{
    CanaryPort, ControllerSettings, GatewaySettings, InputsSettings, LeaderSettings,
    MirrorSettings, PolicySettings, RecordSettings, Settings, SettingsError,
};
