//! Node affinity: names, such as a caller's stdio child, that must be served by one node at a time.

use std::time::Duration;

use tokio::time::Instant;

use super::Cluster;
use crate::store::{NodeId, StoreError};

/// Cached owner of an affinity name.
#[derive(Debug)]
pub(super) struct AffinityEntry {
    node: NodeId,
    expires_at: Instant,
}

/// Time to live of an affinity claim after its last use, in leases.
const AFFINITY_TTL_LEASES: u32 = 100;
/// Most cached affinities; the cache is cleared when full.
const MAX_CACHED_AFFINITIES: usize = 100_000;

impl Cluster {
    /// The other node that owns an affinity name; `None` when this node does, claiming it if it is free.
    ///
    /// # Errors
    /// When the store is unavailable.
    pub async fn affinity_owner(&self, name: &str) -> Result<Option<NodeId>, StoreError> {
        let me = self.node();
        let known = self
            .affinities()
            .get(name)
            .filter(|entry| entry.expires_at > Instant::now())
            .map(|entry| entry.node.clone());
        let node = match known {
            Some(node) => node,
            None => self.claim_affinity(name, &me).await?,
        };
        Ok(Some(node).filter(|node| *node != *me))
    }

    async fn claim_affinity(&self, name: &str, me: &NodeId) -> Result<NodeId, StoreError> {
        let mut node = self.store.claim_affinity(name, me, None, self.affinity_ttl()).await?;
        if node != *me && !self.is_alive(&node).await? {
            node = self.store.claim_affinity(name, me, Some(&node), self.affinity_ttl()).await?;
        }
        // Own claims are renewed well before they expire; those of others may move when their lease ends.
        let ttl = if node == *me { self.affinity_ttl() / 4 } else { self.lease };
        let mut cache = self.affinities();
        if cache.len() >= MAX_CACHED_AFFINITIES {
            cache.clear(); // claims can be read from the store again
        }
        cache.insert(name.to_owned(), AffinityEntry { node: node.clone(), expires_at: Instant::now() + ttl });
        Ok(node)
    }

    fn affinity_ttl(&self) -> Duration {
        self.lease * AFFINITY_TTL_LEASES
    }

    /// Evicts a node from the cache after it expired or refused a request.
    pub fn forget_affinities_to(&self, node: &NodeId) {
        self.affinities().retain(|_, entry| entry.node != *node);
    }
}
