//! Rialto is a gateway between MCP clients and MCP servers of any revision.
//!
//! A call passes the modules in this order: [`http`] reads the request from the socket, [`inbound`] admits it by
//! [`policy`] and parses the envelope ([`protocol`]), [`dialect`] classifies it by era, [`session`] adds what a
//! handshake-era client expects to be remembered, [`gateway`] routes it and maps names, [`upstream`] chooses a
//! connection, and [`mcp_client`] sends it to the server. [`call`] has the two values that travel this path: the call
//! and its replies. `docs/ARCHITECTURE.md` describes the rest.

/// The command line: `rialto serve`, `stdio`, `check`, `status` and the client commands.
pub mod cli;

/// Wiring: builds the gateway from settings. The only module that knows every other.
pub mod app;

/// HTTP without MCP: a sans-I/O HTTP/1.1 codec, client connections with a pool, SSE framing.
pub mod http;

/// MCP messages: JSON-RPC envelope, raw payloads and edits, methods. Pure.
pub mod protocol;

/// How revisions differ. Pure, and the only module that compares revisions or eras.
pub mod dialect;

/// The two values that travel through the gateway: a call and its replies.
pub mod call;

/// Admission: host and origin, principals, limits.
pub mod policy;

/// What must outlive a connection or a node: session and event stores, in memory or in Redis.
pub mod store;

/// Handshake-era state: session registry, outbox, streams, persistence.
pub mod session;

/// Several nodes with one store: membership, relay client and server, affinity.
pub mod cluster;

/// Speaks MCP to one server: probe, transports, calls with input rounds and tasks.
pub mod mcp_client;

/// One configured server and its supervision: legs, catalog, leases, health.
pub mod upstream;

/// Servers inside this process: the built-in `elements`, and REST APIs described by OpenAPI.
pub mod local;

/// Groups of upstreams: view, routing, name mapping, parked calls, request state, subscriptions.
pub mod gateway;

/// Client-facing transports: Streamable HTTP for both eras, HTTP+SSE, stdio.
pub mod inbound;

/// The configuration file: keys, reader, model, import of `mcp.json`, watcher.
pub mod config;

/// Health, metrics and status for operators.
pub mod admin;

/// The public client library, on top of [`mcp_client`].
pub mod client;

/// Errors as values: what failed, and whether the call can have run.
pub mod error;

/// Call counters and histograms, rendered for Prometheus.
pub mod metrics;

/// Newline-delimited JSON: bounded line reading for stdio.
pub mod ndjson;

/// Graceful shutdown in stages.
pub mod shutdown;

/// Logging to standard error.
pub mod telemetry;

/// Timers from a pool, for timeouts on the hot path.
pub mod timer;

/// One single-threaded runtime per worker thread.
pub mod workers;
