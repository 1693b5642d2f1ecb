//! What a shared store does: three small contracts, which every implementation keeps.
//!
//! `tests/it/store.rs` runs one suite against all of them. What is kept has an owner, the node that a
//! session lives on: only the owner writes, and who is the owner changes in one step or not at all.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{EventId, NodeId};

/// What is asked of a store.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The store is not to be had, or cannot take any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreError {
    /// Why, for people.
    pub why: Arc<str>,
    /// Whether it may have done what it was asked all the same.
    pub maybe_applied: bool,
}

/// A session as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// The node that it lives on; nothing when that has let it go.
    pub owner: Option<NodeId>,
    /// What is remembered of it.
    pub record: Bytes,
}

/// An event as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its stream and position.
    pub id: EventId,
    /// When it happened, in milliseconds since 1970.
    pub at: u64,
    /// What is sent.
    pub event: Bytes,
}

/// What is new in one session.
#[derive(Debug, Clone, Default)]
pub struct SessionDelta {
    /// What is remembered of it from now on; nothing when that has not changed.
    pub record: Option<Bytes>,
    /// Which of its records that is: one of a lesser version than is kept comes late, and is not kept.
    pub version: u64,
    /// Events that come after all that are there, in order.
    pub events: Vec<StoredEvent>,
    /// Events before this position are not kept any longer.
    pub keep_from: u64,
    /// How long it is kept unless something is written again, or it is touched.
    pub life: Duration,
}

/// What became of something that was to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It is kept.
    Applied,
    /// There is no such session.
    NotFound,
    /// The session is another node's, and nothing was written.
    NotOwner,
}

/// Whether a node is who it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeStatus {
    /// It is there.
    Alive,
    /// It was not heard of in time.
    Expired,
    /// Another node has taken its name.
    Replaced,
}

/// Sessions: kept, found, taken over.
pub trait SessionStore: fmt::Debug + Send + Sync {
    /// Keeps a new session of `owner`; false when there is one of that id. Any record is later than this one.
    fn create<'a>(&'a self, id: &'a str, owner: &'a NodeId, record: Bytes, life: Duration) -> StoreFuture<'a, bool>;

    /// The session, if it is kept.
    fn load<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<StoredSession>>;

    /// Makes `to` the owner, or nobody, if `from` is it now.
    fn claim<'a>(
        &'a self,
        id: &'a str,
        from: Option<&'a NodeId>,
        to: Option<&'a NodeId>,
    ) -> StoreFuture<'a, WriteOutcome>;

    /// Keeps sessions of `owner` for another `life`; tells of each what it found.
    fn touch<'a>(&'a self, ids: &'a [String], owner: &'a NodeId, life: Duration) -> StoreFuture<'a, Vec<WriteOutcome>>;

    /// Forgets a session of `owner` and its events. For as long as it would have been kept it is known to
    /// have been deleted: it is nobody's, and there is no other of its id.
    fn delete<'a>(&'a self, id: &'a str, owner: &'a NodeId) -> StoreFuture<'a, WriteOutcome>;
}

/// The events of sessions.
pub trait EventStore: fmt::Debug + Send + Sync {
    /// Writes what is new in sessions of `owner`, for each all or nothing; tells of each what became of it.
    fn write<'a>(&'a self, owner: &'a NodeId, news: &'a [(String, SessionDelta)])
    -> StoreFuture<'a, Vec<WriteOutcome>>;

    /// The events of a session that are kept, in order.
    fn read<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Vec<StoredEvent>>;
}

/// The nodes of a cluster, and what they send one another.
pub trait NodeStore: fmt::Debug + Send + Sync {
    /// A node is there from now on, for a `life` after each beat. One that had its name before is not.
    fn join<'a>(&'a self, node: &'a NodeId, life: Duration) -> StoreFuture<'a, ()>;

    /// The node is still there.
    fn heartbeat<'a>(&'a self, node: &'a NodeId, life: Duration) -> StoreFuture<'a, NodeStatus>;

    /// The node goes, and its name is free. What was sent to it can be taken back for a while.
    fn leave<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, ()>;

    /// How nodes are, in the order in which they are asked for.
    fn node_status<'a>(&'a self, nodes: &'a [NodeId]) -> StoreFuture<'a, Vec<NodeStatus>>;

    /// The node of that name, if it is there.
    fn named<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<NodeId>>;

    /// All nodes that are there; one that came just now may be missing.
    fn members(&self) -> StoreFuture<'_, Vec<NodeId>>;

    /// Sends messages to a node, in order. They wait for it no longer than `life`.
    fn send<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, life: Duration) -> StoreFuture<'a, ()>;

    /// The same for what answers something that was taken, or ends it: that is taken by a store that has no room
    /// for more, too.
    fn reply<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, life: Duration) -> StoreFuture<'a, ()> {
        self.send(to, messages, life)
    }

    /// Takes what was sent to a node, each message once, in order; waits a while for the first.
    fn receive<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, Vec<Bytes>>;

    /// Takes a message back that the node has not taken, however often it is there; true when it never will.
    fn unsend<'a>(&'a self, to: &'a NodeId, message: Bytes) -> StoreFuture<'a, bool>;

    /// Who has a place of that name: `node`, for a `life` from now, when it has it already, nobody does, or
    /// `instead_of` does; whoever it is otherwise.
    fn place_of<'a>(
        &'a self,
        name: &'a str,
        node: &'a NodeId,
        instead_of: Option<&'a NodeId>,
        life: Duration,
    ) -> StoreFuture<'a, NodeId>;

    /// A secret that all nodes share: what was offered first.
    fn shared_key(&self, offered: Bytes) -> StoreFuture<'_, Bytes>;
}

/// A store that several nodes share.
pub trait ClusterStore: SessionStore + EventStore + NodeStore {
    /// How often it was asked something over a network.
    fn round_trips(&self) -> u64 {
        0
    }

    /// How often a connection to it was opened: after another one it may be another server, or have been
    /// restarted, and not know what it was told last.
    fn connects(&self) -> u64 {
        0
    }

    /// Whether it has no room for more, as far as is known. Sessions can be claimed, touched and deleted then,
    /// nodes join and beat, and replies are sent; what begins something is refused.
    fn is_full(&self) -> bool {
        false
    }

    /// Where it is, for people.
    fn place_name(&self) -> String {
        "this process".to_owned()
    }
}

impl StoreError {
    /// The same, of something that may have been done all the same.
    #[must_use]
    pub fn perhaps_done(self) -> Self {
        Self { maybe_applied: true, ..self }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store is away: {}", self.why)
    }
}

impl std::error::Error for StoreError {}
