//! The report: a table for each part.

use std::time::Duration;

use crate::Plan;
use crate::calls::{Cost, Turn};
use crate::client::Era;
use crate::memory::Memory;
use crate::moves::Moves;
use crate::nodes::Behind;
use crate::rows::{Row, Way};
use crate::spread::{Spread, compiler};
use crate::store;
use crate::streams::Stream;

/// What everything was measured with.
pub(crate) fn head(plan: &Plan) {
    let Plan { rounds, calls, sessions, in_sequence, .. } = plan;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("rialto {}, {}, {}, {cores} cores", env!("CARGO_PKG_VERSION"), store::named(), compiler());
    println!("{rounds} rounds of {calls} calls over {sessions} sessions, and of {in_sequence} calls in one session");
    println!("figures are the median (least-most) of interleaved turns\n");
}

/// Calls, row by row, with what each costs against a node alone and against the other build.
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
        let alone = turns_of(measured, row.behind, row.era, Way::Alone).filter(|_| row.way != Way::Alone);
        let beside = turns_of(measured, row.behind, row.era, Way::Beside).filter(|_| row.way == Way::Alone);
        let mut latencies: Vec<Duration> = turns.iter().flat_map(|turn| turn.latencies.clone()).collect();
        latencies.sort_unstable();
        let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or_default();
        let spread = |figure: &dyn Fn(&Turn) -> f64| Spread::of(turns.iter().map(figure));
        line(&[
            row.behind.name(),
            row.era.revision(),
            &row.way.name(),
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

fn turns_of(measured: &[(Row, Vec<Turn>)], behind: Behind, era: Era, way: Way) -> Option<&[Turn]> {
    let wanted = Row { behind, era, way };
    measured.iter().find(|(row, _)| *row == wanted).map(|(_, turns)| turns.as_slice())
}

/// Round by round, because turns of one round saw the same machine.
fn ratio(ours: &[Turn], theirs: Option<&[Turn]>) -> String {
    let ratios = |theirs: &[Turn]| Spread::of(ours.iter().zip(theirs).map(|(a, b)| a.cost.nodes / b.cost.nodes));
    theirs.map(|theirs| ratios(theirs).show(2)).unwrap_or_default()
}

/// Streams of events.
pub(crate) fn streams(measured: &[Stream]) {
    line(&["events", "sessions", "ms between", "round trips/event", "commands/event", "CPU us/event, nodes", "Redis"]);
    rule(7);
    for Stream { carried, sessions, pause, costs } in measured {
        let spread = |figure: &dyn Fn(&Cost) -> f64| Spread::of(costs.iter().map(figure));
        line(&[
            if *carried { "carried" } else { "at home" },
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

/// Sessions that moved.
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

/// Memory.
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
