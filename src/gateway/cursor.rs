//! Where the next page of a list begins, as clients carry it.

use super::sealing::Seal;
use crate::upstream::List;

/// Where a page begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    /// On which list.
    pub list: List,
    /// With what on it: a list that is still, or again, the same goes on where it was left.
    pub print: u64,
    /// After how many items.
    pub offset: u32,
}

/// Bytes of a cursor.
const LENGTH: usize = 13;

impl Cursor {
    /// As a client carries it.
    pub(super) fn seal(self, seal: &Seal, group: &str) -> String {
        let mut bytes = Vec::with_capacity(LENGTH);
        bytes.push(self.list as u8);
        bytes.extend_from_slice(&self.print.to_be_bytes());
        bytes.extend_from_slice(&self.offset.to_be_bytes());
        seal.seal_deterministic(&purpose(group), &bytes)
    }

    /// As it came back; nothing when it is none of ours.
    pub(super) fn open(seal: &Seal, group: &str, text: &str) -> Option<Self> {
        let bytes: [u8; LENGTH] = seal.open(&purpose(group), text)?.try_into().ok()?;
        Some(Self {
            list: List::ALL.into_iter().find(|list| *list as u8 == bytes[0])?,
            print: u64::from_be_bytes(bytes[1..9].try_into().ok()?),
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
    fn cursors_come_back_and_cannot_be_made_up() {
        let seal = Seal::random();
        let cursor = Cursor { list: List::Prompts, print: 7, offset: 3000 };
        let text = cursor.seal(&seal, "research");
        assert_eq!(Cursor::open(&seal, "research", &text), Some(cursor));
        assert_eq!(Cursor::open(&seal, "other", &text), None);
        assert_eq!(Cursor::open(&Seal::random(), "research", &text), None);
        for at in 0..text.len() {
            let mut touched = text.clone().into_bytes();
            touched[at] = if touched[at] == b'A' { b'B' } else { b'A' };
            let touched = String::from_utf8(touched).unwrap();
            assert_eq!(Cursor::open(&seal, "research", &touched), None, "{at}");
        }
        for rubbish in ["", "x", "AAAA", &"A".repeat(500)] {
            assert_eq!(Cursor::open(&seal, "research", rubbish), None);
        }
    }
}
