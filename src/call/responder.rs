//! Takes the client's response to a server request, and measures how long the call waited for it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::protocol::Outcome;

/// Receives the client's response to a server request. Dropping it tells the upstream that no response will come.
#[derive(Debug)]
pub struct Responder {
    sender: oneshot::Sender<Outcome>,
    wait: Option<InputWait>,
}

/// How long a call has waited for input of its client: a person, or a model.
#[derive(Debug, Default)]
pub struct InputClock(Mutex<InputTime>);

#[derive(Debug, Default)]
struct InputTime {
    /// Server requests without a response.
    open: usize,
    /// When the first of them was sent.
    since: Option<Instant>,
    past: Duration,
}

/// One server request that a clock runs for.
#[derive(Debug)]
struct InputWait(Arc<InputClock>);

impl Responder {
    /// Has the clock run until the response is here, or nobody waits for it any more.
    pub fn timed(mut self, clock: &Arc<InputClock>) -> Self {
        self.wait = Some(clock.begin());
        self
    }

    /// The clock that runs until the response is here.
    pub fn clock(&self) -> Option<&Arc<InputClock>> {
        self.wait.as_ref().map(|wait| &wait.0)
    }

    /// Hands over the client's response.
    ///
    /// # Errors
    /// The response, if the upstream has stopped waiting.
    pub fn send(self, outcome: Outcome) -> Result<(), Outcome> {
        // The clock stops before the call can go on.
        drop(self.wait);
        self.sender.send(outcome)
    }

    /// Whether the upstream has stopped waiting.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Completes when the upstream has stopped waiting.
    pub async fn closed(&mut self) {
        self.sender.closed().await;
    }
}

impl From<oneshot::Sender<Outcome>> for Responder {
    fn from(sender: oneshot::Sender<Outcome>) -> Self {
        Self { sender, wait: None }
    }
}

impl InputClock {
    /// The time waited so far.
    pub fn waited(&self) -> Duration {
        let time = self.0.lock();
        time.past + time.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn begin(self: &Arc<Self>) -> InputWait {
        let mut time = self.0.lock();
        time.open += 1;
        time.since.get_or_insert_with(Instant::now);
        InputWait(Arc::clone(self))
    }
}

impl Drop for InputWait {
    fn drop(&mut self) {
        let mut time = self.0.0.lock();
        time.open -= 1;
        if time.open == 0
            && let Some(since) = time.since.take()
        {
            time.past += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Raw;

    #[tokio::test(start_paused = true)]
    async fn time_counts_once_while_any_request_is_open() {
        let clock = Arc::new(InputClock::default());
        let second = Duration::from_secs(1);
        let responder = || Responder::from(oneshot::channel().0).timed(&clock);
        let first = responder();
        tokio::time::advance(second).await;
        let other = responder();
        tokio::time::advance(second).await;
        assert_eq!(clock.waited(), 2 * second);
        let _ = first.send(Ok(Raw::empty().into()));
        tokio::time::advance(second).await;
        drop(other);
        tokio::time::advance(second).await;
        assert_eq!(clock.waited(), 3 * second);
        let again = responder();
        tokio::time::advance(second).await;
        assert!(Arc::ptr_eq(again.clock().unwrap(), &clock));
        drop(again);
        assert_eq!(clock.waited(), 4 * second);
    }
}
