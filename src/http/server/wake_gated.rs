//! A future that is polled only after its own waker fired.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::{AtomicBool, AtomicWaker};

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
