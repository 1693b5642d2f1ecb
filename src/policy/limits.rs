//! How large things from outside may be.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The limits on one request. Those on sessions and streams are in
/// [`session::Settings`](crate::session::Settings).
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a body, or of a line on stdio.
    pub body_bytes: usize,
    /// Number of headers.
    pub header_count: usize,
    /// Bytes of all headers together.
    pub header_bytes: usize,
    /// How deep arrays and objects may nest.
    pub json_depth: usize,
    /// Number of messages in a batch.
    pub batch_length: usize,
}

impl Limits {
    /// Whether the headers of a request are few and small enough. The connection has a limit of
    /// its own for what it buffers, but that is coarse.
    pub fn admit_head(&self, headers: &HeaderMap) -> bool {
        let separators = ": \r\n".len();
        let size = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + separators;
        headers.len() <= self.header_count && headers.iter().map(size).sum::<usize>() <= self.header_bytes
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes: 4 << 20, header_count: 100, header_bytes: 64 << 10, json_depth: 128, batch_length: 100 }
    }
}
