//! Sans-I/O HTTP/1.1 codec: message heads, header encoding and body framing (RFC 9112).
//!
//! `httparse` parses heads; the rules on top of it and the body framing are ours, and refuse whatever two peers could
//! read differently. `tests/http1_differential.rs` holds both roles against hyper.

mod body;
mod header_fields;
mod request;
mod response;

use std::fmt;

use header_fields::FieldSpan;
use http::Version;
use memchr::{memchr_iter, memmem};

pub use body::{BodyDecoder, ChunkedDecoder, Decoded};
pub use header_fields::HeaderFields;
pub use request::{
    BodyLength, HeadRules, LAST_CHUNK, RequestError, RequestFraming, RequestHead, ResponseEncoder, put_chunk,
};
pub use response::{MAX_RESPONSE_HEAD_BYTES, RequestEncoder, ResponseHead};

/// Malformed HTTP/1.1; the text names the violated rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseError(&'static str);

/// Search for the end of a head that arrives in several reads: the head is not parsed from its start at each read.
#[derive(Debug, Default)]
pub struct HeadSearch {
    /// Bytes of the buffer that were searched already.
    searched: usize,
}

/// The header fields that decide body framing and connection persistence.
struct FramingHeaders {
    version: Version,
    content_length: Option<u64>,
    transfer_encoding: TransferEncoding,
    keep_alive: bool,
    /// `Connection: close` was seen; it wins over `keep-alive` in any order.
    connection_close: bool,
}

/// What the `Transfer-Encoding` fields of a head amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransferEncoding {
    Absent,
    /// One field whose value is exactly `chunked`.
    Chunked,
    /// Other codings, a list, or several fields: peers disagree on what these frame.
    Unsupported,
}

/// Largest length of a body or a chunk: peers with signed integers would read a larger one as negative.
const MAX_LENGTH: u64 = i64::MAX as u64;

// === impl HeadSearch ===

impl HeadSearch {
    /// Whether the head in `buffered` should be parsed now: with its first bytes, so that other protocols are refused at
    /// once, when a blank line has arrived, and when it is longer than `max_bytes`.
    pub fn should_parse(&mut self, buffered: &[u8], max_bytes: usize) -> bool {
        let searched = std::mem::replace(&mut self.searched, buffered.len());
        // The blank line may have begun in the last two bytes of what was searched before.
        buffered.len() > searched
            && (searched == 0
                || buffered.len() > max_bytes
                || may_contain_head_end(&buffered[searched.saturating_sub(2)..]))
    }
}

/// Whether the buffer may contain the blank line that ends a head. A blank line of bare line feeds counts, so that such a
/// head is refused instead of waited for.
fn may_contain_head_end(bytes: &[u8]) -> bool {
    memmem::find(bytes, b"\n\r\n").is_some() || memmem::find(bytes, b"\n\n").is_some()
}

/// Whether every line of a head ends with CRLF. Lenient parsers take a bare line feed for the end of a line, strict ones
/// do not. `httparse` accepts line feeds nowhere else, so the ends of the lines are all there is to look at.
fn has_strict_line_ends(head: &[u8], fields: &[FieldSpan]) -> bool {
    let leading = head.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(head.len());
    let is_bare = |at: usize| at == 0 || head[at - 1] != b'\r';
    !memchr_iter(b'\n', &head[..leading]).any(is_bare)
        && fields.iter().all(|field| field.follows_line_end(head))
        && head.ends_with(b"\r\n\r\n")
}

// === impl FramingHeaders ===

impl FramingHeaders {
    /// Starts with the default of the HTTP version: HTTP/1.1 connections are persistent, HTTP/1.0 ones are not.
    fn new(version: Version) -> Self {
        Self {
            version,
            content_length: None,
            transfer_encoding: TransferEncoding::Absent,
            keep_alive: version == Version::HTTP_11,
            connection_close: false,
        }
    }

    fn observe(&mut self, name: &[u8], value: &[u8]) -> Result<(), ParseError> {
        // Most headers are told apart from these three by their length alone.
        if !matches!(name.len(), 10 | 14 | 17) {
            return Ok(());
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = parse_length(value).ok_or(ParseError("the length is no number"))?;
            // Even equal lengths are refused: intermediaries differ in which one they forward.
            if self.content_length.replace(length).is_some() {
                return Err(ParseError("there are two lengths"));
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let is_first = self.transfer_encoding == TransferEncoding::Absent;
            self.transfer_encoding = match is_first && value.eq_ignore_ascii_case(b"chunked") {
                true => TransferEncoding::Chunked,
                false => TransferEncoding::Unsupported,
            };
        } else if name.eq_ignore_ascii_case(b"connection") {
            if !value.is_ascii() {
                return Err(ParseError("the connection options are not ASCII"));
            }
            for token in value.split(|byte| *byte == b',') {
                self.connection_close |= is_token(token, b"close");
                self.keep_alive = (self.keep_alive || is_token(token, b"keep-alive")) && !self.connection_close;
            }
        }
        Ok(())
    }
}

/// A length of decimal digits alone, up to [`MAX_LENGTH`].
fn parse_length(digits: &[u8]) -> Option<u64> {
    let append = |length: u64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        length.checked_mul(10)?.checked_add(digit).filter(|length| *length <= MAX_LENGTH)
    };
    match digits {
        [] => None,
        digits => digits.iter().try_fold(0, append),
    }
}

/// The version that `httparse` reports as the minor version number.
fn version(minor: Option<u8>) -> Version {
    match minor {
        Some(1) => Version::HTTP_11,
        _ => Version::HTTP_10,
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

/// Appends `Content-Length`.
fn put_content_length(out: &mut Vec<u8>, length: u64) {
    put_header(out, "content-length", itoa::Buffer::new().format(length).as_bytes());
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

    #[test]
    fn head_is_searched_once_and_parsed_when_a_blank_line_arrives() {
        let text = b"GET / HTTP/1.1\r\nhost: a\r\n\r\nrest";
        for (end, ends_head) in [("\r\n\r\n", true), ("\n\n", true), ("\n\r\n", true), ("\r\nx", false)] {
            for cut in 0..end.len() {
                let mut search = HeadSearch::default();
                assert!(search.should_parse(format!("GET{}", &end[..cut]).as_bytes(), 100), "the first bytes");
                assert_eq!(search.should_parse(format!("GET{end}").as_bytes(), 100), ends_head, "{end:?} {cut}");
            }
        }
        let mut search = HeadSearch::default();
        let parsed: Vec<usize> = (1..=text.len()).filter(|end| search.should_parse(&text[..*end], 100)).collect();
        assert_eq!(parsed, [1, text.len() - 4]);
        assert!(!search.should_parse(text, 100), "nothing new arrived");
        assert!(search.should_parse(&[b'x'; 101], 100), "over the limit");
    }
}
