//! Outgoing messages of a session and the event log from which clients resume.
//!
//! Readers pull: a message is appended to the log and the attached reader takes it at its own pace. A reader can
//! lag, break or be replaced without loss until its events are trimmed. Senders never wait, except the task of a
//! call for that call's own client.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::sse_stream::{DurableUpTo, SseStream, SseStreamRecord};
use crate::failure::{QuotaReached, QuotaScope};
use crate::http::sse;
use crate::policy::{Permit, Quota};
use crate::protocol::Id;
use crate::recorder::Mark;
use crate::store::{EventId, EventLog, Retention};

/// Destination of a message within a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamTarget {
    /// The SSE stream of a call, by number.
    Call(u32),
    /// The listening stream, for messages that belong to no call.
    Listening,
    /// Dropped: the client disconnected before the call had a stream.
    Discard,
}

/// Reasons to refuse a stream reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamError {
    /// The event id was never assigned by this session.
    UnknownEvent,
    /// Events after this id were trimmed from the log.
    EventsTrimmed,
    /// As many readers are attached as may be, in this session or in all.
    QuotaReached(QuotaReached),
    /// The session is closed.
    SessionEnded,
}

/// Outgoing side of a session, by transport.
#[derive(Debug)]
pub(super) enum Outbox {
    /// Streamable HTTP: many numbered, resumable streams.
    Streams(Streams),
    /// HTTP+SSE and stdio: one connection that carries every message.
    Single(MessageQueue),
}

/// The SSE streams of one session over a shared event log.
#[derive(Debug)]
pub(super) struct Streams {
    log: EventLog,
    listening: SseStream,
    calls: Vec<SseStream>,
    last_number: u32,
    last_serial: u64,
    /// The bytes of `log`, as counted for all sessions.
    kept_bytes: Permit,
}

/// Serialized form of [`Streams`] without the events.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct StreamsRecord {
    pub(super) last_number: u32,
    listening: SseStreamRecord,
    pub(super) calls: Vec<SseStreamRecord>,
}

/// Message queue of a single-connection session.
#[derive(Debug, Default)]
pub(super) struct MessageQueue {
    messages: VecDeque<Bytes>,
    /// Size of these messages.
    bytes: usize,
    waker: Option<Waker>,
    closed: bool,
}

/// Queue length at which calls wait for a single connection. Notifications cannot wait: each distinct one is queued
/// up to twice this bound, and beyond that the session closes.
pub(super) const MAX_QUEUED_MESSAGES: usize = 256;
/// Bytes of queued messages at which calls wait, and notifications close the session beyond twice as many.
pub(super) const MAX_QUEUED_BYTES: usize = 8 << 20;
/// Lag, in events, beyond which a call waits for its reader.
pub(super) const MAX_READER_LAG: usize = 256;
const LISTENING_STREAM: u32 = 0;
/// What a session retains of its events while the quota of event bytes is exceeded.
const CROWDED_EVENT_BYTES: usize = 16 << 10;

impl StreamError {
    const TOO_MANY_READERS: Self =
        Self::QuotaReached(QuotaReached { scope: QuotaScope::Session, resource: "open streams" });
}

// === impl Streams ===

impl Streams {
    pub(super) fn new(event_bytes: &Arc<Quota>) -> Self {
        Self {
            kept_bytes: event_bytes.acquire_begun(0),
            log: EventLog::default(),
            listening: SseStream::new(LISTENING_STREAM, 0),
            calls: Vec::new(),
            last_number: LISTENING_STREAM,
            last_serial: 0,
        }
    }

    /// Restores streams from their record and stored events. New positions start after `position`.
    pub(super) fn from_record(
        record: &StreamsRecord,
        events: Vec<(EventId, Instant, Bytes)>,
        position: u64,
        event_bytes: &Arc<Quota>,
    ) -> Self {
        let known =
            |id: &EventId| id.stream == LISTENING_STREAM || record.calls.iter().any(|call| call.number == id.stream);
        let log = EventLog::restored(events.into_iter().filter(|(id, ..)| known(id)), position);
        let listening = SseStream::from_record(&record.listening, &log);
        let calls = record.calls.iter().map(|call| SseStream::from_record(call, &log)).collect();
        let kept_bytes = event_bytes.acquire_begun(log.bytes());
        Self { listening, calls, last_number: record.last_number, last_serial: 0, log, kept_bytes }
    }

