//! Proves from inside that the policy is in force: every canary is tried and none may answer.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, sleep, timeout};

use crate::api::wire::{Canary, ProofPlan, ProofReport, Protocol};
use crate::api::{Fault, Reason};
use crate::pod::client::{CallError, Gateway};
use crate::pod::retry;

/// Why the policy is not proved.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// The gateway cannot be asked what to try.
    #[error("cannot get the canaries")]
    Plan(#[source] CallError),
    /// The gateway does not take the proof, and says why.
    #[error("the policy is not proved")]
    NotProved(#[source] CallError),
}

impl Fault for ProofError {
    fn reason(&self) -> Reason {
        match self {
            Self::Plan(error) | Self::NotProved(error) => error.reason(),
        }
    }
}

/// Closed rounds in a row that are a proof: one may have met a policy that was just being written.
const CLOSED_ROUNDS: u32 = 2;
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(250);
/// A connection that is not established by then is closed: the packets are dropped.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Tries the canaries until they are closed, for at most `limit`, and reports.
///
/// # Errors
/// When some canary stays open, or the gateway saw a nonce arrive, or it cannot be asked.
pub(super) async fn prove(gateway: &Gateway, limit: Duration) -> Result<(), ProofError> {
    let deadline = Instant::now() + limit;
    loop {
        let plan: ProofPlan = retry(|| gateway.get("/v1/proof"))
            .await
            .map_err(ProofError::Plan)?;
        let report = rounds(&plan, deadline).await;
        let closed = report.open.is_empty();
        match retry(|| gateway.post("/v1/proof", &report)).await {
            Ok(()) if closed => return Ok(()),
            // A nonce arrived that we cannot see: ask for a new one while there is time.
            Err(error)
                if closed && error.reason() == Reason::CanaryOpen && Instant::now() < deadline =>
            {
                sleep(PAUSE).await;
            }
            Err(error) => return Err(ProofError::NotProved(error)),
            Ok(()) => {
                // It was told of an open canary and said yes: that is not for it to say.
                let problem = crate::api::wire::Problem::new(
                    403,
                    Reason::CanaryOpen,
                    "a canary was open to the end",
                    "",
                );
                let status = hyper::StatusCode::FORBIDDEN;
                let problem = Box::new(problem);
                return Err(ProofError::NotProved(CallError::Refused {
                    status,
                    problem,
                }));
            }
        }
    }
}

async fn rounds(plan: &ProofPlan, deadline: Instant) -> ProofReport {
    let start = Instant::now();
    let (mut rounds, mut closed, mut last_open) = (0, 0, None);
    loop {
        let open = round(plan).await;
        rounds += 1;
        if open.is_empty() {
            closed += 1;
        } else {
            closed = 0;
            last_open = Some(start.elapsed());
        }
        if closed >= CLOSED_ROUNDS || Instant::now() >= deadline {
            let open_millis =
                last_open.map_or(0, |t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
            return ProofReport {
                nonce: plan.nonce.clone(),
                rounds,
                open,
                open_millis,
            };
        }
        sleep(PAUSE).await;
    }
}

/// Tries every canary once, all at the same time, and returns those that were open.
async fn round(plan: &ProofPlan) -> Vec<Canary> {
    let tries = plan.canaries.iter().map(|canary| async {
        let open = match canary.protocol {
            Protocol::Tcp => {
                matches!(
                    timeout(CONNECT_LIMIT, TcpStream::connect(canary.address)).await,
                    Ok(Ok(_))
                )
            }
            Protocol::Udp => {
                // Whether it arrived, only the gateway can say.
                let _unsent = send(canary.address, plan.nonce.as_bytes()).await;
                false
            }
        };
        open.then(|| canary.clone())
    });
    join_all(tries).await.into_iter().flatten().collect()
}

async fn send(to: SocketAddr, nonce: &[u8]) -> std::io::Result<()> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    timeout(CONNECT_LIMIT, socket.send_to(nonce, to)).await??;
    Ok(())
}
