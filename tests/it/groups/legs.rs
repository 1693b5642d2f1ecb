//! Servers that speak both eras: each client gets the leg of its own era, and a leg that nobody uses costs nothing.

use rialto::dialect::LegRule;

use super::*;
use crate::scripted_server::{DualServer, ServerCatalog, tool};
use crate::servers::{Served, Spawned, TYPESCRIPT_LEGS};

const TRANSPORTS: [ServerTransport; 2] = [ServerTransport::Http, ServerTransport::Stdio];

/// A tool that both legs have, each with a schema of its own.
fn common_tool(property: &str) -> Value {
    json!({ "name": "do", "inputSchema": { "type": "object", "properties": { property: { "type": "string" } } } })
}

fn handshake_catalog(catalog: &mut ServerCatalog) {
    catalog.tools = vec![common_tool("old"), tool("oldOnly")];
    catalog.instructions = Some("by handshake".into());
}

/// Fewer capabilities than the handshake leg has.
fn per_request_catalog(catalog: &mut ServerCatalog) {
    let changes = json!({ "listChanged": true });
    catalog.capabilities = json!({ "tools": changes, "resources": { "listChanged": true, "subscribe": true } });
    catalog.tools = vec![common_tool("new"), tool("newOnly")];
    catalog.instructions = Some("by request".into());
}

/// A server whose legs differ in capabilities, tools and schemas.
async fn dual(transport: ServerTransport) -> DualServer {
    let handshake = ScriptedServer::with("old", transport, handshake_catalog).await;
    let per_request = ScriptedServer::with("new", ServerTransport::PerRequest, per_request_catalog).await;
    DualServer::start(handshake, per_request).await
}

fn dual_spec(dual: &DualServer) -> UpstreamSpec {
    upstream("dual", dual.target())
}

async fn dual_group(dual: &DualServer) -> Rialto {
    gateway(default_group_of(vec![dual_spec(dual)])).await
}

fn capabilities(client: &Client) -> Vec<String> {
    let mut names: Vec<_> = client.server().capabilities.entries().map(|(name, _)| name.into_owned()).collect();
    names.sort();
    names
}

/// The property of the tool that both legs have.
async fn common_property(client: &Client) -> String {
    let listed = ask(client, "tools/list", json!({})).await;
    let property = listed["tools"][0]["inputSchema"]["properties"].as_object().unwrap().keys().next().cloned();
    property.unwrap()
}

#[tokio::test]
async fn each_client_gets_the_leg_of_its_own_era() {
    for transport in TRANSPORTS {
        let dual = dual(transport).await;
        let rialto = dual_group(&dual).await;
        let (new, _) = client(&rialto, ClientTransport::PerRequest, "new").await;
        assert_eq!(capabilities(&new), ["resources", "tools"], "{transport:?}");
        assert_eq!(tools(&new).await, ["do", "newOnly"], "{transport:?}");
        assert_eq!(common_property(&new).await, "new", "{transport:?}");
        assert_eq!(call(&new, "do", json!({})).await["server"], "new", "{transport:?}");
        assert_eq!(dual.handshake.received().len(), 0, "{transport:?}: a leg that nobody uses costs nothing");

        for client_transport in [ClientTransport::Http, ClientTransport::Sse] {
            let (old, host) = client(&rialto, client_transport, "old").await;
            let offered = ["completions", "logging", "prompts", "resources", "tools"];
            assert_eq!(capabilities(&old), offered, "{transport:?}");
            assert_eq!(value(old.server().instructions.as_ref().unwrap()), "by handshake", "{transport:?}");
            assert_eq!(tools(&old).await, ["do", "oldOnly"], "{transport:?}");
            assert_eq!(common_property(&old).await, "old", "{transport:?}");
            let form = json!({ "method": "elicitation/create",
                "params": { "message": "who?", "requestedSchema": { "type": "object", "properties": {} } } });
            let report = call(&old, "do", json!({ "steps": [{ "ask": form }] })).await;
            assert_eq!(report["server"], "old", "{transport:?}");
            assert_eq!(report["answers"][0]["content"]["name"], "old", "{transport:?}");
            assert_eq!(host.server_requests().len(), 1, "{transport:?}");
            ask(&old, "resources/subscribe", json!({ "uri": "res://one" })).await;
            dual.handshake.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
            let updated = || host.notifications(&NotificationMethod::ResourceUpdated).len() == 1;
            until("the session hears of its resource", updated).await;
            old.close().await;
        }
        assert_eq!(tools(&new).await, ["do", "newOnly"], "{transport:?}");
        assert_eq!(dual.per_request.count("initialize"), 0, "{transport:?}");
    }
}

