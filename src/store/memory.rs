//! In-memory store. Several nodes in one process can share it, so tests and embedders run a cluster without a
//! server.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::traits::{
    EventStore, LimitStore, MailboxLimits, NodeStatus, NodeStore, RecordWrite, SendOutcome, SessionDelta, SessionStore,
    SharedBucket, StoreFuture, StoredEvent, StoredSession, TokenGrant, WriteOutcome,
};
use super::{ClusterStore, NodeId, StoreError};

/// A [`ClusterStore`] in process memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<MemoryState>,
    mail_arrived: Notify,
}

#[derive(Debug, Default)]
struct MemoryState {
    sessions: HashMap<String, MemorySession>,
    nodes: BTreeMap<Arc<str>, (NodeId, Instant)>,
    mailboxes: HashMap<NodeId, Mailbox>,
    affinities: HashMap<String, (NodeId, Instant)>,
    shared_key: Option<Bytes>,
    /// When the bucket of a limit is full again.
    buckets: HashMap<String, Instant>,
    /// Calls in the window of a quota by its start, and when the window is over.
    windows: HashMap<(String, u64), (u64, Instant)>,
}

#[derive(Debug)]
struct MemorySession {
    owner: Option<NodeId>,
    /// `None` is the tombstone of a deleted session.
    record: Option<Bytes>,
    changes: Option<Bytes>,
    version: u64,
    events: VecDeque<StoredEvent>,
    expires_at: Instant,
}

#[derive(Debug)]
struct Mailbox {
    messages: VecDeque<Bytes>,
    expires_at: Instant,
}

impl ClusterStore for MemoryStore {}

/// Longest wait of `receive` for the first message.
const MEMORY_RECEIVE_WAIT: Duration = Duration::from_secs(1);

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Removes a session without leaving a tombstone, like a store that lost its data. For tests.
    pub fn forget(&self, id: &str) {
        self.lock().sessions.remove(id);
    }

    fn push_messages(&self, to: &NodeId, messages: Vec<Bytes>, ttl: Duration) {
        let mut state = self.lock();
        let expires_at = Instant::now() + ttl;
        let mailbox =
            state.mailboxes.entry(to.clone()).or_insert_with(|| Mailbox { messages: VecDeque::new(), expires_at });
        mailbox.messages.extend(messages);
        mailbox.expires_at = expires_at;
        drop(state);
        self.mail_arrived.notify_waiters();
    }

    /// Locks the state after removing expired entries.
    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.sessions.retain(|_, session| session.expires_at > now);
        state.nodes.retain(|_, (_, expires_at)| *expires_at > now);
        state.mailboxes.retain(|_, mailbox| mailbox.expires_at > now);
        state.affinities.retain(|_, (_, expires_at)| *expires_at > now);
        state.buckets.retain(|_, full_at| *full_at > now);
        state.windows.retain(|_, (_, ends_at)| *ends_at > now);
        state
    }
}

impl Mailbox {
    fn is_full(&self) -> bool {
        let MailboxLimits { messages, bytes } = MailboxLimits::DEFAULT;
        self.messages.len() >= messages || self.messages.iter().map(Bytes::len).sum::<usize>() >= bytes
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> StoreFuture<'a, T> {
    Box::pin(std::future::ready(Ok::<T, StoreError>(value)))
}

impl MemoryState {
    fn owned_session(&mut self, id: &str, owner: &NodeId) -> Result<&mut MemorySession, WriteOutcome> {
        match self.sessions.get_mut(id) {
            None => Err(WriteOutcome::NotFound),
            Some(session) if session.record.is_some() && session.owner.as_ref() == Some(owner) => Ok(session),
            Some(_) => Err(WriteOutcome::NotOwner),
        }
    }

