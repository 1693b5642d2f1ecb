//! Failover to a replica and slot migration while a store client is in use.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rialto::store::redis::RedisOptions;
use rialto::store::traits::{EventStore, NodeStatus, NodeStore, RecordWrite, SessionDelta, SessionStore, WriteOutcome};
use rialto::store::{ClusterStore, NodeId, RedisStore};
use tokio::task::JoinHandle;

use super::redis_cluster::{add_replica, start_cluster};
use super::{LONG_TTL, batch, delta, event, until};
use crate::harness::TEST_TIMEOUT;
use crate::redis::{RedisFlavor, RedisServer, STORE_TIMEOUT};

/// Primary, replica, and a Sentinel that promotes the replica.
pub struct SentinelPair {
    pub first: RedisServer,
    pub second: RedisServer,
    sentinel: RedisServer,
    folder: PathBuf,
}

impl SentinelPair {
    pub async fn start() -> Self {
        let first = RedisServer::with(RedisFlavor::Redis, &["--repl-diskless-sync-delay", "0"]).await;
        let port = first.port().to_string();
        let second = RedisServer::with(RedisFlavor::Redis, &["--replicaof", "127.0.0.1", &port]).await;
        until("replication is up", async || second.info("replication").await.contains("master_link_status:up")).await;
        let folder = std::env::temp_dir().join(format!("rialto-sentinel-{port}"));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("sentinel.conf");
        let said = format!(
            "sentinel monitor main 127.0.0.1 {port} 1\nsentinel down-after-milliseconds main 1000\n\
            sentinel failover-timeout main 3000\n"
        );
        std::fs::write(&file, said).unwrap();
        let sentinel = RedisServer::sentinel(&file).await;
        until("the Sentinel knows the replica", async || sentinel.info("sentinel").await.contains("slaves=1")).await;
        Self { first, second, sentinel, folder }
    }

    pub fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/main", self.sentinel.port())
    }

    /// Kills the primary and waits until the replica is promoted.
    pub async fn fail_over(&mut self) {
        self.first.stop();
        until("the replica is promoted", async || self.second.info("replication").await.contains("role:master")).await;
    }
}

impl Drop for SentinelPair {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Task that writes continuously and counts acknowledged writes.
struct Writer {
    stop: Arc<AtomicBool>,
    work: JoinHandle<WriteReport>,
}

struct WriteReport {
    last: u64,
    failed: u64,
    /// Longest write, acknowledged or failed.
    longest: Duration,
}

impl Writer {
    fn start(store: &Arc<RedisStore>, id: &str, node: &NodeId) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (store, id, node, stopped) = (Arc::clone(store), id.to_owned(), node.clone(), Arc::clone(&stop));
        let work = tokio::spawn(async move {
            let mut report = WriteReport { last: 0, failed: 0, longest: Duration::ZERO };
            while !stopped.load(Ordering::SeqCst) {
                let record = Some(RecordWrite::Whole((report.last + 1).to_string().into()));
                let version = report.last + 1;
                let all = SessionDelta { record, version, ..delta(vec![event(0, report.last + 1, "x")]) };
                let started = Instant::now();
                match store.write_deltas(&node, &batch(&id, all)).await {
                    Ok(written) => {
                        assert_eq!(written, [WriteOutcome::Applied]);
                        report.last += 1;
                    }
                    // The write may have been applied; it is retried, and writes are idempotent.
                    Err(_) => report.failed += 1,
                }
                report.longest = report.longest.max(started.elapsed());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            report
        });
        Self { stop, work }
    }

