//! The client's side: the head of a request that goes out, and the head of the answer that comes back.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode};
use httparse::{ParserConfig, Status};

use super::{BodyDecoder, FramingHeaders, ParseError, put_length, put_line};

/// The head of a request, as it goes out.
#[derive(Debug, Clone)]
pub struct RequestEncoder(Vec<u8>);

/// The head of an answer, as it came.
#[derive(Debug)]
pub struct ResponseHead {
    status: StatusCode,
    text: Bytes,
    fields: Vec<HeaderSpan>,
    keep_alive: bool,
}

/// Where a header stands in its head.
#[derive(Debug)]
struct HeaderSpan {
    name: Range<usize>,
    value: Range<usize>,
}

/// How many headers an answer may have.
const HEADERS: usize = 100;
/// How long the head of an answer may be.
const LONGEST_HEAD: usize = 128 << 10;
/// Room for what a request usually says before its body.
const HEAD_ROOM: usize = 512;

// === impl Outgoing ===

impl RequestEncoder {
    /// A request to a target, which has no body of more than so many bytes appended.
    pub fn new(verb: &Verb, target: &str, body: usize) -> Self {
        let mut head = Vec::with_capacity(HEAD_ROOM + body);
        for part in [verb.as_str(), " ", target, " HTTP/1.1\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        Self(head)
    }

    /// Adds a header.
    pub fn put(&mut self, name: &HeaderName, value: &HeaderValue) {
        put_line(&mut self.0, name.as_str(), value.as_bytes());
    }

    /// Adds a header whose value is a text of ours.
    pub fn put_static(&mut self, name: &HeaderName, value: &'static str) {
        put_line(&mut self.0, name.as_str(), value.as_bytes());
    }

    /// Adds a header, unless it is one that no header can be: an end of line would begin another.
    pub fn put_text(&mut self, name: &HeaderName, value: &str) {
        if value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
            put_line(&mut self.0, name.as_str(), value.as_bytes());
        }
    }

    /// Ends the head. A body of so many bytes follows, where there is one.
    pub fn finish(mut self, body: Option<usize>) -> Vec<u8> {
        if let Some(length) = body {
            put_length(&mut self.0, length);
        }
        self.0.extend_from_slice(b"\r\n");
        self.0
    }
}

// === impl Head ===

