//! Messages between nodes. Wire format: kind (1 byte), relay id (8), header length (4, big endian), JSON header,
//! body.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use serde::{Deserialize, Serialize};

use crate::identity::Identity;
use crate::store::NodeId;

/// A client request relayed to the owner of its session.
#[derive(Debug, Clone)]
pub struct RelayedRequest {
    /// HTTP method.
    pub method: Method,
    /// Request target as sent by the client.
    pub uri: Uri,
    /// Request headers; credentials are already checked on the receiving node.
    pub headers: HeaderMap,
    /// Who calls, as the receiving node has found.
    pub identity: Arc<Identity>,
    /// Address of the client.
    pub peer: Option<std::net::SocketAddr>,
    /// Complete request body.
    pub body: Bytes,
}

/// A message in a node's mailbox.
#[derive(Debug, Clone)]
pub(super) enum RelayMessage {
    /// Starts a relay.
    Request { from: NodeId, request: Box<RelayedRequest> },
    /// Response head; the body is empty unless it is complete.
    ResponseHead { status: StatusCode, headers: HeaderMap, framing: ResponseFraming, body: Bytes },
    /// Next part of the body; `number` counts from 0.
    ResponseChunk { from: NodeId, number: u64, body: Bytes },
    /// End of the response body.
    ResponseEnd,
    /// The receiver does not own the session; the request was not carried out.
    NotOwner,
    /// The client disconnected; the owner aborts the request.
    Cancel { from: NodeId },
    /// Flow control: the client has read this many bytes so far, so that a later update makes up for a lost one.
    WindowUpdate { from: NodeId, bytes: u64 },
    /// Asks whether these relays are still being served.
    StatusQuery { from: NodeId, relays: Vec<u64> },
    /// Reply to a status query: the relay is not being served. A node also sends it to itself for a relay to a lost
    /// node, so that it is handled after everything that node has sent.
    UnknownRelay,
    /// The relays that the sender serves for the receiver, with the parts of the response (head and chunks) sent so far.
    /// The receiver cancels those that nobody waits for, fails those of which a part was lost, and repeats the window
    /// updates of the others.
    ActiveRelays { from: NodeId, relays: Vec<(u64, u64)> },
    /// The sender is leaving the cluster.
    NodeLeaving { from: NodeId },
}

/// How the body of a relayed response is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResponseFraming {
    /// Whole, with the head.
    Complete,
    /// In chunks, which this node sends and the receiver joins: a part of the body is of no use to the client.
    Pieces(NodeId),
    /// In chunks, which this node sends and the client gets as they come.
    Stream(NodeId),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct RelayHeader {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    verb: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    uri: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    identity: Option<Arc<Identity>>,
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
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pieces: bool,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    relays: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    parts: Vec<u64>,
}

const KIND_REQUEST: u8 = 1;
const KIND_RESPONSE_HEAD: u8 = 2;
const KIND_RESPONSE_CHUNK: u8 = 3;
const KIND_RESPONSE_END: u8 = 4;
const KIND_NOT_OWNER: u8 = 5;
const KIND_CANCEL: u8 = 6;
const KIND_WINDOW_UPDATE: u8 = 7;
const KIND_STATUS_QUERY: u8 = 8;
const KIND_UNKNOWN_RELAY: u8 = 9;
const KIND_NODE_LEAVING: u8 = 10;
const KIND_ACTIVE_RELAYS: u8 = 11;

