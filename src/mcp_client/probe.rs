//! Probes an upstream for its transport and revision, and opens a connection to it.
//!
//! Pinned values are not probed. Otherwise `server/discover` is sent first: per-request servers must implement it, and it
//! has no side effects anywhere. Any other outcome leads to a handshake; a URL that refuses POST is tried as HTTP+SSE. A
//! session saved by another node is resumed without a probe.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::sync::mpsc;

use super::Unsolicited;
use super::duplex::Duplex;
use super::session_resumption::ResumableSession;
use super::sse::SseClient;
use super::stdio::StdioClient;
use super::streamable::{ProbeOutcome, StreamableClient};
use super::target::{Address, Command, ConnectionSettings, HttpTransport, Target};
use crate::call::{Replies, Reply};
use crate::dialect::Revision;
use crate::dialect::to_upstream::{self, ClientIdentity, ServerHello, Verdict};
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureKind};
use crate::metrics::NetworkTransport;
use crate::protocol::{Method, Notification, NotificationMethod, Outcome, code};
use crate::recorder::Mark;

/// Client side of each transport.
#[derive(Debug)]
pub(super) enum Transport {
    Stdio(StdioClient),
    Sse(SseClient),
    Http(Arc<StreamableClient>),
}

/// What a transport is to calls: stdio and HTTP+SSE have one connection for everything, Streamable HTTP has a request for
/// each call.
pub(super) enum CallPath<'t> {
    Duplex(&'t Arc<Duplex>),
    Http(&'t Arc<StreamableClient>),
}

/// How the transport and the revision of an upstream were found.
#[derive(Debug, Clone)]
pub struct ProbeReport {
    /// The transport: `stdio`, `sse` or `streamable-http`.
    pub transport: &'static str,
    /// Why the revision was chosen, as a clause.
    pub why: String,
    /// Deviations of the server that a user should know, as clauses.
    pub oddities: Vec<String>,
    /// Duration of probe and handshake.
    pub elapsed: Duration,
}

/// An open transport with the server's answer to the probe or handshake.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) transport: Transport,
    pub(super) hello: ServerHello,
    pub(super) report: ProbeReport,
}

/// Package runners that may install the server first; they get the startup timeout.
const PACKAGE_RUNNERS: [&str; 9] = ["npx", "npm", "bunx", "pnpm", "uvx", "uv", "pipx", "docker", "podman"];

/// Why a handshake was made first.
const HANDSHAKE_PREFERRED: &str = "the handshake leg is preferred";

/// One attempt to connect.
struct Connector<'a> {
    settings: &'a ConnectionSettings,
    identity: &'a ClientIdentity,
    unsolicited: &'a mpsc::Sender<Unsolicited>,
    resumable: Option<&'a Arc<ResumableSession>>,
    oddities: Vec<String>,
}

/// Opens a connection to a target.
pub(super) async fn open(
    target: &Target,
    settings: &ConnectionSettings,
    identity: &ClientIdentity,
    unsolicited: &mpsc::Sender<Unsolicited>,
    resumable: Option<&Arc<ResumableSession>>,
) -> Result<Opened> {
    let started = Instant::now();
    let mut connector = Connector { settings, identity, unsolicited, resumable, oddities: Vec::new() };
    let (transport, hello, why) = match target {
        Target::Command(command) => connector.connect_command(command).await?,
        Target::Url(address) => connector.connect_url(address).await?,
    };
    let name = match &transport {
        Transport::Stdio(_) => "stdio",
        Transport::Sse(_) => "sse",
        Transport::Http(_) => "streamable-http",
    };
    let report = ProbeReport { transport: name, why, oddities: connector.oddities, elapsed: started.elapsed() };
    Ok(Opened { transport, hello, report })
}

type HandshakeResult = (Transport, ServerHello, String);

