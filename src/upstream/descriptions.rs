//! Descriptions as a server gave them first: one that changes later is a reason to look.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

use parking_lot::Mutex;

use super::lists::{CatalogList, List};
use crate::protocol::Raw;

/// Hashes of the descriptions that the items of each list had when they were seen first.
#[derive(Debug, Default)]
pub struct FirstDescriptions([Mutex<HashMap<Box<str>, u64>>; List::ALL.len()]);

/// Names that are remembered of one list; later ones are not watched.
const MAX_NAMES: usize = 10_000;

impl FirstDescriptions {
    /// Remembers the descriptions of items that were not seen before.
    pub(super) fn note(&self, list: List, listed: &CatalogList) {
        let mut known = self.0[list as usize].lock();
        for item in &listed.items {
            let Some(name) = item.get(list.item_key()) else { continue };
            let Some(name) = name.text() else { continue };
            if known.len() < MAX_NAMES && !known.contains_key(name.as_ref()) {
                known.insert(name.as_ref().into(), hash(item));
            }
        }
    }

    /// Whether an item has another description than when it was seen first.
    pub fn has_changed(&self, list: List, name: &str, item: &Raw) -> bool {
        self.0[list as usize].lock().get(name).is_some_and(|first| *first != hash(item))
    }
}

fn hash(item: &Raw) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(item.get("description").as_ref().map_or(b"", Raw::as_bytes));
    hasher.finish()
}
