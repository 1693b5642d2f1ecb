//! The report: one table, then whether the targets hold.

use crate::Plan;
use crate::calls::Contender;
use crate::client::Era;
use crate::fronts::Front;
use crate::spread::{Spread, compiler, version};
use crate::turn::Turn;
use crate::upstream::Wire;

/// The processor time of a call through Rialto, against the same through nginx.
const YARDSTICK_TARGET: f64 = 2.0;
/// The processor time of a call that is bridged, against one that is not.
const BRIDGE_TARGET: f64 = 1.3;

/// What was measured.
pub(crate) struct Report<'m> {
    plan: &'m Plan,
    measured: &'m [(Contender, Vec<Turn>)],
}

const TITLES: [&str; 8] = [
    "client",
    "through",
    "upstream",
    "calls/s",
    "CPU us/call",
    "to nginx",
    "to the other build",
    "bridged to cheaper, to costlier, to mean",
];

impl<'m> Report<'m> {
    pub(crate) fn new(plan: &'m Plan, measured: &'m [(Contender, Vec<Turn>)]) -> Self {
        Self { plan, measured }
    }

    /// The turns of a contender, if it was measured.
    fn turns(&self, front: Front, client: Era, upstream: Era, wire: Wire) -> Option<&'m [Turn]> {
        let wanted = Contender { front, client, upstream, wire };
        self.measured.iter().find(|(contender, _)| *contender == wanted).map(|(_, turns)| turns.as_slice())
    }

    /// Round by round, because turns of one round saw the same machine. A bridged call has the same
    /// yardstick as one that is not: nginx with what its client sends.
    fn to_nginx(&self, contender: &Contender, turns: &[Turn]) -> Option<Spread> {
        let era = contender.client;
        let nginx = self.turns(Front::Nginx, era, era, Wire::Http).filter(|_| contender.front.is_rialto())?;
        Some(ratios(turns, nginx))
    }

    /// What a change made of it.
    fn to_beside(&self, contender: &Contender, turns: &[Turn]) -> Option<Spread> {
        let Contender { front, client, upstream, wire } = *contender;
        let beside = self.turns(Front::Beside, client, upstream, wire).filter(|_| front == Front::Rialto)?;
        Some(ratios(turns, beside))
    }

    /// A bridged call against the cheaper and the costlier of those that are not, and against their mean.
    fn to_unbridged(&self, contender: &Contender, turns: &[Turn]) -> Option<[Spread; 3]> {
        if !contender.is_bridged() {
            return None;
        }
        let own = |era: Era| self.turns(contender.front, era, era, contender.wire);
        let (older, newer) = (own(Era::Handshake)?, own(Era::PerRequest)?);
        let median = |turns: &[Turn]| Spread::of(turns.iter().map(Turn::microseconds_per_call)).median;
        let (cheaper, costlier) = if median(older) <= median(newer) { (older, newer) } else { (newer, older) };
        let ratios = |against: &dyn Fn(usize) -> f64| {
            Spread::of(turns.iter().enumerate().map(|(n, turn)| turn.microseconds_per_call() / against(n)))
        };
        let cost = |turns: &[Turn], n: usize| turns.get(n).map_or(f64::NAN, Turn::microseconds_per_call);
        Some([
            ratios(&|n| cost(cheaper, n)),
            ratios(&|n| cost(costlier, n)),
            ratios(&|n| (cost(cheaper, n) + cost(costlier, n)) / 2.0),
        ])
    }

    fn row(&self, contender: &Contender, turns: &[Turn]) -> [String; 8] {
        let wire = if contender.wire == Wire::Stdio { ", stdio" } else { "" };
        let bridged = self.to_unbridged(contender, turns);
        let bridged = bridged.map(|all| all.map(|spread| spread.show(2)).join(", "));
        [
            contender.client.revision().to_owned(),
            contender.front.name().to_owned(),
            format!("{}{wire}", contender.upstream.revision()),
            Spread::of(turns.iter().map(Turn::calls_per_second)).show(0),
            Spread::of(turns.iter().map(Turn::microseconds_per_call)).show(1),
            self.to_nginx(contender, turns).map(|spread| spread.show(2)).unwrap_or_default(),
            self.to_beside(contender, turns).map(|spread| spread.show(2)).unwrap_or_default(),
            bridged.unwrap_or_default(),
        ]
    }

    /// Writes everything to standard output.
    pub(crate) fn print(&self) {
        let Plan { sessions, bytes, rounds, calls, .. } = self.plan;
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let nginx = version("nginx", "-v").unwrap_or_else(|| "no nginx".to_owned());
        println!("rialto {}, {nginx}, {}, {cores} cores", env!("CARGO_PKG_VERSION"), compiler());
        println!("{sessions} sessions, answers of {bytes} bytes, {rounds} rounds of {calls} calls");
        println!("figures are the median (least-most) of interleaved turns\n");
        let mut rows = vec![TITLES.map(str::to_owned)];
        rows.extend(self.measured.iter().map(|(contender, turns)| self.row(contender, turns)));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 8] = std::array::from_fn(width);
        for row in &rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
        println!(
            "\ntargets: {YARDSTICK_TARGET} times nginx over HTTP, {BRIDGE_TARGET} times the mean of what is not bridged"
        );
        for (contender, turns) in self.measured {
            let to_nginx = self.to_nginx(contender, turns).filter(|_| contender.wire == Wire::Http);
            if let Some(ratio) = to_nginx {
                verdict(contender, ratio.median, YARDSTICK_TARGET, "nginx");
            }
            if let Some([_, _, mean]) = self.to_unbridged(contender, turns) {
                verdict(contender, mean.median, BRIDGE_TARGET, "what is not bridged");
            }
        }
    }
}

/// What calls took against others, round by round.
fn ratios(ours: &[Turn], theirs: &[Turn]) -> Spread {
    Spread::of(
        ours.iter().zip(theirs).map(|(ours, theirs)| ours.microseconds_per_call() / theirs.microseconds_per_call()),
    )
}

fn verdict(contender: &Contender, ratio: f64, target: f64, against: &str) {
    let word = if ratio <= target { "holds " } else { "MISSED" };
    println!("{word}  {}: {ratio:.2} times {against}", contender.name());
}
