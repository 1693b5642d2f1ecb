//! Rialto is a gateway between MCP clients and MCP servers of any revision.
//!
//! A call passes the modules in this order: [`http`] reads the request from the socket, [`inbound`] admits it by
//! [`policy`] and parses the envelope ([`protocol`]), [`dialect`] classifies it by era, [`session`] adds what a
//! handshake-era client expects to be remembered, [`gateway`] routes it and maps names, [`upstream`] chooses a
//! connection, and [`mcp_client`] sends it to the server. [`call`] has the two values that travel this path: the call
//! and its replies. `docs/ARCHITECTURE.md` describes the rest.

pub mod cli;

pub mod app;

pub mod http;

pub mod protocol;

pub mod dialect;

pub mod identity;

pub mod issuers;

pub mod call;

pub mod policy;

pub mod store;

pub mod session;

pub mod cluster;

pub mod mcp_client;

pub mod upstream;

pub mod line_log;
pub mod local;

pub mod gateway;

pub mod inbound;

pub mod config;

pub mod console;

pub mod access_log;

pub mod admin;

pub mod audit;

pub mod client;

pub mod error;

pub mod failure;

pub mod metrics;

pub mod metrics_export;

pub mod ndjson;

pub mod otlp;

pub mod recorder;

pub mod recording;

pub mod request_span;

pub mod trace;

pub mod redact;

pub mod shutdown;

mod sync;

pub mod telemetry;

pub mod timer;

pub mod workers;
