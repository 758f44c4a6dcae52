//! The ticket API and its neighbours, seen with a plain HTTP client.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use std::time::Duration;

use demo_forge::{Forge, Options};
use serde_json::{Value, json};

async fn room(options: Options) -> (Forge, reqwest::Client) {
    let forge = Forge::start(options).await.unwrap();
    let ca = reqwest::Certificate::from_pem(forge.ca_pem().as_bytes()).unwrap();
    let http = reqwest::Client::builder()
        .tls_certs_only([ca])
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    (forge, http)
}

#[tokio::test]
async fn tickets_need_the_token_and_keep_comments() {
    let (forge, http) = room(Options::new().ticket_token("t0k3n")).await;
    let issue = format!("{}/rest/api/2/issue/APP-7", forge.origin());
    assert_eq!(http.get(&issue).send().await.unwrap().status(), 401);
    assert_eq!(
        http.get(&issue)
            .bearer_auth("wrong")
            .send()
            .await
            .unwrap()
            .status(),
        401
    );
    let body = json!({"body": "on it"});
    let comment = format!("{issue}/comment");
    let made = http
        .post(&comment)
        .bearer_auth("t0k3n")
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(made.status(), 201);
    let ticket: Value = http
        .get(&issue)
        .bearer_auth("t0k3n")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(ticket["key"], "APP-7");
    assert_eq!(ticket["fields"]["comment"]["comments"][0]["body"], "on it");
    let none = format!("{}/rest/api/2/issue/none", forge.origin());
    assert_eq!(
        http.get(&none)
            .bearer_auth("t0k3n")
            .send()
            .await
            .unwrap()
            .status(),
        404
    );
    let health = format!("{}/healthz", forge.origin());
    assert_eq!(http.get(&health).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_header_of_its_own_and_an_echo_of_everything() {
    let (forge, http) = room(Options::new().ticket_token("k").ticket_header("x-api-key")).await;
    let url = format!("{}/echo/a%2Fb?x=1&y=%20", forge.origin());
    assert_eq!(
        http.get(&url)
            .bearer_auth("k")
            .send()
            .await
            .unwrap()
            .status(),
        401
    );
    let sent = http
        .put(&url)
        .header("x-api-key", "k")
        .body(vec![7; 100_000]);
    let echo: Value = sent.send().await.unwrap().json().await.unwrap();
    assert_eq!(echo["method"], "PUT");
    assert_eq!(echo["path"], "/echo/a%2Fb");
    assert_eq!(echo["query"], "x=1&y=%20");
    assert_eq!(echo["body_bytes"], 100_000);
    assert!(
        echo["headers"]
            .as_array()
            .unwrap()
            .contains(&json!(["x-api-key", "k"]))
    );
    let seen = forge.requests().pop().unwrap();
    assert!(
        seen.headers
            .contains(&("x-api-key".to_owned(), b"k".to_vec()))
    );
}

#[tokio::test]
async fn events_come_one_by_one() {
    let (forge, http) = room(Options::new()).await;
    // With an hour between two events, the first can only be here because it was not held back.
    let url = format!("{}/v1/stream?events=2&delay_ms=3600000", forge.origin());
    let mut stream = http.post(&url).send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let first = stream.chunk().await.unwrap().unwrap();
    assert_eq!(first, "event: token\ndata: {\"index\":0}\n\n");
    let url = format!("{}/v1/stream?events=3&delay_ms=1", forge.origin());
    let all = http.get(&url).send().await.unwrap().text().await.unwrap();
    assert_eq!(all.matches("data: ").count(), 3);
}

#[tokio::test]
async fn redirects_sizes_delays_and_statuses() {
    let (forge, http) = room(Options::new()).await;
    let get = |path: &str| http.get(format!("{}{path}", forge.origin())).send();
    let moved = get("/redirect?to=https%3A%2F%2Felsewhere.invalid%2Fx")
        .await
        .unwrap();
    assert_eq!(moved.status(), 302);
    assert_eq!(moved.headers()["location"], "https://elsewhere.invalid/x");
    let large = get("/bytes/3000001").await.unwrap().bytes().await.unwrap();
    assert_eq!(large.len(), 3_000_001);
    assert_eq!(get("/status/418").await.unwrap().status(), 418);
    assert_eq!(
        get("/slow?ms=1").await.unwrap().text().await.unwrap(),
        "at last\n"
    );
    let slow = format!("{}/slow?ms=3600000", forge.origin());
    let late = http
        .get(slow)
        .timeout(Duration::from_millis(50))
        .send()
        .await;
    assert!(late.unwrap_err().is_timeout());
    let mut endless = get("/endless").await.unwrap();
    for _ in 0..100 {
        assert!(endless.chunk().await.unwrap().is_some());
    }
}
