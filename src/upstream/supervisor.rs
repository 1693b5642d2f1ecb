//! An upstream that is kept connected: opened, watched, and opened again when it breaks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::health::{Health, HealthPhase};
use crate::dialect::Revision;
use crate::dialect::to_upstream::ClientIdentity;
use crate::error::{Error, ErrorKind, Result};
use crate::mcp_client::{self, Connection, ConnectionSettings, Target, Unsolicited};
use crate::protocol::Method;

/// The first wait before a new try.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long a connection has to live to count as a good one.
const LIVED: Duration = Duration::from_secs(30);
/// How often in a row it may fail to answer before it is connected anew.
const SILENCES: u32 = 2;

/// An upstream that is kept connected.
#[derive(Debug)]
pub struct Supervisor {
    health: watch::Receiver<Health>,
    current: watch::Receiver<Option<Arc<Connection>>>,
    stop: CancellationToken,
    stopped: CancellationToken,
}

struct SupervisorTask {
    target: Target,
    settings: ConnectionSettings,
    speaker: ClientIdentity,
    unsolicited: mpsc::Sender<Unsolicited>,
    health: watch::Sender<Health>,
    current: watch::Sender<Option<Arc<Connection>>>,
    stop: CancellationToken,
}

impl Supervisor {
    /// Begins to keep an upstream connected.
    pub fn start(
        target: Target,
        settings: ConnectionSettings,
        speaker: ClientIdentity,
        unsolicited: mpsc::Sender<Unsolicited>,
    ) -> Self {
        let (health_sender, health) = watch::channel(Health::starting());
        let (current_sender, current) = watch::channel(None);
        let stop = CancellationToken::new();
        let keeper = SupervisorTask {
            target,
            settings,
            speaker,
            unsolicited,
            health: health_sender,
            current: current_sender,
            stop: stop.clone(),
        };
        let stopped = CancellationToken::new();
        let done = stopped.clone().drop_guard();
        tokio::spawn(async move {
            let _done = done;
            keeper.run().await;
        });
        Self { health, current, stop, stopped }
    }

    /// How it is.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// How it is, as that changes.
    pub fn watch(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// The connection. Waits while it is being opened, but not when it cannot be.
    ///
    /// # Errors
    /// When the upstream is down, or does not come up in time.
    pub async fn connection(&self, patience: Duration) -> Result<Arc<Connection>> {
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        let mut current = self.current.clone();
        let mut health = self.health.clone();
        let ready = async {
            loop {
                if let Some(connection) = current.borrow_and_update().clone() {
                    return Ok(connection);
                }
                let state = health.borrow_and_update().clone();
                if state.phase == HealthPhase::Down {
                    let reason = state.reason.unwrap_or_default();
                    return Err(Error::new(ErrorKind::Unreachable, format!("the upstream is down: {reason}")));
                }
                let changed = tokio::select! {
                    changed = current.changed() => changed,
                    changed = health.changed() => changed,
                };
                if changed.is_err() {
                    return Err(Error::new(ErrorKind::Broken, "the upstream was removed"));
                }
            }
        };
        match tokio::time::timeout(patience, ready).await {
            Ok(ready) => ready,
            Err(_) => Err(Error::new(ErrorKind::Timeout, "the upstream is still starting")),
        }
    }

    /// The connection, if there is one just now.
    pub fn open_connection(&self) -> Option<Arc<Connection>> {
        self.current.borrow().clone()
    }

    /// The connection, as that changes; nothing while there is none.
    pub fn connections(&self) -> watch::Receiver<Option<Arc<Connection>>> {
        self.current.clone()
    }

    /// Ends the connection, and does not open it again.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.stopped.cancelled().await;
    }
}

