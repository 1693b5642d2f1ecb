//! Health of an upstream as status, metrics and error messages report it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::failure::{Failure, FailureKind};

/// Health of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthPhase {
    /// Connecting for the first time or reconnecting; a command may have to install packages first.
    Starting,
    /// Connected and answering.
    Ready,
    /// Connected, but the last ping failed.
    Degraded,
    /// Unreachable; reconnecting with back-off.
    Down,
}

/// One attempt to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectAttempt {
    /// When it ended.
    pub at: SystemTime,
    /// Why it failed; absent if it did not.
    pub failure: Option<Failure>,
}

/// Health of an upstream with the failure behind it and its start time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Current phase.
    pub phase: HealthPhase,
    /// Failure behind the phase, absent while ready.
    pub failure: Option<Failure>,
    /// When the failure was recorded.
    failed_at: Instant,
    /// When the current phase began.
    pub since: SystemTime,
    /// Successful connects since start.
    pub connects: u64,
    /// Failed connects since start.
    pub failed_connects: u64,
    /// The last attempts to connect, oldest first.
    pub attempts: Arc<VecDeque<ConnectAttempt>>,
    /// When the next attempt is made, while the upstream is down.
    pub next_attempt: Option<SystemTime>,
}

/// Attempts that are remembered.
const MAX_ATTEMPTS: usize = 20;

impl Health {
    pub(super) fn starting() -> Self {
        Self {
            phase: HealthPhase::Starting,
            failure: None,
            failed_at: Instant::now(),
            since: SystemTime::now(),
            connects: 0,
            failed_connects: 0,
            attempts: Arc::default(),
            next_attempt: None,
        }
    }

    /// Sets phase and failure; `since` moves only when the phase differs.
    pub(super) fn set_phase(&mut self, phase: HealthPhase, failure: Option<Failure>) {
        if self.phase != phase {
            self.since = SystemTime::now();
        }
        self.phase = phase;
        self.failure = failure;
        self.failed_at = Instant::now();
    }

    /// Records that a connection was opened.
    pub(super) fn record_connect(&mut self) {
        self.connects += 1;
        self.record_attempt(None);
        self.set_phase(HealthPhase::Ready, None);
    }

    /// Records that no connection could be opened, and that the next attempt is made after `wait`.
    pub(super) fn record_failed_connect(&mut self, failure: Failure, wait: Duration) {
        self.failed_connects += 1;
        self.record_attempt(Some(failure.clone()));
        self.set_phase(HealthPhase::Down, Some(failure));
        self.next_attempt = SystemTime::now().checked_add(wait);
    }

    /// Records an attempt that changes nothing of the phase.
    pub(super) fn record_attempt(&mut self, failure: Option<Failure>) {
        self.next_attempt = None;
        let attempts = Arc::make_mut(&mut self.attempts);
        if attempts.len() == MAX_ATTEMPTS {
            attempts.pop_front();
        }
        attempts.push_back(ConnectAttempt { at: SystemTime::now(), failure });
    }

    /// The failure of a call while the upstream is down; `None` when it is not.
    pub(crate) fn down(&self) -> Option<Failure> {
        let unknown = || Failure::new(FailureKind::Unreachable, "the upstream is down");
        let failure = || {
            let failure = self.failure.clone().unwrap_or_else(unknown).before_sending();
            // The server named the delay when it refused us, not when this call was made.
            let delay = failure.retry_after().map(|delay| delay.saturating_sub(self.failed_at.elapsed()));
            failure.with_retry_after(delay)
        };
        (self.phase == HealthPhase::Down).then(failure)
    }
}

impl fmt::Display for HealthPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Down => "down",
        })
    }
}
