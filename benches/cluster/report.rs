//! The report: one table per part.

use std::time::Duration;

use crate::Plan;
use crate::calls::{Cost, Turn};
use crate::client::Era;
use crate::memory::Memory;
use crate::moves::Moves;
use crate::nodes::Backend;
use crate::rows::{Routing, Row};
use crate::spread::{Spread, compiler};
use crate::store;
use crate::streams::Stream;

/// Prints the machine, versions and settings.
pub(crate) fn head(plan: &Plan) {
    let Plan { rounds, calls, sessions, in_sequence, .. } = plan;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("rialto {}, {}, {}, {cores} cores", env!("CARGO_PKG_VERSION"), store::redis_version(), compiler());
    println!("{rounds} rounds of {calls} calls over {sessions} sessions, and of {in_sequence} calls in one session");
    println!("figures are the median (least-most) of interleaved turns\n");
}

/// Prints the calls table: cost per row relative to a single node and to the other build.
pub(crate) fn calls(measured: &[(Row, Vec<Turn>)]) {
    line(&[
        "behind",
        "client",
        "where",
        "CPU us/call, nodes",
        "to alone",
        "to the other build",
        "CPU us/call, Redis",
        "round trips, 1 session",
        "round trips, many",
        "commands, many",
        "median us",
        "p99 us",
        "calls/s",
    ]);
    rule(13);
    for (row, turns) in measured {
        let alone = turns_of(measured, row.backend, row.era, Routing::Alone).filter(|_| row.routing != Routing::Alone);
        let beside =
            turns_of(measured, row.backend, row.era, Routing::Beside).filter(|_| row.routing == Routing::Alone);
        let mut latencies: Vec<Duration> = turns.iter().flat_map(|turn| turn.latencies.clone()).collect();
        latencies.sort_unstable();
        let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or_default();
        let spread = |figure: &dyn Fn(&Turn) -> f64| Spread::of(turns.iter().map(figure));
        line(&[
            row.backend.name(),
            row.era.revision(),
            &row.routing.name(),
            &spread(&|turn| turn.cost.nodes).show(1),
            &ratio(turns, alone),
            &ratio(turns, beside),
            &spread(&|turn| turn.cost.store).show(1),
            &format!("{:.2}", spread(&|turn| turn.in_sequence.trips).median),
            &format!("{:.2}", spread(&|turn| turn.cost.trips).median),
            &format!("{:.2}", spread(&|turn| turn.cost.commands).median),
            &at(0.5).as_micros().to_string(),
            &at(0.99).as_micros().to_string(),
            &spread(&|turn| turn.calls_per_second).show(0),
        ]);
    }
    println!();
}

fn turns_of(measured: &[(Row, Vec<Turn>)], backend: Backend, era: Era, routing: Routing) -> Option<&[Turn]> {
    let wanted = Row { backend, era, routing };
    measured.iter().find(|(row, _)| *row == wanted).map(|(_, turns)| turns.as_slice())
}

/// Ratio per round, because figures of one round saw the same machine load.
fn ratio(ours: &[Turn], theirs: Option<&[Turn]>) -> String {
    let ratios = |theirs: &[Turn]| Spread::of(ours.iter().zip(theirs).map(|(a, b)| a.cost.nodes / b.cost.nodes));
    theirs.map(|theirs| ratios(theirs).show(2)).unwrap_or_default()
}

/// Prints the SSE streams table.
pub(crate) fn streams(measured: &[Stream]) {
    line(&["events", "sessions", "ms between", "round trips/event", "commands/event", "CPU us/event, nodes", "Redis"]);
    rule(7);
    for Stream { relayed, sessions, pause, costs } in measured {
        let spread = |figure: &dyn Fn(&Cost) -> f64| Spread::of(costs.iter().map(figure));
        line(&[
            if *relayed { "carried" } else { "at home" },
            &sessions.to_string(),
            &pause.to_string(),
            &spread(&|cost| cost.trips).show(2),
            &spread(&|cost| cost.commands).show(2),
            &spread(&|cost| cost.nodes).show(1),
            &spread(&|cost| cost.store).show(1),
        ]);
    }
    println!();
}

/// Prints the takeover table.
pub(crate) fn moves(measured: &Moves) {
    line(&["what", "ms"]);
    rule(2);
    for (lease, taken) in &measured.taken_over {
        let spread = Spread::of(taken.iter().copied());
        line(&[&format!("killed, lease of {} s: first answer elsewhere", lease.as_secs()), &spread.show(0)]);
    }
    let show = |figures: &[f64]| Spread::of(figures.iter().copied()).show(1);
    line(&[&format!("asked to stop with {} sessions: process ended", measured.crowd), &show(&measured.stopped)]);
    line(&["first answer elsewhere after that", &show(&measured.first)]);
    line(&["a first call of each other session, mean", &show(&measured.others)]);
    println!();
}

/// Prints the memory table.
pub(crate) fn memory(measured: &Memory) {
    line(&["what", "bytes"]);
    rule(2);
    let show = |figures: &[f64]| Spread::of(figures.iter().copied()).show(0);
    line(&["a node alone, for each idle session", &show(&measured.alone)]);
    line(&["a node with Redis, for each idle session", &show(&measured.with_store)]);
    line(&["Redis, the key of a session", &show(&measured.session)]);
    line(&["Redis as a whole, for each idle session", &show(&measured.used)]);
    line(&["Redis, for each event of a stream", &show(&measured.event)]);
    println!();
}

fn line(cells: &[&str]) {
    println!("| {} |", cells.join(" | "));
}

fn rule(columns: usize) {
    println!("|{}", " --- |".repeat(columns));
}
