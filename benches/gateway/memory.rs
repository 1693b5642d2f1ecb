//! Resident memory: idle, under load, with idle sessions and with open streams.

use std::time::Duration;

use crate::Failure;
use crate::calls::{Contender, Missing, contenders};
use crate::client::{Caller, Connection, Era};
use crate::crowd;
use crate::folder::Folder;
use crate::fronts::{Deployment, Frontend};
use crate::plan::{Plan, SIZES};
use crate::turn::Turn;
use crate::upstream::{ResponseFormat, ToolSet, tool_call};

/// Measured bytes of one contender, one figure per repetition; empty where it could not be measured.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) contender: Contender,
    pub(crate) idle: Vec<f64>,
    /// After calls over many sessions, with small and with large responses.
    pub(crate) loaded: Vec<f64>,
    pub(crate) loaded_large: Vec<f64>,
    /// With the smaller and the larger number of idle sessions.
    pub(crate) with_sessions: [Vec<f64>; 2],
    /// Per idle session (of the larger number) and per open stream.
    pub(crate) per_session: Vec<f64>,
    pub(crate) per_stream: Vec<f64>,
    pub(crate) with_streams: Vec<f64>,
}

/// Concurrent clients under load.
const SESSIONS: usize = 64;
/// Duration of the load.
const LOAD: Duration = Duration::from_secs(1);
/// Timeout of one step; a contender that exceeds it with many sessions skips that step from then on.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Measures each contender in new processes.
pub(crate) async fn measure(plan: &Plan, missing: &[Missing]) -> Result<Vec<Memory>, Failure> {
    let mut all = Vec::new();
    for contender in contenders(plan) {
        // Skip the bare upstream, which is no gateway, and nginx, which has no sessions.
        let is_missing = Missing::has(missing, contender, Era::Handshake);
        if contender.front == Frontend::Direct || is_missing {
            continue;
        }
        eprintln!("memory of {}", contender.title());
        let mut memory = Memory::new(contender);
        // Other gateways are only shown for comparison: one measurement is enough.
        let repeats = if contender.front == Frontend::Rialto { plan.repeats } else { 1 };
        for _ in 0..repeats {
            memory.measure_once(plan).await;
        }
        all.push(memory);
    }
    Ok(all)
}

impl Memory {
    fn new(contender: Contender) -> Self {
        Self {
            contender,
            idle: Vec::new(),
            loaded: Vec::new(),
            loaded_large: Vec::new(),
            with_sessions: [Vec::new(), Vec::new()],
            per_session: Vec::new(),
            per_stream: Vec::new(),
            with_streams: Vec::new(),
        }
    }

    /// Measures everything once. A step that fails is skipped.
    async fn measure_once(&mut self, plan: &Plan) {
        let bears = match self.contender.front {
            Frontend::Rialto | Frontend::Beside => true,
            Frontend::Other(other) => other.supports_many_sessions(),
            Frontend::Direct | Frontend::Nginx => false,
        };
        let mut outcomes = vec![self.calls(plan).await];
        if bears {
            outcomes.push(self.sessions(plan).await);
            outcomes.push(self.streams(plan).await);
        }
        for error in outcomes.into_iter().filter_map(Result::err) {
            eprintln!("{}: {error}", self.contender.title());
        }
    }

    async fn calls(&mut self, plan: &Plan) -> Result<(), Failure> {
        let (deployment, _folder) = self.start("memory", plan).await?;
        self.idle.push(crowd::resident_after_rest(&deployment.measured).await?);
        self.loaded.push(self.load(&deployment, SIZES[0]).await?);
        self.loaded_large.push(self.load(&deployment, SIZES[SIZES.len() - 1]).await?);
        Ok(())
    }

    async fn sessions(&mut self, plan: &Plan) -> Result<(), Failure> {
        let (deployment, _folder) = self.start("sessions", plan).await?;
        let server = &deployment.measured;
        let [few, many] = plan.crowds;
        tokio::time::timeout(TIMEOUT, crowd::open_sessions(server, few)).await??;
        let before = crowd::resident_after_rest(server).await?;
        self.with_sessions[0].push(before);
        tokio::time::timeout(TIMEOUT, crowd::open_sessions(server, many - few)).await??;
        let after = crowd::resident_after_rest(server).await?;
        self.with_sessions[1].push(after);
        self.per_session.push((after - before) / (many - few) as f64);
        Ok(())
    }

    async fn streams(&mut self, plan: &Plan) -> Result<(), Failure> {
        let (deployment, _folder) = self.start("streams", plan).await?;
        let streams = crowd::per_stream(&deployment.measured, plan.streams);
        let (each, whole) = tokio::time::timeout(TIMEOUT, streams).await??;
        self.per_stream.push(each);
        self.with_streams.push(whole);
        Ok(())
    }

    async fn start(&self, name: &str, plan: &Plan) -> Result<(Deployment, Folder), Failure> {
        let Contender { front, transport } = self.contender;
        let folder = Folder::new(name)?;
        let behind = self.contender.upstream_era(Era::Handshake).ok_or("it has no sessions")?;
        Ok((front.start(transport, behind, &ToolSet::of(&SIZES), &folder, plan).await?, folder))
    }

    /// Resident bytes right after the calls, before the process can release memory.
    async fn load(&self, deployment: &Deployment, bytes: usize) -> Result<f64, Failure> {
        let server = &deployment.measured;
        let tool = format!("{}{}", self.contender.front.prefix(), ResponseFormat::Json.tool(bytes));
        let mut callers = Vec::new();
        for _ in 0..SESSIONS {
            let connection = Connection::open_at(server.address, server.path).await?;
            callers.push(Caller::enter(connection, Era::Handshake, tool_call(&tool, bytes)).await?);
        }
        Turn::within(server, &mut callers, SESSIONS, LOAD).await?;
        Ok(server.resident()? as f64)
    }
}
