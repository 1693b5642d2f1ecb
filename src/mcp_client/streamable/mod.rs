//! An upstream over Streamable HTTP, of either era.
//!
//! In the handshake era the session's id is taken from the response to `initialize`, and again from
//! any later response that carries one, and goes out with every request. A session that the
//! server has forgotten is opened anew, once, and the call that found out is sent again: the
//! server did not take it.

mod request;
mod server_requests;
mod session;
mod session_slot;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method as Verb, StatusCode};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::call::{Answer, Replies, Reply, ServerRequest};
use crate::dialect::Revision;
use crate::dialect::to_upstream::{self, ClientIdentity};
use crate::error::{Error, ErrorKind, Result};
use crate::http::client::EventReader;
use crate::http::client::{HttpClient, is_media, redacted};
use crate::http::client::{HttpResponse, InFlight};
use crate::http::codec::RequestEncoder;
use crate::mcp_client::batch::{MAX_BATCH, messages, parsed};
use crate::mcp_client::connection::Headers;
use crate::mcp_client::session_resumption::ResumableSession;
use crate::mcp_client::target::{Address, ConnectionSettings};
use crate::mcp_client::unsolicited::{Unsolicited, UnsolicitedSender};
use crate::protocol::{
    ErrorObject, Id, Incoming, Message, Method, Notice, Notification, Outcome, Raw, Request, Response, code,
};
use request::HttpRequest;
use server_requests::PendingServerRequests;
use session_slot::{SessionSlot, SessionUse};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The headers that are ours to write, beside those of the protocol.
const OURS: [HeaderName; 6] = [ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING];
/// How long to wait before a stream is resumed when the server does not say.
pub(super) const RETRY: Duration = Duration::from_millis(1000);
/// The least that we wait, or a server could keep us busy.
const RETRY_FLOOR: Duration = Duration::from_millis(250);
/// How many answers of ours may be on their way at once.
const ANSWERS: usize = 32;
/// The longest that a server may make us wait.
const RETRY_CAP: Duration = Duration::from_secs(30);
/// How long the end of a session waits for a GET that nobody waits for any more and that the server has not answered:
/// some servers answer it only once they have something to say.
const STREAM_READ_LIMIT: Duration = Duration::from_millis(500);
/// How often a stream that breaks at once is resumed before it is given up.
pub(super) const RESUMES: u32 = 5;

/// One server over Streamable HTTP.
#[derive(Debug)]
pub(super) struct StreamableClient {
    http: HttpClient,
    settings: ConnectionSettings,
    identity: ClientIdentity,
    state: Mutex<StreamableState>,
    last_id: AtomicI64,
    unsolicited: UnsolicitedSender,
    /// Held while the session is opened anew, so that one does it and the others wait.
    reopening: tokio::sync::Mutex<Option<Instant>>,
    /// How many answers of ours may be on their way at once; a server that asks more gets none.
    answers: Arc<Semaphore>,
    pub(super) questions: PendingServerRequests,
    session: SessionSlot,
    revision: OnceLock<Revision>,
    /// Where the session is written down, if somebody else could go on with it.
    resumable: Option<Arc<ResumableSession>>,
}

#[derive(Debug, Default)]
struct StreamableState {
    /// How the server has introduced itself in the session.
    result: Option<Raw>,
    /// The session was opened elsewhere.
    goes_on: bool,
    listening: Option<AbortHandle>,
}

/// How an exchange began.
pub(super) enum FirstResponse {
    Answer(Outcome),
    /// A batch, of which one is the answer.
    Batch(Vec<Message>),
    Events(Box<EventReader>),
}

/// What came back for a probe.
#[derive(Debug)]
pub(super) enum ProbeOutcome {
    /// An answer of the protocol, whatever the status.
    Outcome(Outcome),
    /// A status, and nothing that can be read.
    Status(StatusCode),
}

