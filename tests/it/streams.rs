//! Handshake-era SSE: which stream carries which message, resumption by Last-Event-ID, cancellation, slow readers.

use std::sync::Arc;
use std::time::Duration;

use rialto::call::ChangeEvent;
use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};

use crate::harness::{HANDSHAKE, Rialto, call, notification, request, survey, until};
use crate::scripted_server::{ScriptedServer, ServerTransport};

#[tokio::test]
async fn a_quick_response_is_json_and_progress_makes_it_sse() {
    let rialto = Rialto::start().await;
    for revision in HANDSHAKE {
        let session = rialto.open(revision).await;
        let quick = session.post(&call(1, "getElement", json!({ "name": "H" }))).go().await;
        assert_eq!(quick.header("content-type"), Some("application/json"));
        let chatty = session.post(&survey(2, 3, 1)).go().await;
        for (name, value) in [("cache-control", "no-cache, no-transform"), ("x-accel-buffering", "no")] {
            assert_eq!(chatty.header(name), Some(value));
        }
        let events = chatty.events().rest_events().await;
        // Only 2025-11-25 allows a priming event, which has no data.
        assert_eq!(events[0].data.is_empty(), revision == "2025-11-25", "{revision}");
        assert_eq!(events[0].retry.is_some(), revision == "2025-11-25", "{revision}");
        let messages: Vec<Value> =
            events.iter().filter(|e| !e.data.is_empty()).map(|e| serde_json::from_str(&e.data).unwrap()).collect();
        assert_eq!(messages.len(), 4, "{revision}");
        for (n, message) in messages[..3].iter().enumerate() {
            assert_eq!(message["method"], "notifications/progress");
            assert_eq!(message["params"]["progress"], n + 1);
            assert_eq!(message["params"]["progressToken"], "token");
            assert_eq!(message["params"].get("message").is_some(), revision != "2024-11-05");
        }
        assert_eq!(messages[3]["id"], 2);
    }
}

#[tokio::test]
async fn a_long_call_without_progress_becomes_sse() {
    let rialto = Rialto::with(|settings| {
        settings.inbound.sse_after = Duration::from_millis(20);
        settings.inbound.sse_heartbeat = Duration::from_millis(30);
    })
    .await;
    let session = rialto.open("2025-11-25").await;
    let mut slow =
        request(1, "tools/call", json!({ "name": "surveyElements", "arguments": { "count": 1, "delayMs": 300 } }));
    slow["params"].as_object_mut().unwrap().remove("_meta");
    let messages = session.post(&slow).go().await.events().rest().await;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0]["result"]["content"][0]["text"], "1 elements: H");
}

#[tokio::test]
async fn idle_sse_streams_get_heartbeat_comments() {
    let rialto = Rialto::with(|settings| settings.inbound.sse_heartbeat = Duration::from_millis(20)).await;
    let session = rialto.open("2025-06-18").await;
    let mut listening = session.get().go().await.events();
    let read = async {
        loop {
            let frame = listening.frame().await;
            if frame.starts_with(b": keepalive\n\n") {
                return;
            }
        }
    };
    tokio::time::timeout(crate::harness::TEST_TIMEOUT, read).await.unwrap();
}

#[tokio::test]
async fn sse_event_ids_are_unique_and_name_their_stream() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-06-18").await;
    let first = session.post(&survey(1, 3, 1)).go().await.events().rest_events().await;
    let second = session.post(&survey(2, 3, 1)).go().await.events().rest_events().await;
    let mut ids: Vec<String> = first.iter().chain(&second).map(|event| event.id.clone().unwrap()).collect();
    let stream = |id: &str| id.split_once('.').unwrap().0.to_owned();
    assert!(ids[..4].iter().all(|id| stream(id) == stream(&ids[0])));
    assert_ne!(stream(&ids[0]), stream(&ids[4]));
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 8);
}

