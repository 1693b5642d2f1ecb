//! Registry of all sessions of this process: create, find, adopt, expire, and publish list changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use parking_lot::Mutex;

use super::outbox::{MessageQueue, Outbox, Streams};
use super::persistence::{self, Persistence};
use super::{
    Persister, Session, SessionId, SessionRecord, SessionSettings, SessionShared, SessionState, SessionTransport,
    StreamReader, StreamTarget,
};
use crate::call::{ChangeEvent, ClientInfo, GatewaySlot, ListFingerprints};
use crate::dialect::Revision;
use crate::failure::QuotaReached;
use crate::identity::{CallerId, Identity};
use crate::metrics::{Metrics, NetworkTransport, SessionLabels};
use crate::policy::{CallerPermit, Permit, QuotaKey, Quotas};
use crate::protocol::Id;
use crate::store::traits::StoredEvent;
use foldhash::HashMap;

/// The sessions of this process by id.
#[derive(Debug)]
pub struct Sessions {
    shared: Arc<SessionShared>,
    /// Persists sessions to the shared store; `None` without one.
    persister: Option<Arc<Persister>>,
    /// Sessions by a part of their random id. A lock is held for one lookup or the snapshot of one shard, so that a
    /// sweep of many sessions delays no request.
    shards: Box<[Shard]>,
    /// Where durations are recorded.
    metrics: OnceLock<Arc<Metrics>>,
}

type Shard = Mutex<HashMap<SessionId, Registered>>;

/// A registered session with its shares of the quotas.
#[derive(Debug)]
struct Registered {
    session: Arc<Session>,
    _permits: (Permit, Option<CallerPermit>),
}

/// Shards of the registry.
pub(crate) const SESSION_SHARDS: usize = 64;

/// Caller and group that a session belongs to.
#[derive(Debug, Clone)]
pub struct SessionOwner {
    /// Who opens the session.
    pub identity: Arc<Identity>,
    /// Group that the session is opened on.
    pub group: Arc<str>,
    /// Whom the session is counted for; nobody on stdio, and where an anonymous session was adopted.
    pub quota_key: Option<QuotaKey>,
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

impl Sessions {
    /// An empty registry whose sessions live in memory only.
    pub fn new(settings: SessionSettings, quotas: Arc<Quotas>) -> Self {
        let shared = Arc::new(SessionShared { settings: ArcSwap::from_pointee(settings), quotas });
        let shards = (0..SESSION_SHARDS).map(|_| Mutex::default()).collect();
        Self { shared, persister: None, shards, metrics: OnceLock::new() }
    }

    /// An empty registry whose sessions are persisted to a shared store.
    pub fn with_persister(settings: SessionSettings, quotas: Arc<Quotas>, persister: Arc<Persister>) -> Self {
        Self { persister: Some(persister), ..Self::new(settings, quotas) }
    }

    /// The persister; `None` without a shared store.
    pub fn persister(&self) -> Option<&Arc<Persister>> {
        self.persister.as_ref()
    }

    /// Has the durations of sessions recorded.
    pub fn set_metrics(&self, metrics: &Arc<Metrics>) {
        // Set once, before anything is served.
        let _ = self.metrics.set(Arc::clone(metrics));
    }

    fn record_duration(&self, session: &Session) {
        let Some(operations) = self.metrics.get().map(|metrics| metrics.operations()) else { return };
        let labels = SessionLabels {
            place: operations.place(&session.group),
            error: None,
            revision: session.client.get().map(|client| client.revision.as_str()),
            transport: match session.id.transport() {
                SessionTransport::Stdio => NetworkTransport::Pipe,
                _ => NetworkTransport::Tcp,
            },
        };
        operations.record_session(&labels, session.opened_at.elapsed());
    }

    /// Limits and timeouts of these sessions.
    pub fn settings(&self) -> Guard<Arc<SessionSettings>> {
        self.shared.settings.load()
    }

    /// Applies other limits and timeouts, also to open sessions.
    pub fn set_settings(&self, settings: SessionSettings) {
        self.shared.settings.store(Arc::new(settings));
    }

    /// The quotas of sessions, streams and events.
    pub fn quotas(&self) -> &Arc<Quotas> {
        &self.shared.quotas
    }

    /// Opens a Streamable HTTP session after `initialize`.
    ///
    /// # Errors
    /// When there are as many sessions as there may be, in all or of this owner.
    pub fn open(&self, owner: SessionOwner, client: Arc<ClientInfo>) -> Result<Arc<Session>, QuotaReached> {
        let outbox = Outbox::Streams(Streams::new(&self.shared.quotas.event_bytes));
        self.create(SessionTransport::Http, owner, OnceLock::from(client), outbox)
    }

