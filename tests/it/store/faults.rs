//! Redis that is not there, comes back, does not answer, refuses or is full.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rialto::store::redis::RedisOptions;
use rialto::store::traits::{EventStore, NodeStatus, NodeStore, SessionDelta, SessionStore, WriteOutcome};
use rialto::store::{ClusterStore, NodeId, Redis, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{LONG, SHORT, event, news, one, until};
use crate::redis::{Program, Server, TIMEOUT};

/// What is said of a store that is away; it is said in time.
async fn away(store: &Redis) -> String {
    let begun = Instant::now();
    let StoreError { why, .. } = store.load("s").await.unwrap_err();
    assert!(begun.elapsed() < TIMEOUT * 2, "it took {:?}", begun.elapsed());
    why.to_string()
}

async fn heals(store: &Redis) {
    until("it is there again", async || store.load("s").await.is_ok()).await;
}

#[tokio::test]
async fn nobody_is_there_at_the_start() {
    let mut server = Server::start(Program::Redis).await;
    server.stop();
    let store = server.store();
    let why = away(&store).await;
    assert!(why.contains(&format!("127.0.0.1:{}", server.port())) && why.contains("refused"), "{why}");
    // While it is not tried again, that is known at once.
    let begun = Instant::now();
    for _ in 0..1000 {
        store.load("s").await.unwrap_err();
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
    assert!(store.receive(&NodeId::begin("a")).await.is_err());
    assert!(server.again().await);
    heals(&store).await;
    store.receive(&NodeId::begin("a")).await.unwrap();
}

#[tokio::test]
async fn a_restart_is_survived() {
    let mut server = Server::start(Program::Redis).await;
    let (store, a) = (server.store(), NodeId::begin("a"));
    store.create("s", &a, Bytes::new(), LONG).await.unwrap();
    store.send(&a, vec![Bytes::new()], LONG).await.unwrap();
    store.receive(&a).await.unwrap();
    server.stop();
    away(&store).await;
    assert!(store.receive(&a).await.is_err());
    assert!(server.again().await);
    heals(&store).await;
    // What was there is gone, the scripts too, and all goes on.
    assert_eq!(store.write(&a, &one("s", news(vec![]))).await.unwrap(), [WriteOutcome::NotFound]);
    assert!(store.create("s", &a, Bytes::new(), LONG).await.unwrap());
    store.send(&a, vec![Bytes::from_static(b"x")], LONG).await.unwrap();
    until("it receives", async || store.receive(&a).await.is_ok_and(|taken| taken == ["x"])).await;
}

#[tokio::test]
async fn scripts_that_were_forgotten_are_sent_again() {
    let server = Server::start(Program::Redis).await;
    let (store, a) = (server.store(), NodeId::begin("a"));
    store.create("s", &a, Bytes::new(), LONG).await.unwrap();
    for position in 1..4 {
        let () = server.ask(redis::cmd("SCRIPT").arg("FLUSH")).await;
        let all = [("none".to_owned(), news(vec![])), ("s".to_owned(), news(vec![event(0, position, "x")]))];
        assert_eq!(store.write(&a, &all).await.unwrap(), [WriteOutcome::NotFound, WriteOutcome::Applied]);
    }
    assert_eq!(store.read("s").await.unwrap().len(), 3);
}

#[tokio::test]
async fn one_who_does_not_answer_is_away() {
    let server = Server::start(Program::Redis).await;
    let (store, a) = (server.store(), NodeId::begin("a"));
    store.create("s", &a, Bytes::new(), LONG).await.unwrap();
    server.pause();
    let begun = Instant::now();
    let receiving = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.receive(&NodeId::begin("a")).await }
    });
    for _ in 0..3 {
        let why = away(&store).await;
        assert!(why.contains("no answer within 500ms"), "{why}");
    }
    assert!(receiving.await.unwrap().is_err());
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    server.resume();
    heals(&store).await;
    assert!(store.load("s").await.unwrap().is_some());
}

#[tokio::test]
async fn many_wait_no_longer_than_one() {
    let server = Server::start(Program::Redis).await;
    let store = server.store();
    server.pause();
    let begun = Instant::now();
    let ask = |_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.load("s").await })
    };
    for asked in (0..100).map(ask).collect::<Vec<_>>() {
        asked.await.unwrap().unwrap_err();
    }
    assert!(begun.elapsed() < TIMEOUT * 2, "it took {:?}", begun.elapsed());
    server.resume();
    heals(&store).await;
}

#[tokio::test]
async fn a_password_is_needed_and_never_told() {
    let server = Server::with_password("s3cret").await;
    server.store().create("s", &NodeId::begin("a"), Bytes::new(), LONG).await.unwrap();
    for (credentials, word) in [("", "password"), (":wr0ng@", "refused"), ("ann:wr0ng@", "refused")] {
        let store = server.store_at(&format!("redis://{credentials}127.0.0.1:{}", server.port()));
        let why = away(&store).await;
        assert!(why.contains(word) && !why.contains("wr0ng"), "{why}");
        assert!(!format!("{store:?}").contains("wr0ng"));
    }
}

