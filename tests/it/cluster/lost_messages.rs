//! Single messages between nodes that are lost, late or out of turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use rialto::cluster::{BoxedBody, Cluster, RelayOutcome};
use rialto::store::{ClusterStore, MemoryStore, NodeId};
use serde_json::json;

use super::duplicate_delivery::relayed_request;
use super::load::open_session_at;
use super::load_clients::{answers, per_request_call};
use super::load_driver::{CallKind, CallOutcome};
use super::processes::{TestCluster, eventually};
use super::regressions::FaultyStore;
use super::resp::{StoreCommand, kind};
use super::store_proxy::{StoreFault, StoreProxy, StoreRule};
use crate::harness::{request, until};
use crate::redis::{RedisFlavor, RedisServer};

/// A condition that a rule of the proxy sets or reads.
#[derive(Clone, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::SeqCst);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Nodes a and b, of which one reaches the store through a proxy with this rule.
pub async fn two_nodes(proxied: &str, rule: impl StoreRule + 'static) -> (TestCluster, StoreProxy) {
    let store = RedisServer::start(RedisFlavor::Redis).await;
    let (url, proxy) = (store.url(), StoreProxy::with_rule(store.port(), rule).await);
    let address = |name: &str| if name == proxied { proxy.url() } else { url.clone() };
    let cluster = TestCluster::with(store, &["a", "b"], address).await;
    (cluster, proxy)
}

pub async fn wait_ready(cluster: &TestCluster) {
    for node in &cluster.nodes {
        node.wait_ready().await;
    }
}

/// Waits until a node has this many open streams.
async fn wait_streams(cluster: &TestCluster, name: &str, count: u64) {
    eventually(
        &format!("{name} has {count} open streams"),
        async || match cluster.node(name).status().await["streams"].as_u64() {
            Some(open) if open == count => Ok(()),
            open => Err(format!("{open:?}")),
        },
    )
    .await;
}

/// A silent stream whose cancel is lost is found by comparing what each side knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listening_stream_whose_cancel_was_lost_ends_at_its_owner() {
    let lost = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lost);
    let (cluster, _proxy) = two_nodes("b", move |command: &StoreCommand| {
        match command.sends(kind::CANCEL) && counted.fetch_add(1, Ordering::SeqCst) == 0 {
            true => StoreFault::Lose,
            false => StoreFault::None,
        }
    })
    .await;
    wait_ready(&cluster).await;
    let session = open_session_at(&cluster, "a").await;
    let stream = session.get(cluster.node("b").address, None).go().await.events();
    wait_streams(&cluster, "a", 1).await;
    drop(stream);
    until("the cancel was lost", || lost.load(Ordering::SeqCst) > 0).await;
    wait_streams(&cluster, "a", 0).await;
    session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

/// A stream with events is cancelled by the first of them that nobody waits for: no node compares anything here.
#[tokio::test]
async fn an_event_that_nobody_waits_for_is_answered_with_a_cancel() {
    let memory = MemoryStore::new();
    let make = |name: &str| {
        let faulty = FaultyStore::over(&memory);
        let node = Arc::new(ArcSwap::from_pointee(NodeId::generate(name)));
        (Cluster::new(Arc::clone(&faulty) as Arc<dyn ClusterStore>, node, Duration::from_secs(6), None), faulty)
    };
    let ((a, _), (b, faulty)) = (make("a"), make("b"));
    a.set_handler(Arc::new(|_| {
        Box::pin(async {
            let ticks = futures_util::stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Some((Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from_static(b"tick"))), ()))
            });
            Some(http::Response::new(Box::pin(http_body_util::StreamBody::new(ticks)) as BoxedBody))
        })
    }));
    for cluster in [&a, &b] {
        tokio::spawn(Arc::clone(cluster).run_mailbox());
    }
    let RelayOutcome::Streaming(_, _, mut body) = b.relay(&a.node(), relayed_request()).await.unwrap() else {
        panic!()
    };
    assert!(std::future::poll_fn(|context| body.poll_next(context)).await.is_some());
    faulty.lost_kind.store(kind::CANCEL, Ordering::SeqCst);
    drop(body);
    // The cancel is sent by a task that was spawned by the drop.
    tokio::task::yield_now().await;
    faulty.lost_kind.store(0, Ordering::SeqCst);
    until("the relay is not served any more", || a.active_relay_count() == 0).await;
}

/// The answer is in the mailbox when its sender has left; that the sender is gone must not overtake it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_a_node_that_has_left_is_delivered() {
    let (holds, gave_up) = (Flag::default(), Flag::default());
    let (held, seen) = (holds.clone(), gave_up.clone());
    let (mut cluster, proxy) = two_nodes("b", move |command: &StoreCommand| {
        if command.sends(kind::UNKNOWN_RELAY) {
            seen.set(true);
        }
        if command.is("BLMPOP") && held.is_set() { StoreFault::Hold } else { StoreFault::None }
    })
    .await;
    wait_ready(&cluster).await;
    let session = open_session_at(&cluster, "a").await;
    holds.set(true);
    until("the mailbox of b is not read", || proxy.held() > 0).await;
    let relayed = session.at(cluster.node("b"));
    let calling = tokio::spawn(async move { relayed.call(1, CallKind::Plain).await });
    cluster.http_server.wait_received("tools/call", 1).await;
    let a = cluster.node_mut("a");
    a.terminate();
    assert_eq!(a.wait_exit().await, Some(0));
    until("b has noticed that a is gone", || gave_up.is_set() || calling.is_finished()).await;
    holds.set(false);
    assert_eq!(calling.await.unwrap(), CallOutcome::Answered);
    cluster.node_mut("a").restart().await;
    session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

