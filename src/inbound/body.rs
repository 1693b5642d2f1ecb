//! The body of a response: nothing, bytes, or a stream of events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::response_encoder::ReplyEncoder;
use crate::call::{Replies, Reply};
use crate::cluster::RelayedBody;
use crate::http::sse;
use crate::session::{Attachment, Session, Sessions};

/// What hyper writes.
#[derive(Debug)]
pub enum ResponseContent {
    /// Nothing.
    Empty,
    /// All of it.
    Full(Bytes),
    /// Events, as they come.
    Events(Box<Events>),
    /// What another node sends, as it comes.
    Carried(Box<RelayedBody>),
}

/// A stream of events.
#[derive(Debug)]
pub struct Events {
    source: EventSource,
    /// Goes out before anything else.
    head: Option<Bytes>,
    beat: Interval,
    /// Nothing was written since the last beat.
    quiet: bool,
}

#[derive(Debug)]
enum EventSource {
    /// A stream of a session, already framed, with ids to resume from.
    Session(Attachment),
    /// The one stream of an HTTP+SSE session; the session ends with it.
    Single(Attachment, #[allow(dead_code, reason = "held to be dropped")] CloseSessionOnDrop),
    /// The replies to one call of the per-request era. Dropping them gives the call up.
    Call(Box<CallSource>),
    /// Everything was written.
    Done,
}

#[derive(Debug)]
struct CallSource {
    replies: Replies,
    answering: ReplyEncoder,
    _running: TaskTrackerToken,
}

/// Ends a session when its stream is gone.
#[derive(Debug)]
pub(super) struct CloseSessionOnDrop {
    pub(super) sessions: Arc<Sessions>,
    pub(super) session: Option<Arc<Session>>,
}

impl CloseSessionOnDrop {
    /// It goes on without whoever had it.
    pub(super) fn stays(mut self) {
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

// === impl Events ===

impl Events {
    pub(super) fn of_session(attachment: Attachment, keep_alive: Duration) -> Self {
        Self::new(EventSource::Session(attachment), None, keep_alive)
    }

    pub(super) fn single(
        attachment: Attachment,
        head: Bytes,
        ending: CloseSessionOnDrop,
        keep_alive: Duration,
    ) -> Self {
        Self::new(EventSource::Single(attachment, ending), Some(head), keep_alive)
    }

    /// The rest of a call whose first reply, if any, is already there.
    pub(super) fn of_call(
        first: Option<Reply>,
        replies: Replies,
        answering: ReplyEncoder,
        running: TaskTrackerToken,
        keep_alive: Duration,
    ) -> Self {
        let mut source = CallSource { replies, answering, _running: running };
        let head = first.and_then(|reply| source.frame(reply));
        Self::new(EventSource::Call(Box::new(source)), head, keep_alive)
    }

    fn new(source: EventSource, head: Option<Bytes>, keep_alive: Duration) -> Self {
        let start = tokio::time::Instant::now() + keep_alive;
        let mut beat = tokio::time::interval_at(start, keep_alive);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { source, head, beat, quiet: true }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(head) = self.head.take() {
            self.quiet = false;
            return Poll::Ready(Some(head));
        }
        match self.source.poll(context) {
            Poll::Ready(Some(bytes)) => {
                self.quiet = false;
                return Poll::Ready(Some(bytes));
            }
            Poll::Ready(None) => {
                self.source = EventSource::Done;
                return Poll::Ready(None);
            }
            Poll::Pending => {}
        }
        while self.beat.poll_tick(context).is_ready() {
            if std::mem::replace(&mut self.quiet, true) {
                return Poll::Ready(Some(Bytes::from_static(sse::KEEP_ALIVE)));
            }
        }
        Poll::Pending
    }
}

impl EventSource {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self {
            Self::Session(attachment) => attachment.poll_next(context),
            Self::Single(attachment, _) => {
                let message = attachment.poll_next(context);
                message.map(|message| message.map(|message| sse::message(None, &message)))
            }
            Self::Call(call) => loop {
                match call.replies.poll_next(context) {
                    Poll::Pending => return Poll::Pending,
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
        self.answering.encode(reply).map(|message| sse::message(None, &message))
    }
}

// === impl Body ===

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
            Self::Carried(rest) => rest.poll_next(context).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Events(_) | Self::Carried(_) => SizeHint::default(),
        }
    }
}
