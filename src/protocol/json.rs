//! Raw JSON: validated text that is forwarded byte for byte.
//!
//! [`Raw`] is a cheap handle on validated text. [`members`] iterates over one object without descending, and
//! [`Edit`] sets or removes members while every other byte stays.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use super::scan::depth_within;
use super::scan::{skip_space, skip_string, skip_value};

/// One JSON value as received text, reference counted.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Raw(Bytes);

/// The position of one member in the text of its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The key with its quotes.
    pub key: Range<usize>,
    /// Whether the key has an escape, so that it must be unescaped to be compared.
    pub escaped: bool,
    /// The value without surrounding white space.
    pub value: Range<usize>,
}

/// Edits to the members of one object, applied together by [`Edit::finish`].
#[derive(Debug)]
pub struct Edit<'a> {
    object: &'a Raw,
    changes: Vec<MemberEdit<'a>>,
}

/// Sets a member, or removes it when `value` is `None`.
#[derive(Debug)]
struct MemberEdit<'a> {
    key: Cow<'a, str>,
    value: Option<Raw>,
    done: bool,
}

/// Iterator over the members of one object, in order. Created by [`members`].
#[derive(Debug)]
pub struct Members<'a> {
    text: &'a [u8],
    at: usize,
}

// === impl Raw ===

impl Raw {
    /// Validates that `text` is one JSON value and trims surrounding white space.
    ///
    /// # Errors
    /// When `text` is not valid JSON or not valid UTF-8.
    pub fn parse(text: &Bytes) -> Result<Self, serde_json::Error> {
        let value: &RawValue = serde_json::from_slice(text)?;
        let inner = text.slice_ref(value.get().as_bytes());
        Ok(Self(inner))
    }

    /// The value at `span` of this text, without copying.
    pub(super) fn slice_at(&self, span: Range<usize>) -> Self {
        Self(self.0.slice(span))
    }

    /// Replaces the value at `span`.
    pub(super) fn splice(&self, span: Range<usize>, value: &Self) -> Self {
        let text = &self.0;
        let mut out = BytesMut::with_capacity(text.len() - span.len() + value.0.len());
        for part in [&text[..span.start], &value.0, &text[span.end..]] {
            out.extend_from_slice(part);
        }
        Self::trusted(out.freeze())
    }

    /// The slice of `text` that `value` borrows, without copying. It must be valid JSON.
    pub(super) fn slice(text: &Bytes, value: &str) -> Self {
        Self(text.slice_ref(value.as_bytes()))
    }

    /// Serializes a value.
    ///
    /// # Panics
    /// When the value cannot be serialized: a map with keys that are not strings.
    pub fn of(value: &(impl Serialize + ?Sized)) -> Self {
        let text = serde_json::to_vec(value).expect("the value has a JSON form");
        Self(text.into())
    }

