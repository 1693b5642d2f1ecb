//! Handshake-era sessions: running calls, pending server requests, subscriptions and the outbox of each client.
//!
//! A session belongs to the caller and the group that opened it; for anyone else it does not exist. [`Sessions`]
//! is the registry that creates, finds and expires them.

mod handle;
mod id;
mod outbox;
mod persistence;
mod persister;
mod record;
mod registry;
mod report;
mod server_requests;
mod sse_stream;
mod stream_reader;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use id::{SessionId, SessionTransport};
pub use outbox::{StreamError, StreamTarget};
pub use persister::Persister;
pub use record::SessionRecord;
pub(crate) use registry::SESSION_SHARDS;
pub use registry::{SessionOwner, SessionStats, Sessions};
pub use report::{QuestionReport, SessionReport, StreamReport};
pub use stream_reader::StreamReader;

use crate::call::{ChangeEvent, ClientInfo, DropGuard, GatewaySlot};
use crate::failure::{QuotaReached, QuotaScope};
use crate::identity::Identity;
use crate::policy::Quotas;
use crate::protocol::{Id, Level, Method, Outcome, Raw};
use crate::recorder::Mark;
use crate::store::{EventId, Retention};
use outbox::{Outbox, Streams};
use persistence::Persistence;

/// Limits and timeouts for sessions.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// Most stream readers attached to one session.
    pub max_streams: usize,
    /// Most calls in flight in one session.
    pub max_calls: usize,
    /// Most resource subscriptions of one session.
    pub max_subscriptions: usize,
    /// Most server requests of one session that await a response, inside and outside of calls.
    pub max_server_requests: usize,
    /// A session without requests, running calls or readers expires after this time.
    pub idle_timeout: Duration,
    /// Bounds of the event log from which clients resume.
    pub retention: Retention,
    /// Value of the SSE `retry` field, in milliseconds.
    pub sse_retry_ms: u64,
}

/// What all sessions of a registry share.
#[derive(Debug)]
struct SessionShared {
    settings: ArcSwap<SessionSettings>,
    quotas: Arc<Quotas>,
}

/// A handshake-era session. All methods are safe to call from any task.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    /// What stands for the id in logs: a hash, made when it is first needed.
    tag: OnceLock<Arc<str>>,
    identity: Arc<Identity>,
    /// Who the last request was from, if its credential said something else than the one that opened the session.
    latest_identity: ArcSwapOption<Identity>,
    group: Arc<str>,
    client: OnceLock<Arc<ClientInfo>>,
    shared: Arc<SessionShared>,
    state: Mutex<SessionState>,
    /// Notified when a reader makes progress, a checkpoint is acknowledged, or the session closes.
    progress: Notify,
    /// Counts changes of the saved upstream sessions.
    upstream_session_saves: AtomicU64,
    /// State that the gateway attaches to this session.
    gateway_slot: GatewaySlot,
    ended: CancellationToken,
    opened_at: Instant,
    weak_self: Weak<Session>,
    /// Another node owns the session, or is about to: upstream sessions must be left open for it.
    moved: AtomicBool,
}

/// Mutable state. Its lock is never held across an await.
#[derive(Debug)]
struct SessionState {
    outbox: Outbox,
    last_used: Instant,
    log_level: Option<Level>,
    calls: Vec<CallEntry>,
    last_call_serial: u64,
    server_requests: Vec<PendingServerRequest>,
    last_server_request_id: i64,
    /// Subscribed URIs. The guard is `None` when a lease of this session delivers the updates, not the group.
    subscriptions: BTreeMap<Box<str>, SubscriptionHold>,
    /// The client sent `notifications/initialized`.
    initialized: bool,
    closed: bool,
    /// Closed for good, as opposed to frozen for a release: unpersisted events will never become durable.
    terminated: bool,
    /// Persistence state; `None` without a shared store.
    persistence: Option<Box<Persistence>>,
}

/// Keeps the upstream subscription alive while the session has it.
struct SubscriptionHold(DropGuard);

impl fmt::Debug for SubscriptionHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubscriptionHold")
    }
}

/// A running call. Dropping the entry cancels it.
#[derive(Debug)]
struct CallEntry {
    id: Id,
    /// Distinguishes this call from a later one that reuses the JSON-RPC id.
    serial: u64,
    _cancel_on_drop: oneshot::Sender<()>,
}

