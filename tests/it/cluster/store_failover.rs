//! Store failover to a replica, and a store that restarts from an old snapshot.

use std::time::{Duration, Instant};

use serde_json::json;

use super::load::{UNBOUNDED_CALLS, finish_after_fault, open_session_at, two_of_each_kind};
use super::load_driver::{CallKind, CallOutcome, LoadDriver};
use super::processes::{LEASE, TestCluster, eventually};
use super::regressions::session_id;
use crate::harness::{Rialto, TEST_TIMEOUT, request, until};
use crate::redis::{RedisFlavor, RedisServer};
use crate::store::redis_failover::SentinelPair;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_follow_a_sentinel_failover() {
    let mut watched = SentinelPair::start().await;
    let url = watched.url();
    // The cluster checks for leftovers on the replica, which is the primary at the end.
    let spare = RedisServer::start(RedisFlavor::Redis).await;
    let store = std::mem::replace(&mut watched.second, spare);
    let cluster = TestCluster::with(store, &["a", "b", "c"], |_| url.clone()).await;
    for node in &cluster.nodes {
        node.wait_ready().await;
    }
    let driver = LoadDriver::start(&cluster, &two_of_each_kind(), UNBOUNDED_CALLS);
    let session = open_session_at(&cluster, "b").await;
    driver.wait_calls_each(3).await;
    let started = Instant::now();
    watched.first.stop();
    let is_promoted = async || match cluster.store.info("replication").await {
        told if told.contains("role:master") => Ok(()),
        told => Err(told),
    };
    eventually("the replica is promoted", is_promoted).await;
    println!("taken over after {:?}", started.elapsed());
    for node in &cluster.nodes {
        node.wait_ready().await;
    }
    for node in &cluster.nodes {
        assert_eq!(driver.call(&session.at(node), CallKind::Progress(2)).await, CallOutcome::Answered);
    }
    println!("all is well after {:?}", started.elapsed());
    driver.wait_calls_each(3).await;
    finish_after_fault(cluster, driver, session, 2 * two_of_each_kind().len()).await;
}

/// In-process node with a long lease.
async fn node_with_long_lease(server: &RedisServer, name: &str) -> Rialto {
    let rialto = Rialto::with(|settings| {
        settings.cluster_store = Some(server.store());
        settings.store.node = Some(name.into());
        settings.store.lease = LEASE * 3;
    })
    .await;
    until("the node is ready", || rialto.inbound.admin.ready().is_ok()).await;
    rialto
}

/// Restarts the store from its last snapshot.
async fn restart_from_snapshot(server: &mut RedisServer) {
    server.stop();
    server.restart().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_missing_from_a_restored_snapshot_is_written_again() {
    let mut server = RedisServer::start(RedisFlavor::Redis).await;
    let (a, b) = (node_with_long_lease(&server, "a").await, node_with_long_lease(&server, "b").await);
    let () = server.ask(&mut redis::cmd("SAVE")).await;
    let session = a.open("2025-11-25").await;
    restart_from_snapshot(&mut server).await;
    let started = Instant::now();
    let found = loop {
        // During the resync grace period the response is 503, never 404.
        match session.at_node(&b).post(&request(1, "ping", json!({}))).status().await {
            503 => assert!(started.elapsed() < TEST_TIMEOUT),
            status => break status,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    println!("{found} after {:?}", started.elapsed());
    assert_eq!(found, 200);
    assert_eq!((a.inbound.sessions.count(), b.inbound.sessions.count()), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_takeover_the_store_lost_has_one_owner() {
    let mut server = RedisServer::start(RedisFlavor::Redis).await;
    let (a, b) = (node_with_long_lease(&server, "a").await, node_with_long_lease(&server, "b").await);
    let session = a.open("2025-11-25").await;
    let () = server.ask(&mut redis::cmd("SAVE")).await;
    let (sessions, id) = (&a.inbound.sessions, session_id(&session.id));
    let local_session = sessions.get(id).unwrap();
    assert!(sessions.persister().unwrap().release(sessions, &local_session, true).await.unwrap());
    assert_eq!(session.at_node(&b).post(&request(1, "ping", json!({}))).status().await, 200);
    assert_eq!((sessions.count(), b.inbound.sessions.count()), (0, 1));
    restart_from_snapshot(&mut server).await;
    let at_a = async || match session.post(&request(2, "ping", json!({}))).status().await {
        200 => Ok(()),
        status => Err(status.to_string()),
    };
    eventually("the session is served", at_a).await;
    let owners = || sessions.count() + b.inbound.sessions.count();
    until("the session has one owner", || owners() == 1).await;
    for node in [&a, &b] {
        assert_eq!(session.at_node(node).post(&request(3, "ping", json!({}))).status().await, 200);
        assert_eq!(owners(), 1);
    }
}
