//! Another server takes over from the store, or the store comes back with what it knew a while ago.

use std::time::{Duration, Instant};

use serde_json::json;

use super::driver::{Act, Driver, Fate};
use super::found::id_of;
use super::load::{UNTIL_TOLD, at, twice, wind_up};
use super::real::{Fleet, LEASE, eventually};
use crate::harness::{Rialto, request, until};
use crate::redis::{Program, Server};
use crate::store::failover::Watched;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_go_on_with_the_server_that_took_over() {
    let mut watched = Watched::start().await;
    let url = watched.url();
    // What nodes leave behind is looked for where they are in the end.
    let spare = Server::start(Program::Redis).await;
    let store = std::mem::replace(&mut watched.second, spare);
    let fleet = Fleet::with(store, &["a", "b", "c"], |_| url.clone()).await;
    for node in &fleet.nodes {
        node.ready().await;
    }
    let driver = Driver::start(&fleet, &twice(), UNTIL_TOLD);
    let session = at(&fleet, "b").await;
    driver.each_makes(3).await;
    let begun = Instant::now();
    watched.first.stop();
    let taken_over = async || match fleet.store.tells("replication").await {
        told if told.contains("role:master") => Ok(()),
        told => Err(told),
    };
    eventually("the other takes over", taken_over).await;
    println!("taken over after {:?}", begun.elapsed());
    for node in &fleet.nodes {
        node.ready().await;
    }
    for node in &fleet.nodes {
        assert_eq!(driver.call(&session.at(node), Act::Progress(2)).await, Fate::Answered);
    }
    println!("all is well after {:?}", begun.elapsed());
    driver.each_makes(3).await;
    wind_up(fleet, driver, session, 2 * twice().len()).await;
}

/// A node of this process, which nobody misses soon.
async fn patient(server: &Server, name: &str) -> Rialto {
    let rialto = Rialto::with(|settings| {
        settings.cluster_store = Some(server.store());
        settings.store.node = Some(name.into());
        settings.store.lease = LEASE * 3;
    })
    .await;
    until("the node is ready", || rialto.inbound.admin.ready().is_ok()).await;
    rialto
}

/// Restarts a store; it knows what it knew when it was told to save.
async fn back_in_time(server: &mut Server) {
    server.stop();
    assert!(server.again().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_the_store_lost_is_told_to_it_again() {
    let mut server = Server::start(Program::Redis).await;
    let (a, b) = (patient(&server, "a").await, patient(&server, "b").await);
    let () = server.ask(&mut redis::cmd("SAVE")).await;
    let session = a.open("2025-11-25").await;
    back_in_time(&mut server).await;
    let begun = Instant::now();
    let found = loop {
        // Nobody is told that there is none.
        match session.elsewhere(&b).post(&request(1, "ping", json!({}))).status().await {
            503 => assert!(begun.elapsed() < LEASE * 5),
            status => break status,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    println!("{found} after {:?}", begun.elapsed());
    assert_eq!(found, 200);
    assert_eq!((a.inbound.sessions.count(), b.inbound.sessions.count()), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_move_the_store_lost_has_one_home() {
    let mut server = Server::start(Program::Redis).await;
    let (a, b) = (patient(&server, "a").await, patient(&server, "b").await);
    let session = a.open("2025-11-25").await;
    let () = server.ask(&mut redis::cmd("SAVE")).await;
    let (sessions, id) = (&a.inbound.sessions, id_of(&session.id));
    let kept = sessions.get(id).unwrap();
    assert!(sessions.persister().unwrap().release(sessions, &kept, true).await.unwrap());
    assert_eq!(session.elsewhere(&b).post(&request(1, "ping", json!({}))).status().await, 200);
    assert_eq!((sessions.count(), b.inbound.sessions.count()), (0, 1));
    back_in_time(&mut server).await;
    let at_a = async || match session.post(&request(2, "ping", json!({}))).status().await {
        200 => Ok(()),
        status => Err(status.to_string()),
    };
    eventually("it is served", at_a).await;
    let homes = || sessions.count() + b.inbound.sessions.count();
    until("it has one home", || homes() == 1).await;
    for node in [&a, &b] {
        assert_eq!(session.elsewhere(node).post(&request(3, "ping", json!({}))).status().await, 200);
        assert_eq!(homes(), 1);
    }
}
