//! Streamable HTTP transport, of either era.
//!
//! In the handshake era the session id comes from the response to `initialize`, or from any later response that carries
//! one, and is sent with every request. When the server has lost the session, a new one is opened once and the request
//! is sent again: the server did not process it.

mod long_answer;
mod request;
mod server_requests;
mod session;
mod session_slot;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method as Verb, StatusCode};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::call::{Answer, AnswerDelivery, REQUEST_ID, Reply, TRACE_HEADERS};
use crate::dialect::Revision;
use crate::dialect::to_upstream::{self, ClientIdentity};
use crate::error::{self, Error, Result};
use crate::failure::FailureKind;
use crate::http::client::{EventReader, HttpClient, HttpResponse, InFlight, SendOptions, WhenFull};
use crate::http::client::{has_media_type, redacted};
use crate::http::codec::{RequestEncoder, ResponseHead};
use crate::mcp_client::batch::{MessageParser, Received};
use crate::mcp_client::connection::RequestHeaders;
use crate::mcp_client::pending_calls::MAX_OPEN_SERVER_REQUESTS;
use crate::mcp_client::server_notes::{note_answer, note_failure, note_request, note_response_head};
use crate::mcp_client::session_resumption::ResumableSession;
use crate::mcp_client::target::{Address, ConnectionSettings};
use crate::mcp_client::unsolicited::{Unsolicited, UnsolicitedSender};
use crate::protocol::{
    Id, Message, Method, Notification, NotificationMethod, Outcome, Payload, Raw, Request, Response,
};
use crate::recorder::Mark;
use long_answer::{AnswerBody, LongAnswer};
use request::{HttpRequest, SentHeaders};
use server_requests::PendingServerRequests;
use session_slot::{SessionSlot, SessionUse};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const TRACEPARENT: HeaderName = HeaderName::from_static(TRACE_HEADERS[0]);
const TRACESTATE: HeaderName = HeaderName::from_static(TRACE_HEADERS[1]);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Headers that only the client itself writes, beside those that begin with `mcp-`.
const RESERVED_HEADERS: [HeaderName; 6] = [ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING];
/// Delay before a stream is resumed when the server sent no `retry`.
pub(super) const DEFAULT_RETRY_DELAY: Duration = Duration::from_millis(1000);
/// Lower bound of the server's `retry`, so that a server cannot make us reconnect in a tight loop.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(250);
/// Answers to pings and to refused server requests that may be posted at once; no more is read of the server meanwhile.
const MAX_CONTROL_POSTS: usize = 16;
/// Upper bound of the server's `retry`.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
/// How long closing a session waits for an abandoned GET without a response: some servers respond to it only with their
/// first event.
const ABANDONED_GET_TIMEOUT: Duration = Duration::from_millis(500);
/// Consecutive resumptions of a stream without a message after which it is given up.
pub(super) const MAX_STREAM_RESUMES: u32 = 5;

/// Client of one server over Streamable HTTP.
#[derive(Debug)]
pub(super) struct StreamableClient {
    http: HttpClient,
    settings: ConnectionSettings,
    identity: ClientIdentity,
    state: Mutex<StreamableState>,
    last_id: AtomicI64,
    unsolicited: UnsolicitedSender,
    /// Time of the last reopening; locked while the session is reopened, so that one task does it and the others wait.
    last_reopen: tokio::sync::Mutex<Option<Instant>>,
    /// Bounds the open server requests.
    server_request_permits: Arc<Semaphore>,
    /// Bounds the answers to pings and to refused server requests, which never wait for the client.
    control_permits: Arc<Semaphore>,
    parser: MessageParser,
    pub(super) server_requests: PendingServerRequests,
    session: SessionSlot,
    revision: OnceLock<Revision>,
    /// Saves the session for other nodes, if the client session is in a shared store.
    resumable: Option<Arc<ResumableSession>>,
}

#[derive(Debug, Default)]
struct StreamableState {
    /// Result of `initialize`, kept for saving the session.
    initialize_result: Option<Raw>,
    /// The session was opened by another node.
    is_resumed: bool,
    listen_task: Option<AbortHandle>,
}

