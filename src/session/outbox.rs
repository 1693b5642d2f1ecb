//! What a session sends: where it goes, and what is kept for a client that went away.
//!
//! Nothing here waits for a reader. A message is kept first, then offered to the connection that
//! is attached to its stream; a connection that does not keep up is let go, and its client can
//! resume.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::protocol::sse;
use crate::store::{EventId, EventLog, Retention};

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// To the stream that a call opened.
    Call(u32),
    /// To the stream that listens for what belongs to no call.
    Listening,
    /// To nobody: the connection of its call was gone before it had a stream.
    Nowhere,
}

/// A frame for a connection, with its position in the session.
#[derive(Debug)]
pub struct Frame {
    /// The bytes to write.
    pub bytes: Bytes,
    position: u32,
}

/// What a connection reads from.
#[derive(Debug)]
pub struct Attachment {
    frames: mpsc::Receiver<Frame>,
    taken: Arc<AtomicU32>,
}

/// What a session sends.
#[derive(Debug)]
pub(super) enum Outbox {
    /// Many streams, each numbered and resumable: Streamable HTTP.
    Streams(Streams),
    /// One connection that everything goes to: HTTP+SSE and stdio.
    Single(mpsc::Sender<Frame>),
}

/// The streams of one session.
#[derive(Debug)]
pub(super) struct Streams {
    log: EventLog,
    listening: Route,
    /// Connections that listened before the newest one; the last of them follows when it goes.
    earlier: Vec<mpsc::Sender<Frame>>,
    calls: Vec<Route>,
    last_number: u32,
}

/// One stream: how far it was read, and who reads it.
#[derive(Debug)]
struct Route {
    number: u32,
    connection: Option<mpsc::Sender<Frame>>,
    /// The highest position that a connection took to write.
    taken: Arc<AtomicU32>,
    /// The position at which the stream began.
    began: u32,
    /// The highest position that is no longer kept.
    trimmed: u32,
    /// Nothing comes after what is kept.
    finished: bool,
}

/// Why a stream cannot be resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unresumable {
    /// The id names no event of this session.
    Unknown,
    /// What came after it is no longer kept.
    Gone,
    /// The session has as many open streams as it may.
    TooMany,
}

/// How many frames may wait for a connection. One that falls further behind is let go.
pub const FRAMES_WAITING: usize = 64;
const LISTENING: u32 = 0;

// === impl Attachment ===

impl Attachment {
    /// Two ends of a connection that everything goes to.
    pub fn single(room: usize) -> (mpsc::Sender<Frame>, Self) {
        let (sender, frames) = mpsc::channel(room);
        (sender, Self { frames, taken: Arc::default() })
    }

    /// The next frame; nothing when the stream has ended.
    pub fn poll_next(&mut self, context: &mut std::task::Context<'_>) -> std::task::Poll<Option<Bytes>> {
        self.frames.poll_recv(context).map(|frame| {
            let frame = frame?;
            self.taken.fetch_max(frame.position, Ordering::Relaxed);
            Some(frame.bytes)
        })
    }

    /// The next frame; nothing when the stream has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

// === impl Frame ===

impl Frame {
    /// A frame that no position belongs to.
    pub fn plain(bytes: Bytes) -> Self {
        Self { bytes, position: 0 }
    }
}

// === impl Route ===

impl Route {
    fn new(number: u32, began: u32) -> Self {
        Self { number, connection: None, taken: Arc::new(AtomicU32::new(began)), began, trimmed: 0, finished: false }
    }

    /// Attaches a connection that begins after `position`: first what is kept, then what comes.
    fn attach(&mut self, log: &EventLog, position: u32, priming: Option<u64>) -> Attachment {
        let after = EventId { stream: self.number, position };
        let kept: Vec<_> = log.after(after).collect();
        let (sender, frames) = mpsc::channel(FRAMES_WAITING + kept.len() + 1);
        let offer = |bytes, position| {
            // There is room for all of it.
            let _ = sender.try_send(Frame { bytes, position });
        };
        if let Some(retry) = priming {
            offer(sse::priming(&after.to_string(), retry), position);
        }
        for (id, bytes) in kept {
            offer(bytes, id.position);
        }
        if !self.finished {
            self.connection = Some(sender);
        }
        Attachment { frames, taken: Arc::clone(&self.taken) }
    }

    fn is_open(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.is_closed())
    }
}

// === impl Streams ===

impl Streams {
    pub(super) fn new() -> Self {
        Self {
            log: EventLog::default(),
            listening: Route::new(LISTENING, 0),
            earlier: Vec::new(),
            calls: Vec::new(),
            last_number: LISTENING,
        }
    }

    /// Opens a stream for a call, with its connection.
    pub(super) fn open(&mut self, priming: Option<u64>) -> (Stream, Attachment) {
        self.last_number += 1;
        let mut route = Route::new(self.last_number, self.log.position());
        let attachment = route.attach(&self.log, route.began, priming);
        let stream = Stream::Call(route.number);
        self.calls.push(route);
        (stream, attachment)
    }

    /// Attaches a connection that listens, from what no connection has taken yet.
    pub(super) fn listen(&mut self, priming: Option<u64>) -> Attachment {
        let position = self.listening.taken.load(Ordering::Relaxed).max(self.listening.trimmed);
        self.take_over(position, priming)
    }

    fn take_over(&mut self, position: u32, priming: Option<u64>) -> Attachment {
        self.earlier.extend(self.listening.connection.take());
        self.earlier.retain(|connection| !connection.is_closed());
        self.listening.attach(&self.log, position, priming)
    }

