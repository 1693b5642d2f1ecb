//! The store does not answer for longer than a lease: what was asked meanwhile has an end all the same.

use std::time::{Duration, Instant};

use super::clients::{Session, hello, post};
use super::driver::{Act, Fate};
use super::load::at;
use super::real::{Fleet, LEASE};
use crate::harness::{Received, request};
use crate::redis::Server;

/// How long anybody may have to wait for an end: until the node has noticed, and what the store may take.
const BOUND: Duration = Duration::from_secs(LEASE.as_secs() * 2 + 2);

/// How a request ended, and after how long.
async fn ended(what: &'static str, asked: impl Future<Output = Received>) -> (&'static str, u16, String) {
    let begun = Instant::now();
    let received = tokio::time::timeout(BOUND, asked).await.unwrap_or_else(|_| panic!("{what} hangs"));
    let (status, again) = (received.status, received.header("retry-after").is_some());
    // The rest of it, too: a stream may break off.
    let left = BOUND.saturating_sub(begun.elapsed());
    let text = tokio::time::timeout(left, received.try_text()).await;
    let text = text.unwrap_or_else(|_| panic!("{what}: its stream hangs")).unwrap_or_default();
    println!("{what}: {status} after {:?}: {text}", begun.elapsed());
    assert!(status != 503 || again, "{what}: who is refused is told when to come again");
    (what, status, text)
}

async fn calls_end(pause: impl AsyncFnOnce(&Server), resume: impl AsyncFnOnce(&Server)) {
    let fleet = Fleet::three().await;
    let (mine, its) = (at(&fleet, "a").await, at(&fleet, "b").await);
    let [a, b] = ["a", "b"].map(|name| fleet.node(name).address);
    let call = |session: &Session, act: Act, number: u64| {
        let body = request(number, "tools/call", act.params(number));
        let (session, body) = (session.clone(), body);
        move |node| session.post(node, &body).go()
    };
    assert_eq!(mine.at(fleet.node("c")).call(1, Act::Progress(2)).await, Fate::Answered);
    pause(&fleet.store).await;
    let begun = Instant::now();
    let ends = tokio::join!(
        ended("a call at home", call(&mine, Act::Plain, 11)(a)),
        ended("a call that is carried", call(&its, Act::Plain, 12)(a)),
        ended("a call with a stream", call(&mine, Act::Progress(3), 13)(a)),
        ended("a call with a stream that is carried", call(&mine, Act::Progress(3), 14)(b)),
        ended("a call that asks", call(&its, Act::Ask, 15)(b)),
        ended("a new session", post(a, "/mcp", &hello("2025-11-25")).go()),
    );
    let ends = [ends.0, ends.1, ends.2, ends.3, ends.4, ends.5];
    let of = |name: &str| ends.iter().find(|(what, ..)| *what == name).unwrap();
    // What needs no store is answered, or refused once the lease is over.
    assert!(of("a call at home").1 == 200 || of("a call at home").1 == 503);
    assert_eq!(of("a new session").1, 503);
    for what in ["a call that is carried", "a call with a stream that is carried"] {
        let (_, status, text) = of(what);
        // It may have been taken: then nobody knows, and that is what is said.
        assert!(*status == 503 || text.contains("is not known"), "{what}: {status} {text}");
    }
    // Longer than a lease in all.
    for node in &fleet.nodes {
        node.says(503).await;
    }
    tokio::time::sleep((LEASE * 2).saturating_sub(begun.elapsed())).await;
    resume(&fleet.store).await;
    for node in &fleet.nodes {
        node.ready().await;
    }
    for (n, node) in fleet.nodes.iter().enumerate() {
        for session in [&mine, &its] {
            assert_eq!(session.at(node).call(100 + n as u64, Act::Progress(2)).await, Fate::Answered);
        }
    }
    fleet.has(2).await;
    mine.end().await;
    its.end().await;
    fleet.settle().await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_while_the_store_is_halted() {
    calls_end(async |store| store.pause(), async |store| store.resume()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_while_the_store_lets_its_clients_wait() {
    let pause = async |store: &Server| {
        let long = u64::try_from((BOUND + LEASE).as_millis()).unwrap();
        let () = store.ask(redis::cmd("CLIENT").arg("PAUSE").arg(long).arg("ALL")).await;
    };
    // It goes on by itself.
    calls_end(pause, async |_| ()).await;
}