#[tokio::test]
async fn last_event_id_resumes_a_broken_stream() {
    let rialto = Rialto::start().await;
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = rialto.open(revision).await;
        let mut events = session.post(&survey(1, 6, 30)).go().await.events();
        let mut last = String::new();
        while !last.ends_with(".2") {
            last = events.next().await.unwrap().id.unwrap();
        }
        drop(events); // disconnect; the call keeps running
        let rest = session.resume(&last).go().await.events().rest().await;
        let progress: Vec<u64> = rest.iter().filter_map(|message| message["params"]["progress"].as_u64()).collect();
        assert_eq!(progress, [3, 4, 5, 6], "{revision}");
        assert_eq!(rest.last().unwrap()["id"], 1);
    }
}

#[tokio::test]
async fn last_event_id_resumes_a_finished_stream() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let events = session.post(&survey(1, 3, 1)).go().await.events().rest_events().await;
    let primed = events[0].id.clone().unwrap();
    for (from, expected) in [(primed, 4), (events[1].id.clone().unwrap(), 3), (events[4].id.clone().unwrap(), 0)] {
        let again = session.resume(&from).go().await.events().rest().await;
        assert_eq!(again.len(), expected, "{from}");
    }
}

#[tokio::test]
async fn resumption_replays_only_its_own_stream() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-06-18").await;
    let first = session.post(&survey(1, 2, 1)).go().await.events().rest_events().await;
    let _second = session.post(&survey(2, 5, 1)).go().await.events().rest_events().await;
    rialto.inbound.sessions.publish("default", &ChangeEvent::Tools);
    let again = session.resume(first[0].id.as_deref().unwrap()).go().await.events().rest().await;
    assert_eq!(again.len(), 2);
    assert_eq!(again[1]["id"], 1);
}

#[tokio::test]
async fn an_unknown_last_event_id_is_400() {
    let rialto = Rialto::start().await;
    let one = rialto.open("2025-11-25").await;
    let other = rialto.open("2025-11-25").await;
    let events = one.post(&survey(1, 3, 1)).go().await.events().rest_events().await;
    let foreign = events[2].id.as_deref().unwrap();
    for id in [foreign, "nonsense", "0.99", "7.1", "1.1.1", ""] {
        assert_eq!(other.resume(id).status().await, 400, "{id:?}");
    }
    assert_eq!(other.post(&request(1, "ping", json!({}))).status().await, 200, "the session itself still works");
}

#[tokio::test]
async fn a_last_event_id_beyond_the_end_of_its_stream_is_400() {
    let server = ScriptedServer::start("server", ServerTransport::Http).await;
    let spec = UpstreamSpec::new("server", SpecKind::Target(server.target()));
    let groups = vec![GroupConfig::new(DEFAULT_GROUP, [Arc::clone(&spec.name)])];
    let rialto = Rialto::with(|settings| settings.gateway = GatewayConfig { upstreams: vec![spec], groups }).await;
    let session = rialto.open("2025-11-25").await;
    let run = |id: u64, steps: Value| session.post(&call(id, "do", json!({ "steps": steps })));
    // Quiet until the gate opens: its next event would be ahead of all others.
    let steps = json!([{ "progress": 1 }, { "wait": "go" }, { "progress": 2 }, { "wait": "end" }]);
    let mut running = run(1, steps).go().await.events();
    let primed = running.next().await.unwrap().id.unwrap();
    assert!(running.message().await.is_some());
    let (stream, _) = primed.split_once('.').unwrap();
    // Positions are shared by all streams, so these exist; they are ahead of the stream that is resumed.
    let steps = json!([{ "progress": 1 }, { "progress": 2 }, { "progress": 3 }, { "progress": 4 }]);
    let other = run(2, steps).go().await.events().rest_events().await;
    let (_, ahead) = other.last().unwrap().id.as_deref().unwrap().split_once('.').unwrap();
    for id in [format!("{stream}.{ahead}"), format!("0.{ahead}")] {
        assert_eq!(session.resume(&id).status().await, 400, "{id}");
    }
    // The call and its stream go on.
    server.open("go");
    assert!(running.message().await.is_some());
    assert_eq!(session.post(&request(3, "ping", json!({}))).status().await, 200);
}

