//! Registry of all sessions of this process: create, find, adopt, expire, and publish list changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use parking_lot::{Mutex, MutexGuard};

use super::outbox::{MessageQueue, Outbox, Streams};
use super::persistence::{self, Persistence};
use super::{
    Persister, Session, SessionId, SessionRecord, SessionSettings, SessionState, SessionTransport, StreamReader,
    StreamTarget,
};
use crate::call::{ChangeEvent, ClientInfo, GatewaySlot, ListFingerprints, Principal};
use crate::dialect::Revision;
use crate::protocol::Id;
use crate::store::traits::StoredEvent;
use foldhash::HashMap;

/// The sessions of this process by id.
#[derive(Debug)]
pub struct Sessions {
    settings: Arc<SessionSettings>,
    /// Persists sessions to the shared store; `None` without one.
    persister: Option<Arc<Persister>>,
    map: Mutex<HashMap<SessionId, Arc<Session>>>,
}

/// Principal and group that a session belongs to.
#[derive(Debug, Clone)]
pub struct SessionOwner {
    /// Principal that opens the session.
    pub principal: Principal,
    /// Group that the session is opened on.
    pub group: Arc<str>,
}

/// Session figures for metrics and status.
#[derive(Debug, Clone, Default)]
pub struct SessionStats {
    /// Session count by group, transport and negotiated revision (`None` before `initialize`).
    pub by_kind: BTreeMap<(Arc<str>, &'static str, Option<Revision>), usize>,
    /// Attached stream readers.
    pub open_streams: usize,
    /// Events in all event logs.
    pub events: usize,
    /// Size of these events in bytes.
    pub event_bytes: usize,
}

/// Error: [`SessionSettings::max_sessions`] is reached, or the record cannot be adopted.
#[derive(Debug)]
pub struct SessionLimitReached;

impl Sessions {
    /// An empty registry whose sessions live in memory only.
    pub fn new(settings: SessionSettings) -> Self {
        Self { settings: Arc::new(settings), persister: None, map: Mutex::default() }
    }

    /// An empty registry whose sessions are persisted to a shared store.
    pub fn with_persister(settings: SessionSettings, persister: Arc<Persister>) -> Self {
        Self { persister: Some(persister), ..Self::new(settings) }
    }

    /// The persister; `None` without a shared store.
    pub fn persister(&self) -> Option<&Arc<Persister>> {
        self.persister.as_ref()
    }

    /// Limits and timeouts of these sessions.
    pub fn settings(&self) -> &SessionSettings {
        &self.settings
    }

    /// Opens a Streamable HTTP session after `initialize`.
    ///
    /// # Errors
    /// When [`SessionSettings::max_sessions`] is reached.
    pub fn open(&self, owner: SessionOwner, client: Arc<ClientInfo>) -> Result<Arc<Session>, SessionLimitReached> {
        let outbox = Outbox::Streams(Streams::new());
        self.create(SessionTransport::Http, owner, OnceLock::from(client), outbox)
    }

    /// Opens a single-connection session (HTTP+SSE, stdio) and its reader; `initialize` arrives on it later.
    ///
    /// # Errors
    /// When [`SessionSettings::max_sessions`] is reached.
    pub fn open_single(
        &self,
        transport: SessionTransport,
        owner: SessionOwner,
    ) -> Result<(Arc<Session>, StreamReader), SessionLimitReached> {
        let session = self.create(transport, owner, OnceLock::new(), Outbox::Single(MessageQueue::default()))?;
        let reader = StreamReader::new(Arc::clone(&session), 0, 0);
        Ok((session, reader))
    }

    fn create(
        &self,
        transport: SessionTransport,
        owner: SessionOwner,
        client: OnceLock<Arc<ClientInfo>>,
        outbox: Outbox,
    ) -> Result<Arc<Session>, SessionLimitReached> {
        let mut state = SessionState::new(outbox);
        if let Some(persister) = self.persister.as_ref().filter(|_| transport != SessionTransport::Stdio) {
            state.persistence = Some(Box::new(Persistence::new(Arc::clone(persister), 0)));
        }
        self.register(SessionId::random(transport), owner, client, state)
    }

