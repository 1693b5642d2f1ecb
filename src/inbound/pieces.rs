//! JSON responses whose result is passed on in pieces as it arrives from the server.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::response_encoder::ReplyEncoder;
use super::session_messages::{InFlightCall, RunningCall};
use crate::call::{Replies, Reply};
use crate::http::server::BodyBrokenOff;
use crate::protocol::Response;
use crate::recorder::{Mark, PieceNotes, Way, Wire};
use crate::session::CallGuard;

/// Body of a JSON response whose result is not here yet. Dropping it cancels the call.
#[derive(Debug)]
pub struct PiecesBody {
    /// What is written next: the head of the envelope, then the first piece.
    queued: [Bytes; 2],
    /// `None` when the call has ended.
    source: Option<PieceSource>,
    /// What is noted of a body that is logged, once it has begun.
    notes: Option<PieceNotes>,
}

#[derive(Debug)]
struct PieceSource {
    replies: Replies,
    stop: StopSignal,
    encoder: ReplyEncoder,
    _in_flight: InFlightCall,
}

/// What ends a call before its result.
#[derive(Debug)]
enum StopSignal {
    /// The client cancels the call, or its session ends.
    Cancelled(CallGuard),
    /// The caller's token is revoked.
    Revoked(Option<Pin<Box<WaitForCancellationFutureOwned>>>),
}

impl PiecesBody {
    /// The result of a call of a session, of which the first piece is here.
    pub(super) fn for_session(call: RunningCall, first: Bytes) -> Self {
        let RunningCall { guard, replies, encoder, in_flight } = call;
        Self::new(first, PieceSource { replies, stop: StopSignal::Cancelled(guard), encoder, _in_flight: in_flight })
    }

    /// The result of a per-request call, of which the first piece is here.
    pub(super) fn for_call(
        encoder: ReplyEncoder,
        (first, replies): (Bytes, Replies),
        in_flight: InFlightCall,
        revocation: Option<CancellationToken>,
    ) -> Self {
        let revoked = revocation.map(|revocation| Box::pin(revocation.cancelled_owned()));
        Self::new(first, PieceSource { replies, stop: StopSignal::Revoked(revoked), encoder, _in_flight: in_flight })
    }

    /// Notes the next bytes that the client is sent, or the end of the body.
    pub(super) fn note(&mut self, mark: Mark, piece: Option<&[u8]>) {
        let notes = self.notes.get_or_insert_with(|| PieceNotes::new(mark, Wire::Client, Way::Out));
        match piece {
            Some(piece) => notes.note(piece),
            None => notes.end(),
        }
    }

    fn new(first: Bytes, source: PieceSource) -> Self {
        Self { queued: [Response::encode_head(&source.encoder.id), first], source: Some(source), notes: None }
    }

    /// The next bytes; an error where the result has broken off.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyBrokenOff>>> {
        if let Some(queued) = self.queued.iter_mut().find(|queued| !queued.is_empty()) {
            return Poll::Ready(Some(Ok(std::mem::take(queued))));
        }
        let Some(source) = &mut self.source else { return Poll::Ready(None) };
        let end = loop {
            if source.stop.poll(context).is_ready() {
                break Err(BodyBrokenOff);
            }
            match source.replies.poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Reply::Piece(piece))) if !piece.is_empty() => return Poll::Ready(Some(Ok(piece))),
                Poll::Ready(Some(Reply::End(answer))) => {
                    source.encoder.operation.end(&source.encoder.method, &answer.outcome);
                    break answer.outcome.map(|_| Response::ENCODED_END).map_err(|_| BodyBrokenOff);
                }
                // There is no place for anything else any more; a server request that is dropped is refused.
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => break Err(BodyBrokenOff),
            }
        };
        self.source = None;
        Poll::Ready(Some(end.map(Bytes::from_static)))
    }
}

impl StopSignal {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Cancelled(guard) => pin!(guard.cancelled()).poll(context),
            Self::Revoked(Some(revoked)) => revoked.as_mut().poll(context),
            Self::Revoked(None) => Poll::Pending,
        }
    }
}