#[tokio::test]
async fn tls_is_spoken_to_those_who_are_trusted() {
    let server = Server::with_tls().await;
    let store = server.store();
    store.create("s", &NodeId::begin("a"), Bytes::from_static(b"r"), LONG).await.unwrap();
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "r");
    store.send(&NodeId::begin("a"), vec![Bytes::new()], LONG).await.unwrap();
    // The system does not know its certificate.
    let options = RedisOptions { timeout: TIMEOUT * 4, roots: None };
    let StoreError { why, .. } = Redis::connect(&server.url(), "rialto", options).unwrap().load("s").await.unwrap_err();
    assert!(why.contains("certificate"), "{why}");
    // And without TLS nobody answers.
    let plain = server.store_at(&server.url().replace("rediss", "redis"));
    plain.load("s").await.unwrap_err();
}

#[tokio::test]
async fn one_who_is_full_says_so_and_keeps_all_or_nothing() {
    let server = Server::start(Program::Redis).await;
    let (store, a, b) = (server.store(), NodeId::begin("a"), NodeId::begin("b"));
    let message = || Bytes::from_static(b"x");
    store.create("s", &a, Bytes::from_static(b"old"), LONG).await.unwrap();
    store.place_of("p", &a, None, LONG).await.unwrap();
    store.write(&a, &one("s", news(vec![event(0, 1, "x")]))).await.unwrap();
    let allow = async |bytes: u64| {
        let () = server.ask(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes)).await;
    };
    allow(1000).await;
    let record = Some(Bytes::from_static(b"new"));
    for all in [SessionDelta { record, ..news(vec![event(0, 2, "y")]) }, news(vec![event(0, 2, "y"), event(0, 3, "z")])]
    {
        let StoreError { why, .. } = store.write(&a, &one("s", all)).await.unwrap_err();
        assert!(why.contains("maxmemory"), "{why}");
    }
    let refused =
        [store.create("t", &a, Bytes::new(), LONG).await.map(drop), store.send(&a, vec![message()], LONG).await];
    for full in refused.map(Result::unwrap_err) {
        assert!(full.to_string().contains("maxmemory") && !full.maybe_applied, "{full}");
    }
    assert!(store.is_full());
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "old");
    assert_eq!(store.read("s").await.unwrap(), [event(0, 1, "x")]);
    assert!(store.load("t").await.unwrap().is_none());
    // What takes no room, or makes some, is still done.
    assert_eq!(store.touch(&["s".to_owned()], &a, LONG).await.unwrap(), [WriteOutcome::Applied]);
    let room = SessionDelta { keep_from: 2, ..news(vec![]) };
    assert_eq!(store.write(&a, &one("s", room)).await.unwrap(), [WriteOutcome::Applied]);
    assert_eq!(store.read("s").await.unwrap(), []);
    // Who is there and who has what are known, and what was begun can end.
    store.join(&a, LONG).await.unwrap();
    assert_eq!(store.heartbeat(&a, LONG).await.unwrap(), NodeStatus::Alive);
    assert_eq!(store.claim("s", Some(&a), Some(&b)).await.unwrap(), WriteOutcome::Applied);
    assert_eq!(store.claim("s", Some(&a), Some(&b)).await.unwrap(), WriteOutcome::NotOwner);
    store.reply(&b, vec![message()], LONG).await.unwrap();
    assert_eq!(store.receive(&b).await.unwrap(), [message()]);
    for (name, node, instead_of, has) in [("p", &a, None, &a), ("p", &b, None, &a), ("p", &b, Some(&a), &b)] {
        assert_eq!(store.place_of(name, node, instead_of, LONG).await.unwrap(), *has);
    }
    assert!(store.place_of("q", &a, None, LONG).await.is_err());
    assert_eq!(store.delete("s", &b).await.unwrap(), WriteOutcome::Applied);
    assert!(store.load("s").await.unwrap().is_none());
    assert!(store.is_full());
    allow(0).await;
    assert!(store.create("t", &a, Bytes::new(), LONG).await.unwrap());
    store.heartbeat(&a, LONG).await.unwrap();
    assert!(!store.is_full());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_who_claim_wins() {
    let server = Server::start(Program::Redis).await;
    let stores = [server.store(), server.store()];
    let (old, nodes) = (NodeId::begin("old"), ["a", "b"].map(NodeId::begin));
    for round in 0..100 {
        let id = format!("s{round}");
        stores[0].create(&id, &old, Bytes::new(), LONG).await.unwrap();
        let claim = |i: usize| stores[i].claim(&id, Some(&old), Some(&nodes[i]));
        let (first, second) = tokio::join!(claim(0), claim(1));
        let won = [first.unwrap(), second.unwrap()].map(|written| written == WriteOutcome::Applied);
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
        let owner = stores[0].load(&id).await.unwrap().unwrap().owner.unwrap();
        assert_eq!(owner, nodes[usize::from(won[1])]);
    }
}