    fn register(
        &self,
        id: SessionId,
        owner: SessionOwner,
        client: OnceLock<Arc<ClientInfo>>,
        state: SessionState,
    ) -> Result<Arc<Session>, SessionLimitReached> {
        let session = Arc::new_cyclic(|weak_self| Session {
            id,
            principal: owner.principal,
            group: owner.group,
            client,
            settings: Arc::clone(&self.settings),
            state: Mutex::new(state),
            progress: Notify::new(),
            upstream_session_saves: AtomicU64::new(0),
            gateway_slot: GatewaySlot::default(),
            ended: CancellationToken::new(),
            weak_self: Weak::clone(weak_self),
            moved: AtomicBool::new(false),
        });
        let mut map = self.lock();
        if map.len() >= self.settings.max_sessions {
            return Err(SessionLimitReached);
        }
        map.insert(session.id, Arc::clone(&session));
        Ok(session)
    }

    /// Finds a session of this principal and group, and resets its idle timer.
    pub fn find(&self, id: SessionId, principal: &Principal, group: &str) -> Option<Arc<Session>> {
        let session = self.lock().get(&id).map(Arc::clone)?;
        if session.principal != *principal || *session.group != *group {
            return None;
        }
        let mut state = session.lock();
        if state.closed {
            return None;
        }
        state.last_used = Instant::now();
        drop(state);
        Some(session)
    }

    /// Finds a session without checking principal or group.
    pub fn get(&self, id: SessionId) -> Option<Arc<Session>> {
        self.lock().get(&id).map(Arc::clone)
    }

    /// Takes over a session of another node from its stored record and events. Calls that ran there are answered with
    /// an error.
    ///
    /// # Errors
    /// When [`SessionSettings::max_sessions`] is reached, or the record cannot be adopted.
    pub fn adopt(
        &self,
        id: SessionId,
        record: &SessionRecord,
        events: Vec<StoredEvent>,
    ) -> Result<Arc<Session>, SessionLimitReached> {
        let (Some(persister), Some(client), Some(streams)) = (&self.persister, record.client(), &record.streams) else {
            return Err(SessionLimitReached);
        };
        let takeovers = record.takeovers + 1;
        // A new high half: positions, record versions and request ids of earlier owners are never reused.
        let position = u64::from(takeovers) << 32;
        let expected: Vec<(u32, Vec<Id>)> =
            streams.calls.iter().map(|call| (call.number, call.expected_responses())).collect();
        let events =
            events.into_iter().map(|event| (event.id, persistence::event_instant(&event), event.event)).collect();
        let mut state = SessionState::new(Outbox::Streams(Streams::from_record(streams, events, position)));
        let mut persistence = Persistence::new(Arc::clone(persister), takeovers);
        persistence.mark_durable(position, streams.last_number);
        persistence.upstream_sessions =
            record.upstreams.iter().map(|(name, saved_session)| (name.clone(), saved_session.clone().into())).collect();
        persistence.pending_subscriptions.clone_from(&record.subscriptions);
        persistence.known_lists = record.lists;
        state.persistence = Some(Box::new(persistence));
        state.log_level = record.level();
        state.initialized = record.initialized;
        state.last_server_request_id = i64::from(takeovers) << 32;
        let owner = SessionOwner { principal: record.principal.as_str().into(), group: record.group.as_str().into() };
        let session = self.register(id, owner, OnceLock::from(client), state)?;
        for (number, ids) in expected {
            session.fail_expected_responses(StreamTarget::Call(number), ids);
        }
        session.update(|_| ());
        Ok(session)
    }

    /// Drops a session that this node no longer owns, without deleting it from the store.
    pub fn release(&self, session: &Session) {
        self.lock().remove(&session.id);
        let moved = session.id.transport() == SessionTransport::Http;
        session.moved.store(moved, Ordering::Release);
        tracing::debug!(session = %session.id.log_tag(), moved, "session released");
        session.close();
    }

    /// Disconnects every reader of a persisted session; their clients resume elsewhere.
    pub fn disconnect_all_readers(&self) {
        self.all().iter().for_each(|session| session.disconnect_readers());
    }

    /// Disconnects readers that wait for events which the store has not acknowledged.
    pub(super) fn disconnect_unpersisted_readers(&self) {
        self.all().iter().for_each(|session| session.disconnect_unpersisted_readers());
    }

