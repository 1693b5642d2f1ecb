//! Many nodes that share a store. Any of them takes any request.
//!
//! A session lives on one node, its home, where its calls, its streams and its connections to upstreams
//! are. A node that gets a request for a session of another carries the whole request there and passes the
//! answer back; both go through the store, so nodes need not reach one another. A node says again and again
//! that it is there. Once it has been silent for its lease, others take over its sessions as they are asked
//! for; a node that cannot say so for that long takes its sessions for lost until it knows better.

mod affinity;
mod dedup;
mod membership;
mod message;
mod relay_client;
mod relay_server;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use membership::IncarnationObserver;
pub use message::RelayedRequest;
pub use relay_client::{RelayOutcome, RelayedBody};
pub use relay_server::{AnyBody, Handler};

use crate::store::traits::NodeStatus;
use crate::store::{ClusterStore, NodeId, StoreError};
use affinity::AffinityEntry;
use dedup::RecentRequests;
use message::RelayMessage;
use relay_client::{PendingRelay, RelayEvent};
use relay_server::ActiveRelay;

/// This node among the others.
#[derive(Debug)]
pub struct Cluster {
    store: Arc<dyn ClusterStore>,
    node: Arc<ArcSwap<NodeId>>,
    lease: Duration,
    /// When time began, for the figure below.
    began: Instant,
    /// Until when this node may take its sessions for its own, in milliseconds.
    holds_until: AtomicU64,
    /// Until when others may still have to tell the store what it has forgotten, in milliseconds.
    resync_until: AtomicU64,
    /// How often the store had been connected when that was looked at last.
    store_connects: AtomicU64,
    /// The store was told that this node is there, or did not answer.
    introduced: CancellationToken,
    /// The same for what seals the states that clients carry.
    agreed: CancellationToken,
    /// Nothing more is done here for others.
    is_leaving: AtomicBool,
    /// No more letters are taken.
    mailbox_closed: CancellationToken,
    /// The letters that nobody waits for.
    letters: TaskTracker,
    last_relay: AtomicU64,
    pending_relays: Mutex<HashMap<u64, PendingRelay>>,
    active_relays: Mutex<HashMap<(NodeId, u64), ActiveRelay>>,
    /// The requests that were taken last.
    recent_requests: Mutex<RecentRequests>,
    /// Where sessions were found last.
    owners: Mutex<HashMap<String, NodeId>>,
    places: Mutex<HashMap<String, AffinityEntry>>,
    handler: HandlerCell,
    relayed: AtomicU64,
    takeovers: AtomicU64,
    /// It has left, and does not come back.
    has_left: AtomicBool,
    sealing_key: Option<String>,
}

struct HandlerCell(OnceLock<Handler>);

impl std::fmt::Debug for HandlerCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handler")
    }
}

/// How long letters wait for a node that may have gone, in leases.
const MAIL_LEASES: u32 = 10;
/// How many places are remembered.
const OWNER_CACHE_MAX: usize = 100_000;
/// How long to wait before a store that is away is asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// After how long a relay is asked after.
const CHECK_AFTER: Duration = Duration::from_secs(5);

