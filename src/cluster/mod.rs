//! Several nodes that share a store; any node takes any request.
//!
//! A session is owned by one node, which runs its calls, streams and upstream connections. A request that arrives
//! elsewhere is relayed to the owner through mailboxes in the store, so nodes need no network path to one another.
//! Each node renews its lease by heartbeats. When a lease expires, other nodes adopt the sessions of its node on
//! demand; a node that cannot renew its own lease stops serving its sessions until it can.

mod affinity;
mod dedup;
mod history;
mod mailbox;
mod membership;
mod message;
mod relay_client;
mod relay_server;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use history::Takeover;
pub use membership::IncarnationObserver;
pub use message::RelayedRequest;
pub use relay_client::{RelayOutcome, RelayedBody};
pub use relay_server::{BoxedBody, RelayHandler};

use crate::store::traits::NodeStatus;
use crate::store::{ClusterStore, NodeId, StoreError};
use affinity::AffinityEntry;
use dedup::RecentRequests;
use history::PeerHistory;
use relay_client::PendingRelay;
use relay_server::ActiveRelay;

/// This node's membership in the cluster, and its relays.
#[derive(Debug)]
pub struct Cluster {
    store: Arc<dyn ClusterStore>,
    node: Arc<ArcSwap<NodeId>>,
    lease: Duration,
    /// Origin of the millisecond clock in [`Cluster::now_ms`].
    started_at: Instant,
    /// End of the current lease on the node's own clock, in milliseconds; 0 when the lease is lost.
    lease_until_ms: AtomicU64,
    /// End of the resync grace period after a store reconnect, in milliseconds. Until then a missing session is 503
    /// (not written back yet), not 404.
    resync_until_ms: AtomicU64,
    /// Store reconnects at the last check; a change means that the store may have lost data.
    store_reconnects: AtomicU64,
    /// Cancelled after the first attempt to join, successful or not.
    join_attempted: CancellationToken,
    /// Cancelled after the first attempt to get the sealing key from the store, successful or not.
    sealing_key_requested: CancellationToken,
    /// This node seals with the key that all nodes share.
    has_sealing_key: AtomicBool,
    /// Relayed requests are refused because this node is leaving.
    is_leaving: AtomicBool,
    /// Cancelled when the mailbox must not be read any more; unread requests can then be unsent.
    mailbox_closed: CancellationToken,
    /// Messages being sent in the background.
    background_sends: TaskTracker,
    last_relay_id: AtomicU64,
    pending_relays: Mutex<HashMap<u64, PendingRelay>>,
    active_relays: Mutex<HashMap<(NodeId, u64), ActiveRelay>>,
    /// Recently accepted relayed requests, for deduplication.
    recent_requests: Mutex<RecentRequests>,
    /// Cache of session owners.
    owners: Mutex<HashMap<String, NodeId>>,
    affinities: Mutex<HashMap<String, AffinityEntry>>,
    handler: HandlerCell,
    relayed_requests: AtomicU64,
    takeovers: AtomicU64,
    history: PeerHistory,
    /// The node has left the cluster for good; heartbeats stop.
    has_left: AtomicBool,
    sealing_key: Option<String>,
}

struct HandlerCell(OnceLock<RelayHandler>);

impl std::fmt::Debug for HandlerCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RelayHandler")
    }
}

/// Time to live of a mailbox after the last message, in leases.
const MAILBOX_TTL_LEASES: u32 = 10;
/// Most cached session owners; the cache is cleared when full.
const OWNER_CACHE_MAX: usize = 100_000;
/// Delay before a failed store operation is retried.
const STORE_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Age at which a pending relay is included in status queries to its owner.
const STATUS_QUERY_AFTER: Duration = Duration::from_secs(5);

