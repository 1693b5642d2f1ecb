//! The checked configuration, from which the application is built.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::suggest::nearest;
use crate::gateway::{DEFAULT_GROUP, DEFAULT_PAGE_SIZE, Naming};
use crate::local::rest;
use crate::mcp_client::{ConnectionSettings, Target};
use crate::store::redis::{REDIS_URL_FORMS, RedisAddress};
use crate::telemetry::LogFormat;
use crate::upstream::ConnectionMode;

/// The content of a configuration file. `None` means: use the command line flag or the default.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Listen address.
    pub listen: Option<SocketAddr>,
    /// Number of worker threads.
    pub workers: Option<usize>,
    /// Listen address of the admin endpoints; `None` serves them on `listen`.
    pub admin: Option<SocketAddr>,
    /// Session and event store.
    pub store: StoreLocation,
    /// Cluster settings.
    pub cluster: ClusterSection,
    /// Logging settings.
    pub log: LogSection,
    /// Access control.
    pub access: AccessSection,
    /// Limits and timeouts on the client side.
    pub limits: LimitsSection,
    /// All servers in file order, including disabled ones.
    pub servers: Vec<ServerSection>,
    /// All groups in file order; always contains `default`.
    pub groups: Vec<GroupSection>,
}

/// Where sessions and events are stored.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum StoreLocation {
    /// In the memory of this process.
    #[default]
    Memory,
    /// In Redis, at this URL (may contain a password).
    Redis(String),
}

/// `[cluster]`: settings of a node that shares its store with others.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ClusterSection {
    /// Node name, unique in the cluster.
    pub node: Option<String>,
    /// Prefix of all store keys.
    pub prefix: Option<String>,
    /// Node lease: time without a heartbeat after which other nodes take over.
    pub lease: Option<Duration>,
    /// Timeout of a store command.
    pub timeout: Option<Duration>,
    /// Secret that seals the tokens clients carry, such as request state.
    pub sealing_key: Option<String>,
}

/// `[log]`: logging settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogSection {
    /// Log level, or levels per target.
    pub filter: Option<String>,
    /// Log format.
    pub format: Option<LogFormat>,
}

/// `[access]`: who may call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessSection {
    /// Allowed `Host` values besides loopback.
    pub hosts: Vec<String>,
    /// Allowed `Origin` values besides loopback.
    pub origins: Vec<String>,
    /// Request headers of the client that are forwarded to upstream servers.
    pub forward_headers: Vec<HeaderName>,
    /// Known callers. If empty, no token is required.
    pub tokens: Vec<CallerToken>,
    /// Whether clients may end their session with DELETE.
    pub allow_session_delete: Option<bool>,
}

/// A caller and its bearer token.
#[derive(Clone, PartialEq, Eq)]
pub struct CallerToken {
    /// Caller name, used as the principal.
    pub name: String,
    /// The bearer token.
    pub secret: String,
}

/// `[limits]`: limits and timeouts on the client side.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitsSection {
    /// Maximum bytes of a request body, or of a line on stdio.
    pub body_bytes: Option<usize>,
    /// Maximum number of headers in a request.
    pub headers: Option<usize>,
    /// Maximum total bytes of the headers of a request.
    pub header_bytes: Option<usize>,
    /// Maximum JSON nesting depth.
    pub json_depth: Option<usize>,
    /// Maximum messages in a batch.
    pub batch: Option<usize>,
    /// Maximum number of sessions.
    pub sessions: Option<usize>,
    /// Maximum open SSE streams per session.
    pub streams: Option<usize>,
    /// Maximum calls in flight per session.
    pub calls: Option<usize>,
    /// Maximum resource subscriptions per session.
    pub subscriptions: Option<usize>,
    /// Maximum retained events per session.
    pub events: Option<usize>,
    /// Maximum bytes of retained events per session.
    pub event_bytes: Option<usize>,
    /// Retention time of events.
    pub event_age: Option<Duration>,
    /// Idle timeout of a session.
    pub session_idle: Option<Duration>,
    /// Maximum number of parked calls.
    pub parked_calls: Option<usize>,
    /// Maximum number of parked calls per caller.
    pub parked_calls_per_caller: Option<usize>,
    /// Timeout of an elicitation request.
    pub elicitation_timeout: Option<Duration>,
    /// Timeout of a sampling or roots request.
    pub sampling_timeout: Option<Duration>,
    /// Time without a response after which a call is answered with SSE.
    pub sse_after: Option<Duration>,
    /// Idle time of an SSE stream after which a keep-alive comment is sent.
    pub sse_heartbeat: Option<Duration>,
    /// Reconnection delay sent to clients in the SSE `retry` field.
    pub sse_retry: Option<Duration>,
    /// How long calls in flight may take to finish at shutdown.
    pub shutdown_timeout: Option<Duration>,
}

/// `[servers.NAME]`: one upstream server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSection {
    /// Normalized name: lowercase letters, digits and hyphens.
    pub name: Arc<str>,
    /// Name as written in the file; `mcp.json` allows any characters.
    pub original_name: Arc<str>,
    /// Kind of server and how to reach it.
    pub kind: ServerKind,
    /// Whether the server is disabled.
    pub disabled: bool,
    /// Timeouts and limits of connections to the server.
    pub settings: ConnectionSettings,
    /// Per-client or shared connections; `None` lets the server's revision decide.
    pub connection_mode: Option<ConnectionMode>,
    /// Maximum number of leases.
    pub max_leases: usize,
    /// Idle time after which the lease of a per-request client is closed.
    pub lease_idle_timeout: Duration,
    /// Polling interval of lists if the server sends no list-changed notifications; `None` turns polling off.
    pub list_poll_interval: Option<Duration>,
    /// How long cached lists are served while the server is unreachable.
    pub serve_stale_for: Duration,
    /// Whether the server may send requests to clients.
    pub allow_server_requests: bool,
}

