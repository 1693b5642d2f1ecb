//! Resident memory: idle, under load, with idle sessions and with open streams.

use std::time::Duration;

use crate::Failure;
use crate::calls::{Contender, Missing, contenders};
use crate::client::{Caller, Connection, Era};
use crate::crowd;
use crate::folder::Folder;
use crate::fronts::{Front, Standing};
use crate::plan::{Plan, SIZES};
use crate::turn::Turn;
use crate::upstream::{Form, Offer, subject};

/// Bytes of one contender, measured several times; nothing where it could not be measured.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) contender: Contender,
    pub(crate) idle: Vec<f64>,
    /// After calls over many sessions, with small and with large answers.
    pub(crate) loaded: Vec<f64>,
    pub(crate) loaded_large: Vec<f64>,
    /// With the smaller and the larger crowd of idle sessions.
    pub(crate) with_sessions: [Vec<f64>; 2],
    /// For each idle session of the larger crowd, and for each open stream.
    pub(crate) per_session: Vec<f64>,
    pub(crate) per_stream: Vec<f64>,
    pub(crate) with_streams: Vec<f64>,
}

/// Clients at once while there is load.
const SESSIONS: usize = 64;
/// How long there is load.
const LOAD: Duration = Duration::from_secs(1);
/// How long one step may take; a contender that needs longer for a crowd is not asked for it again.
const PATIENCE: Duration = Duration::from_secs(20);

/// Measures each contender in new processes.
pub(crate) async fn measure(plan: &Plan, missing: &[Missing]) -> Result<Vec<Memory>, Failure> {
    let mut all = Vec::new();
    for contender in contenders(plan) {
        // The upstream is no gateway, and nginx knows no sessions.
        let is_missing = Missing::has(missing, contender, Era::Handshake);
        if contender.front == Front::Direct || is_missing {
            continue;
        }
        eprintln!("memory of {}", contender.title());
        let mut memory = Memory::new(contender);
        // Others are shown beside Rialto, and once is enough for that.
        let repeats = if contender.front == Front::Rialto { plan.repeats } else { 1 };
        for _ in 0..repeats {
            memory.look(plan).await;
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

    /// Looks at everything once. What cannot be done is left out, and the rest is not.
    async fn look(&mut self, plan: &Plan) {
        let bears = match self.contender.front {
            Front::Rialto | Front::Beside => true,
            Front::Other(other) => other.bears_crowds(),
            Front::Direct | Front::Nginx => false,
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
        let (standing, _folder) = self.start("memory", plan).await?;
        self.idle.push(crowd::rested(&standing.measured).await?);
        self.loaded.push(self.load(&standing, SIZES[0]).await?);
        self.loaded_large.push(self.load(&standing, SIZES[SIZES.len() - 1]).await?);
        Ok(())
    }

    async fn sessions(&mut self, plan: &Plan) -> Result<(), Failure> {
        let (standing, _folder) = self.start("sessions", plan).await?;
        let server = &standing.measured;
        let [few, many] = plan.crowds;
        tokio::time::timeout(PATIENCE, crowd::open_sessions(server, few)).await??;
        let before = crowd::rested(server).await?;
        self.with_sessions[0].push(before);
        tokio::time::timeout(PATIENCE, crowd::open_sessions(server, many - few)).await??;
        let after = crowd::rested(server).await?;
        self.with_sessions[1].push(after);
        self.per_session.push((after - before) / (many - few) as f64);
        Ok(())
    }

    async fn streams(&mut self, plan: &Plan) -> Result<(), Failure> {
        let (standing, _folder) = self.start("streams", plan).await?;
        let streams = crowd::per_stream(&standing.measured, plan.streams);
        let (each, whole) = tokio::time::timeout(PATIENCE, streams).await??;
        self.per_stream.push(each);
        self.with_streams.push(whole);
        Ok(())
    }

    async fn start(&self, name: &str, plan: &Plan) -> Result<(Standing, Folder), Failure> {
        let Contender { front, wire } = self.contender;
        let folder = Folder::new(name)?;
        let behind = self.contender.behind(Era::Handshake).ok_or("it has no sessions")?;
        Ok((front.start(wire, behind, &Offer::of(&SIZES), &folder, plan).await?, folder))
    }

    /// The bytes right after calls, before the process could give any back.
    async fn load(&self, standing: &Standing, bytes: usize) -> Result<f64, Failure> {
        let server = &standing.measured;
        let tool = format!("{}{}", self.contender.front.prefix(), Form::Json.tool(bytes));
        let mut callers = Vec::new();
        for _ in 0..SESSIONS {
            let connection = Connection::open_at(server.address, server.path).await?;
            callers.push(Caller::enter(connection, Era::Handshake, subject(&tool, bytes)).await?);
        }
        Turn::within(server, &mut callers, SESSIONS, LOAD).await?;
        Ok(server.resident()? as f64)
    }
}