impl Cluster {
    /// Creates a node that joins the cluster in [`Cluster::run_heartbeat`].
    pub fn new(
        store: Arc<dyn ClusterStore>,
        node: Arc<ArcSwap<NodeId>>,
        lease: Duration,
        sealing_key: Option<String>,
    ) -> Arc<Self> {
        let store_reconnects = store.reconnects();
        Arc::new(Self {
            store,
            node,
            lease,
            started_at: Instant::now(),
            lease_until_ms: AtomicU64::new(0),
            resync_until_ms: AtomicU64::new(0),
            store_reconnects: AtomicU64::new(store_reconnects),
            join_attempted: CancellationToken::new(),
            sealing_key_requested: CancellationToken::new(),
            has_sealing_key: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            mailbox_closed: CancellationToken::new(),
            background_sends: TaskTracker::new(),
            last_relay_id: AtomicU64::new(0),
            pending_relays: Mutex::default(),
            active_relays: Mutex::default(),
            recent_requests: Mutex::default(),
            owners: Mutex::default(),
            affinities: Mutex::default(),
            handler: HandlerCell(OnceLock::new()),
            relayed_requests: AtomicU64::new(0),
            takeovers: AtomicU64::new(0),
            history: PeerHistory::default(),
            has_left: AtomicBool::new(false),
            sealing_key,
        })
    }

    /// Id of this node in its current incarnation.
    pub fn node(&self) -> Arc<NodeId> {
        self.node.load_full()
    }

    /// The configured sealing key, if any.
    pub fn sealing_key(&self) -> Option<&str> {
        self.sealing_key.as_deref()
    }

    /// The shared store.
    pub fn store(&self) -> &Arc<dyn ClusterStore> {
        &self.store
    }

    /// Waits until the node has joined and has the sealing key, or the store failed to answer. Sessions opened earlier
    /// could not be found by other nodes.
    pub async fn wait_joined(&self) {
        self.join_attempted.cancelled().await;
        self.sealing_key_requested.cancelled().await;
    }

    /// Records that the sealing key was requested from the store.
    pub fn set_sealing_key_requested(&self) {
        self.sealing_key_requested.cancel();
    }

    /// Records that this node seals with the key that all nodes share.
    pub fn set_sealing_key_shared(&self) {
        self.has_sealing_key.store(true, Ordering::Release);
    }

    /// Whether this node seals with the key that all nodes share. Before that, it cannot tell what other nodes have
    /// sealed from rubbish.
    pub fn has_sealing_key(&self) -> bool {
        self.has_sealing_key.load(Ordering::Acquire)
    }

    /// Sets the handler for relayed requests; later calls are ignored.
    pub fn set_handler(&self, handler: RelayHandler) {
        let _ = self.handler.0.set(handler);
    }

    fn handler(&self) -> Option<RelayHandler> {
        self.handler.0.get().cloned()
    }

    /// Whether this node holds its lease and so may serve its sessions.
    pub fn holds_lease(&self) -> bool {
        self.now_ms() < self.lease_until_ms.load(Ordering::Acquire)
    }

    /// Whether a session missing from the store is really gone: the store is reachable and every node had one lease to
    /// write its sessions back.
    ///
    /// # Errors
    /// When the store is unavailable.
    pub async fn is_resynced(&self) -> Result<bool, StoreError> {
        let alive = self.is_alive(&self.node()).await?;
        self.check_store_reconnects();
        Ok(alive && self.now_ms() >= self.resync_until_ms.load(Ordering::Acquire))
    }

    /// Starts a resync when the store was reconnected: it may have been restarted or failed over, and lost data.
    fn check_store_reconnects(&self) {
        let reconnects = self.store.reconnects();
        if self.store_reconnects.swap(reconnects, Ordering::AcqRel) != reconnects {
            self.begin_resync();
        }
    }

