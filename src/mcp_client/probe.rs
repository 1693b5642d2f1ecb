//! Finds out what an upstream is, and opens a connection to it.
//!
//! What is pinned is not asked. Otherwise a server is asked `server/discover` first, which those of
//! the newest era must answer and which does nothing anywhere. Whatever else comes back means a
//! handshake; an address that takes no POST is tried as HTTP+SSE. A session that is remembered from
//! another node is gone on with, and nothing is asked.

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
use crate::dialect::to_upstream::{self, ClientIdentity, Extras, ServerHello, Verdict};
use crate::error::{Error, ErrorKind, Result};
use crate::protocol::{Method, Notice, Notification, Outcome, Raw, code};

/// The ways to an upstream.
#[derive(Debug)]
pub(super) enum Transport {
    Stdio(StdioClient),
    Sse(SseClient),
    Http(Arc<StreamableClient>),
}

/// What was found, and how.
#[derive(Debug, Clone)]
pub struct ProbeReport {
    /// The transport: `stdio`, `sse` or `streamable-http`.
    pub transport: &'static str,
    /// Why the revision was chosen.
    pub why: String,
    /// What is worth knowing about the server beyond that.
    pub oddities: Vec<String>,
    /// How long it took to find out.
    pub took: Duration,
}

/// An open way to an upstream that has introduced itself.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) wire: Transport,
    pub(super) introduction: ServerHello,
    pub(super) found: ProbeReport,
}

/// Programs that may have to fetch what they run.
const RUNNERS: [&str; 9] = ["npx", "npm", "bunx", "pnpm", "uvx", "uv", "pipx", "docker", "podman"];

/// What is being connected.
struct Connector<'a> {
    settings: &'a ConnectionSettings,
    speaker: &'a ClientIdentity,
    unsolicited: &'a mpsc::Sender<Unsolicited>,
    notebook: Option<&'a Arc<ResumableSession>>,
    oddities: Vec<String>,
}

/// Opens a connection.
pub(super) async fn open(
    target: &Target,
    settings: &ConnectionSettings,
    speaker: &ClientIdentity,
    unsolicited: &mpsc::Sender<Unsolicited>,
    notebook: Option<&Arc<ResumableSession>>,
) -> Result<Opened> {
    let begun = Instant::now();
    let mut attempt = Connector { settings, speaker, unsolicited, notebook, oddities: Vec::new() };
    let (wire, introduction, why) = match target {
        Target::Command(command) => attempt.command(command).await?,
        Target::Url(address) => attempt.address(address).await?,
    };
    let transport = match &wire {
        Transport::Stdio(_) => "stdio",
        Transport::Sse(_) => "sse",
        Transport::Http(_) => "streamable-http",
    };
    let found = ProbeReport { transport, why, oddities: attempt.oddities, took: begun.elapsed() };
    Ok(Opened { wire, introduction, found })
}

type HandshakeResult = (Transport, ServerHello, String);

