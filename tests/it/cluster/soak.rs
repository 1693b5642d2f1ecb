//! Soak test: the load test for longer, with random faults. `CLUSTER_SECONDS` says how long; CI gives it five minutes.

use std::time::{Duration, Instant};

use super::load::{STREAMABLE_SESSIONS, UNBOUNDED_CALLS, two_of_each_kind};
use super::load_driver::{CallLedger, ClientKind, LoadDriver, SeededRng};
use super::processes::{LEASE, TestCluster, eventually};
use super::sdks::SDKS;

/// Fault injected into the cluster.
#[derive(Debug, Clone, Copy)]
enum ClusterFault {
    Kill,
    Halt,
    Restart,
    StorePaused,
    StoreForgets,
}

const CLUSTER_FAULTS: [ClusterFault; 5] = [
    ClusterFault::Kill,
    ClusterFault::Halt,
    ClusterFault::Restart,
    ClusterFault::StorePaused,
    ClusterFault::StoreForgets,
];

/// Duration without `CLUSTER_SECONDS`: a few faults.
const DEFAULT_SECONDS: u64 = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_with_random_faults_executes_every_call_at_most_once() {
    let seconds = std::env::var("CLUSTER_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let seconds = seconds.unwrap_or(DEFAULT_SECONDS);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut cluster = TestCluster::three().await;
    let driver = LoadDriver::start(&cluster, &[two_of_each_kind(), SDKS.to_vec()].concat(), UNBOUNDED_CALLS);
    driver.wait_all_started().await;
    let mut rng = rng(&driver.ledger);
    let mut faults = 0;
    driver.wait_calls_each(3).await;
    while Instant::now() < end {
        let fault = CLUSTER_FAULTS[usize::try_from(rng.below(CLUSTER_FAULTS.len() as u64)).unwrap()];
        let node_index = usize::try_from(rng.below(cluster.nodes.len() as u64)).unwrap();
        println!("{fault:?} {}", cluster.nodes[node_index].name);
        inject(&mut cluster, fault, node_index).await;
        faults += 1;
        for node in &cluster.nodes {
            node.wait_ready().await;
        }
        driver.wait_calls_each(3).await;
        eventually("every session has exactly one owner", async || {
            let (found, known) = (cluster.sessions().await, driver.ledger.load_balancer.sessions());
            let others = found.checked_sub(STREAMABLE_SESSIONS).ok_or_else(|| found.to_string())?;
            if known.contains(&others) { Ok(()) } else { Err(format!("{others} instead of {known:?}")) }
        })
        .await;
    }
    let report = driver.finish().await;
    println!("{faults} faults, {} calls, {} failed", report.answered, report.failed.len());
    // SDKs count refused calls as failed, and may be refused any number of times.
    let own = report.failed.iter().filter(|(_, kind, ..)| !matches!(kind, ClientKind::Sdk(_)));
    assert!(own.count() <= faults * two_of_each_kind().len());
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

async fn inject(cluster: &mut TestCluster, fault: ClusterFault, node_index: usize) {
    let node = &mut cluster.nodes[node_index];
    match fault {
        ClusterFault::Kill => {
            node.kill().await;
            node.restart().await;
        }
        ClusterFault::Halt => {
            cluster.balancer.set_excluded(node.address, true);
            node.pause();
            tokio::time::sleep(LEASE * 2).await;
            node.resume();
            cluster.balancer.set_excluded(node.address, false);
        }
        ClusterFault::Restart => {
            node.terminate();
            assert_eq!(node.wait_exit().await, Some(0));
            node.restart().await;
        }
        ClusterFault::StorePaused => {
            cluster.store.pause();
            tokio::time::sleep(LEASE * 2).await;
            cluster.store.resume();
        }
        ClusterFault::StoreForgets => {
            cluster.store.stop();
            tokio::time::sleep(LEASE).await;
            cluster.store.restart().await;
        }
    }
}

/// Random generator for faults, derived from the seed of the run.
fn rng(ledger: &CallLedger) -> SeededRng {
    ledger.rng(usize::from(u16::MAX))
}
