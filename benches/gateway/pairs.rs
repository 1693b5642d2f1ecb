//! Calls between clients and upstreams of the same and of different eras, through Rialto, nginx and another build of
//! Rialto.

use crate::client::{Caller, Era};
use crate::folder::Folder;
use crate::fronts::{Deployment, Frontend};
use crate::turn::{Turn, contender_at};
use crate::upstream::{ResponseFormat, ToolSet, UpstreamTransport, tool_call};
use crate::{Failure, Plan};

/// A combination of proxy, client era and upstream era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) front: Frontend,
    pub(crate) client: Era,
    pub(crate) upstream: Era,
    pub(crate) transport: UpstreamTransport,
}

impl Pair {
    pub(crate) fn is_bridged(&self) -> bool {
        self.client != self.upstream
    }

    /// Name on the command line.
    pub(crate) fn name(&self) -> String {
        let Self { front, client, upstream, transport } = self;
        format!("{} {} {} {}", front.name(), transport.name(), client.revision(), upstream.revision())
    }
}

/// All combinations.
fn pairs() -> Vec<Pair> {
    let eras = [Era::Handshake, Era::PerRequest];
    let mut all = Vec::new();
    for front in [Frontend::Direct, Frontend::Nginx] {
        all.extend(eras.map(|era| Pair { front, client: era, upstream: era, transport: UpstreamTransport::Http }));
    }
    for transport in [UpstreamTransport::Http, UpstreamTransport::Stdio] {
        for client in eras {
            for front in [Frontend::Rialto, Frontend::Beside] {
                all.extend(eras.map(|upstream| Pair { front, client, upstream, transport }));
            }
        }
    }
    all
}

/// A running combination with its open clients.
struct Running {
    pair: Pair,
    deployment: Deployment,
    callers: Vec<Caller>,
    turns: Vec<Turn>,
    _folder: Folder,
}

/// Measures every combination in every round.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<(Pair, Vec<Turn>)>, Failure> {
    let mut running = Vec::new();
    for pair in pairs() {
        if !pair.front.is_available(plan) || !plan.names(&pair.name()) {
            continue;
        }
        let mut new = Running::start(pair, plan).await?;
        // Warm-up: the first calls pay one-time costs.
        Turn::take(&new.deployment.measured, &mut new.callers, plan.pairs.calls.div_ceil(2)).await?;
        running.push(new);
    }
    for round in 0..plan.pairs.rounds {
        for n in 0..running.len() {
            let at = contender_at(n, round, running.len());
            let Running { deployment, callers, turns, .. } = &mut running[at];
            turns.push(Turn::take(&deployment.measured, callers, plan.pairs.calls).await?);
        }
    }
    Ok(running.into_iter().map(|Running { pair, turns, .. }| (pair, turns)).collect())
}

impl Running {
    async fn start(pair: Pair, plan: &Plan) -> Result<Self, Failure> {
        let Pair { front, client, upstream, transport } = pair;
        let folder = Folder::new(&pair.name().replace(' ', "-"))?;
        let bytes = plan.pairs.bytes;
        let tool = ResponseFormat::Json.tool(bytes);
        let deployment = front.start(transport, upstream, &ToolSet::of(&[bytes]), &folder, plan).await?;
        let mut callers = Vec::new();
        for _ in 0..plan.pairs.sessions {
            callers.push(Caller::open(deployment.measured.address, client, tool_call(&tool, bytes)).await?);
        }
        Ok(Self { pair, deployment, callers, turns: Vec::new(), _folder: folder })
    }
}
