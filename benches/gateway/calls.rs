//! Calls through every contender, by scenario and round.

use std::time::Duration;

use crate::Failure;
use crate::client::{Caller, Connection, Era};
use crate::folder::Folder;
use crate::fronts::{Deployment, Frontend};
use crate::others::Other;
use crate::plan::{ERAS, Plan, SESSIONS, SIZES, Scenario};
use crate::turn::{Turn, contender_at};
use crate::upstream::{ResponseFormat, SUBJECT, ToolSet, UpstreamTransport, tool_call};

/// A contender: a proxy or gateway, and its transport to the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) front: Frontend,
    pub(crate) transport: UpstreamTransport,
}

/// All contenders; those with the same upstream transport are compared.
pub(crate) fn contenders(plan: &Plan) -> Vec<Contender> {
    let mut all = Vec::new();
    for transport in [UpstreamTransport::Http, UpstreamTransport::Stdio] {
        let own = match transport {
            UpstreamTransport::Http => [Frontend::Direct, Frontend::Nginx, Frontend::Rialto].as_slice(),
            UpstreamTransport::Stdio => &[Frontend::Rialto],
        };
        let others = Other::ALL.into_iter().filter(|other| other.transport() == transport).map(Frontend::Other);
        all.extend(own.iter().copied().chain(others).map(|front| Contender { front, transport }));
    }
    all.retain(|contender| plan.wants(contender.front));
    all
}

impl Contender {
    /// The era used with the upstream for clients of an era; `None` if such clients are not supported.
    pub(crate) fn upstream_era(&self, client: Era) -> Option<Era> {
        match self.front {
            Frontend::Other(other) => other.upstream_era(client),
            _ => Some(client),
        }
    }

    pub(crate) fn title(&self) -> String {
        match self.transport {
            UpstreamTransport::Http => self.front.title(),
            UpstreamTransport::Stdio => format!("{}, stdio", self.front.title()),
        }
    }

    /// Whether the scenario applies: stdio has no JSON and SSE variants.
    pub(crate) fn supports(&self, scenario: &Scenario) -> bool {
        self.transport == UpstreamTransport::Http || scenario.form == ResponseFormat::Json
    }
}

/// A contender that could not be installed, started or measured.
#[derive(Debug)]
pub(crate) struct Missing {
    pub(crate) contender: Contender,
    /// For clients of one era, or `None` for all.
    pub(crate) era: Option<Era>,
    pub(crate) why: String,
}

impl Missing {
    /// Whether a contender is missing for clients of an era.
    pub(crate) fn has(missing: &[Self], contender: Contender, era: Era) -> bool {
        missing.iter().any(|one| one.contender == contender && one.era.is_none_or(|missing| missing == era))
    }
}

/// Restarts of a failing contender before it is skipped.
const MAX_RESTARTS: usize = 3;
/// Timeout for opening all sessions of a contender.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measurements of a contender in one scenario.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) contender: Contender,
    pub(crate) scenario: Scenario,
    pub(crate) turns: Vec<Turn>,
    /// Why measurements are missing or incomplete.
    pub(crate) failure: Option<String>,
}

/// A running contender with its open clients.
struct Running {
    contender: Contender,
    era: Era,
    // Dropped before the process: some gateways wait for their clients to disconnect.
    callers: Vec<Caller>,
    deployment: Option<Deployment>,
    folder: Folder,
    /// Number of failures so far.
    falls: usize,
}

/// Measures all scenarios; contenders that fail to start are added to `missing`.
pub(crate) async fn measure(plan: &Plan, missing: &mut Vec<Missing>) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for era in ERAS {
        let scenarios: Vec<Scenario> = plan.scenarios.iter().copied().filter(|scenario| scenario.era == era).collect();
        if scenarios.is_empty() {
            continue;
        }
        let mut running = Vec::new();
        for contender in contenders(plan).into_iter().filter(|contender| contender.upstream_era(era).is_some()) {
            if Missing::has(missing, contender, era) {
                continue;
            }
            match Running::start(contender, era, plan).await {
                Ok(new) => running.push(new),
                Err(error) => missing.push(Missing { contender, era: Some(era), why: error.to_string() }),
            }
        }
        for scenario in scenarios {
            eprintln!(
                "{} {} {} bytes, {} sessions",
                era.revision(),
                scenario.form.name(),
                scenario.bytes,
                scenario.sessions
            );
            rows.extend(turns(&mut running, scenario, plan).await);
        }
    }
    Ok(rows)
}