impl Cluster {
    /// A node that will be there once [`Cluster::stay`] has told the store so.
    pub fn new(
        store: Arc<dyn ClusterStore>,
        node: Arc<ArcSwap<NodeId>>,
        lease: Duration,
        secret: Option<String>,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            node,
            lease,
            began: Instant::now(),
            holds_until: AtomicU64::new(0),
            resync_until: AtomicU64::new(0),
            store_connects: AtomicU64::new(0),
            introduced: CancellationToken::new(),
            agreed: CancellationToken::new(),
            is_leaving: AtomicBool::new(false),
            mailbox_closed: CancellationToken::new(),
            letters: TaskTracker::new(),
            last_relay: AtomicU64::new(0),
            pending_relays: Mutex::default(),
            active_relays: Mutex::default(),
            recent_requests: Mutex::default(),
            owners: Mutex::default(),
            places: Mutex::default(),
            handler: HandlerCell(OnceLock::new()),
            relayed: AtomicU64::new(0),
            takeovers: AtomicU64::new(0),
            has_left: AtomicBool::new(false),
            sealing_key: secret,
        })
    }

    /// This node.
    pub fn node(&self) -> Arc<NodeId> {
        self.node.load_full()
    }

    /// The secret that all nodes were given, if they were.
    pub fn sealing_key(&self) -> Option<&str> {
        self.sealing_key.as_deref()
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn ClusterStore> {
        &self.store
    }

    /// Waits until this node is one among others, or the store has not answered. What it began before could not
    /// be found by others.
    pub async fn introduced(&self) {
        self.introduced.cancelled().await;
        self.agreed.cancelled().await;
    }

    /// The store was asked what seals the states that clients carry.
    pub fn has_agreed(&self) {
        self.agreed.cancel();
    }

    /// Who answers what other nodes bring. The first word counts.
    pub fn answer_with(&self, handler: Handler) {
        let _ = self.handler.0.set(handler);
    }

    fn handler(&self) -> Option<Handler> {
        self.handler.0.get().cloned()
    }

    /// Whether this node may take its sessions for its own.
    pub fn holds_lease(&self) -> bool {
        self.now() < self.holds_until.load(Ordering::Acquire)
    }

    /// Whether what the store does not have is not there. One that was restarted, or took over from another, is
    /// told by each node what that has, and knows less until then.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn is_resynced(&self) -> Result<bool, StoreError> {
        let alive = self.is_alive(&self.node()).await?;
        self.note_reconnects();
        Ok(alive && self.now() >= self.resync_until.load(Ordering::Acquire))
    }

    /// A store that was connected anew may have forgotten something.
    fn note_reconnects(&self) {
        let openings = self.store.connects();
        let before = self.store_connects.swap(openings, Ordering::AcqRel);
        if before != openings && before != 0 {
            self.begin_resync();
        }
    }

    /// For a lease from now on the store may have to be told things.
    fn begin_resync(&self) {
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        self.resync_until.store(self.now().saturating_add(lease), Ordering::Release);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn next_relay(&self) -> u64 {
        self.relayed.fetch_add(1, Ordering::Relaxed);
        self.last_relay.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many requests were carried to other nodes.
    pub fn relayed(&self) -> u64 {
        self.relayed.load(Ordering::Relaxed)
    }

    /// A session was taken over from another node.
    pub fn count_takeover(&self) {
        self.takeovers.fetch_add(1, Ordering::Relaxed);
    }

    /// How many sessions were taken over from other nodes.
    pub fn takeovers(&self) -> u64 {
        self.takeovers.load(Ordering::Relaxed)
    }

    /// How many requests of other nodes are being answered here.
    pub fn serving_now(&self) -> usize {
        self.serving().len()
    }

    fn fronts(&self) -> MutexGuard<'_, HashMap<u64, PendingRelay>> {
        self.pending_relays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serving(&self) -> MutexGuard<'_, HashMap<(NodeId, u64), ActiveRelay>> {
        self.active_relays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> MutexGuard<'_, RecentRequests> {
        self.recent_requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn homes(&self) -> MutexGuard<'_, HashMap<String, NodeId>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, HashMap<String, AffinityEntry>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a session was found last.
    pub fn owner_of(&self, session: &str) -> Option<NodeId> {
        self.homes().get(session).cloned()
    }

    /// A session was found there, or is there no longer.
    pub fn note_owner(&self, session: &str, home: Option<&NodeId>) {
        let mut homes = self.homes();
        match home {
            Some(home) => {
                if homes.len() >= OWNER_CACHE_MAX {
                    homes.clear(); // they can be found again
                }
                homes.insert(session.to_owned(), home.clone());
            }
            None => drop(homes.remove(session)),
        }
    }

    /// Whether a node is there.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn is_alive(&self, node: &NodeId) -> Result<bool, StoreError> {
        Ok(self.store.node_status(std::slice::from_ref(node)).await? == [NodeStatus::Alive])
    }

    /// Some other node that is there.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn another(&self) -> Result<Option<NodeId>, StoreError> {
        let (me, mut members) = (self.node(), self.store.members().await?);
        members.retain(|node| *node != *me);
        let at = usize::try_from(self.now()).unwrap_or(0) % members.len().max(1);
        Ok(members.into_iter().nth(at))
    }

    /// The node of that name, if it is there.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn named(&self, name: &str) -> Result<Option<NodeId>, StoreError> {
        self.store.named(name).await
    }

    async fn send(&self, to: &NodeId, letter: Bytes) -> Result<(), StoreError> {
        self.send_all(to, vec![letter]).await
    }

    /// Sends several in one go, if there are any. Only a request begins something: all else is about one that
    /// was taken.
    async fn send_all(&self, to: &NodeId, letters: Vec<Bytes>) -> Result<(), StoreError> {
        if letters.is_empty() {
            return Ok(());
        }
        self.store.reply(to, letters, self.lease * MAIL_LEASES).await
    }

    /// Sends something that nobody waits for.
    fn send_later(self: &Arc<Self>, to: NodeId, letter: Bytes) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let cluster = Arc::clone(self);
        let sending = async move {
            if let Err(error) = cluster.send(&to, letter).await {
                tracing::debug!(%error, node = %to, "a letter was not sent");
            }
        };
        self.letters.spawn_on(sending, &runtime);
    }

    /// Takes what other nodes send, until this one has left.
    pub async fn receive(self: Arc<Self>) {
        while !self.mailbox_closed.is_cancelled() {
            let node = self.node();
            match self.store.receive(&node).await {
                Ok(letters) => letters.iter().for_each(|letter| self.on_message(letter)),
                Err(error) => {
                    tracing::debug!(%error, "letters cannot be received");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn on_message(self: &Arc<Self>, letter: &Bytes) {
        let Some((relay, letter)) = RelayMessage::read(letter) else {
            tracing::warn!("a letter of another node cannot be read; do all nodes have the same version?");
            return;
        };
        match letter {
            // It was said twice. Who said it knows of one.
            RelayMessage::Request { ref from, .. } if !self.taken().note(from, relay) => {
                tracing::debug!(node = %from, relay, "a request came twice");
            }
            RelayMessage::Request { from, .. } if self.is_leaving.load(Ordering::Acquire) => {
                self.send_later(from, RelayMessage::NotOwner.write(relay));
            }
            RelayMessage::Request { from, request } => self.serve(from, relay, *request),
            RelayMessage::Cancel { from } => drop(self.serving().remove(&(from, relay))),
            RelayMessage::WindowUpdate { from, bytes } => self.on_window_update(from, relay, bytes),
            RelayMessage::StatusQuery { from, relays } => {
                let unknown: Vec<u64> = {
                    let serving = self.serving();
                    relays.into_iter().filter(|relay| !serving.contains_key(&(from.clone(), *relay))).collect()
                };
                for relay in unknown {
                    self.send_later(from.clone(), RelayMessage::UnknownRelay.write(relay));
                }
            }
            RelayMessage::UnknownRelay => self.deliver(relay, RelayEvent::Lost),
            // What comes after this stays where others can take it back.
            RelayMessage::NodeLeaving { from } if from == *self.node() => self.mailbox_closed.cancel(),
            RelayMessage::NodeLeaving { from } => {
                let cluster = Arc::clone(self);
                tokio::spawn(async move {
                    if let Err(error) = cluster.fail_relays_to(&from).await {
                        tracing::debug!(%error, "what hangs on a node that left will be looked at later");
                    }
                });
            }
            letter => self.deliver(relay, RelayEvent::Letter(letter)),
        }
    }

    fn deliver(&self, relay: u64, part: RelayEvent) {
        if let Some(front) = self.fronts().get(&relay) {
            // The client may be gone; then nobody wants it.
            let _ = front.parts.send(part);
        }
    }
}