    /// A literal that must be valid JSON.
    pub const fn constant(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// Text assembled from valid parts; validated in debug builds only.
    pub(crate) fn trusted(text: Bytes) -> Self {
        debug_assert!(serde_json::from_slice::<&RawValue>(&text).is_ok());
        Self(text)
    }

    /// An empty object.
    pub const fn empty() -> Self {
        Self::constant("{}")
    }

    /// The JSON text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The JSON text, reference counted.
    pub fn bytes(&self) -> Bytes {
        self.0.clone()
    }

    /// Whether this is an object.
    pub fn is_object(&self) -> bool {
        self.0.first() == Some(&b'{')
    }

    /// Whether this is an array.
    pub fn is_array(&self) -> bool {
        self.0.first() == Some(&b'[')
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        self.0.first() == Some(&b'n')
    }

    /// The value of a member, if this is an object that has it. Of duplicate keys the last one counts, as in
    /// most parsers.
    pub fn get(&self, key: &str) -> Option<Raw> {
        let mut found = None;
        for member in members(&self.0) {
            if member.is(&self.0, key) {
                found = Some(member.value);
            }
        }
        found.map(|at| Raw(self.0.slice(at)))
    }

    /// The values of several members in one pass; of duplicates the last one counts, as in [`Raw::get`].
    pub fn pick<const N: usize>(&self, keys: [&str; N]) -> [Option<Raw>; N] {
        let mut found = [const { None }; N];
        for member in members(&self.0) {
            if let Some(n) = keys.iter().position(|name| member.is(&self.0, name)) {
                found[n] = Some(member.value);
            }
        }
        found.map(|at| at.map(|at| Raw(self.0.slice(at))))
    }

    /// The texts of several members in one pass; `None` for one that is no string.
    pub fn texts<const N: usize>(&self, keys: [&str; N]) -> [Option<Cow<'_, str>>; N] {
        let mut found = [const { None }; N];
        for member in members(&self.0) {
            if let Some(n) = keys.iter().position(|name| member.is(&self.0, name)) {
                found[n] = leading_string(&self.0[member.value]);
            }
        }
        found
    }

    /// Like [`Raw::pick`], but none of these members may stand twice: two readers could take different ones.
    ///
    /// # Errors
    /// The key that stands twice.
    pub fn pick_unique<const N: usize>(&self, keys: [&'static str; N]) -> Result<[Option<Raw>; N], &'static str> {
        let mut found = [const { None }; N];
        for member in members(&self.0) {
            if let Some(n) = keys.iter().position(|name| member.is(&self.0, name))
                && found[n].replace(member.value).is_some()
            {
                return Err(keys[n]);
            }
        }
        Ok(found.map(|at| at.map(|at| Raw(self.0.slice(at)))))
    }

    /// Whether this is an object with at least one member.
    pub fn has_members(&self) -> bool {
        members(&self.0).next().is_some()
    }

    /// Whether a predicate holds for every member. It gets the key as written, without quotes, and the value.
    pub fn all_members(&self, mut holds: impl FnMut(&[u8], &[u8]) -> bool) -> bool {
        let text = &self.0;
        members(text).all(|member| holds(&text[member.key.start + 1..member.key.end - 1], &text[member.value]))
    }

    /// The value at a path of members.
    pub fn at(&self, path: &[&str]) -> Option<Raw> {
        let mut here = self.clone();
        for key in path {
            here = here.get(key)?;
        }
        Some(here)
    }

    /// The members of this object.
    pub fn entries(&self) -> impl Iterator<Item = (Cow<'_, str>, Raw)> {
        members(&self.0).map(|member| (key_text(&self.0[member.key]), Raw(self.0.slice(member.value))))
    }

    /// The elements of this array; empty when it is not an array.
    pub fn items(&self) -> Vec<Raw> {
        if !self.is_array() {
            return Vec::new();
        }
        let items: Vec<&RawValue> = serde_json::from_slice(&self.0).unwrap_or_default();
        items.into_iter().map(|item| Raw::slice(&self.0, item.get())).collect()
    }

    /// The unescaped string, if this is a string without lone surrogates.
    pub fn text(&self) -> Option<Cow<'_, str>> {
        leading_string(&self.0)
    }

    /// Deserializes the value.
    ///
    /// # Errors
    /// When the value is not of that type.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }

    /// Removes members in one pass; unchanged bytes when none matches. `drop` gets the key without quotes and escapes,
    /// and the value.
    pub fn without(&self, mut drop: impl FnMut(&[u8], &[u8]) -> bool) -> Raw {
        let text = &self.0;
        let mut out: Option<BytesMut> = None;
        let mut end = 0; // everything before this is in `out` or was left out
        let mut kept = false;
        for member in members(text) {
            let key = match member.escaped {
                true => Cow::Owned(key_text(&text[member.key.clone()]).into_owned().into_bytes()),
                false => Cow::Borrowed(&text[member.key.start + 1..member.key.end - 1]),
            };
            match (drop(&key, &text[member.value.clone()]), &mut out) {
                (true, Some(_)) => {}
                (true, None) => {
                    // Remove the comma before the member with it, or keep only the brace.
                    let mut begun = BytesMut::with_capacity(text.len());
                    begun.extend_from_slice(if kept { &text[..end] } else { b"{" });
                    out = Some(begun);
                }
                (false, Some(out)) => {
                    copy_gap(out, text, end..member.value.end, kept);
                    kept = true;
                }
                (false, None) => kept = true,
            }
            end = member.value.end;
        }
        match out {
            Some(mut out) => {
                out.extend_from_slice(&text[end..]);
                Raw::trusted(out.freeze())
            }
            None => self.clone(),
        }
    }

    /// Replaces one member by a function of its value; unchanged bytes when the result is equal. A value that
    /// is not an object stays as it is.
    pub fn map_member(&self, key: &str, change: impl FnOnce(Option<Raw>) -> Raw) -> Raw {
        let text = &self.0;
        let (mut found, mut count) = (None, 0);
        for member in members(text) {
            if member.is(text, key) {
                found = Some(member.value);
                count += 1;
            }
        }
        let value = change(found.clone().map(|at| Raw(text.slice(at))));
        if count > 1 || !self.is_object() {
            return self.edit().set(key, value).finish();
        }
        if found.as_ref().is_some_and(|at| text[at.clone()] == *value.as_bytes()) {
            return self.clone();
        }
        if let Some(at) = found {
            return self.splice(at, &value);
        }
        self.append_member(key, &value).0
    }

    /// Adds a member after the others, and returns where its value starts. This must be an object.
    pub(super) fn append_member(&self, key: &str, value: &Raw) -> (Raw, usize) {
        let text = &self.0;
        let last = text[..text.len() - 1].trim_ascii_end().len();
        let mut out = BytesMut::with_capacity(text.len() + key.len() + value.0.len() + 4);
        out.extend_from_slice(&text[..last]);
        if last > 1 {
            out.put_u8(b',');
        }
        put_string(&mut out, key);
        out.put_u8(b':');
        let start = out.len();
        out.extend_from_slice(&value.0);
        out.extend_from_slice(&text[last..]);
        (Raw::trusted(out.freeze()), start)
    }

    /// Starts an edit of this object.
    pub fn edit(&self) -> Edit<'_> {
        Edit { object: self, changes: Vec::with_capacity(EDIT_CAPACITY) }
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl Serialize for Raw {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value: &RawValue = serde_json::from_slice(&self.0).map_err(serde::ser::Error::custom)?;
        value.serialize(serializer)
    }
}

// === impl Edit ===

/// Initial capacity for edits; more are rare.
const EDIT_CAPACITY: usize = 8;

impl<'a> Edit<'a> {
    /// Sets a member: in place when it exists, else at the end.
    #[must_use]
    pub fn set(mut self, key: impl Into<Cow<'a, str>>, value: Raw) -> Self {
        self.changes.push(MemberEdit { key: key.into(), value: Some(value), done: false });
        self
    }

    /// Removes a member if it exists.
    #[must_use]
    pub fn remove(mut self, key: impl Into<Cow<'a, str>>) -> Self {
        self.changes.push(MemberEdit { key: key.into(), value: None, done: false });
        self
    }

    /// Applies the edits; unchanged bytes when nothing changes.
    ///
    /// A value that is not an object stays as it is.
    pub fn finish(mut self) -> Raw {
        if self.changes.is_empty() || !self.object.is_object() {
            return self.object.clone();
        }
        let text = &self.object.0;
        let mut out = BytesMut::with_capacity(text.len() + 64);
        let mut copied = 0; // everything before this is in `out` or was left out
        let mut kept = false; // whether `out` holds a member already
        let mut changed = false;
        for member in members(text) {
            let mut changes = self.changes.iter_mut().rev();
            match changes.find(|change| member.is(text, &change.key)) {
                Some(MemberEdit { value: None, .. }) => {
                    // Remove the comma before the member with it, or keep only the brace.
                    if copied == 0 {
                        out.put_u8(b'{');
                    }
                    copied = member.value.end;
                    changed = true;
                    continue;
                }
                Some(MemberEdit { value: Some(value), done, .. }) => {
                    copy_gap(&mut out, text, copied..member.value.start, kept);
                    out.extend_from_slice(value.as_bytes());
                    *done = true;
                    changed = true;
                }
                None => copy_gap(&mut out, text, copied..member.value.end, kept),
            }
            copied = member.value.end;
            kept = true;
        }
        for (n, MemberEdit { key, value, done }) in self.changes.iter().enumerate() {
            let superseded = || self.changes[n + 1..].iter().any(|later| later.key == *key);
            let Some(value) = value.as_ref().filter(|_| !done && !superseded()) else { continue };
            if copied == 0 {
                out.put_u8(b'{');
                copied = 1;
            }
            if kept {
                out.put_u8(b',');
            }
            put_string(&mut out, key);
            out.put_u8(b':');
            out.extend_from_slice(value.as_bytes());
            kept = true;
            changed = true;
        }
        if !changed {
            return self.object.clone();
        }
        out.extend_from_slice(&text[copied..]);
        Raw::trusted(out.freeze())
    }
}

/// Writes a quoted and escaped string.
pub(super) fn put_string(out: &mut BytesMut, text: &str) {
    // Without an early exit, so that the loop is vectorized.
    if text.bytes().fold(false, |any, byte| any | (byte < b' ') | (byte == b'"') | (byte == b'\\')) {
        serde_json::to_writer(out.writer(), text).expect("a string has a JSON form");
        return;
    }
    out.put_u8(b'"');
    out.extend_from_slice(text.as_bytes());
    out.put_u8(b'"');
}

/// Copies `range`, which starts at the brace or right after the previous member. Skips the leading comma when
/// all previous members were removed.
fn copy_gap(out: &mut BytesMut, text: &[u8], range: Range<usize>, kept: bool) {
    let mut part = &text[range.clone()];
    if range.start > 0 && !kept {
        let comma = part.iter().position(|b| *b == b',').map_or(0, |n| n + 1);
        part = &part[comma..];
    }
    out.extend_from_slice(part);
}

// === impl Member, Members ===

impl Member {
    /// Whether this member of `text` has that key.
    pub(super) fn is(&self, text: &[u8], key: &str) -> bool {
        let quoted = &text[self.key.clone()];
        if self.escaped { key_text(quoted) == key } else { quoted[1..quoted.len() - 1] == *key.as_bytes() }
    }
}

/// Iterates over the members of the object in `text`, which must be valid JSON; empty when it is not an
/// object.
pub fn members(text: &[u8]) -> Members<'_> {
    let at = match text.first() {
        Some(b'{') => 1,
        _ => text.len(),
    };
    Members { text, at }
}

impl Iterator for Members<'_> {
    type Item = Member;