#[derive(Debug)]
struct PendingServerRequest {
    id: i64,
    method: Method,
    /// For operators, like the name of the server.
    params: Option<Raw>,
    asker: Option<Arc<str>>,
    asked_at: Instant,
    /// Serial of the call that caused the request, or [`NO_CALL_SERIAL`].
    call_serial: u64,
    /// The number of that call for the recorder.
    mark: Mark,
    /// The stream that carried the request; its cancellation goes there too.
    stream: StreamTarget,
    response_sender: oneshot::Sender<Outcome>,
}

/// Registration of a running call; dropping it deregisters the call and cancels its server requests.
#[derive(Debug)]
pub struct CallGuard {
    session: Arc<Session>,
    serial: u64,
    cancelled: oneshot::Receiver<()>,
}

/// Reasons to refuse a new call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeginCallError {
    /// A call with this JSON-RPC id is still running.
    DuplicateId,
    /// A quota is used up: of calls in this session, or of streams in it or in all. Nothing was begun.
    QuotaReached(QuotaReached),
    /// The session is closed, or frozen for a release to another node.
    SessionEnded,
}

impl fmt::Display for BeginCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateId => f.write_str("a request with this id is running already"),
            Self::QuotaReached(reached) => write!(f, "there are too many {}", reached.resource),
            Self::SessionEnded => f.write_str("the session has ended"),
        }
    }
}

// === impl Session ===

impl Session {
    /// What stands for the id in logs.
    pub fn tag(&self) -> &Arc<str> {
        self.tag.get_or_init(|| self.id.log_tag().to_string().into())
    }

    /// The session id.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Who opened the session.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// Name of the group that the session was opened on.
    pub fn group(&self) -> &Arc<str> {
        &self.group
    }

    /// Client info from `initialize`; `None` before that request.
    pub fn client(&self) -> Option<&Arc<ClientInfo>> {
        self.client.get()
    }

    /// Stores the client info from `initialize`; returns false if it was already set.
    pub fn set_client(&self, client: Arc<ClientInfo>) -> bool {
        let is_first = self.client.set(client).is_ok();
        self.update(|_| ());
        is_first
    }

    /// Sets the minimum level for log notifications.
    pub fn set_log_level(&self, level: Level) {
        self.update(|state| state.log_level = Some(level));
    }

    /// Whether a subscription to `uri` fits within [`SessionSettings::max_subscriptions`].
    pub fn may_subscribe(&self, uri: &str) -> bool {
        let state = self.lock();
        state.subscriptions.len() < self.settings().max_subscriptions || state.subscriptions.contains_key(uri)
    }

    /// Records `notifications/initialized`; returns true the first time, and only after `initialize`.
    pub fn mark_initialized(&self) -> bool {
        if self.client.get().is_none() || self.lock().initialized {
            return false;
        }
        self.update(|state| !std::mem::replace(&mut state.initialized, true))
    }

    /// URIs that the client is subscribed to.
    pub fn subscribed_uris(&self) -> Vec<String> {
        self.lock().subscriptions.keys().map(|uri| uri.to_string()).collect()
    }

    /// Subscriptions served by the group's shared upstream connection, not by a lease of this session.
    fn group_subscriptions(&self) -> Vec<Arc<str>> {
        let state = self.lock();
        let shared = state.subscriptions.iter().filter(|(_, hold)| hold.0.is_some());
        shared.map(|(uri, _)| Arc::from(&**uri)).collect()
    }

    fn is_interested_in(&self, change: &ChangeEvent) -> bool {
        match change {
            // Updates for a leased subscription arrive through the lease; publishing them here would duplicate them.
            ChangeEvent::ResourceUpdated(uri) => {
                self.lock().subscriptions.get(&**uri).is_some_and(|hold| hold.0.is_some())
            }
            ChangeEvent::Tools | ChangeEvent::Prompts | ChangeEvent::Resources => self.client.get().is_some(),
        }
    }

