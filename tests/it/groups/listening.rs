//! `subscriptions/listen`: which subscriptions are acknowledged and when, and which list changes are notified.

use tokio::task::JoinHandle;

use super::*;
use crate::harness::Events;
use crate::scripted_server::InjectedFault;

const KINDS: [ServerTransport; 3] = [ServerTransport::Http, ServerTransport::Stdio, ServerTransport::PerRequest];
const ONE: &str = "res://one";

/// Opens a listen stream; yields the acknowledged subscriptions and the stream.
fn listen(rialto: &Rialto, notifications: Value) -> JoinHandle<(Value, Events)> {
    let sending = rialto.modern("subscriptions/listen", json!({ "notifications": notifications }));
    tokio::spawn(async move {
        let mut events = sending.go().await.events();
        let first = events.message().await.unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
        (first["params"]["notifications"].clone(), events)
    })
}

/// Method with which the gateway subscribes to a resource at this server, and how often the catalog connection alone
/// has used it.
fn subscribe_method(scripted: &ScriptedServer) -> (&'static str, usize) {
    match scripted.transport() {
        ServerTransport::PerRequest => ("subscriptions/listen", 1),
        _ => ("resources/subscribe", 0),
    }
}

async fn ready(rialto: &Rialto) {
    assert_eq!(rialto.modern("tools/list", json!({})).go().await.status, 200);
}

#[tokio::test]
async fn a_subscription_is_acknowledged_after_the_upstream_acknowledged_it() {
    for transport in KINDS {
        let one = ScriptedServer::start("one", transport).await;
        let rialto = group(&[&one]).await;
        ready(&rialto).await;
        let (method, before) = subscribe_method(&one);
        one.hold_responses(method);
        let listening = listen(&rialto, json!({ "toolsListChanged": true, "resourceSubscriptions": [ONE] }));
        one.wait_received(method, before + 1).await;
        ready(&rialto).await;
        assert!(!listening.is_finished(), "{transport:?}: the upstream has not acknowledged yet");
        one.open(method);
        let (granted, mut events) = within_timeout("acknowledged", listening).await.unwrap();
        assert_eq!(granted, json!({ "toolsListChanged": true, "resourceSubscriptions": [ONE] }), "{transport:?}");
        // Notifications arrive from the acknowledgement on.
        one.notify("notifications/resources/updated", &json!({ "uri": ONE }));
        assert_eq!(events.message().await.unwrap()["params"]["uri"], ONE, "{transport:?}");
        // A second listener joins the existing subscription and does not wait for the upstream.
        one.close(method);
        let (granted, _) =
            within_timeout("acknowledged", listen(&rialto, json!({ "resourceSubscriptions": [ONE] }))).await.unwrap();
        assert_eq!(granted, json!({ "resourceSubscriptions": [ONE] }), "{transport:?}");
        assert_eq!(one.count(method), before + 1, "{transport:?}");
    }
}

#[tokio::test]
async fn a_subscription_refused_by_the_upstream_is_not_acknowledged() {
    for transport in KINDS {
        let one =
            ScriptedServer::with("one", transport, |catalog| catalog.unsubscribable = vec!["res://item/secret".into()])
                .await;
        let rialto = group(&[&one]).await;
        let filter = json!({ "resourceSubscriptions": ["res://item/secret", ONE] });
        let (granted, _events) = within_timeout("acknowledged", listen(&rialto, filter)).await.unwrap();
        assert_eq!(granted, json!({ "resourceSubscriptions": [ONE] }), "{transport:?}");
    }
}

#[tokio::test]
async fn a_hanging_upstream_does_not_block_the_subscription_acknowledgement() {
    let (one, two) = (
        ScriptedServer::start("one", ServerTransport::Http).await,
        ScriptedServer::start("two", ServerTransport::Http).await,
    );
    let rialto = group(&[&one, &two]).await;
    ready(&rialto).await;
    one.inject_fault("resources/subscribe", InjectedFault::Hang);
    let uris = ["rialto://one/res://one", "rialto://two/res://one"];
    let (granted, mut events) =
        within_timeout("acknowledged", listen(&rialto, json!({ "resourceSubscriptions": uris }))).await.unwrap();
    assert_eq!(granted, json!({ "resourceSubscriptions": [uris[1]] }));
    two.notify("notifications/resources/updated", &json!({ "uri": ONE }));
    assert_eq!(events.message().await.unwrap()["params"]["uri"], uris[1]);
}

/// Many servers emit list-changed notifications while they start.
#[tokio::test]
async fn a_list_change_before_the_first_read_is_not_notified() {
    for transport in KINDS {
        let one = ScriptedServer::start("one", transport).await;
        one.hold_responses("tools/list");
        let rialto = group(&[&one]).await;
        one.wait_received("tools/list", 1).await;
        one.notify("notifications/tools/list_changed", &json!({}));
        // The notification precedes the response to a request that was sent after it.
        one.wait_received("resources/templates/list", 1).await;
        one.open("tools/list");
        let session = rialto.open("2025-11-25").await;
        let mut events = session.get().go().await.events();
        // The notification may postdate the held list, so the catalog reads it again.
        one.wait_received("tools/list", 2).await;
        one.change("notifications/prompts/list_changed", |catalog| catalog.prompts.clear());
        let notified = within_timeout("a list-changed notification", events.message()).await.unwrap();
        assert_eq!(notified["method"], "notifications/prompts/list_changed", "{transport:?}");
    }
}
