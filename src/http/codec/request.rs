//! Server role: parses request heads and encodes response heads and chunks.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use http::header::HOST;
use http::{HeaderMap, Method as Verb, StatusCode, Uri, Version};
use httparse::{ParserConfig, Status};
use memchr::memmem::Finder;

use super::header_fields::{FieldSpan, MAX_NAME_BYTES};
use super::{
    BodyDecoder, FramingHeaders, HeaderFields, ParseError, TransferEncoding, has_strict_line_ends, put_content_length,
    put_header, version,
};

/// Parsed head of a request.
#[derive(Debug)]
pub struct RequestHead {
    /// The HTTP method.
    pub verb: Verb,
    /// The version of HTTP.
    pub version: Version,
    /// The request target. In absolute form its authority goes before `Host`.
    pub uri: Uri,
    /// All header fields in the order received.
    pub headers: HeaderFields,
}

/// What the head of a request says about its body and its connection.
#[derive(Debug)]
pub struct RequestFraming {
    /// Framing of the body that follows the head.
    pub body: BodyDecoder,
    /// Whether the client allows another request on this connection.
    pub keep_alive: bool,
    /// Whether the version is HTTP/1.1; otherwise it is HTTP/1.0.
    pub is_http11: bool,
    /// The client sent `Expect: 100-continue` and holds the body back until the interim response.
    pub expects_continue: bool,
}

/// Limits of a request head.
#[derive(Debug, Clone, Copy)]
pub struct HeadRules {
    /// Limit of header fields, of which no more than 1,000 are accepted whatever is set.
    pub max_headers: usize,
    /// Limit in bytes.
    pub max_bytes: usize,
}

/// Why a request head was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// The head exceeds the limit of header fields or of bytes.
    TooLarge,
    /// A `Transfer-Encoding` other than exactly `chunked`.
    UnsupportedTransferEncoding,
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

/// Up to this many header fields are parsed on the stack; a higher limit allocates.
const STACK_HEADERS: usize = 100;
/// Upper bound of [`HeadRules::max_headers`], because space for that many is allocated for each head.
const MAX_HEADERS: usize = 1_000;
/// The blank line that ends a head, with the end of the line before it.
static HEAD_END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));
const NOT_HTTP: ParseError = ParseError("the head is none of HTTP/1.1");
const BARE_LINE_FEED: ParseError = ParseError("a line of the head does not end with CRLF");

