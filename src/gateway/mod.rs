//! The server that pods talk to: plans, packs, proof, grant, lookups, git, proxy, outcome.
//!
//! It holds the credentials and the policy of each call, and writes a line in the record before anything leaves and
//! another when it is done. It keeps no state that a run depends on but what the record has: a [`Live`] run is a cache.
//! It never reads what a pod could have made up as the truth about policy: what arrived at a canary is seen here.

mod agent_api;
mod calls;
mod canary;
mod git_relay;
mod lines;
mod live;
mod lookups;
mod output;
mod places;
mod pod_api;
mod proxy;
mod server;
mod tls;

pub use canary::{Canaries, CanaryError, CanaryPort, InCluster, Proof};
pub use live::{Live, LiveParts, Seen};
pub use server::{Gateway, Role};
pub use tls::{Identified, Identity};
