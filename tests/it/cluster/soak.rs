//! The same load for longer, with something going wrong again and again.

use std::time::{Duration, Instant};

use super::driver::{Books, Dice, Driver, Kind};
use super::load::{SESSIONS, UNTIL_TOLD, twice};
use super::real::{Fleet, LEASE, eventually};
use super::sdks::SDKS;

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Halt,
    Restart,
    StorePaused,
    StoreForgets,
}

const FAULTS: [Fault; 5] = [Fault::Kill, Fault::Halt, Fault::Restart, Fault::StorePaused, Fault::StoreForgets];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes as long as CLUSTER_SECONDS says"]
async fn whatever_goes_wrong_the_books_are_right() {
    let seconds = std::env::var("CLUSTER_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(60);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut fleet = Fleet::three().await;
    let driver = Driver::start(&fleet, &[twice(), SDKS.to_vec()].concat(), UNTIL_TOLD);
    driver.all_begin().await;
    let mut dice = dice(&driver.books);
    let mut faults = 0;
    driver.each_makes(3).await;
    while Instant::now() < end {
        let fault = FAULTS[usize::try_from(dice.below(FAULTS.len() as u64)).unwrap()];
        let place = usize::try_from(dice.below(fleet.nodes.len() as u64)).unwrap();
        println!("{fault:?} {}", fleet.nodes[place].name);
        strike(&mut fleet, fault, place).await;
        faults += 1;
        for node in &fleet.nodes {
            node.ready().await;
        }
        driver.each_makes(3).await;
        eventually("every session lives once", async || {
            let (found, known) = (fleet.sessions().await, driver.books.gate.sessions());
            let others = found.checked_sub(SESSIONS).ok_or_else(|| found.to_string())?;
            if known.contains(&others) { Ok(()) } else { Err(format!("{others} instead of {known:?}")) }
        })
        .await;
    }
    let report = driver.finish().await;
    println!("{faults} faults, {} calls, {} failed", report.answered, report.failed.len());
    // What an SDK is refused it counts as failed, and it may be refused often.
    let own = report.failed.iter().filter(|(_, kind, ..)| !matches!(kind, Kind::Sdk(_)));
    assert!(own.count() <= faults * twice().len());
    fleet.settle().await;
    fleet.end().await;
}

async fn strike(fleet: &mut Fleet, fault: Fault, place: usize) {
    let node = &mut fleet.nodes[place];
    match fault {
        Fault::Kill => {
            node.kill().await;
            assert!(node.again().await);
        }
        Fault::Halt => {
            fleet.balancer.leave_out(node.address, true);
            node.pause();
            tokio::time::sleep(LEASE * 2).await;
            node.resume();
            fleet.balancer.leave_out(node.address, false);
        }
        Fault::Restart => {
            node.terminate();
            assert_eq!(node.ended().await, Some(0));
            assert!(node.again().await);
        }
        Fault::StorePaused => {
            fleet.store.pause();
            tokio::time::sleep(LEASE * 2).await;
            fleet.store.resume();
        }
        Fault::StoreForgets => {
            fleet.store.stop();
            tokio::time::sleep(LEASE).await;
            assert!(fleet.store.again().await);
        }
    }
}

/// What goes wrong is the same for the same seed.
fn dice(books: &Books) -> Dice {
    books.dice(usize::from(u16::MAX))
}
