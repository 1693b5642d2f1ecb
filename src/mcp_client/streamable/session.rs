//! Session of a handshake-era server: opened, resumed, listened to, reopened when the server has lost it, and deleted.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderValue, Method as Verb, StatusCode};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{
    DEFAULT_RETRY_DELAY, MAX_RETRY_DELAY, SESSION_ID, StreamableClient, clamp_retry_delay, put_post_headers,
    session_slot,
};
use crate::dialect::Revision;
use crate::dialect::to_upstream::{self, ServerHello};
use crate::error::{self, Error, Result};
use crate::failure::{Failure, FailureKind};
use crate::http::client::redacted;
use crate::http::codec::{RequestEncoder, ResponseHead};
use crate::mcp_client::Unsolicited;
use crate::mcp_client::session_resumption::SavedSession;
use crate::protocol::{Method, Notification, NotificationMethod, Request};
use crate::recorder::Mark;

/// Least time between two reopenings of the session.
const MIN_REOPEN_INTERVAL: Duration = Duration::from_secs(1);
/// Limit for the response head of the listening stream: some servers send it only with their first event.
const LISTEN_HEAD_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// How long a new session is held back for the response head of its listening stream.
const LISTEN_START_TIMEOUT: Duration = Duration::from_millis(1000);

impl StreamableClient {
    /// Opens a session by the `initialize` handshake and starts to listen.
    pub(in crate::mcp_client) async fn initialize(self: &Arc<Self>, proposed: Revision) -> Result<ServerHello> {
        let request = Request::new(
            self.next_id(),
            Method::Initialize,
            Some(to_upstream::initialize_params(proposed, &self.identity).into()),
        );
        let response = self
            .http
            .send(Verb::POST, put_post_headers, request.encode(), Some(self.settings.discovery_timeout))
            .await?;
        let session_id = response.head.get(&SESSION_ID).and_then(|id| HeaderValue::from_bytes(id).ok());
        let (status, retry_after) = (response.head.status(), error::retry_after(&response.head));
        let outcome = match self.read_response(response, &request.id, self.settings.discovery_timeout).await {
            // An error status stays an error, even with a JSON-RPC error in its body.
            Ok(Err(object)) if !status.is_success() => {
                return Err(self.status_error(status, retry_after, object.message().as_bytes()));
            }
            outcome => outcome?,
        };
        let result = outcome.map_err(Error::from_error_object)?;
        let hello = to_upstream::parse_initialize_result(&result).map_err(|why| {
            Error::failure(FailureKind::NoCommonRevision, format!("{}: {why}", redacted(&self.http.url())))
        })?;
        self.set_revision(hello.revision);
        if let Err(closed) = self.session.open(session_id.as_ref()) {
            if let Some(session_id) = &session_id {
                self.delete(session_id).await; // the connection was closed meanwhile
            }
            return Err(closed);
        }
        {
            let mut state = self.lock();
            state.initialize_result = self.resumable.is_some().then(|| result.into_raw());
            state.is_resumed = false;
        }
        self.post(self.use_session()?, Notification::new(NotificationMethod::Initialized, None).encode()).await?;
        self.persist();
        self.start_listening(&hello).await;
        Ok(hello)
    }

    /// Resumes a session that another node opened. Nothing is sent; the first call shows whether it still knows
    /// the session.
    pub(in crate::mcp_client) async fn resume(self: &Arc<Self>, saved: SavedSession) -> ServerHello {
        let SavedSession { session_id, initialize_result, hello, request_id_base } = saved;
        self.set_revision(hello.revision);
        self.last_id.store(request_id_base, std::sync::atomic::Ordering::Relaxed);
        // A connection that is being opened cannot have been closed.
        let _ = self.session.open(Some(&session_id));
        {
            let mut state = self.lock();
            state.initialize_result = Some(initialize_result);
            state.is_resumed = true;
        }
        self.persist();
        self.start_listening(&hello).await;
        hello
    }

    /// Whether the session was opened by another node.
    pub(in crate::mcp_client) fn is_resumed(&self) -> bool {
        self.lock().is_resumed
    }