impl Connector<'_> {
    /// Starts a command. A server that exits on `server/discover` is started again for a handshake.
    async fn connect_command(&mut self, command: &Command) -> Result<HandshakeResult> {
        let name = std::path::Path::new(&command.program).file_name().map(|name| name.to_string_lossy().into_owned());
        let is_package_runner = name.is_some_and(|name| PACKAGE_RUNNERS.contains(&name.as_str()));
        let timeout = if is_package_runner { self.settings.startup_timeout } else { self.settings.discovery_timeout };
        let stdio = StdioClient::start(command, self.settings, self.unsolicited.clone())?;
        let pinned = self.settings.revision;
        if pinned.is_some_and(|revision| revision.opens_with_handshake()) {
            let hello = self.handshake(&stdio.duplex, timeout).await?;
            return Ok((Transport::Stdio(stdio), hello, "the revision is pinned".into()));
        }
        if pinned.is_none()
            && self.settings.prefers_handshake
            && let Ok(hello) = self.handshake(&stdio.duplex, timeout).await
        {
            return Ok((Transport::Stdio(stdio), hello, HANDSHAKE_PREFERRED.into()));
        }
        let why = match self.discover(&stdio.duplex, timeout).await {
            Ok(Verdict::PerRequest(hello)) => {
                return Ok((Transport::Stdio(stdio), *hello, "it answers `server/discover`".into()));
            }
            Ok(verdict) => handshake_reason(verdict, pinned)?,
            Err(error) if pinned.is_some() => return Err(error),
            Err(error) if stdio.duplex.is_closed() => {
                // Some servers exit when the first message is not `initialize`.
                self.oddities.push(format!("it exited after `server/discover` ({error}) and was started again"));
                let restarted = StdioClient::start(command, self.settings, self.unsolicited.clone())?;
                let hello = self.handshake(&restarted.duplex, timeout).await?;
                return Ok((Transport::Stdio(restarted), hello, "it does not know `server/discover`".into()));
            }
            Err(error) => format!("it did not answer `server/discover` ({error})"),
        };
        match self.handshake(&stdio.duplex, timeout).await {
            Ok(hello) => Ok((Transport::Stdio(stdio), hello, why)),
            // It started slowly and responded to `server/discover` after the timeout.
            Err(Error::ErrorResponse(error)) if error.code() == code::UNSUPPORTED_VERSION => {
                match self.discover(&stdio.duplex, timeout).await {
                    Ok(Verdict::PerRequest(hello)) => {
                        self.oddities.push("it was slow to answer `server/discover`".into());
                        Ok((Transport::Stdio(stdio), *hello, "it answers `server/discover`".into()))
                    }
                    _ => Err(Error::ErrorResponse(error)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Connects to a URL: resumes a saved session, probes Streamable HTTP, and falls back to HTTP+SSE.
    async fn connect_url(&mut self, address: &Address) -> Result<HandshakeResult> {
        if address.transport == Some(HttpTransport::Sse) {
            return self.connect_sse(address, "the transport is pinned".into()).await;
        }
        let (unsolicited, resumable) = (self.unsolicited.clone(), self.resumable.cloned());
        let http = StreamableClient::new(address, self.settings, self.identity.clone(), unsolicited, resumable);
        if let Some(saved) = self.resumable.and_then(|resumable| resumable.load()) {
            let hello = http.resume(saved).await;
            return Ok((Transport::Http(http), hello, "its session was opened by another node".into()));
        }
        let pinned = self.settings.revision;
        if pinned.is_none()
            && self.settings.prefers_handshake
            && let Ok(hello) = self.initialize_http(&http, Revision::NEWEST_HANDSHAKE).await
        {
            return Ok((Transport::Http(http), hello, HANDSHAKE_PREFERRED.into()));
        }
        let why = if pinned.is_some_and(|revision| revision.opens_with_handshake()) {
            "the revision is pinned".to_owned()
        } else {
            match self.discover_http(&http).await? {
                Verdict::PerRequest(hello) => {
                    http.set_revision(hello.revision);
                    return Ok((Transport::Http(http), *hello, "it answers `server/discover`".into()));
                }
                verdict => handshake_reason(verdict, pinned)?,
            }
        };
        let proposed = pinned.unwrap_or(Revision::NEWEST_HANDSHAKE);
        match self.initialize_http(&http, proposed).await {
            Ok(hello) => Ok((Transport::Http(http), hello, why)),
            Err(error) if address.transport.is_none() && refuses_post(&error) => {
                let sse = self.connect_sse(address, format!("it takes no POST ({error})")).await;
                sse.map_err(|_| error)
            }
            Err(error) => Err(error),
        }
    }

    /// Performs the `initialize` handshake over Streamable HTTP.
    async fn initialize_http(&mut self, http: &Arc<StreamableClient>, proposed: Revision) -> Result<ServerHello> {
        let mut guard = CloseUnlessOpened(Some(Arc::clone(http)));
        let hello = http.initialize(proposed).await?;
        guard.0 = None;
        if http.session_id().is_none() {
            self.oddities.push("it opens no session".into());
        }
        Ok(hello)
    }

    async fn connect_sse(&mut self, address: &Address, why: String) -> Result<HandshakeResult> {
        let sse = SseClient::open(address, self.settings, self.unsolicited.clone()).await?;
        let hello = self.handshake(&sse.duplex, self.settings.discovery_timeout).await?;
        Ok((Transport::Sse(sse), hello, why))
    }

    /// Sends `server/discover` on a bidirectional connection, a second time if the server offers another revision.
    async fn discover(&self, duplex: &Duplex, timeout: Duration) -> Result<Verdict> {
        let mut revision = self.settings.revision.unwrap_or(Revision::NEWEST);
        for may_renegotiate in [true, false] {
            let params = to_upstream::request_params(None, revision, || self.identity.clone(), None);
            let replies = duplex.call((Method::Discover, params), None, revision, (Mark::NONE, None));
            let outcome = wait_for_response(replies, timeout, "`server/discover`").await?;
            if duplex.is_closed() {
                return Err(duplex.closed().await.into());
            }
            match to_upstream::parse_discover_outcome(&outcome, may_renegotiate) {
                Verdict::Renegotiate(other) => revision = other,
                verdict => return Ok(verdict),
            }
        }
        Err(Error::failure(FailureKind::NoCommonRevision, "it offers revisions that it then refuses"))
    }

    async fn discover_http(&self, http: &StreamableClient) -> Result<Verdict> {
        let mut revision = self.settings.revision.unwrap_or(Revision::NEWEST);
        for may_renegotiate in [true, false] {
            match http.probe(revision).await? {
                ProbeOutcome::Status(status) => {
                    return Ok(Verdict::Handshake(format!("it answered `server/discover` with {status}")));
                }
                ProbeOutcome::Outcome(outcome) => {
                    match to_upstream::parse_discover_outcome(&outcome, may_renegotiate) {
                        Verdict::Renegotiate(other) => revision = other,
                        verdict => return Ok(verdict),
                    }
                }
            }
        }
        Err(Error::failure(FailureKind::NoCommonRevision, "it offers revisions that it then refuses"))
    }

    /// Performs the `initialize` handshake on a bidirectional connection.
    async fn handshake(&self, duplex: &Duplex, timeout: Duration) -> Result<ServerHello> {
        let pinned = self.settings.revision.filter(|revision| revision.opens_with_handshake());
        let proposed = pinned.unwrap_or(Revision::NEWEST_HANDSHAKE);
        let params = to_upstream::initialize_params(proposed, self.identity).into();
        let replies = duplex.call((Method::Initialize, Some(params)), None, proposed, (Mark::NONE, None));
        let result = match wait_for_response(replies, timeout, "`initialize`").await? {
            Ok(result) => result,
            Err(_) if duplex.is_closed() => return Err(duplex.closed().await.into()),
            Err(object) => return Err(Error::from_error_object(object)),
        };
        let hello = to_upstream::parse_initialize_result(&result)
            .map_err(|why| Error::failure(FailureKind::NoCommonRevision, why))?;
        duplex.notify(&Notification::new(NotificationMethod::Initialized, None)).await;
        Ok(hello)
    }
}

/// The reason for a handshake, or the error if the verdict allows none.
fn handshake_reason(verdict: Verdict, pinned: Option<Revision>) -> Result<String> {
    match verdict {
        Verdict::Handshake(reason) => match pinned {
            None => Ok(reason),
            Some(revision) => Err(Error::failure(
                FailureKind::NoCommonRevision,
                format!("the revision is pinned to {revision}, but {reason}"),
            )),
        },
        Verdict::UnsupportedRevision(offered) => Err(Error::failure(
            FailureKind::NoCommonRevision,
            format!("it supports only {}, and we do not", offered.join(", ")),
        )),
        Verdict::Renegotiate(_) | Verdict::PerRequest(_) => {
            Err(Error::failure(FailureKind::NoCommonRevision, "it offers revisions that it then refuses"))
        }
    }
}

/// Whether an error to `initialize` means that the URL may be an HTTP+SSE endpoint, as the specification describes.
fn refuses_post(error: &Error) -> bool {
    let statuses = [
        StatusCode::BAD_REQUEST,
        StatusCode::NOT_FOUND,
        StatusCode::METHOD_NOT_ALLOWED,
        StatusCode::NOT_ACCEPTABLE,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        StatusCode::NOT_IMPLEMENTED,
    ];
    matches!(error.kind(), Some(FailureKind::Status(status)) if statuses.iter().any(|known| known.as_u16() == status))
}

impl Transport {
    /// The way that calls take.
    pub(super) fn path(&self) -> CallPath<'_> {
        match self {
            Self::Stdio(stdio) => CallPath::Duplex(&stdio.duplex),
            Self::Sse(sse) => CallPath::Duplex(&sse.duplex),
            Self::Http(http) => CallPath::Http(http),
        }
    }

    /// The client of Streamable HTTP.
    pub(super) fn http(&self) -> Option<&Arc<StreamableClient>> {
        match self.path() {
            CallPath::Http(http) => Some(http),
            CallPath::Duplex(_) => None,
        }
    }

    /// The one connection of the other transports.
    pub(super) fn duplex(&self) -> Option<&Arc<Duplex>> {
        match self.path() {
            CallPath::Duplex(duplex) => Some(duplex),
            CallPath::Http(_) => None,
        }
    }

    /// The transport, as a word.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Stdio(_) => "stdio",
            Self::Sse(_) => "sse",
            Self::Http(_) => "http",
        }
    }

    /// What the network sees of it.
    pub(super) fn network(&self) -> NetworkTransport {
        match self {
            Self::Stdio(_) => NetworkTransport::Pipe,
            Self::Sse(_) | Self::Http(_) => NetworkTransport::Tcp,
        }
    }

    /// The process id of the child that the server is.
    pub(super) fn process(&self) -> Option<u32> {
        match self {
            Self::Stdio(stdio) => stdio.process,
            Self::Sse(_) | Self::Http(_) => None,
        }
    }

    /// Closes the connection, the session and the child process that it has.
    pub(super) async fn close(&self) {
        match self {
            Self::Stdio(stdio) => stdio.close().await,
            Self::Sse(sse) => sse.close(),
            Self::Http(http) => http.close().await,
        }
    }
}

/// Waits for the final response of a request; notifications and server requests are dropped. `what` names the request
/// in the timeout error.
pub(crate) async fn wait_for_response(mut replies: Replies, timeout: Duration, what: &str) -> Result<Outcome> {
    let response = async {
        loop {
            match replies.next().await {
                Some(Reply::End(answer)) => return answer.outcome,
                Some(_) => {}
                None => return Err(Failure::new(FailureKind::Broken, format!("no answer to {what} came")).into()),
            }
        }
    };
    match tokio::time::timeout(timeout, response).await {
        Ok(outcome) => Ok(outcome),
        Err(_) => {
            Err(Error::failure(FailureKind::Silent(timeout), format!("no response to {what} within {timeout:?}")))
        }
    }
}

/// Closes a session whose handshake was abandoned, so that none is left open at the server.
struct CloseUnlessOpened(Option<Arc<StreamableClient>>);

impl Drop for CloseUnlessOpened {
    fn drop(&mut self) {
        if let (Some(http), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { http.close().await });
        }
    }
}
