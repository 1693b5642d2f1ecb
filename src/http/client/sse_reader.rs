//! Reads server-sent events from a response body.

use std::collections::VecDeque;

use super::ResponseBody;
use super::error::{HttpError, HttpErrorKind, HttpResult};
use crate::http::sse::{SseDecoder, SseEvent};

/// Event stream of a response. Events that arrive in one read are queued.
#[derive(Debug)]
pub(crate) struct EventReader {
    body: ResponseBody,
    decoder: SseDecoder,
    decoded: VecDeque<SseEvent>,
    max_event_bytes: usize,
}

impl EventReader {
    pub(crate) fn new(body: ResponseBody, max_event_bytes: usize) -> Self {
        Self { body, decoder: SseDecoder::new(max_event_bytes), decoded: VecDeque::new(), max_event_bytes }
    }

    /// The next event; `None` when the stream ended regularly. Cancel-safe.
    pub(crate) async fn next(&mut self) -> HttpResult<Option<SseEvent>> {
        loop {
            if let Some(event) = self.decoded.pop_front() {
                return Ok(Some(event));
            }
            let chunk = match self.body.next().await {
                None => return Ok(None),
                Some(Ok(chunk)) => chunk,
                Some(Err(error)) => {
                    return Err(HttpError::new(HttpErrorKind::Broken, format!("event stream broken: {error}")));
                }
            };
            let events = self.decoder.push(&chunk).map_err(|_| {
                HttpError::new(
                    HttpErrorKind::TooLarge(self.max_event_bytes),
                    format!("the server sent an event of more than {} bytes", self.max_event_bytes),
                )
            })?;
            self.decoded.extend(events);
        }
    }
}
