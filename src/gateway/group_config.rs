//! What a group is configured to be.

use std::sync::Arc;

use wildmatch::WildMatch;

use crate::upstream::List;

/// A group as it is configured. Two that are equal need not be told apart.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupConfig {
    /// Its name, which is part of its address.
    pub name: Arc<str>,
    /// The names of its upstreams, in order.
    pub servers: Vec<Arc<str>>,
    /// What things are called when there are several upstreams.
    pub naming: Naming,
    /// How to use it, instead of what the upstreams say.
    pub instructions: Option<String>,
    /// Which tools are shown.
    pub tools: ToolFilter,
    /// Which prompts are shown.
    pub prompts: ToolFilter,
    /// Which resources and templates are shown.
    pub resources: ToolFilter,
    /// How many items a page of a list has.
    pub page_size: usize,
}

/// What things are called in a group of several upstreams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Naming {
    /// Names begin with that of the upstream.
    #[default]
    Prefix,
    /// Names stay as they are; of two that are the same the first counts.
    Plain,
}

/// Which of many are let through: those that some pattern of `allow` fits, or all when there is
/// none, without those that some pattern of `deny` fits. `*` stands for any letters, `?` for one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolFilter {
    allow: Vec<WildMatch>,
    deny: Vec<WildMatch>,
}

/// How many items a page has where nothing is said.
pub const PAGE: usize = 1000;

impl GroupConfig {
    /// A group of some upstreams, with nothing else said.
    pub fn new(name: &str, servers: impl IntoIterator<Item = Arc<str>>) -> Self {
        Self {
            name: name.into(),
            servers: servers.into_iter().collect(),
            naming: Naming::default(),
            instructions: None,
            tools: ToolFilter::default(),
            prompts: ToolFilter::default(),
            resources: ToolFilter::default(),
            page_size: PAGE,
        }
    }

    /// Whether names are changed.
    pub fn prefixes(&self) -> bool {
        self.servers.len() > 1 && self.naming == Naming::Prefix
    }

    /// What is shown of a list.
    pub fn filter(&self, list: List) -> &ToolFilter {
        match list {
            List::Tools => &self.tools,
            List::Prompts => &self.prompts,
            List::Resources | List::Templates => &self.resources,
        }
    }
}

impl Naming {
    /// Its name in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Plain => "plain",
        }
    }
}

impl ToolFilter {
    /// A filter from its patterns.
    pub fn new(allow: &[String], deny: &[String]) -> Self {
        let patterns = |texts: &[String]| texts.iter().map(|text| WildMatch::new(text)).collect();
        Self { allow: patterns(allow), deny: patterns(deny) }
    }

    /// Whether a name is let through.
    pub fn passes(&self, name: &str) -> bool {
        let any = |patterns: &[WildMatch]| patterns.iter().any(|pattern| pattern.matches(name));
        (self.allow.is_empty() || any(&self.allow)) && !any(&self.deny)
    }

    /// Whether everything is.
    pub fn is_open(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deny_is_stronger_than_allow() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let filter = ToolFilter::new(&texts(&["files__*", "x"]), &texts(&["*delete*"]));
        for (name, passes) in [("files__read", true), ("files__delete_all", false), ("x", true), ("y", false)] {
            assert_eq!(filter.passes(name), passes, "{name}");
        }
        assert!(ToolFilter::default().passes("anything") && ToolFilter::default().is_open());
        assert!(!ToolFilter::new(&[], &texts(&["*"])).passes("anything"));
    }
}
