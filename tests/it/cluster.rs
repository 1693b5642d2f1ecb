//! Several nodes that share a store: any of them takes any request, and none is missed when it goes.

mod balancer;
mod changes;
mod clients;
mod driver;
mod edges;
mod failover;
mod found;
mod front;
mod full;
mod gate;
mod held;
mod kids;
mod leaving;
mod listener;
mod load;
mod news;
mod nodes;
mod older;
mod paused;
mod proxy;
mod real;
mod repeats;
mod rust;
mod sdks;
mod soak;
mod store_faults;

use std::sync::Arc;
use std::time::Duration;

use rialto::store::{ClusterStore, Memory};

use crate::harness::Rialto;

/// A node that shares that store.
pub async fn node(store: &Arc<dyn ClusterStore>, name: &str) -> Rialto {
    let rialto = Rialto::with(|settings| {
        settings.cluster_store = Some(Arc::clone(store));
        settings.store.node = Some(name.into());
        settings.store.lease = Duration::from_secs(2);
    })
    .await;
    crate::harness::until("the node is ready", || rialto.inbound.admin.ready().is_ok()).await;
    rialto
}

/// Three nodes in this process.
pub async fn three() -> [Rialto; 3] {
    let store: Arc<dyn ClusterStore> = Memory::new();
    [node(&store, "a").await, node(&store, "b").await, node(&store, "c").await]
}
