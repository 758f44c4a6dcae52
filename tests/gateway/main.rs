//! The gateway at its real boundaries: a forge's ticket API behind a credential, a socket, TLS, a record on disk.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at clocks and start programs as they need"
)]
// `cfg(test)` is always so here; it tells clippy that helpers of tests may unwrap, too.
#![cfg(test)]
#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a test picks the events that it asks for"
)]

mod pod_world;
mod pods;
#[path = "../support/inputs.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests of inputs, which use all of it"
)]
mod support;
mod world;

use std::time::Duration;

use demo_forge::Trap;
use rstest::rstest;
use sandboxrun::api::wire::{Problem, TOKEN_HEADER};
use sandboxrun::api::{Decision, EgressHost, Event, Reason, Via};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use world::{GatewayWorld, TICKET_TOKEN, lookup};

#[tokio::test]
async fn a_lookup_gets_the_connectors_credential_and_the_agents_own_is_dropped() {
    let world = GatewayWorld::new(vec![lookup("echo", &["/echo/**"])], vec![]).await;
    let request = world
        .get("/lookups/echo/echo/a?q=secret-query")
        .header("authorization", "Bearer mine");
    let answer = request
        .header("cookie", "mine")
        .header("x-keep", "yes")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.unwrap();
    assert!(
        text.contains(TICKET_TOKEN),
        "the upstream sees the connector's credential: {text}"
    );
    assert!(text.contains("x-keep"));
    assert!(
        !text.contains("mine") && !text.contains(TOKEN_HEADER),
        "the agent's own goes nowhere: {text}"
    );
    let calls = world.calls_when(|calls| calls.len() == 2).await;
    let [begun, done] = calls.as_slice() else {
        panic!("not two lines: {calls:?}")
    };
    assert_eq!(begun.decision, Decision::Begun);
    assert_eq!(
        (done.decision.clone(), done.status, done.bytes),
        (Decision::Allowed, 200, text.len() as u64)
    );
    assert_eq!(done.target, "/echo/a");
    let record = serde_json::to_string(&calls).unwrap();
    assert!(
        !record.contains("secret-query") && !record.contains(TICKET_TOKEN),
        "{record}"
    );
}

#[rstest]
#[case::method(
    "POST",
    "/lookups/tickets/rest/api/2/issue/A-1",
    403,
    Reason::NoRuleAllows
)]
#[case::path(
    "GET",
    "/lookups/tickets/rest/api/2/issue/A-1/comment",
    403,
    Reason::NoRuleAllows
)]
#[case::climbing(
    "GET",
    "/lookups/tickets/rest/api/2/issue/a%2fadmin",
    400,
    Reason::NoRuleAllows
)]
#[case::no_such_lookup(
    "GET",
    "/lookups/others/rest/api/2/issue/A-1",
    403,
    Reason::NoRuleAllows
)]
#[case::no_such_input(
    "GET",
    "/git/app/info/refs?service=git-upload-pack",
    403,
    Reason::NoRuleAllows
)]
#[case::no_such_call("GET", "/v2/anything", 404, Reason::NotThroughRelay)]
#[tokio::test]
async fn g09_every_refusal_has_one_shape_and_a_line_in_the_record(
    #[case] method: &str,
    #[case] path: &str,
    #[case] status: u16,
    #[case] reason: Reason,
) {
    let world = GatewayWorld::new(vec![lookup("tickets", &["/rest/api/2/issue/*"])], vec![]).await;
    let answer = world.request(method, path).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), status);
    assert_eq!(answer.headers()["content-type"], Problem::CONTENT_TYPE);
    let problem: Problem = answer.json().await.unwrap();
    assert_eq!(
        (problem.status, problem.reason, problem.code.as_str()),
        (status, reason, reason.code().as_str())
    );
    let calls = world.calls().await;
    let [only] = calls.as_slice() else {
        panic!("not one line: {calls:?}")
    };
    assert!(
        matches!(&only.decision, Decision::Refused { reason: recorded, .. } if *recorded == reason)
    );
    assert!(world.world.forge.requests().is_empty(), "nothing left");
}

#[tokio::test]
async fn g08_a_redirect_is_not_followed_and_the_other_host_sees_nothing() {
    let trap = Trap::start().unwrap();
    let world = GatewayWorld::new(vec![lookup("all", &["/**"])], vec![]).await;
    let answer = world
        .get(&format!(
            "/lookups/all/redirect?to=http://{}/x",
            trap.addr()
        ))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 502);
    let problem: Problem = answer.json().await.unwrap();
    assert_eq!(problem.reason, Reason::UpstreamRedirect);
    assert_eq!(trap.connections(), 0);
}

#[tokio::test]
async fn limits_are_kept_and_say_which() {
    let mut limited = lookup("tickets", &["/**"]);
    limited.max_calls = Some(2);
    let world = GatewayWorld::new(vec![limited], vec![]).await;
    for want in [200, 200, 429] {
        let answer = world
            .get("/lookups/tickets/rest/api/2/issue/A-1")
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status().as_u16(), want);
        if want == 429 {
            let problem: Problem = answer.json().await.unwrap();
            assert_eq!(
                (problem.reason, problem.rule.as_str()),
                (Reason::CallLimit, "lookups[tickets].limits")
            );
        }
    }
}

