//! The report on the pairs: one table.

use crate::client::Era;
use crate::document::Table;
use crate::fronts::Front;
use crate::pairs::Pair;
use crate::plan::{Pairs, Plan};
use crate::spread::Spread;
use crate::tables::ratio;
use crate::turn::Turn;
use crate::upstream::Wire;

/// What was measured.
pub(crate) struct Report<'m> {
    plan: &'m Plan,
    measured: &'m [(Pair, Vec<Turn>)],
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
    pub(crate) fn new(plan: &'m Plan, measured: &'m [(Pair, Vec<Turn>)]) -> Self {
        Self { plan, measured }
    }

    /// The turns of a pair, if it was measured.
    fn turns(&self, front: Front, client: Era, upstream: Era, wire: Wire) -> Option<&'m [Turn]> {
        let wanted = Pair { front, client, upstream, wire };
        self.measured.iter().find(|(pair, _)| *pair == wanted).map(|(_, turns)| turns.as_slice())
    }

    /// Round by round, because turns of one round saw the same machine. A bridged call has the same
    /// yardstick as one that is not: nginx with what its client sends.
    fn to_nginx(&self, pair: &Pair, turns: &[Turn]) -> Option<Spread> {
        let era = pair.client;
        let nginx = self.turns(Front::Nginx, era, era, Wire::Http).filter(|_| pair.front.is_rialto())?;
        Some(ratio(turns, nginx, Turn::microseconds_per_call))
    }

    /// What a change made of it.
    fn to_beside(&self, pair: &Pair, turns: &[Turn]) -> Option<Spread> {
        let Pair { front, client, upstream, wire } = *pair;
        let beside = self.turns(Front::Beside, client, upstream, wire).filter(|_| front == Front::Rialto)?;
        Some(ratio(turns, beside, Turn::microseconds_per_call))
    }

    /// A bridged call against the cheaper and the costlier of those that are not, and against their mean.
    fn to_unbridged(&self, pair: &Pair, turns: &[Turn]) -> Option<[Spread; 3]> {
        if !pair.is_bridged() {
            return None;
        }
        let own = |era: Era| self.turns(pair.front, era, era, pair.wire);
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

    fn row(&self, pair: &Pair, turns: &[Turn]) -> [String; 8] {
        let wire = if pair.wire == Wire::Stdio { ", stdio" } else { "" };
        let bridged = self.to_unbridged(pair, turns);
        let bridged = bridged.map(|all| all.map(|spread| spread.show(2)).join(", "));
        [
            pair.client.revision().to_owned(),
            pair.front.name().to_owned(),
            format!("{}{wire}", pair.upstream.revision()),
            Spread::of(turns.iter().map(Turn::calls_per_second)).show(0),
            Spread::of(turns.iter().map(Turn::microseconds_per_call)).show(1),
            self.to_nginx(pair, turns).map(|spread| spread.show(2)).unwrap_or_default(),
            self.to_beside(pair, turns).map(|spread| spread.show(2)).unwrap_or_default(),
            bridged.unwrap_or_default(),
        ]
    }

    /// How it was measured, in words.
    pub(crate) fn how(&self) -> String {
        let Pairs { sessions, bytes, rounds, calls } = self.plan.pairs;
        format!("{sessions} sessions, answers of {bytes} bytes in JSON, {rounds} rounds of {calls} calls.")
    }

    /// All pairs.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new(&TITLES);
        for (pair, turns) in self.measured {
            table.row(&self.row(pair, turns));
        }
        table.text()
    }

    /// What bridged calls of this build take against the mean of those that are not.
    pub(crate) fn bridged(&self) -> Vec<(String, Spread)> {
        let ours = self.measured.iter().filter(|(pair, _)| pair.front == Front::Rialto);
        let judged = ours.filter_map(|(pair, turns)| {
            let Pair { client, upstream, wire, .. } = pair;
            let [_, _, mean] = self.to_unbridged(pair, turns)?;
            Some((format!("{} to {}, {}: ", client.revision(), upstream.revision(), wire.name()), mean))
        });
        judged.collect()
    }
}
