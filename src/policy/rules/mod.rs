//! What callers may do: rules over tools, prompts, resources and extension methods.
//!
//! A [`RuleBook`] is the checked `[policy]` of a configuration. Which of its rules match a caller is found once per
//! identity: callers with the same answer share an [`AccessClass`], and whatever is derived from it is kept per class.

mod access_class;
mod arguments;
mod principal;
#[cfg(test)]
mod properties;
mod target;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use foldhash::HashMap;
use parking_lot::Mutex;

use crate::identity::Identity;
use access_class::MatchedRule;
pub use access_class::{Access, AccessClass, Decision, Judgement};
pub use arguments::{ArgumentCondition, JudgedArguments};
pub use principal::{PRINCIPAL_FORMS, PrincipalPattern};
pub use target::{RuleTarget, RuleTargets, TargetKind, TargetPattern};

/// One `[[policy.rules]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessRule {
    /// The name, for people.
    pub name: Arc<str>,
    /// Whom the rule is for: callers that match any of these,
    pub principals: Vec<PrincipalPattern>,
    /// and all of these.
    pub require: Vec<PrincipalPattern>,
    /// The groups in which the rule holds; `None` for all.
    pub groups: Option<Vec<Arc<str>>>,
    /// What the rule allows.
    pub allow: RuleTargets,
    /// What the rule denies; a denial wins over everything.
    pub deny: RuleTargets,
    /// Scopes that the credential must have for what the rule allows.
    pub require_scopes: Vec<Arc<str>>,
    /// Conditions on the arguments, all of which must hold for what the rule allows.
    pub when: Vec<ArgumentCondition>,
}

/// What holds for a target that no rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultAccess {
    /// It is allowed.
    Allow,
    /// It does not exist for the caller.
    Deny,
}

/// The scopes that a scope contains.
pub type ScopeHierarchy = Vec<(String, Vec<String>)>;

/// All rules of a configuration. Two books with the same content are equal.
#[derive(Debug)]
pub struct RuleBook {
    /// Unique number of this book.
    id: u64,
    rules: Vec<AccessRule>,
    default: DefaultAccess,
    scope_hierarchy: ScopeHierarchy,
    /// The classes in use.
    classes: Mutex<HashMap<Box<[MatchedRule]>, Weak<AccessClass>>>,
}

static NEXT_BOOK: AtomicU64 = AtomicU64::new(1);
/// Classes in use below which the unused ones are not looked for.
const MIN_CLASSES_TO_PRUNE: usize = 64;

impl AccessRule {
    /// A rule for everybody that says nothing yet.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            principals: Vec::new(),
            require: Vec::new(),
            groups: None,
            allow: RuleTargets::default(),
            deny: RuleTargets::default(),
            require_scopes: Vec::new(),
            when: Vec::new(),
        }
    }

    /// Whether the rule is for this caller.
    fn is_for(&self, identity: &Identity) -> bool {
        self.principals.iter().any(|pattern| pattern.matches(identity))
            && self.require.iter().all(|pattern| pattern.matches(identity))
    }

    /// Whether the rule holds in a group.
    pub fn holds_in(&self, group: &str) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.iter().any(|listed| **listed == *group))
    }
}

impl DefaultAccess {
    /// The value in the configuration file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl RuleBook {
    /// The rules of a configuration.
    pub fn new(rules: Vec<AccessRule>, default: DefaultAccess, scope_hierarchy: ScopeHierarchy) -> Self {
        let id = NEXT_BOOK.fetch_add(1, Ordering::Relaxed);
        Self { id, rules, default, scope_hierarchy, classes: Mutex::default() }
    }

    /// The rules, in the order of the file.
    pub fn rules(&self) -> &[AccessRule] {
        &self.rules
    }

    /// What holds for a target that no rule matches.
    pub fn default_access(&self) -> DefaultAccess {
        self.default
    }

    /// The class of a caller. It is found once per identity, and kept there.
    pub fn class_of(self: &Arc<Self>, identity: &Identity) -> Arc<AccessClass> {
        if let Some(class) = identity.derived.get::<AccessClass>().filter(|class| class.is_of(self)) {
            return class;
        }
        let class = self.find_class(identity);
        identity.derived.set(Arc::clone(&class));
        class
    }

    fn find_class(self: &Arc<Self>, identity: &Identity) -> Arc<AccessClass> {
        let scopes = self.with_contained_scopes(&identity.scopes);
        let matched = |(index, rule): (usize, &AccessRule)| {
            let is_covered = rule.require_scopes.iter().all(|scope| scopes.contains(&**scope));
            rule.is_for(identity).then_some(MatchedRule { index, is_covered })
        };
        let matched: Box<[MatchedRule]> = self.rules.iter().enumerate().filter_map(matched).collect();
        let mut classes = self.classes.lock();
        if let Some(class) = classes.get(&matched).and_then(Weak::upgrade) {
            return class;
        }
        if classes.len() >= MIN_CLASSES_TO_PRUNE && classes.len() == classes.capacity() {
            classes.retain(|_, class| class.strong_count() > 0);
        }
        let class = Arc::new(AccessClass::new(Arc::clone(self), matched.clone()));
        classes.insert(matched, Arc::downgrade(&class));
        class
    }

    /// The scopes with all those that they contain.
    fn with_contained_scopes<'s>(&'s self, scopes: &'s [Arc<str>]) -> HashSet<&'s str> {
        let mut all: HashSet<&str> = HashSet::new();
        let mut open: Vec<&str> = scopes.iter().map(|scope| &**scope).collect();
        while let Some(scope) = open.pop() {
            if all.insert(scope) {
                let contained = self.scope_hierarchy.iter().filter(|(wider, _)| wider == scope);
                open.extend(contained.flat_map(|(_, narrower)| narrower.iter().map(String::as_str)));
            }
        }
        all
    }
}

impl PartialEq for RuleBook {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules && self.default == other.default && self.scope_hierarchy == other.scope_hierarchy
    }
}
