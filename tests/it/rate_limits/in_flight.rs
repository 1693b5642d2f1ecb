//! Requests in flight: counted until they end, however they end.

use std::sync::Arc;
use std::time::Duration;

use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::policy::LimitRule;
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::json;

use super::{patterns, per_caller, used};
use crate::harness::{Rialto, call, notification, survey, until};
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// A gateway with limits in front of one scripted server.
pub async fn serving(server: &ScriptedServer, rules: Vec<LimitRule>) -> Rialto {
    let spec = UpstreamSpec::new(&server.name, SpecKind::Target(server.target()));
    let group = GroupConfig::new(DEFAULT_GROUP, [Arc::clone(&spec.name)]);
    Rialto::with(|settings| {
        settings.gateway = GatewayConfig { upstreams: vec![spec], groups: vec![group] };
        settings.rate_limits = rules;
        settings.inbound.sse_after = Duration::from_millis(10);
    })
    .await
}

/// One limit of requests and one of calls.
fn rules(most: usize) -> Vec<LimitRule> {
    let calls = LimitRule { tools: patterns(&["*"]), max_in_flight: Some(most), ..per_caller("calls") };
    vec![calls, LimitRule { max_in_flight: Some(most + 10), ..per_caller("requests") }]
}

async fn until_idle(rialto: &Rialto) {
    let idle = || used(rialto, "calls", "in_flight") == 0 && used(rialto, "requests", "in_flight") == 0;
    until("nothing is in flight", idle).await;
}

#[tokio::test]
async fn requests_in_flight_are_bounded_and_end_with_cancellation_or_disconnection() {
    let rialto = Rialto::with(|settings| {
        settings.rate_limits = rules(2);
        settings.inbound.sse_after = Duration::from_millis(10);
    })
    .await;
    let session = rialto.open("2025-11-25").await;
    let modern = |count: u32| {
        let arguments = json!({ "count": count, "delayMs": 5000 });
        let call = rialto.modern("tools/call", json!({ "name": "surveyElements", "arguments": arguments }));
        call.header("mcp-param-count", &count.to_string())
    };
    for round in 0..10 {
        let in_session = session.post(&survey(round, 118, 5000)).go().await;
        let alone = modern(118).go().await;
        assert!(in_session.is_events() && alone.is_events(), "{round}");
        until("both are in flight", || used(&rialto, "calls", "in_flight") == 2).await;
        assert_eq!(used(&rialto, "requests", "in_flight"), 2);
        let refused = session.post(&survey("third", 1, 0)).answer().await.1;
        assert_eq!(refused["result"]["content"][0]["text"], "Rate limit: try again in 1 s", "{refused}");
        let cancelled = notification("notifications/cancelled", json!({ "requestId": round }));
        assert_eq!(session.post(&cancelled).status().await, 202);
        // In the per-request era a client that goes away cancels its call.
        drop(alone);
        until_idle(&rialto).await;
    }
    let answer = session.post(&survey("last", 3, 0)).answer().await.1;
    assert!(answer["result"].is_object(), "{answer}");
    until_idle(&rialto).await;
}

#[tokio::test]
async fn requests_in_flight_end_when_their_session_does() {
    let rialto = Rialto::with(|settings| {
        settings.rate_limits = rules(2);
        settings.inbound.sse_after = Duration::from_millis(10);
    })
    .await;
    for round in 0..5 {
        let session = rialto.open("2025-11-25").await;
        assert!(session.post(&survey(round, 118, 5000)).go().await.is_events());
        assert_eq!(used(&rialto, "calls", "in_flight"), 1);
        assert_eq!(session.delete().status().await, 200);
        until_idle(&rialto).await;
        let mut stream = rialto.send("GET", "/sse").header("accept", "text/event-stream").go().await.events();
        let endpoint = stream.next().await.unwrap().data;
        assert_eq!(rialto.post(&endpoint, &crate::harness::initialize("2024-11-05")).status().await, 202);
        stream.message().await.unwrap();
        assert_eq!(rialto.post(&endpoint, &survey(2, 118, 5000)).status().await, 202);
        until("it is in flight", || used(&rialto, "calls", "in_flight") == 1).await;
        drop(stream);
        until_idle(&rialto).await;
    }
}

#[tokio::test]
async fn requests_in_flight_end_when_their_server_crashes() {
    for transport in [ServerTransport::Stdio, ServerTransport::Http, ServerTransport::PerRequest] {
        let server = ScriptedServer::start("web", transport).await;
        server.hold_responses("tools/call");
        let rialto = serving(&server, rules(3)).await;
        let session = rialto.open("2025-11-25").await;
        let mut calls = Vec::new();
        for id in 1..=3 {
            calls.push(session.post(&call(id, "echo", json!({}))).go().await);
        }
        server.wait_received("tools/call", 3).await;
        until("all are in flight", || used(&rialto, "calls", "in_flight") == 3).await;
        server.stop();
        for call in calls {
            let answer = call.events().rest().await.pop().expect("an answer");
            assert!(answer["error"]["data"]["failure"].is_string(), "{transport:?}: {answer}");
        }
        until_idle(&rialto).await;
    }
}
