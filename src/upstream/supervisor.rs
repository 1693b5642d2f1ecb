//! Supervisor of an upstream: connects, pings, and reconnects with back-off.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::health::{Health, HealthPhase};
use super::liveness;
use crate::dialect::Revision;
use crate::dialect::to_upstream::ClientIdentity;
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureKind};
use crate::mcp_client::{Connection, ConnectionSettings, Target, Unsolicited};

/// Base of the exponential back-off between connects.
const BACK_OFF_BASE: Duration = Duration::from_millis(250);
/// Upper bound of the back-off.
const MAX_BACK_OFF: Duration = Duration::from_secs(30);
/// Longest `Retry-After` that a reconnect waits for: a server may be back earlier than it said.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);
/// A connection that lived this long resets the back-off.
const STABLE_CONNECTION_AGE: Duration = Duration::from_secs(30);

/// Handle to the task that keeps an upstream connected.
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
    identity: ClientIdentity,
    unsolicited: mpsc::Sender<Unsolicited>,
    health: watch::Sender<Health>,
    current: watch::Sender<Option<Arc<Connection>>>,
    stop: CancellationToken,
}

impl Supervisor {
    /// Spawns the supervisor task.
    pub fn start(
        target: Target,
        settings: ConnectionSettings,
        identity: ClientIdentity,
        unsolicited: mpsc::Sender<Unsolicited>,
    ) -> Self {
        let (health_sender, health) = watch::channel(Health::starting());
        let (current_sender, current) = watch::channel(None);
        let stop = CancellationToken::new();
        let task = SupervisorTask {
            target,
            settings,
            identity,
            unsolicited,
            health: health_sender,
            current: current_sender,
            stop: stop.clone(),
        };
        let stopped = CancellationToken::new();
        let done = stopped.clone().drop_guard();
        tokio::spawn(async move {
            let _done = done;
            task.run().await;
        });
        Self { health, current, stop, stopped }
    }

    /// Current health.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Health that notifies of each change.
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// The connection. Waits while it is being opened, but fails at once when the upstream is down.
    ///
    /// # Errors
    /// The upstream is down, was removed, or does not connect in time.
    pub async fn connection(&self, timeout_after: Duration) -> Result<Arc<Connection>> {
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
                if let Some(failure) = state.down() {
                    return Err(failure.into());
                }
                let changed = tokio::select! {
                    changed = current.changed() => changed,
                    changed = health.changed() => changed,
                };
                if changed.is_err() {
                    return Err(Error::failure(FailureKind::Unreachable, "the upstream was removed"));
                }
            }
        };
        match tokio::time::timeout(timeout_after, ready).await {
            Ok(ready) => ready,
            Err(_) => Err(Error::failure(FailureKind::Starting, "the upstream is still starting")),
        }
    }

    /// The connection, if one is open now.
    pub fn open_connection(&self) -> Option<Arc<Connection>> {
        self.current.borrow().clone()
    }

    /// The connection as it changes; `None` while disconnected.
    pub fn watch_connection(&self) -> watch::Receiver<Option<Arc<Connection>>> {
        self.current.clone()
    }

    /// Closes the connection and waits until the supervisor task has ended.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.stopped.cancelled().await;
    }
}