/// What the server responded to a request with.
pub(super) enum FirstResponse {
    Response(Outcome),
    /// A batch, or one message per line; one of them should be the response.
    Batch(Vec<Received>),
    Events(Box<EventReader>),
    /// The result is passed on in pieces.
    InPieces(Box<LongAnswer>),
}

/// Response to `server/discover`.
#[derive(Debug)]
pub(super) enum ProbeOutcome {
    /// A JSON-RPC response, whatever the HTTP status.
    Outcome(Outcome),
    /// An HTTP status without a JSON-RPC response.
    Status(StatusCode),
}

impl StreamableClient {
    pub(super) fn new(
        address: &Address,
        settings: &ConnectionSettings,
        identity: ClientIdentity,
        unsolicited: mpsc::Sender<Unsolicited>,
        resumable: Option<Arc<ResumableSession>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            http: address.http_client(settings),
            settings: settings.clone(),
            identity,
            state: Mutex::default(),
            last_id: AtomicI64::new(0),
            unsolicited: UnsolicitedSender::new(unsolicited),
            last_reopen: tokio::sync::Mutex::default(),
            server_request_permits: Arc::new(Semaphore::new(MAX_OPEN_SERVER_REQUESTS)),
            control_permits: Arc::new(Semaphore::new(MAX_CONTROL_POSTS)),
            parser: MessageParser::new(settings.json_depth, redacted(&address.url)),
            server_requests: PendingServerRequests::default(),
            session: SessionSlot::default(),
            revision: OnceLock::new(),
            resumable,
        })
    }

    fn lock(&self) -> MutexGuard<'_, StreamableState> {
        self.state.lock()
    }

    fn next_id(&self) -> Id {
        Id::Number(self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision.get().copied().unwrap_or(Revision::NEWEST_HANDSHAKE)
    }

    pub(super) fn in_handshake_era(&self) -> bool {
        self.revision().has_sessions()
    }

    /// Limit for the head of a response.
    pub(super) fn idle_timeout(&self) -> Duration {
        self.settings.idle_timeout
    }

    /// Sets the negotiated revision, which every later request names. The first value is kept.
    pub(super) fn set_revision(&self, revision: Revision) {
        let _ = self.revision.set(revision);
    }

    /// The session id, if the server has given one.
    pub(super) fn session_id(&self) -> Option<String> {
        self.session.peek().map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned())
    }

    /// Sends `server/discover` with all headers and metadata that per-request servers require.
    pub(super) async fn probe(&self, revision: Revision) -> Result<ProbeOutcome> {
        let params = to_upstream::request_params(None, revision, || self.identity.clone(), None);
        let request = Request::new(Id::Text("discover".into()), Method::Discover, params);
        let headers = |head: &mut RequestEncoder| {
            put_post_headers(head);
            to_upstream::put_headers(head, &request, revision, &[]);
        };
        let response =
            self.http.send(Verb::POST, headers, request.encode(), Some(self.settings.discovery_timeout)).await?;
        let (status, retry_after) = (response.head.status(), error::retry_after(&response.head));
        match self.read_response(response, &request.id, self.settings.discovery_timeout).await {
            Ok(outcome) => Ok(ProbeOutcome::Outcome(outcome)),
            Err(_) if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED => match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => {
                    Err(self.status_error(status, retry_after, b""))
                }
                _ => Ok(ProbeOutcome::Status(status)),
            },
            Err(_) if status.is_success() => Ok(ProbeOutcome::Status(status)),
            Err(error) => Err(error),
        }
    }

    /// Reads the response to a request from a JSON body or an event stream.
    async fn read_response(&self, response: HttpResponse, id: &Id, timeout: Duration) -> Result<Outcome> {
        let status = response.head.status();
        if has_media_type(&response.head, "text/event-stream") && status.is_success() {
            let mut events = EventReader::new(response.body, self.http.max_body_bytes());
            let read = async {
                while let Some(event) = events.next().await? {
                    if let Some(outcome) =
                        self.parser.messages_in_event(event).into_iter().find_map(|message| outcome_for(message, id))
                    {
                        return Ok(outcome);
                    }
                }
                Err(Error::failure(FailureKind::Broken, "event stream ended before the response"))
            };
            return match tokio::time::timeout(timeout, read).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Error::failure(FailureKind::Silent(timeout), format!("no response within {timeout:?}"))),
            };
        }
        let body = self.http.read_body(response.body, timeout).await?;
        self.response_in_body(&body, &response.head, id)
    }

    /// The response to request `id` in a JSON body.
    fn response_in_body(&self, body: &Bytes, head: &ResponseHead, id: &Id) -> Result<Outcome> {
        // An error without an id is about the request that was sent, if it is the only message.
        let only_message = |message| match message {
            Received::Message(Message::Response(Response { id: None, outcome: outcome @ Err(_), .. })) => Some(outcome),
            message => outcome_for(message, id),
        };
        let outcome = match is_batch(body) {
            false => self.parser.message(body).ok().flatten().and_then(only_message),
            true => {
                let mut messages = self.parser.messages(body).unwrap_or_default();
                match messages.len() {
                    1 => messages.pop().and_then(only_message),
                    _ => messages.into_iter().find_map(|message| outcome_for(message, id)),
                }
            }
        };
        match outcome {
            Some(outcome) => Ok(outcome),
            None if head.status().is_success() => Err(Error::failure(
                FailureKind::Protocol,
                format!("{} responded without a JSON-RPC response", redacted(&self.http.url())),
            )),
            None => Err(self.status_error(head.status(), error::retry_after(head), body)),
        }
    }

    /// The error for an HTTP status without a JSON-RPC response.
    pub(super) fn status_error(&self, status: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> Error {
        Error::from_status(&self.http.url(), status, retry_after, body)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.session.is_ending()
    }

    /// Writes the session id and the protocol version.
    fn put_session_headers(&self, head: &mut RequestEncoder, session: Option<&HeaderValue>) {
        to_upstream::put_version_header(head, self.revision());
        if let Some(session) = session {
            head.put(&SESSION_ID, session);
        }
    }

    /// The session, for a message that gets no response or a quick one.
    pub(super) fn use_session(&self) -> Result<SessionUse> {
        self.session.acquire(self.settings.stop_timeout)
    }

    /// Tracks a request of the session until its response begins. In the per-request era there is nothing to track:
    /// dropping a request closes its connection, which cancels it.
    fn in_flight(&self, session: &SessionUse) -> Option<InFlight> {
        self.in_handshake_era().then(|| session.in_flight())
    }

    /// A request, not sent yet. `params` are as the server receives them, except for the progress token, which is
    /// replaced by the request id.
    pub(super) fn request(
        self: &Arc<Self>,
        method: Method,
        params: Option<Payload>,
        progress_token: Option<Raw>,
        headers: RequestHeaders<'_>,
    ) -> HttpRequest {
        let id = self.next_id();
        let params = match &progress_token {
            Some(_) => Some(crate::dialect::meta::with_member(params.as_deref(), "progressToken", id.to_raw()).into()),
            None => params,
        };
        let request = Request::new(id, method, params);
        HttpRequest::new(Arc::clone(self), request, headers, progress_token)
    }

    /// Writes the headers of a request. The caller's forwarded headers cannot override our own, nor stand beside those that
    /// are configured for the server.
    fn put_request_headers(
        &self,
        head: &mut RequestEncoder,
        request: &Request,
        headers: SentHeaders<'_>,
        session: Option<&HeaderValue>,
    ) {
        put_post_headers(head);
        to_upstream::put_headers(head, request, self.revision(), headers.mirrors);
        if let Some(session) = session {
            head.put(&SESSION_ID, session);
        }
        let is_forwardable = |name: &HeaderName| {
            !RESERVED_HEADERS.contains(name) && !name.as_str().starts_with("mcp-") && !self.http.sends_header(name)
        };
        if let Some(id) = headers.caller.request_id.as_ref().filter(|_| !self.http.sends_header(&REQUEST_ID)) {
            head.put(&REQUEST_ID, id);
        }
        for (name, value) in headers.caller.headers.iter().filter(|(name, _)| is_forwardable(name)) {
            let is_replaced = headers.trace.is_some() && (*name == TRACEPARENT || *name == TRACESTATE);
            if !is_replaced && value.to_str().is_ok() {
                head.put(name, value);
            }
        }
        if let Some(trace) = headers.trace.filter(|_| !self.http.sends_header(&TRACEPARENT)) {
            head.put(&TRACEPARENT, &trace.parent);
            trace.state.iter().for_each(|state| head.put(&TRACESTATE, state));
        }
    }

    /// Sends a request and waits for the response head. The caller bounds the wait, except for listen requests, which get
    /// the total timeout here. A lost session is reopened once and the request sent again.
    pub(super) async fn send_request(
        self: &Arc<Self>,
        request: &Request,
        headers: SentHeaders<'_>,
        delivery: AnswerDelivery,
    ) -> Result<FirstResponse> {
        let timeout = (request.method == Method::Listen).then_some(self.settings.total_timeout);
        let (body, mark) = (request.encode(), headers.caller.mark());
        let mut may_reopen = true;
        loop {
            let session = self.use_session()?;
            let (generation, had_session) = (session.generation(), session.id().is_some());
            let put_headers = |head: &mut RequestEncoder| {
                self.put_request_headers(head, request, headers, session.id());
                note_request(mark, head, &body);
            };
            let options = SendOptions { in_flight: self.in_flight(&session), timeout, mark, ..SendOptions::default() };
            let sent = self.http.send_with(options, Verb::POST, put_headers, body.clone()).await;
            let mut response = sent.inspect_err(|error| note_failure(mark, error))?;
            drop(session);
            let status = response.head.status();
            if status.is_success() {
                self.update_session_id(&response.head, generation);
                let is_sse = has_media_type(&response.head, "text/event-stream");
                // Some servers listen with JSON lines; what has a length is one response.
                let is_listening =
                    request.method == Method::Listen && (is_sse || response.head.get(&CONTENT_LENGTH).is_none());
                if is_sse || is_listening {
                    let read_timeout = self.settings.listen_read_timeout.filter(|_| is_listening);
                    if is_listening {
                        response.body.release_permit();
                    }
                    let reader = if is_sse { EventReader::new } else { EventReader::of_lines };
                    note_response_head(mark, &response.head);
                    let events = reader(response.body, self.http.max_body_bytes()).with_read_timeout(read_timeout);
                    return Ok(FirstResponse::Events(Box::new(events)));
                }
                let body = match self.read_answer(response.body, &request.id, (delivery, mark)).await? {
                    AnswerBody::Whole(body) => note_answer(mark, &response.head, body),
                    AnswerBody::InPieces(answer) => return Ok(FirstResponse::InPieces(answer)),
                };
                if is_batch(&body) {
                    return Ok(FirstResponse::Batch(self.parser.messages(&body).unwrap_or_default()));
                }
                return match self.response_in_body(&body, &response.head, &request.id) {
                    Ok(outcome) => Ok(FirstResponse::Response(outcome)),
                    Err(error) => match self.parser.messages(&body) {
                        Ok(lines) if lines.len() > 1 => Ok(FirstResponse::Batch(lines)),
                        _ => Err(error),
                    },
                };
            }
            let body = self.http.read_body(response.body, self.settings.idle_timeout).await.unwrap_or_default();
            let body = note_answer(mark, &response.head, body);
            let message = self.parser.message(&body).ok().flatten();
            let is_response = matches!(
                &message,
                Some(Received::Message(Message::Response(response))) if response.id.as_ref() == Some(&request.id)
            );
            let is_lost = session::is_session_lost(status, &body, had_session, is_response);
            if may_reopen && self.in_handshake_era() && is_lost {
                may_reopen = false;
                // In a task of its own: a caller that is dropped must not leave the handshake half done.
                let http = Arc::clone(self);
                let reopened = tokio::spawn(async move { http.reopen(generation).await }).await;
                let failed = || Error::failure(FailureKind::Broken, "opening a new session failed");
                // The server refused the request with the session that it does not know.
                reopened.unwrap_or_else(|_| Err(failed())).map_err(|error| error.into_failure().before_sending())?;
                continue;
            }
            return match message {
                Some(Received::Message(Message::Response(Response { id, outcome: Err(error), .. })))
                    if id.as_ref() == Some(&request.id) || (id.is_none() && !is_refusal(status)) =>
                {
                    Ok(FirstResponse::Response(Err(error)))
                }
                _ => Err(self.status_error(status, error::retry_after(&response.head), &body)),
            };
        }
    }

    /// Sends a notification.
    pub(super) async fn notify(self: &Arc<Self>, notification: &Notification) -> Result<()> {
        self.post(self.use_session()?, notification.encode()).await
    }

    /// Posts a notification, or the response to a server request.
    pub(super) async fn post(self: &Arc<Self>, session: SessionUse, message: Bytes) -> Result<()> {
        self.check_not_moved()?;
        let headers = |head: &mut RequestEncoder| {
            put_post_headers(head);
            self.put_session_headers(head, session.id());
        };
        let (in_flight, timeout) = (self.in_flight(&session), Some(self.settings.idle_timeout));
        // Calls that hold all connections may wait for this message.
        let options = SendOptions { in_flight, timeout, when_full: WhenFull::Exceed, ..SendOptions::default() };
        let response = self.http.send_with(options, Verb::POST, headers, message).await?;
        let status = response.head.status();
        if status.is_success() {
            self.update_session_id(&response.head, session.generation());
            return Ok(());
        }
        let body = self.http.read_body(response.body, self.settings.idle_timeout).await.unwrap_or_default();
        Err(self.status_error(status, error::retry_after(&response.head), &body))
    }

    /// Handles a message from a stream; returns the reply if it belongs to the call `request` (its id and progress token).
    /// Waits only for the server to accept our answers to its pings and to requests that we refuse.
    pub(super) async fn dispatch(
        self: &Arc<Self>,
        received: Received,
        request: Option<(&Id, Option<&Raw>)>,
        mark: Mark,
    ) -> Option<Reply> {
        let message = match received {
            Received::Message(message) => message,
            Received::Unacceptable(id, error) => {
                self.post_control(id, Err(error)).await;
                return None;
            }
        };
        match message {
            Message::Response(response) => {
                let (id, _) = request.filter(|(id, _)| response.id.as_ref() == Some(*id))?;
                tracing::trace!(%id, "upstream response received");
                Some(Reply::End(Answer { outcome: response.outcome, revision: self.revision() }))
            }
            Message::Request(ping) if ping.method == Method::Ping => {
                self.post_control(ping.id, Ok(Payload::empty())).await;
                None
            }
            Message::Request(server_request) => {
                let server_request = match self.accept_server_request(server_request, mark) {
                    Ok(accepted) => accepted,
                    Err((id, error)) => {
                        self.post_control(id, Err(error)).await;
                        return None;
                    }
                };
                let server_request = self.server_requests.task_registry.route_server_request(server_request)?;
                match request {
                    Some(_) => Some(Reply::ServerRequest(server_request)),
                    None => {
                        if let Some(server_request) = self.server_requests.offer_to_only_call(server_request) {
                            self.unsolicited.send(Unsolicited::ServerRequest(server_request));
                        }
                        None
                    }
                }
            }
            Message::Notification(notification) if notification.method == NotificationMethod::Progress => {
                let (id, token) = request?;
                let params = notification.params?;
                let is_own_token = params.get("progressToken").as_ref().and_then(Id::from_raw).as_ref() == Some(id);
                let token = token.filter(|_| is_own_token)?;
                let params = params.edit().set("progressToken", token.clone()).finish();
                Some(Reply::Notification(Notification::new(NotificationMethod::Progress, Some(params))))
            }
            Message::Notification(notification) if notification.method == NotificationMethod::Cancelled => {
                // The client's copy of the request has an id of its own; dropping the registration withdraws it.
                self.server_requests.cancel(notification.params.as_ref());
                None
            }
            Message::Notification(notification)
                if self.server_requests.task_registry.on_notification(&notification) =>
            {
                None
            }
            Message::Notification(notification) => match request {
                // In the per-request era a stream carries only notifications of its own request.
                Some(_) if !self.in_handshake_era() || !is_change_notification(&notification.method) => {
                    Some(Reply::Notification(notification))
                }
                _ => {
                    self.unsolicited.send(Unsolicited::Notification(notification));
                    None
                }
            },
        }
    }

    /// Opens an event stream by GET, resuming after `last_event_id` if given; `None` when the server offers none.
    pub(super) async fn open_stream(
        &self,
        last_event_id: Option<&str>,
        timeout: Duration,
    ) -> Result<Option<EventReader>> {
        self.check_not_moved()?;
        let session = self.session.acquire(self.settings.stop_timeout.min(ABANDONED_GET_TIMEOUT))?;
        let headers = |head: &mut RequestEncoder| {
            head.put_static(&ACCEPT, "text/event-stream");
            self.put_session_headers(head, session.id());
            if let Some(id) = last_event_id {
                head.put_text(&LAST_EVENT_ID, id);
            }
        };
        let in_flight = self.in_flight(&session);
        let options = SendOptions { in_flight, timeout: Some(timeout), ..SendOptions::default() };
        let mut response = self.http.send_with(options, Verb::GET, headers, Bytes::new()).await?;
        drop(session);
        let status = response.head.status();
        if status.is_success() && has_media_type(&response.head, "text/event-stream") {
            response.body.release_permit();
            return Ok(Some(EventReader::new(response.body, self.http.max_body_bytes())));
        }
        if status == StatusCode::METHOD_NOT_ALLOWED || status.is_success() {
            return Ok(None);
        }
        let body = self.http.read_body(response.body, self.settings.idle_timeout).await.unwrap_or_default();
        Err(self.status_error(status, error::retry_after(&response.head), &body))
    }
}

