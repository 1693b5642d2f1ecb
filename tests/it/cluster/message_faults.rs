//! Load while single messages between nodes, store and servers are lost, late, repeated or cut off, as a seed says.
//!
//! `FAULT_SEED=7 cargo test --test it message_faults` repeats the faults of one seed.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use super::load::two_of_each_kind;
use super::load_driver::{ClientKind, LoadDriver, Report, SeededRng};
use super::processes::TestCluster;
use super::resp::StoreCommand;
use super::store_proxy::{StoreFault, StoreProxy, StoreRule};
use super::upstream_proxy::UpstreamFault;
use crate::redis::{RedisFlavor, RedisServer};

/// Seeds of an ordinary run.
const SEEDS: [u64; 3] = [1, 2, 3];
/// Faults of each proxy in one run.
const MAX_FAULTS: usize = 10;
/// Calls that each client makes.
const CALLS: u64 = 12;

/// Faults that a seed decides, and what they hit.
#[derive(Clone)]
struct SeededFaults(Arc<Mutex<FaultPlan>>);

struct FaultPlan {
    rng: SeededRng,
    injected: usize,
}

impl SeededFaults {
    fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(FaultPlan { rng: SeededRng::new(seed), injected: 0 })))
    }

    /// One of `faults` in one case of `rarity`, until there were enough.
    fn draw<F: Copy + std::fmt::Debug>(&self, rarity: u64, what: impl FnOnce() -> String, faults: &[F]) -> Option<F> {
        let mut plan = self.0.lock();
        if plan.injected >= MAX_FAULTS || plan.rng.below(rarity) != 0 {
            return None;
        }
        let fault = faults[usize::try_from(plan.rng.below(faults.len() as u64)).unwrap()];
        plan.injected += 1;
        println!("{fault:?}: {}", what());
        Some(fault)
    }
}

impl StoreRule for SeededFaults {
    fn fault(&self, command: &StoreCommand) -> StoreFault {
        let late = StoreFault::Delay(Duration::from_millis(300));
        let drawn = if let [message, ..] = command.messages() {
            let what = || format!("message of kind {} of {} bytes", message[0], message.len());
            self.draw(20, what, &[StoreFault::Lose, StoreFault::Lose, StoreFault::Repeat, late])
        } else if command.has_key("s") {
            // A write that the store has acknowledged is not lost singly.
            let what = || format!("session command {:?}", command.arguments.get(1));
            self.draw(40, what, &[StoreFault::Repeat, late, StoreFault::BreakBefore, StoreFault::BreakAfter])
        } else {
            None
        };
        drawn.unwrap_or(StoreFault::None)
    }
}

impl SeededFaults {
    fn upstream_fault(&self, request: &str) -> UpstreamFault {
        let late = UpstreamFault::Delay(Duration::from_millis(300));
        let is_call = request.contains(r#""tools/call""#);
        let faults = [late, UpstreamFault::BreakBefore, UpstreamFault::BreakAfter];
        is_call.then(|| self.draw(10, || "tools/call".to_owned(), &faults)).flatten().unwrap_or(UpstreamFault::None)
    }
}

/// Whether a failure says what has failed, or the client sees that its stream broke and cannot resume it: a per-request
/// client never can, another not before the first event, which may be the message that was lost.
fn is_typed(client: ClientKind, why: &str) -> bool {
    let error: Option<Value> = serde_json::from_str(why).ok();
    let is_failure = error.is_some_and(|error| error["data"]["failure"].is_string());
    is_failure
        || match client {
            ClientKind::PerRequest => why == "the stream broke",
            ClientKind::Session(_) => why == "the stream broke before its first event",
            _ => false,
        }
}

async fn run(seed: u64) -> Report {
    let (store_faults, upstream_faults) = (SeededFaults::new(seed), SeededFaults::new(seed + 1000));
    let store = RedisServer::start(RedisFlavor::Redis).await;
    let proxy = StoreProxy::with_rule(store.port(), store_faults.clone()).await;
    let rule = {
        let faults = upstream_faults.clone();
        move |request: &str| faults.upstream_fault(request)
    };
    let cluster = TestCluster::with_upstream_proxy(store, &["a", "b", "c"], |_| proxy.url(), rule).await;
    for node in &cluster.nodes {
        node.wait_ready().await;
    }
    let report = LoadDriver::start(&cluster, &two_of_each_kind(), CALLS).end().await;
    let untyped: Vec<_> = report.failed.iter().filter(|(_, client, _, why)| !is_typed(*client, why)).collect();
    assert!(untyped.is_empty(), "{untyped:#?}");
    cluster.wait_idle().await;
    cluster.shut_down().await;
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_message_faults_lose_no_call_silently_and_run_none_twice() {
    let one = std::env::var("FAULT_SEED").ok().map(|seed| vec![seed.parse().expect("a number")]);
    for seed in one.unwrap_or_else(|| SEEDS.to_vec()) {
        println!("FAULT_SEED={seed}");
        let report = run(seed).await;
        println!("{} answered, {} failed", report.answered, report.failed.len());
    }
}
