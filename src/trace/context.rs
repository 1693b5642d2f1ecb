//! W3C trace context: which span of which trace something belongs to.

use std::fmt;

use http::HeaderValue;

/// A span as others know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
    /// The trace flags, of which the first says whether the trace is sampled.
    pub(super) flags: u8,
}

/// A span of somebody else that a span of ours is a part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteParent {
    pub(super) context: SpanContext,
    /// The `tracestate` that came with it.
    pub(super) state: Option<String>,
    /// The span of the transport, where it is another one.
    pub(super) link: Option<SpanContext>,
}

/// The trace context for a server: what `traceparent` and `tracestate` say.
#[derive(Debug, Clone)]
pub struct TraceHeaders {
    /// The value of `traceparent`.
    pub parent: HeaderValue,
    /// The value of `tracestate`, where the trace has one.
    pub state: Option<HeaderValue>,
}

/// The flag of a trace that is sampled.
pub(super) const SAMPLED: u8 = 1;
/// The flag of a trace whose id is random. It is passed on; others are not known (W3C Trace Context, level 2).
const RANDOM: u8 = 2;
/// Length of `traceparent` in version 00.
const TRACEPARENT_BYTES: usize = 55;
/// The two hexadecimal digits of each byte.
const HEX_DIGITS: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let (mut pairs, mut byte) = ([[0; 2]; 256], 0);
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};
/// Longest `tracestate` that is passed on; W3C asks for no more.
const MAX_STATE_BYTES: usize = 512;

impl SpanContext {
    /// Parses `traceparent`; `None` if it is not valid, and must be ignored then.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let version = hex::<1>(text.get(..2)?)?[0];
        let is_whole = match version {
            0 => text.len() == TRACEPARENT_BYTES,
            0xff => false,
            // Later versions may add more, behind a dash.
            _ => text.len() == TRACEPARENT_BYTES || text.get(TRACEPARENT_BYTES) == Some(&b'-'),
        };
        let has_dashes = [2, 35, 52].iter().all(|at| text.get(*at) == Some(&b'-'));
        if !is_whole || !has_dashes {
            return None;
        }
        let trace_id = hex::<16>(&text[3..35])?;
        let span_id = hex::<8>(&text[36..52])?;
        let flags = hex::<1>(&text[53..55])?[0] & (SAMPLED | RANDOM);
        (trace_id != [0; 16] && span_id != [0; 8]).then_some(Self { trace_id, span_id, flags })
    }

    /// Whether the trace is sampled.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The trace id in hexadecimal digits.
    pub fn trace_id_text(&self) -> String {
        let mut text = vec![0; 32];
        write_hex(&self.trace_id, &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// The value of `traceparent`.
    pub fn to_traceparent(self) -> [u8; TRACEPARENT_BYTES] {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&self.trace_id, &mut text[3..35]);
        write_hex(&self.span_id, &mut text[36..52]);
        write_hex(&[self.flags], &mut text[53..55]);
        text
    }
}

impl RemoteParent {
    /// A parent of the same trace, as the headers of another node name it.
    pub fn new(context: SpanContext, state: Option<&str>) -> Self {
        let state = state.filter(|state| !state.is_empty() && state.len() <= MAX_STATE_BYTES).map(str::to_owned);
        Self { context, state, link: None }
    }

    /// Links the span that the transport names, unless it is this parent.
    #[must_use]
    pub fn with_link(self, transport: Option<SpanContext>) -> Self {
        let link = transport.filter(|transport| transport.span_id != self.context.span_id);
        Self { link, ..self }
    }
}

impl TraceHeaders {
    pub(super) fn new(context: SpanContext, state: Option<&str>) -> Option<Self> {
        let parent = HeaderValue::from_bytes(&context.to_traceparent()).ok()?;
        Some(Self { parent, state: state.and_then(|state| HeaderValue::from_str(state).ok()) })
    }
}

impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.to_traceparent()).unwrap_or_default())
    }
}

/// Reads lower-case hexadecimal digits, as W3C wants them.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |letter: u8| match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'a'..=b'f' => Some(letter - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    (text.len() == 2 * N).then_some(bytes)
}

fn write_hex(bytes: &[u8], text: &mut [u8]) {
    for (byte, pair) in bytes.iter().zip(text.as_chunks_mut().0) {
        *pair = HEX_DIGITS[usize::from(*byte)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_valid_traceparent_is_read_and_written_as_it_was() {
        let context = SpanContext::parse(PARENT.as_bytes()).unwrap();
        assert!(context.is_sampled());
        assert_eq!(context.to_string(), PARENT);
        assert_eq!(context.trace_id_text(), "0af7651916cd43dd8448eb211c80319c");
        let unsampled = PARENT.replace("-01", "-00");
        assert!(!SpanContext::parse(unsampled.as_bytes()).unwrap().is_sampled());
        // Unknown flags are not passed on; later versions may be longer.
        assert_eq!(SpanContext::parse(PARENT.replace("-01", "-ff").as_bytes()).unwrap().to_string()[53..], *"03");
        for later in [PARENT.replace("00-0", "01-0"), format!("{}-more", PARENT.replace("00-0", "cc-0"))] {
            assert_eq!(SpanContext::parse(later.as_bytes()).unwrap().to_string(), PARENT, "{later}");
        }
    }

    #[test]
    fn an_invalid_traceparent_is_ignored() {
        for invalid in [
            String::new(),
            "00".to_owned(),
            PARENT[..54].to_owned(),
            format!("{PARENT}-more"),
            format!("{PARENT} "),
            PARENT.replace("00-0", "ff-0"),
            PARENT.replace("00-0", "0g-0"),
            format!("{}more", PARENT.replace("00-0", "01-0")),
            PARENT.replace("0af7", "0AF7"),
            PARENT.replace('-', "_"),
            PARENT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            PARENT.replace("b7ad6b7169203331", &"0".repeat(16)),
            PARENT.replace("-01", "-x1"),
            PARENT.replace("0af7", "ä7"),
        ] {
            assert_eq!(SpanContext::parse(invalid.as_bytes()), None, "{invalid}");
        }
    }

    #[test]
    fn a_long_tracestate_is_left_out() {
        let context = SpanContext::parse(PARENT.as_bytes()).unwrap();
        assert_eq!(RemoteParent::new(context, Some("a=1")).state.as_deref(), Some("a=1"));
        assert_eq!(RemoteParent::new(context, Some(&"a".repeat(513))).state, None);
        assert_eq!(RemoteParent::new(context, Some("")).state, None);
    }
}
