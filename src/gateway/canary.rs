//! Canaries: addresses that must not be reachable from inside a sandbox.
//!
//! A canary listens for real, and is dialled from here before every proof, so that "it did not answer" cannot mean "it
//! was not there". Each proof has a nonce of its own: what arrived is judged by what was seen here, not by the pod's word.
//! On one machine the canaries are this machine's own addresses; in a cluster, other ports of the gateway's Service.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::live::fresh_word;
use crate::api::wire::{Canary, NodeCanary, ProofPlan, ProofReport, Protocol};
use crate::api::{Fault, Reason};

/// How long a canary may take to answer when it is dialled from here: it is on this machine, or a Service of our own.
const DIAL: Duration = Duration::from_secs(2);
/// In a cluster, many pods prove at once: that the canaries listen is then asked this often, and holds for a proof that
/// begins and one that ends.
const CONFIRMED_FOR: Duration = Duration::from_secs(5);
/// A nonce is 32 hex digits; a canary reads no more than this.
const NONCE_BYTES: usize = 64;
/// Connections to one canary that may wait to say their nonce; more are closed at once.
const CALLERS: usize = 512;
/// Where clouds serve credentials to whoever asks.
const METADATA: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80),
    SocketAddr::new(
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
        80,
    ),
];

/// Where a canary listens: the address, and whether by TCP.
type Listener = (SocketAddr, bool);
/// Which canaries each open proof was seen at.
type Arrived = Arc<Mutex<HashMap<String, HashSet<Listener>>>>;

/// The listening canaries of one process, and the other addresses that must be closed.
#[derive(Debug, Clone)]
pub struct Canaries {
    all: Arc<All>,
}

#[derive(Debug)]
struct All {
    ours: Vec<Ours>,
    others: Vec<Canary>,
    node: Option<NodeCanary>,
    arrived: Arrived,
    confirmed_for: Duration,
    confirmed_at: tokio::sync::Mutex<Option<Instant>>,
}

/// One that we listen on: what is tried, and where it arrives.
#[derive(Debug)]
struct Ours {
    canary: Canary,
    listener: Listener,
}

/// The canaries of a cluster.
#[derive(Debug, Clone, Default)]
pub struct InCluster {
    /// The addresses of the gateway's Service, one of each family that it has. Pods try these.
    pub service: Vec<IpAddr>,
    /// The canary ports of that Service.
    pub ports: Vec<CanaryPort>,
    /// What is not ours and must be closed, too, by TCP: name and address. The cloud's metadata is always tried.
    pub closed: Vec<(String, SocketAddr)>,
    /// What is tried of the pod's own node.
    pub node: Option<NodeCanary>,
    /// The administrator accepts a network that enforces nothing: then each record says what was open.
    pub accepted: bool,
}

/// A canary port, by TCP and by UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CanaryPort {
    /// The port of the Service.
    pub service: u16,
    /// Where it leads to in this process.
    pub listen: u16,
}

