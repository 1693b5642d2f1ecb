//! Names that every client takes: of tools, and of their arguments.

use std::collections::BTreeSet;

/// The longest name.
pub(super) const LONGEST: usize = 64;

/// Names that are taken.
#[derive(Debug, Default)]
pub(super) struct ToolNames(BTreeSet<String>);

impl ToolNames {
    /// Takes a name as it is; false when it is taken already.
    pub(super) fn take(&mut self, name: &str) -> bool {
        self.0.insert(name.to_owned())
    }

    /// Whether a name is still free.
    pub(super) fn is_free(&self, name: &str) -> bool {
        !self.0.contains(name)
    }

    /// Takes the name nearest to the wanted one: that itself, or with `other` after it, or with a number.
    pub(super) fn nearest(&mut self, wanted: &str, other: Option<&str>) -> String {
        let wanted = clean(wanted);
        let second = other.map(|other| ended(&wanted, &format!("_{other}")));
        let base = second.clone().unwrap_or_else(|| wanted.clone());
        let numbered = (2..).map(|n| ended(&base, &format!("_{n}")));
        let mut all = std::iter::once(wanted.clone()).chain(second).chain(numbered);
        // There are more numbers than names.
        let free = all.find(|name| self.is_free(name)).unwrap_or(wanted);
        self.0.insert(free.clone());
        free
    }
}

/// Whether every client takes a name.
pub(super) fn is_clean(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST && name.chars().all(allowed)
}

/// A name with nothing in it that a client might not take.
pub(super) fn clean(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        match allowed(letter) {
            true => out.push(letter),
            // One sign stands for all that stood between.
            false if out.ends_with('_') || out.is_empty() => {}
            false => out.push('_'),
        }
    }
    out.truncate(LONGEST);
    let trimmed = if is_clean(name) { &out } else { out.trim_end_matches('_') };
    if trimmed.is_empty() { "unnamed".to_owned() } else { trimmed.to_owned() }
}

fn allowed(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-')
}

fn ended(name: &str, end: &str) -> String {
    format!("{}{end}", &name[..name.len().min(LONGEST.saturating_sub(end.len()))])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_made_clean() {
        for (from, to) in [
            ("repos/get-commit", "repos_get-commit"),
            ("filter[name]", "filter_name"),
            ("$top", "top"),
            ("GET /pets/{id}/", "GET_pets_id"),
            ("获取", "unnamed"),
            ("_private_", "_private_"),
        ] {
            assert_eq!(clean(from), to);
        }
    }

    #[test]
    fn names_are_told_apart() {
        let mut names = ToolNames::default();
        assert_eq!(names.nearest("id", Some("path")), "id");
        assert_eq!(names.nearest("id", Some("query")), "id_query");
        assert_eq!(names.nearest("id", Some("query")), "id_query_2");
        assert_eq!(names.nearest("id", None), "id_2");
        assert!(!names.take("id"));
    }

    proptest! {
        #[test]
        fn every_name_is_clean_and_its_own(wanted in prop::collection::vec(".{0,90}", 1..40)) {
            let mut names = ToolNames::default();
            let mut seen = BTreeSet::new();
            for name in wanted {
                let name = names.nearest(&name, None);
                prop_assert!(is_clean(&name));
                prop_assert!(seen.insert(name));
            }
        }
    }
}
