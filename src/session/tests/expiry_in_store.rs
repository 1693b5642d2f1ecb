//! Many sessions that end together in a shared store.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::store::traits::{
    ClusterStore, EventStore, NodeStatus, NodeStore, SessionDelta, SessionStore, StoreFuture, StoredEvent,
    StoredSession, WriteOutcome,
};
use crate::store::{MemoryStore, NodeId};

/// A store in memory that notes the order of writes and deletes, and how many deletes were under way at one time.
#[derive(Debug)]
struct RecordingStore {
    inner: Arc<MemoryStore>,
    order: Mutex<Vec<&'static str>>,
    deleting: AtomicUsize,
    most_deleting: AtomicUsize,
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
        self.inner.write_deltas(owner, deltas)
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

    fn send<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, ttl: Duration) -> StoreFuture<'a, ()> {
        self.inner.send(to, messages, ttl)
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

/// Readers get only what the store has, so events must not wait for thousands of deletes.
#[tokio::test]
async fn deletes_go_in_batches_between_which_events_are_written() {
    const ENDED: usize = 20_000;
    let store = Arc::new(RecordingStore {
        inner: MemoryStore::new(),
        order: Mutex::default(),
        deleting: AtomicUsize::new(0),
        most_deleting: AtomicUsize::new(0),
    });
    let node = Arc::new(ArcSwap::from_pointee(NodeId::generate("a")));
    let shared: Arc<dyn ClusterStore> = Arc::<RecordingStore>::clone(&store);
    let persister = Persister::new(shared, node, Duration::from_secs(60));
    let sessions = Sessions::with_persister(SessionSettings::default(), Arc::default(), Arc::clone(&persister));
    let kept = open(&sessions);
    persister.create(&kept).await.unwrap();
    for _ in 0..ENDED {
        let session = open(&sessions);
        persister.create(&session).await.unwrap();
        sessions.close(&session);
    }
    let mut reader = kept.listen().unwrap();
    kept.send(StreamTarget::Listening, Bytes::from_static(b"1"));
    persister.write_pending(&sessions).await.unwrap();
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
