//! Body framing: decodes what follows a head, by length, in chunks or until the connection closes.

use bytes::{Buf, Bytes, BytesMut};

use super::{MAX_LENGTH, ParseError};

/// Decoder of one message body: what is left of it, by its framing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyDecoder {
    /// `Content-Length` framing with this many bytes left.
    Length(u64),
    /// Chunked transfer coding.
    Chunked(ChunkedDecoder),
    /// The body ends when the connection is closed.
    UntilClose,
}

/// Decoder of a chunked body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkedDecoder {
    state: ChunkState,
    /// Chunk extensions of the body so far, in bytes.
    extension_bytes: usize,
}

/// Position within a chunked body.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ChunkState {
    /// At a chunk-size line.
    Size,
    /// In chunk data with this many bytes left.
    Data(u64),
    /// At the CRLF that ends chunk data.
    DataEnd,
    /// In the trailer section, of which this much was consumed.
    Trailers { bytes: usize, fields: usize },
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

/// A chunk-size line.
struct ChunkLine {
    /// Length of the line with its CRLF.
    length: usize,
    /// Size of the chunk.
    size: u64,
    /// Length of the extensions, from the end of the size to the CRLF.
    extension_bytes: usize,
}

const CRLF: &[u8] = b"\r\n";
/// Limit of a chunk-size line with its extensions.
const MAX_CHUNK_LINE_BYTES: usize = 4 << 10;
/// Hexadecimal digits that fit into 64 bits.
const MAX_CHUNK_SIZE_DIGITS: usize = 16;
/// Limit of all chunk extensions of one body: nobody reads them, and they are not counted as body.
const MAX_EXTENSION_BYTES: usize = 16 << 10;
/// The trailer section stays below this many bytes.
const MAX_TRAILER_BYTES: usize = 16 << 10;
/// Limit of trailer fields.
const MAX_TRAILER_FIELDS: usize = 100;
/// Fields that decide framing or routing and must not stand in trailers (RFC 9110, section 6.5.1).
const FORBIDDEN_TRAILERS: [&[u8]; 3] = [b"content-length", b"transfer-encoding", b"host"];

// === impl BodyDecoder ===

impl BodyDecoder {
    /// A chunked body at its first chunk-size line.
    pub const CHUNKED: Self = Self::Chunked(ChunkedDecoder { state: ChunkState::Size, extension_bytes: 0 });

    /// Whether the body was consumed to its end. Never true for [`Self::UntilClose`].
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(ChunkedDecoder { state: ChunkState::Done, .. }))
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
            Self::Chunked(chunks) => chunks.decode(buffer),
        }
    }
}

/// Splits off at most `left` bytes and counts them down.
fn split_up_to(buffer: &mut BytesMut, left: &mut u64) -> Bytes {
    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
    *left -= length as u64;
    buffer.split_to(length).freeze()
}

// === impl ChunkedDecoder ===

impl ChunkedDecoder {
    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Decoded, ParseError> {
        loop {
            match &mut self.state {
                ChunkState::Done => return Ok(Decoded::End),
                _ if buffer.is_empty() => return Ok(Decoded::NeedMore),
                ChunkState::Size => {
                    let Some(line) = ChunkLine::parse(buffer)? else { return Ok(Decoded::NeedMore) };
                    self.extension_bytes += line.extension_bytes;
                    if self.extension_bytes > MAX_EXTENSION_BYTES {
                        return Err(ParseError("the chunk extensions are too long"));
                    }
                    buffer.advance(line.length);
                    self.state = match line.size {
                        0 => ChunkState::Trailers { bytes: 0, fields: 0 },
                        size => ChunkState::Data(size),
                    };
                }
                ChunkState::Data(left) => {
                    let data = split_up_to(buffer, left);
                    if *left == 0 {
                        self.state = ChunkState::DataEnd;
                    }
                    return Ok(Decoded::Data(data));
                }
                ChunkState::DataEnd => match &buffer[..] {
                    [b'\r', b'\n', ..] => {
                        buffer.advance(2);
                        self.state = ChunkState::Size;
                    }
                    [b'\r'] => return Ok(Decoded::NeedMore),
                    _ => return Err(ParseError("chunk data is not followed by CRLF")),
                },
                ChunkState::Trailers { bytes, fields } => {
                    let (line, line_break) = split_line(buffer);
                    let is_one_too_many = *fields == MAX_TRAILER_FIELDS && !line.is_empty();
                    if is_one_too_many || *bytes + line.len() + CRLF.len() >= MAX_TRAILER_BYTES {
                        return Err(ParseError("the trailer section is too long"));
                    }
                    if !CRLF.starts_with(line_break) {
                        return Err(ParseError("a trailer line does not end with CRLF"));
                    }
                    if line_break != CRLF {
                        return Ok(Decoded::NeedMore);
                    }
                    let length = line.len() + CRLF.len();
                    match line.is_empty() {
                        true => self.state = ChunkState::Done,
                        false => {
                            check_trailer(line)?;
                            *bytes += length;
                            *fields += 1;
                        }
                    }
                    buffer.advance(length);
                }
            }
        }
    }
}

