//! What a client of the handshake era expects us to remember.
//!
//! A session belongs to the caller and the group that opened it; to anybody else it does not
//! exist. [`Sessions`] finds and expires them, a [`Session`] knows its running calls, its
//! unanswered questions and its outbox.

mod handle;
mod id;
mod outbox;
mod persistence;
mod persister;
mod record;
mod registry;
mod sse_stream;
mod stream_reader;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use id::{SessionId, SessionTransport};
pub use outbox::{StreamError, StreamTarget};
pub use persister::Persister;
pub use record::Record;
pub use registry::{SessionLimitReached, SessionOwner, SessionStats, Sessions};
pub use stream_reader::Attachment;

use crate::call::{ChangeEvent, ClientInfo, DropGuard, GatewaySlot, Principal, ServerRequest};
use crate::protocol::{Id, Level, Notification, Outcome, Request};
use crate::store::{EventId, Retention};
use outbox::{Outbox, Streams};
use persistence::Persistence;

/// What governs sessions.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// How many sessions there may be in all.
    pub sessions: usize,
    /// How many open streams one session may have.
    pub streams: usize,
    /// How many calls may run in one session.
    pub calls: usize,
    /// How many resources one session may be subscribed to.
    pub subscriptions: usize,
    /// How long a session may be unused before it ends.
    pub idle: Duration,
    /// What is kept for clients that resume.
    pub retention: Retention,
    /// What clients are told to wait before they reconnect, in milliseconds.
    pub sse_retry: u64,
}

/// One session.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    principal: Principal,
    group: Arc<str>,
    client: OnceLock<Arc<ClientInfo>>,
    settings: Arc<SessionSettings>,
    state: Mutex<SessionState>,
    /// Told when a connection has read something, for calls that wait for their client.
    read: Notify,
    /// What the gateway remembers of it.
    shelf: GatewaySlot,
    ended: CancellationToken,
    me: Weak<Session>,
    /// It lives on on another node.
    moved: AtomicBool,
}

/// The part that changes. The lock is held for moments only, never across an await.
#[derive(Debug)]
struct SessionState {
    outbox: Outbox,
    used: Instant,
    level: Option<Level>,
    calls: Vec<CallEntry>,
    last_call: u64,
    server_requests: Vec<PendingServerRequest>,
    last_server_request: i64,
    /// The resources that it hears of, and what has to be held for that.
    subscriptions: BTreeMap<Box<str>, SubscriptionHold>,
    /// The client has said that it is ready.
    initialized: bool,
    closed: bool,
    /// It does not come back: what is not kept by now never will be.
    over: bool,
    /// What is known of its copy in a shared store, where there is one.
    persistence: Option<Box<Persistence>>,
}

/// What has to be held for a subscription.
struct SubscriptionHold(DropGuard);

impl fmt::Debug for SubscriptionHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

/// A call that is not answered yet. Dropping it says that it is not wanted.
#[derive(Debug)]
struct CallEntry {
    id: Id,
    /// Tells it from a later call with the same id.
    serial: u64,
    _unwanted: oneshot::Sender<()>,
}

#[derive(Debug)]
struct PendingServerRequest {
    id: i64,
    /// The call that it was asked for.
    call: u64,
    /// Where it was asked.
    stream: StreamTarget,
    answer: oneshot::Sender<Outcome>,
}

/// A call in the session's books. Dropping it takes the call out of them.
#[derive(Debug)]
pub struct CallGuard {
    session: Arc<Session>,
    serial: u64,
    unwanted: oneshot::Receiver<()>,
}

/// Why a call cannot begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotBegun {
    /// A call with this id is running.
    Duplicate,
    /// As many calls run as may.
    TooMany,
    /// The session has ended.
    Ended,
}

impl fmt::Display for NotBegun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Duplicate => "a request with this id is running already",
            Self::TooMany => "too many calls run in this session",
            Self::Ended => "the session has ended",
        })
    }
}

// === impl Session ===

impl Session {
    /// Its name.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The name of its group.
    pub fn group(&self) -> &Arc<str> {
        &self.group
    }

    /// Its client, once that has introduced itself.
    pub fn client(&self) -> Option<&Arc<ClientInfo>> {
        self.client.get()
    }

