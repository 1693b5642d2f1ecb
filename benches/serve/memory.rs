//! Memory: what one more idle session takes, and one more open stream.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::calls;
use crate::client::Connection;
use crate::peers;
use crate::process::Server;
use crate::{Failure, Plan};

/// Bytes that one more of something takes, measured several times.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) name: &'static str,
    pub(crate) per_session: Vec<f64>,
    pub(crate) per_stream: Vec<f64>,
    /// Resident bytes of the process with all sessions open.
    pub(crate) resident: Vec<f64>,
}

/// What is opened before the first look, so that what is paid once is paid.
const WARM_UP: usize = 500;
const WARM_UP_STREAMS: usize = 100;
/// Connections over which sessions are opened.
const CONNECTIONS: usize = 4;
/// How long a server rests before it is looked at.
const REST: Duration = Duration::from_millis(300);

/// Measures both servers, each time in new processes.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<Memory>, Failure> {
    let mut all = Vec::new();
    for (name, peer) in [("rialto", None), ("rmcp, defaults", Some(peers::DEFAULTS))] {
        let mut memory = Memory { name, per_session: Vec::new(), per_stream: Vec::new(), resident: Vec::new() };
        for _ in 0..plan.memory_rounds {
            let server = start(peer).await?;
            memory.per_session.push(sessions(&server, plan.sessions).await?);
            memory.resident.push(server.resident()? as f64);
            drop(server);
            let server = start(peer).await?;
            memory.per_stream.push(streams(&server, plan.streams).await?);
        }
        all.push(memory);
    }
    Ok(all)
}

async fn start(peer: Option<&str>) -> Result<Server, Failure> {
    match peer {
        None => calls::rialto().await,
        Some(kind) => peers::start(kind).await,
    }
}

async fn sessions(server: &Server, count: usize) -> Result<f64, Failure> {
    open_sessions(server.address, WARM_UP).await?;
    let before = rested(server).await?;
    open_sessions(server.address, count).await?;
    let after = rested(server).await?;
    Ok((after - before) / count as f64)
}

/// The sessions are opened before the first look, so the difference is the streams with their
/// connections and nothing else.
async fn streams(server: &Server, count: usize) -> Result<f64, Failure> {
    let sessions = open_sessions(server.address, WARM_UP_STREAMS + count).await?;
    let (warm_up, sessions) = sessions.split_at(WARM_UP_STREAMS);
    let mut open = Vec::new();
    listen(server.address, warm_up, &mut open).await?;
    let before = rested(server).await?;
    listen(server.address, sessions, &mut open).await?;
    let after = rested(server).await?;
    Ok((after - before) / count as f64)
}

async fn rested(server: &Server) -> Result<f64, Failure> {
    tokio::time::sleep(REST).await;
    Ok(server.resident()? as f64)
}

/// Opens sessions over a few connections, which are closed afterwards; the ids of the sessions.
async fn open_sessions(address: SocketAddr, count: usize) -> Result<Vec<String>, Failure> {
    let mut tasks = JoinSet::new();
    for n in 0..CONNECTIONS {
        let share = count / CONNECTIONS + usize::from(n < count % CONNECTIONS);
        tasks.spawn(async move {
            let mut connection = Connection::open(address).await?;
            let mut ids = Vec::with_capacity(share);
            for _ in 0..share {
                ids.push(connection.handshake().await?.ok_or("the server opened no session")?);
            }
            Ok::<_, Failure>(ids)
        });
    }
    let mut ids = Vec::with_capacity(count);
    while let Some(ended) = tasks.join_next().await {
        ids.extend(ended??);
    }
    Ok(ids)
}

async fn listen(address: SocketAddr, sessions: &[String], open: &mut Vec<Connection>) -> Result<(), Failure> {
    for session in sessions {
        let mut connection = Connection::open(address).await?;
        connection.listen(session).await?;
        open.push(connection);
    }
    Ok(())
}