/// The bytes of a `Host`: those of a host name or address, escapes, and the colon before the port.
static IS_HOST_BYTE: [bool; 256] = {
    let (mut is_host_byte, mut byte) = ([false; 256], 0);
    while byte < 128 {
        is_host_byte[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut others: &[u8] = b"-._~%!$&'()*+;=:[]";
    while let [first, rest @ ..] = others {
        is_host_byte[*first as usize] = true;
        others = rest;
    }
    is_host_byte
};

/// A head as its bytes say it, before it is taken out of them.
struct ParsedHead {
    verb: Verb,
    /// Where the request target stands in the text.
    target: Range<usize>,
    spans: Vec<FieldSpan>,
    framing_headers: FramingHeaders,
    expects_continue: bool,
}

/// Space for the parsed header fields of a head.
type FieldSpace<'t> = [MaybeUninit<httparse::Header<'t>>];

/// Status line of the most frequent response.
const OK_STATUS_LINE: &[u8] = b"HTTP/1.1 200 OK\r\n";

// === impl RequestHead ===

impl RequestHead {
    /// Consumes a request head from the front of `buffer`; `None` while the head is incomplete.
    ///
    /// # Errors
    /// When the head is malformed or exceeds a limit.
    pub fn parse(buffer: &mut BytesMut, rules: &HeadRules) -> Result<Option<(Self, RequestFraming)>, RequestError> {
        let Some(end) = find_head_end(buffer) else {
            // What can never become a head is refused before the rest of it has arrived.
            return match with_field_space(rules, |fields| read_head(buffer, fields).map(|head| head.is_some()))? {
                true => Err(BARE_LINE_FEED.into()),
                false if buffer.len() > rules.max_bytes => Err(RequestError::TooLarge),
                false => Ok(None),
            };
        };
        let text = buffer.split_to(end);
        let parsed = with_field_space(rules, |fields| {
            let (head, length) = read_head(&text, fields)?.ok_or(NOT_HTTP)?;
            ParsedHead::new(&text, length, &head, rules.max_bytes)
        })?;
        let ParsedHead { verb, target, spans, framing_headers, expects_continue } = parsed;
        let headers = HeaderFields::new(text, spans);
        let uri = parse_target(&verb, headers.text().slice(target))?;
        let is_http11 = framing_headers.version == Version::HTTP_11;
        let framing = RequestFraming {
            body: request_framing(&framing_headers)?,
            keep_alive: framing_headers.keep_alive,
            is_http11,
            expects_continue: expects_continue && is_http11,
        };
        Ok(Some((Self { verb, version: framing_headers.version, uri, headers }, framing)))
    }
}

/// The head of a request that hyper read, which leaves `Host` to its services.
impl TryFrom<http::request::Parts> for RequestHead {
    type Error = RequestError;

    fn try_from(parts: http::request::Parts) -> Result<Self, RequestError> {
        let mut host_count = 0;
        for value in parts.headers.get_all(HOST) {
            host_count += 1;
            check_host(value.as_bytes())?;
        }
        check_host_count(host_count, parts.version)?;
        Ok(Self { verb: parts.method, version: parts.version, uri: parts.uri, headers: (&parts.headers).into() })
    }
}

impl ParsedHead {
    /// Checks a head whose text ends after `length` bytes of `text`.
    fn new(
        text: &[u8],
        length: usize,
        head: &httparse::Request<'_, '_>,
        max_bytes: usize,
    ) -> Result<Self, RequestError> {
        let spans: Vec<FieldSpan> = head.headers.iter().map(|field| FieldSpan::new(text, field)).collect();
        if !has_strict_line_ends(&text[..length], &spans) {
            return Err(BARE_LINE_FEED.into());
        }
        // Also when it arrived at once: the verdict must not depend on how the head was split.
        if text.len() > max_bytes {
            return Err(RequestError::TooLarge);
        }
        let verb = head.method.and_then(|verb| Verb::from_bytes(verb.as_bytes()).ok());
        let (Some(verb), Some(target)) = (verb, head.path) else {
            return Err(ParseError("there is no method").into());
        };
        let mut framing_headers = FramingHeaders::new(version(head.version));
        let (mut expects_continue, mut host_count) = (false, 0);
        for field in head.headers.iter() {
            let (name, value) = (field.name.as_bytes(), field.value);
            framing_headers.observe(name, value)?;
            match name.len() {
                4 if name.eq_ignore_ascii_case(b"host") => {
                    host_count += 1;
                    check_host(value)?;
                }
                6 if name.eq_ignore_ascii_case(b"expect") => {
                    expects_continue |= value.eq_ignore_ascii_case(b"100-continue");
                }
                length if length > MAX_NAME_BYTES => return Err(ParseError("a header name is too long").into()),
                _ => {}
            }
        }
        check_host_count(host_count, framing_headers.version)?;
        let target_start = target.as_ptr().addr() - text.as_ptr().addr();
        Ok(Self { verb, target: target_start..target_start + target.len(), spans, framing_headers, expects_continue })
    }
}

/// The end of the head at the front of `buffer`: after its blank line. Line breaks before the head begin no request.
fn find_head_end(buffer: &[u8]) -> Option<usize> {
    let start = buffer.iter().position(|byte| !matches!(byte, b'\r' | b'\n'))?;
    HEAD_END.find(&buffer[start..]).map(|at| start + at + HEAD_END.needle().len())
}

/// Calls `read` with space for as many header fields as the rules allow.
fn with_field_space<'t, T>(rules: &HeadRules, read: impl FnOnce(&mut FieldSpace<'t>) -> T) -> T {
    match rules.max_headers.min(MAX_HEADERS) {
        max @ ..=STACK_HEADERS => read(&mut [const { MaybeUninit::uninit() }; STACK_HEADERS][..max]),
        max => read(&mut vec![MaybeUninit::uninit(); max]),
    }
}

