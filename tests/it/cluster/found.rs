//! Faults that a review found: each test says what should be, and fails while it is not.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use rialto::call::{ChangeEvent, ClientSink};
use rialto::cluster::{AnyBody, Cluster, RelayOutcome};
use rialto::session::{SessionId, SessionTransport};
use rialto::store::traits::{
    EventStore, NodeStatus, NodeStore, SessionDelta, SessionStore, StoreFuture, StoredEvent, StoredSession,
    WriteOutcome,
};
use rialto::store::{ClusterStore, Memory, NodeId, StoreError};
use serde_json::json;

use super::node;
use super::repeats::carried;
use crate::harness::{Rialto, request, survey, until};

type Hook = Box<dyn Fn(&Memory) + Send + Sync>;

/// One node's way to a store in memory, which can be slow or cut.
#[derive(Default)]
pub struct Way {
    memory: Arc<Memory>,
    away: AtomicBool,
    /// Everything is sent twice.
    pub twice: AtomicBool,
    /// Nothing but replies is taken.
    pub full: AtomicBool,
    pub write_ms: AtomicU64,
    pub create_ms: AtomicU64,
    claim_ms: AtomicU64,
    failing_creates: AtomicU64,
    before_claim: Mutex<Option<Hook>>,
}

impl ClusterStore for Way {}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Way")
    }
}

impl Way {
    pub fn to(memory: &Arc<Memory>) -> Arc<Self> {
        Arc::new(Self { memory: Arc::clone(memory), ..Self::default() })
    }
    async fn pass(&self, ms: &AtomicU64) -> Result<(), StoreError> {
        let ms = ms.load(Ordering::SeqCst);
        if ms > 0 {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        self.open()
    }
    fn open(&self) -> Result<(), StoreError> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(StoreError { why: "cut".into(), maybe_applied: false }),
            false => Ok(()),
        }
    }
    fn cut(&self, cut: bool) {
        self.away.store(cut, Ordering::SeqCst);
    }
}

impl SessionStore for Way {
    fn create<'a>(&'a self, id: &'a str, owner: &'a NodeId, record: Bytes, life: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            self.pass(&self.create_ms).await?;
            if self.failing_creates.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
                return Err(StoreError { why: "once".into(), maybe_applied: false });
            }
            self.memory.create(id, owner, record, life).await
        })
    }
    fn load<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<StoredSession>> {
        Box::pin(async move {
            self.open()?;
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
            self.pass(&self.claim_ms).await?;
            if let Some(hook) = self.before_claim.lock().unwrap().take() {
                hook(&self.memory);
            }
            self.memory.claim(id, from, to).await
        })
    }
    fn touch<'a>(&'a self, ids: &'a [String], owner: &'a NodeId, life: Duration) -> StoreFuture<'a, Vec<WriteOutcome>> {
        Box::pin(async move {
            self.open()?;
            self.memory.touch(ids, owner, life).await
        })
    }
    fn delete<'a>(&'a self, id: &'a str, owner: &'a NodeId) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            self.open()?;
            self.memory.delete(id, owner).await
        })
    }
}

impl EventStore for Way {
    fn write<'a>(
        &'a self,
        owner: &'a NodeId,
        news: &'a [(String, SessionDelta)],
    ) -> StoreFuture<'a, Vec<WriteOutcome>> {
        Box::pin(async move {
            self.pass(&self.write_ms).await?;
            self.memory.write(owner, news).await
        })
    }
    fn read<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Vec<StoredEvent>> {
        Box::pin(async move {
            self.open()?;
            self.memory.read(id).await
        })
    }
}

