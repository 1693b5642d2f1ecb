//! How many pieces of memory a call takes on its way through the gateway, held against a budget.
//!
//! The gateway runs on the one thread that is counted; clients and servers are other threads, or
//! another process. Fewer than the budget is fine: lower it, so that it stays that way.

#![allow(missing_docs, unreachable_pub, reason = "nobody outside uses a test")]

mod hot;

use std::future;
use std::path::Path;
use std::thread;

use hot::{Client, ROUTES, Stage};
use rialto::app::{App, AppSettings};
use rialto::config;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// For each path: what it took when this was last looked at, and what it may take.
const BUDGETS: [(&str, u64, u64); 11] = [
    ("2025-11-25 to 2025-11-25", 28, 30),
    ("2026-07-28 to 2026-07-28", 26, 28),
    ("2025-11-25 to 2026-07-28", 39, 41),
    ("2026-07-28 to 2025-11-25", 48, 51),
    ("2025-11-25 to 2025-11-25, events", 36, 38),
    ("2026-07-28 to 2026-07-28, events", 36, 38),
    ("2026-07-28 to 2025-11-25, 10 KB", 50, 53),
    ("2026-07-28 to 2025-11-25, stdio", 49, 52),
    ("2025-11-25 to built in", 23, 25),
    ("2026-07-28 to built in", 23, 25),
    ("2025-11-25 merged list", 12, 13),
];

/// The first calls pay for what happens once.
const FIRST: u32 = 50;
/// So many that what happens now and then does not show.
const COUNTED: u32 = 400;

#[test]
fn calls_stay_within_their_budgets() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let stage = Stage::set(Path::new(env!("CARGO_BIN_EXE_rialto")));
    let loaded = config::load(&stage.config(), &|_| None).unwrap();
    let defaults = AppSettings::default();
    let layout = loaded.config.layout(rialto::local::elements::SPOTLIGHT);
    let settings = AppSettings { listen: loaded.config.listen.unwrap(), gateway: layout, ..defaults };
    let bound = runtime.block_on(App::bind(settings)).unwrap();
    let address = bound.address();
    runtime.spawn(bound.run(future::pending()));

    let mut beyond = Vec::new();
    println!("{:>11} {:>6} {:>6} {:>11}  allocations of a call", "allocations", "before", "budget", "bytes");
    for (route, (name, before, budget)) in ROUTES.into_iter().zip(BUDGETS) {
        assert_eq!(route.name, name, "budgets are in the order of the paths");
        let client = meanwhile(&runtime, move || Client::open(address, route).calls(FIRST));
        let taken = allocation_counter::measure(|| {
            meanwhile(&runtime, move || client.calls(COUNTED));
        });
        let each = |total: u64| (total + u64::from(COUNTED) / 2) / u64::from(COUNTED);
        let (count, bytes) = (each(taken.count_total), each(taken.bytes_total));
        println!("{count:>11} {before:>6} {budget:>6} {bytes:>11}  {name}");
        if count > budget {
            beyond.push(format!("{name}: {count} allocations, and {budget} are allowed"));
        }
    }
    assert!(beyond.is_empty(), "{}", beyond.join("\n"));
}

/// Runs the gateway here while something else is done on another thread.
fn meanwhile<T: Send + 'static>(runtime: &Runtime, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = oneshot::channel();
    thread::spawn(move || done.send(work()));
    runtime.block_on(wait).expect("the other thread got through; it says above why not")
}
