//! HTTP/1.1 as bytes: heads that go out and come in, and where a body ends.
//!
//! Heads are read by `httparse`; what a body is made of is read here.

mod request;
mod response;

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};
use httparse::Status;

pub use request::{BodyLength, LAST_PIECE, RequestError, RequestHead, ResponseEncoder, put_piece};
pub use response::{RequestEncoder, ResponseHead};

/// What is still to come of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyDecoder {
    /// So many bytes.
    Length(u64),
    /// Pieces, of which each says how long it is.
    Chunks(ChunkState),
    /// Everything until the connection ends.
    UntilClose,
}

/// Where in the pieces of a body we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunkState {
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
pub enum Decoded {
    /// Some of it.
    Data(Bytes),
    /// Nothing before more has arrived.
    Missing,
    /// Nothing any more.
    End,
}

/// Something that is no HTTP/1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseError(&'static str);

/// What a head says of its body and of its connection.
struct FramingHeaders {
    length: Option<u64>,
    /// The body is coded in some way.
    has_transfer_encoding: bool,
    /// The last of these ways are pieces.
    chunked: bool,
    keep_alive: bool,
    /// It is said that the connection ends, whatever else is said of it.
    connection_close: bool,
}

/// How long the line may be that says how long a piece is.
const LONGEST_SIZE: usize = 4 << 10;
/// How long the headers may be that follow the last piece.
const LONGEST_TRAILERS: usize = 16 << 10;

// === impl Told ===

impl FramingHeaders {
    /// Nothing is said yet. Newer connections are kept unless they are said not to be.
    fn new(keep_alive: bool) -> Self {
        Self { length: None, has_transfer_encoding: false, chunked: false, keep_alive, connection_close: false }
    }

    fn note(&mut self, name: &[u8], value: &[u8]) -> Result<(), ParseError> {
        if name.eq_ignore_ascii_case(b"content-length") {
            let text = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let told = text.and_then(|text| text.parse().ok()).ok_or(ParseError("the length is no number"))?;
            if self.length.replace(told).is_some_and(|before| before != told) {
                return Err(ParseError("there are two lengths"));
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.has_transfer_encoding = true;
            self.chunked = value.rsplit(|byte| *byte == b',').next().is_some_and(|last| is_word(last, b"chunked"));
        } else if name.eq_ignore_ascii_case(b"connection") {
            for word in value.split(|byte| *byte == b',') {
                self.connection_close |= is_word(word, b"close");
                self.keep_alive = (self.keep_alive || is_word(word, b"keep-alive")) && !self.connection_close;
            }
        }
        Ok(())
    }
}

fn is_word(text: &[u8], word: &[u8]) -> bool {
    text.trim_ascii().eq_ignore_ascii_case(word)
}

/// Adds a header.
fn put_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Adds the header that says how long the body is.
fn put_length(out: &mut Vec<u8>, length: usize) {
    let mut digits = [0; 20];
    let (mut at, mut rest) = (digits.len(), length);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    put_line(out, "content-length", &digits[at..]);
}

// === impl Framing ===

impl BodyDecoder {
    /// Pieces, of which none has come.
    pub const CHUNKS: Self = Self::Chunks(ChunkState::Size);

    /// Whether all of the body was taken.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunks(ChunkState::Done))
    }

