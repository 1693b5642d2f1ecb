//! Health of an upstream as status, metrics and error messages report it.

use std::fmt;
use std::time::SystemTime;

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

/// Health of an upstream with its reason and its start time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Current phase.
    pub phase: HealthPhase,
    /// Error behind the phase, absent while ready.
    pub reason: Option<String>,
    /// When the current phase began.
    pub since: SystemTime,
    /// Successful connects since start.
    pub connects: u64,
}

impl Health {
    pub(super) fn starting() -> Self {
        Self { phase: HealthPhase::Starting, reason: None, since: SystemTime::now(), connects: 0 }
    }

    /// Sets phase and reason; `since` moves only when the phase differs.
    pub(super) fn set_phase(&mut self, phase: HealthPhase, reason: Option<String>) {
        if self.phase != phase {
            self.since = SystemTime::now();
        }
        self.phase = phase;
        self.reason = reason;
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
