//! OTLP: the protobuf messages of traces, as `opentelemetry/proto/collector/trace/v1` defines them.

use super::context::SpanContext;
use super::span::{AttributeValue, EndedSpan, SpanData};
use crate::redact::redact;

/// What all spans of this process have in common.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EncodedResource(Vec<u8>);

/// Writes the fields of one message.
struct MessageWriter<'b>(&'b mut Vec<u8>);

/// The wire types of protobuf.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;
/// `Status.code` of a span that failed.
const STATUS_ERROR: u64 = 2;
/// Flags of a span that say whether its parent is in another process.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;
/// Room for a span; most have less.
const SPAN_BYTES: usize = 512;

impl EncodedResource {
    /// Encodes the attributes of the resource.
    pub(super) fn new<'a>(attributes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut bytes = Vec::new();
        let mut writer = MessageWriter(&mut bytes);
        for (key, value) in attributes {
            writer.attribute(1, key, &AttributeValue::from(value));
        }
        Self(bytes)
    }
}

/// An `ExportTraceServiceRequest` with these spans.
pub(super) fn export_request(resource: &EncodedResource, spans: &[EndedSpan]) -> Vec<u8> {
    let mut scope_spans = Vec::with_capacity(spans.len() * SPAN_BYTES);
    let mut writer = MessageWriter(&mut scope_spans);
    writer.message(1, |scope| {
        scope.text(1, env!("CARGO_PKG_NAME"));
        scope.text(2, env!("CARGO_PKG_VERSION"));
    });
    for span in spans {
        writer.message(2, |writer| writer.span(span));
    }
    let mut request = Vec::with_capacity(scope_spans.len() + resource.0.len() + 32);
    MessageWriter(&mut request).message(1, |resource_spans| {
        resource_spans.bytes(1, &resource.0);
        resource_spans.bytes(2, &scope_spans);
    });
    request
}

