//! The session with a server of the handshake era: how it is opened, gone on with, heard, opened
//! anew where the server forgot it, and ended.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderValue, Method as Verb, StatusCode};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{RETRY, RETRY_CAP, SESSION_ID, StreamableClient, pause, posted, session_slot};
use crate::dialect::Revision;
use crate::dialect::to_upstream::{self, ServerHello};
use crate::error::{Error, ErrorKind, Result};
use crate::http::client::redacted;
use crate::http::codec::{RequestEncoder, ResponseHead};
use crate::mcp_client::Unsolicited;
use crate::mcp_client::batch::parsed;
use crate::mcp_client::session_resumption::SavedSession;
use crate::protocol::{Method, Notice, Notification, Request};

/// How long after one new session the next may be opened.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// How long the stream that listens may take to begin: some servers say nothing before they have
/// something to say.
const LISTEN_HEAD_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// How long a new session is held back until its listening stream is there.
const HEAD_START: Duration = Duration::from_millis(1000);

impl StreamableClient {
    /// Opens a session by a handshake.
    pub(in crate::mcp_client) async fn initialize(self: &Arc<Self>, proposed: Revision) -> Result<ServerHello> {
        let request =
            Request::new(self.next_id(), Method::Initialize, Some(to_upstream::initialize(proposed, &self.identity)));
        let response =
            self.http.send(Verb::POST, posted, request.encode(), Some(self.settings.discovery_timeout)).await?;
        let session = response.head.get(&SESSION_ID).and_then(|id| HeaderValue::from_bytes(id).ok());
        let status = response.head.status();
        let outcome = match self.read_answer(response, &request.id, self.settings.discovery_timeout).await {
            // A refusal whose body only looks like an answer is still a refusal.
            Ok(Err(object)) if !status.is_success() => {
                return Err(self.refused(status, object.message().as_bytes()));
            }
            outcome => outcome?,
        };
        let result = outcome.map_err(Error::answered)?;
        let introduction = to_upstream::read_handshake(&result)
            .map_err(|why| Error::new(ErrorKind::Revision, format!("{}: {why}", redacted(&self.http.url()))))?;
        self.set_revision(introduction.revision);
        if let Err(closed) = self.session.open(session.as_ref()) {
            if let Some(session) = &session {
                self.delete(session).await; // nobody else will
            }
            return Err(closed);
        }
        {
            let mut state = self.lock();
            state.result = self.resumable.is_some().then_some(result);
            state.goes_on = false;
        }
        self.post(self.use_session()?, Notification::new(Notice::Initialized, None).encode()).await?;
        self.persist();
        self.begin_to_listen(&introduction).await;
        Ok(introduction)
    }

    /// Goes on with a session that was opened elsewhere. The server is not told: whether it still
    /// knows the session shows with the first call.
    pub(in crate::mcp_client) async fn resume(self: &Arc<Self>, entry: SavedSession) -> ServerHello {
        let SavedSession { session, result, introduction, first_id } = entry;
        self.set_revision(introduction.revision);
        self.last_id.store(first_id, std::sync::atomic::Ordering::Relaxed);
        // A connection that is being opened cannot have been closed.
        let _ = self.session.open(Some(&session));
        {
            let mut state = self.lock();
            state.result = Some(result);
            state.goes_on = true;
        }
        self.persist();
        self.begin_to_listen(&introduction).await;
        introduction
    }

    /// Whether the session was opened elsewhere.
    pub(in crate::mcp_client) fn is_resumed(&self) -> bool {
        self.lock().goes_on
    }

    /// Opens the session anew, unless somebody else just did.
    pub(in crate::mcp_client) async fn reopen(self: &Arc<Self>, generation: u64) -> Result<()> {
        let mut last = self.reopening.lock().await;
        self.check_open()?;
        self.check_here()?;
        if self.session.generation() != generation {
            return Ok(());
        }
        // A server that forgets every session at once must not be asked for them in a tight loop.
        if let Some(last) = *last {
            tokio::time::sleep_until(last + REOPEN_PAUSE).await;
        }
        *last = Some(Instant::now());
        tracing::info!(url = %redacted(&self.http.url()), "the server forgot our session; a new one is opened");
        self.initialize(self.revision()).await?;
        self.unsolicited.send(Unsolicited::Reopened);
        Ok(())
    }

    /// Nothing is opened, and nothing sent again, on a connection that was closed.
    pub(in crate::mcp_client) fn check_open(&self) -> Result<()> {
        match self.is_closed() {
            true => Err(session_slot::closed()),
            false => Ok(()),
        }
    }

    /// Nothing is told from here in the name of a client that is served elsewhere now.
    pub(in crate::mcp_client) fn check_here(&self) -> Result<()> {
        match self.resumable.as_ref().is_some_and(|notebook| notebook.moved_to_other_node()) {
            true => Err(Error::new(ErrorKind::Broken, "the client is served elsewhere")),
            false => Ok(()),
        }
    }

    /// A later response may name the session anew.
    pub(in crate::mcp_client) fn note_session(&self, head: &ResponseHead, generation: u64) {
        let Some(id) = head.get(&SESSION_ID).filter(|_| self.in_handshake_era()) else { return };
        let Ok(id) = HeaderValue::from_bytes(id) else { return };
        if self.session.rename(id, generation) {
            self.persist();
        }
    }

    /// Has the session remembered, where somebody could go on with it.
    fn persist(&self) {
        let Some(notebook) = &self.resumable else { return };
        notebook.write(|| {
            let session = self.session.peek();
            session.zip(self.lock().result.clone())
        });
    }

