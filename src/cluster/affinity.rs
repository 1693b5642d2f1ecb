//! Places: what must be on one node, wherever that is, and is asked for by a name.

use std::time::Duration;

use tokio::time::Instant;

use super::Cluster;
use crate::store::{NodeId, StoreError};

/// Who has a place, as far as is known.
#[derive(Debug)]
pub(super) struct AffinityEntry {
    node: NodeId,
    until: Instant,
}

/// How long a place stays with its node after it was asked for last, in leases.
const LEASES: u32 = 100;
/// How many places are remembered.
const PLACES: usize = 100_000;

impl Cluster {
    /// The other node that has a place; nothing when this one has it, as it does when nobody had.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn place(&self, name: &str) -> Result<Option<NodeId>, StoreError> {
        let me = self.node();
        let known =
            self.places().get(name).filter(|place| place.until > Instant::now()).map(|place| place.node.clone());
        let node = match known {
            Some(node) => node,
            None => self.ask_for_place(name, &me).await?,
        };
        Ok(Some(node).filter(|node| *node != *me))
    }

    async fn ask_for_place(&self, name: &str, me: &NodeId) -> Result<NodeId, StoreError> {
        let mut node = self.store.place_of(name, me, None, self.place_life()).await?;
        if node != *me && !self.is_alive(&node).await? {
            node = self.store.place_of(name, me, Some(&node), self.place_life()).await?;
        }
        // One's own is renewed long before it is over; another's may move with its node.
        let life = if node == *me { self.place_life() / 4 } else { self.lease };
        let mut places = self.places();
        if places.len() >= PLACES {
            places.clear(); // they can be asked for again
        }
        places.insert(name.to_owned(), AffinityEntry { node: node.clone(), until: Instant::now() + life });
        Ok(node)
    }

    fn place_life(&self) -> Duration {
        self.lease * LEASES
    }

    /// A node is gone, or says that it is not its matter.
    pub fn forget_places_of(&self, node: &NodeId) {
        self.places().retain(|_, place| place.node != *node);
    }
}