    /// Opens a new session in place of `generation`, unless another task has already done so.
    pub(in crate::mcp_client) async fn reopen(self: &Arc<Self>, generation: u64) -> Result<()> {
        let mut last_reopen = self.last_reopen.lock().await;
        self.check_open()?;
        self.check_not_moved()?;
        if self.session.generation() != generation {
            return Ok(());
        }
        // A server that loses every session at once must not receive handshakes in a tight loop.
        if let Some(last_reopen) = *last_reopen {
            tokio::time::sleep_until(last_reopen + MIN_REOPEN_INTERVAL).await;
        }
        *last_reopen = Some(Instant::now());
        tracing::info!(url = %redacted(&self.http.url()), "upstream session lost; opening a new one");
        self.initialize(self.revision()).await?;
        self.unsolicited.send(Unsolicited::SessionReopened);
        Ok(())
    }

    /// Fails on a closed connection, on which nothing may be reopened or sent again.
    pub(in crate::mcp_client) fn check_open(&self) -> Result<()> {
        match self.is_closed() {
            true => Err(session_slot::connection_closed()),
            false => Ok(()),
        }
    }

    /// Fails when another node has taken the client session over: it alone may send in the client's name.
    pub(in crate::mcp_client) fn check_not_moved(&self) -> Result<()> {
        match self.resumable.as_ref().is_some_and(|resumable| resumable.moved_to_other_node()) {
            true => {
                Err(Failure::new(FailureKind::Broken, "another node serves this client now").before_sending().into())
            }
            false => Ok(()),
        }
    }

    /// Takes over a new session id from a later response.
    pub(in crate::mcp_client) fn update_session_id(&self, head: &ResponseHead, generation: u64) {
        let Some(id) = head.get(&SESSION_ID).filter(|_| self.in_handshake_era()) else { return };
        if self.session.rename(id, generation) {
            self.persist();
        }
    }

    /// Saves the session for other nodes, if that is configured.
    fn persist(&self) {
        let Some(resumable) = &self.resumable else { return };
        resumable.save(|| {
            let session_id = self.session.peek();
            session_id.zip(self.lock().initialize_result.clone())
        });
    }

    /// Starts to listen, and waits briefly for the stream where messages could be lost without it.
    async fn start_listening(self: &Arc<Self>, hello: &ServerHello) {
        let listening = self.spawn_listen_task(hello.server.announces_changes());
        if self.identity.capabilities.entries().next().is_some() || hello.server.announces_changes() {
            // Some servers send requests and notifications of a call on this stream and lose them without it. Others
            // respond to the GET only with their first event, hence the timeout.
            let _ = tokio::time::timeout(LISTEN_START_TIMEOUT, listening).await;
        }
    }

    /// Spawns the task that reads the listening stream, in place of a previous one. The receiver resolves when the server
    /// has responded to the GET.
    fn spawn_listen_task(self: &Arc<Self>, tells_of_changes: bool) -> oneshot::Receiver<()> {
        let (responded, listening) = oneshot::channel();
        let task = tokio::spawn(run_listen_stream(Arc::downgrade(self), tells_of_changes, responded));
        let previous = self.lock().listen_task.replace(task.abort_handle());
        if let Some(previous) = previous {
            previous.abort();
        }
        listening
    }

    /// Deletes the session after all requests in flight. A session that another node resumes is left open at the server.
    pub(in crate::mcp_client) async fn close(&self) {
        self.session.begin_end();
        if let Some(listen_task) = self.lock().listen_task.take() {
            listen_task.abort();
        }
        let Some(session_id) = self.session.end(self.settings.stop_timeout).await else { return };
        if self.resumable.as_ref().is_some_and(|resumable| resumable.close()) {
            tracing::debug!(url = %redacted(&self.http.url()), "upstream session left open for another node");
            return;
        }
        self.delete(&session_id).await;
    }

