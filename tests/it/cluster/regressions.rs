//! Regression tests for races between sessions, takeover and an unavailable store.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use rialto::call::{ChangeEvent, ClientSink};
use rialto::cluster::{BoxedBody, Cluster, RelayOutcome};
use rialto::session::{SessionId, SessionTransport};
use rialto::store::traits::{
    EventStore, LimitStore, NodeStatus, NodeStore, RecordWrite, SendOutcome, SessionDelta, SessionStore, SharedBucket,
    StoreFuture, StoredEvent, StoredSession, TokenGrant, WriteOutcome,
};
use rialto::store::{ClusterStore, MemoryStore, NodeId, StoreError};
use serde_json::json;
use tokio::sync::watch;

use super::duplicate_delivery::relayed_request;
use super::{node, node_with};
use crate::harness::{Rialto, TEST_TIMEOUT, request, survey, until};

type ClaimHook = Box<dyn Fn(&MemoryStore) + Send + Sync>;

/// One node's connection to an in-memory store, with injected delays, failures and disconnects.
#[derive(Default)]
pub struct FaultyStore {
    memory: Arc<MemoryStore>,
    is_disconnected: AtomicBool,
    /// Delivers every message twice.
    pub duplicate_messages: AtomicBool,
    /// Loses messages of this kind, the first byte of each.
    pub lost_kind: AtomicU8,
    /// Takes no message but replies: mailboxes are full.
    pub has_full_mailboxes: AtomicBool,
    /// Refuses sends as a full store would; replies are accepted.
    pub rejects_sends: AtomicBool,
    pub write_delay_ms: AtomicU64,
    /// Sessions are created once it is false.
    pub holds_creates: watch::Sender<bool>,
    claim_delay_ms: AtomicU64,
    failing_creates: AtomicU64,
    before_claim: Mutex<Option<ClaimHook>>,
    /// Writes and claims that have begun, before their delay.
    updates_started: AtomicU64,
}

impl ClusterStore for FaultyStore {}

impl LimitStore for FaultyStore {
    fn take_tokens<'a>(&'a self, key: &'a str, bucket: SharedBucket, wanted: u32) -> StoreFuture<'a, TokenGrant> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.take_tokens(key, bucket, wanted).await
        })
    }

    fn return_tokens<'a>(&'a self, key: &'a str, bucket: SharedBucket, unused: u32) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.return_tokens(key, bucket, unused).await
        })
    }
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyStore")
    }
}

impl FaultyStore {
    pub fn over(memory: &Arc<MemoryStore>) -> Arc<Self> {
        Arc::new(Self { memory: Arc::clone(memory), ..Self::default() })
    }
    fn updates_started(&self) -> u64 {
        self.updates_started.load(Ordering::SeqCst)
    }

    async fn delay(&self, ms: &AtomicU64) -> Result<(), StoreError> {
        let ms = ms.load(Ordering::SeqCst);
        if ms > 0 {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        self.check_connected()
    }
    fn check_connected(&self) -> Result<(), StoreError> {
        match self.is_disconnected.load(Ordering::SeqCst) {
            true => Err(StoreError { reason: "cut".into(), maybe_applied: false }),
            false => Ok(()),
        }
    }

    fn disconnect(&self) {
        self.is_disconnected.store(true, Ordering::SeqCst);
    }

    fn reconnect(&self) {
        self.is_disconnected.store(false, Ordering::SeqCst);
    }
}

impl SessionStore for FaultyStore {
    fn create<'a>(&'a self, id: &'a str, owner: &'a NodeId, record: Bytes, life: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let _ = self.holds_creates.subscribe().wait_for(|is_held| !is_held).await;
            self.check_connected()?;
            if self.failing_creates.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
                return Err(StoreError { reason: "once".into(), maybe_applied: false });
            }
            self.memory.create(id, owner, record, life).await
        })
    }
    fn load<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<StoredSession>> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.load(id).await
        })
    }
    fn claim<'a>(
        &'a self,
        id: &'a str,
        from: Option<&'a NodeId>,
        to: Option<&'a NodeId>,
    ) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            self.updates_started.fetch_add(1, Ordering::SeqCst);
            self.delay(&self.claim_delay_ms).await?;
            if let Some(hook) = self.before_claim.lock().unwrap().take() {
                hook(&self.memory);
            }
            self.memory.claim(id, from, to).await
        })
    }
    fn touch<'a>(&'a self, ids: &'a [String], owner: &'a NodeId, life: Duration) -> StoreFuture<'a, Vec<WriteOutcome>> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.touch(ids, owner, life).await
        })
    }
    fn delete<'a>(&'a self, id: &'a str, owner: &'a NodeId) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.delete(id, owner).await
        })
    }
}

