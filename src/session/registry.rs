//! All sessions of this process: opening, finding, ending, and telling them of changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::outbox::{MessageQueue, Outbox, Streams};
use super::persistence::{self, Persistence};
use super::{
    Attachment, Persister, Record, Session, SessionId, SessionSettings, SessionState, SessionTransport, StreamTarget,
};
use crate::call::{ChangeEvent, ClientInfo, GatewaySlot, ListFingerprints, Principal};
use crate::dialect::Revision;
use crate::protocol::Id;
use crate::store::traits::StoredEvent;
use foldhash::HashMap;

/// All sessions of this process.
#[derive(Debug)]
pub struct Sessions {
    settings: Arc<SessionSettings>,
    /// Keeps them in a shared store, where there is one.
    persister: Option<Arc<Persister>>,
    map: Mutex<HashMap<SessionId, Arc<Session>>>,
}

/// Who opens a session, and where.
#[derive(Debug, Clone)]
pub struct SessionOwner {
    /// Who opens it.
    pub principal: Principal,
    /// At which group.
    pub group: Arc<str>,
}

/// What sessions there are, and what they hold.
#[derive(Debug, Clone, Default)]
pub struct SessionStats {
    /// How many there are of each kind: group, transport, and revision once that is known.
    pub alike: BTreeMap<(Arc<str>, &'static str, Option<Revision>), usize>,
    /// Streams that are open.
    pub streams: usize,
    /// Events that are kept.
    pub events: usize,
    /// Bytes of these.
    pub event_bytes: usize,
}

/// There are as many sessions as there may be.
#[derive(Debug)]
pub struct SessionLimitReached;

impl Sessions {
    /// No sessions yet.
    pub fn new(settings: SessionSettings) -> Self {
        Self { settings: Arc::new(settings), persister: None, map: Mutex::default() }
    }

    /// No sessions yet; those that will be are kept in a shared store, too.
    pub fn with_persister(settings: SessionSettings, keeper: Arc<Persister>) -> Self {
        Self { persister: Some(keeper), ..Self::new(settings) }
    }

    /// Who keeps them in a shared store.
    pub fn persister(&self) -> Option<&Arc<Persister>> {
        self.persister.as_ref()
    }

    /// What governs sessions.
    pub fn settings(&self) -> &SessionSettings {
        &self.settings
    }

    /// Opens a session of Streamable HTTP, whose client has introduced itself.
    ///
    /// # Errors
    /// When there are too many.
    pub fn open(&self, opening: SessionOwner, client: Arc<ClientInfo>) -> Result<Arc<Session>, SessionLimitReached> {
        let outbox = Outbox::Streams(Streams::new());
        self.insert(SessionTransport::Http, opening, OnceLock::from(client), outbox)
    }

    /// Opens a session that lives as long as its one connection; its client will introduce
    /// itself on it.
    ///
    /// # Errors
    /// When there are too many.
    pub fn open_single(
        &self,
        transport: SessionTransport,
        opening: SessionOwner,
    ) -> Result<(Arc<Session>, Attachment), SessionLimitReached> {
        let session = self.insert(transport, opening, OnceLock::new(), Outbox::Single(MessageQueue::default()))?;
        let attachment = Attachment::new(Arc::clone(&session), 0, 0);
        Ok((session, attachment))
    }

    fn insert(
        &self,
        transport: SessionTransport,
        opening: SessionOwner,
        client: OnceLock<Arc<ClientInfo>>,
        outbox: Outbox,
    ) -> Result<Arc<Session>, SessionLimitReached> {
        let mut live = SessionState::new(outbox);
        if let Some(keeper) = self.persister.as_ref().filter(|_| transport != SessionTransport::Stdio) {
            live.persistence = Some(Box::new(Persistence::new(Arc::clone(keeper), 0)));
        }
        self.enter(SessionId::random(transport), opening, client, live)
    }

