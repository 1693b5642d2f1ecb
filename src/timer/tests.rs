//! The timer on real workers; `tests/interleavings.rs` has the orders in which they can take their steps.

use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::coop;
use tokio::time::Instant;

use super::WorkerTimer;
use crate::workers::Workers;

/// Runs a future on a worker, which stops afterwards, and returns its output.
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
fn work_has_until_its_deadline() {
    on_a_worker(async {
        let (started, wait) = (Instant::now(), Duration::from_millis(5));
        assert_eq!(WorkerTimer::timeout_at(started + wait, std::future::pending::<()>()).await, None);
        assert!(started.elapsed() >= wait);
        assert_eq!(WorkerTimer::timeout_at(started, std::future::ready(1)).await, Some(1));
    });
}

/// The timer is registered with a worker and polled elsewhere after that worker has stopped.
#[tokio::test]
async fn timer_fires_after_its_worker_has_stopped() {
    let started = Instant::now();
    let wait = Duration::from_millis(20);
    let moved = on_a_worker(async move {
        let mut timer = Box::pin(WorkerTimer::after(wait));
        assert!(futures_util::poll!(&mut timer).is_pending());
        Some(timer)
    });
    moved.unwrap().await;
    assert!(started.elapsed() >= wait);
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
    assert_eq!(WorkerTimer::timeout_at(Instant::now() + Duration::from_millis(5), busy).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_the_clock_never_ends() {
    let started = Instant::now();
    let mut endless = Box::pin(WorkerTimer::after(Duration::MAX));
    assert!(futures_util::poll!(&mut endless).is_pending());
    WorkerTimer::after(Duration::from_secs(3)).await;
    assert_eq!(started.elapsed(), Duration::from_secs(3));
    assert!(futures_util::poll!(&mut endless).is_pending());
}
