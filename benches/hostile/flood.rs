//! A flood of credentials that nobody accepts, from 127.0.0.2, beside one healthy client with a good key.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rialto::policy::GeneratedKey;

use crate::client::{Caller, Connection, Era, ToolCall};
use crate::folder::Folder;
use crate::guarded::{self, GuardedConfig};
use crate::process::Server;
use crate::spread::Spread;
use crate::{CALL_INTERVAL, Failure, WARM_UP, attacks};

/// What the flood consists of.
#[derive(Debug, Clone, Copy)]
enum BadCredential {
    /// API keys of the right form that nobody has.
    Key,
    /// Tokens of a known issuer with a wrong signature, which has to be verified each time.
    ForgedToken,
}

/// How a flood was answered.
#[derive(Debug, Default, Clone, Copy)]
struct FloodAnswers {
    unauthorized: usize,
    too_many: usize,
    /// Other answers, and connections that ended.
    others: usize,
}

/// Requests of the flood per second.
const FLOOD_RATE: u32 = 10_000;
const FLOOD_CONNECTIONS: u32 = 32;
/// Threads that send the flood.
const FLOOD_SENDERS: u32 = 4;
/// Duration of a flood, and of the calm before it.
const FLOOD_TIME: Duration = Duration::from_secs(10);
const CALM_TIME: Duration = Duration::from_secs(5);
/// Different credentials of a flood.
const BAD_CREDENTIALS: usize = 1_000;
const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
/// How often calm and flood alternate.
const FLOOD_ROUNDS: usize = 3;

/// Prints the table of floods.
pub(crate) async fn run_floods(divisor: usize) -> Result<(), Failure> {
    println!(
        "\n| flood | requests/s | 401 | 429 | other | p99 calm | p99 with the flood elsewhere | p99 in the flood | to calm | to elsewhere |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    for kind in [BadCredential::Key, BadCredential::ForgedToken] {
        println!("{}", flood(kind, u32::try_from(divisor)?).await?);
    }
    Ok(())
}

/// Floods one gateway, in turns with calm; returns a row of the table.
async fn flood(kind: BadCredential, divisor: u32) -> Result<String, Failure> {
    let folder = Folder::new("flood")?;
    let key = guarded::with_api_key(Path::new(Server::rialto().as_std().get_program()))?;
    let token = guarded::with_token_rules_and_limits(&folder.place().join("keys.json"))?;
    // The healthy client has a key, so rules and limits, which are for the token's roles, are left out.
    let issuer = token.lines.split("[[policy").next().unwrap_or_default();
    let text = format!("[servers.elements]\nbuiltin = \"elements\"\n{}\n{issuer}", key.lines);
    let file = folder.write("f.toml", &text)?;
    let gateway = || {
        let mut command = Server::rialto();
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "error", "--config"]).arg(&file);
        command
    };
    let server = Server::start(gateway()).await?;
    // Shares nothing with the first but the machine.
    let elsewhere = Server::start(gateway()).await?;
    let call = ToolCall { tool: "getElement", arguments: r#"{"name":"Iron"}"#, answer: b"Iron", length: None };
    let connection = Connection::open(server.address).await?.with_authorization(&key.authorization);
    let mut caller = Caller::enter(connection, Era::Handshake, call).await?;
    caller.latencies(WARM_UP).await?;
    let (mut calm, mut beside, mut flooded) = (Vec::new(), Vec::new(), Vec::new());
    let (mut answers, mut flood_seconds) = (FloodAnswers::default(), 0.0);
    let credentials = Arc::new(bad_credentials(kind, &token)?);
    let flood = |address| tokio::spawn(send_flood(address, credentials.clone(), FLOOD_TIME / divisor));
    for _ in 0..FLOOD_ROUNDS {
        calm.push(p99_during(&mut caller, tokio::spawn(tokio::time::sleep(CALM_TIME / divisor))).await?.0);
        let (p99, counted) = p99_during(&mut caller, flood(elsewhere.address)).await?;
        beside.push(p99);
        counted?;
        let begin = Instant::now();
        let (p99, counted) = p99_during(&mut caller, flood(server.address)).await?;
        flooded.push(p99);
        flood_seconds += begin.elapsed().as_secs_f64();
        answers.add(counted?);
    }
    let FloodAnswers { unauthorized, too_many, others } = answers;
    let rate = (unauthorized + too_many + others) as f64 / flood_seconds;
    let ratio = |to: &[f64]| Spread::of(flooded.iter().zip(to).map(|(flooded, to)| flooded / to)).show(2);
    let (to_calm, to_beside) = (ratio(&calm), ratio(&beside));
    let [calm, beside, flooded] = [calm, beside, flooded].map(|p99s| format!("{} ms", Spread::of(p99s).show(2)));
    let name = kind.name();
    Ok(format!(
        "| {name} | {rate:.0} | {unauthorized} | {too_many} | {others} | {calm} | {beside} | {flooded} | {to_calm} | {to_beside} |"
    ))
}