    /// Serializes the streams without their events.
    pub(super) fn record(&self) -> StreamsRecord {
        StreamsRecord {
            last_number: self.last_number,
            listening: self.listening.record(),
            calls: self.calls.iter().map(SseStream::record).collect(),
        }
    }

    pub(super) fn log(&self) -> &EventLog {
        &self.log
    }

    /// Number of the newest stream.
    pub(super) fn last_number(&self) -> u32 {
        self.last_number
    }

    /// Sets the requests that a stream must answer.
    pub(super) fn expect_response(&mut self, number: u32, ids: Vec<Id>) {
        if let Some(stream) = self.stream_mut(number) {
            stream.expected_responses = ids;
        }
    }

    /// Removes a request from the expected responses of a stream.
    pub(super) fn response_sent(&mut self, number: u32, id: &Id) {
        if let Some(stream) = self.stream_mut(number) {
            stream.expected_responses.retain(|expected| expected != id);
        }
    }

    /// Wakes every reader after the durability watermark moved.
    pub(super) fn wake_all(&mut self) {
        for stream in self.calls.iter_mut().chain([&mut self.listening]) {
            stream.wake_all();
        }
    }

    /// Detaches every reader; the clients can resume.
    pub(super) fn disconnect_readers(&mut self) {
        self.wake_all();
        for stream in self.calls.iter_mut().chain([&mut self.listening]) {
            stream.readers.clear();
        }
    }

    fn next_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    fn stream_mut(&mut self, number: u32) -> Option<&mut SseStream> {
        match number {
            LISTENING_STREAM => Some(&mut self.listening),
            number => self.calls.iter_mut().find(|stream| stream.number == number),
        }
    }

    /// Opens a call stream and attaches its first reader; returns stream number and reader serial.
    pub(super) fn open(&mut self, mark: Mark, retry: Option<u64>) -> (u32, u64) {
        self.last_number += 1;
        let serial = self.next_serial();
        let mut stream = SseStream::new(self.last_number, self.log.last_position());
        stream.mark = mark;
        stream.attach(serial, stream.start_position, retry);
        self.calls.push(stream);
        (self.last_number, serial)
    }

    /// Attaches a listening reader at the first unread event.
    pub(super) fn listen(&mut self, retry: Option<u64>, limit: usize) -> Result<(u32, u64), StreamError> {
        let position = self.listening.read_position.max(self.listening.trimmed_position);
        self.attach_listening(position, retry, limit)
    }

    /// At the limit the oldest listening reader is replaced: it is most likely a dead connection.
    fn attach_listening(&mut self, position: u64, retry: Option<u64>, limit: usize) -> Result<(u32, u64), StreamError> {
        if self.reader_count() >= limit {
            if self.listening.readers.is_empty() {
                return Err(StreamError::TOO_MANY_READERS);
            }
            if let Some(waker) = self.listening.readers.remove(0).waker {
                waker.wake();
            }
        }
        let serial = self.next_serial();
        self.listening.attach(serial, position, retry);
        Ok((LISTENING_STREAM, serial))
    }

    /// Attaches a reader after event `id`. On a call stream it replaces the previous reader, which is most likely a
    /// dead connection.
    pub(super) fn resume(&mut self, id: EventId, retry: Option<u64>, limit: usize) -> Result<(u32, u64), StreamError> {
        if id.position > self.log.last_position() {
            return Err(StreamError::UnknownEvent);
        }
        let again = self.log.stream_after(id).count();
        if id.stream == LISTENING_STREAM {
            if id.position < self.listening.trimmed_position {
                return Err(StreamError::EventsTrimmed);
            }
            if id.position > self.listening.last_position {
                return Err(StreamError::UnknownEvent);
            }
            let attached = self.attach_listening(id.position, retry, limit)?;
            self.listening.note_resumption(id.position, again);
            return Ok(attached);
        }
        let reader_count = self.reader_count();
        let serial = self.next_serial();
        let known = id.stream <= self.last_number;
        let Some(stream) = self.stream_mut(id.stream) else {
            return Err(if known { StreamError::EventsTrimmed } else { StreamError::UnknownEvent });
        };
        if id.position < stream.start_position || id.position > stream.last_position {
            return Err(StreamError::UnknownEvent);
        }
        if id.position < stream.trimmed_position {
            return Err(StreamError::EventsTrimmed);
        }
        if reader_count - stream.readers.len() >= limit {
            return Err(StreamError::TOO_MANY_READERS);
        }
        stream.wake_all();
        stream.readers.clear();
        stream.attach(serial, id.position, retry);
        stream.note_resumption(id.position, again);
        Ok((id.stream, serial))
    }

