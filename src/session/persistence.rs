//! Persistence state of a session: what changed since the last write, and which events are durable.
//!
//! A change marks the session dirty and returns at once. The [`Persister`] writes the deltas of many sessions in
//! one batch and acknowledges a checkpoint for each. Readers are sent durable events only, so nothing that a client
//! has seen is lost with the node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::time::Instant;

use super::outbox::Outbox;
use super::sse_stream::DurableUpTo;
use super::{CallGuard, Persister, Session, SessionRecord, SessionState, StreamTarget};
use crate::call::{ChangeEvent, ClientSink, ListFingerprints};
use crate::failure::{Failure, FailureKind};
use crate::identity::CallerId;
use crate::protocol::{Id, NotificationMethod, Response};
use crate::store::traits::{RecordWrite, SessionDelta, StoredEvent};

/// Write-behind state of one session.
#[derive(Debug)]
pub(super) struct Persistence {
    pub(super) persister: Arc<Persister>,
    /// Version of the record, incremented on each change and increasing across owners.
    version: u64,
    /// Latest version that the store acknowledged.
    saved_version: u64,
    /// The store has what the client said of itself, so only the rest is written.
    is_client_saved: bool,
    durable: DurableUpTo,
    /// The session is in the persister's queue.
    queued: bool,
    pub(super) takeovers: u32,
    pub(super) upstream_sessions: BTreeMap<String, Bytes>,
    /// Subscriptions of the previous owner that this node has not re-established yet.
    pub(super) pending_subscriptions: Vec<String>,
    /// Fingerprints of the lists that the client has seen or was notified of.
    pub(super) known_lists: Option<ListFingerprints>,
}

/// Version and durable position that a session reaches when the delta taken with it is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checkpoint {
    version: u64,
    durable: DurableUpTo,
    /// The record has what the client said of itself.
    has_client: bool,
}

/// Longest that a response waits for its session to be persisted. Readers of unpersisted events are disconnected
/// after the same time.
pub(super) const PERSIST_TIMEOUT: Duration = Duration::from_secs(5);

impl Persistence {
    pub(super) fn new(persister: Arc<Persister>, takeovers: u32) -> Self {
        let durable = DurableUpTo { position: 0, number: 0 };
        // Above any version that the previous owner can have written, even one that arrives late.
        let base_version = u64::from(takeovers) << 32;
        Self {
            persister,
            version: base_version + 1,
            saved_version: base_version,
            is_client_saved: false,
            durable,
            queued: false,
            takeovers,
            upstream_sessions: BTreeMap::new(),
            pending_subscriptions: Vec::new(),
            known_lists: None,
        }
    }

    /// Marks everything that was loaded from the store as durable.
    pub(super) fn mark_durable(&mut self, position: u64, number: u32) {
        self.durable = DurableUpTo { position, number };
    }
}

impl SessionState {
    /// Durability watermark for readers; unlimited without a shared store.
    pub(super) fn durable_up_to(&self) -> DurableUpTo {
        self.persistence.as_ref().map_or(DurableUpTo::ALL, |persistence| persistence.durable)
    }

    /// Removes a request from the expected responses of its stream. The caller marks the session dirty by sending the
    /// response.
    pub(super) fn response_sent(&mut self, stream: StreamTarget, id: &Id) {
        if let (Some(persistence), Outbox::Streams(streams), StreamTarget::Call(number)) =
            (&mut self.persistence, &mut self.outbox, stream)
        {
            streams.response_sent(number, id);
            persistence.version += 1; // the append that follows marks the session dirty
        }
    }

    /// Removes a subscription from those that must be re-established after a takeover.
    pub(super) fn forget_pending_subscription(&mut self, uri: &str) {
        if let Some(persistence) = &mut self.persistence {
            persistence.pending_subscriptions.retain(|other| other != uri);
        }
    }

    fn first_retained(&self) -> u64 {
        match &self.outbox {
            Outbox::Streams(streams) => streams.log().first_position(),
            Outbox::Single(_) => 0,
        }
    }
}

