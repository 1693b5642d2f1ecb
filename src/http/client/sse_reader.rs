//! Events from the body of a response.

use std::collections::VecDeque;

use super::ResponseBody;
use super::error::{HttpError, HttpErrorKind, HttpResult};
use crate::http::sse::{Decoder, Event};

/// Reads events from a body.
#[derive(Debug)]
pub(crate) struct EventReader {
    body: ResponseBody,
    decoder: Decoder,
    ready: VecDeque<Event>,
    limit: usize,
}

impl EventReader {
    pub(crate) fn new(body: ResponseBody, limit: usize) -> Self {
        Self { body, decoder: Decoder::new(limit), ready: VecDeque::new(), limit }
    }

    /// The next event; nothing when the stream ended in order. Cancel-safe.
    pub(crate) async fn next(&mut self) -> HttpResult<Option<Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let bytes = match self.body.next().await {
                None => return Ok(None),
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => {
                    return Err(HttpError::new(HttpErrorKind::Broken, format!("the event stream broke: {error}")));
                }
            };
            let events = self.decoder.push(&bytes).map_err(|_| {
                HttpError::new(
                    HttpErrorKind::Protocol,
                    format!("the server sent an event of more than {} bytes", self.limit),
                )
            })?;
            self.ready.extend(events);
        }
    }
}
