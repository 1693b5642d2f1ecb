//! Client role: encodes request heads and parses response heads.

use std::mem::MaybeUninit;

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode, Version};
use httparse::{ParserConfig, Status};

use super::header_fields::{FieldSpan, MAX_NAME_BYTES};
use super::{
    BodyDecoder, FramingHeaders, HeaderFields, ParseError, TransferEncoding, has_strict_line_ends, put_content_length,
    put_header, version,
};

/// Head of a request, encoded as its fields are added.
#[derive(Debug, Clone)]
pub struct RequestEncoder(Vec<u8>);

/// Parsed head of a response.
#[derive(Debug)]
pub struct ResponseHead {
    status: StatusCode,
    fields: HeaderFields,
    keep_alive: bool,
}

/// Limit of header fields in a response head.
const MAX_HEADERS: usize = 100;
/// Limit of a response head in bytes.
pub const MAX_RESPONSE_HEAD_BYTES: usize = 128 << 10;
/// Initial capacity for a request head without its body.
const HEAD_CAPACITY: usize = 512;

// === impl RequestEncoder ===

impl RequestEncoder {
    /// Starts a head with its request line, with capacity for a body of `body_capacity` bytes to be appended.
    pub fn new(verb: &Verb, target: &str, body_capacity: usize) -> Self {
        let mut head = Vec::with_capacity(HEAD_CAPACITY + body_capacity);
        for part in [verb.as_str(), " ", target, " HTTP/1.1\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        Self(head)
    }

    /// Appends a header field.
    pub fn put(&mut self, name: &HeaderName, value: &HeaderValue) {
        put_header(&mut self.0, name.as_str(), value.as_bytes());
    }

    /// Appends a header field with a constant value, which is not checked.
    pub fn put_static(&mut self, name: &HeaderName, value: &'static str) {
        put_header(&mut self.0, name.as_str(), value.as_bytes());
    }

    /// Appends a header field unless the value holds other than visible ASCII, space or tab: a line break would inject a
    /// field.
    pub fn put_text(&mut self, name: &HeaderName, value: &str) {
        if value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
            put_header(&mut self.0, name.as_str(), value.as_bytes());
        }
    }

    /// The head so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Ends the head, with `Content-Length` where a body follows.
    pub fn finish(mut self, body: Option<usize>) -> Vec<u8> {
        if let Some(length) = body {
            put_content_length(&mut self.0, length as u64);
        }
        self.0.extend_from_slice(b"\r\n");
        self.0
    }
}

// === impl ResponseHead ===

