//! Size limits for what clients send.

use crate::http::codec::HeaderFields;

/// Limits of one request. Limits of sessions and streams are in [`SessionSettings`](crate::session::SessionSettings).
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum bytes of a request body, or of a line on stdio.
    pub body_bytes: usize,
    /// Maximum number of headers.
    pub header_count: usize,
    /// Maximum bytes of all headers together.
    pub header_bytes: usize,
    /// Maximum nesting depth of JSON arrays and objects.
    pub json_depth: usize,
    /// Maximum number of messages in a batch.
    pub batch_length: usize,
    /// Maximum bytes of capabilities and client info that a session keeps from `initialize`.
    pub initialize_bytes: usize,
}

impl Limits {
    /// Whether the request headers are within the limits. The HTTP codec has a coarser limit for what it buffers.
    pub fn head_fits(&self, headers: &HeaderFields) -> bool {
        let separators = ": \r\n".len();
        let size = |(name, value): (&[u8], &[u8])| name.len() + value.len() + separators;
        headers.len() <= self.header_count && headers.iter().map(size).sum::<usize>() <= self.header_bytes
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 4 << 20,
            header_count: 100,
            header_bytes: 64 << 10,
            json_depth: 128,
            batch_length: 100,
            initialize_bytes: 4 << 10,
        }
    }
}
