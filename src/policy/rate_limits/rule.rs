//! One limit as it is configured: whom and what it is for, and what it allows.

use std::sync::Arc;
use std::time::Duration;

use wildmatch::WildMatch;

use super::gcra::Gcra;
use super::window::QuotaWindow;
use crate::identity::Identity;
use crate::policy::rules::{PrincipalPattern, TargetKind};

/// One of `[[policy.limits]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitRule {
    /// Unique name, which metrics and status show.
    pub name: Arc<str>,
    /// Callers that it is for; empty for all.
    pub principals: Vec<PrincipalPattern>,
    /// Groups that it is for; empty for all.
    pub groups: Vec<Arc<str>>,
    /// Patterns of `upstream/tool`. Without any of the three, every request counts.
    pub tools: Vec<WildMatch>,
    /// Patterns of `upstream/prompt`.
    pub prompts: Vec<WildMatch>,
    /// Patterns of `upstream/URI`.
    pub resources: Vec<WildMatch>,
    /// What has a bucket of its own; empty for one bucket in all.
    pub per: Vec<LimitScope>,
    /// Requests per time.
    pub rate: Option<Rate>,
    /// Requests per window of the calendar.
    pub quota: Option<CallQuota>,
    /// Requests at one time.
    pub max_in_flight: Option<usize>,
    /// Bytes of the arguments of a call.
    pub max_argument_bytes: Option<usize>,
    /// Longest duration of a call.
    pub total_timeout: Option<Duration>,
    /// Whether the store is asked for each request.
    pub exact: bool,
}

/// A rate with its burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Requests in each period.
    pub count: u32,
    /// The period.
    pub period: Duration,
    /// Requests that may come at once.
    pub burst: u32,
}

/// A number of requests in each window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallQuota {
    /// Requests in each window.
    pub count: u64,
    /// The window.
    pub window: QuotaWindow,
}

/// What has a bucket of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitScope {
    /// Each principal, whatever clients it uses, or each address where nobody is known.
    Caller,
    /// Each client id, whoever uses it; with [`Self::Caller`] each client of each principal.
    Client,
    /// Each role: of a caller with several, the first that `principals` names, or else its first.
    Role,
    /// Each group.
    Group,
    /// Each upstream.
    Server,
    /// Each tool, prompt or resource.
    Tool,
}

/// What a call is for, by the upstream's own name of it.
#[derive(Debug, Clone, Copy)]
pub struct CalledTarget<'c> {
    /// Its kind.
    pub kind: TargetKind,
    /// The name of the upstream.
    pub upstream: &'c str,
    /// The upstream's own name or URI.
    pub name: &'c str,
    /// Bytes of the arguments.
    pub argument_bytes: usize,
}

impl LimitRule {
    /// A limit for everybody that allows everything.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            principals: Vec::new(),
            groups: Vec::new(),
            tools: Vec::new(),
            prompts: Vec::new(),
            resources: Vec::new(),
            per: Vec::new(),
            rate: None,
            quota: None,
            max_in_flight: None,
            max_argument_bytes: None,
            total_timeout: None,
            exact: false,
        }
    }

    /// Whether it counts calls of certain targets, and not every request.
    pub fn has_targets(&self) -> bool {
        !(self.tools.is_empty() && self.prompts.is_empty() && self.resources.is_empty())
    }

    /// Whether anything is counted, beside the bounds of single calls.
    pub(super) fn counts(&self) -> bool {
        self.has_tokens() || self.max_in_flight.is_some()
    }

    /// Whether requests take tokens.
    pub(super) fn has_tokens(&self) -> bool {
        self.rate.is_some() || self.quota.is_some()
    }

    /// Whether single calls are bounded.
    pub(super) fn bounds_calls(&self) -> bool {
        self.max_argument_bytes.is_some() || self.total_timeout.is_some()
    }

    /// Whether it is for this caller.
    pub(super) fn is_for_caller(&self, identity: &Identity) -> bool {
        self.principals.is_empty() || self.principals.iter().any(|pattern| pattern.matches(identity))
    }

    /// Whether it is for this group.
    pub(super) fn is_for_group(&self, group: &str) -> bool {
        self.groups.is_empty() || self.groups.iter().any(|own| **own == *group)
    }

    /// Whether it is for this target; one without targets is for all of them.
    pub(super) fn covers(&self, target: &CalledTarget<'_>) -> bool {
        let patterns = match target.kind {
            TargetKind::Tools => &self.tools,
            TargetKind::Prompts => &self.prompts,
            TargetKind::Resources => &self.resources,
            // Extension methods are counted by limits of every request only.
            TargetKind::Methods => return !self.has_targets(),
        };
        !self.has_targets() || patterns.iter().any(|pattern| matches_target(pattern, target))
    }

    /// The role that a caller's share is counted for.
    pub(super) fn counted_role<'i>(&self, identity: &'i Identity) -> &'i str {
        let is_named = |role: &&Arc<str>| self.principals.iter().any(|pattern| pattern.matches_role(role));
        identity.roles.iter().find(is_named).or(identity.roles.first()).map_or("", |role| role)
    }

    pub(super) fn gcra(&self) -> Option<Gcra> {
        self.rate.map(|rate| Gcra { interval: rate.interval_nanos(), burst: rate.burst.into() })
    }

    /// Tokens that a node fetches at once: a tenth of the burst, at most what is gained in a second; a hundredth of a
    /// quota, at most ten.
    pub(super) fn batch(&self) -> u32 {
        let of_rate = self.rate.map(|rate| {
            let per_second = Duration::from_secs(1).as_nanos() / u128::from(rate.interval_nanos());
            (rate.burst / 10).min(u32::try_from(per_second).unwrap_or(u32::MAX))
        });
        let of_quota = self.quota.map(|quota| u32::try_from(quota.count / 100).unwrap_or(u32::MAX).min(10));
        match self.exact {
            true => 1,
            false => of_rate.into_iter().chain(of_quota).min().unwrap_or(1).max(1),
        }
    }
}