    /// Sends DELETE. Must be the last request of the session.
    async fn delete(&self, session_id: &HeaderValue) {
        let headers = |head: &mut RequestEncoder| {
            head.put_static(&ACCEPT, "application/json, text/event-stream");
            self.put_session_headers(head, Some(session_id));
        };
        match self.http.send(Verb::DELETE, headers, Bytes::new(), Some(self.settings.stop_timeout)).await {
            Ok(response) => tracing::debug!(status = %response.head.status(), "upstream session deleted"),
            Err(error) => tracing::debug!(%error, "deleting the upstream session failed"),
        }
    }
}

/// Whether an error status means that the server has lost our session. The specification says 404; some servers respond
/// 400 with a sentence about the session, which must not be the JSON-RPC response to the request itself.
pub(in crate::mcp_client) fn is_session_lost(
    status: StatusCode,
    body: &[u8],
    had_session: bool,
    is_response: bool,
) -> bool {
    let mentions_session = || String::from_utf8_lossy(body).to_ascii_lowercase().contains("session");
    match status {
        StatusCode::NOT_FOUND => had_session,
        StatusCode::BAD_REQUEST => had_session && !is_response && mentions_session(),
        _ => false,
    }
}

/// Reads the listening stream as long as the connection is held.
///
/// Servers drop what they send while there is no stream, so [`Unsolicited::Missed`] is sent once there is one again. That
/// includes the first stream: the session is in use after [`LISTEN_START_TIMEOUT`] at the latest, and a subscription made
/// before the stream was open could miss the last change of a burst.
async fn run_listen_stream(client: Weak<StreamableClient>, tells_of_changes: bool, responded: oneshot::Sender<()>) {
    let mut responded = Some(responded);
    let mut last_event_id: Option<String> = None;
    let mut retry_delay = DEFAULT_RETRY_DELAY;
    let mut failures = 0;
    let mut was_open = false;
    // Messages sent while there was no stream are lost, unless the server resumes it from the last event id.
    let mut missed = false;
    loop {
        let Some(http) = client.upgrade() else { return };
        let generation = http.session.generation();
        let read_timeout = http.settings.listen_read_timeout;
        let opened = http.open_stream(last_event_id.as_deref(), LISTEN_HEAD_TIMEOUT).await;
        drop(http);
        // The session was given out before this stream was open, so calls and subscriptions may have come first.
        let is_late = responded.take().is_some_and(|responded| responded.is_closed());
        missed |= is_late && tells_of_changes;
        let mut events = match opened {
            Ok(Some(events)) => events.with_read_timeout(read_timeout),
            Ok(None) => return, // the server offers no listening stream
            Err(error) => {
                tracing::debug!(%error, "opening the upstream listening stream failed");
                // 404 after a stream was open: the server has lost the session.
                if error.kind() == Some(FailureKind::Status(404)) && was_open {
                    tokio::spawn(async move {
                        let Some(http) = client.upgrade() else { return };
                        if let Err(error) = http.reopen(generation).await {
                            tracing::debug!(%error, "opening a new upstream session failed");
                        }
                    });
                    return; // the new session has a listening task of its own
                }
                // 409: the server allows one stream per session and has not noticed yet that the previous one is gone.
                if !error.is_retryable() && error.kind() != Some(FailureKind::Status(409)) {
                    return;
                }
                failures += 1;
                missed = true;
                tokio::time::sleep((retry_delay * failures).min(MAX_RETRY_DELAY)).await;
                continue;
            }
        };
        failures = 0;
        was_open = true;
        if std::mem::take(&mut missed)
            && last_event_id.is_none()
            && let Some(http) = client.upgrade()
        {
            http.unsolicited.send(Unsolicited::Missed);
        }
        while let Ok(Some(event)) = events.next().await {
            let Some(http) = client.upgrade() else { return };
            retry_delay = event.retry.map_or(retry_delay, clamp_retry_delay);
            last_event_id = event.id.clone().or(last_event_id);
            for message in http.parser.messages_in_event(event) {
                http.dispatch(message, None, Mark::NONE).await;
            }
        }
        missed = true;
        tokio::time::sleep(retry_delay).await;
    }
}
