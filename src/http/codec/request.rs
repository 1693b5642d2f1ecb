//! The server's side: the head of a request that comes in, and the head of the answer that goes out.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode, Uri, header};
use httparse::{ParserConfig, Status};

use super::{BodyDecoder, FramingHeaders, ParseError, put_length, put_line};

/// The head of a request, as it came.
#[derive(Debug)]
pub struct RequestHead {
    /// What is to be done.
    pub verb: Verb,
    /// With what.
    pub uri: Uri,
    /// All headers.
    pub headers: HeaderMap,
    /// What the body is made of.
    pub framing: BodyDecoder,
    /// Another request may follow.
    pub keep_alive: bool,
    /// It is of HTTP/1.1, and not of what was before.
    pub is_http11: bool,
    /// The client waits for a word before it sends the body.
    pub expects_continue: bool,
}

/// Why something is not taken for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// The head has too many headers, or too long ones.
    TooLarge,
    /// It is none.
    Malformed(ParseError),
}

/// The head of an answer that goes out.
#[derive(Debug)]
pub struct ResponseEncoder<'a> {
    /// How it went.
    pub status: StatusCode,
    /// All headers but those that say how the message is framed.
    pub headers: &'a HeaderMap,
    /// How long the body is.
    pub extent: BodyLength,
    /// Another request may follow.
    pub keeps: bool,
    /// The request was of HTTP/1.1.
    pub is_http11: bool,
    /// When this is.
    pub date: &'a str,
}

/// How long the body of an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLength {
    /// So many bytes.
    Length(usize),
    /// As long as pieces come.
    Chunked,
    /// As long as the connection is open.
    UntilClose,
}

/// A head as it was read: where everything stands.
struct Read {
    end: usize,
    verb: Verb,
    is_http11: bool,
    target: Range<usize>,
    fields: Vec<(Range<usize>, Range<usize>)>,
}

/// How many headers are looked for without asking for room.
const HEADERS: usize = 100;
/// Names that are usual here, and that are not known everywhere: each of them is made once.
static USUAL: [HeaderName; 6] = [
    HeaderName::from_static("mcp-protocol-version"),
    HeaderName::from_static("mcp-session-id"),
    HeaderName::from_static("mcp-method"),
    HeaderName::from_static("mcp-name"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("traceparent"),
];
/// What goes before the headers of an answer that went well.
const OK: &[u8] = b"HTTP/1.1 200 OK\r\n";

// === impl Asked ===

impl RequestHead {
    /// Takes the head of a request from the front of what has arrived, with so many headers and so many bytes at
    /// most; nothing while some of it is missing.
    ///
    /// # Errors
    /// When what has arrived is no request, or too much for one.
    pub fn take(arrived: &mut BytesMut, most: usize, longest: usize) -> Result<Option<Self>, RequestError> {
        let read = match most <= HEADERS {
            true => Read::of(arrived, &mut [const { MaybeUninit::uninit() }; HEADERS][..most]),
            false => Read::of(arrived, &mut vec![MaybeUninit::uninit(); most]),
        };
        match read? {
            Some(read) => {
                Self::new(&arrived.split_to(read.end).freeze(), read).map(Some).map_err(RequestError::Malformed)
            }
            None if arrived.len() > longest => Err(RequestError::TooLarge),
            None => Ok(None),
        }
    }

    fn new(text: &Bytes, read: Read) -> Result<Self, ParseError> {
        let Read { verb, is_http11: modern, target, fields, .. } = read;
        let uri = Uri::from_maybe_shared(text.slice(target)).map_err(|_| ParseError("the target is no address"))?;
        let mut headers = HeaderMap::with_capacity(fields.len() + 1);
        let mut told = FramingHeaders::new(modern);
        let mut waits = false;
        for (name, value) in fields {
            told.note(&text[name.clone()], &text[value.clone()])?;
            let name = named(&text[name])?;
            waits |= name == header::EXPECT && text[value.clone()].eq_ignore_ascii_case(b"100-continue");
            let value = HeaderValue::from_maybe_shared(text.slice(value));
            headers.append(name, value.map_err(|_| ParseError("a header has a value that none can have"))?);
        }
        // Whoever stands between us and the client could see another end of the body here.
        let framing = match (told.has_transfer_encoding, told.length) {
            (false, length) => BodyDecoder::Length(length.unwrap_or(0)),
            (true, None) if told.chunked && modern => BodyDecoder::CHUNKS,
            (true, _) => return Err(ParseError("it is not clear where the body ends")),
        };
        Ok(Self {
            verb,
            uri,
            headers,
            framing,
            keep_alive: told.keep_alive,
            is_http11: modern,
            expects_continue: waits && modern,
        })
    }
}

fn named(name: &[u8]) -> Result<HeaderName, ParseError> {
    let usual = USUAL.iter().find(|usual| usual.as_str().as_bytes().eq_ignore_ascii_case(name));
    match usual {
        Some(usual) => Ok(usual.clone()),
        None => HeaderName::from_bytes(name).map_err(|_| ParseError("a header has a name that none can have")),
    }
}

impl Read {
    fn of<'t>(text: &'t [u8], room: &mut [MaybeUninit<httparse::Header<'t>>]) -> Result<Option<Self>, RequestError> {
        let mut request = httparse::Request::new(&mut []);
        let read = ParserConfig::default().parse_request_with_uninit_headers(&mut request, text, room);
        let end = match read {
            Ok(Status::Complete(end)) => end,
            Ok(Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => return Err(RequestError::TooLarge),
            Err(_) => return Err(RequestError::Malformed(ParseError("the head is none of HTTP/1.1"))),
        };
        let place = |part: &[u8]| {
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
            target: place(target.as_bytes()),
            fields: request.headers.iter().map(|field| (place(field.name.as_bytes()), place(field.value))).collect(),
        }))
    }
}