/// Holds what node a gets from its mailbox from the first relayed request on.
#[derive(Clone, Default)]
struct HeldMail {
    /// Blocking reads of the mailbox that have begun.
    reads: Arc<AtomicUsize>,
    was_asked: Flag,
    holds: Flag,
    is_leaving: Flag,
}

impl HeldMail {
    fn is_read(command: &StoreCommand) -> bool {
        command.is("BLMPOP") && command.arguments.iter().any(|key| key.starts_with(b"rialto:m:{a}"))
    }
}

impl StoreRule for HeldMail {
    fn fault(&self, command: &StoreCommand) -> StoreFault {
        if Self::is_read(command) {
            self.reads.fetch_add(1, Ordering::SeqCst);
        }
        if command.sends(kind::REQUEST) && !self.was_asked.is_set() {
            self.was_asked.set(true);
            self.holds.set(true);
        }
        if command.sends(kind::NODE_LEAVING) {
            self.is_leaving.set(true);
        }
        StoreFault::None
    }

    fn holds_reply(&self, command: &StoreCommand, reply: &Bytes) -> bool {
        Self::is_read(command) && self.holds.is_set() && !reply.starts_with(b"*-1") && !reply.starts_with(b"_")
    }
}

/// A node that leaves answers for the requests that it has taken from its mailbox, also when it gets them late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_a_leaving_node_has_taken_is_refused_and_served_elsewhere() {
    let store = RedisServer::start(RedisFlavor::Redis).await;
    let mail = HeldMail::default();
    let proxy = StoreProxy::with_rule(store.port(), mail.clone()).await;
    let mut cluster = TestCluster::with(store, &["a", "b"], |_| proxy.url()).await;
    wait_ready(&cluster).await;
    let session = open_session_at(&cluster, "a").await;
    let relayed = session.at(cluster.node("b"));
    // A read that has just begun can be held for longest before the node gives it up.
    let reads = mail.reads.load(Ordering::SeqCst);
    until("the mailbox is read anew", || mail.reads.load(Ordering::SeqCst) > reads).await;
    let calling = tokio::spawn(async move { relayed.call(1, CallKind::Plain).await });
    until("the request is taken from the mailbox", || proxy.held() > 0).await;
    cluster.node_mut("a").terminate();
    until("a is leaving", || mail.is_leaving.is_set()).await;
    // For this long the node gets nothing from its mailbox. It holds its lease meanwhile.
    tokio::time::sleep(Duration::from_millis(600)).await;
    mail.holds.set(false);
    assert_eq!(calling.await.unwrap(), CallOutcome::Answered);
    assert_eq!(cluster.node_mut("a").wait_exit().await, Some(0));
    cluster.node_mut("a").restart().await;
    session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

/// A node that has not got the shared key yet cannot judge the request states of other nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_call_is_not_refused_by_a_node_without_the_sealing_key() {
    let holds = Flag::default();
    holds.set(true);
    let held = holds.clone();
    let (cluster, _proxy) = two_nodes("b", move |command: &StoreCommand| {
        if command.has_key("secret") && held.is_set() { StoreFault::BreakBefore } else { StoreFault::None }
    })
    .await;
    let [a, b] = ["a", "b"].map(|name| cluster.node(name));
    a.wait_ready().await;
    let params = CallKind::Ask.params(1);
    let (_, asked) = per_request_call(a.address, 1, &params).answer().await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let retry = || per_request_call(b.address, 1, &answers(&params, &asked["result"]));
    let refused = retry().go().await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let refused = refused.json().await;
    assert_eq!(refused["error"]["data"]["failure"], "store_unavailable", "{refused}");
    holds.set(false);
    let answer = cluster.balancer.send_until_accepted(|_| retry()).await.unwrap();
    let answer = answer.response().await;
    assert_eq!(CallKind::Ask.check_response(1, &answer), CallOutcome::Answered);
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

/// An answer of several megabytes goes in pieces within the flow-control window, and a lost window update is made up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_answer_is_relayed_in_pieces() {
    let (largest, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (measured, counted) = (Arc::clone(&largest), Arc::clone(&lost));
    let rule = move |command: &StoreCommand| {
        for message in command.messages().iter().filter(|message| message[0] != kind::REQUEST) {
            measured.fetch_max(message.len(), Ordering::SeqCst);
        }
        match command.sends(kind::WINDOW_UPDATE) && counted.fetch_add(1, Ordering::SeqCst) < 2 {
            true => StoreFault::Lose,
            false => StoreFault::None,
        }
    };
    let store = RedisServer::start(RedisFlavor::Redis).await;
    let proxy = StoreProxy::with_rule(store.port(), rule).await;
    let cluster = TestCluster::with(store, &["a", "b"], |_| proxy.url()).await;
    wait_ready(&cluster).await;
    let session = open_session_at(&cluster, "a").await;
    let text = "x".repeat(3 << 19);
    let body = request(1, "tools/call", json!({ "name": "echo", "arguments": { "message": text } }));
    let (status, answer) = session.post(cluster.node("b").address, &body).answer().await;
    assert_eq!(status, 200);
    let report: serde_json::Value =
        serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(report["message"].as_str() == Some(&text), "another text of {} bytes", report.to_string().len());
    assert!(lost.load(Ordering::SeqCst) > 2, "the window was reported again");
    let largest = largest.load(Ordering::SeqCst);
    assert!(largest < 300 << 10, "a message of {largest} bytes");
    session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}