    /// The client introduces itself; false when it had done so before.
    pub fn introduce(&self, client: Arc<ClientInfo>) -> bool {
        let introduced = self.client.set(client).is_ok();
        self.change(|_| ());
        introduced
    }

    /// The client chooses what is logged to it.
    pub fn set_level(&self, level: Level) {
        self.change(|live| live.level = Some(level));
    }

    /// Whether the client may hear of one more resource.
    pub fn may_subscribe(&self, uri: &str) -> bool {
        let live = self.lock();
        live.subscriptions.len() < self.settings.subscriptions || live.subscriptions.contains_key(uri)
    }

    /// The client says that it is ready; true the first time.
    pub fn initialized(&self) -> bool {
        if self.client.get().is_none() || self.lock().initialized {
            return false;
        }
        self.change(|live| !std::mem::replace(&mut live.initialized, true))
    }

    /// The resources that it hears of through its group; what its own connection to a server tells is not among them.
    fn shared_subscriptions(&self) -> Vec<Arc<str>> {
        let live = self.lock();
        let shared = live.subscriptions.iter().filter(|(_, held)| held.0.is_some());
        shared.map(|(uri, _)| Arc::from(&**uri)).collect()
    }

    fn hears(&self, change: &ChangeEvent) -> bool {
        match change {
            // What a server tells the session itself does not come this way, too.
            ChangeEvent::Updated(uri) => self.lock().subscriptions.get(&**uri).is_some_and(|held| held.0.is_some()),
            ChangeEvent::Tools | ChangeEvent::Prompts | ChangeEvent::Resources => self.client.get().is_some(),
        }
    }

    /// Enters a call into the books.
    ///
    /// # Errors
    /// When a call with this id is running, too many are, or the session has ended.
    pub fn begin(self: &Arc<Self>, id: Id) -> Result<CallGuard, NotBegun> {
        let (sender, unwanted) = oneshot::channel();
        let mut live = self.lock();
        if live.closed {
            return Err(NotBegun::Ended);
        }
        if live.calls.iter().any(|running| running.id == id) {
            return Err(NotBegun::Duplicate);
        }
        if live.calls.len() >= self.settings.calls {
            return Err(NotBegun::TooMany);
        }
        live.last_call += 1;
        let serial = live.last_call;
        live.calls.push(CallEntry { id, serial, _unwanted: sender });
        drop(live);
        Ok(CallGuard { session: Arc::clone(self), serial, unwanted })
    }

    /// A call is not wanted any more. One that is not running is none of our business.
    pub fn cancel(&self, id: &Id) {
        self.lock().calls.retain(|running| running.id != *id);
    }

    /// Opens a stream for a call, with its connection.
    ///
    /// # Errors
    /// When the session has as many streams as it may, or has ended.
    pub fn open_stream(self: &Arc<Self>) -> Result<(StreamTarget, Attachment), StreamError> {
        let most = self.settings.streams;
        let (number, serial) = self.with_streams(|streams, retry| match streams.connections() {
            open if open >= most => Err(StreamError::TooMany),
            _ => Ok(streams.open(retry)),
        })?;
        Ok((StreamTarget::Call(number), Attachment::new(Arc::clone(self), number, serial)))
    }

    /// Attaches a connection that listens for what belongs to no call.
    ///
    /// # Errors
    /// When the session has as many streams as it may, or has ended.
    pub fn listen(self: &Arc<Self>) -> Result<Attachment, StreamError> {
        let most = self.settings.streams;
        let (number, serial) = self.with_streams(|streams, retry| streams.listen(retry, most))?;
        tracing::debug!(session = %self.id, reader = serial, "listening stream opened");
        Ok(Attachment::new(Arc::clone(self), number, serial))
    }

    /// Attaches a connection to a stream that broke, after the last event that arrived.
    ///
    /// # Errors
    /// When the id is not of this session, or what came after it is no longer kept.
    pub fn resume(self: &Arc<Self>, id: EventId) -> Result<Attachment, StreamError> {
        let most = self.settings.streams;
        let (number, serial) = self.with_streams(|streams, retry| streams.resume(id, retry, most))?;
        tracing::debug!(session = %self.id, stream = number, reader = serial, after = id.position, "stream resumed");
        Ok(Attachment::new(Arc::clone(self), number, serial))
    }