impl NodeStore for Way {
    fn join<'a>(&'a self, node: &'a NodeId, life: Duration) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.open()?;
            self.memory.join(node, life).await
        })
    }
    fn heartbeat<'a>(&'a self, node: &'a NodeId, life: Duration) -> StoreFuture<'a, NodeStatus> {
        Box::pin(async move {
            self.open()?;
            self.memory.heartbeat(node, life).await
        })
    }
    fn leave<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.open()?;
            self.memory.leave(node).await
        })
    }
    fn node_status<'a>(&'a self, nodes: &'a [NodeId]) -> StoreFuture<'a, Vec<NodeStatus>> {
        Box::pin(async move {
            self.open()?;
            self.memory.node_status(nodes).await
        })
    }
    fn named<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<NodeId>> {
        Box::pin(async move {
            self.open()?;
            self.memory.named(name).await
        })
    }
    fn members(&self) -> StoreFuture<'_, Vec<NodeId>> {
        Box::pin(async move {
            self.open()?;
            self.memory.members().await
        })
    }
    fn send<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, life: Duration) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.open()?;
            if self.twice.load(Ordering::SeqCst) {
                self.memory.send(to, messages.clone(), life).await?;
            }
            if self.full.load(Ordering::SeqCst) {
                return Err(StoreError { why: "full".into(), maybe_applied: false });
            }
            self.memory.send(to, messages, life).await
        })
    }
    fn reply<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, life: Duration) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.open()?;
            if self.twice.load(Ordering::SeqCst) {
                self.memory.reply(to, messages.clone(), life).await?;
            }
            self.memory.reply(to, messages, life).await
        })
    }
    fn receive<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, Vec<Bytes>> {
        Box::pin(async move {
            self.open()?;
            self.memory.receive(node).await
        })
    }
    fn unsend<'a>(&'a self, to: &'a NodeId, message: Bytes) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            self.open()?;
            self.memory.unsend(to, message).await
        })
    }
    fn place_of<'a>(
        &'a self,
        name: &'a str,
        node: &'a NodeId,
        instead_of: Option<&'a NodeId>,
        life: Duration,
    ) -> StoreFuture<'a, NodeId> {
        Box::pin(async move {
            self.open()?;
            self.memory.place_of(name, node, instead_of, life).await
        })
    }
    fn shared_key(&self, offered: Bytes) -> StoreFuture<'_, Bytes> {
        Box::pin(async move {
            self.open()?;
            self.memory.shared_key(offered).await
        })
    }
}

pub async fn one(way: &Arc<Way>, name: &str) -> Rialto {
    let store: Arc<dyn ClusterStore> = Arc::clone(way) as _;
    node(&store, name).await
}

pub fn name_of(rialto: &Rialto) -> NodeId {
    NodeId::clone(&rialto.inbound.cluster.as_ref().unwrap().node())
}

pub fn id_of(id: &str) -> SessionId {
    SessionId::parse(id, SessionTransport::Http).unwrap()
}

pub async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

const SOON: Duration = Duration::from_secs(4);

/// Waits until the lease of a node has expired.
async fn expired(memory: &Memory, node: &NodeId) {
    until("the lease has expired", || {
        let standing = futures_util::FutureExt::now_or_never(memory.node_status(std::slice::from_ref(node)));
        standing.unwrap().unwrap() == [NodeStatus::Expired]
    })
    .await;
}

/// keeper.write in the handler of DELETE is dropped with the request, and with it the news of others.
#[tokio::test]
async fn delete_given_up_does_not_lose_news_of_others() {
    let way = Way::to(&Memory::new());
    let a = one(&way, "a").await;
    let (gone, stays) = (a.open("2025-06-18").await, a.open("2025-06-18").await);
    let mut stream = stays.get().go().await.events();
    pause(100).await;
    way.write_ms.store(300, Ordering::SeqCst);
    a.group().publish(ChangeEvent::Tools); // the keeper is busy with this
    pause(50).await;
    a.group().publish(ChangeEvent::Prompts); // this waits for whoever writes next
    pause(20).await;
    let delete = gone.delete();
    let deleting = tokio::spawn(async move { delete.go().await.status });
    pause(100).await;
    deleting.abort(); // the client hangs up
    let got = async {
        let one = stream.message().await.unwrap();
        let two = stream.message().await.unwrap();
        (one, two)
    };
    tokio::time::timeout(SOON, got).await.expect("both notices arrive");
}

/// A piece that needs more room than is left, while the reader has read too little to say so.
#[tokio::test]
async fn large_pieces_pass_the_window() {
    let store: Arc<dyn ClusterStore> = Memory::new();
    let make = |name: &str| {
        let node = Arc::new(ArcSwap::from_pointee(NodeId::begin(name)));
        Cluster::new(Arc::clone(&store), node, Duration::from_secs(6), None)
    };
    let (a, b) = (make("a"), make("b"));
    a.answer_with(Arc::new(|_| {
        Box::pin(async {
            let pieces = [400_usize << 10, 900 << 10, 3 << 20]
                .map(|size| Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from(vec![b'x'; size]))));
            let body = http_body_util::StreamBody::new(futures_util::stream::iter(pieces));
            Some(http::Response::new(Box::pin(body) as AnyBody))
        })
    }));
    for cluster in [&a, &b] {
        tokio::spawn(Arc::clone(cluster).receive());
    }
    let RelayOutcome::Stream(_, _, mut rest) = b.relay(&a.node(), carried()).await.unwrap() else { panic!() };
    let mut read = 0;
    let all = async {
        while let Some(piece) = std::future::poll_fn(|context| rest.poll_next(context)).await {
            read += piece.len();
        }
    };
    let done = tokio::time::timeout(SOON, all).await;
    assert!(done.is_ok() && read == (1300 << 10) + (3 << 20), "{read} bytes came");
}