/// Parses a head and returns it with its length; `None` while it is incomplete.
fn read_head<'h, 't>(
    text: &'t [u8],
    fields: &'h mut FieldSpace<'t>,
) -> Result<Option<(httparse::Request<'h, 't>, usize)>, RequestError> {
    let mut request = httparse::Request::new(&mut []);
    match ParserConfig::default().parse_request_with_uninit_headers(&mut request, text, fields) {
        Ok(Status::Complete(length)) => Ok(Some((request, length))),
        Ok(Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(RequestError::TooLarge),
        Err(_) => Err(NOT_HTTP.into()),
    }
}

/// Framing of a request body. With both Content-Length and Transfer-Encoding, or with the latter in HTTP/1.0, an
/// intermediary could see another end of the body (request smuggling).
fn request_framing(framing_headers: &FramingHeaders) -> Result<BodyDecoder, RequestError> {
    match (framing_headers.transfer_encoding, framing_headers.content_length) {
        (TransferEncoding::Absent, length) => Ok(BodyDecoder::Length(length.unwrap_or(0))),
        (_, Some(_)) => Err(ParseError("it is not clear where the body ends").into()),
        (_, None) if framing_headers.version != Version::HTTP_11 => {
            Err(ParseError("it is not clear where the body ends").into())
        }
        (TransferEncoding::Chunked, None) => Ok(BodyDecoder::CHUNKED),
        (TransferEncoding::Unsupported, None) => Err(RequestError::UnsupportedTransferEncoding),
    }
}

/// Parses a request target, which must have the form that its method asks for.
fn parse_target(verb: &Verb, target: Bytes) -> Result<Uri, ParseError> {
    if target.contains(&b'#') {
        return Err(ParseError("the target has a fragment"));
    }
    let uri = Uri::from_maybe_shared(target).map_err(|_| ParseError("the target is no address"))?;
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(ParseError("the target names a user"));
    }
    let is_authority_form = uri.scheme().is_none() && uri.authority().is_some();
    match is_authority_form != (*verb == Verb::CONNECT) || (uri.path() == "*" && *verb != Verb::OPTIONS) {
        true => Err(ParseError("the target has a form that its method does not take")),
        false => Ok(uri),
    }
}

/// Checks that a `Host` holds a host and a port and nothing else, such as a list or a user.
fn check_host(value: &[u8]) -> Result<(), ParseError> {
    match value.iter().all(|byte| IS_HOST_BYTE[usize::from(*byte)]) {
        true => Ok(()),
        false => Err(ParseError("the host is none")),
    }
}

/// Checks that there is one `Host`. HTTP/1.0 has none, and HTTP/2 `:authority` instead.
fn check_host_count(count: usize, version: Version) -> Result<(), ParseError> {
    match count > 1 || (count == 0 && version == Version::HTTP_11) {
        true => Err(ParseError("there must be exactly one host")),
        false => Ok(()),
    }
}

