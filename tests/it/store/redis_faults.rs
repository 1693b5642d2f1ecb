//! Redis unreachable, restarted, unresponsive, refusing authentication, or out of memory.

use std::sync::Arc;

use bytes::Bytes;
use rialto::store::redis::RedisOptions;
use rialto::store::traits::{EventStore, NodeStatus, NodeStore, RecordWrite, SessionDelta, SessionStore, WriteOutcome};
use rialto::store::{ClusterStore, NodeId, RedisStore, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::{EXPIRING_TTL, LONG_TTL, SHORT_TTL, batch, delta, event, until};
use crate::harness::TEST_TIMEOUT;
use crate::redis::{RedisFlavor, RedisServer, STORE_TIMEOUT};

/// Error text of an unreachable store.
async fn unreachable_error(store: &RedisStore) -> String {
    let StoreError { reason: why, .. } =
        timeout(TEST_TIMEOUT, store.load("s")).await.expect("the command ends").unwrap_err();
    why.to_string()
}

async fn wait_reconnected(store: &RedisStore) {
    until("the store client has reconnected", async || store.load("s").await.is_ok()).await;
}

#[tokio::test]
async fn an_unreachable_server_fails_fast_during_back_off_and_is_reconnected() {
    let mut server = RedisServer::start(RedisFlavor::Redis).await;
    server.stop();
    let store = server.store();
    let why = unreachable_error(&store).await;
    assert!(why.contains(&format!("127.0.0.1:{}", server.port())) && why.contains("refused"), "{why}");
    // During the reconnect back-off commands fail immediately. Attempts to connect would take minutes.
    let failures = async {
        for _ in 0..1000 {
            store.load("s").await.unwrap_err();
        }
    };
    timeout(TEST_TIMEOUT, failures).await.expect("commands do not wait for the back-off");
    assert!(store.receive(&NodeId::generate("a")).await.is_err());
    server.restart().await;
    wait_reconnected(&store).await;
    store.receive(&NodeId::generate("a")).await.unwrap();
}

#[tokio::test]
async fn the_store_client_reconnects_after_a_server_restart() {
    let mut server = RedisServer::start(RedisFlavor::Redis).await;
    let (store, a) = (server.store(), NodeId::generate("a"));
    store.create("s", &a, Bytes::new(), LONG_TTL).await.unwrap();
    store.send(&a, vec![Bytes::new()], LONG_TTL).await.unwrap();
    store.receive(&a).await.unwrap();
    server.stop();
    unreachable_error(&store).await;
    assert!(store.receive(&a).await.is_err());
    server.restart().await;
    wait_reconnected(&store).await;
    // Data and cached scripts are lost with the restart; the store client works again.
    assert_eq!(store.write_deltas(&a, &batch("s", delta(vec![]))).await.unwrap(), [WriteOutcome::NotFound]);
    assert!(store.create("s", &a, Bytes::new(), LONG_TTL).await.unwrap());
    store.send(&a, vec![Bytes::from_static(b"x")], LONG_TTL).await.unwrap();
    until("the message is received", async || store.receive(&a).await.is_ok_and(|taken| taken == ["x"])).await;
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let (store, a) = (server.store(), NodeId::generate("a"));
    store.create("s", &a, Bytes::new(), LONG_TTL).await.unwrap();
    for position in 1..4 {
        let () = server.ask(redis::cmd("SCRIPT").arg("FLUSH")).await;
        let all = [("none".to_owned(), delta(vec![])), ("s".to_owned(), delta(vec![event(0, position, "x")]))];
        assert_eq!(store.write_deltas(&a, &all).await.unwrap(), [WriteOutcome::NotFound, WriteOutcome::Applied]);
    }
    assert_eq!(store.read_events("s").await.unwrap().len(), 3);
}

#[tokio::test]
async fn an_unresponsive_server_times_out() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let (store, a) = (server.impatient_store(), NodeId::generate("a"));
    server.store().create("s", &a, Bytes::new(), LONG_TTL).await.unwrap();
    wait_reconnected(&store).await;
    server.pause();
    let receiving = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.receive(&NodeId::generate("a")).await }
    });
    for _ in 0..3 {
        let why = unreachable_error(&store).await;
        assert!(why.contains("no answer within 500ms"), "{why}");
    }
    timeout(TEST_TIMEOUT, receiving).await.expect("the read ends").unwrap().unwrap_err();
    server.resume();
    until("the session is read", async || store.load("s").await.is_ok_and(|loaded| loaded.is_some())).await;
}

