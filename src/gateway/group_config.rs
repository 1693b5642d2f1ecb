//! The configuration of a group.

use std::sync::Arc;

use wildmatch::WildMatch;

use crate::policy::rules::RuleBook;
use crate::upstream::List;

/// The configuration of a group. A reload compares it: an equal one changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupConfig {
    /// The name, part of the group's URL.
    pub name: Arc<str>,
    /// The names of its upstreams, in configured order.
    pub servers: Vec<Arc<str>>,
    /// How names are mapped when the group has several upstreams.
    pub naming: Naming,
    /// Instructions for clients; they replace those of the upstreams.
    pub instructions: Option<String>,
    /// Filter for tools.
    pub tools: NameFilter,
    /// Filter for prompts.
    pub prompts: NameFilter,
    /// Filter for resources and resource templates.
    pub resources: NameFilter,
    /// Items per page of a list.
    pub page_size: usize,
    /// What callers may do; `None` if everybody may do everything.
    pub rules: Option<Arc<RuleBook>>,
}

/// How names are mapped in a group with several upstreams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Naming {
    /// Names are prefixed with the name of the upstream.
    #[default]
    Prefix,
    /// Names are unchanged. On a collision, the first upstream in configured order wins.
    Plain,
}

/// Allow and deny patterns for names. A name passes if a pattern of `allow` matches it (or `allow` is empty)
/// and none of `deny` does. In a group with prefixes an item has several names: the server's own, the prefixed one
/// and, where that is too long, the shortened one. `*` matches any characters, `?` one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NameFilter {
    allow: Vec<WildMatch>,
    deny: Vec<WildMatch>,
}

/// Default number of items per page.
pub const DEFAULT_PAGE_SIZE: usize = 1000;

impl GroupConfig {
    /// A group with default settings.
    pub fn new(name: &str, servers: impl IntoIterator<Item = Arc<str>>) -> Self {
        Self {
            name: name.into(),
            servers: servers.into_iter().collect(),
            naming: Naming::default(),
            instructions: None,
            tools: NameFilter::default(),
            prompts: NameFilter::default(),
            resources: NameFilter::default(),
            page_size: DEFAULT_PAGE_SIZE,
            rules: None,
        }
    }

    /// Whether names are prefixed.
    pub fn uses_prefixes(&self) -> bool {
        self.servers.len() > 1 && self.naming == Naming::Prefix
    }

    /// The filter that applies to a list.
    pub fn filter(&self, list: List) -> &NameFilter {
        match list {
            List::Tools => &self.tools,
            List::Prompts => &self.prompts,
            List::Resources | List::Templates => &self.resources,
        }
    }
}

impl Naming {
    /// The value in the configuration file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Plain => "plain",
        }
    }
}

impl NameFilter {
    /// Compiles the patterns.
    pub fn new(allow: &[String], deny: &[String]) -> Self {
        let patterns = |texts: &[String]| texts.iter().map(|text| WildMatch::new(text)).collect();
        Self { allow: patterns(allow), deny: patterns(deny) }
    }

    /// Whether a name passes the filter.
    pub fn allows(&self, name: &str) -> bool {
        self.allows_item(&[name])
    }

    /// Whether an item passes the filter that has all these names. A pattern that matches one of them matches the item:
    /// a name that was shortened must not slip past a pattern for the whole one.
    pub fn allows_item(&self, names: &[&str]) -> bool {
        let any =
            |patterns: &[WildMatch]| patterns.iter().any(|pattern| names.iter().any(|name| pattern.matches(name)));
        (self.allow.is_empty() || any(&self.allow)) && !any(&self.deny)
    }

    /// What keeps an item out that has all these names: the pattern of `deny`, or `allow` without one.
    pub fn keeps_out(&self, names: &[&str]) -> Option<(&'static str, Option<String>)> {
        let matching = |pattern: &&WildMatch| names.iter().any(|name| pattern.matches(name));
        if let Some(pattern) = self.deny.iter().find(matching) {
            return Some(("deny", Some(pattern.to_string())));
        }
        let is_listed = self.allow.is_empty() || self.allow.iter().any(|pattern| matching(&pattern));
        (!is_listed).then_some(("allow", None))
    }

    /// Whether every name passes.
    pub fn allows_all(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deny_wins_over_allow() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let filter = NameFilter::new(&texts(&["files__*", "x"]), &texts(&["*delete*"]));
        for (name, passes) in [("files__read", true), ("files__delete_all", false), ("x", true), ("y", false)] {
            assert_eq!(filter.allows(name), passes, "{name}");
        }
        assert!(NameFilter::default().allows("anything") && NameFilter::default().allows_all());
        assert!(!NameFilter::new(&[], &texts(&["*"])).allows("anything"));
        assert!(filter.allows_item(&["x", "files__x"]) && !filter.allows_item(&["files__short", "delete_long"]));
    }
}
