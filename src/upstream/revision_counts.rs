//! Who has met an upstream: calls, counted by the revisions of both sides.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::dialect::{FACTS, Revision};

/// Calls that were passed on, by the client's revision and by the one that the upstream spoke. There is a place
/// for every pair, so that it never grows.
#[derive(Debug, Default)]
pub(super) struct RevisionCounts([[AtomicU64; Revision::COUNT]; Revision::COUNT]);

/// Calls of clients of one revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevisionPair {
    /// The clients' revision.
    pub client: Revision,
    /// The one that the upstream spoke.
    pub server: Revision,
    /// How many calls were passed on.
    pub calls: u64,
}

impl RevisionCounts {
    pub(super) fn note(&self, client: Revision, server: Revision) {
        self.0[client as usize][server as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The pairs that have met, oldest first.
    pub(super) fn meetings(&self) -> Vec<RevisionPair> {
        let of = |place: usize| FACTS[place].revision;
        let row = |(client, row): (usize, &[AtomicU64; Revision::COUNT])| {
            let one = move |(server, calls): (usize, &AtomicU64)| RevisionPair {
                client: of(client),
                server: of(server),
                calls: calls.load(Ordering::Relaxed),
            };
            row.iter().enumerate().map(one).filter(|meeting| meeting.calls > 0).collect::<Vec<_>>()
        };
        self.0.iter().enumerate().flat_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted() {
        let met = RevisionCounts::default();
        assert_eq!(met.meetings(), []);
        met.note(Revision::NEWEST, Revision::NEWEST_HANDSHAKE);
        met.note(Revision::NEWEST, Revision::NEWEST_HANDSHAKE);
        met.note(Revision::NEWEST_HANDSHAKE, Revision::NEWEST);
        let meeting = |client, server, calls| RevisionPair { client, server, calls };
        let expected = [
            meeting(Revision::NEWEST_HANDSHAKE, Revision::NEWEST, 1),
            meeting(Revision::NEWEST, Revision::NEWEST_HANDSHAKE, 2),
        ];
        assert_eq!(met.meetings(), expected);
    }
}
