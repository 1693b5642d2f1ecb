//! HTTP/1.1 as bytes: header lines that go out, the head of an answer that came, and where its body ends.
//!
//! Heads are read by `httparse`; what a body is made of is read here.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode, header};
use httparse::{ParserConfig, Status};

/// The head of a request, as it goes out.
#[derive(Debug, Clone)]
pub struct Outgoing(Vec<u8>);

/// The head of an answer, as it came.
#[derive(Debug)]
pub struct Head {
    status: StatusCode,
    text: Bytes,
    fields: Vec<Field>,
    keeps: bool,
}

/// Where a header stands in its head.
#[derive(Debug)]
struct Field {
    name: Range<usize>,
    value: Range<usize>,
}

/// What is still to come of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes.
    Length(u64),
    /// Pieces, of which each says how long it is.
    Chunks(Chunks),
    /// Everything until the connection ends.
    UntilClose,
}

/// Where in the pieces of a body we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunks {
    /// Before the length of a piece.
    Size,
    /// In a piece that has so many bytes left.
    Data(u64),
    /// After its last byte.
    DataEnd,
    /// After the last piece, where headers may follow; so many bytes of them have come.
    Trailers(usize),
    /// At the end.
    Done,
}

/// What comes next of a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Some of it.
    Data(Bytes),
    /// Nothing before more has arrived.
    Missing,
    /// Nothing any more.
    End,
}

/// Something that is no HTTP/1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(&'static str);

/// How many headers an answer may have.
const HEADERS: usize = 100;
/// How long the head of an answer may be.
const LONGEST_HEAD: usize = 128 << 10;
/// How long the line may be that says how long a piece is.
const LONGEST_SIZE: usize = 4 << 10;
/// How long the headers may be that follow the last piece.
const LONGEST_TRAILERS: usize = 16 << 10;
/// Room for what a request usually says before its body.
const HEAD_ROOM: usize = 512;

// === impl Outgoing ===

impl Outgoing {
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
        self.line(name.as_str(), value.as_bytes());
    }

    /// Adds a header whose value is a text of ours.
    pub fn put_static(&mut self, name: &HeaderName, value: &'static str) {
        self.line(name.as_str(), value.as_bytes());
    }

    /// Adds a header, unless it is one that no header can be: an end of line would begin another.
    pub fn put_text(&mut self, name: &HeaderName, value: &str) {
        if value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
            self.line(name.as_str(), value.as_bytes());
        }
    }

    fn line(&mut self, name: &str, value: &[u8]) {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.0.extend_from_slice(part);
        }
    }

    /// Ends the head. A body of so many bytes follows, where there is one.
    pub fn finish(mut self, body: Option<usize>) -> Vec<u8> {
        if let Some(length) = body {
            let mut digits = [0; 20];
            let length = decimal(length, &mut digits);
            self.line(header::CONTENT_LENGTH.as_str(), length);
        }
        self.0.extend_from_slice(b"\r\n");
        self.0
    }
}

fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

// === impl Head ===

