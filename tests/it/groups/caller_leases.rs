//! A client without a session has one lease at a server that keeps sessions: its calls, reads, subscriptions, listeners and
//! lists use one upstream session.

use super::*;
use crate::harness::{Events, modern};
use crate::scripted_server::InjectedFault;

const TRANSPORTS: [ServerTransport; 3] = [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio];
const ONE: &str = "res://one";
const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

/// An upstream whose leases last as long as a test: none ends between two of its calls.
fn lasting(server: &ScriptedServer) -> UpstreamSpec {
    let mut spec = spec(server);
    spec.lease_idle_timeout = 10 * TEST_TIMEOUT;
    spec
}

/// Gateway with these servers in the default group, whose leases last.
async fn lasting_group(servers: &[&ScriptedServer]) -> Rialto {
    gateway(default_group_of(servers.iter().map(|server| lasting(server)).collect())).await
}

/// Sends a per-request-era request with these client capabilities; returns the response.
async fn ask_with(rialto: &Rialto, capabilities: &Value, method: &str, mut params: Value) -> Value {
    let mut body = modern(1.into(), method, params.take());
    body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities.clone();
    let post = rialto.post("/mcp", &body).modern_headers(method, &body["params"]);
    within_timeout(method, async { post.answer().await.1 }).await
}

async fn call_with(rialto: &Rialto, capabilities: &Value, steps: Value) -> Value {
    let params = json!({ "name": "do", "arguments": { "steps": steps } });
    report(&ask_with(rialto, capabilities, "tools/call", params).await["result"])
}

async fn tools_with(rialto: &Rialto, capabilities: &Value) -> Vec<String> {
    column(&ask_with(rialto, capabilities, "tools/list", json!({})).await["result"], "tools", "name")
}

/// Opens a listen stream; returns what was acknowledged and the stream.
async fn listen(rialto: &Rialto, notifications: Value) -> (Value, Events) {
    let sending = rialto.modern("subscriptions/listen", json!({ "notifications": notifications }));
    within_timeout("acknowledged", async {
        let mut events = sending.go().await.events();
        let first = events.message().await.unwrap();
        (first["params"]["notifications"].clone(), events)
    })
    .await
}

#[tokio::test]
async fn a_stateless_client_hears_and_lists_what_its_calls_did() {
    for transport in TRANSPORTS {
        let server = ScriptedServer::start("server", transport).await;
        let rialto = lasting_group(&[&server]).await;
        let none = json!({});
        let wanted = json!({ "toolsListChanged": true, "resourceSubscriptions": [ONE] });
        let (granted, mut events) = listen(&rialto, wanted.clone()).await;
        assert_eq!(granted, wanted, "{transport:?}");
        let first = call_with(&rialto, &none, json!([{ "touch": ONE }])).await;
        let told = within_timeout("an update", events.message()).await.unwrap();
        assert_eq!(told["method"], "notifications/resources/updated", "{transport:?}");
        assert_eq!(told["params"]["uri"], ONE, "{transport:?}");
        let second = call_with(&rialto, &none, json!([{ "grow": "more" }])).await;
        assert_eq!(second["session"], first["session"], "{transport:?}");
        let told = within_timeout("a list change", events.message()).await.unwrap();
        assert_eq!(told["method"], TOOLS_CHANGED, "{transport:?}");
        assert_eq!(tools_with(&rialto, &none).await, ["echo", "do", "more"], "{transport:?}");
        // A client that may be asked other things has another lease.
        let sampling = json!({ "sampling": {} });
        let other = call_with(&rialto, &sampling, json!([])).await;
        assert_ne!(other["session"], first["session"], "{transport:?}");
        assert_eq!(tools_with(&rialto, &sampling).await, ["echo", "do"], "{transport:?}");
        assert_eq!(server.sessions(), 3, "{transport:?}: the catalog's and two leases");
        drop(events);
        server.wait_received("resources/unsubscribe", 1).await;
    }
}

#[tokio::test]
async fn grown_tools_of_a_stateless_client_can_be_called_in_a_group() {
    let (one, other) = (
        ScriptedServer::start("one", ServerTransport::Stdio).await,
        ScriptedServer::start("other", ServerTransport::Http).await,
    );
    let rialto = lasting_group(&[&one, &other]).await;
    let uri = format!("rialto://one/{ONE}");
    let wanted = json!({ "toolsListChanged": true, "resourceSubscriptions": [uri] });
    let (granted, mut events) = listen(&rialto, wanted.clone()).await;
    assert_eq!(granted, wanted);
    let call = async |name: &str, steps: Value| {
        let params = json!({ "name": name, "arguments": { "steps": steps } });
        report(&ask_with(&rialto, &json!({}), "tools/call", params).await["result"])
    };
    call("one__do", json!([{ "touch": ONE }, { "grow": "more" }])).await;
    assert_eq!(within_timeout("an update", events.message()).await.unwrap()["params"]["uri"], uri);
    assert_eq!(within_timeout("a change", events.message()).await.unwrap()["method"], TOOLS_CHANGED);
    assert_eq!(call("one__more", json!([])).await["tool"], "more");
    assert_eq!(
        tools_with(&rialto, &json!({})).await,
        ["one__echo", "one__do", "one__more", "other__echo", "other__do"]
    );
}