/// A connection whose next event will never be kept has to end with its session here.
#[tokio::test]
async fn streams_end_when_a_session_is_lost() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let a = one(&way, "a").await;
    let session = a.open("2025-06-18").await;
    let mut stream = session.get().go().await.events();
    pause(100).await;
    let other = NodeId::begin("x");
    memory.join(&other, Duration::from_secs(60)).await.unwrap();
    assert_eq!(memory.claim(&session.id, Some(&name_of(&a)), Some(&other)).await, Ok(WriteOutcome::Applied));
    a.group().publish(ChangeEvent::Tools); // is written, and that shows that the session is another's
    until("it is let go", || a.inbound.sessions.count() == 0).await;
    let ended = tokio::time::timeout(SOON, stream.next()).await.expect("the stream ends");
    assert!(ended.is_none(), "{ended:?}");
}

/// The same for a session that its client ends.
#[tokio::test]
async fn streams_end_when_a_session_is_deleted_with_news() {
    let way = Way::to(&Memory::new());
    let a = one(&way, "a").await;
    let session = a.open("2025-06-18").await;
    let mut stream = session.get().go().await.events();
    pause(100).await;
    way.write_ms.store(300, Ordering::SeqCst);
    a.group().publish(ChangeEvent::Tools);
    pause(50).await;
    a.group().publish(ChangeEvent::Prompts);
    pause(20).await;
    assert_eq!(session.delete().status().await, 200);
    let ended = async { while stream.next().await.is_some() {} };
    tokio::time::timeout(SOON, ended).await.expect("the stream ends");
}

/// While a session is handed over, nobody may be told that there is none.
#[tokio::test]
async fn handing_over_is_no_404() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let (a, b) = (one(&way, "a").await, one(&Way::to(&memory), "b").await);
    let session = a.open("2025-06-18").await;
    way.write_ms.store(300, Ordering::SeqCst);
    let inbound = Arc::clone(&a.inbound);
    let id = id_of(&session.id);
    let releasing = tokio::spawn(async move {
        let kept = inbound.sessions.get(id).unwrap();
        inbound.sessions.persister().unwrap().release(&inbound.sessions, &kept, true).await
    });
    pause(100).await;
    let here = session.post(&request(1, "ping", json!({}))).status().await;
    let there = session.elsewhere(&b).post(&request(2, "ping", json!({}))).status().await;
    releasing.await.unwrap().unwrap();
    assert_ne!((here, there), (404, 404));
    assert_ne!(here, 404);
    assert_ne!(there, 404);
}

/// A session that is being handed over is not one that has expired.
#[tokio::test]
async fn handing_over_is_no_end() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let a = one(&way, "a").await;
    let session = a.open("2025-06-18").await;
    pause(50).await;
    way.write_ms.store(300, Ordering::SeqCst);
    let inbound = Arc::clone(&a.inbound);
    let id = id_of(&session.id);
    let releasing = tokio::spawn(async move {
        let kept = inbound.sessions.get(id).unwrap();
        inbound.sessions.persister().unwrap().release(&inbound.sessions, &kept, true).await
    });
    pause(100).await;
    a.inbound.sessions.sweep();
    releasing.await.unwrap().unwrap();
    assert!(memory.load(&session.id).await.unwrap().is_some(), "the session was handed over");
}

