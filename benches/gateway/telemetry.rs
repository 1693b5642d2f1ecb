//! What it costs to be seen: the same call while nobody watches, in a gateway that a viewer of the console watches or
//! reads recorded calls from without a pause, with one trace in a hundred sent to a collector, and with an access log in a
//! file.

use std::fs::File;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::client::{Caller, Connection, Era};
use crate::document::Table;
use crate::folder::Folder;
use crate::fronts::server_section;
use crate::plan::ERAS;
use crate::process::Server;
use crate::spread::Spread;
use crate::tables::ratio;
use crate::turn::{Turn, contender_at};
use crate::upstream::{self, ResponseFormat, ToolSet, tool_call};
use crate::{Failure, Plan};

/// How a gateway is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Telemetry {
    /// By nobody, with the console there to be opened.
    Closed,
    /// By nobody, in the build given by `--beside`.
    Beside,
    /// By a viewer who reads all calls with their bodies.
    Watched,
    /// By the same viewer, who also reads the list of recorded calls again and again.
    Read,
    /// One trace in a hundred goes to a collector.
    Traced,
    /// A line for each request, in a file.
    Logged,
}

/// The calls of one era in one gateway.
pub(crate) struct TelemetryRow {
    era: Era,
    telemetry: Telemetry,
    turns: Vec<Turn>,
}

/// A gateway with its open clients, and what sees it.
struct Seen {
    row: TelemetryRow,
    gateway: Server,
    callers: Vec<Caller>,
    reader: Option<JoinHandle<()>>,
    _upstream: Server,
    _folder: Folder,
}

/// Size of the text in an answer.
pub(crate) const ANSWER_BYTES: usize = 300;
/// Token of the viewer.
const VIEWER: &str = "a-viewer-of-the-benchmark";

impl Telemetry {
    const ALL: [Self; 6] = [Self::Closed, Self::Beside, Self::Watched, Self::Read, Self::Traced, Self::Logged];

    fn label(self) -> &'static str {
        match self {
            Self::Closed => "nobody",
            Self::Beside => "nobody, the other build",
            Self::Watched => "a viewer of the console",
            Self::Read => "one who reads 500 calls in a loop",
            Self::Traced => "a collector, 1 % of the traces",
            Self::Logged => "an access log in a file",
        }
    }
}

/// Measures every gateway in every round.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<TelemetryRow>, Failure> {
    let mut running = Vec::new();
    for era in ERAS {
        for telemetry in Telemetry::ALL {
            if telemetry != Telemetry::Beside || plan.beside.is_some() {
                let mut seen = Seen::start(era, telemetry, plan).await?;
                Turn::take(&seen.gateway, &mut seen.callers, plan.pairs.calls.div_ceil(2)).await?;
                running.push(seen);
            }
        }
    }
    for round in 0..plan.pairs.rounds {
        for n in 0..running.len() {
            let at = contender_at(n, round, running.len());
            let Seen { row, gateway, callers, .. } = &mut running[at];
            // Others have the processors to themselves in their turns.
            let list_reader = match row.telemetry {
                Telemetry::Read => Some(tokio::spawn(read_calls(TcpStream::connect(gateway.address).await?))),
                _ => None,
            };
            row.turns.push(Turn::take(gateway, callers, plan.pairs.calls).await?);
            if let Some(list_reader) = list_reader {
                list_reader.abort();
                // A reader that has ended found the list missing.
                assert!(list_reader.await.is_err_and(|error| error.is_cancelled()), "the list of calls is read");
            }
        }
    }
    Ok(running
        .into_iter()
        .map(|seen| {
            if let Some(reader) = seen.reader {
                reader.abort();
            }
            seen.row
        })
        .collect())
}

impl Seen {
    async fn start(era: Era, telemetry: Telemetry, plan: &Plan) -> Result<Self, Failure> {
        let folder = Folder::new(&format!("telemetry-{}-{telemetry:?}", era.revision()))?;
        let (tool, offer) = (ResponseFormat::Json.tool(ANSWER_BYTES), ToolSet::of(&[ANSWER_BYTES]));
        let behind = upstream::start(era, &offer).await?;
        let mut text = format!(
            "listen = \"127.0.0.1:0\"\n[servers.upstream]\n{}",
            server_section(Some(behind.address), era, &offer)?
        );
        let mut reader = None;
        let mut level = "warn";
        match telemetry {
            Telemetry::Closed | Telemetry::Beside => {}
            Telemetry::Watched | Telemetry::Read => {
                text += &format!(
                    "[admin]\nbodies = \"always\"\n[admin.tokens]\nann = {{ token = {VIEWER:?}, may = \"bodies\" }}\n"
                );
            }
            Telemetry::Traced => {
                let collector = TcpListener::bind("127.0.0.1:0").await?;
                text += &format!(
                    "[telemetry]\nendpoint = \"http://{}\"\nsampler = \"parentbased_traceidratio\"\nsample_ratio = 0.01\n",
                    collector.local_addr()?
                );
                reader = Some(tokio::spawn(collect(collector)));
            }
            Telemetry::Logged => {
                level = "info";
                text += "[log]\naccess = true\n";
            }
        }
        let beside = plan.beside.as_ref().filter(|_| telemetry == Telemetry::Beside);
        let mut command = beside.map_or_else(Server::rialto, Command::new);
        command.args(["serve", "--log", level, "--config"]).arg(folder.write("rialto.toml", &text)?);
        command.stderr(File::create(folder.place().join("log"))?);
        let gateway = Server::start(command).await?;
        if matches!(telemetry, Telemetry::Watched | Telemetry::Read) {
            reader = Some(tokio::spawn(watch(TcpStream::connect(gateway.address).await?)));
        }
        let mut callers = Vec::new();
        for _ in 0..plan.pairs.sessions {
            let connection = Connection::open(gateway.address).await?;
            callers.push(Caller::enter(connection, era, tool_call(&tool, ANSWER_BYTES)).await?);
        }
        let row = TelemetryRow { era, telemetry, turns: Vec::new() };
        Ok(Self { row, gateway, callers, reader, _upstream: behind, _folder: folder })
    }
}

