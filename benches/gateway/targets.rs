//! Performance targets and whether they are met. A run updates only the targets it measured.

use std::path::Path;

use crate::calls::Row;
use crate::curve::Curve;
use crate::document::{Document, Table};
use crate::fronts::Frontend;
use crate::lists::{List, UPSTREAMS};
use crate::memory::Memory;
use crate::others::Other;
use crate::plan::{ERAS, Scenario};
use crate::spread::{Spread, today};
use crate::starts::Start;
use crate::tables::{find, of, one_upstream, ratio};
use crate::telemetry::Telemetry;
use crate::turn::Turn;
use crate::upstream::{ResponseFormat, UpstreamTransport};

/// A target: its name and its limit as text.
type Target = (&'static str, &'static str);

const SMALL: Target = ("CPU of a forwarded call, 100 B, 64 sessions", "at most 2.0 times nginx (to be reached: 1.3)");
const LARGE: Target = ("CPU of a forwarded call, 1 MB, 16 sessions", "at most 1.2 times nginx");
const LATE: Target = ("p99 of a forwarded call, 100 B, 16 sessions", "at most 2 times nginx");
const NEXT: Target = ("calls per CPU second, 100 B, 16 sessions", "at least 5 times the next best MCP gateway");
const BRIDGE: Target = ("CPU of a bridged call", "at most 1.3 times the mean of those that are not");
const KEY: Target = ("CPU of a call with an API key", "at most 1.05 times that without");
const TOKEN: Target = ("CPU of a call with a JWT, ten rules and two limits", "at most 1.10 times that without");
const WATCHED: Target =
    ("CPU of a call that a viewer of the console watches, 300 B", "at most 1.05 times that of one unseen");
const READ: Target = (
    "p99 of calls while the list of recorded calls is read in a loop",
    "at most 1.1 times that while calls are only watched",
);
const TRACED: Target = ("CPU of a call where 1 % are traced", "at most 1.02 times that of one unseen");
const LOGGED: Target = ("CPU of a call with an access log in a file", "at most 1.05 times that of one unseen");
const SESSION: Target = ("an idle session", "at most 2 KiB");
const STREAM: Target = ("an open stream", "at most 24 KiB");
const LIST: Target = ("CPU of a merged list of 50 upstreams", "at most 1.5 times the same list of one");
const START: Target = ("start to first answer", "less than 100 ms");
const FLAT: Target = ("memory over ten million calls", "flat: at the end at most 5% above the first tenth");

const ALL: [Target; 16] =
    [SMALL, LARGE, LATE, NEXT, BRIDGE, KEY, TOKEN, WATCHED, READ, TRACED, LOGGED, SESSION, STREAM, LIST, START, FLAT];

/// Results by target.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    judged: Vec<(&'static str, String, bool)>,
}

impl Targets {
    fn judge(&mut self, target: Target, measured: &[(String, Spread)], holds: impl Fn(f64) -> bool) {
        if measured.is_empty() {
            return;
        }
        let said = measured.iter().map(|(name, spread)| format!("{name}{}", spread.show(2)));
        let said = said.collect::<Vec<_>>().join("; ");
        let holds = measured.iter().all(|(_, spread)| holds(spread.median));
        self.judged.push((target.0, said, holds));
    }

    /// Checks calls against nginx and the other gateways.
    pub(crate) fn calls(&mut self, rows: &[Row]) {
        let scenarios = |bytes: usize, sessions: usize| {
            ERAS.map(|era| Scenario { era, form: ResponseFormat::Json, bytes, sessions })
        };
        let to_nginx = |scenario: Scenario, figure: fn(&Turn) -> f64| {
            let ours = find(rows, Frontend::Rialto, UpstreamTransport::Http, scenario)?;
            let nginx = find(rows, Frontend::Nginx, UpstreamTransport::Http, scenario)?;
            Some((format!("{}: ", scenario.era.revision()), ratio(&ours.turns, &nginx.turns, figure)))
        };
        let all = |scenarios: [Scenario; 2], figure: fn(&Turn) -> f64| -> Vec<(String, Spread)> {
            scenarios.into_iter().filter_map(|scenario| to_nginx(scenario, figure)).collect()
        };
        self.judge(SMALL, &all(scenarios(100, 64), Turn::microseconds_per_call), |ratio| ratio <= 2.0);
        self.judge(LARGE, &all(scenarios(1_000_000, 16), Turn::microseconds_per_call), |ratio| ratio <= 1.2);
        self.judge(LATE, &all(scenarios(100, 16), Turn::p99), |ratio| ratio <= 2.0);
        let [scenario, _] = scenarios(100, 16);
        let next = [UpstreamTransport::Http, UpstreamTransport::Stdio]
            .into_iter()
            .filter_map(|transport| next_best(rows, transport, scenario));
        self.judge(NEXT, &next.collect::<Vec<_>>(), |ratio| ratio >= 5.0);
    }

    /// Checks bridged calls against the mean of unbridged ones.
    pub(crate) fn pairs(&mut self, bridged: &[(String, Spread)]) {
        self.judge(BRIDGE, bridged, |ratio| ratio <= 1.3);
    }

