//! Pagination cursors: opaque to clients, sealed for one group.

use super::sealing::Seal;
use crate::upstream::List;

/// The position of the next page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The list being paged.
    pub list: List,
    /// Fingerprint of the list. Paging continues only on a view whose list has the same fingerprint.
    pub fingerprint: u64,
    /// The number of items before the page.
    pub offset: u32,
}

/// Length of an encoded cursor in bytes, before sealing.
const CURSOR_LEN: usize = 13;

impl Cursor {
    /// Encodes and seals the cursor.
    pub(super) fn seal(self, seal: &Seal, group: &str) -> String {
        let mut bytes = Vec::with_capacity(CURSOR_LEN);
        bytes.push(self.list as u8);
        bytes.extend_from_slice(&self.fingerprint.to_be_bytes());
        bytes.extend_from_slice(&self.offset.to_be_bytes());
        seal.seal_deterministic(&purpose(group), &bytes)
    }

    /// Opens a cursor; `None` when this gateway did not seal it for this group.
    pub(super) fn open(seal: &Seal, group: &str, text: &str) -> Option<Self> {
        let bytes: [u8; CURSOR_LEN] = seal.open(&purpose(group), text)?.try_into().ok()?;
        Some(Self {
            list: List::ALL.into_iter().find(|list| *list as u8 == bytes[0])?,
            fingerprint: u64::from_be_bytes(bytes[1..9].try_into().ok()?),
            offset: u32::from_be_bytes(bytes[9..].try_into().ok()?),
        })
    }
}

fn purpose(group: &str) -> String {
    format!("cursor {group}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip_and_forged_ones_are_refused() {
        let seal = Seal::random();
        let cursor = Cursor { list: List::Prompts, fingerprint: 7, offset: 3000 };
        let text = cursor.seal(&seal, "research");
        assert_eq!(Cursor::open(&seal, "research", &text), Some(cursor));
        assert_eq!(Cursor::open(&seal, "other", &text), None);
        assert_eq!(Cursor::open(&Seal::random(), "research", &text), None);
        for at in 0..text.len() {
            let mut modified = text.clone().into_bytes();
            modified[at] = if modified[at] == b'A' { b'B' } else { b'A' };
            let modified = String::from_utf8(modified).unwrap();
            assert_eq!(Cursor::open(&seal, "research", &modified), None, "{at}");
        }
        for invalid in ["", "x", "AAAA", &"A".repeat(500)] {
            assert_eq!(Cursor::open(&seal, "research", invalid), None);
        }
    }
}
