//! Exposed names of tools, prompts and resources in a group with several upstreams.
//!
//! A name is prefixed with the upstream's, `files__read`, and has at most 64 characters. A longer one, or one
//! with characters that model APIs refuse, is shortened and ends with a hash; it cannot be split again, so
//! names are resolved through a table. URIs are prefixed with `rialto://files/`, which is stripped again.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use foldhash::HashMap;

/// The maximum length of an exposed name, in bytes.
pub(super) const MAX_NAME_LEN: usize = 64;
/// Separates the upstream's name from the item's own.
const NAME_SEPARATOR: &str = "__";
/// Hexadecimal digits of a name hash.
const HASH_DIGITS: usize = 8;
/// The scheme of exposed URIs.
const URI_PREFIX: &str = "rialto://";

/// Resolves exposed names to members and their own names.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    by_exposed_name: HashMap<Box<str>, NameEntry>,
}

/// What an exposed name stands for.
#[derive(Debug)]
pub(super) struct NameEntry {
    /// Index of the member.
    pub(super) member: usize,
    /// The member's own name.
    pub(super) own: Box<str>,
    /// The number of names that were inserted before.
    pub(super) position: usize,
}

/// A name that two upstreams have, in a group without prefixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Collision {
    /// The name.
    pub name: String,
    /// Index of the member that keeps the name.
    pub first: usize,
    /// Index of the member whose item is left out.
    pub second: usize,
}

impl NameTable {
    /// An exposed name that is not in the table yet.
    pub(super) fn unique_name(&self, prefix: &str, name: &str) -> Box<str> {
        let plain = prefixed_name(prefix, name);
        if is_valid_name(&plain) && !name.is_empty() && !self.by_exposed_name.contains_key(plain.as_str()) {
            return plain.into();
        }
        let mut attempt = 0;
        loop {
            let shortened = shorten_with_hash(&plain, attempt);
            if !self.by_exposed_name.contains_key(shortened.as_str()) {
                return shortened.into();
            }
            attempt += 1;
        }
    }

    /// Inserts an exposed name for what the member calls `own`.
    ///
    /// # Errors
    /// The collision, when the exposed name is taken.
    pub(super) fn insert(&mut self, exposed: &str, member: usize, own: &str) -> Result<(), Collision> {
        match self.by_exposed_name.get(exposed) {
            Some(first) => Err(Collision { name: exposed.to_owned(), first: first.member, second: member }),
            None => {
                let position = self.by_exposed_name.len();
                self.by_exposed_name.insert(exposed.into(), NameEntry { member, own: own.into(), position });
                Ok(())
            }
        }
    }

    /// What an exposed name stands for.
    pub(super) fn resolve(&self, exposed: &str) -> Option<&NameEntry> {
        self.by_exposed_name.get(exposed)
    }
}

/// The name with that of its upstream in front, however long it is.
pub(super) fn prefixed_name(prefix: &str, name: &str) -> String {
    format!("{prefix}{NAME_SEPARATOR}{name}")
}

/// Whether all model APIs accept the name.
fn is_valid_name(name: &str) -> bool {
    name.len() <= MAX_NAME_LEN && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// Replaces refused characters, truncates the name and appends a hash of the original. `attempt` counts
/// attempts after a hash collision.
fn shorten_with_hash(name: &str, attempt: u32) -> String {
    let mut hash = Sha256::new();
    hash.update(name.as_bytes());
    if attempt > 0 {
        hash.update(attempt.to_le_bytes());
    }
    let digest = hash.finalize();
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "_.-".contains(letter) { letter } else { '_' };
    let mut short: String = name.chars().map(plain).take(MAX_NAME_LEN - HASH_DIGITS - 1).collect();
    short.push('_');
    for byte in &digest[..HASH_DIGITS / 2] {
        short.push_str(&format!("{byte:02x}"));
    }
    short
}

/// The URI or template that clients see. `http` and `https` URIs are unchanged, as clients may fetch them
/// directly.
pub(super) fn expose_uri<'u>(prefix: Option<&str>, uri: &'u str) -> Cow<'u, str> {
    match prefix {
        Some(prefix) if !uri.starts_with("https://") && !uri.starts_with("http://") => {
            Cow::Owned(format!("{URI_PREFIX}{prefix}/{uri}"))
        }
        _ => Cow::Borrowed(uri),
    }
}

