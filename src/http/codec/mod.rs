//! Sans-I/O HTTP/1.1 codec: message heads, header encoding and body framing (RFC 9112).
//!
//! `httparse` parses heads; body framing is decoded here and is strict where peers could disagree.

mod request;
mod response;

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};
use httparse::Status;

pub use request::{BodyLength, HeadRules, LAST_CHUNK, RequestError, RequestHead, ResponseEncoder, put_chunk};
pub use response::{RequestEncoder, ResponseHead};

/// Decoder of one message body: what is left of it, by its framing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyDecoder {
    /// `Content-Length` framing with this many bytes left.
    Length(u64),
    /// Chunked transfer coding.
    Chunked(ChunkState),
    /// The body ends when the connection is closed.
    UntilClose,
}

/// Position within a chunked body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunkState {
    /// At a chunk-size line.
    Size,
    /// In chunk data with this many bytes left.
    Data(u64),
    /// At the CRLF that ends chunk data.
    DataEnd,
    /// In the trailer section, of which this many bytes were consumed.
    Trailers(usize),
    /// After the end of the body.
    Done,
}

/// Result of one decoding step.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded {
    /// Body data.
    Data(Bytes),
    /// The buffer holds no complete element; read more.
    NeedMore,
    /// The body is complete.
    End,
}

/// Malformed HTTP/1.1; the text names the violated rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseError(&'static str);

/// The header fields that decide body framing and connection persistence.
struct FramingHeaders {
    content_length: Option<u64>,
    /// A `Transfer-Encoding` is present, whatever it names.
    has_transfer_encoding: bool,
    /// `chunked` is the final transfer coding.
    is_chunked: bool,
    keep_alive: bool,
    /// `Connection: close` was seen; it wins over `keep-alive` in any order.
    connection_close: bool,
}

/// Limit of a chunk-size line with its extensions.
const MAX_CHUNK_LINE_BYTES: usize = 4 << 10;
/// Limit of the whole trailer section.
const MAX_TRAILER_BYTES: usize = 16 << 10;

// === impl FramingHeaders ===

impl FramingHeaders {
    /// Starts with the default of the HTTP version: HTTP/1.1 connections are persistent, HTTP/1.0 ones are not.
    fn new(keep_alive: bool) -> Self {
        Self {
            content_length: None,
            has_transfer_encoding: false,
            is_chunked: false,
            keep_alive,
            connection_close: false,
        }
    }

    fn observe(&mut self, name: &[u8], value: &[u8]) -> Result<(), ParseError> {
        if name.eq_ignore_ascii_case(b"content-length") {
            let text = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let length = text.and_then(|text| text.parse().ok()).ok_or(ParseError("the length is no number"))?;
            if self.content_length.replace(length).is_some_and(|previous| previous != length) {
                return Err(ParseError("there are two lengths"));
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.has_transfer_encoding = true;
            self.is_chunked = value.rsplit(|byte| *byte == b',').next().is_some_and(|last| is_token(last, b"chunked"));
        } else if name.eq_ignore_ascii_case(b"connection") {
            for token in value.split(|byte| *byte == b',') {
                self.connection_close |= is_token(token, b"close");
                self.keep_alive = (self.keep_alive || is_token(token, b"keep-alive")) && !self.connection_close;
            }
        }
        Ok(())
    }
}

fn is_token(text: &[u8], token: &[u8]) -> bool {
    text.trim_ascii().eq_ignore_ascii_case(token)
}

/// Appends one header line.
fn put_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Appends `Content-Length`; formats the number by hand because this runs for every message.
fn put_content_length(out: &mut Vec<u8>, length: u64) {
    let mut digits = [0; 20];
    let (mut start, mut remaining) = (digits.len(), length);
    loop {
        start -= 1;
        digits[start] = b'0' + (remaining % 10) as u8;
        remaining /= 10;
        if remaining == 0 {
            break;
        }
    }
    put_header(out, "content-length", &digits[start..]);
}

// === impl BodyDecoder ===

impl BodyDecoder {
    /// A chunked body at its first chunk-size line.
    pub const CHUNKED: Self = Self::Chunked(ChunkState::Size);

    /// Whether the body was consumed to its end. Never true for [`Self::UntilClose`].
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(ChunkState::Done))
    }

    /// Consumes the next element of the body from the front of `buffer`.
    ///
    /// # Errors
    /// When the chunked coding is malformed or exceeds a limit.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Decoded, ParseError> {
        match self {
            Self::Length(0) => Ok(Decoded::End),
            _ if buffer.is_empty() && !self.is_done() => Ok(Decoded::NeedMore),
            Self::Length(left) => Ok(Decoded::Data(split_up_to(buffer, left))),
            Self::UntilClose => Ok(Decoded::Data(buffer.split().freeze())),
            Self::Chunked(state) => state.decode(buffer),
        }
    }
}

/// Splits off at most `left` bytes and counts them down.
fn split_up_to(buffer: &mut BytesMut, left: &mut u64) -> Bytes {
    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
    *left -= length as u64;
    buffer.split_to(length).freeze()
}

