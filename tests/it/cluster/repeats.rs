//! Letters that arrive twice, as they may in a Redis Cluster, where the client of Redis says again what it said
//! on a connection that broke.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use rialto::cluster::{AnyBody, Cluster, RelayOutcome, RelayedRequest};
use rialto::store::traits::NodeStore;
use rialto::store::{ClusterStore, Memory, NodeId};
use serde_json::json;

use super::found::{Way, one};
use crate::harness::{request, survey, until};

const PIECES: usize = 50;

pub fn carried() -> RelayedRequest {
    RelayedRequest {
        verb: http::Method::GET,
        uri: "/mcp".parse().unwrap(),
        headers: http::HeaderMap::new(),
        principal: String::new(),
        peer: None,
        body: Bytes::new(),
    }
}

#[tokio::test]
async fn a_request_that_arrives_twice_is_carried_out_once() {
    let (memory, count) = (Memory::new(), Arc::new(AtomicUsize::new(0)));
    let make = |name: &str| {
        let way = Way::to(&memory);
        way.twice.store(true, Ordering::SeqCst);
        let node = Arc::new(ArcSwap::from_pointee(NodeId::begin(name)));
        Cluster::new(way as Arc<dyn ClusterStore>, node, Duration::from_secs(6), None)
    };
    let (a, b, c) = (make("a"), make("b"), make("c"));
    let counted = Arc::clone(&count);
    a.answer_with(Arc::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            let piece =
                |n: usize| Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from(vec![n as u8])));
            // Each piece is a letter of its own.
            let pieces = futures_util::stream::unfold(0, move |n| async move {
                tokio::task::yield_now().await;
                (n < PIECES).then(|| (piece(n), n + 1))
            });
            Some(http::Response::new(Box::pin(http_body_util::StreamBody::new(pieces)) as AnyBody))
        })
    }));
    for cluster in [&a, &b, &c] {
        tokio::spawn(Arc::clone(cluster).receive());
    }
    // Relays have the same numbers at both.
    for (round, from) in [&b, &c, &b, &c].into_iter().enumerate() {
        let RelayOutcome::Stream(_, _, mut rest) = from.relay(&a.node(), carried()).await.unwrap() else { panic!() };
        let mut read = Vec::new();
        while let Some(piece) = std::future::poll_fn(|context| rest.poll_next(context)).await {
            read.extend(piece);
        }
        assert_eq!(read, (0..PIECES).map(|n| n as u8).collect::<Vec<_>>(), "all of it, in order and once");
        // What arrives after this was sent after all that came before.
        memory.send(&a.node(), vec![Bytes::from_static(b"rubbish")], Duration::from_secs(60)).await.unwrap();
        until("all is taken", || a.serving_now() == 0).await;
        assert_eq!(count.load(Ordering::SeqCst), round + 1);
    }
}

#[tokio::test]
async fn calls_and_their_streams_do_not_mind_letters_that_arrive_twice() {
    let memory = Memory::new();
    let ways = ["a", "b"].map(|_| Way::to(&memory));
    let (a, b) = (one(&ways[0], "a").await, one(&ways[1], "b").await);
    ways.iter().for_each(|way| way.twice.store(true, Ordering::SeqCst));
    let session = a.open("2025-11-25").await.elsewhere(&b);
    for id in 1..20 {
        let rest = session.post(&survey(id, 5, 1)).go().await.events().rest().await;
        assert_eq!(rest.last().unwrap()["id"], id, "{rest:?}");
        assert_eq!(rest.len(), 6, "{rest:?}");
        let (status, answer) = session.post(&request(100 + id, "ping", json!({}))).json().await;
        assert_eq!((status, &answer["result"]), (200, &json!({})));
    }
}
