//! The timer: it fires where it is polled, when it is due, whichever worker it came from.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use shuttle::sync::{Mutex, mpsc};
use shuttle::{future, thread};

use crate::sync::Instant;
use crate::timer::WorkerTimer;
use crate::workers::{Driver, enter};

const WAIT: Duration = Duration::from_secs(1);

/// A worker's loop: fires its timers until its work is done. Time passes between any two steps of the others.
fn run_driver(driver: Arc<Driver>, clock: Arc<Mutex<Duration>>, stop: mpsc::Receiver<()>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        while stop.try_recv() == Err(mpsc::TryRecvError::Empty) {
            *clock.lock().unwrap() += WAIT;
            driver.fire();
            thread::yield_now();
        }
    })
}

fn is_pending(timer: Pin<&mut WorkerTimer>) -> bool {
    timer.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// A timer that one worker created and polled is awaited on another while the first one stops.
pub(crate) fn timer_fires_on_another_worker() {
    let clock = Arc::new(Mutex::new(Duration::ZERO));
    let [first, second] = [(); 2].map(|()| Driver::new(&clock));
    let (sender, receiver) = mpsc::channel();
    let stopping = Arc::clone(&first);
    let creator = thread::spawn(move || {
        enter(1, &stopping);
        let deadline = Instant::now() + WAIT;
        let mut timer = Box::pin(WorkerTimer::at(deadline));
        assert!(is_pending(timer.as_mut()));
        sender.send((timer, deadline)).unwrap();
        stopping.stop();
    });
    enter(2, &second);
    let (timer, deadline) = receiver.recv().unwrap();
    let (stop, stopped) = mpsc::channel();
    let driving = run_driver(second, clock, stopped);
    future::block_on(timer);
    assert!(Instant::now() >= deadline, "too early");
    stop.send(()).unwrap();
    driving.join().unwrap();
    creator.join().unwrap();
}
