//! Sessions that change their owner: adopting them from other nodes, ending orphaned ones, and handing over at shutdown.

use std::sync::Arc;
use std::time::SystemTime;

use super::Inbound;
use super::http::RequestContext;
use super::respond::Rejection;
use crate::cluster::{Cluster, IncarnationObserver, Takeover};
use crate::dialect::Revision;
use crate::session::{Session, SessionId, SessionRecord, SessionTransport, Sessions};
use crate::store::NodeId;
use crate::store::traits::{StoreFuture, WriteOutcome};

/// Sessions released concurrently: each release waits for two store round trips.
const HANDOVER_BATCH: usize = 64;
/// Bound on attempts to claim a session that other nodes claim or release at the same time.
const MAX_CLAIM_ATTEMPTS: usize = 16;

/// This node's sessions, notified when the node gets a new incarnation or loses its lease.
#[derive(Debug)]
pub(crate) struct LocalSessions {
    pub(crate) sessions: Arc<Sessions>,
}

impl RequestContext<'_> {
    /// Looks up the owner in the store, and adopts the session if it has no live owner.
    pub(super) async fn locate_or_adopt(
        &self,
        cluster: &Arc<Cluster>,
        id: SessionId,
        key: &str,
    ) -> Result<Option<Arc<Session>>, Rejection> {
        if !cluster.holds_lease() {
            return Err(Rejection::StoreUnavailable);
        }
        let Some((owner, record)) = self.load_unowned(cluster, key).await? else { return Ok(None) };
        if !record.can_be_adopted(id) {
            self.end_orphaned(cluster, key, owner.as_ref()).await?;
            return Ok(None);
        }
        if self.inbound.shutdown.is_draining() {
            let other_node = cluster.any_other_node().await?;
            return Err(other_node.map_or(Rejection::ShuttingDown, Rejection::OnOtherNode));
        }
        // Concurrent requests for one session wait for the first of them to adopt it.
        let _takeover = self.inbound.takeover_locks.for_key(key).lock().await;
        for _ in 0..MAX_CLAIM_ATTEMPTS {
            if !cluster.holds_lease() {
                return Err(Rejection::StoreUnavailable);
            }
            if let Some(session) = self.inbound.sessions.find(id, self.caller.id(), self.group.name()) {
                return Ok(Some(session));
            }
            let Some((owner, record)) = self.load_unowned(cluster, key).await? else { return Ok(None) };
            if let Some(session) = self.adopt(cluster, id, owner, record).await? {
                return Ok(Some(session));
            }
        }
        Err(Rejection::StoreUnavailable)
    }

    /// Deletes an orphaned session that is bound to one connection, before the client gets 404.
    ///
    /// An owner with an expired lease may still be alive: halted, or cut off from the store. It then still has the
    /// client's stream and would claim the session again under its next incarnation. A client that got 404 in the
    /// meantime, for example for the answer to an elicitation, would wait on that stream forever: its answer was
    /// dropped, and the call that asked still runs. So the store decides: the record is deleted on condition that the
    /// expired incarnation still owns it. Either the claim of the next incarnation then fails and the stream ends
    /// there, or it came first and the request is relayed to it.
    ///
    /// # Errors
    /// When the owner came back first, or the store is still being resynced after a reconnect.
    async fn end_orphaned(&self, cluster: &Cluster, key: &str, owner: Option<&NodeId>) -> Result<(), Rejection> {
        let Some(owner) = owner.filter(|owner| **owner != *cluster.node()) else { return Ok(()) };
        if !cluster.is_resynced().await? {
            return Err(Rejection::StoreUnavailable);
        }
        match cluster.store().delete(key, owner).await? {
            WriteOutcome::Applied | WriteOutcome::NotFound => Ok(()),
            WriteOutcome::NotOwner => Err(Rejection::SessionMoving),
        }
    }

    /// The stored record of a session and its last owner, if it belongs to the caller and no other live node owns it.
    ///
    /// # Errors
    /// When a live node owns it.
    async fn load_unowned(
        &self,
        cluster: &Cluster,
        key: &str,
    ) -> Result<Option<(Option<NodeId>, SessionRecord)>, Rejection> {
        if self.inbound.sessions.persister().is_some_and(|persister| persister.has_pending_delete(key)) {
            return Ok(None);
        }
        let Some(stored) = cluster.store().load(key).await? else { return Ok(None) };
        let Some(record) = SessionRecord::decode(&stored) else { return Ok(None) };
        if record.identity.caller_id != *self.caller.id() || *record.group != **self.group.name() {
            return Ok(None);
        }
        if let Some(owner) = stored.owner.as_ref().filter(|owner| **owner != *cluster.node())
            && cluster.is_alive(owner).await?
        {
            cluster.cache_owner(key, Some(owner));
            return Err(Rejection::OnOtherNode(owner.clone()));
        }
        Ok(Some((stored.owner, record)))
    }

    /// Adopts a session: claims it, loads its record and events, and renews its subscriptions. `None` when another
    /// node claimed it first.
    async fn adopt(
        &self,
        cluster: &Cluster,
        id: SessionId,
        owner: Option<NodeId>,
        record: SessionRecord,
    ) -> Result<Option<Arc<Session>>, Rejection> {
        let (store, this_node, key) = (cluster.store(), cluster.node(), id.to_string());
        // Check before the claim: another node may have capacity.
        self.inbound.sessions.quotas().sessions.check_room().map_err(Rejection::QuotaReached)?;
        if owner.as_ref() != Some(&*this_node)
            && store.claim(&key, owner.as_ref(), Some(&this_node)).await? != WriteOutcome::Applied
        {
            return Ok(None);
        }
        // The previous owner may have written between the first load and the claim.
        let Some(stored) = store.load(&key).await? else { return Ok(None) };
        let record = SessionRecord::decode(&stored).unwrap_or(record);
        let events = store.read_events(&key).await?;
        cluster.cache_owner(&key, None);
        let session = match self.inbound.sessions.adopt(id, &record, events) {
            Ok(Some(session)) => session,
            refused => {
                store.claim(&key, Some(&this_node), None).await?;
                return Err(refused.err().map_or(Rejection::StoreUnavailable, Rejection::QuotaReached));
            }
        };
        let from = owner.as_ref().map(ToString::to_string);
        tracing::info!(session = %id.log_tag(), from, "session adopted");
        cluster.record_takeover(Takeover { at: SystemTime::now(), session: id.log_tag().to_string(), from: owner });
        self.inbound.resubscribe(&session, &self.group, &self.caller);
        self.notify_changed_lists(&session);
        Ok(Some(session))
    }

    /// Notifies the client of lists that changed while the session had no owner.
    fn notify_changed_lists(&self, session: &Arc<Session>) {
        let (session, group) = (Arc::clone(session), Arc::clone(&self.group));
        tokio::spawn(async move {
            group.wait_ready(Revision::NEWEST_HANDSHAKE).await;
            session.notify_changed_lists(&group.list_fingerprints_of(&session.latest_identity()));
        });
    }
}

