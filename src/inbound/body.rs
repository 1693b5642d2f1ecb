//! Response bodies: empty, buffered, an SSE stream, or a stream relayed from another node.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::response_encoder::ReplyEncoder;
use super::session_messages::InFlightCall;
use crate::call::{Replies, Reply};
use crate::cluster::RelayedBody;
use crate::http::sse;
use crate::policy::Permit;
use crate::session::{Session, Sessions, StreamReader};

/// Body of a response to a client.
#[derive(Debug)]
pub enum ResponseContent {
    /// No body.
    Empty,
    /// A buffered body.
    Full(Bytes),
    /// An SSE stream.
    Events(Box<EventStreamBody>),
    /// A body that another node is streaming.
    Relayed(Box<RelayedBody>),
}

/// Body of an SSE response, with heartbeat comments while no event is written.
#[derive(Debug)]
pub struct EventStreamBody {
    source: EventSource,
    /// Sent before the first event of the source.
    preamble: Option<Bytes>,
    heartbeat: Interval,
    /// No event was written since the last heartbeat tick.
    is_idle: bool,
}

#[derive(Debug)]
enum EventSource {
    /// A resumable session stream; its frames carry event ids.
    Session(StreamReader),
    /// The only stream of an HTTP+SSE session; dropping it closes the session.
    SingleStream(StreamReader, #[allow(dead_code, reason = "held to be dropped")] CloseSessionOnDrop),
    /// Replies to one call of the per-request era. Dropping them cancels the call.
    Call(Box<CallSource>),
    /// The source has ended and is dropped.
    Done,
}

#[derive(Debug)]
struct CallSource {
    replies: Replies,
    encoder: ReplyEncoder,
    /// Shares of the quotas of calls and of streams.
    _permits: (InFlightCall, Permit),
    /// Completes when the caller's token is revoked, which ends the stream.
    revoked: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

/// Closes a session on drop, unless disarmed.
#[derive(Debug)]
pub(super) struct CloseSessionOnDrop {
    pub(super) sessions: Arc<Sessions>,
    pub(super) session: Option<Arc<Session>>,
}

impl CloseSessionOnDrop {
    /// Keeps the session open.
    pub(super) fn disarm(mut self) {
        self.session = None;
    }
}

impl Drop for CloseSessionOnDrop {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.sessions.close(&session);
        }
    }
}

impl EventStreamBody {
    pub(super) fn for_session(reader: StreamReader, heartbeat_interval: Duration) -> Self {
        Self::new(EventSource::Session(reader), None, heartbeat_interval)
    }

    pub(super) fn for_single_stream(
        reader: StreamReader,
        preamble: Bytes,
        close_guard: CloseSessionOnDrop,
        heartbeat_interval: Duration,
    ) -> Self {
        Self::new(EventSource::SingleStream(reader, close_guard), Some(preamble), heartbeat_interval)
    }

    /// Streams a call whose first reply, if any, was already received.
    pub(super) fn for_call(
        first: Option<Reply>,
        replies: Replies,
        encoder: ReplyEncoder,
        permits: (InFlightCall, Permit),
        revocation: Option<CancellationToken>,
        heartbeat_interval: Duration,
    ) -> Self {
        let revoked = revocation.map(|revocation| Box::pin(revocation.cancelled_owned()));
        let mut source = CallSource { replies, encoder, _permits: permits, revoked };
        let preamble = first.and_then(|reply| source.frame(reply));
        Self::new(EventSource::Call(Box::new(source)), preamble, heartbeat_interval)
    }

    fn new(source: EventSource, preamble: Option<Bytes>, heartbeat_interval: Duration) -> Self {
        let start = tokio::time::Instant::now() + heartbeat_interval;
        let mut heartbeat = tokio::time::interval_at(start, heartbeat_interval);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { source, preamble, heartbeat, is_idle: true }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(preamble) = self.preamble.take() {
            self.is_idle = false;
            return Poll::Ready(Some(preamble));
        }
        match self.source.poll(context) {
            Poll::Ready(Some(bytes)) => {
                self.is_idle = false;
                return Poll::Ready(Some(bytes));
            }
            Poll::Ready(None) => {
                self.source = EventSource::Done;
                return Poll::Ready(None);
            }
            Poll::Pending => {}
        }
        while self.heartbeat.poll_tick(context).is_ready() {
            if std::mem::replace(&mut self.is_idle, true) {
                return Poll::Ready(Some(Bytes::from_static(sse::KEEP_ALIVE)));
            }
        }
        Poll::Pending
    }
}

impl EventSource {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self {
            Self::Session(reader) => reader.poll_next(context),
            Self::SingleStream(reader, _) => {
                let message = reader.poll_next(context);
                message.map(|message| message.map(|message| sse::message(None, &message)))
            }
            Self::Call(call) => loop {
                match call.replies.poll_next(context) {
                    Poll::Pending => {
                        let revoked = call.revoked.as_mut().map_or(Poll::Pending, |over| over.as_mut().poll(context));
                        return revoked.map(|()| None);
                    }
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Ready(Some(reply)) => {
                        if let Some(frame) = call.frame(reply) {
                            return Poll::Ready(Some(frame));
                        }
                    }
                }
            },
            Self::Done => Poll::Ready(None),
        }
    }
}

impl CallSource {
    fn frame(&mut self, reply: Reply) -> Option<Bytes> {
        self.encoder.encode(reply).map(|message| sse::message(None, &message))
    }
}

impl http_body::Body for ResponseContent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = self.get_mut();
        match body {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *body = Self::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Events(events) => events.poll(context).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relayed(body) => body.poll_next(context).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Events(_) | Self::Relayed(_) => SizeHint::default(),
        }
    }
}