impl RelayMessage {
    pub(super) fn encode(&self, relay: u64) -> Bytes {
        let mut header = RelayHeader::default();
        let (kind, body) = match self {
            Self::Request { from, request } => {
                header.from = Some(from.to_string());
                header.verb = Some(request.method.to_string());
                header.uri = Some(request.uri.to_string());
                header.identity = Some(Arc::clone(&request.identity));
                header.peer = request.peer;
                header.headers = encode_headers(&request.headers);
                (KIND_REQUEST, request.body.clone())
            }
            Self::ResponseHead { status, headers, framing, body } => {
                header.status = Some(status.as_u16());
                header.headers = encode_headers(headers);
                match framing {
                    ResponseFraming::Complete => header.whole = true,
                    ResponseFraming::Pieces(from) => (header.pieces, header.from) = (true, Some(from.to_string())),
                    ResponseFraming::Stream(from) => header.from = Some(from.to_string()),
                }
                (KIND_RESPONSE_HEAD, body.clone())
            }
            Self::ResponseChunk { from, number, body } => {
                header.from = Some(from.to_string());
                header.number = Some(*number);
                (KIND_RESPONSE_CHUNK, body.clone())
            }
            Self::ResponseEnd => (KIND_RESPONSE_END, Bytes::new()),
            Self::NotOwner => (KIND_NOT_OWNER, Bytes::new()),
            Self::Cancel { from } => {
                header.from = Some(from.to_string());
                (KIND_CANCEL, Bytes::new())
            }
            Self::WindowUpdate { from, bytes } => {
                header.from = Some(from.to_string());
                header.number = Some(*bytes);
                (KIND_WINDOW_UPDATE, Bytes::new())
            }
            Self::StatusQuery { from, relays } => {
                header.from = Some(from.to_string());
                header.relays.clone_from(relays);
                (KIND_STATUS_QUERY, Bytes::new())
            }
            Self::UnknownRelay => (KIND_UNKNOWN_RELAY, Bytes::new()),
            Self::ActiveRelays { from, relays } => {
                header.from = Some(from.to_string());
                (header.relays, header.parts) = relays.iter().copied().unzip();
                (KIND_ACTIVE_RELAYS, Bytes::new())
            }
            Self::NodeLeaving { from } => {
                header.from = Some(from.to_string());
                (KIND_NODE_LEAVING, Bytes::new())
            }
        };
        let header = serde_json::to_vec(&header).unwrap_or_default();
        let mut buffer = BytesMut::with_capacity(13 + header.len() + body.len());
        buffer.put_u8(kind);
        buffer.put_u64(relay);
        buffer.put_u32(u32::try_from(header.len()).unwrap_or(u32::MAX));
        buffer.put_slice(&header);
        buffer.put_slice(&body);
        buffer.freeze()
    }

    /// How many parts of a response there are up to this one: its head, then its chunks.
    pub(super) fn response_parts(&self) -> u64 {
        match self {
            Self::ResponseHead { .. } => 1,
            Self::ResponseChunk { number, .. } => number.saturating_add(2),
            _ => 0,
        }
    }

    /// The sender of a part of a response that is not the last one.
    pub(super) fn unfinished_sender(self) -> Option<NodeId> {
        match self {
            Self::ResponseHead { framing: ResponseFraming::Pieces(from) | ResponseFraming::Stream(from), .. }
            | Self::ResponseChunk { from, .. } => Some(from),
            _ => None,
        }
    }

    /// Decodes a message and its relay id; `None` when malformed.
    pub(super) fn decode(bytes: &Bytes) -> Option<(u64, Self)> {
        let relay = u64::from_be_bytes(bytes.get(1..9)?.try_into().ok()?);
        let length = usize::try_from(u32::from_be_bytes(bytes.get(9..13)?.try_into().ok()?)).ok()?;
        let body = 13_usize.checked_add(length).filter(|end| *end <= bytes.len())?;
        let header: RelayHeader = serde_json::from_slice(&bytes[13..body]).ok()?;
        let body = bytes.slice(body..);
        let from = || header.from.as_deref().and_then(NodeId::parse);
        let message = match bytes[0] {
            KIND_REQUEST => Self::Request {
                from: from()?,
                request: Box::new(RelayedRequest {
                    method: Method::from_bytes(header.verb.as_deref()?.as_bytes()).ok()?,
                    uri: header.uri.as_deref()?.parse().ok()?,
                    headers: decode_headers(&header.headers)?,
                    identity: header.identity.clone()?,
                    peer: header.peer,
                    body,
                }),
            },
            KIND_RESPONSE_HEAD => Self::ResponseHead {
                status: StatusCode::from_u16(header.status?).ok()?,
                headers: decode_headers(&header.headers)?,
                framing: match (header.whole, header.pieces) {
                    (true, _) => ResponseFraming::Complete,
                    (false, true) => ResponseFraming::Pieces(from()?),
                    (false, false) => ResponseFraming::Stream(from()?),
                },
                body,
            },
            KIND_RESPONSE_CHUNK => Self::ResponseChunk { from: from()?, number: header.number?, body },
            KIND_RESPONSE_END => Self::ResponseEnd,
            KIND_NOT_OWNER => Self::NotOwner,
            KIND_CANCEL => Self::Cancel { from: from()? },
            KIND_WINDOW_UPDATE => Self::WindowUpdate { from: from()?, bytes: header.number? },
            KIND_STATUS_QUERY => Self::StatusQuery { from: from()?, relays: header.relays.clone() },
            KIND_UNKNOWN_RELAY => Self::UnknownRelay,
            KIND_ACTIVE_RELAYS => {
                let relays = header.relays.iter().copied().zip(header.parts.iter().copied());
                Self::ActiveRelays { from: from()?, relays: relays.collect() }
            }
            KIND_NODE_LEAVING => Self::NodeLeaving { from: from()? },
            _ => return None,
        };
        Some((relay, message))
    }
}