/// Kind of a server.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerKind {
    /// The built-in periodic table.
    Elements,
    /// A program or URL that speaks MCP.
    Target(Target),
    /// A REST API exposed as an MCP server.
    Rest(rest::RestSpec),
}

/// `[groups.NAME]`: a set of servers at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSection {
    /// Group name, part of its path.
    pub name: Arc<str>,
    /// Enabled servers of the group, in order.
    pub servers: Vec<Arc<str>>,
    /// Whether names from several servers are prefixed.
    pub naming: Naming,
    /// Instructions for the model; replaces those of the servers.
    pub instructions: Option<String>,
    /// Filter for tools.
    pub tools: FilterSection,
    /// Filter for prompts.
    pub prompts: FilterSection,
    /// Filter for resources, by URI.
    pub resources: FilterSection,
    /// Page size of lists.
    pub page_size: usize,
}

/// Name filter: `*` matches any characters, `?` matches one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilterSection {
    /// Patterns to include; empty includes all.
    pub allow: Vec<String>,
    /// Patterns to exclude; wins over `allow`.
    pub deny: Vec<String>,
}

// === impl Config ===

impl Config {
    /// Finds a server by its normalized name.
    pub fn server(&self, name: &str) -> Option<&ServerSection> {
        self.servers.iter().find(|server| &*server.name == name)
    }

    /// Finds a group; `None` is the default group.
    pub fn group(&self, name: Option<&str>) -> Option<&GroupSection> {
        let name = name.unwrap_or(DEFAULT_GROUP);
        self.groups.iter().find(|group| &*group.name == name)
    }

    /// Files referenced by the configuration (OpenAPI documents), which the watcher follows too.
    pub fn referenced_files(&self) -> Vec<PathBuf> {
        let file = |server: &ServerSection| match &server.kind {
            ServerKind::Rest(rest::RestSpec { document: Some(rest::DocumentSource::File(path)), .. }) => {
                Some(path.clone())
            }
            _ => None,
        };
        self.servers.iter().filter_map(file).collect()
    }
}

impl Default for Config {
    fn default() -> Self {
        let server = ServerSection::new("elements", ServerKind::Elements);
        let group = GroupSection::new(DEFAULT_GROUP, vec![Arc::clone(&server.name)]);
        Self {
            listen: None,
            workers: None,
            admin: None,
            store: StoreLocation::Memory,
            cluster: ClusterSection::default(),
            log: LogSection::default(),
            access: AccessSection::default(),
            limits: LimitsSection::default(),
            servers: vec![server],
            groups: vec![group],
        }
    }
}

// === impl StoreLocation ===

impl StoreLocation {
    /// Parses `memory` or a Redis URL. The error is a message and a hint; neither contains the URL, which may hold a
    /// password.
    pub fn parse(text: &str) -> Result<Self, (&'static str, String)> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        match RedisAddress::parse(text) {
            Ok(_) => Ok(Self::Redis(text.to_owned())),
            Err(_) if nearest(text, &["memory"]).is_some() => Err(("is unknown", "did you mean `memory`?".into())),
            Err(_) if !text.contains("://") => {
                Err(("is neither `memory` nor a Redis URL", format!("for Redis, {REDIS_URL_FORMS}")))
            }
            Err(why) => Err((why, REDIS_URL_FORMS.to_owned())),
        }
    }
}

// === impl ServerSection, GroupSection ===

impl ServerSection {
    /// A server with default settings.
    pub fn new(name: &str, kind: ServerKind) -> Self {
        Self {
            name: name.into(),
            original_name: name.into(),
            kind,
            disabled: false,
            settings: ConnectionSettings::default(),
            connection_mode: None,
            max_leases: 256,
            lease_idle_timeout: Duration::from_secs(300),
            list_poll_interval: Some(Duration::from_secs(60)),
            serve_stale_for: Duration::from_secs(300),
            allow_server_requests: true,
        }
    }
}

impl GroupSection {
    /// A group with default settings.
    pub fn new(name: &str, servers: Vec<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            servers,
            naming: Naming::default(),
            instructions: None,
            tools: FilterSection::default(),
            prompts: FilterSection::default(),
            resources: FilterSection::default(),
            page_size: DEFAULT_PAGE_SIZE,
        }
    }
}

// === Redacted formatting ===

impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Redis(url) => match RedisAddress::parse(url) {
                Ok(address) => write!(f, "{address}"),
                Err(_) => f.write_str("redis://***"),
            },
        }
    }
}

impl fmt::Debug for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for ClusterSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, prefix, lease, timeout, sealing_key } = self;
        f.debug_struct("ClusterSection")
            .field("node", node)
            .field("prefix", prefix)
            .field("lease", lease)
            .field("timeout", timeout)
            .field("sealing_key", &sealing_key.as_ref().map(|_| "***"))
            .finish()
    }
}

impl fmt::Debug for CallerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallerToken").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted() {
        let token = CallerToken { name: "ann".into(), secret: "s3cret".into() };
        assert_eq!(format!("{token:?}"), r#"CallerToken("ann")"#);
        let store = StoreLocation::Redis("redis://ann:s3cret@h/1".into());
        assert_eq!(format!("{store} {store:?}"), "redis://ann:***@h:6379/1 redis://ann:***@h:6379/1");
        let cluster = ClusterSection { sealing_key: Some("s3cret".into()), ..ClusterSection::default() };
        assert!(!format!("{cluster:?}").contains("s3cret"));
    }
}