impl Inbound {
    /// Releases sessions for other nodes to adopt: those without running calls, or all with `including_busy`. Returns
    /// whether none is left.
    pub(crate) async fn hand_over(&self, including_busy: bool) -> bool {
        let Some(persister) = self.sessions.persister() else { return true };
        let mut all_released = true;
        for batch in self.sessions.all().chunks(HANDOVER_BATCH) {
            let releases = batch.iter().map(async |session| {
                if session.id().transport() != SessionTransport::Http {
                    // HTTP+SSE sessions cannot move; the client opens a new one on another node.
                    return Ok(self.sessions.close_idle(session));
                }
                persister.release(&self.sessions, session, including_busy).await
            });
            for released in futures_util::future::join_all(releases).await {
                match released {
                    Ok(released) => all_released &= released,
                    Err(error) => {
                        // The store is unavailable, so the remaining sessions would fail too.
                        tracing::warn!(%error, "session hand-over failed");
                        return false;
                    }
                }
            }
        }
        all_released
    }
}

impl IncarnationObserver for LocalSessions {
    fn on_new_incarnation<'a>(&'a self, from: &'a NodeId, to: &'a NodeId) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            match self.sessions.persister() {
                Some(persister) => persister.on_new_incarnation(&self.sessions, from, to).await,
                None => Ok(()),
            }
        })
    }

    fn on_lease_lost(&self) {
        self.sessions.disconnect_all_readers();
    }
}

/// A fixed set of locks; each key maps to one of them.
#[derive(Debug, Default)]
pub(crate) struct StripedLocks([tokio::sync::Mutex<()>; 32]);

impl StripedLocks {
    fn for_key(&self, key: &str) -> &tokio::sync::Mutex<()> {
        let hash = key.bytes().fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        &self.0[hash % self.0.len()]
    }
}
