//! Address of an upstream, and the settings of connections to it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, Uri};

use crate::dialect::Revision;
use crate::error::{self, Error, Result};
use crate::http::client::HttpClient;
use bytes::Bytes;

/// Where an upstream is reached.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// A child process, over its stdin and stdout.
    Command(Command),
    /// A URL, over Streamable HTTP or HTTP+SSE.
    Url(Address),
}

/// A command to start. `Debug` shows no arguments and no values of variables, which may be secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    /// Name or path of the program.
    pub program: String,
    /// Arguments of the program.
    pub arguments: Vec<String>,
    /// Environment variables beside the inherited ones.
    pub environment: Vec<(String, String)>,
    /// Working directory; that of the gateway by default.
    pub working_directory: Option<PathBuf>,
}

/// A URL with its headers. `Debug` shows neither query nor header values, which may be secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// The URL.
    pub url: Uri,
    /// Headers sent with every request; their values are secrets.
    pub headers: HeaderMap,
    /// The transport; probed if `None`.
    pub transport: Option<HttpTransport>,
}

/// Transports over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpTransport {
    /// Streamable HTTP.
    Streamable,
    /// HTTP+SSE.
    Sse,
}

/// Timeouts and limits of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// The revision; probed if `None`.
    pub revision: Option<Revision>,
    /// Whether a handshake is tried before `server/discover`.
    pub prefers_handshake: bool,
    /// Whether a server request that may belong to several calls goes to the newest of them, as nobody else is there to
    /// take it.
    pub asks_newest_call: bool,
    /// Limit for opening a TCP or TLS connection.
    pub connect_timeout: Duration,
    /// Limit for each response during probe and handshake. Package runners get `startup_timeout` instead.
    pub discovery_timeout: Duration,
    /// Limit for the first response of a command that may have to install itself.
    pub startup_timeout: Duration,
    /// How long a call may go without any message; progress restarts it.
    pub idle_timeout: Duration,
    /// Limit for a whole call, whatever progress it reports.
    pub total_timeout: Duration,
    /// How long a child may take to exit after its stdin was closed, and again after SIGTERM.
    pub stop_timeout: Duration,
    /// Interval of pings on an idle connection, in revisions that have pings.
    pub ping_interval: Option<Duration>,
    /// How long nothing may arrive on a listening stream, over HTTP, before it is opened again.
    pub listen_read_timeout: Option<Duration>,
    /// Limit of one received message, in bytes.
    pub message_bytes: usize,
    /// A result of more bytes is passed on in pieces where nothing has to see all of it; over HTTP.
    pub stream_answers_over: usize,
    /// Limit of the nesting depth of one received message.
    pub json_depth: usize,
    /// Limit of input rounds in one call.
    pub max_input_rounds: u32,
}

impl Target {
    /// A command with its arguments.
    pub fn command(program: impl Into<String>, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::Command(Command {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            working_directory: None,
        })
    }

    /// A URL, without headers and with the transport probed.
    ///
    /// # Errors
    /// When it is not an absolute HTTP URL, or holds credentials.
    pub fn url(url: &str) -> Result<Self> {
        let invalid =
            |reason: &str| Error::usage(format!("{url:?} {reason}; give something like http://127.0.0.1:3001/mcp"));
        let uri: Uri = url.parse().map_err(|_| invalid("is no URL"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.authority().is_none() {
            return Err(invalid("is no HTTP address"));
        }
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(Error::usage("the URL has credentials in it; give them as a header"));
        }
        Ok(Self::Url(Address { url: uri, headers: HeaderMap::new(), transport: None }))
    }

    /// Name of the transport, with Streamable HTTP for a URL that was not probed.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Command(_) => "stdio",
            Self::Url(Address { transport: Some(HttpTransport::Sse), .. }) => "sse",
            Self::Url(_) => "streamable-http",
        }
    }

    /// Adds a header to a URL target.
    ///
    /// # Errors
    /// When the header is invalid, or the target is a command.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self> {
        let Self::Url(address) = &mut self else {
            return Err(Error::usage("headers belong to a URL; a command gets its secrets by environment"));
        };
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_str(value);
        let (Ok(name), Ok(mut value)) = (name, value) else {
            return Err(Error::usage("a header is given as `Name: value`"));
        };
        value.set_sensitive(true);
        address.headers.append(name, value);
        Ok(self)
    }
}

/// Downloads the content of a URL.
///
/// # Errors
/// When the URL is unreachable or the status is not a success.
pub async fn fetch(address: &Address, settings: &ConnectionSettings) -> Result<Bytes> {
    let client = address.http_client(settings);
    let response = client.send(Verb::GET, |_| (), Bytes::new(), Some(settings.discovery_timeout)).await?;
    let status = response.head.status();
    let body = client.read_body(response.body, settings.idle_timeout).await?;
    match status.is_success() {
        true => Ok(body),
        false => Err(Error::from_status(&client.url(), status, error::retry_after(&response.head), &body)),
    }
}

impl Address {
    /// An HTTP client with the URL, headers and limits of this upstream.
    pub(super) fn http_client(&self, settings: &ConnectionSettings) -> HttpClient {
        HttpClient::new(self.url.clone(), self.headers.clone(), settings.connect_timeout, settings.message_bytes)
    }
}

impl Target {
    /// Host and port of the server; `None` for a child process.
    pub(super) fn address(&self) -> Option<(Arc<str>, u16)> {
        let Self::Url(address) = self else { return None };
        let is_tls = address.url.scheme_str() == Some("https");
        let port = address.url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Some((address.url.host()?.into(), port))
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
        let mut debug = f.debug_struct("Command");
        debug.field("program", &self.program).field("arguments", &self.arguments.len());
        debug.field("environment", &names).field("working_directory", &self.working_directory).finish()
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&HeaderName> = self.headers.keys().collect();
        let mut debug = f.debug_struct("Address");
        debug
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
            prefers_handshake: false,
            asks_newest_call: false,
            connect_timeout: Duration::from_secs(10),
            discovery_timeout: Duration::from_secs(10),
            startup_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(60),
            total_timeout: Duration::from_secs(600),
            stop_timeout: Duration::from_secs(2),
            ping_interval: Some(Duration::from_secs(30)),
            listen_read_timeout: Some(Duration::from_secs(300)),
            message_bytes: 16 << 20,
            stream_answers_over: 256 << 10,
            json_depth: 128,
            max_input_rounds: 8,
        }
    }
}