impl ChunkState {
    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Decoded, ParseError> {
        loop {
            match self {
                Self::Done => return Ok(Decoded::End),
                _ if buffer.is_empty() => return Ok(Decoded::NeedMore),
                Self::Size => match httparse::parse_chunk_size(buffer) {
                    Ok(Status::Complete((end, size)))
                        if end <= MAX_CHUNK_LINE_BYTES && is_strict_chunk_line(&buffer[..end]) =>
                    {
                        buffer.advance(end);
                        *self = if size == 0 { Self::Trailers(0) } else { Self::Data(size) };
                    }
                    Ok(Status::Partial) if buffer.len() <= MAX_CHUNK_LINE_BYTES => return Ok(Decoded::NeedMore),
                    _ => return Err(ParseError("a chunk-size line is malformed")),
                },
                Self::Data(left) => {
                    let data = split_up_to(buffer, left);
                    if *left == 0 {
                        *self = Self::DataEnd;
                    }
                    return Ok(Decoded::Data(data));
                }
                Self::DataEnd => match &buffer[..] {
                    [b'\r', b'\n', ..] => {
                        buffer.advance(2);
                        *self = Self::Size;
                    }
                    [b'\r'] => return Ok(Decoded::NeedMore),
                    _ => return Err(ParseError("chunk data is not followed by CRLF")),
                },
                Self::Trailers(seen) => {
                    let Some(end) = memchr::memchr(b'\n', buffer) else {
                        match *seen + buffer.len() <= MAX_TRAILER_BYTES {
                            true => return Ok(Decoded::NeedMore),
                            false => return Err(ParseError("the trailer section is too long")),
                        }
                    };
                    *seen += end + 1;
                    if *seen > MAX_TRAILER_BYTES {
                        return Err(ParseError("the trailer section is too long"));
                    }
                    let Some(line) = buffer[..end].strip_suffix(b"\r") else {
                        return Err(ParseError("a trailer line does not end with CRLF"));
                    };
                    let is_last = line.is_empty();
                    buffer.advance(end + 1);
                    if is_last {
                        *self = Self::Done;
                    }
                }
            }
        }
    }
}

/// Whether a chunk-size line begins with a hex digit and holds no line feed but its last: parsers disagree on the rest.
fn is_strict_chunk_line(line: &[u8]) -> bool {
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

    /// Decodes a body that arrives in chunks of `step` bytes; also tells whether the end was reached.
    fn decode_in_steps(decoder: &BodyDecoder, text: &[u8], step: usize) -> Result<(Vec<u8>, bool), ParseError> {
        let (mut decoder, mut buffer, mut data_so_far) = (decoder.clone(), BytesMut::new(), Vec::new());
        let mut parts = text.chunks(step);
        loop {
            match decoder.decode(&mut buffer)? {
                Decoded::Data(data) => data_so_far.extend_from_slice(&data),
                Decoded::End => return Ok((data_so_far, true)),
                Decoded::NeedMore => match parts.next() {
                    Some(part) => buffer.extend_from_slice(part),
                    None => return Ok((data_so_far, false)),
                },
            }
        }
    }

    #[test]
    fn chunked_body_is_decoded_strictly() {
        let decoder = BodyDecoder::CHUNKED;
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
                let read = decode_in_steps(&decoder, text.as_bytes(), step);
                let expected = expected.map(|(text, complete)| (text.as_bytes().to_vec(), complete));
                assert_eq!(read.map_err(|_| ()), expected, "{text:?} by {step}");
            }
        }
        let endless_trailers = format!("0\r\n{}", "x: y\r\n".repeat(MAX_TRAILER_BYTES));
        assert!(decode_in_steps(&decoder, endless_trailers.as_bytes(), 1000).is_err());
        assert!(decode_in_steps(&decoder, format!("1;{}", "x".repeat(MAX_CHUNK_LINE_BYTES)).as_bytes(), 1000).is_err());
    }

    proptest! {
        #[test]
        fn body_decodes_the_same_in_any_chunking(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            step in 1..50usize,
        ) {
            let sent = chunks.concat();
            let mut encoded = Vec::new();
            for chunk in &chunks {
                encoded.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
                encoded.extend_from_slice(chunk);
                encoded.extend_from_slice(b"\r\n");
            }
            encoded.extend_from_slice(b"0\r\n\r\n");
            prop_assert_eq!(decode_in_steps(&BodyDecoder::CHUNKED, &encoded, step), Ok((sent.clone(), true)));
            let mut followed = sent.clone();
            followed.extend_from_slice(b"the next answer");
            prop_assert_eq!(decode_in_steps(&BodyDecoder::Length(sent.len() as u64), &followed, step), Ok((sent.clone(), true)));
            prop_assert_eq!(decode_in_steps(&BodyDecoder::UntilClose, &sent, step), Ok((sent, false)));
        }

        /// Random input neither panics nor yields more data than it holds.
        #[test]
        fn random_input_never_panics(text in prop::collection::vec(any::<u8>(), 0..200), step in 1..50usize) {
            if let Ok((read, _)) = decode_in_steps(&BodyDecoder::CHUNKED, &text, step) {
                prop_assert!(read.len() <= text.len());
            }
        }
    }
}