/// How many spans the collector says that it rejected, and why, in an `ExportTraceServiceResponse`.
pub(super) fn rejected_spans(response: &[u8]) -> (u64, String) {
    let partial_success = fields(response).find_map(|(field, value)| match value {
        FieldValue::Bytes(bytes) if field == 1 => Some(bytes),
        _ => None,
    });
    let (mut rejected, mut why) = (0, String::new());
    for (field, value) in fields(partial_success.unwrap_or_default()) {
        match value {
            FieldValue::Number(number) if field == 1 => rejected = number,
            FieldValue::Bytes(text) if field == 2 => why = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    (rejected, why)
}

impl MessageWriter<'_> {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
            number >>= 7;
        }
        self.0.push(u8::try_from(number).unwrap_or_default());
    }

    fn tag(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.tag(field, VARINT);
        self.varint(number);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.tag(field, LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A text without the secrets of the configuration.
    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, redact(text).as_bytes());
    }

    fn fixed_64(&mut self, field: u64, number: u64) {
        self.tag(field, FIXED_64);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn fixed_32(&mut self, field: u64, number: u32) {
        self.tag(field, FIXED_32);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// A message within this one: its length is known when it is written.
    fn message(&mut self, field: u64, write: impl FnOnce(&mut MessageWriter<'_>)) {
        let mut inner = Vec::new();
        write(&mut MessageWriter(&mut inner));
        self.bytes(field, &inner);
    }

    fn attribute(&mut self, field: u64, key: &str, value: &AttributeValue) {
        self.message(field, |pair| {
            pair.text(1, key);
            pair.message(2, |any| match value {
                AttributeValue::Text(text) => any.text(1, text),
                AttributeValue::Shared(text) => any.text(1, text),
                AttributeValue::Static(text) => any.text(1, text),
                AttributeValue::Integer(number) => any.number(3, number.cast_unsigned()),
            });
        });
    }

    fn span(&mut self, span: &SpanData) {
        self.bytes(1, &span.context.trace_id);
        self.bytes(2, &span.context.span_id);
        if let Some(state) = &span.state {
            self.text(3, state);
        }
        if let Some(parent) = &span.parent {
            self.bytes(4, parent);
        }
        self.text(5, &span.name);
        self.number(6, span.kind as u64);
        self.fixed_64(7, span.started);
        self.fixed_64(8, span.ended);
        for (key, value) in &span.attributes {
            self.attribute(9, key, value);
        }
        for link in &span.links {
            self.message(13, |writer| writer.link(link));
        }
        if span.failed {
            self.message(15, |status| {
                status.text(2, &span.message);
                status.number(3, STATUS_ERROR);
            });
        }
        let remote = if span.parent_is_remote { IS_REMOTE } else { 0 };
        self.fixed_32(16, u32::from(span.context.flags) | HAS_IS_REMOTE | remote);
    }

    fn link(&mut self, link: &SpanContext) {
        self.bytes(1, &link.trace_id);
        self.bytes(2, &link.span_id);
        self.fixed_32(6, u32::from(link.flags));
    }
}

/// The value of a field of a message that was received.
enum FieldValue<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

/// The fields of a message as far as it can be read; numbers of fixed length are left out.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, FieldValue<'_>)> {
    std::iter::from_fn(move || {
        loop {
            let tag = take_varint(&mut message)?;
            let length = match tag & 7 {
                VARINT => return Some((tag >> 3, FieldValue::Number(take_varint(&mut message)?))),
                LENGTH_DELIMITED => usize::try_from(take_varint(&mut message)?).ok()?,
                FIXED_64 => 8,
                FIXED_32 => 4,
                _ => return None,
            };
            let (bytes, rest) = message.split_at_checked(length)?;
            message = rest;
            if tag & 7 == LENGTH_DELIMITED {
                return Some((tag >> 3, FieldValue::Bytes(bytes)));
            }
        }
    })
}

fn take_varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::span::SpanKind;

    fn span() -> EndedSpan {
        Box::new(SpanData {
            context: SpanContext { trace_id: [0xab; 16], span_id: [0xcd; 8], flags: 1 },
            state: Some("a=1".into()),
            parent: Some([0xef; 8]),
            parent_is_remote: true,
            name: "tools/call x".to_owned(),
            kind: SpanKind::Server,
            started: 1,
            ended: 1 << 40,
            attributes: vec![("n", AttributeValue::Integer(-1)), ("t", AttributeValue::Static("v"))],
            links: Vec::new(),
            failed: true,
            message: "no".to_owned(),
        })
    }

    /// The one field of that number.
    fn only(message: &[u8], wanted: u64) -> Vec<u8> {
        let found: Vec<_> = fields(message).filter(|(field, _)| *field == wanted).collect();
        match found.as_slice() {
            [(_, FieldValue::Bytes(bytes))] => bytes.to_vec(),
            found => panic!("field {wanted} is there {} times", found.len()),
        }
    }

    #[test]
    fn a_span_is_encoded_with_its_resource_and_scope() {
        let resource = EncodedResource::new([("service.name", "it")]);
        let request = export_request(&resource, &[span()]);
        let resource_spans = only(&request, 1);
        let attribute = only(&only(&resource_spans, 1), 1);
        assert_eq!(only(&attribute, 1), b"service.name");
        assert_eq!(only(&only(&attribute, 2), 1), b"it");
        let scope_spans = only(&resource_spans, 2);
        assert_eq!(only(&only(&scope_spans, 1), 1), b"rialto");
        let span = only(&scope_spans, 2);
        assert_eq!(only(&span, 1), [0xab; 16]);
        assert_eq!(only(&span, 2), [0xcd; 8]);
        assert_eq!(only(&span, 3), b"a=1");
        assert_eq!(only(&span, 4), [0xef; 8]);
        assert_eq!(only(&span, 5), b"tools/call x");
        assert_eq!(only(&only(&span, 15), 2), b"no");
        let attributes = fields(&span).filter(|(field, _)| *field == 9).count();
        assert_eq!(attributes, 2);
        let mut end = vec![8 << 3 | 1];
        end.extend_from_slice(&(1u64 << 40).to_le_bytes());
        assert!(span.windows(end.len()).any(|part| part == end), "the end as a fixed number");
        // Negative numbers have ten bytes.
        assert!(span.windows(11).any(|part| part == [3 << 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]));
        assert_eq!(&span[span.len() - 6..], &[0x85, 1, 1, 3, 0, 0], "sampled, and the parent is remote");
    }

    #[test]
    fn a_partial_success_is_read() {
        let mut response = Vec::new();
        MessageWriter(&mut response).message(1, |partial| {
            partial.number(1, 300);
            partial.fixed_32(7, 1);
            partial.text(2, "too many");
        });
        assert_eq!(rejected_spans(&response), (300, "too many".to_owned()));
        assert_eq!(rejected_spans(b""), (0, String::new()));
        for cut in 0..response.len() {
            rejected_spans(&response[..cut]);
        }
        assert_eq!(rejected_spans(&[0xff; 40]).0, 0);
    }
}
