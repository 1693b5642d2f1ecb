//! Crowds: many idle sessions, many open streams, and what one more of them takes of a server's memory.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::Failure;
use crate::client::Connection;
use crate::process::Server;

/// What is opened before the first look, so that what is paid once is paid.
pub(crate) const WARM_UP: usize = 500;
const WARM_UP_STREAMS: usize = 100;
/// Connections over which sessions are opened.
const CONNECTIONS: usize = 4;
/// How long a server rests before it is looked at.
const REST: Duration = Duration::from_millis(300);

/// The bytes that one more idle session takes.
pub(crate) async fn per_session(server: &Server, count: usize) -> Result<f64, Failure> {
    open_sessions(server, WARM_UP).await?;
    let before = rested(server).await?;
    open_sessions(server, count).await?;
    let after = rested(server).await?;
    Ok((after - before) / count as f64)
}

/// The bytes that one more open stream takes, and all that is resident with them. The sessions are opened before
/// the first look, so the difference is the streams with their connections and nothing else.
pub(crate) async fn per_stream(server: &Server, count: usize) -> Result<(f64, f64), Failure> {
    let sessions = open_sessions(server, WARM_UP_STREAMS + count).await?;
    let (warm_up, sessions) = sessions.split_at(WARM_UP_STREAMS);
    let mut open = Vec::new();
    listen(server, warm_up, &mut open).await?;
    let before = rested(server).await?;
    listen(server, sessions, &mut open).await?;
    let after = rested(server).await?;
    Ok(((after - before) / count as f64, after))
}

/// Resident bytes of a server that was left alone for a while.
pub(crate) async fn rested(server: &Server) -> Result<f64, Failure> {
    tokio::time::sleep(REST).await;
    Ok(server.resident()? as f64)
}

/// Opens sessions over a few connections, which are closed afterwards; the ids of the sessions.
pub(crate) async fn open_sessions(server: &Server, count: usize) -> Result<Vec<String>, Failure> {
    let (address, path) = (server.address, server.path);
    let mut tasks = JoinSet::new();
    for n in 0..CONNECTIONS {
        let share = count / CONNECTIONS + usize::from(n < count % CONNECTIONS);
        tasks.spawn(async move {
            let mut connection = Connection::open_at(address, path).await?;
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

/// Opens a stream for each session, on a connection of its own.
pub(crate) async fn listen(server: &Server, sessions: &[String], open: &mut Vec<Connection>) -> Result<(), Failure> {
    for session in sessions {
        let mut connection = Connection::open_at(server.address, server.path).await?;
        connection.listen(session).await?;
        open.push(connection);
    }
    Ok(())
}
