//! One request of a call, as its transport sees it: where to put what precedes the response, and how long to wait.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::connection::Connection;
use super::target::ConnectionSettings;
use super::{call, task_driver};
use crate::call::{AnswerDelivery, Call, Replies, Reply, ReplySink};
use crate::failure::{Failure, FailureKind};
use crate::protocol::{ErrorObject, Method, Notification, NotificationMethod, Outcome};
use crate::timer::WorkerTimer;

/// The reader of one request's replies, with the limits of the call that the request belongs to.
pub(super) struct Round<'c, S> {
    pub(super) out: &'c mut S,
    pub(super) progress: &'c mut ProgressFilter,
    pub(super) limits: &'c mut WaitLimits,
    /// Whether a long result may come in pieces.
    pub(super) delivery: AnswerDelivery,
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

    /// Hands over bytes of the result; the time that their reader takes does not count.
    pub(super) async fn pass_piece(&mut self, piece: Bytes) {
        let began = Instant::now();
        self.out.send(Reply::Piece(piece)).await;
        self.limits.extend(began.elapsed());
    }

    /// Waits for something of the server, at most for the idle timeout and until the deadline of the call.
    pub(super) async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Result<T, ErrorObject> {
        let Some(idle_timeout) = self.limits.idle_timeout else { return Ok(work.await) };
        let (now, deadline) = (Instant::now(), self.limits.deadline);
        let done = WorkerTimer::timeout_at((now + idle_timeout).min(deadline), work).await;
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

/// The longest that a call may take: what its server is allowed, or less where a limit says so.
pub(super) fn total_timeout(settings: &ConnectionSettings, call: &Call) -> Duration {
    let lowered = call.limits.as_ref().and_then(|limits| limits.total_timeout());
    lowered.map_or(settings.total_timeout, |lowered| lowered.min(settings.total_timeout))
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
    pub(super) fn new(settings: &ConnectionSettings, call: &Call) -> Self {
        let total_timeout = total_timeout(settings, call);
        Self {
            idle_timeout: (call.method != Method::Listen).then_some(settings.idle_timeout),
            total_timeout,
            deadline: Instant::now() + total_timeout,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that takes a minute for each reply.
    struct SlowReader;

    impl ReplySink for SlowReader {
        async fn send(&mut self, _: Reply) {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_the_reader_takes_does_not_count() {
        let settings = ConnectionSettings {
            idle_timeout: Duration::from_secs(5),
            total_timeout: Duration::from_secs(10),
            ..ConnectionSettings::default()
        };
        let mut limits = WaitLimits {
            idle_timeout: Some(settings.idle_timeout),
            total_timeout: settings.total_timeout,
            deadline: Instant::now() + settings.total_timeout,
        };
        let mut progress = ProgressFilter::default();
        let (progress, limits) = (&mut progress, &mut limits);
        let mut round = Round { out: &mut SlowReader, progress, limits, delivery: AnswerDelivery::InPieces };
        for _ in 0..3 {
            round.pass_piece(Bytes::from_static(b"x")).await;
            round.wait(tokio::time::sleep(Duration::from_secs(3))).await.unwrap();
        }
        round.pass_piece(Bytes::from_static(b"x")).await;
        let late = round.wait(tokio::time::sleep(Duration::from_secs(3))).await.unwrap_err();
        assert_eq!(late.failure().unwrap().kind(), FailureKind::TimedOut(Duration::from_secs(10)));
    }
}
