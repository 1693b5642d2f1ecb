//! Merged lists: the cost of `tools/list` when the same number of tools comes from one upstream or from many.

use crate::Failure;
use crate::client::{Caller, Era};
use crate::folder::Folder;
use crate::fronts::{rialto, server_section};
use crate::plan::Plan;
use crate::process::Server;
use crate::turn::{Turn, contender_at};
use crate::upstream::{self, SUBJECT, ToolSet};

/// Numbers of upstreams to measure.
pub(crate) const UPSTREAMS: [usize; 3] = [1, 10, 50];
/// Total number of tools.
pub(crate) const TOOLS: usize = 500;
/// Concurrent clients.
pub(crate) const SESSIONS: usize = 16;
/// Name of the last tool of an upstream, which every response contains.
const LAST: [&[u8]; 3] = [b"listed-499\"", b"listed-049\"", b"listed-009\""];

/// Measurements for one number of upstreams.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) upstreams: usize,
    pub(crate) era: Era,
    /// Size of the response in bytes.
    pub(crate) bytes: usize,
    pub(crate) turns: Vec<Turn>,
}

/// A running Rialto with its upstreams.
struct Running {
    list: List,
    callers: Vec<Caller>,
    server: Server,
    _behind: Vec<Server>,
    _folder: Folder,
}

/// Measures all numbers of upstreams, interleaved round by round.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<List>, Failure> {
    let mut running = Vec::new();
    for era in [Era::Handshake, Era::PerRequest] {
        for (upstreams, last) in UPSTREAMS.into_iter().zip(LAST) {
            running.push(Running::start(upstreams, era, last, plan).await?);
        }
    }
    for round in 0..plan.rounds {
        for n in 0..running.len() {
            let at = contender_at(n, round, running.len());
            let Running { list, callers, server, .. } = &mut running[at];
            list.turns.push(Turn::within(server, callers, SESSIONS, plan.turn).await?);
        }
    }
    Ok(running.into_iter().map(|Running { list, .. }| list).collect())
}

impl Running {
    async fn start(upstreams: usize, era: Era, last: &'static [u8], plan: &Plan) -> Result<Self, Failure> {
        let folder = Folder::new(&format!("list-{upstreams}-{}", era.revision()))?;
        let offer = ToolSet { sizes: Vec::new(), listed: TOOLS / upstreams };
        let (mut behind, mut servers) = (Vec::new(), Vec::new());
        for _ in 0..upstreams {
            let server = upstream::start(era, &offer).await?;
            servers.push(server_section(Some(server.address), era, &offer)?);
            behind.push(server);
        }
        let server = rialto(Server::rialto(), &servers, &folder, plan).await?;
        let mut callers = Vec::new();
        for _ in 0..SESSIONS {
            let mut caller = Caller::open(server.address, era, SUBJECT).await?;
            caller.set_list_request(last)?;
            callers.push(caller);
        }
        let bytes = callers[0].size().await?;
        if bytes < TOOLS * 100 {
            return Err(format!("a list of {TOOLS} tools has only {bytes} bytes").into());
        }
        // Warm-up: the first calls pay one-time costs.
        Turn::within(&server, &mut callers, SESSIONS, plan.turn).await?;
        let list = List { upstreams, era, bytes, turns: Vec::new() };
        Ok(Self { list, callers, server, _behind: behind, _folder: folder })
    }
}