/// Why nothing can be proved.
#[derive(Debug, thiserror::Error)]
pub enum CanaryError {
    /// No address of this machine could be listened on.
    #[error("no canary can listen on this machine")]
    Listen(#[source] std::io::Error),
    /// Without an address of ours nothing is proved.
    #[error("no canary is given: the gateway's Service needs an address and canary ports")]
    None,
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
            match listen_on(SocketAddr::new(ip, 0), &arrived, tracker, stop) {
                Ok(pair) => ours.extend(pair.map(|(address, protocol)| Ours {
                    canary: canary("this machine".to_owned(), address, protocol),
                    listener: (address, protocol == Protocol::Tcp),
                })),
                Err(error) if ip == IpAddr::V4(Ipv4Addr::LOCALHOST) => {
                    return Err(CanaryError::Listen(error));
                }
                Err(error) => tracing::debug!(%ip, %error, "no canary on this address"),
            }
        }
        let [metadata, _] = METADATA;
        Ok(Self::of(All {
            ours,
            others: vec![canary("metadata".to_owned(), metadata, Protocol::Tcp)],
            node: None,
            arrived,
            confirmed_for: Duration::ZERO,
            confirmed_at: tokio::sync::Mutex::default(),
        }))
    }

    /// Listens on the target ports of the gateway's Service, by TCP and UDP, in each family that the Service has. What pods
    /// try, and what is dialled from here, is the Service.
    ///
    /// # Errors
    /// When a port cannot be listened on, or there is none.
    pub fn in_cluster(
        what: &InCluster,
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Self, CanaryError> {
        let arrived = Arrived::default();
        let mut ours = Vec::new();
        for service in &what.service {
            let any: IpAddr = match service {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            for port in &what.ports {
                let at = SocketAddr::new(any, port.listen);
                let pair = listen_on(at, &arrived, tracker, stop).map_err(CanaryError::Listen)?;
                ours.extend(pair.map(|(address, protocol)| {
                    let number = port.service;
                    let name = match protocol {
                        Protocol::Tcp => format!("gateway port {number} (tcp)"),
                        Protocol::Udp => format!("gateway port {number} (udp)"),
                    };
                    let tried = SocketAddr::new(*service, number);
                    Ours {
                        canary: canary(name, tried, protocol),
                        listener: (address, protocol == Protocol::Tcp),
                    }
                }));
            }
        }
        if ours.is_empty() {
            return Err(CanaryError::None);
        }
        let v6 = what.service.iter().any(IpAddr::is_ipv6);
        let metadata = METADATA
            .into_iter()
            .filter(|address| address.is_ipv4() || v6)
            .map(|address| canary("cloud metadata".to_owned(), address, Protocol::Tcp));
        let closed = what
            .closed
            .iter()
            .map(|(name, address)| canary(name.clone(), *address, Protocol::Tcp));
        let mut others: Vec<Canary> = closed.chain(metadata).collect();
        if what.accepted {
            let ours = ours.iter_mut().map(|ours| &mut ours.canary);
            for canary in ours.chain(&mut others) {
                canary.tolerated = true;
            }
        }
        let node = what.node.map(|node| NodeCanary {
            tolerated: node.tolerated || what.accepted,
            ..node
        });
        Ok(Self::of(All {
            ours,
            others,
            node,
            arrived,
            confirmed_for: CONFIRMED_FOR,
            confirmed_at: tokio::sync::Mutex::default(),
        }))
    }

    fn of(all: All) -> Self {
        Self { all: Arc::new(all) }
    }

    /// Dials every canary from here, the way that a pod would take.
    ///
    /// # Errors
    /// When one of them does not answer: then there is no proof to be had.
    pub async fn confirm(&self) -> Result<(), CanaryError> {
        // Who comes meanwhile waits for the same answer.
        let mut confirmed_at = self.all.confirmed_at.lock().await;
        if confirmed_at.is_some_and(|at| at.elapsed() < self.all.confirmed_for) {
            return Ok(());
        }
        *confirmed_at = None;
        let began = Instant::now();
        let proof = self.proof();
        let dialled = self.all.ours.iter().map(|ours| async {
            let dialled = async {
                let sent = send_nonce(&ours.canary, &proof.plan.nonce).await;
                sent.is_ok() && proof.sees(ours.listener).await
            };
            let answers = tokio::time::timeout(DIAL, dialled).await.unwrap_or(false);
            (!answers).then_some(ours.canary.address)
        });
        if let Some(down) = join_all(dialled).await.into_iter().flatten().next() {
            return Err(CanaryError::Down(down));
        }
        *confirmed_at = Some(began);
        Ok(())
    }

    /// A fresh proof: our canaries, and what else must be closed.
    #[must_use]
    pub fn proof(&self) -> Proof {
        let nonce = fresh_word();
        let ours = self.all.ours.iter().map(|ours| ours.canary.clone());
        let canaries = ours.chain(self.all.others.iter().cloned()).collect();
        self.all
            .arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(nonce.clone(), HashSet::new());
        Proof {
            plan: ProofPlan {
                nonce,
                canaries,
                node: self.all.node,
            },
            all: Arc::clone(&self.all),
        }
    }
}

/// One proof that is under way. What arrives is noted as long as it lives; nobody else's proof can end it.
#[derive(Debug)]
pub struct Proof {
    plan: ProofPlan,
    all: Arc<All>,
}

impl Proof {
    /// What is to be tried.
    #[must_use]
    pub fn plan(&self) -> &ProofPlan {
        &self.plan
    }

    /// What was open: what the report says, and what arrived here whatever the report says. What of it is tolerated is for
    /// the plan to say.
    #[must_use]
    pub fn judge(&self, report: &ProofReport) -> Vec<Canary> {
        let is = |one: &Canary, other: &Canary| {
            one.address == other.address && one.protocol == other.protocol
        };
        let mut open: Vec<Canary> = report
            .open
            .iter()
            .map(|said| {
                let planned = self.plan.canaries.iter().find(|canary| is(canary, said));
                planned.cloned().unwrap_or_else(|| self.of_the_node(said))
            })
            .collect();
        let arrived = self.all.ours.iter().filter(|ours| {
            self.has_seen(ours.listener) && !open.iter().any(|canary| is(canary, &ours.canary))
        });
        let arrived: Vec<Canary> = arrived.map(|ours| ours.canary.clone()).collect();
        open.extend(arrived);
        open.extend(self.untried_node(report));
        open
    }

    /// A canary that the plan does not name: the pod's own node, else something that nobody tolerates.
    fn of_the_node(&self, said: &Canary) -> Canary {
        let node = self.plan.node;
        let tolerated = node.is_some_and(|node| {
            node.tolerated && node.port == said.address.port() && said.protocol == Protocol::Tcp
        });
        Canary {
            name: crate::api::safe_text(said.name.as_bytes()),
            tolerated,
            ..said.clone()
        }
    }

    /// A node that must be closed and was not tried is not known to be closed.
    fn untried_node(&self, report: &ProofReport) -> Option<Canary> {
        let node = self.plan.node.filter(|node| !node.tolerated)?;
        report.nodes.is_empty().then(|| {
            let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), node.port);
            canary(
                format!("{}, which was not tried", Canary::OWN_NODE),
                address,
                Protocol::Tcp,
            )
        })
    }

    fn has_seen(&self, listener: Listener) -> bool {
        let arrived = self
            .all
            .arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        arrived
            .get(&self.plan.nonce)
            .is_some_and(|places| places.contains(&listener))
    }

    async fn sees(&self, listener: Listener) -> bool {
        while !self.has_seen(listener) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        true
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        self.all
            .arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.plan.nonce);
    }
}

