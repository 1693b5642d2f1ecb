//! Limit of the log lines about one server: a server that floods us must not fill the operator's disk.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Log lines about one server in one [`WINDOW`].
const MAX_LINES: u64 = 1000;
/// Bytes of these lines.
const MAX_BYTES: usize = 256 << 10;
/// Time after which a server may fill the log again.
const WINDOW: Duration = Duration::from_secs(10);

/// Admits log lines about one connection, and counts those that it leaves out.
#[derive(Debug)]
pub(super) struct LogLimiter {
    /// The program or URL that the lines are about.
    source: String,
    window: Mutex<LogWindow>,
}

#[derive(Debug)]
struct LogWindow {
    started: Instant,
    lines: u64,
    bytes: usize,
    left_out: u64,
}

impl LogWindow {
    fn new() -> Self {
        Self { started: Instant::now(), lines: 0, bytes: 0, left_out: 0 }
    }
}

impl LogLimiter {
    pub(super) fn new(source: impl Into<String>) -> Self {
        Self { source: source.into(), window: Mutex::new(LogWindow::new()) }
    }

    /// Whether a line of this size may be logged now.
    pub(super) fn admits(&self, bytes: usize) -> bool {
        let mut window = self.window.lock();
        if window.started.elapsed() >= WINDOW {
            let ended = std::mem::replace(&mut *window, LogWindow::new());
            self.report(&ended);
        }
        if window.lines < MAX_LINES && window.bytes + bytes <= MAX_BYTES {
            (window.lines, window.bytes) = (window.lines + 1, window.bytes + bytes);
            return true;
        }
        window.left_out += 1;
        if window.left_out == 1 {
            tracing::warn!(source = %self.source, "upstream floods the log; its lines are left out for {WINDOW:?}");
        }
        false
    }

    fn report(&self, ended: &LogWindow) {
        if ended.left_out > 0 {
            tracing::warn!(source = %self.source, count = ended.left_out, "log lines about an upstream left out");
        }
    }
}

impl Drop for LogLimiter {
    fn drop(&mut self) {
        self.report(&self.window.lock());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lines_and_bytes_are_limited_per_window() {
        let limiter = LogLimiter::new("flood");
        assert_eq!((0..5000).filter(|_| limiter.admits(10)).count() as u64, MAX_LINES);
        tokio::time::advance(WINDOW).await;
        assert_eq!((0..5000).filter(|_| limiter.admits(4096)).count(), MAX_BYTES / 4096);
        assert_eq!(limiter.window.lock().left_out, 5000 - (MAX_BYTES as u64 / 4096));
    }
}
