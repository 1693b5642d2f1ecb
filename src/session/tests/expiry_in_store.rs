//! Sessions in a shared store that end: many together, and while their node changes its incarnation.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::store::traits::{
    ClusterStore, EventStore, LimitStore, NodeStatus, NodeStore, SendOutcome, SessionDelta, SessionStore, SharedBucket,
    StoreFuture, StoredEvent, StoredSession, TokenGrant, WriteOutcome,
};
use crate::store::{MemoryStore, NodeId};

/// A store in memory that notes the order of writes and deletes, and how many deletes were under way at one time.
#[derive(Debug)]
struct RecordingStore {
    inner: Arc<MemoryStore>,
    order: Mutex<Vec<&'static str>>,
    deleting: AtomicUsize,
    most_deleting: AtomicUsize,
    writes_hang: AtomicBool,
}

impl SessionStore for RecordingStore {
    fn create<'a>(&'a self, id: &'a str, owner: &'a NodeId, record: Bytes, ttl: Duration) -> StoreFuture<'a, bool> {
        self.inner.create(id, owner, record, ttl)
    }

    fn load<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<StoredSession>> {
        self.inner.load(id)
    }

    fn claim<'a>(
        &'a self,
        id: &'a str,
        from: Option<&'a NodeId>,
        to: Option<&'a NodeId>,
    ) -> StoreFuture<'a, WriteOutcome> {
        self.inner.claim(id, from, to)
    }

    fn touch<'a>(&'a self, ids: &'a [String], owner: &'a NodeId, ttl: Duration) -> StoreFuture<'a, Vec<WriteOutcome>> {
        self.inner.touch(ids, owner, ttl)
    }

    fn delete<'a>(&'a self, id: &'a str, owner: &'a NodeId) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let deleting = self.deleting.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_deleting.fetch_max(deleting, Ordering::Relaxed);
            tokio::task::yield_now().await; // a round trip to the store
            self.order.lock().push("delete");
            self.deleting.fetch_sub(1, Ordering::Relaxed);
            self.inner.delete(id, owner).await
        })
    }
}

impl EventStore for RecordingStore {
    fn write_deltas<'a>(
        &'a self,
        owner: &'a NodeId,
        deltas: &'a [(String, SessionDelta)],
    ) -> StoreFuture<'a, Vec<WriteOutcome>> {
        self.order.lock().push("write");
        match self.writes_hang.load(Ordering::Relaxed) {
            true => Box::pin(std::future::pending()),
            false => self.inner.write_deltas(owner, deltas),
        }
    }

    fn read_events<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Vec<StoredEvent>> {
        self.inner.read_events(id)
    }
}

impl NodeStore for RecordingStore {
    fn join<'a>(&'a self, node: &'a NodeId, ttl: Duration) -> StoreFuture<'a, ()> {
        self.inner.join(node, ttl)
    }

    fn heartbeat<'a>(&'a self, node: &'a NodeId, ttl: Duration) -> StoreFuture<'a, NodeStatus> {
        self.inner.heartbeat(node, ttl)
    }

    fn leave<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, ()> {
        self.inner.leave(node)
    }

    fn node_status<'a>(&'a self, nodes: &'a [NodeId]) -> StoreFuture<'a, Vec<NodeStatus>> {
        self.inner.node_status(nodes)
    }

    fn find_node<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<NodeId>> {
        self.inner.find_node(name)
    }

    fn members(&self) -> StoreFuture<'_, Vec<NodeId>> {
        self.inner.members()
    }

    fn send<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, ttl: Duration) -> StoreFuture<'a, SendOutcome> {
        self.inner.send(to, messages, ttl)
    }
    fn reply<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, ttl: Duration) -> StoreFuture<'a, ()> {
        self.inner.reply(to, messages, ttl)
    }

    fn receive<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, Vec<Bytes>> {
        self.inner.receive(node)
    }

    fn unsend<'a>(&'a self, to: &'a NodeId, message: Bytes) -> StoreFuture<'a, bool> {
        self.inner.unsend(to, message)
    }

    fn claim_affinity<'a>(
        &'a self,
        name: &'a str,
        node: &'a NodeId,
        instead_of: Option<&'a NodeId>,
        ttl: Duration,
    ) -> StoreFuture<'a, NodeId> {
        self.inner.claim_affinity(name, node, instead_of, ttl)
    }

    fn shared_key(&self, offered: Bytes) -> StoreFuture<'_, Bytes> {
        self.inner.shared_key(offered)
    }
}

impl ClusterStore for RecordingStore {}

impl LimitStore for RecordingStore {
    fn take_tokens<'a>(&'a self, key: &'a str, bucket: SharedBucket, wanted: u32) -> StoreFuture<'a, TokenGrant> {
        self.inner.take_tokens(key, bucket, wanted)
    }