#[tokio::test]
async fn concurrent_commands_share_one_timeout() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let store = server.impatient_store();
    server.pause();
    let ask = |_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.load("s").await })
    };
    // One after another they would take 50 seconds.
    let failures = async {
        for asked in (0..100).map(ask).collect::<Vec<_>>() {
            asked.await.unwrap().unwrap_err();
        }
    };
    timeout(TEST_TIMEOUT, failures).await.expect("they wait side by side");
    server.resume();
    wait_reconnected(&store).await;
}

#[tokio::test]
async fn authentication_failures_do_not_reveal_the_password() {
    let server = RedisServer::with_password("s3cret").await;
    server.store().create("s", &NodeId::generate("a"), Bytes::new(), LONG_TTL).await.unwrap();
    for (credentials, word) in [("", "password"), (":wr0ng@", "refused"), ("ann:wr0ng@", "refused")] {
        let store = server.store_at(&format!("redis://{credentials}127.0.0.1:{}", server.port()), TEST_TIMEOUT);
        let why = unreachable_error(&store).await;
        assert!(why.contains(word) && !why.contains("wr0ng"), "{why}");
        assert!(!format!("{store:?}").contains("wr0ng"));
    }
}

#[tokio::test]
async fn tls_requires_a_trusted_certificate() {
    let server = RedisServer::with_tls().await;
    let store = server.store();
    store.create("s", &NodeId::generate("a"), Bytes::from_static(b"r"), LONG_TTL).await.unwrap();
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "r");
    store.send(&NodeId::generate("a"), vec![Bytes::new()], LONG_TTL).await.unwrap();
    // The certificate is not in the system's root store.
    let options = RedisOptions { timeout: STORE_TIMEOUT * 4, root_certificates: None };
    let StoreError { reason: why, .. } =
        RedisStore::connect(&server.url(), "rialto", options).unwrap().load("s").await.unwrap_err();
    assert!(why.contains("certificate"), "{why}");
    // A plain connection to the TLS port fails.
    let plain = server.store_at(&server.url().replace("rediss", "redis"), STORE_TIMEOUT);
    plain.load("s").await.unwrap_err();
}