    fn enter(
        &self,
        id: SessionId,
        opening: SessionOwner,
        client: OnceLock<Arc<ClientInfo>>,
        live: SessionState,
    ) -> Result<Arc<Session>, SessionLimitReached> {
        let session = Arc::new_cyclic(|me| Session {
            id,
            principal: opening.principal,
            group: opening.group,
            client,
            settings: Arc::clone(&self.settings),
            state: Mutex::new(live),
            read: Notify::new(),
            shelf: GatewaySlot::default(),
            ended: CancellationToken::new(),
            me: Weak::clone(me),
            moved: AtomicBool::new(false),
        });
        let mut map = self.lock();
        if map.len() >= self.settings.sessions {
            return Err(SessionLimitReached);
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
        let mut live = session.lock();
        if live.closed {
            return None;
        }
        live.used = Instant::now();
        drop(live);
        Some(session)
    }

    /// The session of that id, whoever's it is.
    pub fn get(&self, id: SessionId) -> Option<Arc<Session>> {
        self.lock().get(&id).map(Arc::clone)
    }

    /// Goes on with a session that lived on another node, whose answers to running calls will not come.
    ///
    /// # Errors
    /// When there are too many, or nobody can go on with it.
    pub fn adopt(
        &self,
        id: SessionId,
        record: &Record,
        events: Vec<StoredEvent>,
    ) -> Result<Arc<Session>, SessionLimitReached> {
        let (Some(keeper), Some(client), Some(streams)) = (&self.persister, record.client(), &record.streams) else {
            return Err(SessionLimitReached);
        };
        let takeovers = record.takeovers + 1;
        // Nothing that was given out before is given out again.
        let position = u64::from(takeovers) << 32;
        let owed: Vec<(u32, Vec<Id>)> = streams.calls.iter().map(|call| (call.number, call.owed())).collect();
        let events = events.into_iter().map(|event| (event.id, persistence::happened(&event), event.event)).collect();
        let mut live = SessionState::new(Outbox::Streams(Streams::resumed(streams, events, position)));
        let mut kept = Persistence::new(Arc::clone(keeper), takeovers);
        kept.all_kept(position, streams.last_number);
        kept.upstreams = record.upstreams.iter().map(|(name, what)| (name.clone(), what.clone().into())).collect();
        kept.pending_subscriptions.clone_from(&record.subscriptions);
        kept.lists = record.lists;
        live.persistence = Some(Box::new(kept));
        live.level = record.level();
        live.initialized = record.initialized;
        live.last_server_request = i64::from(takeovers) << 32;
        let opening = SessionOwner { principal: record.principal.as_str().into(), group: record.group.as_str().into() };
        let session = self.enter(id, opening, OnceLock::from(client), live)?;
        for (number, ids) in owed {
            session.fail_expected(StreamTarget::Call(number), ids);
        }
        session.change(|_| ());
        Ok(session)
    }

    /// A session is not this node's any more: it lives on another one, or, where it lives by one connection, another
    /// node has ended it.
    pub fn release(&self, session: &Session) {
        self.lock().remove(&session.id);
        let moved = session.id.transport() == SessionTransport::Http;
        session.moved.store(moved, Ordering::Release);
        tracing::debug!(session = %session.id, moved, "session released");
        session.close();
    }

    /// Lets every connection go whose client can resume.
    pub fn disconnect_all_readers(&self) {
        self.all().iter().for_each(|session| session.disconnect_readers());
    }

    /// Lets the connections go that wait for something that cannot be kept.
    pub(super) fn disconnect_unpersisted_readers(&self) {
        self.all().iter().for_each(|session| session.disconnect_unpersisted_readers());
    }

    /// Ends a session and everything that belongs to it.
    pub fn close(&self, session: &Session) {
        let known = self.lock().remove(&session.id).is_some();
        session.close();
        if let Some(keeper) = self.persister.as_ref().filter(|_| known && !session.has_moved()) {
            keeper.ended(session);
        }
    }

    /// Ends a session that nothing runs in; false when something does.
    pub fn close_idle(&self, session: &Session) -> bool {
        {
            let mut live = session.lock();
            if !live.calls.is_empty() {
                return false;
            }
            live.close();
        }
        self.close(session);
        true
    }

    /// Ends every session, but for those that another node can go on with.
    pub fn close_all(&self) {
        for session in self.all() {
            match self.persister.is_some() && session.id.transport() == SessionTransport::Http {
                true => self.release(&session),
                false => self.close(&session),
            }
        }
    }

    /// Ends every session of some groups.
    pub fn close_where(&self, ended: impl Fn(&str) -> bool) {
        for session in self.all().into_iter().filter(|session| ended(&session.group)) {
            self.close(&session);
        }
    }

    /// Whether there are as many as there may be.
    pub fn is_full(&self) -> bool {
        self.count() >= self.settings.sessions
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Looks at all of them.
    pub fn stats(&self) -> SessionStats {
        let mut survey = SessionStats::default();
        for session in self.all() {
            let revision = session.client.get().map(|client| client.revision);
            let kind = (Arc::clone(&session.group), session.id.transport().as_str(), revision);
            *survey.alike.entry(kind).or_default() += 1;
            let (streams, events, bytes) = session.lock().outbox.holds();
            survey.streams += streams;
            survey.events += events;
            survey.event_bytes += bytes;
        }
        survey
    }

    /// Ends the sessions that nobody has used for too long, and drops events that are too old.
    pub fn sweep(&self) {
        let now = Instant::now();
        let mut expired = Vec::new();
        for session in self.all() {
            let mut live = session.lock();
            let unread = live.outbox.has_unread(&self.settings.retention, now);
            if live.outbox.is_attached() || !live.calls.is_empty() {
                live.used = now;
            }
            let idle = now.duration_since(live.used) >= self.settings.idle;
            // One that is on its way to another node is closed, too, and must not be deleted.
            let over = live.over || (!live.closed && idle && !unread);
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
    /// connection is stuck or gone keeps the notice for later. One that nobody has used for longer
    /// than notices are kept is left alone, or it would never end.
    pub fn publish(&self, group: &str, change: &ChangeEvent) {
        self.publish_with(group, change, |_| None);
    }

    /// The same; what tells the lists of a session from others is remembered for the next node, after the notice.
    pub(crate) fn publish_with(
        &self,
        group: &str,
        change: &ChangeEvent,
        prints: impl Fn(&Session) -> Option<ListFingerprints>,
    ) {
        let notification = change.notification().encode();
        let now = Instant::now();
        for session in self.all() {
            if *session.group == *group && session.hears(change) && session.lock().may_come_back(&self.settings, now) {
                session.send(StreamTarget::Listening, notification.clone());
                if let Some(prints) = prints(&session) {
                    session.knows_lists(Some(change), &prints);
                }
            }
        }
    }

    /// Tells every session that each resource that it hears of through its group may have changed: what was told of
    /// some was missed.
    pub fn publish_all_updates(&self) {
        for session in self.all() {
            for uri in session.shared_subscriptions() {
                session.send(StreamTarget::Listening, ChangeEvent::Updated(uri).notification().encode());
            }
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.lock().values().map(Arc::clone).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.map.lock().expect("no thread panics while it holds this lock")
    }
}