impl EventStore for FaultyStore {
    fn write_deltas<'a>(
        &'a self,
        owner: &'a NodeId,
        deltas: &'a [(String, SessionDelta)],
    ) -> StoreFuture<'a, Vec<WriteOutcome>> {
        Box::pin(async move {
            self.updates_started.fetch_add(1, Ordering::SeqCst);
            self.delay(&self.write_delay_ms).await?;
            self.memory.write_deltas(owner, deltas).await
        })
    }
    fn read_events<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Vec<StoredEvent>> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.read_events(id).await
        })
    }
}

impl NodeStore for FaultyStore {
    fn join<'a>(&'a self, node: &'a NodeId, life: Duration) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.join(node, life).await
        })
    }
    fn heartbeat<'a>(&'a self, node: &'a NodeId, life: Duration) -> StoreFuture<'a, NodeStatus> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.heartbeat(node, life).await
        })
    }
    fn leave<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.leave(node).await
        })
    }
    fn node_status<'a>(&'a self, nodes: &'a [NodeId]) -> StoreFuture<'a, Vec<NodeStatus>> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.node_status(nodes).await
        })
    }
    fn find_node<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<NodeId>> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.find_node(name).await
        })
    }
    fn members(&self) -> StoreFuture<'_, Vec<NodeId>> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.members().await
        })
    }
    fn send<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, life: Duration) -> StoreFuture<'a, SendOutcome> {
        Box::pin(async move {
            self.check_connected()?;
            if self.duplicate_messages.load(Ordering::SeqCst) {
                self.memory.send(to, messages.clone(), life).await?;
            }
            if self.rejects_sends.load(Ordering::SeqCst) {
                return Err(StoreError { reason: "full".into(), maybe_applied: false });
            }
            if self.has_full_mailboxes.load(Ordering::SeqCst) {
                return Ok(SendOutcome::MailboxFull);
            }
            self.memory.send(to, messages, life).await
        })
    }
    fn reply<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, life: Duration) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.check_connected()?;
            if self.duplicate_messages.load(Ordering::SeqCst) {
                self.memory.reply(to, messages.clone(), life).await?;
            }
            let lost_kind = self.lost_kind.load(Ordering::SeqCst);
            let arriving = messages.into_iter().filter(|message| message.first() != Some(&lost_kind)).collect();
            self.memory.reply(to, arriving, life).await
        })
    }
    fn receive<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, Vec<Bytes>> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.receive(node).await
        })
    }
    fn unsend<'a>(&'a self, to: &'a NodeId, message: Bytes) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.unsend(to, message).await
        })
    }
    fn claim_affinity<'a>(
        &'a self,
        name: &'a str,
        node: &'a NodeId,
        instead_of: Option<&'a NodeId>,
        life: Duration,
    ) -> StoreFuture<'a, NodeId> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.claim_affinity(name, node, instead_of, life).await
        })
    }
    fn shared_key(&self, offered: Bytes) -> StoreFuture<'_, Bytes> {
        Box::pin(async move {
            self.check_connected()?;
            self.memory.shared_key(offered).await
        })
    }
}

pub async fn faulty_node(faulty: &Arc<FaultyStore>, name: &str) -> Rialto {
    let store: Arc<dyn ClusterStore> = Arc::clone(faulty) as _;
    node(&store, name).await
}

pub fn node_id(rialto: &Rialto) -> NodeId {
    NodeId::clone(&rialto.inbound.cluster.as_ref().unwrap().node())
}

