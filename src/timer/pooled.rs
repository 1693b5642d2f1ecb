//! A timer that is kept for reuse.
//!
//! Registering and deregistering a tokio timer each lock the timer wheel and may wake the runtime; resetting one to a
//! later deadline does neither. So each worker keeps timers that are no longer needed and resets them.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop;

use crate::sync::{Instant, Sleep, sleep_until, thread_local};
use crate::workers::current_worker;

/// Timer future that is returned to its worker's pool when dropped.
#[derive(Debug)]
pub struct PooledTimer {
    /// `None` only while dropping.
    timer: Option<Pin<Box<Sleep>>>,
    /// The worker that the timer is registered with, and its wait class.
    owner: (usize, usize),
}

/// Spare timers per worker and wait class. Each keeps the waker of the task that it last woke until it fires or is
/// reused.
pub(super) const MAX_SPARE_TIMERS: usize = 32;
/// Upper bounds of the wait classes. Classes are pooled apart because only resetting to a later deadline is cheap.
const WAIT_CLASSES: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(45), Duration::MAX];

pub(super) type SpareTimers = [Vec<Pin<Box<Sleep>>>; WAIT_CLASSES.len()];

thread_local! {
    pub(super) static SPARE_TIMERS: RefCell<SpareTimers> = const { RefCell::new([const { Vec::new() }; WAIT_CLASSES.len()]) };
}

impl PooledTimer {
    /// Fires after `wait`.
    pub fn after(wait: Duration) -> Self {
        // A wait beyond the range of the clock never ends.
        let now = Instant::now();
        Self::new(now.checked_add(wait).unwrap_or(now + FAR_FUTURE), wait)
    }

    /// Fires at `deadline`.
    pub fn at(deadline: Instant) -> Self {
        Self::new(deadline, deadline.saturating_duration_since(Instant::now()))
    }

    fn new(deadline: Instant, wait: Duration) -> Self {
        let class = WAIT_CLASSES.iter().position(|max_wait| wait <= *max_wait).unwrap_or_default();
        let owner = (current_worker(), class);
        let spare = match owner {
            (0, _) => None,
            _ => SPARE_TIMERS.with(|timers| timers.borrow_mut()[class].pop()),
        };
        let timer = match spare {
            None => Box::pin(sleep_until(deadline)),
            Some(mut timer) => {
                timer.as_mut().reset(deadline);
                timer
            }
        };
        Self { timer: Some(timer), owner }
    }

    /// Runs a future until `deadline`; `None` when it did not complete by then.
    pub async fn timeout_at<F: Future>(deadline: Instant, work: F) -> Option<F::Output> {
        Self::at(deadline).race(work).await
    }

    /// Like [`Self::timeout_at`], for callers that have read the clock already.
    pub async fn timeout_at_from<F: Future>(now: Instant, deadline: Instant, work: F) -> Option<F::Output> {
        Self::new(deadline, deadline.saturating_duration_since(now)).race(work).await
    }

    async fn race<F: Future>(self, work: F) -> Option<F::Output> {
        let mut work = std::pin::pin!(work);
        let mut timer = self;
        std::future::poll_fn(|context| {
            let had_budget = coop::has_budget_remaining();
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            // Work that exhausts the coop budget must not starve the deadline; tokio's `Timeout` does the same.
            match had_budget && !coop::has_budget_remaining() {
                true => ready!(std::pin::pin!(coop::unconstrained(&mut timer)).poll(context)),
                false => ready!(Pin::new(&mut timer).poll(context)),
            }
            Poll::Ready(None)
        })
        .await
    }
}

/// A deadline that is never reached.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

impl Future for PooledTimer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (worker, class) = self.owner;
        let Some(timer) = &mut self.timer else { return Poll::Ready(()) };
        if worker == current_worker() {
            return timer.as_mut().poll(context);
        }
        // The task has moved to another runtime, and the one the timer is registered with may stop first.
        let mut timer = Box::pin(sleep_until(timer.deadline()));
        let polled = timer.as_mut().poll(context);
        (self.timer, self.owner) = (Some(timer), (current_worker(), class));
        polled
    }
}

impl Drop for PooledTimer {
    fn drop(&mut self) {
        let (worker, class) = self.owner;
        let Some(timer) = self.timer.take().filter(|_| worker != 0 && worker == current_worker()) else { return };
        // During thread exit the pool is already destroyed.
        let _ = SPARE_TIMERS.try_with(|timers| {
            if let Ok(mut timers) = timers.try_borrow_mut()
                && timers[class].len() < MAX_SPARE_TIMERS
            {
                timers[class].push(timer);
            }
        });
    }
}
