//! What operators are shown of a session.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Session;
use super::outbox::Outbox;
use super::sse_stream::SseStream;
use crate::protocol::Raw;
use crate::recorder::Mark;

/// A session at one moment.
#[derive(Debug, Clone)]
pub struct SessionReport {
    /// Attached readers.
    pub readers: usize,
    /// Calls in flight.
    pub calls: usize,
    /// Events kept for a client that resumes.
    pub events: usize,
    /// Size of these events.
    pub event_bytes: usize,
    /// Time since the last request.
    pub idle: Duration,
    /// The streams; none for sessions with a single connection.
    pub streams: Vec<StreamReport>,
    /// Server requests that the client has not answered.
    pub questions: Vec<QuestionReport>,
}

/// A stream of a session.
#[derive(Debug, Clone)]
pub struct StreamReport {
    /// Its number; 0 is the listening stream.
    pub number: u32,
    /// Position of its newest event.
    pub position: u64,
    /// Position of the last event that a reader took.
    pub read_position: u64,
    /// Whether a reader is attached.
    pub is_attached: bool,
    /// How often a reader came back with the id of an event.
    pub resumed: u32,
    /// The position from which the last one went on.
    pub resumed_from: Option<u64>,
    /// Events that it was sent again.
    pub resumed_events: usize,
    /// Events that are kept for a reader that comes back.
    pub kept: usize,
    /// The number of its call for the recorder.
    pub mark: Mark,
}

/// A server request that the client has not answered.
#[derive(Debug, Clone)]
pub struct QuestionReport {
    /// Its JSON-RPC id at the client.
    pub id: i64,
    /// Its method.
    pub method: String,
    /// Its parameters.
    pub params: Option<Raw>,
    /// The server that asks, where it is known.
    pub server: Option<Arc<str>>,
    /// The number of its call for the recorder.
    pub mark: Mark,
    /// How long the client has had it.
    pub age: Duration,
}

impl Session {
    /// What operators are shown of this session.
    pub fn report(&self) -> SessionReport {
        let (state, now) = (self.lock(), Instant::now());
        let (readers, events, event_bytes) = state.outbox.usage();
        let streams = match &state.outbox {
            Outbox::Single(_) => Vec::new(),
            Outbox::Streams(streams) => {
                streams.all().map(|stream| stream_report(stream, streams.kept_of(stream))).collect()
            }
        };
        let question = |pending: &super::PendingServerRequest| QuestionReport {
            id: pending.id,
            method: pending.method.to_string(),
            params: pending.params.clone(),
            server: pending.asker.clone(),
            mark: pending.mark,
            age: now.duration_since(pending.asked_at),
        };
        SessionReport {
            readers,
            calls: state.calls.len(),
            events,
            event_bytes,
            idle: now.duration_since(state.last_used),
            streams,
            questions: state.server_requests.iter().map(question).collect(),
        }
    }

    /// Cancels the call that a server request belongs to; false if there is no such request or call.
    pub fn cancel_asking_call(&self, question: i64) -> bool {
        let mut state = self.lock();
        let serial = state.server_requests.iter().find(|pending| pending.id == question).map(|asked| asked.call_serial);
        let before = state.calls.len();
        let cancelled: Vec<_> = state.calls.extract_if(.., |call| Some(call.serial) == serial).collect();
        let is_cancelled = before != state.calls.len();
        drop(state);
        // Dropping the entry cancels the call, which may lock the session.
        drop(cancelled);
        is_cancelled
    }
}

fn stream_report(stream: &SseStream, kept: usize) -> StreamReport {
    StreamReport {
        number: stream.number,
        position: stream.last_position,
        read_position: stream.read_position,
        is_attached: !stream.readers.is_empty(),
        resumed: stream.resumed,
        resumed_from: stream.resumed_from,
        resumed_events: stream.resumed_events,
        kept,
        mark: stream.mark,
    }
}