/// Whether a status says by itself that the request was refused, so that an error without its id adds nothing.
fn is_refusal(status: StatusCode) -> bool {
    !matches!(FailureKind::from_status(status.as_u16()), FailureKind::Status(_))
}

/// Whether a body holds a batch of messages.
fn is_batch(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'[')
}

/// The outcome in a message, if it is the response to request `id`.
fn outcome_for(message: Received, id: &Id) -> Option<Outcome> {
    match message {
        Received::Message(Message::Response(response)) if response.id.as_ref() == Some(id) => Some(response.outcome),
        _ => None,
    }
}

/// Whether a notification reports a change, which concerns more than one call.
fn is_change_notification(notice: &NotificationMethod) -> bool {
    matches!(
        notice,
        NotificationMethod::ToolsChanged
            | NotificationMethod::PromptsChanged
            | NotificationMethod::ResourcesChanged
            | NotificationMethod::ResourceUpdated
    )
}

/// Writes the headers of every POST.
fn put_post_headers(head: &mut RequestEncoder) {
    head.put_static(&ACCEPT, "application/json, text/event-stream");
    head.put_static(&CONTENT_TYPE, "application/json");
}

/// Delay for the `retry` value of a server, in milliseconds, within our bounds.
pub(super) fn clamp_retry_delay(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds).clamp(MIN_RETRY_DELAY, MAX_RETRY_DELAY)
}

impl Drop for StreamableClient {
    fn drop(&mut self) {
        if let Some(listening) = self.lock().listen_task.take() {
            listening.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size of a function's return value, without calling it.
    fn return_size<A, B, C, R>(_: impl FnOnce(A, B, C) -> R) -> usize {
        size_of::<R>()
    }

    /// The future is created for every call and moved to the heap, so it must stay small.
    #[test]
    fn request_future_stays_small() {
        let size = return_size(
            |http: &'static Arc<StreamableClient>, request: &'static Request, headers: SentHeaders<'static>| {
                http.send_request(request, headers, AnswerDelivery::Whole)
            },
        );
        assert!(size <= 2560, "{size} bytes");
    }
}
