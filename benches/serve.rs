//! What serving costs: processor time per call, memory per session and per open stream, with the
//! official Rust SDK beside it.
//!
//! `cargo bench --bench serve` takes about a minute, `cargo bench --bench serve -- --quick` some
//! ten seconds. Every server is a process of its own, so that the system can say what it used.
//! Timing is no test: the exit code says only whether the benchmark could be carried out.

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

/// Why something could not be measured.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// How often each contender has its turn.
    pub(crate) rounds: usize,
    /// Calls in a turn with one session, and with many.
    pub(crate) calls: [usize; 2],
    /// How often memory is measured, each time in new processes.
    pub(crate) memory_rounds: usize,
    /// Sessions that are opened to see what one takes.
    pub(crate) sessions: usize,
    /// Streams that are opened to see what one takes.
    pub(crate) streams: usize,
}

/// The two sizes at which calls are measured, in sessions.
pub(crate) const SESSIONS: [usize; 2] = [1, 64];

const WHOLE: Plan = Plan { rounds: 21, calls: [1_000, 3_200], memory_rounds: 3, sessions: 10_000, streams: 1_000 };
const QUICK: Plan = Plan { rounds: 7, calls: [300, 960], memory_rounds: 1, sessions: 4_000, streams: 400 };

/// Past this something hangs.
const PATIENCE: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, kind] = arguments.as_slice()
        && first == peers::ARGUMENT
    {
        return run::ended("serve", peers::serve(kind));
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        // `cargo test --all-targets` runs this too; figures are nothing to test.
        println!("nothing is measured without --bench; run `cargo bench --bench serve`");
        return ExitCode::SUCCESS;
    }
    let plan = if arguments.iter().any(|argument| argument == "--quick") { QUICK } else { WHOLE };
    run::ended("serve", limits::raise(plan.streams).and_then(|()| run::measured(PATIENCE, whole(plan))))
}

async fn whole(plan: Plan) -> Result<(), Failure> {
    let mut report = Report::new();
    for (sessions, calls) in SESSIONS.into_iter().zip(plan.calls) {
        report.calls(sessions, &calls::measure(sessions, calls, plan.rounds).await?);
    }
    report.memory(&plan, &memory::measure(&plan).await?);
    report.print();
    Ok(())
}