/// Whether a pattern of `upstream/name` matches, without putting the two together where the pattern allows it.
fn matches_target(pattern: &WildMatch, target: &CalledTarget<'_>) -> bool {
    thread_local! {
        /// Reused, so that matching allocates nothing.
        static TEXT: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
    }
    TEXT.with_borrow_mut(|text| {
        text.clear();
        text.push_str(target.upstream);
        text.push('/');
        text.push_str(target.name);
        pattern.matches(text)
    })
}

impl Rate {
    /// Nanoseconds in which one token is gained.
    pub(super) fn interval_nanos(&self) -> u64 {
        let interval = self.period.as_nanos() / u128::from(self.count.max(1));
        u64::try_from(interval).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Credential;

    fn target(kind: TargetKind, name: &str) -> CalledTarget<'_> {
        CalledTarget { kind, upstream: "tracker", name, argument_bytes: 0 }
    }

    #[test]
    fn a_limit_covers_the_targets_that_it_names() {
        let mut limit = LimitRule::new("a");
        assert!(limit.covers(&target(TargetKind::Prompts, "any")));
        limit.tools = vec![WildMatch::new("tracker/get_*")];
        limit.resources = vec![WildMatch::new("*/file://*")];
        for (kind, name, covered) in [
            (TargetKind::Tools, "get_issue", true),
            (TargetKind::Tools, "set_issue", false),
            (TargetKind::Prompts, "get_issue", false),
            (TargetKind::Resources, "file:///a/b", true),
            (TargetKind::Resources, "https://a", false),
        ] {
            assert_eq!(limit.covers(&target(kind, name)), covered, "{kind:?} {name}");
        }
    }

    #[test]
    fn a_batch_is_a_tenth_of_the_burst_and_at_most_a_second() {
        for (count, period, burst, batch) in
            [(20, 1, 60, 6), (20, 1, 1000, 20), (20, 1, 5, 1), (30, 60, 300, 1), (1_000_000, 1, 1_000_000, 100_000)]
        {
            let rate = Rate { count, period: Duration::from_secs(period), burst };
            let limit = LimitRule { rate: Some(rate), ..LimitRule::new("a") };
            assert_eq!(limit.batch(), batch, "{rate:?}");
            assert_eq!(LimitRule { exact: true, ..limit }.batch(), 1);
        }
        let quota = |count| Some(CallQuota { count, window: QuotaWindow::Day });
        assert_eq!(LimitRule { quota: quota(1000), ..LimitRule::new("a") }.batch(), 10);
        assert_eq!(LimitRule { quota: quota(50), ..LimitRule::new("a") }.batch(), 1);
    }

    #[test]
    fn the_role_that_counts_is_the_one_that_the_limit_names() {
        let mut ann = Identity::new("i|ann", Credential::Jwt("corp".into()));
        let limit =
            LimitRule { principals: vec![PrincipalPattern::parse("role:eng*").unwrap()], ..LimitRule::new("a") };
        assert_eq!(limit.counted_role(&ann), "");
        ann.roles = vec!["staff".into(), "engineering".into()];
        assert_eq!(limit.counted_role(&ann), "engineering");
        assert_eq!(LimitRule::new("b").counted_role(&ann), "staff");
    }
}
