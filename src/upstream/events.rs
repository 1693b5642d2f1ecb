//! Events from the body of a response.

use std::collections::VecDeque;

use bytes::Bytes;

use super::line::Reading;
use crate::error::{Error, Kind, Result};
use crate::protocol::sse::{Decoder, Event};
use crate::protocol::{Incoming, Invalid, Message};

/// How many messages a batch may hold.
pub(super) const MOST_IN_A_BATCH: usize = 1000;

/// Reads events from a body.
#[derive(Debug)]
pub(super) struct EventReader {
    body: Reading,
    decoder: Decoder,
    ready: VecDeque<Event>,
    limit: usize,
}

impl EventReader {
    pub(super) fn new(body: Reading, limit: usize) -> Self {
        Self { body, decoder: Decoder::new(limit), ready: VecDeque::new(), limit }
    }

    /// The next event; nothing when the stream ended in order. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let bytes = match self.body.next().await {
                None => return Ok(None),
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => return Err(Error::new(Kind::Broken, format!("the event stream broke: {error}"))),
            };
            let events = self.decoder.push(&bytes).map_err(|_| {
                Error::new(Kind::Protocol, format!("the server sent an event of more than {} bytes", self.limit))
            })?;
            self.ready.extend(events);
        }
    }
}

/// The messages that an event carries: none, one, or those of a batch.
pub(super) fn parsed(event: Event) -> Vec<Message> {
    if event.data.is_empty() {
        return Vec::new();
    }
    match messages(&event.data.into()) {
        Ok(messages) => messages,
        Err(invalid) => {
            tracing::warn!(why = %invalid.why, "an event is no message; it was skipped");
            Vec::new()
        }
    }
}

/// The messages in a text: one, or those of a batch as far as they are messages. A server that sends a batch where
/// its revision has none is understood all the same.
pub(super) fn messages(text: &Bytes) -> std::result::Result<Vec<Message>, Invalid> {
    match Incoming::parse(text, MOST_IN_A_BATCH)? {
        Incoming::One(message) => Ok(vec![message]),
        Incoming::Batch(items) => {
            let all = items.len();
            let good: Vec<Message> = items.into_iter().flatten().collect();
            if good.len() < all {
                tracing::debug!(count = all - good.len(), "parts of a batch were no messages");
            }
            Ok(good)
        }
    }
}
