//! Calls through each contender, interleaved round by round, so that other load on the machine affects all of them.

use crate::Failure;
use crate::client::{Caller, Era, ToolCall};
use crate::peers;
use crate::process::Server;
use crate::turn::{Turn, contender_at};

/// A server to measure, and the era to use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) era: Era,
    pub(crate) role: Role,
    /// Peer to start; `None` for Rialto.
    peer: Option<&'static str>,
}

/// Role of a contender in the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Rialto itself.
    Rialto,
    /// A baseline that Rialto is compared with.
    Rival,
    /// Shown for information only.
    Shown,
}

const fn contender(name: &'static str, era: Era, role: Role, peer: Option<&'static str>) -> Contender {
    Contender { name, era, role, peer }
}

const CONTENDERS: [Contender; 7] = [
    contender("rialto", Era::Handshake, Role::Rialto, None),
    contender("rmcp, sessions, events", Era::Handshake, Role::Rival, Some(peers::EVENTS)),
    contender("rmcp, no sessions, JSON", Era::Handshake, Role::Rival, Some(peers::JSON)),
    contender("hyper alone, a fixed answer", Era::Handshake, Role::Shown, Some(peers::FIXED)),
    contender("rialto", Era::PerRequest, Role::Rialto, None),
    contender("rmcp, JSON", Era::PerRequest, Role::Rival, Some(peers::JSON)),
    contender("rmcp, events", Era::PerRequest, Role::Rival, Some(peers::EVENTS)),
];

/// The measured tool call.
const HYDROGEN: ToolCall =
    ToolCall { tool: "getElement", arguments: r#"{"name":"H"}"#, answer: b"Hydrogen", length: None };

/// Starts Rialto with the built-in server and default settings.
pub(crate) async fn rialto() -> Result<Server, Failure> {
    let mut command = Server::rialto();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn"]);
    Server::start(command).await
}

/// A running contender with its open clients.
struct Running {
    contender: Contender,
    server: Server,
    callers: Vec<Caller>,
    turns: Vec<Turn>,
}

/// Measures every contender over this many sessions in every round.
pub(crate) async fn measure(
    sessions: usize,
    calls: usize,
    rounds: usize,
) -> Result<Vec<(Contender, Vec<Turn>)>, Failure> {
    let mut running = Vec::new();
    for contender in CONTENDERS {
        let mut new = Running::start(contender, sessions).await?;
        // Warm-up: the first calls pay one-time costs.
        Turn::take(&new.server, &mut new.callers, calls.div_ceil(4)).await?;
        running.push(new);
    }
    for round in 0..rounds {
        for n in 0..running.len() {
            let at = contender_at(n, round, running.len());
            let Running { server, callers, turns, .. } = &mut running[at];
            turns.push(Turn::take(server, callers, calls).await?);
        }
    }
    Ok(running.into_iter().map(|Running { contender, turns, .. }| (contender, turns)).collect())
}

impl Running {
    async fn start(contender: Contender, sessions: usize) -> Result<Self, Failure> {
        let server = match contender.peer {
            None => rialto().await?,
            Some(kind) => peers::start(kind).await?,
        };
        let mut callers = Vec::new();
        for _ in 0..sessions {
            callers.push(Caller::open(server.address, contender.era, HYDROGEN).await?);
        }
        Ok(Self { contender, server, callers, turns: Vec::new() })
    }
}
