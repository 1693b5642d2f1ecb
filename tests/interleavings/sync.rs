//! The primitives of `src/sync.rs`, as shuttle has them, and a clock that the checks set.

use std::future::Future;
use std::ops::Add;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(crate) use shuttle::sync::atomic::AtomicBool;

use crate::workers::{Driver, current_driver};

/// The contract of `futures_util::task::AtomicWaker`: the last registered waker is woken, once.
#[derive(Default)]
pub(crate) struct AtomicWaker(shuttle::sync::Mutex<Option<Waker>>);

impl AtomicWaker {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn register(&self, waker: &Waker) {
        *self.0.lock().unwrap() = Some(waker.clone());
    }

    pub(crate) fn wake(&self) {
        let waker = self.0.lock().unwrap().take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Time since the clock of the current driver was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(current_driver().now())
    }

    pub(crate) fn checked_add(self, wait: Duration) -> Option<Self> {
        self.0.checked_add(wait).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0 + wait)
    }
}

/// A timer that is registered with the driver of the worker that created it, as tokio's is.
#[derive(Debug)]
pub(crate) struct Sleep {
    driver: Arc<Driver>,
    number: usize,
}

pub(crate) fn sleep_until(deadline: Instant) -> Sleep {
    let driver = current_driver();
    let number = driver.register(deadline.0);
    Sleep { driver, number }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.driver.poll(self.number, context)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.driver.deregister(self.number);
    }
}
