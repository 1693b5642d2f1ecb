//! OTLP: the protobuf messages of traces, as `opentelemetry/proto/collector/trace/v1` defines them.

use super::context::SpanContext;
use super::span::{AttributeValue, EndedSpan, SpanData};
use crate::otlp::{self, EncodedResource, MessageWriter};

/// `Status.code` of a span that failed.
const STATUS_ERROR: u64 = 2;
/// Flags of a span that say whether its parent is in another process.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;
/// Room for a span; most have less.
const SPAN_BYTES: usize = 512;

/// An `ExportTraceServiceRequest` with these spans.
pub(super) fn export_request(resource: &EncodedResource, spans: &[EndedSpan]) -> Vec<u8> {
    otlp::export_request(resource, spans.len() * SPAN_BYTES, |writer| {
        for span in spans {
            writer.message(2, |writer| write_span(writer, span));
        }
    })
}

fn write_attribute(writer: &mut MessageWriter<'_>, field: u64, key: &str, value: &AttributeValue) {
    match value {
        AttributeValue::Text(text) => writer.text_attribute(field, key, text),
        AttributeValue::Shared(text) => writer.text_attribute(field, key, text),
        AttributeValue::Static(text) => writer.text_attribute(field, key, text),
        AttributeValue::Integer(number) => writer.integer_attribute(field, key, *number),
    }
}

fn write_span(writer: &mut MessageWriter<'_>, span: &SpanData) {
    writer.bytes(1, &span.context.trace_id);
    writer.bytes(2, &span.context.span_id);
    if let Some(state) = &span.state {
        writer.text(3, state);
    }
    if let Some(parent) = &span.parent {
        writer.bytes(4, parent);
    }
    writer.text(5, &span.name);
    writer.number(6, span.kind as u64);
    writer.fixed_64(7, span.started);
    writer.fixed_64(8, span.ended);
    for (key, value) in &span.attributes {
        write_attribute(writer, 9, key, value);
    }
    for link in &span.links {
        writer.message(13, |writer| write_link(writer, link));
    }
    if span.failed {
        writer.message(15, |status| {
            status.text(2, &span.message);
            status.number(3, STATUS_ERROR);
        });
    }
    let remote = if span.parent_is_remote { IS_REMOTE } else { 0 };
    writer.fixed_32(16, u32::from(span.context.flags) | HAS_IS_REMOTE | remote);
}

fn write_link(writer: &mut MessageWriter<'_>, link: &SpanContext) {
    writer.bytes(1, &link.trace_id);
    writer.bytes(2, &link.span_id);
    writer.fixed_32(6, u32::from(link.flags));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::{FieldValue, fields};
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
}