impl Connector<'_> {
    async fn command(&mut self, command: &Command) -> Result<HandshakeResult> {
        let name = std::path::Path::new(&command.program).file_name().map(|name| name.to_string_lossy().into_owned());
        let runner = name.is_some_and(|name| RUNNERS.contains(&name.as_str()));
        let patience = if runner { self.settings.startup_timeout } else { self.settings.discovery_timeout };
        let stdio = StdioClient::start(command, self.settings, self.unsolicited.clone())?;
        let pinned = self.settings.revision;
        if pinned.is_some_and(|revision| revision.facts().sessions) {
            let introduction = self.handshake(&stdio.duplex, patience).await?;
            return Ok((Transport::Stdio(stdio), introduction, "the revision is pinned".into()));
        }
        let why = match self.discover(&stdio.duplex, patience).await {
            Ok(Verdict::PerRequest(introduction)) => {
                return Ok((Transport::Stdio(stdio), *introduction, "it answers `server/discover`".into()));
            }
            Ok(verdict) => handshake_reason(verdict, pinned)?,
            Err(error) if pinned.is_some() => return Err(error),
            Err(error) if stdio.duplex.is_closed() => {
                // Some servers end when they are asked something before a handshake.
                self.oddities
                    .push(format!("it ended when it was asked `server/discover` ({error}) and was started again"));
                let again = StdioClient::start(command, self.settings, self.unsolicited.clone())?;
                let introduction = self.handshake(&again.duplex, patience).await?;
                return Ok((Transport::Stdio(again), introduction, "it does not know `server/discover`".into()));
            }
            Err(error) => format!("it did not answer `server/discover` ({error})"),
        };
        match self.handshake(&stdio.duplex, patience).await {
            Ok(introduction) => Ok((Transport::Stdio(stdio), introduction, why)),
            // It was only slow to start, and has answered the question when nobody waited any more.
            Err(error) if error.kind() == ErrorKind::Answer(code::UNSUPPORTED_VERSION) => {
                match self.discover(&stdio.duplex, patience).await {
                    Ok(Verdict::PerRequest(introduction)) => {
                        self.oddities.push("it was slow to answer `server/discover`".into());
                        Ok((Transport::Stdio(stdio), *introduction, "it answers `server/discover`".into()))
                    }
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn address(&mut self, address: &Address) -> Result<HandshakeResult> {
        if address.transport == Some(HttpTransport::Sse) {
            return self.sse(address, "the transport is pinned".into()).await;
        }
        let (said, notebook) = (self.unsolicited.clone(), self.notebook.cloned());
        let http = StreamableClient::new(address, self.settings, self.speaker.clone(), said, notebook);
        if let Some(entry) = self.notebook.and_then(|notebook| notebook.read()) {
            let introduction = http.resume(entry).await;
            return Ok((Transport::Http(http), introduction, "its session was opened elsewhere".into()));
        }
        let pinned = self.settings.revision;
        let why = if pinned.is_some_and(|revision| revision.facts().sessions) {
            "the revision is pinned".to_owned()
        } else {
            match self.discover_http(&http).await? {
                Verdict::PerRequest(introduction) => {
                    http.set_revision(introduction.revision);
                    return Ok((Transport::Http(http), *introduction, "it answers `server/discover`".into()));
                }
                verdict => handshake_reason(verdict, pinned)?,
            }
        };
        let proposed = pinned.unwrap_or(Revision::NEWEST_HANDSHAKE);
        let mut half_open = HalfOpen(Some(Arc::clone(&http)));
        match http.initialize(proposed).await {
            Ok(introduction) => {
                half_open.0 = None;
                if http.session_id().is_none() {
                    self.oddities.push("it opens no session".into());
                }
                Ok((Transport::Http(http), introduction, why))
            }
            Err(error) if address.transport.is_none() && takes_no_post(&error) => {
                let sse = self.sse(address, format!("it takes no POST ({error})")).await;
                sse.map_err(|_| error)
            }
            Err(error) => Err(error),
        }
    }

    async fn sse(&mut self, address: &Address, why: String) -> Result<HandshakeResult> {
        let sse = SseClient::open(address, self.settings, self.unsolicited.clone()).await?;
        let introduction = self.handshake(&sse.duplex, self.settings.discovery_timeout).await?;
        Ok((Transport::Sse(sse), introduction, why))
    }

    /// Asks a two-way connection what it is.
    async fn discover(&self, duplex: &Duplex, patience: Duration) -> Result<Verdict> {
        let mut revision = self.settings.revision.unwrap_or(Revision::NEWEST);
        for again in [true, false] {
            let params = to_upstream::params(None, revision, self.speaker, &Extras::default());
            let replies = duplex.call(Method::Discover, params, None, revision);
            let outcome = answer(replies, patience, "`server/discover`").await?;
            if duplex.is_closed() {
                return Err(duplex.closed().await);
            }
            match to_upstream::verdict(&outcome, again) {
                Verdict::Renegotiate(other) => revision = other,
                verdict => return Ok(verdict),
            }
        }
        Err(Error::new(ErrorKind::Revision, "it offers revisions that it then refuses"))
    }

    async fn discover_http(&self, http: &StreamableClient) -> Result<Verdict> {
        let mut revision = self.settings.revision.unwrap_or(Revision::NEWEST);
        for again in [true, false] {
            match http.probe(revision).await? {
                ProbeOutcome::Status(status) => {
                    return Ok(Verdict::Handshake(format!("it answered `server/discover` with {status}")));
                }
                ProbeOutcome::Outcome(outcome) => match to_upstream::verdict(&outcome, again) {
                    Verdict::Renegotiate(other) => revision = other,
                    verdict => return Ok(verdict),
                },
            }
        }
        Err(Error::new(ErrorKind::Revision, "it offers revisions that it then refuses"))
    }

    /// Opens by a handshake on a two-way connection.
    async fn handshake(&self, duplex: &Duplex, patience: Duration) -> Result<ServerHello> {
        let pinned = self.settings.revision.filter(|revision| revision.facts().sessions);
        let proposed = pinned.unwrap_or(Revision::NEWEST_HANDSHAKE);
        let params: Raw = to_upstream::initialize(proposed, self.speaker);
        let replies = duplex.call(Method::Initialize, Some(params), None, proposed);
        let result = match answer(replies, patience, "`initialize`").await? {
            Ok(result) => result,
            Err(_) if duplex.is_closed() => return Err(duplex.closed().await),
            Err(object) => return Err(Error::answered(object)),
        };
        let introduction = to_upstream::read_handshake(&result).map_err(|why| Error::new(ErrorKind::Revision, why))?;
        duplex.notify(&Notification::new(Notice::Initialized, None)).await;
        Ok(introduction)
    }
}

/// Why a handshake follows, or why nothing can.
fn handshake_reason(verdict: Verdict, pinned: Option<Revision>) -> Result<String> {
    match verdict {
        Verdict::Handshake(why) => match pinned {
            None => Ok(why),
            Some(revision) => {
                Err(Error::new(ErrorKind::Revision, format!("the revision is pinned to {revision}, but {why}")))
            }
        },
        Verdict::UnsupportedRevision(offered) => {
            Err(Error::new(ErrorKind::Revision, format!("it speaks only {}, which we do not", offered.join(", "))))
        }
        Verdict::Renegotiate(_) | Verdict::PerRequest(_) => {
            Err(Error::new(ErrorKind::Revision, "it offers revisions that it then refuses"))
        }
    }
}

fn takes_no_post(error: &Error) -> bool {
    let statuses = [
        StatusCode::BAD_REQUEST,
        StatusCode::NOT_FOUND,
        StatusCode::METHOD_NOT_ALLOWED,
        StatusCode::NOT_ACCEPTABLE,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        StatusCode::NOT_IMPLEMENTED,
    ];
    matches!(error.kind(), ErrorKind::Status(status) if statuses.iter().any(|known| known.as_u16() == status))
}

/// The answer to a request, past everything that comes before it.
pub(crate) async fn answer(mut replies: Replies, patience: Duration, what: &str) -> Result<Outcome> {
    let read = async {
        loop {
            match replies.next().await {
                Some(Reply::End(answer)) => return answer.outcome,
                Some(_) => {}
                None => {
                    return Err(crate::protocol::ErrorObject::new(
                        crate::protocol::code::INTERNAL_ERROR,
                        "no answer came",
                    ));
                }
            }
        }
    };
    match tokio::time::timeout(patience, read).await {
        Ok(outcome) => Ok(outcome),
        Err(_) => Err(Error::new(ErrorKind::Timeout, format!("no answer to {what} came within {patience:?}"))),
    }
}

/// A session that is being opened. Whoever gives up half way leaves nothing of it at the server.
struct HalfOpen(Option<Arc<StreamableClient>>);

impl Drop for HalfOpen {
    fn drop(&mut self) {
        if let (Some(http), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { http.close().await });
        }
    }
}
