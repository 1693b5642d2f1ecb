//! What it costs that callers are known: the same call without a credential, with an API key, and with a signed token, ten
//! rules and two limits.

use std::path::Path;

use crate::client::{Caller, Connection, Era};
use crate::document::Table;
use crate::folder::Folder;
use crate::fronts::{rialto_with, server_section};
use crate::guarded::{self, GuardedConfig};
use crate::plan::ERAS;
use crate::process::Server;
use crate::spread::Spread;
use crate::tables::ratio;
use crate::turn::{Turn, contender_at};
use crate::upstream::{self, ResponseFormat, ToolSet, tool_call};
use crate::{Failure, Plan};

/// The calls of one era with one kind of credential.
pub(crate) struct GuardRow {
    era: Era,
    label: &'static str,
    turns: Vec<Turn>,
}

/// A gateway with its open clients.
struct Guarded {
    row: GuardRow,
    gateway: Server,
    callers: Vec<Caller>,
    _upstream: Server,
    _folder: Folder,
}

/// The row that the others are compared with.
const OPEN: &str = "none";

/// Measures every gateway in every round.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<GuardRow>, Failure> {
    let mut running = Vec::new();
    for era in ERAS {
        for label in ["open", "key", "token"] {
            let folder = Folder::new(&format!("guards-{}-{label}", era.revision()))?;
            let config = match label {
                "open" => None,
                "key" => Some(guarded::with_api_key(Path::new(Server::rialto().as_std().get_program()))?),
                _ => Some(guarded::with_token_rules_and_limits(&folder.place().join("keys.json"))?),
            };
            let mut new = Guarded::start(era, config, folder, plan).await?;
            Turn::take(&new.gateway, &mut new.callers, plan.pairs.calls.div_ceil(2)).await?;
            running.push(new);
        }
    }
    for round in 0..plan.pairs.rounds {
        for n in 0..running.len() {
            let at = contender_at(n, round, running.len());
            let Guarded { row, gateway, callers, .. } = &mut running[at];
            row.turns.push(Turn::take(gateway, callers, plan.pairs.calls).await?);
        }
    }
    Ok(running.into_iter().map(|guarded| guarded.row).collect())
}

impl Guarded {
    async fn start(era: Era, config: Option<GuardedConfig>, folder: Folder, plan: &Plan) -> Result<Self, Failure> {
        let bytes = plan.pairs.bytes;
        let (tool, offer) = (ResponseFormat::Json.tool(bytes), ToolSet::of(&[bytes]));
        let behind = upstream::start(era, &offer).await?;
        let reached = server_section(Some(behind.address), era, &offer)?;
        let lines = config.as_ref().map_or("", |config| &config.lines);
        let gateway = rialto_with(lines, Server::rialto(), &[reached], &folder, plan).await?;
        let mut callers = Vec::new();
        for _ in 0..plan.pairs.sessions {
            let mut connection = Connection::open(gateway.address).await?;
            if let Some(config) = &config {
                connection = connection.with_authorization(&config.authorization);
            }
            callers.push(Caller::enter(connection, era, tool_call(&tool, bytes)).await?);
        }
        let row = GuardRow { era, label: config.map_or(OPEN, |config| config.label), turns: Vec::new() };
        Ok(Self { row, gateway, callers, _upstream: behind, _folder: folder })
    }
}

/// Ratio of a row to that without a credential, round by round.
fn to_open(rows: &[GuardRow], row: &GuardRow) -> Option<Spread> {
    let open = rows.iter().find(|other| other.era == row.era && other.label == OPEN)?;
    (row.label != OPEN).then(|| ratio(&row.turns, &open.turns, Turn::microseconds_per_call))
}

/// The ratios to calls without a credential, by the kind of credential.
pub(crate) fn ratios(rows: &[GuardRow]) -> Vec<(&'static str, String, Spread)> {
    let judged = rows.iter().filter_map(|row| Some((row, to_open(rows, row)?)));
    judged.map(|(row, spread)| (row.label, format!("{}: ", row.era.revision()), spread)).collect()
}

/// The table of all rows.
pub(crate) fn table(rows: &[GuardRow]) -> String {
    let mut table = Table::new(&["revision", "credential", "calls/s", "CPU us/call", "CPU to none"]);
    for row in rows {
        table.row(&[
            row.era.revision().to_owned(),
            row.label.to_owned(),
            Spread::of(row.turns.iter().map(Turn::calls_per_second)).show(0),
            Spread::of(row.turns.iter().map(Turn::microseconds_per_call)).show(1),
            to_open(rows, row).map(|spread| spread.show(3)).unwrap_or_default(),
        ]);
    }
    table.text()
}
