//! A future beside a busy one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// A future that is asked again only after it has rung. Asked whenever its neighbour is, it would take
/// locks each time that all connections share.
pub(super) struct WakeGated<F> {
    future: Pin<Box<F>>,
    bell: Arc<WakeFlag>,
}

struct WakeFlag {
    rung: AtomicBool,
    task: AtomicWaker,
}

impl<F> WakeGated<F> {
    pub(super) fn new(future: F) -> Self {
        let bell = WakeFlag { rung: AtomicBool::new(true), task: AtomicWaker::new() };
        Self { future: Box::pin(future), bell: Arc::new(bell) }
    }
}

impl<F: Future> Future for WakeGated<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, bell } = self.get_mut();
        bell.task.register(context.waker());
        if !bell.rung.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(bell));
        future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn it_is_asked_when_it_rings_and_not_before() {
        let (asked, notify) = (AtomicUsize::new(0), Notify::new());
        let mut notified = Box::pin(notify.notified());
        let counted = std::future::poll_fn(|context| {
            asked.fetch_add(1, Ordering::Relaxed);
            notified.as_mut().poll(context)
        });
        let mut seldom = WakeGated::new(counted);
        for _ in 0..3 {
            assert!(futures_util::poll!(&mut seldom).is_pending());
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        notify.notify_one();
        seldom.await;
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}
