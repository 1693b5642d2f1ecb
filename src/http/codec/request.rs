//! Server role: parses request heads and encodes response heads and chunks.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode, Uri, header};
use httparse::{ParserConfig, Status};

use super::{BodyDecoder, FramingHeaders, ParseError, put_content_length, put_header};

/// Parsed head of a request.
#[derive(Debug)]
pub struct RequestHead {
    /// The HTTP method.
    pub verb: Verb,
    /// The request target, in origin form or absolute form.
    pub uri: Uri,
    /// All header fields in the order received.
    pub headers: HeaderMap,
    /// Framing of the body that follows the head.
    pub framing: BodyDecoder,
    /// Whether the client allows another request on this connection.
    pub keep_alive: bool,
    /// Whether the version is HTTP/1.1; otherwise it is HTTP/1.0.
    pub is_http11: bool,
    /// The client sent `Expect: 100-continue` and holds the body back until the interim response.
    pub expects_continue: bool,
}

/// Limits of a request head, and names that are frequent in it.
#[derive(Debug, Clone, Copy)]
pub struct HeadRules {
    /// Limit of header fields.
    pub max_headers: usize,
    /// Limit in bytes, checked while the head is incomplete.
    pub max_bytes: usize,
    /// Frequent header names that `http` has no constant for: cloning a static one does not allocate.
    pub frequent_names: &'static [HeaderName],
}

/// Why a request head was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// The head exceeds the limit of header fields or of bytes.
    TooLarge,
    /// The head violates HTTP/1.1, or its framing is ambiguous.
    Malformed(ParseError),
}

/// Head of a response to encode.
#[derive(Debug)]
pub struct ResponseEncoder<'a> {
    /// The status code; the reason phrase is the canonical one.
    pub status: StatusCode,
    /// All header fields but those of framing, persistence and `Date`, which the encoder writes.
    pub headers: &'a HeaderMap,
    /// Framing of the body that follows.
    pub body_length: BodyLength,
    /// Whether the connection stays open for another request.
    pub keep_alive: bool,
    /// Whether the request was HTTP/1.1; HTTP/1.0 clients need an explicit `keep-alive`.
    pub is_http11: bool,
    /// Value of the `Date` header.
    pub date: &'a str,
}

/// Framing of a response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLength {
    /// `Content-Length` with this many bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// The body ends when the connection is closed; for HTTP/1.0 clients.
    UntilClose,
}

/// Parsed request head as ranges of the buffer, so that the buffer can be split before the values are sliced from it.
struct RawRequestHead {
    end: usize,
    verb: Verb,
    is_http11: bool,
    target: Range<usize>,
    fields: Vec<(Range<usize>, Range<usize>)>,
}

/// Up to this many header fields are parsed on the stack; a higher limit allocates.
const STACK_HEADERS: usize = 100;
/// Status line of the most frequent response.
const OK_STATUS_LINE: &[u8] = b"HTTP/1.1 200 OK\r\n";

// === impl RequestHead ===

impl RequestHead {
    /// Consumes a request head from the front of `buffer`; `None` while the head is incomplete.
    ///
    /// # Errors
    /// When the head is malformed or exceeds a limit.
    pub fn parse(buffer: &mut BytesMut, rules: &HeadRules) -> Result<Option<Self>, RequestError> {
        let max_headers = rules.max_headers;
        let head = match max_headers <= STACK_HEADERS {
            true => RawRequestHead::parse(buffer, &mut [const { MaybeUninit::uninit() }; STACK_HEADERS][..max_headers]),
            false => RawRequestHead::parse(buffer, &mut vec![MaybeUninit::uninit(); max_headers]),
        };
        match head? {
            Some(head) => {
                let text = buffer.split_to(head.end).freeze();
                Self::new(&text, head, rules.frequent_names).map(Some).map_err(RequestError::Malformed)
            }
            None if buffer.len() > rules.max_bytes => Err(RequestError::TooLarge),
            None => Ok(None),
        }
    }

    fn new(text: &Bytes, head: RawRequestHead, frequent_names: &[HeaderName]) -> Result<Self, ParseError> {
        let RawRequestHead { verb, is_http11, target, fields, .. } = head;
        let uri = Uri::from_maybe_shared(text.slice(target)).map_err(|_| ParseError("the target is no address"))?;
        let mut headers = HeaderMap::with_capacity(fields.len() + 1);
        let mut framing_headers = FramingHeaders::new(is_http11);
        let mut expects_continue = false;
        for (name, value) in fields {
            framing_headers.observe(&text[name.clone()], &text[value.clone()])?;
            let name = header_name(&text[name], frequent_names)?;
            expects_continue |= name == header::EXPECT && text[value.clone()].eq_ignore_ascii_case(b"100-continue");
            let value = HeaderValue::from_maybe_shared(text.slice(value));
            headers.append(name, value.map_err(|_| ParseError("a header has a value that none can have"))?);
        }
        // Both Content-Length and Transfer-Encoding: an intermediary could see another end of the body (request smuggling).
        let framing = match (framing_headers.has_transfer_encoding, framing_headers.content_length) {
            (false, length) => BodyDecoder::Length(length.unwrap_or(0)),
            (true, None) if framing_headers.is_chunked && is_http11 => BodyDecoder::CHUNKED,
            (true, _) => return Err(ParseError("it is not clear where the body ends")),
        };
        Ok(Self {
            verb,
            uri,
            headers,
            framing,
            keep_alive: framing_headers.keep_alive,
            is_http11,
            expects_continue: expects_continue && is_http11,
        })
    }
}

