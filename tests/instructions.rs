//! How many instructions a call takes on its way through the gateway, held against figures that are
//! committed. Counted by valgrind, which is slow but knows no noise, in a build of the profile `guard`.
//!
//! `just instructions` builds and counts, and fails where a path became more than a tenth heavier.
//! `just instructions --renew` writes the figures anew.

#![allow(missing_docs, unreachable_pub, reason = "nobody outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

#[path = "instructions/counted.rs"]
mod counted;
#[path = "instructions/figures.rs"]
mod figures;
mod hot;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use counted::Counted;
use figures::Figures;
use hot::{Client, ROUTES, Stage};

/// The first calls pay for what happens once.
const FIRST: u32 = 50;
/// So many that what happens now and then does not show.
const COUNTED: u32 = 200;
/// How much heavier a path may be than its figure, in percent. Compilers and processors differ: some functions
/// are chosen by what a processor can do.
const TOLERANCE: f64 = 10.0;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |wanted: &str| arguments.iter().any(|argument| argument == wanted);
    if !has("--count") {
        println!("nothing is counted without --count; run `just instructions`");
        return ExitCode::SUCCESS;
    }
    bring_valgrind();
    let renew = has("--renew");
    let program = built();
    let stage = Stage::set(&program);
    let mut gateway = Counted::start(&program, &stage);
    let mut figures = Figures::read();
    let mut heavier = 0;
    println!("{:>12} {:>12} {:>8}  instructions of a call", "now", "committed", "");
    for route in ROUTES {
        let client = Client::open(gateway.address, route).calls(FIRST);
        gateway.take();
        client.calls(COUNTED);
        let now = gateway.take() / u64::from(COUNTED);
        let committed = figures.replace(route.name, now);
        let change = committed.map(|committed| (now as f64 / committed as f64 - 1.0) * 100.0);
        let is_heavier = !renew && change.is_none_or(|change| change > TOLERANCE);
        heavier += usize::from(is_heavier);
        let shown = change.map_or_else(|| "new".to_owned(), |change| format!("{change:+.1}%"));
        let verdict = if is_heavier { "  TOO HEAVY" } else { "" };
        println!("{now:>12} {:>12} {shown:>8}  {}{verdict}", committed.unwrap_or_default(), route.name);
    }
    if renew {
        figures.write();
    } else if heavier > 0 {
        println!("{heavier} more than {TOLERANCE}% heavier; if that is worth it, run `just instructions --renew`");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn bring_valgrind() {
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/setup.sh");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
    let status = Command::new("bash").arg(setup).arg(place).arg("valgrind").status();
    assert!(status.expect("bash runs").success(), "valgrind could not be installed; the lines above say why");
}

/// The build that is counted.
fn built() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_rialto"));
    let profiles = beside.parent().and_then(Path::parent).expect("programs are in folders by profile");
    let program = profiles.join("guard/rialto");
    assert!(program.is_file(), "it is not built yet: cargo build --profile guard --bin rialto");
    program
}
