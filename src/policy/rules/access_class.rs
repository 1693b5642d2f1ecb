//! What one class of callers may do: those whom the same rules match, with the same scopes among those that count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{AccessRule, DefaultAccess, JudgedArguments, RuleBook, RuleTarget, TargetKind};

/// Callers whom the same rules match.
#[derive(Debug)]
pub struct AccessClass {
    /// Unique number of this class, over all books.
    id: u64,
    book: Arc<RuleBook>,
    matched: Box<[MatchedRule]>,
}

/// A rule that matches a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct MatchedRule {
    /// The index in the book.
    pub(super) index: usize,
    /// Whether the caller has the scopes that the rule requires.
    pub(super) is_covered: bool,
}

/// What a caller may do with a target, before arguments are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It does not exist for the caller.
    Hidden,
    /// It may be called.
    Allowed,
    /// It may be called with arguments that satisfy a rule.
    Conditional,
    /// It may be called with more scopes.
    StepUp,
}

/// What a caller may do with a target, and by which rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// What the caller may do.
    pub access: Access,
    /// The index of the rule; `None` for the default.
    pub rule: Option<usize>,
}

/// Whether a call may be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It may.
    Allowed,
    /// Its target does not exist for the caller.
    Hidden,
    /// It needs all of these scopes, some of which the caller does not have.
    StepUp(Arc<[Arc<str>]>),
    /// The argument at this JSON Pointer has a value that no rule allows.
    Denied(String),
}

static NEXT_CLASS: AtomicU64 = AtomicU64::new(1);

impl AccessClass {
    pub(super) fn new(book: Arc<RuleBook>, matched: Box<[MatchedRule]>) -> Self {
        Self { id: NEXT_CLASS.fetch_add(1, Ordering::Relaxed), book, matched }
    }

    /// Unique number of this class.
    pub fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn is_of(&self, book: &RuleBook) -> bool {
        self.book.id == book.id
    }

    /// The rules that match these callers in a group.
    fn rules<'c>(&'c self, group: &'c str) -> impl Iterator<Item = (MatchedRule, &'c AccessRule)> {
        let rule = |matched: &MatchedRule| (*matched, &self.book.rules[matched.index]);
        self.matched.iter().map(rule).filter(|(_, rule)| rule.holds_in(group))
    }

    /// What these callers may do with a target of a group.
    pub fn judge(&self, group: &str, target: &RuleTarget<'_>) -> Judgement {
        let paths = target.paths();
        let mut best: Option<Judgement> = None;
        for (matched, rule) in self.rules(group) {
            if rule.deny.match_any(target.kind, &paths) {
                return Judgement { access: Access::Hidden, rule: Some(matched.index) };
            }
            if rule.allow.match_any(target.kind, &paths[..target.granting]) {
                let access = match (matched.is_covered, rule.when.is_empty()) {
                    (true, true) => Access::Allowed,
                    (true, false) => Access::Conditional,
                    (false, _) => Access::StepUp,
                };
                let is_better = |best: Judgement| rank(access) > rank(best.access);
                if best.is_none_or(is_better) {
                    best = Some(Judgement { access, rule: Some(matched.index) });
                }
            }
        }
        let default = match self.book.default {
            DefaultAccess::Allow => Access::Allowed,
            DefaultAccess::Deny => Access::Hidden,
        };
        best.unwrap_or(Judgement { access: default, rule: None })
    }

    /// Whether these callers may make a call with these arguments.
    pub fn decide(&self, group: &str, target: &RuleTarget<'_>, arguments: JudgedArguments<'_>) -> Decision {
        self.decide_by_rule(group, target, arguments).0
    }

    /// The same with the rule that decides; `None` for the default.
    pub fn decide_by_rule<'c>(
        &'c self,
        group: &'c str,
        target: &RuleTarget<'_>,
        arguments: JudgedArguments<'_>,
    ) -> (Decision, Option<&'c Arc<str>>) {
        let paths = target.paths();
        let (mut needed, mut failed, mut allowed_by) = (None, None, None);
        for (matched, rule) in self.rules(group) {
            if rule.deny.match_any(target.kind, &paths) {
                return (Decision::Hidden, Some(&rule.name));
            }
            if allowed_by.is_some() || !rule.allow.match_any(target.kind, &paths[..target.granting]) {
                continue;
            }
            match rule.when.iter().find(|condition| !condition.matches(arguments)) {
                Some(condition) => {
                    failed.get_or_insert_with(|| (condition.pointer().to_owned(), &rule.name));
                }
                None if matched.is_covered => allowed_by = Some(&rule.name),
                None => {
                    needed.get_or_insert(rule);
                }
            }
        }
        match (needed, failed) {
            _ if allowed_by.is_some() => (Decision::Allowed, allowed_by),
            (Some(rule), _) => (Decision::StepUp(rule.require_scopes.as_slice().into()), Some(&rule.name)),
            (None, Some((pointer, rule))) => (Decision::Denied(pointer), Some(rule)),
            (None, None) if self.book.default == DefaultAccess::Allow => (Decision::Allowed, None),
            (None, None) => (Decision::Hidden, None),
        }
    }

    /// Whether these callers may do anything with an upstream of a group, as far as the rules alone say: false only if
    /// they deny whatever they allow.
    pub fn may_use(&self, group: &str, upstream: &str) -> bool {
        TargetKind::ALL.into_iter().any(|kind| self.may_use_kind(group, upstream, kind))
    }

    fn may_use_kind(&self, group: &str, upstream: &str, kind: TargetKind) -> bool {
        let everything = format!("{upstream}/*");
        let is_denied = |pattern: &str| {
            let covers = |rule: &AccessRule| {
                rule.deny.of(kind).iter().any(|deny| deny.covers(pattern) || deny.covers(&everything))
            };
            self.rules(group).any(|(_, rule)| covers(rule))
        };
        let allowed = self.rules(group).flat_map(|(_, rule)| rule.allow.of(kind));
        let mut allowed = allowed.filter(|pattern| pattern.may_concern(upstream));
        let is_default = self.book.default == DefaultAccess::Allow && !is_denied(&everything);
        is_default || allowed.any(|pattern| !is_denied(pattern.as_str()))
    }
}

/// How much an access grants.
fn rank(access: Access) -> u8 {
    match access {
        Access::Hidden => 0,
        Access::StepUp => 1,
        Access::Conditional => 2,
        Access::Allowed => 3,
    }
}

impl Access {
    /// The name as `rialto check` prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hidden => "hidden",
            Self::Allowed => "allowed",
            Self::Conditional => "by arguments",
            Self::StepUp => "needs scopes",
        }
    }
}