#[tokio::test]
async fn resumption_past_the_retention_limit_is_400() {
    let rialto = Rialto::with(|settings| settings.sessions.retention.max_events = 3).await;
    let session = rialto.open("2025-06-18").await;
    let events = session.post(&survey(1, 8, 1)).go().await.events().rest_events().await;
    let id = |n: usize| events[n].id.as_deref().unwrap();
    assert_eq!(session.resume(id(0)).status().await, 400);
    let rest = session.resume(id(6)).go().await.events().rest().await;
    assert_eq!(rest.len(), 2);
}

#[tokio::test]
async fn a_disconnect_does_not_cancel_a_handshake_call() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let mut events = session.post(&survey(1, 4, 20)).go().await.events();
    let primed = events.next().await.unwrap().id.unwrap();
    drop(events);
    let rest = session.resume(&primed).go().await.events().rest().await;
    assert_eq!(rest.last().unwrap()["result"]["content"][0]["text"], "4 elements: H He Li Be");
}

#[tokio::test]
async fn a_cancelled_call_gets_no_response() {
    let rialto = Rialto::start().await;
    for revision in HANDSHAKE {
        let session = rialto.open(revision).await;
        let mut events = session.post(&survey("long", 118, 50)).go().await.events();
        while events.next().await.unwrap().data.is_empty() {}
        let cancel = notification("notifications/cancelled", json!({ "requestId": "long", "reason": "enough" }));
        assert_eq!(session.post(&cancel).status().await, 202);
        let rest = events.rest().await;
        assert!(rest.iter().all(|message| message.get("id").is_none()), "{revision}: {rest:?}");
        // The id can be used again and no call is running.
        assert_eq!(session.post(&request("long", "ping", json!({}))).status().await, 200);
    }
    let mut quiet = Rialto::with(|settings| settings.inbound.sse_after = Duration::from_secs(60)).await;
    {
        let session = quiet.open("2025-11-25").await;
        let mut body = survey(5, 118, 5000);
        body["params"].as_object_mut().unwrap().remove("_meta");
        let waiting = tokio::spawn(session.post(&body).go());
        // The cancellation may overtake the call, so it is repeated until the call ends.
        let cancel = notification("notifications/cancelled", json!({ "requestId": 5 }));
        while !waiting.is_finished() {
            assert_eq!(session.post(&cancel).status().await, 202);
        }
        assert_eq!(waiting.await.unwrap().status, 202);
    }
    quiet.begin_stop();
    assert!(quiet.stopped().await, "no call is running");
}

#[tokio::test]
async fn a_request_id_in_use_is_refused() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let mut events = session.post(&survey(1, 118, 50)).go().await.events();
    assert!(events.message().await.is_some());
    assert_eq!(session.post(&survey(1, 2, 1)).refused().await, (400, -32600));
    assert_eq!(session.post(&survey("1", 2, 1)).status().await, 200, "a string is a different id");
    assert_eq!(session.delete().status().await, 200);
}

#[tokio::test]
async fn list_changes_reach_the_newest_get_stream_once() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-06-18").await;
    let mut old = session.get().go().await.events();
    let mut new = session.get().go().await.events();
    rialto.group().publish(ChangeEvent::Tools);
    assert_eq!(new.message().await.unwrap()["method"], "notifications/tools/list_changed");
    drop(new);
    // The gateway notices the disconnect on its next write; then the older stream takes over.
    until("the older stream is served again", || rialto.inbound.sessions.count() == 1).await;
    rialto.group().publish(ChangeEvent::Prompts);
    let next = tokio::time::timeout(Duration::from_millis(300), old.message()).await;
    match next {
        Ok(message) => assert_eq!(message.unwrap()["method"], "notifications/prompts/list_changed"),
        // It was written to the closing connection: resumption replays it.
        Err(_) => {
            let mut again = session.resume("0.1").go().await.events();
            assert_eq!(again.message().await.unwrap()["method"], "notifications/prompts/list_changed");
        }
    }
}

