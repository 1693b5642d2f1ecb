//! Reads server-sent events from a response body.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::Bytes;

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
    read_timeout: Option<Duration>,
}

impl EventReader {
    pub(crate) fn new(body: ResponseBody, max_event_bytes: usize) -> Self {
        let decoder = SseDecoder::new(max_event_bytes);
        Self { body, decoder, decoded: VecDeque::new(), max_event_bytes, read_timeout: None }
    }

    /// A stream of newline-delimited JSON: every line is the data of an event.
    pub(crate) fn of_lines(body: ResponseBody, max_line_bytes: usize) -> Self {
        Self { decoder: SseDecoder::of_lines(max_line_bytes), ..Self::new(body, max_line_bytes) }
    }

    /// Breaks the stream when no byte arrives for this long, not even a comment.
    #[must_use]
    pub(crate) fn with_read_timeout(self, read_timeout: Option<Duration>) -> Self {
        Self { read_timeout, ..self }
    }

    /// The next event; `None` when the stream ended regularly. Cancel-safe.
    pub(crate) async fn next(&mut self) -> HttpResult<Option<SseEvent>> {
        loop {
            if let Some(event) = self.decoded.pop_front() {
                return Ok(Some(event));
            }
            let chunk = match self.read().await? {
                None => return Ok(self.decoder.finish()),
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

    async fn read(&mut self) -> HttpResult<Option<io::Result<Bytes>>> {
        let Some(limit) = self.read_timeout else { return Ok(self.body.next().await) };
        tokio::time::timeout(limit, self.body.next()).await.map_err(|_| {
            HttpError::new(HttpErrorKind::Broken, format!("nothing arrived on the event stream for {limit:?}"))
        })
    }
}