/// A store that forgot everything, and fails once while it is told again.
#[tokio::test]
async fn all_of_a_batch_are_restored() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let a = one(&way, "a").await;
    let sessions = [a.open("2025-06-18").await, a.open("2025-06-18").await, a.open("2025-06-18").await];
    let mut streams = Vec::new();
    for session in &sessions {
        streams.push(session.get().go().await.events());
    }
    pause(100).await;
    for session in &sessions {
        assert_eq!(memory.delete(&session.id, &name_of(&a)).await, Ok(WriteOutcome::Applied));
    }
    way.failing_creates.store(1, Ordering::SeqCst);
    a.group().publish(ChangeEvent::Tools);
    for (n, stream) in streams.iter_mut().enumerate() {
        tokio::time::timeout(SOON, stream.message()).await.unwrap_or_else(|_| panic!("stream {n} is told"));
    }
}

/// What a client has ended on one node is not brought back by another that slept.
#[tokio::test]
async fn a_deleted_session_stays_deleted() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let (a, b) = (one(&way, "a").await, one(&Way::to(&memory), "b").await);
    let session = a.open("2025-06-18").await;
    way.cut(true);
    until("a has noticed", || a.inbound.admin.ready().is_err()).await;
    pause(600).await;
    assert_eq!(session.elsewhere(&b).post(&request(1, "ping", json!({}))).status().await, 200);
    assert_eq!(session.elsewhere(&b).delete().status().await, 200);
    way.cut(false);
    until("a is back", || a.inbound.admin.ready().is_ok()).await;
    pause(300).await;
    assert_eq!(session.elsewhere(&b).post(&request(1, "ping", json!({}))).status().await, 404);
}

/// A node that was cut off for longer than its lease still has the stream of an HTTP+SSE client. Once another node has
/// answered 404 for that session, the stream ends: a client that keeps it would wait for an answer that never comes.
#[tokio::test]
async fn an_sse_stream_ends_at_an_expired_owner_once_another_node_has_answered_404() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let (a, b) = (one(&way, "a").await, one(&Way::to(&memory), "b").await);
    let mut stream = a.send("GET", "/sse").header("accept", "text/event-stream").go().await.events();
    let endpoint = stream.next().await.unwrap().data;
    let initialize = crate::harness::initialize("2024-11-05");
    assert_eq!(b.post(&endpoint, &initialize).status().await, 202);
    assert_eq!(stream.message().await.unwrap()["result"]["protocolVersion"], "2024-11-05");
    let owner = name_of(&a);
    way.cut(true);
    expired(&memory, &owner).await;
    assert_eq!(b.post(&endpoint, &request(1, "ping", json!({}))).status().await, 404);
    way.cut(false);
    until("a has a lease again", || a.inbound.admin.ready().is_ok()).await;
    let ended = tokio::time::timeout(SOON, stream.message()).await.expect("the stream ends");
    assert_eq!(ended, None);
    assert_eq!(a.inbound.sessions.count(), 0);
    assert_eq!(b.post(&endpoint, &request(2, "ping", json!({}))).status().await, 404);
}

/// An owner that comes back before anybody was told that its session has ended keeps it, with its stream.
#[tokio::test]
async fn an_sse_session_that_nobody_asked_for_survives_an_expired_lease() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let (a, b) = (one(&way, "a").await, one(&Way::to(&memory), "b").await);
    let mut stream = a.send("GET", "/sse").header("accept", "text/event-stream").go().await.events();
    let endpoint = stream.next().await.unwrap().data;
    let initialize = crate::harness::initialize("2024-11-05");
    assert_eq!(b.post(&endpoint, &initialize).status().await, 202);
    assert!(stream.message().await.unwrap()["result"].is_object());
    let owner = name_of(&a);
    way.cut(true);
    expired(&memory, &owner).await;
    way.cut(false);
    until("a has another incarnation", || a.inbound.admin.ready().is_ok() && name_of(&a) != owner).await;
    let ping = async || b.post(&endpoint, &request(1, "ping", json!({}))).status().await;
    tokio::time::timeout(SOON, async { while ping().await != 202 {} }).await.expect("it is relayed again");
    assert_eq!(stream.message().await.unwrap()["id"], 1);
}