fn canary(name: String, address: SocketAddr, protocol: Protocol) -> Canary {
    Canary {
        name,
        address,
        protocol,
        tolerated: false,
    }
}

/// Listens by TCP and UDP, and notes the nonces that arrive.
fn listen_on(
    at: SocketAddr,
    arrived: &Arrived,
    tracker: &TaskTracker,
    stop: &CancellationToken,
) -> std::io::Result<[(SocketAddr, Protocol); 2]> {
    let tcp = bound(at, SocketType::STREAM)?;
    net::listen(&tcp, 1024)?;
    let tcp = TcpListener::from_std(tcp.into())?;
    let udp = UdpSocket::from_std(bound(at, SocketType::DGRAM)?.into())?;
    let (tcp_address, udp_address) = (tcp.local_addr()?, udp.local_addr()?);
    let seen = Arc::clone(arrived);
    let (callers, tasks, ended) = (
        Arc::new(Semaphore::new(CALLERS)),
        tracker.clone(),
        stop.clone(),
    );
    tracker.spawn(stop.clone().run_until_cancelled_owned(async move {
        loop {
            let Ok((stream, _)) = tcp.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let Ok(place) = Arc::clone(&callers).try_acquire_owned() else {
                continue;
            };
            let seen = Arc::clone(&seen);
            tasks.spawn(ended.clone().run_until_cancelled_owned(async move {
                hear(stream, &seen, (tcp_address, true)).await;
                drop(place);
            }));
        }
    }));
    let seen = Arc::clone(arrived);
    tracker.spawn(stop.clone().run_until_cancelled_owned(async move {
        let mut nonce = [0; NONCE_BYTES];
        loop {
            if let Ok(length) = udp.recv(&mut nonce).await {
                let nonce = nonce.get(..length).unwrap_or_default();
                note(&seen, nonce, (udp_address, false));
            }
        }
    }));
    Ok([(tcp_address, Protocol::Tcp), (udp_address, Protocol::Udp)])
}

async fn hear(mut stream: TcpStream, seen: &Arrived, at: Listener) {
    let mut nonce = [0; NONCE_BYTES];
    if let Ok(Ok(length)) = tokio::time::timeout(DIAL, stream.read(&mut nonce)).await {
        note(seen, nonce.get(..length).unwrap_or_default(), at);
    }
}

/// A socket that is bound for one family alone, so that each family has its own listener on the same port.
fn bound(at: SocketAddr, kind: SocketType) -> std::io::Result<std::os::fd::OwnedFd> {
    let family = if at.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, kind, flags, None)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if kind == SocketType::STREAM {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    net::bind(&socket, &at)?;
    Ok(socket)
}

