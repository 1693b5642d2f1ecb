//! Several nodes and a store, seen from one of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rialto::console::Topic;
use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::store::{ClusterStore, MemoryStore};
use serde_json::{Value, json};

use super::{asked, get, wait};
use crate::cluster::regressions::FaultyStore;
use crate::cluster::{node, node_with};
use crate::harness::{Events, Rialto, TEST_TIMEOUT, request, until};
use crate::recording::rows::spec;
use crate::scripted_server::{ScriptedServer, ServerTransport};

async fn call(rialto: &Rialto, symbol: &str) {
    let params = json!({ "name": "getElement", "arguments": { "name": symbol } });
    assert_eq!(rialto.modern("tools/call", params).status().await, 200);
}

fn nodes_of(page: &Value) -> BTreeSet<String> {
    page["items"].as_array().unwrap().iter().map(|row| row["node"].as_str().unwrap().to_owned()).collect()
}

fn both() -> BTreeSet<String> {
    BTreeSet::from(["a".to_owned(), "b".to_owned()])
}

/// The next event of a name whose data is as it should be.
async fn event(events: &mut Events, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
    loop {
        let event = events.next().await.unwrap_or_else(|| panic!("the stream ended before {name}"));
        let data: Value = serde_json::from_str(&event.data).unwrap();
        if event.name.as_deref() == Some(name) && holds(&data) {
            return data;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_all_nodes_are_one_list_and_are_opened_at_any_node() {
    let store: Arc<dyn ClusterStore> = MemoryStore::new();
    let (a, mut b) = (node(&store, "a").await, node(&store, "b").await);
    for node in [&a, &b] {
        node.wait_recording().await;
    }
    for n in 0..6 {
        call(if n % 2 == 0 { &a } else { &b }, "Fe").await;
    }
    let is_all = |page: &Value| {
        let items = page["items"].as_array().unwrap();
        items.len() == 6 && items.iter().all(|row| row["done"] == true)
    };
    let all = wait(&a, "calls?node=all", is_all).await;
    assert_eq!((nodes_of(&all), &all["away"]), (both(), &json!([])));
    let times: Vec<&str> = all["items"].as_array().unwrap().iter().map(|row| row["at"].as_str().unwrap()).collect();
    assert!(times.is_sorted_by(|one, other| one >= other), "newest first: {times:?}");

    let (mut ids, mut path) = (Vec::new(), "calls?node=all&limit=2".to_owned());
    loop {
        let page = get(&a, &path).await;
        ids.extend(page["items"].as_array().unwrap().iter().map(|row| row["id"].clone()));
        call(&b, "Au").await;
        match page["next"].as_str() {
            Some(next) => path = format!("calls?node=all&limit=2&cursor={next}"),
            None => break,
        }
    }
    let expected: Vec<Value> = all["items"].as_array().unwrap().iter().map(|row| row["id"].clone()).collect();
    assert_eq!(ids, expected, "pages of all nodes join without a gap or a double");

    let of_b = expected.iter().filter_map(Value::as_str).find(|id| id.starts_with("b.")).unwrap().to_owned();
    let opened = get(&a, &format!("calls/{of_b}")).await;
    assert_eq!((&opened["node"], &opened["name"]), (&json!("b"), &json!("getElement")));
    assert!(opened["messages"].as_array().unwrap().len() >= 2, "{opened}");
    assert_eq!(asked(&b, "PUT", "recording").body("{\"bodies\":true}").status().await, 200);
    let export = asked(&a, "GET", &format!("calls/{of_b}/export?as=curl")).go().await;
    assert_eq!(export.header("content-type"), Some("text/plain; charset=utf-8"));
    assert!(export.header("content-disposition").unwrap().contains(&of_b));
    assert!(export.text().await.contains("getElement"));

    b.begin_stop();
    assert!(b.stopped().await);
    let (status, gone) = asked(&a, "GET", &format!("calls/{of_b}")).json().await;
    assert_eq!((status, &gone["error"]["code"]), (410, &json!("not_kept")), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_all_nodes_are_one_stream_that_is_limited_for_each_node() {
    let store: Arc<dyn ClusterStore> = MemoryStore::new();
    let (a, b) = (node(&store, "a").await, node(&store, "b").await);
    let mut events = asked(&a, "GET", "live?topics=call,session,node&node=all").go().await.events();
    event(&mut events, "node", |node| node["name"] == "b" && node["state"] == "alive").await;
    for node in [&a, &b] {
        let viewers = node.console.live().viewers(Topic::Call);
        until("both are watched", || *viewers.borrow() == 1 && node.inbound.calls.state().is_on).await;
    }
    call(&a, "Fe").await;
    event(&mut events, "call", |row| row["node"] == "a" && row["done"] == true).await;
    call(&b, "Fe").await;
    event(&mut events, "call", |row| row["node"] == "b" && row["done"] == true).await;
    let _session = b.open("2025-11-25").await;
    event(&mut events, "session", |row| row["node"] == "b").await;

    let (mut rows, mut lost) = (0, 0);
    for number in 0..500 {
        b.console.live().publish(Topic::Call, &json!({ "id": format!("b.{number}"), "node": "b", "flood": true }));
    }
    while rows + lost < 500 {
        let next = events.next().await.unwrap();
        let data: Value = serde_json::from_str(&next.data).unwrap();
        match next.name.as_deref() {
            Some("call") if data["flood"] == true => rows += 1,
            Some("lost") => {
                assert!(data["why"].as_str().unwrap().len() > 10, "{data}");
                lost += data["count"].as_u64().unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(rows + lost, 500, "what is not shown is counted");
    assert!(rows <= 100, "at most fifty a second: {rows}");
    drop(events);
    let viewers = b.console.live().viewers(Topic::Call);
    until("the other node is let go", || *viewers.borrow() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_stream_of_all_nodes_delays_no_stop() {
    let store: Arc<dyn ClusterStore> = MemoryStore::new();
    let (mut a, _b) = (node(&store, "a").await, node(&store, "b").await);
    let mut events = asked(&a, "GET", "live?topics=node&node=all").go().await.events();
    event(&mut events, "node", |node| node["name"] == "b" && node["state"] == "alive").await;
    a.begin_stop();
    assert!(a.stopped().await, "everything ended in time");
    while events.next().await.is_some() {}
}

/// One of two nodes is lost: it does not end, and sends nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_lost_is_marked_within_a_lease_and_nothing_hangs() {
    let mut cluster = crate::cluster::processes::TestCluster::start(&["a", "b"]).await;
    let key = cluster.node("a").console_key().await;
    let address = cluster.node("a").address;
    let ask = |path: &str| {
        let request = crate::harness::HttpRequest::to(address, "GET", &format!("/admin/v1/{path}"));
        request.header("authorization", &format!("Bearer {key}"))
    };
    let states = |nodes: &Value| -> BTreeSet<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        nodes["items"].as_array().unwrap().iter().map(|node| (text(&node["name"]), text(&node["state"]))).collect()
    };
    let is = |name: &str, state: &str| (name.to_owned(), state.to_owned());
    let (_, nodes) = ask("nodes").json().await;
    assert_eq!(states(&nodes), BTreeSet::from([is("a", "here"), is("b", "alive")]));
    let mut events = ask("live?topics=call,node,attention&node=all").go().await.events();
    event(&mut events, "node", |node| node["name"] == "b" && node["state"] == "alive").await;
    cluster.node_mut("b").kill().await;
    // Asked while the lease still runs: answered without the other node.
    for path in ["calls?node=all", "sessions?node=all", "questions?node=all", "overview?node=all", "nodes"] {
        assert_eq!(ask(path).status().await, 200, "{path}");
    }
    event(&mut events, "node", |node| node["name"] == "b" && node["state"] == "away").await;
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    loop {
        let (_, overview) = ask("overview?node=all").json().await;
        let codes: Vec<&Value> = overview["attention"].as_array().unwrap().iter().map(|item| &item["code"]).collect();
        if overview["away"][0]["node"] == "b" && codes.contains(&&json!("node_silent")) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{overview:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (_, nodes) = ask("nodes").json().await;
    assert_eq!(states(&nodes), BTreeSet::from([is("a", "here"), is("b", "away")]));
    let (_, sessions) = ask("sessions?node=all").json().await;
    assert_eq!(sessions["away"][0]["node"], "b");
    drop(events);
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_and_figures_of_all_nodes_are_gathered() {
    let store: Arc<dyn ClusterStore> = MemoryStore::new();
    let (a, b) = (node_with(&store, "a", |_| {}).await, node(&store, "b").await);
    let _sessions = (a.open("2025-11-25").await, b.open("2025-11-25").await);
    assert_eq!(nodes_of(&get(&a, "sessions?node=all").await), both());
    let overview = get(&a, "overview?node=all").await;
    assert_eq!((&overview["nodes"], &overview["figures"]["sessions"]), (&json!(["a", "b"]), &json!(2)));
    assert_eq!(get(&a, "questions?node=all").await["away"], json!([]));
    let page = get(&a, "sessions?node=all&limit=1").await;
    assert_eq!(page["next"], Value::Null, "{page}");
}

/// A call that comes to a node that does not own its session is in the rings of both: that of the client's node says
/// where it went, and that of the owner has both wires.
#[tokio::test(flavor = "multi_thread")]
async fn a_relayed_call_is_recorded_at_both_of_its_nodes() {
    let store: Arc<dyn ClusterStore> = MemoryStore::new();
    let server = ScriptedServer::start("db", ServerTransport::Http).await;
    let start = async |name| {
        let group = GroupConfig::new(DEFAULT_GROUP, [Arc::from("db")]);
        let config = GatewayConfig { upstreams: vec![spec(&server)], groups: vec![group] };
        let rialto = node_with(&store, name, |settings| settings.gateway = config).await;
        rialto.wait_recording().await;
        rialto
    };
    let (a, b) = (start("a").await, start("b").await);
    let session = a.open("2025-11-25").await;
    let echo = |id| request(id, "tools/call", json!({ "name": "echo", "arguments": { "word": "via-b" } }));
    let (_, answer) = session.at_node(&b).post(&echo(7)).answer().await;
    assert!(answer["result"].is_object(), "{answer}");
    let calls = |page: &Value| -> Vec<Value> {
        let items = page["items"].as_array().unwrap().iter();
        items.filter(|row| row["method"] == "tools/call" && row["done"] == true).cloned().collect()
    };
    let page = wait(&a, "calls?node=all", |page| calls(page).len() == 2).await;
    let of_node = |name: &str| calls(&page).into_iter().find(|row| row["node"] == name).unwrap();
    let (owner, front) = (of_node("a"), of_node("b"));
    assert_eq!((&front["relayed_to"], &front["relayed"], &front["server"]), (&json!("a"), &json!(false), &Value::Null));
    assert_eq!((&owner["relayed_to"], &owner["relayed"]), (&Value::Null, &json!(true)));
    assert_eq!((&owner["server"]["name"], &owner["client"]["revision"]), (&json!("db"), &json!("2025-11-25")));
    assert!(owner["request"].is_string() && owner["request"] == front["request"], "{owner}\n{front}");
    for row in [&owner, &front] {
        assert_eq!(
            (&row["outcome"], &row["name"], &row["error"]),
            (&json!("ok"), &json!("echo"), &Value::Null),
            "{row}"
        );
    }
    let wires = async |row: &Value| -> BTreeSet<String> {
        let opened = get(&b, &format!("calls/{}", row["id"].as_str().unwrap())).await;
        assert_eq!(opened["owner"], "a", "the session lives there, wherever the call was recorded");
        let messages = opened["messages"].as_array().unwrap().iter();
        messages.map(|one| format!("{} {}", one["wire"].as_str().unwrap(), one["way"].as_str().unwrap())).collect()
    };
    let [client_in, client_out, server_in, server_out] =
        ["client in", "client out", "server in", "server out"].map(str::to_owned);
    assert_eq!(wires(&front).await, BTreeSet::from([client_in.clone(), client_out.clone()]));
    assert_eq!(wires(&owner).await, BTreeSet::from([client_in, client_out, server_in, server_out]));

    // One that the owner's node got itself was relayed by nobody.
    let (_, answer) = session.post(&echo(8)).answer().await;
    assert!(answer["result"].is_object(), "{answer}");
    let page = wait(&a, "calls", |page| calls(page).len() == 2).await;
    assert_eq!(calls(&page)[0]["relayed"], false, "{page:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_owner_had_no_room_for_was_not_served_there() {
    let memory = MemoryStore::new();
    let a = node(&(Arc::clone(&memory) as Arc<dyn ClusterStore>), "a").await;
    let store = FaultyStore::over(&memory);
    let b = node(&(Arc::clone(&store) as Arc<dyn ClusterStore>), "b").await;
    b.wait_recording().await;
    let session = a.open("2025-11-25").await;
    store.has_full_mailboxes.store(true, Ordering::SeqCst);
    let call = request(7, "tools/call", json!({ "name": "getElement", "arguments": { "name": "Fe" } }));
    let (_, refused) = session.at_node(&b).post(&call).answer().await;
    assert_eq!(refused["error"]["data"]["failure"], "node_busy", "{refused}");
    store.has_full_mailboxes.store(false, Ordering::SeqCst);
    let page = wait(&b, "calls", |page| page["items"][0]["done"] == true).await;
    assert_eq!(page["items"][0]["relayed_to"], Value::Null, "{page:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_and_takeovers_are_told_by_node_as_each_of_them_sees_it() {
    let store: Arc<dyn ClusterStore> = MemoryStore::new();
    let (mut a, b) = (node(&store, "a").await, node(&store, "b").await);
    let session = a.open("2025-11-25").await;
    let id = get(&a, "sessions").await["items"][0]["id"].clone();
    for id in [2, 3] {
        let (status, _) = session.at_node(&b).post(&request(id, "ping", json!({}))).json().await;
        assert_eq!(status, 200);
    }
    let row = |nodes: &Value, name: &str| -> Value {
        nodes["items"].as_array().unwrap().iter().find(|node| node["name"] == name).unwrap().clone()
    };
    let nodes = get(&a, "nodes").await;
    assert_eq!(row(&nodes, "b")["relays"], json!([{ "to": "a", "requests": 2 }]), "{nodes:#}");
    assert_eq!(row(&nodes, "a")["relays"], json!([]), "requests of operators are not counted: {nodes:#}");
    let seen_from_b = get(&a, "nodes?node=b").await;
    assert_eq!(row(&seen_from_b, "b")["state"], "here", "{seen_from_b:#}");
    assert_eq!((&row(&seen_from_b, "a")["state"], &row(&seen_from_b, "a")["sessions"]), (&json!("alive"), &json!(1)));

    let elsewhere = session.at_node(&b);
    a.begin_stop();
    assert!(a.stopped().await);
    let (status, _) = elsewhere.post(&request(4, "ping", json!({}))).json().await;
    assert_eq!(status, 200);
    let nodes = get(&b, "nodes").await;
    let takeovers = row(&nodes, "b")["takeovers"].clone();
    assert_eq!(takeovers.as_array().unwrap().len(), 1, "{nodes:#}");
    assert_eq!((&takeovers[0]["session"], takeovers[0]["at"].is_string()), (&id, true), "{takeovers}");
}
