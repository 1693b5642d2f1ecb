//! JSON-RPC 2.0 messages as a closed set: request, notification, response, or a batch of these.
//!
//! The envelope is parsed once. `params`, `result` and `error` stay raw, unknown members are kept, and absent
//! members are never written.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::envelope::Envelope;
use super::json::{Raw, put_string};
use super::method::{Method, NotificationMethod};
use super::payload::Payload;
use crate::failure::{Execution, Failure, FailureKind, client_text};

/// A request id: a string or an integer, never null. The JSON type is significant: `7` and `"7"` are
/// different ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Id {
    /// An integer id.
    Number(i64),
    /// A string id.
    Text(Box<str>),
}

/// A request: a message with a method and an id.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The id that the response repeats.
    pub id: Id,
    /// The method.
    pub method: Method,
    /// The parameters, as received.
    pub params: Option<Payload>,
    /// Envelope members that JSON-RPC does not define.
    pub extra: Extra,
}

/// A notification: a message with a method and no id.
#[derive(Debug, Clone, PartialEq)]
pub struct Notification {
    /// The method of the notification.
    pub method: NotificationMethod,
    /// The parameters, as received.
    pub params: Option<Raw>,
    /// Envelope members that JSON-RPC does not define.
    pub extra: Extra,
}

/// The response to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// The id of the request; `None` only in an error about a request whose id could not be parsed.
    pub id: Option<Id>,
    /// The result or the error.
    pub outcome: Outcome,
    /// Envelope members that JSON-RPC does not define.
    pub extra: Extra,
}

/// A result or an error, never both.
pub type Outcome = Result<Payload, ErrorObject>;

/// Envelope members that JSON-RPC does not define, in the order received.
pub type Extra = Vec<(Box<str>, Raw)>;

/// The `error` member of a response: its code and the whole object as received.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorObject {
    code: i64,
    raw: Raw,
    /// Set when no answer came and this error takes its place. Not serialized.
    failure: Option<Box<Failure>>,
}

/// Any single message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// A request.
    Request(Request),
    /// A notification.
    Notification(Notification),
    /// A response.
    Response(Response),
}

/// A message of a peer whose messages may nest only so deep.
#[derive(Debug)]
pub enum DepthChecked {
    /// A message within the limit.
    Within(Message),
    /// A message that nests too deep; nothing may walk its payload.
    TooDeep(Message),
}

/// The content of an HTTP body or of a line.
#[derive(Debug)]
pub enum Incoming {
    /// A single message.
    One(Message),
    /// A batch (2025-03-26 only); each entry is valid or invalid by itself.
    Batch(Vec<Result<Message, Invalid>>),
}

/// The error for text that is not a valid message.
#[derive(Debug, Clone, PartialEq)]
pub struct Invalid {
    /// [`code::PARSE_ERROR`] or [`code::INVALID_REQUEST`].
    pub code: i64,
    /// The id of the request, if it could be parsed.
    pub id: Option<Id>,
    /// The description of the fault.
    pub reason: String,
}

/// Error codes of JSON-RPC and of MCP.
pub mod code {
    /// The text is not JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// The JSON is not a valid message.
    pub const INVALID_REQUEST: i64 = -32600;
    /// The method does not exist.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters are invalid.
    pub const INVALID_PARAMS: i64 = -32602;
    /// Internal error.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// The resource does not exist (handshake era).
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// The user must open a URL first (2025-11-25).
    pub const URL_ELICITATION_REQUIRED: i64 = -32042;
    /// A mirrored header is missing, malformed, or differs from the body (2026-07-28).
    pub const HEADER_MISMATCH: i64 = -32020;
    /// The request needs a client capability that was not declared (2026-07-28).
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// The revision is not supported (2026-07-28).
    pub const UNSUPPORTED_VERSION: i64 = -32022;
}

// === impl Incoming ===

