//! What a session sends: where it goes, and what is kept for a client that went away.
//!
//! Nothing is pushed. A message is kept, and the connection that is attached to its stream reads
//! it from there at its own pace; it can lag, break and be replaced, and nothing is lost as long
//! as it is kept. Who sends never waits, except a call's own task, for its own client.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::sse_stream::{DurableUpTo, SseStream, SseStreamRecord};
use crate::http::sse;
use crate::protocol::Id;
use crate::store::{EventId, EventLog, Retention};

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamTarget {
    /// To the stream that a call opened.
    Call(u32),
    /// To the stream that listens for what belongs to no call.
    Listening,
    /// To nobody: the connection of its call was gone before it had a stream.
    Nowhere,
}

/// Why a stream cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamError {
    /// The id names no event of this session.
    Unknown,
    /// What came after it is no longer kept.
    Gone,
    /// The session has as many open streams as it may.
    TooMany,
    /// The session has ended.
    Ended,
}

/// What a session sends.
#[derive(Debug)]
pub(super) enum Outbox {
    /// Many streams, each numbered and resumable: Streamable HTTP.
    Streams(Streams),
    /// One connection that everything goes to: HTTP+SSE and stdio.
    Single(MessageQueue),
}

/// The streams of one session.
#[derive(Debug)]
pub(super) struct Streams {
    log: EventLog,
    listening: SseStream,
    calls: Vec<SseStream>,
    last_number: u32,
    last_serial: u64,
}

/// The streams of one session as they are kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct StreamsRecord {
    pub(super) last_number: u32,
    listening: SseStreamRecord,
    pub(super) calls: Vec<SseStreamRecord>,
}

/// Messages for a single connection.
#[derive(Debug, Default)]
pub(super) struct MessageQueue {
    messages: VecDeque<Bytes>,
    waker: Option<Waker>,
    closed: bool,
}

/// How many messages may wait for a single connection before those who can wait do. Notices of
/// changes cannot; they find room beyond, once each, and more of them than this end the session.
pub(super) const MESSAGES_WAITING: usize = 256;
/// How far a connection may lag behind its call before the call waits for it, in events.
pub(super) const LAG: usize = 256;
const LISTENING: u32 = 0;

// === impl Streams ===

impl Streams {
    pub(super) fn new() -> Self {
        Self {
            log: EventLog::default(),
            listening: SseStream::new(LISTENING, 0),
            calls: Vec::new(),
            last_number: LISTENING,
            last_serial: 0,
        }
    }

    /// Streams that go on from what is kept of them. Positions begin anew after all that were given out.
    pub(super) fn resumed(kept: &StreamsRecord, events: Vec<(EventId, Instant, Bytes)>, position: u64) -> Self {
        let known = |id: &EventId| id.stream == LISTENING || kept.calls.iter().any(|call| call.number == id.stream);
        let log = EventLog::resumed(events.into_iter().filter(|(id, ..)| known(id)), position);
        let listening = SseStream::resumed(&kept.listening, &log);
        let calls = kept.calls.iter().map(|call| SseStream::resumed(call, &log)).collect();
        Self { listening, calls, last_number: kept.last_number, last_serial: 0, log }
    }

    /// What is to be kept of them beside their events.
    pub(super) fn record(&self) -> StreamsRecord {
        StreamsRecord {
            last_number: self.last_number,
            listening: self.listening.record(),
            calls: self.calls.iter().map(SseStream::record).collect(),
        }
    }

    /// The events.
    pub(super) fn log(&self) -> &EventLog {
        &self.log
    }

    /// The number that was given out last.
    pub(super) fn last_number(&self) -> u32 {
        self.last_number
    }

    /// A stream owes an answer to these requests.
    pub(super) fn expect_response(&mut self, number: u32, ids: Vec<Id>) {
        if let Some(route) = self.route(number) {
            route.owed = ids;
        }
    }

    /// A request of a stream is answered.
    pub(super) fn response_sent(&mut self, number: u32, id: &Id) {
        if let Some(route) = self.route(number) {
            route.owed.retain(|owed| owed != id);
        }
    }

    /// Wakes every connection: what they may be given has changed.
    pub(super) fn wake_all(&mut self) {
        for route in self.calls.iter_mut().chain([&mut self.listening]) {
            route.wake_all();
        }
    }

    /// Lets every connection go; their clients can resume.
    pub(super) fn disconnect_readers(&mut self) {
        self.wake_all();
        for route in self.calls.iter_mut().chain([&mut self.listening]) {
            route.readers.clear();
        }
    }

    fn serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    fn route(&mut self, number: u32) -> Option<&mut SseStream> {
        match number {
            LISTENING => Some(&mut self.listening),
            number => self.calls.iter_mut().find(|route| route.number == number),
        }
    }