    /// Registers a call, before it is forwarded. Its stream is not counted yet, but only a call that could have one may
    /// begin: to be refused later, a call would have run for nothing.
    ///
    /// # Errors
    /// When a call with this id is running, a quota of calls or streams is used up, or the session is closed.
    pub fn begin_call(self: &Arc<Self>, id: Id) -> Result<CallGuard, BeginCallError> {
        let settings = self.settings();
        let reached = |resource| BeginCallError::QuotaReached(QuotaReached { scope: QuotaScope::Session, resource });
        let (cancel_sender, cancelled) = oneshot::channel();
        let mut state = self.lock();
        if state.closed {
            return Err(BeginCallError::SessionEnded);
        }
        if state.calls.iter().any(|running| running.id == id) {
            return Err(BeginCallError::DuplicateId);
        }
        if state.calls.len() >= settings.max_calls {
            return Err(reached("calls in flight"));
        }
        if matches!(state.outbox, Outbox::Streams(_)) {
            self.shared.quotas.streams.check_room().map_err(BeginCallError::QuotaReached)?;
        }
        if state.outbox.has_readers(settings.max_streams) {
            return Err(reached("open streams"));
        }
        state.last_call_serial += 1;
        let serial = state.last_call_serial;
        state.calls.push(CallEntry { id, serial, _cancel_on_drop: cancel_sender });
        drop(state);
        Ok(CallGuard { session: Arc::clone(self), serial, cancelled })
    }

    /// Cancels a call on `notifications/cancelled`; unknown ids are ignored.
    pub fn cancel_call(&self, id: &Id) {
        self.lock().calls.retain(|running| running.id != *id);
    }

    /// Opens an SSE stream for a running call and attaches its first reader; `mark` is its number for the recorder. No
    /// quota refuses it any more: [`Session::begin_call`] did not.
    ///
    /// # Errors
    /// When the session is closed.
    pub fn open_stream(self: &Arc<Self>, mark: Mark) -> Result<(StreamTarget, StreamReader), StreamError> {
        let permit = self.shared.quotas.streams.acquire_begun(1);
        let (number, serial) = self.with_streams(|streams, retry| Ok(streams.open(mark, retry)))?;
        Ok((StreamTarget::Call(number), StreamReader::new(Arc::clone(self), (number, serial), permit)))
    }

    /// Attaches a reader to the listening stream, which carries messages that belong to no call.
    ///
    /// # Errors
    /// When as many readers are attached as may be, or the session is closed.
    pub fn listen(self: &Arc<Self>) -> Result<StreamReader, StreamError> {
        let limit = self.settings().max_streams;
        let permit = self.shared.quotas.streams.acquire(1).map_err(StreamError::QuotaReached)?;
        let (number, serial) = self.with_streams(|streams, retry| streams.listen(retry, limit))?;
        tracing::debug!(session = %self.id.log_tag(), reader = serial, "listening stream opened");
        Ok(StreamReader::new(Arc::clone(self), (number, serial), permit))
    }

    /// Attaches a reader to the stream of `id` and replays the events after it (`Last-Event-ID`).
    ///
    /// # Errors
    /// When the id is not of this session, or events after it were trimmed.
    pub fn resume(self: &Arc<Self>, id: EventId) -> Result<StreamReader, StreamError> {
        let limit = self.settings().max_streams;
        // It takes the place of a connection that broke, so no quota refuses it.
        let permit = self.shared.quotas.streams.acquire_begun(1);
        let (number, serial) = self.with_streams(|streams, retry| streams.resume(id, retry, limit))?;
        tracing::debug!(session = %self.id.log_tag(), stream = number, reader = serial, after = id.position, "stream resumed");
        Ok(StreamReader::new(Arc::clone(self), (number, serial), permit))
    }

    fn settings(&self) -> Guard<Arc<SessionSettings>> {
        self.shared.settings.load()
    }

    fn with_streams<T>(
        &self,
        operation: impl FnOnce(&mut Streams, Option<u64>) -> Result<T, StreamError>,
    ) -> Result<T, StreamError> {
        let supports_priming = self.client.get().is_some_and(|client| client.revision.sends_priming_events());
        let retry = supports_priming.then(|| self.settings().sse_retry_ms);
        let mut state = self.lock();
        if state.closed {
            return Err(StreamError::SessionEnded);
        }
        let result = match &mut state.outbox {
            Outbox::Streams(streams) => operation(streams, retry),
            Outbox::Single(_) => Err(StreamError::UnknownEvent),
        };
        self.mark_dirty(&mut state, true);
        result
    }

    /// Appends a message to a stream without waiting. Closes a single-connection session whose queue is full.
    pub fn send(&self, stream: StreamTarget, message: Bytes) {
        let mut state = self.lock();
        let retention = self.settings().retention;
        let append_message = |state: &mut SessionState| state.outbox.send(stream, message, &retention);
        if !state.closed && !self.append(&mut state, append_message) {
            tracing::debug!(session = %self.id.log_tag(), "session closed: client does not read its connection");
            state.close();
            self.ended.cancel();
        }
    }