#[tokio::test]
async fn spellings_of_client_capabilities_do_not_multiply_leases() {
    for transport in TRANSPORTS {
        let server = ScriptedServer::start("server", transport).await;
        let rialto = lasting_group(&[&server]).await;
        let mut sessions = std::collections::BTreeSet::new();
        for n in 0..40 {
            let capabilities = json!({ "experimental": { "n": n }, "elicitation": { "form": { "n": n } } });
            sessions.insert(call_with(&rialto, &capabilities, json!([])).await["session"].to_string());
        }
        assert_eq!((sessions.len(), server.sessions()), (1, 2), "{transport:?}");
    }
}

#[tokio::test]
async fn parallel_calls_of_a_stateless_client_share_its_lease() {
    for transport in TRANSPORTS {
        let server = ScriptedServer::start("server", transport).await;
        let rialto = lasting_group(&[&server]).await;
        let (client, host) = client(&rialto, ClientTransport::PerRequest, "ada").await;
        let ask = json!({ "ask": { "method": "roots/list" } });
        let one = async |gate: &str| call(&client, "do", json!({ "steps": [{ "wait": gate }, ask] })).await;
        let opening = async {
            server.wait_received("tools/call", 2).await;
            server.open("go");
        };
        let (first, second, ()) =
            within_timeout("both answers", async { tokio::join!(one("go"), one("go"), opening) }).await;
        assert_eq!(first["session"], second["session"], "{transport:?}");
        for report in [first, second] {
            assert_eq!(report["answers"][0]["roots"][0]["uri"], "file:///ada", "{transport:?}: {report}");
        }
        assert_eq!(host.server_requests().len(), 2, "{transport:?}");
    }
}

/// Two clients with sessions, and a server that has room for the lease of one.
async fn two_clients_for_one_lease(server: &ScriptedServer) -> (Rialto, Client, Client) {
    let mut spec = lasting(server);
    spec.max_leases = 1;
    let rialto = gateway(default_group_of(vec![spec])).await;
    let (ada, _) = client(&rialto, ClientTransport::Http, "ada").await;
    let (bob, _) = client(&rialto, ClientTransport::Http, "bob").await;
    (rialto, ada, bob)
}

#[tokio::test]
async fn an_idle_lease_is_closed_before_anybody_is_refused() {
    for transport in TRANSPORTS {
        let server = ScriptedServer::start("server", transport).await;
        let (rialto, ada, bob) = two_clients_for_one_lease(&server).await;
        let sessions =
            [call(&ada, "do", json!({})).await, call(&bob, "do", json!({})).await].map(|one| one["session"].clone());
        assert_ne!(sessions[0], sessions[1], "{transport:?}");
        assert_eq!(call(&ada, "do", json!({})).await["calls"], 1, "{transport:?}: a session of its own again");
        assert_eq!(call_with(&rialto, &json!({}), json!([])).await["calls"], 1, "{transport:?}");
        until("the closed ones are gone", || server.sessions() == 2).await;
        assert_eq!(upstreams(&rialto)["server"].lease_count(), 1);
    }
}

#[tokio::test]
async fn one_caller_cannot_take_every_lease() {
    let server = ScriptedServer::start("server", ServerTransport::Http).await;
    let mut spec = lasting(&server);
    spec.max_leases_per_caller = 1;
    let rialto = gateway(default_group_of(vec![spec])).await;
    for capabilities in [json!({}), json!({ "roots": {} }), json!({ "sampling": {} })] {
        call_with(&rialto, &capabilities, json!([])).await;
    }
    assert_eq!(upstreams(&rialto)["server"].lease_count(), 1);
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_costs_no_lease() {
    for transport in TRANSPORTS {
        let server = ScriptedServer::start("server", transport).await;
        let (rialto, ada, bob) = two_clients_for_one_lease(&server).await;
        let error = json!({ "code": -32603, "message": "not now" });
        server.inject_fault("initialize", InjectedFault::Error(error));
        assert_eq!(refused(&ada, "tools/call", json!({ "name": "do" })).await.0, -32603, "{transport:?}");
        assert_eq!(upstreams(&rialto)["server"].lease_count(), 0, "{transport:?}");
        server.clear_faults();
        assert_eq!(call(&bob, "do", json!({})).await["server"], "server", "{transport:?}");
    }
}
