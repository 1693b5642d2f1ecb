//! The same load for longer, with something going wrong again and again.

use std::time::{Duration, Instant};

use super::driver::{Books, Dice, Driver};
use super::load::{SESSIONS, UNTIL_TOLD, twice};
use super::real::{Fleet, LEASE};

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
    let driver = Driver::start(&fleet, &twice(), UNTIL_TOLD);
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
        fleet.has(SESSIONS).await;
    }
    let report = driver.finish().await;
    println!("{faults} faults, {} calls, {} failed", report.answered, report.failed.len());
    assert!(report.failed.len() <= faults * twice().len());
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
