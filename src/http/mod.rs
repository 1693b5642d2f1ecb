//! HTTP/1.1 codec, HTTP server, pooled HTTP client and server-sent events. Knows nothing of MCP.
//!
//! [`codec`] is sans-I/O: it parses and encodes message heads and bodies for both roles. [`server`] serves
//! one connection. [`client`] sends requests over pooled connections. [`sse`] encodes and decodes event streams. [`read_buffer`] holds bytes read from a connection
//! that the codec has not consumed yet.

pub mod client;
pub mod codec;
pub mod read_buffer;
pub mod server;
pub mod sse;
mod write;
