//! What must come before what, whatever the timing: the end of a session after everything that is sent in it, and a
//! change after the subscription that is to hear of it.

use rialto::call::ChangeEvent;

use super::*;
use crate::harness::{Events, Session};
use crate::puppet::Mischief;

/// How long to look whether something happens that must not.
const A_WHILE: Duration = Duration::from_millis(300);

/// A request that the server has not read keeps its session from being ended, even when nobody waits for the answer any
/// more: it is on a connection of its own, and could arrive after the end.
#[tokio::test]
async fn a_session_is_not_ended_before_what_is_in_flight_in_it_is_read() {
    for speaks in [Speaks::Http, Speaks::Sse] {
        let web = Puppet::start("web", speaks).await;
        let mut spec = spec(&web);
        spec.settings.stop_timeout = PATIENCE;
        spec.settings.ping_interval = None;
        let rialto = gateway(together(vec![spec])).await;
        rialto.group().wait_ready().await;
        web.misbehave("tools/list", Mischief::Late);
        web.change("notifications/tools/list_changed", |_| {});
        web.sees("late tools/list", 1).await;
        let upstream = Arc::clone(&upstreams(&rialto)["web"]);
        let stopping = tokio::spawn(async move { upstream.stop().await });
        let ended = tokio::time::timeout(A_WHILE, until("the session has ended", || web.sessions() == 0)).await;
        assert!(ended.is_err(), "{speaks:?}: the session ends while a request is on its way");
        web.open("tools/list");
        until("the session has ended", || web.sessions() == 0).await;
        in_time("the upstream has stopped", stopping).await.unwrap();
        let seen = web.seen();
        let of_session: Vec<&str> = seen.iter().map(|seen| &*seen.what).filter(|what| *what != "GET").collect();
        match speaks {
            Speaks::Http => assert_eq!(of_session.last(), Some(&"DELETE"), "{of_session:?}"),
            _ => assert!(of_session.contains(&"tools/list"), "{of_session:?}"),
        }
    }
}

/// The next word on a resource.
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

/// A server that is slow to open the listening stream of a new session forgets what it says before that is there.
#[tokio::test]
async fn a_change_between_a_subscription_and_the_first_listening_stream_is_told() {
    let web = Puppet::start("web", Speaks::Http).await;
    let rialto = group(&[&web]).await;
    rialto.group().wait_ready().await;
    web.sees("GET", 1).await; // the catalog's
    web.hold("GET");
    let session = rialto.open("2025-11-25").await;
    let mut events = session.get().go().await.events();
    subscribe(&session, "res://one").await;
    web.sees("GET", 2).await;
    web.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
    web.open("GET");
    assert_eq!(in_time("the change is told", updated(&mut events)).await["uri"], "res://one");
}

/// Those who listen are told of everything when changes come faster than they are passed on.
#[tokio::test]
async fn the_last_change_of_a_burst_is_told_to_sessions() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    subscribe(&session, "elements://spotlight").await;
    let mut events = session.get().go().await.events();
    until("the stream is attached", || rialto.inbound.sessions.stats().streams == 1).await;
    let group = rialto.group();
    // Nothing else runs meanwhile: this test has one thread.
    group.publish(ChangeEvent::Updated("elements://spotlight".into()));
    for _ in 0..5000 {
        group.publish(ChangeEvent::Updated("elements://other".into()));
    }
    assert_eq!(in_time("the change is told", updated(&mut events)).await["uri"], "elements://spotlight");
}