    fn return_tokens<'a>(&'a self, key: &'a str, bucket: SharedBucket, unused: u32) -> StoreFuture<'a, ()> {
        self.inner.return_tokens(key, bucket, unused)
    }
}

/// A store that records, and the sessions of a node that writes to it.
fn recorded() -> (Arc<RecordingStore>, Arc<Persister>, Sessions) {
    let store = Arc::new(RecordingStore {
        inner: MemoryStore::new(),
        order: Mutex::default(),
        deleting: AtomicUsize::new(0),
        most_deleting: AtomicUsize::new(0),
        writes_hang: AtomicBool::new(false),
    });
    let node = Arc::new(ArcSwap::from_pointee(NodeId::generate("a")));
    let shared: Arc<dyn ClusterStore> = Arc::<RecordingStore>::clone(&store);
    let persister = Persister::new(shared, node, Duration::from_secs(60));
    let sessions = Sessions::with_persister(SessionSettings::default(), Arc::default(), Arc::clone(&persister));
    (store, persister, sessions)
}

/// Readers get only what the store has, so events must not wait for thousands of deletes.
#[tokio::test]
async fn deletes_go_in_batches_between_which_events_are_written() {
    const ENDED: usize = 20_000;
    let (store, persister, sessions) = recorded();
    let kept = open(&sessions);
    persister.create(&kept).await.unwrap();
    for _ in 0..ENDED {
        let session = open(&sessions);
        persister.create(&session).await.unwrap();
        sessions.close(&session);
    }
    let mut reader = kept.listen().unwrap();
    kept.send(StreamTarget::Listening, Bytes::from_static(b"1"));
    let (written, deleted) = tokio::join!(persister.write_pending(&sessions), persister.finish_deletes());
    assert_eq!((written, deleted), (Ok(()), Ok(())));
    assert!(next_event(&mut reader).await.contains("data: 1"));
    let order = store.order.lock();
    let deletes = order.iter().filter(|what| **what == "delete").count();
    let before_write = order.iter().position(|what| *what == "write").unwrap();
    let together = store.most_deleting.load(Ordering::Relaxed);
    assert_eq!(deletes, ENDED);
    assert!(
        before_write <= together && together > 1,
        "{before_write} deletes before the event, {together} at one time"
    );
    assert!(together < ENDED / 100, "{together} at one time");
}

/// The order of events: a new incarnation lists the sessions, one of them closes, and its claim arrives after that.
#[tokio::test]
async fn a_session_that_closes_while_a_new_incarnation_claims_it_is_deleted() {
    let (store, from) = (MemoryStore::new(), NodeId::generate("a"));
    let node = Arc::new(ArcSwap::from_pointee(from.clone()));
    let persister = Persister::new(Arc::<MemoryStore>::clone(&store), node, Duration::from_secs(60));
    let sessions = Sessions::with_persister(SessionSettings::default(), Arc::default(), Arc::clone(&persister));
    let session = open(&sessions);
    persister.create(&session).await.unwrap();
    let (id, to) = (session.id().to_string(), from.next_incarnation());
    sessions.close(&session);
    assert_eq!(store.claim(&id, Some(&from), Some(&to)).await.unwrap(), WriteOutcome::Applied);
    persister.on_new_incarnation(&sessions, &from, &to).await.unwrap();
    persister.finish_deletes().await.unwrap();
    assert!(store.load(&id).await.unwrap().is_none(), "its record is gone");

    let taken = open(&sessions);
    persister.create(&taken).await.unwrap();
    let (id, other) = (taken.id().to_string(), NodeId::generate("b"));
    sessions.close(&taken);
    assert_eq!(store.claim(&id, Some(&to), Some(&other)).await.unwrap(), WriteOutcome::Applied);
    persister.finish_deletes().await.unwrap();
    assert!(store.load(&id).await.unwrap().is_some(), "another node has it");
}

/// A client that ends its session, and the memory that expired sessions take in the store, do not wait for a write.
#[tokio::test]
async fn deletes_do_not_wait_for_a_write_that_takes_long() {
    let (store, persister, sessions) = recorded();
    let [kept, ended] = [open(&sessions), open(&sessions)];
    for session in [&kept, &ended] {
        persister.create(session).await.unwrap();
    }
    store.writes_hang.store(true, Ordering::Relaxed);
    kept.send(StreamTarget::Listening, Bytes::from_static(b"1"));
    let writing = persister.write_pending(&sessions);
    tokio::pin!(writing);
    assert!(futures_util::poll!(writing.as_mut()).is_pending());
    sessions.close(&ended);
    let deleted = tokio::time::timeout(Duration::from_secs(10), persister.finish_deletes()).await;
    assert_eq!(deleted, Ok(Ok(())));
    assert_eq!(*store.order.lock(), ["write", "delete"]);
}
