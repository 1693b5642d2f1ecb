//! What a message is: JSON-RPC envelopes, raw payloads, method names and event-stream framing.
//!
//! Pure: no I/O, no clock, nothing that depends on a revision. Payloads are never modelled; they
//! stay the bytes that arrived, and [`json::Edit`] changes single members of them.

mod envelope;
pub mod http1;
pub mod json;
pub mod jsonrpc;
pub mod level;
pub mod method;
mod scan;
pub mod sse;
mod valid;

pub use json::{Edit, Raw};
pub use jsonrpc::{ErrorObject, Id, Incoming, Invalid, Message, Notification, Outcome, Request, Response, code};
pub use level::Level;
pub use method::{Method, Notice};
