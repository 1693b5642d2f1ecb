//! The configuration as it was checked: what the other parts are built from.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::suggest::nearest;
use crate::gateway::{DEFAULT_GROUP, Naming, PAGE};
use crate::local::rest;
use crate::mcp_client::{ConnectionSettings, Target};
use crate::store::redis::{FORMS, RedisAddress};
use crate::telemetry::LogFormat;
use crate::upstream::ConnectionMode;

/// Everything that a file can say. What is an option was left to the command line and the defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where to listen.
    pub listen: Option<SocketAddr>,
    /// How many threads serve clients.
    pub workers: Option<usize>,
    /// Where to listen for administrators; where clients call when nothing is said.
    pub admin: Option<SocketAddr>,
    /// Where sessions and their events are kept.
    pub store: Store,
    /// How nodes that share it work together.
    pub cluster: ClusterSection,
    /// What is logged.
    pub log: Log,
    /// Who may call.
    pub access: Access,
    /// How much and how long clients may take.
    pub limits: LimitsSection,
    /// The servers, in the order of the file, those that are disabled too.
    pub servers: Vec<ServerSection>,
    /// The groups, in the order of the file; one of them is `default`.
    pub groups: Vec<GroupSection>,
}

/// Where sessions and their events are kept.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Store {
    /// In this process.
    #[default]
    Memory,
    /// In Redis, at a URL.
    Redis(String),
}

/// How nodes that share a store work together.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ClusterSection {
    /// The name of this node.
    pub node: Option<String>,
    /// What all keys in the store begin with.
    pub prefix: Option<String>,
    /// How long a node may be silent before others take over.
    pub lease: Option<Duration>,
    /// How long the store may take to answer.
    pub timeout: Option<Duration>,
    /// Seals what clients carry.
    pub sealing_key: Option<String>,
}

/// What is logged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    /// A level, or targets with levels.
    pub filter: Option<String>,
    /// How a line looks.
    pub format: Option<LogFormat>,
}

/// Who may call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    /// Hosts that requests may name beside those of this machine.
    pub hosts: Vec<String>,
    /// Origins whose pages may call beside those of this machine.
    pub origins: Vec<String>,
    /// Headers that travel with a call as part of its caller.
    pub forward_headers: Vec<HeaderName>,
    /// The callers that are known. With none, everybody may call.
    pub tokens: Vec<Token>,
    /// Whether clients may end their sessions by DELETE.
    pub allow_session_delete: Option<bool>,
}

/// A caller and what it is known by.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The name of the caller.
    pub name: String,
    /// The bearer token.
    pub secret: String,
}

/// How much and how long clients may take.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitsSection {
    /// Bytes of a body, or of a line on stdio.
    pub body_bytes: Option<usize>,
    /// Headers of a request.
    pub headers: Option<usize>,
    /// Bytes of the headers of a request together.
    pub header_bytes: Option<usize>,
    /// How deep JSON may nest.
    pub json_depth: Option<usize>,
    /// Messages in a batch.
    pub batch: Option<usize>,
    /// Sessions in all.
    pub sessions: Option<usize>,
    /// Open streams of one session.
    pub streams: Option<usize>,
    /// Running calls of one session.
    pub calls: Option<usize>,
    /// Subscriptions of one session.
    pub subscriptions: Option<usize>,
    /// Events that are kept for one session.
    pub events: Option<usize>,
    /// Bytes of events that are kept for one session.
    pub event_bytes: Option<usize>,
    /// How long events are kept.
    pub event_age: Option<Duration>,
    /// After how long an unused session ends.
    pub session_idle: Option<Duration>,
    /// Calls that may wait in all for answers from clients without a session.
    pub parked_calls: Option<usize>,
    /// Such calls that one caller may have.
    pub parked_calls_per_caller: Option<usize>,
    /// How long a form or an address may take to be answered.
    pub elicitation_timeout: Option<Duration>,
    /// How long sampling or roots may take to be answered.
    pub sampling_timeout: Option<Duration>,
    /// After how long a quiet call is answered with a stream.
    pub sse_after: Option<Duration>,
    /// After how long a quiet stream gets a comment.
    pub sse_heartbeat: Option<Duration>,
    /// How long clients are told to wait before they reconnect.
    pub sse_retry: Option<Duration>,
    /// How long running calls may take to finish at a stop.
    pub shutdown_timeout: Option<Duration>,
}