    fn status(&self, node: &NodeId) -> NodeStatus {
        match self.nodes.get(node.name()) {
            None => NodeStatus::Expired,
            Some((live, _)) if live == node => NodeStatus::Alive,
            Some(_) => NodeStatus::Replaced,
        }
    }
}

impl SessionStore for MemoryStore {
    fn create<'a>(&'a self, id: &'a str, owner: &'a NodeId, record: Bytes, ttl: Duration) -> StoreFuture<'a, bool> {
        let mut state = self.lock();
        if state.sessions.contains_key(id) {
            return ready(false);
        }
        let expires_at = Instant::now() + ttl;
        let (owner, record, events) = (Some(owner.clone()), Some(record), VecDeque::new());
        let session = MemorySession { owner, record, changes: None, version: 0, events, expires_at };
        state.sessions.insert(id.to_owned(), session);
        ready(true)
    }

    fn load<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<StoredSession>> {
        let state = self.lock();
        let found = |session: &MemorySession| {
            let changes = session.changes.clone();
            Some(StoredSession { owner: session.owner.clone(), record: session.record.clone()?, changes })
        };
        ready(state.sessions.get(id).and_then(found))
    }

    fn claim<'a>(
        &'a self,
        id: &'a str,
        from: Option<&'a NodeId>,
        to: Option<&'a NodeId>,
    ) -> StoreFuture<'a, WriteOutcome> {
        let mut state = self.lock();
        ready(match state.sessions.get_mut(id) {
            None => WriteOutcome::NotFound,
            Some(session) if session.record.is_some() && session.owner.as_ref() == from => {
                session.owner = to.cloned();
                WriteOutcome::Applied
            }
            Some(_) => WriteOutcome::NotOwner,
        })
    }

    fn touch<'a>(&'a self, ids: &'a [String], owner: &'a NodeId, ttl: Duration) -> StoreFuture<'a, Vec<WriteOutcome>> {
        let mut state = self.lock();
        let expires_at = Instant::now() + ttl;
        let apply = |id: &String| match state.owned_session(id, owner) {
            Ok(session) => {
                session.expires_at = expires_at;
                WriteOutcome::Applied
            }
            Err(outcome) => outcome,
        };
        ready(ids.iter().map(apply).collect())
    }

    fn delete<'a>(&'a self, id: &'a str, owner: &'a NodeId) -> StoreFuture<'a, WriteOutcome> {
        let mut state = self.lock();
        ready(match state.owned_session(id, owner) {
            Ok(session) => {
                (session.record, session.changes, session.events) = (None, None, VecDeque::new());
                WriteOutcome::Applied
            }
            Err(outcome) => outcome,
        })
    }
}

impl EventStore for MemoryStore {
    fn write_deltas<'a>(
        &'a self,
        owner: &'a NodeId,
        deltas: &'a [(String, SessionDelta)],
    ) -> StoreFuture<'a, Vec<WriteOutcome>> {
        let mut state = self.lock();
        let now = Instant::now();
        let apply = |(id, delta): &(String, SessionDelta)| match state.owned_session(id, owner) {
            Ok(session) => {
                if let Some(record) = delta.record.as_ref().filter(|_| delta.version >= session.version) {
                    session.version = delta.version;
                    match record {
                        RecordWrite::Whole(record) => {
                            (session.record, session.changes) = (Some(record.clone()), None);
                        }
                        RecordWrite::Changes(changes) => session.changes = Some(changes.clone()),
                    }
                }
                let last = session.events.back().map_or(0, |event| event.id.position);
                session.events.extend(delta.events.iter().filter(|event| event.id.position > last).cloned());
                while session.events.front().is_some_and(|event| event.id.position < delta.trim_before) {
                    session.events.pop_front();
                }
                session.expires_at = now + delta.ttl;
                WriteOutcome::Applied
            }
            Err(outcome) => outcome,
        };
        ready(deltas.iter().map(apply).collect())
    }

    fn read_events<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Vec<StoredEvent>> {
        let state = self.lock();
        ready(state.sessions.get(id).map(|session| session.events.iter().cloned().collect()).unwrap_or_default())
    }
}

impl NodeStore for MemoryStore {
    fn join<'a>(&'a self, node: &'a NodeId, ttl: Duration) -> StoreFuture<'a, ()> {
        self.lock().nodes.insert(Arc::clone(node.name()), (node.clone(), Instant::now() + ttl));
        ready(())
    }

    fn heartbeat<'a>(&'a self, node: &'a NodeId, ttl: Duration) -> StoreFuture<'a, NodeStatus> {
        let mut state = self.lock();
        let expires_at = Instant::now() + ttl;
        let status = state.status(node);
        if status == NodeStatus::Alive {
            state.nodes.insert(Arc::clone(node.name()), (node.clone(), expires_at));
            if let Some(mailbox) = state.mailboxes.get_mut(node) {
                mailbox.expires_at = expires_at;
            }
        }
        ready(status)
    }

    fn leave<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, ()> {
        let mut state = self.lock();
        if state.status(node) == NodeStatus::Alive {
            state.nodes.remove(node.name());
        }
        ready(())
    }

    fn node_status<'a>(&'a self, nodes: &'a [NodeId]) -> StoreFuture<'a, Vec<NodeStatus>> {
        let state = self.lock();
        ready(nodes.iter().map(|node| state.status(node)).collect())
    }

    fn find_node<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<NodeId>> {
        ready(self.lock().nodes.get(name).map(|(node, _)| node.clone()))
    }

