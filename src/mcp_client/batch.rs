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

    /// The messages in a JSON text: one, the valid ones of a batch, or one per line. Batches and lines are accepted in
    /// every revision, because some servers send them where their revision has none.
    pub(super) fn messages(&self, text: &Bytes) -> Result<Vec<Received>, Invalid> {
        let Some(texts) = Incoming::batch_texts(text, MAX_BATCH_MESSAGES)? else {
            return match self.message(text) {
                Ok(message) => Ok(message.into_iter().collect()),
                Err(invalid) => self.messages_in_lines(text).ok_or(invalid),
            };
        };
        let parsed: Vec<_> = texts.iter().map(|text| self.message(text)).collect();
        let invalid = parsed.iter().filter(|message| message.is_err()).count();
        if invalid > 0 {
            tracing::debug!(count = invalid, "invalid messages in an upstream batch skipped");
        }
        Ok(parsed.into_iter().flatten().flatten().collect())
    }

    /// The messages in a text of several lines; `None` if a line is no message.
    fn messages_in_lines(&self, text: &Bytes) -> Option<Vec<Received>> {
        let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
        let lines: Vec<_> = lines.take(MAX_BATCH_MESSAGES + 1).map(|line| text.slice_ref(line)).collect();
        let is_several = (2..=MAX_BATCH_MESSAGES).contains(&lines.len());
        let messages = is_several.then(|| lines.iter().map(|line| self.message(line)).collect::<Result<Vec<_>, _>>());
        Some(messages?.ok()?.into_iter().flatten().collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOTICE: &str = r#"{"jsonrpc":"2.0","method":"notifications/message"}"#;

    fn count(text: String) -> Option<usize> {
        MessageParser::new(16, "test").messages(&text.into()).ok().map(|messages| messages.len())
    }

    #[test]
    fn lines_are_messages_only_if_each_is_one() {
        let spread = NOTICE.replace(',', ",\n");
        let mixed =
            [format!("{NOTICE}\n{NOTICE}\nrubbish"), format!("{NOTICE}{NOTICE}"), format!("{NOTICE}\n{spread}")];
        for (text, expected) in [(spread, 1), (format!("\n{NOTICE}\r\n\n{NOTICE}\n"), 2)] {
            assert_eq!(count(text), Some(expected));
        }
        for text in mixed {
            assert_eq!(count(text.clone()), None, "{text}");
        }
    }

    #[test]
    fn lines_are_bounded_like_a_batch() {
        let lines = |count| format!("{NOTICE}\n").repeat(count);
        assert_eq!(count(lines(MAX_BATCH_MESSAGES)), Some(MAX_BATCH_MESSAGES));
        assert_eq!(count(lines(MAX_BATCH_MESSAGES + 1)), None);
    }
}
