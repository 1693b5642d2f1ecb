//! Many idle sessions and open streams, and the memory that each takes in a server.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::Failure;
use crate::client::Connection;
use crate::process::Server;

/// Sessions opened before the first measurement, as a warm-up.
pub(crate) const WARM_UP: usize = 500;
const WARM_UP_STREAMS: usize = 100;
/// Number of connections used to open sessions.
const CONNECTIONS: usize = 4;
/// Pause before memory is read.
const REST_TIME: Duration = Duration::from_millis(300);

/// Bytes per idle session.
pub(crate) async fn per_session(server: &Server, count: usize) -> Result<f64, Failure> {
    open_sessions(server, WARM_UP).await?;
    let before = resident_after_rest(server).await?;
    open_sessions(server, count).await?;
    let after = resident_after_rest(server).await?;
    Ok((after - before) / count as f64)
}

/// Bytes per open stream, and total resident bytes. The sessions are opened before the first measurement, so the
/// difference is only the streams with their connections.
pub(crate) async fn per_stream(server: &Server, count: usize) -> Result<(f64, f64), Failure> {
    let sessions = open_sessions(server, WARM_UP_STREAMS + count).await?;
    let (warm_up, sessions) = sessions.split_at(WARM_UP_STREAMS);
    let mut open = Vec::new();
    listen(server, warm_up, &mut open).await?;
    let before = resident_after_rest(server).await?;
    listen(server, sessions, &mut open).await?;
    let after = resident_after_rest(server).await?;
    Ok(((after - before) / count as f64, after))
}

/// Resident bytes of a server after a pause.
pub(crate) async fn resident_after_rest(server: &Server) -> Result<f64, Failure> {
    tokio::time::sleep(REST_TIME).await;
    Ok(server.resident()? as f64)
}

/// Opens sessions over a few connections, closes the connections, and returns the session ids.
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

/// Opens a stream for each session, each on its own connection.
pub(crate) async fn listen(server: &Server, sessions: &[String], open: &mut Vec<Connection>) -> Result<(), Failure> {
    for session in sessions {
        let mut connection = Connection::open_at(server.address, server.path).await?;
        connection.listen(session).await?;
        open.push(connection);
    }
    Ok(())
}
