//! Configuration of one upstream.

use std::sync::Arc;
use std::time::Duration;

use crate::dialect::LegRule;
use crate::local::rest;
use crate::mcp_client::{ConnectionSettings, Target};

/// Configuration of an upstream. A reload keeps the running upstream when the new spec is equal.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamSpec {
    /// Configured name; the prefix of names and URIs in groups with several servers.
    pub name: Arc<str>,
    /// Built in, remote or an HTTP API.
    pub kind: SpecKind,
    /// Timeouts and limits of its connections.
    pub settings: ConnectionSettings,
    /// One connection per client, or one for all.
    pub connection_mode: ConnectionMode,
    /// Which leg serves a client where the server speaks both eras.
    pub leg_rule: LegRule,
    /// Leases open at the same time.
    pub max_leases: usize,
    /// Leases that the calls of one principal without a session may have.
    pub max_leases_per_caller: usize,
    /// Idle time after which a lease of callers without a session is closed.
    pub lease_idle_timeout: Duration,
    /// How often lists are re-read when the server neither sends list-changed notifications nor a TTL.
    pub list_poll_interval: Duration,
    /// How long cached lists are served while the upstream is down.
    pub serve_stale_for: Duration,
    /// Whether server requests are forwarded to clients.
    pub allow_server_requests: bool,
    /// Fingerprint of the files that the configuration refers to; a different one makes it another upstream.
    pub file_fingerprint: u64,
}

/// Kind of upstream.
#[derive(Debug, Clone, PartialEq)]
pub enum SpecKind {
    /// The built-in periodic table, with its spotlight interval.
    Elements(Duration),
    /// An MCP server reached over a transport.
    Target(Target),
    /// An HTTP API whose operations are tools.
    Rest(rest::RestSpec),
}

/// How clients share connections to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionMode {
    /// One lease per client, where the server keeps sessions.
    #[default]
    PerClient,
    /// One connection for all clients; the server cannot send requests to them.
    Shared,
}

impl ConnectionMode {
    /// Value of the `connection` setting.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PerClient => "per-client",
            Self::Shared => "shared",
        }
    }
}

impl UpstreamSpec {
    /// Whether the server runs in this process: no connection, no server requests.
    pub fn is_local(&self) -> bool {
        matches!(self.kind, SpecKind::Elements(_) | SpecKind::Rest(_))
    }

    /// Whether the server is a child process.
    pub fn is_child(&self) -> bool {
        matches!(self.kind, SpecKind::Target(Target::Command(_)))
    }

    /// By what kind of configured credential it is called, as far as the configuration has one: `headers`, `query`, `env`
    /// or `none`; `None` for what has no server behind it.
    pub fn credential_kind(&self) -> Option<&'static str> {
        let (has_headers, other) = match &self.kind {
            SpecKind::Elements(_) => return None,
            SpecKind::Target(Target::Url(address)) => (!address.headers.is_empty(), "none"),
            SpecKind::Target(Target::Command(command)) => {
                (false, if command.environment.is_empty() { "none" } else { "env" })
            }
            SpecKind::Rest(spec) => (!spec.headers.is_empty(), if spec.query.is_empty() { "none" } else { "query" }),
        };
        Some(if has_headers { "headers" } else { other })
    }

    /// Whether this is the built-in periodic table.
    pub fn is_built_in(&self) -> bool {
        matches!(self.kind, SpecKind::Elements(_))
    }

    /// A spec with default settings.
    pub fn new(name: &str, kind: SpecKind) -> Self {
        Self {
            name: name.into(),
            kind,
            settings: ConnectionSettings::default(),
            connection_mode: ConnectionMode::default(),
            leg_rule: LegRule::default(),
            max_leases: 256,
            max_leases_per_caller: 32,
            lease_idle_timeout: Duration::from_secs(300),
            list_poll_interval: Duration::from_secs(60),
            serve_stale_for: Duration::from_secs(300),
            allow_server_requests: true,
            file_fingerprint: 0,
        }
    }
}