impl Session {
    /// Changes persisted state and marks the record dirty.
    pub(super) fn update<T>(&self, operation: impl FnOnce(&mut SessionState) -> T) -> T {
        let mut state = self.lock();
        let result = operation(&mut state);
        self.mark_dirty(&mut state, true);
        result
    }

    /// Appends events and marks the session dirty; the record only when events were trimmed.
    pub(super) fn append<T>(&self, state: &mut SessionState, operation: impl FnOnce(&mut SessionState) -> T) -> T {
        let before = state.persistence.is_some().then(|| state.first_retained());
        let result = operation(state);
        if let Some(before) = before {
            let trimmed = before != state.first_retained();
            self.mark_dirty(state, trimmed);
        }
        result
    }

    /// Queues the session for the persister, once. `record_changed` says whether the record must be written too.
    pub(super) fn mark_dirty(&self, state: &mut SessionState, record_changed: bool) {
        let Some(persistence) = &mut state.persistence else { return };
        persistence.version += u64::from(record_changed);
        if !std::mem::replace(&mut persistence.queued, true) {
            persistence.persister.enqueue(self.weak_self.upgrade());
        }
    }

    /// Records the requests that a call stream must answer. A node that takes over fails them with an error response.
    pub fn expect_response(&self, stream: StreamTarget, ids: impl FnOnce() -> Vec<Id>) {
        let mut state = self.lock();
        let persisted = state.persistence.is_some();
        if let (true, Outbox::Streams(streams), StreamTarget::Call(number)) = (persisted, &mut state.outbox, stream) {
            streams.expect_response(number, ids());
            self.mark_dirty(&mut state, true);
        }
    }

    /// Appends the response of a call as [`Session::deliver`] does. Under one lock the call is deregistered, removed
    /// from the expected responses and its response appended: a takeover never sees it as lost in between.
    pub async fn deliver_response(&self, stream: StreamTarget, call: &CallGuard, id: &Id, message: Bytes) {
        self.cancel_server_requests_of(call.serial);
        let remove_call = |state: &mut SessionState| {
            state.calls.retain(|running| running.serial != call.serial);
            state.response_sent(stream, id);
        };
        self.deliver_with(stream, message, remove_call).await;
    }

    /// Stores the fingerprints of the lists that the client knows: all of them, or the one that changed.
    pub(crate) fn record_known_lists(&self, change: Option<&ChangeEvent>, fingerprints: &ListFingerprints) {
        let mut state = self.lock();
        let Some(persistence) = &mut state.persistence else { return };
        let before = persistence.known_lists;
        let lists = persistence.known_lists.get_or_insert(*fingerprints);
        for (index, _) in
            ChangeEvent::LISTS.iter().enumerate().filter(|(_, list)| change.is_none_or(|change| change == *list))
        {
            lists[index] = fingerprints[index];
        }
        if persistence.known_lists != before {
            self.mark_dirty(&mut state, true);
        }
    }

    /// Invalidates the fingerprint of a list served from the client's own lease, since no other node can compute it.
    pub(super) fn record_private_list(&self, notice: &NotificationMethod) {
        let announces = |change: &&ChangeEvent| change.notification().method == *notice;
        if let Some(change) = ChangeEvent::LISTS.iter().find(announces) {
            self.record_known_lists(Some(change), &ListFingerprints::default());
        }
    }

    /// After a takeover: notifies the client of every list that differs from what it knew on the previous owner.
    pub(crate) fn notify_changed_lists(&self, fingerprints: &ListFingerprints) {
        let known = self.lock().persistence.as_ref().and_then(|persistence| persistence.known_lists);
        for (index, change) in ChangeEvent::LISTS.iter().enumerate() {
            if known.is_none_or(|known| known[index] != fingerprints[index]) {
                self.notify(change.notification());
                self.record_known_lists(Some(change), fingerprints);
            }
        }
    }

