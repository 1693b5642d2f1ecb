//! HTTP/1.1 codec, pooled HTTP client and server-sent events.
//!
//! [`codec`] is sans-I/O: it parses and encodes message heads and bodies for both roles. [`client`] sends requests over
//! pooled connections. [`sse`] encodes and decodes event streams. [`read_buffer`] holds bytes read from a connection
//! that the codec has not consumed yet.

pub mod client;
pub mod codec;
pub mod read_buffer;
pub mod sse;