/// Header values as strings. Non-ASCII values are mapped byte by byte to U+0000..=U+00FF, so that any bytes survive
/// JSON.
fn encode_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| match value.to_str() {
        Ok(plain) => plain.to_owned(),
        Err(_) => value.as_bytes().iter().copied().map(char::from).collect(),
    };
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}

fn decode_headers(headers: &[(String, String)]) -> Option<HeaderMap> {
    let mut map = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let value = match value.is_ascii() {
            true => HeaderValue::from_str(value).ok()?,
            false => {
                let bytes = value.chars().map(|character| u8::try_from(character).ok()).collect::<Option<Vec<u8>>>()?;
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
    fn messages_round_trip() {
        let mut headers = HeaderMap::new();
        headers.append("accept", HeaderValue::from_static("a"));
        headers.append("accept", HeaderValue::from_bytes(b"\xff").unwrap());
        let request = RelayedRequest {
            method: Method::POST,
            uri: "/mcp/a?b=c".parse().unwrap(),
            headers: headers.clone(),
            identity: Identity::anonymous().into(),
            peer: "127.0.0.1:5".parse().ok(),
            body: Bytes::from_static(b"\0{}"),
        };
        let from = NodeId::generate("a/b");
        for message in [
            RelayMessage::Request { from: from.clone(), request: Box::new(request) },
            RelayMessage::ResponseHead {
                status: StatusCode::ACCEPTED,
                headers: headers.clone(),
                framing: ResponseFraming::Complete,
                body: Bytes::from_static(b"x"),
            },
            RelayMessage::ResponseHead {
                status: StatusCode::OK,
                headers: headers.clone(),
                framing: ResponseFraming::Pieces(from.clone()),
                body: Bytes::new(),
            },
            RelayMessage::ResponseHead {
                status: StatusCode::OK,
                headers,
                framing: ResponseFraming::Stream(from.clone()),
                body: Bytes::new(),
            },
            RelayMessage::ResponseChunk { from: from.clone(), number: 7, body: Bytes::from_static(b"\xff") },
            RelayMessage::ResponseEnd,
            RelayMessage::NotOwner,
            RelayMessage::Cancel { from: from.clone() },
            RelayMessage::WindowUpdate { from: from.clone(), bytes: u64::MAX },
            RelayMessage::StatusQuery { from: from.clone(), relays: vec![1, u64::MAX] },
            RelayMessage::ActiveRelays { from: from.clone(), relays: vec![(1, 0), (u64::MAX, 2)] },
            RelayMessage::NodeLeaving { from },
            RelayMessage::UnknownRelay,
        ] {
            let (relay, read) = RelayMessage::decode(&message.encode(u64::MAX)).unwrap();
            assert_eq!((relay, format!("{read:?}")), (u64::MAX, format!("{message:?}")));
        }
    }

    #[test]
    fn truncated_and_malformed_messages_are_refused() {
        let complete =
            RelayMessage::ResponseChunk { from: NodeId::generate("a"), number: 7, body: Bytes::new() }.encode(1);
        for end in 0..complete.len() {
            assert!(RelayMessage::decode(&complete.slice(..end)).is_none());
        }
        assert!(RelayMessage::decode(&Bytes::from_static(&[1; 64])).is_none());
    }
}
