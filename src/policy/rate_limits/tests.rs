//! Limits on a paused clock, to the count.

use std::sync::Arc;
use std::time::Duration;

use wildmatch::WildMatch;

use super::*;
use crate::identity::{Credential, Identity};
use crate::policy::rules::PrincipalPattern;
use crate::store::MemoryStore;
use crate::store::traits::NodeStore;

const SECOND: Duration = Duration::from_secs(1);

/// Limits whose calendar follows the paused clock.
fn limits_in(rules: Vec<LimitRule>, store: Option<Arc<dyn ClusterStore>>) -> Arc<RateLimits> {
    fn paused_time() -> u64 {
        thread_local! {
            static STARTED_AT: Instant = Instant::now();
        }
        1_700_000_000 + STARTED_AT.with(|started_at| started_at.elapsed().as_secs())
    }
    paused_time();
    let mut limits = RateLimits::new(rules, store);
    limits.unix_time = paused_time;
    Arc::new(limits)
}

fn limits(rules: Vec<LimitRule>) -> Arc<RateLimits> {
    limits_in(rules, None)
}

fn rate(count: u32, period: Duration, burst: u32) -> Option<Rate> {
    Some(Rate { count, period, burst })
}

fn per_caller(name: &str) -> LimitRule {
    LimitRule { per: vec![LimitScope::Caller], ..LimitRule::new(name) }
}

fn caller(name: &str) -> Caller {
    let mut identity = Identity::new(format!("key|{name}"), Credential::Key(name.into()));
    identity.roles = vec![format!("{name}-role").into()];
    Caller { peer: Some(([127, 0, 0, 1], 1).into()), ..Caller::local(identity) }
}

fn request(caller: &Caller) -> LimitedRequest<'_> {
    LimitedRequest { caller, group: "default", target: None, resumes: false }
}

fn tool_call<'c>(caller: &'c Caller, name: &'c str, argument_bytes: usize) -> LimitedRequest<'c> {
    let target =
        CalledTarget { kind: crate::policy::rules::TargetKind::Tools, upstream: "search", name, argument_bytes };
    LimitedRequest { target: Some(target), ..request(caller) }
}