impl From<ParseError> for RequestError {
    fn from(error: ParseError) -> Self {
        Self::Malformed(error)
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
    use http::{HeaderValue, header};
    use proptest::prelude::*;

    fn rules(max_headers: usize, max_bytes: usize) -> HeadRules {
        HeadRules { max_headers, max_bytes }
    }

    fn parse(text: &str) -> Result<Option<(RequestHead, RequestFraming)>, RequestError> {
        RequestHead::parse(&mut BytesMut::from(text), &rules(10, 1000))
    }

    #[test]
    fn request_head_is_parsed_once_it_is_complete() {
        let text = "POST /mcp/a?b=c HTTP/1.1\r\nHost: h\r\nX-Session: s\r\nX: 1\r\nx: 2\r\ncontent-length: 2\r\n\r\nhi";
        for end in 0..text.len() - 2 {
            assert!(parse(&text[..end]).unwrap().is_none(), "{end}");
        }
        let mut buffer = BytesMut::from(text);
        let (head, framing) = RequestHead::parse(&mut buffer, &rules(10, 1000)).unwrap().unwrap();
        assert_eq!(buffer, "hi");
        assert_eq!((head.verb, head.uri.path(), head.uri.query()), (Verb::POST, "/mcp/a", Some("b=c")));
        assert_eq!(head.headers.get("x-session"), Some(&b"s"[..]));
        assert_eq!(head.headers.get_all("x").count(), 2);
        assert_eq!(
            (framing.body, framing.keep_alive, framing.is_http11, framing.expects_continue),
            (BodyDecoder::Length(2), true, true, false)
        );
    }

    #[test]
    fn framing_persistence_and_expect_follow_from_the_head() {
        for (lines, body, keep_alive, expects_continue) in [
            ("POST / HTTP/1.1\r\nhost: a\r\n", BodyDecoder::Length(0), true, false),
            ("POST / HTTP/1.1\r\nhost: a\r\nConnection: close\r\n", BodyDecoder::Length(0), false, false),
            ("POST / HTTP/1.0\r\ncontent-length: 3\r\n", BodyDecoder::Length(3), false, false),
            ("POST / HTTP/1.0\r\nconnection: keep-alive\r\n", BodyDecoder::Length(0), true, false),
            ("POST / HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: Chunked\r\n", BodyDecoder::CHUNKED, true, false),
            (
                "POST / HTTP/1.1\r\nhost:\r\nexpect: 100-Continue\r\ncontent-length: 3\r\n",
                BodyDecoder::Length(3),
                true,
                true,
            ),
            ("POST / HTTP/1.0\r\nexpect: 100-continue\r\n", BodyDecoder::Length(0), false, false),
            ("\r\n\r\nGET http://h/mcp HTTP/1.1\r\nHost: [::1]:80\r\n", BodyDecoder::Length(0), true, false),
        ] {
            let (_, framing) = parse(&format!("{lines}\r\n")).unwrap().unwrap();
            assert_eq!(
                (framing.body, framing.keep_alive, framing.expects_continue),
                (body, keep_alive, expects_continue),
                "{lines}"
            );
        }
    }

    /// Ambiguous framing above all: Content-Length with Transfer-Encoding, obsolete folding, space before the colon.
    #[test]
    fn malformed_and_ambiguous_request_heads_are_refused() {
        for lines in [
            "POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\ncontent-length: 3\r\n",
            "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 3\r\n",
            "POST / HTTP/1.1\r\ncontent-length: -3\r\n",
            "POST / HTTP/1.1\r\ncontent-length : 3\r\n",
            "POST / HTTP/1.1\r\nx: y\r\n z\r\n",
            "POST / HTTP/1.1\r\nx: y\n",
            "POST / HTTP/1.1\n",
            "POST / HTTP/1.1\r\nx: y\rz: w\r\n",
            "\nPOST / HTTP/1.1\r\n",
            "POST / HTTP/1.1\r\nconnection: \u{e9}\r\n",
            "POST / HTTP/2.0\r\n",
            "POST  HTTP/1.1\r\n",
            "GET /a#b HTTP/1.1\r\n",
            "GET http://user@a/ HTTP/1.1\r\n",
            "GET a:80 HTTP/1.1\r\n",
            "CONNECT /a HTTP/1.1\r\n",
            "GET * HTTP/1.1\r\n",
        ] {
            let text = format!("{lines}host: a\r\n\r\n");
            assert!(matches!(parse(&text), Err(RequestError::Malformed(_))), "{text}");
        }
        assert!(matches!(parse("\u{16}\u{3}\u{1}"), Err(RequestError::Malformed(_))));
        let unterminated = "POST / HTTP/1.1\r\nhost: a\r\n\n";
        assert!(matches!(parse(unterminated), Err(RequestError::Malformed(_))));
    }

    #[test]
    fn request_must_name_exactly_one_valid_host() {
        for (version, hosts, accepted) in [
            ("1.1", "", false),
            ("1.1", "host: a\r\n", true),
            ("1.1", "host:\r\n", true),
            ("1.1", "Host: a:80\r\nhost: a:80\r\n", false),
            ("1.1", "host: a, b\r\n", false),
            ("1.1", "host: user@a\r\n", false),
            ("1.1", "host: a/b\r\n", false),
            ("1.0", "", true),
            ("1.0", "host: a\r\n", true),
            ("1.0", "host: a\r\nhost: b\r\n", false),
        ] {
            let head = parse(&format!("GET / HTTP/{version}\r\n{hosts}\r\n"));
            assert_eq!(head.is_ok(), accepted, "{version} {hosts:?}");
        }
    }

    #[test]
    fn transfer_encodings_other_than_chunked_are_not_supported() {
        for fields in [
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked, gzip",
            "transfer-encoding: chunked, chunked",
            "transfer-encoding: xchunked",
            "transfer-encoding: identity",
            "transfer-encoding:",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\nTransfer-Encoding: identity",
        ] {
            let text = format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n");
            assert_eq!(parse(&text).unwrap_err(), RequestError::UnsupportedTransferEncoding, "{fields}");
        }
    }

    #[test]
    fn head_limits_hold_for_bytes_and_fields() {
        let many = |count: usize| format!("POST / HTTP/1.0\r\n{}\r\n", "x: y\r\n".repeat(count));
        let long = format!("POST / HTTP/1.0\r\nx: {}", "y".repeat(1000));
        let parse_with =
            |text: &str, limit: usize| RequestHead::parse(&mut BytesMut::from(text), &rules(limit, 10_000)).is_ok();
        assert_eq!([parse(&many(11)).unwrap_err(), parse(&long).unwrap_err()], [RequestError::TooLarge; 2]);
        assert_eq!(parse(&format!("{long}\r\n\r\n")).unwrap_err(), RequestError::TooLarge, "all at once");
        assert!(parse_with(&many(150), 150));
        assert!(parse_with(&many(MAX_HEADERS), usize::MAX));
        assert!(!parse_with(&many(MAX_HEADERS + 1), usize::MAX));
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