impl StreamableClient {
    pub(super) fn new(
        address: &Address,
        settings: &ConnectionSettings,
        speaker: ClientIdentity,
        unsolicited: mpsc::Sender<Unsolicited>,
        notebook: Option<Arc<ResumableSession>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            http: address.client(settings),
            settings: settings.clone(),
            identity: speaker,
            state: Mutex::default(),
            last_id: AtomicI64::new(0),
            unsolicited: UnsolicitedSender::new(unsolicited),
            reopening: tokio::sync::Mutex::default(),
            answers: Arc::new(Semaphore::new(ANSWERS)),
            questions: PendingServerRequests::default(),
            session: SessionSlot::default(),
            revision: OnceLock::new(),
            resumable: notebook,
        })
    }

    fn lock(&self) -> MutexGuard<'_, StreamableState> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }

    fn next_id(&self) -> Id {
        Id::Number(self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision.get().copied().unwrap_or(Revision::NEWEST_HANDSHAKE)
    }

    pub(super) fn in_handshake_era(&self) -> bool {
        self.revision().facts().sessions
    }

    /// How long an answer may take to begin.
    pub(super) fn patience(&self) -> Duration {
        self.settings.idle_timeout
    }

    /// The revision that was found; every later request names it.
    pub(super) fn set_revision(&self, revision: Revision) {
        let _ = self.revision.set(revision);
    }

    /// The id of the session, where there is one.
    pub(super) fn session_id(&self) -> Option<String> {
        self.session.peek().map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned())
    }

    /// Asks `server/discover`, with everything that a server of the newest era wants to see.
    pub(super) async fn probe(&self, revision: Revision) -> Result<ProbeOutcome> {
        let params = to_upstream::params(None, revision, &self.identity, &to_upstream::Extras::default());
        let request = Request::new(Id::Text("discover".into()), Method::Discover, params);
        let headers = |head: &mut RequestEncoder| {
            posted(head);
            to_upstream::mirrored(head, &request, revision, &[]);
        };
        let response =
            self.http.send(Verb::POST, headers, request.encode(), Some(self.settings.discovery_timeout)).await?;
        let status = response.head.status();
        match self.read_answer(response, &request.id, self.settings.discovery_timeout).await {
            Ok(outcome) => Ok(ProbeOutcome::Outcome(outcome)),
            Err(_) if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED => match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => {
                    Err(self.refused(status, b""))
                }
                _ => Ok(ProbeOutcome::Status(status)),
            },
            Err(_) if status.is_success() => Ok(ProbeOutcome::Status(status)),
            Err(error) => Err(error),
        }
    }

    /// Reads the one answer to a request, from JSON or from a stream.
    async fn read_answer(&self, response: HttpResponse, id: &Id, patience: Duration) -> Result<Outcome> {
        let status = response.head.status();
        if is_media(&response.head, "text/event-stream") && status.is_success() {
            let mut events = EventReader::new(response.body, self.http.limit());
            let read = async {
                while let Some(event) = events.next().await? {
                    if let Some(outcome) = parsed(event).into_iter().find_map(|message| answer_to(message, id)) {
                        return Ok(outcome);
                    }
                }
                Err(Error::new(ErrorKind::Broken, "the stream ended before the answer"))
            };
            return match tokio::time::timeout(patience, read).await {
                Ok(read) => read,
                Err(_) => Err(Error::new(ErrorKind::Timeout, format!("no answer came within {patience:?}"))),
            };
        }
        let body = self.http.read(response.body, patience).await?;
        self.answer_in(&body, status, id)
    }

    /// The one answer to a request in a body.
    fn answer_in(&self, body: &Bytes, status: StatusCode, id: &Id) -> Result<Outcome> {
        // An error that cannot name its request is about the one that was sent.
        let alone = |message| match message {
            Message::Response(Response { id: None, outcome: outcome @ Err(_), .. }) => Some(outcome),
            message => answer_to(message, id),
        };
        let answer = match Incoming::parse(body, MAX_BATCH) {
            Ok(Incoming::One(message)) => alone(message),
            Ok(Incoming::Batch(items)) => {
                let mut messages: Vec<Message> = items.into_iter().flatten().collect();
                match messages.len() {
                    1 => messages.pop().and_then(alone),
                    _ => messages.into_iter().find_map(|message| answer_to(message, id)),
                }
            }
            Err(_) => None,
        };
        match answer {
            Some(outcome) => Ok(outcome),
            None if status.is_success() => Err(Error::new(
                ErrorKind::Protocol,
                format!("{} answered with something that is no answer", redacted(&self.http.url())),
            )),
            None => Err(self.refused(status, body)),
        }
    }

    /// What a status means that is no answer.
    pub(super) fn refused(&self, status: StatusCode, body: &[u8]) -> Error {
        Error::refused(&self.http.url(), status, body)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.session.is_ending()
    }

    /// Writes the headers that say which session this is, and in which revision.
    fn put_session(&self, head: &mut RequestEncoder, session: Option<&HeaderValue>) {
        to_upstream::version(head, self.revision());
        if let Some(session) = session {
            head.put(&SESSION_ID, session);
        }
    }

    /// The session, for one message that is not answered or quickly so.
    pub(super) fn use_session(&self) -> Result<SessionUse> {
        self.session.acquire(self.settings.stop_timeout)
    }

    /// What a request in the session carries until its response begins. In the per-request era dropping a request
    /// cancels it, so its connection is closed at once.
    fn in_flight(&self, session: &SessionUse) -> Option<InFlight> {
        self.in_handshake_era().then(|| session.in_flight())
    }

    /// Begins a request. `params` are as the server is to get them, but for the progress token.
    pub(super) fn call(
        self: &Arc<Self>,
        method: Method,
        params: Option<Raw>,
        token: Option<Raw>,
        extra: Headers<'_>,
    ) -> Replies {
        let id = self.next_id();
        let params = match &token {
            Some(_) => Some(crate::dialect::meta::with(params.as_ref(), "progressToken", id.to_raw())),
            None => params,
        };
        let request = Request::new(id, method, params);
        HttpRequest::new(Arc::clone(self), request, extra, token).replies()
    }

    /// Writes the headers of a request in the session, if there is one. What is ours to say no caller says.
    fn put_headers(
        &self,
        head: &mut RequestEncoder,
        request: &Request,
        extra: Headers<'_>,
        session: Option<&HeaderValue>,
    ) {
        posted(head);
        to_upstream::mirrored(head, request, self.revision(), extra.mirrors);
        if let Some(session) = session {
            head.put(&SESSION_ID, session);
        }
        let theirs = |name: &HeaderName| !OURS.contains(name) && !name.as_str().starts_with("mcp-");
        for (name, value) in extra.caller.headers.iter().filter(|(name, _)| theirs(name)) {
            if value.to_str().is_ok() {
                head.put(name, value);
            }
        }
    }

    /// Sends a request. How long that may take is for whoever waits for it; nobody does for those that listen.
    pub(super) async fn begin(self: &Arc<Self>, request: &Request, extra: Headers<'_>) -> Result<FirstResponse> {
        let patience = (request.method == Method::Listen).then_some(self.settings.total_timeout);
        let body = request.encode();
        let mut again = true;
        loop {
            let session = self.use_session()?;
            let (generation, had_session) = (session.generation(), session.id().is_some());
            let headers = |head: &mut RequestEncoder| self.put_headers(head, request, extra, session.id());
            let in_flight = self.in_flight(&session);
            let response = self.http.send_in(in_flight, Verb::POST, headers, body.clone(), patience).await?;
            drop(session);
            let status = response.head.status();
            if status.is_success() {
                self.note_session(&response.head, generation);
                if is_media(&response.head, "text/event-stream") {
                    let events = EventReader::new(response.body, self.http.limit());
                    return Ok(FirstResponse::Events(Box::new(events)));
                }
                let body = self.http.read(response.body, self.settings.idle_timeout).await?;
                return match body.trim_ascii_start().first() {
                    Some(b'[') => Ok(FirstResponse::Batch(messages(&body).unwrap_or_default())),
                    _ => self.answer_in(&body, status, &request.id).map(FirstResponse::Answer),
                };
            }
            let body = self.http.read(response.body, self.settings.idle_timeout).await.unwrap_or_default();
            let message = Message::parse(&body);
            let answered =
                matches!(&message, Ok(Message::Response(response)) if response.id.as_ref() == Some(&request.id));
            let lost = session::session_is_lost(status, &body, had_session, answered);
            if again && self.in_handshake_era() && lost {
                again = false;
                // In a task of its own: a caller that goes away must not leave it half done.
                let http = Arc::clone(self);
                let reopened = tokio::spawn(async move { http.reopen(generation).await }).await;
                reopened.unwrap_or_else(|_| Err(Error::new(ErrorKind::Broken, "no new session could be opened")))?;
                continue;
            }
            return match message {
                Ok(Message::Response(Response { id, outcome: Err(error), .. }))
                    if id.is_none() || id.as_ref() == Some(&request.id) =>
                {
                    Ok(FirstResponse::Answer(Err(error)))
                }
                _ => Err(self.refused(status, &body)),
            };
        }
    }

    /// Sends a notification.
    pub(super) async fn notify(self: &Arc<Self>, notification: &Notification) -> Result<()> {
        self.post(self.use_session()?, notification.encode()).await
    }

    /// Sends a notification, or the response to a server request.
    pub(super) async fn post(self: &Arc<Self>, session: SessionUse, message: Bytes) -> Result<()> {
        self.check_here()?;
        let headers = |head: &mut RequestEncoder| {
            posted(head);
            self.put_session(head, session.id());
        };
        let (in_flight, patience) = (self.in_flight(&session), Some(self.settings.idle_timeout));
        let response = self.http.send_in(in_flight, Verb::POST, headers, message, patience).await?;
        let status = response.head.status();
        if status.is_success() {
            self.note_session(&response.head, session.generation());
            return Ok(());
        }
        let body = self.http.read(response.body, self.settings.idle_timeout).await.unwrap_or_default();
        Err(self.refused(status, &body))
    }

    /// Takes what arrives on a stream: a reply to the call `request`, or nothing.
    pub(super) fn take(self: &Arc<Self>, message: Message, request: Option<(&Id, Option<&Raw>)>) -> Option<Reply> {
        match message {
            Message::Response(response) => {
                let (id, _) = request.filter(|(id, _)| response.id.as_ref() == Some(*id))?;
                tracing::trace!(%id, "answered");
                Some(Reply::End(Answer { outcome: response.outcome, revision: self.revision() }))
            }
            Message::Request(asked) if asked.method == Method::Ping => {
                let permit = Arc::clone(&self.answers).try_acquire_owned().ok()?;
                let (http, session) = (Arc::clone(self), self.use_session().ok()?);
                tokio::spawn(async move {
                    let _permit = permit;
                    http.post(session, Response::new(Some(asked.id), Ok(Raw::empty())).encode()).await
                });
                None
            }
            Message::Request(asked) => {
                let question = self.questions.related.ask(self.question(asked)?)?;
                match request {
                    Some(_) => Some(Reply::Question(question)),
                    None => {
                        if let Some(question) = self.questions.offer_to_only_call(question) {
                            self.unsolicited.send(Unsolicited::Question(question));
                        }
                        None
                    }
                }
            }
            Message::Notification(notification) if notification.notice == Notice::Progress => {
                let (id, token) = request?;
                let params = notification.params?;
                let ours = params.get("progressToken").as_ref().and_then(Id::from_raw).as_ref() == Some(id);
                let token = token.filter(|_| ours)?;
                let params = params.edit().set("progressToken", token.clone()).finish();
                Some(Reply::Notice(Notification::new(Notice::Progress, Some(params))))
            }
            Message::Notification(notification) if notification.notice == Notice::Cancelled => {
                // What it takes back has another name at the client, if it has one there.
                self.questions.cancel(notification.params.as_ref());
                None
            }
            Message::Notification(notification) if self.questions.related.on_notification(&notification) => None,
            Message::Notification(notification) => match request {
                // In the per-request era a stream carries only what was asked for on it.
                Some(_) if !self.in_handshake_era() || !changes(&notification.notice) => {
                    Some(Reply::Notice(notification))
                }
                _ => {
                    self.unsolicited.send(Unsolicited::Notice(notification));
                    None
                }
            },
        }
    }

    fn question(self: &Arc<Self>, asked: Request) -> Option<ServerRequest> {
        let permit = Arc::clone(&self.answers).try_acquire_owned().ok()?;
        let (answer, answered) = oneshot::channel();
        let withdrawn = self.questions.open(&asked.id);
        let http = Arc::clone(self);
        tokio::spawn(async move {
            let _permit = permit;
            let refused = || Err(ErrorObject::new(code::METHOD_NOT_FOUND, "the client does not answer this"));
            let outcome = tokio::select! {
                outcome = answered => outcome.unwrap_or_else(|_| refused()),
                _ = withdrawn => return,
            };
            http.questions.answered(&asked.id);
            let posted =
                async { http.post(http.use_session()?, Response::new(Some(asked.id), outcome).encode()).await };
            if let Err(error) = posted.await {
                tracing::debug!(%error, "an answer was not taken");
            }
        });
        Some(ServerRequest { method: asked.method, params: asked.params, answer })
    }

    /// Opens a stream by GET, after an event where one is named; nothing when there is none to have.
    pub(super) async fn open_stream(&self, after: Option<&str>, patience: Duration) -> Result<Option<EventReader>> {
        self.check_here()?;
        let session = self.session.acquire(self.settings.stop_timeout.min(STREAM_READ_LIMIT))?;
        let headers = |head: &mut RequestEncoder| {
            head.put_static(&ACCEPT, "text/event-stream");
            self.put_session(head, session.id());
            if let Some(id) = after {
                head.put_text(&LAST_EVENT_ID, id);
            }
        };
        let in_flight = self.in_flight(&session);
        let response = self.http.send_in(in_flight, Verb::GET, headers, Bytes::new(), Some(patience)).await?;
        drop(session);
        let status = response.head.status();
        if status.is_success() && is_media(&response.head, "text/event-stream") {
            return Ok(Some(EventReader::new(response.body, self.http.limit())));
        }
        if status == StatusCode::METHOD_NOT_ALLOWED || status.is_success() {
            return Ok(None);
        }
        let body = self.http.read(response.body, self.settings.idle_timeout).await.unwrap_or_default();
        Err(self.refused(status, &body))
    }
}

