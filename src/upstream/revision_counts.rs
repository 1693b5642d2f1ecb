//! Calls by the revisions of client and upstream.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::dialect::{FEATURES, Revision};

/// Forwarded calls by client and server revision: a fixed matrix, so memory is bounded.
#[derive(Debug, Default)]
pub(super) struct RevisionCounts([[AtomicU64; Revision::COUNT]; Revision::COUNT]);

/// Calls between clients of one revision and an upstream of one revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevisionPair {
    /// Revision of the clients.
    pub client: Revision,
    /// Revision spoken to the upstream.
    pub server: Revision,
    /// Calls forwarded.
    pub calls: u64,
}

impl RevisionCounts {
    pub(super) fn increment(&self, client: Revision, server: Revision) {
        self.0[client as usize][server as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Pairs with at least one call, oldest client revision first.
    pub(super) fn pairs(&self) -> Vec<RevisionPair> {
        let revision_at = |index: usize| FEATURES[index].revision;
        let row = |(client, row): (usize, &[AtomicU64; Revision::COUNT])| {
            let cell = move |(server, calls): (usize, &AtomicU64)| RevisionPair {
                client: revision_at(client),
                server: revision_at(server),
                calls: calls.load(Ordering::Relaxed),
            };
            row.iter().enumerate().map(cell).filter(|pair| pair.calls > 0).collect::<Vec<_>>()
        };
        self.0.iter().enumerate().flat_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_revision_pair() {
        let counts = RevisionCounts::default();
        assert_eq!(counts.pairs(), []);
        counts.increment(Revision::NEWEST, Revision::NEWEST_HANDSHAKE);
        counts.increment(Revision::NEWEST, Revision::NEWEST_HANDSHAKE);
        counts.increment(Revision::NEWEST_HANDSHAKE, Revision::NEWEST);
        let pair = |client, server, calls| RevisionPair { client, server, calls };
        let expected = [
            pair(Revision::NEWEST_HANDSHAKE, Revision::NEWEST, 1),
            pair(Revision::NEWEST, Revision::NEWEST_HANDSHAKE, 2),
        ];
        assert_eq!(counts.pairs(), expected);
    }
}