    /// Appends a message to a stream, waiting while its reader lags: at most `SLOW_READER_TIMEOUT` on a resumable
    /// stream, without limit on a single connection. Only the task that runs the call may use it.
    pub async fn deliver(&self, stream: StreamTarget, message: Bytes) {
        self.deliver_with(stream, message, |_| ()).await;
    }

    async fn deliver_with(&self, stream: StreamTarget, message: Bytes, before_append: impl FnOnce(&mut SessionState)) {
        let deadline = Instant::now() + SLOW_READER_TIMEOUT;
        let mut may_wait = true;
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            let resumable = {
                let mut state = self.lock();
                if state.closed {
                    return;
                }
                if !may_wait || !state.outbox.is_behind(stream) {
                    let append_message = |state: &mut SessionState| {
                        before_append(state);
                        state.outbox.append(stream, message, &self.settings().retention);
                    };
                    return self.append(&mut state, append_message);
                }
                matches!(state.outbox, Outbox::Streams(_))
            };
            if resumable {
                may_wait = tokio::time::timeout_at(deadline, progress).await.is_ok();
            } else {
                progress.await;
            }
        }
    }

    /// Marks a call's stream as complete; readers end after its last event.
    pub fn finish_stream(&self, stream: StreamTarget) {
        self.update(|state| state.outbox.finish(stream));
    }

    /// Drops a call's stream and its events when the client cancelled the call.
    pub fn abandon_stream(&self, stream: StreamTarget) {
        self.update(|state| state.outbox.abandon(stream));
    }

    /// Deregisters a call and cancels its server requests.
    fn end_call(&self, call_serial: u64) {
        self.lock().calls.retain(|running| running.serial != call_serial);
        self.cancel_server_requests_of(call_serial);
    }

    /// Polls the next durable event for a reader; `None` ends the response body.
    fn poll_stream(&self, number: u32, serial: u64, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let next = {
            let mut state = self.lock();
            let durable = state.durable_up_to();
            match state.outbox.poll(number, serial, durable, context) {
                // A terminated session is not persisted again, so the event would never become durable.
                Poll::Pending if state.terminated => Poll::Ready(None),
                next => next,
            }
        };
        if matches!(next, Poll::Ready(Some(_))) {
            self.progress.notify_waiters();
        }
        next
    }

    fn detach_reader(&self, number: u32, serial: u64) {
        tracing::debug!(session = %self.id.log_tag(), stream = number, reader = serial, "stream reader detached");
        self.lock().outbox.detach(number, serial);
        self.progress.notify_waiters();
    }

    fn close(&self) {
        self.lock().close();
        self.ended.cancel();
        self.progress.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }
}

/// Call serial of server requests that belong to no call.
const NO_CALL_SERIAL: u64 = 0;
/// Longest that a call waits for a lagging reader of a resumable stream. After it the call goes on; the client can
/// resume.
const SLOW_READER_TIMEOUT: Duration = Duration::from_secs(5);

// === impl SessionState ===

impl SessionState {
    fn new(outbox: Outbox) -> Self {
        Self {
            outbox,
            last_used: Instant::now(),
            log_level: None,
            calls: Vec::new(),
            last_call_serial: 0,
            server_requests: Vec::new(),
            last_server_request_id: 0,
            subscriptions: BTreeMap::new(),
            initialized: false,
            closed: false,
            terminated: false,
            persistence: None,
        }
    }

    /// Whether a client is attached, or was active recently enough to resume from the event log.
    fn client_may_resume(&self, settings: &SessionSettings, now: Instant) -> bool {
        self.outbox.is_attached()
            || !self.calls.is_empty()
            || now.duration_since(self.last_used) <= settings.retention.max_age
    }

    /// Cancels running calls and pending server requests, drops subscriptions and ends the readers.
    fn close(&mut self) {
        self.closed = true;
        self.terminated = true;
        self.calls = Vec::new();
        self.server_requests = Vec::new();
        self.subscriptions = BTreeMap::new();
        self.outbox.close();
    }
}

// === impl CallGuard ===

impl CallGuard {
    /// The session that owns the call.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Resolves when the call is cancelled or the session closes. Cancel-safe.
    pub async fn cancelled(&mut self) {
        // The sender is only ever dropped, never used.
        let _ = (&mut self.cancelled).await;
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.session.end_call(self.serial);
    }
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            max_streams: 128,
            max_calls: 1000,
            max_subscriptions: 1000,
            max_server_requests: 256,
            idle_timeout: Duration::from_secs(900),
            retention: Retention::default(),
            sse_retry_ms: 3000,
        }
    }
}

#[cfg(test)]
mod tests;