    fn with_streams<T>(
        &self,
        act: impl FnOnce(&mut Streams, Option<u64>) -> Result<T, StreamError>,
    ) -> Result<T, StreamError> {
        let primed = self.client.get().is_some_and(|client| client.revision.facts().primed);
        let retry = primed.then_some(self.settings.sse_retry);
        let mut live = self.lock();
        if live.closed {
            return Err(StreamError::Ended);
        }
        let done = match &mut live.outbox {
            Outbox::Streams(streams) => act(streams, retry),
            Outbox::Single(_) => Err(StreamError::Unknown),
        };
        self.mark(&mut live, true);
        done
    }

    /// Sends a message on a stream; never waits. A session that lives by one connection ends
    /// when that does not keep up at all.
    pub fn send(&self, stream: StreamTarget, message: Bytes) {
        let mut live = self.lock();
        let sent = |live: &mut SessionState| live.outbox.send(stream, message, &self.settings.retention);
        if !live.closed && !self.append(&mut live, sent) {
            tracing::debug!(session = %self.id, "the connection does not keep up; the session ends");
            live.close();
            self.ended.cancel();
        }
    }

    /// Sends a message on a stream, and waits while its client is behind: on a stream that can be
    /// resumed for a while, on a single connection until that is gone. Only the task of a single
    /// call may use it.
    pub async fn deliver(&self, stream: StreamTarget, message: Bytes) {
        self.deliver_and(stream, message, |_| ()).await;
    }

    async fn deliver_and(&self, stream: StreamTarget, message: Bytes, then: impl FnOnce(&mut SessionState)) {
        let patience = Instant::now() + PATIENCE;
        let mut patient = true;
        loop {
            let read = self.read.notified();
            tokio::pin!(read);
            read.as_mut().enable();
            let resumable = {
                let mut live = self.lock();
                if live.closed {
                    return;
                }
                if !patient || !live.outbox.is_behind(stream) {
                    let put = |live: &mut SessionState| {
                        then(live);
                        live.outbox.put(stream, message, &self.settings.retention);
                    };
                    return self.append(&mut live, put);
                }
                matches!(live.outbox, Outbox::Streams(_))
            };
            if resumable {
                patient = tokio::time::timeout_at(patience, read).await.is_ok();
            } else {
                read.await;
            }
        }
    }

    /// Nothing more comes on a call's stream.
    pub fn finish(&self, stream: StreamTarget) {
        self.change(|live| live.outbox.finish(stream));
    }

    /// A call's stream ends without an answer, because the client wants none.
    pub fn abandon(&self, stream: StreamTarget) {
        self.change(|live| live.outbox.abandon(stream));
    }

    /// Asks the client something on the stream of a call. Where nobody can hear it, whoever asks
    /// is told so at once.
    pub async fn ask_in(&self, stream: StreamTarget, call: &CallGuard, question: ServerRequest) {
        if stream == StreamTarget::Nowhere {
            return; // dropping the question says that no answer will come
        }
        let message = call.session.enter(stream, call.serial, question);
        self.deliver(stream, message).await;
    }