    fn members(&self) -> StoreFuture<'_, Vec<NodeId>> {
        ready(self.lock().nodes.values().map(|(node, _)| node.clone()).collect())
    }

    fn send<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, ttl: Duration) -> StoreFuture<'a, SendOutcome> {
        if self.lock().mailboxes.get(to).is_some_and(Mailbox::is_full) {
            return ready(SendOutcome::MailboxFull);
        }
        self.push_messages(to, messages, ttl);
        ready(SendOutcome::Sent)
    }

    fn reply<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, ttl: Duration) -> StoreFuture<'a, ()> {
        self.push_messages(to, messages, ttl);
        ready(())
    }

    fn receive<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, Vec<Bytes>> {
        Box::pin(async move {
            let deadline = Instant::now() + MEMORY_RECEIVE_WAIT;
            loop {
                let arrived = self.mail_arrived.notified();
                tokio::pin!(arrived);
                arrived.as_mut().enable();
                let messages: Vec<Bytes> = match self.lock().mailboxes.get_mut(node) {
                    Some(mailbox) => mailbox.messages.drain(..).collect(),
                    None => Vec::new(),
                };
                if !messages.is_empty() || tokio::time::timeout_at(deadline, arrived).await.is_err() {
                    return Ok(messages);
                }
            }
        })
    }

    fn unsend<'a>(&'a self, to: &'a NodeId, message: Bytes) -> StoreFuture<'a, bool> {
        let mut state = self.lock();
        let Some(mailbox) = state.mailboxes.get_mut(to) else { return ready(false) };
        let before = mailbox.messages.len();
        mailbox.messages.retain(|queued| *queued != message);
        ready(mailbox.messages.len() < before)
    }

    fn claim_affinity<'a>(
        &'a self,
        name: &'a str,
        node: &'a NodeId,
        instead_of: Option<&'a NodeId>,
        ttl: Duration,
    ) -> StoreFuture<'a, NodeId> {
        let mut state = self.lock();
        if let Some((owner, _)) = state.affinities.get(name)
            && owner != node
            && Some(owner) != instead_of
        {
            return ready(owner.clone());
        }
        state.affinities.insert(name.to_owned(), (node.clone(), Instant::now() + ttl));
        ready(node.clone())
    }

    fn shared_key(&self, offered: Bytes) -> StoreFuture<'_, Bytes> {
        ready(self.lock().shared_key.get_or_insert(offered).clone())
    }
}

impl LimitStore for MemoryStore {
    fn take_tokens<'a>(&'a self, key: &'a str, bucket: SharedBucket, wanted: u32) -> StoreFuture<'a, TokenGrant> {
        let (mut state, now) = (self.lock(), Instant::now());
        let none_before = |retry_after| ready(TokenGrant { granted: 0, retry_after });
        let mut granted = wanted;
        if let Some(rate) = bucket.rate {
            let missing = state.buckets.get(key).map_or(Duration::ZERO, |full_at| full_at.duration_since(now));
            let room = (rate.interval * rate.burst).saturating_sub(missing);
            let tokens = room.as_nanos() / rate.interval.as_nanos().max(1);
            granted = granted.min(u32::try_from(tokens).unwrap_or(u32::MAX));
            if granted == 0 {
                return none_before((missing + rate.interval).saturating_sub(rate.interval * rate.burst));
            }
        }
        if let Some(window) = bucket.window {
            let place = state.windows.entry((key.to_owned(), window.start)).or_insert((0, now + window.ends_in));
            granted = granted.min(u32::try_from(window.limit.saturating_sub(place.0)).unwrap_or(u32::MAX));
            if granted == 0 {
                return none_before(window.ends_in);
            }
            place.0 += u64::from(granted);
        }
        if let Some(rate) = bucket.rate {
            *state.buckets.entry(key.to_owned()).or_insert(now) += rate.interval * granted;
        }
        ready(TokenGrant { granted, retry_after: Duration::ZERO })
    }

    fn return_tokens<'a>(&'a self, key: &'a str, bucket: SharedBucket, unused: u32) -> StoreFuture<'a, ()> {
        let mut state = self.lock();
        if let (Some(rate), Some(full_at)) = (bucket.rate, state.buckets.get_mut(key)) {
            *full_at = full_at.checked_sub(rate.interval * unused).unwrap_or(*full_at);
        }
        if let Some(window) = bucket.window
            && let Some((used, _)) = state.windows.get_mut(&(key.to_owned(), window.start))
        {
            *used = used.saturating_sub(u64::from(unused));
        }
        ready(())
    }
}
