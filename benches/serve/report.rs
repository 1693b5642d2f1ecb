//! The report: one table, then the targets.

use crate::calls::{Contender, Role};
use crate::memory::Memory;
use crate::peers::RMCP;
use crate::spread::{Spread, compiler};
use crate::turn::Turn;
use crate::{Plan, client::Era};

/// Calls per CPU second, relative to the SDK.
const CALLS_TARGET: f64 = 2.0;
const SESSION_TARGET: f64 = 2.0 * 1024.0;
const STREAM_TARGET: f64 = 24.0 * 1024.0;

/// The report as text.
pub(crate) struct Report {
    rows: Vec<[String; 5]>,
    verdicts: Vec<String>,
}

impl Report {
    pub(crate) fn new() -> Self {
        let titles = ["revision", "server", "calls/s", "CPU us/call", "rialto's calls per CPU s to these"];
        Self { rows: vec![titles.map(str::to_owned)], verdicts: Vec::new() }
    }

    /// Adds the calls over this many sessions.
    pub(crate) fn calls(&mut self, sessions: usize, measured: &[(Contender, Vec<Turn>)]) {
        let noun = if sessions == 1 { "client" } else { "clients" };
        self.rows.push([String::new(), format!("{sessions} {noun}:"), String::new(), String::new(), String::new()]);
        for era in [Era::Handshake, Era::PerRequest] {
            let of_era = || measured.iter().filter(|(contender, _)| contender.era == era);
            let Some((_, ours)) = of_era().find(|(contender, _)| contender.role == Role::Rialto) else { continue };
            for (contender, turns) in of_era() {
                // Ratio per round, because figures of one round saw the same machine load.
                let ratios = turns.iter().zip(ours).map(|(a, b)| a.microseconds_per_call() / b.microseconds_per_call());
                let ratio = Spread::of(ratios);
                let shown = if contender.role == Role::Rialto { String::new() } else { ratio.show(2) };
                self.rows.push([
                    era.revision().to_owned(),
                    contender.name.to_owned(),
                    Spread::of(turns.iter().map(Turn::calls_per_second)).show(0),
                    Spread::of(turns.iter().map(Turn::microseconds_per_call)).show(1),
                    shown,
                ]);
                if contender.role == Role::Rival {
                    let what = format!("{sessions} {noun}, {}, {}", era.revision(), contender.name);
                    let said = format!("{:.2} times the calls per CPU second", ratio.median);
                    self.verdict(ratio.median >= CALLS_TARGET, &what, &said);
                }
            }
        }
    }

    /// Adds the memory of each server; the first is Rialto.
    pub(crate) fn memory(&mut self, plan: &Plan, measured: &[Memory]) {
        let titles = [
            "",
            "memory:",
            &format!("bytes/idle session, {} open", plan.sessions),
            &format!("bytes/open stream, {} open", plan.streams),
            "RSS in MiB with all sessions",
        ];
        self.rows.push([const { String::new() }; 5]);
        self.rows.push(titles.map(str::to_owned));
        for memory in measured {
            self.rows.push([
                Era::Handshake.revision().to_owned(),
                memory.name.to_owned(),
                Spread::of(memory.per_session.iter().copied()).show(0),
                Spread::of(memory.per_stream.iter().copied()).show(0),
                Spread::of(memory.resident.iter().map(|bytes| bytes / 1024.0 / 1024.0)).show(1),
            ]);
        }
        let Some(ours) = measured.first() else { return };
        let session = Spread::of(ours.per_session.iter().copied()).median;
        let stream = Spread::of(ours.per_stream.iter().copied()).median;
        self.verdict(session <= SESSION_TARGET, "idle session", &format!("{session:.0} of {SESSION_TARGET:.0} bytes"));
        self.verdict(stream <= STREAM_TARGET, "open stream", &format!("{stream:.0} of {STREAM_TARGET:.0} bytes"));
    }

    fn verdict(&mut self, holds: bool, what: &str, said: &str) {
        self.verdicts.push(format!("{}  {what}: {said}", if holds { "holds " } else { "MISSED" }));
    }

    /// Prints the report.
    pub(crate) fn print(&self) {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        println!("rialto {}, rmcp {RMCP}, {}, {cores} cores", env!("CARGO_PKG_VERSION"), compiler());
        println!("getElement {{\"name\":\"H\"}}; figures are the median (least-most) of interleaved turns\n");
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        for row in &self.rows {
            let cells = row.iter().zip(widths).enumerate();
            let cells = cells.map(|(n, (cell, width))| match n {
                0 | 1 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
        println!("\ntargets: {CALLS_TARGET} times the SDK's calls per CPU second, 2 KiB a session, 24 KiB a stream");
        for verdict in &self.verdicts {
            println!("{verdict}");
        }
    }
}
