//! What happened between this node and the others: requests of clients that it relayed to each, and sessions it took over.

use std::collections::{BTreeMap, VecDeque};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::store::NodeId;

/// A session that this node adopted.
#[derive(Debug, Clone)]
pub struct Takeover {
    /// When it was adopted.
    pub at: SystemTime,
    /// The session, by a name that tells nobody its id.
    pub session: String,
    /// The node that owned it; none if it had been released.
    pub from: Option<NodeId>,
}

/// What is remembered for operators.
#[derive(Debug, Default)]
pub(super) struct PeerHistory {
    relayed: Mutex<BTreeMap<String, u64>>,
    takeovers: Mutex<VecDeque<Takeover>>,
}

/// Takeovers that are remembered; the oldest are forgotten.
const MAX_TAKEOVERS: usize = 50;
/// Nodes that relays are counted for; those to further ones are not.
const MAX_NODES: usize = 1000;

impl PeerHistory {
    pub(super) fn note_relay(&self, to: &NodeId) {
        let mut relayed = self.relayed.lock();
        if let Some(count) = relayed.get_mut(&**to.name()) {
            *count += 1;
        } else if relayed.len() < MAX_NODES {
            relayed.insert(to.name().to_string(), 1);
        }
    }

    pub(super) fn relayed(&self) -> Vec<(String, u64)> {
        self.relayed.lock().iter().map(|(name, count)| (name.clone(), *count)).collect()
    }

    pub(super) fn note_takeover(&self, takeover: Takeover) {
        let mut takeovers = self.takeovers.lock();
        if takeovers.len() == MAX_TAKEOVERS {
            takeovers.pop_front();
        }
        takeovers.push_back(takeover);
    }

    pub(super) fn takeovers(&self) -> Vec<Takeover> {
        self.takeovers.lock().iter().rev().cloned().collect()
    }
}
