//! Properties of decisions, and tables of decisions: who may do what, with which scopes and arguments.

use proptest::prelude::*;

use super::*;
use crate::identity::Credential;
use crate::protocol::Raw;

/// A rule from the texts of a configuration file.
fn rule(principals: &[&str], allow: &[&str], deny: &[&str]) -> AccessRule {
    let mut rule = AccessRule::new("test");
    rule.principals = principals.iter().map(|text| PrincipalPattern::parse(text).unwrap()).collect();
    for (targets, texts) in [(&mut rule.allow, allow), (&mut rule.deny, deny)] {
        texts.iter().for_each(|text| targets.push(TargetKind::Tools, TargetPattern::parse(text).unwrap()));
    }
    rule
}

fn condition(pointer: &str, pattern: &str) -> ArgumentCondition {
    ArgumentCondition::parse(pointer, &[pattern.to_owned()]).unwrap()
}

fn book(rules: Vec<AccessRule>, default: DefaultAccess) -> Arc<RuleBook> {
    let hierarchy = vec![("admin".into(), vec!["write".into()]), ("write".into(), vec!["read".into()])];
    Arc::new(RuleBook::new(rules, default, hierarchy))
}

fn caller(roles: &[&str], scopes: &[&str]) -> Identity {
    let mut identity = Identity::new("i|ann", Credential::Jwt("corp".into()));
    identity.roles = roles.iter().map(|role| (*role).into()).collect();
    identity.scopes = scopes.iter().map(|scope| (*scope).into()).collect();
    identity
}

fn tool<'t>(upstream: &'t str, names: &'t [&'t str]) -> RuleTarget<'t> {
    RuleTarget { kind: TargetKind::Tools, upstream, names, granting: names.len() }
}

fn step_up(scopes: &[&str]) -> Decision {
    Decision::StepUp(scopes.iter().map(|scope| Arc::from(*scope)).collect())
}

#[test]
fn a_target_that_no_rule_matches_gets_the_default() {
    for (default, decision) in [(DefaultAccess::Allow, Decision::Allowed), (DefaultAccess::Deny, Decision::Hidden)] {
        let book = book(vec![rule(&["role:a"], &["x/get"], &[])], default);
        for (roles, name, expected) in
            [(&["a"][..], "get", &Decision::Allowed), (&["a"], "put", &decision), (&[], "get", &decision)]
        {
            let class = book.class_of(&caller(roles, &[]));
            assert_eq!(class.decide("g", &tool("x", &[name]), JudgedArguments::Given(None)), *expected, "{name}");
        }
    }
}

#[test]
fn scopes_step_up_to_all_that_the_first_rule_requires() {
    let mut first = rule(&["*"], &["x/put"], &[]);
    first.require_scopes = vec!["write".into(), "audit".into()];
    let mut second = rule(&["*"], &["x/*"], &[]);
    second.require_scopes = vec!["admin".into()];
    let book = book(vec![first, second], DefaultAccess::Deny);
    for (scopes, name, expected) in [
        (&[][..], "put", step_up(&["write", "audit"])),
        (&["write"], "put", step_up(&["write", "audit"])),
        (&["write", "audit"], "put", Decision::Allowed),
        (&["admin"], "put", Decision::Allowed),
        (&["write", "audit"], "get", step_up(&["admin"])),
        (&["Admin"], "get", step_up(&["admin"])),
    ] {
        let class = book.class_of(&caller(&[], scopes));
        assert_eq!(class.decide("g", &tool("x", &[name]), JudgedArguments::Given(None)), expected, "{scopes:?} {name}");
    }
}

#[test]
fn a_wider_scope_contains_the_narrower_ones() {
    let mut reading = rule(&["*"], &["x/get"], &[]);
    reading.require_scopes = vec!["read".into()];
    let book = book(vec![reading], DefaultAccess::Deny);
    for (scope, expected) in [("read", true), ("write", true), ("admin", true), ("reader", false)] {
        let class = book.class_of(&caller(&[], &[scope]));
        let decision = class.decide("g", &tool("x", &["get"]), JudgedArguments::Assumed);
        assert_eq!(decision == Decision::Allowed, expected, "{scope}");
    }
}

