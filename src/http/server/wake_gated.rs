//! A future that is polled only after its own waker fired.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Re-polls the inner future only after its own waker fired: `CancellationToken::cancelled` locks a shared mutex on
/// every poll, and connections poll it with every read and write.
pub(super) struct WakeGated<F> {
    future: Pin<Box<F>>,
    flag: Arc<WakeFlag>,
}

struct WakeFlag {
    is_woken: AtomicBool,
    outer_waker: AtomicWaker,
}

impl<F> WakeGated<F> {
    pub(super) fn new(future: F) -> Self {
        let flag = WakeFlag { is_woken: AtomicBool::new(true), outer_waker: AtomicWaker::new() };
        Self { future: Box::pin(future), flag: Arc::new(flag) }
    }
}

impl<F: Future> Future for WakeGated<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, flag } = self.get_mut();
        flag.outer_waker.register(context.waker());
        if !flag.is_woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(flag));
        future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.outer_waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::Notify;

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
}