/// Calls until something ends; the 99th percentile in milliseconds. A healthy client that is refused is an error.
async fn p99_during<T>(caller: &mut Caller, until: tokio::task::JoinHandle<T>) -> Result<(f64, T), Failure> {
    let mut latencies = Vec::new();
    while !until.is_finished() {
        latencies.extend(caller.latencies(1).await?);
        tokio::time::sleep(CALL_INTERVAL).await;
    }
    latencies.sort_unstable();
    let late = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default();
    Ok((late.as_secs_f64() * 1e3, until.await?))
}

/// The values of `Authorization` that a flood has in turn; no two in a row are the same.
fn bad_credentials(kind: BadCredential, token: &GuardedConfig) -> Result<Vec<String>, Failure> {
    // Within the signature.
    let (before, after) = token.authorization.split_at(token.authorization.len() - 20);
    let made = |number: usize| match kind {
        BadCredential::Key => Ok(format!("Bearer {}", GeneratedKey::random()?.key)),
        BadCredential::ForgedToken => Ok(format!("{before}{number:08}{}", &after[8..])),
    };
    (0..BAD_CREDENTIALS).map(made).collect()
}

/// Sends the flood from threads of its own, so that the healthy client is not delayed by its sender.
async fn send_flood(
    server: SocketAddr,
    credentials: Arc<Vec<String>>,
    time: Duration,
) -> Result<FloodAnswers, Failure> {
    let mut senders = Vec::new();
    for number in 0..FLOOD_SENDERS {
        let mut connections = Vec::new();
        for _ in 0..FLOOD_CONNECTIONS / FLOOD_SENDERS {
            let connection = attacks::connect(server).await?.into_std()?;
            connection.set_nonblocking(false)?;
            connections.push(connection);
        }
        let credentials = Arc::clone(&credentials);
        senders.push(tokio::task::spawn_blocking(move || send_evenly(number, &connections, &credentials, time)));
    }
    let mut answers = FloodAnswers::default();
    for sender in senders {
        answers.add(sender.await??);
    }
    Ok(answers)
}

/// Sends one request after the other at an even pace, each on the next connection; waits for its answer.
fn send_evenly(
    sender: u32,
    connections: &[TcpStream],
    credentials: &[String],
    time: Duration,
) -> std::io::Result<FloodAnswers> {
    let interval = Duration::from_secs(1) * FLOOD_SENDERS / FLOOD_RATE;
    let begin = Instant::now() + interval * sender / FLOOD_SENDERS;
    let (mut answers, mut received) = (FloodAnswers::default(), vec![0; 4 << 10]);
    let order = connections.iter().cycle().zip(credentials.iter().cycle().skip(sender as usize * 101));
    for (sent, (mut connection, credential)) in (0..).zip(order) {
        let due = begin + interval * sent;
        if due.duration_since(begin) >= time || begin.elapsed() >= time {
            break;
        }
        // Whoever is late sends at once.
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let text = attacks::request(connection.peer_addr()?, &format!("authorization: {credential}\r\n"), PING);
        connection.write_all(text.as_bytes())?;
        // An answer is small and comes in one piece.
        let length = connection.read(&mut received)?;
        match &received[..length] {
            answer if answer.starts_with(b"HTTP/1.1 401") => answers.unauthorized += 1,
            answer if answer.starts_with(b"HTTP/1.1 429") => answers.too_many += 1,
            _ => answers.others += 1,
        }
    }
    Ok(answers)
}

impl BadCredential {
    fn name(self) -> &'static str {
        match self {
            Self::Key => "API keys that nobody has",
            Self::ForgedToken => "JWTs with a wrong signature",
        }
    }
}

impl FloodAnswers {
    fn add(&mut self, other: Self) {
        self.unauthorized += other.unauthorized;
        self.too_many += other.too_many;
        self.others += other.others;
    }
}
