//! Where an upstream is, and how patient we are with it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, Uri};

use crate::dialect::Revision;
use crate::error::{Error, ErrorKind, Result};
use crate::http::client::HttpClient;
use bytes::Bytes;

/// Where an upstream is.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// A process that we start, on its standard input and output.
    Command(Command),
    /// An address.
    Url(Address),
}

/// A process to start.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Environment variables that it gets beside the few that every child gets.
    pub environment: Vec<(String, String)>,
    /// Where it runs; here when nothing is said.
    pub folder: Option<PathBuf>,
}

/// An address to call.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// The URL.
    pub url: Uri,
    /// Headers to send along. Their values are secrets.
    pub headers: HeaderMap,
    /// The transport, if it is not to be found out.
    pub transport: Option<HttpTransport>,
}

/// The two transports over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpTransport {
    /// Streamable HTTP.
    Streamable,
    /// HTTP+SSE.
    Sse,
}

/// How an upstream is treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// The revision to speak, if it is not to be found out.
    pub revision: Option<Revision>,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long an answer may take to begin while we find out what is there. A command that has
    /// to install itself first may take `first_start`.
    pub discovery_timeout: Duration,
    /// How long a command may take to say its first word.
    pub startup_timeout: Duration,
    /// How long a call may be silent. Progress begins this time anew.
    pub idle_timeout: Duration,
    /// How long a call may take in all, whatever it reports.
    pub total_timeout: Duration,
    /// How long a child may take to end after its input was closed, and again after it was told to.
    pub stop_timeout: Duration,
    /// How often a quiet connection is pinged, where the revision has pings.
    pub ping_interval: Option<Duration>,
    /// The largest message that is read.
    pub message_bytes: usize,
    /// How often a call may be asked for input before it is given up.
    pub max_input_rounds: u32,
}

impl Target {
    /// A command line: a program and its arguments.
    pub fn command(program: impl Into<String>, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::Command(Command {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            folder: None,
        })
    }

    /// An address.
    ///
    /// # Errors
    /// When it is not an absolute URL of HTTP.
    pub fn url(url: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::new(ErrorKind::Usage, format!("{url:?} {why}; give something like http://127.0.0.1:3001/mcp"))
        };
        let uri: Uri = url.parse().map_err(|_| wrong("is no URL"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.authority().is_none() {
            return Err(wrong("is no HTTP address"));
        }
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(wrong("has credentials in it; give them as a header"));
        }
        Ok(Self::Url(Address { url: uri, headers: HeaderMap::new(), transport: None }))
    }

    /// The transport that reaches it, as far as that is plain.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Command(_) => "stdio",
            Self::Url(Address { transport: Some(HttpTransport::Sse), .. }) => "sse",
            Self::Url(_) => "streamable-http",
        }
    }

    /// The same address with a header to send along.
    ///
    /// # Errors
    /// When it is no header, or the target is a command.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self> {
        let Self::Url(address) = &mut self else {
            return Err(Error::new(
                ErrorKind::Usage,
                "headers belong to a URL; a command gets its secrets by environment",
            ));
        };
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_str(value);
        let (Ok(name), Ok(mut value)) = (name, value) else {
            return Err(Error::new(ErrorKind::Usage, "a header is given as `Name: value`"));
        };
        value.set_sensitive(true);
        address.headers.append(name, value);
        Ok(self)
    }
}

/// Reads what is at an address.
///
/// # Errors
/// When it cannot be reached, or answers with anything but success.
pub async fn fetch(address: &Address, settings: &ConnectionSettings) -> Result<Bytes> {
    let web = address.client(settings);
    let response = web.send(Verb::GET, |_| (), Bytes::new(), Some(settings.discovery_timeout)).await?;
    let status = response.head.status();
    let body = web.read(response.body, settings.idle_timeout).await?;
    if status.is_success() { Ok(body) } else { Err(Error::refused(&web.url(), status, &body)) }
}

impl Address {
    /// An HTTP client for it.
    pub(super) fn client(&self, settings: &ConnectionSettings) -> HttpClient {
        HttpClient::new(self.url.clone(), self.headers.clone(), settings.connect_timeout, settings.message_bytes)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Arguments and queries may hold secrets.
            Self::Command(command) => f.write_str(&command.program),
            Self::Url(address) => f.write_str(&crate::http::client::redacted(&address.url)),
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.environment.iter().map(|(name, _)| name).collect();
        let mut shown = f.debug_struct("Command");
        shown.field("program", &self.program).field("arguments", &self.arguments.len());
        shown.field("environment", &names).field("folder", &self.folder).finish()
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&HeaderName> = self.headers.keys().collect();
        let mut shown = f.debug_struct("Address");
        shown
            .field("url", &crate::http::client::redacted(&self.url))
            .field("headers", &names)
            .field("transport", &self.transport)
            .finish()
    }
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        Self {
            revision: None,
            connect_timeout: Duration::from_secs(10),
            discovery_timeout: Duration::from_secs(10),
            startup_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(60),
            total_timeout: Duration::from_secs(600),
            stop_timeout: Duration::from_secs(2),
            ping_interval: Some(Duration::from_secs(30)),
            message_bytes: 16 << 20,
            max_input_rounds: 8,
        }
    }
}
