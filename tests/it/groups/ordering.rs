//! Ordering guarantees: a session is deleted only after every request in it was read, and a change after a
//! subscription is always notified.

use rialto::call::ChangeEvent;

use super::*;
use crate::harness::{Events, Session};
use crate::scripted_server::InjectedFault;

/// Bounded wait that proves that nothing happens.
const NEGATIVE_WAIT: Duration = Duration::from_millis(300);

/// A request in flight delays the DELETE of its session even when its caller is gone: it travels on another connection
/// and could arrive after the DELETE.
#[tokio::test]
async fn session_delete_waits_for_requests_in_flight() {
    for transport in [ServerTransport::Http, ServerTransport::Sse] {
        let web = ScriptedServer::start("web", transport).await;
        let mut spec = spec(&web);
        spec.settings.stop_timeout = TEST_TIMEOUT;
        spec.settings.ping_interval = None;
        let rialto = gateway(default_group_of(vec![spec])).await;
        rialto.group().wait_ready(Revision::NEWEST).await;
        web.inject_fault("tools/list", InjectedFault::DelayedDelivery);
        web.change("notifications/tools/list_changed", |_| {});
        web.wait_received("delayed tools/list", 1).await;
        let upstream = Arc::clone(&upstreams(&rialto)["web"]);
        let stopping = tokio::spawn(async move { upstream.stop().await });
        let ended = tokio::time::timeout(NEGATIVE_WAIT, until("the session has ended", || web.sessions() == 0)).await;
        assert!(ended.is_err(), "{transport:?}: the session ends while a request is in flight");
        web.open("tools/list");
        until("the session has ended", || web.sessions() == 0).await;
        within_timeout("the upstream has stopped", stopping).await.unwrap();
        let received = web.received();
        let of_session: Vec<&str> =
            received.iter().map(|received| &*received.kind).filter(|what| *what != "GET").collect();
        match transport {
            ServerTransport::Http => assert_eq!(of_session.last(), Some(&"DELETE"), "{of_session:?}"),
            _ => assert!(of_session.contains(&"tools/list"), "{of_session:?}"),
        }
    }
}

/// Parameters of the next `resources/updated` notification.
async fn updated(events: &mut Events) -> Value {
    loop {
        let message = events.message().await.expect("the stream goes on");
        if message["method"] == "notifications/resources/updated" {
            return message["params"].clone();
        }
    }
}

async fn subscribe(session: &Session<'_>, uri: &str) {
    assert_eq!(session.ask("resources/subscribe", json!({ "uri": uri })).await["result"], json!({}), "{uri}");
}

/// Notifications that a server sends before the listening stream of a new session is open are lost; the gateway
/// makes up for them.
#[tokio::test]
async fn an_update_between_subscription_and_listening_stream_is_notified() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let rialto = group(&[&web]).await;
    rialto.group().wait_ready(Revision::NEWEST).await;
    web.wait_received("GET", 1).await; // the catalog's
    web.hold_responses("GET");
    let session = rialto.open("2025-11-25").await;
    let mut events = session.get().go().await.events();
    subscribe(&session, "res://one").await;
    web.wait_received("GET", 2).await;
    web.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
    web.open("GET");
    assert_eq!(within_timeout("the update notification", updated(&mut events)).await["uri"], "res://one");
}

/// A burst of changes that overflows the channel loses no notification.
#[tokio::test]
async fn the_last_update_of_a_burst_is_notified() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    subscribe(&session, "elements://spotlight").await;
    let mut events = session.get().go().await.events();
    until("the stream is attached", || rialto.inbound.sessions.stats().open_streams == 1).await;
    let group = rialto.group();
    // The test runtime has one thread, so no receiver runs during the burst.
    group.publish(ChangeEvent::ResourceUpdated("elements://spotlight".into()));
    for _ in 0..5000 {
        group.publish(ChangeEvent::ResourceUpdated("elements://other".into()));
    }
    assert_eq!(within_timeout("the update notification", updated(&mut events)).await["uri"], "elements://spotlight");
}
