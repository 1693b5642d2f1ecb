//! Subscriptions over the connection that all clients share: answered with what the server said, bounded, and never in
//! the way of anybody else.

use futures_util::FutureExt;
use rialto::upstream::ConnectionMode;

use super::*;
use crate::scripted_server::{InjectedFault, tool};

const TRANSPORTS: [ServerTransport; 4] =
    [ServerTransport::Http, ServerTransport::Sse, ServerTransport::PerRequest, ServerTransport::Stdio];

async fn shared_gateway(server: &ScriptedServer) -> Rialto {
    let mut shared = spec(server);
    shared.connection_mode = ConnectionMode::Shared;
    let rialto = gateway(default_group_of(vec![shared])).await;
    let state = || upstreams(&rialto)[&server.name].state();
    until("the lists are read", || state().startup_finished && state().list(rialto::upstream::List::Tools).is_some())
        .await;
    rialto
}

#[tokio::test]
async fn a_shared_subscription_is_answered_with_what_the_server_said() {
    for transport in TRANSPORTS {
        let server = ScriptedServer::with("server", transport, |catalog| {
            catalog.unsubscribable.push("res://never".into());
        })
        .await;
        let rialto = shared_gateway(&server).await;
        let (client, host) = client(&rialto, ClientTransport::Http, "ada").await;
        ask(&client, "resources/subscribe", json!({ "uri": "res://one" })).await;
        server.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
        let updates = || host.notifications(&NotificationMethod::ResourceUpdated).len();
        until("the update is told", || updates() > 0).await;
        for _ in 0..2 {
            let (code, text) = refused(&client, "resources/subscribe", json!({ "uri": "res://never" })).await;
            assert_eq!(code, -32602, "{transport:?} {text}");
            let said = if transport == ServerTransport::PerRequest { "does not tell" } else { "not to be told of" };
            assert!(text.contains(said), "{transport:?} {text}");
        }
        // The same URI can be subscribed to again after the last subscriber has gone.
        ask(&client, "resources/unsubscribe", json!({ "uri": "res://one" })).await;
        ask(&client, "resources/subscribe", json!({ "uri": "res://one" })).await;
        let before = updates();
        until("an update is told again", || {
            server.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
            updates() > before
        })
        .await;
    }
}

#[tokio::test]
async fn a_slow_subscription_waits_for_the_server_and_delays_nobody() {
    for transport in [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio] {
        let server = ScriptedServer::start("server", transport).await;
        let rialto = shared_gateway(&server).await;
        let (client, host) = client(&rialto, ClientTransport::Http, "ada").await;
        ask(&client, "resources/subscribe", json!({ "uri": "res://one" })).await;
        let one = server.count("resources/subscribe");
        server.hold_responses("resources/subscribe");
        let slow = ask(&client, "resources/subscribe", json!({ "uri": "res://item/slow" }));
        tokio::pin!(slow);
        tokio::select! {
            _ = &mut slow => panic!("{transport:?}: answered before the server spoke"),
            () = server.wait_received("resources/subscribe", one + 1) => {}
        }
        // Meanwhile other resources and lists are told of.
        server.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
        server.change("notifications/tools/list_changed", |catalog| catalog.tools.push(tool("more")));
        let told = |notice| !host.notifications(&notice).is_empty();
        until("the update is told", || told(NotificationMethod::ResourceUpdated)).await;
        until("the list change is told", || told(NotificationMethod::ToolsChanged)).await;
        assert!(slow.as_mut().now_or_never().is_none(), "{transport:?}: answered before the server spoke");
        server.open("resources/subscribe");
        slow.await;
    }
}

#[tokio::test]
async fn a_list_that_hangs_delays_no_subscription_and_no_other_list() {
    for transport in TRANSPORTS {
        let server = ScriptedServer::start("server", transport).await;
        let rialto = shared_gateway(&server).await;
        let (client, host) = client(&rialto, ClientTransport::Http, "ada").await;
        let reads = server.count("tools/list");
        server.inject_fault("tools/list", InjectedFault::Hang);
        server.notify("notifications/tools/list_changed", &json!({}));
        server.wait_received("tools/list", reads + 1).await;
        ask(&client, "resources/subscribe", json!({ "uri": "res://one" })).await;
        let changed = json!({ "name": "another" });
        server.change("notifications/prompts/list_changed", |catalog| catalog.prompts.push(changed));
        let told = |notice| !host.notifications(&notice).is_empty();
        until("the list change is told", || told(NotificationMethod::PromptsChanged)).await;
    }
}

#[tokio::test]
async fn a_listen_for_more_resources_than_allowed_is_refused() {
    let server = ScriptedServer::start("server", ServerTransport::Http).await;
    let rialto = Rialto::with(|settings| {
        settings.gateway = default_group_of(vec![spec(&server)]);
        settings.sessions.max_subscriptions = 40;
    })
    .await;
    let listen = |count: usize| {
        let uris: Vec<String> = (0..count).map(|n| format!("res://item/{n}")).collect();
        rialto.modern("subscriptions/listen", json!({ "notifications": { "resourceSubscriptions": uris } }))
    };
    until("it is connected", || upstreams(&rialto)["server"].state().startup_finished).await;
    let mut events = listen(40).go().await.events();
    let acknowledged = within_timeout("the acknowledgement", events.message()).await.unwrap();
    let granted = acknowledged["params"]["notifications"]["resourceSubscriptions"].as_array().map(Vec::len);
    assert_eq!(granted, Some(40), "{acknowledged}");
    let (_, answer) = listen(41).answer().await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("may name 40 resources"), "{answer}");
}
