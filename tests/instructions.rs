//! Instructions per call on the hot paths, compared with the committed counts in `tests/instructions/figures.toml`.
//! Valgrind counts them in a build of the profile `guard`: slow, but free of timing noise.
//!
//! `just instructions` builds and counts, and fails if a path became more than 10 % heavier.
//! `just instructions --renew` rewrites the committed counts. A gateway whose console nobody watches is held against one
//! without a console, and against itself after a viewer came and went; what a viewer, traces and the access log add is
//! printed.

#![allow(missing_docs, unreachable_pub, reason = "a test has no outside users")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

#[path = "instructions/counted.rs"]
mod counted;
#[path = "instructions/figures.rs"]
mod figures;
#[path = "instructions/guarded.rs"]
mod guarded;
mod hot;
#[path = "instructions/viewer.rs"]
mod viewer;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use counted::CountingGateway;
use figures::CommittedCounts;
use hot::{Client, HotPathFixture, ROUTES, Route};
use viewer::Viewer;

/// Warm-up calls, which pay for one-time initialization.
const WARM_UP_CALLS: u32 = 50;
/// Measured calls; enough to average out periodic work.
const MEASURED_CALLS: u32 = 200;
/// The line of the fixture's configuration that is replaced where there is to be a console.
const CONSOLE_OFF: &str = "admin = { console = false }";
/// One trace in a hundred is sent to a collector, which is not there.
const TRACED: &str = r#"admin = { console = false }
telemetry = { endpoint = "http://127.0.0.1:9", sampler = "parentbased_traceidratio", sample_ratio = 0.01 }"#;
/// The line of the configuration that keeps requests out of the log, and one that has them there.
const LOG_QUIET: &str = "log = { filter = \"warn\" }";
const LOG_ACCESS: &str = "log = { access = true }";
/// The first routes are also counted with callers that are known.
const GUARDED_ROUTES: usize = 2;
/// Allowed increase over the committed count, in percent. Compilers differ, and libc picks some functions by processor
/// features.
const TOLERANCE_PERCENT: f64 = 10.0;
/// What a console is to add at most that nobody watches, in percent.
const CLOSED_PERCENT: f64 = 1.0;
/// What is to stay at most after a viewer has gone, in percent.
const VIEWED_PERCENT: f64 = 0.5;
/// How far counts of one build are apart from gateway to gateway, in percent.
const NOISE_PERCENT: f64 = 1.5;
/// Counts of which the least is taken, because figures are read every ten seconds beside calls.
const COUNTS: usize = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |wanted: &str| arguments.iter().any(|argument| argument == wanted);
    if !has("--count") {
        println!("skipped without --count; run `just instructions`");
        return ExitCode::SUCCESS;
    }
    install_valgrind();
    let renew = has("--renew");
    let program = guard_binary();
    let fixture = HotPathFixture::start(&program);
    let mut committed_counts = CommittedCounts::read();
    let (mut heavier, mut failed) = (0, false);
    println!("{:>12} {:>12} {:>8}  instructions of a call", "now", "committed", "");
    let mut compare = |name: &str, count: &mut dyn FnMut() -> u64| {
        let mut now = count();
        // What runs now and then beside calls, such as the poll of a list, may have come in between.
        for _ in 1..COUNTS {
            if committed_counts.is_heavier(name, now, TOLERANCE_PERCENT) {
                now = now.min(count());
            }
        }
        let is_heavier = !renew && committed_counts.is_heavier(name, now, TOLERANCE_PERCENT);
        let committed = committed_counts.replace(name, now);
        let change = committed.map(|committed| (now as f64 / committed as f64 - 1.0) * 100.0);
        heavier += usize::from(is_heavier);
        let shown = change.map_or_else(|| "new".to_owned(), |change| format!("{change:+.1}%"));
        println!("{now:>12} {:>12} {shown:>8}  {name}{}", committed.unwrap_or_default(), verdict(is_heavier));
    };
    let mut gateway = CountingGateway::start(&program, &fixture, &fixture.config());
    for route in ROUTES {
        compare(route.name, &mut || count_calls(&mut gateway, route, None));
    }
    let off = count_least(&mut gateway);
    drop(gateway);
    let text = fs::read_to_string(fixture.config()).expect("the file can be read");
    let written = |name: &str, line: &str, replaced: &str| {
        let file = fixture.file(name);
        assert!(text.contains(line), "the fixture has no such line: {line}");
        fs::write(&file, text.replace(line, replaced)).expect("the file can be written");
        file
    };
    let mut gateway = CountingGateway::start(&program, &fixture, &written("closed.toml", CONSOLE_OFF, viewer::ADMIN));
    let closed = count_least(&mut gateway);
    let viewer = Viewer::open(gateway.address);
    let watched = count_least(&mut gateway);
    drop(viewer);
    viewer::wait_recording(gateway.address, false);
    let viewed = count_least(&mut gateway);
    drop(gateway);
    let mut gateway =
        CountingGateway::start(&program, &fixture, &written("few.toml", CONSOLE_OFF, viewer::ADMIN_OF_FEW));
    let viewer = Viewer::open(gateway.address);
    let beyond = count_least(&mut gateway);
    drop((viewer, gateway));
    let traced = written("traced.toml", CONSOLE_OFF, TRACED);
    let traced = count_least(&mut CountingGateway::start(&program, &fixture, &traced));
    let logged = written("logged.toml", LOG_QUIET, LOG_ACCESS);
    let logged = count_least(&mut CountingGateway::start_with_log(&program, &fixture, &logged, "info"));
    let share = |count: u64, of: u64| (count as f64 / of as f64 - 1.0) * 100.0;
    println!("{off:>12} {:>12} {:>8}  {}, no console", "", "", ROUTES[0].name);
    for (count, of, most, name) in [
        (closed, off, Some(CLOSED_PERCENT), "nobody watches"),
        (watched, closed, None, "watched"),
        (beyond, closed, None, "watched, beyond the rate"),
        (viewed, closed, Some(VIEWED_PERCENT), "after a viewer"),
        (traced, off, None, "one in a hundred traced"),
        (logged, off, None, "in the access log"),
    ] {
        let change = share(count, of);
        let is_heavier = most.is_some_and(|most| change > most + NOISE_PERCENT);
        failed |= is_heavier;
        println!("{count:>12} {of:>12} {change:>+7.1}%  {}, {name}{}", ROUTES[0].name, verdict(is_heavier));
    }
    let with_key = guarded::with_api_key(&program).expect("a key can be made");
    let with_token = guarded::with_token_rules_and_limits(&fixture.file("keys.json")).expect("a token can be made");
    for (name, config) in [("key.toml", with_key), ("token.toml", with_token)] {
        let file = fixture.file(name);
        let text = fs::read_to_string(fixture.config()).expect("the file can be read");
        fs::write(&file, format!("{text}\n{}", config.lines)).expect("the file can be written");
        let mut gateway = CountingGateway::start(&program, &fixture, &file);
        for route in &ROUTES[..GUARDED_ROUTES] {
            let name = format!("{}, {}", route.name, config.label);
            compare(&name, &mut || count_calls(&mut gateway, *route, Some(&config.authorization)));
        }
    }
    if renew {
        committed_counts.write();
    } else if heavier > 0 {
        println!(
            "{heavier} more than {TOLERANCE_PERCENT}% heavier; if that is worth it, run `just instructions --renew`"
        );
        return ExitCode::FAILURE;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn verdict(is_heavier: bool) -> &'static str {
    if is_heavier { "  TOO HEAVY" } else { "" }
}

/// Instructions of one call on the first route, of several counts the least.
fn count_least(gateway: &mut CountingGateway) -> u64 {
    (0..COUNTS).map(|_| count_calls(gateway, ROUTES[0], None)).min().unwrap_or_default()
}

/// Instructions of one call on a route.
fn count_calls(gateway: &mut CountingGateway, route: Route, authorization: Option<&str>) -> u64 {
    let client = Client::open(gateway.address, route, authorization).calls(WARM_UP_CALLS);
    gateway.take_count();
    client.calls(MEASURED_CALLS);
    gateway.take_count() / u64::from(MEASURED_CALLS)
}

fn install_valgrind() {
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/setup.sh");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
    let status = Command::new("bash").arg(setup).arg(folder).arg("valgrind").status();
    assert!(status.expect("bash runs").success(), "valgrind could not be installed; see the output above");
}

/// The binary of the `guard` profile.
fn guard_binary() -> PathBuf {
    let test_binary = Path::new(env!("CARGO_BIN_EXE_rialto"));
    let profiles = test_binary.parent().and_then(Path::parent).expect("programs are in folders by profile");
    let program = profiles.join("guard/rialto");
    assert!(program.is_file(), "build it first: cargo build --profile guard --bin rialto");
    program
}
