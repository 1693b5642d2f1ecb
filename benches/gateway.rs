//! Gateway benchmark: the cost of a forwarded call in Rialto, nginx and other gateways, in front of the same
//! upstream.
//!
//! `cargo bench --bench gateway` takes about twenty minutes, with `-- --quick` three. The other gateways are
//! installed on first use; one that fails to install is reported as missing. `docs/performance.md` describes the
//! options and how to read the figures. The exit code only says whether the benchmark ran, not whether it was fast.

#[path = "gateway/calls.rs"]
mod calls;
#[path = "common/client.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod client;
#[path = "common/crowd.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod crowd;
#[path = "gateway/curve.rs"]
mod curve;
#[path = "gateway/document.rs"]
mod document;
#[path = "common/folder.rs"]
mod folder;
#[path = "gateway/fronts.rs"]
mod fronts;
#[path = "../tests/instructions/guarded.rs"]
#[allow(unreachable_pub, reason = "the guards of instructions use it, too")]
mod guarded;
#[path = "gateway/guards.rs"]
mod guards;
#[path = "common/limits.rs"]
mod limits;
#[path = "gateway/lists.rs"]
mod lists;
#[path = "gateway/memory.rs"]
mod memory;
#[path = "gateway/others.rs"]
mod others;
#[path = "gateway/pairs.rs"]
mod pairs;
#[path = "gateway/pairs_report.rs"]
mod pairs_report;
#[path = "gateway/plan.rs"]
mod plan;
#[path = "gateway/plot.rs"]
mod plot;
#[path = "common/process.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod process;
#[path = "common/run.rs"]
mod run;
#[path = "common/spread.rs"]
mod spread;
#[path = "gateway/starts.rs"]
mod starts;
#[path = "gateway/tables.rs"]
mod tables;
#[path = "gateway/targets.rs"]
mod targets;
#[path = "gateway/telemetry.rs"]
mod telemetry;
#[path = "common/turn.rs"]
mod turn;
#[path = "gateway/upstream.rs"]
mod upstream;

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use calls::{Missing, contenders};
use document::Document;
use fronts::Frontend;
use plan::{Part, Plan};
use targets::Targets;

/// Error of a benchmark.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Timeout of the whole benchmark.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Lowest call rate for which the memory curve is given time to finish, in calls per second.
const MIN_CURVE_RATE: u64 = 1_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = arguments.as_slice()
        && first == upstream::ARGUMENT
    {
        return run::exit_code("gateway", upstream::serve(rest));
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        // `cargo test --all-targets` runs this binary too; do nothing then.
        println!("benchmarks only run with --bench: use `cargo bench --bench gateway`");
        return ExitCode::SUCCESS;
    }
    run::exit_code("gateway", Plan::read(&arguments).and_then(|plan| run_plan(&plan)))
}

fn run_plan(plan: &Plan) -> Result<(), Failure> {
    limits::raise(plan.streams)?;
    if let Some(calls) = plan.curve {
        return run::run_with_timeout(TIMEOUT + Duration::from_secs(calls as u64 / MIN_CURVE_RATE), curve(plan, calls));
    }
    let mut missing = missing(plan);
    println!("about {} minutes; figures go to {}", plan.estimate().as_secs().div_ceil(60), plan.into.display());
    run::run_with_timeout(TIMEOUT, run_all(plan, &mut missing))
}

/// Contenders that cannot be installed or started, with the reason.
fn missing(plan: &Plan) -> Vec<Missing> {
    let mut missing = Vec::new();
    if !plan.parts.iter().any(|part| part.compares()) {
        return missing;
    }
    for contender in contenders(plan) {
        let why = match contender.front {
            Frontend::Other(other) => other.install().err().map(|error| error.to_string()),
            front if !front.is_available(plan) => Some("not installed".to_owned()),
            _ => None,
        };
        missing.extend(why.map(|why| Missing { contender, era: None, why }));
    }
    for Missing { contender, why, .. } in &missing {
        println!("missing: {}: {why}", contender.title());
    }
    missing
}

