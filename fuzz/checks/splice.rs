//! JSON splicing: editing members of an object as text gives the same result as editing a map, and leaves all other
//! members byte for byte in their order.
//!
//! The input is JSON text, optionally followed by the byte 0xff, which cannot occur in JSON, and bytes from which the
//! edits are generated.
//!
//! For any JSON, `members`, `entries`, `get`, `items` and `text` find exactly what serde_json finds.
//!
//! Duplicate keys follow the contract of most parsers, serde_json's maps among them: `get` returns the last one, an
//! edit applies to all of them, and `entries` yields them all. `entries` is compared with a list that keeps
//! duplicates. The comparison with maps skips values that serde_json cannot represent, such as `1e999`; edits skip
//! objects with keys that are not valid strings, such as `"\ud800"`.

use std::fmt;

use bytes::Bytes;
use rialto::protocol::Raw;
use rialto::protocol::json::members;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::choices::Choices;

/// Edits of one object; more would only repeat each other.
const MAX_EDITS: usize = 16;

/// The members of an object as serde_json reads them, including duplicates.
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

pub fn check(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 0xff);
    let text = parts.next().unwrap_or_default();
    let value = serde_json::from_slice::<Value>(text);
    let Ok(raw) = Raw::parse(&Bytes::copy_from_slice(text)) else {
        assert!(value.is_err(), "serde_json accepts it");
        return;
    };
    check_reads_against_serde_json(&raw);
    let Some(own) = keys(&raw) else { return };
    let mut choices = Choices::new(parts.next().unwrap_or_default());
    let mut changes: Vec<(&str, Option<Raw>)> = Vec::new();
    while !choices.is_empty() && changes.len() < MAX_EDITS {
        changes.push(draw_change(&mut choices, &own, &raw));
    }
    check_edits_against_a_map(&raw, &own, &changes);
}

/// An edit: a key of the object or another one, and its new value. `None` removes the key.
fn draw_change<'k>(choices: &mut Choices<'k>, own: &'k [String], object: &Raw) -> (&'k str, Option<Raw>) {
    let (key, value) = (choices.byte(), choices.byte());
    let key = match key % 2 {
        0 => own.get(usize::from(key / 2) % own.len().max(1)).map_or("", String::as_str),
        _ => choices.text(),
    };
    let value = match value % 5 {
        0 => None,
        1 => Some(Raw::constant("null")),
        2 => Some(Raw::of(&(i64::from(choices.byte()) << (choices.byte() % 56)))),
        3 => Some(Raw::of(choices.text())),
        // The object itself, so that nested values are set too.
        _ => Some(object.clone()),
    };
    (key, value)
}

fn check_reads_against_serde_json(raw: &Raw) {
    let string = raw.read::<String>().ok();
    assert_eq!(raw.text().as_deref(), string.as_deref());

    let items = raw.read::<Vec<&RawValue>>().unwrap_or_default();
    let items: Vec<&str> = items.into_iter().map(RawValue::get).collect();
    let found = raw.items();
    assert_eq!(found.iter().map(text).collect::<Vec<_>>(), items);
    for item in &found {
        assert_eq!(item.text().as_deref(), item.read::<String>().ok().as_deref());
    }

    if !raw.is_object() {
        assert_eq!(members(raw.as_bytes()).count(), 0);
        assert_eq!(raw.entries().count(), 0);
        return;
    }
    // A key that is not a valid string, such as a lone surrogate, becomes the replacement character. It must not
    // match any other key.
    let by_range = members(raw.as_bytes()).map(|member| {
        let key = serde_json::from_slice(&raw.as_bytes()[member.key]).unwrap_or_else(|_| "\u{fffd}".to_owned());
        (key, Raw::parse(&Bytes::copy_from_slice(&raw.as_bytes()[member.value])).expect("a member is JSON"))
    });
    let by_range: Vec<(String, Raw)> = by_range.collect();
    for (_, member) in &by_range {
        assert_eq!(member.text().as_deref(), member.read::<String>().ok().as_deref());
    }
    for key in by_range.iter().map(|(key, _)| key.as_str()).chain([""]) {
        let last = by_range.iter().rfind(|(other, _)| other == key);
        assert_eq!(raw.get(key).as_ref(), last.map(|(_, value)| value), "{key:?}");
    }
    let entries = raw.entries().map(|(key, value)| (key.into_owned(), value));
    assert_eq!(entries.collect::<Vec<_>>(), by_range);
    if let Ok(Pairs(pairs)) = raw.read() {
        let theirs: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (key.as_str(), value.get())).collect();
        assert_eq!(by_range.iter().map(|(key, value)| (key.as_str(), text(value))).collect::<Vec<_>>(), theirs);
    }
}

fn check_edits_against_a_map(raw: &Raw, own: &[String], changes: &[(&str, Option<Raw>)]) {
    let edited = changes.iter().fold(raw.edit(), |edit, (key, value)| match value {
        Some(value) => edit.set(*key, value.clone()),
        None => edit.remove(*key),
    });
    let edited = edited.finish();
    assert_eq!(Raw::parse(&edited.bytes()).as_ref().ok(), Some(&edited), "the result is JSON");

    let hits = |(key, value): &(&str, Option<Raw>)| value.is_some() || own.iter().any(|own| own == key);
    if !raw.is_object() || !changes.iter().any(hits) {
        assert_eq!(&edited, raw, "no edit applied");
    }

    let untouched = |of: &Raw| -> Option<Vec<(String, String)>> {
        let Pairs(pairs) = of.read().ok()?;
        let kept = pairs.into_iter().filter(|(key, _)| !changes.iter().any(|(other, _)| other == key));
        Some(kept.map(|(key, value)| (key, value.get().to_owned())).collect())
    };
    assert_eq!(untouched(&edited), untouched(raw), "other members are unchanged");

    // A map instead of a `Value`: serde_json gives one top-level key of a `Value` a special meaning.
    if let Ok(mut expected) = raw.read::<Map<String, Value>>() {
        for (key, value) in changes {
            match value.as_ref().map(Raw::read::<Value>) {
                Some(Ok(value)) => _ = expected.insert((*key).to_owned(), value),
                Some(Err(_)) => return,
                None => _ = expected.remove(*key),
            }
        }
        assert_eq!(edited.read::<Map<String, Value>>().expect("the values were readable before"), expected);
    }
}

/// The keys of an object, empty for other values; `None` if a key is not a valid string.
fn keys(raw: &Raw) -> Option<Vec<String>> {
    if !raw.is_object() {
        return Some(Vec::new());
    }
    raw.read().ok().map(|Pairs(pairs)| pairs.into_iter().map(|(key, _)| key).collect())
}

fn text(raw: &Raw) -> &str {
    std::str::from_utf8(raw.as_bytes()).expect("JSON is UTF-8")
}

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}
