//! Those who listen: what is acknowledged to them and when, and that nothing is told that is no news.

use tokio::task::JoinHandle;

use super::*;
use crate::harness::Events;
use crate::puppet::Mischief;

const KINDS: [Speaks; 3] = [Speaks::Http, Speaks::Stdio, Speaks::PerRequest];
const ONE: &str = "res://one";

/// Begins to listen; gives what is acknowledged, and the rest.
fn listen(rialto: &Rialto, notifications: Value) -> JoinHandle<(Value, Events)> {
    let sending = rialto.modern("subscriptions/listen", json!({ "notifications": notifications }));
    tokio::spawn(async move {
        let mut events = sending.go().await.events();
        let first = events.message().await.unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
        (first["params"]["notifications"].clone(), events)
    })
}

/// What a puppet is asked so that it tells of a resource, and how often it was before anybody wanted that.
fn asked(puppet: &Puppet) -> (&'static str, usize) {
    match puppet.speaks() {
        Speaks::PerRequest => ("subscriptions/listen", 1),
        _ => ("resources/subscribe", 0),
    }
}

async fn ready(rialto: &Rialto) {
    assert_eq!(rialto.modern("tools/list", json!({})).go().await.status, 200);
}

#[tokio::test]
async fn what_is_acknowledged_was_acknowledged_by_the_upstream() {
    for speaks in KINDS {
        let one = Puppet::start("one", speaks).await;
        let rialto = group(&[&one]).await;
        ready(&rialto).await;
        let (method, before) = asked(&one);
        one.hold(method);
        let listening = listen(&rialto, json!({ "toolsListChanged": true, "resourceSubscriptions": [ONE] }));
        one.sees(method, before + 1).await;
        ready(&rialto).await;
        assert!(!listening.is_finished(), "{speaks:?}: nobody has said yet that it will be told");
        one.open(method);
        let (granted, mut events) = in_time("acknowledged", listening).await.unwrap();
        assert_eq!(granted, json!({ "toolsListChanged": true, "resourceSubscriptions": [ONE] }), "{speaks:?}");
        // It is told from the first moment on.
        one.notify("notifications/resources/updated", &json!({ "uri": ONE }));
        assert_eq!(events.message().await.unwrap()["params"]["uri"], ONE, "{speaks:?}");
        // Whoever comes later does not have to wait for the upstream.
        one.close(method);
        let (granted, _) =
            in_time("acknowledged", listen(&rialto, json!({ "resourceSubscriptions": [ONE] }))).await.unwrap();
        assert_eq!(granted, json!({ "resourceSubscriptions": [ONE] }), "{speaks:?}");
        assert_eq!(one.count(method), before + 1, "{speaks:?}");
    }
}

#[tokio::test]
async fn what_an_upstream_refuses_is_not_acknowledged() {
    for speaks in KINDS {
        let one = Puppet::with("one", speaks, |offers| offers.untold = vec!["res://item/secret".into()]).await;
        let rialto = group(&[&one]).await;
        let wishes = json!({ "resourceSubscriptions": ["res://item/secret", ONE] });
        let (granted, _events) = in_time("acknowledged", listen(&rialto, wishes)).await.unwrap();
        assert_eq!(granted, json!({ "resourceSubscriptions": [ONE] }), "{speaks:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_say_is_not_waited_for_without_end() {
    let (one, two) = (Puppet::start("one", Speaks::Http).await, Puppet::start("two", Speaks::Http).await);
    let rialto = group(&[&one, &two]).await;
    ready(&rialto).await;
    one.misbehave("resources/subscribe", Mischief::Hang);
    let uris = ["rialto://one/res://one", "rialto://two/res://one"];
    let (granted, mut events) =
        in_time("acknowledged", listen(&rialto, json!({ "resourceSubscriptions": uris }))).await.unwrap();
    assert_eq!(granted, json!({ "resourceSubscriptions": [uris[1]] }));
    two.notify("notifications/resources/updated", &json!({ "uri": ONE }));
    assert_eq!(events.message().await.unwrap()["params"]["uri"], uris[1]);
}

/// Many servers say that their lists are others as soon as they begin.
#[tokio::test]
async fn what_changes_before_anybody_sees_it_is_no_news() {
    for speaks in KINDS {
        let one = Puppet::start("one", speaks).await;
        one.hold("tools/list");
        let rialto = group(&[&one]).await;
        one.sees("tools/list", 1).await;
        one.notify("notifications/tools/list_changed", &json!({}));
        // What was said arrives before what is asked for later is answered.
        one.sees("resources/templates/list", 1).await;
        one.open("tools/list");
        let session = rialto.open("2025-11-25").await;
        let mut hears = session.get().go().await.events();
        // It may have come too late for the list, so that is read again.
        one.sees("tools/list", 2).await;
        one.change("notifications/prompts/list_changed", |offers| offers.prompts.clear());
        let heard = in_time("a change", hears.message()).await.unwrap();
        assert_eq!(heard["method"], "notifications/prompts/list_changed", "{speaks:?}");
    }
}
