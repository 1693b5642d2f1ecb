//! Store out of memory, and recovery.

use std::time::{Duration, Instant};

use serde_json::json;

use super::load::open_session_at;
use super::load_clients::{Session, initialize_request, per_request_call, post};
use super::load_driver::{CallKind, CallOutcome};
use super::processes::{LEASE, Node, TestCluster, eventually};
use crate::harness::{HttpRequest, HttpResponse, request};

/// Sets `maxmemory` of the store in bytes; 0 removes the limit.
async fn set_maxmemory(cluster: &TestCluster, bytes: u64) {
    let () = cluster.store.ask(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes)).await;
}

/// Makes a plain call at one node.
async fn call_once(session: &Session, node: &Node, number: u64) -> HttpResponse {
    session.post(node.address, &request(number, "tools/call", CallKind::Plain.params(number))).go().await
}

async fn assert_answered(session: &Session, node: &Node, number: u64) {
    let received = call_once(session, node, number).await;
    assert_eq!(received.status, 200);
    assert_eq!(CallKind::Plain.check_response(number, &received.json().await), CallOutcome::Answered);
}

/// Asserts a 503 with `Retry-After`.
fn assert_refused(received: &HttpResponse) {
    assert_eq!((received.status, received.header("retry-after").is_some()), (503, true));
}

/// Owner of a session according to the store.
async fn owner(cluster: &TestCluster, session: &Session) -> String {
    let owner: String =
        cluster.store.ask(redis::cmd("HGET").arg(format!("rialto:s:{{{}}}", session.id)).arg("owner")).await;
    owner.split('/').next().unwrap().to_owned()
}

/// Waits until readiness and metrics of a node report the full store.
async fn wait_reports_full(node: &Node) {
    eventually("readiness reports the full store", async || {
        let received = HttpRequest::to(node.address, "GET", "/readyz").go().await;
        match (received.status, received.text().await.as_str()) {
            (503, "the store has no room\n") => Ok(()),
            (status, text) => Err(format!("{status} {text}")),
        }
    })
    .await;
    let figures = HttpRequest::to(node.address, "GET", "/metrics").go().await.text().await;
    for line in ["rialto_store_full 1", "rialto_lease_held 1"] {
        assert!(figures.lines().any(|response| response == line), "{line}, in {figures}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_refuses_new_sessions_and_keeps_existing_ones() {
    // A call that is answered on a stream needs room in the store.
    let mut cluster = TestCluster::three_without_early_streams().await;
    let (own_session, other_session) = (open_session_at(&cluster, "a").await, open_session_at(&cluster, "b").await);
    let over = open_session_at(&cluster, "a").await;
    assert_answered(&own_session, cluster.node("a"), 1).await;
    assert_answered(&other_session, cluster.node("b"), 2).await;
    set_maxmemory(&cluster, 1).await;
    for node in &cluster.nodes {
        wait_reports_full(node).await;
    }
    let started = Instant::now();
    let mut number = 10;
    while started.elapsed() < LEASE * 2 {
        number += 1;
        // Calls that write nothing succeed at the owner.
        assert_answered(&own_session, cluster.node("a"), number).await;
        assert_answered(&other_session, cluster.node("b"), number).await;
        for node in &cluster.nodes {
            // New sessions are refused; per-request calls need no store.
            assert_refused(&post(node.address, "/mcp", &initialize_request("2025-11-25")).go().await);
            assert_eq!(per_request_call(node.address, 1, &CallKind::Plain.params(0)).json().await.0, 200);
            assert_eq!(node.ready_status().await, Some(503));
        }
        assert_refused(&call_once(&own_session, cluster.node("b"), number).await);
        assert_refused(&call_once(&other_session, cluster.node("c"), number).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!((owner(&cluster, &own_session).await, owner(&cluster, &other_session).await), ("a".into(), "b".into()));
    cluster.wait_session_count(3).await;

    // A call that needs a resumable stream fails with an error.
    let body = request(7, "tools/call", CallKind::Progress(3).params(7));
    let response = own_session.post(cluster.node("a").address, &body).go().await;
    assert_eq!(response.status, 200);
    let response = response.json().await;
    assert_eq!((&response["id"], &response["error"]["code"]), (&json!(7), &json!(-32603)), "{response}");
    let sentence = "The session store has no room for the messages of the call; the call may have been carried out";
    let data = json!({ "failure": "store_full", "mayHaveRun": true });
    assert_eq!((&response["error"]["message"], &response["error"]["data"]), (&json!(sentence), &data));

    // Deleting a session frees memory and is allowed.
    over.at(cluster.node("a")).end().await;
    cluster.wait_session_count(2).await;

    // Takeover from a dead node works, and a new node can join.
    cluster.node_mut("b").kill().await;
    let (other_session_at_c, c) = (other_session.at(cluster.node("c")), cluster.node("c").address);
    eventually("c has taken the session over", async || {
        let received = other_session_at_c.post(c, &request(50, "tools/call", CallKind::Plain.params(50))).go().await;
        if received.status == 200 { Ok(()) } else { Err(received.text().await) }
    })
    .await;
    assert_eq!(owner(&cluster, &other_session).await, "c");
    cluster.node_mut("b").restart().await;
    wait_reports_full(cluster.node("b")).await;

    set_maxmemory(&cluster, 0).await;
    for node in &cluster.nodes {
        node.wait_ready().await;
    }
    for (number, node) in cluster.nodes.iter().enumerate() {
        for session in [&own_session, &other_session] {
            assert_eq!(session.at(node).call(100 + number as u64, CallKind::Progress(3)).await, CallOutcome::Answered);
        }
    }
    let new = open_session_at(&cluster, "b").await;
    cluster.wait_session_count(3).await;
    for session in [own_session, other_session, new] {
        session.end().await;
    }
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumption_without_a_gap_after_the_store_was_full() {
    let cluster = TestCluster::three().await;
    let session = open_session_at(&cluster, "a").await;
    let a = cluster.node("a");
    let listening = session.get(a.address, None).go().await;
    assert_eq!(listening.status, 200);
    let body = request(7, "tools/call", CallKind::Ask.params(7));
    let mut stream = session.post(a.address, &body).go().await.events();
    let (mut last, mut question) = (String::new(), serde_json::Value::Null);
    while question.is_null() {
        let event = stream.next().await.unwrap();
        last = event.id.unwrap_or(last);
        if !event.data.is_empty() {
            question = serde_json::from_str(&event.data).unwrap();
        }
    }
    set_maxmemory(&cluster, 1).await;
    // The response to the server request is accepted, but the events that follow cannot be persisted.
    let reply =
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": super::load_driver::reply(&question["params"]) });
    let response = session.post(a.address, &reply).go().await.status;
    assert!(response == 202 || response == 503, "{response}");
    let started = Instant::now();
    let ended =
        tokio::time::timeout(Duration::from_secs(15), async { while stream.message().await.is_some() {} }).await;
    assert!(ended.is_ok(), "the stream hangs");
    println!("ended after {:?}", started.elapsed());
    set_maxmemory(&cluster, 0).await;
    cluster.node("c").wait_ready().await;
    let rest = session.at(cluster.node("c")).resumed(&last).await.rest().await;
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert_eq!(CallKind::Ask.check_response(7, &rest[0]), CallOutcome::Answered);
    session.end().await;
    drop(listening);
    cluster.wait_idle().await;
    cluster.shut_down().await;
}
