//! A store that answers slowly on some connections, and mailboxes that fill up.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use super::load::open_session_at;
use super::load_driver::{CallKind, CallOutcome};
use super::lost_messages::{Flag, two_nodes, wait_ready};
use super::processes::TestCluster;
use super::resp::StoreCommand;
use super::store_proxy::StoreFault;
use crate::harness::{request, until};

/// Connections by what they carried.
#[derive(Default)]
struct Carried {
    heartbeats: Vec<u64>,
    sessions: HashSet<u64>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_store_connection_does_not_cost_the_lease() {
    let (carried, is_busy) = (Arc::new(Mutex::new(Carried::default())), Flag::default());
    let (seen, busy) = (Arc::clone(&carried), is_busy.clone());
    let (cluster, _proxy) = two_nodes("a", move |command: &StoreCommand| {
        let mut seen = seen.lock().unwrap();
        if command.has_key("n") && command.has_key("m") {
            seen.heartbeats.push(command.connection);
        }
        if !command.has_key("s") {
            return StoreFault::None;
        }
        seen.sessions.insert(command.connection);
        if busy.is_set() { StoreFault::Hold } else { StoreFault::None }
    })
    .await;
    wait_ready(&cluster).await;
    let session = open_session_at(&cluster, "a").await;
    let node = || async { cluster.node("a").status().await["cluster"]["node"].clone() };
    let before = node().await;
    is_busy.set(true);
    let at_owner = session.at(cluster.node("a"));
    // Its events must be written to the store, again and again, before it is answered.
    let calling = tokio::spawn(async move { at_owner.call(1, CallKind::Progress(2)).await });
    let heartbeats = || carried.lock().unwrap().heartbeats.len();
    let (beaten, three_leases) = (heartbeats(), 9);
    until("the heartbeats go on", || heartbeats() >= beaten + three_leases).await;
    is_busy.set(false);
    // Its stream ends when an event cannot be stored for five seconds.
    calling.await.unwrap();
    assert_eq!(node().await, before, "the node has kept its lease");
    {
        let carried = carried.lock().unwrap();
        let shared: Vec<_> = carried.heartbeats.iter().filter(|number| carried.sessions.contains(number)).collect();
        assert!(shared.is_empty(), "heartbeats on connections that are used for sessions: {shared:?}");
    }
    session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

/// Fills the mailbox of node a, which does not read it, with `count` messages of `size` bytes.
async fn fill_mailbox(cluster: &TestCluster, count: usize, size: usize) {
    let status = cluster.node("a").status().await;
    let (_, incarnation) = status["cluster"]["node"].as_str().unwrap().split_once('/').unwrap();
    let key = format!("rialto:m:{{a}}/{incarnation}");
    // Copied in the store, because a command with so many bytes takes its time.
    let fill = "redis.call('DEL', KEYS[1])
        for i = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], ARGV[2]) end
        return redis.call('LLEN', KEYS[1])";
    let mut filling = redis::cmd("EVAL");
    filling.arg(fill).arg(1).arg(&key).arg(count).arg(vec![b'x'; size]);
    assert_eq!(cluster.store.ask::<usize>(&mut filling).await, count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_mailbox_refuses_a_request_before_it_is_sent() {
    let is_busy = Flag::default();
    let busy = is_busy.clone();
    let (cluster, proxy) =
        two_nodes(
            "a",
            move |command: &StoreCommand| {
                if command.is("BLMPOP") && busy.is_set() { StoreFault::Hold } else { StoreFault::None }
            },
        )
        .await;
    wait_ready(&cluster).await;
    let session = open_session_at(&cluster, "a").await;
    is_busy.set(true);
    until("the mailbox of a is not read", || proxy.held() > 0).await;
    for (count, size) in [(17, 4 << 20), (10_000, 1)] {
        fill_mailbox(&cluster, count, size).await;
        let body = request(1, "tools/call", CallKind::Plain.params(1));
        let refused = session.post(cluster.node("b").address, &body).go().await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
        let refused = refused.json().await;
        assert_eq!(
            refused["error"]["message"],
            "The node that must take this call has too many messages waiting; \
            the call was not carried out; try again in 1 s",
            "{refused}"
        );
        assert_eq!(refused["error"]["data"]["failure"], "node_busy", "{refused}");
    }
    assert_eq!(cluster.http_server.count("tools/call"), 0);
    is_busy.set(false);
    assert_eq!(session.at(cluster.node("b")).call(1, CallKind::Plain).await, CallOutcome::Answered);
    session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}
