//! Calls: each contender in turn, round after round, so that what else the machine does falls on
//! all of them.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Failure;
use crate::client::{Caller, Era};
use crate::peers;
use crate::process::{SETTLE, Server};

/// Who is measured, and how it is spoken to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) era: Era,
    pub(crate) role: Role,
    /// What to start: nothing for Rialto.
    peer: Option<&'static str>,
}

/// What a contender is measured for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It is what this is about.
    Rialto,
    /// Rialto is held against it.
    Rival,
    /// It is shown beside the others, and nothing depends on it.
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

/// What a contender did in one turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    calls: usize,
    wall: Duration,
    processor: Duration,
}

impl Turn {
    pub(crate) fn calls_per_second(&self) -> f64 {
        self.calls as f64 / self.wall.as_secs_f64()
    }

    pub(crate) fn microseconds_per_call(&self) -> f64 {
        self.processor.as_secs_f64() * 1e6 / self.calls as f64
    }
}

/// A contender at work.
struct Running {
    contender: Contender,
    server: Server,
    callers: Vec<Caller>,
    turns: Vec<Turn>,
}

/// Calls every contender over that many sessions; the turns of each, round by round.
pub(crate) async fn measure(
    sessions: usize,
    calls: usize,
    rounds: usize,
) -> Result<Vec<(Contender, Vec<Turn>)>, Failure> {
    let mut running = Vec::new();
    for contender in CONTENDERS {
        let mut new = Running::start(contender, sessions).await?;
        // The first calls pay for what happens once.
        new.turn(calls.div_ceil(4)).await?;
        running.push(new);
    }
    for round in 0..rounds {
        for n in 0..running.len() {
            // Every other round goes backwards, so that nobody always follows the same other.
            let step = (n + round) % running.len();
            let at = if round % 2 == 0 { step } else { running.len() - 1 - step };
            let turn = running[at].turn(calls).await?;
            running[at].turns.push(turn);
        }
    }
    Ok(running.into_iter().map(|Running { contender, turns, .. }| (contender, turns)).collect())
}

impl Running {
    async fn start(contender: Contender, sessions: usize) -> Result<Self, Failure> {
        let server = match contender.peer {
            None => Server::rialto().await?,
            Some(kind) => Server::peer(kind).await?,
        };
        let mut callers = Vec::new();
        for _ in 0..sessions {
            callers.push(Caller::open(server.address, contender.era).await?);
        }
        Ok(Self { contender, server, callers, turns: Vec::new() })
    }

    /// Makes calls over all sessions at once.
    async fn turn(&mut self, calls: usize) -> Result<Turn, Failure> {
        let each = calls.div_ceil(self.callers.len());
        let calls = each * self.callers.len();
        let processor = self.server.processor_time()?;
        let begin = Instant::now();
        let mut tasks = JoinSet::new();
        for caller in self.callers.drain(..) {
            tasks.spawn(caller.calls(each));
        }
        while let Some(ended) = tasks.join_next().await {
            self.callers.push(ended??);
        }
        let wall = begin.elapsed();
        tokio::time::sleep(SETTLE).await;
        let processor = self.server.processor_time()? - processor;
        Ok(Turn { calls, wall, processor })
    }
}
