//! Speaks MCP to one server, of whatever revision, over stdio, HTTP+SSE or Streamable HTTP.
//!
//! [`Target`] says where a server is. [`Connection::open`] probes what it speaks and opens a connection;
//! [`Connection::call`] makes one call on it, through all its input rounds and tasks. What the server says outside of any
//! call is [`Unsolicited`].

mod batch;
mod call;
mod child;
mod connection;
mod duplex;
mod probe;
mod reaper;
mod session_resumption;
mod sse;
mod stdio;
mod streamable;
mod target;
mod task_driver;
mod task_registry;
mod unsolicited;

pub use child::children;
pub use connection::Connection;
pub use probe::ProbeReport;
pub(crate) use probe::answer;
pub(crate) use session_resumption::ResumableSession;
pub use target::{Address, Command, ConnectionSettings, HttpTransport, Target, fetch};
pub use unsolicited::Unsolicited;
