//! How a process stops: no new work, then the running calls finish, then the streams end.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// The stages of a stop, shared by everything that has to know of them.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    leaving: CancellationToken,
    closing: CancellationToken,
    calls: TaskTracker,
    lingering: TaskTracker,
    connections: TaskTracker,
}

/// Streams may still say goodbye when the calls took all the time there was.
const GOODBYE_TIME: Duration = Duration::from_millis(500);

impl Shutdown {
    /// Whether new work is refused.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Cancelled when new work is refused.
    pub fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// Cancelled when other nodes take what clients send: nothing more comes in here.
    pub fn leaving(&self) -> &CancellationToken {
        &self.leaving
    }

    /// Cancelled when streams that would stay open have to end.
    pub fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Held by a running call; a stop waits for it.
    pub fn call(&self) -> TaskTrackerToken {
        self.calls.token()
    }

    /// How many calls run.
    pub fn running_calls(&self) -> usize {
        self.calls.len()
    }

    /// Held by a call that stays open until it is told to end; a stop waits for its last word.
    pub fn lingering(&self) -> TaskTrackerToken {
        self.lingering.token()
    }

    /// The connections that are open.
    pub fn connections(&self) -> &TaskTracker {
        &self.connections
    }

    /// Stops: refuses new work, lets running calls finish, tells those that linger to end, ends
    /// the streams of sessions by `end_streams`, and waits for the connections. Patience is
    /// `deadline` in all, and a moment for goodbyes; true when it was enough.
    pub async fn stop(&self, deadline: Duration, end_streams: impl FnOnce()) -> bool {
        self.draining.cancel();
        let end = tokio::time::Instant::now() + deadline;
        self.calls.close();
        let calls = tokio::time::timeout_at(end, self.calls.wait()).await;
        self.closing.cancel();
        let goodbye = end.max(tokio::time::Instant::now() + GOODBYE_TIME);
        self.lingering.close();
        let _ = tokio::time::timeout(GOODBYE_TIME, self.lingering.wait()).await;
        end_streams();
        self.connections.close();
        let connections = tokio::time::timeout_at(goodbye, self.connections.wait()).await;
        calls.is_ok() && connections.is_ok()
    }
}