    /// Listens, and gives that a moment where something may be missed otherwise.
    async fn begin_to_listen(self: &Arc<Self>, introduction: &ServerHello) {
        let listening = self.listen(introduction.server.tells_of_changes());
        if self.identity.capabilities.entries().next().is_some() || introduction.server.tells_of_changes() {
            // Some servers ask on this stream even during a call, and lose what they ask or tell before
            // it is there. Others do not answer it before they have something to say.
            let _ = tokio::time::timeout(HEAD_START, listening).await;
        }
    }

    /// Listens for what belongs to no call, where the server offers it. What is given back ends
    /// when the server has answered.
    fn listen(self: &Arc<Self>, tells_of_changes: bool) -> oneshot::Receiver<()> {
        let (answered, listening) = oneshot::channel();
        let task = tokio::spawn(listen(Arc::downgrade(self), tells_of_changes, answered));
        let before = self.lock().listening.replace(task.abort_handle());
        if let Some(before) = before {
            before.abort();
        }
        listening
    }

    /// Ends the session, after everything that is on its way in it. One that another node goes on with stays at
    /// the server.
    pub(in crate::mcp_client) async fn close(&self) {
        self.session.begin_end();
        if let Some(listening) = self.lock().listening.take() {
            listening.abort();
        }
        let Some(session) = self.session.end(self.settings.stop_timeout).await else { return };
        if self.resumable.as_ref().is_some_and(|notebook| notebook.close()) {
            tracing::debug!(url = %redacted(&self.http.url()), "the session is left to another node");
            return;
        }
        self.delete(&session).await;
    }

    /// Tells the server that a session has ended. Nothing is sent in it any more.
    async fn delete(&self, session: &HeaderValue) {
        let headers = |head: &mut RequestEncoder| {
            head.put_static(&ACCEPT, "application/json, text/event-stream");
            self.put_session(head, Some(session));
        };
        match self.http.send(Verb::DELETE, headers, Bytes::new(), Some(self.settings.stop_timeout)).await {
            Ok(response) => tracing::debug!(status = %response.head.status(), "the session was ended"),
            Err(error) => tracing::debug!(%error, "the session could not be ended"),
        }
    }
}

/// Whether a refusal says that the server does not know our session. It is 404 by the book; some
/// servers say 400 and a sentence, which must not be the answer to this very request.
pub(in crate::mcp_client) fn session_is_lost(
    status: StatusCode,
    body: &[u8],
    had_session: bool,
    answered: bool,
) -> bool {
    let says_session = || String::from_utf8_lossy(body).to_ascii_lowercase().contains("session");
    match status {
        StatusCode::NOT_FOUND => had_session,
        StatusCode::BAD_REQUEST => had_session && !answered && says_session(),
        _ => false,
    }
}

/// Reads the stream that belongs to no call, as long as somebody holds the connection.
///
/// A server forgets what it says while there is no stream, so whoever hears it is told [`Unsolicited::Missed`] once
/// there is one again. That holds for the first stream, too: a session is given out after [`HEAD_START`] at the latest,
/// and a subscription that was made in it before the stream was there could miss the last change of a burst for good.
async fn listen(http: Weak<StreamableClient>, tells_of_changes: bool, answered: oneshot::Sender<()>) {
    let mut answered = Some(answered);
    let mut last: Option<String> = None;
    let mut wait = RETRY;
    let mut failures = 0;
    let mut listened = false;
    // What the server says while there is no stream is lost, unless it can say where it was.
    let mut missed = false;
    loop {
        let Some(strong) = http.upgrade() else { return };
        let generation = strong.session.generation();
        let opened = strong.open_stream(last.as_deref(), LISTEN_HEAD_TIMEOUT).await;
        drop(strong);
        // Whoever opened the session did not wait for this stream any longer: calls and subscriptions came before it.
        let late = answered.take().is_some_and(|answered| answered.is_closed());
        missed |= late && tells_of_changes;
        let mut events = match opened {
            Ok(Some(events)) => events,
            Ok(None) => return, // it has none
            Err(error) => {
                tracing::debug!(%error, "the listening stream could not be opened");
                // Where there was a stream and is none any more, the server has forgotten the session.
                if error.kind() == ErrorKind::Status(404) && listened {
                    tokio::spawn(async move {
                        let Some(http) = http.upgrade() else { return };
                        if let Err(error) = http.reopen(generation).await {
                            tracing::debug!(%error, "no new session could be opened");
                        }
                    });
                    return; // the new session has a stream of its own
                }
                // Where one stream is all that a session may have, the server may not know yet that the
                // one before is gone.
                if !error.may_retry() && error.kind() != ErrorKind::Status(409) {
                    return;
                }
                failures += 1;
                missed = true;
                tokio::time::sleep((wait * failures).min(RETRY_CAP)).await;
                continue;
            }
        };
        failures = 0;
        listened = true;
        if std::mem::take(&mut missed)
            && last.is_none()
            && let Some(http) = http.upgrade()
        {
            http.unsolicited.send(Unsolicited::Missed);
        }
        while let Ok(Some(event)) = events.next().await {
            let Some(http) = http.upgrade() else { return };
            wait = event.retry.map_or(wait, pause);
            last = event.id.clone().or(last);
            for message in parsed(event) {
                http.take(message, None);
            }
        }
        missed = true;
        tokio::time::sleep(wait).await;
    }
}