#[tokio::test]
async fn a_full_server_rejects_writes_atomically() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let (store, a, b) = (server.store(), NodeId::generate("a"), NodeId::generate("b"));
    let message = || Bytes::from_static(b"x");
    store.create("s", &a, Bytes::from_static(b"old"), LONG_TTL).await.unwrap();
    store.claim_affinity("p", &a, None, LONG_TTL).await.unwrap();
    store.write_deltas(&a, &batch("s", delta(vec![event(0, 1, "x")]))).await.unwrap();
    let allow = async |bytes: u64| {
        let () = server.ask(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes)).await;
    };
    allow(1000).await;
    let record = Some(RecordWrite::Whole(Bytes::from_static(b"new")));
    for all in
        [SessionDelta { record, ..delta(vec![event(0, 2, "y")]) }, delta(vec![event(0, 2, "y"), event(0, 3, "z")])]
    {
        let StoreError { reason: why, .. } = store.write_deltas(&a, &batch("s", all)).await.unwrap_err();
        assert!(why.contains("maxmemory"), "{why}");
    }
    let refused = [
        store.create("t", &a, Bytes::new(), LONG_TTL).await.map(drop),
        store.send(&a, vec![message()], LONG_TTL).await.map(drop),
    ];
    for full in refused.map(Result::unwrap_err) {
        assert!(full.to_string().contains("maxmemory") && !full.maybe_applied, "{full}");
    }
    assert!(store.is_full());
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "old");
    assert_eq!(store.read_events("s").await.unwrap(), [event(0, 1, "x")]);
    assert!(store.load("t").await.unwrap().is_none());
    // Commands that allocate nothing, or free memory, still succeed.
    assert_eq!(store.touch(&["s".to_owned()], &a, LONG_TTL).await.unwrap(), [WriteOutcome::Applied]);
    let room = SessionDelta { trim_before: 2, ..delta(vec![]) };
    assert_eq!(store.write_deltas(&a, &batch("s", room)).await.unwrap(), [WriteOutcome::Applied]);
    assert_eq!(store.read_events("s").await.unwrap(), []);
    // Membership, ownership and replies still work, so running calls can finish.
    store.join(&a, LONG_TTL).await.unwrap();
    assert_eq!(store.heartbeat(&a, LONG_TTL).await.unwrap(), NodeStatus::Alive);
    assert_eq!(store.claim("s", Some(&a), Some(&b)).await.unwrap(), WriteOutcome::Applied);
    assert_eq!(store.claim("s", Some(&a), Some(&b)).await.unwrap(), WriteOutcome::NotOwner);
    store.reply(&b, vec![message()], LONG_TTL).await.unwrap();
    assert_eq!(store.receive(&b).await.unwrap(), [message()]);
    for (name, node, instead_of, has) in [("p", &a, None, &a), ("p", &b, None, &a), ("p", &b, Some(&a), &b)] {
        assert_eq!(store.claim_affinity(name, node, instead_of, LONG_TTL).await.unwrap(), *has);
    }
    assert!(store.claim_affinity("q", &a, None, LONG_TTL).await.is_err());
    assert_eq!(store.delete("s", &b).await.unwrap(), WriteOutcome::Applied);
    assert!(store.load("s").await.unwrap().is_none());
    assert!(store.is_full());
    allow(0).await;
    assert!(store.create("t", &a, Bytes::new(), LONG_TTL).await.unwrap());
    store.heartbeat(&a, LONG_TTL).await.unwrap();
    assert!(!store.is_full());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_of_two_concurrent_claims_wins() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let stores = [server.store(), server.store()];
    let (old, nodes) = (NodeId::generate("old"), ["a", "b"].map(NodeId::generate));
    for round in 0..100 {
        let id = format!("s{round}");
        stores[0].create(&id, &old, Bytes::new(), LONG_TTL).await.unwrap();
        let claim = |i: usize| stores[i].claim(&id, Some(&old), Some(&nodes[i]));
        let (first, second) = tokio::join!(claim(0), claim(1));
        let won = [first.unwrap(), second.unwrap()].map(|written| written == WriteOutcome::Applied);
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
        let owner = stores[0].load(&id).await.unwrap().unwrap().owner.unwrap();
        assert_eq!(owner, nodes[usize::from(won[1])]);
    }
}

#[tokio::test]
async fn writes_are_idempotent() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let (store, a) = (server.store(), NodeId::generate("a"));
    store.create("s", &a, Bytes::new(), LONG_TTL).await.unwrap();
    let all =
        batch("s", SessionDelta { trim_before: 2, ..delta((1..4).map(|position| event(0, position, "x")).collect()) });
    for _ in 0..2 {
        assert_eq!(store.write_deltas(&a, &all).await.unwrap(), [WriteOutcome::Applied]);
        assert_eq!(store.read_events("s").await.unwrap(), all[0].1.events[1..]);
    }
}

