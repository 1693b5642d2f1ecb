//! What a rule is about: patterns for targets, `upstream/name` with the upstream's own name or URI.

use wildmatch::WildMatch;

/// The kind of a target; also its index in per-kind arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TargetKind {
    /// Tools, by name.
    Tools,
    /// Prompts, by name.
    Prompts,
    /// Resources by URI, templates by the template.
    Resources,
    /// Extension methods, by name.
    Methods,
}

/// One target of a call: an upstream and what the upstream itself calls it.
#[derive(Debug, Clone, Copy)]
pub struct RuleTarget<'t> {
    /// The kind.
    pub kind: TargetKind,
    /// The name of the upstream.
    pub upstream: &'t str,
    /// The upstream's own names for it: one, or a URI and the templates that it may be an expansion of. A pattern that
    /// matches one of them matches the target.
    pub names: &'t [&'t str],
    /// How many of them, from the first, may grant anything. All of them may deny.
    pub granting: usize,
}

/// A pattern for targets. `*` matches any characters, also `/`, and `?` one.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetPattern {
    text: String,
    pattern: WildMatch,
    /// The part before the first `/`.
    server: WildMatch,
    /// The server up to the first `*`, which may stand for a part of the name, too.
    reach: WildMatch,
}

/// The targets that a rule allows or denies.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RuleTargets([Vec<TargetPattern>; TargetKind::ALL.len()]);

impl TargetKind {
    /// Every kind, in the order of the discriminants.
    pub const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Methods];

    /// The key in the configuration file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Methods => "methods",
        }
    }
}

impl TargetPattern {
    /// Parses `server/name`, or `*` for everything.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence that begins with the pattern.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let server = match text.split_once('/') {
            _ if text.chars().any(char::is_control) => return Err("has control characters"),
            Some(("", _)) => return Err("has no server before the `/`"),
            Some((_, "")) => return Err("has no name after the `/`"),
            Some((server, _)) => server,
            None if text == "*" => "*",
            None => return Err("has no `/` between server and name"),
        };
        let reach = match server.split_once('*') {
            Some((fixed, _)) => WildMatch::new(&format!("{fixed}*")),
            None => WildMatch::new(server),
        };
        Ok(Self { text: text.to_owned(), pattern: WildMatch::new(text), server: WildMatch::new(server), reach })
    }

    /// The pattern as it is written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the part before the `/` names this upstream.
    pub fn names_server(&self, upstream: &str) -> bool {
        self.server.matches(upstream)
    }

    /// Whether some target of this upstream can match.
    pub(super) fn may_concern(&self, upstream: &str) -> bool {
        self.reach.matches(upstream)
    }

    /// Whether `upstream/name` matches.
    pub fn matches(&self, path: &str) -> bool {
        self.pattern.matches(path)
    }

    /// Whether everything that the other pattern matches is matched by this one, as far as that is plain from the texts.
    /// A `?` here could stand for a `*` there, so a pattern with one counts as narrower.
    pub(super) fn covers(&self, other: &str) -> bool {
        !self.text.contains('?') && self.pattern.matches(other)
    }
}

impl RuleTargets {
    /// Adds a pattern for targets of a kind.
    pub fn push(&mut self, kind: TargetKind, pattern: TargetPattern) {
        self.0[kind as usize].push(pattern);
    }

    /// The patterns for a kind.
    pub fn of(&self, kind: TargetKind) -> &[TargetPattern] {
        &self.0[kind as usize]
    }

    /// Whether there is no pattern.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }

    /// Whether a pattern matches one of the paths.
    pub(super) fn match_any(&self, kind: TargetKind, paths: &[String]) -> bool {
        self.of(kind).iter().any(|pattern| paths.iter().any(|path| pattern.matches(path)))
    }
}

impl RuleTarget<'_> {
    /// The target as patterns see it: `upstream/name`, for each of its names.
    pub(super) fn paths(&self) -> Vec<String> {
        self.names.iter().map(|name| format!("{}/{name}", self.upstream)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_upstream_and_its_own_name() {
        for (pattern, path, expected) in [
            ("*", "tracker/get", true),
            ("tracker/*", "tracker/file:///a/b", true),
            ("tracker/*", "tracker2/get", false),
            ("*/delete_*", "files/delete_all", true),
            ("*/delete_*", "files/sub/delete_all", true),
            ("tracker/get_?", "tracker/get_a", true),
            ("tracker/get_?", "tracker/get_ab", false),
            ("tracker/get", "tracker/Get", false),
            ("tracker/get", "tracker/get", true),
        ] {
            assert_eq!(TargetPattern::parse(pattern).unwrap().matches(path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_pattern_without_server_or_name_is_refused() {
        for text in ["", "get", "tracker", "/get", "tracker/", "tra*", "a/\n"] {
            assert!(TargetPattern::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_wildcard_in_the_server_reaches_into_names() {
        let pattern = TargetPattern::parse("a*c/d").unwrap();
        assert!(pattern.matches("ab/c/d") && pattern.may_concern("ab") && !pattern.names_server("ab"));
        assert!(!pattern.may_concern("b"));
    }

    #[test]
    fn a_wider_pattern_covers_a_narrower_one() {
        let covers = |wide: &str, narrow: &str| TargetPattern::parse(wide).unwrap().covers(narrow);
        assert!(covers("*", "a/*") && covers("a/*", "a/get_*") && covers("a/*", "a/*") && covers("*/x", "a/x"));
        assert!(!covers("a/get_*", "a/*") && !covers("a/?", "a/*") && !covers("b/*", "a/x"));
    }
}
