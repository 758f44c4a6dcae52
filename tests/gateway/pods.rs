//! A pod's programs against a real gateway over TLS: what holds when everything goes well, and when each of them, the
//! gateway or the policy does not.

use std::time::Duration;

use futures::StreamExt as _;

use rstest::rstest;
use sandboxrun::api::wire::{
    AgentExit, Drift, NodeCanary, OutputFile, ProvisionReport, UnknownReason,
};
use sandboxrun::api::{Decision, Event, Reason};
use sandboxrun::gateway::Identified;

use crate::pod_world::{FIRST_TOKEN, PodWorld, canaries, texts, until, words};

/// No proof again while the test lasts.
const NEVER: u64 = 3_600_000;

async fn ready() -> PodWorld {
    let world = PodWorld::new(&canaries(true, None)).await;
    world.provision().await;
    world
}

fn kinds(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::kind).collect()
}

#[tokio::test]
async fn d07_a_whole_pod_over_tls_and_only_the_broker_says_how_it_ended() {
    let world = ready().await;
    let broker = world.broker(NEVER).await;
    // The agent makes a lookup, changes a file, leaves a result, and lies about how it ended.
    let script = format!(
        "curl -sf http://127.0.0.1:{}/lookups/tickets/rest/api/2/issue/A-1 > ticket.json || exit 9; \
         echo more >> a.txt; echo '{{\"ok\":true}}' > '{}'; \
         echo '{{\"inputs\":[],\"output\":\"absent\"}}'; env >&2; exit 3",
        world.relay_port,
        world.at("sandbox/output/output.json").display(),
    );
    let output = world.exec(&script).ended().await;
    assert_eq!(output.status.code(), Some(3), "{}", words(&output));
    assert!(
        !words(&output).contains("canary-"),
        "no token in its environment"
    );
    broker.term();
    assert_eq!(broker.ended().await, Some(0));
    let events = world.events().await;
    assert_eq!(
        kinds(&events),
        [
            "run.created",
            "attempt.dispatched",
            "inputs.provisioned",
            "policy.proof",
            "agent.started",
            "call",
            "call",
            "agent.ended",
            "drift",
            "output",
        ],
        "{events:#?}"
    );
    let summary = world.message().unwrap();
    assert_eq!(summary.exit, Some(AgentExit::Exited { code: 3 }));
    assert_eq!(summary.output, "12 bytes");
    let outcome = world.live.watch().borrow().outcome.clone().unwrap();
    assert_eq!(summary.outcomes(), outcome.inputs);
    let Drift::Drifted(facts) = &outcome.inputs[0].drift else {
        panic!("{outcome:?}")
    };
    assert_eq!((facts.modified, facts.added), (1, 1));
    assert!(matches!(&outcome.output, OutputFile::Text { text } if text.contains("ok")));
    for volume in ["workspace", "sandbox", "baseline"] {
        let all = texts(&world.at(volume));
        assert!(!all.contains(FIRST_TOKEN), "the token lies in {volume}");
    }
    let record = serde_json::to_string(&events).unwrap();
    assert!(!record.contains(FIRST_TOKEN));
}

#[tokio::test]
async fn g14_a_canary_that_answers_means_that_no_agent_ever_starts() {
    // TCP and UDP of this machine, which a process without a sandbox can reach.
    let world = PodWorld::new(&canaries(false, None)).await;
    let mut command = world.provision_command();
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = output.await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(words(&output).contains("sandbox.policy_not_enforced (CanaryOpen)"));
    let message = std::fs::read_to_string(world.at("provision.message")).unwrap();
    let report: ProvisionReport = serde_json::from_str(&message).unwrap();
    let ProvisionReport::Failed { failure } = report else {
        panic!("{message}")
    };
    assert_eq!(failure.reason, Reason::CanaryOpen);
    let proofs: Vec<Event> = world.events().await;
    let open: Vec<String> = proofs
        .iter()
        .filter_map(|event| match event {
            Event::PolicyProof {
                enforced: false,
                open,
                ..
            } => Some(open.iter().map(|c| c.name.clone()).collect::<Vec<_>>()),
            _ => None,
        })
        .flatten()
        .collect();
    // One proof is recorded, and it names both. (Some machines reach a cloud's metadata, too.)
    for protocol in ["(tcp)", "(udp)"] {
        let named = open.iter().filter(|name| name.ends_with(protocol)).count();
        assert_eq!(named, 1, "{proofs:?}");
    }
    let exec_gets_nothing = world.broker(NEVER).await;
    let exec = world.exec("echo started").ended().await;
    assert_eq!((exec.status.code(), exec.stdout.len()), (Some(125), 0));
    drop(exec_gets_nothing);
}

