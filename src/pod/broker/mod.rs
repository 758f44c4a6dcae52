//! `broker`: the sidecar of a pod. It is the relay, the desk of `exec`, and the one who proves the policy again and again;
//! and when the pod goes, it reads what the agent left.
//!
//! It holds the pod's token and no other credential. The kubelet tells it (SIGTERM) when the agent's container has ended.
//! Where it is told while the agent may still live (an eviction gives a second), it says so: what a living agent can still
//! change is unknown.

mod desk;
mod line;
mod notes;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::api::wire::{Outcome, OutputFile};
use crate::api::{Failure, Fault as _, Reason};
use crate::pod::proof::{Again, Prover};
use crate::pod::relay::Relay;
use crate::pod::{collect, retry, summary};
use desk::Desk;

/// What `broker` works with.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is read at the end, and the gateway for all of it.
    pub collect: collect::Options,
    /// The relay's port on 127.0.0.1.
    pub relay_port: u16,
    /// Where `exec` asks.
    pub exec_socket: PathBuf,
    /// Addresses of the pod's node.
    pub nodes: Vec<IpAddr>,
    /// How often the policy is proved again.
    pub proof_every: Duration,
    /// How long the agent may still live when the pod goes.
    pub agent_wait: Duration,
    /// How long the last report may take.
    pub report_limit: Duration,
}

/// A gateway that does not answer within this time does not prove anything this time.
const PROOF_CALL: Duration = Duration::from_secs(10);
/// How long a question for the start that is under way is waited for when the pod goes.
const LAST_QUESTION: Duration = Duration::from_secs(2);

/// Serves until SIGTERM, then reads what the agent left and reports it.
///
/// # Errors
/// When it cannot serve, or the gateway did not take the outcome. The termination message then is all there is.
pub async fn run(options: &Options) -> Result<(), Failure> {
    let cannot = |what: &str, error: std::io::Error| {
        Failure::new(Reason::SandboxUnavailable, format!("{what}: {error}"))
    };
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| cannot("signals", error))?;
    let gateway = &options.collect.gateway;
    let relay = Relay::bind(options.relay_port, gateway.clone())
        .await
        .map_err(|error| error.failure(None))?;
    let listener =
        desk::listen(&options.exec_socket).map_err(|error| cannot("the socket of exec", error))?;
    let desk = Desk::new(gateway.clone(), &options.collect.baseline);
    tokio::spawn(relay.serve());
    tokio::spawn(Arc::clone(&desk).serve(listener));
    tokio::spawn(prove_again(Arc::clone(&desk), options.clone()));
    terminate.recv().await;
    end(&desk, options).await
}

/// Proves the policy again and again. What is open stops the agent: a connection that was opened in a gap outlives the
/// repair.
async fn prove_again(desk: Arc<Desk>, options: Options) {
    let prover = Prover::new(options.collect.gateway.clone(), options.nodes);
    let restarted = desk.watch().borrow().granted.is_some();
    let mut proved_at = Instant::now();
    let first = if restarted {
        proved_at
    } else {
        proved_at + options.proof_every
    };
    let mut tick = interval_at(first, options.proof_every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = None;
    loop {
        tick.tick().await;
        match prover
            .again(&mut known, proved_at.elapsed(), PROOF_CALL)
            .await
        {
            Again::Proved => proved_at = Instant::now(),
            Again::Open => desk.stop(Reason::PolicyLost),
            Again::Unproven => {
                let seconds = proved_at.elapsed().as_secs();
                eprintln!("sandboxrun-pod broker: the policy was not proved for {seconds} s");
            }
        }
    }
}

/// The pod goes.
async fn end(desk: &Desk, options: &Options) -> Result<(), Failure> {
    desk.close(LAST_QUESTION).await;
    if desk.watch().borrow().granted.is_none() {
        // No agent ever ran here, so there is nothing that it left.
        return Ok(());
    }
    let log = options.collect.termination_log.as_deref();
    if desk.watch().borrow().streams > 0 {
        // The kubelet may give us no more than a second.
        summary::write(log, &summary::of_outcome(&agent_may_run(options), None));
    }
    let outcome = if timeout(options.agent_wait, desk.agent_gone()).await.is_ok() {
        collect::read(&options.collect).await?
    } else {
        agent_may_run(options)
    };
    let exit = desk
        .watch()
        .borrow()
        .granted
        .as_ref()
        .and_then(|granted| granted.end.as_ref().map(|end| end.exit.clone()));
    summary::write(log, &summary::of_outcome(&outcome, exit.as_ref()));
    let limit = options.report_limit;
    timeout(limit, report(desk, exit.is_some(), &outcome))
        .await
        .unwrap_or_else(|_| {
            let message = format!(
                "the gateway did not take the outcome within {} s",
                limit.as_secs()
            );
            Err(Failure::new(Reason::GatewayLost, message))
        })
}

/// The agent's end first: without it nobody knows how it ended.
async fn report(desk: &Desk, ended: bool, outcome: &Outcome) -> Result<(), Failure> {
    if ended {
        let mut seen = desk.watch();
        let _nobody_left = seen.wait_for(|seen| seen.end_told).await;
    }
    let gateway = desk.gateway();
    retry(gateway, || gateway.post("/v1/outcome", outcome))
        .await
        .map_err(|error| error.failure(None))
}

/// What can be said of a workspace that somebody may still be changing.
fn agent_may_run(options: &Options) -> Outcome {
    Outcome {
        inputs: collect::agent_may_run(&options.collect.baseline),
        output: OutputFile::Refused {
            message: "the agent may still have been alive".to_owned(),
        },
    }
}
