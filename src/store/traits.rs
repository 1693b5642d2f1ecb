//! Contracts of a shared store: sessions, events, nodes and limits.
//!
//! `tests/it/store.rs` runs one suite against every implementation. Each stored session has an owner node: only the
//! owner writes, and ownership changes by compare-and-set.

use crate::metrics::HistogramPoint;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{EventId, NodeId};

/// Future of a store operation. Operations complete in bounded time.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Store error: unreachable, timed out or out of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreError {
    /// Cause, for logs; never contains the password.
    pub reason: Arc<str>,
    /// Whether the operation may have been applied, or still may be.
    pub maybe_applied: bool,
}

/// A stored session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// Owner node; `None` when it was released for adoption.
    pub owner: Option<NodeId>,
    /// Serialized session record, as it was last written whole.
    pub record: Bytes,
    /// What has changed in it since.
    pub changes: Option<Bytes>,
}

/// A stored event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Stream and position.
    pub id: EventId,
    /// Time of the event in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Encoded SSE event.
    pub event: Bytes,
}

/// Changes of one session since its last write.
#[derive(Debug, Clone, Default)]
pub struct SessionDelta {
    /// New session record; `None` when it did not change.
    pub record: Option<RecordWrite>,
    /// Version of the record. A record older than the stored one arrived late and is ignored.
    pub version: u64,
    /// New events in order, all after the stored ones; those already stored are skipped.
    pub events: Vec<StoredEvent>,
    /// Stored events before this position are deleted.
    pub trim_before: u64,
    /// Time to live from this write on, renewed by later writes and touches.
    pub ttl: Duration,
}

/// A new state of a session record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordWrite {
    /// The whole record. It takes the place of earlier changes, too.
    Whole(Bytes),
    /// All that has changed since the record was written whole.
    Changes(Bytes),
}

/// Outcome of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The write was applied.
    Applied,
    /// The session is not stored.
    NotFound,
    /// Another node owns the session, or it was deleted; nothing was written.
    NotOwner,
}

/// Outcome of sending messages to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    /// The messages are in the mailbox.
    Sent,
    /// The mailbox holds as much as it may; nothing was appended.
    MailboxFull,
}

/// Bounds of a mailbox: what does not fit is refused, or a node that reads too slowly would fill the store.
#[derive(Debug, Clone, Copy)]
pub struct MailboxLimits {
    /// Most messages.
    pub messages: usize,
    /// Most bytes; a store may estimate them.
    pub bytes: usize,
}

impl MailboxLimits {
    /// The bounds that every store applies.
    pub const DEFAULT: Self = Self { messages: 10_000, bytes: 64 << 20 };
}

/// State of a node incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeStatus {
    /// Its lease is valid.
    Alive,
    /// Its lease ran out without a heartbeat, or it left.
    Expired,
    /// Another incarnation holds the node name.
    Replaced,
}

/// Stored sessions and their ownership.
pub trait SessionStore: fmt::Debug + Send + Sync {
    /// Stores a new session of `owner`; false when the id exists. Its record has version 0.
    fn create<'a>(&'a self, id: &'a str, owner: &'a NodeId, record: Bytes, ttl: Duration) -> StoreFuture<'a, bool>;

    /// Loads a session; `None` when it is not stored or was deleted.
    fn load<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<StoredSession>>;

    /// Changes the owner from `from` to `to` atomically; `None` means no owner.
    fn claim<'a>(
        &'a self,
        id: &'a str,
        from: Option<&'a NodeId>,
        to: Option<&'a NodeId>,
    ) -> StoreFuture<'a, WriteOutcome>;

    /// Renews the time to live of sessions of `owner`; outcomes are in the order of `ids`.
    fn touch<'a>(&'a self, ids: &'a [String], owner: &'a NodeId, ttl: Duration) -> StoreFuture<'a, Vec<WriteOutcome>>;

    /// Deletes a session of `owner` and its events. A tombstone stays for the rest of its time to live, so that the id
    /// cannot be created again.
    fn delete<'a>(&'a self, id: &'a str, owner: &'a NodeId) -> StoreFuture<'a, WriteOutcome>;
}

/// Stored events of sessions.
pub trait EventStore: fmt::Debug + Send + Sync {
    /// Writes deltas of sessions of `owner`, each atomically; outcomes are in the order of `deltas`. Repeating a write
    /// is harmless.
    fn write_deltas<'a>(
        &'a self,
        owner: &'a NodeId,
        deltas: &'a [(String, SessionDelta)],
    ) -> StoreFuture<'a, Vec<WriteOutcome>>;

    /// Reads all stored events of a session, in order.
    fn read_events<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Vec<StoredEvent>>;
}

/// Cluster members and their mailboxes.
pub trait NodeStore: fmt::Debug + Send + Sync {
    /// Starts the lease of a node for `ttl`. An earlier incarnation with the same name is replaced.
    fn join<'a>(&'a self, node: &'a NodeId, ttl: Duration) -> StoreFuture<'a, ()>;

