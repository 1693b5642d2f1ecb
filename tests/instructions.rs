//! Instructions per call on the hot paths, compared with the committed counts in `tests/instructions/figures.toml`.
//! Valgrind counts them in a build of the profile `guard`: slow, but free of timing noise.
//!
//! `just instructions` builds and counts, and fails if a path became more than 10 % heavier.
//! `just instructions --renew` rewrites the committed counts.

#![allow(missing_docs, unreachable_pub, reason = "a test has no outside users")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

#[path = "instructions/counted.rs"]
mod counted;
#[path = "instructions/figures.rs"]
mod figures;
#[path = "instructions/guarded.rs"]
mod guarded;
mod hot;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use counted::CountingGateway;
use figures::CommittedCounts;
use hot::{Client, HotPathFixture, ROUTES, Route};

/// Warm-up calls, which pay for one-time initialization.
const WARM_UP_CALLS: u32 = 50;
/// Measured calls; enough to average out periodic work.
const MEASURED_CALLS: u32 = 200;
/// The first routes are also counted with callers that are known.
const GUARDED_ROUTES: usize = 2;
/// Allowed increase over the committed count, in percent. Compilers differ, and libc picks some functions by processor
/// features.
const TOLERANCE_PERCENT: f64 = 10.0;

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
    let mut heavier = 0;
    println!("{:>12} {:>12} {:>8}  instructions of a call", "now", "committed", "");
    let mut compare = |name: &str, now: u64| {
        let committed = committed_counts.replace(name, now);
        let change = committed.map(|committed| (now as f64 / committed as f64 - 1.0) * 100.0);
        let is_heavier = !renew && change.is_none_or(|change| change > TOLERANCE_PERCENT);
        heavier += usize::from(is_heavier);
        let shown = change.map_or_else(|| "new".to_owned(), |change| format!("{change:+.1}%"));
        let verdict = if is_heavier { "  TOO HEAVY" } else { "" };
        println!("{now:>12} {:>12} {shown:>8}  {name}{verdict}", committed.unwrap_or_default());
    };
    let mut gateway = CountingGateway::start(&program, &fixture, &fixture.config());
    for route in ROUTES {
        compare(route.name, count_calls(&mut gateway, route, None));
    }
    drop(gateway);
    let with_key = guarded::with_api_key(&program).expect("a key can be made");
    let with_token = guarded::with_token_rules_and_limits(&fixture.file("keys.json")).expect("a token can be made");
    for (name, config) in [("key.toml", with_key), ("token.toml", with_token)] {
        let file = fixture.file(name);
        let text = fs::read_to_string(fixture.config()).expect("the file can be read");
        fs::write(&file, format!("{text}\n{}", config.lines)).expect("the file can be written");
        let mut gateway = CountingGateway::start(&program, &fixture, &file);
        for route in &ROUTES[..GUARDED_ROUTES] {
            let now = count_calls(&mut gateway, *route, Some(&config.authorization));
            compare(&format!("{}, {}", route.name, config.label), now);
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
    ExitCode::SUCCESS
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
