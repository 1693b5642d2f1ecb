//! One stream of a session: what of it was read, and who reads it.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::http::sse;
use crate::protocol::{Id, Raw};
use crate::store::{EventId, EventLog};

/// One stream: what of it was read, and who reads it.
#[derive(Debug)]
pub(super) struct SseStream {
    pub(super) number: u32,
    /// The connections, the one that is served last. Only listening has more than one.
    pub(super) readers: Vec<AttachedReader>,
    /// The position up to which it was read.
    pub(super) read: u64,
    /// The position at which it began.
    pub(super) began: u64,
    /// The position of its last event.
    pub(super) last: u64,
    /// The highest position that is no longer kept.
    pub(super) trimmed: u64,
    /// Nothing comes after its last event.
    pub(super) finished: bool,
    /// The position at which a new reader is told to begin, before anything else.
    pub(super) primed: Option<(u64, u64)>,
    /// The requests that it owes an answer to. Known only where somebody else could have to give it.
    pub(super) owed: Vec<Id>,
}

/// A connection that reads a stream.
#[derive(Debug)]
pub(super) struct AttachedReader {
    pub(super) serial: u64,
    pub(super) waker: Option<Waker>,
}

/// What a connection may be given of a session that is kept elsewhere, too: nothing that could be lost
/// with this node.
#[derive(Debug, Clone, Copy)]
pub(super) struct DurableUpTo {
    /// Events up to this position.
    pub(super) position: u64,
    /// Streams up to this number.
    pub(super) number: u32,
}

/// A stream as it is kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct SseStreamRecord {
    pub(super) number: u32,
    read: u64,
    began: u64,
    pub(super) last: u64,
    trimmed: u64,
    finished: bool,
    /// The requests that it owes an answer to, as JSON.
    owed: Vec<serde_json::Value>,
}

impl SseStreamRecord {
    /// The requests that it owes an answer to.
    pub(super) fn owed(&self) -> Vec<Id> {
        self.owed.iter().filter_map(|id| Id::from_raw(&Raw::of(id))).collect()
    }
}

impl DurableUpTo {
    /// Everything is.
    pub(super) const ALL: Self = Self { position: u64::MAX, number: u32::MAX };
}

// === impl Route ===

impl SseStream {
    pub(super) fn new(number: u32, began: u64) -> Self {
        Self {
            number,
            readers: Vec::new(),
            read: began,
            began,
            last: began,
            trimmed: 0,
            finished: false,
            primed: None,
            owed: Vec::new(),
        }
    }

    pub(super) fn record(&self) -> SseStreamRecord {
        SseStreamRecord {
            number: self.number,
            read: self.read,
            began: self.began,
            last: self.last,
            trimmed: self.trimmed,
            finished: self.finished,
            owed: self.owed.iter().map(|id| id.to_raw().read().unwrap_or_default()).collect(),
        }
    }

    /// A stream that goes on. What is kept of it may reach further than its record does.
    pub(super) fn resumed(record: &SseStreamRecord, log: &EventLog) -> Self {
        let last = log.after(EventId { stream: record.number, position: record.last }).last();
        Self {
            read: record.read,
            last: last.map_or(record.last, |(id, _)| id.position),
            trimmed: record.trimmed,
            finished: record.finished,
            ..Self::new(record.number, record.began)
        }
    }

    /// Attaches a connection that begins after `position`.
    pub(super) fn attach(&mut self, serial: u64, position: u64, retry: Option<u64>) {
        self.read = position;
        self.primed = retry.map(|retry| (position, retry));
        self.wake(); // the one that was served before has to notice
        self.readers.push(AttachedReader { serial, waker: None });
    }

    /// The next thing for a connection to write; the end when another has taken its place, or
    /// nothing comes any more, or what it would read next is no longer kept.
    pub(super) fn poll(
        &mut self,
        serial: u64,
        log: &EventLog,
        safe: DurableUpTo,
        context: &mut Context<'_>,
    ) -> Poll<Option<Bytes>> {
        let Some(at) = self.readers.iter().position(|reader| reader.serial == serial) else {
            return Poll::Ready(None);
        };
        let served = at + 1 == self.readers.len();
        if self.number > safe.number {
            self.readers[at].waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        if let Some((position, retry)) = self.primed.take_if(|_| served) {
            let id = EventId { stream: self.number, position };
            return Poll::Ready(Some(sse::priming(&id.to_string(), retry)));
        }
        if served && self.read < self.trimmed {
            return Poll::Ready(None);
        }
        if served && self.read < self.last {
            let after = EventId { stream: self.number, position: self.read };
            match log.after(after).next() {
                Some((id, event)) if id.position <= safe.position => {
                    self.read = id.position;
                    return Poll::Ready(Some(event));
                }
                Some(_) => {
                    self.readers[at].waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
                None => {}
            }
        }
        if self.finished {
            return Poll::Ready(None);
        }
        self.readers[at].waker = Some(context.waker().clone());
        Poll::Pending
    }

    pub(super) fn detach(&mut self, serial: u64) {
        self.readers.retain(|reader| reader.serial != serial);
        self.wake(); // the one before it, if any, goes on
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.readers.last_mut().and_then(|reader| reader.waker.take()) {
            waker.wake();
        }
    }

    pub(super) fn wake_all(&mut self) {
        self.readers.iter_mut().filter_map(|reader| reader.waker.take()).for_each(Waker::wake);
    }

    /// Whether something is kept that nobody has read.
    pub(super) fn unread(&self) -> bool {
        self.read.max(self.trimmed) < self.last
    }
}
