//! What the resources of the API say, at a running gateway.

use std::sync::Arc;

use rialto::console::Topic;
use rialto::gateway::{GatewayConfig, GroupConfig};
use rialto::store::{ClusterStore, MemoryStore};
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};

use super::{DOCUMENT, asked, get, mistakes, post, wait};
use crate::cluster::node;
use crate::harness::{HANDSHAKE, PER_REQUEST, Rialto, until};
use crate::recording::rows::spec;
use crate::scripted_server::{InjectedFault, ScriptedServer, ServerTransport};

#[tokio::test]
async fn every_answer_is_as_the_document_says() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-06-18").await;
    session.ask("tools/list", json!({})).await;
    for path in ["me", "overview", "overview?range=1h", "servers", "servers/elements", "servers/elements/log"] {
        get(&rialto, path).await;
    }
    for kind in ["tools", "prompts", "resources", "templates"] {
        get(&rialto, &format!("servers/elements/lists/{kind}")).await;
    }
    for revision in HANDSHAKE.into_iter().chain([PER_REQUEST]) {
        let group = get(&rialto, &format!("groups/default?as={revision}")).await;
        assert!(!group["tools"].as_array().unwrap().is_empty() && group["as"] == revision);
        let seen: Value = serde_json::from_str(group["seen"]["tools/list"].as_str().unwrap()).unwrap();
        for (entry, tool) in group["tools"].as_array().unwrap().iter().zip(seen["tools"].as_array().unwrap()) {
            let left_out = entry["left_out"].as_array().unwrap();
            assert!(left_out.iter().all(|name| tool.get(name.as_str().unwrap()).is_none()), "{entry} {tool}");
            assert_eq!(left_out.contains(&json!("title")), revision < "2025-06-18", "{revision}: {entry}");
        }
        assert!(seen["tools"].is_array(), "{revision}");
    }
    for path in ["groups", "groups/default/why?name=getElement", "questions", "bridge", "config", "nodes"] {
        get(&rialto, path).await;
    }
    let sessions = get(&rialto, "sessions").await;
    let row = &sessions["items"][0];
    assert!(!row["id"].as_str().unwrap().contains(&session.id[5..]), "the whole id stays here");
    let one = get(&rialto, &format!("sessions/{}", row["id"].as_str().unwrap())).await;
    assert_eq!(one["revision"], "2025-06-18");
    let absent = asked(&rialto, "GET", "servers/elemnts").json().await;
    assert_eq!((absent.0, &absent.1["error"]["hint"]), (404, &json!("did you mean elements?")));
    super::validate("get", "servers/elemnts", "default", &absent.1);
}

