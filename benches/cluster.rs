//! Cluster benchmark: calls at the owner of a session and relayed from other nodes, streams, memory, and the time
//! until another node takes over a session.
//!
//! `cargo bench --bench cluster` takes about five minutes, with `-- --quick` more than one. It starts a
//! `redis-server`, which must be installed. More options, each after `--`: `--rounds 5`, `--calls 800`, `--sessions
//! 64`, `--only calls` for one of `calls`, `streams`, `moves` and `memory`, `--beside PATH` for another build of
//! Rialto that is measured as a single node in the same rounds. The exit code only says whether the benchmark ran,
//! not whether it was fast.

#[path = "cluster/calls.rs"]
mod calls;
#[path = "common/client.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod client;
#[path = "common/folder.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod folder;
#[path = "cluster/memory.rs"]
mod memory;
#[path = "cluster/moves.rs"]
mod moves;
#[path = "cluster/nodes.rs"]
mod nodes;
#[path = "common/process.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod process;
#[path = "cluster/report.rs"]
mod report;
#[path = "cluster/rows.rs"]
mod rows;
#[path = "common/run.rs"]
mod run;
#[path = "common/spread.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod spread;
#[path = "cluster/store.rs"]
mod store;
#[path = "cluster/streams.rs"]
mod streams;
#[path = "common/turn.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod turn;
#[path = "gateway/upstream.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod upstream;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Error of a benchmark.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What to measure and how often.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Number of rounds; each row is measured once per round.
    pub(crate) rounds: usize,
    /// Calls per round, over all sessions.
    pub(crate) calls: usize,
    /// Calls per round in the sequential session.
    pub(crate) in_sequence: usize,
    /// Concurrent clients, each with its own session.
    pub(crate) sessions: usize,
    /// Number of killed nodes per lease duration.
    pub(crate) kills: usize,
    /// Repetitions of the graceful-stop and memory measurements.
    pub(crate) repeats: usize,
    /// Number of sessions in the graceful-stop and memory measurements.
    pub(crate) crowd: usize,
    /// The only part to measure, if set.
    pub(crate) only: Option<String>,
    /// Binary of another build of Rialto to compare with.
    pub(crate) beside: Option<PathBuf>,
}

/// Timeout of the whole benchmark.
const TIMEOUT: Duration = Duration::from_secs(1800);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = arguments.as_slice()
        && first == upstream::ARGUMENT
    {
        return run::exit_code("cluster", upstream::serve(rest));
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        // `cargo test --all-targets` runs this binary too; do nothing then.
        println!("benchmarks only run with --bench: use `cargo bench --bench cluster`");
        return ExitCode::SUCCESS;
    }
    if !store::is_available() {
        println!(
            "redis-server is not installed. Install version 7.0 or later \
             (`apt install redis-server`, `brew install redis`)"
        );
        return ExitCode::SUCCESS;
    }
    run::exit_code("cluster", Plan::read(&arguments).and_then(|plan| run::run_with_timeout(TIMEOUT, run_all(&plan))))
}

impl Plan {
    /// Parses the command line.
    fn read(arguments: &[String]) -> Result<Self, Failure> {
        let mut plan = Self {
            rounds: 11,
            calls: 1_600,
            in_sequence: 200,
            sessions: 16,
            kills: 5,
            repeats: 3,
            crowd: 1_000,
            only: None,
            beside: None,
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--bench" => {}
                "--quick" => (plan.rounds, plan.calls, plan.kills, plan.repeats) = (3, 800, 1, 1),
                "--rounds" => plan.rounds = value()?.parse()?,
                "--calls" => plan.calls = value()?.parse()?,
                "--sessions" => plan.sessions = value()?.parse()?,
                "--only" => plan.only = Some(value()?.clone()),
                "--beside" => plan.beside = Some(value()?.into()),
                other => return Err(format!("unknown option {other}").into()),
            }
        }
        Ok(plan)
    }

    fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == part)
    }
}

/// Measures the parts one after the other and prints each as soon as it is done.
async fn run_all(plan: &Plan) -> Result<(), Failure> {
    report::head(plan);
    if plan.wants("calls") {
        report::calls(&calls::measure(plan).await?);
    }
    if plan.wants("streams") {
        report::streams(&streams::measure(plan).await?);
    }
    if plan.wants("moves") {
        report::moves(&moves::measure(plan).await?);
    }
    if plan.wants("memory") {
        report::memory(&memory::measure(plan).await?);
    }
    Ok(())
}