async fn run_all(plan: &Plan, missing: &mut Vec<Missing>) -> Result<(), Failure> {
    let begin = Instant::now();
    let (mut document, mut targets) = (Document::default(), Targets::default());
    if plan.has(Part::Calls) {
        let rows = calls::measure(plan, missing).await?;
        targets.calls(&rows);
        document.put("calls", &plan.how(), &tables::calls(&rows, missing));
        if let Some(picture) = plot::calls(&rows) {
            fs::create_dir_all(&plan.into)?;
            fs::write(plan.into.join("performance.svg"), picture)?;
        }
    }
    if plan.has(Part::Pairs) {
        let measured = pairs::measure(plan).await?;
        let report = pairs_report::Report::new(plan, &measured);
        targets.pairs(&report.bridged());
        document.put("pairs", &report.how(), &report.table());
    }
    if plan.has(Part::Guards) && plan.wants(Frontend::Rialto) {
        let measured = guards::measure(plan).await?;
        targets.guards(&guards::ratios(&measured));
        let plan::Pairs { sessions, bytes, rounds, calls } = plan.pairs;
        let how = format!(
            "The same call by callers that nobody knows, by an API key, and by a signed token with ten rules and two \
             limits. {sessions} sessions, answers of {bytes} bytes in JSON, {rounds} rounds of {calls} calls; the last \
             column is divided round by round."
        );
        document.put("guards", &how, &guards::table(&measured));
    }
    if plan.has(Part::Telemetry) && plan.wants(Frontend::Rialto) {
        let measured = telemetry::measure(plan).await?;
        targets.telemetry(&telemetry::ratios(&measured));
        let plan::Pairs { sessions, rounds, calls, .. } = plan.pairs;
        let how = format!(
            "The same call in gateways that are seen in different ways. {sessions} sessions, answers of {} bytes in JSON, \
             {rounds} rounds of {calls} calls. The last column is divided round by round: by the gateway that nobody sees, \
             or of that one by the other build.",
            telemetry::ANSWER_BYTES
        );
        document.put("telemetry", &how, &telemetry::table(&measured));
    }
    if plan.has(Part::Memory) {
        let measured = memory::measure(plan, missing).await?;
        targets.memory(&measured);
        let how = "Resident memory in MiB of all processes of a gateway, without the servers behind it. Rialto is \
                   measured several times, the others once; a place is empty where a gateway needs more than 20 \
                   seconds to get there, cannot, or has nothing of the kind.";
        document.put("memory", how, &tables::memory(plan, &measured));
    }
    if plan.has(Part::Lists) && plan.wants(Frontend::Rialto) {
        let measured = lists::measure(plan).await?;
        targets.lists(&measured);
        let how = format!(
            "`tools/list` through Rialto over {} sessions: {} tools in all, of one upstream or spread over many. \
             With more than one the name of each tool begins with that of its server, so the answer is longer.",
            lists::SESSIONS,
            lists::TOOLS
        );
        document.put("lists", &how, &tables::lists(&measured));
    }
    if plan.has(Part::Starts) {
        let measured = starts::measure(plan, missing).await?;
        targets.starts(&measured);
        let how = "From the start of the process to the answer to its first `tools/call`, handshake included. The \
                   server behind runs already, but for stdio, where it is started too.";
        document.put("starts", how, &tables::starts(&measured, &starts::sizes()));
    }
    document.put_without_machine("targets", &targets.table(&plan.into));
    println!("took {} s", begin.elapsed().as_secs());
    document.write(&plan.into)
}

/// Measures only memory over many calls.
async fn curve(plan: &Plan, calls: usize) -> Result<(), Failure> {
    let (mut document, mut targets) = (Document::default(), Targets::default());
    let curve = curve::measure(plan, calls).await?;
    fs::create_dir_all(&plan.into)?;
    fs::write(plan.into.join("memory.svg"), curve.plot())?;
    targets.curve(&curve);
    document.put("curve", "2025-11-25 in front of 2025-11-25, answers of 100 bytes in JSON.", &curve.text());
    document.put_without_machine("targets", &targets.table(&plan.into));
    document.write(&plan.into)
}