impl Incoming {
    /// Parses a body or a line with at most `max_messages` messages.
    ///
    /// # Errors
    /// When the text is not JSON, not a message, or a batch that is empty or too long.
    pub fn parse(text: &Bytes, max_messages: usize) -> Result<Self, Invalid> {
        match Self::batch_texts(text, max_messages)? {
            None => Message::parse(text).map(Self::One),
            Some(texts) => Ok(Self::Batch(texts.iter().map(Message::parse).collect())),
        }
    }

    /// The texts of the messages in a batch; `None` when the text is no array.
    ///
    /// # Errors
    /// When the text is an array that is not JSON, empty or too long.
    pub fn batch_texts(text: &Bytes, max_messages: usize) -> Result<Option<Vec<Bytes>>, Invalid> {
        let first = text.iter().find(|b| !b.is_ascii_whitespace());
        if first != Some(&b'[') {
            return Ok(None);
        }
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let items = deserializer.deserialize_seq(BatchVisitor { max_messages });
        let items = match items.and_then(|items| deserializer.end().map(|()| items)) {
            Ok(items) => items,
            Err(error) if error.is_data() && is_json(text) => {
                return Err(Invalid::request(None, format!("a batch may hold {max_messages} messages")));
            }
            Err(error) => return Err(Invalid::syntax(&error)),
        };
        if items.is_empty() {
            return Err(Invalid::request(None, "a batch must hold at least one message"));
        }
        Ok(Some(items.into_iter().map(|item| text.slice_ref(item.get().as_bytes())).collect()))
    }
}

/// Collects the entries of a batch, and fails at the first beyond the limit.
struct BatchVisitor {
    max_messages: usize,
}

impl<'de> Visitor<'de> for BatchVisitor {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            if items.len() == self.max_messages {
                return Err(serde::de::Error::custom("too many messages"));
            }
            items.push(item);
        }
        Ok(items)
    }
}

// === impl Message ===

impl Message {
    /// Parses one message.
    ///
    /// # Errors
    /// When the text is not JSON, or the JSON is not a message.
    pub fn parse(text: &Bytes) -> Result<Self, Invalid> {
        Envelope::read(text).map_err(|error| invalid_envelope(&error, text)).and_then(|read| classify(read, text))
    }

    /// Like [`Self::parse`], and tells a message that nests deeper than `max_depth`.
    ///
    /// # Errors
    /// Those of [`Self::parse`].
    pub fn parse_within(text: &Bytes, max_depth: usize) -> Result<DepthChecked, Invalid> {
        let read = Envelope::read_within(text, max_depth);
        let (envelope, too_deep) = read.map_err(|error| invalid_envelope(&error, text))?;
        classify(envelope, text).map(if too_deep { DepthChecked::TooDeep } else { DepthChecked::Within })
    }

    /// Serializes the message.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Request(request) => request.encode(),
            Self::Notification(notification) => notification.encode(),
            Self::Response(response) => response.encode(),
        }
    }
}

/// The fault of a text that is no envelope.
fn invalid_envelope(error: &serde_json::Error, text: &[u8]) -> Invalid {
    match error.is_data() && is_json(text) {
        true => Invalid::request(None, "a message must be an object with each member once"),
        false => Invalid::syntax(error),
    }
}