#[rstest]
#[case::length_told("/rest/api/2/issue/A-1", 100, true)]
#[case::streamed("/bytes/5000000", 1_000_000, false)]
#[case::endless("/endless", 1_000_000, false)]
#[tokio::test]
async fn an_answer_over_the_byte_limit_never_looks_whole(
    #[case] path: &str,
    #[case] max: u64,
    #[case] refused: bool,
) {
    let mut limited = lookup("bytes", &["/**"]);
    limited.max_bytes = Some(max);
    let world = GatewayWorld::new(vec![limited], vec![]).await;
    match world.get(&format!("/lookups/bytes{path}")).send().await {
        Ok(answer) if refused => assert_eq!(answer.status(), 429),
        Ok(answer) => assert!(answer.bytes().await.is_err()),
        Err(error) => assert!(!refused, "{error}"),
    }
    let calls = world.calls_when(|calls| calls.len() == 2).await;
    assert_eq!(
        calls[1].decision,
        Decision::Failed {
            reason: Reason::ByteLimit
        }
    );
    assert!(calls[1].bytes <= max);
}

#[tokio::test]
async fn events_arrive_while_the_stream_is_open() {
    let world = GatewayWorld::new(vec![lookup("stream", &["/v1/stream"])], vec![]).await;
    // The second event comes after an hour: whoever waits for the whole body never sees the first.
    let mut answer = world
        .get("/lookups/stream/v1/stream?events=2&delay_ms=3600000")
        .send()
        .await
        .unwrap();
    let first = tokio::time::timeout(Duration::from_mins(1), answer.chunk())
        .await
        .unwrap()
        .unwrap();
    assert!(first.is_some_and(|bytes| !bytes.is_empty()));
}

#[tokio::test]
async fn a_token_that_belongs_to_no_run_gets_nothing() {
    let world = GatewayWorld::new(vec![lookup("tickets", &["/**"])], vec![]).await;
    for token in [None, Some("another")] {
        let mut request = world
            .client
            .get(world.url("/lookups/tickets/rest/api/2/issue/A-1"));
        if let Some(token) = token {
            request = request.header(TOKEN_HEADER, token);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 401);
        let problem: Problem = answer.json().await.unwrap();
        assert_eq!(problem.reason, Reason::IdentityUnknown);
    }
    assert!(world.world.forge.requests().is_empty());
}

#[tokio::test]
async fn no_agent_starts_before_its_workspace_and_its_policy_are_proved() {
    let world = GatewayWorld::new(vec![], vec![]).await;
    let grant = serde_json::json!({"nonce": "0123456789abcdef0123456789abcdef"});
    let answer = world
        .request("POST", "/v1/grant")
        .json(&grant)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 409);
    let started = world
        .events()
        .await
        .into_iter()
        .any(|event| matches!(event, Event::AgentStarted { .. }));
    assert!(!started);
}

#[rstest]
#[case::allowed("127.0.0.1", 0, b"GET /healthz HTTP/1.0\r\n\r\n", true)]
#[case::other_port("127.0.0.1", 1, b"", false)]
#[case::other_host("localhost", 0, b"", false)]
#[tokio::test]
async fn g10_a_tunnel_goes_to_allowed_hosts_only(
    #[case] host: &str,
    #[case] port_offset: u16,
    #[case] say: &[u8],
    #[case] allowed: bool,
) {
    let mut world = GatewayWorld::new(vec![], vec![]).await;
    let port = world.world.forge.addr().port();
    world
        .restart(
            vec![],
            vec![EgressHost {
                host: "127.0.0.1".into(),
                port,
            }],
        )
        .await;
    let mut tunnel = world.socket().await;
    let target = format!("{host}:{}", port + port_offset);
    tunnel
        .write_all(format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut head = vec![0; 4096];
    let length = tunnel.read(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head[..length]).into_owned();
    assert_eq!(head.starts_with("HTTP/1.1 200"), allowed, "{head}");
    if allowed {
        // The forge speaks TLS: what it says to plain text is an alert, and that it came is what counts.
        tunnel.write_all(say).await.unwrap();
        let mut answer = Vec::new();
        tunnel.read_to_end(&mut answer).await.unwrap();
        assert!(!answer.is_empty());
        drop(tunnel);
    }
    let calls = world
        .calls_when(|calls| calls.len() == if allowed { 2 } else { 1 })
        .await;
    assert!(
        calls
            .iter()
            .all(|call| call.via == Via::Proxy && call.target == target)
    );
}

#[tokio::test]
async fn g10_a_tls_hello_for_another_name_is_closed() {
    let mut world = GatewayWorld::new(vec![], vec![]).await;
    let port = world.world.forge.addr().port();
    world
        .restart(
            vec![],
            vec![EgressHost {
                host: "127.0.0.1".into(),
                port,
            }],
        )
        .await;
    let mut tunnel = world.socket().await;
    tunnel
        .write_all(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut head = [0; 4096];
    let length = tunnel.read(&mut head).await.unwrap();
    assert!(head[..length].starts_with(b"HTTP/1.1 200"));
    let shaken = world.tls_for("elsewhere.example.com", tunnel).await;
    assert!(
        shaken.is_err(),
        "the other server was reached under another name"
    );
    let calls = world.calls_when(|calls| calls.len() == 2).await;
    assert_eq!(
        calls[1].decision,
        Decision::Failed {
            reason: Reason::NoRuleAllows
        }
    );
}
