//! The store goes away, comes back, and forgets.

use serde_json::Value;

use super::clients::{Session, describing, hello, post};
use super::driver::{Act, Driver, Fate};
use super::load::{UNTIL_TOLD, at, twice, wind_up};
use super::proxy::Proxy;
use super::real::{Fleet, LEASE, Node};
use crate::redis::{Program, Server};

/// A call without a session, which any node makes by itself.
async fn makes_calls(node: &Node) {
    let (status, answer) = describing(node.address, 1, &Act::Plain.params(0)).json().await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer["result"].is_object(), "{answer}");
}

/// A request that cannot be served now is refused, and the client is told when to come again.
async fn refuses(session: &Session, node: &Node) {
    let ping = crate::harness::request(1, "ping", serde_json::json!({}));
    let received = session.post(node.address, &ping).go().await;
    assert_eq!(received.status, 503);
    assert!(received.header("retry-after").is_some());
    let refused = received.json().await;
    assert_eq!(refused["id"], 1, "{refused}");
}

/// The store goes and comes back while there is load.
async fn without_store(go: impl FnOnce(&mut Server), come: impl AsyncFnOnce(&mut Server)) {
    let mut fleet = Fleet::three().await;
    let driver = Driver::start(&fleet, &twice(), UNTIL_TOLD);
    let session = at(&fleet, "b").await;
    driver.each_makes(5).await;
    go(&mut fleet.store);
    for node in &fleet.nodes {
        node.says(503).await;
        makes_calls(node).await;
        refuses(&session, node).await;
    }
    come(&mut fleet.store).await;
    for node in &fleet.nodes {
        node.ready().await;
        assert_eq!(driver.call(&session.at(node), Act::Progress(2)).await, Fate::Answered);
    }
    driver.each_makes(5).await;
    // A client may lose a call when the store goes, and another one that nobody could tell of.
    wind_up(fleet, driver, session, 2 * twice().len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_answer_for_a_while_is_waited_for() {
    without_store(|server| server.pause(), async |server| server.resume()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_takes_too_long_to_answer_makes_nothing_happen_twice() {
    let fleet = Fleet::three().await;
    let driver = Driver::start(&fleet, &twice(), UNTIL_TOLD);
    driver.each_makes(3).await;
    for _ in 0..4 {
        // Longer than it may take to answer, and shorter than a lease: what it was sent is done later.
        fleet.store.pause();
        tokio::time::sleep(LEASE * 5 / 8).await;
        fleet.store.resume();
        driver.each_makes(3).await;
    }
    let report = driver.finish().await;
    assert!(report.failed.len() <= 4 * twice().len());
    fleet.settle().await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_forgot_everything_is_told_again() {
    without_store(Server::stop, async |server| assert!(server.again().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_starts_without_its_store() {
    let mut store = Server::start(Program::Redis).await;
    let url = store.url();
    store.stop();
    let mut fleet = Fleet::with(store, &["a", "b"], |_| url.clone()).await;
    for node in &fleet.nodes {
        node.says(503).await;
        super::real::eventually("its servers are known", async || {
            let listed = node.status().await["upstreams"].to_string();
            if listed.matches("\"ready\"").count() == 2 { Ok(()) } else { Err(listed) }
        })
        .await;
        makes_calls(node).await;
        let received = post(node.address, "/mcp", &hello("2025-11-25")).go().await;
        assert_eq!((received.status, received.header("retry-after").is_some()), (503, true));
    }
    assert!(fleet.store.again().await);
    for node in &fleet.nodes {
        node.ready().await;
    }
    let session = at(&fleet, "a").await;
    for node in &fleet.nodes {
        assert_eq!(session.at(node).call(1, Act::Progress(2)).await, Fate::Answered);
    }
    session.end().await;
    fleet.settle().await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_alone_is_cut_off_from_the_store_gives_its_sessions_to_others() {
    let store = Server::start(Program::Redis).await;
    let (url, proxy) = (store.url(), Proxy::to(store.port()).await);
    let through = format!("redis://{}", proxy.address);
    let find = |name: &str| if name == "b" { through.clone() } else { url.clone() };
    let fleet = Fleet::with(store, &["a", "b", "c"], find).await;
    for node in &fleet.nodes {
        node.ready().await;
    }
    let [a, b, c] = ["a", "b", "c"].map(|name| fleet.node(name));
    for silent in [false, true] {
        let session = at(&fleet, "b").await;
        assert_eq!(session.at(c).call(1, Act::Ask).await, Fate::Answered);
        proxy.cut(silent);
        b.says(503).await;
        refuses(&session, b).await;
        makes_calls(b).await;
        let begun = std::time::Instant::now();
        assert_eq!(session.at(a).call(2, Act::Progress(3)).await, Fate::Answered);
        assert!(begun.elapsed() < LEASE * 3);
        refuses(&session, b).await;
        proxy.mend();
        b.ready().await;
        for node in [b, c, a] {
            assert_eq!(session.at(node).call(3, Act::Progress(3)).await, Fate::Answered);
        }
        fleet.has(1).await;
        session.end().await;
    }
    fleet.settle().await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_alone_goes_on_with_its_sessions_after_it_was_killed() {
    let mut fleet = Fleet::start(&["a"]).await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let session = at(&fleet, "a").await;
        let before = upstream_session(&session, 1).await;
        sessions.push((session, before));
    }
    let introductions = fleet.web.count("initialize");
    let node = fleet.node_mut("a");
    node.kill().await;
    assert!(node.again().await);
    node.ready().await;
    for (session, before) in &sessions {
        assert_eq!(upstream_session(session, 2).await, *before, "the server keeps the same session for it");
    }
    // Only the node itself has introduced itself again.
    assert_eq!(fleet.web.count("initialize"), introductions + 1);
    for (session, _) in &sessions {
        session.end().await;
    }
    fleet.settle().await;
    fleet.end().await;
}

/// The session that the server keeps for a client's.
pub async fn upstream_session(session: &Session, number: u64) -> String {
    report(session, number, Act::Plain).await["session"].as_str().unwrap().to_owned()
}

/// What a server reports of a call.
pub async fn report(session: &Session, number: u64, act: Act) -> Value {
    let body = crate::harness::request(number, "tools/call", act.params(number));
    let answer = session.balancer.insist(|node| session.post(node, &body)).await.unwrap().json().await;
    serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap()
}
