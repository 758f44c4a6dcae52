//! Canaries: addresses of this machine that must not be reachable from inside a sandbox.
//!
//! A canary listens for real, and is dialled from here before every proof, so that "it did not answer" cannot mean "it
//! was not there". Each proof has a nonce of its own: what arrived is judged by what was seen here, not by the pod's word.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::live::fresh_word;
use crate::api::wire::{Canary, ProofPlan, ProofReport, Protocol};
use crate::api::{Fault, Reason};

/// How long a canary may take to answer when it is dialled from here: it is on this machine.
const DIAL: Duration = Duration::from_secs(2);
/// A nonce is 32 hex digits; a canary reads no more than this.
const NONCE_BYTES: usize = 64;
/// Where clouds serve credentials to whoever asks.
const METADATA: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80);

/// Which canaries each open proof was seen at.
type Arrived = Arc<Mutex<HashMap<String, HashSet<(SocketAddr, bool)>>>>;

/// The listening canaries of one process.
#[derive(Debug, Clone)]
pub struct Canaries {
    ours: Vec<Canary>,
    arrived: Arrived,
}

/// Why nothing can be proved.
#[derive(Debug, thiserror::Error)]
pub enum CanaryError {
    /// No address of this machine could be listened on.
    #[error("no canary can listen on this machine")]
    Listen(#[source] std::io::Error),
    /// A canary did not answer from here.
    #[error(
        "the canary {0} does not answer from outside the sandbox, so its silence inside would prove nothing"
    )]
    Down(SocketAddr),
}

impl Fault for CanaryError {
    fn reason(&self) -> Reason {
        Reason::CanaryDown
    }
}

impl Canaries {
    /// Listens by TCP and UDP on every address that this machine is known by: loopback and the ones it would send from,
    /// IPv4 and IPv6. An address family that the machine does not have is left out.
    ///
    /// # Errors
    /// When not even IPv4 loopback can be listened on.
    pub async fn listen(
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Self, CanaryError> {
        let arrived = Arrived::default();
        let mut ours = Vec::new();
        for ip in machine_addresses().await {
            match Self::listen_on(ip, &arrived, tracker, stop).await {
                Ok(pair) => ours.extend(pair),
                Err(error) if ip == IpAddr::V4(Ipv4Addr::LOCALHOST) => {
                    return Err(CanaryError::Listen(error));
                }
                Err(error) => tracing::debug!(%ip, %error, "no canary on this address"),
            }
        }
        Ok(Self { ours, arrived })
    }

    /// Dials every canary from here.
    ///
    /// # Errors
    /// When one of them does not answer: then there is no proof to be had.
    pub async fn confirm(&self) -> Result<(), CanaryError> {
        let proof = self.proof();
        for canary in &self.ours {
            let dialled = async {
                send_nonce(canary, &proof.plan.nonce).await.is_ok() && proof.sees(canary).await
            };
            if !tokio::time::timeout(DIAL, dialled).await.unwrap_or(false) {
                return Err(CanaryError::Down(canary.address));
            }
        }
        Ok(())
    }

    /// A fresh proof: our canaries, and the cloud's metadata address.
    #[must_use]
    pub fn proof(&self) -> Proof {
        let nonce = fresh_word();
        let metadata = Canary {
            name: "metadata".into(),
            address: METADATA,
            protocol: Protocol::Tcp,
        };
        let canaries = self.ours.iter().cloned().chain([metadata]).collect();
        self.arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(nonce.clone(), HashSet::new());
        Proof {
            plan: ProofPlan { nonce, canaries },
            arrived: Arc::clone(&self.arrived),
        }
    }

    async fn listen_on(
        ip: IpAddr,
        arrived: &Arrived,
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> std::io::Result<[Canary; 2]> {
        let tcp = TcpListener::bind((ip, 0)).await?;
        let udp = UdpSocket::bind((ip, 0)).await?;
        let (tcp_address, udp_address) = (tcp.local_addr()?, udp.local_addr()?);
        let seen = Arc::clone(arrived);
        tracker.spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                let mut nonce = [0; NONCE_BYTES];
                let read = tokio::time::timeout(DIAL, stream.read(&mut nonce)).await;
                if let Ok(Ok(length)) = read {
                    note(
                        &seen,
                        nonce.get(..length).unwrap_or_default(),
                        (tcp_address, true),
                    );
                }
            }
        }));
        let seen = Arc::clone(arrived);
        tracker.spawn(stop.clone().run_until_cancelled_owned(async move {
            let mut nonce = [0; NONCE_BYTES];
            loop {
                if let Ok(length) = udp.recv(&mut nonce).await {
                    note(
                        &seen,
                        nonce.get(..length).unwrap_or_default(),
                        (udp_address, false),
                    );
                }
            }
        }));
        let name = "this machine".to_owned();
        Ok([
            Canary {
                name: name.clone(),
                address: tcp_address,
                protocol: Protocol::Tcp,
            },
            Canary {
                name,
                address: udp_address,
                protocol: Protocol::Udp,
            },
        ])
    }
}

