//! Session limits during takeover, disconnects while a session opens, and late writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rialto::call::ClientSink;
use rialto::store::traits::{EventStore, RecordWrite, SessionDelta, SessionStore, WriteOutcome};
use rialto::store::{ClusterStore, MemoryStore, NodeId};
use serde_json::json;

use super::regressions::{FaultyStore, faulty_node, node_id, session_id};
use crate::harness::{Rialto, initialize, request, until};
use crate::redis::{RedisFlavor, RedisServer};

#[tokio::test]
async fn takeover_is_refused_by_a_full_node_and_left_to_others() {
    let memory = MemoryStore::new();
    let maker = faulty_node(&FaultyStore::over(&memory), "a").await;
    let full = Rialto::with(|settings| {
        settings.cluster_store = Some(Arc::clone(&memory) as Arc<dyn ClusterStore>);
        settings.store.node = Some("b".into());
        settings.quotas.sessions = 1;
    })
    .await;
    until("the node is ready", || full.inbound.admin.ready().is_ok()).await;
    let other = faulty_node(&FaultyStore::over(&memory), "c").await;
    full.open("2025-06-18").await;
    let session = maker.open("2025-06-18").await;
    // The owner is a node that does not exist.
    let dead = NodeId::generate("dead");
    assert_eq!(memory.claim(&session.id, Some(&node_id(&maker)), Some(&dead)).await, Ok(WriteOutcome::Applied));
    for _ in 0..2 {
        let refused = session.at_node(&full).post(&request(1, "ping", json!({}))).go().await;
        assert_eq!((refused.status, refused.header("retry-after").is_some()), (503, true));
        let stored = memory.load(&session.id).await.unwrap().unwrap();
        assert_ne!(stored.owner, Some(node_id(&full)), "a full node does not become the owner");
    }
    let (status, answer) = session.at_node(&other).post(&request(2, "ping", json!({}))).json().await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(memory.load(&session.id).await.unwrap().unwrap().owner, Some(node_id(&other)));
    // The full node relays to the new owner.
    assert_eq!(session.at_node(&full).post(&request(3, "ping", json!({}))).status().await, 200);
}

#[tokio::test]
async fn takeover_from_a_dead_owner_when_relays_cannot_be_sent() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let (a, b) = (faulty_node(&FaultyStore::over(&memory), "a").await, faulty_node(&faulty, "b").await);
    let session = a.open("2025-06-18").await;
    let ask = async |id: u64| session.at_node(&b).post(&request(id, "ping", json!({}))).status().await;
    assert_eq!(ask(1).await, 200);
    faulty.rejects_sends.store(true, Ordering::SeqCst);
    assert_eq!(ask(2).await, 503);
    let dead = NodeId::generate("dead");
    assert_eq!(memory.claim(&session.id, Some(&node_id(&a)), Some(&dead)).await, Ok(WriteOutcome::Applied));
    // The cached owner is dropped after one failed relay.
    let again = [ask(3).await, ask(4).await];
    assert_eq!(again[1], 200, "{again:?}");
    assert_eq!(b.inbound.sessions.count(), 1);
}

#[tokio::test]
async fn a_client_that_disconnects_during_initialize_leaves_no_session() {
    let faulty = FaultyStore::over(&MemoryStore::new());
    let a = faulty_node(&faulty, "a").await;
    faulty.holds_creates.send_replace(true);
    let post = a.post("/mcp", &initialize("2025-11-25"));
    let opening = tokio::spawn(async move { post.go().await.status });
    until("the session is being opened", || a.inbound.sessions.count() == 1).await;
    opening.abort();
    until("the session is dropped", || a.inbound.sessions.count() == 0).await;
    // A session whose client stays connected is kept.
    let release = async {
        until("the session is being opened", || a.inbound.sessions.count() == 1).await;
        faulty.holds_creates.send_replace(false);
    };
    let (stays, ()) = tokio::join!(a.open("2025-11-25"), release);
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(a.inbound.sessions.count(), 1);
    assert_eq!(stays.post(&request(1, "ping", json!({}))).status().await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_release_without_changes_is_one_store_write() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let store = server.store();
    let shared: Arc<dyn ClusterStore> = Arc::clone(&store) as _;
    let a = super::node(&shared, "a").await;
    let session = a.open("2025-11-25").await;
    let sessions = &a.inbound.sessions;
    let stored = sessions.get(session_id(&session.id)).unwrap();
    assert!(stored.flush().await);
    // Only a write or a touch renews the TTL.
    let life = async || server.ask::<u64>(redis::cmd("PEXPIRETIME").arg(format!("rialto:s:{{{}}}", session.id))).await;
    let before = (life().await, commands(&server, "hset").await);
    assert!(sessions.persister().unwrap().release(sessions, &stored, true).await.unwrap());
    assert_eq!(store.load(&session.id).await.unwrap().unwrap().owner, None);
    assert_eq!((life().await, commands(&server, "hset").await), (before.0, before.1 + 1));
}

/// Number of executions of a Redis command.
async fn commands(server: &RedisServer, name: &str) -> u64 {
    let info = server.info("commandstats").await;
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_record_does_not_overwrite_a_newer_one() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let store = server.store();
    let shared: Arc<dyn ClusterStore> = Arc::clone(&store) as _;
    let (a, b) = (super::node(&shared, "a").await, super::node(&shared, "b").await);
    let session = a.open("2025-11-25").await;
    let key = format!("rialto:s:{{{}}}", session.id);
    let stored = async || {
        let found: (String, u64) = server.ask(redis::cmd("HMGET").arg(&key).arg("record").arg("version")).await;
        found
    };
    let mut owners = [&a, &b];
    for level in ["warning", "error", "debug"] {
        let (record, version) = stored().await;
        let set = session.at_node(owners[0]).ask("logging/setLevel", json!({ "level": level })).await;
        assert_eq!(set["result"], json!({}), "{set}");
        // A stale write of the owner arrives late.
        let late = SessionDelta {
            record: Some(RecordWrite::Whole(record.into())),
            version,
            ttl: Duration::from_secs(60),
            ..SessionDelta::default()
        };
        let owner = node_id(owners[0]);
        assert_eq!(store.write_deltas(&owner, &[(session.id.clone(), late)]).await.unwrap(), [WriteOutcome::Applied]);
        let sessions = &owners[0].inbound.sessions;
        let here = sessions.get(session_id(&session.id)).unwrap();
        assert!(sessions.persister().unwrap().release(sessions, &here, true).await.unwrap());
        owners.swap(0, 1);
        assert_eq!(session.at_node(owners[0]).post(&request(1, "ping", json!({}))).status().await, 200);
        let here = owners[0].inbound.sessions.get(session_id(&session.id)).unwrap();
        assert_eq!(here.level().map(|level| level.as_str()), Some(level));
        assert!(here.flush().await);
        assert!(stored().await.1 > version);
    }
}
