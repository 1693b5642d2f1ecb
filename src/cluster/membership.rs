//! Cluster membership: heartbeats, incarnations, liveness checks of peers, and leaving.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::message::RelayMessage;
use super::relay_client::RelayEvent;
use super::{Cluster, STATUS_QUERY_AFTER, STORE_RETRY_INTERVAL};
use crate::store::traits::NodeStatus;
use crate::store::{NodeId, StoreError};

/// Notified of changes to this node's lease, so that whatever it owns in the store follows.
pub trait IncarnationObserver: Send + Sync {
    /// Moves ownership from incarnation `from` to `to`. May be called again with the same arguments after an error.
    fn on_new_incarnation<'a>(&'a self, from: &'a NodeId, to: &'a NodeId) -> crate::store::traits::StoreFuture<'a, ()>;

    /// The lease expired without a heartbeat: other nodes may take over, so nothing that needs ownership may be
    /// served.
    fn on_lease_lost(&self);
}

/// How often the nodes that this one relays to or from are checked; more often where leases are short.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

impl Cluster {
    /// Joins the cluster and renews the lease every third of it, until this node leaves.
    pub async fn run_heartbeat(self: Arc<Self>, observer: Arc<dyn IncarnationObserver>) {
        let mut has_joined = false;
        let mut is_member = false;
        // The next incarnation while its migration is incomplete.
        let mut next = None;
        while !self.has_left.load(Ordering::Acquire) {
            let sent_at = Instant::now();
            let outcome = match has_joined {
                true => self.heartbeat_once(&*observer, &mut next).await,
                false => self.store.join(&self.node(), self.lease).await,
            };
            let renewed = outcome.is_ok();
            match outcome {
                Ok(()) => {
                    if !is_member {
                        tracing::info!(node = %self.node(), "joined the cluster");
                    }
                    (has_joined, is_member) = (true, true);
                    self.check_store_reconnects();
                    self.extend_lease(sent_at);
                }
                Err(error) => tracing::debug!(%error, "store heartbeat failed"),
            }
            self.join_attempted.cancel();
            if is_member && !self.holds_lease() {
                is_member = false;
                tracing::warn!("lease lost: store unreachable, sessions are not served until it is back");
                observer.on_lease_lost();
                self.fail_all_relays();
            }
            let wait = if is_member && renewed { self.lease / 3 } else { STORE_RETRY_INTERVAL };
            tokio::time::sleep(wait).await;
        }
    }

    /// Checks the nodes that this one relays to or from, in a task of its own: it may block longer than a heartbeat
    /// may. One round trip for all relays, so that calls need not ask.
    pub async fn run_peer_checks(self: Arc<Self>) {
        let mut audited_at = Instant::now();
        while !self.has_left.load(Ordering::Acquire) {
            tokio::time::sleep(PEER_CHECK_INTERVAL.min(self.lease / 3)).await;
            let checked = async {
                self.check_peers().await?;
                if audited_at.elapsed() >= self.lease / 3 {
                    self.audit_relays().await?;
                    audited_at = Instant::now();
                }
                Ok::<(), StoreError>(())
            };
            if let Err(error) = checked.await {
                tracing::debug!(%error, "peer check failed");
                // Without the store no response can arrive.
                if !self.holds_lease() {
                    self.fail_all_relays();
                }
            }
        }
    }

    /// Migrates ownership to the next incarnation, sending its heartbeats meanwhile.
    async fn migrate_to_incarnation(
        &self,
        observer: &dyn IncarnationObserver,
        from: &NodeId,
        to: &NodeId,
    ) -> Result<(), StoreError> {
        let mut migration = observer.on_new_incarnation(from, to);
        loop {
            match tokio::time::timeout(self.lease / 3, &mut migration).await {
                Ok(result) => return result,
                Err(_) if self.store.heartbeat(to, self.lease).await? == NodeStatus::Alive => {}
                Err(_) => {
                    return Err(StoreError {
                        reason: "the new incarnation expired before its migration was complete".into(),
                        maybe_applied: false,
                    });
                }
            }
        }
    }

    /// Fails every pending relay: no response can arrive.
    fn fail_all_relays(&self) {
        self.pending_relays().values().for_each(|pending| drop(pending.events.send(RelayEvent::Lost)));
    }

    /// Extends the lease from the time that the heartbeat was sent, less an eighth for clock drift.
    fn extend_lease(&self, sent_at: Instant) {
        let until = sent_at.duration_since(self.started_at) + self.lease - self.lease / 8;
        self.lease_until_ms.store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
    }

    async fn heartbeat_once(
        &self,
        observer: &dyn IncarnationObserver,
        next: &mut Option<NodeId>,
    ) -> Result<(), StoreError> {
        let node = self.node();
        let current = next.clone().unwrap_or_else(|| NodeId::clone(&node));
        let status = self.store.heartbeat(&current, self.lease).await?;
        if status == NodeStatus::Alive {
            if let Some(next_node) = next {
                self.migrate_to_incarnation(observer, &node, next_node).await?;
                self.forget_affinities_to(&node);
                *next = None;
            }
            return Ok(());
        }
        if self.has_left.load(Ordering::Acquire) {
            return Ok(());
        }
        // The lease is lost and other nodes may have adopted sessions; the rest moves to a new incarnation.
        self.lease_until_ms.store(0, Ordering::Release);
        let next_node = match status {
            NodeStatus::Replaced => {
                tracing::error!(node = %node.name(), "node name conflict: another node uses this name; give each node its own");
                let incarnation = node.next_incarnation().incarnation();
                NodeId::generate(format!("{}~{}", node.name(), &incarnation[..4]))
            }
            _ => node.next_incarnation(),
        };
        tracing::warn!(node = %next_node, "lease expired; rejoining under a new incarnation");
        self.begin_resync();
        self.store.join(&next_node, self.lease).await?;
        *next = Some(next_node.clone());
        self.migrate_to_incarnation(observer, &node, &next_node).await?;
        self.forget_affinities_to(&node);
        *next = None;
        Ok(())
    }