/// What a message answers to a request.
fn answer_to(message: Message, id: &Id) -> Option<Outcome> {
    match message {
        Message::Response(response) if response.id.as_ref() == Some(id) => Some(response.outcome),
        _ => None,
    }
}

/// Whether a notice tells of something that concerns more than one call.
fn changes(notice: &Notice) -> bool {
    matches!(notice, Notice::ToolsChanged | Notice::PromptsChanged | Notice::ResourcesChanged | Notice::ResourceUpdated)
}

/// Writes what every message that is posted says of itself, and of what may come back.
fn posted(head: &mut RequestEncoder) {
    head.put_static(&ACCEPT, "application/json, text/event-stream");
    head.put_static(&CONTENT_TYPE, "application/json");
}

pub(super) fn pause(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds).clamp(RETRY_FLOOR, RETRY_CAP)
}

impl Drop for StreamableClient {
    fn drop(&mut self) {
        if let Some(listening) = self.lock().listening.take() {
            listening.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what a function gives, which is not called.
    fn size<A, B, C, R>(_: impl FnOnce(A, B, C) -> R) -> usize {
        size_of::<R>()
    }

    /// What waits for an answer is made for every call, and moved to where it stays.
    #[test]
    fn a_call_takes_little_room() {
        let size = size(|http: &'static Arc<StreamableClient>, request: &'static Request, extra: Headers<'static>| {
            http.begin(request, extra)
        });
        assert!(size <= 2560, "{size} bytes");
    }
}