    /// Closes a session and queues its deletion from the store, unless another node owns it.
    pub fn close(&self, session: &Session) {
        let was_registered = self.lock().remove(&session.id).is_some();
        session.close();
        if let Some(persister) = self.persister.as_ref().filter(|_| was_registered && !session.has_moved()) {
            persister.queue_delete(session);
        }
    }

    /// Closes a session without running calls; returns false when calls are running.
    pub fn close_idle(&self, session: &Session) -> bool {
        {
            let mut state = session.lock();
            if !state.calls.is_empty() {
                return false;
            }
            state.close();
        }
        self.close(session);
        true
    }

    /// Closes every session at shutdown. Persisted Streamable HTTP sessions are released for adoption instead.
    pub fn close_all(&self) {
        for session in self.all() {
            match self.persister.is_some() && session.id.transport() == SessionTransport::Http {
                true => self.release(&session),
                false => self.close(&session),
            }
        }
    }

    /// Closes every session whose group name matches.
    pub fn close_groups(&self, is_closing: impl Fn(&str) -> bool) {
        for session in self.all().into_iter().filter(|session| is_closing(&session.group)) {
            self.close(&session);
        }
    }

    /// Whether [`SessionSettings::max_sessions`] is reached.
    pub fn is_full(&self) -> bool {
        self.count() >= self.settings.max_sessions
    }

    /// Number of open sessions.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Collects the figures of all sessions. Locks each session once.
    pub fn stats(&self) -> SessionStats {
        let mut stats = SessionStats::default();
        for session in self.all() {
            let revision = session.client.get().map(|client| client.revision);
            let kind = (Arc::clone(&session.group), session.id.transport().as_str(), revision);
            *stats.by_kind.entry(kind).or_default() += 1;
            let (streams, events, bytes) = session.lock().outbox.usage();
            stats.open_streams += streams;
            stats.events += events;
            stats.event_bytes += bytes;
        }
        stats
    }

    /// Expires idle sessions and trims old events.
    pub fn sweep(&self) {
        let now = Instant::now();
        let mut expired = Vec::new();
        for session in self.all() {
            let mut state = session.lock();
            let unread = state.outbox.has_unread(&self.settings.retention, now);
            if state.outbox.is_attached() || !state.calls.is_empty() {
                state.last_used = now;
            }
            let idle = now.duration_since(state.last_used) >= self.settings.idle_timeout;
            // A session frozen for release is closed too, but must not be deleted from the store.
            let is_expired = state.terminated || (!state.closed && idle && !unread);
            drop(state);
            if is_expired {
                expired.push(session);
            }
        }
        for session in expired {
            tracing::debug!(session = %session.id.log_tag(), "session expired");
            self.close(&session);
        }
    }

    /// Publishes a change to every interested session of a group, without waiting. Sessions whose clients can no
    /// longer resume are skipped; otherwise the unread notification would keep them from expiring.
    pub fn publish(&self, group: &str, change: &ChangeEvent) {
        self.publish_with(group, change, |_| None);
    }

    /// As [`Sessions::publish`]; stores the session's new list fingerprints after the notification, for a later
    /// takeover.
    pub(crate) fn publish_with(
        &self,
        group: &str,
        change: &ChangeEvent,
        fingerprints: impl Fn(&Session) -> Option<ListFingerprints>,
    ) {
        let notification = change.notification().encode();
        let now = Instant::now();
        for session in self.all() {
            if *session.group == *group
                && session.is_interested_in(change)
                && session.lock().client_may_resume(&self.settings, now)
            {
                session.send(StreamTarget::Listening, notification.clone());
                if let Some(fingerprints) = fingerprints(&session) {
                    session.record_known_lists(Some(change), &fingerprints);
                }
            }
        }
    }

    /// Publishes an update for every group subscription of every session, after notifications may have been missed.
    pub fn publish_all_updates(&self) {
        for session in self.all() {
            for uri in session.group_subscriptions() {
                session.send(StreamTarget::Listening, ChangeEvent::ResourceUpdated(uri).notification().encode());
            }
        }
    }

    /// Snapshot of all sessions.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.lock().values().map(Arc::clone).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.map.lock()
    }
}
