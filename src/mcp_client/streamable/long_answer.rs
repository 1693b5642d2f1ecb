//! Answers that are too long to be collected: once its beginning shows that a JSON body is the response to the request,
//! the result is passed on as it arrives.

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;

use super::StreamableClient;
use crate::call::AnswerDelivery;
use crate::error::Result;
use crate::failure::{Failure, FailureKind};
use crate::http::client::{HttpError, HttpErrorKind, HttpResult, ResponseBody};
use crate::protocol::{AnswerFault, AnswerScanner, Id, Payload, Raw, ScannedResultType};
use crate::recorder::{Mark, PieceNotes, Way, Wire};

/// The JSON body of a response.
pub(super) enum AnswerBody {
    Whole(Bytes),
    InPieces(Box<LongAnswer>),
}

/// The response to a request, of which the first part was read.
pub(in crate::mcp_client) struct LongAnswer {
    body: ResponseBody,
    scanner: AnswerScanner,
    /// Bytes of the result that were read and not taken.
    piece: Bytes,
    received: usize,
    max_bytes: usize,
    max_depth: usize,
    notes: PieceNotes,
    is_ended: bool,
}

/// What was read of a body.
struct BegunBody {
    body: ResponseBody,
    text: BytesMut,
}

impl StreamableClient {
    /// Reads the JSON body of the response to request `id`, or as much of it as tells that its result can be passed on in
    /// pieces.
    pub(super) async fn read_answer(
        &self,
        body: ResponseBody,
        id: &Id,
        (delivery, mark): (AnswerDelivery, Mark),
    ) -> Result<AnswerBody> {
        let max_bytes = self.http.max_body_bytes();
        let whole_up_to = self.settings.stream_answers_over.min(max_bytes);
        let may_be_long = |length: u64| length > whole_up_to as u64 && length <= max_bytes as u64;
        if delivery == AnswerDelivery::Whole || body.length().is_some_and(|length| !may_be_long(length)) {
            return Ok(AnswerBody::Whole(self.http.read_body(body, self.settings.idle_timeout).await?));
        }
        let mut beginning = BegunBody { body, text: BytesMut::new() };
        // Most bodies arrive with their head, also those that do not tell their length.
        match beginning.read(whole_up_to).now_or_never() {
            Some(Ok(true)) => Ok(AnswerBody::Whole(beginning.text.freeze())),
            Some(Err(error)) => Err(error.into()),
            Some(Ok(false)) | None => Box::pin(self.read_long_answer(beginning, whole_up_to, (id, mark))).await,
        }
    }

    async fn read_long_answer(
        &self,
        mut beginning: BegunBody,
        whole_up_to: usize,
        (id, mark): (&Id, Mark),
    ) -> Result<AnswerBody> {
        let (timeout, max_bytes) = (self.settings.idle_timeout, self.http.max_body_bytes());
        let late = |_| {
            let why = format!("response body was not complete within {timeout:?}");
            HttpError::new(HttpErrorKind::Timeout(timeout), why)
        };
        if tokio::time::timeout(timeout, beginning.read(whole_up_to)).await.map_err(late)?? {
            return Ok(AnswerBody::Whole(beginning.text.freeze()));
        }
        let max_depth = self.settings.json_depth;
        let mut scanner = AnswerScanner::new(id, max_depth);
        let says_complete = |scanner: &AnswerScanner| {
            !self.revision().has_result_envelope() || scanner.result_type() == ScannedResultType::Complete
        };
        match scanner.scan(&beginning.text) {
            Ok(part) if scanner.is_answer() && says_complete(&scanner) => {
                let BegunBody { body, text } = beginning;
                let mut notes = PieceNotes::new(mark, Wire::Server, Way::In);
                notes.note(&text);
                let (received, piece) = (text.len(), text.freeze().slice(part));
                let answer =
                    LongAnswer { body, scanner, piece, received, max_bytes, max_depth, notes, is_ended: false };
                Ok(AnswerBody::InPieces(Box::new(answer)))
            }
            _ => match tokio::time::timeout(timeout, beginning.read(max_bytes)).await.map_err(late)?? {
                true => Ok(AnswerBody::Whole(beginning.text.freeze())),
                false => Err(HttpError::new(HttpErrorKind::TooLarge(max_bytes), too_large(max_bytes)).into()),
            },
        }
    }
}

impl BegunBody {
    /// Reads until there are more than `limit` bytes; true at the end of the body. Cancel-safe.
    async fn read(&mut self, limit: usize) -> HttpResult<bool> {
        while self.text.len() <= limit {
            match self.body.next().await {
                None => return Ok(true),
                Some(Ok(data)) => self.text.extend_from_slice(&data),
                Some(Err(error)) => {
                    return Err(HttpError::new(HttpErrorKind::Broken, format!("response body broken off: {error}")));
                }
            }
        }
        Ok(false)
    }
}

impl LongAnswer {
    /// The bytes of the result that were read since the last time.
    pub(super) fn take_piece(&mut self) -> Bytes {
        std::mem::take(&mut self.piece)
    }

    /// Reads the next bytes; false when the response has ended as it should. Cancel-safe.
    ///
    /// # Errors
    /// When the rest is not that of the response: the result has broken off.
    pub(super) async fn read(&mut self) -> std::result::Result<bool, Failure> {
        let broken = |kind, why: String| {
            Failure::new(kind, format!("the answer broke off after {} bytes: {why}", self.received)).after_sending()
        };
        match self.body.next().await {
            Some(Ok(data)) if data.len() > self.max_bytes - self.received => {
                Err(broken(FailureKind::TooLarge(self.max_bytes), too_large(self.max_bytes)))
            }
            Some(Ok(data)) => {
                let part = self.scanner.scan(&data).map_err(|fault| match fault {
                    AnswerFault::TooDeep => broken(FailureKind::TooDeep(self.max_depth), fault.to_string()),
                    _ => broken(FailureKind::Protocol, fault.to_string()),
                })?;
                self.notes.note(&data);
                self.received += data.len();
                self.piece = data.slice(part);
                Ok(true)
            }
            Some(Err(error)) => Err(broken(FailureKind::Broken, error.to_string())),
            None if self.scanner.is_complete() => {
                self.is_ended = true;
                self.notes.end();
                Ok(false)
            }
            None => Err(broken(FailureKind::Broken, "the body ended before the response did".to_owned())),
        }
    }

    /// What kind of result was passed on, in the form of a result.
    pub(super) fn summary(&self) -> Payload {
        let is_complete = self.scanner.result_type() == ScannedResultType::Complete;
        let summary = match (is_complete, self.scanner.is_error()) {
            (true, true) => r#"{"resultType":"complete","isError":true}"#,
            (true, false) => r#"{"resultType":"complete"}"#,
            (false, true) => r#"{"isError":true}"#,
            (false, false) => "{}",
        };
        Raw::constant(summary).into()
    }
}

impl Drop for LongAnswer {
    /// Closes the connection unless the response was read to its end, so that the server does not go on with it.
    fn drop(&mut self) {
        if !self.is_ended {
            self.body.close();
        }
    }
}

fn too_large(max_bytes: usize) -> String {
    format!("the server sent a body of more than {max_bytes} bytes")
}
