//! The store has no room any more, and has some again.

use std::time::{Duration, Instant};

use serde_json::json;

use super::clients::{Session, describing, hello, post};
use super::driver::{Act, Fate};
use super::load::at;
use super::real::{Fleet, LEASE, Node, eventually};
use crate::harness::{Received, Sending, request};

/// Says how much memory the store may use; nothing is no bound.
async fn allow(fleet: &Fleet, bytes: u64) {
    let () = fleet.store.ask(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes)).await;
}

/// A call that is answered at once, at one node.
async fn plain(session: &Session, node: &Node, number: u64) -> Received {
    let begun = Instant::now();
    let received = session.post(node.address, &request(number, "tools/call", Act::Plain.params(number))).go().await;
    assert!(begun.elapsed() < LEASE * 2, "it took {:?}", begun.elapsed());
    received
}

async fn answers(session: &Session, node: &Node, number: u64) {
    let received = plain(session, node, number).await;
    assert_eq!(received.status, 200);
    assert_eq!(Act::Plain.judge(number, &received.json().await), Fate::Answered);
}

/// A request is refused, at once, and says when to come again.
fn refused(received: &Received) {
    assert_eq!((received.status, received.header("retry-after").is_some()), (503, true));
}

/// Who has a session, as the store knows.
async fn owner(fleet: &Fleet, session: &Session) -> String {
    let owner: String =
        fleet.store.ask(redis::cmd("HGET").arg(format!("rialto:s:{{{}}}", session.id)).arg("owner")).await;
    owner.split('/').next().unwrap().to_owned()
}

/// What a node says of itself while there is no room.
async fn says_so(node: &Node) {
    eventually("it says why", async || {
        let received = Sending::to(node.address, "GET", "/readyz").go().await;
        match (received.status, received.text().await.as_str()) {
            (503, "the store has no room\n") => Ok(()),
            (status, text) => Err(format!("{status} {text}")),
        }
    })
    .await;
    let figures = Sending::to(node.address, "GET", "/metrics").go().await.text().await;
    for line in ["rialto_store_full{} 1", "rialto_lease_held{} 1"] {
        assert!(figures.lines().any(|told| told == line), "{line}, in {figures}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_room_refuses_what_is_new_and_keeps_what_is_there() {
    let mut fleet = Fleet::three().await;
    let (mine, its) = (at(&fleet, "a").await, at(&fleet, "b").await);
    let over = at(&fleet, "a").await;
    answers(&mine, fleet.node("a"), 1).await;
    answers(&its, fleet.node("b"), 2).await;
    allow(&fleet, 1).await;
    for node in &fleet.nodes {
        says_so(node).await;
    }
    let begun = Instant::now();
    let mut number = 10;
    while begun.elapsed() < LEASE * 2 {
        number += 1;
        // Who needs nothing new goes on, at home.
        answers(&mine, fleet.node("a"), number).await;
        answers(&its, fleet.node("b"), number).await;
        for node in &fleet.nodes {
            // What would begin something in the store is not begun.
            refused(&post(node.address, "/mcp", &hello("2025-11-25")).go().await);
            assert_eq!(describing(node.address, 1, &Act::Plain.params(0)).json().await.0, 200);
            assert_eq!(node.is_ready().await, Some(503));
        }
        refused(&plain(&mine, fleet.node("b"), number).await);
        refused(&plain(&its, fleet.node("c"), number).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!((owner(&fleet, &mine).await, owner(&fleet, &its).await), ("a".into(), "b".into()));
    fleet.has(3).await;

    // A call that has more to say than its answer is told that this cannot be.
    let begun = Instant::now();
    let body = request(7, "tools/call", Act::Progress(3).params(7));
    let told = mine.post(fleet.node("a").address, &body).go().await;
    assert_eq!(told.status, 200);
    let told = told.json().await;
    assert_eq!((&told["id"], &told["error"]["code"]), (&json!(7), &json!(-32603)), "{told}");
    assert!(told["error"]["message"].as_str().unwrap().contains("no room"), "{told}");
    assert!(begun.elapsed() < LEASE, "it took {:?}", begun.elapsed());

    // What ends makes room, so it may.
    let ended = over.at(fleet.node("a"));
    tokio::time::timeout(LEASE, ended.end()).await.expect("it ends in time");
    fleet.has(2).await;

    // A node that dies is missed, and its sessions are taken over; one that comes is there.
    fleet.node_mut("b").kill().await;
    let (its_at_c, c) = (its.at(fleet.node("c")), fleet.node("c").address);
    eventually("c has taken it over", async || {
        let received = its_at_c.post(c, &request(50, "tools/call", Act::Plain.params(50))).go().await;
        if received.status == 200 { Ok(()) } else { Err(received.text().await) }
    })
    .await;
    assert_eq!(owner(&fleet, &its).await, "c");
    assert!(fleet.node_mut("b").again().await);
    says_so(fleet.node("b")).await;

    allow(&fleet, 0).await;
    for node in &fleet.nodes {
        node.ready().await;
    }
    for (number, node) in fleet.nodes.iter().enumerate() {
        for session in [&mine, &its] {
            assert_eq!(session.at(node).call(100 + number as u64, Act::Progress(3)).await, Fate::Answered);
        }
    }
    let new = at(&fleet, "b").await;
    fleet.has(3).await;
    for session in [mine, its, new] {
        session.end().await;
    }
    fleet.settle().await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_waits_for_room_ends_and_is_resumed_without_a_gap() {
    let fleet = Fleet::three().await;
    let session = at(&fleet, "a").await;
    let a = fleet.node("a");
    let listening = session.get(a.address, None).go().await;
    assert_eq!(listening.status, 200);
    let body = request(7, "tools/call", Act::Ask.params(7));
    let mut stream = session.post(a.address, &body).go().await.events();
    let (mut last, mut question) = (String::new(), serde_json::Value::Null);
    while question.is_null() {
        let event = stream.next().await.unwrap();
        last = event.id.unwrap_or(last);
        if !event.data.is_empty() {
            question = serde_json::from_str(&event.data).unwrap();
        }
    }
    allow(&fleet, 1).await;
    // The answer can be given, and what comes of it cannot be kept.
    let reply = json!({ "jsonrpc": "2.0", "id": question["id"], "result": super::driver::reply(&question["params"]) });
    let told = session.post(a.address, &reply).go().await.status;
    assert!(told == 202 || told == 503, "{told}");
    let begun = Instant::now();
    let ended =
        tokio::time::timeout(Duration::from_secs(15), async { while stream.message().await.is_some() {} }).await;
    assert!(ended.is_ok(), "it waits for ever");
    println!("ended after {:?}", begun.elapsed());
    allow(&fleet, 0).await;
    fleet.node("c").ready().await;
    let rest = session.at(fleet.node("c")).resumed(&last).await.rest().await;
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert_eq!(Act::Ask.judge(7, &rest[0]), Fate::Answered);
    session.end().await;
    drop(listening);
    fleet.settle().await;
    fleet.end().await;
}