    /// Builds the record to store.
    pub(super) fn record(&self, state: &SessionState) -> SessionRecord {
        let mut record = SessionRecord::new(Arc::clone(&self.identity), &self.group);
        if let Some(client) = self.client.get() {
            record.set_client(client, state.log_level);
        }
        record.progress.initialized = state.initialized;
        record.progress.subscriptions = state.subscriptions.keys().map(ToString::to_string).collect();
        if let Some(persistence) = &state.persistence {
            record.progress.subscriptions.extend(persistence.pending_subscriptions.iter().cloned());
            record.progress.takeovers = persistence.takeovers;
            record.progress.lists = persistence.known_lists;
            let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
            record.progress.upstreams = persistence
                .upstream_sessions
                .iter()
                .map(|(name, saved_session)| (name.clone(), text(saved_session)))
                .collect();
        }
        if let Outbox::Streams(streams) = &state.outbox {
            record.progress.streams = Some(streams.record());
        }
        record
    }

    /// Takes the unwritten changes, or with `full` the whole session; `None` when the session is closed.
    pub(super) fn delta(&self, full: bool, ttl: Duration) -> Option<(SessionDelta, Checkpoint)> {
        self.delta_of(&mut self.lock(), full, ttl)
    }

    fn delta_of(&self, state: &mut SessionState, full: bool, ttl: Duration) -> Option<(SessionDelta, Checkpoint)> {
        if state.closed {
            return None;
        }
        let persistence = state.persistence.as_mut()?;
        persistence.queued = false;
        let (version, saved, durable) = (persistence.version, persistence.saved_version, persistence.durable);
        let is_client_saved = persistence.is_client_saved;
        let mut delta = SessionDelta { ttl, version, ..SessionDelta::default() };
        let mut checkpoint = Checkpoint { version, durable, has_client: false };
        if let Outbox::Streams(streams) = &state.outbox {
            let log = streams.log();
            let from = if full { 0 } else { durable.position };
            delta.events = log.all_after(from).map(|(id, at, event)| to_stored_event(id, at, event)).collect();
            delta.trim_before = log.first_position();
            checkpoint.durable = DurableUpTo { position: log.last_position(), number: streams.last_number() };
        }
        if full || version != saved {
            let record = self.record(state);
            delta.record = Some(match full || !is_client_saved {
                true => RecordWrite::Whole(record.encode()),
                false => RecordWrite::Changes(record.progress.encode()),
            });
            checkpoint.has_client = record.has_client();
        }
        Some((delta, checkpoint))
    }

    /// Takes the last delta and closes the session to new work before a release. `None` when it is closed already, or
    /// calls are running and `cut_running_calls` is false.
    pub(super) fn freeze(&self, ttl: Duration, cut_running_calls: bool) -> Option<(SessionDelta, Checkpoint)> {
        let mut state = self.lock();
        if !cut_running_calls && !state.calls.is_empty() {
            return None;
        }
        let delta = self.delta_of(&mut state, false, ttl)?;
        state.closed = true;
        self.moved.store(true, Ordering::Release);
        Some(delta)
    }

    /// Reopens a frozen session because its release failed.
    pub(super) fn unfreeze(&self) {
        let mut state = self.lock();
        state.closed = false;
        self.moved.store(false, Ordering::Release);
        if let Some(persistence) = &mut state.persistence {
            persistence.queued = false;
        }
        self.mark_dirty(&mut state, false);
    }

    /// Whether the session is written to a shared store.
    pub(super) fn is_persisted(&self) -> bool {
        self.lock().persistence.is_some()
    }

    /// Acknowledges a checkpoint: raises the watermark and wakes the readers.
    pub(super) fn ack(&self, checkpoint: Checkpoint) {
        let mut state = self.lock();
        let Some(persistence) = &mut state.persistence else { return };
        persistence.saved_version = persistence.saved_version.max(checkpoint.version);
        persistence.is_client_saved |= checkpoint.has_client;
        persistence.durable.position = persistence.durable.position.max(checkpoint.durable.position);
        persistence.durable.number = persistence.durable.number.max(checkpoint.durable.number);
        if let Outbox::Streams(streams) = &mut state.outbox {
            streams.wake_all();
        }
        drop(state);
        self.progress.notify_waiters();
    }

