//! Request and session limits, each at the limit and one past it; Host, Origin and CORS checks.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Rialto, initialize, request, survey, until};

#[tokio::test]
async fn a_body_over_the_size_limit_is_413() {
    let rialto = Rialto::with(|settings| settings.inbound.limits.body_bytes = 500).await;
    let session = rialto.open("2025-11-25").await;
    let padded = |size: usize| {
        let body = request(1, "ping", json!({ "pad": "" })).to_string();
        let pad = "x".repeat(size - body.len());
        request(1, "ping", json!({ "pad": pad })).to_string()
    };
    assert_eq!(padded(500).len(), 500);
    assert_eq!(session.post(&Value::Null).body(padded(500)).status().await, 200);
    let (status, answer) = session.post(&Value::Null).body(padded(501)).json().await;
    assert_eq!(status, 413);
    assert!(answer["error"]["message"].as_str().unwrap().contains("500 bytes"));

    // A chunked body, whose size is not announced.
    let mut stream = tokio::net::TcpStream::connect(rialto.address).await.unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nmcp-session-id: {}\r\ncontent-type: application/json\r\naccept: */*\r\ntransfer-encoding: chunked\r\n\r\n",
        session.id
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("100\r\n{}\r\n", "x".repeat(256));
    for _ in 0..3 {
        stream.write_all(chunk.as_bytes()).await.unwrap();
    }
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
}

#[tokio::test]
async fn a_body_timeout_is_408() {
    let rialto = Rialto::with(|settings| settings.inbound.body_timeout = Duration::from_millis(50)).await;
    let mut stream = tokio::net::TcpStream::connect(rialto.address).await.unwrap();
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: */*\r\ncontent-length: 10\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    tokio::time::timeout(crate::harness::TEST_TIMEOUT, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"HTTP/1.1 408");
}

#[tokio::test]
async fn header_count_and_size_over_the_limit_are_431() {
    let rialto = Rialto::with(|settings| {
        settings.inbound.limits.header_count = 10;
        settings.inbound.limits.header_bytes = 10_000;
    })
    .await;
    let with = |count: usize| {
        let mut sending = rialto.send("GET", "/mcp");
        for n in 1..count {
            sending = sending.header(&format!("x-{n}"), "1");
        }
        sending
    };
    assert_eq!(with(10).status().await, 405);
    assert_eq!(with(11).status().await, 431);
    assert_eq!(rialto.send("GET", "/mcp").header("x-long", &"x".repeat(9000)).status().await, 405);
    assert_eq!(rialto.send("GET", "/mcp").header("x-long", &"x".repeat(12_000)).status().await, 431);
}

#[tokio::test]
async fn json_depth_is_limited() {
    let rialto = Rialto::with(|settings| settings.inbound.limits.json_depth = 20).await;
    let session = rialto.open("2025-11-25").await;
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth - 2), "]".repeat(depth - 2));
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{open}{close}}}}}"#)
    };
    assert_eq!(session.post(&Value::Null).body(nested(20)).status().await, 200);
    let (status, answer) = session.post(&Value::Null).body(nested(21)).json().await;
    assert_eq!(status, 400);
    assert!(answer["error"]["message"].as_str().unwrap().contains("20 deep"));
    // Deep enough to overflow a recursive parser.
    assert_eq!(session.post(&Value::Null).body("[".repeat(1 << 20)).status().await, 400);
}

#[tokio::test]
async fn batch_length_is_limited() {
    let rialto = Rialto::with(|settings| settings.inbound.limits.batch_length = 3).await;
    let session = rialto.open("2025-03-26").await;
    let batch = |count: i64| Value::Array((0..count).map(|id| request(id, "ping", json!({}))).collect());
    assert_eq!(session.post(&batch(3)).status().await, 200);
    assert_eq!(session.post(&batch(4)).refused().await, (400, -32600));
}

#[tokio::test]
async fn session_count_is_limited() {
    let rialto = Rialto::with(|settings| settings.quotas.sessions = 2).await;
    let one = rialto.open("2025-11-25").await;
    let _two = rialto.open("2025-11-25").await;
    let received = rialto.post("/mcp", &initialize("2025-11-25")).go().await;
    assert_eq!((received.status, received.header("retry-after")), (503, Some("1")));
    assert_eq!(rialto.send("GET", "/sse").header("accept", "*/*").status().await, 503);
    assert_eq!(one.delete().status().await, 200);
    rialto.open("2025-11-25").await;
}

#[tokio::test]
async fn streams_per_session_are_limited_but_resumption_is_not() {
    let rialto = Rialto::with(|settings| settings.sessions.max_streams = 2).await;
    let session = rialto.open("2025-11-25").await;
    let one = session.get().go().await;
    let mut two = session.post(&survey(1, 118, 100)).go().await.events();
    assert_eq!(one.status, 200);
    let position = two.next().await.unwrap().id.unwrap();
    assert_eq!(session.post(&survey(2, 118, 100)).status().await, 429);
    // Resumption replaces a connection, so it is never over the limit.
    let resumed = session.resume(&position).go().await;
    assert_eq!(resumed.status, 200);
    // A new GET stream replaces the oldest one, which is most likely dead.
    let three = session.get().go().await;
    assert_eq!(three.status, 200);
    assert!(one.events().rest().await.is_empty());
}

#[tokio::test]
async fn calls_per_session_are_limited() {
    let rialto = Rialto::with(|settings| settings.sessions.max_calls = 2).await;
    let session = rialto.open("2025-11-25").await;
    let _one = session.post(&survey(1, 118, 100)).go().await;
    let _two = session.post(&survey(2, 118, 100)).go().await;
    let (status, answer) = session.post(&survey(3, 118, 100)).json().await;
    assert_eq!((status, &answer["id"]), (429, &json!(3)));
    assert_eq!(
        session.post(&request(4, "ping", json!({}))).status().await,
        200,
        "ping is answered at once and not counted"
    );
}