/// A server that is called.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSection {
    /// Its name: small letters, digits and hyphens.
    pub name: Arc<str>,
    /// Its name as the file has it; other clients allow more letters.
    pub written: Arc<str>,
    /// What it is.
    pub kind: ServerKind,
    /// Whether it is left out.
    pub disabled: bool,
    /// How it is treated.
    pub settings: ConnectionSettings,
    /// How connections to it are shared, if that is not left to its revision.
    pub connection_mode: Option<ConnectionMode>,
    /// Most connections that are lent to clients at once.
    pub max_leases: usize,
    /// After how long an unused connection of callers without a session closes.
    pub lease_idle_timeout: Duration,
    /// How often its lists are read again, if it tells of no changes.
    pub list_poll_interval: Option<Duration>,
    /// How long its lists are served while it is away.
    pub serve_stale_for: Duration,
    /// Whether it may ask clients.
    pub allow_server_requests: bool,
}

/// What a server is.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerKind {
    /// The periodic table that is built in.
    Elements,
    /// A command or an address that speaks MCP.
    Target(Target),
    /// A REST interface that is made a server.
    Rest(rest::RestSpec),
}

/// A set of servers at one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSection {
    /// Its name, which is part of its address.
    pub name: Arc<str>,
    /// Its servers in order, without those that are disabled.
    pub servers: Vec<Arc<str>>,
    /// How names look when there are several servers.
    pub naming: Naming,
    /// Instructions for models, instead of those of the servers.
    pub instructions: Option<String>,
    /// Which tools are served.
    pub tools: FilterSection,
    /// Which prompts are served.
    pub prompts: FilterSection,
    /// Which resources are served, by their URIs.
    pub resources: FilterSection,
    /// Items in one page of a list.
    pub page_size: usize,
}

/// Which names are let through: `*` stands for any letters, `?` for one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilterSection {
    /// Only names that one of these fits; all when there are none.
    pub allow: Vec<String>,
    /// No names that one of these fits.
    pub deny: Vec<String>,
}

// === impl Config ===

impl Config {
    /// The server of that name.
    pub fn server(&self, name: &str) -> Option<&ServerSection> {
        self.servers.iter().find(|server| &*server.name == name)
    }

    /// The group of that name; the default one when there is no name.
    pub fn group(&self, name: Option<&str>) -> Option<&GroupSection> {
        let name = name.unwrap_or(DEFAULT_GROUP);
        self.groups.iter().find(|group| &*group.name == name)
    }

    /// The files that the configuration names and that may change by themselves.
    pub fn files(&self) -> Vec<PathBuf> {
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
            store: Store::Memory,
            cluster: ClusterSection::default(),
            log: Log::default(),
            access: Access::default(),
            limits: LimitsSection::default(),
            servers: vec![server],
            groups: vec![group],
        }
    }
}

// === impl Store ===

impl Store {
    /// Reads `memory` or a URL of Redis; says what is wrong, without showing what may be secret, and
    /// what to write instead.
    pub fn parse(text: &str) -> Result<Self, (&'static str, String)> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        match RedisAddress::parse(text) {
            Ok(_) => Ok(Self::Redis(text.to_owned())),
            Err(_) if nearest(text, &["memory"]).is_some() => Err(("is not known", "did you mean `memory`?".into())),
            Err(_) if !text.contains("://") => {
                Err(("is neither `memory` nor a URL of Redis", format!("for Redis, {FORMS}")))
            }
            Err(why) => Err((why, FORMS.to_owned())),
        }
    }
}

// === impl Server, Group ===

impl ServerSection {
    /// A server that is treated as by default.
    pub fn new(name: &str, kind: ServerKind) -> Self {
        Self {
            name: name.into(),
            written: name.into(),
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
    /// A group that is served as by default.
    pub fn new(name: &str, servers: Vec<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            servers,
            naming: Naming::default(),
            instructions: None,
            tools: FilterSection::default(),
            prompts: FilterSection::default(),
            resources: FilterSection::default(),
            page_size: PAGE,
        }
    }
}

// === What is secret is not shown ===

impl fmt::Display for Store {
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

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for ClusterSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, prefix, lease, timeout, sealing_key: secret } = self;
        f.debug_struct("Cluster")
            .field("node", node)
            .field("prefix", prefix)
            .field("lease", lease)
            .field("timeout", timeout)
            .field("secret", &secret.as_ref().map(|_| "***"))
            .finish()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Token").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let token = Token { name: "ann".into(), secret: "s3cret".into() };
        assert_eq!(format!("{token:?}"), r#"Token("ann")"#);
        let store = Store::Redis("redis://ann:s3cret@h/1".into());
        assert_eq!(format!("{store} {store:?}"), "redis://ann:***@h:6379/1 redis://ann:***@h:6379/1");
        let cluster = ClusterSection { sealing_key: Some("s3cret".into()), ..ClusterSection::default() };
        assert!(!format!("{cluster:?}").contains("s3cret"));
    }
}