    /// Whether at least `limit` readers are attached. Counts only where the number of streams allows it.
    fn has_readers(&self, limit: usize) -> bool {
        self.calls.len() + self.listening.readers.len() >= limit && self.reader_count() >= limit
    }

    /// All streams, the listening one first.
    pub(super) fn all(&self) -> impl Iterator<Item = &SseStream> {
        std::iter::once(&self.listening).chain(&self.calls)
    }

    /// Number of events of a stream that are kept.
    pub(super) fn kept_of(&self, stream: &SseStream) -> usize {
        self.log.stream_after(EventId { stream: stream.number, position: 0 }).count()
    }

    /// Number of attached readers.
    pub(super) fn reader_count(&self) -> usize {
        let calls: usize = self.calls.iter().map(|stream| stream.readers.len()).sum();
        calls + self.listening.readers.len()
    }

    fn send(&mut self, number: u32, message: &[u8], retention: &Retention) {
        let id = self.log.next_id(number);
        let Some(stream) = self.stream_mut(number) else { return };
        stream.last_position = id.position;
        stream.wake();
        let event = sse::message(Some(&id.to_string()), message);
        let now = Instant::now();
        self.log.append(number, event, now);
        self.trim(retention, now);
        if self.kept_bytes.is_exceeded() && self.log.bytes() > CROWDED_EVENT_BYTES {
            // The session that adds to the crowd keeps less, so that none keeps others from resuming.
            self.kept_bytes.count_refusal();
            self.trim(&Retention { max_bytes: retention.max_bytes.min(CROWDED_EVENT_BYTES), ..*retention }, now);
        }
    }

    /// Trims the log and removes completed streams without remaining events.
    fn trim(&mut self, retention: &Retention, now: Instant) {
        let Self { log, listening, calls, .. } = self;
        let mut dropped = false;
        log.trim(retention, now, |id| {
            dropped = true;
            let stream = match id.stream {
                LISTENING_STREAM => Some(&mut *listening),
                number => calls.iter_mut().find(|stream| stream.number == number),
            };
            if let Some(stream) = stream {
                stream.trimmed_position = stream.trimmed_position.max(id.position);
                stream.wake(); // a reader behind the trimmed position must end
            }
        });
        if dropped {
            calls.retain(|stream| !stream.finished || stream.trimmed_position < stream.last_position);
            calls.shrink_to_fit();
        }
        self.kept_bytes.resize(self.log.bytes());
    }

    /// Removes a stream and its events, and ends its readers.
    fn abandon(&mut self, number: u32) {
        if let Some(stream) = self.stream_mut(number) {
            stream.wake_all();
        }
        self.calls.retain(|stream| stream.number != number);
        self.log.drop_stream(number);
        self.kept_bytes.resize(self.log.bytes());
    }

    /// Whether the reader of a call stream lags by more than [`MAX_READER_LAG`] events.
    fn reader_lags(&self, number: u32) -> bool {
        let stream = self.calls.iter().find(|stream| stream.number == number);
        let Some(stream) = stream.filter(|stream| !stream.readers.is_empty()) else { return false };
        // Positions are shared by all streams: this cheap upper bound avoids the scan in the common case.
        stream.last_position - stream.read_position > MAX_READER_LAG as u64
            && self
                .log
                .stream_after(EventId { stream: number, position: stream.read_position })
                .nth(MAX_READER_LAG)
                .is_some()
    }
}

// === impl MessageQueue ===

