//! A timer that follows its task.
//!
//! tokio's timer belongs to the runtime that it was first polled on and panics when it is polled after that one has
//! stopped. Tasks move between the workers' runtimes here, so this one registers again where it is polled next.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::coop;

use crate::sync::{Instant, Sleep, sleep_until};
use crate::workers::current_worker;

pin_project! {
    /// Timer future for any worker. It costs nothing until it is polled.
    #[derive(Debug)]
    pub struct WorkerTimer {
        deadline: Instant,
        // The worker that `sleep` is registered with.
        worker: usize,
        #[pin]
        sleep: Option<Sleep>,
    }
}

impl WorkerTimer {
    /// Fires after `wait`.
    pub fn after(wait: Duration) -> Self {
        // A wait beyond the range of the clock never ends.
        let now = Instant::now();
        Self::at(now.checked_add(wait).unwrap_or(now + FAR_FUTURE))
    }

    /// Fires at `deadline`.
    pub fn at(deadline: Instant) -> Self {
        Self { deadline, worker: 0, sleep: None }
    }

    /// Runs a future until `deadline`; `None` when it did not complete by then.
    pub async fn timeout_at<F: Future>(deadline: Instant, work: F) -> Option<F::Output> {
        let mut work = std::pin::pin!(work);
        let mut timer = std::pin::pin!(Self::at(deadline));
        std::future::poll_fn(|context| {
            let had_budget = coop::has_budget_remaining();
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            // Work that exhausts the coop budget must not starve the deadline; tokio's `Timeout` does the same.
            match had_budget && !coop::has_budget_remaining() {
                true => ready!(std::pin::pin!(coop::unconstrained(timer.as_mut())).poll(context)),
                false => ready!(timer.as_mut().poll(context)),
            }
            Poll::Ready(None)
        })
        .await
    }
}

/// A deadline that is never reached.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

impl Future for WorkerTimer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let worker = current_worker();
        if *this.worker != worker {
            this.sleep.set(None);
            *this.worker = worker;
        }
        if this.sleep.is_none() {
            this.sleep.set(Some(sleep_until(*this.deadline)));
        }
        this.sleep.as_pin_mut().map_or(Poll::Ready(()), |sleep| sleep.poll(context))
    }
}