#[tokio::test]
async fn every_key_expires() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let (store, a) = (server.store(), NodeId::generate("a"));
    store.create("s", &a, Bytes::new(), EXPIRING_TTL).await.unwrap();
    store
        .write_deltas(&a, &batch("s", SessionDelta { ttl: EXPIRING_TTL, ..delta(vec![event(0, 1, "x")]) }))
        .await
        .unwrap();
    store.touch(&["s".to_owned()], &a, EXPIRING_TTL).await.unwrap();
    store.claim("s", Some(&a), None).await.unwrap();
    store.join(&a, EXPIRING_TTL).await.unwrap();
    store.send(&a, vec![Bytes::new()], EXPIRING_TTL).await.unwrap();
    store.heartbeat(&a, EXPIRING_TTL).await.unwrap();
    let mut keys = server.key_ttls().await;
    keys.sort();
    assert!(keys.iter().all(|(_, life)| (1..=EXPIRING_TTL.as_millis() as i64).contains(life)), "{keys:?}");
    let mailbox = format!("rialto:m:{{a}}/{}", a.incarnation());
    let names: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(names, ["rialto:e:{s}", mailbox.as_str(), "rialto:n:{a}", "rialto:nodes", "rialto:s:{s}"]);
    until("every key has expired", async || server.size().await == 0).await;
    // The shared key has the longest TTL, and each heartbeat renews it.
    store.shared_key(Bytes::from_static(b"x")).await.unwrap();
    let () = server.ask(redis::cmd("PEXPIRE").arg("rialto:secret").arg(60_000)).await;
    store.heartbeat(&a, SHORT_TTL).await.unwrap();
    let life: i64 = server.ask(redis::cmd("PTTL").arg("rialto:secret")).await;
    assert!(life > 29 * 86_400_000, "{life}");
}

#[tokio::test]
async fn batched_operations_take_one_round_trip() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let (store, a) = (server.store(), NodeId::generate("a"));
    let ids: Vec<String> = (0..50).map(|i| format!("s{i}")).collect();
    for id in &ids {
        store.create(id, &a, Bytes::new(), LONG_TTL).await.unwrap();
    }
    let all: Vec<_> = ids.iter().map(|id| (id.clone(), delta(vec![event(0, 1, "x")]))).collect();
    // Warm-up: the first use of a script costs an extra round trip to load it.
    store.write_deltas(&a, &[]).await.unwrap();
    store.touch(&ids, &a, LONG_TTL).await.unwrap();
    store.write_deltas(&a, &all[..1]).await.unwrap();
    store.join(&a, LONG_TTL).await.unwrap();
    store.heartbeat(&a, LONG_TTL).await.unwrap();
    let trips = async |what: &str, expected: u64, done: u64| assert_eq!(store.round_trips() - done, expected, "{what}");
    let before = store.round_trips();
    store.write_deltas(&a, &all).await.unwrap();
    trips("write", 1, before).await;
    store.touch(&ids, &a, LONG_TTL).await.unwrap();
    trips("touch", 2, before).await;
    store.heartbeat(&a, LONG_TTL).await.unwrap();
    trips("beat", 3, before).await;
    store.node_status(&[a.clone(), a.next_incarnation()]).await.unwrap();
    trips("standing", 4, before).await;
}

#[tokio::test]
async fn an_unsupported_redis_version_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let old = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let commands = text.split("\r\n").filter(|line| line.starts_with('*')).count();
            let info = "# Server\r\nredis_version:6.2.5\r\n";
            let answer = match text.contains("INFO\r\n$6\r\nserver") {
                true => format!("${}\r\n{info}\r\n", info.len()),
                false => "+OK\r\n".repeat(commands),
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let store = RedisStore::connect(&format!("redis://127.0.0.1:{port}"), "rialto", RedisOptions::default()).unwrap();
    let StoreError { reason: why, .. } = store.load("s").await.unwrap_err();
    assert!(why.contains("Redis 6.2.5") && why.contains("Redis 7.0 or later"), "{why}");
    drop(store);
    old.await.unwrap();
}