#[tokio::test]
async fn a_client_of_one_server_waits_for_its_own_leg() {
    for transport in TRANSPORTS {
        let dual = dual(transport).await;
        let mut spec = dual_spec(&dual);
        spec.settings.discovery_timeout = 3 * TEST_TIMEOUT;
        let rialto = gateway(default_group_of(vec![spec])).await;
        dual.handshake.hold_responses("initialize");
        let opening = client(&rialto, ClientTransport::Http, "old");
        tokio::pin!(opening);
        // Longer than clients of a group of several servers would wait.
        let early = tokio::time::timeout(Duration::from_secs(6), &mut opening).await;
        assert!(early.is_err(), "{transport:?}: answered before its leg was known");
        dual.handshake.open("initialize");
        let (old, _) = within_timeout("the client is connected", opening).await;
        assert_eq!(call(&old, "do", json!({})).await["server"], "old", "{transport:?}");
    }
}

#[tokio::test]
async fn changes_of_a_leg_reach_only_the_clients_it_serves() {
    for transport in TRANSPORTS {
        let dual = dual(transport).await;
        let rialto = dual_group(&dual).await;
        let (old, old_host) = client(&rialto, ClientTransport::Http, "old").await;
        assert_eq!(tools(&old).await, ["do", "oldOnly"]);
        let listen = json!({ "notifications": { "toolsListChanged": true, "promptsListChanged": true } });
        let mut listening = rialto.modern("subscriptions/listen", listen).go().await.events();
        let granted = listening.message().await.unwrap();
        assert_eq!(granted["params"]["notifications"], json!({ "toolsListChanged": true }), "{transport:?}");
        let notice = "notifications/tools/list_changed";
        dual.per_request.change(notice, |catalog| catalog.tools.push(tool("newer")));
        assert_eq!(listening.message().await.unwrap()["method"], notice, "{transport:?}");
        dual.handshake.change(notice, |catalog| catalog.tools.push(tool("older")));
        let changed = || old_host.notifications(&NotificationMethod::ToolsChanged).len() == 1;
        until("the session hears of the change of its leg", changed).await;
        assert_eq!(tools(&old).await, ["do", "oldOnly", "older"], "{transport:?}");
        dual.per_request.change(notice, |catalog| catalog.tools.push(tool("newest")));
        assert_eq!(listening.message().await.unwrap()["method"], notice, "{transport:?}");
        assert!(changed(), "{transport:?}: the change of the other leg is none for the session");
    }
}

#[tokio::test]
async fn a_handshake_leg_without_sessions_gives_way_to_one_that_can_ask() {
    let handshake = ScriptedServer::with("old", ServerTransport::Stateless, per_request_catalog).await;
    let per_request = ScriptedServer::with("new", ServerTransport::PerRequest, per_request_catalog).await;
    let dual = DualServer::start(handshake, per_request).await;
    let rialto = dual_group(&dual).await;
    let (old, host) = client(&rialto, ClientTransport::Http, "old").await;
    let form = json!({ "method": "elicitation/create",
        "params": { "message": "who?", "requestedSchema": { "type": "object", "properties": {} } } });
    let report = call(&old, "do", json!({ "steps": [{ "ask": form }] })).await;
    assert_eq!(report["server"], "new");
    assert_eq!(host.server_requests().len(), 1);
    let (second, _) = client(&rialto, ClientTransport::Http, "second").await;
    assert_eq!(call(&second, "do", json!({})).await["server"], "new");
    assert_eq!(dual.handshake.count("initialize"), 1, "the legs are compared once");
    let reports = upstreams(&rialto)["dual"].leg_reports();
    let [new_leg, old_leg] = reports.as_slice() else { panic!("{reports:?}") };
    assert_eq!(new_leg.clients.len(), 5);
    assert_eq!((old_leg.clients.len(), old_leg.facts.reaches_client), (0, false));
    assert!(old_leg.why.as_ref().unwrap().contains("session"), "{old_leg:?}");
}

