//! Calls through Rialto between clients and upstreams of the same and of different eras, beside nginx and another
//! build.

use crate::client::{Caller, Era};
use crate::folder::Folder;
use crate::fronts::{Front, Standing};
use crate::turn::{Turn, whose};
use crate::upstream::{Form, Offer, Wire, subject};
use crate::{Failure, Plan};

/// What is measured: what stands between which client and which upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) front: Front,
    pub(crate) client: Era,
    pub(crate) upstream: Era,
    pub(crate) wire: Wire,
}

impl Pair {
    pub(crate) fn is_bridged(&self) -> bool {
        self.client != self.upstream
    }

    /// What it is called on the command line.
    pub(crate) fn name(&self) -> String {
        let Self { front, client, upstream, wire } = self;
        format!("{} {} {} {}", front.name(), wire.name(), client.revision(), upstream.revision())
    }
}

/// All that there are.
fn pairs() -> Vec<Pair> {
    let eras = [Era::Handshake, Era::PerRequest];
    let mut all = Vec::new();
    for front in [Front::Direct, Front::Nginx] {
        all.extend(eras.map(|era| Pair { front, client: era, upstream: era, wire: Wire::Http }));
    }
    for wire in [Wire::Http, Wire::Stdio] {
        for client in eras {
            for front in [Front::Rialto, Front::Beside] {
                all.extend(eras.map(|upstream| Pair { front, client, upstream, wire }));
            }
        }
    }
    all
}

/// A pair at work.
struct Running {
    pair: Pair,
    standing: Standing,
    callers: Vec<Caller>,
    turns: Vec<Turn>,
    _folder: Folder,
}

/// The turns of each pair, round by round.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<(Pair, Vec<Turn>)>, Failure> {
    let mut running = Vec::new();
    for pair in pairs() {
        if !pair.front.is_there(plan) || !plan.names(&pair.name()) {
            continue;
        }
        let mut new = Running::start(pair, plan).await?;
        // The first calls pay for what happens once.
        Turn::take(&new.standing.measured, &mut new.callers, plan.pairs.calls.div_ceil(2)).await?;
        running.push(new);
    }
    for round in 0..plan.pairs.rounds {
        for n in 0..running.len() {
            let at = whose(n, round, running.len());
            let Running { standing, callers, turns, .. } = &mut running[at];
            turns.push(Turn::take(&standing.measured, callers, plan.pairs.calls).await?);
        }
    }
    Ok(running.into_iter().map(|Running { pair, turns, .. }| (pair, turns)).collect())
}

impl Running {
    async fn start(pair: Pair, plan: &Plan) -> Result<Self, Failure> {
        let Pair { front, client, upstream, wire } = pair;
        let folder = Folder::new(&pair.name().replace(' ', "-"))?;
        let bytes = plan.pairs.bytes;
        let tool = Form::Json.tool(bytes);
        let standing = front.start(wire, upstream, &Offer::of(&[bytes]), &folder, plan).await?;
        let mut callers = Vec::new();
        for _ in 0..plan.pairs.sessions {
            callers.push(Caller::open(standing.measured.address, client, subject(&tool, bytes)).await?);
        }
        Ok(Self { pair, standing, callers, turns: Vec::new(), _folder: folder })
    }
}
