//! What nodes write one another: a kind, the relay that it is about, a head in JSON, and bytes.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode, Uri};
use serde::{Deserialize, Serialize};

use crate::store::NodeId;

/// A request that one node carries to another.
#[derive(Debug, Clone)]
pub struct RelayedRequest {
    /// What is to be done.
    pub verb: Verb,
    /// Where the client sent it.
    pub uri: Uri,
    /// Its headers.
    pub headers: HeaderMap,
    /// Who sent it, as policy has found there.
    pub principal: String,
    /// Where the client connected from.
    pub peer: Option<std::net::SocketAddr>,
    /// Its body.
    pub body: Bytes,
}

/// One thing that a node writes another.
#[derive(Debug, Clone)]
pub(super) enum RelayMessage {
    /// Do this for a client of mine.
    Request { from: NodeId, request: Box<RelayedRequest> },
    /// The answer begins, or is all there.
    ResponseHead { status: StatusCode, headers: HeaderMap, whole: bool, body: Bytes },
    /// More of it.
    ResponseChunk { number: u64, body: Bytes },
    /// That was all of it.
    ResponseEnd,
    /// It is not for me to answer.
    NotOwner,
    /// The client is gone.
    Cancel { from: NodeId },
    /// The client has read this many bytes.
    WindowUpdate { from: NodeId, bytes: u64 },
    /// Are you still at these?
    StatusQuery { from: NodeId, relays: Vec<u64> },
    /// I know nothing of it.
    UnknownRelay,
    /// I am going.
    NodeLeaving { from: NodeId },
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Head {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    verb: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    uri: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    principal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    peer: Option<std::net::SocketAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    headers: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    number: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    whole: bool,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    relays: Vec<u64>,
}

const REQUEST: u8 = 1;
const HEAD: u8 = 2;
const CHUNK: u8 = 3;
const END: u8 = 4;
const NOT_MINE: u8 = 5;
const GONE: u8 = 6;
const READ: u8 = 7;
const CHECK: u8 = 8;
const UNKNOWN: u8 = 9;
const LEFT: u8 = 10;

impl RelayMessage {
    /// As it is sent.
    pub(super) fn write(&self, relay: u64) -> Bytes {
        let mut head = Head::default();
        let (kind, body) = match self {
            Self::Request { from, request } => {
                head.from = Some(from.to_string());
                head.verb = Some(request.verb.to_string());
                head.uri = Some(request.uri.to_string());
                head.principal = Some(request.principal.clone());
                head.peer = request.peer;
                head.headers = listed(&request.headers);
                (REQUEST, request.body.clone())
            }
            Self::ResponseHead { status, headers, whole, body } => {
                head.status = Some(status.as_u16());
                head.headers = listed(headers);
                head.whole = *whole;
                (HEAD, body.clone())
            }
            Self::ResponseChunk { number, body } => {
                head.number = Some(*number);
                (CHUNK, body.clone())
            }
            Self::ResponseEnd => (END, Bytes::new()),
            Self::NotOwner => (NOT_MINE, Bytes::new()),
            Self::Cancel { from } => {
                head.from = Some(from.to_string());
                (GONE, Bytes::new())
            }
            Self::WindowUpdate { from, bytes } => {
                head.from = Some(from.to_string());
                head.number = Some(*bytes);
                (READ, Bytes::new())
            }
            Self::StatusQuery { from, relays } => {
                head.from = Some(from.to_string());
                head.relays.clone_from(relays);
                (CHECK, Bytes::new())
            }
            Self::UnknownRelay => (UNKNOWN, Bytes::new()),
            Self::NodeLeaving { from } => {
                head.from = Some(from.to_string());
                (LEFT, Bytes::new())
            }
        };
        let head = serde_json::to_vec(&head).unwrap_or_default();
        let mut out = BytesMut::with_capacity(13 + head.len() + body.len());
        out.put_u8(kind);
        out.put_u64(relay);
        out.put_u32(u32::try_from(head.len()).unwrap_or(u32::MAX));
        out.put_slice(&head);
        out.put_slice(&body);
        out.freeze()
    }