#[tokio::test]
async fn a_stateless_handshake_leg_that_offers_more_is_kept() {
    let handshake = ScriptedServer::with("old", ServerTransport::Stateless, handshake_catalog).await;
    let per_request = ScriptedServer::with("new", ServerTransport::PerRequest, per_request_catalog).await;
    let dual = DualServer::start(handshake, per_request).await;
    let rialto = dual_group(&dual).await;
    let (old, _) = client(&rialto, ClientTransport::Http, "old").await;
    assert_eq!(tools(&old).await, ["do", "oldOnly"]);
    assert_eq!(call(&old, "do", json!({})).await["server"], "old");
}

#[tokio::test]
async fn a_server_without_a_handshake_leg_is_asked_for_it_once() {
    for transport in [ServerTransport::Stdio, ServerTransport::Http] {
        let refusal = ScriptedServer::start("old", transport).await;
        let error = json!({ "code": -32601, "message": "no handshake here" });
        refusal.inject_fault("initialize", crate::scripted_server::InjectedFault::Error(error));
        let per_request = ScriptedServer::with("new", ServerTransport::PerRequest, per_request_catalog).await;
        let dual = DualServer::start(refusal, per_request).await;
        let rialto = dual_group(&dual).await;
        for name in ["first", "second"] {
            let (old, _) = client(&rialto, ClientTransport::Http, name).await;
            assert_eq!(call(&old, "do", json!({})).await["server"], "new", "{transport:?}");
        }
        assert_eq!(dual.handshake.count("initialize"), 1, "{transport:?}");
        let is_gone = || transport != ServerTransport::Stdio || dual.handshake.sessions() == 0;
        until("the child of the leg is gone", is_gone).await;
        assert_eq!(upstreams(&rialto)["dual"].leg_reports().len(), 1, "{transport:?}");
    }
}

#[tokio::test]
async fn legs_can_be_set_for_all_clients_of_a_server() {
    for transport in TRANSPORTS {
        for (rule, server) in [(LegRule::Handshake, "old"), (LegRule::PerRequest, "new")] {
            let dual = dual(transport).await;
            let spec = UpstreamSpec { leg_rule: rule, ..dual_spec(&dual) };
            let rialto = gateway(default_group_of(vec![spec])).await;
            for client_transport in CLIENT_TRANSPORTS {
                let (one, _) = client(&rialto, client_transport, "one").await;
                assert_eq!(call(&one, "do", json!({})).await["server"], server, "{transport:?} {rule:?}");
            }
            let unused = if rule == LegRule::Handshake { &dual.per_request } else { &dual.handshake };
            assert_eq!(unused.received().len(), 0, "{transport:?} {rule:?}");
        }
    }
}

#[tokio::test]
async fn a_group_is_made_of_the_legs_of_the_clients_era() {
    let (one, other) = (dual(ServerTransport::Http).await, ScriptedServer::start("other", ServerTransport::Http).await);
    let rialto = gateway(default_group_of(vec![dual_spec(&one), spec(&other)])).await;
    let (new, _) = client(&rialto, ClientTransport::PerRequest, "new").await;
    let (old, _) = client(&rialto, ClientTransport::Http, "old").await;
    assert_eq!(tools(&new).await, ["dual__do", "dual__newOnly", "other__echo", "other__do"]);
    assert_eq!(tools(&old).await, ["dual__do", "dual__oldOnly", "other__echo", "other__do"]);
    for (client, server) in [(&new, "new"), (&old, "old")] {
        assert_eq!(call(client, "dual__do", json!({})).await["server"], server);
        assert_eq!(call(client, "other__do", json!({})).await["server"], "other");
    }
}

