//! HTTP as a library that knows nothing of MCP: the HTTP/1.1 codec, the client with its pool, event streams.
//!
//! [`codec`] is sans-I/O: it turns bytes into heads and bodies and back, for both roles. [`client`] sends requests over
//! pooled connections. [`sse`] is the format of event streams. [`read_buffer`] holds what has arrived on a connection and
//! was not taken yet.

pub mod client;
pub mod codec;
pub mod read_buffer;
pub mod sse;