#[test]
fn arguments_decide_between_allowed_and_denied() {
    let mut acme = rule(&["*"], &["x/put"], &[]);
    acme.when = vec![condition("/project", "ACME-*"), condition("/dry", "true")];
    let mut wide = rule(&["*"], &["x/put"], &[]);
    wide.require_scopes = vec!["write".into()];
    wide.when = vec![condition("/project", "B*")];
    let book = book(vec![acme, wide], DefaultAccess::Allow);
    for (scopes, arguments, expected) in [
        (&[][..], r#"{"project":"ACME-1","dry":true}"#, Decision::Allowed),
        (&[], r#"{"project":"ACME-1"}"#, Decision::Denied("/dry".into())),
        (&[], r#"{"project":"C"}"#, Decision::Denied("/project".into())),
        (&[], r#"{"project":"B"}"#, step_up(&["write"])),
        (&["write"], r#"{"project":"B"}"#, Decision::Allowed),
        (&["write"], "{}", Decision::Denied("/project".into())),
    ] {
        let class = book.class_of(&caller(&[], scopes));
        let given = Raw::constant(arguments);
        let decision = class.decide("g", &tool("x", &["put"]), JudgedArguments::Given(Some(&given)));
        assert_eq!(decision, expected, "{scopes:?} {arguments}");
        assert_eq!(class.judge("g", &tool("x", &["put"])).access, Access::Conditional);
    }
}

#[test]
fn all_of_require_and_one_of_principals_must_match() {
    let mut both = rule(&["role:a", "role:b"], &["x/*"], &[]);
    both.require = vec![PrincipalPattern::parse("issuer:corp").unwrap(), PrincipalPattern::parse("role:c").unwrap()];
    let book = book(vec![both], DefaultAccess::Deny);
    for (roles, expected) in [(&["a", "c"][..], true), (&["b", "c"], true), (&["a"], false), (&["c"], false)] {
        let class = book.class_of(&caller(roles, &[]));
        assert_eq!(class.judge("g", &tool("x", &["y"])).access == Access::Allowed, expected, "{roles:?}");
    }
}

#[test]
fn a_rule_holds_in_its_groups_only() {
    let mut rule = rule(&["*"], &["x/*"], &[]);
    rule.groups = Some(vec!["research".into()]);
    let class = book(vec![rule], DefaultAccess::Deny).class_of(&Identity::anonymous());
    assert_eq!(class.judge("research", &tool("x", &["y"])).access, Access::Allowed);
    assert_eq!(class.judge("default", &tool("x", &["y"])).access, Access::Hidden);
    assert!(class.may_use("research", "x") && !class.may_use("default", "x"));
}

#[test]
fn a_group_is_unusable_once_all_that_is_allowed_is_denied() {
    let usable =
        |rules: Vec<AccessRule>, default| book(rules, default).class_of(&Identity::anonymous()).may_use("g", "x");
    for (allow, deny, expected) in [
        (&["x/get"][..], &[][..], true),
        (&["y/get"], &[], false),
        (&["*/get"], &[], true),
        (&["x/get"], &["x/*"], false),
        (&["x/get"], &["*"], false),
        (&["x/get"], &["x/put"], true),
        (&["x/*"], &["x/?"], true),
        (&["*/get"], &["x/*"], false),
    ] {
        let rules = vec![rule(&["*"], allow, &[]), rule(&["*"], &[], deny)];
        assert_eq!(usable(rules, DefaultAccess::Deny), expected, "{allow:?} {deny:?}");
    }
    assert!(usable(vec![rule(&["*"], &[], &["*"])], DefaultAccess::Allow), "prompts, for example, are not denied");
    let mut nothing = rule(&["*"], &[], &["*"]);
    for kind in TargetKind::ALL {
        nothing.deny.push(kind, TargetPattern::parse("x/*").unwrap());
    }
    assert!(!usable(vec![nothing], DefaultAccess::Allow));
}

#[test]
fn callers_whom_the_same_rules_match_share_a_class() {
    let book = book(vec![rule(&["role:a"], &["x/*"], &[])], DefaultAccess::Deny);
    let (one, same, other) = (caller(&["a"], &["s"]), caller(&["b", "a"], &[]), caller(&["b"], &[]));
    let class = book.class_of(&one);
    assert_eq!(class.id(), book.class_of(&same).id());
    assert_ne!(class.id(), book.class_of(&other).id());
    assert_eq!(class.id(), book.class_of(&one).id());
    let changed = Arc::new(RuleBook::new(Vec::new(), DefaultAccess::Deny, Vec::new()));
    assert_ne!(class.id(), changed.class_of(&one).id(), "another book has other classes");
}

fn any_rule() -> impl Strategy<Value = AccessRule> {
    let patterns = || {
        let pattern = prop::sample::select(vec!["*", "x/*", "x/get", "y/get", "*/p*", "x/?et", "y/put"]);
        prop::collection::vec(pattern, 0..3)
    };
    let principals = prop::sample::select(vec!["*", "role:a", "role:b", "local", "issuer:corp"]);
    let scopes = prop::collection::vec(prop::sample::select(vec!["read", "write", "other"]), 0..2);
    let when = prop::collection::vec(prop::sample::select(vec!["A", "B*", "*"]), 0..2);
    (principals, patterns(), patterns(), scopes, when).prop_map(|(principal, allow, deny, scopes, when)| {
        let mut rule = rule(&[principal], &allow, &deny);
        rule.require_scopes = scopes.into_iter().map(Arc::from).collect();
        rule.when = when.into_iter().map(|pattern| condition("/p", pattern)).collect();
        rule
    })
}

fn any_caller() -> impl Strategy<Value = Identity> {
    let roles = prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 0..3);
    let scopes = prop::collection::vec(prop::sample::select(vec!["read", "write", "admin", "other"]), 0..3);
    (roles, scopes).prop_map(|(roles, scopes)| caller(&roles, &scopes))
}

const TOOLS: [(&str, &str); 4] = [("x", "get"), ("x", "put"), ("y", "get"), ("y", "put")];
const ARGUMENTS: [&str; 4] = ["{}", r#"{"p":"A"}"#, r#"{"p":"Bob"}"#, r#"{"p":1,"p":2}"#];

proptest! {
    /// A denial wins wherever it stands, and whether a call is made does not depend on the order of the rules.
    #[test]
    fn deny_wins_in_any_order(
        rules in prop::collection::vec(any_rule(), 0..5).prop_flat_map(|rules| (Just(rules.clone()), Just(rules).prop_shuffle())),
        ann in any_caller(),
        default in prop::sample::select(vec![DefaultAccess::Allow, DefaultAccess::Deny]),
    ) {
        let (rules, shuffled) = rules;
        let denied: Vec<AccessRule> = rules.iter().filter(|rule| rule.is_for(&ann)).cloned().collect();
        let classes = [rules, shuffled].map(|rules| book(rules, default).class_of(&ann.clone()));
        for (upstream, name) in TOOLS {
            let (names, target_path) = ([name], [format!("{upstream}/{name}")]);
            let target = tool(upstream, &names);
            let is_denied = denied.iter().any(|rule| rule.deny.match_any(TargetKind::Tools, &target_path));
            let [one, other] = classes.each_ref().map(|class| class.judge("g", &target).access);
            prop_assert_eq!(one, other);
            for arguments in ARGUMENTS {
                let given = Raw::constant(arguments);
                let [one, other] = classes.each_ref().map(|class| {
                    class.decide("g", &target, JudgedArguments::Given(Some(&given)))
                });
                prop_assert!(!is_denied || one == Decision::Hidden);
                // Only which of several scopes is asked for first follows the order.
                prop_assert_eq!(std::mem::discriminant(&one), std::mem::discriminant(&other));
            }
        }
    }

    /// What is listed is what can be called: now, with other arguments, or with more scopes.
    #[test]
    fn list_and_call_never_disagree(
        rules in prop::collection::vec(any_rule(), 0..5),
        ann in any_caller(),
        default in prop::sample::select(vec![DefaultAccess::Allow, DefaultAccess::Deny]),
    ) {
        let class = book(rules, default).class_of(&ann);
        for (upstream, name) in TOOLS {
            let names = [name];
            let target = tool(upstream, &names);
            let listed = class.judge("g", &target).access;
            let assumed = class.decide("g", &target, JudgedArguments::Assumed);
            match listed {
                Access::Hidden => prop_assert_eq!(&assumed, &Decision::Hidden),
                Access::Allowed | Access::Conditional => prop_assert_eq!(&assumed, &Decision::Allowed),
                Access::StepUp => prop_assert!(matches!(assumed, Decision::StepUp(_))),
            }
            for arguments in ARGUMENTS {
                let given = Raw::constant(arguments);
                let decision = class.decide("g", &target, JudgedArguments::Given(Some(&given)));
                prop_assert_eq!(decision == Decision::Hidden, listed == Access::Hidden);
                prop_assert!(listed != Access::Allowed || decision == Decision::Allowed);
                prop_assert!(listed != Access::StepUp || decision != Decision::Allowed);
            }
            if listed != Access::Hidden {
                prop_assert!(class.may_use("g", upstream), "a group in which something is shown may be used");
            }
        }
    }
}
