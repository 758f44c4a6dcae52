//! A resolved run as a Pod, a namespace as a NetworkPolicy, and what of both is not as it was sent. Pure.
//!
//! Everything that makes a pod safe to run is written here and nowhere else, and none of it is optional.

mod bounds;
mod containers;
mod installation;
mod mutations;
mod names;
mod others;
mod pod;
mod policy;
#[cfg(test)]
mod tests;

pub use bounds::{ttl_after_finished, within_limits};
pub use installation::{
    Gateway, Installation, Limits, NodeAccess, Operator, OwnResources, PullPolicy, Resources,
    SettingError, Waits,
};
pub use mutations::{mutations, rewritten_images};
pub use names::{
    ATTEMPT_LABEL, RUN_LABEL, RUN_NAME_ANNOTATION, UID_LABEL, label_value, owner, pod_labels,
    pod_name,
};
pub use others::{Opening, opens_more};
pub use pod::{AGENT, AUDIENCE, BROKER, PROVISION, ResolvedRun, WORKSPACE_VOLUME, pod};
pub use policy::{POLICY_NAME, network_policy, policy_differs};