pub fn session_id(id: &str) -> SessionId {
    SessionId::parse(id, SessionTransport::Http).unwrap()
}

pub async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

const SHORT_TIMEOUT: Duration = Duration::from_secs(4);

/// Waits for the lease expiry of a node.
async fn wait_lease_expired(memory: &MemoryStore, node: &NodeId) {
    until("the lease has expired", || {
        let standing = futures_util::FutureExt::now_or_never(memory.node_status(std::slice::from_ref(node)));
        standing.unwrap().unwrap() == [NodeStatus::Expired]
    })
    .await;
}

/// Waits until a node has this many listening streams.
async fn wait_streams(rialto: &Rialto, count: usize) {
    until("the streams are attached", || rialto.inbound.sessions.stats().open_streams == count).await;
}

/// Waits until everything that is known of a session is persisted.
async fn wait_persisted(rialto: &Rialto, id: &str) {
    assert!(rialto.inbound.sessions.get(session_id(id)).unwrap().flush().await);
}

/// Waits until a write or claim that begins after `before` is in progress.
async fn wait_update_started(faulty: &FaultyStore, before: u64) {
    until("a store update is in progress", || faulty.updates_started() > before).await;
}

/// The DELETE handler writes pending deltas of other sessions, too; dropping it with its request must not lose them.
#[tokio::test]
async fn an_aborted_delete_does_not_lose_deltas_of_other_sessions() {
    let faulty = FaultyStore::over(&MemoryStore::new());
    let a = faulty_node(&faulty, "a").await;
    let (gone, stays) = (a.open("2025-06-18").await, a.open("2025-06-18").await);
    let mut stream = stays.get().go().await.events();
    wait_streams(&a, 1).await;
    wait_persisted(&a, &gone.id).await;
    wait_persisted(&a, &stays.id).await;
    let before = faulty.updates_started();
    faulty.write_delay_ms.store(300, Ordering::SeqCst);
    a.group().publish(ChangeEvent::Tools); // occupies the persister with a slow write
    wait_update_started(&faulty, before).await;
    a.group().publish(ChangeEvent::Prompts); // queued for the next write
    pause(20).await; // the session queues the change in another task, which nothing reports
    let delete = gone.delete();
    let deleting = tokio::spawn(async move { delete.go().await.status });
    pause(100).await; // the DELETE waits for the slow write, which lasts 300 ms
    deleting.abort(); // the client disconnects
    let got = async {
        let one = stream.message().await.unwrap();
        let two = stream.message().await.unwrap();
        (one, two)
    };
    let (one, two) = tokio::time::timeout(SHORT_TIMEOUT, got).await.expect("both notifications arrive");
    assert_eq!(one["method"], "notifications/tools/list_changed");
    assert_eq!(two["method"], "notifications/prompts/list_changed");
}

/// A chunk larger than the remaining relay window, while the reader has not read enough for a window update.
#[tokio::test]
async fn chunks_larger_than_the_relay_window_are_delivered() {
    let store: Arc<dyn ClusterStore> = MemoryStore::new();
    let make = |name: &str| {
        let node = Arc::new(ArcSwap::from_pointee(NodeId::generate(name)));
        Cluster::new(Arc::clone(&store), node, Duration::from_secs(6), None)
    };
    let (a, b) = (make("a"), make("b"));
    a.set_handler(Arc::new(|_| {
        Box::pin(async {
            let pieces = [400_usize << 10, 900 << 10, 3 << 20]
                .map(|size| Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from(vec![b'x'; size]))));
            let body = http_body_util::StreamBody::new(futures_util::stream::iter(pieces));
            Some(http::Response::new(Box::pin(body) as BoxedBody))
        })
    }));
    for cluster in [&a, &b] {
        tokio::spawn(Arc::clone(cluster).run_mailbox());
    }
    let RelayOutcome::Streaming(_, _, mut rest) = b.relay(&a.node(), relayed_request()).await.unwrap() else {
        panic!()
    };
    let mut read = 0;
    let all = async {
        while let Some(piece) = std::future::poll_fn(|context| rest.poll_next(context)).await {
            read += piece.len();
        }
    };
    let done = tokio::time::timeout(SHORT_TIMEOUT, all).await;
    assert!(done.is_ok() && read == (1300 << 10) + (3 << 20), "{read} bytes came");
}