#[tokio::test]
async fn a_list_change_waits_for_a_get_stream() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    rialto.inbound.sessions.publish("default", &ChangeEvent::Resources);
    let mut listening = session.get().go().await.events();
    assert_eq!(listening.message().await.unwrap()["method"], "notifications/resources/list_changed");
}

#[tokio::test]
async fn list_changes_reach_all_sessions_despite_slow_readers() {
    let rialto = Rialto::with(|settings| settings.sessions.retention.max_events = 10_000).await;
    let mut unread_streams = Vec::new();
    for _ in 0..5 {
        let session = rialto.open("2025-11-25").await;
        unread_streams.push(session.get().go().await.events()); // never read
    }
    let mut listening = Vec::new();
    for _ in 0..20 {
        let session = rialto.open("2025-11-25").await;
        listening.push(session.get().go().await.events());
    }
    for _ in 0..300 {
        rialto.inbound.sessions.publish("default", &ChangeEvent::Tools);
        for events in &mut listening {
            assert_eq!(events.message().await.unwrap()["method"], "notifications/tools/list_changed");
        }
    }
}

#[tokio::test]
async fn resource_updates_reach_subscribers_only() {
    let rialto =
        Rialto::with(|settings| settings.gateway = rialto::app::builtin_config(Duration::from_millis(30))).await;
    let subscribed = rialto.open("2025-11-25").await;
    let unsubscribed = rialto.open("2025-11-25").await;
    subscribed.ask("resources/subscribe", json!({ "uri": "elements://spotlight" })).await;
    let mut listening = subscribed.get().go().await.events();
    let message = listening.message().await.unwrap();
    assert_eq!(message["method"], "notifications/resources/updated");
    assert_eq!(message["params"]["uri"], "elements://spotlight");
    subscribed.ask("resources/unsubscribe", json!({ "uri": "elements://spotlight" })).await;
    rialto.inbound.sessions.publish("default", &ChangeEvent::Tools);
    let mut other = unsubscribed.get().go().await.events();
    assert_eq!(other.message().await.unwrap()["method"], "notifications/tools/list_changed");
    while listening.message().await.unwrap()["method"] != "notifications/tools/list_changed" {}
}

#[tokio::test]
async fn log_messages_follow_the_log_level_of_the_session() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let lookup = call(1, "getElement", json!({ "name": "H" }));
    assert!(!session.post(&lookup).go().await.is_events(), "no log messages before logging/setLevel");
    session.ask("logging/setLevel", json!({ "level": "debug" })).await;
    let messages = session.post(&lookup).go().await.events().rest().await;
    assert_eq!(messages[0]["method"], "notifications/message");
    assert_eq!(messages[0]["params"]["level"], "debug");
    assert_eq!(messages[1]["id"], 1);
    session.ask("logging/setLevel", json!({ "level": "error" })).await;
    assert!(!session.post(&lookup).go().await.is_events());
}

#[tokio::test]
async fn progress_never_crosses_sessions() {
    let rialto = Rialto::start().await;
    let mut running = Vec::new();
    for n in 1..=8u32 {
        let session = rialto.open("2025-11-25").await;
        // Every session uses the same request id and progress token on purpose.
        running.push((n, session.post(&survey(1, n * 3, 3)).go().await.events()));
    }
    for (n, events) in running {
        let messages = events.rest().await;
        let progress: Vec<u64> = messages.iter().filter_map(|message| message["params"]["progress"].as_u64()).collect();
        assert_eq!(progress, (1..=u64::from(n) * 3).collect::<Vec<_>>());
        assert!(
            messages.last().unwrap()["result"]["content"][0]["text"]
                .as_str()
                .unwrap()
                .starts_with(&format!("{} ", n * 3))
        );
    }
}
