//! Duplicate delivery of relay messages: the Redis Cluster client repeats a command whose connection broke.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use rialto::cluster::{BoxedBody, Cluster, RelayOutcome, RelayedRequest};
use rialto::store::traits::NodeStore;
use rialto::store::{ClusterStore, MemoryStore, NodeId};
use serde_json::json;

use super::regressions::{FaultyStore, faulty_node};
use crate::harness::{request, survey, until};

const CHUNKS: usize = 50;

pub fn relayed_request() -> RelayedRequest {
    RelayedRequest {
        method: http::Method::GET,
        uri: "/mcp".parse().unwrap(),
        headers: http::HeaderMap::new(),
        identity: rialto::identity::Identity::anonymous().into(),
        peer: None,
        body: Bytes::new(),
    }
}

#[tokio::test]
async fn a_relayed_request_delivered_twice_is_executed_once() {
    let (memory, count) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let make = |name: &str| {
        let faulty = FaultyStore::over(&memory);
        faulty.duplicate_messages.store(true, Ordering::SeqCst);
        let node = Arc::new(ArcSwap::from_pointee(NodeId::generate(name)));
        Cluster::new(faulty as Arc<dyn ClusterStore>, node, Duration::from_secs(6), None)
    };
    let (a, b, c) = (make("a"), make("b"), make("c"));
    let counted = Arc::clone(&count);
    a.set_handler(Arc::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            let piece =
                |n: usize| Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from(vec![n as u8])));
            // Each chunk is a relay message of its own.
            let pieces = futures_util::stream::unfold(0, move |n| async move {
                tokio::task::yield_now().await;
                (n < CHUNKS).then(|| (piece(n), n + 1))
            });
            Some(http::Response::new(Box::pin(http_body_util::StreamBody::new(pieces)) as BoxedBody))
        })
    }));
    for cluster in [&a, &b, &c] {
        tokio::spawn(Arc::clone(cluster).run_mailbox());
    }
    // Both senders use the same relay numbers.
    for (round, from) in [&b, &c, &b, &c].into_iter().enumerate() {
        let RelayOutcome::Streaming(_, _, mut rest) = from.relay(&a.node(), relayed_request()).await.unwrap() else {
            panic!()
        };
        let mut read = Vec::new();
        while let Some(piece) = std::future::poll_fn(|context| rest.poll_next(context)).await {
            read.extend(piece);
        }
        assert_eq!(read, (0..CHUNKS).map(|n| n as u8).collect::<Vec<_>>(), "every chunk in order and once");
        // Mailboxes are ordered: once this is received, all earlier duplicates were, too.
        memory.send(&a.node(), vec![Bytes::from_static(b"rubbish")], Duration::from_secs(60)).await.unwrap();
        until("all relays have ended", || a.active_relay_count() == 0).await;
        assert_eq!(count.load(Ordering::SeqCst), round + 1);
    }
}

#[tokio::test]
async fn relayed_calls_and_streams_tolerate_duplicate_delivery() {
    let memory = MemoryStore::new();
    let faulty_stores = ["a", "b"].map(|_| FaultyStore::over(&memory));
    let (a, b) = (faulty_node(&faulty_stores[0], "a").await, faulty_node(&faulty_stores[1], "b").await);
    faulty_stores.iter().for_each(|faulty| faulty.duplicate_messages.store(true, Ordering::SeqCst));
    let session = a.open("2025-11-25").await.at_node(&b);
    for id in 1..20 {
        let rest = session.post(&survey(id, 5, 1)).go().await.events().rest().await;
        assert_eq!(rest.last().unwrap()["id"], id, "{rest:?}");
        assert_eq!(rest.len(), 6, "{rest:?}");
        let (status, answer) = session.post(&request(100 + id, "ping", json!({}))).json().await;
        assert_eq!((status, &answer["result"]), (200, &json!({})));
    }
}