impl Head {
    /// Takes the head of an answer to a request from the front of what has arrived, and tells what its body is
    /// made of; nothing while some of the head is missing.
    ///
    /// # Errors
    /// When what has arrived is no answer.
    pub fn take(arrived: &mut BytesMut, asked: &Verb) -> Result<Option<(Self, Framing)>, Malformed> {
        let mut headers = [const { MaybeUninit::uninit() }; HEADERS];
        let mut response = httparse::Response::new(&mut []);
        let text = &arrived[..];
        let config = ParserConfig::default();
        let read = config.parse_response_with_uninit_headers(&mut response, text, &mut headers);
        let end = match read {
            Ok(Status::Complete(end)) => end,
            Ok(Status::Partial) if text.len() <= LONGEST_HEAD => return Ok(None),
            Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Err(Malformed("its head is too long"));
            }
            Err(_) => return Err(Malformed("its head is none of HTTP/1.1")),
        };
        let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or(Malformed("it has no status"))?;
        let modern = response.version == Some(1);
        let place = |part: &[u8]| {
            let start = part.as_ptr().addr() - text.as_ptr().addr();
            start..start + part.len()
        };
        let field =
            |field: &httparse::Header<'_>| Field { name: place(field.name.as_bytes()), value: place(field.value) };
        let fields = response.headers.iter().map(field).collect();
        let text = arrived.split_to(end).freeze();
        let mut head = Self { status, text, fields, keeps: modern };
        let framing = head.read_framing(asked)?;
        Ok(Some((head, framing)))
    }

    fn read_framing(&mut self, asked: &Verb) -> Result<Framing, Malformed> {
        let (mut length, mut coded, mut chunked) = (None, false, false);
        let mut keeps = self.keeps;
        for (name, value) in self.iter() {
            if name.eq_ignore_ascii_case(b"content-length") {
                let text =
                    std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                let told = text.and_then(|text| text.parse().ok()).ok_or(Malformed("its length is no number"))?;
                if length.replace(told).is_some_and(|before: u64| before != told) {
                    return Err(Malformed("it has two lengths"));
                }
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                coded = true;
                chunked = value.rsplit(|byte| *byte == b',').next().is_some_and(|last| is_word(last, b"chunked"));
            } else if name.eq_ignore_ascii_case(b"connection") {
                for word in value.split(|byte| *byte == b',') {
                    keeps = (keeps || is_word(word, b"keep-alive")) && !is_word(word, b"close");
                }
            }
        }
        let has_none = *asked == Verb::HEAD || matches!(self.status.as_u16(), 100..=199 | 204 | 304);
        let framing = match length {
            _ if has_none => Framing::Length(0),
            _ if chunked => Framing::Chunks(Chunks::Size),
            Some(length) if !coded => Framing::Length(length),
            _ => Framing::UntilClose,
        };
        // Who says both may mean another end of the body than we do.
        self.keeps = keeps && framing != Framing::UntilClose && !(coded && length.is_some());
        Ok(framing)
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Whether the connection can be used again.
    pub fn keeps(&self) -> bool {
        self.keeps
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

fn is_word(text: &[u8], word: &[u8]) -> bool {
    text.trim_ascii().eq_ignore_ascii_case(word)
}

// === impl Framing ===

impl Framing {
    /// Whether all of the body was taken.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunks(Chunks::Done))
    }

    /// Takes what has arrived of the body.
    ///
    /// # Errors
    /// When it is not made as it should be.
    pub fn take(&mut self, arrived: &mut BytesMut) -> Result<Piece, Malformed> {
        match self {
            Self::Length(0) => Ok(Piece::End),
            _ if arrived.is_empty() && !self.is_done() => Ok(Piece::Missing),
            Self::Length(left) => Ok(Piece::Data(part(arrived, left))),
            Self::UntilClose => Ok(Piece::Data(arrived.split().freeze())),
            Self::Chunks(chunks) => chunks.take(arrived),
        }
    }
}

/// As much of what has arrived as belongs to something that has so many bytes left.
fn part(arrived: &mut BytesMut, left: &mut u64) -> Bytes {
    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(arrived.len());
    *left -= length as u64;
    arrived.split_to(length).freeze()
}

impl Chunks {
    fn take(&mut self, arrived: &mut BytesMut) -> Result<Piece, Malformed> {
        loop {
            match self {
                Self::Done => return Ok(Piece::End),
                _ if arrived.is_empty() => return Ok(Piece::Missing),
                Self::Size => match httparse::parse_chunk_size(arrived) {
                    Ok(Status::Complete((end, size))) => {
                        arrived.advance(end);
                        *self = if size == 0 { Self::Trailers(0) } else { Self::Data(size) };
                    }
                    Ok(Status::Partial) if arrived.len() <= LONGEST_SIZE => return Ok(Piece::Missing),
                    _ => return Err(Malformed("a piece of its body has no length")),
                },
                Self::Data(left) => {
                    let data = part(arrived, left);
                    if *left == 0 {
                        *self = Self::DataEnd;
                    }
                    return Ok(Piece::Data(data));
                }
                Self::DataEnd => match &arrived[..] {
                    [b'\r', b'\n', ..] => {
                        arrived.advance(2);
                        *self = Self::Size;
                    }
                    [b'\r'] => return Ok(Piece::Missing),
                    _ => return Err(Malformed("a piece of its body is longer than it says")),
                },
                Self::Trailers(seen) => {
                    let Some(end) = memchr::memchr(b'\n', arrived) else {
                        match *seen + arrived.len() <= LONGEST_TRAILERS {
                            true => return Ok(Piece::Missing),
                            false => return Err(Malformed("too much follows its body")),
                        }
                    };
                    *seen += end + 1;
                    let is_last = matches!(&arrived[..end], b"" | b"\r");
                    arrived.advance(end + 1);
                    if is_last {
                        *self = Self::Done;
                    } else if *seen > LONGEST_TRAILERS {
                        return Err(Malformed("too much follows its body"));
                    }
                }
            }
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is no answer: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(text: &str) -> Result<Option<(Head, Framing)>, Malformed> {
        Head::take(&mut BytesMut::from(text), &Verb::POST)
    }

    /// Reads a body that arrives in parts of some length.
    fn body(framing: &Framing, text: &[u8], step: usize) -> Result<(Vec<u8>, bool), Malformed> {
        let (mut framing, mut arrived, mut all) = (framing.clone(), BytesMut::new(), Vec::new());
        let mut parts = text.chunks(step);
        loop {
            match framing.take(&mut arrived)? {
                Piece::Data(data) => all.extend_from_slice(&data),
                Piece::End => return Ok((all, true)),
                Piece::Missing => match parts.next() {
                    Some(part) => arrived.extend_from_slice(part),
                    None => return Ok((all, false)),
                },
            }
        }
    }

    #[test]
    fn a_request_is_written_as_it_is_meant() {
        let mut out = Outgoing::new(&Verb::POST, "/mcp?x=1", 0);
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
        let bare = Outgoing::new(&Verb::GET, "/", 0).finish(None);
        assert_eq!(bare, b"GET / HTTP/1.1\r\n\r\n");
    }

    #[test]
    fn a_head_says_where_its_body_ends() {
        let chunks = || Framing::Chunks(Chunks::Size);
        for (lines, framing, keeps) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", Framing::Length(5), true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nContent-Length: 5\r\n", Framing::Length(5), true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: Close\r\n", Framing::Length(5), false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n", Framing::Length(5), false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\nconnection: x, Keep-Alive\r\n", Framing::Length(5), true),
            ("HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n", chunks(), true),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n", chunks(), true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n", chunks(), false),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ncontent-length: 5\r\n", Framing::UntilClose, false),
            ("HTTP/1.1 200 OK\r\n", Framing::UntilClose, false),
            ("HTTP/1.1 204 No Content\r\n", Framing::Length(0), true),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n", Framing::Length(0), true),
            ("HTTP/1.1 100 Continue\r\n", Framing::Length(0), true),
        ] {
            let (head, found) = head(&format!("{lines}\r\nrest")).unwrap().unwrap();
            assert_eq!((found, head.keeps()), (framing, keeps), "{lines}");
        }
        let mut arrived = BytesMut::from("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n");
        let (_, framing) = Head::take(&mut arrived, &Verb::HEAD).unwrap().unwrap();
        assert_eq!(framing, Framing::Length(0));
    }

    #[test]
    fn a_head_is_read_once_it_is_whole() {
        let text = "HTTP/1.1 404 Not Found\r\nMcp-Session-Id: a\r\nx: 1\r\nX: 2\r\ncontent-length: 2\r\n\r\nhi";
        for end in 0..text.len() - 2 {
            assert!(head(&text[..end]).unwrap().is_none(), "{end}");
        }
        let mut arrived = BytesMut::from(text);
        let (head, _) = Head::take(&mut arrived, &Verb::POST).unwrap().unwrap();
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

    #[test]
    fn pieces_are_joined() {
        let chunks = Framing::Chunks(Chunks::Size);
        for (text, expected) in [
            ("2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n", Ok(("abc", true))),
            ("2\r\nab\r\n0\r\ntrailer: 1\r\nother: 2\r\n\r\n", Ok(("ab", true))),
            ("0\r\n\r\n", Ok(("", true))),
            ("2\r\na", Ok(("a", false))),
            ("2\r\nab\r\n", Ok(("ab", false))),
            ("2\r\nabc\r\n0\r\n\r\n", Err(())),
            ("x\r\n", Err(())),
            ("-1\r\n", Err(())),
            ("fffffffffffffffff\r\n", Err(())),
        ] {
            for step in [1, 2, 3, 100] {
                let read = body(&chunks, text.as_bytes(), step);
                let expected = expected.map(|(text, whole)| (text.as_bytes().to_vec(), whole));
                assert_eq!(read.map_err(|_| ()), expected, "{text:?} by {step}");
            }
        }
        let endless = format!("0\r\n{}", "x: y\r\n".repeat(LONGEST_TRAILERS));
        assert!(body(&chunks, endless.as_bytes(), 1000).is_err());
        assert!(body(&chunks, format!("1;{}", "x".repeat(LONGEST_SIZE)).as_bytes(), 1000).is_err());
    }

    proptest! {
        /// However it is cut on the way.
        #[test]
        fn a_body_is_what_was_sent(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            step in 1..50usize,
        ) {
            let sent = pieces.concat();
            let mut coded = Vec::new();
            for piece in &pieces {
                coded.extend_from_slice(format!("{:X}\r\n", piece.len()).as_bytes());
                coded.extend_from_slice(piece);
                coded.extend_from_slice(b"\r\n");
            }
            coded.extend_from_slice(b"0\r\n\r\n");
            prop_assert_eq!(body(&Framing::Chunks(Chunks::Size), &coded, step), Ok((sent.clone(), true)));
            let mut more = sent.clone();
            more.extend_from_slice(b"the next answer");
            prop_assert_eq!(body(&Framing::Length(sent.len() as u64), &more, step), Ok((sent.clone(), true)));
            prop_assert_eq!(body(&Framing::UntilClose, &sent, step), Ok((sent, false)));
        }

        /// Whatever arrives, nothing panics, and no more is taken than has arrived.
        #[test]
        fn rubbish_is_no_danger(text in prop::collection::vec(any::<u8>(), 0..200), step in 1..50usize) {
            let _ = Head::take(&mut BytesMut::from(&text[..]), &Verb::POST);
            if let Ok((read, _)) = body(&Framing::Chunks(Chunks::Size), &text, step) {
                prop_assert!(read.len() <= text.len());
            }
        }
    }
}
