//! Deduplication of relayed requests: a message delivered twice is carried out once.

use std::collections::HashSet;

use crate::store::NodeId;

/// Recently received requests by sender and relay id, in two generations.
#[derive(Debug, Default)]
pub(super) struct RecentRequests {
    current: HashSet<(NodeId, u64)>,
    previous: HashSet<(NodeId, u64)>,
}

/// Size at which a generation is retired; at least this many entries are remembered. Retries arrive within seconds.
const DEDUP_GENERATION_SIZE: usize = 1 << 14;

impl RecentRequests {
    /// Records a request; returns false for a duplicate.
    pub(super) fn insert(&mut self, from: &NodeId, relay: u64) -> bool {
        let key = (from.clone(), relay);
        if self.previous.contains(&key) || !self.current.insert(key) {
            return false;
        }
        if self.current.len() >= DEDUP_GENERATION_SIZE {
            self.previous = std::mem::take(&mut self.current);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_detected_and_memory_is_bounded() {
        let (a, b, mut requests) = (NodeId::generate("a"), NodeId::generate("b"), RecentRequests::default());
        for relay in 0..100_000 {
            assert!(requests.insert(&a, relay) && requests.insert(&b, relay), "{relay} is new");
            assert!(!requests.insert(&a, relay) && !requests.insert(&b, relay), "{relay} is a duplicate");
            let long_ago = relay.saturating_sub(DEDUP_GENERATION_SIZE as u64 / 2 - 1);
            assert!(!requests.insert(&a, long_ago), "{long_ago} is still remembered");
        }
        assert!(requests.current.len() + requests.previous.len() <= 2 * DEDUP_GENERATION_SIZE);
        assert!(requests.insert(&a.next_incarnation(), 99_999), "another incarnation is another sender");
    }
}
