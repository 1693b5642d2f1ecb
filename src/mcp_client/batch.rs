//! Parses JSON-RPC messages and batches that a server sends.

use bytes::Bytes;

use crate::http::sse::SseEvent;
use crate::protocol::{Incoming, Invalid, Message};

/// Limit of messages in one batch.
pub(super) const MAX_BATCH_MESSAGES: usize = 1000;

/// The messages in the data of an event; an event that holds no valid message is logged and skipped.
pub(super) fn messages_in_event(event: SseEvent) -> Vec<Message> {
    if event.data.is_empty() {
        return Vec::new();
    }
    match parse_messages(&event.data.into()) {
        Ok(messages) => messages,
        Err(invalid) => {
            tracing::warn!(reason = %invalid.reason, "invalid message in an upstream event; event skipped");
            Vec::new()
        }
    }
}

/// The messages in a JSON text: one, or the valid ones of a batch. Batches are accepted in every revision, because some
/// servers send them where their revision has none.
pub(super) fn parse_messages(text: &Bytes) -> std::result::Result<Vec<Message>, Invalid> {
    match Incoming::parse(text, MAX_BATCH_MESSAGES)? {
        Incoming::One(message) => Ok(vec![message]),
        Incoming::Batch(items) => {
            let total = items.len();
            let valid: Vec<Message> = items.into_iter().flatten().collect();
            if valid.len() < total {
                tracing::debug!(count = total - valid.len(), "invalid messages in an upstream batch skipped");
            }
            Ok(valid)
        }
    }
}
