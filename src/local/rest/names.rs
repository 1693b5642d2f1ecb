//! Valid and unique names of tools and arguments.

use std::collections::BTreeSet;

/// Longest name that all known clients accept.
pub(super) const MAX_NAME_LENGTH: usize = 64;

/// Names in use within one scope: the tools of an API, or the arguments of a tool.
#[derive(Debug, Default)]
pub(super) struct UniqueNames(BTreeSet<String>);

impl UniqueNames {
    /// Reserves a name; false when it is in use.
    pub(super) fn reserve(&mut self, name: &str) -> bool {
        self.0.insert(name.to_owned())
    }

    /// Whether a name is not in use.
    pub(super) fn is_free(&self, name: &str) -> bool {
        !self.0.contains(name)
    }

    /// Reserves the wanted name, or one with the suffix `other` or a number when it is in use.
    pub(super) fn reserve_similar(&mut self, wanted: &str, other: Option<&str>) -> String {
        let wanted = sanitize(wanted);
        let second = other.map(|other| with_suffix(&wanted, &format!("_{other}")));
        let base = second.clone().unwrap_or_else(|| wanted.clone());
        let numbered = (2..).map(|n| with_suffix(&base, &format!("_{n}")));
        let mut candidates = std::iter::once(wanted.clone()).chain(second).chain(numbered);
        // The numbers never run out, so the fallback is unreachable.
        let free = candidates.find(|name| self.is_free(name)).unwrap_or(wanted);
        self.0.insert(free.clone());
        free
    }
}

/// Whether all known clients accept the name.
pub(super) fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_LENGTH && name.chars().all(is_name_char)
}

/// Replaces invalid characters, so that all known clients accept the name.
pub(super) fn sanitize(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        match is_name_char(letter) {
            true => out.push(letter),
            // A run of invalid characters becomes one underscore.
            false if out.ends_with('_') || out.is_empty() => {}
            false => out.push('_'),
        }
    }
    out.truncate(MAX_NAME_LENGTH);
    let trimmed = if is_valid_name(name) { &out } else { out.trim_end_matches('_') };
    if trimmed.is_empty() { "unnamed".to_owned() } else { trimmed.to_owned() }
}

fn is_name_char(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-')
}

fn with_suffix(name: &str, end: &str) -> String {
    format!("{}{end}", &name[..name.len().min(MAX_NAME_LENGTH.saturating_sub(end.len()))])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_sanitized() {
        for (from, to) in [
            ("repos/get-commit", "repos_get-commit"),
            ("filter[name]", "filter_name"),
            ("$top", "top"),
            ("GET /pets/{id}/", "GET_pets_id"),
            ("获取", "unnamed"),
            ("_private_", "_private_"),
        ] {
            assert_eq!(sanitize(from), to);
        }
    }

    #[test]
    fn duplicate_names_get_a_suffix() {
        let mut names = UniqueNames::default();
        assert_eq!(names.reserve_similar("id", Some("path")), "id");
        assert_eq!(names.reserve_similar("id", Some("query")), "id_query");
        assert_eq!(names.reserve_similar("id", Some("query")), "id_query_2");
        assert_eq!(names.reserve_similar("id", None), "id_2");
        assert!(!names.reserve("id"));
    }

    proptest! {
        #[test]
        fn reserved_names_are_valid_and_unique(wanted in prop::collection::vec(".{0,90}", 1..40)) {
            let mut names = UniqueNames::default();
            let mut seen = BTreeSet::new();
            for name in wanted {
                let name = names.reserve_similar(&name, None);
                prop_assert!(is_valid_name(&name));
                prop_assert!(seen.insert(name));
            }
        }
    }
}