    /// Takes what has arrived of the body.
    ///
    /// # Errors
    /// When it is not made as it should be.
    pub fn take(&mut self, arrived: &mut BytesMut) -> Result<Decoded, ParseError> {
        match self {
            Self::Length(0) => Ok(Decoded::End),
            _ if arrived.is_empty() && !self.is_done() => Ok(Decoded::Missing),
            Self::Length(left) => Ok(Decoded::Data(part(arrived, left))),
            Self::UntilClose => Ok(Decoded::Data(arrived.split().freeze())),
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

impl ChunkState {
    fn take(&mut self, arrived: &mut BytesMut) -> Result<Decoded, ParseError> {
        loop {
            match self {
                Self::Done => return Ok(Decoded::End),
                _ if arrived.is_empty() => return Ok(Decoded::Missing),
                Self::Size => match httparse::parse_chunk_size(arrived) {
                    Ok(Status::Complete((end, size))) if end <= LONGEST_SIZE && is_size(&arrived[..end]) => {
                        arrived.advance(end);
                        *self = if size == 0 { Self::Trailers(0) } else { Self::Data(size) };
                    }
                    Ok(Status::Partial) if arrived.len() <= LONGEST_SIZE => return Ok(Decoded::Missing),
                    _ => return Err(ParseError("a piece of the body has no length")),
                },
                Self::Data(left) => {
                    let data = part(arrived, left);
                    if *left == 0 {
                        *self = Self::DataEnd;
                    }
                    return Ok(Decoded::Data(data));
                }
                Self::DataEnd => match &arrived[..] {
                    [b'\r', b'\n', ..] => {
                        arrived.advance(2);
                        *self = Self::Size;
                    }
                    [b'\r'] => return Ok(Decoded::Missing),
                    _ => return Err(ParseError("a piece of the body is longer than it says")),
                },
                Self::Trailers(seen) => {
                    let Some(end) = memchr::memchr(b'\n', arrived) else {
                        match *seen + arrived.len() <= LONGEST_TRAILERS {
                            true => return Ok(Decoded::Missing),
                            false => return Err(ParseError("too much follows the body")),
                        }
                    };
                    *seen += end + 1;
                    if *seen > LONGEST_TRAILERS {
                        return Err(ParseError("too much follows the body"));
                    }
                    let Some(line) = arrived[..end].strip_suffix(b"\r") else {
                        return Err(ParseError("a line after the body has no end"));
                    };
                    let is_last = line.is_empty();
                    arrived.advance(end + 1);
                    if is_last {
                        *self = Self::Done;
                    }
                }
            }
        }
    }
}

/// Whether a line begins with a length, and everybody sees its end in the same place.
fn is_size(line: &[u8]) -> bool {
    line.first().is_some_and(u8::is_ascii_hexdigit) && memchr::memchr(b'\n', line) == Some(line.len() - 1)
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is no HTTP: {}", self.0)
    }
}

impl std::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads a body that arrives in parts of some length.
    fn body(framing: &BodyDecoder, text: &[u8], step: usize) -> Result<(Vec<u8>, bool), ParseError> {
        let (mut framing, mut arrived, mut all) = (framing.clone(), BytesMut::new(), Vec::new());
        let mut parts = text.chunks(step);
        loop {
            match framing.take(&mut arrived)? {
                Decoded::Data(data) => all.extend_from_slice(&data),
                Decoded::End => return Ok((all, true)),
                Decoded::Missing => match parts.next() {
                    Some(part) => arrived.extend_from_slice(part),
                    None => return Ok((all, false)),
                },
            }
        }
    }

    #[test]
    fn pieces_are_joined() {
        let chunks = BodyDecoder::CHUNKS;
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
            ("\r\n\r\n", Err(())),
            (";x\r\n\r\n", Err(())),
            (" \r\n\r\n", Err(())),
            ("1;x\ny\r\na\r\n0\r\n\r\n", Err(())),
            ("0\r\n\n", Err(())),
            ("0\r\nx: y\n\r\n", Err(())),
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
            prop_assert_eq!(body(&BodyDecoder::CHUNKS, &coded, step), Ok((sent.clone(), true)));
            let mut more = sent.clone();
            more.extend_from_slice(b"the next answer");
            prop_assert_eq!(body(&BodyDecoder::Length(sent.len() as u64), &more, step), Ok((sent.clone(), true)));
            prop_assert_eq!(body(&BodyDecoder::UntilClose, &sent, step), Ok((sent, false)));
        }

        /// Whatever arrives, nothing panics, and no more is taken than has arrived.
        #[test]
        fn rubbish_is_no_danger(text in prop::collection::vec(any::<u8>(), 0..200), step in 1..50usize) {
            if let Ok((read, _)) = body(&BodyDecoder::CHUNKS, &text, step) {
                prop_assert!(read.len() <= text.len());
            }
        }
    }
}