/// All rounds of one scenario.
async fn turns(running: &mut [Running], scenario: Scenario, plan: &Plan) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut at_work: Vec<(usize, Row, Duration)> = Vec::new();
    for (at, one) in running.iter_mut().enumerate().filter(|(_, one)| one.contender.supports(&scenario)) {
        let mut row = Row { contender: one.contender, scenario, turns: Vec::new(), failure: None };
        // Warm-up: the first calls pay one-time costs.
        let (time, warm) = match one.prepare(scenario, plan).await {
            Ok(()) => (plan.turn / 2, one.turn(scenario, plan.turn / 2).await),
            Err(error) => (plan.turn, Err(error)),
        };
        match warm {
            // A slow contender may only have time for this one.
            Ok(turn) if turn.wall() > plan.budget => row.turns.push(turn),
            Ok(_) => {
                at_work.push((at, row, time));
                continue;
            }
            Err(error) => row.failure = Some(one.record_failure(&error)),
        }
        rows.push(row);
    }
    for round in 0..plan.rounds {
        for n in 0..at_work.len() {
            let which = contender_at(n, round, at_work.len());
            let (at, row, spent) = &mut at_work[which];
            if row.failure.is_some() || *spent > plan.budget {
                continue;
            }
            match running[*at].turn(scenario, plan.turn).await {
                Ok(turn) => {
                    *spent += turn.wall();
                    row.turns.push(turn);
                }
                Err(error) => row.failure = Some(running[*at].record_failure(&error)),
            }
        }
    }
    rows.extend(at_work.into_iter().map(|(_, row, _)| row));
    rows.sort_by_key(|row| running.iter().position(|one| one.contender == row.contender));
    rows
}

impl Running {
    async fn start(contender: Contender, era: Era, plan: &Plan) -> Result<Self, Failure> {
        let folder =
            Folder::new(&format!("{}-{}", contender.front.name(), contender.transport.name()).replace(' ', "-"))?;
        let mut new = Self { contender, era, callers: Vec::new(), deployment: None, folder, falls: 0 };
        tokio::time::timeout(TIMEOUT, new.open_all_sessions(plan)).await??;
        Ok(new)
    }

    /// Starts the process and opens all sessions.
    async fn open_all_sessions(&mut self, plan: &Plan) -> Result<(), Failure> {
        let Contender { front, transport } = self.contender;
        let behind = self.contender.upstream_era(self.era).ok_or("it does not speak that")?;
        let deployment = front.start(transport, behind, &ToolSet::of(&SIZES), &self.folder, plan).await?;
        let server = &deployment.measured;
        for _ in 0..SESSIONS[SESSIONS.len() - 1] {
            let connection = Connection::open_at(server.address, server.path).await?;
            self.callers.push(Caller::enter(connection, self.era, SUBJECT).await?);
        }
        self.deployment = Some(deployment);
        Ok(())
    }

    /// Sets the scenario's tool call in all sessions.
    async fn prepare(&mut self, scenario: Scenario, plan: &Plan) -> Result<(), Failure> {
        if self.falls >= MAX_RESTARTS {
            return Err("given up".into());
        }
        if self.deployment.is_none() {
            tokio::time::timeout(TIMEOUT, self.open_all_sessions(plan)).await??;
        }
        let tool = format!("{}{}", self.contender.front.prefix(), scenario.form.tool(scenario.bytes));
        for caller in &mut self.callers {
            caller.set_tool_call(tool_call(&tool, scenario.bytes))?;
        }
        Ok(())
    }

    async fn turn(&mut self, scenario: Scenario, time: Duration) -> Result<Turn, Failure> {
        let deployment = self.deployment.as_ref().ok_or("it does not run")?;
        Turn::within(&deployment.measured, &mut self.callers, scenario.sessions, time).await
    }

    /// Records a failure. The contender is restarted for the next scenario, because its sessions are lost.
    fn record_failure(&mut self, error: &Failure) -> String {
        self.callers.clear();
        self.deployment = None;
        self.falls += 1;
        error.to_string()
    }
}
