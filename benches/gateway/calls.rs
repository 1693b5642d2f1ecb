//! Calls through every contender, cell by cell and round by round.

use std::time::Duration;

use crate::Failure;
use crate::client::{Caller, Connection, Era};
use crate::folder::Folder;
use crate::fronts::{Front, Standing};
use crate::others::Other;
use crate::plan::{Cell, ERAS, Plan, SESSIONS, SIZES};
use crate::turn::{Turn, whose};
use crate::upstream::{Form, Offer, SUBJECT, Wire, subject};

/// Who is measured: what stands in front of an upstream, and how it reaches that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) front: Front,
    pub(crate) wire: Wire,
}

/// All that there are; those with the same wire are compared.
pub(crate) fn contenders(plan: &Plan) -> Vec<Contender> {
    let mut all = Vec::new();
    for wire in [Wire::Http, Wire::Stdio] {
        let own = match wire {
            Wire::Http => [Front::Direct, Front::Nginx, Front::Rialto].as_slice(),
            Wire::Stdio => &[Front::Rialto],
        };
        let others = Other::ALL.into_iter().filter(|other| other.wire() == wire).map(Front::Other);
        all.extend(own.iter().copied().chain(others).map(|front| Contender { front, wire }));
    }
    all.retain(|contender| plan.wants(contender.front));
    all
}

impl Contender {
    /// The era at the upstream for clients of that era, if it serves such clients.
    pub(crate) fn behind(&self, client: Era) -> Option<Era> {
        match self.front {
            Front::Other(other) => other.behind(client),
            _ => Some(client),
        }
    }

    pub(crate) fn title(&self) -> String {
        match self.wire {
            Wire::Http => self.front.title(),
            Wire::Stdio => format!("{}, stdio", self.front.title()),
        }
    }

    /// On standard input and output there are no forms.
    pub(crate) fn does(&self, cell: &Cell) -> bool {
        self.wire == Wire::Http || cell.form == Form::Json
    }
}

/// A contender that could not be measured.
#[derive(Debug)]
pub(crate) struct Missing {
    pub(crate) contender: Contender,
    /// With clients of one era, or with none at all.
    pub(crate) era: Option<Era>,
    pub(crate) why: String,
}

impl Missing {
    /// Whether a contender has nothing to say to clients of an era.
    pub(crate) fn has(missing: &[Self], contender: Contender, era: Era) -> bool {
        missing.iter().any(|one| one.contender == contender && one.era.is_none_or(|missing| missing == era))
    }
}

/// How often a contender is started anew before it is given up.
const FALLS: usize = 3;
/// How long a contender may take until all its sessions are open.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a contender did in one cell.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) contender: Contender,
    pub(crate) cell: Cell,
    pub(crate) turns: Vec<Turn>,
    /// Why there are no turns, or no more.
    pub(crate) failure: Option<String>,
}

/// A contender at work.
struct Running {
    contender: Contender,
    era: Era,
    // Dropped before the process: some wait for their clients to go.
    callers: Vec<Caller>,
    standing: Option<Standing>,
    folder: Folder,
    /// How often it failed.
    falls: usize,
}

/// Measures all cells; those that could not be started are named with the reason.
pub(crate) async fn measure(plan: &Plan, missing: &mut Vec<Missing>) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for era in ERAS {
        let cells: Vec<Cell> = plan.cells.iter().copied().filter(|cell| cell.era == era).collect();
        if cells.is_empty() {
            continue;
        }
        let mut running = Vec::new();
        for contender in contenders(plan).into_iter().filter(|contender| contender.behind(era).is_some()) {
            if Missing::has(missing, contender, era) {
                continue;
            }
            match Running::start(contender, era, plan).await {
                Ok(new) => running.push(new),
                Err(error) => missing.push(Missing { contender, era: Some(era), why: error.to_string() }),
            }
        }
        for cell in cells {
            eprintln!("{} {} {} bytes, {} sessions", era.revision(), cell.form.name(), cell.bytes, cell.sessions);
            rows.extend(turns(&mut running, cell, plan).await);
        }
    }
    Ok(rows)
}

