//! Calls through every contender in turn, round after round.

use crate::client::{Caller, Era};
use crate::folder::Folder;
use crate::fronts::{Front, Standing};
use crate::turn::{Turn, whose};
use crate::upstream::{SUBJECT, Wire};
use crate::{Failure, Plan};

/// Who is measured: what stands between which client and which upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) front: Front,
    pub(crate) client: Era,
    pub(crate) upstream: Era,
    pub(crate) wire: Wire,
}

impl Contender {
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
fn contenders() -> Vec<Contender> {
    let eras = [Era::Handshake, Era::PerRequest];
    let mut all = Vec::new();
    for front in [Front::Direct, Front::Nginx] {
        all.extend(eras.map(|era| Contender { front, client: era, upstream: era, wire: Wire::Http }));
    }
    for wire in [Wire::Http, Wire::Stdio] {
        for client in eras {
            for front in [Front::Rialto, Front::Beside] {
                all.extend(eras.map(|upstream| Contender { front, client, upstream, wire }));
            }
        }
    }
    all
}

/// A contender at work.
struct Running {
    contender: Contender,
    standing: Standing,
    callers: Vec<Caller>,
    turns: Vec<Turn>,
    _folder: Folder,
}

/// The turns of each contender, round by round.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<(Contender, Vec<Turn>)>, Failure> {
    let mut running = Vec::new();
    for contender in contenders() {
        if !contender.front.is_there(plan) || !contender.name().contains(&plan.only) {
            continue;
        }
        let mut new = Running::start(contender, plan).await?;
        // The first calls pay for what happens once.
        Turn::take(&new.standing.measured, &mut new.callers, plan.calls.div_ceil(2)).await?;
        running.push(new);
    }
    for round in 0..plan.rounds {
        for n in 0..running.len() {
            let at = whose(n, round, running.len());
            let Running { standing, callers, turns, .. } = &mut running[at];
            turns.push(Turn::take(&standing.measured, callers, plan.calls).await?);
        }
    }
    Ok(running.into_iter().map(|Running { contender, turns, .. }| (contender, turns)).collect())
}

impl Running {
    async fn start(contender: Contender, plan: &Plan) -> Result<Self, Failure> {
        let Contender { front, client, upstream, wire } = contender;
        let folder = Folder::new(&contender.name().replace(' ', "-"))?;
        let standing = front.start(wire, upstream, &folder, plan).await?;
        let mut callers = Vec::new();
        for _ in 0..plan.sessions {
            callers.push(Caller::open(standing.measured.address, client, SUBJECT).await?);
        }
        Ok(Self { contender, standing, callers, turns: Vec::new(), _folder: folder })
    }
}
