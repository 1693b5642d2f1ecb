//! What many nodes cost: calls at a session's home and at other nodes, streams, memory, and how long it
//! takes until another node goes on with a session.
//!
//! `cargo bench --bench cluster` takes some five minutes, with `-- --quick` more than one. It starts a
//! `redis-server`, which has to be installed. Further options, each after `--`: `--rounds 5`,
//! `--calls 800`, `--sessions 64`, `--only calls` for one of `calls`, `streams`, `moves` and `memory`,
//! `--beside PATH` for another build of Rialto that stands alone in the same rounds. Timing is no test:
//! the exit code says only whether the benchmark could be carried out.

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

/// Why something could not be measured.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How much is measured.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// How often each row has its turn.
    pub(crate) rounds: usize,
    /// Calls in a turn, over all sessions.
    pub(crate) calls: usize,
    /// Calls in a turn of the one session that calls in sequence.
    pub(crate) in_sequence: usize,
    /// Clients at once, each with a session of its own.
    pub(crate) sessions: usize,
    /// How often a node is killed, for each lease.
    pub(crate) kills: usize,
    /// How often a node is asked to stop, and how often memory is looked at.
    pub(crate) repeats: usize,
    /// Sessions of a node that stops, and of one whose memory is looked at.
    pub(crate) crowd: usize,
    /// The one part that is measured.
    pub(crate) only: Option<String>,
    /// Another build of Rialto.
    pub(crate) beside: Option<PathBuf>,
}

/// Past this something hangs.
const PATIENCE: Duration = Duration::from_secs(1800);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = arguments.as_slice()
        && first == upstream::ARGUMENT
    {
        return run::ended("cluster", upstream::serve(rest));
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        // `cargo test --all-targets` runs this too; figures are nothing to test.
        println!("nothing is measured without --bench; run `cargo bench --bench cluster`");
        return ExitCode::SUCCESS;
    }
    if !store::is_there() {
        println!(
            "nothing is measured: there is no redis-server on the path. Packages of the system have it \
             (`apt install redis-server`, `brew install redis`), from version 7.0 on"
        );
        return ExitCode::SUCCESS;
    }
    run::ended("cluster", Plan::read(&arguments).and_then(|plan| run::measured(PATIENCE, whole(&plan))))
}

impl Plan {
    /// Reads the command line.
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
                other => return Err(format!("there is no option {other}").into()),
            }
        }
        Ok(plan)
    }

    fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == part)
    }
}

/// Each part is told of as soon as it is measured.
async fn whole(plan: &Plan) -> Result<(), Failure> {
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
