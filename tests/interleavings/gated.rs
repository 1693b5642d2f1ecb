//! The wake-gated future: no wake-up of its inner future is lost.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::future::join;
use shuttle::sync::Mutex;
use shuttle::{future, thread};

use crate::wake_gated::WakeGated;

/// Something that happens once, and whoever waits for it.
#[derive(Default)]
struct Event(Mutex<(bool, Option<Waker>)>);

impl Event {
    fn set(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn wait(&self) -> impl Future<Output = ()> + '_ {
        poll_fn(|context| {
            let mut state = self.0.lock().unwrap();
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(context.waker().clone());
            Poll::Pending
        })
    }
}

/// A task polls a gated and another future, as a connection does, and both are set by others.
pub(crate) fn wake_up_reaches_the_future() {
    let (event, neighbour) = (Arc::new(Event::default()), Arc::new(Event::default()));
    let threads = [&event, &neighbour].map(|event| {
        let event = Arc::clone(event);
        thread::spawn(move || event.set())
    });
    future::block_on(join(WakeGated::new(event.wait()), neighbour.wait()));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A gated future is polled by one task and then by another, whose waker counts from then on.
pub(crate) fn wake_up_reaches_the_new_task() {
    let event = Arc::new(Event::default());
    let setting = Arc::clone(&event);
    let setter = thread::spawn(move || setting.set());
    let mut gated = pin!(WakeGated::new(event.wait()));
    if gated.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        future::block_on(gated);
    }
    setter.join().unwrap();
}