/// A client that listens while the store is away is not refused: official SDKs give up after one to three refusals,
/// and stay without a stream for the rest of their session.
#[tokio::test]
async fn a_listening_client_reconnects_for_as_long_as_the_store_is_away() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let a = one(&way, "a").await;
    let session = a.open("2025-11-25").await;
    let mut stream = session.get().go().await.events();
    let position = stream.next().await.unwrap().id.unwrap();
    way.cut(true);
    until("a has noticed", || a.inbound.admin.ready().is_err()).await;
    assert_eq!(stream.rest().await, Vec::<serde_json::Value>::new());
    for _ in 0..5 {
        let received = session.resume(&position).go().await;
        assert_eq!((received.status, received.is_events()), (200, true));
        let events = received.events().rest_events().await;
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].id.as_deref(), &*events[0].data), (Some(&*position), ""));
    }
    // One that has no position is not given any.
    assert_eq!(session.get().go().await.text().await, "retry: 3000\n\n");
    // Clients of revisions without such events are refused as before.
    assert_eq!(session.get().replace("mcp-protocol-version", "2025-06-18").status().await, 503);
    a.group().publish(ChangeEvent::Tools);
    way.cut(false);
    until("a is back", || a.inbound.admin.ready().is_ok()).await;
    let heard = session.resume(&position).go().await.events().message().await.unwrap();
    assert_eq!(heard["method"], "notifications/tools/list_changed");
}

/// What ended here while the store was away is forgotten there, though the node has another life by then.
#[tokio::test]
async fn what_ended_is_deleted_after_another_life_began() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let a = one(&way, "a").await;
    let session = a.open("2025-06-18").await;
    way.cut(true);
    a.inbound.sessions.close(&a.inbound.sessions.get(id_of(&session.id)).unwrap());
    until("a has noticed", || a.inbound.admin.ready().is_err()).await;
    pause(600).await;
    way.cut(false);
    until("a is back", || a.inbound.admin.ready().is_ok()).await;
    pause(500).await;
    assert!(memory.load(&session.id).await.unwrap().is_none(), "it is forgotten");
}

/// What the node before wrote last, after it was looked at and before it was taken over.
#[tokio::test]
async fn what_was_written_before_a_takeover_counts() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let b = one(&way, "b").await;
    let maker = one(&Way::to(&memory), "a").await;
    let session = maker.open("2025-06-18").await;
    let dead = NodeId::begin("dead");
    assert_eq!(memory.claim(&session.id, Some(&name_of(&maker)), Some(&dead)).await, Ok(WriteOutcome::Applied));
    let id = session.id.clone();
    *way.before_claim.lock().unwrap() = Some(Box::new(move |memory| {
        let kept = futures_util::FutureExt::now_or_never(memory.load(&id)).unwrap().unwrap().unwrap();
        let mut record: serde_json::Value = serde_json::from_slice(&kept.record).unwrap();
        record["level"] = json!("warning");
        let (record, life) = (Some(record.to_string().into()), Duration::from_secs(60));
        let news = SessionDelta { record, version: 1000, life, ..SessionDelta::default() };
        let written = futures_util::FutureExt::now_or_never(memory.write(&dead, &[(id.clone(), news)]));
        assert_eq!(written.unwrap().unwrap(), [WriteOutcome::Applied]);
    }));
    assert_eq!(session.elsewhere(&b).post(&request(1, "ping", json!({}))).status().await, 200);
    let taken = b.inbound.sessions.get(id_of(&session.id)).unwrap();
    assert_eq!(taken.level().map(|level| level.as_str()), Some("warning"));
}

/// A call whose session is taken away in its first second has an end that says so.
#[tokio::test]
async fn a_young_call_of_a_lost_session_ends_in_an_error() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let a = one(&way, "a").await;
    let session = a.open("2025-06-18").await;
    pause(50).await;
    let post = session.post(&request(7, "tools/call", survey(7, 1, 900)["params"].clone()));
    let calling = tokio::spawn(async move { post.go().await });
    pause(300).await;
    let other = NodeId::begin("x");
    memory.join(&other, Duration::from_secs(60)).await.unwrap();
    assert_eq!(memory.claim(&session.id, Some(&name_of(&a)), Some(&other)).await, Ok(WriteOutcome::Applied));
    a.group().publish(ChangeEvent::Tools);
    let received = calling.await.unwrap();
    assert_eq!(received.status, 200);
    let text = received.text().await;
    assert!(text.contains("error"), "{text}");
}

/// A node that has gone does not come back.
#[tokio::test]
async fn a_node_that_left_stays_away() {
    let memory = Memory::new();
    let (mut a, _b) = (one(&Way::to(&memory), "a").await, one(&Way::to(&memory), "b").await);
    a.begin_stop();
    assert!(a.stopped().await);
    pause(2500).await;
    let members: Vec<String> = memory.members().await.unwrap().iter().map(|node| node.name().to_string()).collect();
    assert_eq!(members, ["b"]);
}

