//! MCP client for one server, of any revision, over stdio, HTTP+SSE or Streamable HTTP.
//!
//! [`Target`] is the address of a server. [`Connection::open`] probes the server and opens a connection;
//! [`Connection::call`] runs one call through all its input rounds and tasks. Messages of the server that belong to no
//! call are [`Unsolicited`].

mod batch;
mod call;
mod child;
mod connection;
mod duplex;
mod log_limiter;
mod pending_calls;
mod probe;
mod reaper;
mod request_trace;
mod round;
mod server_notes;
mod session_resumption;
mod sse;
mod stderr_log;
mod stdio;
mod streamable;
mod target;
mod task_calls;
mod task_driver;
mod task_registry;
mod unsolicited;

pub use child::running_children;
pub use connection::Connection;
pub use probe::ProbeReport;
pub(crate) use probe::wait_for_response;
pub(crate) use session_resumption::ResumableSession;
pub use stderr_log::{StderrLine, stderr_lines};
pub use target::{Address, Command, ConnectionSettings, HttpTransport, Target, fetch};
pub use unsolicited::Unsolicited;