/// Reads the live stream of the console until it ends.
async fn watch(mut stream: TcpStream) {
    let request = format!(
        "GET /admin/v1/live?topics=call,figures HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {VIEWER}\r\n\r\n"
    );
    let mut received = vec![0; 64 << 10];
    let mut is_first = true;
    if stream.write_all(request.as_bytes()).await.is_ok() {
        while let Ok(length @ 1..) = stream.read(&mut received).await {
            assert!(!is_first || received[..length].starts_with(b"HTTP/1.1 200"), "the viewer is let in");
            is_first = false;
        }
    }
}

/// Reads recorded calls until it is stopped; ends where they cannot be read.
async fn read_calls(mut stream: TcpStream) {
    let request =
        format!("GET /admin/v1/calls?limit=500 HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {VIEWER}\r\n\r\n");
    let (mut gathered, mut received) = (Vec::new(), vec![0; 64 << 10]);
    while stream.write_all(request.as_bytes()).await.is_ok() {
        loop {
            match stream.read(&mut received).await {
                Ok(length @ 1..) => gathered.extend_from_slice(&received[..length]),
                _ => return,
            }
            if message_length(&gathered).is_some_and(|whole| whole <= gathered.len()) {
                break;
            }
        }
        if !gathered.starts_with(b"HTTP/1.1 200") {
            return;
        }
        gathered.clear();
    }
}

/// Accepts whatever is exported.
async fn collect(collector: TcpListener) {
    while let Ok((mut stream, _)) = collector.accept().await {
        tokio::spawn(async move {
            let (mut gathered, mut received) = (Vec::new(), vec![0; 64 << 10]);
            while let Ok(length @ 1..) = stream.read(&mut received).await {
                gathered.extend_from_slice(&received[..length]);
                while let Some(whole) = message_length(&gathered).filter(|whole| *whole <= gathered.len()) {
                    gathered.drain(..whole);
                    let answer =
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            }
        });
    }
}

/// Bytes of the first message, once its head is there.
fn message_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    Some(head + length.unwrap_or(0))
}

/// CPU of a row to that of the gateway that nobody sees, round by round. Of the other build, the inverse: what this one
/// costs to it.
fn to_closed(rows: &[TelemetryRow], row: &TelemetryRow) -> Option<Spread> {
    let closed = rows.iter().find(|other| other.era == row.era && other.telemetry == Telemetry::Closed)?;
    match row.telemetry {
        // Its processor time is that of the reader, too.
        Telemetry::Closed | Telemetry::Read => None,
        Telemetry::Beside => Some(ratio(&closed.turns, &row.turns, Turn::microseconds_per_call)),
        _ => Some(ratio(&row.turns, &closed.turns, Turn::microseconds_per_call)),
    }
}

/// The p99 of a gateway from which calls are read to that of the one that is only watched.
fn late_to_watched(rows: &[TelemetryRow], row: &TelemetryRow) -> Option<Spread> {
    let watched = rows.iter().find(|other| other.era == row.era && other.telemetry == Telemetry::Watched)?;
    (row.telemetry == Telemetry::Read).then(|| ratio(&row.turns, &watched.turns, Turn::p99))
}

/// The ratios that have a target.
pub(crate) fn ratios(rows: &[TelemetryRow]) -> Vec<(Telemetry, String, Spread)> {
    let judged =
        rows.iter().filter_map(|row| Some((row, to_closed(rows, row).or_else(|| late_to_watched(rows, row))?)));
    judged.map(|(row, spread)| (row.telemetry, format!("{}: ", row.era.revision()), spread)).collect()
}

/// The table of all rows.
pub(crate) fn table(rows: &[TelemetryRow]) -> String {
    let mut table = Table::new(&["revision", "seen by", "calls/s", "CPU us/call", "CPU ratio", "p99 ms", "p99 ratio"]);
    for row in rows {
        table.row(&[
            row.era.revision().to_owned(),
            row.telemetry.label().to_owned(),
            Spread::of(row.turns.iter().map(Turn::calls_per_second)).show(0),
            Spread::of(row.turns.iter().map(Turn::microseconds_per_call)).show(1),
            to_closed(rows, row).map(|spread| spread.show(3)).unwrap_or_default(),
            Spread::of(row.turns.iter().map(Turn::p99)).show(2),
            late_to_watched(rows, row).map(|spread| spread.show(2)).unwrap_or_default(),
        ]);
    }
    table.text()
}
