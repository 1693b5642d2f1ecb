//! What a client of the handshake era expects us to remember.
//!
//! A session belongs to the caller and the group that opened it; to anybody else it does not
//! exist. [`Sessions`] finds and expires them, a [`Session`] knows its running calls, its
//! unanswered questions and its outbox.

mod id;
mod outbox;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub use id::{SessionId, Transport};
pub use outbox::{Attachment, FRAMES_WAITING, Frame, Stream, Unresumable};

use crate::exchange::{Change, Client, Principal, Question};
use crate::protocol::{Id, Level, Notice, Notification, Outcome, Raw, Request};
use crate::store::{EventId, Retention};
use outbox::{Outbox, Streams};

/// What governs sessions.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many sessions there may be in all.
    pub sessions: usize,
    /// How many open streams one session may have.
    pub streams: usize,
    /// How long a session may be unused before it ends.
    pub idle: Duration,
    /// What is kept for clients that resume.
    pub retention: Retention,
    /// What clients are told to wait before they reconnect, in milliseconds.
    pub retry: u64,
}

/// All sessions of this process.
#[derive(Debug)]
pub struct Sessions {
    settings: Settings,
    map: Mutex<HashMap<SessionId, Arc<Session>>>,
}

/// One session.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    principal: Principal,
    group: Arc<str>,
    client: OnceLock<Arc<Client>>,
    retention: Retention,
    live: Mutex<Live>,
}

/// The part that changes. The lock is held for moments only, never across an await.
#[derive(Debug)]
struct Live {
    outbox: Outbox,
    used: Instant,
    level: Option<Level>,
    /// Calls that are not answered yet. Dropping the sender says that the call is not wanted.
    calls: Vec<(Id, oneshot::Sender<()>)>,
    questions: Vec<Asked>,
    last_question: i64,
    subscriptions: BTreeSet<Box<str>>,
    closed: bool,
}

#[derive(Debug)]
struct Asked {
    id: i64,
    /// The call that it was asked for.
    call: Id,
    answer: oneshot::Sender<Outcome>,
}

/// Who opens a session, and where.
#[derive(Debug, Clone)]
pub struct Opening {
    /// Who opens it.
    pub principal: Principal,
    /// At which group.
    pub group: Arc<str>,
}

/// There are as many sessions as there may be.
#[derive(Debug)]
pub struct Full;

/// A call in the session's books. Dropping it takes the call out of them.
#[derive(Debug)]
pub struct Running {
    session: Arc<Session>,
    id: Id,
    unwanted: oneshot::Receiver<()>,
}

// === impl Sessions ===

impl Sessions {
    /// No sessions yet.
    pub fn new(settings: Settings) -> Self {
        let map = Mutex::default();
        Self { settings, map }
    }

    /// What governs sessions.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Opens a session of Streamable HTTP, whose client has introduced itself.
    ///
    /// # Errors
    /// When there are too many.
    pub fn open(&self, opening: Opening, client: Arc<Client>) -> Result<Arc<Session>, Full> {
        let outbox = Outbox::Streams(Streams::new());
        self.insert(Transport::Http, opening, OnceLock::from(client), outbox)
    }

    /// Opens a session that lives as long as its one connection; its client will introduce
    /// itself on it.
    ///
    /// # Errors
    /// When there are too many.
    pub fn open_single(
        &self,
        transport: Transport,
        opening: Opening,
        connection: mpsc::Sender<Frame>,
    ) -> Result<Arc<Session>, Full> {
        self.insert(transport, opening, OnceLock::new(), Outbox::Single(connection))
    }

    fn insert(
        &self,
        transport: Transport,
        opening: Opening,
        client: OnceLock<Arc<Client>>,
        outbox: Outbox,
    ) -> Result<Arc<Session>, Full> {
        let session = Arc::new(Session {
            id: SessionId::random(transport),
            principal: opening.principal,
            group: opening.group,
            client,
            retention: self.settings.retention,
            live: Mutex::new(Live::new(outbox)),
        });
        let mut map = self.lock();
        if map.len() >= self.settings.sessions {
            return Err(Full);
        }
        map.insert(session.id, Arc::clone(&session));
        Ok(session)
    }

    /// The session of that id, if it is the caller's, at this group. Finding it is using it.
    pub fn find(&self, id: SessionId, principal: &Principal, group: &str) -> Option<Arc<Session>> {
        let session = self.lock().get(&id).map(Arc::clone)?;
        if session.principal != *principal || *session.group != *group {
            return None;
        }
        session.lock().used = Instant::now();
        Some(session)
    }