    /// Queues the session again after a failed write.
    pub(super) fn nack(&self) {
        self.mark_dirty(&mut self.lock(), false);
    }

    /// How often the saved upstream sessions have changed. Never changes without a shared store.
    pub fn upstream_session_saves(&self) -> u64 {
        self.upstream_session_saves.load(Ordering::Acquire)
    }

    /// Waits until all changes so far are persisted; returns false after `PERSIST_TIMEOUT`. Cancel-safe.
    pub async fn flush(&self) -> bool {
        let target_version = match &self.lock().persistence {
            Some(persistence) => persistence.version,
            None => return true,
        };
        let persisted = async {
            loop {
                let progress = self.progress.notified();
                tokio::pin!(progress);
                progress.as_mut().enable();
                {
                    let state = self.lock();
                    let saved = state.persistence.as_ref().map_or(u64::MAX, |persistence| persistence.saved_version);
                    if saved >= target_version || state.terminated {
                        return saved >= target_version || !self.has_moved();
                    }
                }
                progress.await;
            }
        };
        tokio::time::timeout(PERSIST_TIMEOUT, persisted).await.unwrap_or(false)
    }

    /// Whether another node owns the session, or a release to it is under way.
    pub fn has_moved(&self) -> bool {
        self.moved.load(Ordering::Acquire)
    }

    /// Whether the session belongs to this caller and group and is moving to another node.
    pub fn is_moving_for(&self, caller: &CallerId, group: &str) -> bool {
        self.has_moved() && self.identity.caller_id == *caller && *self.group == *group
    }

    /// Disconnects every reader of a persisted session; the clients can resume.
    pub(super) fn disconnect_readers(&self) {
        let mut state = self.lock();
        let persisted = state.persistence.is_some();
        if let (true, Outbox::Streams(streams)) = (persisted, &mut state.outbox) {
            streams.disconnect_readers();
        }
    }

    /// Disconnects the readers if the log has events that are not durable.
    pub(super) fn disconnect_unpersisted_readers(&self) {
        let mut state = self.lock();
        let durable = state.durable_up_to();
        if let Outbox::Streams(streams) = &mut state.outbox
            && streams.log().last_position() > durable.position
        {
            streams.disconnect_readers();
        }
    }

    /// Answers requests that ran on the previous owner with an error each, and completes their stream.
    pub(super) fn fail_expected_responses(&self, stream: StreamTarget, ids: Vec<Id>) {
        for id in ids {
            let failure = Failure::new(FailureKind::NodeLost, "the node that ran the call is gone");
            self.send(stream, Response::new(Some(id), Err(failure.into())).encode());
        }
        self.finish_stream(stream);
    }

    /// Number of running calls.
    pub fn running_calls(&self) -> usize {
        self.lock().calls.len()
    }

    /// Subscriptions of the previous owner that must be re-established.
    pub fn pending_subscriptions(&self) -> Vec<String> {
        self.lock()
            .persistence
            .as_ref()
            .map(|persistence| persistence.pending_subscriptions.clone())
            .unwrap_or_default()
    }

    /// Marks a pending subscription as re-established.
    pub fn resubscribed(&self, uri: &str) {
        self.update(|state| state.forget_pending_subscription(uri));
    }
}

fn to_stored_event(id: crate::store::EventId, at: Instant, event: &Bytes) -> StoredEvent {
    let at = SystemTime::now().checked_sub(at.elapsed()).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    StoredEvent {
        id,
        at_ms: at.map_or(0, |at| u64::try_from(at.as_millis()).unwrap_or(u64::MAX)),
        event: event.clone(),
    }
}

/// Converts the wall-clock time of a stored event to this process's monotonic clock.
pub(super) fn event_instant(event: &StoredEvent) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_millis(event.at_ms));
    Instant::now().checked_sub(age).unwrap_or_else(Instant::now)
}
