//! Messages in flight to a node that leaves the cluster.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use rialto::cluster::{Cluster, RelayOutcome};
use rialto::store::traits::NodeStore;
use rialto::store::{ClusterStore, MemoryStore, NodeId};

use super::duplicate_delivery::relayed_request;

#[tokio::test(start_paused = true)]
async fn a_relay_to_a_node_that_left_is_not_received() {
    let memory = MemoryStore::new();
    let make = |name: &str| {
        let node = Arc::new(ArcSwap::from_pointee(NodeId::generate(name)));
        Cluster::new(Arc::clone(&memory) as Arc<dyn ClusterStore>, node, Duration::from_secs(6), None)
    };
    let (a, b) = (make("a"), make("b"));
    a.set_handler(Arc::new(|_| Box::pin(async { panic!("it has left") })));
    for cluster in [&a, &b] {
        memory.join(&cluster.node(), cluster.lease()).await.unwrap();
        tokio::spawn(Arc::clone(cluster).run_mailbox());
        tokio::spawn(Arc::clone(cluster).run_peer_checks());
    }
    a.leave().await;
    let late = Bytes::from_static(b"late");
    memory.send(&a.node(), vec![late.clone()], a.lease()).await.unwrap();
    // Gives the receive task of the node several turns.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(memory.unsend(&a.node(), late).await.unwrap(), "the message was received");
    let carrying = tokio::time::timeout(Duration::from_secs(2), b.relay(&a.node(), relayed_request())).await;
    assert!(matches!(carrying, Ok(Ok(RelayOutcome::NotOwner))), "{carrying:?}");
}
