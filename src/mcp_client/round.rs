//! One request of a call, as its transport sees it: where to put what precedes the response, and how long to wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::connection::Connection;
use super::target::ConnectionSettings;
use super::{call, task_driver};
use crate::call::{Call, Replies, Reply, ReplySink};
use crate::failure::{Failure, FailureKind};
use crate::protocol::{ErrorObject, Method, Notification, NotificationMethod, Outcome};
use crate::timer::PooledTimer;

/// The reader of one request's replies, with the limits of the call that the request belongs to.
pub(super) struct Round<'c, S> {
    pub(super) out: &'c mut S,
    pub(super) progress: &'c mut ProgressFilter,
    pub(super) limits: &'c mut WaitLimits,
}

/// Lets only progress pass that exceeds what was reported before: progress must increase, but restarts with a new round.
pub(super) struct ProgressFilter {
    highest: f64,
    is_first_round: bool,
}

/// How long a call waits for its server.
pub(super) struct WaitLimits {
    /// Longest time without a message; `None` for a listen request, which may wait for ever.
    idle_timeout: Option<Duration>,
    total_timeout: Duration,
    deadline: Instant,
}

impl<S: ReplySink> Round<'_, S> {
    /// Forwards a notification or server request to the reader of the call.
    pub(super) async fn forward(&mut self, reply: Reply) {
        match &reply {
            Reply::ServerRequest(_) => self.limits.restart(),
            Reply::Notification(notification) if !self.progress.advances(notification) => return,
            _ => {}
        }
        self.out.send(reply).await;
    }

    /// Waits for something of the server, at most for the idle timeout and until the deadline of the call.
    pub(super) async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Result<T, ErrorObject> {
        let Some(idle_timeout) = self.limits.idle_timeout else { return Ok(work.await) };
        let (now, deadline) = (Instant::now(), self.limits.deadline);
        let done = PooledTimer::timeout_at_from(now, (now + idle_timeout).min(deadline), work).await;
        done.ok_or_else(|| {
            let failure = match Instant::now() >= deadline {
                true => call::timed_out(self.limits.total_timeout),
                false => call::silent(idle_timeout),
            };
            failure.into()
        })
    }

    /// Forwards replies until the response of the request.
    pub(super) async fn forward_all(&mut self, replies: &mut Replies) -> Outcome {
        loop {
            match self.wait(replies.next()).await? {
                Some(Reply::End(answer)) => return answer.outcome,
                Some(reply) => self.forward(reply).await,
                None => return Err(unanswered()),
            }
        }
    }

    /// Like [`Self::forward_all`], for a request that creates a task: when this is dropped or times out, the task is
    /// cancelled as soon as its id is known.
    pub(super) async fn wait_for_task(
        &mut self,
        connection: &Arc<Connection>,
        call: &Call,
        replies: Replies,
    ) -> Outcome {
        let mut creation = task_driver::TaskCreation::new(connection, call, replies);
        self.forward_all(creation.replies()).await
    }
}

fn unanswered() -> ErrorObject {
    Failure::new(FailureKind::Broken, "the request ended without a response").into()
}

// === impl ProgressFilter ===

impl ProgressFilter {
    /// The server starts the call again, and may report its progress from the beginning.
    pub(super) fn begin_round(&mut self) {
        self.is_first_round = false;
    }

    fn advances(&mut self, notification: &Notification) -> bool {
        let params = notification.params.as_ref().filter(|_| notification.method == NotificationMethod::Progress);
        let value = params.and_then(|params| params.get("progress")).and_then(|value| value.read::<f64>().ok());
        let Some(value) = value else { return true };
        let advances = self.is_first_round || value > self.highest;
        self.highest = self.highest.max(value);
        advances
    }
}

impl Default for ProgressFilter {
    fn default() -> Self {
        Self { highest: f64::NEG_INFINITY, is_first_round: true }
    }
}

// === impl WaitLimits ===

impl WaitLimits {
    pub(super) fn new(settings: &ConnectionSettings, method: &Method) -> Self {
        Self {
            idle_timeout: (*method != Method::Listen).then_some(settings.idle_timeout),
            total_timeout: settings.total_timeout,
            deadline: Instant::now() + settings.total_timeout,
        }
    }

    /// No limits, for a caller that bounds the whole request.
    pub(super) fn none() -> Self {
        Self { idle_timeout: None, total_timeout: Duration::MAX, deadline: Instant::now() }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The client was asked: the time that it takes counts towards neither timeout.
    fn restart(&mut self) {
        self.idle_timeout = self.idle_timeout.map(|_| self.total_timeout);
        self.deadline = Instant::now() + self.total_timeout;
    }

    /// Moves the deadline by the time that the client took.
    pub(super) fn extend(&mut self, by: Duration) {
        self.deadline += by;
    }
}