/// How many requests are admitted one after the other, and how long the next one is told to wait.
fn admitted(limits: &Arc<RateLimits>, asked: &LimitedRequest<'_>) -> (u64, Duration) {
    let mut count = 0;
    loop {
        match limits.try_admit(asked, None) {
            Ok(_) => count += 1,
            Err(NotAdmitted::Exceeded(LimitExceeded { excess: LimitExcess::Rate(wait), .. })) => return (count, wait),
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn burst_then_rate_to_the_count() {
    let limits = limits(vec![LimitRule { rate: rate(20, SECOND, 60), ..per_caller("a") }]);
    let (ann, bob) = (caller("ann"), caller("bob"));
    assert_eq!(admitted(&limits, &request(&ann)), (60, Duration::from_millis(50)));
    assert_eq!(admitted(&limits, &request(&bob)).0, 60, "another caller has a bucket of its own");
    for _ in 0..100 {
        tokio::time::advance(Duration::from_millis(50)).await;
        assert_eq!(admitted(&limits, &request(&ann)).0, 1);
    }
    tokio::time::advance(Duration::from_millis(3010)).await;
    assert_eq!(admitted(&limits, &request(&ann)), (60, Duration::from_millis(50)));
    assert_eq!(limits.usage()[0].rejections, 103);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_request_takes_from_no_bucket() {
    let wide = LimitRule { rate: rate(1, Duration::from_secs(3600), 10), ..per_caller("wide") };
    let narrow = LimitRule { rate: rate(1, SECOND, 1), ..LimitRule::new("narrow") };
    for rules in [vec![wide.clone(), narrow.clone()], vec![narrow, wide]] {
        let limits = limits(rules);
        let ann = caller("ann");
        for n in 0..10 {
            assert_eq!(admitted(&limits, &request(&ann)).0, 1, "{n}");
            // Each of these finds no room in one of the two.
            assert_eq!(admitted(&limits, &request(&ann)).0, 0);
            tokio::time::advance(SECOND).await;
        }
        let (more, wait) = admitted(&limits, &request(&ann));
        assert!(more == 0 && wait > Duration::from_secs(3000), "the wide one had ten: {more} {wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_not_sent_takes_nothing() {
    let requests = LimitRule { rate: rate(1, SECOND, 1), quota: day(2), ..per_caller("requests") };
    let calls = LimitRule { rate: rate(1, SECOND, 1), tools: vec![WildMatch::new("*")], ..per_caller("calls") };
    let limits = limits(vec![requests, calls]);
    let ann = caller("ann");
    for _ in 0..5 {
        let outer = limits.try_admit(&request(&ann), None).unwrap();
        let share = limits.try_admit(&tool_call(&ann, "web", 0), outer).unwrap().unwrap();
        share.give_back();
        share.give_back();
    }
    let outer = limits.try_admit(&request(&ann), None).unwrap();
    let _share = limits.try_admit(&tool_call(&ann, "web", 0), outer).unwrap();
    assert!(limits.try_admit(&request(&ann), None).is_err());
    assert!(limits.try_admit(&tool_call(&ann, "web", 0), None).is_err());
}

fn day(count: u64) -> Option<CallQuota> {
    Some(CallQuota { count, window: QuotaWindow::Day })
}

#[tokio::test(start_paused = true)]
async fn a_quota_begins_anew_with_its_window() {
    let limits = limits(vec![LimitRule { quota: day(3), ..per_caller("a") }]);
    let ann = caller("ann");
    // The clock begins at 22:13:20.
    assert_eq!(admitted(&limits, &request(&ann)), (3, Duration::from_secs(6400)));
    assert_eq!(limits.usage()[0].measures, [LimitMeasure { name: "quota", used: 3, limit: 3 }]);
    tokio::time::advance(Duration::from_secs(6399)).await;
    assert_eq!(admitted(&limits, &request(&ann)), (0, SECOND));
    tokio::time::advance(SECOND).await;
    assert_eq!(limits.usage()[0].measures[0].used, 0);
    assert_eq!(admitted(&limits, &request(&ann)), (3, Duration::from_secs(86_400)));
}

#[tokio::test(start_paused = true)]
async fn requests_are_in_flight_until_their_share_is_dropped() {
    let limits = limits(vec![LimitRule { max_in_flight: Some(2), ..per_caller("a") }]);
    let ann = caller("ann");
    let held: Vec<_> = (0..2).map(|_| limits.try_admit(&request(&ann), None).unwrap()).collect();
    let exceeded = LimitExceeded { limit: "a".into(), excess: LimitExcess::Rate(SECOND) };
    assert_eq!(limits.try_admit(&request(&ann), None).unwrap_err(), NotAdmitted::Exceeded(exceeded));
    assert!(limits.try_admit(&request(&caller("bob")), None).is_ok());
    let resumes = LimitedRequest { resumes: true, ..request(&ann) };
    drop(limits.try_admit(&resumes, None).unwrap());
    let in_flight = || limits.usage()[0].measures[0].used;
    assert_eq!(in_flight(), 2, "one that goes on with another is not counted twice");
    drop(held);
    assert_eq!(in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_what_matches_is_counted() {
    let rule = LimitRule {
        principals: vec![PrincipalPattern::parse("key:ann").unwrap()],
        groups: vec!["default".into()],
        tools: vec![WildMatch::new("search/web*")],
        per: vec![LimitScope::Tool],
        rate: rate(1, SECOND, 1),
        ..LimitRule::new("a")
    };
    let limits = limits(vec![rule]);
    assert!(!limits.counts_requests() && limits.judges_calls());
    let (ann, bob) = (caller("ann"), caller("bob"));
    let is_counted = |asked: LimitedRequest<'_>| limits.try_admit(&asked, None).unwrap().is_some();
    assert!(is_counted(tool_call(&ann, "web", 0)));
    assert!(is_counted(tool_call(&ann, "web2", 0)), "each tool has a bucket of its own");
    assert!(!is_counted(tool_call(&ann, "files", 0)));
    assert!(!is_counted(tool_call(&bob, "web", 0)));
    assert!(!is_counted(LimitedRequest { group: "other", ..tool_call(&ann, "web", 0) }));
    assert!(!is_counted(request(&ann)));
    assert!(limits.try_admit(&tool_call(&ann, "web", 0), None).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_caller_is_a_principal_whatever_clients_it_uses() {
    let with_client = |name: &str, client: &str| {
        let mut caller = caller(name);
        caller.identity = Arc::new(Identity::clone(&caller.identity).with_client_id(client));
        caller
    };
    let [desk, web, other] = [("ann", "desk"), ("ann", "web"), ("bob", "web")].map(|(name, id)| with_client(name, id));
    for (per, shares) in [
        (vec![LimitScope::Caller], [true, false]),
        (vec![LimitScope::Client], [false, true]),
        (vec![LimitScope::Caller, LimitScope::Client], [false, false]),
    ] {
        let rule = LimitRule { per: per.clone(), rate: rate(1, SECOND, 1), ..LimitRule::new("once") };
        let is_shared = |first: &Caller, second: &Caller| {
            let limits = limits(vec![rule.clone()]);
            limits.try_admit(&request(first), None).unwrap();
            limits.try_admit(&request(second), None).is_err()
        };
        assert_eq!([is_shared(&desk, &web), is_shared(&web, &other)], shares, "{per:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_scope_has_buckets_of_its_own() {
    let desk = |name: &str| {
        let mut caller = caller(name);
        let identity = Identity::clone(&caller.identity).with_client_id(format!("{name}-client"));
        caller.identity = Arc::new(identity);
        caller
    };
    let (ann, bob) = (desk("ann"), desk("bob"));
    let first = tool_call(&ann, "web", 0);
    let on_other_server = first.target.map(|target| CalledTarget { upstream: "other", ..target });
    let others = [
        ("caller", tool_call(&bob, "web", 0)),
        ("group", LimitedRequest { group: "other", ..first }),
        ("server", LimitedRequest { target: on_other_server, ..first }),
        ("tool", tool_call(&ann, "files", 0)),
    ];
    for (scope, apart) in [
        (LimitScope::Caller, &["caller"][..]),
        (LimitScope::Client, &["caller"]),
        (LimitScope::Role, &["caller"]),
        (LimitScope::Group, &["group"]),
        (LimitScope::Server, &["server"]),
        (LimitScope::Tool, &["server", "tool"]),
    ] {
        let tools = vec![WildMatch::new("*")];
        let rule = LimitRule { per: vec![scope], tools, rate: rate(1, SECOND, 1), ..LimitRule::new("a") };
        let limits = limits(vec![rule]);
        assert_eq!(admitted(&limits, &first).0, 1);
        for (name, asked) in &others {
            assert_eq!(admitted(&limits, asked).0, u64::from(apart.contains(name)), "{scope:?}: another {name}");
        }
    }
    let anonymous = |port: u8| {
        let peer = Some(([10, 0, 0, port], 1).into());
        Caller { peer, ..Caller::local(Identity::anonymous()) }
    };
    let limits = limits(vec![LimitRule { rate: rate(1, SECOND, 1), ..per_caller("a") }]);
    let counts = [anonymous(1), anonymous(2), anonymous(1)].map(|caller| admitted(&limits, &request(&caller)).0);
    assert_eq!(counts, [1, 1, 0], "where nobody is known, each address is a caller");
}

#[tokio::test(start_paused = true)]
async fn bounds_of_calls_only_become_narrower() {
    let long = LimitRule { total_timeout: Some(SECOND * 60), ..LimitRule::new("long") };
    let short = LimitRule {
        total_timeout: Some(SECOND * 5),
        max_argument_bytes: Some(10),
        tools: vec![WildMatch::new("*")],
        ..LimitRule::new("short")
    };
    let limits = limits(vec![long, short]);
    let ann = caller("ann");
    let share = limits.try_admit(&tool_call(&ann, "web", 10), None).unwrap().unwrap();
    assert_eq!(share.total_timeout(), Some(SECOND * 5));
    let refused = limits.try_admit(&tool_call(&ann, "web", 11), None).unwrap_err();
    let exceeded = LimitExceeded { limit: "short".into(), excess: LimitExcess::ArgumentBytes(10) };
    assert_eq!(refused, NotAdmitted::Exceeded(exceeded));
    assert_eq!(limits.usage()[1].rejections, 1);
}

#[tokio::test(start_paused = true)]
async fn a_reload_changes_at_once_what_changed_and_leaves_the_rest() {
    let kept = LimitRule { rate: rate(1, Duration::from_secs(3600), 4), ..per_caller("kept") };
    let slow =
        LimitRule { rate: rate(1, Duration::from_secs(3600), 5), max_in_flight: Some(9), ..per_caller("changed") };
    let limits = limits(vec![kept.clone(), slow.clone()]);
    let ann = caller("ann");
    let held = limits.try_admit(&request(&ann), None).unwrap();
    drop(limits.try_admit(&request(&ann), None).unwrap());
    limits.set_rules(vec![kept.clone(), LimitRule { rate: rate(100, SECOND, 1), ..slow }]);
    assert_eq!(limits.usage()[0].measures[0].used, 2, "the level stays");
    assert_eq!(limits.usage()[1].measures[0].used, 0, "another rate begins with a full bucket");
    assert_eq!(limits.usage()[1].measures[1].used, 1, "what is in flight is still known");
    drop(held);
    assert_eq!(limits.usage()[1].measures[1].used, 0);
    assert_eq!(admitted(&limits, &request(&ann)), (1, Duration::from_millis(10)));
    limits.set_rules(vec![kept]);
    assert_eq!(admitted(&limits, &request(&ann)).0, 1, "four in all");
    limits.set_rules(Vec::new());
    assert!(!limits.counts_requests() && !limits.judges_calls());
    assert_eq!(limits.buckets.len(), 0);
}

/// A node on a shared store in this process.
fn node(store: &Arc<MemoryStore>, rule: &LimitRule) -> Arc<RateLimits> {
    limits_in(vec![rule.clone()], Some(Arc::clone(store) as Arc<dyn ClusterStore>))
}

async fn admitted_by_store(limits: &Arc<RateLimits>, asked: &LimitedRequest<'_>) -> u64 {
    let mut count = 0;
    while limits.admit(asked, None).await.is_ok() {
        count += 1;
    }
    count
}

#[tokio::test(start_paused = true)]
async fn nodes_share_a_bucket_in_the_store() {
    for exact in [false, true] {
        let store = MemoryStore::new();
        let rule = LimitRule { rate: rate(20, SECOND, 60), exact, ..per_caller("a") };
        let nodes = [node(&store, &rule), node(&store, &rule)];
        let ann = caller("ann");
        let first = admitted_by_store(&nodes[0], &request(&ann)).await;
        assert_eq!((first, admitted_by_store(&nodes[1], &request(&ann)).await), (60, 0), "exact: {exact}");
        tokio::time::advance(SECOND).await;
        assert_eq!(admitted_by_store(&nodes[1], &request(&ann)).await, 20);
        assert_eq!(admitted_by_store(&nodes[0], &request(&caller("bob"))).await, 60);
    }
}

#[tokio::test(start_paused = true)]
async fn unspent_tokens_go_back_after_a_second() {
    let store = MemoryStore::new();
    let rule = LimitRule { rate: rate(100, SECOND, 100), quota: day(1000), ..per_caller("a") };
    assert_eq!(rule.batch(), 10);
    let nodes = [node(&store, &rule), node(&store, &rule)];
    let upkeep = tokio::spawn(Arc::clone(&nodes[0]).run_upkeep());
    let ann = caller("ann");
    nodes[0].admit(&request(&ann), None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(admitted_by_store(&nodes[1], &request(&ann)).await, 100);
    tokio::time::sleep(SECOND * 20).await;
    let mut rest = 0;
    for _ in 0..20 {
        rest += admitted_by_store(&nodes[1], &request(&ann)).await;
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(1 + 100 + rest, 1000, "the quota lost nothing");
    upkeep.abort();
}

#[tokio::test(start_paused = true)]
async fn a_node_without_the_store_enforces_its_share() {
    let store = MemoryStore::new();
    let rule = LimitRule { rate: rate(30, SECOND, 60), quota: day(1_000_000), ..per_caller("a") };
    let limits = node(&store, &rule);
    for name in ["a", "b", "c"] {
        store.join(&crate::store::NodeId::generate(name), Duration::from_secs(3600)).await.unwrap();
    }
    let shared = limits.shared.as_ref().unwrap();
    shared.count_nodes().await;
    let ann = caller("ann");
    limits.admit(&request(&ann), None).await.unwrap();
    shared.set_away(&crate::store::StoreError { reason: "cut".into(), maybe_applied: false });
    assert_eq!(admitted(&limits, &request(&ann)).0, 19, "a third of the burst, and one was spent before");
    tokio::time::advance(SECOND).await;
    assert_eq!(admitted(&limits, &request(&ann)).0, 10, "a third of the rate");
    assert_eq!(limits.shared_usage(), Some(SharedLimitsUsage { is_away: true, decided_alone: 29 }));
    shared.count_nodes().await;
    assert_eq!(limits.shared_usage(), Some(SharedLimitsUsage { is_away: false, decided_alone: 29 }));
    assert_eq!(admitted_by_store(&limits, &request(&ann)).await, 65, "a full bucket, and what was left of a batch");
}