impl SupervisorTask {
    async fn run(self) {
        let mut failures = 0;
        // The revision found by the last connect spares the next one the discovery.
        let mut known_revision: Option<Revision> = None;
        loop {
            let settings =
                ConnectionSettings { revision: self.settings.revision.or(known_revision), ..self.settings.clone() };
            let open = Connection::open(&self.target, settings, self.identity.clone(), self.unsolicited.clone());
            let Some(opened) = open_unless_stopped(open, &self.stop, self.settings.stop_timeout).await else { return };
            match opened {
                Ok(connection) => {
                    let opened_at = Instant::now();
                    known_revision = Some(connection.revision());
                    self.health.send_modify(Health::record_connect);
                    if self.health.borrow().connects > 1 {
                        // Subscriptions of the previous connection are lost: the catalog has to repeat them.
                        let _ = self.unsolicited.send(Unsolicited::SessionReopened).await;
                    }
                    self.current.send_replace(Some(Arc::clone(&connection)));
                    let why = tokio::select! {
                        why = self.monitor(&connection) => why,
                        () = self.stop.cancelled() => {
                            self.current.send_replace(None);
                            connection.close().await;
                            return;
                        }
                    };
                    self.current.send_replace(None);
                    tracing::warn!(target = %self.target, %why, "upstream connection lost, reconnecting");
                    self.set_health(HealthPhase::Starting, Some(why));
                    connection.close().await;
                    // Back off when connections keep breaking shortly after they opened.
                    failures = if opened_at.elapsed() >= STABLE_CONNECTION_AGE { 0 } else { failures + 1 };
                    if failures > 1 && !self.sleep_unless_stopped(back_off(failures)).await {
                        return;
                    }
                }
                // The server may have been replaced by another revision: discover it again.
                Err(error) if known_revision.take().is_some() && !error.is_retryable() => {
                    tracing::info!(target = %self.target, %error, "upstream revision may have changed, discovering again");
                    self.health.send_modify(|health| health.record_attempt(Some(error.into_failure())));
                }
                Err(error) => {
                    failures += 1;
                    // Log a repeated error at debug level only.
                    let (is_retryable, failure) = (error.is_retryable(), error.clone().into_failure());
                    let is_repeated = self.health.borrow().failure.as_ref() == Some(&failure);
                    if is_repeated {
                        tracing::debug!(target = %self.target, %error, failures, "upstream connect failed again");
                    } else {
                        tracing::warn!(target = %self.target, %error, "upstream connect failed");
                    }
                    let asked_for = failure.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER);
                    let wait = if is_retryable { back_off(failures).max(asked_for) } else { MAX_BACK_OFF };
                    self.health.send_modify(|health| health.record_failed_connect(failure, wait));
                    if !self.sleep_unless_stopped(wait).await {
                        return;
                    }
                }
            }
        }
    }

    /// Sleeps; false when the supervisor was stopped.
    async fn sleep_unless_stopped(&self, wait: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = self.stop.cancelled() => false,
        }
    }

    fn set_health(&self, phase: HealthPhase, failure: Option<Failure>) {
        self.health.send_modify(|health| health.set_phase(phase, failure));
    }

    /// Waits until the connection ends or is given up, and returns why.
    async fn monitor(&self, connection: &Arc<Connection>) -> Failure {
        let report = |pinged| match pinged {
            Ok(()) => self.set_health(HealthPhase::Ready, None),
            Err(failure) => self.set_health(HealthPhase::Degraded, Some(failure)),
        };
        liveness::wait_lost(connection, &self.settings, || connection.has_calls_in_flight(), report).await
    }
}

/// Waits for a connection to open; `None` when stopped first. A connection that is half open cannot be closed,
/// so it gets `grace` to finish before it is dropped.
pub(super) async fn open_unless_stopped(
    open: impl Future<Output = Result<Arc<Connection>>>,
    stop: &CancellationToken,
    grace: Duration,
) -> Option<Result<Arc<Connection>>> {
    tokio::pin!(open);
    tokio::select! {
        opened = &mut open => return Some(opened),
        () = stop.cancelled() => {}
    }
    if let Ok(Ok(connection)) = tokio::time::timeout(grace, open).await {
        connection.close().await;
    }
    None
}

/// Exponential back-off with jitter: 50 to 100 % of the doubled wait.
pub(super) fn back_off(failures: u32) -> Duration {
    let wait = BACK_OFF_BASE.saturating_mul(1 << failures.min(10)).min(MAX_BACK_OFF);
    let mut random = [0; 4];
    let jitter = match getrandom::fill(&mut random) {
        Ok(()) => f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX),
        Err(_) => 1.0,
    };
    wait.mul_f64(0.5 + jitter / 2.0)
}
