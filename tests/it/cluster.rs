//! Clusters of nodes that share a store: relay between nodes, takeover after a failure, drain.

mod balancer;
mod busy_store;
mod change_ledger;
mod child_processes;
mod credentials;
mod duplicate_delivery;
mod listeners;
mod load;
mod load_balancer_proxy;
mod load_clients;
mod load_driver;
mod lost_messages;
mod message_faults;
mod missed_changes;
mod nginx;
mod node_leave;
mod nodes;
mod parked_calls;
pub mod processes;
pub mod regressions;
mod resp;
mod rust_sdk;
mod sdks;
mod session_edges;
mod soak;
mod sse_client;
mod store_failover;
mod store_faults;
mod store_full;
mod store_paused;
mod store_proxy;
mod upstream_proxy;

use std::sync::Arc;
use std::time::Duration;

use rialto::app::AppSettings;
use rialto::store::{ClusterStore, MemoryStore};

use crate::harness::Rialto;

/// Starts a node on a shared store and waits until it holds its lease.
pub async fn node(store: &Arc<dyn ClusterStore>, name: &str) -> Rialto {
    node_with(store, name, |_| {}).await
}

/// Like [`node`], with other settings.
pub async fn node_with(store: &Arc<dyn ClusterStore>, name: &str, change: impl FnOnce(&mut AppSettings)) -> Rialto {
    let rialto = Rialto::with(|settings| {
        settings.cluster_store = Some(Arc::clone(store));
        settings.store.node = Some(name.into());
        settings.store.lease = Duration::from_secs(2);
        change(settings);
    })
    .await;
    crate::harness::until("the node is ready", || rialto.inbound.admin.ready().is_ok()).await;
    rialto
}

/// Three nodes in this process on one in-memory store.
pub async fn three_nodes() -> [Rialto; 3] {
    let store: Arc<dyn ClusterStore> = MemoryStore::new();
    [node(&store, "a").await, node(&store, "b").await, node(&store, "c").await]
}