fn header_name(name: &[u8], frequent_names: &[HeaderName]) -> Result<HeaderName, ParseError> {
    match frequent_names.iter().find(|frequent| frequent.as_str().as_bytes().eq_ignore_ascii_case(name)) {
        Some(frequent) => Ok(frequent.clone()),
        None => HeaderName::from_bytes(name).map_err(|_| ParseError("a header has a name that none can have")),
    }
}

impl RawRequestHead {
    fn parse<'t>(
        text: &'t [u8],
        headers: &mut [MaybeUninit<httparse::Header<'t>>],
    ) -> Result<Option<Self>, RequestError> {
        let mut request = httparse::Request::new(&mut []);
        let status = ParserConfig::default().parse_request_with_uninit_headers(&mut request, text, headers);
        let end = match status {
            Ok(Status::Complete(end)) => end,
            Ok(Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => return Err(RequestError::TooLarge),
            Err(_) => return Err(RequestError::Malformed(ParseError("the head is none of HTTP/1.1"))),
        };
        let span = |part: &[u8]| {
            let start = part.as_ptr().addr() - text.as_ptr().addr();
            start..start + part.len()
        };
        let verb = request.method.and_then(|verb| Verb::from_bytes(verb.as_bytes()).ok());
        let (Some(verb), Some(target)) = (verb, request.path) else {
            return Err(RequestError::Malformed(ParseError("there is no method")));
        };
        Ok(Some(Self {
            end,
            verb,
            is_http11: request.version == Some(1),
            target: span(target.as_bytes()),
            fields: request.headers.iter().map(|field| (span(field.name.as_bytes()), span(field.value))).collect(),
        }))
    }
}

// === impl ResponseEncoder ===

impl ResponseEncoder<'_> {
    /// Appends the encoded head, with the empty line that ends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if self.status == StatusCode::OK {
            out.extend_from_slice(OK_STATUS_LINE);
        } else {
            let reason = self.status.canonical_reason().unwrap_or_default();
            for part in ["HTTP/1.1 ", self.status.as_str(), " ", reason, "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
        for (name, value) in self.headers {
            put_header(out, name.as_str(), value.as_bytes());
        }
        match self.body_length {
            BodyLength::Length(_) if self.status == StatusCode::NO_CONTENT => {}
            BodyLength::Length(length) => put_content_length(out, length),
            BodyLength::Chunked => put_header(out, "transfer-encoding", b"chunked"),
            BodyLength::UntilClose => {}
        }
        match (self.keep_alive, self.is_http11) {
            (true, true) => {}
            (true, false) => put_header(out, "connection", b"keep-alive"),
            (false, _) => put_header(out, "connection", b"close"),
        }
        put_header(out, "date", self.date.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends one chunk. `data` must not be empty: a zero-length chunk ends the body.
pub fn put_chunk(out: &mut Vec<u8>, data: &[u8]) {
    let mut size = [0; 18];
    let mut start = size.len() - 2;
    size[start..].copy_from_slice(b"\r\n");
    let mut remaining = data.len();
    while remaining > 0 {
        start -= 1;
        size[start] = b"0123456789abcdef"[remaining & 15];
        remaining >>= 4;
    }
    for part in [&size[start..], data, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// The zero-length chunk that ends a body, without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::super::Decoded;
    use super::*;
    use proptest::prelude::*;

    static SESSION_NAME: [HeaderName; 1] = [HeaderName::from_static("x-session")];

    fn rules(max_headers: usize, max_bytes: usize) -> HeadRules {
        HeadRules { max_headers, max_bytes, frequent_names: &SESSION_NAME }
    }

    fn parse(text: &str) -> Result<Option<RequestHead>, RequestError> {
        RequestHead::parse(&mut BytesMut::from(text), &rules(10, 1000))
    }

    #[test]
    fn request_head_is_parsed_once_it_is_complete() {
        let text = "POST /mcp/a?b=c HTTP/1.1\r\nHost: h\r\nX-Session: s\r\nX: 1\r\nx: 2\r\ncontent-length: 2\r\n\r\nhi";
        for end in 0..text.len() - 2 {
            assert!(parse(&text[..end]).unwrap().is_none(), "{end}");
        }
        let mut buffer = BytesMut::from(text);
        let head = RequestHead::parse(&mut buffer, &rules(10, 1000)).unwrap().unwrap();
        assert_eq!(buffer, "hi");
        assert_eq!((head.verb, head.uri.path(), head.uri.query()), (Verb::POST, "/mcp/a", Some("b=c")));
        assert_eq!(head.headers["x-session"], "s");
        assert_eq!(head.headers.get_all("x").iter().count(), 2);
        assert_eq!(
            (head.framing, head.keep_alive, head.is_http11, head.expects_continue),
            (BodyDecoder::Length(2), true, true, false)
        );
    }

    #[test]
    fn framing_persistence_and_expect_follow_from_the_head() {
        for (lines, framing, keep_alive, expects_continue) in [
            ("POST / HTTP/1.1\r\n", BodyDecoder::Length(0), true, false),
            ("POST / HTTP/1.1\r\nConnection: close\r\n", BodyDecoder::Length(0), false, false),
            ("POST / HTTP/1.0\r\ncontent-length: 3\r\n", BodyDecoder::Length(3), false, false),
            ("POST / HTTP/1.0\r\nconnection: keep-alive\r\n", BodyDecoder::Length(0), true, false),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n", BodyDecoder::CHUNKED, true, false),
            ("POST / HTTP/1.1\r\nexpect: 100-Continue\r\ncontent-length: 3\r\n", BodyDecoder::Length(3), true, true),
            ("POST / HTTP/1.0\r\nexpect: 100-continue\r\n", BodyDecoder::Length(0), false, false),
            ("GET http://h/mcp HTTP/1.1\r\n", BodyDecoder::Length(0), true, false),
        ] {
            let head = parse(&format!("{lines}\r\n")).unwrap().unwrap();
            assert_eq!(
                (head.framing, head.keep_alive, head.expects_continue),
                (framing, keep_alive, expects_continue),
                "{lines}"
            );
        }
    }

    /// Ambiguous framing above all: Content-Length with Transfer-Encoding, obsolete folding, space before the colon.
    #[test]
    fn malformed_and_ambiguous_request_heads_are_refused() {
        for text in [
            "POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked, gzip\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: xchunked\r\n\r\n",
            "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: -3\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length : 3\r\n\r\n",
            "POST / HTTP/1.1\r\nx: y\r\n z\r\n\r\n",
            "POST / HTTP/2.0\r\n\r\n",
            "POST  HTTP/1.1\r\n\r\n",
            "\u{16}\u{3}\u{1}",
        ] {
            assert!(matches!(parse(text), Err(RequestError::Malformed(_))), "{text}");
        }
        let many = format!("POST / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(11));
        let long = format!("POST / HTTP/1.1\r\nx: {}", "y".repeat(1000));
        assert_eq!([parse(&many).unwrap_err(), parse(&long).unwrap_err()], [RequestError::TooLarge; 2]);
        let within_limit = format!("POST / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(150));
        assert!(RequestHead::parse(&mut BytesMut::from(&within_limit[..]), &rules(150, 10_000)).unwrap().is_some());
    }

    #[test]
    fn response_heads_are_encoded() {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("a/b"))]);
        let encoded = |status: StatusCode, body_length, keep_alive, is_http11| {
            let mut out = Vec::new();
            ResponseEncoder { status, headers: &headers, body_length, keep_alive, is_http11, date: "now" }
                .encode(&mut out);
            String::from_utf8(out).unwrap()
        };
        for (status, body_length, keep_alive, is_http11, expected) in [
            (200, BodyLength::Length(12), true, true, "200 OK\r\ncontent-type: a/b\r\ncontent-length: 12\r\n"),
            (202, BodyLength::Length(0), true, true, "202 Accepted\r\ncontent-type: a/b\r\ncontent-length: 0\r\n"),
            (204, BodyLength::Length(0), true, true, "204 No Content\r\ncontent-type: a/b\r\n"),
            (200, BodyLength::Chunked, true, true, "200 OK\r\ncontent-type: a/b\r\ntransfer-encoding: chunked\r\n"),
            (200, BodyLength::UntilClose, false, false, "200 OK\r\ncontent-type: a/b\r\nconnection: close\r\n"),
            (
                200,
                BodyLength::Length(1),
                true,
                false,
                "200 OK\r\ncontent-type: a/b\r\ncontent-length: 1\r\nconnection: keep-alive\r\n",
            ),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(
                encoded(status, body_length, keep_alive, is_http11),
                format!("HTTP/1.1 {expected}date: now\r\n\r\n")
            );
        }
    }

    proptest! {
        #[test]
        fn encoded_chunks_decode_to_the_same_data(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..6)) {
            let mut out = Vec::new();
            chunks.iter().for_each(|chunk| put_chunk(&mut out, chunk));
            out.extend_from_slice(LAST_CHUNK);
            let (mut buffer, mut decoder, mut data) = (BytesMut::from(&out[..]), BodyDecoder::CHUNKED, Vec::new());
            while let Decoded::Data(part) = decoder.decode(&mut buffer).unwrap() {
                data.extend_from_slice(&part);
            }
            prop_assert!(decoder.is_done() && buffer.is_empty());
            prop_assert_eq!(data, chunks.concat());
        }

        #[test]
        fn random_input_never_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = RequestHead::parse(&mut BytesMut::from(&text[..]), &rules(10, 100));
        }
    }
}