    /// Opens a single-connection session (HTTP+SSE, stdio) and its reader; `initialize` arrives on it later.
    ///
    /// # Errors
    /// When there are as many sessions or streams as there may be.
    pub fn open_single(
        &self,
        transport: SessionTransport,
        owner: SessionOwner,
    ) -> Result<(Arc<Session>, StreamReader), QuotaReached> {
        let stream = self.shared.quotas.streams.acquire(1)?;
        let session = self.create(transport, owner, OnceLock::new(), Outbox::Single(MessageQueue::default()))?;
        let reader = StreamReader::new(Arc::clone(&session), (0, 0), stream);
        Ok((session, reader))
    }

    fn create(
        &self,
        transport: SessionTransport,
        owner: SessionOwner,
        client: OnceLock<Arc<ClientInfo>>,
        outbox: Outbox,
    ) -> Result<Arc<Session>, QuotaReached> {
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
    ) -> Result<Arc<Session>, QuotaReached> {
        let quotas = &self.shared.quotas;
        let own = owner.quota_key.map(|key| quotas.sessions_per_caller.acquire(key)).transpose()?;
        let permits = (quotas.sessions.acquire(1)?, own);
        let session = Arc::new_cyclic(|weak_self| Session {
            id,
            identity: owner.identity,
            tag: OnceLock::new(),
            latest_identity: ArcSwapOption::empty(),
            group: owner.group,
            client,
            shared: Arc::clone(&self.shared),
            state: Mutex::new(state),
            progress: Notify::new(),
            upstream_session_saves: AtomicU64::new(0),
            gateway_slot: GatewaySlot::default(),
            ended: CancellationToken::new(),
            opened_at: Instant::now(),
            weak_self: Weak::clone(weak_self),
            moved: AtomicBool::new(false),
        });
        self.shard(id).lock().insert(id, Registered { session: Arc::clone(&session), _permits: permits });
        Ok(session)
    }

