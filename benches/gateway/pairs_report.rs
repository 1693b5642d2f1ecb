//! The report on era combinations: one table.

use crate::client::Era;
use crate::document::Table;
use crate::fronts::Frontend;
use crate::pairs::Pair;
use crate::plan::{Pairs, Plan};
use crate::spread::Spread;
use crate::tables::ratio;
use crate::turn::Turn;
use crate::upstream::UpstreamTransport;

/// The measurements and how they were made.
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

    /// The measurements of a combination, if there are any.
    fn turns(&self, front: Frontend, client: Era, upstream: Era, transport: UpstreamTransport) -> Option<&'m [Turn]> {
        let wanted = Pair { front, client, upstream, transport };
        self.measured.iter().find(|(pair, _)| *pair == wanted).map(|(_, turns)| turns.as_slice())
    }

    /// Ratio to nginx per round, because figures of one round saw the same machine load. A bridged call is compared
    /// with nginx for the same client era.
    fn to_nginx(&self, pair: &Pair, turns: &[Turn]) -> Option<Spread> {
        let era = pair.client;
        let nginx =
            self.turns(Frontend::Nginx, era, era, UpstreamTransport::Http).filter(|_| pair.front.is_rialto())?;
        Some(ratio(turns, nginx, Turn::microseconds_per_call))
    }

    /// Ratio to the other build.
    fn to_beside(&self, pair: &Pair, turns: &[Turn]) -> Option<Spread> {
        let Pair { front, client, upstream, transport } = *pair;
        let beside = self.turns(Frontend::Beside, client, upstream, transport).filter(|_| front == Frontend::Rialto)?;
        Some(ratio(turns, beside, Turn::microseconds_per_call))
    }

    /// Ratio of a bridged call to the cheaper and the more expensive unbridged call, and to their mean.
    fn to_unbridged(&self, pair: &Pair, turns: &[Turn]) -> Option<[Spread; 3]> {
        if !pair.is_bridged() {
            return None;
        }
        let own = |era: Era| self.turns(pair.front, era, era, pair.transport);
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
        let transport = if pair.transport == UpstreamTransport::Stdio { ", stdio" } else { "" };
        let bridged = self.to_unbridged(pair, turns);
        let bridged = bridged.map(|all| all.map(|spread| spread.show(2)).join(", "));
        [
            pair.client.revision().to_owned(),
            pair.front.name().to_owned(),
            format!("{}{transport}", pair.upstream.revision()),
            Spread::of(turns.iter().map(Turn::calls_per_second)).show(0),
            Spread::of(turns.iter().map(Turn::microseconds_per_call)).show(1),
            self.to_nginx(pair, turns).map(|spread| spread.show(2)).unwrap_or_default(),
            self.to_beside(pair, turns).map(|spread| spread.show(2)).unwrap_or_default(),
            bridged.unwrap_or_default(),
        ]
    }

    /// Description of the measurement.
    pub(crate) fn how(&self) -> String {
        let Pairs { sessions, bytes, rounds, calls } = self.plan.pairs;
        format!("{sessions} sessions, answers of {bytes} bytes in JSON, {rounds} rounds of {calls} calls.")
    }

    /// The table of all combinations.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new(&TITLES);
        for (pair, turns) in self.measured {
            table.row(&self.row(pair, turns));
        }
        table.text()
    }

    /// CPU time of bridged calls relative to the mean of unbridged ones.
    pub(crate) fn bridged(&self) -> Vec<(String, Spread)> {
        let ours = self.measured.iter().filter(|(pair, _)| pair.front == Frontend::Rialto);
        let judged = ours.filter_map(|(pair, turns)| {
            let Pair { client, upstream, transport, .. } = pair;
            let [_, _, mean] = self.to_unbridged(pair, turns)?;
            Some((format!("{} to {}, {}: ", client.revision(), upstream.revision(), transport.name()), mean))
        });
        judged.collect()
    }
}