#[tokio::test]
async fn a_write_can_be_repeated() {
    let server = Server::start(Program::Redis).await;
    let (store, a) = (server.store(), NodeId::begin("a"));
    store.create("s", &a, Bytes::new(), LONG).await.unwrap();
    let all = one("s", SessionDelta { keep_from: 2, ..news((1..4).map(|position| event(0, position, "x")).collect()) });
    for _ in 0..2 {
        assert_eq!(store.write(&a, &all).await.unwrap(), [WriteOutcome::Applied]);
        assert_eq!(store.read("s").await.unwrap(), all[0].1.events[1..]);
    }
}

#[tokio::test]
async fn nothing_is_left_when_all_has_expired() {
    let server = Server::start(Program::Redis).await;
    let (store, a) = (server.store(), NodeId::begin("a"));
    store.create("s", &a, Bytes::new(), SHORT).await.unwrap();
    store.write(&a, &one("s", SessionDelta { life: SHORT * 3, ..news(vec![event(0, 1, "x")]) })).await.unwrap();
    store.touch(&["s".to_owned()], &a, SHORT * 3).await.unwrap();
    store.claim("s", Some(&a), None).await.unwrap();
    store.join(&a, SHORT * 3).await.unwrap();
    store.send(&a, vec![Bytes::new()], SHORT * 3).await.unwrap();
    store.heartbeat(&a, SHORT * 3).await.unwrap();
    let mut keys = server.lives().await;
    keys.sort();
    assert!(keys.iter().all(|(_, life)| *life > 0), "{keys:?}");
    let mailbox = format!("rialto:m:{{a}}/{}", a.incarnation());
    let names: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(names, ["rialto:e:{s}", mailbox.as_str(), "rialto:n:{a}", "rialto:nodes", "rialto:s:{s}"]);
    until("nothing is left", async || server.size().await == 0).await;
    // The secret is what stays longest, and a beat keeps it.
    store.shared_key(Bytes::from_static(b"x")).await.unwrap();
    let () = server.ask(redis::cmd("PEXPIRE").arg("rialto:secret").arg(60_000)).await;
    store.heartbeat(&a, SHORT).await.unwrap();
    let life: i64 = server.ask(redis::cmd("PTTL").arg("rialto:secret")).await;
    assert!(life > 29 * 86_400_000, "{life}");
}

#[tokio::test]
async fn what_belongs_together_is_one_round_trip() {
    let server = Server::start(Program::Redis).await;
    let (store, a) = (server.store(), NodeId::begin("a"));
    let ids: Vec<String> = (0..50).map(|i| format!("s{i}")).collect();
    for id in &ids {
        store.create(id, &a, Bytes::new(), LONG).await.unwrap();
    }
    let all: Vec<_> = ids.iter().map(|id| (id.clone(), news(vec![event(0, 1, "x")]))).collect();
    // The first time the scripts are not known yet.
    store.write(&a, &[]).await.unwrap();
    store.touch(&ids, &a, LONG).await.unwrap();
    store.write(&a, &all[..1]).await.unwrap();
    store.join(&a, LONG).await.unwrap();
    store.heartbeat(&a, LONG).await.unwrap();
    let trips = async |what: &str, expected: u64, done: u64| assert_eq!(store.round_trips() - done, expected, "{what}");
    let before = store.round_trips();
    store.write(&a, &all).await.unwrap();
    trips("write", 1, before).await;
    store.touch(&ids, &a, LONG).await.unwrap();
    trips("touch", 2, before).await;
    store.heartbeat(&a, LONG).await.unwrap();
    trips("beat", 3, before).await;
    store.node_status(&[a.clone(), a.next_incarnation()]).await.unwrap();
    trips("standing", 4, before).await;
}

#[tokio::test]
async fn an_old_redis_is_told_so() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let old = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let commands = text.split("\r\n").filter(|line| line.starts_with('*')).count();
            let told = "# Server\r\nredis_version:6.2.5\r\n";
            let answer = match text.contains("INFO\r\n$6\r\nserver") {
                true => format!("${}\r\n{told}\r\n", told.len()),
                false => "+OK\r\n".repeat(commands),
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let store = Redis::connect(&format!("redis://127.0.0.1:{port}"), "rialto", RedisOptions::default()).unwrap();
    let StoreError { why, .. } = store.load("s").await.unwrap_err();
    assert!(why.contains("Redis 6.2.5") && why.contains("Redis 7.0 or later"), "{why}");
    drop(store);
    old.await.unwrap();
}
