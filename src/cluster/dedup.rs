//! The requests that this node has taken: one that arrives again is not carried out again.

use std::collections::HashSet;

use crate::store::NodeId;

/// The requests that were taken last, by who sent them and their relay.
#[derive(Debug, Default)]
pub(super) struct RecentRequests {
    now: HashSet<(NodeId, u64)>,
    before: HashSet<(NodeId, u64)>,
}

/// How many are known at least. A letter is repeated within seconds, if it is.
const KNOWN: usize = 1 << 14;

impl RecentRequests {
    /// Takes one down; false when it was taken before.
    pub(super) fn note(&mut self, from: &NodeId, relay: u64) -> bool {
        let one = (from.clone(), relay);
        if self.before.contains(&one) || !self.now.insert(one) {
            return false;
        }
        if self.now.len() >= KNOWN {
            self.before = std::mem::take(&mut self.now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_new_once_and_not_known_for_ever() {
        let (a, b, mut taken) = (NodeId::begin("a"), NodeId::begin("b"), RecentRequests::default());
        for relay in 0..100_000 {
            assert!(taken.note(&a, relay) && taken.note(&b, relay), "{relay} is new");
            assert!(!taken.note(&a, relay) && !taken.note(&b, relay), "{relay} is known");
            let long_ago = relay.saturating_sub(KNOWN as u64 / 2 - 1);
            assert!(!taken.note(&a, long_ago), "{long_ago} is known still");
        }
        assert!(taken.now.len() + taken.before.len() <= 2 * KNOWN);
        assert!(taken.note(&a.next_incarnation(), 99_999), "another life is another node");
    }
}