    /// Enters a question into the books, and gives it an id. One that is taken back before it is answered is taken
    /// back from the client at once.
    fn enter(self: &Arc<Self>, stream: StreamTarget, call: u64, question: ServerRequest) -> Bytes {
        let ServerRequest { method, params, answer: mut asker } = question;
        let (answer, answered) = oneshot::channel();
        let mut live = self.lock();
        live.last_server_request += 1;
        let id = live.last_server_request;
        live.server_requests.push(PendingServerRequest { id, call, stream, answer });
        drop(live);
        let session = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                // An answer that will not come drops whoever asked, and that says so.
                outcome = answered => if let Ok(outcome) = outcome {
                    // Whoever asked may have gone; then nobody wants the answer.
                    let _ = asker.send(outcome);
                },
                () = asker.closed() => session.withdraw(id),
            }
        });
        Request::new(id.into(), method, params).encode()
    }

    /// Nobody wants the answer to a question any more.
    fn withdraw(&self, id: i64) {
        let mut live = self.lock();
        let Some(at) = live.server_requests.iter().position(|asked| asked.id == id) else { return };
        let asked = live.server_requests.swap_remove(at);
        drop(live);
        self.send(asked.stream, Notification::cancelled(&id.into()).encode());
    }

    /// The client answers a question; false when there is none of that id.
    pub fn answer(&self, id: &Id, outcome: Outcome) -> bool {
        let mut live = self.lock();
        let asked = live.server_requests.iter().position(|asked| Id::from(asked.id) == *id);
        let Some(asked) = asked.map(|at| live.server_requests.swap_remove(at)) else { return false };
        drop(live);
        // Whoever asked may have gone; then nobody wants the answer.
        let _ = asked.answer.send(outcome);
        true
    }

    /// Takes a call out of the books, and its questions back.
    fn forget(&self, call: u64) {
        self.lock().calls.retain(|running| running.serial != call);
        self.cancel_server_requests(call);
    }

    /// Takes the questions of a call back.
    fn cancel_server_requests(&self, call: u64) {
        let mut live = self.lock();
        let before = std::mem::take(&mut live.server_requests);
        let (open, rest): (Vec<_>, Vec<_>) = before.into_iter().partition(|asked| asked.call == call);
        live.server_requests = rest;
        drop(live);
        for asked in open {
            self.send(asked.stream, Notification::cancelled(&asked.id.into()).encode());
        }
    }

    /// The next thing for a connection to write.
    fn poll(&self, number: u32, serial: u64, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let next = {
            let mut live = self.lock();
            let safe = live.durable_up_to();
            match live.outbox.poll(number, serial, safe, context) {
                // It waits for something to be kept.
                Poll::Pending if live.over => Poll::Ready(None),
                next => next,
            }
        };
        if matches!(next, Poll::Ready(Some(_))) {
            self.read.notify_waiters();
        }
        next
    }

    /// A connection is gone.
    fn detach(&self, number: u32, serial: u64) {
        tracing::debug!(session = %self.id, stream = number, reader = serial, "stream reader detached");
        self.lock().outbox.detach(number, serial);
        self.read.notify_waiters();
    }

    fn close(&self) {
        self.lock().close();
        self.ended.cancel();
        self.read.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }
}

/// How many questions may wait for answers.
const QUESTIONS: usize = 64;
/// Stands for the call of a question that belongs to none.
const NO_CALL: u64 = 0;
/// How long a call waits for a client that is behind before it goes on without it; the client can
/// resume.
const PATIENCE: Duration = Duration::from_secs(5);

// === impl Live ===

impl SessionState {
    fn new(outbox: Outbox) -> Self {
        Self {
            outbox,
            used: Instant::now(),
            level: None,
            calls: Vec::new(),
            last_call: 0,
            server_requests: Vec::new(),
            last_server_request: 0,
            subscriptions: BTreeMap::new(),
            initialized: false,
            closed: false,
            over: false,
            persistence: None,
        }
    }

    /// Whether a client is there, or was so lately that it may resume.
    fn may_come_back(&self, settings: &SessionSettings, now: Instant) -> bool {
        self.outbox.is_attached() || !self.calls.is_empty() || now.duration_since(self.used) <= settings.retention.age
    }

    /// Gives up the running calls, the unanswered questions and the connections.
    fn close(&mut self) {
        self.closed = true;
        self.over = true;
        self.calls = Vec::new();
        self.server_requests = Vec::new();
        self.subscriptions = BTreeMap::new();
        self.outbox.close();
    }
}

// === impl Running ===

impl CallGuard {
    /// The session that the call runs in.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Waits until the call is not wanted any more.
    pub async fn unwanted(&mut self) {
        // The sender never sends; it is dropped.
        let _ = (&mut self.unwanted).await;
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.session.forget(self.serial);
    }
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            sessions: 100_000,
            streams: 32,
            calls: 1000,
            subscriptions: 1000,
            idle: Duration::from_secs(900),
            retention: Retention::default(),
            sse_retry: 3000,
        }
    }
}

#[cfg(test)]
mod tests;
