//! One node among several: what it shares with them, and how it comes and goes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::time::Instant;

use super::AppSettings;
use crate::cluster::Cluster;
use crate::inbound::{Inbound, LocalSessions};
use crate::session::{self, Persister, Sessions};
use crate::store::redis::{Redis, RedisOptions};
use crate::store::{ClusterStore, NodeId, StoreSettings};

/// What a node shares with others.
#[derive(Debug, Clone)]
pub(super) struct Clustered {
    /// The store that all share.
    pub(super) store: Arc<dyn ClusterStore>,
    /// The name of this node. No other may have it.
    pub(super) node: String,
    /// How long a node may be silent before others take over.
    pub(super) lease: Duration,
    /// What seals the things that clients carry; one that the nodes agree upon when nothing is said.
    pub(super) secret: Option<String>,
}

/// How often something that has to wait is looked at.
const PAUSE: Duration = Duration::from_millis(20);
/// How often the shared secret is looked at.
const SECRET: Duration = Duration::from_secs(30);
/// How long clients wait at the door of a node that is not part of the cluster yet.
const INTRODUCTION: Duration = Duration::from_secs(1);
/// How often a store that is away is asked again.
const AGAIN: Duration = Duration::from_millis(500);

impl Clustered {
    /// What a node that listens there shares with others; nothing when it is alone.
    ///
    /// # Errors
    /// When the store cannot be what the settings say.
    pub(super) fn of(settings: &AppSettings, listen: SocketAddr) -> io::Result<Option<Self>> {
        let StoreSettings { url, prefix, timeout, lease, sealing_key: secret, .. } = &settings.store;
        let store: Arc<dyn ClusterStore> = match (&settings.shared, url) {
            (Some(shared), _) => Arc::clone(shared),
            (None, None) => return Ok(None),
            (None, Some(url)) => {
                let options = RedisOptions { timeout: *timeout, ..RedisOptions::default() };
                Redis::connect(url, prefix, options).map_err(io::Error::other)?
            }
        };
        let node = settings.store.node_name(listen);
        Ok(Some(Self { store, node, lease: *lease, secret: secret.clone() }))
    }

    pub(super) fn build(self, settings: session::SessionSettings) -> (Arc<Cluster>, Sessions) {
        let node = Arc::new(ArcSwap::from_pointee(NodeId::begin(self.node)));
        // The node ends sessions that nobody uses. What the store does by itself is for nodes that died.
        let life = settings.idle.max(settings.retention.age) + self.lease * 10;
        let keeper = Persister::new(Arc::clone(&self.store), Arc::clone(&node), life);
        (Cluster::new(self.store, node, self.lease, self.secret), Sessions::with_persister(settings, keeper))
    }
}

/// Begins to be a node.
pub(super) fn start(inbound: &Arc<Inbound>) {
    let (Some(cluster), Some(keeper)) = (&inbound.cluster, inbound.sessions.persister()) else { return };
    inbound.answer_others();
    let home = Arc::new(LocalSessions { sessions: Arc::clone(&inbound.sessions) });
    tokio::spawn(Arc::clone(cluster).run_heartbeat(home));
    tokio::spawn(Arc::clone(cluster).watch());
    tokio::spawn(Arc::clone(cluster).receive());
    tokio::spawn(Arc::clone(keeper).run(Arc::clone(&inbound.sessions)));
    tokio::spawn(agree_on_secret(Arc::clone(inbound), Arc::clone(cluster)));
    tokio::spawn(touch(Arc::clone(inbound), Arc::clone(keeper), Arc::clone(cluster)));
}

/// Nodes seal what clients carry in the same way, so that any of them can open it.
async fn agree_on_secret(inbound: Arc<Inbound>, cluster: Arc<Cluster>) {
    if let Some(secret) = cluster.sealing_key() {
        inbound.gateway.seal().set_key(secret.as_bytes());
        return cluster.has_agreed();
    }
    let mut offered = [0; 32];
    if getrandom::fill(&mut offered).is_err() {
        return cluster.has_agreed();
    }
    let mut known = Bytes::copy_from_slice(&offered);
    let mut shared = false;
    loop {
        // What is known is offered again and again: a store that has lost it is told.
        match cluster.store().shared_key(known.clone()).await {
            Ok(secret) if shared && secret == known => {}
            Ok(secret) => {
                inbound.gateway.seal().set_key(&secret);
                (known, shared) = (secret, true);
            }
            Err(error) => tracing::debug!(%error, "the shared secret is not known"),
        }
        cluster.has_agreed();
        tokio::time::sleep(if shared { SECRET } else { AGAIN }).await;
    }
}

/// Keeps what lives here from being forgotten by the store. One that had to be connected anew may have
/// forgotten something already: it is told again, or tells that a session is another's.
async fn touch(inbound: Arc<Inbound>, keeper: Arc<Persister>, cluster: Arc<Cluster>) {
    let (mut openings, mut touched) = (cluster.store().connects(), Instant::now());
    loop {
        tokio::time::sleep(cluster.lease() / 3).await;
        let opened = cluster.store().connects();
        if !cluster.holds_lease() || (opened == openings && touched.elapsed() < keeper.life() / 4) {
            continue;
        }
        let all = inbound.sessions.all();
        match keeper.touch(&inbound.sessions, &all).await {
            Ok(()) => (openings, touched) = (opened, Instant::now()),
            Err(error) => tracing::debug!(%error, "sessions cannot be touched"),
        }
    }
}

/// Waits until other nodes know of this one, but not for a store that does not answer.
pub(super) async fn introduced(inbound: &Inbound) {
    if let Some(cluster) = &inbound.cluster {
        let _ = tokio::time::timeout(INTRODUCTION, cluster.introduced()).await;
    }
}

/// Begins to go: other nodes take what clients send, and the sessions that nothing runs in. What is left
/// of the time when nothing is left to hand over.
pub(super) async fn leave(inbound: &Arc<Inbound>, end: Instant) -> Duration {
    let Some(cluster) = &inbound.cluster else { return end.saturating_duration_since(Instant::now()) };
    inbound.shutdown.draining().cancel();
    if matches!(cluster.another().await, Ok(Some(_))) {
        inbound.shutdown.leaving().cancel();
    }
    loop {
        let handed_over = inbound.hand_over(false).await;
        // What is held runs here, too: its client's answers are brought by other nodes.
        let at_rest = inbound.shutdown.running_calls() == 0 && inbound.gateway.parked_calls() == 0;
        if (handed_over && at_rest) || Instant::now() >= end {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    // Others find what is left as soon as this node has gone.
    let _ = tokio::time::timeout(cluster.lease(), inbound.hand_over(true)).await;
    end.saturating_duration_since(Instant::now())
}

/// Is gone, once nothing runs here or is held here any more, or the time is over. What came in by the last
/// connections may have to be answered still, by way of other nodes.
pub(super) async fn left(inbound: &Inbound, end: Instant) {
    if let (Some(cluster), Some(keeper)) = (&inbound.cluster, inbound.sessions.persister()) {
        let busy =
            || inbound.shutdown.running_calls() > 0 || inbound.gateway.parked_calls() > 0 || cluster.serving_now() > 0;
        while busy() && Instant::now() < end {
            tokio::time::sleep(PAUSE).await;
        }
        if let Err(error) = keeper.write(&inbound.sessions).await {
            tracing::debug!(%error, "sessions that ended stay in the store until their time is over");
        }
        cluster.leave().await;
    }
}
