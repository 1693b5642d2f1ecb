//! Session takeover: a node is killed or stopped, and another node continues its sessions.

use std::time::{Duration, Instant};

use crate::client::{Caller, Connection, Era};
use crate::nodes::{LEASE, LOOK_UP, Node, open_sessions};
use crate::store::Store;
use crate::{Failure, Plan};

/// Measured times in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Per lease duration: from the kill to the first response from another node.
    pub(crate) taken_over: Vec<(Duration, Vec<f64>)>,
    /// Number of sessions of the stopped node.
    pub(crate) crowd: usize,
    /// From SIGTERM to the exit of the process.
    pub(crate) stopped: Vec<f64>,
    /// First response from another node after that.
    pub(crate) first: Vec<f64>,
    /// Mean latency of the first call of each other session.
    pub(crate) others: Vec<f64>,
}

/// Lease durations to measure.
const LEASES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(6)];
/// Interval between attempts of a client without a response.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a client stops retrying.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn measure(plan: &Plan) -> Result<Moves, Failure> {
    let mut moves = Moves { crowd: plan.crowd, ..Moves::default() };
    for lease in LEASES {
        let mut taken = Vec::new();
        for n in 0..plan.kills {
            // Vary the phase between two heartbeats.
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

/// Kills a node and calls the other one until it responds.
async fn taken_over(lease: Duration, phase: Duration) -> Result<f64, Failure> {
    let (_store, mut owner, other) = pair(lease).await?;
    let session = open_sessions(&owner, 1).await?.remove(0);
    let mut client = caller(&other, &session).await?;
    client.latencies(1).await?;
    tokio::time::sleep(lease / 3 + phase).await;
    let begin = Instant::now();
    owner.server.kill().await?;
    while let Err(error) = client.latencies(1).await {
        if begin.elapsed() > RETRY_TIMEOUT {
            return Err(error);
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    Ok(milliseconds(begin.elapsed()))
}

/// Asks a node with many sessions to stop, and calls in each at the other.
async fn stop(crowd: usize, moves: &mut Moves) -> Result<(), Failure> {
    let (_store, mut owner, other) = pair(LEASE).await?;
    let sessions = open_sessions(&owner, crowd).await?;
    let begin = Instant::now();
    owner.server.stop().await?;
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