#[tokio::test]
async fn pages_of_a_list_join_without_a_gap() {
    let rialto = Rialto::start().await;
    let whole = get(&rialto, "servers/elements/lists/resources?limit=500").await;
    let (mut items, mut path) = (Vec::new(), "servers/elements/lists/resources?limit=7".to_owned());
    loop {
        let page = get(&rialto, &path).await;
        items.extend(page["items"].as_array().unwrap().clone());
        match page["next"].as_str() {
            Some(cursor) => path = format!("servers/elements/lists/resources?limit=7&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(json!(items), whole["items"]);
    let first = asked(&rialto, "GET", "groups").go().await;
    let tag = first.header("etag").unwrap().to_owned();
    assert_eq!(asked(&rialto, "GET", "groups").header("if-none-match", &tag).status().await, 304);
}

#[tokio::test]
async fn an_operator_ends_a_session_and_reconnects_a_server() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let id = get(&rialto, "sessions").await["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(asked(&rialto, "DELETE", &format!("sessions/{id}")).status().await, 204);
    assert_eq!(session.post(&crate::harness::request(2, "ping", json!({}))).status().await, 404);
    let before = rialto.inbound.gateway.upstreams()[0].clone();
    let (status, answer) = post(&rialto, "servers/elements/reconnect", &json!({})).await;
    assert_eq!((status, answer), (202, json!({ "server": "elements" })));
    assert!(!Arc::ptr_eq(&before, &rialto.inbound.gateway.upstreams()[0]));
    assert_eq!(rialto.open("2025-11-25").await.ask("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn events_follow_what_happens_and_a_stream_resumes() {
    let rialto = Rialto::start().await;
    let mut events = asked(&rialto, "GET", "live?topics=session,try").go().await.events();
    let live = rialto.console.live().viewers(Topic::Session);
    until("the stream is attached", || *live.borrow() == 1).await;
    let session = rialto.open("2025-11-25").await;
    let event = loop {
        let event = events.next().await.unwrap();
        let schema = &DOCUMENT["x-events"][event.name.as_deref().unwrap()];
        let data: Value = serde_json::from_str(&event.data).unwrap();
        assert_eq!(mistakes(schema, &data, ""), [""; 0], "{event:?}");
        if event.name.as_deref() == Some("session") {
            break event;
        }
    };
    drop(events);
    session.delete().go().await;
    let resume = |id: &str| asked(&rialto, "GET", "live?topics=session").header("last-event-id", id);
    let mut resumed = resume(event.id.as_deref().unwrap()).go().await.events();
    loop {
        let next = resumed.next().await.unwrap();
        assert_ne!(next.name.as_deref(), Some("lost"), "nothing was lost");
        if next.name.as_deref() == Some("gone") {
            assert!(next.data.contains("\"session\""), "{next:?}");
            break;
        }
    }
    let mut lost = resume("00000000-7").go().await.events();
    assert_eq!(lost.next().await.unwrap().name.as_deref(), Some("lost"), "ids of another start");
}

#[tokio::test]
async fn a_tool_is_tried_as_a_client_of_each_revision() {
    let rialto = Rialto::start().await;
    for revision in HANDSHAKE.into_iter().chain([PER_REQUEST]) {
        let body = json!({ "as": revision, "name": "getElement", "arguments": { "name": "Fe" } });
        let (status, started) = post(&rialto, "try", &body).await;
        assert_eq!(status, 202);
        let path = format!("try/{}", started["try"].as_str().unwrap());
        let done = loop {
            let state = get(&rialto, &path).await;
            if state["state"] != "running" {
                break state;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(done["state"], "done", "{done}");
        assert!(done["result"].to_string().contains("Iron"), "{revision}: {done}");
    }
    let unknown = json!({ "name": "x", "group": "absent" });
    assert_eq!(post(&rialto, "try", &unknown).await.0, 404);
    assert_eq!(asked(&rialto, "GET", "try/absent").status().await, 404);
}

/// Neither the order of keys nor numbers survive being read and written again.
#[tokio::test]
async fn lists_and_results_keep_their_bytes() {
    const SCHEMA: &str =
        r#"{"type":"object","properties":{"z":{"minimum":1.0},"a":{"maximum":12345678901234567890123}}}"#;
    const RESULT: &str = r#"{"structuredContent":{"z":1.0,"a":12345678901234567890123},"content":[]}"#;
    const DATA: &str = r#"{"z":1.0,"a":12345678901234567890123}"#;
    let server = ScriptedServer::start("raw", ServerTransport::Http).await;
    let answers = |method: &str, members: &str| {
        let text = format!(r#"{{"jsonrpc":"2.0","id":$id,{members}}}"#);
        server.inject_fault(method, InjectedFault::Text(text));
    };
    answers("tools/list", &format!(r#""result":{{"tools":[{{"name":"do","inputSchema":{SCHEMA}}}]}}"#));
    let rialto = Rialto::with(|settings| {
        let group = GroupConfig::new("default", [Arc::from("raw")]);
        settings.gateway = GatewayConfig { upstreams: vec![spec(&server)], groups: vec![group] };
    })
    .await;
    let seen = wait(&rialto, "groups/default?as=2025-06-18", |group| group["lists"]["tools"] == 1).await;
    let list = seen["seen"]["tools/list"].as_str().unwrap();
    assert!(list.contains(SCHEMA), "{list}");
    let tried = async || {
        let (_, begun) = post(&rialto, "try", &json!({ "as": "2025-06-18", "name": "do" })).await;
        let path = format!("try/{}", begun["try"].as_str().unwrap());
        wait(&rialto, &path, |state| state["state"] == "done").await
    };
    answers("tools/call", &format!(r#""result":{RESULT}"#));
    let done = tried().await;
    assert_eq!((&done["result"], &done["error"]), (&json!(RESULT), &Value::Null));
    answers("tools/call", &format!(r#""error":{{"code":-32001,"message":"no","data":{DATA}}}"#));
    let failed = tried().await;
    assert_eq!(failed["error"], json!({ "code": -32001, "message": "no", "data": DATA }), "{failed}");
}

#[tokio::test]
async fn a_try_works_where_callers_need_credentials() {
    let rialto = Rialto::with(|settings| {
        settings.policy.tokens = rialto::policy::Tokens::new([("ann".to_owned(), "token-of-a-caller".to_owned())]);
    })
    .await;
    let body = json!({ "name": "getElement", "arguments": { "name": "Fe" } });
    let (_, started) = post(&rialto, "try", &body).await;
    let path = format!("try/{}", started["try"].as_str().unwrap());
    let state = loop {
        let state = get(&rialto, &path).await;
        if state["state"] != "running" {
            break state;
        }
        tokio::task::yield_now().await;
    };
    assert!(state["result"].to_string().contains("Iron"), "{state}");
}

#[tokio::test]
async fn rialto_serves_this_api_as_tools() {
    let served = Rialto::start().await;
    let folder = std::env::temp_dir().join(format!("rialto-openapi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let document = folder.join("openapi.json");
    std::fs::write(&document, rialto::console::openapi()).unwrap();
    let key = format!("Bearer {}", served.console.key().reveal());
    let file = folder.join("rialto.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\n[servers.admin]\nopenapi = {:?}\nbase_url = \"http://{}/admin/v1\"\nheaders = {{ Authorization = \"{key}\" }}\n",
        document, served.address
    );
    std::fs::write(&file, text).unwrap();
    let gateway = Rialto::from_file(&file, |settings| settings.workers = 2).await;
    until("the document is read", || {
        gateway.group().view(rialto::dialect::Revision::NEWEST).count(rialto::upstream::List::Tools) > 20
    })
    .await;
    let session = gateway.open("2025-11-25").await;
    let tools = session.ask("tools/list", json!({})).await["result"].clone();
    let named = |name: &str| tools["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == name);
    assert!(named("get_me") && named("get_servers_one") && named("post_servers_reconnect"), "{tools}");
    let me = session.ask("tools/call", json!({ "name": "get_me", "arguments": {} })).await;
    assert!(me.to_string().contains("rights"), "{me}");
    let server = json!({ "name": "get_servers_one", "arguments": { "server": "elements" } });
    assert!(session.ask("tools/call", server).await.to_string().contains("ready"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn two_nodes_show_both_and_one_that_left() {
    let store: Arc<dyn ClusterStore> = MemoryStore::new();
    let (a, mut b) = (node(&store, "a").await, node(&store, "b").await);
    let _on_a = a.open("2025-11-25").await;
    let _on_b = b.open("2025-11-25").await;
    let nodes = get(&a, "nodes").await;
    let states = |nodes: &Value| -> Vec<(String, String)> {
        let row =
            |node: &Value| (node["name"].as_str().unwrap().to_owned(), node["state"].as_str().unwrap().to_owned());
        nodes["items"].as_array().unwrap().iter().map(row).collect()
    };
    let expected = [("a", "here"), ("b", "alive")].map(|(name, state)| (name.to_owned(), state.to_owned()));
    assert_eq!(states(&nodes), expected);
    assert_eq!(nodes["items"][1]["sessions"], 1);
    let all = get(&a, "sessions?node=all").await;
    let owners: Vec<&Value> = all["items"].as_array().unwrap().iter().map(|session| &session["node"]).collect();
    assert_eq!(owners, ["a", "b"]);
    assert_eq!(get(&a, "sessions?node=b").await["items"][0]["node"], "b");
    assert_eq!(get(&a, "overview?node=all").await["figures"]["sessions"], 2);
    assert_eq!(asked(&a, "GET", "servers?node=all").status().await, 400);
    assert_eq!(asked(&a, "GET", "sessions?node=c").status().await, 404);
    b.begin_stop();
    assert!(b.stopped().await);
    let nodes = get(&a, "nodes").await;
    assert_eq!(states(&nodes)[1], ("b".to_owned(), "away".to_owned()));
}

#[tokio::test]
async fn what_needs_attention_is_told() {
    let nothing = Rialto::start().await;
    assert_eq!(get(&nothing, "overview").await["attention"], json!([]));
    let rialto = Rialto::with(|settings| {
        let target = rialto::mcp_client::Target::command("/absent/program", [""; 0]);
        let spec = UpstreamSpec::new("broken", SpecKind::Target(target));
        let group = GroupConfig::new("default", [Arc::clone(&spec.name)]);
        settings.gateway = GatewayConfig { upstreams: vec![spec], groups: vec![group] };
    })
    .await;
    until("the server is down", || {
        rialto.inbound.gateway.upstreams()[0].state().health.phase == rialto::upstream::HealthPhase::Down
    })
    .await;
    let item = &get(&rialto, "overview").await["attention"][0];
    assert_eq!((&item["code"], &item["level"]), (&json!("server_down"), &json!("bad")), "{item}");
    assert_eq!(item["act"]["path"], "servers/broken/reconnect");
}

#[tokio::test]
async fn a_server_is_probed_by_its_address() {
    let (rialto, probed) = (Rialto::start().await, Rialto::start().await);
    let (status, report) = post(&rialto, "probe", &json!({ "url": probed.url("/mcp") })).await;
    assert_eq!((status, &report["revision"]), (200, &json!(PER_REQUEST)), "{report}");
    let (status, _) = post(&rialto, "probe", &json!({ "command": ["true"] })).await;
    assert_eq!(status, 403, "a command needs the right to edit");
    assert_eq!(post(&rialto, "probe", &json!({ "url": "http://127.0.0.1:1/mcp" })).await.0, 422);
    assert_eq!(post(&rialto, "probe", &json!({})).await.0, 400);
}