/// A stream whose next event can never be persisted ends with the session on this node.
#[tokio::test]
async fn listening_streams_end_after_a_takeover() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let a = faulty_node(&faulty, "a").await;
    let session = a.open("2025-06-18").await;
    let mut stream = session.get().go().await.events();
    wait_streams(&a, 1).await;
    wait_persisted(&a, &session.id).await;
    let other = NodeId::generate("x");
    memory.join(&other, Duration::from_secs(60)).await.unwrap();
    assert_eq!(memory.claim(&session.id, Some(&node_id(&a)), Some(&other)).await, Ok(WriteOutcome::Applied));
    a.group().publish(ChangeEvent::Tools); // its write reveals the new owner
    until("the session is dropped", || a.inbound.sessions.count() == 0).await;
    let ended = tokio::time::timeout(SHORT_TIMEOUT, stream.next()).await.expect("the stream ends");
    assert!(ended.is_none(), "{ended:?}");
}

/// A stream with an event that is not persisted yet ends when its client deletes the session.
#[tokio::test]
async fn listening_streams_end_after_a_delete_with_unpersisted_events() {
    let faulty = FaultyStore::over(&MemoryStore::new());
    let a = faulty_node(&faulty, "a").await;
    let session = a.open("2025-06-18").await;
    let mut stream = session.get().go().await.events();
    wait_streams(&a, 1).await;
    wait_persisted(&a, &session.id).await;
    let before = faulty.updates_started();
    faulty.write_delay_ms.store(300, Ordering::SeqCst);
    a.group().publish(ChangeEvent::Tools);
    wait_update_started(&faulty, before).await;
    a.group().publish(ChangeEvent::Prompts);
    pause(20).await; // the session queues the change in another task, which nothing reports
    assert_eq!(session.delete().status().await, 200);
    let ended = async { while stream.next().await.is_some() {} };
    tokio::time::timeout(SHORT_TIMEOUT, ended).await.expect("the stream ends");
}

/// A request during the release of a session is not answered with 404, at either node.
#[tokio::test]
async fn session_release_is_not_answered_with_404() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let (a, b) = (faulty_node(&faulty, "a").await, faulty_node(&FaultyStore::over(&memory), "b").await);
    let session = a.open("2025-06-18").await;
    wait_persisted(&a, &session.id).await;
    let before = faulty.updates_started();
    faulty.write_delay_ms.store(300, Ordering::SeqCst);
    faulty.claim_delay_ms.store(300, Ordering::SeqCst);
    let inbound = Arc::clone(&a.inbound);
    let id = session_id(&session.id);
    let releasing = tokio::spawn(async move {
        let local_session = inbound.sessions.get(id).unwrap();
        inbound.sessions.persister().unwrap().release(&inbound.sessions, &local_session, true).await
    });
    wait_update_started(&faulty, before).await;
    let here = session.post(&request(1, "ping", json!({}))).status().await;
    let there = session.at_node(&b).post(&request(2, "ping", json!({}))).status().await;
    releasing.await.unwrap().unwrap();
    assert_ne!((here, there), (404, 404));
    assert_ne!(here, 404);
    assert_ne!(there, 404);
}

/// The idle sweep does not delete a session that is being released.
#[tokio::test]
async fn session_release_survives_the_idle_sweep() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let a = faulty_node(&faulty, "a").await;
    let session = a.open("2025-06-18").await;
    wait_persisted(&a, &session.id).await;
    let before = faulty.updates_started();
    faulty.write_delay_ms.store(300, Ordering::SeqCst);
    faulty.claim_delay_ms.store(300, Ordering::SeqCst);
    let inbound = Arc::clone(&a.inbound);
    let id = session_id(&session.id);
    let releasing = tokio::spawn(async move {
        let local_session = inbound.sessions.get(id).unwrap();
        inbound.sessions.persister().unwrap().release(&inbound.sessions, &local_session, true).await
    });
    wait_update_started(&faulty, before).await;
    a.inbound.sessions.sweep();
    releasing.await.unwrap().unwrap();
    assert!(memory.load(&session.id).await.unwrap().is_some(), "the session is still in the store");
}