/// All rounds of one cell.
async fn turns(running: &mut [Running], cell: Cell, plan: &Plan) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut at_work: Vec<(usize, Row, Duration)> = Vec::new();
    for (at, one) in running.iter_mut().enumerate().filter(|(_, one)| one.contender.does(&cell)) {
        let mut row = Row { contender: one.contender, cell, turns: Vec::new(), failure: None };
        // The first calls pay for what happens once.
        let (time, warm) = match one.prepare(cell, plan).await {
            Ok(()) => (plan.turn / 2, one.turn(cell, plan.turn / 2).await),
            Err(error) => (plan.turn, Err(error)),
        };
        match warm {
            // For some this is all that there is time for.
            Ok(turn) if turn.wall() > plan.budget => row.turns.push(turn),
            Ok(_) => {
                at_work.push((at, row, time));
                continue;
            }
            Err(error) => row.failure = Some(one.fell(&error)),
        }
        rows.push(row);
    }
    for round in 0..plan.rounds {
        for n in 0..at_work.len() {
            let which = whose(n, round, at_work.len());
            let (at, row, spent) = &mut at_work[which];
            if row.failure.is_some() || *spent > plan.budget {
                continue;
            }
            match running[*at].turn(cell, plan.turn).await {
                Ok(turn) => {
                    *spent += turn.wall();
                    row.turns.push(turn);
                }
                Err(error) => row.failure = Some(running[*at].fell(&error)),
            }
        }
    }
    rows.extend(at_work.into_iter().map(|(_, row, _)| row));
    rows.sort_by_key(|row| running.iter().position(|one| one.contender == row.contender));
    rows
}

impl Running {
    async fn start(contender: Contender, era: Era, plan: &Plan) -> Result<Self, Failure> {
        let folder = Folder::new(&format!("{}-{}", contender.front.name(), contender.wire.name()).replace(' ', "-"))?;
        let mut new = Self { contender, era, callers: Vec::new(), standing: None, folder, falls: 0 };
        tokio::time::timeout(PATIENCE, new.stand(plan)).await??;
        Ok(new)
    }

    /// Starts the process, and opens all sessions.
    async fn stand(&mut self, plan: &Plan) -> Result<(), Failure> {
        let Contender { front, wire } = self.contender;
        let behind = self.contender.behind(self.era).ok_or("it does not speak that")?;
        let standing = front.start(wire, behind, &Offer::of(&SIZES), &self.folder, plan).await?;
        let server = &standing.measured;
        for _ in 0..SESSIONS[SESSIONS.len() - 1] {
            let connection = Connection::open_at(server.address, server.path).await?;
            self.callers.push(Caller::enter(connection, self.era, SUBJECT).await?);
        }
        self.standing = Some(standing);
        Ok(())
    }

    /// Makes all sessions call what the cell wants.
    async fn prepare(&mut self, cell: Cell, plan: &Plan) -> Result<(), Failure> {
        if self.falls >= FALLS {
            return Err("given up".into());
        }
        if self.standing.is_none() {
            tokio::time::timeout(PATIENCE, self.stand(plan)).await??;
        }
        let tool = format!("{}{}", self.contender.front.prefix(), cell.form.tool(cell.bytes));
        for caller in &mut self.callers {
            caller.aim(subject(&tool, cell.bytes))?;
        }
        Ok(())
    }

    async fn turn(&mut self, cell: Cell, time: Duration) -> Result<Turn, Failure> {
        let standing = self.standing.as_ref().ok_or("it does not run")?;
        Turn::within(&standing.measured, &mut self.callers, cell.sessions, time).await
    }

    /// What became of it; it is started anew for the next cell, because sessions of it are lost.
    fn fell(&mut self, error: &Failure) -> String {
        self.callers.clear();
        self.standing = None;
        self.falls += 1;
        error.to_string()
    }
}