    /// Opens a stream for a call, with its connection.
    pub(super) fn open(&mut self, retry: Option<u64>) -> (u32, u64) {
        self.last_number += 1;
        let serial = self.serial();
        let mut route = SseStream::new(self.last_number, self.log.position());
        route.attach(serial, route.began, retry);
        self.calls.push(route);
        (self.last_number, serial)
    }

    /// Attaches a connection that listens, from what no connection has read yet.
    pub(super) fn listen(&mut self, retry: Option<u64>, most: usize) -> Result<(u32, u64), StreamError> {
        let position = self.listening.read.max(self.listening.trimmed);
        self.attach_listening(position, retry, most)
    }

    /// Too many listeners of one client are most likely dead ones: the oldest has to go.
    fn attach_listening(&mut self, position: u64, retry: Option<u64>, most: usize) -> Result<(u32, u64), StreamError> {
        if self.connections() >= most {
            if self.listening.readers.is_empty() {
                return Err(StreamError::TooMany);
            }
            if let Some(waker) = self.listening.readers.remove(0).waker {
                waker.wake();
            }
        }
        let serial = self.serial();
        self.listening.attach(serial, position, retry);
        Ok((LISTENING, serial))
    }

    /// Attaches a connection to the stream of an event, after that event. One that was still
    /// attached to a call's stream is replaced: it is most likely dead.
    pub(super) fn resume(&mut self, id: EventId, retry: Option<u64>, most: usize) -> Result<(u32, u64), StreamError> {
        if id.position > self.log.position() {
            return Err(StreamError::Unknown);
        }
        if id.stream == LISTENING {
            if id.position < self.listening.trimmed {
                return Err(StreamError::Gone);
            }
            return self.attach_listening(id.position, retry, most);
        }
        let connections = self.connections();
        let serial = self.serial();
        let known = id.stream <= self.last_number;
        let Some(route) = self.route(id.stream) else {
            return Err(if known { StreamError::Gone } else { StreamError::Unknown });
        };
        if id.position < route.began {
            return Err(StreamError::Unknown);
        }
        if id.position < route.trimmed {
            return Err(StreamError::Gone);
        }
        if connections - route.readers.len() >= most {
            return Err(StreamError::TooMany);
        }
        route.wake_all();
        route.readers.clear();
        route.attach(serial, id.position, retry);
        Ok((id.stream, serial))
    }

    /// How many connections are attached.
    pub(super) fn connections(&self) -> usize {
        let calls: usize = self.calls.iter().map(|route| route.readers.len()).sum();
        calls + self.listening.readers.len()
    }

    fn send(&mut self, number: u32, message: &[u8], retention: &Retention) {
        let id = self.log.next_id(number);
        let Some(route) = self.route(number) else { return };
        route.last = id.position;
        route.wake();
        let event = sse::message(Some(&id.to_string()), message);
        let now = Instant::now();
        self.log.append(number, event, now);
        self.trim(retention, now);
    }

    /// Drops what is no longer kept, and streams that nothing is left of.
    fn trim(&mut self, retention: &Retention, now: Instant) {
        let Self { log, listening, calls, .. } = self;
        let mut dropped = false;
        log.trim(retention, now, |id| {
            dropped = true;
            let route = match id.stream {
                LISTENING => Some(&mut *listening),
                number => calls.iter_mut().find(|route| route.number == number),
            };
            if let Some(route) = route {
                route.trimmed = route.trimmed.max(id.position);
                route.wake(); // a reader that lags this far has to notice
            }
        });
        if dropped {
            calls.retain(|route| !route.finished || route.trimmed < route.last);
            calls.shrink_to_fit();
        }
    }

    /// A stream ends without its answer, and nobody may wait for it.
    fn abandon(&mut self, number: u32) {
        if let Some(route) = self.route(number) {
            route.wake_all();
        }
        self.calls.retain(|route| route.number != number);
        self.log.forget(number);
    }

    /// Whether a connection lags so far behind that its call should wait for it.
    fn lags(&self, number: u32) -> bool {
        let route = self.calls.iter().find(|route| route.number == number);
        let Some(route) = route.filter(|route| !route.readers.is_empty()) else { return false };
        // Positions run through the session, so this counts too much rather than too little.
        route.last - route.read > LAG as u64
            && self.log.after(EventId { stream: number, position: route.read }).nth(LAG).is_some()
    }
}

// === impl Queue ===

