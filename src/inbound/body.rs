//! Response bodies: empty, buffered, an SSE stream, a stream relayed from another node, or a result in pieces.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::pieces::PiecesBody;
use super::recorder_hook::note_sent;
use super::response_encoder::ReplyEncoder;
use super::session_messages::InFlightCall;
use crate::access_log::{AccessEnd, AccessGuard, AccessRecord};
use crate::call::{Replies, Reply};
use crate::cluster::RelayedBody;
use crate::http::server::BodyBrokenOff;
use crate::http::sse;
use crate::metrics::HTTP_TRAFFIC;
use crate::policy::Permit;
use crate::session::{Session, Sessions, StreamReader};
use crate::timer::WorkerTimer;

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
    /// A JSON response whose result is passed on as it arrives.
    Pieces(Box<PiecesBody>),
    /// Parts that another task sends, as many as the reader takes.
    Parts(mpsc::Receiver<Bytes>),
    /// A body whose end is logged.
    Logged(Box<(Self, AccessGuard)>),
}

/// Body of the response to a request that another node relayed. Such a request gets its result whole, so that the body
/// never breaks off.
#[derive(Debug)]
pub(super) struct UnbrokenBody(pub(super) ResponseContent);

/// Body of an SSE response, with heartbeat comments while no event is written.
#[derive(Debug)]
pub struct EventStreamBody {
    source: EventSource,
    /// Sent before the first event of the source.
    preamble: Option<Bytes>,
    heartbeat: Interval,
    /// No event was written since the last heartbeat tick.
    is_idle: bool,
    end: StreamEnd,
}

/// What ends a stream besides its source: the credential that it was opened with.
#[derive(Debug, Default)]
pub(super) struct StreamEnd {
    /// Completes when the credential is no longer accepted.
    revoked: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Completes when the credential expires.
    expired: Option<Pin<Box<WorkerTimer>>>,
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
    pub(super) fn for_session(reader: StreamReader, end: StreamEnd, heartbeat_interval: Duration) -> Self {
        Self::new(EventSource::Session(reader), None, end, heartbeat_interval)
    }

    pub(super) fn for_single_stream(
        reader: StreamReader,
        preamble: Bytes,
        close_guard: CloseSessionOnDrop,
        end: StreamEnd,
        heartbeat_interval: Duration,
    ) -> Self {
        Self::new(EventSource::SingleStream(reader, close_guard), Some(preamble), end, heartbeat_interval)
    }

    /// Streams a call whose first reply, if any, was already received.
    pub(super) fn for_call(
        (first, replies): (Option<Reply>, Replies),
        encoder: ReplyEncoder,
        permits: (InFlightCall, Permit),
        end: StreamEnd,
        heartbeat_interval: Duration,
    ) -> Self {
        let mut source = CallSource { replies, encoder, _permits: permits };
        let preamble = first.and_then(|reply| source.frame(reply));
        Self::new(EventSource::Call(Box::new(source)), preamble, end, heartbeat_interval)
    }

    fn new(source: EventSource, preamble: Option<Bytes>, end: StreamEnd, heartbeat_interval: Duration) -> Self {
        let start = tokio::time::Instant::now() + heartbeat_interval;
        let mut heartbeat = tokio::time::interval_at(start, heartbeat_interval);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { source, preamble, heartbeat, is_idle: true, end }
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
            Poll::Pending if self.end.poll(context).is_pending() => {}
            Poll::Ready(None) | Poll::Pending => {
                self.source = EventSource::Done;
                return Poll::Ready(None);
            }
        }
        while self.heartbeat.poll_tick(context).is_ready() {
            if std::mem::replace(&mut self.is_idle, true) {
                return Poll::Ready(Some(Bytes::from_static(sse::KEEP_ALIVE)));
            }
        }
        Poll::Pending
    }
}

impl StreamEnd {
    /// Ends a stream with the revocation of its credential and, for a listening stream, after its lifetime.
    pub(super) fn new(revocation: Option<CancellationToken>, lifetime: Option<Duration>) -> Self {
        Self {
            revoked: revocation.map(|revocation| Box::pin(revocation.cancelled_owned())),
            expired: lifetime.map(|lifetime| Box::pin(WorkerTimer::after(lifetime))),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let is_revoked = self.revoked.as_mut().is_some_and(|revoked| revoked.as_mut().poll(context).is_ready());
        let has_expired = self.expired.as_mut().is_some_and(|expired| expired.as_mut().poll(context).is_ready());
        if is_revoked || has_expired { Poll::Ready(()) } else { Poll::Pending }
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
        let message = self.encoder.encode(reply)?;
        note_sent(self.encoder.access.as_ref(), &message);
        Some(sse::message(None, &message))
    }
}

impl http_body::Body for ResponseContent {
    type Data = Bytes;
    type Error = BodyBrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyBrokenOff>>> {
        let polled = self.get_mut().poll_content(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            HTTP_TRAFFIC.sent.add(frame.data_ref().map_or(0, |data| data.len() as u64));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Events(_) | Self::Relayed(_) | Self::Pieces(_) | Self::Parts(_) | Self::Logged(_) => {
                SizeHint::default()
            }
        }
    }
}

impl ResponseContent {
    /// Notes the next bytes of a body that is logged, or its end.
    fn note_part(&mut self, record: &AccessRecord, part: Option<&[u8]>) {
        if let Some(part) = part {
            record.note_sent(part.len());
        }
        if let Self::Pieces(pieces) = self {
            pieces.note(record.mark(), part);
        }
    }

    fn poll_content(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyBrokenOff>>> {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Events(events) => events.poll(context).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relayed(body) => body.poll_next(context).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pieces(pieces) => pieces.poll(context).map(|piece| piece.map(|piece| piece.map(Frame::data))),
            Self::Parts(parts) => parts.poll_recv(context).map(|part| part.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Logged(logged) => {
                let (content, access) = &mut **logged;
                let polled = content.poll_content(context);
                if let (Poll::Ready(part), Some(record)) = (&polled, access.record()) {
                    let data = part.as_ref().and_then(|part| part.as_ref().ok()?.data_ref());
                    content.note_part(record, data.map(|data| &data[..]));
                }
                match &polled {
                    Poll::Ready(None) => access.finish(AccessEnd::Answered),
                    Poll::Ready(Some(Err(_))) => access.finish(AccessEnd::Disconnected),
                    Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
                }
                polled
            }
        }
    }
}

impl http_body::Body for UnbrokenBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = Pin::new(&mut self.get_mut().0).poll_frame(context);
        frame.map(|frame| frame.and_then(Result::ok).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
