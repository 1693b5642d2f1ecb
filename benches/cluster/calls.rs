//! Calls through every row of the table, interleaved round by round.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{CallBudget, Caller, Era};
use crate::nodes::{Backend, LEASE, Node};
use crate::process::{SETTLE_TIME, Server};
use crate::rows::{NODES, Routing, Row, rows};
use crate::store::Store;
use crate::turn::contender_at;
use crate::{Failure, Plan};

/// Counters of the nodes and their store at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counters {
    at: Instant,
    nodes: Duration,
    store: Duration,
    trips: u64,
    commands: u64,
}

/// Cost per call or event between two readings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// CPU time of all nodes, in microseconds.
    pub(crate) nodes: f64,
    /// CPU time of the store, in microseconds.
    pub(crate) store: f64,
    /// Round trips from the nodes to the store.
    pub(crate) trips: f64,
    /// Commands executed by the store.
    pub(crate) commands: f64,
}

/// Measurements of one row in one round.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Cost with many concurrent sessions.
    pub(crate) cost: Cost,
    pub(crate) calls_per_second: f64,
    /// Cost with one session and sequential calls.
    pub(crate) in_sequence: Cost,
    pub(crate) latencies: Vec<Duration>,
}

/// Running nodes with their store and upstream.
pub(crate) struct Deployment {
    pub(crate) nodes: Vec<Node>,
    pub(crate) store: Option<Store>,
    _upstream: Option<Server>,
    /// Store round trips and commands per second without any calls (heartbeats), to be subtracted.
    idle: [f64; 2],
}

/// Duration of the idle measurement.
const IDLE_SAMPLE_TIME: Duration = Duration::from_secs(4);

impl Deployment {
    /// Starts independent nodes without a store.
    async fn alone(row: Row, count: usize, plan: &Plan) -> Result<Self, Failure> {
        let (servers, backend) = row.backend.start(row.era).await?;
        let name =
            format!("{}-{}-{}", row.backend.name(), row.era.revision(), row.routing.name()).replace([' ', ','], "");
        let build = plan.beside.as_deref().filter(|_| row.routing == Routing::Beside);
        let mut nodes = Vec::new();
        for n in 0..count {
            nodes.push(Node::alone(&format!("{name}-{n}"), &servers, build).await?);
        }
        Ok(Self { nodes, store: None, _upstream: backend, idle: [0.0; 2] })
    }

    /// Starts a cluster: nodes that share a store.
    pub(crate) async fn together(backend: Backend, era: Era) -> Result<Self, Failure> {
        let (store, (servers, server)) = (Store::start().await?, backend.start(era).await?);
        let mut nodes = Vec::new();
        for n in 0..NODES {
            let name = format!("{}-{}-{n}", backend.name(), era.revision()).replace(' ', "");
            nodes.push(Node::of(&name, &store, LEASE, &servers).await?);
        }
        let mut deployment = Self { nodes, store: Some(store), _upstream: server, idle: [0.0; 2] };
        let before = deployment.read().await?;
        tokio::time::sleep(IDLE_SAMPLE_TIME).await;
        let (after, seconds) = (deployment.read().await?, IDLE_SAMPLE_TIME.as_secs_f64());
        let (trips, commands) = (after.trips - before.trips, after.commands - before.commands);
        deployment.idle = [trips as f64 / seconds, commands as f64 / seconds];
        Ok(deployment)
    }

    /// Reads all counters.
    pub(crate) async fn read(&self) -> Result<Counters, Failure> {
        let (mut trips, mut nodes) = (0, Duration::ZERO);
        for node in &self.nodes {
            trips += node.round_trips().await?;
        }
        tokio::time::sleep(SETTLE_TIME).await;
        for node in &self.nodes {
            nodes += node.server.processor_time()?;
        }
        let (commands, store) = match &self.store {
            Some(store) => (store.commands().await?, store.server.processor_time()?),
            None => (0, Duration::ZERO),
        };
        Ok(Counters { at: Instant::now(), nodes, store, trips, commands })
    }

    /// Cost since `before` divided by `count`, less the idle activity.
    pub(crate) async fn since(&self, before: Counters, count: usize) -> Result<Cost, Failure> {
        // CPU time first, because reading the other counters costs CPU time too.
        tokio::time::sleep(SETTLE_TIME).await;
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

/// A row with its open clients.
struct Running {
    row: Row,
    /// Index of the deployment it uses.
    deployment: usize,
    one: Caller,
    many: Vec<Caller>,
    turns: Vec<Turn>,
}

/// Measures every row in every round.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<(Row, Vec<Turn>)>, Failure> {
    let (mut deployment, mut running) = (Vec::new(), Vec::new());
    for backend in [Backend::Elements, Backend::Http] {
        // All rows with a store share the same nodes; some rows use only a few of them.
        for era in [Era::Handshake, Era::PerRequest] {
            let together = deployment.len();
            deployment.push(Deployment::together(backend, era).await?);
            for row in rows(backend, plan).into_iter().filter(|row| row.era == era) {
                let mut at = together;
                if let Some(count) = row.routing.without_store() {
                    at = deployment.len();
                    deployment.push(Deployment::alone(row, count, plan).await?);
                }
                running.push(Running::start(row, at, &deployment[at], plan).await?);
            }
        }
    }
    for row in &mut running {
        // Warm-up: the first calls pay one-time costs.
        row.turn(&deployment[row.deployment], plan).await?;
    }
    for round in 0..plan.rounds {
        for n in 0..running.len() {
            let at = contender_at(n, round, running.len());
            let row = &mut running[at];
            let turn = row.turn(&deployment[row.deployment], plan).await?;
            row.turns.push(turn);
        }
    }
    Ok(running.into_iter().map(|Running { row, turns, .. }| (row, turns)).collect())
}

impl Running {
    async fn start(row: Row, at: usize, deployment: &Deployment, plan: &Plan) -> Result<Self, Failure> {
        let caller = |owner| row.routing.caller(&deployment.nodes, owner, row.era, row.backend);
        let mut many = Vec::new();
        for owner in 0..plan.sessions {
            many.push(caller(owner).await?);
        }
        Ok(Self { row, deployment: at, one: caller(0).await?, many, turns: Vec::new() })
    }

    async fn turn(&mut self, deployment: &Deployment, plan: &Plan) -> Result<Turn, Failure> {
        let before = deployment.read().await?;
        let latencies = self.one.latencies(plan.in_sequence).await?;
        let in_sequence = deployment.since(before, plan.in_sequence).await?;
        let each = plan.calls.div_ceil(self.many.len());
        let calls = each * self.many.len();
        let before = deployment.read().await?;
        let begin = Instant::now();
        let mut tasks = JoinSet::new();
        for caller in self.many.drain(..) {
            tasks.spawn(caller.calls(CallBudget::of(each)));
        }
        while let Some(ended) = tasks.join_next().await {
            self.many.push(ended??.0);
        }
        let calls_per_second = calls as f64 / begin.elapsed().as_secs_f64();
        let cost = deployment.since(before, calls).await?;
        Ok(Turn { cost, calls_per_second, in_sequence, latencies })
    }
}