// === impl ChunkLine ===

impl ChunkLine {
    /// Parses the chunk-size line at the front of `text`; `None` while it is incomplete.
    fn parse(text: &[u8]) -> Result<Option<Self>, ParseError> {
        const MALFORMED: ParseError = ParseError("a chunk-size line is malformed");
        let digits = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        if digits > MAX_CHUNK_SIZE_DIGITS || (digits == 0 && !text.is_empty()) {
            return Err(MALFORMED);
        }
        let (size, rest) = text.split_at(digits);
        let (extensions, line_break) = split_line(rest);
        let trimmed = extensions.trim_ascii_start();
        // Whitespace is allowed before an extension only.
        let is_valid = match trimmed.first() {
            None => extensions.is_empty() || line_break.is_empty(),
            Some(first) => *first == b';',
        };
        let length = digits + extensions.len() + CRLF.len();
        if !is_valid || !CRLF.starts_with(line_break) || length > MAX_CHUNK_LINE_BYTES {
            return Err(MALFORMED);
        }
        if line_break != CRLF {
            return Ok(None);
        }
        let digit = |digit: u8| u64::from(char::from(digit).to_digit(16).unwrap_or_default());
        let size = size.iter().fold(0, |size: u64, byte| size << 4 | digit(*byte));
        match size <= MAX_LENGTH {
            true => Ok(Some(Self { length, size, extension_bytes: extensions.len() })),
            false => Err(MALFORMED),
        }
    }
}

/// Splits a line at its first control character: returns the line and up to two bytes from that character on, which are
/// empty while the line is incomplete and must be CRLF.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !is_field_byte(byte)).unwrap_or(text.len());
    (&text[..end], &text[end..text.len().min(end + CRLF.len())])
}

/// Checks a trailer line: a header field, and none that must stand in the head.
fn check_trailer(line: &[u8]) -> Result<(), ParseError> {
    let colon = memchr::memchr(b':', line).ok_or(ParseError("a trailer line is no header field"))?;
    let name = &line[..colon];
    if name.is_empty() || !name.iter().all(is_token_byte) {
        return Err(ParseError("a trailer line is no header field"));
    }
    match FORBIDDEN_TRAILERS.iter().any(|forbidden| forbidden.eq_ignore_ascii_case(name)) {
        true => Err(ParseError("a trailer field belongs into the head")),
        false => Ok(()),
    }
}

/// Whether a byte may stand in a field name (`tchar` of RFC 9110).
fn is_token_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// Whether a byte may stand in a field value: no control character but the tab.
fn is_field_byte(byte: &u8) -> bool {
    *byte == b'\t' || !byte.is_ascii_control()
}

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
            ("1 ;x\r\na\r\n0\r\n\r\n", Ok(("a", true))),
            ("1 \r\na\r\n0\r\n\r\n", Err(())),
            ("1;x\0\r\na\r\n0\r\n\r\n", Err(())),
            ("1;x\ry\r\na\r\n0\r\n\r\n", Err(())),
            ("0000000000000001\r\na\r\n0\r\n\r\n", Ok(("a", true))),
            ("00000000000000001\r\na\r\n0\r\n\r\n", Err(())),
            ("7fffffffffffffff\r\na", Ok(("a", false))),
            ("8000000000000000\r\na", Err(())),
            ("0\r\nno field\r\n\r\n", Err(())),
            ("0\r\nx : y\r\n\r\n", Err(())),
            ("0\r\n: y\r\n\r\n", Err(())),
            ("0\r\nx: y\r\n z\r\n\r\n", Err(())),
            ("0\r\nx: \0\r\n\r\n", Err(())),
            ("0\r\nx:\r\n\r\n", Ok(("", true))),
            ("0\r\nContent-Length: 5\r\n\r\n", Err(())),
            ("0\r\ntransfer-encoding: chunked\r\n\r\n", Err(())),
            ("0\r\nHost: a\r\n\r\n", Err(())),
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

    #[test]
    fn chunk_extensions_and_trailers_are_bounded_in_total() {
        let decode = |text: &str| decode_in_steps(&BodyDecoder::CHUNKED, text.as_bytes(), 1000).is_ok();
        let extended = |count: usize| format!("{}0\r\n\r\n", format!("1;{}\r\na\r\n", "x".repeat(1023)).repeat(count));
        assert!(decode(&extended(MAX_EXTENSION_BYTES >> 10)));
        assert!(!decode(&extended((MAX_EXTENSION_BYTES >> 10) + 1)));
        let trailers =
            |count: usize, value: usize| format!("0\r\n{}\r\n", format!("x: {}\r\n", "y".repeat(value)).repeat(count));
        assert!(decode(&trailers(MAX_TRAILER_FIELDS, 1)));
        assert!(!decode(&trailers(MAX_TRAILER_FIELDS + 1, 1)));
        assert!(decode(&trailers(1, MAX_TRAILER_BYTES - 8)));
        assert!(!decode(&trailers(1, MAX_TRAILER_BYTES - 7)));
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