    /// Checks calls of known callers against those of unknown ones.
    pub(crate) fn guards(&mut self, ratios: &[(&'static str, String, Spread)]) {
        for (target, most, is_key) in [(KEY, 1.05, true), (TOKEN, 1.10, false)] {
            let of_kind = ratios.iter().filter(|(label, ..)| (*label == "API key") == is_key);
            let measured: Vec<_> = of_kind.map(|(_, name, spread)| (name.clone(), *spread)).collect();
            self.judge(target, &measured, |ratio| ratio <= most);
        }
    }

    /// Checks calls that are watched, traced and logged against those that are not.
    pub(crate) fn telemetry(&mut self, ratios: &[(Telemetry, String, Spread)]) {
        for (target, kind, most) in [
            (WATCHED, Telemetry::Watched, 1.05),
            (READ, Telemetry::Read, 1.1),
            (TRACED, Telemetry::Traced, 1.02),
            (LOGGED, Telemetry::Logged, 1.05),
        ] {
            let of_kind = ratios.iter().filter(|(telemetry, ..)| *telemetry == kind);
            let measured: Vec<_> = of_kind.map(|(_, name, spread)| (name.clone(), *spread)).collect();
            self.judge(target, &measured, |ratio| ratio <= most);
        }
    }

    /// Checks the memory of Rialto over HTTP, in KiB.
    pub(crate) fn memory(&mut self, measured: &[Memory]) {
        let ours = measured.iter().find(|memory| {
            memory.contender.front == Frontend::Rialto && memory.contender.transport == UpstreamTransport::Http
        });
        let Some(ours) = ours else { return };
        let spread = |bytes: &[f64]| -> Vec<(String, Spread)> {
            let kibibytes = Spread::of(bytes.iter().map(|bytes| bytes / 1024.0));
            if bytes.is_empty() { Vec::new() } else { vec![("KiB: ".to_owned(), kibibytes)] }
        };
        self.judge(SESSION, &spread(&ours.per_session), |kibibytes| kibibytes <= 2.0);
        self.judge(STREAM, &spread(&ours.per_stream), |kibibytes| kibibytes <= 24.0);
    }

    pub(crate) fn lists(&mut self, measured: &[List]) {
        let most = UPSTREAMS[UPSTREAMS.len() - 1];
        let ratios = measured.iter().filter(|list| list.upstreams == most).filter_map(|list| {
            let one = one_upstream(measured, list.era)?;
            let ratio = ratio(&list.turns, &one.turns, Turn::microseconds_per_call);
            Some((format!("{}: ", list.era.revision()), ratio))
        });
        self.judge(LIST, &ratios.collect::<Vec<_>>(), |ratio| ratio <= 1.5);
    }

    pub(crate) fn starts(&mut self, measured: &[Start]) {
        let ours = measured.iter().filter(|start| start.contender.front == Frontend::Rialto && !start.took.is_empty());
        let spreads = ours.map(|start| {
            (format!("ms, {}: ", start.contender.transport.name()), Spread::of(start.took.iter().copied()))
        });
        self.judge(START, &spreads.collect::<Vec<_>>(), |milliseconds| milliseconds < 100.0);
    }

    pub(crate) fn curve(&mut self, curve: &Curve) {
        let Some(growth) = curve.growth() else { return };
        let said = format!("{:+.1}% over {} calls", growth * 100.0, curve.calls);
        self.judged.push((FLAT.0, said, growth <= 0.05));
    }

    /// The table: new results, and the previous ones for the rest.
    pub(crate) fn table(&self, folder: &Path) -> String {
        let old = Document::before(folder, "targets");
        let mut table = Table::new(&["what", "target", "measured", "holds", "when"]);
        for (name, limit) in ALL {
            let judged = self.judged.iter().find(|(judged, ..)| *judged == name);
            let kept = old.lines().find(|line| line.starts_with(&format!("| {name} |")));
            let kept: Vec<&str> = kept.map(|line| line.split('|').map(str::trim).collect()).unwrap_or_default();
            let last = |n: usize| kept.get(n).copied().unwrap_or_default().to_owned();
            match judged {
                Some((_, said, holds)) => {
                    let word = if *holds { "yes" } else { "**no**" };
                    table.row(&[name, limit, said, word, &today()]);
                }
                None => table.row(&[name.to_owned(), limit.to_owned(), last(3), last(4), last(5)]),
            }
        }
        table.text()
    }
}

/// CPU time per call of the cheapest other gateway relative to Rialto.
fn next_best(rows: &[Row], transport: UpstreamTransport, scenario: Scenario) -> Option<(String, Spread)> {
    let ours = find(rows, Frontend::Rialto, transport, scenario)?;
    let cost = |row: &Row| of(&row.turns, Turn::microseconds_per_call).median;
    let others = Other::ALL.into_iter().filter_map(|other| find(rows, Frontend::Other(other), transport, scenario));
    let next = others.min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
    let name = format!("{} ({}): ", next.contender.front.name(), transport.name());
    Some((name, ratio(&next.turns, &ours.turns, Turn::microseconds_per_call)))
}
