//! What a server is configured to be.

use std::sync::Arc;
use std::time::Duration;

use crate::local::rest;
use crate::mcp_client::{ConnectionSettings, Target};

/// A server as it is configured. Two that are equal need not be told apart.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamSpec {
    /// What it is called here; names and URIs of a group with several servers begin with it.
    pub name: Arc<str>,
    /// What it is.
    pub kind: SpecKind,
    /// How it is treated.
    pub settings: ConnectionSettings,
    /// Whether clients share a connection to it.
    pub connection_mode: ConnectionMode,
    /// How many connections may be lent to clients at once.
    pub max_leases: usize,
    /// After how long an unused connection that was lent to callers without a session is closed.
    pub lease_idle_timeout: Duration,
    /// How often its lists are read again when nothing says whether they changed.
    pub list_poll_interval: Duration,
    /// How long its lists are still served while it is away.
    pub serve_stale_for: Duration,
    /// Whether it may ask clients something.
    pub allow_server_requests: bool,
    /// Stands for what is in the files that it names; it is another server when that changes.
    pub contents: u64,
}

/// What a server is.
#[derive(Debug, Clone, PartialEq)]
pub enum SpecKind {
    /// The built-in periodic table; the element in its spotlight changes this often.
    Elements(Duration),
    /// A server somewhere else.
    Target(Target),
    /// An HTTP API whose operations become tools.
    Rest(rest::RestSpec),
}

/// Whether clients share a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionMode {
    /// Each client has its own, where the server keeps sessions.
    #[default]
    PerClient,
    /// All clients share one, and the server cannot ask them anything.
    Shared,
}

impl ConnectionMode {
    /// Its name in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PerClient => "per-client",
            Self::Shared => "shared",
        }
    }
}

impl UpstreamSpec {
    /// Whether it needs no connection, and asks nobody anything.
    pub fn is_local(&self) -> bool {
        matches!(self.kind, SpecKind::Elements(_) | SpecKind::Rest(_))
    }

    /// Whether it is in this process and never changes.
    pub fn is_built_in(&self) -> bool {
        matches!(self.kind, SpecKind::Elements(_))
    }

    /// A server with nothing but a name and what it is.
    pub fn new(name: &str, kind: SpecKind) -> Self {
        Self {
            name: name.into(),
            kind,
            settings: ConnectionSettings::default(),
            connection_mode: ConnectionMode::default(),
            max_leases: 256,
            lease_idle_timeout: Duration::from_secs(300),
            list_poll_interval: Duration::from_secs(60),
            serve_stale_for: Duration::from_secs(300),
            allow_server_requests: true,
            contents: 0,
        }
    }
}
