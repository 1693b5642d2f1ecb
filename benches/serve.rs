//! Server benchmark: CPU time per call, memory per session and per open stream, compared with the official Rust SDK.
//!
//! `cargo bench --bench serve` takes about a minute, `cargo bench --bench serve -- --quick` about ten seconds. Every
//! server runs in its own process, so that the kernel accounts for its CPU time and memory. The exit code only says
//! whether the benchmark ran, not whether it was fast.

#[path = "serve/calls.rs"]
mod calls;
#[path = "common/client.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod client;
#[path = "common/crowd.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod crowd;
#[path = "common/limits.rs"]
mod limits;
#[path = "serve/memory.rs"]
mod memory;
#[path = "serve/peers.rs"]
mod peers;
#[path = "common/process.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod process;
#[path = "serve/report.rs"]
mod report;
#[path = "common/run.rs"]
mod run;
#[path = "common/spread.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod spread;
#[path = "common/turn.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod turn;

use std::process::ExitCode;
use std::time::Duration;

use report::Report;

/// Error of a benchmark.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What to measure and how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Number of rounds; each contender is measured once per round.
    pub(crate) rounds: usize,
    /// Calls per round with one session, and with many.
    pub(crate) calls: [usize; 2],
    /// Number of memory measurements, each in new processes.
    pub(crate) memory_rounds: usize,
    /// Number of sessions opened to measure the memory of one.
    pub(crate) sessions: usize,
    /// Number of streams opened to measure the memory of one.
    pub(crate) streams: usize,
}

/// Numbers of concurrent sessions at which calls are measured.
pub(crate) const SESSIONS: [usize; 2] = [1, 64];

const WHOLE: Plan = Plan { rounds: 21, calls: [1_000, 3_200], memory_rounds: 3, sessions: 10_000, streams: 1_000 };
const QUICK: Plan = Plan { rounds: 7, calls: [300, 960], memory_rounds: 1, sessions: 4_000, streams: 400 };

/// Timeout of the whole benchmark.
const TIMEOUT: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, kind] = arguments.as_slice()
        && first == peers::ARGUMENT
    {
        return run::exit_code("serve", peers::serve(kind));
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        // `cargo test --all-targets` runs this binary too; do nothing then.
        println!("benchmarks only run with --bench: use `cargo bench --bench serve`");
        return ExitCode::SUCCESS;
    }
    let plan = if arguments.iter().any(|argument| argument == "--quick") { QUICK } else { WHOLE };
    run::exit_code("serve", limits::raise(plan.streams).and_then(|()| run::run_with_timeout(TIMEOUT, run_all(plan))))
}

async fn run_all(plan: Plan) -> Result<(), Failure> {
    let mut report = Report::new();
    for (sessions, calls) in SESSIONS.into_iter().zip(plan.calls) {
        report.calls(sessions, &calls::measure(sessions, calls, plan.rounds).await?);
    }
    report.memory(&plan, &memory::measure(&plan).await?);
    report.print();
    Ok(())
}
