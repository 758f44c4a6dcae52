//! Everything that runs inside a pod (or a local sandbox): `provision`, `agent`, `collect`.
//!
//! It builds without the host side (`--no-default-features`) into one small static program. Nothing here knows a
//! credential, and nothing trusts what an agent could write.

mod access;
pub mod agent;
mod baseline;
mod cli;
mod client;
pub mod collect;
mod head;
mod objects;
pub mod provision;
mod summary;

use std::time::Duration;

pub use cli::Cli;
pub use client::{CallError, Gateway, GatewayAddressError};

/// Calls the gateway again while it is away: 7 tries within about 6 s.
async fn retry<T, F>(call: impl Fn() -> F) -> Result<T, CallError>
where
    F: Future<Output = Result<T, CallError>>,
{
    let mut pause = Duration::from_millis(100);
    for _ in 0..6 {
        match call().await {
            Err(error) if error.is_passing() => tokio::time::sleep(pause).await,
            done => return done,
        }
        pause *= 2;
    }
    call().await
}
