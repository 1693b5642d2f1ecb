//! Calls at every place in turn, round after round.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Caller, Era, Share};
use crate::nodes::{Behind, LEASE, Node};
use crate::process::{SETTLE, Server};
use crate::rows::{NODES, Row, Way, rows};
use crate::store::Store;
use crate::turn::whose;
use crate::{Failure, Plan};

/// What nodes and their store have done so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    at: Instant,
    nodes: Duration,
    store: Duration,
    trips: u64,
    commands: u64,
}

/// What nodes and their store did meanwhile, for each of several things.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// Microseconds of the processor that all nodes took.
    pub(crate) nodes: f64,
    /// The same of the store.
    pub(crate) store: f64,
    /// How often the nodes asked the store something.
    pub(crate) trips: f64,
    /// Commands that the store carried out.
    pub(crate) commands: f64,
}

/// What a row did in one turn.
#[derive(Debug)]
pub(crate) struct Turn {
    /// With many sessions at once.
    pub(crate) cost: Cost,
    pub(crate) calls_per_second: f64,
    /// With one session, one call after the other.
    pub(crate) in_sequence: Cost,
    pub(crate) latencies: Vec<Duration>,
}

/// Nodes with what they share.
pub(crate) struct Standing {
    pub(crate) nodes: Vec<Node>,
    pub(crate) store: Option<Store>,
    _behind: Option<Server>,
    /// What they ask of the store and what it does when nobody calls, in a second.
    idle: [f64; 2],
}

/// How long it is looked what happens when nobody calls.
const IDLE: Duration = Duration::from_secs(4);

impl Standing {
    /// Nodes without a store, which know nothing of one another.
    async fn alone(row: Row, count: usize, plan: &Plan) -> Result<Self, Failure> {
        let (servers, behind) = row.behind.start(row.era).await?;
        let name = format!("{}-{}-{}", row.behind.name(), row.era.revision(), row.way.name()).replace([' ', ','], "");
        let build = plan.beside.as_deref().filter(|_| row.way == Way::Beside);
        let mut nodes = Vec::new();
        for n in 0..count {
            nodes.push(Node::alone(&format!("{name}-{n}"), &servers, build).await?);
        }
        Ok(Self { nodes, store: None, _behind: behind, idle: [0.0; 2] })
    }

    /// Nodes that share a store.
    pub(crate) async fn together(behind: Behind, era: Era) -> Result<Self, Failure> {
        let (store, (servers, server)) = (Store::start().await?, behind.start(era).await?);
        let mut nodes = Vec::new();
        for n in 0..NODES {
            let name = format!("{}-{}-{n}", behind.name(), era.revision()).replace(' ', "");
            nodes.push(Node::of(&name, &store, LEASE, &servers).await?);
        }
        let mut standing = Self { nodes, store: Some(store), _behind: server, idle: [0.0; 2] };
        let before = standing.read().await?;
        tokio::time::sleep(IDLE).await;
        let (after, seconds) = (standing.read().await?, IDLE.as_secs_f64());
        let (trips, commands) = (after.trips - before.trips, after.commands - before.commands);
        standing.idle = [trips as f64 / seconds, commands as f64 / seconds];
        Ok(standing)
    }

    /// What was done so far.
    pub(crate) async fn read(&self) -> Result<Reading, Failure> {
        let (mut trips, mut nodes) = (0, Duration::ZERO);
        for node in &self.nodes {
            trips += node.round_trips().await?;
        }
        tokio::time::sleep(SETTLE).await;
        for node in &self.nodes {
            nodes += node.server.processor_time()?;
        }
        let (commands, store) = match &self.store {
            Some(store) => (store.commands().await?, store.server.processor_time()?),
            None => (0, Duration::ZERO),
        };
        Ok(Reading { at: Instant::now(), nodes, store, trips, commands })
    }

    /// What was done since, for each of `count`, less what is done when nobody calls.
    pub(crate) async fn since(&self, before: Reading, count: usize) -> Result<Cost, Failure> {
        // Processor time first: asking for the rest takes some, too.
        tokio::time::sleep(SETTLE).await;
        let (mut nodes, mut store) = (Duration::ZERO, Duration::ZERO);
        for node in &self.nodes {
            nodes += node.server.processor_time()?;
        }
        if let Some(redis) = &self.store {
            store = redis.server.processor_time()?;
        }
        let after = self.read().await?;
        let count = count as f64;
        let [trips, commands] = self.idle.map(|idle| idle * (after.at - before.at).as_secs_f64());
        let microseconds = |time: Duration| time.as_secs_f64() * 1e6 / count;
        Ok(Cost {
            nodes: microseconds(nodes - before.nodes),
            store: microseconds(store - before.store),
            trips: (((after.trips - before.trips) as f64 - trips) / count).max(0.0),
            commands: (((after.commands - before.commands) as f64 - commands) / count).max(0.0),
        })
    }
}

/// A row at work.
struct Running {
    row: Row,
    /// Which of those that stand it uses.
    standing: usize,
    one: Caller,
    many: Vec<Caller>,
    turns: Vec<Turn>,
}

/// The turns of each row, round by round.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<(Row, Vec<Turn>)>, Failure> {
    let (mut standing, mut running) = (Vec::new(), Vec::new());
    for behind in [Behind::Elements, Behind::Http] {
        // All rows with a store use the same nodes, some of them not all.
        for era in [Era::Handshake, Era::PerRequest] {
            let together = standing.len();
            standing.push(Standing::together(behind, era).await?);
            for row in rows(behind, plan).into_iter().filter(|row| row.era == era) {
                let mut at = together;
                if let Some(count) = row.way.without_store() {
                    at = standing.len();
                    standing.push(Standing::alone(row, count, plan).await?);
                }
                running.push(Running::start(row, at, &standing[at], plan).await?);
            }
        }
    }
    for row in &mut running {
        // The first calls pay for what happens once.
        row.turn(&standing[row.standing], plan).await?;
    }
    for round in 0..plan.rounds {
        for n in 0..running.len() {
            let at = whose(n, round, running.len());
            let row = &mut running[at];
            let turn = row.turn(&standing[row.standing], plan).await?;
            row.turns.push(turn);
        }
    }
    Ok(running.into_iter().map(|Running { row, turns, .. }| (row, turns)).collect())
}

impl Running {
    async fn start(row: Row, at: usize, standing: &Standing, plan: &Plan) -> Result<Self, Failure> {
        let caller = |home| row.way.caller(&standing.nodes, home, row.era, row.behind);
        let mut many = Vec::new();
        for home in 0..plan.sessions {
            many.push(caller(home).await?);
        }
        Ok(Self { row, standing: at, one: caller(0).await?, many, turns: Vec::new() })
    }

    async fn turn(&mut self, standing: &Standing, plan: &Plan) -> Result<Turn, Failure> {
        let before = standing.read().await?;
        let latencies = self.one.latencies(plan.in_sequence).await?;
        let in_sequence = standing.since(before, plan.in_sequence).await?;
        let each = plan.calls.div_ceil(self.many.len());
        let calls = each * self.many.len();
        let before = standing.read().await?;
        let begin = Instant::now();
        let mut tasks = JoinSet::new();
        for caller in self.many.drain(..) {
            tasks.spawn(caller.calls(Share::of(each)));
        }
        while let Some(ended) = tasks.join_next().await {
            self.many.push(ended??.0);
        }
        let calls_per_second = calls as f64 / begin.elapsed().as_secs_f64();
        let cost = standing.since(before, calls).await?;
        Ok(Turn { cost, calls_per_second, in_sequence, latencies })
    }
}