/// A client of HTTP+SSE that goes while its session is being kept leaves nothing behind.
#[tokio::test]
async fn a_stream_that_is_given_up_while_it_opens_leaves_no_session() {
    let way = Way::to(&Memory::new());
    let a = one(&way, "a").await;
    way.create_ms.store(300, Ordering::SeqCst);
    let get = a.send("GET", "/sse").header("accept", "text/event-stream");
    let opening = tokio::spawn(async move { get.go().await.status });
    until("it is being opened", || a.inbound.sessions.count() == 1).await;
    opening.abort();
    pause(1000).await;
    assert_eq!(a.inbound.sessions.count(), 0);
}

/// A request that was carried when the store went away is answered all the same.
#[tokio::test]
async fn a_carried_request_does_not_hang_on_a_store_that_is_away() {
    let memory = Memory::new();
    let (one_way, other_way) = (Way::to(&memory), Way::to(&memory));
    let (a, b) = (one(&one_way, "a").await, one(&other_way, "b").await);
    let session = a.open("2025-06-18").await;
    let post = session.elsewhere(&b).post(&survey(7, 1, 900));
    let calling = tokio::spawn(async move { post.go().await.status });
    pause(300).await;
    one_way.cut(true);
    other_way.cut(true);
    let answered = tokio::time::timeout(Duration::from_secs(8), calling).await;
    assert!(answered.is_ok(), "it hangs");
}

/// Taking many sessions over from one's own last life must not take longer than a life.
#[tokio::test]
async fn many_sessions_are_kept_through_another_life() {
    let memory = Memory::new();
    let way = Way::to(&memory);
    let a = one(&way, "a").await;
    let mut ids = Vec::new();
    for _ in 0..60 {
        ids.push(a.open("2025-06-18").await.id);
    }
    way.claim_ms.store(50, Ordering::SeqCst); // 3 s in all, and the lease is 2 s
    way.cut(true);
    until("a has noticed", || a.inbound.admin.ready().is_err()).await;
    pause(600).await;
    way.cut(false);
    let back = async {
        while a.inbound.admin.ready().is_err() {
            pause(20).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(12), back).await.expect("the node comes back");
}

/// A node that is asked to stop while the store is away stops in time, however many sessions it has.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_store_that_is_away() {
    let way = Way::to(&Memory::new());
    let mut a = one(&way, "a").await;
    for _ in 0..40 {
        a.open("2025-06-18").await;
    }
    way.write_ms.store(500, Ordering::SeqCst); // each takes its time, and fails
    way.cut(true);
    let begun = std::time::Instant::now();
    a.begin_stop();
    // `drain` is ten seconds, and nothing runs.
    let _ = tokio::time::timeout(Duration::from_secs(60), a.done()).await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

/// An answer that waits for a slow reader is not lost when the session is handed over. The steps are those of
/// `Work::send`.
#[tokio::test]
async fn an_answer_is_not_lost_with_a_slow_reader() {
    let memory = Memory::new();
    let (mut a, b) = (one(&Way::to(&memory), "a").await, one(&Way::to(&memory), "b").await);
    let session = a.open("2025-06-18").await.elsewhere(&b);
    let kept = a.inbound.sessions.get(id_of(&session.id)).unwrap();
    let id = rialto::protocol::Id::from(5);
    let running = kept.begin(id.clone()).unwrap();
    let (stream, unread) = kept.open_stream().unwrap();
    kept.expect_response(stream, || vec![id.clone()]);
    for _ in 0..300 {
        kept.send(stream, Bytes::from_static(b"{}"));
    }
    let counted = a.inbound.shutdown.track_call();
    let work = {
        let kept = Arc::clone(&kept);
        async move {
            // It was: running.answered(); kept.paid(stream, &id); kept.deliver(stream, …).await;
            let answer = Bytes::from_static(br#"{"id":5,"jsonrpc":"2.0","result":{}}"#);
            kept.deliver_response(stream, &running, &id, answer).await;
            drop((running, counted));
        }
    };
    let work = tokio::spawn(work);
    pause(100).await;
    a.begin_stop();
    work.await.unwrap();
    drop(unread);
    a.stopped().await;
    let rest = session.resume("1.0").go().await.events().rest().await;
    assert!(rest.iter().any(|message| message["id"] == 5), "the call has an end, in {} messages", rest.len());
}
