//! The pooled timer on real workers; `tests/interleavings.rs` has the orders in which they can take their steps.

use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::coop;
use tokio::time::Instant;

use super::PooledTimer;
use super::pooled::{MAX_SPARE_TIMERS, SPARE_TIMERS};
use crate::workers::Workers;

fn spare_counts() -> Vec<usize> {
    SPARE_TIMERS.with_borrow(|timers| timers.iter().map(Vec::len).collect())
}

/// Runs a future on a worker and returns its output.
fn on_a_worker<F>(work: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let workers = Workers::start(1).unwrap();
    let (sender, receiver) = mpsc::channel();
    workers.least_loaded().unwrap().runtime().spawn(async move { sender.send(work.await) });
    receiver.recv().unwrap()
}

#[test]
fn worker_reuses_dropped_timers() {
    on_a_worker(async {
        for _ in 0..3 {
            let (short, long) =
                (PooledTimer::after(Duration::from_millis(1)), PooledTimer::after(Duration::from_secs(600)));
            assert_eq!(spare_counts(), [0, 0, 0]);
            short.await;
            drop(long);
            assert_eq!(spare_counts(), [1, 0, 1]);
        }
        let many: Vec<PooledTimer> =
            (0..=MAX_SPARE_TIMERS).map(|_| PooledTimer::after(Duration::from_secs(600))).collect();
        drop(many);
        assert_eq!(spare_counts(), [1, 0, MAX_SPARE_TIMERS]);
    });
}

/// Timers that have fired, were polled, or were never polled.
#[test]
fn reused_timer_fires_at_its_new_deadline() {
    on_a_worker(async {
        let wait = Duration::from_millis(5);
        for previous_wait in [Duration::ZERO, wait, Duration::from_secs(4)] {
            let mut timer = PooledTimer::after(previous_wait);
            let _ = futures_util::poll!(&mut timer);
            drop(timer);
            let started = Instant::now();
            PooledTimer::after(wait).await;
            assert!(started.elapsed() >= wait, "{previous_wait:?}");
        }
        let started = Instant::now();
        assert_eq!(PooledTimer::timeout_at(started + wait, std::future::pending::<()>()).await, None);
        assert!(started.elapsed() >= wait);
        assert_eq!(PooledTimer::timeout_at(started, std::future::ready(1)).await, Some(1));
    });
}

/// The timer is registered with a worker and polled elsewhere after that worker has stopped.
#[tokio::test]
async fn timer_fires_after_its_worker_has_stopped() {
    let started = Instant::now();
    let wait = Duration::from_millis(20);
    let moved = on_a_worker(async move {
        let mut timer = PooledTimer::after(wait);
        assert!(futures_util::poll!(&mut timer).is_pending());
        Some(timer)
    });
    moved.unwrap().await;
    assert!(started.elapsed() >= wait);
    assert_eq!(spare_counts(), [0, 0, 0]);
}

#[tokio::test]
async fn deadline_fires_for_a_future_that_exhausts_its_budget() {
    let busy = std::future::poll_fn(|context| {
        while let Poll::Ready(progress) = coop::poll_proceed(context) {
            progress.made_progress();
        }
        context.waker().wake_by_ref();
        Poll::<()>::Pending
    });
    assert_eq!(PooledTimer::timeout_at(Instant::now() + Duration::from_millis(5), busy).await, None);
}

#[tokio::test(start_paused = true)]
async fn timers_outside_workers_are_not_pooled() {
    let started = Instant::now();
    PooledTimer::after(Duration::from_secs(3)).await;
    assert_eq!(started.elapsed(), Duration::from_secs(3));
    drop(PooledTimer::after(Duration::MAX));
    assert_eq!(spare_counts(), [0, 0, 0]);
}
