//! Timers that are set for every call, and hardly ever go off.
//!
//! To set a timer and to take it back are two changes to the clock of a runtime, and may wake it for nothing; to
//! move one to a later time is neither. So a worker keeps the timers that are no longer needed, and moves them.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop;
use tokio::time::{Instant, Sleep};

use crate::workers::current_worker;

/// Ends at some time.
#[derive(Debug)]
pub struct PooledTimer {
    /// There until it is dropped.
    timer: Option<Pin<Box<Sleep>>>,
    /// The worker whose timer it is, and what it is used for there.
    owner: (usize, usize),
}

/// How many timers of each kind a worker keeps. Each keeps the memory of the task that it last woke, until it goes
/// off or is used again.
const SPARE: usize = 32;
/// Timers that wait for long are not used for short waits: only a later time costs nothing.
const KINDS: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(45), Duration::MAX];

type Spare = [Vec<Pin<Box<Sleep>>>; KINDS.len()];

thread_local! {
    static TIMERS: RefCell<Spare> = const { RefCell::new([const { Vec::new() }; KINDS.len()]) };
}

impl PooledTimer {
    /// Ends after so long.
    pub fn after(wait: Duration) -> Self {
        // What is too long for the clock is as good as for ever.
        let now = Instant::now();
        Self::new(now.checked_add(wait).unwrap_or(now + FOR_EVER), wait)
    }

    /// Ends then.
    pub fn at(end: Instant) -> Self {
        Self::new(end, end.saturating_duration_since(Instant::now()))
    }

    fn new(end: Instant, wait: Duration) -> Self {
        let kind = KINDS.iter().position(|longest| wait <= *longest).unwrap_or_default();
        let owner = (current_worker(), kind);
        let spare = match owner {
            (0, _) => None,
            _ => TIMERS.with_borrow_mut(|timers| timers[kind].pop()),
        };
        let timer = match spare {
            None => Box::pin(tokio::time::sleep_until(end)),
            Some(mut timer) => {
                timer.as_mut().reset(end);
                timer
            }
        };
        Self { timer: Some(timer), owner }
    }

    /// Waits for something until then; nothing when it took too long.
    pub async fn limit<F: Future>(end: Instant, work: F) -> Option<F::Output> {
        Self::at(end).or(work).await
    }

    /// Waits for something at most so long from now on; nothing when it took longer.
    pub async fn limit_from<F: Future>(now: Instant, end: Instant, work: F) -> Option<F::Output> {
        Self::new(end, end.saturating_duration_since(now)).or(work).await
    }

    async fn or<F: Future>(self, work: F) -> Option<F::Output> {
        let mut work = std::pin::pin!(work);
        let mut alarm = self;
        std::future::poll_fn(|context| {
            let rested = coop::has_budget_remaining();
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            // What is always busy must not keep the time from being looked at.
            match rested && !coop::has_budget_remaining() {
                true => ready!(std::pin::pin!(coop::unconstrained(&mut alarm)).poll(context)),
                false => ready!(Pin::new(&mut alarm).poll(context)),
            }
            Poll::Ready(None)
        })
        .await
    }
}

/// A time that nobody waits for.
const FOR_EVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

impl Future for PooledTimer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (place, kind) = self.owner;
        let Some(timer) = &mut self.timer else { return Poll::Ready(()) };
        if place == current_worker() {
            return timer.as_mut().poll(context);
        }
        // What it belongs to goes on elsewhere; the clock that it was set by may stop before.
        let mut timer = Box::pin(tokio::time::sleep_until(timer.deadline()));
        let polled = timer.as_mut().poll(context);
        (self.timer, self.owner) = (Some(timer), (current_worker(), kind));
        polled
    }
}

impl Drop for PooledTimer {
    fn drop(&mut self) {
        let (place, kind) = self.owner;
        let Some(timer) = self.timer.take().filter(|_| place != 0 && place == current_worker()) else { return };
        // When the thread ends there is nowhere to keep it.
        let _ = TIMERS.try_with(|timers| {
            if let Ok(mut timers) = timers.try_borrow_mut()
                && timers[kind].len() < SPARE
            {
                timers[kind].push(timer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::Workers;
    use std::sync::mpsc;

    fn spare() -> Vec<usize> {
        TIMERS.with_borrow(|timers| timers.iter().map(Vec::len).collect())
    }

    /// Runs something on a worker.
    fn on_a_worker<F>(work: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let workers = Workers::start(1).unwrap();
        let (say, said) = mpsc::channel();
        workers.least_loaded().unwrap().runtime().spawn(async move { say.send(work.await) });
        said.recv().unwrap()
    }

    #[test]
    fn a_worker_uses_its_timers_again() {
        on_a_worker(async {
            for _ in 0..3 {
                let (short, long) =
                    (PooledTimer::after(Duration::from_millis(1)), PooledTimer::after(Duration::from_secs(600)));
                assert_eq!(spare(), [0, 0, 0]);
                short.await;
                drop(long);
                assert_eq!(spare(), [1, 0, 1]);
            }
            let many: Vec<PooledTimer> = (0..=SPARE).map(|_| PooledTimer::after(Duration::from_secs(600))).collect();
            drop(many);
            assert_eq!(spare(), [1, 0, SPARE]);
        });
    }

    /// One that has gone off, one that is early, and one that was never waited for, are set anew.
    #[test]
    fn a_timer_ends_when_it_was_last_told_to() {
        on_a_worker(async {
            let wait = Duration::from_millis(5);
            for before in [Duration::ZERO, wait, Duration::from_secs(4)] {
                let mut alarm = PooledTimer::after(before);
                let _ = futures_util::poll!(&mut alarm);
                drop(alarm);
                let begun = Instant::now();
                PooledTimer::after(wait).await;
                assert!(begun.elapsed() >= wait, "{before:?}");
            }
            let begun = Instant::now();
            assert_eq!(PooledTimer::limit(begun + wait, std::future::pending::<()>()).await, None);
            assert!(begun.elapsed() >= wait);
            assert_eq!(PooledTimer::limit(begun, std::future::ready(1)).await, Some(1));
        });
    }

    /// One that was set by a worker, and is waited for by somebody else when that worker is no more.
    #[tokio::test]
    async fn a_timer_outlives_its_worker() {
        let begun = Instant::now();
        let wait = Duration::from_millis(20);
        let moved = on_a_worker(async move {
            let mut alarm = PooledTimer::after(wait);
            assert!(futures_util::poll!(&mut alarm).is_pending());
            Some(alarm)
        });
        moved.unwrap().await;
        assert!(begun.elapsed() >= wait);
        assert_eq!(spare(), [0, 0, 0]);
    }

    /// Something that is never at rest does not keep its limit from being seen.
    #[tokio::test]
    async fn the_limit_holds_for_what_is_always_busy() {
        let busy = std::future::poll_fn(|context| {
            while let Poll::Ready(spent) = coop::poll_proceed(context) {
                spent.made_progress();
            }
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert_eq!(PooledTimer::limit(Instant::now() + Duration::from_millis(5), busy).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn elsewhere_timers_are_as_usual() {
        let begun = Instant::now();
        PooledTimer::after(Duration::from_secs(3)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(3));
        drop(PooledTimer::after(Duration::MAX));
        assert_eq!(spare(), [0, 0, 0]);
    }
}