/// A store that lost all sessions gets every one of them written again, even if one of the writes fails.
#[tokio::test]
async fn every_session_a_store_forgot_is_written_again() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let a = faulty_node(&faulty, "a").await;
    let sessions = [a.open("2025-06-18").await, a.open("2025-06-18").await, a.open("2025-06-18").await];
    let mut streams = Vec::new();
    for session in &sessions {
        streams.push(session.get().go().await.events());
    }
    wait_streams(&a, sessions.len()).await;
    for session in &sessions {
        wait_persisted(&a, &session.id).await;
        memory.forget(&session.id);
        assert_eq!(memory.load(&session.id).await, Ok(None));
    }
    faulty.failing_creates.store(1, Ordering::SeqCst);
    a.group().publish(ChangeEvent::Tools);
    for (n, stream) in streams.iter_mut().enumerate() {
        let heard = tokio::time::timeout(SHORT_TIMEOUT, stream.message()).await;
        let heard = heard.unwrap_or_else(|_| panic!("stream {n} is not notified")).expect("the stream goes on");
        assert_eq!(heard["method"], "notifications/tools/list_changed", "stream {n}");
    }
    for session in &sessions {
        let stored = memory.load(&session.id).await.unwrap().expect("the session is in the store again");
        assert_eq!(stored.owner, Some(node_id(&a)));
        let events = memory.read_events(&session.id).await.unwrap();
        assert!(!events.is_empty(), "the notification is persisted, too");
    }
    assert_eq!(faulty.failing_creates.load(Ordering::SeqCst), 0, "one of the writes failed");
}

/// A node that was disconnected from the store does not restore a session that was deleted meanwhile.
#[tokio::test]
async fn a_deleted_session_is_not_restored_by_a_reconnecting_node() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let (a, b) = (faulty_node(&faulty, "a").await, faulty_node(&FaultyStore::over(&memory), "b").await);
    let session = a.open("2025-06-18").await;
    let owner = node_id(&a);
    faulty.disconnect();
    until("a reports the unavailable store", || a.inbound.admin.ready().is_err()).await;
    wait_lease_expired(&memory, &owner).await;
    assert_eq!(session.at_node(&b).post(&request(1, "ping", json!({}))).status().await, 200);
    assert_eq!(session.at_node(&b).delete().status().await, 200);
    faulty.reconnect();
    until("a is ready again", || a.inbound.admin.ready().is_ok()).await;
    until("a has dropped the session", || a.inbound.sessions.count() == 0).await;
    assert_eq!(session.at_node(&b).post(&request(1, "ping", json!({}))).status().await, 404);
}

/// A node disconnected for longer than its lease still has the stream of an HTTP+SSE client. Once another node has
/// answered 404 for that session, the stream ends: its client would wait for a response that never comes.
#[tokio::test]
async fn an_sse_stream_ends_after_lease_expiry_once_another_node_answered_404() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let (a, b) = (faulty_node(&faulty, "a").await, faulty_node(&FaultyStore::over(&memory), "b").await);
    let mut stream = a.send("GET", "/sse").header("accept", "text/event-stream").go().await.events();
    let endpoint = stream.next().await.unwrap().data;
    let initialize = crate::harness::initialize("2024-11-05");
    assert_eq!(b.post(&endpoint, &initialize).status().await, 202);
    assert_eq!(stream.message().await.unwrap()["result"]["protocolVersion"], "2024-11-05");
    let owner = node_id(&a);
    faulty.disconnect();
    wait_lease_expired(&memory, &owner).await;
    assert_eq!(b.post(&endpoint, &request(1, "ping", json!({}))).status().await, 404);
    faulty.reconnect();
    until("a has a lease again", || a.inbound.admin.ready().is_ok()).await;
    let ended = tokio::time::timeout(SHORT_TIMEOUT, stream.message()).await.expect("the stream ends");
    assert_eq!(ended, None);
    assert_eq!(a.inbound.sessions.count(), 0);
    assert_eq!(b.post(&endpoint, &request(2, "ping", json!({}))).status().await, 404);
}

