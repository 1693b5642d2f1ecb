//! MCP messages: JSON-RPC envelopes, raw payloads and method names.
//!
//! Pure: no I/O, no clock, nothing that depends on a revision. Payloads have no typed model; they stay the
//! bytes received, and [`json::Edit`] edits single members.

mod answer_scanner;
mod checker;
mod envelope;
pub mod json;
pub mod jsonrpc;
pub mod level;
pub mod method;
pub mod payload;
mod scan;
mod skipped_id;
mod valid;

pub use answer_scanner::{AnswerFault, AnswerScanner, ScannedResultType};
pub use json::{Edit, Raw};
pub use jsonrpc::{
    DepthChecked, ErrorObject, Id, Incoming, Invalid, Message, Notification, Outcome, Request, Response, code,
};
pub use level::Level;
pub use method::{Method, NotificationMethod};
pub use payload::{Key, Payload};
pub use skipped_id::{IdScanner, SkippedId};
