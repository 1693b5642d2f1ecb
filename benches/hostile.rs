//! Hostile load: resident memory of the gateway, and latency of one healthy client, while others attack it.
//!
//! `just hostile` takes about eight minutes, `just hostile --quick` one; `--flood` runs the flood of bad credentials alone, in
//! about two minutes. Each attack comes from 127.0.0.2 and meets a new
//! gateway twice: with its limits raised out of the way, and with its defaults. The healthy client at 127.0.0.1 calls a
//! tool all the while. The exit code only says whether the benchmark ran.

#[path = "hostile/attacks.rs"]
mod attacks;
#[path = "common/client.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod client;
#[path = "hostile/flood.rs"]
mod flood;
#[path = "common/folder.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod folder;
#[path = "../tests/instructions/guarded.rs"]
#[allow(dead_code, unreachable_pub, reason = "the guards of instructions use the rest")]
mod guarded;
#[path = "common/limits.rs"]
mod limits;
#[path = "common/process.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod process;
#[path = "common/run.rs"]
mod run;
#[path = "common/spread.rs"]
#[allow(dead_code, reason = "the other benchmarks need the rest")]
mod spread;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use attacks::{Attack, Outcome};
use client::{Caller, Era, ToolCall};
use folder::Folder;
use process::Server;

/// Error of a benchmark.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Timeout of the whole benchmark.
const TIMEOUT: Duration = Duration::from_secs(1_200);
/// Calls of the healthy client before an attack begins.
const WARM_UP: usize = 200;
/// Pause between two calls of the healthy client.
const CALL_INTERVAL: Duration = Duration::from_millis(5);

/// Every limit that could stop an attack, out of its way.
const LIMITS_OFF: &str = r#"[limits]
connections = 1000000
connections_per_address = 1000000
sessions = 10000000
sessions_per_caller = 10000000
initialize_bytes = "64KiB"
header_timeout = "1h"
keep_alive_timeout = "1h"
write_stall_timeout = "1h"
"#;

/// What was measured of one attack.
struct Figures {
    idle_bytes: u64,
    peak_bytes: u64,
    /// After the last timeout by default.
    final_bytes: u64,
    latencies: Vec<Duration>,
    failed_calls: usize,
    outcome: Outcome,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        // `cargo test --all-targets` runs this binary too; do nothing then.
        println!("benchmarks only run with --bench: use `just hostile`");
        return ExitCode::SUCCESS;
    }
    let divisor = if arguments.iter().any(|argument| argument == "--quick") { 10 } else { 1 };
    let only_flood = arguments.iter().any(|argument| argument == "--flood");
    let outcome = limits::raise(12_000).and_then(|()| run::run_with_timeout(TIMEOUT, run_all(divisor, only_flood)));
    run::exit_code("hostile", outcome)
}

async fn run_all(divisor: usize, only_flood: bool) -> Result<(), Failure> {
    println!("{}, {}: {}", spread::today(), spread::compiler(), spread::machine());
    if !only_flood {
        run_attacks(divisor).await?;
    }
    flood::run_floods(divisor).await?;
    println!("\n{}", spread::machine());
    Ok(())
}

async fn run_attacks(divisor: usize) -> Result<(), Failure> {
    println!(
        "\n| attack | limits | MiB idle | MiB at most | MiB at the end | p50 | p99 | slowest | failed | refused or closed |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for attack in Attack::ALL {
        for (name, config) in [("off", LIMITS_OFF), ("default", "")] {
            let figures = measure(attack, config, divisor).await?;
            println!("{}", figures.row(&attack.title(divisor), name));
        }
    }
    Ok(())
}

/// Attacks a new gateway while a healthy client calls it.
async fn measure(attack: Attack, config: &str, divisor: usize) -> Result<Figures, Failure> {
    let folder = Folder::new("hostile")?;
    let file = folder.write("rialto.toml", &format!("{config}[servers.elements]\nbuiltin = \"elements\"\n"))?;
    let mut command = Server::rialto();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "error", "--config"]).arg(&file);
    let server = Server::start(command).await?;
    let call = ToolCall { tool: "getElement", arguments: r#"{"name":"Iron"}"#, answer: b"Iron", length: None };
    let mut caller = Caller::open(server.address, Era::Handshake, call).await?;
    caller.latencies(WARM_UP).await?;
    let idle_bytes = server.resident()?;
    let mut figures = Figures {
        idle_bytes,
        peak_bytes: idle_bytes,
        final_bytes: 0,
        latencies: Vec::new(),
        failed_calls: 0,
        outcome: Outcome::default(),
    };
    let attacking = tokio::spawn(attack.run(server.address, divisor));
    let mut last_sample = Instant::now();
    while !attacking.is_finished() {
        match caller.latencies(1).await {
            Ok(took) => figures.latencies.extend(took),
            Err(_) => {
                figures.failed_calls += 1;
                caller = Caller::open(server.address, Era::Handshake, call).await?;
            }
        }
        if last_sample.elapsed() > Duration::from_millis(200) {
            last_sample = Instant::now();
            figures.peak_bytes = figures.peak_bytes.max(server.resident()?);
        }
        tokio::time::sleep(CALL_INTERVAL).await;
    }
    figures.final_bytes = server.resident()?;
    figures.peak_bytes = figures.peak_bytes.max(figures.final_bytes);
    figures.outcome = attacking.await??;
    Ok(figures)
}

impl Figures {
    /// A row of the table.
    fn row(mut self, attack: &str, limits: &str) -> String {
        self.latencies.sort_unstable();
        let last = self.latencies.len().saturating_sub(1);
        let at = |share: usize| self.latencies.get(last * share / 100).copied().unwrap_or_default();
        let show = |latency: Duration| format!("{:.1} ms", latency.as_secs_f64() * 1e3);
        let mebibytes = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
        let [idle, peak, end] = [self.idle_bytes, self.peak_bytes, self.final_bytes].map(mebibytes);
        let [p50, p99, slowest] = [50, 99, 100].map(|share| show(at(share)));
        let (failed, refused) = (self.failed_calls, self.outcome.refused);
        format!("| {attack} | {limits} | {idle} | {peak} | {end} | {p50} | {p99} | {slowest} | {failed} | {refused} |")
    }
}
