//! Writes what is new in the sessions of this node to a shared store, many at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, RwLock};
use tokio::time::Instant;

use super::persistence::{Checkpoint, PATIENCE};
use super::{Session, Sessions};
use crate::store::traits::{SessionDelta, WriteOutcome};
use crate::store::{ClusterStore, NodeId, StoreError};

/// Writes what is new to a shared store.
#[derive(Debug)]
pub struct Persister {
    store: Arc<dyn ClusterStore>,
    node: Arc<ArcSwap<NodeId>>,
    /// How long a session is kept that nobody writes or touches.
    life: Duration,
    queue: Mutex<PersistQueue>,
    work: Notify,
    /// Held by those who write in the node's name, and by none of them while that changes.
    name: RwLock<()>,
    /// Held by the one who writes: of two who do, the older news could come last.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct PersistQueue {
    changed: VecDeque<Arc<Session>>,
    /// With the node that they were of: what it is by then may be another.
    ended: Vec<(String, Arc<NodeId>)>,
}

/// How many sessions are written at a time.
const SESSION_BATCH: usize = 128;
/// How many bytes of events are written at a time, once there are that many.
const BYTES_BATCH: usize = 1 << 20;
/// How long to wait before a store that is away is asked again.
const PAUSE: Duration = Duration::from_millis(200);

impl Persister {
    /// A keeper for a node, which may become another life of itself.
    pub fn new(store: Arc<dyn ClusterStore>, node: Arc<ArcSwap<NodeId>>, life: Duration) -> Arc<Self> {
        let (queue, work, name, writing) = (Mutex::default(), Notify::new(), RwLock::default(), Default::default());
        Arc::new(Self { store, node, life, queue, work, name, writing })
    }

    fn lock(&self) -> MutexGuard<'_, PersistQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is something new in a session.
    pub(super) fn queue(&self, session: Option<Arc<Session>>) {
        if let Some(session) = session {
            self.lock().changed.push_back(session);
            self.work.notify_one();
        }
    }

    /// A session has ended.
    pub(super) fn ended(&self, session: &Session) {
        let node = self.node.load_full();
        self.lock().ended.push((session.id().to_string(), node));
        self.work.notify_one();
    }

    /// Whether a session of this node has ended, and the store does not know yet.
    pub fn is_ending(&self, id: &str) -> bool {
        self.lock().ended.iter().any(|(other, _)| other == id)
    }