/// Whether the text is valid JSON.
fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// Builds the message from its envelope.
fn classify(envelope: Envelope<'_>, text: &Bytes) -> Result<Message, Invalid> {
    let id = envelope.id.map(Id::read);
    let known = id.clone().and_then(Result::ok);
    let refuse = |reason: &str| Err(Invalid::request(known.clone(), reason));
    if envelope.version != Some(r#""2.0""#) {
        return refuse("the member `jsonrpc` must be \"2.0\"");
    }
    let raw = |value: &str| Raw::slice(text, value);
    let extra = envelope.extra.into_iter();
    let extra = extra.map(|(key, value)| (key, raw(value))).collect();
    match (envelope.method, envelope.result, envelope.error) {
        (Some(method), None, None) => {
            let method = raw(method);
            let Some(method) = method.text() else {
                return refuse("the member `method` must be a string");
            };
            // Some clients send `"params": null`; treat it as absent.
            let params = match (envelope.params.map(raw), envelope.params_index) {
                (Some(params), Some(index)) => Some(Payload::indexed(params, index)),
                (Some(params), None) if !params.is_null() => return refuse("the member `params` must be an object"),
                _ => None,
            };
            match id {
                None => Ok(Message::Notification(Notification {
                    method: NotificationMethod::from(method.as_ref()),
                    params: params.map(Payload::into_raw),
                    extra,
                })),
                Some(Ok(id)) => {
                    Ok(Message::Request(Request { id, method: Method::from(method.as_ref()), params, extra }))
                }
                Some(Err(reason)) => refuse(reason),
            }
        }
        (None, Some(result), None) => match id {
            Some(Ok(id)) => {
                let result = match envelope.result_index {
                    Some(index) => Payload::indexed(raw(result), index),
                    None => raw(result).into(),
                };
                Ok(Message::Response(Response { id: Some(id), outcome: Ok(result), extra }))
            }
            Some(Err(reason)) => refuse(reason),
            None => refuse("a response needs the `id` of its request"),
        },
        (None, None, Some(error)) => {
            let Some(error) = ErrorObject::read(raw(error)) else {
                return refuse("the member `error` must be an object with an integer `code`");
            };
            let unread = envelope.id.is_none_or(|id| id == "null");
            match id {
                Some(Err(reason)) if !unread => refuse(reason),
                id => Ok(Message::Response(Response { id: id.and_then(Result::ok), outcome: Err(error), extra })),
            }
        }
        (None, Some(_), Some(_)) => refuse("a response has a `result` or an `error`, not both"),
        (Some(_), _, _) => refuse("a message has a `method` or is a response, not both"),
        (None, None, None) => refuse("a message needs a `method`, a `result` or an `error`"),
    }
}

// === impl Request, Notification, Response ===

impl Request {
    /// A new request.
    pub fn new(id: Id, method: Method, params: Option<Payload>) -> Self {
        Self { id, method, params, extra: Extra::new() }
    }

    /// Serializes the request.
    pub fn encode(&self) -> Bytes {
        let mut out = begin_envelope(self.params.as_deref());
        self.id.write(&mut out);
        write_method(&mut out, self.method.as_str(), self.params.as_deref());
        finish_envelope(out, &self.extra)
    }
}

impl Notification {
    /// A new notification.
    pub fn new(method: NotificationMethod, params: Option<Raw>) -> Self {
        let extra = Extra::new();
        Self { method, params, extra }
    }

    /// A `notifications/cancelled` for a request.
    pub fn cancelled(id: &Id) -> Self {
        let params = Raw::empty().edit().set("requestId", id.to_raw()).finish();
        Self::new(NotificationMethod::Cancelled, Some(params))
    }

    /// Serializes the notification.
    pub fn encode(&self) -> Bytes {
        let mut out = begin_envelope(self.params.as_ref());
        write_method(&mut out, self.method.as_str(), self.params.as_ref());
        finish_envelope(out, &self.extra)
    }
}

impl Response {
    /// A new response.
    pub fn new(id: Option<Id>, outcome: Outcome) -> Self {
        let extra = Extra::new();
        Self { id, outcome, extra }
    }

    /// What follows the result in a response that began with [`Self::encode_head`].
    pub const ENCODED_END: &'static [u8] = b"}";

    /// The text before the result, for a result that is written in pieces.
    pub fn encode_head(id: &Id) -> Bytes {
        let mut out = begin_envelope(None);
        id.write(&mut out);
        out.extend_from_slice(b",\"result\":");
        out.freeze()
    }

