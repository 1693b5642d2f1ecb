//! Names of client programs, as lines of the access log have them.

use std::cell::RefCell;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};

use super::line::MAX_FIELD_BYTES;
use crate::protocol::Raw;

thread_local! {
    /// A client of the newest revision says its name in every request.
    static KNOWN: RefCell<ClientNames> = RefCell::new(ClientNames::new());
}

/// Names by the client info that they were read from.
type ClientNames = HashMap<Box<[u8]>, Option<Arc<str>>>;

/// Names that a thread knows; beyond them it begins anew.
const MAX_KNOWN: usize = 64;
/// Longest client info whose name is remembered.
const MAX_INFO_BYTES: usize = 1024;

/// The name and the version of a client program; `None` where it has no name.
pub(super) fn client_name(info: &Raw) -> Option<Arc<str>> {
    let said = info.as_bytes();
    if said.len() > MAX_INFO_BYTES {
        return read_name(info);
    }
    KNOWN.with_borrow_mut(|known| match known.get(said) {
        Some(name) => name.clone(),
        None => {
            if known.len() == MAX_KNOWN {
                known.clear();
            }
            let name = read_name(info);
            known.insert(said.into(), name.clone());
            name
        }
    })
}

fn read_name(info: &Raw) -> Option<Arc<str>> {
    let name: String = match info.texts(["name", "version"]) {
        [Some(name), Some(version)] => format!("{name}/{version}"),
        [Some(name), None] => name.into_owned(),
        [None, _] => return None,
    };
    let name = &name[..name.floor_char_boundary(MAX_FIELD_BYTES)];
    (!name.is_empty()).then(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_read_once_and_bounded() {
        let named = |info| client_name(&Raw::of(&info));
        for _ in 0..2 {
            assert_eq!(named(json!({"name": "ide", "version": "1.2"})).as_deref(), Some("ide/1.2"));
            assert_eq!(named(json!({"name": "ide"})).as_deref(), Some("ide"));
            assert_eq!((named(json!({"version": "1.2"})), named(json!({"name": ""}))), (None, None));
        }
        let long = "ä".repeat(MAX_INFO_BYTES);
        let name = named(json!({ "name": long })).unwrap();
        assert!(long.starts_with(&*name) && name.len() <= MAX_FIELD_BYTES);
        for n in 0..3 * MAX_KNOWN {
            assert_eq!(named(json!({ "name": n.to_string() })).as_deref(), Some(&*n.to_string()));
        }
        assert!(KNOWN.with_borrow(|known| known.len() <= MAX_KNOWN));
    }
}