    fn next(&mut self) -> Option<Member> {
        let text = self.text;
        let mut at = skip_space(text, self.at);
        if text.get(at) == Some(&b',') {
            at = skip_space(text, at + 1);
        }
        if text.get(at) != Some(&b'"') {
            self.at = text.len();
            return None;
        }
        let (end, escaped) = skip_string(text, at);
        let key = at..end;
        at = skip_space(text, end);
        let start = skip_space(text, at + 1); // past the colon
        let end = skip_value(text, start);
        self.at = end;
        Some(Member { key, escaped, value: start..end })
    }
}

/// The unescaped text of a quoted key.
pub(super) fn key_text(quoted: &[u8]) -> Cow<'_, str> {
    leading_string(quoted).unwrap_or(Cow::Borrowed("\u{fffd}"))
}

/// The unescaped text of the string that a valid text begins with; `None` for a lone surrogate, or where something else
/// begins.
pub(super) fn leading_string(text: &[u8]) -> Option<Cow<'_, str>> {
    if text.first() != Some(&b'"') {
        return None;
    }
    let (end, escaped) = skip_string(text, 0);
    match escaped {
        true => serde_json::from_slice::<String>(&text[..end]).map(Cow::Owned).ok(),
        false => std::str::from_utf8(text.get(1..end - 1)?).map(Cow::Borrowed).ok(),
    }
}