impl ResponseHead {
    /// Consumes a response head from the front of `buffer` and returns it with the decoder for its body; `None` while
    /// the head is incomplete. `request_verb` is the method of the request, because a response to HEAD has no body.
    ///
    /// # Errors
    /// When the head is malformed, its framing is ambiguous, or it exceeds a limit.
    pub fn parse(buffer: &mut BytesMut, request_verb: &Verb) -> Result<Option<(Self, BodyDecoder)>, ParseError> {
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut []);
        let text = &buffer[..];
        let config = ParserConfig::default();
        let status = config.parse_response_with_uninit_headers(&mut response, text, &mut headers);
        let end = match status {
            Ok(Status::Complete(end)) if end <= MAX_RESPONSE_HEAD_BYTES => end,
            Ok(Status::Partial) if text.len() <= MAX_RESPONSE_HEAD_BYTES => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                return Err(ParseError("the response head is too long"));
            }
            Err(_) => return Err(ParseError("the response head is malformed")),
        };
        let spans: Vec<FieldSpan> = response.headers.iter().map(|field| FieldSpan::new(text, field)).collect();
        if !has_strict_line_ends(&text[..end], &spans) {
            return Err(ParseError("a line of the response head does not end with CRLF"));
        }
        if response.headers.iter().any(|field| field.name.len() > MAX_NAME_BYTES) {
            return Err(ParseError("a header name is too long"));
        }
        let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or(ParseError("the status code is invalid"))?;
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(ParseError("the server switches to a protocol that was not asked for"));
        }
        let version = version(response.version);
        let fields = HeaderFields::new(buffer.split_to(end), spans);
        let mut head = Self { status, fields, keep_alive: false };
        let decoder = head.read_framing(request_verb, version)?;
        Ok(Some((head, decoder)))
    }

    fn read_framing(&mut self, request_verb: &Verb, version: Version) -> Result<BodyDecoder, ParseError> {
        let mut framing_headers = FramingHeaders::new(version);
        for (name, value) in self.fields.iter() {
            framing_headers.observe(name, value)?;
        }
        let has_transfer_encoding = framing_headers.transfer_encoding != TransferEncoding::Absent;
        if has_transfer_encoding && framing_headers.content_length.is_some() {
            return Err(ParseError("it is not clear where the body ends"));
        }
        if has_transfer_encoding && version != Version::HTTP_11 {
            return Err(ParseError("HTTP/1.0 has no transfer codings"));
        }
        let has_no_body = *request_verb == Verb::HEAD || matches!(self.status.as_u16(), 100..=199 | 204 | 304);
        let decoder = match (framing_headers.transfer_encoding, framing_headers.content_length) {
            (TransferEncoding::Unsupported, _) => return Err(ParseError("the transfer coding is not `chunked`")),
            _ if has_no_body => BodyDecoder::Length(0),
            (TransferEncoding::Chunked, _) => BodyDecoder::CHUNKED,
            (TransferEncoding::Absent, Some(length)) => BodyDecoder::Length(length),
            (TransferEncoding::Absent, None) => BodyDecoder::UntilClose,
        };
        self.keep_alive = framing_headers.keep_alive && decoder != BodyDecoder::UntilClose;
        Ok(decoder)
    }

    /// The status code.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Whether the connection can be reused once the body was read.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether this is a 1xx response, after which the final response follows.
    pub fn is_interim(&self) -> bool {
        self.status.is_informational()
    }

    /// The first value of a header field.
    pub fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        self.fields.get(name)
    }

    /// All header fields as lines.
    pub fn encode_fields(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_CAPACITY);
        for (name, value) in self.fields.iter() {
            for part in [name, b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
        out
    }

    /// All header fields; those that are not valid in `http` are left out.
    pub fn headers(&self) -> HeaderMap {
        self.fields.to_map()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header;
    use proptest::prelude::*;

    fn head(text: &str) -> Result<Option<(ResponseHead, BodyDecoder)>, ParseError> {
        ResponseHead::parse(&mut BytesMut::from(text), &Verb::POST)
    }

    #[test]
    fn request_heads_are_encoded_and_unsafe_values_left_out() {
        let mut out = RequestEncoder::new(&Verb::POST, "/a?x=1", 0);
        out.put(&header::HOST, &HeaderValue::from_static("h:1"));
        out.put_static(&header::ACCEPT, "a");
        for value in ["fine", "a\r\nevil: yes", "é", "a\0"] {
            out.put_text(&HeaderName::from_static("x-name"), value);
        }
        let text = String::from_utf8(out.finish(Some(1_203))).unwrap();
        assert_eq!(
            text,
            "POST /a?x=1 HTTP/1.1\r\nhost: h:1\r\naccept: a\r\nx-name: fine\r\ncontent-length: 1203\r\n\r\n"
        );
        let bare = RequestEncoder::new(&Verb::GET, "/", 0).finish(None);
        assert_eq!(bare, b"GET / HTTP/1.1\r\n\r\n");
    }

    #[test]
    fn body_framing_and_persistence_follow_from_the_head() {
        for (lines, decoder, keep_alive) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", BodyDecoder::Length(5), true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: Close\r\n", BodyDecoder::Length(5), false),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close, keep-alive\r\n",
                BodyDecoder::Length(5),
                false,
            ),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n", BodyDecoder::Length(5), false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\nconnection: x, Keep-Alive\r\n", BodyDecoder::Length(5), true),
            ("HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n", BodyDecoder::CHUNKED, true),
            ("HTTP/1.1 200 OK\r\n", BodyDecoder::UntilClose, false),
            ("HTTP/1.1 204 No Content\r\n", BodyDecoder::Length(0), true),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n", BodyDecoder::Length(0), true),
            ("HTTP/1.1 100 Continue\r\n", BodyDecoder::Length(0), true),
        ] {
            let (head, found) = head(&format!("{lines}\r\nrest")).unwrap().unwrap();
            assert_eq!((found, head.keep_alive()), (decoder, keep_alive), "{lines}");
        }
        let mut buffer = BytesMut::from("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n");
        let (_, decoder) = ResponseHead::parse(&mut buffer, &Verb::HEAD).unwrap().unwrap();
        assert_eq!(decoder, BodyDecoder::Length(0));
    }

    #[test]
    fn response_head_is_parsed_once_it_is_complete() {
        let text = "HTTP/1.1 404 Not Found\r\nX-Session: a\r\nx: 1\r\nX: 2\r\ncontent-length: 2\r\n\r\nhi";
        for end in 0..text.len() - 2 {
            assert!(head(&text[..end]).unwrap().is_none(), "{end}");
        }
        let mut buffer = BytesMut::from(text);
        let (head, _) = ResponseHead::parse(&mut buffer, &Verb::POST).unwrap().unwrap();
        assert_eq!(buffer, "hi");
        assert_eq!(head.status(), StatusCode::NOT_FOUND);
        assert_eq!(head.get(&HeaderName::from_static("x-session")), Some(&b"a"[..]));
        assert_eq!(head.get(&header::LOCATION), None);
        assert_eq!(head.headers().get_all("x").iter().count(), 2);
    }

    #[test]
    fn malformed_response_heads_are_refused() {
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_RESPONSE_HEAD_BYTES));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(MAX_HEADERS + 1));
        for text in [
            "SSH-2.0-OpenSSH\r\n",
            "HTTP/2.0 200 OK\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 099 No\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9223372036854775808\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
            "HTTP/1.1 200 OK\ncontent-length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\n",
            "HTTP/1.1 200 OK\r\nx: a\rb: c\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno header\r\n\r\n",
            &format!("HTTP/1.1 200 OK\r\n{}: y\r\n\r\n", "x".repeat(MAX_NAME_BYTES + 1)),
            &endless,
            &many,
        ] {
            assert!(head(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn random_input_never_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ResponseHead::parse(&mut BytesMut::from(&text[..]), &Verb::POST);
        }
    }
}
