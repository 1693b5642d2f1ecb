//! One SSE stream of a session: read position and attached readers.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::http::sse;
use crate::protocol::{Id, Raw};
use crate::recorder::Mark;
use crate::store::{EventId, EventLog};

/// Read position and readers of one stream. Its events are in the session's [`EventLog`].
#[derive(Debug)]
pub(super) struct SseStream {
    pub(super) number: u32,
    /// Attached readers; only the last one is sent events. More than one occurs on the listening stream only.
    pub(super) readers: Vec<AttachedReader>,
    /// Position of the last event that a reader took.
    pub(super) read_position: u64,
    /// Position of the session's log when the stream was opened.
    pub(super) start_position: u64,
    /// Position of the stream's newest event.
    pub(super) last_position: u64,
    /// Highest position of this stream that was trimmed from the log.
    pub(super) trimmed_position: u64,
    /// No event follows the newest one.
    pub(super) finished: bool,
    /// Priming event to send before any other: position and `retry` in milliseconds.
    pub(super) priming: Option<(u64, u64)>,
    /// How often a reader came back with the id of an event, and where the last one went on.
    pub(super) resumed: u32,
    pub(super) resumed_from: Option<u64>,
    /// Events that the last one was sent again.
    pub(super) resumed_events: usize,
    /// The number of its call for the recorder.
    pub(super) mark: Mark,
    /// Requests still to be answered on this stream; tracked for persisted sessions only.
    pub(super) expected_responses: Vec<Id>,
}

/// A reader attached to a stream.
#[derive(Debug)]
pub(super) struct AttachedReader {
    pub(super) serial: u64,
    pub(super) waker: Option<Waker>,
}

/// Durability watermark: readers may be sent events up to `position`; later ones are not acknowledged by the store
/// yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct DurableUpTo {
    /// Highest durable event position.
    pub(super) position: u64,
    /// Highest durable stream number.
    pub(super) number: u32,
}

/// Serialized form of [`SseStream`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct SseStreamRecord {
    pub(super) number: u32,
    read: u64,
    began: u64,
    pub(super) last: u64,
    trimmed: u64,
    finished: bool,
    /// Ids of requests still to be answered, as JSON values.
    owed: Vec<serde_json::Value>,
}

impl SseStreamRecord {
    /// Ids of requests still to be answered.
    pub(super) fn expected_responses(&self) -> Vec<Id> {
        self.owed.iter().filter_map(|id| Id::from_raw(&Raw::of(id))).collect()
    }
}

impl DurableUpTo {
    /// Watermark of sessions without a shared store: no event waits for an acknowledgement.
    pub(super) const ALL: Self = Self { position: u64::MAX, number: u32::MAX };
}

// === impl SseStream ===

impl SseStream {
    pub(super) fn new(number: u32, start_position: u64) -> Self {
        Self {
            number,
            readers: Vec::new(),
            read_position: start_position,
            start_position,
            last_position: start_position,
            trimmed_position: 0,
            finished: false,
            priming: None,
            resumed: 0,
            resumed_from: None,
            resumed_events: 0,
            mark: Mark::NONE,
            expected_responses: Vec::new(),
        }
    }

    pub(super) fn record(&self) -> SseStreamRecord {
        SseStreamRecord {
            number: self.number,
            read: self.read_position,
            began: self.start_position,
            last: self.last_position,
            trimmed: self.trimmed_position,
            finished: self.finished,
            owed: self.expected_responses.iter().map(|id| id.to_raw().read().unwrap_or_default()).collect(),
        }
    }

    /// Restores a stream. The stored events may be newer than the record, which is written less often.
    pub(super) fn from_record(record: &SseStreamRecord, log: &EventLog) -> Self {
        let last = log.stream_after(EventId { stream: record.number, position: record.last }).last();
        Self {
            read_position: record.read,
            last_position: last.map_or(record.last, |(id, _)| id.position),
            trimmed_position: record.trimmed,
            finished: record.finished,
            ..Self::new(record.number, record.began)
        }
    }

    /// Attaches a reader after `position`; it becomes the one that is sent events.
    pub(super) fn attach(&mut self, serial: u64, position: u64, retry: Option<u64>) {
        self.read_position = position;
        self.priming = retry.map(|retry| (position, retry));
        self.wake(); // the reader served so far must register its waker again
        self.readers.push(AttachedReader { serial, waker: None });
    }

    /// Notes that a reader came back after `position`, behind which there are so many events.
    pub(super) fn note_resumption(&mut self, position: u64, events: usize) {
        self.resumed_events = events;
        self.resumed = self.resumed.saturating_add(1);
        self.resumed_from = Some(position);
    }

    /// Polls the next durable event for a reader. `None` when the reader was detached, the stream is complete, or the
    /// next event was trimmed.
    pub(super) fn poll(
        &mut self,
        serial: u64,
        log: &EventLog,
        durable: DurableUpTo,
        context: &mut Context<'_>,
    ) -> Poll<Option<Bytes>> {
        let Some(index) = self.readers.iter().position(|reader| reader.serial == serial) else {
            return Poll::Ready(None);
        };
        let is_served = index + 1 == self.readers.len();
        if self.number > durable.number {
            self.readers[index].waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        if let Some((position, retry)) = self.priming.take_if(|_| is_served) {
            let id = EventId { stream: self.number, position };
            return Poll::Ready(Some(sse::priming(&id.to_string(), retry)));
        }
        if is_served && self.read_position < self.trimmed_position {
            return Poll::Ready(None);
        }
        if is_served && self.read_position < self.last_position {
            let after = EventId { stream: self.number, position: self.read_position };
            match log.stream_after(after).next() {
                Some((id, event)) if id.position <= durable.position => {
                    self.read_position = id.position;
                    return Poll::Ready(Some(event));
                }
                Some(_) => {
                    self.readers[index].waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
                None => {}
            }
        }
        if self.finished {
            return Poll::Ready(None);
        }
        self.readers[index].waker = Some(context.waker().clone());
        Poll::Pending
    }

    pub(super) fn detach(&mut self, serial: u64) {
        self.readers.retain(|reader| reader.serial != serial);
        self.wake(); // the previous reader, if any, is served again
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.readers.last_mut().and_then(|reader| reader.waker.take()) {
            waker.wake();
        }
    }

    pub(super) fn wake_all(&mut self) {
        self.readers.iter_mut().filter_map(|reader| reader.waker.take()).for_each(Waker::wake);
    }

    /// Whether the log holds events that no reader took.
    pub(super) fn has_unread(&self) -> bool {
        self.read_position.max(self.trimmed_position) < self.last_position
    }
}
