//! Cluster wiring of one node: store, membership tasks, and leaving at shutdown.

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
use crate::policy::Quotas;
use crate::session::{self, Persister, Sessions};
use crate::store::redis::{RedisOptions, RedisStore};
use crate::store::{ClusterStore, NodeId, StoreSettings};

/// What a node needs to join a cluster.
#[derive(Debug, Clone)]
pub(super) struct ClusterSetup {
    /// The store that all nodes share.
    pub(super) store: Arc<dyn ClusterStore>,
    /// Name of this node, unique in the cluster.
    pub(super) node: String,
    /// How long a node may miss its heartbeat before others adopt its sessions.
    pub(super) lease: Duration,
    /// Key for sealing request states and cursors. Without one, the nodes agree on a random key through the store.
    pub(super) sealing_key: Option<String>,
}

/// How often shutdown checks whether calls have ended.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How often the sealing key is compared with the one in the store.
const SEALING_KEY_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// How long the listener waits for the node to join the cluster before it accepts clients anyway.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the sealing key is requested from an unreachable store.
const STORE_RETRY_INTERVAL: Duration = Duration::from_millis(500);

impl ClusterSetup {
    /// Reads the cluster settings of a node that listens on `listen`; `None` without a store.
    ///
    /// # Errors
    /// When the store URL or its options are invalid.
    pub(super) fn from_settings(settings: &AppSettings, listen: SocketAddr) -> io::Result<Option<Self>> {
        let StoreSettings { url, prefix, timeout, lease, sealing_key, .. } = &settings.store;
        let store: Arc<dyn ClusterStore> = match (&settings.cluster_store, url) {
            (Some(store), _) => Arc::clone(store),
            (None, None) => return Ok(None),
            (None, Some(url)) => {
                let options = RedisOptions { timeout: *timeout, ..RedisOptions::default() };
                RedisStore::connect(url, prefix, options).map_err(io::Error::other)?
            }
        };
        let node = settings.store.node_name(listen);
        Ok(Some(Self { store, node, lease: *lease, sealing_key: sealing_key.clone() }))
    }

    pub(super) fn build(self, settings: session::SessionSettings, quotas: Arc<Quotas>) -> (Arc<Cluster>, Sessions) {
        let node = Arc::new(ArcSwap::from_pointee(NodeId::generate(self.node)));
        let expiry = stored_session_ttl(&settings, self.lease);
        let persister = Persister::new(Arc::clone(&self.store), Arc::clone(&node), expiry);
        (
            Cluster::new(self.store, node, self.lease, self.sealing_key),
            Sessions::with_persister(settings, quotas, persister),
        )
    }
}

/// Expiry of stored sessions. Live nodes delete idle sessions themselves; this is only for nodes that died.
pub(super) fn stored_session_ttl(settings: &session::SessionSettings, lease: Duration) -> Duration {
    settings.idle_timeout.max(settings.retention.max_age) + lease * 10
}

/// Starts heartbeat, relay and persistence tasks of this node. Does nothing without a store.
pub(super) fn start_tasks(inbound: &Arc<Inbound>) {
    let (Some(cluster), Some(persister)) = (&inbound.cluster, inbound.sessions.persister()) else { return };
    inbound.serve_relays();
    let local_sessions = Arc::new(LocalSessions { sessions: Arc::clone(&inbound.sessions) });
    tokio::spawn(Arc::clone(cluster).run_heartbeat(local_sessions));
    tokio::spawn(Arc::clone(cluster).run_peer_checks());
    tokio::spawn(Arc::clone(cluster).run_mailbox());
    tokio::spawn(Arc::clone(persister).run(Arc::clone(&inbound.sessions)));
    tokio::spawn(Arc::clone(inbound.gateway.rate_limits()).run_upkeep());
    tokio::spawn(share_sealing_key(Arc::clone(inbound), Arc::clone(cluster)));
    tokio::spawn(refresh_stored_sessions(Arc::clone(inbound), Arc::clone(persister), Arc::clone(cluster)));
}

