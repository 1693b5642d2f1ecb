//! Sessions that move: a node is killed, or asked to stop, and another goes on.

use std::time::{Duration, Instant};

use crate::client::{Caller, Connection, Era};
use crate::nodes::{LEASE, LOOK_UP, Node, open_sessions};
use crate::store::Store;
use crate::{Failure, Plan};

/// What was measured, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// For each lease, from the kill to the first answer elsewhere.
    pub(crate) taken_over: Vec<(Duration, Vec<f64>)>,
    /// How many sessions a node had that was asked to stop.
    pub(crate) crowd: usize,
    /// Until the process had ended.
    pub(crate) stopped: Vec<f64>,
    /// The first answer elsewhere after that.
    pub(crate) first: Vec<f64>,
    /// A first call of each of the other sessions, on average.
    pub(crate) others: Vec<f64>,
}

/// The leases that are tried.
const LEASES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(6)];
/// Between two tries of a client that got no answer.
const AGAIN: Duration = Duration::from_millis(20);
/// How long a client tries.
const GIVE_UP: Duration = Duration::from_secs(30);

pub(crate) async fn measure(plan: &Plan) -> Result<Moves, Failure> {
    let mut moves = Moves { crowd: plan.crowd, ..Moves::default() };
    for lease in LEASES {
        let mut taken = Vec::new();
        for n in 0..plan.kills {
            // Somewhere else between two signs of life each time.
            let phase = lease / 3 * u32::try_from(n)? / u32::try_from(plan.kills)?;
            taken.push(taken_over(lease, phase).await?);
        }
        moves.taken_over.push((lease, taken));
    }
    for _ in 0..plan.repeats {
        stop(plan.crowd, &mut moves).await?;
    }
    Ok(moves)
}

async fn pair(lease: Duration) -> Result<(Store, Node, Node), Failure> {
    let store = Store::start().await?;
    let first = Node::of("first", &store, lease, "").await?;
    let second = Node::of("second", &store, lease, "").await?;
    Ok((store, first, second))
}

async fn caller(node: &Node, session: &str) -> Result<Caller, Failure> {
    let connection = Connection::open(node.address()).await?;
    Caller::over(vec![connection], Some(session), Era::Handshake, LOOK_UP)
}

/// Kills a node, and calls at the other until there is an answer.
async fn taken_over(lease: Duration, phase: Duration) -> Result<f64, Failure> {
    let (_store, mut home, other) = pair(lease).await?;
    let session = open_sessions(&home, 1).await?.remove(0);
    let mut client = caller(&other, &session).await?;
    client.latencies(1).await?;
    tokio::time::sleep(lease / 3 + phase).await;
    let begin = Instant::now();
    home.server.kill().await?;
    while let Err(error) = client.latencies(1).await {
        if begin.elapsed() > GIVE_UP {
            return Err(error);
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(milliseconds(begin.elapsed()))
}

/// Asks a node with many sessions to stop, and calls in each at the other.
async fn stop(crowd: usize, moves: &mut Moves) -> Result<(), Failure> {
    let (_store, mut home, other) = pair(LEASE).await?;
    let sessions = open_sessions(&home, crowd).await?;
    let begin = Instant::now();
    home.server.stop().await?;
    moves.stopped.push(milliseconds(begin.elapsed()));
    let mut took = Vec::with_capacity(crowd);
    for session in &sessions {
        let mut client = caller(&other, session).await?;
        took.push(milliseconds(client.latencies(1).await?[0]));
    }
    let first = took.remove(0);
    moves.first.push(first);
    moves.others.push(took.iter().sum::<f64>() / took.len() as f64);
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
