//! Rialto stands between every MCP client and every MCP server.
//!
//! The modules, in the order in which a call meets them:
//!
//! - [`inbound`] takes it from a socket or from standard input,
//! - [`policy`] decides whether it may come in,
//! - [`protocol`] says what a message is, and [`dialect`] how revisions of it differ,
//! - [`session`] remembers what clients of the handshake era expect, with [`store`] for what must
//!   outlive a connection,
//! - [`gateway`] finds the group and the upstream that answer,
//! - [`upstream`] reaches that; [`elements`] is one that is built in,
//! - [`exchange`] holds the two values that travel this line, the call and its replies.
//!
//! [`config`] reads the file that names the upstreams and groups, [`app`] puts all together, [`cli`] is
//! the command line. `docs/ARCHITECTURE.md` tells the rest.

pub mod admin;

pub mod app;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod config;
pub mod dialect;

pub mod call;
pub mod error;
pub mod gateway;
pub mod http;
pub mod inbound;
pub mod local;
pub mod mcp_client;
pub mod metrics;
pub mod ndjson;
pub mod policy;
pub mod protocol;
pub mod session;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod timer;
pub mod upstream;
pub mod workers;