#[tokio::test]
async fn both_legs_end_with_the_gateway() {
    for transport in TRANSPORTS {
        let dual = dual(transport).await;
        let mut rialto = dual_group(&dual).await;
        let (old, _) = client(&rialto, ClientTransport::Http, "old").await;
        call(&old, "do", json!({})).await;
        assert!(dual.handshake.sessions() > 0, "{transport:?}");
        rialto.begin_stop();
        rialto.stopped().await;
        until("no session is left open", || dual.handshake.sessions() == 0).await;
    }
}

/// A server of the official TypeScript SDK whose two eras differ, at `/mcp` or as a child.
async fn check_sdk_legs(target: Target) {
    let mut spec = upstream("legs", target.clone());
    // SDK servers start slowly while all tests run.
    spec.settings = ConnectionSettings { discovery_timeout: TEST_TIMEOUT, ping_interval: None, ..spec.settings };
    let rialto = gateway(default_group_of(vec![spec])).await;
    until("the upstream is settled", || rialto.group().view(Revision::NEWEST).all_settled()).await;
    let old_offers = ["completions", "logging", "prompts", "tools"].as_slice();
    let new_offers = ["resources", "tools"].as_slice();
    for (transport, leg, offered) in [
        (ClientTransport::PerRequest, "new", new_offers),
        (ClientTransport::Http, "old", old_offers),
        (ClientTransport::Sse, "old", old_offers),
        (ClientTransport::PerRequest, "new", new_offers),
    ] {
        let (client, host) = client(&rialto, transport, leg).await;
        assert_eq!(capabilities(&client), offered, "{transport:?}");
        let instructions = client.server().instructions.as_ref().map(value);
        assert_eq!(instructions, Some(format!("the {leg} leg").into()), "{transport:?}");
        assert_eq!(tools(&client).await, ["do".to_owned(), format!("{leg}Only")], "{transport:?}");
        assert_eq!(common_property(&client).await, leg, "{transport:?}");
        let report = call(&client, "do", json!({ leg: "given" })).await;
        let expected = json!({ "leg": leg, "given": { leg: "given" }, "answer": { "name": leg } });
        assert_eq!((&report["leg"], &report["given"]), (&expected["leg"], &expected["given"]), "{transport:?}");
        assert_eq!(report["answer"]["name"], leg, "{transport:?}: the leg asks its own client");
        assert_eq!(host.server_requests().len(), 1, "{transport:?}");
        match transport {
            ClientTransport::PerRequest => {
                let read = ask(&client, "resources/read", json!({ "uri": "test://news" })).await;
                assert_eq!(read["contents"][0]["text"], "news");
                refused(&client, "prompts/get", json!({ "name": "greet", "arguments": { "word": "x" } })).await;
            }
            _ => {
                let greeting = json!({ "name": "greet", "arguments": { "word": "older" } });
                let greeting = ask(&client, "prompts/get", greeting).await;
                assert_eq!(greeting["messages"][0]["content"]["text"], "older");
                refused(&client, "resources/read", json!({ "uri": "test://news" })).await;
            }
        }
        let other = if leg == "new" { "oldOnly" } else { "newOnly" };
        refused(&client, "tools/call", json!({ "name": other, "arguments": {} })).await;
        client.close().await;
    }
}

#[tokio::test]
async fn clients_see_their_own_leg_of_an_sdk_server_over_http() {
    let served = Served::start(TYPESCRIPT_LEGS, &["http", "0"]).await;
    check_sdk_legs(served.target("/mcp")).await;
}

#[tokio::test]
async fn clients_see_their_own_leg_of_an_sdk_server_over_stdio() {
    let spawned = Spawned::new(TYPESCRIPT_LEGS, &["stdio"]).await;
    check_sdk_legs(spawned.target.clone()).await;
}