impl MessageQueue {
    fn push(&mut self, message: Bytes) {
        self.messages.push_back(message);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.messages.pop_front() {
            Some(message) => Poll::Ready(Some(message)),
            None if self.closed => Poll::Ready(None),
            None => {
                self.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

// === impl Outbox ===

impl Outbox {
    /// Sends a message of a call, which has waited until its client was not too far behind.
    pub(super) fn put(&mut self, stream: StreamTarget, message: Bytes, retention: &Retention) {
        match (self, stream) {
            (Self::Single(queue), _) => queue.push(message),
            (Self::Streams(streams), StreamTarget::Call(number)) => streams.send(number, &message, retention),
            (Self::Streams(streams), StreamTarget::Listening) => streams.send(LISTENING, &message, retention),
            (Self::Streams(_), StreamTarget::Nowhere) => {}
        }
    }

    /// Sends a notice that nobody waits with; false when the client is so far behind that the
    /// session cannot go on. To one that is behind, what already waits is not said twice.
    pub(super) fn send(&mut self, stream: StreamTarget, message: Bytes, retention: &Retention) -> bool {
        if let Self::Single(queue) = self {
            let waiting = queue.messages.len();
            if waiting >= 2 * MESSAGES_WAITING {
                return false;
            }
            if waiting >= MESSAGES_WAITING && queue.messages.range(waiting / 2..).any(|other| *other == message) {
                return true;
            }
        }
        self.put(stream, message, retention);
        true
    }

    /// Where a question that belongs to no call is most likely heard.
    pub(super) fn best_for_questions(&self) -> StreamTarget {
        let Self::Streams(streams) = self else { return StreamTarget::Listening };
        if !streams.listening.readers.is_empty() {
            return StreamTarget::Listening;
        }
        let open = streams.calls.iter().rev().find(|route| !route.readers.is_empty() && !route.finished);
        open.map_or(StreamTarget::Listening, |route| StreamTarget::Call(route.number))
    }

    /// Whether a call should wait before it sends more on a stream.
    pub(super) fn is_behind(&self, stream: StreamTarget) -> bool {
        match (self, stream) {
            (Self::Single(queue), _) => queue.messages.len() >= MESSAGES_WAITING,
            (Self::Streams(streams), StreamTarget::Call(number)) => streams.lags(number),
            (Self::Streams(_), _) => false,
        }
    }

    /// The next thing for a connection to write.
    pub(super) fn poll(
        &mut self,
        number: u32,
        serial: u64,
        safe: DurableUpTo,
        context: &mut Context<'_>,
    ) -> Poll<Option<Bytes>> {
        match self {
            Self::Single(queue) => queue.poll(context),
            Self::Streams(streams) => {
                let Streams { log, listening, calls, .. } = streams;
                let route = match number {
                    LISTENING => Some(listening),
                    number => calls.iter_mut().find(|route| route.number == number),
                };
                match route {
                    Some(route) => route.poll(serial, log, safe, context),
                    None => Poll::Ready(None),
                }
            }
        }
    }

    /// A connection is gone.
    pub(super) fn detach(&mut self, number: u32, serial: u64) {
        let Self::Streams(streams) = self else { return };
        if let Some(route) = streams.route(number) {
            route.detach(serial);
        }
    }

    pub(super) fn finish(&mut self, stream: StreamTarget) {
        let (Self::Streams(streams), StreamTarget::Call(number)) = (self, stream) else { return };
        if let Some(route) = streams.route(number) {
            route.finished = true;
            route.wake();
        }
    }

    pub(super) fn abandon(&mut self, stream: StreamTarget) {
        if let (Self::Streams(streams), StreamTarget::Call(number)) = (self, stream) {
            streams.abandon(number);
        }
    }

    /// Whether a connection is attached.
    pub(super) fn is_attached(&self) -> bool {
        match self {
            Self::Single(_) => true,
            Self::Streams(streams) => streams.connections() > 0,
        }
    }

    /// How many connections, events and bytes of events it holds.
    pub(super) fn holds(&self) -> (usize, usize, usize) {
        match self {
            Self::Single(queue) => (1, queue.messages.len(), queue.messages.iter().map(Bytes::len).sum()),
            Self::Streams(streams) => (streams.connections(), streams.log.len(), streams.log.bytes()),
        }
    }

    /// Whether something waits for a client that may come back. Drops what is no longer kept.
    pub(super) fn has_unread(&mut self, retention: &Retention, now: Instant) -> bool {
        match self {
            Self::Single(_) => false,
            Self::Streams(streams) => {
                streams.trim(retention, now);
                streams.listening.unread() || streams.calls.iter().any(SseStream::unread)
            }
        }
    }

    /// Nothing more comes: connections read what is there, and end.
    pub(super) fn close(&mut self) {
        match self {
            Self::Streams(streams) => {
                for route in streams.calls.iter_mut().chain([&mut streams.listening]) {
                    route.finished = true;
                    route.wake_all();
                }
            }
            Self::Single(queue) => {
                queue.closed = true;
                if let Some(waker) = queue.waker.take() {
                    waker.wake();
                }
            }
        }
    }
}
