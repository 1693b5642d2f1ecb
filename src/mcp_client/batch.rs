//! The messages in a text that a server sends: one, or a batch.

use bytes::Bytes;

use crate::http::sse::Event;
use crate::protocol::{Incoming, Invalid, Message};

/// How many messages a batch may hold.
pub(super) const MAX_BATCH: usize = 1000;

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
    match Incoming::parse(text, MAX_BATCH)? {
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