impl MessageQueue {
    fn push(&mut self, message: Bytes) {
        self.bytes += message.len();
        self.messages.push_back(message);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.messages.pop_front() {
            Some(message) => {
                self.bytes -= message.len();
                Poll::Ready(Some(message))
            }
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
    /// Appends a message regardless of lag; the caller has waited for the reader already.
    pub(super) fn append(&mut self, stream: StreamTarget, message: Bytes, retention: &Retention) {
        match (self, stream) {
            (Self::Single(queue), _) => queue.push(message),
            (Self::Streams(streams), StreamTarget::Call(number)) => streams.send(number, &message, retention),
            (Self::Streams(streams), StreamTarget::Listening) => streams.send(LISTENING_STREAM, &message, retention),
            (Self::Streams(_), StreamTarget::Discard) => {}
        }
    }

    /// Appends a message whose sender cannot wait; returns false when the session must close because its queue is
    /// full. A lagging connection gets no duplicate of a message that is still queued.
    pub(super) fn send(&mut self, stream: StreamTarget, message: Bytes, retention: &Retention) -> bool {
        if let Self::Single(queue) = self {
            let queued = queue.messages.len();
            if queued >= 2 * MAX_QUEUED_MESSAGES || queue.bytes >= 2 * MAX_QUEUED_BYTES {
                return false;
            }
            if queued >= MAX_QUEUED_MESSAGES && queue.messages.range(queued / 2..).any(|other| *other == message) {
                return true;
            }
        }
        self.append(stream, message, retention);
        true
    }

    /// Picks the stream for a server request outside of calls: a listening reader if there is one, else the newest
    /// open call stream.
    pub(super) fn server_request_target(&self) -> StreamTarget {
        let Self::Streams(streams) = self else { return StreamTarget::Listening };
        if !streams.listening.readers.is_empty() {
            return StreamTarget::Listening;
        }
        let open = streams.calls.iter().rev().find(|stream| !stream.readers.is_empty() && !stream.finished);
        open.map_or(StreamTarget::Listening, |stream| StreamTarget::Call(stream.number))
    }

    /// Whether a call must wait before it appends to this stream.
    pub(super) fn is_behind(&self, stream: StreamTarget) -> bool {
        match (self, stream) {
            (Self::Single(queue), _) => queue.messages.len() >= MAX_QUEUED_MESSAGES || queue.bytes >= MAX_QUEUED_BYTES,
            (Self::Streams(streams), StreamTarget::Call(number)) => streams.reader_lags(number),
            (Self::Streams(_), _) => false,
        }
    }

    /// Polls the next durable event for a reader.
    pub(super) fn poll(
        &mut self,
        number: u32,
        serial: u64,
        durable: DurableUpTo,
        context: &mut Context<'_>,
    ) -> Poll<Option<Bytes>> {
        match self {
            Self::Single(queue) => queue.poll(context),
            Self::Streams(streams) => {
                let Streams { log, listening, calls, .. } = streams;
                let stream = match number {
                    LISTENING_STREAM => Some(listening),
                    number => calls.iter_mut().find(|stream| stream.number == number),
                };
                match stream {
                    Some(stream) => stream.poll(serial, log, durable, context),
                    None => Poll::Ready(None),
                }
            }
        }
    }

    /// Detaches a reader.
    pub(super) fn detach(&mut self, number: u32, serial: u64) {
        let Self::Streams(streams) = self else { return };
        if let Some(stream) = streams.stream_mut(number) {
            stream.detach(serial);
        }
    }

    pub(super) fn finish(&mut self, stream: StreamTarget) {
        let (Self::Streams(streams), StreamTarget::Call(number)) = (self, stream) else { return };
        if let Some(stream) = streams.stream_mut(number) {
            stream.finished = true;
            stream.wake();
        }
    }

    pub(super) fn abandon(&mut self, stream: StreamTarget) {
        if let (Self::Streams(streams), StreamTarget::Call(number)) = (self, stream) {
            streams.abandon(number);
        }
    }

    /// Whether at least `limit` readers are attached to resumable streams.
    pub(super) fn has_readers(&self, limit: usize) -> bool {
        match self {
            Self::Single(_) => false,
            Self::Streams(streams) => streams.has_readers(limit),
        }
    }

    /// Whether any reader is attached.
    pub(super) fn is_attached(&self) -> bool {
        match self {
            Self::Single(_) => true,
            Self::Streams(streams) => streams.reader_count() > 0,
        }
    }

    /// Number of readers, events and event bytes.
    pub(super) fn usage(&self) -> (usize, usize, usize) {
        match self {
            Self::Single(queue) => (1, queue.messages.len(), queue.bytes),
            Self::Streams(streams) => (streams.reader_count(), streams.log.len(), streams.log.bytes()),
        }
    }

    /// Trims the log, then says whether unread events remain for a client that may resume.
    pub(super) fn has_unread(&mut self, retention: &Retention, now: Instant) -> bool {
        match self {
            Self::Single(_) => false,
            Self::Streams(streams) => {
                streams.trim(retention, now);
                streams.listening.has_unread() || streams.calls.iter().any(SseStream::has_unread)
            }
        }
    }

    /// Completes every stream: readers drain what is there and end.
    pub(super) fn close(&mut self) {
        match self {
            Self::Streams(streams) => {
                for stream in streams.calls.iter_mut().chain([&mut streams.listening]) {
                    stream.finished = true;
                    stream.wake_all();
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
