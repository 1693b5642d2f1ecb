//! The wake-gated future on tokio; `tests/interleavings.rs` has the orders in which threads can take their steps.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::wake_gated::WakeGated;

#[tokio::test]
async fn inner_future_is_polled_only_after_its_waker_fired() {
    let (polls, notify) = (AtomicUsize::new(0), Notify::new());
    let mut notified = Box::pin(notify.notified());
    let counted = std::future::poll_fn(|context| {
        polls.fetch_add(1, Ordering::Relaxed);
        notified.as_mut().poll(context)
    });
    let mut gated = WakeGated::new(counted);
    for _ in 0..3 {
        assert!(futures_util::poll!(&mut gated).is_pending());
    }
    assert_eq!(polls.load(Ordering::Relaxed), 1);
    notify.notify_one();
    gated.await;
    assert_eq!(polls.load(Ordering::Relaxed), 2);
}
