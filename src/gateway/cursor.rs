//! Pagination cursors: opaque to clients, sealed for one group and one caller.

use super::sealing::Seal;
use crate::call::Caller;
use crate::identity::Credential;
use crate::protocol::Raw;
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
    /// Encodes and seals the cursor for callers without a credential.
    pub(super) fn seal(self, seal: &Seal, group: &str) -> String {
        self.seal_for(seal, &purpose(group, None))
    }

    fn seal_for(self, seal: &Seal, purpose: &str) -> String {
        let mut bytes = Vec::with_capacity(CURSOR_LEN);
        bytes.push(self.list as u8);
        bytes.extend_from_slice(&self.fingerprint.to_be_bytes());
        bytes.extend_from_slice(&self.offset.to_be_bytes());
        seal.seal_deterministic(purpose, &bytes)
    }

    /// Opens a cursor; `None` when this gateway did not seal it for this group and caller.
    pub(super) fn open(seal: &Seal, group: &str, caller: &Caller, text: &str) -> Option<Self> {
        Self::open_for(seal, &purpose(group, Some(caller)), text)
    }

    fn open_for(seal: &Seal, purpose: &str, text: &str) -> Option<Self> {
        let bytes: [u8; CURSOR_LEN] = seal.open(purpose, text)?.try_into().ok()?;
        Some(Self {
            list: List::ALL.into_iter().find(|list| *list as u8 == bytes[0])?,
            fingerprint: u64::from_be_bytes(bytes[1..9].try_into().ok()?),
            offset: u32::from_be_bytes(bytes[9..].try_into().ok()?),
        })
    }
}

/// Seals the cursor of a page for one caller. Pages are rendered once for all, with cursors for callers without a
/// credential.
pub(super) fn bind_to_caller(page: Raw, seal: &Seal, group: &str, caller: &Caller) -> Raw {
    if !is_known(caller) {
        return page;
    }
    let shared = purpose(group, None);
    let cursor = page.get("nextCursor").and_then(|cursor| Cursor::open_for(seal, &shared, &cursor.text()?));
    match cursor {
        Some(cursor) => {
            let own = cursor.seal_for(seal, &purpose(group, Some(caller)));
            page.edit().set("nextCursor", Raw::of(&own)).finish()
        }
        None => page,
    }
}

/// Whether a credential tells the caller from others.
fn is_known(caller: &Caller) -> bool {
    !matches!(caller.identity.credential, Credential::Anonymous | Credential::Local)
}

/// Associated data of the seal: binds a cursor to its group and, where the caller is known, to the caller.
fn purpose(group: &str, caller: Option<&Caller>) -> String {
    match caller.filter(|caller| is_known(caller)) {
        Some(caller) => format!("cursor {group} {}", caller.id()),
        None => format!("cursor {group}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;

    #[test]
    fn cursors_round_trip_and_forged_ones_are_refused() {
        let seal = Seal::random();
        let anyone = Caller::local(Identity::anonymous());
        let open = |seal: &Seal, group: &str, text: &str| Cursor::open(seal, group, &anyone, text);
        let cursor = Cursor { list: List::Prompts, fingerprint: 7, offset: 3000 };
        let text = cursor.seal(&seal, "research");
        assert_eq!(open(&seal, "research", &text), Some(cursor));
        assert_eq!(open(&seal, "other", &text), None);
        assert_eq!(open(&Seal::random(), "research", &text), None);
        for at in 0..text.len() {
            let mut modified = text.clone().into_bytes();
            modified[at] = if modified[at] == b'A' { b'B' } else { b'A' };
            let modified = String::from_utf8(modified).unwrap();
            assert_eq!(open(&seal, "research", &modified), None, "{at}");
        }
        for invalid in ["", "x", "AAAA", &"A".repeat(500)] {
            assert_eq!(open(&seal, "research", invalid), None);
        }
    }

    #[test]
    fn a_cursor_is_of_its_caller() {
        let seal = Seal::random();
        let callers = ["ann", "bob"].map(|name| Identity::new(name, Credential::Token(name.into())));
        let [ann, bob] = callers.map(Caller::local);
        let cursor = Cursor { list: List::Tools, fingerprint: 7, offset: 10 };
        let shared = cursor.seal(&seal, "research");
        let page = Raw::of(&serde_json::json!({ "tools": [], "nextCursor": shared }));
        let own = bind_to_caller(page.clone(), &seal, "research", &ann).get("nextCursor").unwrap();
        let own = own.text().unwrap();
        assert_eq!(Cursor::open(&seal, "research", &ann, &own), Some(cursor));
        for (caller, text) in [(&bob, &*own), (&ann, &*shared), (&Caller::local(Identity::anonymous()), &*own)] {
            assert_eq!(Cursor::open(&seal, "research", caller, text), None);
        }
        let local = bind_to_caller(page.clone(), &seal, "research", &Caller::local(Identity::local()));
        assert_eq!(local.as_bytes(), page.as_bytes());
        let last = Raw::of(&serde_json::json!({ "tools": [] }));
        assert_eq!(bind_to_caller(last.clone(), &seal, "research", &ann).as_bytes(), last.as_bytes());
    }
}
