//! What is known of a call beside its messages, as it is kept in records: fields of a tag, a length and bytes.

use bytes::Bytes;

/// A field of a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SummaryField {
    /// Verb and path of the HTTP request.
    Http,
    /// Program and version of the client.
    Client,
    /// The method.
    Method,
    /// The tool, prompt or resource, as the client calls it.
    Target,
    /// The request id.
    RequestId,
    /// The trace id.
    TraceId,
    /// Who calls.
    Principal,
    /// The group.
    Group,
    /// The session, shortened.
    Session,
    /// The revision of the client.
    ClientRevision,
    /// The transport of the client.
    ClientTransport,
    /// The server.
    Upstream,
    /// The revision of the server.
    ServerRevision,
    /// The transport of the server.
    ServerTransport,
    /// The process id of the child that the server is.
    ServerProcess,
    /// Whether the client has the connection for itself.
    Leased,
    /// How the call ended.
    Outcome,
    /// Why there is no result.
    Reason,
    /// The code of the JSON-RPC error.
    ErrorCode,
    /// The HTTP status.
    Status,
    /// Bytes of the request.
    BytesIn,
    /// Bytes of the response.
    BytesOut,
    /// Nanoseconds that the call took.
    Total,
    /// One of how many calls is recorded.
    OneOf,
    /// The node that served the call for this one.
    RelayedTo,
    /// Whether another node relayed the call to this one.
    Relayed,
}

/// Bytes of the tag and the length of a field.
const FIELD_HEAD: usize = 3;

/// The fields of a summary, encoded.
#[derive(Debug, Default)]
pub struct SummaryWriter(Vec<u8>);

/// The fields of a summary as they were encoded: most are never asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary(Bytes);

impl SummaryWriter {
    /// A writer with room for most summaries.
    pub fn new() -> Self {
        Self(Vec::with_capacity(256))
    }

    /// Adds a text.
    pub fn text(&mut self, field: SummaryField, text: &str) {
        let length = u16::try_from(text.len()).unwrap_or(0);
        self.0.push(field as u8);
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(&text.as_bytes()[..usize::from(length)]);
    }

    /// Adds a number.
    pub fn number(&mut self, field: SummaryField, number: impl itoa::Integer) {
        self.text(field, itoa::Buffer::new().format(number));
    }

    /// The encoded fields.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Summary {
    /// Keeps fields; a part of one at the end is left out.
    pub fn decode(bytes: &[u8]) -> Self {
        let length = fields(bytes).map(|(_, text)| FIELD_HEAD + text.len()).sum();
        Self(Bytes::copy_from_slice(&bytes[..length]))
    }

    /// The text of a field.
    pub fn get(&self, field: SummaryField) -> Option<&str> {
        let (_, text) = fields(&self.0).find(|(tag, _)| *tag == field as u8)?;
        str::from_utf8(text).ok()
    }

    /// The number of a field.
    pub fn number<T: std::str::FromStr>(&self, field: SummaryField) -> Option<T> {
        self.get(field)?.parse().ok()
    }
}

/// The tag and the bytes of each field.
fn fields(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [tag, low, high, rest @ ..] = bytes else { return None };
        let (text, after) = rest.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
        bytes = after;
        Some((*tag, text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written() {
        let mut writer = SummaryWriter::new();
        writer.text(SummaryField::Target, "größe\n");
        writer.number(SummaryField::ErrorCode, -32000_i64);
        let summary = Summary::decode(writer.bytes());
        assert_eq!(summary.get(SummaryField::Target), Some("größe\n"));
        assert_eq!(summary.number(SummaryField::ErrorCode), Some(-32000));
        assert_eq!(summary.get(SummaryField::Outcome), None);
        assert_eq!(Summary::decode(&writer.bytes()[..8]), Summary::default(), "a part of a field is none");
    }
}