    /// Attaches a connection to the stream of an event, after that event. One that was still
    /// attached to a call's stream is replaced: it is most likely dead.
    pub(super) fn resume(&mut self, id: EventId, priming: Option<u64>) -> Result<Attachment, Unresumable> {
        if id.position > self.log.position() {
            return Err(Unresumable::Unknown);
        }
        if id.stream == LISTENING {
            if id.position < self.listening.trimmed {
                return Err(Unresumable::Gone);
            }
            return Ok(self.take_over(id.position, priming));
        }
        let log = &self.log;
        let found = self.calls.iter_mut().find(|route| route.number == id.stream);
        match found {
            None if id.stream <= self.last_number => Err(Unresumable::Gone),
            None => Err(Unresumable::Unknown),
            Some(route) if id.position < route.began => Err(Unresumable::Unknown),
            Some(route) if id.position < route.trimmed => Err(Unresumable::Gone),
            Some(route) => Ok(route.attach(log, id.position, priming)),
        }
    }

    /// How many connections are attached.
    pub(super) fn connections(&mut self) -> usize {
        self.earlier.retain(|connection| !connection.is_closed());
        let calls = self.calls.iter().filter(|route| route.is_open()).count();
        calls + self.earlier.len() + usize::from(self.listening.is_open())
    }

    /// Keeps a message and offers it to the stream's connection.
    fn send(&mut self, stream: Stream, message: &[u8], retention: &Retention) {
        let number = match stream {
            Stream::Call(number) => number,
            Stream::Listening => LISTENING,
            Stream::Nowhere => return,
        };
        let id = self.log.next_id(number);
        let bytes = sse::message(Some(&id.to_string()), message);
        self.log.append(number, bytes.clone(), Instant::now());
        let frame = Frame { bytes, position: id.position };
        if number == LISTENING {
            self.offer_listening(frame);
        } else if let Some(route) = self.calls.iter_mut().find(|route| route.number == number) {
            let gone = route.connection.as_ref().is_some_and(|connection| connection.try_send(frame).is_err());
            if gone {
                route.connection = None;
            }
        }
        self.trim(retention, Instant::now());
    }

    /// Offers a frame to the newest connection that listens; one that is gone or too slow is let
    /// go, and the one before it takes its place.
    fn offer_listening(&mut self, mut frame: Frame) {
        while let Some(connection) = &self.listening.connection {
            match connection.try_send(frame) {
                Ok(()) => return,
                Err(mpsc::error::TrySendError::Closed(back) | mpsc::error::TrySendError::Full(back)) => frame = back,
            }
            self.listening.connection = self.earlier.pop();
        }
    }

    /// Drops what is no longer kept, and streams that nothing is left of.
    fn trim(&mut self, retention: &Retention, now: Instant) {
        let Self { log, listening, calls, .. } = self;
        log.trim(retention, now, |id| {
            let route = match id.stream {
                LISTENING => Some(&mut *listening),
                number => calls.iter_mut().find(|route| route.number == number),
            };
            if let Some(route) = route {
                route.trimmed = route.trimmed.max(id.position);
            }
        });
        calls.retain(|route| !route.finished || log.has(route.number));
        if calls.is_empty() {
            *calls = Vec::new();
        }
    }

    /// Nothing more comes on a stream; what is kept can still be resumed.
    fn finish(&mut self, stream: Stream) {
        let Stream::Call(number) = stream else { return };
        if let Some(route) = self.calls.iter_mut().find(|route| route.number == number) {
            route.finished = true;
            route.connection = None;
        }
    }

    /// A stream ends without its answer, and nobody may wait for it.
    fn abandon(&mut self, stream: Stream) {
        let Stream::Call(number) = stream else { return };
        self.calls.retain(|route| route.number != number);
        self.log.forget(number);
    }

    /// Whether something is kept that no connection took yet.
    fn undelivered(&self) -> bool {
        let waiting = |route: &Route| {
            let position = route.taken.load(Ordering::Relaxed);
            self.log.after(EventId { stream: route.number, position }).next().is_some()
        };
        waiting(&self.listening) || self.calls.iter().any(waiting)
    }
}

// === impl Outbox ===

impl Outbox {
    /// Sends a message; false when the session cannot go on without its connection.
    pub(super) fn send(&mut self, stream: Stream, message: Bytes, retention: &Retention) -> bool {
        match self {
            Self::Streams(streams) => {
                streams.send(stream, &message, retention);
                true
            }
            Self::Single(connection) => connection.try_send(Frame::plain(message)).is_ok(),
        }
    }

    /// The one connection that everything goes to, where there is only one.
    pub(super) fn single(&self) -> Option<mpsc::Sender<Frame>> {
        match self {
            Self::Single(connection) => Some(connection.clone()),
            Self::Streams(_) => None,
        }
    }

    pub(super) fn finish(&mut self, stream: Stream) {
        if let Self::Streams(streams) = self {
            streams.finish(stream);
        }
    }

    pub(super) fn abandon(&mut self, stream: Stream) {
        if let Self::Streams(streams) = self {
            streams.abandon(stream);
        }
    }

    /// Whether the session is in use: a connection is attached, or something waits for one.
    /// Drops what is no longer kept on the way.
    pub(super) fn in_use(&mut self, retention: &Retention, now: Instant) -> bool {
        match self {
            Self::Single(connection) => !connection.is_closed(),
            Self::Streams(streams) => {
                streams.trim(retention, now);
                streams.connections() > 0 || streams.undelivered()
            }
        }
    }

    /// Lets every connection go.
    pub(super) fn close(&mut self) {
        *self = Self::Streams(Streams::new());
    }
}
