//! The figures of each part as tables.

use crate::calls::{Contender, Missing, Row};
use crate::client::Era;
use crate::document::Table;
use crate::fronts::Front;
use crate::lists::{self, List};
use crate::memory::Memory;
use crate::plan::{Cell, ERAS, Plan, SESSIONS, SIZES, size};
use crate::spread::Spread;
use crate::starts::Start;
use crate::turn::Turn;
use crate::upstream::{Form, Wire};

/// The row of a contender in a cell, if it has figures.
pub(crate) fn find(rows: &[Row], front: Front, wire: Wire, cell: Cell) -> Option<&Row> {
    let wanted = Contender { front, wire };
    rows.iter().find(|row| row.contender == wanted && row.cell == cell && !row.turns.is_empty())
}

/// A figure of all turns.
pub(crate) fn of(turns: &[Turn], figure: impl Fn(&Turn) -> f64) -> Spread {
    Spread::of(turns.iter().map(figure))
}

/// A figure against another: round by round, because turns of one round saw the same machine.
pub(crate) fn ratio(ours: &[Turn], theirs: &[Turn], figure: impl Fn(&Turn) -> f64) -> Spread {
    if ours.len() == theirs.len() {
        return Spread::of(ours.iter().zip(theirs).map(|(ours, theirs)| figure(ours) / figure(theirs)));
    }
    // One of them had fewer turns, because it is slow.
    let against = of(theirs, &figure).median;
    Spread::of(ours.iter().map(|turn| figure(turn) / against))
}

/// All cells, a table for each era and form.
pub(crate) fn calls(rows: &[Row], missing: &[Missing]) -> String {
    let mut text = String::new();
    for era in ERAS {
        for form in [Form::Json, Form::Events] {
            let mut table = Table::new(&[
                "answer",
                "sessions",
                "through",
                "turns",
                "calls/s",
                "p50 ms",
                "p99 ms",
                "CPU us/call",
                "CPU to nginx",
            ]);
            let mut is_empty = true;
            for bytes in SIZES {
                for sessions in SESSIONS {
                    let cell = Cell { era, form, bytes, sessions };
                    for row in rows.iter().filter(|row| row.cell == cell) {
                        table.row(&line(rows, row));
                        is_empty = false;
                    }
                }
            }
            if !is_empty {
                let name = if form == Form::Json { "answers in JSON" } else { "answers as events" };
                text += &format!("### {}, {name}\n\n{}\n", era.revision(), table.text());
            }
        }
    }
    if !missing.is_empty() {
        let mut table = Table::new(&["missing", "client", "why"]);
        for Missing { contender, era, why } in missing {
            let client = era.map_or("any", Era::revision);
            table.row(&[&contender.title(), client, &why.replace(['\n', '|'], " ")]);
        }
        text += &format!("### Missing\n\n{}\n", table.text());
    }
    text
}

fn line(rows: &[Row], row: &Row) -> [String; 9] {
    let Row { contender, cell, turns, failure } = row;
    let start = [size(cell.bytes), cell.sessions.to_string(), contender.title(), turns.len().to_string()];
    let [bytes, sessions, title, count] = start;
    if turns.is_empty() {
        let why = failure.as_deref().unwrap_or("no figures").chars().take(80).collect::<String>();
        let why = why.replace(['\n', '|'], " ");
        return [bytes, sessions, title, count, why, String::new(), String::new(), String::new(), String::new()];
    }
    let nginx = find(rows, Front::Nginx, Wire::Http, *cell).filter(|_| contender.front != Front::Nginx);
    let nginx = nginx.filter(|_| contender.wire == Wire::Http);
    [
        bytes,
        sessions,
        title,
        count,
        of(turns, Turn::calls_per_second).show(0),
        of(turns, Turn::median).show(2),
        of(turns, Turn::p99).show(2),
        of(turns, Turn::microseconds_per_call).show(1),
        nginx.map(|nginx| ratio(turns, &nginx.turns, Turn::microseconds_per_call).show(2)).unwrap_or_default(),
    ]
}

/// Resident memory.
pub(crate) fn memory(plan: &Plan, measured: &[Memory]) -> String {
    let [few, many] = plan.crowds;
    let mut table = Table::new(&[
        "gateway",
        "idle",
        "after 100 B calls",
        "after 1 MB calls",
        &format!("{few} idle sessions"),
        &format!("{many} idle sessions"),
        &format!("{} open streams", plan.streams),
        "bytes/idle session",
        "bytes/open stream",
    ]);
    for memory in measured {
        let mebibytes = |bytes: &[f64]| show(bytes.iter().map(|bytes| bytes / 1024.0 / 1024.0), 1);
        let [few, many] = &memory.with_sessions;
        table.row(&[
            memory.contender.title(),
            mebibytes(&memory.idle),
            mebibytes(&memory.loaded),
            mebibytes(&memory.loaded_large),
            mebibytes(few),
            mebibytes(many),
            mebibytes(&memory.with_streams),
            show(memory.per_session.iter().copied(), 0),
            show(memory.per_stream.iter().copied(), 0),
        ]);
    }
    table.text()
}

/// Nothing where nothing was measured.
fn show(figures: impl Iterator<Item = f64>, decimals: usize) -> String {
    let figures: Vec<f64> = figures.collect();
    match figures.as_slice() {
        [] => String::new(),
        [one] => format!("{one:.decimals$}"),
        several => Spread::of(several.iter().copied()).show(decimals),
    }
}

/// Merged lists.
pub(crate) fn lists(measured: &[List]) -> String {
    let mut table = Table::new(&["client", "upstreams", "bytes", "CPU us/list", "to one upstream", "p50 ms", "p99 ms"]);
    for list in measured {
        let one = one_upstream(measured, list.era).filter(|_| list.upstreams > 1);
        table.row(&[
            list.era.revision().to_owned(),
            list.upstreams.to_string(),
            list.bytes.to_string(),
            of(&list.turns, Turn::microseconds_per_call).show(1),
            one.map(|one| ratio(&list.turns, &one.turns, Turn::microseconds_per_call).show(2)).unwrap_or_default(),
            of(&list.turns, Turn::median).show(2),
            of(&list.turns, Turn::p99).show(2),
        ]);
    }
    table.text()
}

/// What lists are held against.
pub(crate) fn one_upstream(measured: &[List], era: Era) -> Option<&List> {
    measured.iter().find(|list| list.era == era && list.upstreams == lists::UPSTREAMS[0])
}

/// Starts, and the size of programs.
pub(crate) fn starts(measured: &[Start], sizes: &[(String, u64, Option<u64>)]) -> String {
    let mut table = Table::new(&["through", "ms to the first answer"]);
    for Start { contender, took } in measured {
        table.row(&[contender.title(), show(took.iter().copied(), 1)]);
    }
    let mut programs = Table::new(&["program", "MiB", "MiB without symbols"]);
    let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1024.0 / 1024.0);
    for (name, whole, stripped) in sizes {
        programs.row(&[name.clone(), mebibytes(*whole), stripped.map(mebibytes).unwrap_or_default()]);
    }
    format!("{}\n{}", table.text(), programs.text())
}