/// An owner that returns before any client got a 404 for the session keeps it, with its stream.
#[tokio::test]
async fn an_sse_session_without_requests_survives_lease_expiry() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let (a, b) = (faulty_node(&faulty, "a").await, faulty_node(&FaultyStore::over(&memory), "b").await);
    let mut stream = a.send("GET", "/sse").header("accept", "text/event-stream").go().await.events();
    let endpoint = stream.next().await.unwrap().data;
    let initialize = crate::harness::initialize("2024-11-05");
    assert_eq!(b.post(&endpoint, &initialize).status().await, 202);
    assert!(stream.message().await.unwrap()["result"].is_object());
    let owner = node_id(&a);
    faulty.disconnect();
    wait_lease_expired(&memory, &owner).await;
    faulty.reconnect();
    until("a has another incarnation", || a.inbound.admin.ready().is_ok() && node_id(&a) != owner).await;
    let ping = async || b.post(&endpoint, &request(1, "ping", json!({}))).status().await;
    tokio::time::timeout(SHORT_TIMEOUT, async { while ping().await != 202 {} }).await.expect("it is relayed again");
    assert_eq!(stream.message().await.unwrap()["id"], 1);
}

/// A listening client is not refused while the store is unavailable: official SDKs give up after one to three refusals
/// and stay without a stream for the rest of the session.
#[tokio::test]
async fn a_listening_client_reconnects_while_the_store_is_unavailable() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let a = faulty_node(&faulty, "a").await;
    let session = a.open("2025-11-25").await;
    let mut stream = session.get().go().await.events();
    let position = stream.next().await.unwrap().id.unwrap();
    faulty.disconnect();
    until("a reports the unavailable store", || a.inbound.admin.ready().is_err()).await;
    assert_eq!(stream.rest().await, Vec::<serde_json::Value>::new());
    for _ in 0..5 {
        let received = session.resume(&position).go().await;
        assert_eq!((received.status, received.is_events()), (200, true));
        let events = received.events().rest_events().await;
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].id.as_deref(), &*events[0].data), (Some(&*position), ""));
    }
    // A stream without a Last-Event-ID gets no event id.
    assert_eq!(session.get().go().await.text().await, "retry: 3000\n\n");
    // Revisions without priming events get 503.
    assert_eq!(session.get().replace("mcp-protocol-version", "2025-06-18").status().await, 503);
    a.group().publish(ChangeEvent::Tools);
    faulty.reconnect();
    until("a is ready again", || a.inbound.admin.ready().is_ok()).await;
    let heard = session.resume(&position).go().await.events().message().await.unwrap();
    assert_eq!(heard["method"], "notifications/tools/list_changed");
}

/// A session that ended while the store was unavailable is deleted there later, by the next incarnation of the node.
#[tokio::test]
async fn a_session_ended_during_a_store_outage_is_deleted_by_the_next_incarnation() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let a = faulty_node(&faulty, "a").await;
    let session = a.open("2025-06-18").await;
    let owner = node_id(&a);
    faulty.disconnect();
    a.inbound.sessions.close(&a.inbound.sessions.get(session_id(&session.id)).unwrap());
    until("a reports the unavailable store", || a.inbound.admin.ready().is_err()).await;
    wait_lease_expired(&memory, &owner).await;
    faulty.reconnect();
    until("a is ready again", || a.inbound.admin.ready().is_ok()).await;
    assert_ne!(node_id(&a), owner, "a has another incarnation");
    let load = || futures_util::FutureExt::now_or_never(memory.load(&session.id)).unwrap().unwrap();
    until("the session is deleted from the store", || load().is_none()).await;
}