// === impl Answering ===

impl ResponseEncoder<'_> {
    /// Writes it.
    pub fn put(&self, out: &mut Vec<u8>) {
        if self.status == StatusCode::OK {
            out.extend_from_slice(OK);
        } else {
            let reason = self.status.canonical_reason().unwrap_or_default();
            for part in ["HTTP/1.1 ", self.status.as_str(), " ", reason, "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
        for (name, value) in self.headers {
            put_line(out, name.as_str(), value.as_bytes());
        }
        match self.extent {
            BodyLength::Length(_) if self.status == StatusCode::NO_CONTENT => {}
            BodyLength::Length(length) => put_length(out, length),
            BodyLength::Chunked => put_line(out, "transfer-encoding", b"chunked"),
            BodyLength::UntilClose => {}
        }
        match (self.keeps, self.is_http11) {
            (true, true) => {}
            (true, false) => put_line(out, "connection", b"keep-alive"),
            (false, _) => put_line(out, "connection", b"close"),
        }
        put_line(out, "date", self.date.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Writes a piece of a body, which must not be empty: that would be the last one.
pub fn put_piece(out: &mut Vec<u8>, data: &[u8]) {
    let mut size = [0; 18];
    let mut at = size.len() - 2;
    size[at..].copy_from_slice(b"\r\n");
    let mut rest = data.len();
    while rest > 0 {
        at -= 1;
        size[at] = b"0123456789abcdef"[rest & 15];
        rest >>= 4;
    }
    for part in [&size[at..], data, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// What follows the last piece of a body.
pub const LAST_PIECE: &[u8] = b"0\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::super::Decoded;
    use super::*;
    use proptest::prelude::*;

    fn asked(text: &str) -> Result<Option<RequestHead>, RequestError> {
        RequestHead::take(&mut BytesMut::from(text), 10, 1000)
    }

    #[test]
    fn a_request_is_read_once_it_is_whole() {
        let text =
            "POST /mcp/a?b=c HTTP/1.1\r\nHost: h\r\nMCP-Session-Id: s\r\nX: 1\r\nx: 2\r\ncontent-length: 2\r\n\r\nhi";
        for end in 0..text.len() - 2 {
            assert!(asked(&text[..end]).unwrap().is_none(), "{end}");
        }
        let mut arrived = BytesMut::from(text);
        let asked = RequestHead::take(&mut arrived, 10, 1000).unwrap().unwrap();
        assert_eq!(arrived, "hi");
        assert_eq!((asked.verb, asked.uri.path(), asked.uri.query()), (Verb::POST, "/mcp/a", Some("b=c")));
        assert_eq!(asked.headers["mcp-session-id"], "s");
        assert_eq!(asked.headers.get_all("x").iter().count(), 2);
        assert_eq!(
            (asked.framing, asked.keep_alive, asked.is_http11, asked.expects_continue),
            (BodyDecoder::Length(2), true, true, false)
        );
    }

    #[test]
    fn the_head_says_how_it_goes_on() {
        for (lines, framing, keeps, waits) in [
            ("POST / HTTP/1.1\r\n", BodyDecoder::Length(0), true, false),
            ("POST / HTTP/1.1\r\nConnection: close\r\n", BodyDecoder::Length(0), false, false),
            ("POST / HTTP/1.0\r\ncontent-length: 3\r\n", BodyDecoder::Length(3), false, false),
            ("POST / HTTP/1.0\r\nconnection: keep-alive\r\n", BodyDecoder::Length(0), true, false),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n", BodyDecoder::CHUNKS, true, false),
            ("POST / HTTP/1.1\r\nexpect: 100-Continue\r\ncontent-length: 3\r\n", BodyDecoder::Length(3), true, true),
            ("POST / HTTP/1.0\r\nexpect: 100-continue\r\n", BodyDecoder::Length(0), false, false),
            ("GET http://h/mcp HTTP/1.1\r\n", BodyDecoder::Length(0), true, false),
        ] {
            let asked = asked(&format!("{lines}\r\n")).unwrap().unwrap();
            assert_eq!((asked.framing, asked.keep_alive, asked.expects_continue), (framing, keeps, waits), "{lines}");
        }
    }

    /// Above all whatever could be read in two ways.
    #[test]
    fn what_is_no_request_is_refused() {
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
            assert!(matches!(asked(text), Err(RequestError::Malformed(_))), "{text}");
        }
        let many = format!("POST / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(11));
        let long = format!("POST / HTTP/1.1\r\nx: {}", "y".repeat(1000));
        assert_eq!([asked(&many).unwrap_err(), asked(&long).unwrap_err()], [RequestError::TooLarge; 2]);
        let more = format!("POST / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(150));
        assert!(RequestHead::take(&mut BytesMut::from(&more[..]), 150, 10_000).unwrap().is_some());
    }

    #[test]
    fn an_answer_is_written_as_it_is_meant() {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("a/b"))]);
        let written = |status: StatusCode, extent, keeps, modern| {
            let mut out = Vec::new();
            ResponseEncoder { status, headers: &headers, extent, keeps, is_http11: modern, date: "now" }.put(&mut out);
            String::from_utf8(out).unwrap()
        };
        for (status, extent, keeps, modern, expected) in [
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
            assert_eq!(written(status, extent, keeps, modern), format!("HTTP/1.1 {expected}date: now\r\n\r\n"));
        }
    }

    proptest! {
        /// What is written in pieces is read as it was.
        #[test]
        fn pieces_are_read_as_they_are_written(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..6)) {
            let mut out = Vec::new();
            pieces.iter().for_each(|piece| put_piece(&mut out, piece));
            out.extend_from_slice(LAST_PIECE);
            let (mut arrived, mut framing, mut read) = (BytesMut::from(&out[..]), BodyDecoder::CHUNKS, Vec::new());
            while let Decoded::Data(data) = framing.take(&mut arrived).unwrap() {
                read.extend_from_slice(&data);
            }
            prop_assert!(framing.is_done() && arrived.is_empty());
            prop_assert_eq!(read, pieces.concat());
        }

        #[test]
        fn rubbish_is_no_danger(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = RequestHead::take(&mut BytesMut::from(&text[..]), 10, 100);
        }
    }
}
