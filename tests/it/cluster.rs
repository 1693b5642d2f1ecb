//! Several nodes that share a store: any of them takes any request, and none is missed when it goes.

mod nodes;

use std::sync::Arc;
use std::time::Duration;

use rialto::app::Clustered;
use rialto::store::{Memory, Shared};

use crate::harness::Rialto;

/// A node that shares that store.
pub async fn node(store: &Arc<dyn Shared>, name: &str) -> Rialto {
    let cluster =
        Clustered { store: Arc::clone(store), node: name.into(), lease: Duration::from_secs(2), secret: None };
    let rialto = Rialto::with(|settings| settings.cluster = Some(cluster)).await;
    crate::harness::until("the node is ready", || rialto.inbound.admin.ready().is_ok()).await;
    rialto
}

/// Three nodes in this process.
pub async fn three() -> [Rialto; 3] {
    let store: Arc<dyn Shared> = Memory::new();
    [node(&store, "a").await, node(&store, "b").await, node(&store, "c").await]
}