impl ResponseHead {
    /// Takes the head of an answer to a request from the front of what has arrived, and tells what its body is
    /// made of; nothing while some of the head is missing.
    ///
    /// # Errors
    /// When what has arrived is no answer.
    pub fn take(arrived: &mut BytesMut, asked: &Verb) -> Result<Option<(Self, BodyDecoder)>, ParseError> {
        let mut headers = [const { MaybeUninit::uninit() }; HEADERS];
        let mut response = httparse::Response::new(&mut []);
        let text = &arrived[..];
        let config = ParserConfig::default();
        let read = config.parse_response_with_uninit_headers(&mut response, text, &mut headers);
        let end = match read {
            Ok(Status::Complete(end)) => end,
            Ok(Status::Partial) if text.len() <= LONGEST_HEAD => return Ok(None),
            Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Err(ParseError("the head is too long"));
            }
            Err(_) => return Err(ParseError("the head is none of HTTP/1.1")),
        };
        let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or(ParseError("there is no status"))?;
        let modern = response.version == Some(1);
        let place = |part: &[u8]| {
            let start = part.as_ptr().addr() - text.as_ptr().addr();
            start..start + part.len()
        };
        let field =
            |field: &httparse::Header<'_>| HeaderSpan { name: place(field.name.as_bytes()), value: place(field.value) };
        let fields = response.headers.iter().map(field).collect();
        let text = arrived.split_to(end).freeze();
        let mut head = Self { status, text, fields, keep_alive: modern };
        let framing = head.read_framing(asked)?;
        Ok(Some((head, framing)))
    }

    fn read_framing(&mut self, asked: &Verb) -> Result<BodyDecoder, ParseError> {
        let mut told = FramingHeaders::new(self.keep_alive);
        for (name, value) in self.iter() {
            told.note(name, value)?;
        }
        let has_none = *asked == Verb::HEAD || matches!(self.status.as_u16(), 100..=199 | 204 | 304);
        let framing = match told.length {
            _ if has_none => BodyDecoder::Length(0),
            _ if told.chunked => BodyDecoder::CHUNKS,
            Some(length) if !told.has_transfer_encoding => BodyDecoder::Length(length),
            _ => BodyDecoder::UntilClose,
        };
        // Who says both may mean another end of the body than we do.
        let doubtful = told.has_transfer_encoding && told.length.is_some();
        self.keep_alive = told.keep_alive && framing != BodyDecoder::UntilClose && !doubtful;
        Ok(framing)
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Whether the connection can be used again.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether another head follows: the answer itself.
    pub fn is_interim(&self) -> bool {
        self.status.is_informational()
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|field| (&self.text[field.name.clone()], &self.text[field.value.clone()]))
    }

    /// The value of a header; of the first, where there are several.
    pub fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        let name = name.as_str().as_bytes();
        self.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All headers.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(self.fields.len());
        for (name, value) in self.iter() {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
                headers.append(name, value);
            }
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header;
    use proptest::prelude::*;

    fn head(text: &str) -> Result<Option<(ResponseHead, BodyDecoder)>, ParseError> {
        ResponseHead::take(&mut BytesMut::from(text), &Verb::POST)
    }

    #[test]
    fn a_request_is_written_as_it_is_meant() {
        let mut out = RequestEncoder::new(&Verb::POST, "/mcp?x=1", 0);
        out.put(&header::HOST, &HeaderValue::from_static("h:1"));
        out.put_static(&header::ACCEPT, "a");
        for value in ["fine", "a\r\nevil: yes", "é", "a\0"] {
            out.put_text(&HeaderName::from_static("mcp-name"), value);
        }
        let text = String::from_utf8(out.finish(Some(1_203))).unwrap();
        assert_eq!(
            text,
            "POST /mcp?x=1 HTTP/1.1\r\nhost: h:1\r\naccept: a\r\nmcp-name: fine\r\ncontent-length: 1203\r\n\r\n"
        );
        let bare = RequestEncoder::new(&Verb::GET, "/", 0).finish(None);
        assert_eq!(bare, b"GET / HTTP/1.1\r\n\r\n");
    }

    #[test]
    fn a_head_says_where_its_body_ends() {
        for (lines, framing, keeps) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", BodyDecoder::Length(5), true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nContent-Length: 5\r\n", BodyDecoder::Length(5), true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: Close\r\n", BodyDecoder::Length(5), false),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close, keep-alive\r\n",
                BodyDecoder::Length(5),
                false,
            ),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n", BodyDecoder::Length(5), false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\nconnection: x, Keep-Alive\r\n", BodyDecoder::Length(5), true),
            ("HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n", BodyDecoder::CHUNKS, true),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n", BodyDecoder::CHUNKS, true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n", BodyDecoder::CHUNKS, false),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ncontent-length: 5\r\n", BodyDecoder::UntilClose, false),
            ("HTTP/1.1 200 OK\r\n", BodyDecoder::UntilClose, false),
            ("HTTP/1.1 204 No Content\r\n", BodyDecoder::Length(0), true),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n", BodyDecoder::Length(0), true),
            ("HTTP/1.1 100 Continue\r\n", BodyDecoder::Length(0), true),
        ] {
            let (head, found) = head(&format!("{lines}\r\nrest")).unwrap().unwrap();
            assert_eq!((found, head.keep_alive()), (framing, keeps), "{lines}");
        }
        let mut arrived = BytesMut::from("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n");
        let (_, framing) = ResponseHead::take(&mut arrived, &Verb::HEAD).unwrap().unwrap();
        assert_eq!(framing, BodyDecoder::Length(0));
    }

    #[test]
    fn a_head_is_read_once_it_is_whole() {
        let text = "HTTP/1.1 404 Not Found\r\nMcp-Session-Id: a\r\nx: 1\r\nX: 2\r\ncontent-length: 2\r\n\r\nhi";
        for end in 0..text.len() - 2 {
            assert!(head(&text[..end]).unwrap().is_none(), "{end}");
        }
        let mut arrived = BytesMut::from(text);
        let (head, _) = ResponseHead::take(&mut arrived, &Verb::POST).unwrap().unwrap();
        assert_eq!(arrived, "hi");
        assert_eq!(head.status(), StatusCode::NOT_FOUND);
        assert_eq!(head.get(&HeaderName::from_static("mcp-session-id")), Some(&b"a"[..]));
        assert_eq!(head.get(&header::LOCATION), None);
        assert_eq!(head.headers().get_all("x").iter().count(), 2);
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(LONGEST_HEAD));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(HEADERS + 1));
        for text in [
            "SSH-2.0-OpenSSH\r\n",
            "HTTP/2.0 200 OK\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 099 No\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno header\r\n\r\n",
            &endless,
            &many,
        ] {
            assert!(head(text).is_err(), "{text}");
        }
    }

    proptest! {
        /// Whatever arrives, nothing panics.
        #[test]
        fn rubbish_is_no_danger(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ResponseHead::take(&mut BytesMut::from(&text[..]), &Verb::POST);
        }
    }
}