/// One proof that is under way. What arrives is noted as long as it lives; nobody else's proof can end it.
#[derive(Debug)]
pub struct Proof {
    plan: ProofPlan,
    arrived: Arrived,
}

impl Proof {
    /// What is to be tried.
    #[must_use]
    pub fn plan(&self) -> &ProofPlan {
        &self.plan
    }

    /// What was open: what the report says, and what arrived here whatever the report says.
    #[must_use]
    pub fn judge(&self, report: &ProofReport) -> Vec<Canary> {
        let mut open = report.open.clone();
        let seen = |canary: &&Canary| self.has_seen(canary) && !report.open.contains(canary);
        open.extend(self.plan.canaries.iter().filter(seen).cloned());
        open
    }

    fn has_seen(&self, canary: &Canary) -> bool {
        let key = (canary.address, canary.protocol == Protocol::Tcp);
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived
            .get(&self.plan.nonce)
            .is_some_and(|places| places.contains(&key))
    }

    async fn sees(&self, canary: &Canary) -> bool {
        while !self.has_seen(canary) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        true
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        self.arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.plan.nonce);
    }
}

/// Notes where a nonce arrived, if it is one of ours.
fn note(arrived: &Arrived, nonce: &[u8], at: (SocketAddr, bool)) {
    let mut seen = arrived.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(places) = std::str::from_utf8(nonce)
        .ok()
        .and_then(|n| seen.get_mut(n))
    {
        places.insert(at);
    }
}

async fn send_nonce(canary: &Canary, nonce: &str) -> std::io::Result<()> {
    match canary.protocol {
        Protocol::Tcp => {
            TcpStream::connect(canary.address)
                .await?
                .write_all(nonce.as_bytes())
                .await
        }
        Protocol::Udp => {
            let from: IpAddr = match canary.address.ip() {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((from, 0)).await?;
            socket
                .send_to(nonce.as_bytes(), canary.address)
                .await
                .map(|_| ())
        }
    }
}

/// Loopback, and the addresses that the machine would send from: connecting a UDP socket sends nothing.
async fn machine_addresses() -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let outside: [(IpAddr, IpAddr); 2] = [
        (
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv4Addr::new(192, 0, 2, 1).into(),
        ),
        (
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        ),
    ];
    for (from, to) in outside {
        let Ok(socket) = UdpSocket::bind((from, 0)).await else {
            continue;
        };
        if socket.connect((to, 9)).await.is_ok()
            && let Ok(local) = socket.local_addr()
            && !all.contains(&local.ip())
        {
            all.push(local.ip());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn g03_a_canary_that_is_down_proves_nothing() {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let canaries = Canaries::listen(&tracker, &stop).await.unwrap();
        canaries.confirm().await.unwrap();
        stop.cancel();
        tracker.close();
        tracker.wait().await;
        assert!(matches!(
            canaries.confirm().await,
            Err(CanaryError::Down(_))
        ));
    }

    #[tokio::test]
    async fn what_arrived_counts_whatever_the_report_says() {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let canaries = Canaries::listen(&tracker, &stop).await.unwrap();
        let proof = canaries.proof();
        let nonce = proof.plan().nonce.clone();
        let silent = ProofReport {
            nonce: nonce.clone(),
            rounds: 2,
            open: vec![],
            open_millis: 0,
        };
        assert_eq!(proof.judge(&silent), vec![]);
        // However many others there are, each sees its own.
        let others: Vec<_> = (0..200).map(|_| canaries.proof()).collect();
        let udp = proof
            .plan()
            .canaries
            .iter()
            .find(|c| c.protocol == Protocol::Udp)
            .unwrap();
        send_nonce(udp, &nonce).await.unwrap();
        assert!(proof.sees(udp).await);
        assert_eq!(proof.judge(&silent), vec![udp.clone()]);
        drop((proof, others));
        assert!(canaries.arrived.lock().unwrap().is_empty(), "nothing grows");
    }
}
