//! A node that goes for good, and what is on its way to it.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use rialto::cluster::{Cluster, RelayOutcome};
use rialto::store::traits::NodeStore;
use rialto::store::{ClusterStore, Memory, NodeId};

use super::repeats::carried;

#[tokio::test]
async fn what_is_sent_to_a_node_that_has_left_is_not_taken_by_it() {
    let memory = Memory::new();
    let make = |name: &str| {
        let node = Arc::new(ArcSwap::from_pointee(NodeId::begin(name)));
        Cluster::new(Arc::clone(&memory) as Arc<dyn ClusterStore>, node, Duration::from_secs(6), None)
    };
    let (a, b) = (make("a"), make("b"));
    a.answer_with(Arc::new(|_| Box::pin(async { panic!("it has left") })));
    for cluster in [&a, &b] {
        memory.join(&cluster.node(), cluster.lease()).await.unwrap();
        tokio::spawn(Arc::clone(cluster).receive());
    }
    a.leave().await;
    let late = Bytes::from_static(b"late");
    memory.send(&a.node(), vec![late.clone()], a.lease()).await.unwrap();
    // Whoever receives has had his turn, and more than one.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(memory.unsend(&a.node(), late).await.unwrap(), "it was taken");
    let carrying = tokio::time::timeout(Duration::from_secs(2), b.relay(&a.node(), carried())).await;
    assert!(matches!(carrying, Ok(Ok(RelayOutcome::NotThere))), "{carrying:?}");
}
