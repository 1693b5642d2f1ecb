//! The clock of records: monotonic, and translated to the time of day once per reading.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since the clock was first used in this process.
pub fn nanos() -> u64 {
    u64::try_from(EPOCH.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Translates times of records to the time of day. It is set once, so that a clock that jumps moves no record.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: SystemTime,
}

impl Clock {
    /// A clock that is right now.
    pub fn new() -> Self {
        let now = SystemTime::now();
        Self { started: now.checked_sub(Duration::from_nanos(nanos())).unwrap_or(SystemTime::UNIX_EPOCH) }
    }

    /// The time of day of a record, in nanoseconds since 1970.
    pub fn unix_nanos(&self, nanos: u64) -> u128 {
        let started = self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        started.as_nanos() + u128::from(nanos)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
