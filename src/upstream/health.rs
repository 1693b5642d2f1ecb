//! How an upstream is, and since when.

use std::fmt;
use std::time::SystemTime;

/// How an upstream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthPhase {
    /// It is being connected; a command may have to install itself first.
    Starting,
    /// It answers.
    Ready,
    /// It is connected, but did not answer lately.
    Degraded,
    /// It cannot be reached; we keep trying.
    Down,
}

/// How an upstream is, why, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// How it is.
    pub phase: HealthPhase,
    /// Why, where that needs saying.
    pub reason: Option<String>,
    /// Since when.
    pub since: SystemTime,
    /// How often it was connected.
    pub connects: u64,
}

impl Health {
    /// At the very beginning.
    pub(super) fn starting() -> Self {
        Self { phase: HealthPhase::Starting, reason: None, since: SystemTime::now(), connects: 0 }
    }

    /// Becomes something else; the time begins anew only when it is really something else.
    pub(super) fn become_phase(&mut self, phase: HealthPhase, reason: Option<String>) {
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
