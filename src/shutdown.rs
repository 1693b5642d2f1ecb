//! Graceful shutdown in stages: refuse new work, wait for running calls, then close the streams.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// The shutdown stages, as tokens and trackers that every listener, connection and call shares.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    leaving: CancellationToken,
    closing: CancellationToken,
    calls: TaskTracker,
    listen_calls: TaskTracker,
    connections: TaskTracker,
}

/// Time that streams get to send their last event, even when the calls have used up the whole shutdown timeout.
const CLOSE_GRACE_TIME: Duration = Duration::from_millis(500);

impl Shutdown {
    /// Whether new calls are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Cancelled when the shutdown begins and new calls are refused.
    pub fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// Cancelled when the other nodes of the cluster serve this node's clients: listeners stop accepting.
    pub fn leaving(&self) -> &CancellationToken {
        &self.leaving
    }

    /// Cancelled when all calls have ended or timed out and long-lived streams must end.
    pub fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Counts a call as in flight while the token lives; the shutdown waits for it.
    pub fn track_call(&self) -> TaskTrackerToken {
        self.calls.token()
    }

    /// Number of calls in flight.
    pub fn calls_in_flight(&self) -> usize {
        self.calls.len()
    }

    /// Counts a `subscriptions/listen` call while the token lives. Such a call ends only after `closing`, so the
    /// shutdown waits for it separately, for its final result.
    pub fn track_listen(&self) -> TaskTrackerToken {
        self.listen_calls.token()
    }

    /// Tracks the open client connections.
    pub fn connections(&self) -> &TaskTracker {
        &self.connections
    }

    /// Runs the shutdown: refuses new calls, waits for calls in flight, cancels `closing`, waits for listen calls,
    /// ends the session streams with `end_streams` and waits for the connections.
    ///
    /// Takes at most `timeout` plus a short grace period; returns whether calls and connections ended in time.
    pub async fn stop(&self, timeout: Duration, end_streams: impl FnOnce()) -> bool {
        self.draining.cancel();
        let end = tokio::time::Instant::now() + timeout;
        self.calls.close();
        let calls = tokio::time::timeout_at(end, self.calls.wait()).await;
        self.closing.cancel();
        let close_deadline = end.max(tokio::time::Instant::now() + CLOSE_GRACE_TIME);
        self.listen_calls.close();
        let _ = tokio::time::timeout(CLOSE_GRACE_TIME, self.listen_calls.wait()).await;
        end_streams();
        self.connections.close();
        let connections = tokio::time::timeout_at(close_deadline, self.connections.wait()).await;
        calls.is_ok() && connections.is_ok()
    }
}
