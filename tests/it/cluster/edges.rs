//! Sessions that find no room, and clients that hang up while one is opened for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rialto::call::ClientSink;
use rialto::store::traits::{EventStore, SessionDelta, SessionStore, WriteOutcome};
use rialto::store::{ClusterStore, Memory, NodeId};
use serde_json::json;

use super::found::{Way, id_of, name_of, one};
use crate::harness::{Rialto, initialize, request, until};
use crate::redis::{Program, Server};

#[tokio::test]
async fn a_session_that_a_node_has_no_room_for_stays_free_for_others() {
    let memory = Memory::new();
    let maker = one(&Way::to(&memory), "a").await;
    let full = Rialto::with(|settings| {
        settings.cluster_store = Some(Arc::clone(&memory) as Arc<dyn ClusterStore>);
        settings.store.node = Some("b".into());
        settings.sessions.sessions = 1;
    })
    .await;
    until("the node is ready", || full.inbound.admin.ready().is_ok()).await;
    let other = one(&Way::to(&memory), "c").await;
    full.open("2025-06-18").await;
    let session = maker.open("2025-06-18").await;
    // Its node is gone.
    let dead = NodeId::begin("dead");
    assert_eq!(memory.claim(&session.id, Some(&name_of(&maker)), Some(&dead)).await, Ok(WriteOutcome::Applied));
    for _ in 0..2 {
        let refused = session.elsewhere(&full).post(&request(1, "ping", json!({}))).go().await;
        assert_eq!((refused.status, refused.header("retry-after").is_some()), (503, true));
        let kept = memory.load(&session.id).await.unwrap().unwrap();
        assert_ne!(kept.owner, Some(name_of(&full)), "it is not the node's that cannot have it");
    }
    let (status, answer) = session.elsewhere(&other).post(&request(2, "ping", json!({}))).json().await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(memory.load(&session.id).await.unwrap().unwrap().owner, Some(name_of(&other)));
    // And from there the full node serves it, too.
    assert_eq!(session.elsewhere(&full).post(&request(3, "ping", json!({}))).status().await, 200);
}

#[tokio::test]
async fn a_node_that_is_gone_is_missed_though_nothing_can_be_sent_to_it() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let (a, b) = (one(&Way::to(&memory), "a").await, one(&way, "b").await);
    let session = a.open("2025-06-18").await;
    let ask = async |id: u64| session.elsewhere(&b).post(&request(id, "ping", json!({}))).status().await;
    assert_eq!(ask(1).await, 200);
    way.full.store(true, Ordering::SeqCst);
    assert_eq!(ask(2).await, 503);
    let dead = NodeId::begin("dead");
    assert_eq!(memory.claim(&session.id, Some(&name_of(&a)), Some(&dead)).await, Ok(WriteOutcome::Applied));
    // The node that it was found at last is not asked for ever.
    let again = [ask(3).await, ask(4).await];
    assert_eq!(again[1], 200, "{again:?}");
    assert_eq!(b.inbound.sessions.count(), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_while_its_session_opens_leaves_none() {
    let way = Way::to(&Memory::new());
    let a = one(&way, "a").await;
    way.create_ms.store(300, Ordering::SeqCst);
    let post = a.post("/mcp", &initialize("2025-11-25"));
    let opening = tokio::spawn(async move { post.go().await.status });
    until("it is being opened", || a.inbound.sessions.count() == 1).await;
    opening.abort();
    until("it is not there", || a.inbound.sessions.count() == 0).await;
    // One whose client waits stays.
    let stays = a.open("2025-11-25").await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(a.inbound.sessions.count(), 1);
    assert_eq!(stays.post(&request(1, "ping", json!({}))).status().await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_with_nothing_new_is_handed_over_in_one_step() {
    let server = Server::start(Program::Redis).await;
    let store = server.store();
    let shared: Arc<dyn ClusterStore> = Arc::clone(&store) as _;
    let a = super::node(&shared, "a").await;
    let session = a.open("2025-11-25").await;
    let sessions = &a.inbound.sessions;
    let kept = sessions.get(id_of(&session.id)).unwrap();
    assert!(kept.flush().await);
    // Only writing and touching say how long it is kept from now on.
    let life = async || server.ask::<u64>(redis::cmd("PEXPIRETIME").arg(format!("rialto:s:{{{}}}", session.id))).await;
    let before = (life().await, commands(&server, "hset").await);
    assert!(sessions.persister().unwrap().release(sessions, &kept, true).await.unwrap());
    assert_eq!(store.load(&session.id).await.unwrap().unwrap().owner, None);
    assert_eq!((life().await, commands(&server, "hset").await), (before.0, before.1 + 1));
}

/// How often a server was told something.
async fn commands(server: &Server, name: &str) -> u64 {
    let told = server.tells("commandstats").await;
    let line = told.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_late_does_not_undo_what_came_after() {
    let server = Server::start(Program::Redis).await;
    let store = server.store();
    let shared: Arc<dyn ClusterStore> = Arc::clone(&store) as _;
    let (a, b) = (super::node(&shared, "a").await, super::node(&shared, "b").await);
    let session = a.open("2025-11-25").await;
    let key = format!("rialto:s:{{{}}}", session.id);
    let kept = async || {
        let found: (String, u64) = server.ask(redis::cmd("HMGET").arg(&key).arg("record").arg("version")).await;
        found
    };
    let mut homes = [&a, &b];
    for level in ["warning", "error", "debug"] {
        let (record, version) = kept().await;
        let set = session.elsewhere(homes[0]).ask("logging/setLevel", json!({ "level": level })).await;
        assert_eq!(set["result"], json!({}), "{set}");
        // The home of the session had said this before, and it comes now.
        let late = SessionDelta {
            record: Some(record.into()),
            version,
            life: Duration::from_secs(60),
            ..SessionDelta::default()
        };
        let home = name_of(homes[0]);
        assert_eq!(store.write(&home, &[(session.id.clone(), late)]).await.unwrap(), [WriteOutcome::Applied]);
        let sessions = &homes[0].inbound.sessions;
        let here = sessions.get(id_of(&session.id)).unwrap();
        assert!(sessions.persister().unwrap().release(sessions, &here, true).await.unwrap());
        homes.swap(0, 1);
        assert_eq!(session.elsewhere(homes[0]).post(&request(1, "ping", json!({}))).status().await, 200);
        let here = homes[0].inbound.sessions.get(id_of(&session.id)).unwrap();
        assert_eq!(here.level().map(|level| level.as_str()), Some(level));
        assert!(here.flush().await);
        assert!(kept().await.1 > version);
    }
}