#[rstest]
#[case::warn(true)]
#[case::deny(false)]
#[tokio::test]
async fn g13_the_own_node_that_answers_is_a_fact_or_a_refusal(#[case] tolerated: bool) {
    // Only the node is at stake: everything else is accepted.
    let node = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = node.local_addr().unwrap().port();
    let node = Some(NodeCanary { port, tolerated });
    let mut what = canaries(true, None);
    what.accepted = tolerated;
    what.node = node;
    let world = PodWorld::new(&what).await;
    let mut command = world.provision_command();
    command.env("SANDBOXRUN_NODE_ADDRESSES", "127.0.0.1, ::ffff:192.0.2.1");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = output.await.unwrap();
    assert_eq!(output.status.success(), tolerated, "{}", words(&output));
    let names_the_node = world
        .has(|event| match event {
            Event::PolicyProof { open, enforced, .. } => {
                *enforced == tolerated && open.iter().any(|c| c.name.contains("own node 127.0.0.1"))
            }
            _ => false,
        })
        .await;
    assert!(names_the_node, "{:?}", world.events().await);
}

#[tokio::test]
async fn p08_a_broker_whose_agent_never_ran_ends_at_once_and_says_nothing() {
    let world = ready().await;
    let broker = world.broker(NEVER).await;
    broker.term();
    assert_eq!(broker.ended().await, Some(0));
    assert!(world.message().is_none());
    assert!(!world.has(|e| matches!(e, Event::Drift { .. })).await);
}

#[tokio::test]
async fn p10_a_second_start_is_refused_also_after_the_first_has_ended() {
    let world = ready().await;
    let broker = world.broker(NEVER).await;
    let first = world.waiting().await;
    let second = world.exec("echo second").ended().await;
    assert_eq!((second.status.code(), second.stdout.len()), (Some(125), 0));
    assert!(words(&second).contains("GrantLost"));
    world.live.stop(Reason::CancelRequested);
    first.ended().await;
    // Also where the broker has been restarted, and even has lost its notes.
    let mut broker = broker;
    broker.kill();
    std::fs::remove_file(world.at("baseline/broker.json")).unwrap();
    let _broker = world.broker(NEVER).await;
    let third = world.exec("echo third").ended().await;
    assert_eq!((third.status.code(), third.stdout.len()), (Some(125), 0));
    assert_eq!(world.starts(), 1);
}

#[tokio::test]
async fn g11_the_token_is_read_anew_for_each_call() {
    let world = ready().await;
    let _broker = world.broker(NEVER).await;
    let get = || async {
        let port = world.relay_port;
        let url = format!("http://127.0.0.1:{port}/lookups/tickets/rest/api/2/issue/A-1");
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        client.get(url).send().await.unwrap().status().as_u16()
    };
    assert_eq!(get().await, 200);
    let who = Identified::Run(std::sync::Arc::clone(&world.live));
    world.door.open_for("canary-pod-second-77", who);
    // The agent is not told that it is unknown, but that it may try again.
    assert_eq!(get().await, 503);
    // As the kubelet does it: another file in the same place.
    std::fs::write(world.at("token.new"), "canary-pod-second-77\n").unwrap();
    std::fs::rename(world.at("token.new"), world.at("token")).unwrap();
    assert_eq!(get().await, 200);
}

#[tokio::test]
async fn g12_a_policy_that_is_lost_while_the_agent_lives_ends_it() {
    let mut world = ready().await;
    let broker = world.broker(200).await;
    let exec = world.waiting().await;
    until("a proof was repeated", async || {
        let seen = world.live.watch();
        let seen = seen.borrow();
        seen.proved_at > seen.granted_at
    })
    .await;
    let proofs = |events: Vec<Event>| {
        kinds(&events)
            .iter()
            .filter(|k| **k == "policy.proof")
            .count()
    };
    assert_eq!(
        proofs(world.events().await),
        1,
        "what is as before has no line"
    );
    // The same addresses, which from now on nobody accepts: as if the policy had been opened.
    world.stop_gateway().await;
    world.serve(&canaries(false, None)).await;
    let output = exec.ended().await;
    assert_ne!(output.status.code(), Some(0));
    assert_eq!(world.stopping().await, [Reason::PolicyLost]);
    broker.term();
    assert_eq!(broker.ended().await, Some(0));
    let reason = Reason::PolicyLost;
    assert_eq!(
        world.message().unwrap().exit,
        Some(AgentExit::Stopped { reason })
    );
    assert!(
        world
            .has(|e| matches!(
                e,
                Event::PolicyProof {
                    enforced: false,
                    ..
                }
            ))
            .await
    );
}

