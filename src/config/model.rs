//! The checked configuration, from which the application is built.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::settings::{ApiKeySettings, GroupSettings, TopLevelSection, UpstreamSettings};
use super::suggest::nearest;
use super::tls_files::tls_files;
use crate::gateway::DEFAULT_GROUP;
use crate::http::server::TlsServer;
use crate::issuers::KeySource;
use crate::local::rest;
use crate::mcp_client::Target;
use crate::policy::rules::ScopeHierarchy;
use crate::store::redis::{REDIS_URL_FORMS, RedisAddress};

/// The content of a configuration file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The settings, with defaults for those that the file does not set.
    pub settings: TopLevelSection,
    /// All servers in file order, including disabled ones.
    pub servers: Vec<ServerSection>,
    /// All groups in file order; always contains `default`.
    pub groups: Vec<GroupSection>,
    /// The certificate with its key, if `[tls]` names one and the file was read from disk.
    pub tls: Option<Arc<TlsServer>>,
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

/// A secret, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

/// A caller and its bearer token.
#[derive(Clone, PartialEq, Eq)]
pub struct CallerToken {
    /// Caller name, used as the principal.
    pub name: String,
    /// The bearer token.
    pub secret: String,
}

/// Scopes, each with those that it contains.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ContainedScopes(pub ScopeHierarchy);

/// `[access.keys.NAME]`: one API key.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiKeySection {
    /// Name of the key, part of the principal.
    pub name: Arc<str>,
    /// Its digests and rights.
    pub settings: ApiKeySettings,
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
    pub settings: UpstreamSettings,
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
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSection {
    /// Group name, part of its path.
    pub name: Arc<str>,
    /// Enabled servers of the group, in order.
    pub servers: Vec<Arc<str>>,
    /// Naming, filters and page size.
    pub settings: GroupSettings,
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

    /// Files referenced by the configuration (OpenAPI documents, keys, certificates), which the watcher follows too.
    /// `path` is that of the configuration.
    pub fn referenced_files(&self, path: &Path) -> Vec<PathBuf> {
        let file = |server: &ServerSection| match &server.kind {
            ServerKind::Rest(rest::RestSpec { document: Some(rest::DocumentSource::File(path)), .. }) => {
                Some(path.clone())
            }
            _ => None,
        };
        let keys = self.settings.access.issuers.iter().filter_map(|issuer| match &issuer.keys {
            KeySource::File(path) => Some(path.clone()),
            _ => None,
        });
        self.servers.iter().filter_map(file).chain(keys).chain(tls_files(&self.settings.tls, path)).collect()
    }
}

impl Default for Config {
    fn default() -> Self {
        let server = ServerSection::new("elements", ServerKind::Elements);
        let group = GroupSection::new(DEFAULT_GROUP, vec![Arc::clone(&server.name)]);
        Self { settings: TopLevelSection::default(), servers: vec![server], groups: vec![group], tls: None }
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
            settings: UpstreamSettings::default(),
        }
    }
}

impl ServerKind {
    /// Whether the server is a part of Rialto.
    pub fn is_built_in(&self) -> bool {
        matches!(self, Self::Elements)
    }
}

impl GroupSection {
    /// A group with default settings.
    pub fn new(name: &str, servers: Vec<Arc<str>>) -> Self {
        Self { name: name.into(), servers, settings: GroupSettings::default() }
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

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
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
        let mut settings = TopLevelSection::default();
        settings.cluster.sealing_key = Some(Secret("s3cret".into()));
        settings.access.tokens = vec![token];
        let printed = format!("{settings:?} {:?}", settings.cluster.sealing_key);
        assert!(!printed.contains("s3cret") && printed.contains("***") && printed.contains("ann"), "{printed}");
    }
}
