//! Servers that take over from one another, and slots that move, while a store is used.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rialto::store::redis::RedisOptions;
use rialto::store::traits::{EventStore, NodeStatus, NodeStore, SessionDelta, SessionStore, WriteOutcome};
use rialto::store::{ClusterStore, NodeId, Redis};
use tokio::task::JoinHandle;

use super::cluster::{cluster, whole};
use super::{LONG, event, news, one, until};
use crate::redis::{Program, Server, TIMEOUT};

/// A server, one that follows it, and a Sentinel that lets that take over.
pub struct Watched {
    pub first: Server,
    pub second: Server,
    sentinel: Server,
    folder: PathBuf,
}

impl Watched {
    pub async fn start() -> Self {
        let first = Server::with(Program::Redis, &["--repl-diskless-sync-delay", "0"]).await;
        let port = first.port().to_string();
        let second = Server::with(Program::Redis, &["--replicaof", "127.0.0.1", &port]).await;
        until("it follows", async || second.tells("replication").await.contains("master_link_status:up")).await;
        let folder = std::env::temp_dir().join(format!("rialto-sentinel-{port}"));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("sentinel.conf");
        let said = format!(
            "sentinel monitor main 127.0.0.1 {port} 1\nsentinel down-after-milliseconds main 1000\n\
            sentinel failover-timeout main 3000\n"
        );
        std::fs::write(&file, said).unwrap();
        let sentinel = Server::sentinel(&file).await;
        until("the Sentinel knows both", async || sentinel.tells("sentinel").await.contains("slaves=1")).await;
        Self { first, second, sentinel, folder }
    }

