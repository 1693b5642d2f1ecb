//! Being there: this node says so again and again, and looks after the nodes that it deals with.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::message::RelayMessage;
use super::relay_client::RelayEvent;
use super::{CHECK_AFTER, Cluster, PAUSE};
use crate::store::traits::NodeStatus;
use crate::store::{NodeId, StoreError};

/// What has to be done when this node begins another life: whoever holds something in its name takes it
/// over from the old name, or lets it go.
pub trait IncarnationObserver: Send + Sync {
    /// The node is `to` from now on, and was `from`.
    fn on_new_incarnation<'a>(&'a self, from: &'a NodeId, to: &'a NodeId) -> crate::store::traits::StoreFuture<'a, ()>;

    /// Nothing is sure any more: the node could not say in time that it is there.
    fn on_lease_lost(&self);
}

/// How long a node that leaves waits for its last letters.
const LAST_LETTERS: Duration = Duration::from_millis(500);

impl Cluster {
    /// Says that this node is there, until the end of the process.
    pub async fn run_heartbeat(self: Arc<Self>, holder: Arc<dyn IncarnationObserver>) {
        let mut joined = false;
        let mut sure = false;
        // What this node is to be next, while what it holds is not yet taken over.
        let mut next = None;
        while !self.has_left.load(Ordering::Acquire) {
            let begun = Instant::now();
            let beaten = match joined {
                true => self.beat(&*holder, &mut next).await,
                false => self.store.join(&self.node(), self.lease).await,
            };
            let heard = beaten.is_ok();
            match beaten {
                Ok(()) => {
                    if !sure {
                        tracing::info!(node = %self.node(), "this node is part of the cluster");
                    }
                    (joined, sure) = (true, true);
                    self.note_reconnects();
                    self.hold_from(begun);
                }
                Err(error) => tracing::debug!(%error, "this node cannot say that it is there"),
            }
            self.introduced.cancel();
            if sure && !self.holds_lease() {
                sure = false;
                tracing::warn!("the store is away: sessions are not served until it is back");
                holder.on_lease_lost();
                self.fail_all_relays();
            }
            let wait = if sure && heard { self.lease / 3 } else { PAUSE };
            tokio::time::sleep(wait).await;
        }
    }

    /// Looks after the nodes that this one deals with, apart from the beat: that may take long.
    pub async fn watch(self: Arc<Self>) {
        while !self.has_left.load(Ordering::Acquire) {
            tokio::time::sleep(self.lease / 3).await;
            if let Err(error) = self.check_peers().await {
                tracing::debug!(%error, "the other nodes cannot be looked after");
            }
        }
    }

    /// Has what this node holds taken over by what it is next, and says meanwhile that it is there.
    async fn migrate_to_incarnation(
        &self,
        holder: &dyn IncarnationObserver,
        from: &NodeId,
        to: &NodeId,
    ) -> Result<(), StoreError> {
        let mut reborn = holder.on_new_incarnation(from, to);
        loop {
            match tokio::time::timeout(self.lease / 3, &mut reborn).await {
                Ok(done) => return done,
                Err(_) if self.store.heartbeat(to, self.lease).await? == NodeStatus::Alive => {}
                Err(_) => {
                    return Err(StoreError { why: "another life ended before it began".into(), maybe_applied: false });
                }
            }
        }
    }

    /// Ends every relay that was sent under the incarnation before: its answers go to a mailbox that is not read any
    /// more, and a stream would stay open without ever bringing anything.
    fn fail_all_relays(&self) {
        self.fronts().values().for_each(|front| drop(front.parts.send(RelayEvent::Lost)));
    }

    /// What was said at that time holds for a lease, less something for clocks that run unevenly.
    fn hold_from(&self, begun: Instant) {
        let until = begun.duration_since(self.began) + self.lease - self.lease / 8;
        self.holds_until.store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
    }

