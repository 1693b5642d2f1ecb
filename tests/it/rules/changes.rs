//! Changes of rules, roles and lists: what each caller is told, and what ends.

use super::*;
use crate::config::TempFolder;
use crate::harness::{HttpRequest, until};
use crate::process::{signal, spawn_gateway};
use crate::scripted_server::{ServerTransport, tool};

const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";
const UPDATED: &str = "notifications/resources/updated";

fn all_lists() -> Value {
    json!({ "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true })
}

/// The method of the next message.
async fn next_method(events: &mut Events) -> String {
    let message = events.message().await.expect("the stream stays open");
    message["method"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned()
}

async fn next_methods(events: &mut Events, count: usize) -> Vec<String> {
    let mut methods = Vec::new();
    for _ in 0..count {
        methods.push(next_method(events).await);
    }
    methods.sort();
    methods
}

#[tokio::test]
async fn reloaded_rules_hold_at_once_and_are_told_to_those_they_concern() {
    let server = ScriptedServer::start("db", ServerTransport::Http).await;
    let bob_does = || callers(&["role:b"]).allow(TargetKind::Tools, &["db/do"]);
    let before = book(vec![callers(&["role:a"]).allow_all(&["db/*"]), bob_does()]);
    let rialto = gateway(scripted(&[&server]), &before).await;
    let ann = Session::open(&rialto, "2025-11-25", Some("ann")).await;
    let bob = Session::open(&rialto, "2025-11-25", Some("bob")).await;
    let mut ann_events = ann.get().go().await.events();
    let mut bob_events = bob.get().go().await.events();
    let mut ann_listens = listen(&rialto, "ann", all_lists()).await.0;
    let mut bob_listens = listen(&rialto, "bob", all_lists()).await.0;
    let tools = |session| async move {
        let session: &Session<'_> = session;
        session.ask("tools/list", json!({})).await["result"]["tools"].as_array().unwrap().len()
    };
    assert_eq!((tools(&ann).await, tools(&bob).await), (2, 1));

    // The same rules again are no change.
    let same = book(vec![callers(&["role:a"]).allow_all(&["db/*"]), bob_does()]);
    rialto.inbound.gateway.apply(&with_rules(scripted(&[&server]), &same));
    // This concerns ann alone,
    let after = book(vec![callers(&["role:a"]).allow(TargetKind::Tools, &["db/echo"]), bob_does()]);
    rialto.inbound.gateway.apply(&with_rules(scripted(&[&server]), &after));
    assert_eq!((tools(&ann).await, tools(&bob).await), (1, 1));
    let called = ann.ask("tools/call", call_of("do")).await;
    assert_eq!(called["error"]["message"], "Unknown tool: do", "in the session that runs");
    for events in [&mut ann_events, &mut ann_listens] {
        assert_eq!(next_methods(events, 3).await, [PROMPTS, RESOURCES, TOOLS]);
    }
    // and this bob alone: it is the first that he hears.
    let prompt = bob_does().allow(TargetKind::Prompts, &["db/hello"]);
    let last = book(vec![callers(&["role:a"]).allow(TargetKind::Tools, &["db/echo"]), prompt]);
    rialto.inbound.gateway.apply(&with_rules(scripted(&[&server]), &last));
    assert_eq!(next_method(&mut bob_events).await, PROMPTS);
    assert_eq!(next_method(&mut bob_listens).await, PROMPTS);
    // A tool that bob does not see is none of his business.
    server.change(TOOLS, |catalog| catalog.tools[0]["description"] = "echoes better".into());
    assert_eq!(next_method(&mut ann_events).await, TOOLS);
    assert_eq!(next_method(&mut ann_listens).await, TOOLS);
    server.change(TOOLS, |catalog| catalog.tools[1] = json!({ "name": "do", "inputSchema": { "type": "object" } }));
    server.change(PROMPTS, |catalog| catalog.prompts[0]["description"] = "greets".into());
    assert_eq!(next_methods(&mut bob_events, 2).await, [PROMPTS, TOOLS]);
    assert_eq!(next_methods(&mut bob_listens, 2).await, [PROMPTS, TOOLS]);
}

#[tokio::test]
async fn subscriptions_to_what_is_hidden_end() {
    for transport in [ServerTransport::Http, ServerTransport::PerRequest] {
        let server = ScriptedServer::start("db", transport).await;
        let everything = book(vec![callers(&["role:a"]).allow_all(&["db/*"])]);
        let rialto = gateway(scripted(&[&server]), &everything).await;
        let ann = Session::open(&rialto, "2025-11-25", Some("ann")).await;
        let mut events = ann.get().go().await.events();
        assert_eq!(ann.ask("resources/subscribe", json!({ "uri": "res://one" })).await["result"], json!({}));
        let mut wanted = all_lists();
        wanted["resourceSubscriptions"] = json!(["res://one"]);
        let (mut listens, granted) = listen(&rialto, "ann", wanted).await;
        assert_eq!(granted["resourceSubscriptions"], json!(["res://one"]));
        if transport == ServerTransport::Http {
            server.wait_streams().await;
        }
        let update = || server.notify(UPDATED, &json!({ "uri": "res://one" }));
        update();
        for events in [&mut events, &mut listens] {
            assert_eq!(wait_for(events, UPDATED).await["uri"], "res://one", "{transport:?}");
        }

        let without = callers(&["role:a"]).deny(TargetKind::Resources, &["db/res://one"]);
        let hidden = book(vec![callers(&["role:a"]).allow_all(&["db/*"]), without]);
        rialto.inbound.gateway.apply(&with_rules(scripted(&[&server]), &hidden));
        let is_over = || rialto.inbound.sessions.all().iter().all(|session| session.subscribed_uris().is_empty());
        until("the session has no subscription", is_over).await;
        for events in [&mut events, &mut listens] {
            assert_eq!(next_method(events).await, RESOURCES, "{transport:?}");
        }
        update();
        // It is shown again, but whoever wants to hear of it subscribes again.
        rialto.inbound.gateway.apply(&with_rules(scripted(&[&server]), &everything));
        for events in [&mut events, &mut listens] {
            assert_eq!(next_method(events).await, RESOURCES, "{transport:?}");
        }
        update();
        server.change(TOOLS, |catalog| catalog.tools.push(tool("more")));
        for events in [&mut events, &mut listens] {
            assert_eq!(next_method(events).await, TOOLS, "{transport:?}");
        }
    }
}

#[tokio::test]
async fn a_new_token_with_other_roles_changes_the_lists_of_the_session() {
    let server = ScriptedServer::start("db", ServerTransport::Http).await;
    let rules = book(vec![
        callers(&["role:a"]).allow_all(&["db/*"]),
        callers(&["role:b"]).allow(TargetKind::Tools, &["db/do"]),
    ]);
    let mut people = vec![person("ann", &["a"], &[])];
    for (token, roles) in [("ann-again", ["a"]), ("ann-moved", ["b"])] {
        people.push((person("ann", &roles, &[]).0, token.to_owned()));
    }
    let rialto = gateway_for(scripted(&[&server]), &rules, people).await;
    let ann = Session::open(&rialto, "2025-11-25", Some("ann")).await;
    let mut events = ann.get().go().await.events();
    let list = |token: &str| {
        let sending = ann.post(&request(3, "tools/list", json!({})));
        sending.replace("authorization", &format!("Bearer {token}")).answer()
    };
    for (token, expected) in [("ann", 2), ("ann-again", 2), ("ann-moved", 1)] {
        let (status, answer) = list(token).await;
        assert_eq!((status, answer["result"]["tools"].as_array().unwrap().len()), (200, expected), "{token}");
    }
    assert_eq!(next_methods(&mut events, 3).await, [PROMPTS, RESOURCES, TOOLS]);
    // What is told from now on follows the new roles.
    server.change(TOOLS, |catalog| catalog.tools.push(tool("secret")));
    server.change(TOOLS, |catalog| catalog.tools[1]["title"] = "Do".into());
    assert_eq!(next_method(&mut events).await, TOOLS);
    assert_eq!(list("ann-moved").await.1["result"]["tools"][0]["title"], "Do");
}

#[tokio::test]
async fn rules_in_a_file_are_reloaded() {
    let file = |rule: &str| {
        format!(
            "[access.tokens]\nann = \"t-ann\"\nbob = \"t-bob\"\n[servers.elements]\nbuiltin = \"elements\"\n\
             [[policy.rules]]\nname = \"bob\"\nprincipals = [\"token:bob\"]\nallow = {{ tools = [\"*\"] }}\n{rule}"
        )
    };
    let folder = TempFolder::new("rules-reload");
    let path = folder.0.join("rialto.toml");
    folder.write("rialto.toml", &file(""));
    let (child, _output, address) = spawn_gateway(&["--config", path.to_str().unwrap()]).await;
    let address = address.parse().unwrap();
    let tools = |token: &'static str| async move {
        let body = modern(1.into(), "tools/list", json!({}));
        let sending = HttpRequest::to(address, "POST", "/mcp").body(body.to_string());
        let sending =
            sending.header("content-type", "application/json").header("accept", "application/json, text/event-stream");
        let sending =
            sending.modern_headers("tools/list", &json!({})).header("authorization", &format!("Bearer t-{token}"));
        let (status, answer) = sending.answer().await;
        (status, answer["result"]["tools"].as_array().map_or(0, Vec::len))
    };
    assert_eq!((tools("ann").await, tools("bob").await), ((403, 0), (200, 3)));
    let rule = "[[policy.rules]]\nprincipals = [\"token:ann\"]\nallow = { tools = [\"elements/get*\"] }\n\
                [[policy.rules]]\nprincipals = [\"*\"]\ndeny = { tools = [\"*/survey*\"] }\n";
    folder.write("rialto.toml", &file(rule));
    signal(&child, "-HUP");
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    while (tools("ann").await, tools("bob").await) != ((200, 2), (200, 2)) {
        assert!(tokio::time::Instant::now() < deadline, "the rules are never reloaded");
    }
}

#[tokio::test]
async fn a_call_that_waits_for_input_is_judged_again_when_it_goes_on() {
    let server = ScriptedServer::start("db", ServerTransport::Http).await;
    let everything = book(vec![callers(&["role:a"]).allow_all(&["db/*"])]);
    let rialto = gateway(scripted(&[&server]), &everything).await;
    let form = json!({ "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } });
    let steps = json!({ "steps": [{ "ask": { "method": "elicitation/create", "params": form } }] });
    let call = |more: Value| {
        let mut params = json!({ "name": "do", "arguments": steps });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut body = modern(4.into(), "tools/call", params.clone());
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
            json!({ "elicitation": { "form": {} } });
        let sending = rialto.post("/mcp", &body).modern_headers("tools/call", &params);
        sending.header("authorization", "Bearer ann").answer()
    };
    let (_, waiting) = call(json!({})).await;
    assert_eq!(waiting["result"]["resultType"], "input_required", "{waiting}");
    let asked = waiting["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let given = json!({ asked: { "action": "accept", "content": {} } });
    let resumed = json!({ "inputResponses": given, "requestState": waiting["result"]["requestState"] });
    let hidden = callers(&["role:a"]).deny(TargetKind::Tools, &["db/do"]);
    let rules = book(vec![callers(&["role:a"]).allow_all(&["db/*"]), hidden]);
    rialto.inbound.gateway.apply(&with_rules(scripted(&[&server]), &rules));
    assert_eq!(call(resumed.clone()).await.1["error"]["message"], "Unknown tool: do");
    until("the call has ended, long before its time is over", || rialto.inbound.gateway.parked_calls() == 0).await;
    until("nothing is in flight", || rialto.inbound.gateway.upstreams()[0].calls_in_flight() == 0).await;
    rialto.inbound.gateway.apply(&with_rules(scripted(&[&server]), &everything));
    let (_, late) = call(resumed).await;
    assert_eq!(late["error"]["code"], -32602, "what has ended does not come back: {late}");
}

#[tokio::test]
async fn a_call_in_flight_that_waits_for_input_ends_when_its_tool_is_hidden() {
    let [db, wiki] = [("db", ServerTransport::Http), ("wiki", ServerTransport::Stdio)]
        .map(|(name, transport)| ScriptedServer::start(name, transport));
    let (db, wiki) = (db.await, wiki.await);
    let everything = book(vec![callers(&["role:a"]).allow_all(&["*"])]);
    let form = json!({ "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } });
    let steps = json!({ "steps": [{ "ask": { "method": "elicitation/create", "params": form } }] });
    // In a group of one server and in one of several, whose names differ from the servers' own.
    for (servers, name, own) in
        [(vec![&db], "do", "db/do"), (vec![&db, &wiki], "db__do", "db/do"), (vec![&db, &wiki], "wiki__do", "wiki/do")]
    {
        let rialto = gateway(scripted(&servers), &everything).await;
        let mut hello = initialize("2025-11-25");
        hello["params"]["capabilities"] = json!({ "elicitation": {} });
        let opened = rialto.post("/mcp", &hello).header("authorization", "Bearer ann").go().await;
        let session = opened.header("mcp-session-id").unwrap().to_owned();
        let post = |body: Value| {
            let sending = rialto.post("/mcp", &body).header("authorization", "Bearer ann");
            sending.header("mcp-session-id", &session).header("mcp-protocol-version", "2025-11-25")
        };
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(post(initialized).status().await, 202);
        let call = request(4, "tools/call", json!({ "name": name, "arguments": steps }));
        let mut events = post(call).go().await.events();
        assert_eq!(next_method(&mut events).await, "elicitation/create", "{name}");
        // A change that leaves the tool alone disturbs nothing.
        let other = callers(&["role:a"]).deny(TargetKind::Tools, &["db/echo", "wiki/echo"]);
        let rules = book(vec![callers(&["role:a"]).allow_all(&["*"]), other]);
        rialto.inbound.gateway.apply(&with_rules(scripted(&servers), &rules));
        assert_eq!(rialto.inbound.gateway.upstreams().iter().map(|one| one.calls_in_flight()).sum::<usize>(), 1);
        let hidden = callers(&["role:a"]).deny(TargetKind::Tools, &[own]);
        let rules = book(vec![callers(&["role:a"]).allow_all(&["*"]), hidden]);
        rialto.inbound.gateway.apply(&with_rules(scripted(&servers), &rules));
        // The question may be withdrawn before the answer or after it.
        let mut answer = events.message().await.expect("an answer");
        if answer["method"] == "notifications/cancelled" {
            answer = events.message().await.expect("an answer");
        }
        assert_eq!(answer["error"]["message"], format!("Unknown tool: {name}"), "{answer}");
        until("the call is cancelled at the server", || {
            rialto.inbound.gateway.upstreams().iter().all(|upstream| upstream.calls_in_flight() == 0)
        })
        .await;
    }
}
