//! Liveness check of one connection: pings at an interval, and what it means when they are not answered.

use std::sync::Arc;

use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::mcp_client::{self, Connection, ConnectionSettings};
use crate::protocol::Method;

/// Consecutive failed pings after which an idle connection is given up.
const MAX_FAILED_PINGS: u32 = 2;

/// Pings the connection at the configured interval; returns why it ended or was given up. `report` gets the outcome of
/// every ping after which the connection is kept.
///
/// While `is_busy` holds, the server may be too busy with a call to answer pings. It is given up even so when nothing at
/// all has arrived for as long as a call may wait.
pub(super) async fn wait_lost(
    connection: &Arc<Connection>,
    settings: &ConnectionSettings,
    is_busy: impl Fn() -> bool,
    mut report: impl FnMut(std::result::Result<(), Failure>),
) -> Failure {
    let Some(interval) = settings.ping_interval else { return connection.closed().await };
    let mut failed_pings = 0;
    let mut heard = (connection.received_messages(), Instant::now());
    loop {
        tokio::select! {
            why = connection.closed() => return why,
            () = tokio::time::sleep(interval) => {}
        }
        let pinged = ping(connection, settings).await;
        let received = connection.received_messages();
        if pinged.is_ok() || received != heard.0 {
            heard = (received, Instant::now());
        }
        let Err(error) = pinged else {
            failed_pings = 0;
            report(Ok(()));
            continue;
        };
        failed_pings += 1;
        let is_hung = received.is_some() && heard.1.elapsed() >= settings.idle_timeout;
        if failed_pings >= MAX_FAILED_PINGS && (is_hung || !is_busy()) {
            return error.into_failure();
        }
        report(Err(error.into_failure()));
    }
}

/// Sends one ping, or `server/discover` in the per-request era. An error response counts as alive.
async fn ping(connection: &Arc<Connection>, settings: &ConnectionSettings) -> Result<()> {
    let method = if connection.revision().has_ping() { Method::Ping } else { Method::Discover };
    let call = connection.internal_call(method, None);
    let outcome = mcp_client::wait_for_response(connection.call(call), settings.discovery_timeout, "`ping`").await?;
    match outcome {
        Err(error) if error.failure().is_some() => Err(Error::from_error_object(error)),
        _ => Ok(()),
    }
}
