//! Parses JSON-RPC messages and batches that a server sends.

use bytes::Bytes;

use super::log_limiter::LogLimiter;
use crate::failure::{Failure, FailureKind};
use crate::http::sse::SseEvent;
use crate::protocol::{DepthChecked, ErrorObject, Id, Incoming, Invalid, Message, Response, code};

/// Limit of messages in one batch.
const MAX_BATCH_MESSAGES: usize = 1000;
/// Bytes of an invalid message that are logged.
const MAX_LOGGED_EXCERPT: usize = 200;

/// One message of a server.
#[derive(Debug)]
pub(super) enum Received {
    /// A message. A response that nests too deep is one with a failure in place of its result.
    Message(Message),
    /// A server request that cannot be forwarded and is answered with this error.
    Unacceptable(Id, ErrorObject),
}

/// Parses what one server sends.
#[derive(Debug)]
pub(super) struct MessageParser {
    max_depth: usize,
    pub(super) log: LogLimiter,
}

impl From<Message> for Received {
    fn from(message: Message) -> Self {
        Self::Message(message)
    }
}

impl MessageParser {
    /// A parser for messages that nest at most `max_depth` deep, of the server called `source` in the log.
    pub(super) fn new(max_depth: usize, source: impl Into<String>) -> Self {
        Self { max_depth, log: LogLimiter::new(source) }
    }

    /// The messages in the data of an event; an event that holds no valid message is logged and skipped.
    pub(super) fn messages_in_event(&self, event: SseEvent) -> Vec<Received> {
        if event.data.is_empty() {
            return Vec::new();
        }
        self.messages_or_log(&event.data.into(), "event stream")
    }

    /// The messages in a text; a text that holds no valid message is logged and skipped.
    pub(super) fn messages_or_log(&self, text: &Bytes, place: &'static str) -> Vec<Received> {
        match self.messages(text) {
            Ok(messages) => messages,
            Err(invalid) => {
                let excerpt = &text[..text.len().min(MAX_LOGGED_EXCERPT)];
                if self.log.admits(excerpt.len() + invalid.reason.len()) {
                    let excerpt = String::from_utf8_lossy(excerpt);
                    tracing::warn!(place, reason = %invalid.reason, text = %excerpt, "invalid message of an upstream skipped");
                }
                Vec::new()
            }
        }
    }

    /// The messages in a JSON text: one, or the valid ones of a batch. Batches are accepted in every revision, because
    /// some servers send them where their revision has none.
    pub(super) fn messages(&self, text: &Bytes) -> Result<Vec<Received>, Invalid> {
        let Some(texts) = Incoming::batch_texts(text, MAX_BATCH_MESSAGES)? else {
            return Ok(self.message(text)?.into_iter().collect());
        };
        let parsed: Vec<_> = texts.iter().map(|text| self.message(text)).collect();
        let invalid = parsed.iter().filter(|message| message.is_err()).count();
        if invalid > 0 {
            tracing::debug!(count = invalid, "invalid messages in an upstream batch skipped");
        }
        Ok(parsed.into_iter().flatten().flatten().collect())
    }

    /// The message in a JSON text that is no batch; `None` for a notification that nests too deep.
    pub(super) fn message(&self, text: &Bytes) -> Result<Option<Received>, Invalid> {
        let message = match Message::parse_within(text, self.max_depth)? {
            DepthChecked::Within(message) => return Ok(Some(Received::Message(message))),
            DepthChecked::TooDeep(message) => message,
        };
        let limit = self.max_depth;
        Ok(match message {
            Message::Response(response) => {
                let why = format!("the server sent a response that nests more than {limit} levels deep");
                let failure = Failure::new(FailureKind::TooDeep(limit), why);
                Some(Message::Response(Response::new(response.id, Err(failure.into()))).into())
            }
            Message::Request(request) => {
                let why = format!("Invalid params: the request nests more than {limit} levels deep");
                Some(Received::Unacceptable(request.id, ErrorObject::new(code::INVALID_PARAMS, why)))
            }
            Message::Notification(notification) => {
                let method = notification.method.as_str();
                if self.log.admits(method.len()) {
                    tracing::warn!(method, limit, "upstream notification nests too deep; dropped");
                }
                None
            }
        })
    }
}