/// Sets the sealing key that all nodes use, so that any node can open what another has sealed.
async fn share_sealing_key(inbound: Arc<Inbound>, cluster: Arc<Cluster>) {
    if let Some(key) = cluster.sealing_key() {
        inbound.gateway.seal().set_key(key.as_bytes());
        cluster.set_sealing_key_shared();
        return cluster.set_sealing_key_requested();
    }
    let mut random = [0; 32];
    if getrandom::fill(&mut random).is_err() {
        return cluster.set_sealing_key_requested();
    }
    let mut known = Bytes::copy_from_slice(&random);
    let mut shared = false;
    loop {
        // Offer the current key every time: a store that lost its data gets it back.
        match cluster.store().shared_key(known.clone()).await {
            Ok(key) if shared && key == known => {}
            Ok(key) => {
                inbound.gateway.seal().set_key(&key);
                cluster.set_sealing_key_shared();
                (known, shared) = (key, true);
            }
            Err(error) => tracing::debug!(%error, "sealing key exchange with the store failed"),
        }
        cluster.set_sealing_key_requested();
        tokio::time::sleep(if shared { SEALING_KEY_CHECK_INTERVAL } else { STORE_RETRY_INTERVAL }).await;
    }
}

/// Extends the expiry of this node's sessions in the store. After a store reconnect it does so at once: the store may
/// have lost sessions, which are written again, or a session may have a new owner.
async fn refresh_stored_sessions(inbound: Arc<Inbound>, persister: Arc<Persister>, cluster: Arc<Cluster>) {
    let (mut seen_reconnects, mut refreshed) = (cluster.store().reconnects(), Instant::now());
    loop {
        tokio::time::sleep(cluster.lease() / 3).await;
        let reconnects = cluster.store().reconnects();
        if !cluster.holds_lease() || (reconnects == seen_reconnects && refreshed.elapsed() < persister.ttl() / 4) {
            continue;
        }
        let all = inbound.sessions.all();
        match persister.touch(&inbound.sessions, &all).await {
            Ok(()) => (seen_reconnects, refreshed) = (reconnects, Instant::now()),
            Err(error) => tracing::debug!(%error, "refreshing stored sessions failed"),
        }
    }
}

/// Waits until this node is visible to the others, at most [`JOIN_TIMEOUT`].
pub(super) async fn wait_joined(inbound: &Inbound) {
    if let Some(cluster) = &inbound.cluster {
        let _ = tokio::time::timeout(JOIN_TIMEOUT, cluster.wait_joined()).await;
    }
}

/// First part of leaving: other nodes take the clients and the idle sessions. Returns the time left until `end` once
/// nothing is left to hand over.
pub(super) async fn hand_over_sessions(inbound: &Arc<Inbound>, end: Instant) -> Duration {
    let Some(cluster) = &inbound.cluster else { return end.saturating_duration_since(Instant::now()) };
    inbound.shutdown.draining().cancel();
    if matches!(cluster.any_other_node().await, Ok(Some(_))) {
        inbound.shutdown.leaving().cancel();
    }
    loop {
        let handed_over = inbound.hand_over(false).await;
        // A parked call runs here too: other nodes relay the client's input to it.
        let is_idle = inbound.shutdown.calls_in_flight() == 0 && inbound.gateway.parked_calls() == 0;
        if (handed_over && is_idle) || Instant::now() >= end {
            break;
        }
        tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
    }
    // Release the busy sessions too, so that other nodes adopt them as soon as this node has left.
    let _ = tokio::time::timeout(cluster.lease(), inbound.hand_over(true)).await;
    end.saturating_duration_since(Instant::now())
}

/// Second part of leaving: waits until no call, parked call or relay is left, at most until `end`, then removes the
/// node from the cluster. Requests from the last connections may still be answered through other nodes.
pub(super) async fn leave_cluster(inbound: &Inbound, end: Instant) {
    if let (Some(cluster), Some(persister)) = (&inbound.cluster, inbound.sessions.persister()) {
        let busy = || {
            inbound.shutdown.calls_in_flight() > 0
                || inbound.gateway.parked_calls() > 0
                || cluster.active_relay_count() > 0
        };
        while busy() && Instant::now() < end {
            tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
        }
        let written = persister.write_pending(&inbound.sessions).await;
        if let Err(error) = persister.finish_deletes().await.and(written) {
            tracing::debug!(%error, "deleting closed sessions from the store failed; they expire there");
        }
        inbound.gateway.rate_limits().return_all().await;
        cluster.leave().await;
    }
}
