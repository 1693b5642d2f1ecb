//! Heap allocations per call on the hot paths, checked against a budget.
//!
//! The gateway runs on the counted thread; clients and servers run on other threads or in another process. When a path
//! needs fewer allocations than its budget, lower the budget.

#![allow(missing_docs, unreachable_pub, reason = "a test has no outside users")]

mod hot;

use std::future;
use std::path::Path;
use std::thread;

use hot::{Client, HotPathFixture, ROUTES};
use rialto::app::{App, AppSettings};
use rialto::config;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// Per route: name, allocations when last measured, and the budget.
const BUDGETS: [(&str, u64, u64); 11] = [
    ("2025-11-25 to 2025-11-25", 22, 24),
    ("2026-07-28 to 2026-07-28", 21, 23),
    ("2025-11-25 to 2026-07-28", 32, 34),
    ("2026-07-28 to 2025-11-25", 37, 39),
    ("2025-11-25 to 2025-11-25, events", 31, 33),
    ("2026-07-28 to 2026-07-28, events", 32, 34),
    ("2026-07-28 to 2025-11-25, 10 KB", 37, 39),
    ("2026-07-28 to 2025-11-25, stdio", 41, 43),
    ("2025-11-25 to built in", 22, 24),
    ("2026-07-28 to built in", 21, 23),
    ("2025-11-25 merged list", 11, 12),
];

/// Warm-up calls, which pay for one-time initialization.
const WARM_UP_CALLS: u32 = 50;
/// Measured calls; enough to average out periodic work.
const MEASURED_CALLS: u32 = 400;

#[test]
fn allocations_per_call_stay_within_budget() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let fixture = HotPathFixture::start(Path::new(env!("CARGO_BIN_EXE_rialto")));
    let loaded = config::load(&fixture.config(), &|_| None).unwrap();
    let defaults = AppSettings::default();
    let gateway = loaded.config.gateway_config();
    let settings = AppSettings { listen: loaded.config.settings.listen, gateway, ..defaults };
    let bound = runtime.block_on(App::bind(settings)).unwrap();
    let address = bound.address();
    runtime.spawn(bound.run(future::pending()));

    let mut over_budget = Vec::new();
    println!("{:>11} {:>6} {:>6} {:>11}  allocations of a call", "allocations", "before", "budget", "bytes");
    for (route, (name, before, budget)) in ROUTES.into_iter().zip(BUDGETS) {
        assert_eq!(route.name, name, "budgets are in the order of ROUTES");
        let client = run_gateway_while(&runtime, move || Client::open(address, route).calls(WARM_UP_CALLS));
        let measured = allocation_counter::measure(|| {
            run_gateway_while(&runtime, move || client.calls(MEASURED_CALLS));
        });
        let per_call = |total: u64| (total + u64::from(MEASURED_CALLS) / 2) / u64::from(MEASURED_CALLS);
        let (count, bytes) = (per_call(measured.count_total), per_call(measured.bytes_total));
        println!("{count:>11} {before:>6} {budget:>6} {bytes:>11}  {name}");
        if count > budget {
            over_budget.push(format!("{name}: {count} allocations, budget {budget}"));
        }
    }
    assert!(over_budget.is_empty(), "{}", over_budget.join("\n"));
}

/// Runs the gateway on this thread while `work` runs on another.
fn run_gateway_while<T: Send + 'static>(runtime: &Runtime, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = oneshot::channel();
    thread::spawn(move || done.send(work()));
    runtime.block_on(wait).expect("the other thread finished; see its panic above")
}