    /// Renews the lease if the node still holds its name; otherwise only reports its status.
    fn heartbeat<'a>(&'a self, node: &'a NodeId, ttl: Duration) -> StoreFuture<'a, NodeStatus>;

    /// Ends the lease and frees the name. The mailbox stays until it expires, so that messages can be unsent.
    fn leave<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, ()>;

    /// Status of nodes, in the order of `nodes`.
    fn node_status<'a>(&'a self, nodes: &'a [NodeId]) -> StoreFuture<'a, Vec<NodeStatus>>;

    /// Finds the live node with that name.
    fn find_node<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<NodeId>>;

    /// All live nodes; one that joined just now may be missing.
    fn members(&self) -> StoreFuture<'_, Vec<NodeId>>;

    /// Appends messages to a node's mailbox, in order, all or none. The mailbox expires `ttl` after the last one. A full
    /// store refuses it, and so does a mailbox at its [`MailboxLimits`].
    fn send<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, ttl: Duration) -> StoreFuture<'a, SendOutcome>;

    /// As [`NodeStore::send`], for messages that continue or end work already accepted: also a full store and a full
    /// mailbox take them. They are bounded by the requests that began that work, and by flow control.
    fn reply<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, ttl: Duration) -> StoreFuture<'a, ()>;

    /// Takes messages from a node's mailbox, in order and each once; waits a bounded time for the first. Cancel-safe.
    fn receive<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, Vec<Bytes>>;

    /// Removes every copy of a message from a mailbox; true when it was there, so that the node will never receive it.
    fn unsend<'a>(&'a self, to: &'a NodeId, message: Bytes) -> StoreFuture<'a, bool>;

    /// Claims an affinity name for `node` for `ttl` if it is free, already its own, or held by `instead_of`; returns
    /// the owner.
    fn claim_affinity<'a>(
        &'a self,
        name: &'a str,
        node: &'a NodeId,
        instead_of: Option<&'a NodeId>,
        ttl: Duration,
    ) -> StoreFuture<'a, NodeId>;

    /// Returns the key that all nodes share: the first one that was offered.
    fn shared_key(&self, offered: Bytes) -> StoreFuture<'_, Bytes>;
}

/// What one limit allows: calls at a rate, calls in a window of time, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedBucket {
    /// The rate, where there is one.
    pub rate: Option<BucketRate>,
    /// The window of the quota, where there is one.
    pub window: Option<QuotaUse>,
}

/// A token bucket: it holds `burst` tokens and gains one each `interval`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketRate {
    /// Time in which one token is gained.
    pub interval: Duration,
    /// Most tokens.
    pub burst: u32,
}

/// The current window of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaUse {
    /// Start of the window in seconds since the Unix epoch, which tells windows apart.
    pub start: u64,
    /// Most calls in the window.
    pub limit: u64,
    /// Time until the window is over.
    pub ends_in: Duration,
}

/// What a bucket gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenGrant {
    /// Tokens, at most as many as were wanted; each allows one call.
    pub granted: u32,
    /// Without any: when there may be one again.
    pub retry_after: Duration,
}

/// Rate limits that nodes share. Time is the store's, so that nodes need not agree on it.
pub trait LimitStore: fmt::Debug + Send + Sync {
    /// Takes as many of the wanted tokens as the bucket and the window of that key have.
    fn take_tokens<'a>(&'a self, key: &'a str, bucket: SharedBucket, wanted: u32) -> StoreFuture<'a, TokenGrant>;

    /// Gives back tokens that were not used.
    fn return_tokens<'a>(&'a self, key: &'a str, bucket: SharedBucket, unused: u32) -> StoreFuture<'a, ()>;
}

/// A store shared by the nodes of a cluster.
pub trait ClusterStore: SessionStore + EventStore + NodeStore + LimitStore {
    /// Number of network round trips so far.
    fn round_trips(&self) -> u64 {
        0
    }

    /// Number of connections that were opened again so far. After a reconnect the store may have been restarted or
    /// failed over, and have lost recent writes.
    fn reconnects(&self) -> u64 {
        0
    }

    /// How long commands took; `None` where there is no network.
    fn command_durations(&self) -> Option<HistogramPoint> {
        None
    }

    /// Number of commands that failed so far, and of connections that could not be opened.
    fn errors(&self) -> u64 {
        0
    }

    /// Whether the store is out of memory, as last observed. Claims, touches, deletes, joins, heartbeats and replies
    /// still work then; writes and requests are refused.
    fn is_full(&self) -> bool {
        false
    }

    /// Address for logs, without the password.
    fn location(&self) -> String {
        "this process".to_owned()
    }
}

impl StoreError {
    /// Marks the error as one whose operation may have been applied.
    #[must_use]
    pub fn into_maybe_applied(self) -> Self {
        Self { maybe_applied: true, ..self }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store unavailable: {}", self.reason)
    }
}

impl std::error::Error for StoreError {}
