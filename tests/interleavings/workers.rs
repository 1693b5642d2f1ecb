//! Workers of the checks: a number, and a timer driver that can stop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::sync::Mutex;

shuttle::thread_local! {
    static CURRENT: std::cell::RefCell<Option<(usize, Arc<Driver>)>> = std::cell::RefCell::new(None);
}

/// The timers of one worker, and the clock that all share.
#[derive(Debug)]
pub(crate) struct Driver {
    clock: Arc<Mutex<Duration>>,
    wheel: Mutex<Wheel>,
}

#[derive(Debug, Default)]
struct Wheel {
    is_stopped: bool,
    last_number: usize,
    timers: BTreeMap<usize, Timer>,
}

#[derive(Debug)]
struct Timer {
    deadline: Duration,
    waker: Option<Waker>,
}

/// Number of the current worker, from 1; 0 on any other thread.
pub(crate) fn current_worker() -> usize {
    CURRENT.with(|current| current.borrow().as_ref().map_or(0, |(number, _)| *number))
}

pub(crate) fn current_driver() -> Arc<Driver> {
    CURRENT.with(|current| Arc::clone(&current.borrow().as_ref().expect("a worker").1))
}

/// Makes the current thread a worker.
pub(crate) fn enter(number: usize, driver: &Arc<Driver>) {
    CURRENT.with(|current| *current.borrow_mut() = Some((number, Arc::clone(driver))));
}

impl Driver {
    pub(crate) fn new(clock: &Arc<Mutex<Duration>>) -> Arc<Self> {
        Arc::new(Self { clock: Arc::clone(clock), wheel: Mutex::default() })
    }

    pub(crate) fn now(&self) -> Duration {
        *self.clock.lock().unwrap()
    }

    pub(crate) fn register(&self, deadline: Duration) -> usize {
        let mut wheel = self.wheel.lock().unwrap();
        assert!(!wheel.is_stopped, "a timer of a worker that has stopped");
        wheel.last_number += 1;
        let number = wheel.last_number;
        wheel.timers.insert(number, Timer { deadline, waker: None });
        number
    }

    pub(crate) fn deregister(&self, number: usize) {
        self.wheel.lock().unwrap().timers.remove(&number);
    }

    pub(crate) fn poll(&self, number: usize, context: &mut Context<'_>) -> Poll<()> {
        let mut wheel = self.wheel.lock().unwrap();
        assert!(!wheel.is_stopped, "a timer is polled whose worker has stopped");
        let timer = wheel.timers.get_mut(&number).expect("a registered timer");
        if timer.deadline <= *self.clock.lock().unwrap() {
            return Poll::Ready(());
        }
        timer.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Wakes what waits for a time that has come, as the worker does between two polls.
    pub(crate) fn fire(&self) {
        let now = self.now();
        let mut wheel = self.wheel.lock().unwrap();
        let due = wheel.timers.values_mut().filter(|timer| timer.deadline <= now);
        let wakers: Vec<_> = due.filter_map(|timer| timer.waker.take()).collect();
        drop(wheel);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The worker ends: its timers never fire again, and none may be polled.
    pub(crate) fn stop(&self) {
        self.wheel.lock().unwrap().is_stopped = true;
    }
}