#[tokio::test]
async fn a_gateway_that_restarts_ends_no_agent_and_can_still_stop_it() {
    let mut world = ready().await;
    let broker = world.broker(NEVER).await;
    let exec = world.waiting().await;
    world.stop_gateway().await;
    // For a while it does not know whose pods there are, and then it does again.
    world.door.open_for(FIRST_TOKEN, Identified::Nobody);
    world.serve(&canaries(true, None)).await;
    tokio::time::timeout(Duration::from_secs(3), std::future::pending::<()>())
        .await
        .unwrap_err();
    world.resume().await;
    let mut seen = world.live.watch();
    let again = seen.wait_for(|seen| seen.grant_streams == 1);
    tokio::time::timeout(Duration::from_mins(1), again)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(world.starts(), 1);
    world.live.stop(Reason::CancelRequested);
    let output = exec.ended().await;
    assert_eq!(output.status.code(), Some(143));
    broker.term();
    assert_eq!(broker.ended().await, Some(0));
    let reason = Reason::CancelRequested;
    let stopped = AgentExit::Stopped { reason };
    let exit = Some(stopped.clone());
    assert!(
        world
            .has(|e| matches!(e, Event::AgentEnded { exit: of, .. } if *of == exit))
            .await
    );
    assert_eq!(world.message().unwrap().exit, Some(stopped));
}

#[tokio::test]
async fn d06_an_end_that_the_gateway_did_not_hear_is_told_later_and_the_rest_is_read() {
    let mut world = ready().await;
    let broker = world.broker(NEVER).await;
    let exec = world.waiting().await;
    // The agent is ended from outside while the gateway is away.
    world.stop_gateway().await;
    drop(exec);
    broker.term();
    until("the message is there", async || {
        world.at("broker.message").exists() && world.message().is_some_and(|m| m.exit.is_some())
    })
    .await;
    world.serve(&canaries(true, None)).await;
    assert_eq!(broker.ended().await, Some(0));
    let events = world.events().await;
    assert_eq!(
        kinds(&events)[kinds(&events).len() - 3..],
        ["agent.ended", "drift", "output"]
    );
    assert!(matches!(
        world.message().unwrap().outcomes()[0].drift,
        Drift::Drifted(_)
    ));
}

#[tokio::test]
async fn d06_an_outcome_outlives_a_gateway_that_stays_away() {
    let mut world = ready().await;
    let broker = world.broker(NEVER).await;
    let output = world.exec("echo more >> a.txt").ended().await;
    assert_eq!(output.status.code(), Some(0));
    until("the end is told", async || {
        world.has(|e| matches!(e, Event::AgentEnded { .. })).await
    })
    .await;
    world.stop_gateway().await;
    broker.term();
    assert_eq!(broker.ended().await, Some(1), "nobody took the outcome");
    let summary = world.message().unwrap();
    assert!(matches!(summary.outcomes()[0].drift, Drift::Drifted(_)));
    assert_eq!(summary.exit, Some(AgentExit::Exited { code: 0 }));
}

#[tokio::test]
async fn p12_a_broker_that_must_go_while_the_agent_lives_says_that_nothing_is_known() {
    let world = ready().await;
    let broker = world.broker(NEVER).await;
    let exec = world.waiting().await;
    broker.term();
    // Said at once: an eviction gives it a second.
    until("the message is there", async || {
        world.at("broker.message").exists() && world.message().is_some()
    })
    .await;
    let may_run = |drift: &Drift| matches!(drift, Drift::Unknown { reason, .. } if *reason == UnknownReason::AgentMayRun);
    assert!(may_run(&world.message().unwrap().outcomes()[0].drift));
    assert_eq!(broker.ended().await, Some(0));
    let told = world.has(|e| matches!(e, Event::Drift { outcome, .. } if may_run(&outcome.drift)));
    assert!(told.await);
    drop(exec);
}

#[tokio::test]
async fn a_broker_that_restarts_finds_its_exec_again() {
    let world = ready().await;
    let mut broker = world.broker(NEVER).await;
    let exec = world.waiting().await;
    broker.kill();
    let broker = world.broker(NEVER).await;
    let mut seen = world.live.watch();
    let again = seen.wait_for(|seen| seen.grant_streams == 1);
    tokio::time::timeout(Duration::from_mins(1), again)
        .await
        .unwrap()
        .unwrap();
    world.live.stop(Reason::CancelRequested);
    assert_eq!(exec.ended().await.status.code(), Some(143));
    broker.term();
    assert_eq!(broker.ended().await, Some(0));
    assert_eq!(world.starts(), 1);
    assert!(matches!(
        world.message().unwrap().outcomes()[0].drift,
        Drift::Drifted(_)
    ));
}

