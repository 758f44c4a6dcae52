//! Lookups and egress: the agent asks, the gateway answers within the run's rules.

use std::fs;

use demo_forge::Options;
use serde_json::{Value, json};

use super::support::{Manifest, World, soon};

/// A shell function `ask ARGS...`: prints the status, and keeps the body.
const ASK: &str = r#"
    ask() { status=$(curl -sS --noproxy '*' --max-time 60 -o /tmp/body -w '%{http_code}' "$@") || status="$status!"
      printf '%s %s\n' "$status" "$(head -c 400 /tmp/body | tr -d '\n')"; rm -f /tmp/body; }
    tickets=$SANDBOXRUN_RELAY/lookups/tickets
"#;

fn asking(world: &World, lookup: &Value, script: &str) -> Manifest {
    world
        .script(&format!(
            "{ASK}\n{{ {script}\n}} > /sandbox/output/answers 2>&1"
        ))
        .tickets(lookup)
}

/// The status and, for a refusal, its code and reason.
#[track_caller]
fn assert_answers(answers: &str, want: &[(&str, &str)]) {
    assert_eq!(answers.lines().count(), want.len(), "{answers}");
    for (line, (status, part)) in answers.lines().zip(want) {
        assert!(
            line.starts_with(status) && line.contains(part),
            "{line}\nis not {status} {part}\n{answers}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_answers_within_its_rules() {
    let world = World::new().await;
    let lookup = json!({"methods": ["GET", "POST"], "paths": ["/rest/api/2/issue/*", "/rest/api/2/issue/*/comment"]});
    let script = r#"
        ask $tickets/rest/api/2/issue/DEMO-1
        ask $tickets/rest/api/2/issue/DEMO-1/comment -H 'content-type: application/json' -d '{"body": "seen"}'
        ask $tickets/rest/api/2/issue/DEMO-1
        ask $tickets/rest/api/2/issue/nothing
        ask -X DELETE $tickets/rest/api/2/issue/DEMO-1
        ask $tickets/rest/api/2/search
        ask --path-as-is $tickets/rest/api/2/issue/../../../../healthz
        ask --path-as-is $tickets/rest/api/2/issue/%2e%2e%2fsearch
        ask $SANDBOXRUN_RELAY/lookups/others/x
        ask -H 'authorization: Bearer mine' -H 'x-http-method-override: DELETE' $tickets/rest/api/2/issue/DEMO-2
    "#;
    let done = world.run(&asking(&world, &lookup, script)).ended_with(0);
    assert_answers(
        &done.output("answers"),
        &[
            ("200", "\"key\":\"DEMO-1\""),
            ("201", "seen"),
            ("200", "\"body\":\"seen\""),
            ("404", "does not exist"),
            ("403", "lookups[tickets].methods"),
            ("403", "lookups[tickets].paths"),
            ("40", "broker.denied"),
            ("40", "broker.denied"),
            ("403", "broker.denied"),
            ("200", "DEMO-2"),
        ],
    );
    // Each is one decided line in the record.
    let decided = world.events();
    let decided: Vec<&str> = decided
        .iter()
        .filter(|event| event["event"]["kind"] == "call")
        .filter_map(|event| event["event"]["decision"]["is"].as_str())
        .collect();
    let count = |is| decided.iter().filter(|found| **found == is).count();
    assert_eq!(count("allowed"), 5, "{decided:?}");
    assert!(count("refused") >= 4, "{decided:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookups_limits_hold() {
    let world = World::new().await;
    let calls = json!({"paths": ["/**"], "limits": {"calls": 2}});
    let script = "ask $tickets/rest/api/2/issue/A-1; ask $tickets/rest/api/2/issue/A-2; ask $tickets/rest/api/2/issue/A-3";
    let done = world.run(&asking(&world, &calls, script)).ended_with(0);
    assert_answers(
        &done.output("answers"),
        &[("200", ""), ("200", ""), ("429", "broker.limit_reached")],
    );
    let world = World::new().await;
    let bytes = json!({"paths": ["/**"], "limits": {"bytes": "100Ki"}});
    let script = "{ ask $tickets/bytes/1000; ask $tickets/bytes/1000000; ask $tickets/bytes/10; } 2>/dev/null";
    let done = world.run(&asking(&world, &bytes, script)).ended_with(0);
    assert_answers(
        &done.output("answers"),
        &[("200", ""), ("200!", ""), ("429", "broker.limit_reached")],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn g08_a_redirect_is_refused_and_not_followed() {
    let world = World::new().await;
    let trap = demo_forge::Trap::start().unwrap();
    let to = format!("\"$tickets/redirect?to=http://{}/\"", trap.addr());
    let script = format!("ask {to}; ask -L {to}");
    let done = world
        .run(&asking(&world, &json!({"paths": ["/**"]}), &script))
        .ended_with(0);
    let refused = ("502", "broker.upstream_refused");
    assert_answers(&done.output("answers"), &[refused, refused]);
    assert_eq!(trap.connections(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_credential_of_a_lookup_is_ours_to_know() {
    let world = World::new().await;
    let manifest = asking(
        &world,
        &json!({"paths": ["/**"]}),
        "ask $tickets/rest/api/2/issue/A-1",
    );
    let mut command = world.command(&manifest);
    command.env("TEST_TICKET_TOKEN", "canary-wrong");
    let done = world.finish(&mut command).ended_with(0);
    assert_answers(
        &done.output("answers"),
        &[("502", "broker.upstream_refused")],
    );
    assert!(!done.output("answers").contains("canary"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_arrives_while_it_is_sent() {
    let world = World::new().await;
    // It would last for an hour.
    let script = r#"
        curl -sSN --noproxy '*' "$tickets/v1/stream?events=72000&delay_ms=50" > /sandbox/output/events & pid=$!
        until [ -e /sandbox/output/go ]; do sleep 0.05; done; kill $pid; wait $pid; true
    "#;
    let running =
        world.start(&mut world.command(&asking(&world, &json!({"paths": ["/v1/**"]}), script)));
    let events = running.written("events");
    soon("the third event", || {
        fs::read_to_string(&events)
            .unwrap()
            .contains("\"index\":2")
            .then_some(())
    });
    fs::write(events.with_file_name("go"), "").unwrap();
    running.wait().ended_with(0);
    // The call that the agent broke off has its last line, too.
    let calls: Vec<Value> = world
        .events()
        .into_iter()
        .filter(|event| event["event"]["kind"] == "call")
        .collect();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(calls[1]["event"]["bytes"].as_u64().unwrap() > 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_go_both_ways() {
    let world = World::new().await;
    let lookup = json!({"methods": ["GET", "POST"], "paths": ["/bytes/*", "/echo"]});
    let script = r#"
        curl -sS --noproxy '*' $tickets/bytes/40000000 | wc -c
        head -c 20000000 /dev/zero | curl -sS --noproxy '*' -H 'expect:' --data-binary @- $tickets/echo | tr ',' '\n' | grep -o 'body_bytes":[0-9]*'
        head -c 20000000 /dev/zero | curl -sS --noproxy '*' -T - -X POST $tickets/echo | tr ',' '\n' | grep -o 'body_bytes":[0-9]*'
    "#;
    let done = world.run(&asking(&world, &lookup, script)).ended_with(0);
    let both = "body_bytes\":20000000\n".repeat(2);
    assert_eq!(done.output("answers"), format!("40000000\n{both}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_leads_to_the_allowed_host_and_nowhere_else() {
    let world = World::with(Options::new().host("other.test")).await;
    let port = world.forge.addr().port();
    let script = r#"
        get() { curl -sS --noproxy '' -x "$HTTPS_PROXY" --cacert /sandbox/context/ca.pem --max-time 20 "$@" >/tmp/out 2>/tmp/err
          echo "$? $(cat /tmp/out) $(tail -1 /tmp/err)"; }
        get https://localhost:$PORT/healthz
        get https://localhost:$OTHER/healthz
        get https://127.0.0.1:$PORT/healthz
        get https://example.com/
        get --connect-to other.test:443:localhost:$PORT https://other.test/healthz
        get --connect-to other.test:443:localhost:$PORT -k https://other.test/healthz
    "#;
    let manifest = world
        .script(&format!("{{ {script}\n}} > /sandbox/output/answers"))
        .set("/egress", json!({"allow": [{"host": "localhost", "port": port}]}))
        .set("/agent/context", json!([{"path": "ca.pem", "content": world.forge.ca_pem()}]))
        .set("/agent/env", json!([
            {"name": "PORT", "value": port.to_string()}, {"name": "OTHER", "value": (port ^ 1).to_string()},
        ]));
    let mut command = world.command(&manifest);
    command.args(["--allow-address", &format!("localhost=127.0.0.1/32:{port}")]);
    let done = world.finish(&mut command).ended_with(0);
    let answers = done.output("answers");
    let lines: Vec<&str> = answers.lines().collect();
    assert_eq!(lines.len(), 6, "{answers}");
    assert!(lines[0].starts_with("0 ok"), "{answers}");
    for refused in &lines[1..4] {
        assert!(refused.contains("403"), "{answers}");
    }
    // Another name in the client hello: the tunnel is closed.
    for closed in &lines[4..] {
        assert!(
            !closed.starts_with('0') && !closed.contains("ok "),
            "{answers}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_exception_closed_addresses_stay_closed() {
    let world = World::new().await;
    let port = world.forge.addr().port();
    let script = r#"
        curl -sS --noproxy '' -x "$HTTPS_PROXY" -k https://localhost:$PORT/healthz > /sandbox/output/answer 2>&1; true
    "#;
    let manifest = world
        .script(script)
        .set(
            "/egress",
            json!({"allow": [{"host": "localhost", "port": port}]}),
        )
        .set(
            "/agent/env",
            json!([{"name": "PORT", "value": port.to_string()}]),
        );
    let done = world.run(&manifest).ended_with(0);
    assert!(
        done.output("answer").contains("403"),
        "{}",
        done.output("answer")
    );
    let calls = world.events();
    let refused = calls
        .iter()
        .any(|event| event["event"]["decision"]["reason"] == "DestinationRefused");
    assert!(refused);
}
