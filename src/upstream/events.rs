//! Events from the body of a response.

use std::collections::VecDeque;

use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::error::{Error, Kind, Result};
use crate::protocol::Message;
use crate::protocol::sse::{Decoder, Event};

/// Reads events from a body.
#[derive(Debug)]
pub(super) struct EventReader {
    body: Incoming,
    decoder: Decoder,
    ready: VecDeque<Event>,
    limit: usize,
}

impl EventReader {
    pub(super) fn new(body: Incoming, limit: usize) -> Self {
        Self { body, decoder: Decoder::new(limit), ready: VecDeque::new(), limit }
    }

    /// The next event; nothing when the stream ended in order. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let frame = match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Err(Error::new(Kind::Broken, format!("the event stream broke: {error}"))),
            };
            let Ok(bytes) = frame.into_data() else { continue };
            let events = self.decoder.push(&bytes).map_err(|_| {
                Error::new(Kind::Protocol, format!("the server sent an event of more than {} bytes", self.limit))
            })?;
            self.ready.extend(events);
        }
    }
}

/// The message that an event carries; nothing when it carries none.
pub(super) fn parsed(event: Event) -> Option<Message> {
    if event.data.is_empty() {
        return None;
    }
    match Message::parse(&event.data.into()) {
        Ok(message) => Some(message),
        Err(invalid) => {
            tracing::warn!(why = %invalid.why, "an event is no message; it was skipped");
            None
        }
    }
}