/// Splits an exposed URI into the upstream's name and its own URI.
pub(super) fn split_exposed_uri(uri: &str) -> Option<(&str, &str)> {
    uri.strip_prefix(URI_PREFIX)?.split_once('/')
}

/// Whether a URI can be an expansion of a template: its literal parts occur in order.
pub(super) fn matches_template(template: &str, uri: &str) -> bool {
    let Some((head, mut rest)) = template.split_once('{') else { return template == uri };
    let Some(mut left) = uri.strip_prefix(head) else { return false };
    loop {
        let Some((_, after)) = rest.split_once('}') else { return false };
        match after.split_once('{') {
            None => return left.ends_with(after),
            Some((fixed, next)) => match left.find(fixed) {
                Some(at) => {
                    left = &left[at + fixed.len()..];
                    rest = next;
                }
                None => return false,
            },
        }
    }
}

/// Whether a URI is what a template can expand to (RFC 6570): a simple variable has no `/`, `?` or `#` in it, one with an
/// operator may have any character.
pub(super) fn is_expansion(template: &str, uri: &str) -> bool {
    let bytes = uri.as_bytes();
    // Where in the URI the parts of the template so far may end.
    let mut ends = vec![false; bytes.len() + 1];
    ends[0] = true;
    let mut rest = template;
    loop {
        let (literal, expression) = match rest.split_once('{') {
            None => (rest, None),
            Some((literal, after)) => match after.split_once('}') {
                None => return false,
                Some((expression, after)) => {
                    rest = after;
                    (literal, Some(expression))
                }
            },
        };
        let mut next = vec![false; ends.len()];
        for start in (0..ends.len()).filter(|start| ends[*start]) {
            if bytes[start..].starts_with(literal.as_bytes()) {
                next[start + literal.len()] = true;
            }
        }
        let Some(expression) = expression else { return next.last() == Some(&true) };
        let is_simple = expression.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_');
        let mut is_inside = false;
        for at in 0..bytes.len() {
            is_inside = (is_inside || next[at]) && !(is_simple && matches!(bytes[at], b'/' | b'?' | b'#'));
            next[at + 1] |= is_inside;
        }
        ends = next;
    }
}