    /// Serializes the response. Without an id it is written as `null`.
    pub fn encode(&self) -> Bytes {
        let (name, value) = match &self.outcome {
            Ok(result) => (&b",\"result\":"[..], &**result),
            Err(error) => (&b",\"error\":"[..], &error.raw),
        };
        let mut out = begin_envelope(Some(value));
        match &self.id {
            Some(id) => id.write(&mut out),
            None => out.extend_from_slice(b",\"id\":null"),
        }
        out.extend_from_slice(name);
        out.extend_from_slice(value.as_bytes());
        finish_envelope(out, &self.extra)
    }
}

/// Buffer capacity for the envelope around a payload; enough for most, so that the buffer rarely grows.
const ENVELOPE_CAPACITY: usize = 96;

fn begin_envelope(payload: Option<&Raw>) -> BytesMut {
    let size = payload.map_or(0, |raw| raw.as_bytes().len());
    let mut out = BytesMut::with_capacity(size + ENVELOPE_CAPACITY);
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\"");
    out
}

fn write_method(out: &mut BytesMut, method: &str, params: Option<&Raw>) {
    out.extend_from_slice(b",\"method\":");
    put_string(out, method);
    if let Some(params) = params {
        out.extend_from_slice(b",\"params\":");
        out.extend_from_slice(params.as_bytes());
    }
}

fn finish_envelope(mut out: BytesMut, extra: &Extra) -> Bytes {
    for (key, value) in extra {
        out.put_u8(b',');
        put_string(&mut out, key);
        out.put_u8(b':');
        out.extend_from_slice(value.as_bytes());
    }
    out.put_u8(b'}');
    out.freeze()
}

// === impl Id ===

