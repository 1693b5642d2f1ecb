//! Load on three nodes: with nothing else going on, and while nodes are killed, halted and restarted.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::clients::Session;
use super::driver::{ALL, Act, Driver, Fate, Kind};
use super::real::{Fleet, LEASE};
use crate::harness::request;

/// Two clients of each kind.
pub fn twice() -> Vec<Kind> {
    [ALL, ALL].concat()
}

/// How many sessions of Streamable HTTP these have.
pub const SESSIONS: u64 = 4;
/// As many calls as a client makes only when it is told to stop.
pub const UNTIL_TOLD: u64 = 100_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_once_wherever_its_requests_go() {
    let fleet = Fleet::three().await;
    let report = Driver::with(&fleet, &twice(), 25, true).end().await;
    assert_eq!(report.failed, []);
    fleet.settle().await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_killed_takes_nothing_with_it_but_what_ran_there() {
    let mut fleet = Fleet::three().await;
    let driver = Driver::start(&fleet, &twice(), UNTIL_TOLD);
    driver.each_makes(5).await;
    let session = at(&fleet, "b").await;
    fleet.node_mut("b").kill().await;
    let killed = Instant::now();
    assert_eq!(taken_over(&driver, &session, &fleet).await, Fate::Answered);
    println!("taken over after {:?}, of a lease of {LEASE:?}", killed.elapsed());
    assert!(killed.elapsed() < LEASE * 3);
    driver.each_makes(3).await;
    assert!(fleet.node_mut("b").again().await);
    driver.each_makes(5).await;
    // Each client has one call at a time.
    wind_up(fleet, driver, session, twice().len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_halted_does_nothing_for_sessions_that_others_have() {
    let fleet = Fleet::three().await;
    let driver = Driver::start(&fleet, &twice(), UNTIL_TOLD);
    driver.each_makes(5).await;
    let session = at(&fleet, "b").await;
    let halted = fleet.node("b");
    fleet.balancer.leave_out(halted.address, true);
    halted.pause();
    let begun = Instant::now();
    assert_eq!(taken_over(&driver, &session, &fleet).await, Fate::Answered);
    println!("taken over after {:?}, of a lease of {LEASE:?}", begun.elapsed());
    halted.resume();
    halted.ready().await;
    fleet.balancer.leave_out(halted.address, false);
    for node in &fleet.nodes {
        assert_eq!(driver.call(&session.at(node), Act::Progress(3)).await, Fate::Answered);
    }
    driver.each_makes(5).await;
    wind_up(fleet, driver, session, twice().len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_are_restarted_in_turn_and_no_call_fails() {
    let mut fleet = Fleet::three().await;
    let driver = Driver::start(&fleet, &twice(), UNTIL_TOLD);
    driver.each_makes(3).await;
    for name in ["a", "b", "c"] {
        let node = fleet.node_mut(name);
        let begun = Instant::now();
        node.terminate();
        assert_eq!(node.ended().await, Some(0), "{name}");
        println!("{name} stopped within {:?}", begun.elapsed());
        driver.each_makes(2).await;
        let node = fleet.node_mut(name);
        assert!(node.again().await);
        node.ready().await;
        driver.each_makes(2).await;
    }
    fleet.has(SESSIONS).await;
    let report = driver.finish().await;
    assert_eq!(report.failed, []);
    fleet.settle().await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_came_before_a_node_stopped_is_heard_out() {
    let mut fleet = Fleet::three().await;
    let session = at(&fleet, "b").await;
    let address = fleet.node("b").address;
    let mut guests = Vec::new();
    for _ in 0..20 {
        guests.push(TcpStream::connect(address).await.unwrap());
    }
    fleet.node_mut("b").terminate();
    // They speak when it has nothing to do any more but to go.
    tokio::time::sleep(Duration::from_millis(60)).await;
    for (number, guest) in guests.iter_mut().enumerate() {
        let body = request(number, "ping", json!({})).to_string();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
            accept: application/json, text/event-stream\r\nmcp-session-id: {}\r\n\
            mcp-protocol-version: 2025-11-25\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            session.id,
            body.len()
        );
        guest.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    }
    for (number, guest) in guests.iter_mut().enumerate() {
        let mut answer = String::new();
        guest.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{number}: {answer:?}");
    }
    assert_eq!(fleet.node_mut("b").ended().await, Some(0));
    assert!(fleet.node_mut("b").again().await);
    session.end().await;
    fleet.settle().await;
    fleet.end().await;
}

/// What becomes of a call after the home of its session has gone. What the store had handed to that node already
/// is nowhere: such a call is told to have failed, and the next one is made.
async fn taken_over(driver: &Driver, session: &Session, fleet: &Fleet) -> Fate {
    let session = session.at(fleet.node("a"));
    match driver.call(&session, Act::Plain).await {
        Fate::Failed(why) if why.contains("cannot be reached") => driver.call(&session, Act::Plain).await,
        fate => fate,
    }
}

/// A session that is opened at a node, and lives there.
pub async fn at(fleet: &Fleet, name: &str) -> Session {
    let node = super::balancer::Balancer::new(vec![fleet.node(name).address]);
    let session = Session::open(&node, "2025-11-25").await;
    Session { balancer: std::sync::Arc::clone(&fleet.balancer), ..session }
}

/// After a fault: all sessions live, the books are in order with so many failed calls at most, and nothing is left over.
pub async fn wind_up(fleet: Fleet, driver: Driver, session: Session, most: usize) {
    fleet.has(SESSIONS + 1).await;
    let report = driver.finish().await;
    assert!(report.failed.len() <= most);
    session.end().await;
    fleet.settle().await;
    fleet.end().await;
}
