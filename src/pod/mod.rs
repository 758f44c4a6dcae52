//! Everything that runs inside a pod (or a local sandbox): `provision`, `agent`, `collect`; in a pod `broker` and `exec`.
//!
//! It builds without the host side (`--no-default-features`) into one small static program. Nothing here knows a
//! credential, and nothing trusts what an agent could write.

mod access;
pub mod agent;
mod baseline;
#[allow(
    clippy::disallowed_methods,
    reason = "its tasks are still to be gathered"
)]
pub mod broker;
mod cli;
mod client;
pub mod collect;
mod grant;
mod head;
mod install;
mod objects;
mod proof;
pub mod provision;
mod relay;
mod summary;

pub use cli::Cli;
pub use client::{CallError, Gateway, GatewayAddress, GatewayAddressError, GatewayError};
pub use grant::GrantError;
pub use proof::ProofError;
pub use relay::RelayError;

/// Starts a task of a pod's program. It ends with the process, which waits for what it needs itself.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that starts tasks without a tracker"
)]
fn spawn<F>(task: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(task)
}

/// Calls the gateway again while it is away, as patiently as this gateway deserves: about 6 s on a socket.
async fn retry<T, F>(gateway: &Gateway, call: impl Fn() -> F) -> Result<T, CallError>
where
    F: Future<Output = Result<T, CallError>>,
{
    let mut patience = gateway.patience();
    loop {
        match call().await {
            Err(error) if patience.outlasts(&error).await => {}
            done => return done,
        }
    }
}
