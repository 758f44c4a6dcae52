//! Proves from inside that the policy is in force: every canary is tried and none may answer.
//!
//! In a local run `agent` does this before it asks for its grant; in a pod `provision` does it beside the download, and
//! `broker` again and again while the agent lives.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::api::wire::{Canary, ProofPlan, ProofReport, Protocol};
use crate::api::{Fault, Reason, layout};
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
    /// Something was reachable to the end.
    #[error("reachable from inside the sandbox: {0}")]
    Open(String),
}

impl Fault for ProofError {
    fn reason(&self) -> Reason {
        match self {
            Self::Plan(error) | Self::NotProved(error) => error.reason(),
            Self::Open(_) => Reason::CanaryOpen,
        }
    }
}

/// Between the starts of two rounds: one alone may have met a policy that was just being written.
const PAUSE: Duration = Duration::from_millis(250);
/// A connection that is not established by then is closed: the packets are dropped. Inside a cluster an answer takes a
/// few milliseconds.
const CONNECT_LIMIT: Duration = Duration::from_millis(500);

/// Tries what must not be reachable from here.
#[derive(Debug, Clone)]
pub(super) struct Prover {
    gateway: Gateway,
    nodes: Vec<IpAddr>,
}

/// What a repeated proof came to.
#[derive(Debug)]
pub(super) enum Again {
    /// The gateway took it.
    Proved,
    /// Something answers that must not.
    Open,
    /// The gateway could not be asked. What could be tried without it did not answer.
    Unproven,
}

/// What rounds have shown so far.
struct Shown {
    start: Instant,
    rounds: u32,
    last_open: Option<Duration>,
    open: Vec<Canary>,
}

impl Prover {
    /// A prover that also tries the node's own addresses, if it is told to.
    pub(super) fn new(gateway: Gateway, nodes: Vec<IpAddr>) -> Self {
        Self { gateway, nodes }
    }

    /// The node's addresses as the pod's environment has them.
    pub(super) fn node_addresses() -> Vec<IpAddr> {
        let addresses = std::env::var(layout::NODE_ADDRESSES_ENV).unwrap_or_default();
        addresses
            .split(',')
            .filter_map(|address| address.trim().parse().ok())
            .collect()
    }

    /// Tries the canaries until two rounds in a row are closed, of which the last begins after `ready`, and reports. What
    /// stays open is tried for `limit`.
    ///
    /// # Errors
    /// When some canary stays open, or the gateway saw a nonce arrive, or it cannot be asked.
    pub(super) async fn prove(
        &self,
        limit: Duration,
        ready: &CancellationToken,
    ) -> Result<(), ProofError> {
        let mut shown: Option<Shown> = None;
        loop {
            let plan: ProofPlan = retry(&self.gateway, || self.gateway.get("/v1/proof"))
                .await
                .map_err(ProofError::Plan)?;
            let shown = shown.get_or_insert_with(Shown::new);
            let deadline = self.rounds(&plan, shown, limit, ready).await;
            let closed = shown.is_closed();
            let report = self.report(&plan, shown, Instant::now() < deadline);
            let error = match retry(&self.gateway, || self.gateway.post("/v1/proof", &report)).await
            {
                Ok(()) if closed => return Ok(()),
                // It was told of an open canary and said yes: that is not for it to say.
                Ok(()) => return Err(ProofError::Open(names(&shown.open))),
                Err(error) => error,
            };
            // A nonce arrived that we cannot see, or the gateway restarted and does not know the nonce.
            let anew = closed && (error.reason() == Reason::CanaryOpen || is_forgotten(&error));
            if !anew || Instant::now() >= deadline {
                return Err(ProofError::NotProved(error));
            }
            if error.reason() == Reason::CanaryOpen {
                shown.last_open = Some(shown.start.elapsed());
            }
            sleep(PAUSE).await;
        }
    }

    /// Proves once more, at once: what answers now has answered while the agent lived.
    ///
    /// `known` is the plan that was tried last: it serves where the gateway gives no other.
    pub(super) async fn again(
        &self,
        known: &mut Option<ProofPlan>,
        unproven: Duration,
        limit: Duration,
    ) -> Again {
        let plan: Result<ProofPlan, _> = timeout(limit, self.gateway.get("/v1/proof"))
            .await
            .unwrap_or(Err(CallError::TimedOut { limit }));
        let Ok(plan) = plan else {
            return match known {
                Some(plan) => {
                    let mut shown = Shown::new();
                    self.pair(plan, &mut shown, &CancellationToken::new()).await;
                    if shown.is_closed() {
                        Again::Unproven
                    } else {
                        Again::Open
                    }
                }
                None => Again::Unproven,
            };
        };
        let mut shown = Shown::new();
        self.pair(&plan, &mut shown, &CancellationToken::new())
            .await;
        let mut report = self.report(&plan, &shown, false);
        report.unproven_millis = millis(unproven);
        *known = Some(plan);
        let told = timeout(limit, self.gateway.post("/v1/proof", &report)).await;
        match told.unwrap_or(Err(CallError::TimedOut { limit })) {
            _ if !shown.is_closed() => Again::Open,
            Ok(()) => Again::Proved,
            Err(error) if error.reason() == Reason::CanaryOpen => Again::Open,
            Err(_) => Again::Unproven,
        }
    }