    /// Fails relays to and from expired nodes.
    async fn check_peers(&self) -> Result<(), StoreError> {
        let mut nodes: HashSet<NodeId> = self.pending_relays().values().map(|pending| pending.owner.clone()).collect();
        nodes.extend(self.active_relays().keys().map(|(sender, _)| sender.clone()));
        if nodes.is_empty() {
            return Ok(());
        }
        let nodes: Vec<NodeId> = nodes.into_iter().collect();
        let status = self.store.node_status(&nodes).await?;
        for (node, status) in nodes.iter().zip(status) {
            if status != NodeStatus::Alive {
                self.fail_relays_to(node).await?;
            }
        }
        Ok(())
    }

    /// Compares the relays with what the other nodes know of them: asks owners about old ones, and tells senders which
    /// are served for them. A message that was lost on either side shows up here.
    async fn audit_relays(&self) -> Result<(), StoreError> {
        let mut pending: HashMap<NodeId, Vec<u64>> = HashMap::new();
        let mut active: HashMap<NodeId, Vec<(u64, u64)>> = HashMap::new();
        for (relay, entry) in &*self.pending_relays() {
            if entry.started_at.elapsed() > STATUS_QUERY_AFTER {
                pending.entry(entry.owner.clone()).or_default().push(*relay);
            }
        }
        for ((sender, relay), entry) in &*self.active_relays() {
            active.entry(sender.clone()).or_default().push((*relay, entry.sent_parts.load(Ordering::Acquire)));
        }
        let from = self.node();
        for (owner, relays) in pending {
            self.send(&owner, RelayMessage::StatusQuery { from: NodeId::clone(&from), relays }.encode(0)).await?;
        }
        for (sender, relays) in active {
            self.send(&sender, RelayMessage::ActiveRelays { from: NodeId::clone(&from), relays }.encode(0)).await?;
        }
        Ok(())
    }

    /// Handles the loss of a node: aborts the relays served for it, fails those sent to it, and drops it from the
    /// caches.
    pub(super) async fn fail_relays_to(&self, node: &NodeId) -> Result<(), StoreError> {
        self.active_relays().retain(|(sender, _), _| sender != node);
        self.owners().retain(|_, owner| owner != node);
        self.forget_affinities_to(node);
        let to_fail: Vec<_> = {
            let relays = self.pending_relays();
            let to_node = relays.iter().filter(|(_, pending)| pending.owner == *node);
            to_node.map(|(relay, pending)| (*relay, pending.request.clone())).collect()
        };
        let unsends = to_fail.iter().map(|(_, request)| self.store.unsend(node, request.clone()));
        let unsent = futures_util::future::try_join_all(unsends).await?;
        let mut lost = Vec::new();
        for ((relay, _), is_unsent) in to_fail.into_iter().zip(unsent) {
            // An unsent request was never received, so it can be relayed to another node.
            match is_unsent {
                true => drop(self.deliver_event(relay, RelayEvent::NotStarted)),
                false => lost.push(RelayMessage::UnknownRelay.encode(relay)),
            }
        }
        // The node may have answered before it left. Its answers are in this node's mailbox, and so in front of these.
        self.send_all(&self.node(), lost).await
    }

    /// Leaves the cluster after the active relays are done, at most one lease later, and notifies the other nodes.
    pub async fn leave(self: &Arc<Self>) {
        self.is_leaving.store(true, Ordering::Release);
        let drained = async {
            while !self.active_relays().is_empty() {
                tokio::time::sleep(STORE_RETRY_INTERVAL / 10).await;
            }
        };
        let _ = tokio::time::timeout(self.lease, drained).await;
        let node = self.node();
        let leaving = RelayMessage::NodeLeaving { from: NodeId::clone(&node) }.encode(0);
        let announced = async {
            // Requests before this marker get `NotOwner`; later ones stay in the mailbox to be unsent. The node keeps
            // its lease meanwhile, or the others would take what it is refusing for lost.
            self.send(&node, leaving.clone()).await?;
            let refused = async {
                self.mailbox_closed.cancelled().await;
                self.background_sends.close();
                self.background_sends.wait().await;
            };
            let _ = tokio::time::timeout(self.lease, refused).await;
            self.has_left.store(true, Ordering::Release);
            self.store.leave(&node).await?;
            let members = self.store.members().await?;
            let told = members.iter().map(|other| self.send(other, leaving.clone()));
            futures_util::future::try_join_all(told).await.map(drop)
        };
        if let Err(error) = announced.await {
            tracing::debug!(%error, "leave not announced; other nodes will see the lease expire");
        }
        self.has_left.store(true, Ordering::Release);
    }

    /// Lease duration: a node silent for this long has expired.
    pub fn lease(&self) -> Duration {
        self.lease
    }
}
