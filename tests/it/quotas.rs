//! Quotas, each at its limit: the refusal, what it says, and that it comes before anything was done.

use std::time::Duration;

use rialto::app::AppSettings;
use rialto::policy::Tokens;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{HttpResponse, Rialto, TEST_TIMEOUT, call, initialize, notification, request, survey, until};

/// Use and refusals of a quota, as the metrics have them.
fn figures(rialto: &Rialto, quota: &str) -> (i64, i64) {
    let metrics = rialto.inbound.admin.metrics();
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name}{{quota=\"{quota}\"}} ")));
        line.unwrap_or_else(|| panic!("{name} of {quota} is not in\n{metrics}")).parse().unwrap()
    };
    (value("rialto_quota_used"), value("rialto_quota_refusals_total"))
}

/// Checks status, `Retry-After` and error of a refusal.
async fn assert_refused(response: HttpResponse, status: u16, whose: &str, what: &str) {
    assert_eq!((response.status, response.header("retry-after")), (status, Some("1")));
    assert_refusal(&response.json().await, whose, what);
}

fn assert_refusal(answer: &Value, whose: &str, what: &str) {
    let error = &answer["error"];
    let sentence = format!("{whose} has as many {what} as it may have; the call was not carried out; try again in 1 s");
    assert_eq!(error["message"], sentence, "{answer}");
    assert_eq!((&error["data"]["failure"], &error["data"]["retryAfterMs"]), (&json!("quota_reached"), &json!(1000)));
}

async fn with_two_callers(change: impl FnOnce(&mut AppSettings)) -> Rialto {
    let tokens = ["ann=1".to_owned(), "bob=2".to_owned()];
    Rialto::with(|settings| {
        settings.policy.tokens = Tokens::parse(&tokens).unwrap();
        change(settings);
    })
    .await
}

/// Everything that the gateway sends before it closes the connection.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    tokio::time::timeout(TEST_TIMEOUT, stream.read_to_string(&mut text)).await.expect("closed in time").unwrap();
    text
}