/// Whether a URI has a segment `.` or `..`, also percent-encoded or after a backslash.
pub(super) fn has_dot_segment(uri: &str) -> bool {
    let decoded = percent_encoding::percent_decode_str(uri).decode_utf8_lossy();
    decoded.split(['/', '\\', '?', '#', ';']).any(|segment| matches!(segment, "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl NameTable {
        fn insert_unique(&mut self, member: usize, prefix: &str, name: &str) -> Box<str> {
            let exposed = self.unique_name(prefix, name);
            self.insert(&exposed, member, name).unwrap();
            exposed
        }

        fn find(&self, exposed: &str) -> Option<(usize, &str)> {
            self.resolve(exposed).map(|entry| (entry.member, &*entry.own))
        }
    }

    #[test]
    fn a_simple_variable_stands_for_one_segment() {
        for (template, uri, expected) in [
            ("repo://{owner}/{repo}", "repo://o/r", true),
            ("repo://{owner}/{repo}", "repo://o/r/secrets/db", false),
            ("repo://{owner}/{repo}/secrets/{name}", "repo://o/r/secrets/db", true),
            ("doc://pub/{id}", "doc://pub/a", true),
            ("doc://pub/{id}", "doc://pub/a/b", false),
            ("doc://pub/{id}", "doc://pub/../secret", false),
            ("doc://pub/{id}", "doc://pub/a?b", false),
            ("file:///{+path}", "file:///a/b", true),
            ("file:///{+path}.txt", "file:///a/b.txt", true),
            ("file:///{+path}.txt", "file:///a/b.md", false),
            ("x://{a}-{b}", "x://1-2-3", true),
            ("x://a", "x://a", true),
            ("x://{", "x://{", false),
        ] {
            assert_eq!(is_expansion(template, uri), expected, "{template} {uri}");
        }
    }

    #[test]
    fn dot_segments_are_found_in_every_spelling() {
        for uri in [
            "doc://pub/../s",
            "doc://pub/x%2f..%2fs",
            "doc://pub/%2e%2E/s",
            "doc://pub/..",
            "a://b/.\\c",
            "a://b/..;x/c",
        ] {
            assert!(has_dot_segment(uri), "{uri}");
        }
        for uri in ["doc://pub/a..b", "doc://pub/...", "doc://a.b/c.d", "doc://pub/"] {
            assert!(!has_dot_segment(uri), "{uri}");
        }
    }

    #[test]
    fn names_are_prefixed_and_resolved() {
        let mut names = NameTable::default();
        assert_eq!(&*names.insert_unique(0, "files", "read"), "files__read");
        assert_eq!(names.find("files__read"), Some((0, "read")));
        assert_eq!(names.find("read"), None);
        let long = "x".repeat(100);
        let exposed = names.insert_unique(1, "a", &long);
        assert_eq!(exposed.len(), MAX_NAME_LEN);
        assert_eq!(names.find(&exposed), Some((1, long.as_str())));
        let odd = names.insert_unique(1, "a", "löschen bitte");
        assert!(is_valid_name(&odd), "{odd}");
        assert_eq!(names.find(&odd), Some((1, "löschen bitte")));
    }

    #[test]
    fn plain_names_collide() {
        let mut names = NameTable::default();
        names.insert("read", 0, "read").unwrap();
        let collision = names.insert("read", 2, "read").unwrap_err();
        assert_eq!(collision, Collision { name: "read".into(), first: 0, second: 2 });
        assert_eq!(names.find("read"), Some((0, "read")));
    }

    #[test]
    fn name_that_looks_hashed_does_not_shadow_another() {
        let mut names = NameTable::default();
        let long = "y".repeat(80);
        let shortened = shorten_with_hash(&format!("a__{long}"), 0);
        let own = shortened.strip_prefix("a__").unwrap();
        let first = names.insert_unique(0, "a", own);
        let second = names.insert_unique(0, "a", &long);
        assert_ne!(first, second);
        assert_eq!(names.find(&first), Some((0, own)));
        assert_eq!(names.find(&second), Some((0, long.as_str())));
    }

    #[test]
    fn uris_round_trip() {
        assert_eq!(expose_uri(Some("files"), "file:///a b"), "rialto://files/file:///a b");
        assert_eq!(split_exposed_uri("rialto://files/file:///a b"), Some(("files", "file:///a b")));
        assert_eq!(expose_uri(Some("files"), "https://h/x"), "https://h/x");
        assert_eq!(expose_uri(None, "file:///a"), "file:///a");
        assert_eq!(split_exposed_uri("file:///a"), None);
    }

    #[test]
    fn template_expansions_are_matched() {
        for (template, uri, fits) in [
            ("elements://element/{symbol}", "elements://element/Fe", true),
            ("elements://element/{symbol}", "elements://table", false),
            ("db://{table}/rows/{id}", "db://users/rows/7", true),
            ("db://{table}/rows/{id}", "db://users/columns/7", false),
            ("file:///{+path}.txt", "file:///a/b.txt", true),
            ("file:///{+path}.txt", "file:///a/b.md", false),
            ("plain://x", "plain://x", true),
            ("broken://{x", "broken://1", false),
        ] {
            assert_eq!(matches_template(template, uri), fits, "{template} {uri}");
        }
    }

    fn adversarial_name() -> impl Strategy<Value = String> {
        prop_oneof![
            ".*",
            "[a-c_]{0,6}",
            "[a-z_]{50,80}",
            "(a__|b__|__|_){1,4}[a-b]{0,60}",
            Just(String::new()),
            Just("__".to_owned()),
        ]
    }

    proptest! {
        #[test]
        fn every_exposed_name_resolves(all in proptest::collection::vec((0..3usize, adversarial_name()), 0..80)) {
            let prefixes = ["a", "a-b", "b"];
            let mut names = NameTable::default();
            let mut exposed = Vec::new();
            let mut seen = std::collections::HashSet::new();
            for (member, name) in all {
                if seen.insert((member, name.clone())) {
                    let new = names.insert_unique(member, prefixes[member], &name);
                    prop_assert!(is_valid_name(&new), "{new:?}");
                    exposed.push((new, member, name));
                }
            }
            for (new, member, name) in &exposed {
                prop_assert_eq!(names.find(new), Some((*member, name.as_str())));
            }
            let distinct: std::collections::HashSet<_> = exposed.iter().map(|(new, ..)| new).collect();
            prop_assert_eq!(distinct.len(), exposed.len());
        }

        #[test]
        fn every_uri_round_trips(uri in ".*", prefix in "[a-z0-9][a-z0-9-]{0,23}") {
            let out = expose_uri(Some(&prefix), &uri);
            if out != uri {
                prop_assert_eq!(split_exposed_uri(&out), Some((prefix.as_str(), uri.as_str())));
            }
        }
    }
}