    /// Rounds until they are closed or the time is over; returns when that is.
    async fn rounds(
        &self,
        plan: &ProofPlan,
        shown: &mut Shown,
        limit: Duration,
        ready: &CancellationToken,
    ) -> Instant {
        let mut deadline = shown.start + limit;
        loop {
            let was_ready = self.pair(plan, shown, ready).await;
            if !shown.is_closed() {
                if Instant::now() >= deadline {
                    return deadline;
                }
                sleep(PAUSE).await;
                continue;
            }
            if was_ready {
                return deadline;
            }
            ready.cancelled().await;
            // What was closed all the while and opens now has its time to close again.
            deadline = deadline.max(Instant::now() + limit);
            let open = self.round(plan).await;
            shown.take(open);
            if shown.is_closed() {
                return deadline;
            }
            sleep(PAUSE).await;
        }
    }

    /// Two rounds, begun one after the other. True: the second began after `ready`.
    async fn pair(&self, plan: &ProofPlan, shown: &mut Shown, ready: &CancellationToken) -> bool {
        let second = async {
            sleep(PAUSE).await;
            let was_ready = ready.is_cancelled();
            (was_ready, self.round(plan).await)
        };
        let (first, (was_ready, second)) = tokio::join!(self.round(plan), second);
        let first_open = first.iter().any(|canary| !canary.tolerated);
        shown.take(first.clone());
        shown.take(second);
        if first_open && shown.is_closed() {
            // Not two in a row yet.
            shown.open = first;
        }
        was_ready
    }

    /// Tries every canary once, all at the same time, and returns those that were open.
    async fn round(&self, plan: &ProofPlan) -> Vec<Canary> {
        let node = self.node_canaries(plan);
        let tries = plan
            .canaries
            .iter()
            .chain(&node)
            .map(|canary| async { is_open(canary, &plan.nonce).await.then(|| canary.clone()) });
        join_all(tries).await.into_iter().flatten().collect()
    }

    fn node_canaries(&self, plan: &ProofPlan) -> Vec<Canary> {
        let node = plan.node.iter().flat_map(|node| {
            self.nodes.iter().map(|ip| Canary {
                name: format!("{} {}", Canary::OWN_NODE, SocketAddr::new(*ip, node.port)),
                address: SocketAddr::new(*ip, node.port),
                protocol: Protocol::Tcp,
                tolerated: node.tolerated,
            })
        });
        node.collect()
    }

    fn report(&self, plan: &ProofPlan, shown: &Shown, tries_again: bool) -> ProofReport {
        let nodes = self.node_canaries(plan);
        ProofReport {
            nonce: plan.nonce.clone(),
            rounds: shown.rounds,
            open: shown.open.clone(),
            open_millis: shown.last_open.map_or(0, millis),
            nodes: nodes.into_iter().map(|canary| canary.address).collect(),
            tries_again,
            unproven_millis: 0,
        }
    }
}

impl Shown {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            rounds: 0,
            last_open: None,
            open: Vec::new(),
        }
    }

    fn take(&mut self, open: Vec<Canary>) {
        self.rounds += 1;
        self.open = open;
        if !self.is_closed() {
            self.last_open = Some(self.start.elapsed());
        }
    }

    fn is_closed(&self) -> bool {
        self.open.iter().all(|canary| canary.tolerated)
    }
}

/// The gateway knows no proof of this nonce: it has restarted, or the answer to the same report was lost.
fn is_forgotten(error: &CallError) -> bool {
    matches!(error, CallError::Refused { status, .. } if *status == hyper::StatusCode::CONFLICT)
}

fn names(canaries: &[Canary]) -> String {
    let names: Vec<_> = canaries.iter().map(|canary| canary.name.as_str()).collect();
    names.join(", ")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

async fn is_open(canary: &Canary, nonce: &str) -> bool {
    match canary.protocol {
        Protocol::Tcp => matches!(
            timeout(CONNECT_LIMIT, TcpStream::connect(canary.address)).await,
            Ok(Ok(_))
        ),
        Protocol::Udp => {
            // Whether it arrived, only the gateway can say.
            let _unsent = send(canary.address, nonce.as_bytes()).await;
            false
        }
    }
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