/// Notes where a nonce arrived, if it is one of ours.
fn note(arrived: &Arrived, nonce: &[u8], at: Listener) {
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
            nodes: vec![],
            tries_again: false,
            unproven_millis: 0,
        };
        assert_eq!(proof.judge(&silent), vec![]);
        // However many others there are, each sees its own.
        let others: Vec<_> = (0..200).map(|_| canaries.proof()).collect();
        let udp = canaries.all.ours.iter().find(|o| !o.listener.1).unwrap();
        send_nonce(&udp.canary, &nonce).await.unwrap();
        assert!(proof.sees(udp.listener).await);
        assert_eq!(proof.judge(&silent), vec![udp.canary.clone()]);
        drop((proof, others));
        let arrived = canaries.all.arrived.lock().unwrap().len();
        assert_eq!(arrived, 0, "nothing grows");
    }

    /// A free port of this machine: as good as known.
    fn free_port() -> u16 {
        let listener = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        listener.local_addr().unwrap().port()
    }

    fn cluster(node: Option<NodeCanary>, accepted: bool) -> InCluster {
        let port = free_port();
        InCluster {
            // Another address than the one that is listened on, as a Service has.
            service: vec![Ipv4Addr::new(127, 0, 0, 2).into()],
            ports: vec![CanaryPort {
                service: port,
                listen: port,
            }],
            closed: vec![(
                "API server 10.96.0.1:443".to_owned(),
                "10.96.0.1:443".parse().unwrap(),
            )],
            node,
            accepted,
        }
    }

    fn report(proof: &Proof, open: Vec<Canary>, nodes: Vec<SocketAddr>) -> ProofReport {
        ProofReport {
            nonce: proof.plan().nonce.clone(),
            rounds: 2,
            open,
            open_millis: 0,
            nodes,
            tries_again: false,
            unproven_millis: 0,
        }
    }

    #[tokio::test]
    async fn g14_each_way_out_is_a_canary_of_its_own_and_has_a_name() {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let what = cluster(None, false);
        let canaries = Canaries::in_cluster(&what, &tracker, &stop).unwrap();
        canaries.confirm().await.unwrap();
        let proof = canaries.proof();
        let number = what.ports[0].service;
        let names: Vec<&str> = proof
            .plan()
            .canaries
            .iter()
            .map(|c| c.name.as_str())
            .collect();
        assert_eq!(
            names,
            [
                format!("gateway port {number} (tcp)").as_str(),
                &format!("gateway port {number} (udp)"),
                "API server 10.96.0.1:443",
                "cloud metadata"
            ]
        );
        // UDP is open though TCP is closed: only the gateway can see that.
        let udp = &canaries.all.ours[1];
        assert_eq!(udp.canary.protocol, Protocol::Udp);
        send_nonce(&udp.canary, &proof.plan().nonce).await.unwrap();
        assert!(proof.sees(udp.listener).await);
        let open = proof.judge(&report(&proof, vec![], vec![]));
        assert_eq!(open, vec![udp.canary.clone()]);
        stop.cancel();
    }

    #[tokio::test]
    async fn g03_a_service_that_does_not_lead_to_the_canary_proves_nothing() {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let mut what = cluster(None, false);
        what.ports[0].service = free_port();
        let canaries = Canaries::in_cluster(&what, &tracker, &stop).unwrap();
        let down = canaries.confirm().await.unwrap_err();
        assert!(matches!(down, CanaryError::Down(at) if at.port() == what.ports[0].service));
        stop.cancel();
        let none = InCluster::default();
        let none = Canaries::in_cluster(&none, &tracker, &stop).unwrap_err();
        assert!(matches!(none, CanaryError::None));
    }

    #[tokio::test]
    async fn g03_many_proofs_share_one_confirmation_for_a_while() {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let canaries = Canaries::in_cluster(&cluster(None, false), &tracker, &stop).unwrap();
        canaries.confirm().await.unwrap();
        let first = *canaries.all.confirmed_at.lock().await;
        canaries.confirm().await.unwrap();
        assert_eq!(*canaries.all.confirmed_at.lock().await, first);
        stop.cancel();
    }

    #[tokio::test]
    async fn g13_the_pods_own_node_is_a_fact_or_a_refusal_as_the_administrator_says() {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let at: SocketAddr = "192.0.2.1:10250".parse().unwrap();
        for tolerated in [true, false] {
            let node = NodeCanary {
                port: 10250,
                tolerated,
            };
            let what = cluster(Some(node), false);
            let canaries = Canaries::in_cluster(&what, &tracker, &stop).unwrap();
            let proof = canaries.proof();
            // The pod's word on what is tolerated does not count.
            let said = Canary {
                tolerated: true,
                ..canary("node".to_owned(), at, Protocol::Tcp)
            };
            let open = proof.judge(&report(&proof, vec![said.clone()], vec![at]));
            assert_eq!(open.len(), 1);
            assert_eq!(open[0].tolerated, tolerated);
            // Another port is nobody's to tolerate.
            let mut other = said;
            other.address.set_port(22);
            let open = proof.judge(&report(&proof, vec![other], vec![at]));
            assert!(!open[0].tolerated);
            let untried = proof.judge(&report(&proof, vec![], vec![]));
            assert_eq!(untried.is_empty(), tolerated, "not tried is not closed");
        }
        stop.cancel();
    }

    #[tokio::test]
    async fn g01_what_the_administrator_accepts_is_tolerated_by_name() {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let canaries = Canaries::in_cluster(&cluster(None, true), &tracker, &stop).unwrap();
        assert!(canaries.proof().plan().canaries.iter().all(|c| c.tolerated));
        stop.cancel();
    }
}
