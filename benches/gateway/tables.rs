//! The figures of each part as Markdown tables.

use crate::calls::{Contender, Missing, Row};
use crate::client::Era;
use crate::document::Table;
use crate::fronts::Frontend;
use crate::lists::{self, List};
use crate::memory::Memory;
use crate::plan::{ERAS, Plan, SESSIONS, SIZES, Scenario, size};
use crate::spread::Spread;
use crate::starts::Start;
use crate::turn::Turn;
use crate::upstream::{ResponseFormat, UpstreamTransport};

/// The row of a contender in a scenario, if it was measured.
pub(crate) fn find(rows: &[Row], front: Frontend, transport: UpstreamTransport, scenario: Scenario) -> Option<&Row> {
    let wanted = Contender { front, transport };
    rows.iter().find(|row| row.contender == wanted && row.scenario == scenario && !row.turns.is_empty())
}

/// One figure over all rounds.
pub(crate) fn of(turns: &[Turn], figure: impl Fn(&Turn) -> f64) -> Spread {
    Spread::of(turns.iter().map(figure))
}

/// Ratio per round, because figures of one round saw the same machine load.
pub(crate) fn ratio(ours: &[Turn], theirs: &[Turn], figure: impl Fn(&Turn) -> f64) -> Spread {
    if ours.len() == theirs.len() {
        return Spread::of(ours.iter().zip(theirs).map(|(ours, theirs)| figure(ours) / figure(theirs)));
    }
    // A slow contender has fewer rounds.
    let against = of(theirs, &figure).median;
    Spread::of(ours.iter().map(|turn| figure(turn) / against))
}

/// All scenarios, one table per era and response format.
pub(crate) fn calls(rows: &[Row], missing: &[Missing]) -> String {
    let mut text = String::new();
    for era in ERAS {
        for form in [ResponseFormat::Json, ResponseFormat::Events] {
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
                    let scenario = Scenario { era, form, bytes, sessions };
                    for row in rows.iter().filter(|row| row.scenario == scenario) {
                        table.row(&line(rows, row));
                        is_empty = false;
                    }
                }
            }
            if !is_empty {
                let name = if form == ResponseFormat::Json { "answers in JSON" } else { "answers as events" };
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
    let Row { contender, scenario, turns, failure } = row;
    let start = [size(scenario.bytes), scenario.sessions.to_string(), contender.title(), turns.len().to_string()];
    let [bytes, sessions, title, count] = start;
    if turns.is_empty() {
        let why = failure.as_deref().unwrap_or("no figures").chars().take(80).collect::<String>();
        let why = why.replace(['\n', '|'], " ");
        return [bytes, sessions, title, count, why, String::new(), String::new(), String::new(), String::new()];
    }
    let nginx =
        find(rows, Frontend::Nginx, UpstreamTransport::Http, *scenario).filter(|_| contender.front != Frontend::Nginx);
    let nginx = nginx.filter(|_| contender.transport == UpstreamTransport::Http);
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

/// Empty if nothing was measured.
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

/// The baseline of merged lists: one upstream.
pub(crate) fn one_upstream(measured: &[List], era: Era) -> Option<&List> {
    measured.iter().find(|list| list.era == era && list.upstreams == lists::UPSTREAMS[0])
}

/// Start times and binary sizes.
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
