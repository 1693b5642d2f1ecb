//! Server requests and parked calls whose node is another one, dies or is paused.

use std::time::Instant;

use serde_json::{Value, json};

use super::load::open_session_at;
use super::load_clients::{answers, per_request_call};
use super::load_driver::{CallKind, CallOutcome, reply};
use super::processes::{LEASE, Node, TestCluster};
use crate::harness::request;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_request_pending_when_its_node_died_ends_in_an_error() {
    let mut cluster = TestCluster::three().await;
    let session = open_session_at(&cluster, "b").await;
    let body = request(7, "tools/call", CallKind::Ask.params(7));
    let mut stream = session.post(cluster.node("a").address, &body).go().await.events();
    let mut last = String::new();
    let question = loop {
        let event = stream.next().await.unwrap();
        last = event.id.unwrap_or(last);
        if !event.data.is_empty() {
            break serde_json::from_str::<Value>(&event.data).unwrap();
        }
    };
    cluster.node_mut("b").kill().await;
    let started = Instant::now();
    assert!(stream.message().await.is_none(), "nothing more comes on this stream");
    let rest = session.at(cluster.node("c")).resumed(&last).await.rest().await;
    println!("told after {:?}", started.elapsed());
    assert!(started.elapsed() < LEASE * 3);
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert_eq!((&rest[0]["id"], &rest[0]["error"]["code"]), (&json!(7), &json!(-32603)));
    assert_eq!(rest[0]["error"]["data"], json!({ "failure": "node_lost", "mayHaveRun": true }), "{rest:?}");
    // A response that arrives too late is ignored.
    session.tell(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": reply(&question["params"]) })).await;
    for name in ["a", "c"] {
        assert_eq!(session.at(cluster.node(name)).call(8, CallKind::Ask).await, CallOutcome::Answered);
    }
    cluster.node_mut("b").restart().await;
    cluster.node("b").wait_ready().await;
    session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

/// Makes a per-request call, or continues a parked one.
async fn round(node: &Node, params: &Value) -> Value {
    per_request_call(node.address, 5, params).answer().await.1
}

/// Asserts that the parked call is reported as lost with its node.
fn assert_lost(refused: &Value) {
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(5), &json!(-32603)), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("lost with the node"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_call_continues_from_any_node_and_is_lost_with_its_own() {
    let mut cluster = TestCluster::three().await;
    let params = CallKind::Ask.params(5);
    let asked = round(cluster.node("b"), &params).await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let answered = round(cluster.node("a"), &answers(&params, &asked["result"])).await;
    assert_eq!(CallKind::Ask.check_response(5, &answered), CallOutcome::Answered);
    assert_eq!(cluster.http_server.count("tools/call"), 1);
    // A request state can be used once.
    let again = round(cluster.node("c"), &answers(&params, &asked["result"])).await;
    assert_eq!(again["error"]["code"], -32602, "{again}");

    let asked = round(cluster.node("b"), &params).await;
    cluster.node_mut("b").kill().await;
    let started = Instant::now();
    let refused = round(cluster.node("c"), &answers(&params, &asked["result"])).await;
    println!("refused after {:?}", started.elapsed());
    assert!(started.elapsed() < LEASE * 3);
    assert_lost(&refused);
    // The new incarnation of the node does not know the parked call.
    cluster.node_mut("b").restart().await;
    cluster.node("b").wait_ready().await;
    for node in &cluster.nodes {
        assert_lost(&round(node, &answers(&params, &asked["result"])).await);
    }
    assert_eq!(cluster.http_server.count("tools/call"), 2);
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_call_on_a_paused_node_ends_after_lease_expiry() {
    let cluster = TestCluster::three().await;
    let params = CallKind::Ask.params(5);
    let asked = round(cluster.node("b"), &params).await;
    cluster.node("b").pause();
    // A request that the paused node took before the pause has an unknown outcome; one that it left in its mailbox is taken
    // back, and then, as after the lease has expired, the call is known to be lost.
    for kinds in [&["node_lost", "parked_call_lost"][..], &["parked_call_lost"]] {
        let started = Instant::now();
        let response = round(cluster.node("c"), &answers(&params, &asked["result"])).await;
        println!("told after {:?}: {response}", started.elapsed());
        assert!(started.elapsed() < LEASE * 3);
        assert_eq!((&response["id"], &response["error"]["code"]), (&json!(5), &json!(-32603)), "{response}");
        assert!(kinds.contains(&response["error"]["data"]["failure"].as_str().unwrap()), "{response}");
    }
    cluster.node("b").resume();
    cluster.node("b").wait_ready().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}