    /// Keeps a new session.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn create(&self, session: &Session) -> Result<(), StoreError> {
        let Some((news, mark)) = session.delta(true, self.life) else { return Ok(()) };
        let _name = self.name.read().await;
        let node = self.node.load_full();
        let record = news.record.unwrap_or_default();
        self.store.create(&session.id().to_string(), &node, record, self.life).await?;
        session.ack(mark);
        Ok(())
    }

    /// Writes until the end of the process.
    pub async fn run(self: Arc<Self>, sessions: Arc<Sessions>) {
        loop {
            self.work.notified().await;
            let mut since = Instant::now();
            while let Err(error) = self.write(&sessions).await {
                tracing::debug!(%error, "sessions cannot be kept");
                if since.elapsed() >= PATIENCE {
                    // Whoever waits for it can resume when it is.
                    sessions.disconnect_unpersisted_readers();
                    since = Instant::now();
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Writes everything that is new. What has ended comes first: it makes room.
    ///
    /// # Errors
    /// When the store is away; what is not written stays to be written.
    pub async fn write(&self, sessions: &Sessions) -> Result<(), StoreError> {
        let _writing = self.writing.lock().await;
        let _name = self.name.read().await;
        self.delete_ended().await?;
        loop {
            let batch = self.take();
            if batch.is_empty() {
                return Ok(());
            }
            self.write_batch(sessions, batch).await?;
        }
    }

    /// Forgets what has ended.
    ///
    /// # Errors
    /// When the store is away; what is not forgotten stays to be.
    pub async fn finish_deletes(&self) -> Result<(), StoreError> {
        let _writing = self.writing.lock().await;
        let _name = self.name.read().await;
        self.delete_ended().await
    }

    async fn delete_ended(&self) -> Result<(), StoreError> {
        loop {
            let ended = self.lock().ended.last().cloned();
            let Some((id, node)) = ended else { return Ok(()) };
            self.store.delete(&id, &node).await?;
            self.lock().ended.retain(|(other, _)| *other != id);
        }
    }

    fn take(&self) -> Vec<(Arc<Session>, String, SessionDelta, Checkpoint)> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < SESSION_BATCH && bytes < BYTES_BATCH {
            let Some(session) = self.lock().changed.pop_front() else { break };
            if let Some((news, mark)) = session.delta(false, self.life) {
                bytes += news.events.iter().map(|event| event.event.len()).sum::<usize>();
                let id = session.id().to_string();
                batch.push((session, id, news, mark));
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
        let mut marks = Vec::with_capacity(batch.len());
        let mut news = Vec::with_capacity(batch.len());
        for (session, id, one, mark) in batch {
            marks.push((session, mark));
            news.push((id, one));
        }
        let written = match self.store.write(&node, &news).await {
            Ok(written) => written,
            Err(error) => {
                marks.iter().for_each(|(session, _)| session.nack());
                return Err(error);
            }
        };
        let mut done = Ok(());
        for ((session, mark), written) in marks.into_iter().zip(written) {
            match written {
                WriteOutcome::Applied => session.ack(mark),
                // What cannot be restored is to be written again; the others must hear of themselves.
                WriteOutcome::NotFound => done = self.restore(&session).await.and(done),
                WriteOutcome::NotOwner => sessions.release(&session),
            }
        }
        done
    }

    /// The store has forgotten a session that lives here.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn restore(&self, session: &Arc<Session>) -> Result<(), StoreError> {
        let Some((news, mark)) = session.delta(true, self.life) else { return Ok(()) };
        let (id, node) = (session.id().to_string(), self.node.load_full());
        let restored = async {
            self.store.create(&id, &node, news.record.clone().unwrap_or_default(), self.life).await?;
            self.store.write(&node, &[(id.clone(), news)]).await
        };
        match restored.await {
            Ok(written) if written == [WriteOutcome::Applied] => session.ack(mark),
            Ok(_) => session.nack(),
            Err(error) => {
                session.nack();
                return Err(error);
            }
        }
        Ok(())
    }

    /// The same for many, some at a time.
    async fn restore_all(&self, forgotten: &[Arc<Session>]) -> Result<(), StoreError> {
        for some in forgotten.chunks(SESSION_BATCH) {
            futures_util::future::try_join_all(some.iter().map(|session| self.restore(session))).await?;
        }
        Ok(())
    }

    /// Keeps sessions for another while.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn touch(&self, sessions: &Sessions, used: &[Arc<Session>]) -> Result<(), StoreError> {
        let _name = self.name.read().await;
        let mut done = Ok(());
        for some in used.chunks(SESSION_BATCH) {
            let ids: Vec<String> = some.iter().map(|session| session.id().to_string()).collect();
            let found = self.store.touch(&ids, &self.node.load_full(), self.life).await?;
            let mut forgotten = Vec::new();
            for (session, found) in some.iter().zip(found) {
                match found {
                    WriteOutcome::Applied => {}
                    WriteOutcome::NotFound => forgotten.push(Arc::clone(session)),
                    WriteOutcome::NotOwner => sessions.release(session),
                }
            }
            done = self.restore_all(&forgotten).await.and(done);
        }
        done
    }

    /// Lets a session go, so that another node can take it over as it is now; false when something runs in it
    /// that is not to be cut off.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn release(&self, sessions: &Sessions, session: &Arc<Session>, cut: bool) -> Result<bool, StoreError> {
        let _name = self.name.read().await;
        let node = self.node.load_full();
        let id = session.id().to_string();
        let Some((news, mark)) = session.freeze(self.life, cut) else { return Ok(session.running() == 0) };
        let released = async {
            let nothing_new = news.record.is_none() && news.events.is_empty();
            if nothing_new || self.store.write(&node, &[(id.clone(), news)]).await? == [WriteOutcome::Applied] {
                session.ack(mark); // those who are connected are given it before they go
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

    async fn claim_again(&self, session: &Session, from: &NodeId, to: &NodeId) -> Result<WriteOutcome, StoreError> {
        let id = session.id().to_string();
        let claimed = self.store.claim(&id, Some(from), Some(to)).await?;
        if claimed != WriteOutcome::NotOwner {
            return Ok(claimed);
        }
        // Taken over by others, or by us when this was begun before, maybe in a life that never came to be.
        match self.store.load(&id).await?.and_then(|kept| kept.owner) {
            Some(owner) if owner == *to => Ok(WriteOutcome::Applied),
            Some(owner) if owner.name() == to.name() => self.store.claim(&id, Some(&owner), Some(to)).await,
            _ => Ok(WriteOutcome::NotOwner),
        }
    }

    /// The node has begun another life: its sessions are taken over from the one before, but for those
    /// that another node has by now.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn on_new_incarnation(&self, sessions: &Sessions, from: &NodeId, to: &NodeId) -> Result<(), StoreError> {
        let _name = self.name.write().await;
        let mut forgotten = Vec::new();
        let all: Vec<_> = sessions.all().into_iter().filter(|session| session.is_persisted()).collect();
        for some in all.chunks(SESSION_BATCH) {
            let claims = some.iter().map(|session| self.claim_again(session, from, to));
            for (session, claimed) in some.iter().zip(futures_util::future::try_join_all(claims).await?) {
                match claimed {
                    WriteOutcome::Applied => {}
                    WriteOutcome::NotFound => forgotten.push(Arc::clone(session)),
                    WriteOutcome::NotOwner => sessions.release(session),
                }
            }
        }
        self.node.store(Arc::new(to.clone()));
        self.restore_all(&forgotten).await
    }

    /// How long a session is kept that nobody writes or touches.
    pub fn life(&self) -> Duration {
        self.life
    }
}