    async fn end(self) -> WriteReport {
        self.stop.store(true, Ordering::SeqCst);
        self.work.await.unwrap()
    }
}

fn connect(url: &str) -> Arc<RedisStore> {
    RedisStore::connect(url, "rialto", RedisOptions { timeout: STORE_TIMEOUT * 4, root_certificates: None }).unwrap()
}

/// Asserts that exactly one of two concurrent claims of a session wins.
async fn has_one_owner(stores: [&RedisStore; 2], id: &str, from: &NodeId) {
    let nodes = ["x", "y"].map(NodeId::generate);
    let claim = |i: usize| stores[i].claim(id, Some(from), Some(&nodes[i]));
    let (first, second) = tokio::join!(claim(0), claim(1));
    let won = [first.unwrap(), second.unwrap()].map(|written| written == WriteOutcome::Applied);
    let owner = stores[0].load(id).await.unwrap().unwrap().owner.unwrap();
    assert_eq!(owner, nodes[usize::from(won[1])]);
    assert!(won[0] != won[1], "{won:?}");
    let late = stores[0].write_deltas(from, &batch(id, delta(vec![event(0, 1 << 40, "late")]))).await.unwrap();
    assert_eq!(late, [WriteOutcome::NotOwner]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_failover_is_followed_without_losing_acknowledged_writes() {
    let mut watched = SentinelPair::start().await;
    let (store, other, a) = (connect(&watched.url()), connect(&watched.url()), NodeId::generate("a"));
    store.join(&a, LONG_TTL).await.unwrap();
    store.create("s", &a, Bytes::new(), LONG_TTL).await.unwrap();
    let receiving = tokio::spawn({
        let (store, a) = (Arc::clone(&store), a.clone());
        async move {
            let mut taken = Vec::new();
            while taken.is_empty() {
                taken = store.receive(&a).await.unwrap_or_default();
            }
            taken
        }
    });
    let writer = Writer::start(&store, "s", &a);
    until("the writer has begun", async || store.read_events("s").await.unwrap().len() > 20).await;
    // The replica must have replicated the session before the failover.
    until("the session is replicated", async || {
        watched.second.ask::<u64>(redis::cmd("XLEN").arg("rialto:e:{s}")).await > 10
    })
    .await;
    let openings = store.reconnects();
    watched.fail_over().await;
    until("the store is reachable again", async || store.load("s").await.is_ok()).await;
    assert!(store.reconnects() > openings, "those who have something there can look whether it still is");
    let before = store.read_events("s").await.unwrap().len();
    until("the writer goes on", async || store.read_events("s").await.unwrap().len() > before + 10).await;
    let report = writer.end().await;
    println!("{} written, {} failed, {:?} at most", report.last, report.failed, report.longest);
    assert!(report.longest < TEST_TIMEOUT, "{:?}", report.longest);
    assert_eq!(store.load("s").await.unwrap().unwrap().record, report.last.to_string());
    // It has a connection of its own, which is opened again by the first attempts.
    until("the heartbeat is answered", async || store.heartbeat(&a, LONG_TTL).await == Ok(NodeStatus::Alive)).await;
    until("the message is sent", async || store.send(&a, vec![Bytes::from_static(b"x")], LONG_TTL).await.is_ok()).await;
    assert_eq!(receiving.await.unwrap()[0], "x");
    until("the other client reconnected", async || other.load("s").await.is_ok()).await;
    has_one_owner([&store, &other], "s", &a).await;
}

/// Cluster node id of a server.
async fn name(server: &RedisServer) -> String {
    server.ask(redis::cmd("CLUSTER").arg("MYID")).await
}

/// Migrates a slot key by key.
async fn move_slot(slot: u16, from: &RedisServer, to: &RedisServer, all: &[RedisServer]) {
    let (old, new) = (name(from).await, name(to).await);
    let set = |how: &str, who: &str| {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SETSLOT").arg(slot).arg(how).arg(who);
        command
    };
    let () = to.ask(&mut set("IMPORTING", &old)).await;
    let () = from.ask(&mut set("MIGRATING", &new)).await;
    loop {
        let keys: Vec<String> = from.ask(redis::cmd("CLUSTER").arg("GETKEYSINSLOT").arg(slot).arg(1)).await;
        let Some(key) = keys.first() else { break };
        let mut command = redis::cmd("MIGRATE");
        let () = from.ask(command.arg("127.0.0.1").arg(to.port()).arg(key).arg(0).arg(1000)).await;
        // Leaves time for commands while the keys of the slot are on two servers.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let () = to.ask(&mut set("NODE", &new)).await;
    let () = from.ask(&mut set("NODE", &new)).await;
    for server in all {
        let () = server.ask(&mut set("NODE", &new)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_migration_is_followed() {
    let servers = start_cluster(&[]).await;
    let url = format!("redis-cluster://127.0.0.1:{}", servers[0].port());
    let (store, other, a) = (connect(&url), connect(&url), NodeId::generate("a"));
    store.create("s", &a, Bytes::new(), LONG_TTL).await.unwrap();
    let slot: u16 = servers[0].ask(redis::cmd("CLUSTER").arg("KEYSLOT").arg("rialto:s:{s}")).await;
    let writer = Writer::start(&store, "s", &a);
    until("the writer has begun", async || store.read_events("s").await.is_ok_and(|events| events.len() > 20)).await;
    let home = usize::from(slot) * 3 / 16384;
    for turn in 0..3 {
        let (from, to) = (&servers[(home + turn) % 3], &servers[(home + turn + 1) % 3]);
        move_slot(slot, from, to, &servers).await;
        let before = store.read_events("s").await.unwrap().len();
        until("the writer goes on", async || {
            store.read_events("s").await.is_ok_and(|events| events.len() > before + 10)
        })
        .await;
    }
    let report = writer.end().await;
    println!("{} written, {} failed, {:?} at most", report.last, report.failed, report.longest);
    assert!(report.longest < TEST_TIMEOUT, "{:?}", report.longest);
    let events = store.read_events("s").await.unwrap();
    let positions: Vec<u64> = events.iter().map(|event| event.id.position).collect();
    assert_eq!(positions, (1..=report.last.max(positions.len() as u64)).collect::<Vec<_>>(), "none is missing");
    has_one_owner([&store, &other], "s", &a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_cluster_failover_is_followed() {
    let quick = ["--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0"];
    let mut servers = start_cluster(&quick).await;
    let replica = add_replica(&servers, &quick).await;
    let url = format!("redis-cluster://127.0.0.1:{},127.0.0.1:{}", servers[1].port(), servers[2].port());
    let (store, other, a) = (connect(&url), connect(&url), NodeId::generate("a"));
    // Session ids whose slot is on the first primary.
    let mut names = Vec::new();
    for i in 0.. {
        let key = format!("rialto:s:{{s{i}}}");
        if servers[0].ask::<u16>(redis::cmd("CLUSTER").arg("KEYSLOT").arg(&key)).await <= 5460 {
            names.push(format!("s{i}"));
        }
        if names.len() == 2 {
            break;
        }
    }
    for id in &names {
        store.create(id, &a, Bytes::new(), LONG_TTL).await.unwrap();
    }
    let writer = Writer::start(&store, &names[0], &a);
    until("the writer has begun", async || store.read_events(&names[0]).await.is_ok_and(|events| events.len() > 20))
        .await;
    until("the keys are replicated", async || replica.size().await >= 3).await;
    servers[0].stop();
    until("the replica is promoted", async || replica.info("replication").await.contains("role:master")).await;
    until("the store is reachable again", async || store.load(&names[0]).await.is_ok()).await;
    let before = store.read_events(&names[0]).await.unwrap().len();
    let more = async || store.read_events(&names[0]).await.is_ok_and(|events| events.len() > before + 10);
    until("the writer goes on", more).await;
    let report = writer.end().await;
    println!("{} written, {} failed, {:?} at most", report.last, report.failed, report.longest);
    assert!(report.longest < TEST_TIMEOUT, "{:?}", report.longest);
    assert_eq!(store.load(&names[0]).await.unwrap().unwrap().record, report.last.to_string());
    until("the other client reconnected", async || other.load(&names[1]).await.is_ok()).await;
    has_one_owner([&store, &other], &names[1], &a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_to_a_server_that_died_is_reported_as_maybe_applied() {
    let mut servers = start_cluster(&[]).await;
    let url = format!("redis-cluster://127.0.0.1:{}", servers[1].port());
    let (store, mut a) = (connect(&url), NodeId::generate("a"));
    // A node whose mailbox slot is on the first primary.
    for i in 0.. {
        a = NodeId::generate(format!("a{i}"));
        let key = format!("rialto:m:{{{}}}/x", a.name());
        if servers[0].ask::<u16>(redis::cmd("CLUSTER").arg("KEYSLOT").arg(&key)).await <= 5460 {
            break;
        }
    }
    store.send(&a, vec![Bytes::from_static(b"x")], LONG_TTL).await.unwrap();
    servers[0].pause();
    let sending = tokio::spawn({
        let (store, a) = (Arc::clone(&store), a.clone());
        async move { store.send(&a, vec![Bytes::from_static(b"y")], LONG_TTL).await }
    });
    tokio::time::sleep(STORE_TIMEOUT / 2).await;
    servers[0].stop();
    let error = sending.await.unwrap().unwrap_err();
    println!("{error}");
    assert!(error.maybe_applied, "{error}");
}
