//! The outbox under random orders of its writers and readers, chosen by shuttle: a run in which all threads wait is a lost
//! wake-up. A lock of shuttle's stands in for that of the session.

use std::task::Poll;

use shuttle::sync::Mutex;
use shuttle::{future, thread};

use super::*;
use crate::policy::Quotas;
use crate::session::outbox::{MessageQueue, Outbox, Streams};
use crate::session::sse_stream::DurableUpTo;

const SCHEDULES: usize = 2_000;
const MESSAGES: u8 = 3;

type Shared = Arc<Mutex<Outbox>>;

fn shared(outbox: Outbox) -> Shared {
    Arc::new(Mutex::new(outbox))
}

fn streams() -> Outbox {
    Outbox::Streams(Streams::new(&Quotas::default().event_bytes))
}

fn open_call(outbox: &Shared) -> (u32, u64) {
    let mut outbox = outbox.lock().unwrap();
    let Outbox::Streams(streams) = &mut *outbox else { panic!("{outbox:?}") };
    streams.open(Mark::NONE, None)
}

/// Reads until the stream ends; returns the bodies of the messages.
fn read_all(outbox: &Shared, (number, serial): (u32, u64)) -> Vec<u8> {
    let mut seen = Vec::new();
    let next = || {
        let poll = |context: &mut std::task::Context<'_>| {
            outbox.lock().unwrap().poll(number, serial, DurableUpTo::ALL, context)
        };
        future::block_on(std::future::poll_fn(poll))
    };
    while let Some(event) = next() {
        // The message is the last line of an event, and all there is on a single connection.
        seen.push(*event.trim_ascii_end().last().unwrap());
    }
    seen
}

/// A thread that sends the messages `first..` and then ends the stream, if it is to.
fn writer(
    outbox: &Shared,
    target: StreamTarget,
    first: u8,
    end: fn(&mut Outbox, StreamTarget),
) -> thread::JoinHandle<()> {
    let outbox = Arc::clone(outbox);
    thread::spawn(move || {
        for message in first..first + MESSAGES {
            let sent = outbox.lock().unwrap().send(target, Bytes::from(vec![message]), &Retention::default());
            assert!(sent);
        }
        end(&mut outbox.lock().unwrap(), target);
    })
}

fn check(run: fn()) {
    shuttle::check_random(run, SCHEDULES);
    shuttle::check_pct(run, SCHEDULES, 3);
}

#[test]
fn single_connection_reads_every_message_in_order() {
    check(|| {
        let outbox = shared(Outbox::Single(MessageQueue::default()));
        let writing = writer(&outbox, StreamTarget::Listening, b'a', |outbox, _| outbox.close());
        assert_eq!(read_all(&outbox, (0, 0)), b"abc");
        writing.join().unwrap();
    });
}

#[test]
fn call_stream_reads_every_event_in_order_and_ends() {
    check(|| {
        let outbox = shared(streams());
        let reader = open_call(&outbox);
        let other = open_call(&outbox);
        let writing = [(reader, b'a'), (other, b'x')]
            .map(|((number, _), first)| writer(&outbox, StreamTarget::Call(number), first, Outbox::finish));
        assert_eq!(read_all(&outbox, reader), b"abc");
        assert_eq!(read_all(&outbox, other), b"xyz");
        writing.into_iter().for_each(|writing| writing.join().unwrap());
    });
}

/// The reader that is attached last is served; the earlier one is served again when that is gone.
#[test]
fn listening_reader_takes_over_from_one_that_detaches() {
    check(|| {
        let outbox = shared(streams());
        let attach = || {
            let mut outbox = outbox.lock().unwrap();
            let Outbox::Streams(streams) = &mut *outbox else { panic!("{outbox:?}") };
            streams.listen(None, 2).unwrap()
        };
        let (first, second) = (attach(), attach());
        let writing = writer(&outbox, StreamTarget::Listening, b'a', |_, _| {});
        let leaving = Arc::clone(&outbox);
        let detaching = thread::spawn(move || leaving.lock().unwrap().detach(second.0, second.1));
        let mut seen = 0;
        let poll = |context: &mut std::task::Context<'_>| {
            while let Poll::Ready(Some(_)) = outbox.lock().unwrap().poll(first.0, first.1, DurableUpTo::ALL, context) {
                seen += 1;
            }
            if seen == MESSAGES { Poll::Ready(()) } else { Poll::Pending }
        };
        future::block_on(std::future::poll_fn(poll));
        [writing, detaching].into_iter().for_each(|thread| thread.join().unwrap());
    });
}