    /// Starts the resync grace period of one lease.
    fn begin_resync(&self) {
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        self.resync_until_ms.store(self.now_ms().saturating_add(lease), Ordering::Release);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn next_relay_id(&self) -> u64 {
        self.relayed_requests.fetch_add(1, Ordering::Relaxed);
        self.last_relay_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Number of requests relayed to other nodes.
    pub fn relayed_requests(&self) -> u64 {
        self.relayed_requests.load(Ordering::Relaxed)
    }

    /// Records a session takeover.
    pub fn record_takeover(&self, takeover: Takeover) {
        self.takeovers.fetch_add(1, Ordering::Relaxed);
        self.history.note_takeover(takeover);
    }

    /// The last takeovers by this node, newest first.
    pub fn recent_takeovers(&self) -> Vec<Takeover> {
        self.history.takeovers()
    }

    /// Records that a request of a client was relayed; requests of operators are not counted.
    pub fn record_client_relay(&self, to: &NodeId) {
        self.history.note_relay(to);
    }

    /// Requests of clients that were relayed since the start, by the name of the node.
    pub fn client_relays(&self) -> Vec<(String, u64)> {
        self.history.relayed()
    }

    /// Number of sessions taken over from other nodes.
    pub fn takeovers(&self) -> u64 {
        self.takeovers.load(Ordering::Relaxed)
    }

    /// Number of requests that wait for the response of another node.
    pub fn pending_relay_count(&self) -> usize {
        self.pending_relays().len()
    }

    /// Number of relayed requests being answered here.
    pub fn active_relay_count(&self) -> usize {
        self.active_relays().len()
    }

    fn pending_relays(&self) -> MutexGuard<'_, HashMap<u64, PendingRelay>> {
        self.pending_relays.lock()
    }

    fn active_relays(&self) -> MutexGuard<'_, HashMap<(NodeId, u64), ActiveRelay>> {
        self.active_relays.lock()
    }

    fn recent_requests(&self) -> MutexGuard<'_, RecentRequests> {
        self.recent_requests.lock()
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<String, NodeId>> {
        self.owners.lock()
    }

    fn affinities(&self) -> MutexGuard<'_, HashMap<String, AffinityEntry>> {
        self.affinities.lock()
    }

    /// The cached owner of a session.
    pub fn cached_owner(&self, session: &str) -> Option<NodeId> {
        self.owners().get(session).cloned()
    }

    /// Updates the owner cache; `None` evicts the session.
    pub fn cache_owner(&self, session: &str, owner: Option<&NodeId>) {
        let mut owners = self.owners();
        match owner {
            Some(owner) => {
                if owners.len() >= OWNER_CACHE_MAX {
                    owners.clear(); // owners can be looked up in the store again
                }
                owners.insert(session.to_owned(), owner.clone());
            }
            None => drop(owners.remove(session)),
        }
    }

    /// Whether a node's lease is valid.
    ///
    /// # Errors
    /// When the store is unavailable.
    pub async fn is_alive(&self, node: &NodeId) -> Result<bool, StoreError> {
        Ok(self.store.node_status(std::slice::from_ref(node)).await? == [NodeStatus::Alive])
    }

    /// Picks some other live node.
    ///
    /// # Errors
    /// When the store is unavailable.
    pub async fn any_other_node(&self) -> Result<Option<NodeId>, StoreError> {
        let (me, mut members) = (self.node(), self.store.members().await?);
        members.retain(|node| *node != *me);
        let index = usize::try_from(self.now_ms()).unwrap_or(0) % members.len().max(1);
        Ok(members.into_iter().nth(index))
    }

    /// Finds the live node with that name.
    ///
    /// # Errors
    /// When the store is unavailable.
    pub async fn find_node(&self, name: &str) -> Result<Option<NodeId>, StoreError> {
        self.store.find_node(name).await
    }

    async fn send(&self, to: &NodeId, message: Bytes) -> Result<(), StoreError> {
        self.send_all(to, vec![message]).await
    }

    /// Sends several messages in one store operation. Uses `reply`, which a full store accepts: only a request starts
    /// new work.
    async fn send_all(&self, to: &NodeId, messages: Vec<Bytes>) -> Result<(), StoreError> {
        if messages.is_empty() {
            return Ok(());
        }
        self.store.reply(to, messages, self.lease * MAILBOX_TTL_LEASES).await
    }

    /// Sends a message in the background; failures are logged only.
    fn send_in_background(self: &Arc<Self>, to: NodeId, message: Bytes) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let cluster = Arc::clone(self);
        let send = async move {
            if let Err(error) = cluster.send(&to, message).await {
                tracing::debug!(%error, node = %to, "cluster message not sent");
            }
        };
        self.background_sends.spawn_on(send, &runtime);
    }
}