/// The previous owner writes between the load and the claim of a takeover; its write must survive.
#[tokio::test]
async fn takeover_loads_the_last_write_of_the_previous_owner() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let b = faulty_node(&faulty, "b").await;
    let maker = faulty_node(&FaultyStore::over(&memory), "a").await;
    let session = maker.open("2025-06-18").await;
    let dead = NodeId::generate("dead");
    assert_eq!(memory.claim(&session.id, Some(&node_id(&maker)), Some(&dead)).await, Ok(WriteOutcome::Applied));
    let id = session.id.clone();
    *faulty.before_claim.lock().unwrap() = Some(Box::new(move |memory| {
        let stored = futures_util::FutureExt::now_or_never(memory.load(&id)).unwrap().unwrap().unwrap();
        let mut record: serde_json::Value = serde_json::from_slice(&stored.record).unwrap();
        record["progress"]["level"] = json!("warning");
        let record = Some(RecordWrite::Whole(record.to_string().into()));
        let life = Duration::from_secs(60);
        let delta = SessionDelta { record, version: 1000, ttl: life, ..SessionDelta::default() };
        let written = futures_util::FutureExt::now_or_never(memory.write_deltas(&dead, &[(id.clone(), delta)]));
        assert_eq!(written.unwrap().unwrap(), [WriteOutcome::Applied]);
    }));
    assert_eq!(session.at_node(&b).post(&request(1, "ping", json!({}))).status().await, 200);
    let taken = b.inbound.sessions.get(session_id(&session.id)).unwrap();
    assert_eq!(taken.level().map(|level| level.as_str()), Some("warning"));
}

/// A call whose session moves away within its first second ends with an error.
#[tokio::test]
async fn a_call_in_flight_ends_in_an_error_after_a_takeover() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let store: Arc<dyn ClusterStore> = Arc::clone(&faulty) as _;
    // The response begins with the end of the call, which only the takeover brings.
    let a = node_with(&store, "a", |settings| settings.inbound.sse_after = 3 * TEST_TIMEOUT).await;
    let session = a.open("2025-06-18").await;
    wait_persisted(&a, &session.id).await;
    // Without progress, and longer than the test.
    let params = json!({ "name": "surveyElements", "arguments": { "count": 118, "delayMs": 5000 } });
    let post = session.post(&request(7, "tools/call", params));
    let calling = tokio::spawn(async move { post.go().await });
    until("the call is in flight", || a.inbound.shutdown.calls_in_flight() == 1).await;
    let other = NodeId::generate("x");
    memory.join(&other, Duration::from_secs(60)).await.unwrap();
    assert_eq!(memory.claim(&session.id, Some(&node_id(&a)), Some(&other)).await, Ok(WriteOutcome::Applied));
    a.group().publish(ChangeEvent::Tools);
    let received = calling.await.unwrap();
    assert_eq!(received.status, 200);
    let text = received.text().await;
    assert!(text.contains("error"), "{text}");
}

/// A heartbeat after leaving does not add the node again.
#[tokio::test]
async fn a_node_that_left_sends_no_more_heartbeats() {
    let memory = MemoryStore::new();
    let (mut a, _b) =
        (faulty_node(&FaultyStore::over(&memory), "a").await, faulty_node(&FaultyStore::over(&memory), "b").await);
    a.begin_stop();
    assert!(a.stopped().await);
    pause(2500).await; // negative check: longer than the lease, and than several heartbeat intervals
    let members: Vec<String> = memory.members().await.unwrap().iter().map(|node| node.name().to_string()).collect();
    assert_eq!(members, ["b"]);
}

/// An HTTP+SSE client that disconnects while its session is created in the store leaves no session behind.
#[tokio::test]
async fn an_sse_client_that_disconnects_while_opening_leaves_no_session() {
    let faulty = FaultyStore::over(&MemoryStore::new());
    let a = faulty_node(&faulty, "a").await;
    faulty.holds_creates.send_replace(true);
    let get = a.send("GET", "/sse").header("accept", "text/event-stream");
    let opening = tokio::spawn(async move { get.go().await.status });
    until("the session is being opened", || a.inbound.sessions.count() == 1).await;
    opening.abort();
    until("the session is dropped", || a.inbound.sessions.count() == 0).await;
    faulty.holds_creates.send_replace(false);
}

