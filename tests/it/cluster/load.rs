//! Load on three nodes: undisturbed, and while nodes are killed, paused and restarted.

use std::time::Instant;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::load_clients::Session;
use super::load_driver::{ALL, CallKind, CallOutcome, ClientKind, LoadDriver};
use super::processes::{LEASE, TestCluster};
use crate::harness::request;

/// Two clients of each kind.
pub fn two_of_each_kind() -> Vec<ClientKind> {
    [ALL, ALL].concat()
}

/// Streamable HTTP sessions among [`two_of_each_kind`].
pub const STREAMABLE_SESSIONS: u64 = 4;
/// More calls than a client makes before the test stops it.
pub const UNBOUNDED_CALLS: u64 = 100_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_once_with_relay_from_any_node() {
    let cluster = TestCluster::three().await;
    let report = LoadDriver::with(&cluster, &two_of_each_kind(), 25, true).end().await;
    assert_eq!(report.failed, []);
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takeover_after_a_kill_loses_only_calls_in_flight() {
    let mut cluster = TestCluster::three().await;
    let driver = LoadDriver::start(&cluster, &two_of_each_kind(), UNBOUNDED_CALLS);
    driver.wait_calls_each(5).await;
    let session = open_session_at(&cluster, "b").await;
    cluster.node_mut("b").kill().await;
    let killed = Instant::now();
    assert_eq!(call_after_takeover(&driver, &session, &cluster).await, CallOutcome::Answered);
    println!("takeover after {:?}, with a lease of {LEASE:?}", killed.elapsed());
    assert!(killed.elapsed() < LEASE * 3);
    driver.wait_calls_each(3).await;
    cluster.node_mut("b").restart().await;
    driver.wait_calls_each(5).await;
    // Each client has at most one call in flight, so each can lose at most one.
    finish_after_fault(cluster, driver, session, two_of_each_kind().len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_node_does_not_serve_sessions_after_their_takeover() {
    let cluster = TestCluster::three().await;
    let driver = LoadDriver::start(&cluster, &two_of_each_kind(), UNBOUNDED_CALLS);
    driver.wait_calls_each(5).await;
    let session = open_session_at(&cluster, "b").await;
    let halted = cluster.node("b");
    cluster.balancer.set_excluded(halted.address, true);
    halted.pause();
    let started = Instant::now();
    assert_eq!(call_after_takeover(&driver, &session, &cluster).await, CallOutcome::Answered);
    println!("takeover after {:?}, with a lease of {LEASE:?}", started.elapsed());
    halted.resume();
    halted.wait_ready().await;
    cluster.balancer.set_excluded(halted.address, false);
    for node in &cluster.nodes {
        assert_eq!(driver.call(&session.at(node), CallKind::Progress(3)).await, CallOutcome::Answered);
    }
    driver.wait_calls_each(5).await;
    finish_after_fault(cluster, driver, session, two_of_each_kind().len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_in_a_rolling_restart_fails_no_call() {
    let mut cluster = TestCluster::three().await;
    let driver = LoadDriver::start(&cluster, &two_of_each_kind(), UNBOUNDED_CALLS);
    driver.wait_calls_each(3).await;
    for name in ["a", "b", "c"] {
        let node = cluster.node_mut(name);
        let started = Instant::now();
        node.terminate();
        assert_eq!(node.wait_exit().await, Some(0), "{name}");
        println!("{name} stopped within {:?}", started.elapsed());
        driver.wait_calls_each(2).await;
        let node = cluster.node_mut(name);
        node.restart().await;
        node.wait_ready().await;
        driver.wait_calls_each(2).await;
    }
    cluster.wait_session_count(STREAMABLE_SESSIONS).await;
    let report = driver.finish().await;
    assert_eq!(report.failed, []);
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_answers_requests_on_connections_accepted_before() {
    let mut cluster = TestCluster::three().await;
    let session = open_session_at(&cluster, "b").await;
    let address = cluster.node("b").address;
    let mut guests = Vec::new();
    for _ in 0..20 {
        guests.push(TcpStream::connect(address).await.unwrap());
    }
    // The node finds the signal and the requests at one moment, with nothing else in flight.
    cluster.node("b").pause();
    cluster.node_mut("b").terminate();
    for (number, guest) in guests.iter_mut().enumerate() {
        let body = request(number, "ping", json!({})).to_string();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
            accept: application/json, text/event-stream\r\nmcp-session-id: {}\r\n\
            mcp-protocol-version: 2025-11-25\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            session.id,
            body.len()
        );
        guest.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    }
    cluster.node("b").resume();
    for (number, guest) in guests.iter_mut().enumerate() {
        let mut answer = String::new();
        guest.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{number}: {answer:?}");
    }
    assert_eq!(cluster.node_mut("b").wait_exit().await, Some(0));
    cluster.node_mut("b").restart().await;
    session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

/// Outcome of a call after the owner of its session died. A call that the dead node had already received fails; then
/// the next one must succeed.
async fn call_after_takeover(driver: &LoadDriver, session: &Session, cluster: &TestCluster) -> CallOutcome {
    let session = session.at(cluster.node("a"));
    match driver.call(&session, CallKind::Plain).await {
        CallOutcome::Failed(why) if why.contains("cannot be reached") => driver.call(&session, CallKind::Plain).await,
        outcome => outcome,
    }
}

/// Opens a session whose owner is this node.
pub async fn open_session_at(cluster: &TestCluster, name: &str) -> Session {
    let node = super::balancer::RoundRobinBalancer::new(vec![cluster.node(name).address]);
    let session = Session::open(&node, "2025-11-25").await;
    Session { balancer: std::sync::Arc::clone(&cluster.balancer), ..session }
}

/// Asserts after a fault that all sessions survive, that at most `most` calls failed, and that nothing is left behind.
pub async fn finish_after_fault(cluster: TestCluster, driver: LoadDriver, session: Session, most: usize) {
    cluster.wait_session_count(STREAMABLE_SESSIONS + 1).await;
    let report = driver.finish().await;
    assert!(report.failed.len() <= most);
    session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}
