//! Writes session deltas to the shared store in batches.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, RwLock};
use tokio::time::Instant;

use super::persistence::{Checkpoint, PERSIST_TIMEOUT};
use super::{Session, Sessions};
use crate::store::traits::{RecordWrite, SessionDelta, WriteOutcome};
use crate::store::{ClusterStore, NodeId, StoreError};

/// Write-behind task for the sessions of this node. Writes happen one at a time, in queue order.
#[derive(Debug)]
pub struct Persister {
    store: Arc<dyn ClusterStore>,
    node: Arc<ArcSwap<NodeId>>,
    /// Time to live of a stored session after its last write or touch.
    ttl: Mutex<Duration>,
    queue: Mutex<PersistQueue>,
    wake: Notify,
    deletes_queued: Notify,
    /// Read-locked by writers that use the node's incarnation, write-locked while that changes.
    incarnation_lock: RwLock<()>,
    /// Serializes batches; of two concurrent ones the older delta could be applied last.
    write_lock: tokio::sync::Mutex<()>,
    /// Serializes batches of deletes. They need not wait for writes: a write that comes after the delete of its session
    /// is refused by the store.
    delete_lock: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct PersistQueue {
    /// Sessions with changes, each with the time since when it waits.
    dirty: VecDeque<(Instant, Arc<Session>)>,
    /// Since when the oldest change of the batch that is being written waits.
    writing_since: Option<Instant>,
    /// Closed sessions to delete by id, with the incarnation that owned them at that time.
    pending_deletes: HashMap<String, Arc<NodeId>>,
}

/// Most sessions in one write.
const SESSION_BATCH: usize = 128;
/// A batch takes no further session once it has this many bytes of events.
const EVENT_BYTES_BATCH: usize = 1 << 20;
/// Delay before a failed write is retried.
const PERSIST_RETRY_INTERVAL: Duration = Duration::from_millis(200);

impl Persister {
    /// A persister for the node in `node`, whose incarnation may change.
    pub fn new(store: Arc<dyn ClusterStore>, node: Arc<ArcSwap<NodeId>>, ttl: Duration) -> Arc<Self> {
        Arc::new(Self {
            store,
            node,
            ttl: Mutex::new(ttl),
            queue: Mutex::default(),
            wake: Notify::new(),
            deletes_queued: Notify::new(),
            incarnation_lock: RwLock::default(),
            write_lock: tokio::sync::Mutex::default(),
            delete_lock: tokio::sync::Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, PersistQueue> {
        self.queue.lock()
    }

    /// Queues a session whose state changed.
    pub(super) fn enqueue(&self, session: Option<Arc<Session>>) {
        if let Some(session) = session {
            self.lock().dirty.push_back((Instant::now(), session));
            self.wake.notify_one();
        }
    }

    /// Queues the deletion of a closed session.
    pub(super) fn queue_delete(&self, session: &Session) {
        let node = self.node.load_full();
        self.lock().pending_deletes.insert(session.id().to_string(), node);
        self.deletes_queued.notify_one();
    }

    /// Whether a closed session is still to be deleted from the store.
    pub fn has_pending_delete(&self, id: &str) -> bool {
        self.lock().pending_deletes.contains_key(id)
    }

    /// Stores a new session.
    ///
    /// # Errors
    /// When the store is unavailable.
    pub async fn create(&self, session: &Session) -> Result<(), StoreError> {
        let Some((delta, checkpoint)) = session.delta(true, self.ttl()) else { return Ok(()) };
        let _incarnation = self.incarnation_lock.read().await;
        let node = self.node.load_full();
        let record = whole_record(&delta);
        self.store.create(&session.id().to_string(), &node, record, self.ttl()).await?;
        session.ack(checkpoint);
        Ok(())
    }

    /// Runs the persister task; never returns.
    pub async fn run(self: Arc<Self>, sessions: Arc<Sessions>) {
        tokio::join!(self.run_writes(&sessions), self.run_deletes());
    }

    async fn run_deletes(&self) {
        loop {
            self.deletes_queued.notified().await;
            while let Err(error) = self.finish_deletes().await {
                tracing::debug!(%error, "deleting closed sessions failed; retrying");
                tokio::time::sleep(PERSIST_RETRY_INTERVAL).await;
            }
        }
    }

    async fn run_writes(&self, sessions: &Sessions) {
        loop {
            self.wake.notified().await;
            let mut failing_since = Instant::now();
            while let Err(error) = self.write_pending(sessions).await {
                tracing::debug!(%error, "session write failed; retrying");
                if failing_since.elapsed() >= PERSIST_TIMEOUT {
                    // Clients of these readers can resume once the store is back.
                    sessions.disconnect_unpersisted_readers();
                    failing_since = Instant::now();
                }
                tokio::time::sleep(PERSIST_RETRY_INTERVAL).await;
            }
        }
    }

    /// Writes all queued changes.
    ///
    /// # Errors
    /// When the store is unavailable; unwritten sessions stay queued.
    pub async fn write_pending(&self, sessions: &Sessions) -> Result<(), StoreError> {
        let _write_guard = self.write_lock.lock().await;
        let _incarnation = self.incarnation_lock.read().await;
        loop {
            let batch = self.take_batch();
            if batch.is_empty() {
                self.lock().writing_since = None;
                return Ok(());
            }
            // A batch that fails is queued again; its age stays until one succeeds.
            self.write_batch(sessions, batch).await?;
            self.lock().writing_since = None;
        }
    }

    /// Deletes all closed sessions, in batches.
    ///
    /// # Errors
    /// When the store is unavailable; the remaining deletes stay queued.
    pub async fn finish_deletes(&self) -> Result<(), StoreError> {
        let _delete_guard = self.delete_lock.lock().await;
        let _incarnation = self.incarnation_lock.read().await;
        while self.delete_batch().await? {}
        Ok(())
    }

    /// Deletes up to [`SESSION_BATCH`] closed sessions concurrently; returns whether there were any.
    async fn delete_batch(&self) -> Result<bool, StoreError> {
        let batch: Vec<(String, Arc<NodeId>)> = {
            let queue = self.lock();
            let ended = queue.pending_deletes.iter().take(SESSION_BATCH);
            ended.map(|(id, node)| (id.clone(), Arc::clone(node))).collect()
        };
        let delete = async |(id, node): &(String, Arc<NodeId>)| {
            self.delete(id, node).await?;
            self.lock().pending_deletes.remove(id);
            Ok::<_, StoreError>(())
        };
        futures_util::future::try_join_all(batch.iter().map(delete)).await?;
        Ok(!batch.is_empty())
    }

    /// Deletes a session that `node` had when it was closed. A session may close while a new incarnation of its node
    /// claims it, as HTTP+SSE sessions do whose streams end with the lease; then it is that incarnation's to delete, and
    /// its record would outlive it.
    async fn delete(&self, id: &str, node: &NodeId) -> Result<(), StoreError> {
        if self.store.delete(id, node).await? == WriteOutcome::NotOwner
            && let Some(owner) = self.store.load(id).await?.and_then(|stored| stored.owner)
            && owner.name() == node.name()
        {
            self.store.delete(id, &owner).await?;
        }
        Ok(())
    }

    fn next_dirty(&self) -> Option<Arc<Session>> {
        let mut queue = self.lock();
        let (since, session) = queue.dirty.pop_front()?;
        queue.writing_since.get_or_insert(since);
        Some(session)
    }

    /// Sessions that wait to be written, and for how long the oldest change has not been in the store.
    pub fn backlog(&self) -> (usize, Duration) {
        let queue = self.lock();
        let oldest = queue.writing_since.or(queue.dirty.front().map(|(since, _)| *since));
        (queue.dirty.len(), oldest.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    fn take_batch(&self) -> Vec<(Arc<Session>, String, SessionDelta, Checkpoint)> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < SESSION_BATCH && bytes < EVENT_BYTES_BATCH {
            let Some(session) = self.next_dirty() else { break };
            if let Some((delta, checkpoint)) = session.delta(false, self.ttl()) {
                bytes += delta.events.iter().map(|event| event.event.len()).sum::<usize>();
                let id = session.id().to_string();
                batch.push((session, id, delta, checkpoint));
            }
        }
        batch
    }

    async fn write_batch(
        &self,
        sessions: &Sessions,
        batch: Vec<(Arc<Session>, String, SessionDelta, Checkpoint)>,
    ) -> Result<(), StoreError> {
        let node = self.node.load_full();
        let mut checkpoints = Vec::with_capacity(batch.len());
        let mut deltas = Vec::with_capacity(batch.len());
        for (session, id, delta, checkpoint) in batch {
            checkpoints.push((session, checkpoint));
            deltas.push((id, delta));
        }
        let outcomes = match self.store.write_deltas(&node, &deltas).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                checkpoints.iter().for_each(|(session, _)| session.nack());
                return Err(error);
            }
        };
        let mut result = Ok(());
        for ((session, checkpoint), outcome) in checkpoints.into_iter().zip(outcomes) {
            match outcome {
                WriteOutcome::Applied => session.ack(checkpoint),
                // A failed restore must not keep the other sessions of the batch from their outcome.
                WriteOutcome::NotFound => result = self.restore(&session).await.and(result),
                WriteOutcome::NotOwner => sessions.release(&session),
            }
        }
        result
    }

    /// Writes a whole session again after the store lost it.
    ///
    /// # Errors
    /// When the store is unavailable.
    pub async fn restore(&self, session: &Arc<Session>) -> Result<(), StoreError> {
        let Some((delta, checkpoint)) = session.delta(true, self.ttl()) else { return Ok(()) };
        let (id, node) = (session.id().to_string(), self.node.load_full());
        let restored = async {
            self.store.create(&id, &node, whole_record(&delta), self.ttl()).await?;
            self.store.write_deltas(&node, &[(id.clone(), delta)]).await
        };
        match restored.await {
            Ok(outcomes) if outcomes == [WriteOutcome::Applied] => session.ack(checkpoint),
            Ok(_) => session.nack(),
            Err(error) => {
                session.nack();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Restores many sessions, [`SESSION_BATCH`] concurrently.
    async fn restore_all(&self, missing: &[Arc<Session>]) -> Result<(), StoreError> {
        for chunk in missing.chunks(SESSION_BATCH) {
            futures_util::future::try_join_all(chunk.iter().map(|session| self.restore(session))).await?;
        }
        Ok(())
    }

    /// Extends the time to live of sessions; restores lost ones and releases those with another owner.
    ///
    /// # Errors
    /// When the store is unavailable.
    pub async fn touch(&self, sessions: &Sessions, active: &[Arc<Session>]) -> Result<(), StoreError> {
        let _incarnation = self.incarnation_lock.read().await;
        let mut result = Ok(());
        for chunk in active.chunks(SESSION_BATCH) {
            let ids: Vec<String> = chunk.iter().map(|session| session.id().to_string()).collect();
            let found = self.store.touch(&ids, &self.node.load_full(), self.ttl()).await?;
            let mut missing = Vec::new();
            for (session, found) in chunk.iter().zip(found) {
                match found {
                    WriteOutcome::Applied => {}
                    WriteOutcome::NotFound => missing.push(Arc::clone(session)),
                    WriteOutcome::NotOwner => sessions.release(session),
                }
            }
            result = self.restore_all(&missing).await.and(result);
        }
        result
    }

    /// Writes the last delta of a session and gives up its ownership, so that another node can adopt it. Returns false
    /// when calls are running and `cut_running_calls` is false.
    ///
    /// # Errors
    /// When the store is unavailable; the session then stays here.
    pub async fn release(
        &self,
        sessions: &Sessions,
        session: &Arc<Session>,
        cut_running_calls: bool,
    ) -> Result<bool, StoreError> {
        let _incarnation = self.incarnation_lock.read().await;
        let node = self.node.load_full();
        let id = session.id().to_string();
        let Some((delta, checkpoint)) = session.freeze(self.ttl(), cut_running_calls) else {
            return Ok(session.running_calls() == 0);
        };
        let released = async {
            let nothing_new = delta.record.is_none() && delta.events.is_empty();
            if nothing_new || self.store.write_deltas(&node, &[(id.clone(), delta)]).await? == [WriteOutcome::Applied] {
                session.ack(checkpoint); // attached readers get these events before they are disconnected
                self.store.claim(&id, Some(&node), None).await?;
            }
            Ok(true)
        };
        let released = released.await;
        match released {
            Ok(_) => sessions.release(session),
            Err(_) => session.unfreeze(),
        }
        released
    }

    async fn reclaim(&self, session: &Session, from: &NodeId, to: &NodeId) -> Result<WriteOutcome, StoreError> {
        let id = session.id().to_string();
        let claimed = self.store.claim(&id, Some(from), Some(to)).await?;
        if claimed != WriteOutcome::NotOwner {
            return Ok(claimed);
        }
        // Another node owns it, or an earlier attempt of this node claimed it for an incarnation that was never
        // completed.
        match self.store.load(&id).await?.and_then(|stored| stored.owner) {
            Some(owner) if owner == *to => Ok(WriteOutcome::Applied),
            Some(owner) if owner.name() == to.name() => self.store.claim(&id, Some(&owner), Some(to)).await,
            _ => Ok(WriteOutcome::NotOwner),
        }
    }

    /// Moves the ownership of all sessions to a new incarnation of this node, and releases those that another node
    /// owns by now.
    ///
    /// # Errors
    /// When the store is unavailable; the call can be repeated.
    pub async fn on_new_incarnation(&self, sessions: &Sessions, from: &NodeId, to: &NodeId) -> Result<(), StoreError> {
        let _incarnation = self.incarnation_lock.write().await;
        let mut missing = Vec::new();
        let all: Vec<_> = sessions.all().into_iter().filter(|session| session.is_persisted()).collect();
        for chunk in all.chunks(SESSION_BATCH) {
            let claims = chunk.iter().map(|session| self.reclaim(session, from, to));
            for (session, claimed) in chunk.iter().zip(futures_util::future::try_join_all(claims).await?) {
                match claimed {
                    WriteOutcome::Applied => {}
                    WriteOutcome::NotFound => missing.push(Arc::clone(session)),
                    WriteOutcome::NotOwner => sessions.release(session),
                }
            }
        }
        self.node.store(Arc::new(to.clone()));
        self.restore_all(&missing).await
    }

    /// Time to live of a stored session after its last write or touch.
    pub fn ttl(&self) -> Duration {
        *self.ttl.lock()
    }

    /// Applies another time to live to what is written or touched from now on.
    pub fn set_ttl(&self, ttl: Duration) {
        *self.ttl.lock() = ttl;
    }
}

/// The record of a delta of a whole session.
fn whole_record(delta: &SessionDelta) -> Bytes {
    match &delta.record {
        Some(RecordWrite::Whole(record)) => record.clone(),
        Some(RecordWrite::Changes(_)) | None => Bytes::new(),
    }
}