/// The value that a text of a test stands for.
#[cfg(test)]
pub(crate) fn raw(text: &str) -> Raw {
    Raw::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_are_those_of_strings_and_the_last_of_duplicates() {
        let value = raw(r#"{"a":"1","b":2,"a":"x\ny","c":"\u00e9"}"#);
        assert_eq!(value.texts(["a", "b", "c", "d"]), [Some("x\ny".into()), None, Some("é".into()), None]);
        assert_eq!(raw("[]").texts(["a"]), [None]);
    }

    #[test]
    fn edits_keep_all_other_bytes() {
        let cases = [
            (r#"{"a":1}"#, "a", Some("2"), r#"{"a":2}"#),
            (r#"{ "a" : 1 , "b":2 }"#, "a", Some("9"), r#"{ "a" : 9 , "b":2 }"#),
            (r#"{ "a" : 1 , "b":2 }"#, "b", None, r#"{ "a" : 1 }"#),
            (r#"{"a":1,"b":2}"#, "a", None, r#"{"b":2}"#),
            (r#"{"a":1}"#, "a", None, "{}"),
            ("{}", "a", Some("1"), r#"{"a":1}"#),
            ("{ }", "a", Some("1"), r#"{"a":1 }"#),
            (r#"{"a":1}"#, "b", Some("[]"), r#"{"a":1,"b":[]}"#),
            (r#"{"a":1}"#, "b", None, r#"{"a":1}"#),
            (r#"{"\u0061":1}"#, "a", Some("2"), r#"{"\u0061":2}"#),
            (
                r#"{"a":1.0e2,"b":12345678901234567890123}"#,
                "c",
                Some("1"),
                r#"{"a":1.0e2,"b":12345678901234567890123,"c":1}"#,
            ),
            (r#"{"x":",}","a":"}"}"#, "x", None, r#"{"a":"}"}"#),
            ("[1]", "a", Some("1"), "[1]"),
        ];
        for (object, key, value, expected) in cases {
            let object = raw(object);
            let edit = match value {
                Some(value) => object.edit().set(key, raw(value)),
                None => object.edit().remove(key),
            };
            assert_eq!(edit.finish().to_string(), expected, "{object} {key}");
        }
    }

    #[test]
    fn members_are_removed_in_one_pass() {
        let cases = [
            (r#"{"a":1,"b":2,"c":3}"#, r#"{"b":2}"#),
            (r#"{ "b" : 2 , "a" : 1 }"#, r#"{ "b" : 2 }"#),
            (r#"{"a":1}"#, "{}"),
            (r#"{"b":{"a":1},"d":"a"}"#, r#"{"b":{"a":1},"d":"a"}"#),
            (r#"{"\u0061":1,"\u0062":2}"#, r#"{"\u0062":2}"#),
            ("{}", "{}"),
            ("[1]", "[1]"),
        ];
        for (object, expected) in cases {
            let left = raw(object).without(|key, _| matches!(key, b"a" | b"c"));
            assert_eq!(left.to_string(), expected, "{object}");
        }
    }

    #[test]
    fn several_edits_apply_together() {
        let object = raw(r#"{"a":1,"b":2,"c":3,"d":4}"#);
        let edited = object.edit().remove("a").remove("c").set("d", raw("true")).set("e", raw("null")).finish();
        assert_eq!(edited.to_string(), r#"{"b":2,"d":true,"e":null}"#);
    }

    #[test]
    fn last_edit_of_a_key_wins() {
        let object = raw(r#"{"a":1}"#);
        assert_eq!(object.edit().set("b", raw("1")).set("b", raw("2")).finish().to_string(), r#"{"a":1,"b":2}"#);
        assert_eq!(object.edit().set("b", raw("1")).remove("b").finish().to_string(), r#"{"a":1}"#);
    }

    #[test]
    fn depth_counts_brackets_outside_strings() {
        assert!(depth_within(br#"{"a":"[[[[[["}"#, 1));
        assert!(depth_within(b"[[[]]]", 3));
        assert!(!depth_within(b"[[[]]]", 2));
        assert!(depth_within(br#"["\"[[["]"#, 1));
    }

    #[test]
    fn nested_members_are_found() {
        let value = raw(r#"{"a":{"b":[{"c":1}],"d":"x"},"e":-1.5e3}"#);
        assert_eq!(value.at(&["a", "d"]).unwrap().text().unwrap(), "x");
        assert_eq!(value.get("e").unwrap().to_string(), "-1.5e3");
        assert_eq!(value.at(&["a", "b"]).unwrap().items()[0].to_string(), r#"{"c":1}"#);
        assert!(value.get("c").is_none());
    }

    #[test]
    fn member_is_mapped_in_place() {
        for (object, expected) in [
            (r#"{ "a" : 1 , "b":2 }"#, r#"{ "a" : [1] , "b":2 }"#),
            (r#"{"b":2 }"#, r#"{"b":2,"a":[] }"#),
            (r#"{"\u0061":1}"#, r#"{"\u0061":[1]}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":[2],"a":[2]}"#),
            ("{ }", r#"{"a":[] }"#),
            ("[1]", "[1]"),
        ] {
            let listed = |value: Option<Raw>| Raw::of(&value.into_iter().collect::<Vec<_>>());
            assert_eq!(raw(object).map_member("a", listed).to_string(), expected, "{object}");
        }
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<i32>().prop_map(|n| (f64::from(n) / 4.0).into()),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::hash_map(".*", inner, 0..6)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Edits of the text must agree with edits of the parsed value.
        #[test]
        fn text_edits_agree_with_value_edits(value in any_json(), key in ".*", with in any_json(), pretty: bool) {
            let text = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) };
            let object = Raw::parse(&text.unwrap().into()).unwrap();
            let some_key = value.as_object().and_then(|map| map.keys().next().cloned()).unwrap_or_default();
            for key in [key, some_key] {
                let mut expected = value.clone();
                if let Some(map) = expected.as_object_mut() {
                    map.insert(key.clone(), with.clone());
                }
                let set = object.edit().set(key.as_str(), Raw::of(&with)).finish();
                prop_assert_eq!(set.read::<serde_json::Value>().unwrap(), expected);

                let mut expected = value.clone();
                if let Some(map) = expected.as_object_mut() {
                    map.remove(&key);
                }
                let removed = object.edit().remove(key.as_str()).finish();
                prop_assert_eq!(removed.read::<serde_json::Value>().unwrap(), expected);
                if value.as_object().is_none_or(|map| !map.contains_key(&key)) {
                    prop_assert_eq!(&removed, &object);
                }
            }
        }
    }
}