    /// Ends a session and everything that belongs to it.
    pub fn close(&self, session: &Session) {
        self.lock().remove(&session.id);
        session.close();
    }

    /// Ends every session.
    pub fn close_all(&self) {
        let all = std::mem::take(&mut *self.lock());
        for session in all.into_values() {
            session.close();
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Ends the sessions that nobody has used for too long, and drops events that are too old.
    pub fn sweep(&self) {
        let now = Instant::now();
        let mut expired = Vec::new();
        for session in self.all() {
            let mut live = session.lock();
            let in_use = live.outbox.in_use(&self.settings.retention, now) || !live.calls.is_empty();
            if in_use {
                live.used = now;
            }
            let over = live.closed || now.duration_since(live.used) >= self.settings.idle;
            drop(live);
            if over {
                expired.push(session);
            }
        }
        for session in expired {
            tracing::debug!(session = %session.id, "the session expired");
            self.close(&session);
        }
    }

    /// Tells every session of a group of a change. Nothing here waits: a session whose
    /// connection is stuck or gone keeps the notice in its log.
    pub fn publish(&self, group: &str, change: &Change) {
        let notification = change.notification().encode();
        for session in self.all() {
            if *session.group == *group && session.hears(change) {
                session.send(Stream::Listening, notification.clone());
            }
        }
    }

    fn all(&self) -> Vec<Arc<Session>> {
        self.lock().values().map(Arc::clone).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.map.lock().expect("no thread panics while it holds this lock")
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
    pub fn client(&self) -> Option<&Arc<Client>> {
        self.client.get()
    }

    /// The client introduces itself; false when it had done so before.
    pub fn introduce(&self, client: Arc<Client>) -> bool {
        self.client.set(client).is_ok()
    }

    /// From which level on the client wants log messages.
    pub fn level(&self) -> Option<Level> {
        self.lock().level
    }

    /// The client chooses what is logged to it.
    pub fn set_level(&self, level: Level) {
        self.lock().level = Some(level);
    }

    /// The client wants to hear of a resource.
    pub fn subscribe(&self, uri: &str) {
        self.lock().subscriptions.insert(uri.into());
    }

    /// The client wants to hear of it no longer.
    pub fn unsubscribe(&self, uri: &str) {
        self.lock().subscriptions.remove(uri);
    }

    fn hears(&self, change: &Change) -> bool {
        match change {
            Change::Updated(uri) => self.lock().subscriptions.contains(uri.as_ref()),
            Change::Tools | Change::Prompts | Change::Resources => self.client.get().is_some(),
        }
    }

    /// Enters a call into the books.
    ///
    /// # Errors
    /// When a call with this id is running, or the session has ended.
    pub fn begin(self: &Arc<Self>, id: Id) -> Result<Running, Duplicate> {
        let (sender, unwanted) = oneshot::channel();
        let mut live = self.lock();
        if live.closed || live.calls.iter().any(|(running, _)| *running == id) {
            return Err(Duplicate);
        }
        live.calls.push((id.clone(), sender));
        drop(live);
        Ok(Running { session: Arc::clone(self), id, unwanted })
    }

    /// A call is not wanted any more. One that is not running is none of our business.
    pub fn cancel(&self, id: &Id) {
        let mut live = self.lock();
        live.calls.retain(|(running, _)| running != id);
    }

    /// Opens a stream for a call, with its connection.
    ///
    /// # Errors
    /// When the session has as many streams as it may.
    pub fn open_stream(&self, settings: &Settings) -> Result<(Stream, Attachment), Unresumable> {
        let priming = self.priming(settings);
        self.with_streams(settings, |streams| Ok(streams.open(priming)))
    }

    /// Attaches a connection that listens for what belongs to no call.
    ///
    /// # Errors
    /// When the session has as many streams as it may.
    pub fn listen(&self, settings: &Settings) -> Result<Attachment, Unresumable> {
        let priming = self.priming(settings);
        self.with_streams(settings, |streams| Ok(streams.listen(priming)))
    }

    /// Attaches a connection to a stream that broke, after the last event that arrived.
    ///
    /// # Errors
    /// When the id is not of this session, or what came after it is no longer kept.
    pub fn resume(&self, id: EventId, settings: &Settings) -> Result<Attachment, Unresumable> {
        let priming = self.priming(settings);
        self.with_streams(settings, |streams| streams.resume(id, priming))
    }

    fn priming(&self, settings: &Settings) -> Option<u64> {
        let primed = self.client.get().is_some_and(|client| client.revision.facts().primed);
        primed.then_some(settings.retry)
    }

    fn with_streams<T>(
        &self,
        settings: &Settings,
        act: impl FnOnce(&mut Streams) -> Result<T, Unresumable>,
    ) -> Result<T, Unresumable> {
        let mut live = self.lock();
        let closed = live.closed;
        match &mut live.outbox {
            Outbox::Streams(_) if closed => Err(Unresumable::Gone),
            Outbox::Streams(streams) => match streams.connections() {
                open if open >= settings.streams => Err(Unresumable::TooMany),
                _ => act(streams),
            },
            Outbox::Single(_) => Err(Unresumable::Unknown),
        }
    }

    /// Sends a message on a stream; never waits. A session that lives by one connection ends
    /// when that does not keep up.
    pub fn send(&self, stream: Stream, message: Bytes) {
        let mut live = self.lock();
        if !live.closed && !live.outbox.send(stream, message, &self.retention) {
            tracing::debug!(session = %self.id, "the connection is gone or too slow; the session ends");
            live.close();
        }
    }

    /// Sends a message on a stream. Where a session lives by one connection this waits for room
    /// in it, so only the task of a single call may use it; otherwise it is the same as `send`.
    pub async fn deliver(&self, stream: Stream, message: Bytes) {
        let single = self.lock().outbox.single();
        match single {
            None => self.send(stream, message),
            // A connection that is gone ends the session by itself.
            Some(connection) => drop(connection.send(Frame::plain(message)).await),
        }
    }

    /// Nothing more comes on a call's stream.
    pub fn finish(&self, stream: Stream) {
        self.lock().outbox.finish(stream);
    }

    /// A call's stream ends without an answer, because the client wants none.
    pub fn abandon(&self, stream: Stream) {
        self.lock().outbox.abandon(stream);
    }

    /// Asks the client something on the stream of a call.
    pub fn ask(&self, stream: Stream, call: &Id, question: Question) {
        let Question { method, params, answer } = question;
        let mut live = self.lock();
        live.last_question += 1;
        let id = live.last_question;
        live.questions.push(Asked { id, call: call.clone(), answer });
        drop(live);
        self.send(stream, Request::new(id.into(), method, params).encode());
    }

    /// The client answers a question; false when there is none of that id.
    pub fn answer(&self, id: &Id, outcome: Outcome) -> bool {
        let mut live = self.lock();
        let asked = live.questions.iter().position(|asked| Id::from(asked.id) == *id);
        let Some(asked) = asked.map(|at| live.questions.swap_remove(at)) else { return false };
        drop(live);
        // Whoever asked may have gone; then nobody wants the answer.
        let _ = asked.answer.send(outcome);
        true
    }

    /// Takes back the questions of a call that has ended.
    fn withdraw(&self, call: &Id) {
        let mut live = self.lock();
        let before = std::mem::take(&mut live.questions);
        let (open, rest): (Vec<_>, Vec<_>) = before.into_iter().partition(|asked| asked.call == *call);
        live.questions = rest;
        drop(live);
        for asked in open {
            let params = Raw::empty().edit().set("requestId", Raw::of(&asked.id)).finish();
            let notice = Notification::new(Notice::Cancelled, Some(params));
            self.send(Stream::Listening, notice.encode());
        }
    }

    fn close(&self) {
        self.lock().close();
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().expect("no thread panics while it holds this lock")
    }
}

/// A call with this id is running already.
#[derive(Debug)]
pub struct Duplicate;

// === impl Live ===

impl Live {
    fn new(outbox: Outbox) -> Self {
        Self {
            outbox,
            used: Instant::now(),
            level: None,
            calls: Vec::new(),
            questions: Vec::new(),
            last_question: 0,
            subscriptions: BTreeSet::new(),
            closed: false,
        }
    }

    /// Gives up the running calls, the unanswered questions and the connections.
    fn close(&mut self) {
        self.closed = true;
        self.calls = Vec::new();
        self.questions = Vec::new();
        self.subscriptions = BTreeSet::new();
        self.outbox.close();
    }
}

// === impl Running ===

impl Running {
    /// The session that the call runs in.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The call's id.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Waits until the call is not wanted any more.
    pub async fn unwanted(&mut self) {
        // The sender never sends; it is dropped.
        let _ = (&mut self.unwanted).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.session.cancel(&self.id);
        self.session.withdraw(&self.id);
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sessions: 100_000,
            streams: 32,
            idle: Duration::from_secs(900),
            retention: Retention::default(),
            retry: 3000,
        }
    }
}

#[cfg(test)]
mod tests;
