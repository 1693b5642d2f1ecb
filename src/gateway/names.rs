//! What tools, prompts and resources are called in a group of several upstreams.
//!
//! Names begin with the upstream's, `files__read`, and stay within 64 characters: one that would be
//! longer, or has characters that models' interfaces refuse, is cut and ends with a hash. Such a
//! name cannot be taken apart again, so names are resolved through a table, never by splitting.
//! URIs begin with `rialto://files/`, and that is taken off again.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use foldhash::HashMap;

/// The longest name that is given.
pub(super) const LONGEST: usize = 64;
/// What stands between the upstream's name and its own.
const BETWEEN: &str = "__";
/// How many hexadecimal digits a hash has.
const DIGITS: usize = 8;
/// What URIs of upstreams begin with.
const SCHEME: &str = "rialto://";

/// What things are called, both ways.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    /// By the name that is given: which member has it, and under what name.
    given: HashMap<Box<str>, (usize, Box<str>)>,
}

/// A name that two upstreams have, where names are left as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Collision {
    /// The name.
    pub name: String,
    /// The member that has it.
    pub first: usize,
    /// The member that is left out.
    pub second: usize,
}

impl NameTable {
    /// What something of an upstream is to be called: a name that nobody has.
    pub(super) fn fresh(&self, prefix: &str, name: &str) -> Box<str> {
        let plain = format!("{prefix}{BETWEEN}{name}");
        if fits(&plain) && !name.is_empty() && !self.given.contains_key(plain.as_str()) {
            return plain.into();
        }
        let mut turn = 0;
        loop {
            let cut = hashed(&plain, turn);
            if !self.given.contains_key(cut.as_str()) {
                return cut.into();
            }
            turn += 1;
        }
    }

    /// Gives a name to what a member calls `own`.
    ///
    /// # Errors
    /// Who has the name already.
    pub(super) fn give(&mut self, given: &str, member: usize, own: &str) -> Result<(), Collision> {
        match self.given.get(given) {
            Some((first, _)) => Err(Collision { name: given.to_owned(), first: *first, second: member }),
            None => {
                self.given.insert(given.into(), (member, own.into()));
                Ok(())
            }
        }
    }

    /// Who has what is called so here, and what it calls it.
    pub(super) fn resolve(&self, given: &str) -> Option<(usize, &str)> {
        self.given.get(given).map(|(member, name)| (*member, &**name))
    }
}

/// Whether a name is taken by the interfaces of all models.
fn fits(name: &str) -> bool {
    name.len() <= LONGEST && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// A name cut and made plain, with a hash of what it was.
fn hashed(name: &str, turn: u32) -> String {
    let mut hash = Sha256::new();
    hash.update(name.as_bytes());
    if turn > 0 {
        hash.update(turn.to_le_bytes());
    }
    let digest = hash.finalize();
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "_.-".contains(letter) { letter } else { '_' };
    let mut short: String = name.chars().map(plain).take(LONGEST - DIGITS - 1).collect();
    short.push('_');
    for byte in &digest[..DIGITS / 2] {
        short.push_str(&format!("{byte:02x}"));
    }
    short
}

/// A URI or template as clients see it. Addresses of the web stay as they are: clients may fetch
/// them by themselves.
pub(super) fn uri_out<'u>(prefix: Option<&str>, uri: &'u str) -> Cow<'u, str> {
    match prefix {
        Some(prefix) if !uri.starts_with("https://") && !uri.starts_with("http://") => {
            Cow::Owned(format!("{SCHEME}{prefix}/{uri}"))
        }
        _ => Cow::Borrowed(uri),
    }
}

/// The upstream that a URI names, and the URI as the upstream knows it.
pub(super) fn uri_in(uri: &str) -> Option<(&str, &str)> {
    uri.strip_prefix(SCHEME)?.split_once('/')
}

/// Whether a URI can be an expansion of a template: its fixed parts stand there in order.
pub(super) fn expands(template: &str, uri: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl NameTable {
        fn entered(&mut self, member: usize, prefix: &str, name: &str) -> Box<str> {
            let given = self.fresh(prefix, name);
            self.give(&given, member, name).unwrap();
            given
        }
    }

    #[test]
    fn names_say_whose_they_are() {
        let mut names = NameTable::default();
        assert_eq!(&*names.entered(0, "files", "read"), "files__read");
        assert_eq!(names.resolve("files__read"), Some((0, "read")));
        assert_eq!(names.resolve("read"), None);
        let long = "x".repeat(100);
        let given = names.entered(1, "a", &long);
        assert_eq!(given.len(), LONGEST);
        assert_eq!(names.resolve(&given), Some((1, long.as_str())));
        let odd = names.entered(1, "a", "löschen bitte");
        assert!(fits(&odd), "{odd}");
        assert_eq!(names.resolve(&odd), Some((1, "löschen bitte")));
    }

    #[test]
    fn plain_names_can_collide_and_say_so() {
        let mut names = NameTable::default();
        names.give("read", 0, "read").unwrap();
        let collision = names.give("read", 2, "read").unwrap_err();
        assert_eq!(collision, Collision { name: "read".into(), first: 0, second: 2 });
        assert_eq!(names.resolve("read"), Some((0, "read")));
    }

    #[test]
    fn a_name_that_looks_like_a_hash_takes_nothing_away() {
        let mut names = NameTable::default();
        let long = "y".repeat(80);
        let cut = hashed(&format!("a__{long}"), 0);
        let own = cut.strip_prefix("a__").unwrap();
        let first = names.entered(0, "a", own);
        let second = names.entered(0, "a", &long);
        assert_ne!(first, second);
        assert_eq!(names.resolve(&first), Some((0, own)));
        assert_eq!(names.resolve(&second), Some((0, long.as_str())));
    }

    #[test]
    fn uris_come_and_go() {
        assert_eq!(uri_out(Some("files"), "file:///a b"), "rialto://files/file:///a b");
        assert_eq!(uri_in("rialto://files/file:///a b"), Some(("files", "file:///a b")));
        assert_eq!(uri_out(Some("files"), "https://h/x"), "https://h/x");
        assert_eq!(uri_out(None, "file:///a"), "file:///a");
        assert_eq!(uri_in("file:///a"), None);
    }

    #[test]
    fn expansions_are_known() {
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
            assert_eq!(expands(template, uri), fits, "{template} {uri}");
        }
    }

    fn hostile() -> impl Strategy<Value = String> {
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
        fn whatever_things_are_called_each_is_found(all in proptest::collection::vec((0..3usize, hostile()), 0..80)) {
            let prefixes = ["a", "a-b", "b"];
            let mut names = NameTable::default();
            let mut given = Vec::new();
            let mut seen = std::collections::HashSet::new();
            for (member, name) in all {
                if seen.insert((member, name.clone())) {
                    let new = names.entered(member, prefixes[member], &name);
                    prop_assert!(fits(&new), "{new:?}");
                    given.push((new, member, name));
                }
            }
            for (new, member, name) in &given {
                prop_assert_eq!(names.resolve(new), Some((*member, name.as_str())));
            }
            let distinct: std::collections::HashSet<_> = given.iter().map(|(new, ..)| new).collect();
            prop_assert_eq!(distinct.len(), given.len());
        }

        #[test]
        fn every_uri_comes_back(uri in ".*", prefix in "[a-z0-9][a-z0-9-]{0,23}") {
            let out = uri_out(Some(&prefix), &uri);
            if out != uri {
                prop_assert_eq!(uri_in(&out), Some((prefix.as_str(), uri.as_str())));
            }
        }
    }
}
