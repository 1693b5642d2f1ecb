//! The clock that tokens, keys and answers are judged by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The wall clock, so that a machine that slept is right at once. A test can set it ahead.
#[derive(Debug, Clone, Default)]
pub struct IssuerClock {
    seconds_ahead: Arc<AtomicU64>,
}

impl IssuerClock {
    /// The time now.
    pub fn now(&self) -> SystemTime {
        SystemTime::now() + Duration::from_secs(self.seconds_ahead.load(Ordering::Relaxed))
    }

    /// Sets the clock ahead by so much more, for everything that shares it.
    pub fn advance(&self, by: Duration) {
        self.seconds_ahead.fetch_add(by.as_secs(), Ordering::Relaxed);
    }

    /// The time since a moment.
    pub(super) fn since(&self, moment: SystemTime) -> Duration {
        time_since(moment, self.now())
    }
}

/// The time from a moment to now. One that lies ahead, because the clock was set back, counts as long ago: what is old is
/// asked for again.
pub(super) fn time_since(moment: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(moment).unwrap_or(Duration::MAX)
}