#[tokio::test]
async fn subscriptions_and_client_info_are_limited() {
    let rialto = Rialto::with(|settings| settings.sessions.max_subscriptions = 2).await;
    let session = rialto.open("2025-11-25").await;
    for (uri, good) in [("a:1", true), ("a:2", true), ("a:3", false), ("a:2", true)] {
        let answer = session.ask("resources/subscribe", json!({ "uri": uri })).await;
        assert_eq!(answer.get("result").is_some(), good, "{uri}");
    }
    session.ask("resources/unsubscribe", json!({ "uri": "a:1" })).await;
    assert!(session.ask("resources/subscribe", json!({ "uri": "a:3" })).await.get("result").is_some());
    let long = session.ask("resources/subscribe", json!({ "uri": "x".repeat(9000) })).await;
    assert_eq!(long["error"]["code"], -32602);
    let mut hello = initialize("2025-11-25");
    hello["params"]["clientInfo"]["name"] = "x".repeat(70_000).into();
    assert_eq!(rialto.post("/mcp", &hello).refused().await, (400, -32602));
}

#[tokio::test]
async fn idle_sessions_expire() {
    let rialto = Rialto::with(|settings| {
        // Long enough for a busy machine to open a session in it.
        settings.sessions.idle_timeout = Duration::from_secs(2);
        settings.sessions.retention.max_age = Duration::from_secs(2);
    })
    .await;
    let session = rialto.open("2025-11-25").await;
    let used = rialto.open("2025-11-25").await;
    let _listening = used.get().go().await;
    until("the idle session has expired", || rialto.inbound.sessions.count() == 1).await;
    assert_eq!(session.post(&request(1, "ping", json!({}))).status().await, 404);
    assert_eq!(used.post(&request(1, "ping", json!({}))).status().await, 200);
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_forbidden() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let ping = request(1, "ping", json!({}));
    for host in ["localhost", "127.0.0.1:99", "[::1]:3001"] {
        assert_eq!(session.post(&ping).replace("host", host).status().await, 200, "{host}");
    }
    let requests = || [session.post(&ping), session.get(), session.delete()];
    for sending in requests() {
        assert_eq!(sending.replace("host", "evil.example").status().await, 403);
    }
    for origin in ["http://evil.example", "null"] {
        for sending in requests() {
            assert_eq!(sending.header("origin", origin).status().await, 403, "{origin}");
        }
    }
    assert_eq!(rialto.modern("tools/list", json!({})).header("origin", "http://evil.example").status().await, 403);
    assert_eq!(
        rialto.send("GET", "/sse").header("accept", "*/*").header("origin", "http://evil.example").status().await,
        403
    );
    assert_eq!(session.post(&ping).header("origin", "http://localhost:5173").status().await, 200);
}

#[tokio::test]
async fn cors_preflight_and_response_headers_are_sent_to_allowed_origins() {
    let rialto = Rialto::start().await;
    let origin = "http://localhost:5173";
    let preflight =
        rialto.send("OPTIONS", "/mcp").header("origin", origin).header("access-control-request-method", "POST");
    let received = preflight.header("access-control-request-headers", "mcp-session-id, mcp-param-count").go().await;
    assert_eq!(received.status, 204);
    assert_eq!(received.header("access-control-allow-origin"), Some(origin));
    let allowed = received.header("access-control-allow-headers").unwrap();
    for name in ["mcp-session-id", "mcp-protocol-version", "last-event-id", "authorization", "mcp-param-count"] {
        assert!(allowed.contains(name), "{name}");
    }
    assert!(received.header("access-control-allow-methods").unwrap().contains("DELETE"));
    let opened = rialto.post("/mcp", &initialize("2025-11-25")).header("origin", origin).go().await;
    assert_eq!(opened.header("access-control-allow-origin"), Some(origin));
    assert!(opened.header("access-control-expose-headers").unwrap().contains("mcp-session-id"));
    // Error responses carry CORS headers, too.
    let refused = rialto.post("/mcp", &request(1, "ping", json!({}))).header("origin", origin).go().await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (400, Some(origin)));
    let evil = rialto.send("OPTIONS", "/mcp").header("origin", "http://evil.example").go().await;
    assert_eq!((evil.status, evil.header("access-control-allow-origin")), (403, None));
}

#[tokio::test]
async fn echoed_client_input_is_truncated() {
    let rialto = Rialto::start().await;
    let sending = rialto.post("/mcp", &request(1, "ping", json!({})));
    let received = sending.header("mcp-session-id", &"x".repeat(5000)).go().await;
    assert_eq!(received.status, 404);
    assert!(received.text().await.len() < 400, "echoed client input is truncated");
}

/// What a filter judges and what a server reads must be the same name.
#[tokio::test]
async fn a_member_that_decides_and_stands_twice_is_invalid_params() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    for params in [
        r#"{"name":"getElement","name":"listElements","arguments":{}}"#,
        r#"{"name":"getElement","n\u0061me":"listElements"}"#,
        r#"{"name":"getElement","_meta":{},"_meta":{"progressToken":1}}"#,
        r#"{"name":"getElement","uri":"a","uri":"b"}"#,
        r#"{"ref":{"type":"ref/prompt","name":"a","name":"b"},"name":"getElement"}"#,
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        let (status, answer) = session.post(&json!({})).body(body).json().await;
        assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)), "{params}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().ends_with("stands there twice"), "{answer}");
    }
    // Arguments are the server's affair.
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"getElement","arguments":{"name":"H","name":"He"}}}"#;
    let (_, answer) = session.post(&json!({})).body(body).json().await;
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("He"), "{answer}");
}