async fn excess_connection_is_told_and_closed(quota: &str, status: &str, change: impl FnOnce(&mut AppSettings)) {
    let rialto = Rialto::with(change).await;
    let mut held = Vec::new();
    for n in 1..=2 {
        held.push(TcpStream::connect(rialto.address).await.unwrap());
        until("the connection is accepted", || figures(&rialto, quota).0 == n).await;
    }
    let mut excess = TcpStream::connect(rialto.address).await.unwrap();
    excess.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let answer = read_to_end(&mut excess).await;
    assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    assert!(answer.contains("\r\nretry-after: 1\r\n") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    assert!(answer.contains("has as many connections as it may have"), "{answer}");
    assert_eq!(figures(&rialto, quota), (2, 1));
    // Those that are open are served, and one that closes makes room.
    let mut one = held.pop().unwrap();
    one.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    assert!(read_to_end(&mut one).await.ends_with("alive\n"));
    drop(one);
    until("the connection has closed", || figures(&rialto, quota).0 == 1).await;
    assert_eq!(rialto.send("GET", "/healthz").status().await, 200);
}

#[tokio::test]
async fn connections_are_bounded_in_all() {
    excess_connection_is_told_and_closed("connections", "503", |settings| settings.quotas.connections = 2).await;
}

#[tokio::test]
async fn connections_are_bounded_per_address() {
    let change = |settings: &mut AppSettings| settings.quotas.connections_per_address = 2;
    excess_connection_is_told_and_closed("connections_per_address", "429", change).await;
}

#[tokio::test]
async fn sessions_are_bounded_in_all() {
    let rialto = Rialto::with(|settings| settings.quotas.sessions = 1).await;
    let session = rialto.open("2025-11-25").await;
    let refused = rialto.post("/mcp", &initialize("2025-11-25")).go().await;
    assert_refused(refused, 503, "The gateway", "sessions").await;
    assert_eq!(figures(&rialto, "sessions"), (1, 1));
    assert_eq!(session.delete().status().await, 200);
    rialto.open("2025-11-25").await;
}

#[tokio::test]
async fn sessions_are_bounded_per_principal() {
    let rialto = with_two_callers(|settings| settings.quotas.sessions_per_caller = 1).await;
    let open = |token: &str| {
        rialto.post("/mcp", &initialize("2025-11-25")).header("authorization", &format!("Bearer {token}"))
    };
    assert_eq!(open("1").status().await, 200);
    assert_refused(open("1").go().await, 429, "The caller", "sessions").await;
    let sse = rialto.send("GET", "/sse").header("accept", "*/*").header("authorization", "Bearer 1");
    assert_eq!(sse.status().await, 429);
    assert_eq!(open("2").status().await, 200, "another caller has a quota of its own");
    assert_eq!(figures(&rialto, "sessions_per_caller"), (1, 2));
}

#[tokio::test]
async fn sessions_are_bounded_per_address_where_nobody_is_known() {
    let rialto = Rialto::with(|settings| settings.quotas.sessions_per_caller = 1).await;
    let session = rialto.open("2025-11-25").await;
    let refused = rialto.post("/mcp", &initialize("2025-11-25")).go().await;
    assert_refused(refused, 429, "The caller", "sessions").await;
    assert_eq!(session.delete().status().await, 200);
    rialto.open("2025-11-25").await;
}

#[tokio::test]
async fn calls_in_flight_are_bounded_in_all() {
    let rialto = Rialto::with(|settings| {
        settings.quotas.calls = 1;
        settings.inbound.sse_after = Duration::ZERO;
    })
    .await;
    let (one, other) = (rialto.open("2025-11-25").await, rialto.open("2025-03-26").await);
    let running = one.post(&survey("long", 118, 1000)).go().await;
    assert!(running.is_events());
    assert_refused(other.post(&survey(2, 1, 0)).go().await, 503, "The gateway", "calls in flight").await;
    let modern = rialto.modern("tools/call", json!({ "name": "getElement", "arguments": { "name": "H" } }));
    assert_refused(modern.go().await, 503, "The gateway", "calls in flight").await;
    // In a batch each request has an answer of its own.
    let batch = json!([call(3, "getElement", json!({ "name": "H" })), call(4, "getElement", json!({ "name": "H" }))]);
    let (status, answers) = other.post(&batch).json().await;
    assert_eq!(status, 200);
    for answer in answers.as_array().unwrap() {
        assert_refusal(answer, "The gateway", "calls in flight");
    }
    // What is answered here takes nothing.
    assert_eq!(other.post(&request(5, "ping", json!({}))).status().await, 200);
    assert_eq!(other.post(&request(6, "tools/list", json!({}))).status().await, 200);
    assert_eq!(figures(&rialto, "calls"), (1, 4));
    let cancelled = notification("notifications/cancelled", json!({ "requestId": "long" }));
    assert_eq!(one.post(&cancelled).status().await, 202);
    until("the call has ended", || figures(&rialto, "calls").0 == 0).await;
    assert_eq!(other.post(&call(7, "getElement", json!({ "name": "H" }))).status().await, 200);
}

#[tokio::test]
async fn streams_are_bounded_in_all_and_a_running_call_gets_its_own() {
    let rialto = Rialto::with(|settings| {
        settings.quotas.streams = 1;
        settings.inbound.sse_after = Duration::ZERO;
    })
    .await;
    let session = rialto.open("2025-11-25").await;
    let listening = session.get().go().await;
    assert_eq!(listening.status, 200);
    let other = rialto.open("2025-11-25").await;
    assert_refused(other.get().go().await, 503, "The gateway", "open streams").await;
    assert_refused(other.post(&survey(1, 1, 0)).go().await, 503, "The gateway", "open streams").await;
    let modern = rialto.modern("tools/call", json!({ "name": "getElement", "arguments": { "name": "H" } }));
    assert_refused(modern.go().await, 503, "The gateway", "open streams").await;
    let sse = rialto.send("GET", "/sse").header("accept", "*/*");
    assert_refused(sse.go().await, 503, "The gateway", "open streams").await;
    assert_eq!(figures(&rialto, "streams"), (1, 4));
    drop(listening);
    until("the stream has ended", || figures(&rialto, "streams").0 == 0).await;
    assert!(other.post(&survey(1, 118, 1000)).go().await.is_events());
}

#[tokio::test]
async fn listens_are_bounded_in_all_and_per_caller() {
    let rialto = with_two_callers(|settings| {
        settings.quotas.listens = 2;
        settings.quotas.listens_per_caller = 1;
    })
    .await;
    let listen = |token: &str| {
        let wanted = json!({ "notifications": { "toolsListChanged": true } });
        rialto.modern("subscriptions/listen", wanted).header("authorization", &format!("Bearer {token}"))
    };
    let ann = listen("1").go().await;
    assert!(ann.is_events());
    assert_refused(listen("1").go().await, 429, "The caller", "listening streams").await;
    let bob = listen("2").go().await;
    assert!(bob.is_events());
    drop(ann);
    until("the stream has ended", || figures(&rialto, "listens").0 == 1).await;
    let ann = listen("1").go().await;
    assert!(ann.is_events());
    rialto.inbound.sessions.quotas().listens_per_caller.quota().set_limit(9);
    assert_refused(listen("2").go().await, 503, "The gateway", "listening streams").await;
    assert_eq!((figures(&rialto, "listens"), figures(&rialto, "listens_per_caller").1), ((2, 1), 1));
}

#[tokio::test]
async fn bytes_of_request_bodies_are_bounded_in_all() {
    let rialto = Rialto::with(|settings| {
        settings.quotas.body_bytes = 1000;
        settings.inbound.limits.body_bytes = 900;
    })
    .await;
    let session = rialto.open("2025-11-25").await;
    let ping = request(1, "ping", json!({})).to_string();
    let head = |framing: &str| {
        let id = &session.id;
        format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\nmcp-session-id: {id}\r\ncontent-type: application/json\r\naccept: */*\r\n{framing}\r\n\r\n"
        )
    };
    for framing in ["content-length: 800", "transfer-encoding: chunked"] {
        let mut slow = TcpStream::connect(rialto.address).await.unwrap();
        slow.write_all(head(framing).as_bytes()).await.unwrap();
        until("the body is announced", || figures(&rialto, "body_bytes").0 >= 800).await;
        let wide = session.post(&json!({})).body(format!("{ping}{}", " ".repeat(300)));
        assert_refused(wide.go().await, 503, "The gateway", "bytes of requests in flight").await;
        assert_eq!(session.post(&json!({})).body(ping.clone()).status().await, 200, "a small one has room");
        drop(slow);
        until("the body is given up", || figures(&rialto, "body_bytes").0 == 0).await;
    }
    assert_eq!(figures(&rialto, "body_bytes"), (0, 2));
}

#[tokio::test]
async fn retained_events_are_bounded_in_all_and_readers_lose_nothing() {
    for (limit, resumable) in [(1 << 30, true), (1, false)] {
        let rialto = Rialto::with(|settings| {
            settings.quotas.event_bytes = limit;
            settings.inbound.sse_after = Duration::ZERO;
        })
        .await;
        let session = rialto.open("2025-11-25").await;
        let mut events = session.post(&survey(1, 118, 0)).go().await.events();
        let first = events.next().await.unwrap().id.unwrap();
        let mut received = events.rest().await.len();
        for id in 2..=3 {
            received += session.post(&survey(id, 118, 0)).go().await.events().rest().await.len();
        }
        assert!(received >= 3 * 118, "{received} messages");
        assert_eq!(session.resume(&first).status().await, if resumable { 200 } else { 400 });
        let (used, refusals) = figures(&rialto, "event_bytes");
        match resumable {
            true => assert!(used > 20_000 && refusals == 0, "{used} {refusals}"),
            false => assert!(used <= 16 << 10 && refusals > 0, "{used} {refusals}"),
        }
        assert_eq!(session.delete().status().await, 200);
        until("the events are gone", || figures(&rialto, "event_bytes").0 == 0).await;
    }
}

#[tokio::test]
async fn what_a_session_keeps_of_initialize_is_bounded() {
    let rialto = Rialto::start().await;
    let mut hello = initialize("2025-11-25");
    hello["params"]["clientInfo"]["icons"] = json!([{ "src": "x".repeat(50_000) }]);
    hello["params"]["padding"] = "x".repeat(50_000).into();
    hello["params"]["capabilities"] = json!({ "roots": {} });
    let opened = rialto.post("/mcp", &hello).go().await;
    assert_eq!(opened.status, 200);
    let sessions = rialto.inbound.sessions.all();
    let client = sessions[0].client().unwrap();
    let info: Value = serde_json::from_slice(client.info.as_ref().unwrap().as_bytes()).unwrap();
    assert_eq!(info, json!({ "name": "test", "version": "1" }));
    assert_eq!(client.capabilities.as_bytes(), br#"{"roots":{}}"#);
    for (member, name) in [("capabilities", "experimental"), ("clientInfo", "name")] {
        let mut hello = initialize("2025-11-25");
        hello["params"][member][name] = "x".repeat(5000).into();
        let (status, answer) = rialto.post("/mcp", &hello).json().await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32602)), "{member}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("4096 bytes"), "{answer}");
    }
}

#[tokio::test]
async fn uris_of_one_listen_are_bounded() {
    let rialto = Rialto::with(|settings| settings.sessions.max_subscriptions = 2).await;
    let listen = |count: usize| {
        let uris: Vec<String> = (0..count).map(|n| format!("elements://symbol/{n}")).collect();
        rialto.modern("subscriptions/listen", json!({ "notifications": { "resourceSubscriptions": uris } }))
    };
    assert!(listen(2).go().await.is_events());
    let (status, refused) = listen(3).json().await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!(-32602)), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("may name 2 resources"), "{refused}");
}
