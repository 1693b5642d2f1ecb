//! Unavailable store: pause, restart with data loss, and a partition of one node.

use serde_json::Value;

use super::load::{UNBOUNDED_CALLS, finish_after_fault, open_session_at, two_of_each_kind};
use super::load_clients::{Session, initialize_request, per_request_call, post};
use super::load_driver::{CallKind, CallOutcome, LoadDriver};
use super::processes::{LEASE, Node, TestCluster};
use super::store_proxy::StoreProxy;
use crate::redis::{RedisFlavor, RedisServer};

/// Asserts that a per-request call, which needs no store, succeeds.
async fn assert_per_request_call_succeeds(node: &Node) {
    // A call on a busy machine may take longer than `sse_after`, and is then answered with a stream.
    let (status, answer) = per_request_call(node.address, 1, &CallKind::Plain.params(0)).answer().await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer["result"].is_object(), "{answer}");
}

/// Asserts that a session request is refused with 503 and `Retry-After`.
async fn assert_session_refused(session: &Session, node: &Node) {
    let ping = crate::harness::request(1, "ping", serde_json::json!({}));
    let received = session.post(node.address, &ping).go().await;
    assert_eq!(received.status, 503);
    assert!(received.header("retry-after").is_some());
    let refused = received.json().await;
    assert_eq!(refused["id"], 1, "{refused}");
}

/// Makes the store unavailable and available again under load.
async fn with_store_outage(go: impl FnOnce(&mut RedisServer), come: impl AsyncFnOnce(&mut RedisServer)) {
    let mut cluster = TestCluster::three().await;
    let driver = LoadDriver::start(&cluster, &two_of_each_kind(), UNBOUNDED_CALLS);
    let session = open_session_at(&cluster, "b").await;
    driver.wait_calls_each(5).await;
    go(&mut cluster.store);
    for node in &cluster.nodes {
        node.wait_ready_status(503).await;
        assert_per_request_call_succeeds(node).await;
        assert_session_refused(&session, node).await;
    }
    come(&mut cluster.store).await;
    for node in &cluster.nodes {
        node.wait_ready().await;
        assert_eq!(driver.call(&session.at(node), CallKind::Progress(2)).await, CallOutcome::Answered);
    }
    driver.wait_calls_each(5).await;
    // A client may lose the call in flight when the store fails, and one more whose outcome is unknown.
    finish_after_fault(cluster, driver, session, 2 * two_of_each_kind().len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_store_fails_requests_with_503_and_recovers() {
    with_store_outage(|server| server.pause(), async |server| server.resume()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_timeouts_execute_no_call_twice() {
    let cluster = TestCluster::three().await;
    let driver = LoadDriver::start(&cluster, &two_of_each_kind(), UNBOUNDED_CALLS);
    driver.wait_calls_each(3).await;
    for _ in 0..4 {
        // Longer than the command timeout and shorter than a lease: the commands are executed late.
        cluster.store.pause();
        tokio::time::sleep(LEASE * 5 / 8).await;
        cluster.store.resume();
        driver.wait_calls_each(3).await;
    }
    let report = driver.finish().await;
    assert!(report.failed.len() <= 4 * two_of_each_kind().len());
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_written_again_after_the_store_lost_its_data() {
    with_store_outage(RedisServer::stop, async |server| server.restart().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_starts_while_the_store_is_unavailable() {
    let mut store = RedisServer::start(RedisFlavor::Redis).await;
    let url = store.url();
    store.stop();
    let mut cluster = TestCluster::with(store, &["a", "b"], |_| url.clone()).await;
    for node in &cluster.nodes {
        node.wait_ready_status(503).await;
        super::processes::eventually("the upstreams are ready", async || {
            let listed = node.status().await["upstreams"].to_string();
            if listed.matches("\"ready\"").count() == 2 { Ok(()) } else { Err(listed) }
        })
        .await;
        assert_per_request_call_succeeds(node).await;
        let received = post(node.address, "/mcp", &initialize_request("2025-11-25")).go().await;
        assert_eq!((received.status, received.header("retry-after").is_some()), (503, true));
    }
    cluster.store.restart().await;
    for node in &cluster.nodes {
        node.wait_ready().await;
    }
    let session = open_session_at(&cluster, "a").await;
    for node in &cluster.nodes {
        assert_eq!(session.at(node).call(1, CallKind::Progress(2)).await, CallOutcome::Answered);
    }
    session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takeover_of_sessions_from_a_node_partitioned_from_the_store() {
    let store = RedisServer::start(RedisFlavor::Redis).await;
    let (url, store_proxy) = (store.url(), StoreProxy::to(store.port()).await);
    let proxied_url = store_proxy.url();
    let find = |name: &str| if name == "b" { proxied_url.clone() } else { url.clone() };
    let cluster = TestCluster::with(store, &["a", "b", "c"], find).await;
    for node in &cluster.nodes {
        node.wait_ready().await;
    }
    let [a, b, c] = ["a", "b", "c"].map(|name| cluster.node(name));
    for silent in [false, true] {
        let session = open_session_at(&cluster, "b").await;
        assert_eq!(session.at(c).call(1, CallKind::Ask).await, CallOutcome::Answered);
        store_proxy.cut(silent);
        b.wait_ready_status(503).await;
        assert_session_refused(&session, b).await;
        assert_per_request_call_succeeds(b).await;
        let started = std::time::Instant::now();
        assert_eq!(session.at(a).call(2, CallKind::Progress(3)).await, CallOutcome::Answered);
        assert!(started.elapsed() < LEASE * 3);
        assert_session_refused(&session, b).await;
        store_proxy.mend();
        b.wait_ready().await;
        for node in [b, c, a] {
            assert_eq!(session.at(node).call(3, CallKind::Progress(3)).await, CallOutcome::Answered);
        }
        cluster.wait_session_count(1).await;
        session.end().await;
    }
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumption_of_upstream_sessions_after_a_single_node_restart() {
    let mut cluster = TestCluster::start(&["a"]).await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let session = open_session_at(&cluster, "a").await;
        let before = upstream_session(&session, 1).await;
        sessions.push((session, before));
    }
    let introductions = cluster.http_server.count("initialize");
    let node = cluster.node_mut("a");
    node.kill().await;
    node.restart().await;
    node.wait_ready().await;
    for (session, before) in &sessions {
        assert_eq!(upstream_session(session, 2).await, *before, "the upstream session is resumed");
    }
    // Only the catalog connection initialized again.
    assert_eq!(cluster.http_server.count("initialize"), introductions + 1);
    for (session, _) in &sessions {
        session.end().await;
    }
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

/// Upstream session id of a client session.
pub async fn upstream_session(session: &Session, number: u64) -> String {
    report(session, number, CallKind::Plain).await["session"].as_str().unwrap().to_owned()
}

/// Report of the server about a call.
pub async fn report(session: &Session, number: u64, call_kind: CallKind) -> Value {
    let body = crate::harness::request(number, "tools/call", call_kind.params(number));
    let received = session.balancer.send_until_accepted(|node| session.post(node, &body)).await.unwrap();
    let answer = received.response().await;
    serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap()
}