    pub fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/main", self.sentinel.port())
    }

    /// Kills the first; the second takes over.
    pub async fn fail_over(&mut self) {
        self.first.stop();
        until("the other takes over", async || self.second.tells("replication").await.contains("role:master")).await;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Somebody who writes all the time, and what it has been told is kept.
struct Writer {
    stop: Arc<AtomicBool>,
    work: JoinHandle<Told>,
}

struct Told {
    last: u64,
    failed: u64,
    /// The longest that something took.
    longest: Duration,
}

impl Writer {
    fn start(store: &Arc<Redis>, id: &str, node: &NodeId) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (store, id, node, stopped) = (Arc::clone(store), id.to_owned(), node.clone(), Arc::clone(&stop));
        let work = tokio::spawn(async move {
            let mut told = Told { last: 0, failed: 0, longest: Duration::ZERO };
            while !stopped.load(Ordering::SeqCst) {
                let record = Some(Bytes::from((told.last + 1).to_string()));
                let version = told.last + 1;
                let all = SessionDelta { record, version, ..news(vec![event(0, told.last + 1, "x")]) };
                let begun = Instant::now();
                match store.write(&node, &one(&id, all)).await {
                    Ok(written) => {
                        assert_eq!(written, [WriteOutcome::Applied]);
                        told.last += 1;
                    }
                    // What may have been done is done again, which does no harm.
                    Err(_) => told.failed += 1,
                }
                told.longest = told.longest.max(begun.elapsed());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            told
        });
        Self { stop, work }
    }

    async fn end(self) -> Told {
        self.stop.store(true, Ordering::SeqCst);
        self.work.await.unwrap()
    }
}

fn connected(url: &str) -> Arc<Redis> {
    Redis::connect(url, "rialto", RedisOptions { timeout: TIMEOUT * 4, roots: None }).unwrap()
}

/// Exactly one of two who claim a session has it.
async fn has_one_owner(stores: [&Redis; 2], id: &str, from: &NodeId) {
    let nodes = ["x", "y"].map(NodeId::begin);
    let claim = |i: usize| stores[i].claim(id, Some(from), Some(&nodes[i]));
    let (first, second) = tokio::join!(claim(0), claim(1));
    let won = [first.unwrap(), second.unwrap()].map(|written| written == WriteOutcome::Applied);
    let owner = stores[0].load(id).await.unwrap().unwrap().owner.unwrap();
    assert_eq!(owner, nodes[usize::from(won[1])]);
    assert!(won[0] != won[1], "{won:?}");
    let late = stores[0].write(from, &one(id, news(vec![event(0, 1 << 40, "late")]))).await.unwrap();
    assert_eq!(late, [WriteOutcome::NotOwner]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_over_is_found() {
    let mut watched = Watched::start().await;
    let (store, other, a) = (connected(&watched.url()), connected(&watched.url()), NodeId::begin("a"));
    store.join(&a, LONG).await.unwrap();
    store.create("s", &a, Bytes::new(), LONG).await.unwrap();
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
    until("it writes", async || store.read("s").await.unwrap().len() > 20).await;
    // What this one has said must be known to the other.
    until("both know", async || watched.second.ask::<u64>(redis::cmd("XLEN").arg("rialto:e:{s}")).await > 10).await;
    let openings = store.connects();
    watched.fail_over().await;
    until("it is found", async || store.load("s").await.is_ok()).await;
    assert!(store.connects() > openings, "those who have something there can look whether it still is");
    let before = store.read("s").await.unwrap().len();
    until("it writes again", async || store.read("s").await.unwrap().len() > before + 10).await;
    let told = writer.end().await;
    println!("{} written, {} failed, {:?} at most", told.last, told.failed, told.longest);
    assert!(told.longest < TIMEOUT * 6, "{:?}", told.longest);
    assert_eq!(store.load("s").await.unwrap().unwrap().record, told.last.to_string());
    assert_eq!(store.heartbeat(&a, LONG).await.unwrap(), NodeStatus::Alive);
    until("it is sent", async || store.send(&a, vec![Bytes::from_static(b"x")], LONG).await.is_ok()).await;
    assert_eq!(receiving.await.unwrap()[0], "x");
    until("the other has found it", async || other.load("s").await.is_ok()).await;
    has_one_owner([&store, &other], "s", &a).await;
}

/// What a server of a Cluster is called there.
async fn name(server: &Server) -> String {
    server.ask(redis::cmd("CLUSTER").arg("MYID")).await
}

/// Moves a slot with its keys, one step after the other.
async fn move_slot(slot: u16, from: &Server, to: &Server, all: &[Server]) {
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
        // Those who use it meanwhile find one key here and one there.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let () = to.ask(&mut set("NODE", &new)).await;
    let () = from.ask(&mut set("NODE", &new)).await;
    for server in all {
        let () = server.ask(&mut set("NODE", &new)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_is_followed() {
    let servers = cluster(&[]).await;
    let url = format!("redis-cluster://127.0.0.1:{}", servers[0].port());
    let (store, other, a) = (connected(&url), connected(&url), NodeId::begin("a"));
    store.create("s", &a, Bytes::new(), LONG).await.unwrap();
    let slot: u16 = servers[0].ask(redis::cmd("CLUSTER").arg("KEYSLOT").arg("rialto:s:{s}")).await;
    let writer = Writer::start(&store, "s", &a);
    until("it writes", async || store.read("s").await.is_ok_and(|events| events.len() > 20)).await;
    let home = usize::from(slot) * 3 / 16384;
    for turn in 0..3 {
        let (from, to) = (&servers[(home + turn) % 3], &servers[(home + turn + 1) % 3]);
        move_slot(slot, from, to, &servers).await;
        let before = store.read("s").await.unwrap().len();
        until("it goes on", async || store.read("s").await.is_ok_and(|events| events.len() > before + 10)).await;
    }
    let told = writer.end().await;
    println!("{} written, {} failed, {:?} at most", told.last, told.failed, told.longest);
    assert!(told.longest < TIMEOUT * 6, "{:?}", told.longest);
    let events = store.read("s").await.unwrap();
    let positions: Vec<u64> = events.iter().map(|event| event.id.position).collect();
    assert_eq!(positions, (1..=told.last.max(positions.len() as u64)).collect::<Vec<_>>(), "none is missing");
    has_one_owner([&store, &other], "s", &a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_over_in_a_cluster_is_found() {
    let quick = ["--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0"];
    let mut servers = cluster(&quick).await;
    let replica = whole(&servers, &quick).await;
    let url = format!("redis-cluster://127.0.0.1:{},127.0.0.1:{}", servers[1].port(), servers[2].port());
    let (store, other, a) = (connected(&url), connected(&url), NodeId::begin("a"));
    // Names that lie with the first.
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
        store.create(id, &a, Bytes::new(), LONG).await.unwrap();
    }
    let writer = Writer::start(&store, &names[0], &a);
    until("it writes", async || store.read(&names[0]).await.is_ok_and(|events| events.len() > 20)).await;
    until("the replica knows", async || replica.size().await >= 3).await;
    servers[0].stop();
    until("it takes over", async || replica.tells("replication").await.contains("role:master")).await;
    until("it is found", async || store.load(&names[0]).await.is_ok()).await;
    let before = store.read(&names[0]).await.unwrap().len();
    let more = async || store.read(&names[0]).await.is_ok_and(|events| events.len() > before + 10);
    until("it writes again", more).await;
    let told = writer.end().await;
    println!("{} written, {} failed, {:?} at most", told.last, told.failed, told.longest);
    assert!(told.longest < TIMEOUT * 6, "{:?}", told.longest);
    assert_eq!(store.load(&names[0]).await.unwrap().unwrap().record, told.last.to_string());
    until("the other has found it", async || other.load(&names[1]).await.is_ok()).await;
    has_one_owner([&store, &other], &names[1], &a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_to_a_server_that_died_may_have_been_done() {
    let mut servers = cluster(&[]).await;
    let url = format!("redis-cluster://127.0.0.1:{}", servers[1].port());
    let (store, mut a) = (connected(&url), NodeId::begin("a"));
    // A node whose mailbox lies with the first.
    for i in 0.. {
        a = NodeId::begin(format!("a{i}"));
        let key = format!("rialto:m:{{{}}}/x", a.name());
        if servers[0].ask::<u16>(redis::cmd("CLUSTER").arg("KEYSLOT").arg(&key)).await <= 5460 {
            break;
        }
    }
    store.send(&a, vec![Bytes::from_static(b"x")], LONG).await.unwrap();
    servers[0].pause();
    let sending = tokio::spawn({
        let (store, a) = (Arc::clone(&store), a.clone());
        async move { store.send(&a, vec![Bytes::from_static(b"y")], LONG).await }
    });
    tokio::time::sleep(TIMEOUT / 2).await;
    servers[0].stop();
    let away = sending.await.unwrap().unwrap_err();
    println!("{away}");
    assert!(away.maybe_applied, "{away}");
}
