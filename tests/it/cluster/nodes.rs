//! Relay between three in-process nodes: sessions, streams, cancellation and drain with requests at any node.

use std::time::Duration;

use rialto::call::ChangeEvent;
use serde_json::{Value, json};

use super::three_nodes;
use crate::harness::{HANDSHAKE, Rialto, Session, call, notification, request, survey, until};

/// The same session, with requests sent to another node.
fn at<'r>(rialto: &'r Rialto, session: &Session<'_>) -> Session<'r> {
    session.at_node(rialto)
}

#[tokio::test]
async fn relay_serves_a_session_from_any_node() {
    let [a, b, c] = three_nodes().await;
    for revision in HANDSHAKE.into_iter().filter(|revision| *revision != "2024-11-05") {
        let session = a.open(revision).await;
        for node in [&a, &b, &c, &b] {
            let answer = at(node, &session)
                .ask("tools/call", json!({ "name": "getElement", "arguments": { "name": "H" } }))
                .await;
            assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("Hydrogen"), "{answer}");
        }
        // A call with progress, relayed by a node that is not the owner.
        let messages = at(&b, &session).post(&survey(2, 3, 1)).go().await.events().rest().await;
        assert_eq!(messages.len(), 4, "{messages:?}");
        assert_eq!(messages[3]["id"], 2);
    }
}

#[tokio::test]
async fn unknown_and_deleted_sessions_are_404_at_every_node() {
    let [a, b, _c] = three_nodes().await;
    let mut session = a.open("2025-11-25").await;
    assert_eq!(at(&b, &session).delete().status().await, 200);
    for node in [&a, &b] {
        assert_eq!(at(node, &session).post(&request(1, "ping", json!({}))).status().await, 404);
    }
    session.id = "http:00000000000000000000000000000000".into();
    assert_eq!(at(&b, &session).get().status().await, 404);
}

#[tokio::test]
async fn resumption_of_a_stream_at_another_node() {
    let [a, b, c] = three_nodes().await;
    let session = a.open("2025-11-25").await;
    let mut stream = at(&b, &session).post(&survey(5, 6, 20)).go().await.events();
    let mut last = String::new();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let event = stream.next().await.unwrap();
        last = event.id.unwrap();
        if !event.data.is_empty() {
            seen.push(serde_json::from_str::<Value>(&event.data).unwrap());
        }
    }
    drop(stream);
    seen.extend(at(&c, &session).resume(&last).go().await.events().rest().await);
    let progress: Vec<_> = seen.iter().filter_map(|message| message["params"]["progress"].as_u64()).collect();
    assert_eq!(progress, [1, 2, 3, 4, 5, 6]);
    assert_eq!(seen.last().unwrap()["id"], 5);
}

#[tokio::test]
async fn relay_delivers_notifications_to_a_listening_stream_at_another_node() {
    let [a, b, c] = three_nodes().await;
    let session = a.open("2025-11-25").await;
    let subscribed = at(&b, &session).ask("resources/subscribe", json!({ "uri": "elements://spotlight" })).await;
    assert_eq!(subscribed["result"], json!({}));
    let mut listening = at(&c, &session).get().go().await.events();
    until("the stream is attached", || a.inbound.sessions.stats().open_streams == 1).await;
    a.group().publish(ChangeEvent::ResourceUpdated("elements://spotlight".into()));
    let message = listening.message().await.unwrap();
    assert_eq!(message["params"]["uri"], "elements://spotlight", "{message}");
    assert_eq!(at(&b, &session).delete().status().await, 200);
    assert!(listening.message().await.is_none());
}

#[tokio::test]
async fn relay_of_a_cancellation_from_another_node() {
    let [a, b, c] = three_nodes().await;
    let session = a.open("2025-11-25").await;
    let mut stream = at(&b, &session).post(&survey("long", 100, 100)).go().await.events();
    while stream.message().await.unwrap()["method"] != "notifications/progress" {}
    let told = at(&c, &session).post(&notification("notifications/cancelled", json!({ "requestId": "long" })));
    assert_eq!(told.status().await, 202);
    assert!(stream.rest().await.iter().all(|message| message.get("result").is_none()));
    until("no call is in flight", || a.inbound.shutdown.calls_in_flight() == 0).await;
}

#[tokio::test]
async fn relay_of_http_sse_posts_to_the_node_with_the_stream() {
    let [a, b, c] = three_nodes().await;
    let mut stream = a.send("GET", "/sse").header("accept", "text/event-stream").go().await.events();
    let endpoint = stream.next().await.unwrap().data;
    let post = |node: &Rialto, body: &Value| node.post(&endpoint, body);
    let initialize_request = crate::harness::initialize("2024-11-05");
    assert_eq!(post(&b, &initialize_request).status().await, 202);
    assert_eq!(stream.message().await.unwrap()["result"]["protocolVersion"], "2024-11-05");
    assert_eq!(post(&c, &call(3, "getElement", json!({ "name": "He" }))).status().await, 202);
    assert_eq!(stream.message().await.unwrap()["id"], 3);
    drop(stream);
    until("the session has ended with its stream", || a.inbound.sessions.count() == 0).await;
    let gone = async || post(&b, &call(4, "getElement", json!({ "name": "He" }))).status().await == 404;
    tokio::time::timeout(crate::harness::TEST_TIMEOUT, async {
        while !gone().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("nobody knows it any more");
}

#[tokio::test]
async fn drain_releases_sessions_to_other_nodes() {
    let [mut a, b, c] = three_nodes().await;
    let session = a.open("2025-11-25").await;
    let level = at(&c, &session).ask("logging/setLevel", json!({ "level": "warning" })).await;
    assert!(level.get("result").is_some(), "{level}");
    // A call in flight when the drain begins is finished by the draining node.
    let mut running = at(&b, &session).post(&survey(9, 5, 50)).go().await.events();
    assert_eq!(running.message().await.unwrap()["method"], "notifications/progress");
    let id = session.id.clone();
    let moved = session.at_node(&b);
    drop(session);
    a.begin_stop();
    let rest = running.rest().await;
    assert_eq!(rest.last().unwrap()["id"], 9, "{rest:?}");
    assert!(a.stopped().await);
    for node in [&b, &c] {
        let answer =
            at(node, &moved).ask("tools/call", json!({ "name": "getElement", "arguments": { "name": "H" } })).await;
        assert!(answer.get("result").is_some(), "{answer}");
    }
    assert_eq!(b.inbound.sessions.count() + c.inbound.sessions.count(), 1, "{id} lives once");
}