impl Id {
    /// Parses an id from its JSON text.
    fn read(text: &str) -> Result<Self, &'static str> {
        match text.as_bytes().first() {
            Some(b'"') => {
                serde_json::from_str(text).map(Self::Text).map_err(|_| "the member `id` is not a valid string")
            }
            Some(b'n') => Err("the member `id` must not be null"),
            _ => text.parse().map(Self::Number).map_err(|_| "the member `id` must be a string or an integer"),
        }
    }

    /// Parses an id inside a payload, such as `requestId`.
    pub fn from_raw(raw: &Raw) -> Option<Self> {
        let text = std::str::from_utf8(raw.as_bytes()).ok()?;
        Self::read(text).ok()
    }

    /// The id as a JSON value.
    pub fn to_raw(&self) -> Raw {
        match self {
            Self::Number(number) => Raw::of(number),
            Self::Text(text) => Raw::of(text),
        }
    }

    fn write(&self, out: &mut BytesMut) {
        out.extend_from_slice(b",\"id\":");
        match self {
            Self::Number(number) => out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes()),
            Self::Text(text) => put_string(out, text),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

impl From<i64> for Id {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

// === impl ErrorObject ===

impl ErrorObject {
    /// A new error.
    pub fn new(code: i64, message: impl AsRef<str>) -> Self {
        let message = message.as_ref();
        let raw = Raw::of(&serde_json::json!({ "code": code, "message": message }));
        Self { code, raw, failure: None }
    }

    /// The failure that this error stands for, if it takes the place of an answer that never came.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    /// Sets `data`.
    #[must_use]
    pub fn with_data(self, data: Raw) -> Self {
        let raw = self.raw.edit().set("data", data).finish();
        Self { raw, ..self }
    }

    /// Replaces the code.
    #[must_use]
    pub fn with_code(self, code: i64) -> Self {
        let raw = self.raw.edit().set("code", Raw::of(&code)).finish();
        Self { code, raw, ..self }
    }

    /// Parses an error object; `None` when it is not an object with an integer code.
    pub fn read(raw: Raw) -> Option<Self> {
        if !raw.is_object() {
            return None;
        }
        let code = raw.get("code")?.read().ok()?;
        Some(Self { code, raw, failure: None })
    }

    /// The error code.
    pub fn code(&self) -> i64 {
        self.code
    }

    /// The message text.
    pub fn message(&self) -> String {
        let message = self.raw.get("message");
        message.and_then(|m| m.text().map(std::borrow::Cow::into_owned)).unwrap_or_default()
    }

    /// The member `data`.
    pub fn data(&self) -> Option<Raw> {
        self.raw.get("data")
    }
}

impl From<Failure> for ErrorObject {
    /// The client's error: the sentence as `message`, the value as `data`.
    fn from(failure: Failure) -> Self {
        let mut data = serde_json::json!({
            "failure": failure.kind().name(),
            "mayHaveRun": failure.execution() == Execution::MayHaveRun,
        });
        if let Some(upstream) = failure.upstream() {
            data["upstream"] = (**upstream).into();
        }
        if let Some(delay) = failure.retry_after() {
            data["retryAfterMs"] = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX).into();
        }
        let code = match failure.kind() {
            FailureKind::OverRateLimit | FailureKind::InsufficientScope => code::INVALID_REQUEST,
            _ => code::INTERNAL_ERROR,
        };
        if !failure.scopes().is_empty() {
            data["scopes"] = failure.scopes().iter().map(|scope| &**scope).collect();
        }
        let error = Self::new(code, client_text(&failure)).with_data(Raw::of(&data));
        Self { failure: Some(Box::new(failure)), ..error }
    }
}

// === impl Invalid ===

impl Invalid {
    /// The text is not JSON.
    fn syntax(error: &serde_json::Error) -> Self {
        let reason = format!("the text is not valid JSON: {error}");
        Self { code: code::PARSE_ERROR, id: None, reason }
    }

    /// The JSON is not a valid message.
    pub fn request(id: Option<Id>, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { code: code::INVALID_REQUEST, id, reason }
    }

    /// The error response to send.
    pub fn response(self) -> Response {
        let name = if self.code == code::PARSE_ERROR { "Parse error" } else { "Invalid request" };
        let error = ErrorObject::new(self.code, format!("{name}: {}", self.reason));
        Response::new(self.id, Err(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Message, Invalid> {
        Message::parse(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn message_kinds_are_distinguished() {
        let request = parse(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).unwrap();
        assert!(matches!(request, Message::Request(_)));
        let notification = parse(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).unwrap();
        assert!(matches!(
            notification,
            Message::Notification(Notification { method: NotificationMethod::Initialized, .. })
        ));
        let result = parse(r#"{"jsonrpc":"2.0","id":"a","result":null}"#).unwrap();
        assert!(matches!(result, Message::Response(Response { outcome: Ok(_), .. })));
        let error = parse(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}"#).unwrap();
        assert!(matches!(error, Message::Response(Response { id: None, outcome: Err(_), .. })));
    }

    #[test]
    fn invalid_messages_are_refused_with_a_reason() {
        let cases = [
            ("{", code::PARSE_ERROR, "JSON"),
            ("{} x", code::PARSE_ERROR, "JSON"),
            ("", code::PARSE_ERROR, "JSON"),
            ("1", code::INVALID_REQUEST, "object"),
            ("1 x", code::PARSE_ERROR, "JSON"),
            (r#"{"id":1,"id":2"#, code::PARSE_ERROR, "JSON"),
            ("{}", code::INVALID_REQUEST, "jsonrpc"),
            (r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#, code::INVALID_REQUEST, "jsonrpc"),
            (r#"{"jsonrpc":"2.0","id":1}"#, code::INVALID_REQUEST, "method"),
            (r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#, code::INVALID_REQUEST, "null"),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"m"}"#, code::INVALID_REQUEST, "integer"),
            (r#"{"jsonrpc":"2.0","id":[],"method":"m"}"#, code::INVALID_REQUEST, "integer"),
            (r#"{"jsonrpc":"2.0","id":1,"method":5}"#, code::INVALID_REQUEST, "string"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}"#, code::INVALID_REQUEST, "params"),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}"#,
                code::INVALID_REQUEST,
                "not both",
            ),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m","result":{}}"#, code::INVALID_REQUEST, "not both"),
            (r#"{"jsonrpc":"2.0","result":{}}"#, code::INVALID_REQUEST, "id"),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":"x"}}"#, code::INVALID_REQUEST, "code"),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}"#, code::INVALID_REQUEST, "once"),
        ];
        for (text, code, word) in cases {
            let invalid = parse(text).unwrap_err();
            assert_eq!(invalid.code, code, "{text}");
            assert!(invalid.reason.contains(word), "{text}: {}", invalid.reason);
        }
    }

    #[test]
    fn error_carries_the_request_id_if_readable() {
        let invalid = parse(r#"{"jsonrpc":"2.0","id":"x","method":1}"#).unwrap_err();
        assert_eq!(invalid.id, Some(Id::Text("x".into())));
    }

    #[test]
    fn ids_keep_their_type() {
        for id in ["1", "\"1\"", "-5", "\"\"", "\"\\u00e9\\n\"", "9007199254740993"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            let Message::Request(request) = parse(&text).unwrap() else { panic!("{text}") };
            let again = Message::parse(&request.encode()).unwrap();
            assert_eq!(again, Message::Request(request));
        }
        assert_ne!(Id::read("1"), Id::read("\"1\""));
    }

    #[test]
    fn batch_entries_are_parsed_independently() {
        let text = Bytes::from_static(br#" [{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0"},3]"#);
        let Incoming::Batch(items) = Incoming::parse(&text, 3).unwrap() else { panic!() };
        assert!(items[0].is_ok() && items[1].is_err() && items[2].is_err());
        let empty = Incoming::parse(&Bytes::from_static(b"[]"), 3).unwrap_err();
        assert_eq!(empty.code, code::INVALID_REQUEST);
        let long = Incoming::parse(&text, 2).unwrap_err();
        assert_eq!((long.code, long.reason.as_str()), (code::INVALID_REQUEST, "a batch may hold 2 messages"));
    }

    #[test]
    fn truncated_utf8_is_a_syntax_error() {
        let text = Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":\"\xe6\xb0\",\"method\":\"m\"}");
        assert_eq!(Message::parse(&text).unwrap_err().code, code::PARSE_ERROR);
    }

    proptest! {
        /// A message with members in our order must survive parsing and serializing byte for byte, whatever
        /// its payload and unknown members.
        #[test]
        fn round_trip_is_exact(
            id in prop_oneof![any::<i64>().prop_map(|n| n.to_string()), "[a-z]{0,8}".prop_map(|s| format!("\"{s}\""))],
            method in "[a-z/]{1,20}",
            number in "-?[1-9][0-9]{0,40}(\\.[0-9]{1,20})?(e[0-9]{1,2})?",
            key in "[a-zA-Z]{8,10}",
            kind in 0..4,
        ) {
            let payload = format!(r#"{{ "{key}" : {number},"\u00e9":[ null, true ] }}"#);
            let middle = match kind {
                0 => format!(r#""id":{id},"method":"{method}","params":{payload}"#),
                1 => format!(r#""method":"{method}","params":{payload}"#),
                2 => format!(r#""id":{id},"result":{payload}"#),
                _ => format!(r#""id":{id},"error":{{"code":-1,"message":"m","data":{payload}}}"#),
            };
            let text = format!(r#"{{"jsonrpc":"2.0",{middle},"x{key}":{payload}}}"#);
            let message = parse(&text).unwrap();
            prop_assert_eq!(message.encode(), text.as_bytes());
        }

        /// No input may make the parser panic, and every accepted message must survive a round trip.
        #[test]
        fn any_bytes_parse_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = Message::parse(&Bytes::from(bytes)) {
                prop_assert_eq!(Message::parse(&message.encode()).unwrap(), message);
            }
        }
    }
}