/// A relayed request gets a response although the store becomes unavailable meanwhile.
#[tokio::test]
async fn a_relayed_request_ends_while_the_store_is_unavailable() {
    let memory = MemoryStore::new();
    let (first_faulty, second_faulty) = (FaultyStore::over(&memory), FaultyStore::over(&memory));
    let (a, b) = (faulty_node(&first_faulty, "a").await, faulty_node(&second_faulty, "b").await);
    let session = a.open("2025-06-18").await;
    let post = session.at_node(&b).post(&survey(7, 1, 3000));
    let calling = tokio::spawn(async move { post.go().await.status });
    until("the call is in flight at the owner", || a.inbound.shutdown.calls_in_flight() == 1).await;
    first_faulty.disconnect();
    second_faulty.disconnect();
    let answered = tokio::time::timeout(TEST_TIMEOUT, calling).await;
    assert!(answered.is_ok(), "the relayed request hangs");
}

/// Migrating many sessions to the next incarnation does not outlast the new lease.
#[tokio::test]
async fn many_sessions_migrate_to_the_next_incarnation_within_a_lease() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::over(&memory);
    let a = faulty_node(&faulty, "a").await;
    let mut ids = Vec::new();
    for _ in 0..60 {
        ids.push(a.open("2025-06-18").await.id);
    }
    faulty.claim_delay_ms.store(50, Ordering::SeqCst); // sequential claims would take 3 s; the lease is 2 s
    let owner = node_id(&a);
    faulty.disconnect();
    until("a reports the unavailable store", || a.inbound.admin.ready().is_err()).await;
    wait_lease_expired(&memory, &owner).await;
    faulty.reconnect();
    let back = until("a is ready", || a.inbound.admin.ready().is_ok());
    tokio::time::timeout(Duration::from_secs(12), back).await.expect("the node comes back");
}

/// A shutdown while the store is unavailable ends in time, however many sessions there are.
#[tokio::test]
async fn drain_does_not_wait_for_an_unavailable_store() {
    let faulty = FaultyStore::over(&MemoryStore::new());
    let mut a = faulty_node(&faulty, "a").await;
    for _ in 0..40 {
        a.open("2025-06-18").await;
    }
    faulty.write_delay_ms.store(500, Ordering::SeqCst); // each write is slow and then fails
    faulty.disconnect();
    let started = std::time::Instant::now();
    a.begin_stop();
    // The shutdown timeout is ten seconds, and no call is in flight.
    let _ = tokio::time::timeout(Duration::from_secs(60), a.done()).await;
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

/// A response queued behind a slow reader survives the release of its session. The steps mirror `RunningCall::send`.
#[tokio::test]
async fn a_response_queued_behind_a_slow_reader_survives_the_drain() {
    let memory = MemoryStore::new();
    let (mut a, b) =
        (faulty_node(&FaultyStore::over(&memory), "a").await, faulty_node(&FaultyStore::over(&memory), "b").await);
    let session = a.open("2025-06-18").await.at_node(&b);
    let local_session = a.inbound.sessions.get(session_id(&session.id)).unwrap();
    let id = rialto::protocol::Id::from(5);
    let running = local_session.begin_call(id.clone()).unwrap();
    let (stream, unread) = local_session.open_stream(rialto::recorder::Mark::NONE).unwrap();
    local_session.expect_response(stream, || vec![id.clone()]);
    for _ in 0..300 {
        local_session.send(stream, Bytes::from_static(b"{}"));
    }
    let counted = a.inbound.shutdown.track_call();
    let work = {
        let local_session = Arc::clone(&local_session);
        async move {
            let answer = Bytes::from_static(br#"{"id":5,"jsonrpc":"2.0","result":{}}"#);
            local_session.deliver_response(stream, &running, &id, answer).await;
            drop((running, counted));
        }
    };
    let work = tokio::spawn(work);
    pause(100).await; // the response waits behind the unread events, which nothing reports
    a.begin_stop();
    work.await.unwrap();
    drop(unread);
    a.stopped().await;
    let rest = session.resume("1.0").go().await.events().rest().await;
    assert!(rest.iter().any(|message| message["id"] == 5), "the call has an end, in {} messages", rest.len());
}