#[tokio::test]
async fn an_exec_that_loses_its_broker_for_good_ends_the_agent() {
    let world = ready().await;
    let mut broker = world.broker(NEVER).await;
    let exec = world.waiting().await;
    broker.kill();
    let output = exec.ended().await;
    assert_eq!(output.status.code(), Some(143), "{}", words(&output));
    // A broker that comes back reads what is there, though it never met the exec.
    let broker = world.broker(NEVER).await;
    broker.term();
    assert_eq!(broker.ended().await, Some(0));
    assert!(world.has(|e| matches!(e, Event::Drift { .. })).await);
}

#[tokio::test]
async fn d06_a_timeout_is_kept_without_the_gateway_and_what_is_left_is_read() {
    let mut world = PodWorld::with(&canaries(true, None), |spec| {
        spec.agent.timeout = Duration::from_secs(2);
    })
    .await;
    world.provision().await;
    let broker = world.broker(NEVER).await;
    let exec = world.waiting().await;
    world.stop_gateway().await;
    exec.ended().await;
    world.serve(&canaries(true, None)).await;
    broker.term();
    assert_eq!(broker.ended().await, Some(0));
    let reason = Reason::TimeoutReached;
    let exit = Some(AgentExit::Stopped { reason });
    assert!(
        world
            .has(|e| matches!(e, Event::AgentEnded { exit: of, .. } if *of == exit))
            .await
    );
    assert!(world.has(|e| matches!(e, Event::Drift { .. })).await);
}

#[tokio::test]
async fn lookups_one_after_the_other_share_a_connection() {
    let world = ready().await;
    let broker = world.broker(NEVER).await;
    let port = world.relay_port;
    let url = format!("http://127.0.0.1:{port}/lookups/tickets/rest/api/2/issue/A-1");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for _ in 0..20 {
        assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
    }
    let sockets = std::fs::read_to_string(format!("/proc/{}/net/tcp", broker.pid())).unwrap();
    let gateway = format!("0100007F:{:04X}", world.port);
    // All that the broker has opened to the gateway and that still is, or was closed a moment ago.
    let opened = sockets
        .lines()
        .filter(|line| line.split_whitespace().nth(2) == Some(gateway.as_str()))
        .count();
    assert!(
        (1..=3).contains(&opened),
        "{opened} connections for 20 lookups"
    );
}

#[tokio::test]
async fn a_peer_without_a_token_does_not_keep_others_out() {
    let world = ready().await;
    let _broker = world.broker(NEVER).await;
    // As an agent that dials the gateway's port itself: from another address, it holds whatever it gets.
    let mut held = Vec::new();
    for _ in 0..200 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.9:0".parse().unwrap()).unwrap();
        let at = format!("127.0.0.1:{}", world.port).parse().unwrap();
        held.push(socket.connect(at).await);
    }
    let port = world.relay_port;
    let url = format!("http://127.0.0.1:{port}/lookups/tickets/rest/api/2/issue/A-1");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
    // Most of what the peer tried was closed again.
    let closed = async {
        let mut closed = 0;
        for stream in held.into_iter().flatten() {
            let mut byte = [0];
            let read = tokio::time::timeout(Duration::from_millis(20), async {
                use tokio::io::AsyncReadExt as _;
                let mut stream = stream;
                stream.read(&mut byte).await
            });
            closed += usize::from(read.await.is_ok());
        }
        closed
    };
    assert!(closed.await >= 100);
    let unknown = world
        .stranger()
        .get(format!("https://127.0.0.1:{}/v1/plan", world.port));
    let unknown = unknown.send().await.unwrap();
    assert_eq!(unknown.status(), 401);
    assert_eq!(unknown.headers()["connection"], "close");
}

#[tokio::test]
async fn an_agent_that_asks_in_vain_for_ever_does_not_fill_the_record() {
    let world = ready().await;
    let port = world.relay_port;
    let broker = world.broker(NEVER).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{port}/lookups/others/x");
    // As many as have a line, and some more; many at once.
    let asked = futures::stream::iter(0..10_050).map(|_| {
        let (client, url) = (client.clone(), url.clone());
        async move { client.get(url).send().await.unwrap().status().as_u16() }
    });
    let statuses: Vec<u16> = asked.buffer_unordered(64).collect().await;
    assert!(statuses.iter().all(|status| *status == 403));
    let events = world.events().await;
    let refusals: Vec<Reason> = events
        .iter()
        .filter_map(|event| match event {
            Event::Call(call) => match &call.decision {
                Decision::Refused { reason, .. } => Some(*reason),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert_eq!(refusals.len(), 10_000);
    let said = refusals.iter().filter(|r| **r == Reason::RefusalLimit);
    assert_eq!(said.count(), 1);
    drop(broker);
}