    /// Reads a letter and the relay that it is about; nothing when it is none.
    pub(super) fn read(bytes: &Bytes) -> Option<(u64, Self)> {
        let relay = u64::from_be_bytes(bytes.get(1..9)?.try_into().ok()?);
        let length = usize::try_from(u32::from_be_bytes(bytes.get(9..13)?.try_into().ok()?)).ok()?;
        let body = 13_usize.checked_add(length).filter(|end| *end <= bytes.len())?;
        let head: Head = serde_json::from_slice(&bytes[13..body]).ok()?;
        let body = bytes.slice(body..);
        let from = || head.from.as_deref().and_then(NodeId::parse);
        let letter = match bytes[0] {
            REQUEST => Self::Request {
                from: from()?,
                request: Box::new(RelayedRequest {
                    verb: Verb::from_bytes(head.verb.as_deref()?.as_bytes()).ok()?,
                    uri: head.uri.as_deref()?.parse().ok()?,
                    headers: mapped(&head.headers)?,
                    principal: head.principal.clone()?,
                    peer: head.peer,
                    body,
                }),
            },
            HEAD => Self::ResponseHead {
                status: StatusCode::from_u16(head.status?).ok()?,
                headers: mapped(&head.headers)?,
                whole: head.whole,
                body,
            },
            CHUNK => Self::ResponseChunk { number: head.number?, body },
            END => Self::ResponseEnd,
            NOT_MINE => Self::NotOwner,
            GONE => Self::Cancel { from: from()? },
            READ => Self::WindowUpdate { from: from()?, bytes: head.number? },
            CHECK => Self::StatusQuery { from: from()?, relays: head.relays.clone() },
            UNKNOWN => Self::UnknownRelay,
            LEFT => Self::NodeLeaving { from: from()? },
            _ => return None,
        };
        Some((relay, letter))
    }
}

/// Values are bytes, and nearly always letters: each byte is written as the letter of that number.
fn listed(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| match value.to_str() {
        Ok(plain) => plain.to_owned(),
        Err(_) => value.as_bytes().iter().copied().map(char::from).collect(),
    };
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}

fn mapped(headers: &[(String, String)]) -> Option<HeaderMap> {
    let mut map = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let value = match value.is_ascii() {
            true => HeaderValue::from_str(value).ok()?,
            false => {
                let bytes = value.chars().map(|letter| u8::try_from(letter).ok()).collect::<Option<Vec<u8>>>()?;
                HeaderValue::from_bytes(&bytes).ok()?
            }
        };
        map.append(HeaderName::from_bytes(name.as_bytes()).ok()?, value);
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_read_as_they_are_written() {
        let mut headers = HeaderMap::new();
        headers.append("accept", HeaderValue::from_static("a"));
        headers.append("accept", HeaderValue::from_bytes(b"\xff").unwrap());
        let request = RelayedRequest {
            verb: Verb::POST,
            uri: "/mcp/a?b=c".parse().unwrap(),
            headers: headers.clone(),
            principal: "ann".into(),
            peer: "127.0.0.1:5".parse().ok(),
            body: Bytes::from_static(b"\0{}"),
        };
        let from = NodeId::begin("a/b");
        for letter in [
            RelayMessage::Request { from: from.clone(), request: Box::new(request) },
            RelayMessage::ResponseHead {
                status: StatusCode::ACCEPTED,
                headers,
                whole: true,
                body: Bytes::from_static(b"x"),
            },
            RelayMessage::ResponseChunk { number: 7, body: Bytes::from_static(b"\xff") },
            RelayMessage::ResponseEnd,
            RelayMessage::NotOwner,
            RelayMessage::Cancel { from: from.clone() },
            RelayMessage::WindowUpdate { from: from.clone(), bytes: u64::MAX },
            RelayMessage::StatusQuery { from: from.clone(), relays: vec![1, u64::MAX] },
            RelayMessage::NodeLeaving { from },
            RelayMessage::UnknownRelay,
        ] {
            let (relay, read) = RelayMessage::read(&letter.write(u64::MAX)).unwrap();
            assert_eq!((relay, format!("{read:?}")), (u64::MAX, format!("{letter:?}")));
        }
    }

    #[test]
    fn rubbish_is_no_letter() {
        let whole = RelayMessage::ResponseChunk { number: 7, body: Bytes::new() }.write(1);
        for end in 0..whole.len() {
            assert!(RelayMessage::read(&whole.slice(..end)).is_none());
        }
        assert!(RelayMessage::read(&Bytes::from_static(&[1; 64])).is_none());
    }
}