    /// Finds a session of this caller and group, and resets its idle timer.
    pub fn find(&self, id: SessionId, caller: &CallerId, group: &str) -> Option<Arc<Session>> {
        let session = self.get(id)?;
        if session.identity.caller_id != *caller || *session.group != *group {
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

    /// Finds a session without checking caller or group.
    pub fn get(&self, id: SessionId) -> Option<Arc<Session>> {
        self.shard(id).lock().get(&id).map(|registered| Arc::clone(&registered.session))
    }

    /// Takes over a session of another node from its stored record and events. Calls that ran there are answered with
    /// an error.
    ///
    /// # Errors
    /// When there are as many sessions as there may be. `None` when the record cannot be adopted.
    pub fn adopt(
        &self,
        id: SessionId,
        record: &SessionRecord,
        events: Vec<StoredEvent>,
    ) -> Result<Option<Arc<Session>>, QuotaReached> {
        let (Some(persister), Some(client), Some(streams)) =
            (&self.persister, record.client(), &record.progress.streams)
        else {
            return Ok(None);
        };
        let takeovers = record.progress.takeovers + 1;
        // A new high half: positions, record versions and request ids of earlier owners are never reused.
        let position = u64::from(takeovers) << 32;
        let expected: Vec<(u32, Vec<Id>)> =
            streams.calls.iter().map(|call| (call.number, call.expected_responses())).collect();
        let events =
            events.into_iter().map(|event| (event.id, persistence::event_instant(&event), event.event)).collect();
        let mut state = SessionState::new(Outbox::Streams(Streams::from_record(
            streams,
            events,
            position,
            &self.shared.quotas.event_bytes,
        )));
        let mut persistence = Persistence::new(Arc::clone(persister), takeovers);
        persistence.mark_durable(position, streams.last_number);
        persistence.upstream_sessions = record
            .progress
            .upstreams
            .iter()
            .map(|(name, saved_session)| (name.clone(), saved_session.clone().into()))
            .collect();
        persistence.pending_subscriptions.clone_from(&record.progress.subscriptions);
        persistence.known_lists = record.progress.lists;
        state.persistence = Some(Box::new(persistence));
        state.log_level = record.level();
        state.initialized = record.progress.initialized;
        state.last_server_request_id = i64::from(takeovers) << 32;
        let owner = SessionOwner {
            identity: Arc::clone(&record.identity),
            group: record.group.as_str().into(),
            quota_key: None,
        };
        let session = self.register(id, owner, OnceLock::from(client), state)?;
        for (number, ids) in expected {
            session.fail_expected_responses(StreamTarget::Call(number), ids);
        }
        session.update(|_| ());
        Ok(Some(session))
    }

    /// Drops a session that this node no longer owns, without deleting it from the store.
    pub fn release(&self, session: &Session) {
        drop(self.shard(session.id).lock().remove(&session.id));
        let moved = session.id.transport() == SessionTransport::Http;
        session.moved.store(moved, Ordering::Release);
        tracing::debug!(session = %session.id.log_tag(), moved, "session released");
        session.close();
    }

    /// Disconnects every reader of a persisted session; their clients resume elsewhere.
    pub fn disconnect_all_readers(&self) {
        self.iter().for_each(|session| session.disconnect_readers());
    }

    /// Disconnects readers that wait for events which the store has not acknowledged.
    pub(super) fn disconnect_unpersisted_readers(&self) {
        self.iter().for_each(|session| session.disconnect_unpersisted_readers());
    }

    /// Closes a session and queues its deletion from the store, unless another node owns it.
    pub fn close(&self, session: &Session) {
        let was_registered = self.shard(session.id).lock().remove(&session.id).is_some();
        session.close();
        if was_registered && !session.has_moved() {
            self.record_duration(session);
        }
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
        for session in self.iter() {
            match self.persister.is_some() && session.id.transport() == SessionTransport::Http {
                true => self.release(&session),
                false => self.close(&session),
            }
        }
    }

    /// Closes every session whose group name matches.
    pub fn close_groups(&self, is_closing: impl Fn(&str) -> bool) {
        for session in self.iter().filter(|session| is_closing(&session.group)) {
            self.close(&session);
        }
    }

    /// Closes every session whose caller, as of its latest request, and group match; returns how many there were.
    pub fn close_owned_by(&self, is_closing: impl Fn(&Identity, &str) -> bool) -> usize {
        let mut closed = 0;
        for session in self.iter().filter(|session| is_closing(&session.latest_identity(), &session.group)) {
            self.close(&session);
            closed += 1;
        }
        closed
    }

    /// Number of open sessions.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Collects the figures of all sessions. Locks each session once.
    pub fn stats(&self) -> SessionStats {
        let mut stats = SessionStats::default();
        for session in self.iter() {
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
        (0..SESSION_SHARDS).for_each(|shard| self.sweep_shard(shard));
    }

    /// [`Sessions::sweep`] for one shard, so that other tasks can run between two of them.
    pub(crate) fn sweep_shard(&self, shard: usize) {
        let (now, settings) = (Instant::now(), self.settings());
        let mut expired = Vec::new();
        for session in snapshot(&self.shards[shard % SESSION_SHARDS]) {
            let mut state = session.lock();
            let unread = state.outbox.has_unread(&settings.retention, now);
            if state.outbox.is_attached() || !state.calls.is_empty() {
                state.last_used = now;
            }
            let idle = now.duration_since(state.last_used) >= settings.idle_timeout;
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
        self.publish_with(group, change, |_| None, |_| true);
    }

    /// As [`Sessions::publish`], to sessions that the change concerns; stores the session's new list fingerprints after
    /// the notification, for a later takeover.
    pub(crate) fn publish_with(
        &self,
        group: &str,
        change: &ChangeEvent,
        fingerprints: impl Fn(&Session) -> Option<ListFingerprints>,
        concerns: impl Fn(&Session) -> bool,
    ) {
        let notification = change.notification().encode();
        let (now, settings) = (Instant::now(), self.settings());
        for session in self.iter() {
            if *session.group == *group
                && session.is_interested_in(change)
                && concerns(&session)
                && session.lock().client_may_resume(&settings, now)
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
        for session in self.iter() {
            for uri in session.group_subscriptions() {
                session.send(StreamTarget::Listening, ChangeEvent::ResourceUpdated(uri).notification().encode());
            }
        }
    }

    /// Snapshot of all sessions.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.iter().collect()
    }

    /// All sessions, shard by shard. One that is opened or closed meanwhile may be missing.
    fn iter(&self) -> impl Iterator<Item = Arc<Session>> + '_ {
        self.shards.iter().flat_map(snapshot)
    }

    fn shard(&self, id: SessionId) -> &Shard {
        &self.shards[usize::try_from(id.key() % SESSION_SHARDS as u128).unwrap_or(0)]
    }
}

fn snapshot(shard: &Shard) -> Vec<Arc<Session>> {
    shard.lock().values().map(|registered| Arc::clone(&registered.session)).collect()
}