    async fn beat(&self, holder: &dyn IncarnationObserver, next: &mut Option<NodeId>) -> Result<(), StoreError> {
        let node = self.node();
        let now = next.clone().unwrap_or_else(|| NodeId::clone(&node));
        let standing = self.store.heartbeat(&now, self.lease).await?;
        if standing == NodeStatus::Alive {
            if let Some(again) = next {
                self.migrate_to_incarnation(holder, &node, again).await?;
                self.fail_all_relays();
                self.forget_places_of(&node);
                *next = None;
            }
            return Ok(());
        }
        if self.has_left.load(Ordering::Acquire) {
            return Ok(());
        }
        // Others may have taken its sessions over. What it was is over; what is left is taken over by what
        // it is now.
        self.holds_until.store(0, Ordering::Release);
        let again = match standing {
            NodeStatus::Replaced => {
                tracing::error!(node = %node.name(), "another node has this name; give each a name of its own");
                let life = node.next_incarnation().incarnation();
                NodeId::begin(format!("{}~{}", node.name(), &life[..4]))
            }
            _ => node.next_incarnation(),
        };
        tracing::warn!(node = %again, "this node was silent for too long and begins anew");
        self.begin_resync();
        self.store.join(&again, self.lease).await?;
        *next = Some(again.clone());
        self.migrate_to_incarnation(holder, &node, &again).await?;
        self.fail_all_relays();
        self.forget_places_of(&node);
        *next = None;
        Ok(())
    }

    /// Ends what hangs on nodes that are gone, and asks after what takes long.
    async fn check_peers(self: &Arc<Self>) -> Result<(), StoreError> {
        let me = self.node();
        let (homes, fronts): (HashSet<NodeId>, HashSet<NodeId>) = (
            self.fronts().values().map(|front| front.home.clone()).collect(),
            self.serving().keys().map(|(front, _)| front.clone()).collect(),
        );
        let nodes: Vec<NodeId> = homes.union(&fronts).cloned().collect();
        if nodes.is_empty() {
            return Ok(());
        }
        let standing = self.store.node_status(&nodes).await?;
        for (node, standing) in nodes.iter().zip(standing) {
            if standing != NodeStatus::Alive {
                self.fail_relays_to(node).await?;
            }
        }
        for home in homes {
            let late = |front: &&super::PendingRelay| front.home == home && front.begun.elapsed() > CHECK_AFTER;
            let relays: Vec<u64> =
                self.fronts().iter().filter(|(_, front)| late(front)).map(|(relay, _)| *relay).collect();
            if !relays.is_empty() {
                self.send(&home, RelayMessage::StatusQuery { from: NodeId::clone(&me), relays }.write(0)).await?;
            }
        }
        Ok(())
    }

    /// A node is gone: what it was doing for us is over, and what we do for it is for nobody.
    pub(super) async fn fail_relays_to(&self, node: &NodeId) -> Result<(), StoreError> {
        self.serving().retain(|(front, _), _| front != node);
        self.homes().retain(|_, home| home != node);
        self.forget_places_of(node);
        let waiting: Vec<_> = {
            let fronts = self.fronts();
            let its = fronts.iter().filter(|(_, front)| front.home == *node);
            its.map(|(relay, front)| (*relay, front.request.clone())).collect()
        };
        for (relay, request) in waiting {
            // What it never took can be carried elsewhere.
            let part = if self.store.unsend(node, request).await? { RelayEvent::NotBegun } else { RelayEvent::Lost };
            self.deliver(relay, part);
        }
        Ok(())
    }

    /// Goes, once nothing is done here for others any more, and tells them so.
    pub async fn leave(self: &Arc<Self>) {
        self.is_leaving.store(true, Ordering::Release);
        let done = async {
            while !self.serving().is_empty() {
                tokio::time::sleep(PAUSE / 10).await;
            }
        };
        let _ = tokio::time::timeout(self.lease, done).await;
        self.has_left.store(true, Ordering::Release);
        let node = self.node();
        let left = RelayMessage::NodeLeaving { from: NodeId::clone(&node) }.write(0);
        let told = async {
            // What was taken so far is sent back; what comes later is not taken.
            self.send(&node, left.clone()).await?;
            let _ = tokio::time::timeout(LAST_LETTERS, self.mailbox_closed.cancelled()).await;
            self.letters.close();
            let _ = tokio::time::timeout(LAST_LETTERS, self.letters.wait()).await;
            self.store.leave(&node).await?;
            for other in self.store.members().await? {
                self.send(&other, left.clone()).await?;
            }
            Ok::<(), StoreError>(())
        };
        if let Err(error) = told.await {
            tracing::debug!(%error, "the other nodes will find out by themselves");
        }
    }

    /// How long a node may be silent.
    pub fn lease(&self) -> Duration {
        self.lease
    }
}
