//! What passing a call on costs: processor time per call of Rialto between a client and an upstream of
//! the same or of different eras, with nginx beside it.
//!
//! `cargo bench --bench gateway` takes about a minute, with `-- --quick` some ten seconds. Further
//! options, each after `--`: `--bytes 10000` for larger answers, `--sessions 1`, `--rounds 5`,
//! `--calls 1000`, `--only "rialto http"` for some of the contenders, `--beside PATH` for another build of
//! Rialto in the same rounds, `--under "valgrind ..."` to start Rialto under another program. Timing is no test:
//! the exit code says only whether the benchmark could be carried out.

#[path = "gateway/calls.rs"]
mod calls;
#[path = "common/client.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod client;
#[path = "common/folder.rs"]
mod folder;
#[path = "gateway/fronts.rs"]
mod fronts;
#[path = "common/process.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod process;
#[path = "gateway/report.rs"]
mod report;
#[path = "common/run.rs"]
mod run;
#[path = "common/spread.rs"]
mod spread;
#[path = "common/turn.rs"]
mod turn;
#[path = "gateway/upstream.rs"]
mod upstream;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Why something could not be measured.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How much is measured.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// How often each contender has its turn.
    pub(crate) rounds: usize,
    /// Calls in a turn, over all sessions.
    pub(crate) calls: usize,
    /// Clients at once, each with a connection and a session of its own.
    pub(crate) sessions: usize,
    /// The size of the text in an answer.
    pub(crate) bytes: usize,
    /// A part of the names of those that are measured.
    pub(crate) only: String,
    /// What Rialto is started under.
    pub(crate) under: Vec<String>,
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
        return run::ended("gateway", upstream::serve(rest));
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        // `cargo test --all-targets` runs this too; figures are nothing to test.
        println!("nothing is measured without --bench; run `cargo bench --bench gateway`");
        return ExitCode::SUCCESS;
    }
    run::ended("gateway", Plan::read(&arguments).and_then(|plan| run::measured(PATIENCE, whole(&plan))))
}

impl Plan {
    /// Reads the command line.
    fn read(arguments: &[String]) -> Result<Self, Failure> {
        let mut plan = Self {
            rounds: 21,
            calls: 3_200,
            sessions: 64,
            bytes: 100,
            only: String::new(),
            under: Vec::new(),
            beside: None,
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--bench" => {}
                "--quick" => (plan.rounds, plan.calls) = (7, 960),
                "--rounds" => plan.rounds = value()?.parse()?,
                "--calls" => plan.calls = value()?.parse()?,
                "--sessions" => plan.sessions = value()?.parse()?,
                "--bytes" => plan.bytes = value()?.parse()?,
                "--only" => plan.only.clone_from(value()?),
                "--beside" => plan.beside = Some(value()?.into()),
                "--under" => plan.under = value()?.split_whitespace().map(str::to_owned).collect(),
                other => return Err(format!("there is no option {other}").into()),
            }
        }
        Ok(plan)
    }
}

async fn whole(plan: &Plan) -> Result<(), Failure> {
    let measured = calls::measure(plan).await?;
    report::Report::new(plan, &measured).print();
    Ok(())
}