impl SupervisorTask {
    async fn run(self) {
        let mut failures = 0;
        // What was found the last time, which spares the next start the asking.
        let mut known: Option<Revision> = None;
        loop {
            let settings = ConnectionSettings { revision: self.settings.revision.or(known), ..self.settings.clone() };
            let opening = Connection::open(&self.target, settings, self.speaker.clone(), self.unsolicited.clone());
            let Some(opened) = opened(opening, &self.stop, self.settings.stop_timeout).await else { return };
            match opened {
                Ok(connection) => {
                    let opened_at = Instant::now();
                    known = Some(connection.revision());
                    self.become_phase(HealthPhase::Ready, None);
                    self.health.send_modify(|health| health.connects += 1);
                    if self.health.borrow().connects > 1 {
                        // What was subscribed to on the connection before is not on this one.
                        let _ = self.unsolicited.send(Unsolicited::Reopened).await;
                    }
                    self.current.send_replace(Some(Arc::clone(&connection)));
                    let why = tokio::select! {
                        why = self.watch(&connection) => why,
                        () = self.stop.cancelled() => {
                            self.current.send_replace(None);
                            connection.close().await;
                            return;
                        }
                    };
                    self.current.send_replace(None);
                    tracing::warn!(target = %self.target, %why, "the upstream is lost; it is connected anew");
                    self.become_phase(HealthPhase::Starting, Some(why.to_string()));
                    connection.close().await;
                    // One that breaks again and again is not tried in a tight loop.
                    failures = if opened_at.elapsed() >= LIVED { 0 } else { failures + 1 };
                    if failures > 1 && !self.rest(back_off(failures)).await {
                        return;
                    }
                }
                // It may have become another server meanwhile: what it is has to be found out anew.
                Err(error) if known.take().is_some() && !error.may_retry() => {
                    tracing::info!(target = %self.target, %error, "the upstream is not what it was");
                }
                Err(error) => {
                    failures += 1;
                    // What was said before is not said again and again.
                    let again = self.health.borrow().reason.as_ref() == Some(&error.to_string());
                    if again {
                        tracing::debug!(target = %self.target, %error, failures, "the upstream still cannot be reached");
                    } else {
                        tracing::warn!(target = %self.target, %error, "the upstream cannot be reached");
                    }
                    self.become_phase(HealthPhase::Down, Some(error.to_string()));
                    let wait = if error.may_retry() { back_off(failures) } else { LONGEST_WAIT };
                    if !self.rest(wait).await {
                        return;
                    }
                }
            }
        }
    }

    /// Waits; false when the upstream is not wanted any more.
    async fn rest(&self, wait: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = self.stop.cancelled() => false,
        }
    }

    fn become_phase(&self, phase: HealthPhase, reason: Option<String>) {
        self.health.send_modify(|health| health.become_phase(phase, reason));
    }

    /// Watches a connection until it is over, asking now and then whether anybody is there.
    async fn watch(&self, connection: &Arc<Connection>) -> Error {
        let Some(every) = self.settings.ping_interval else { return connection.closed().await };
        let mut silences = 0;
        loop {
            tokio::select! {
                why = connection.closed() => return why,
                () = tokio::time::sleep(every) => {}
            }
            match self.ping(connection).await {
                Ok(()) => {
                    silences = 0;
                    self.become_phase(HealthPhase::Ready, None);
                }
                Err(error) => {
                    silences += 1;
                    // One that works on a call may have no time to answer.
                    if silences >= SILENCES && !connection.is_busy() {
                        return error;
                    }
                    self.become_phase(HealthPhase::Degraded, Some(error.to_string()));
                }
            }
        }
    }

    /// Asks whether anybody is there. An answer that is an error is an answer.
    async fn ping(&self, connection: &Arc<Connection>) -> Result<()> {
        let method = if connection.revision().facts().sessions { Method::Ping } else { Method::Discover };
        let call = connection.own_call(method, None);
        let outcome = mcp_client::answer(connection.call(call), self.settings.discovery_timeout, "`ping`").await?;
        match outcome {
            Err(error) if error.is_unavailable() => Err(Error::answered(error)),
            _ => Ok(()),
        }
    }
}

/// Waits for a connection that is being opened; nothing when it is not wanted any more. What is half
/// open cannot be closed, so it is given a moment to become whole.
pub(super) async fn opened(
    opening: impl Future<Output = Result<Arc<Connection>>>,
    stop: &CancellationToken,
    grace: Duration,
) -> Option<Result<Arc<Connection>>> {
    tokio::pin!(opening);
    tokio::select! {
        opened = &mut opening => return Some(opened),
        () = stop.cancelled() => {}
    }
    if let Ok(Ok(connection)) = tokio::time::timeout(grace, opening).await {
        connection.close().await;
    }
    None
}

/// A wait that doubles with every failure, and is never the same for two who fail together.
pub(super) fn back_off(failures: u32) -> Duration {
    let wait = FIRST_WAIT.saturating_mul(1 << failures.min(10)).min(LONGEST_WAIT);
    let mut random = [0; 4];
    let part = match getrandom::fill(&mut random) {
        Ok(()) => f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX),
        Err(_) => 1.0,
    };
    wait.mul_f64(0.5 + part / 2.0)
}
