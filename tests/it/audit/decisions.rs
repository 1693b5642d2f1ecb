//! Who or what decided: rules, limits, and the credential by which a server is called.

use std::sync::Arc;

use rialto::identity::{Credential, Identity};
use rialto::policy::rules::{
    AccessRule, ArgumentCondition, DefaultAccess, PrincipalPattern, RuleBook, TargetKind, TargetPattern,
};
use rialto::policy::{LimitRule, LimitScope, Rate, Tokens};
use wildmatch::WildMatch;

use super::*;
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// A rule for everybody.
fn rule(name: &str, allow: &[&str], deny: &[&str]) -> AccessRule {
    let mut rule = AccessRule::new(name);
    rule.principals = vec![PrincipalPattern::parse("*").unwrap()];
    for (targets, patterns) in [(&mut rule.allow, allow), (&mut rule.deny, deny)] {
        for pattern in patterns {
            let kind = if pattern.contains("://") { TargetKind::Resources } else { TargetKind::Tools };
            targets.push(kind, TargetPattern::parse(pattern).unwrap());
        }
    }
    rule
}

fn with_rules(mut config: GatewayConfig, rules: Vec<AccessRule>) -> GatewayConfig {
    let rules = Arc::new(RuleBook::new(rules, DefaultAccess::Deny, Vec::new()));
    config.groups.iter_mut().for_each(|group| group.rules = Some(Arc::clone(&rules)));
    config
}

/// The members of events that say what decided.
fn rows(events: &[Value]) -> Vec<Value> {
    let row = |event: &Value| {
        json!(["event", "outcome", "server", "target", "exposed_name", "rule", "limit"].map(|key| event[key].clone()))
    };
    events.iter().map(row).collect()
}

async fn start(
    name: &str,
    gateway: GatewayConfig,
    change: impl FnOnce(&mut rialto::app::AppSettings),
) -> (Rialto, PathBuf, TempFolder) {
    let folder = TempFolder::new(&format!("audit-{name}"));
    let file = folder.0.join("audit.jsonl");
    let rialto = Rialto::with(|settings| {
        settings.audit = AuditSettings { output: AuditOutput::File(file.clone()), ..AuditSettings::default() };
        settings.gateway = gateway;
        change(settings);
    })
    .await;
    (rialto, file, folder)
}

async fn events(rialto: &Rialto, file: &PathBuf) -> Vec<Value> {
    rialto.inbound.gateway.audit().flush(TEST_TIMEOUT).await;
    let events = read_events(&std::fs::read_to_string(file).unwrap());
    events.into_iter().filter(|event| event["event"] != "admission").collect()
}

#[tokio::test]
async fn the_rule_that_decided_is_named() {
    let mut by_argument = rule("only iron", &["two/getElement"], &[]);
    by_argument.when = vec![ArgumentCondition::parse("/name", &["Fe".to_owned()]).unwrap()];
    let mut by_scope = rule("needs a scope", &["two/getElementByPosition"], &[]);
    by_scope.require_scopes = vec!["read".into()];
    let rules = vec![
        rule("reads one", &["one/get*", "one/elements://*"], &[]),
        rule("nobody looks there", &[], &["one/getElementBy*"]),
        by_argument,
        by_scope,
    ];
    let person = Identity::new("https://login.example|ann", Credential::Jwt("corp".into()));
    let (rialto, file, _folder) = start("rules", with_rules(two_servers(), rules), |settings| {
        settings.policy.tokens = Tokens::of_identities(vec![(person, ANN_TOKEN.to_owned())]);
    })
    .await;
    let session = Session::open(&rialto, "2025-06-18", Some(ANN_TOKEN)).await;
    for (name, element) in [
        ("one__getElement", "Fe"),
        ("one__getElementByPosition", ""),
        ("two__getElement", "Fe"),
        ("two__getElement", "H"),
        ("two__getElementByPosition", ""),
        ("two__surveyElements", ""),
    ] {
        session.ask("tools/call", json!({ "name": name, "arguments": { "name": element } })).await;
    }
    let uri = "rialto://one/elements://symbol/Fe";
    session.ask("resources/subscribe", json!({ "uri": uri })).await;
    session.ask("resources/subscribe", json!({ "uri": "rialto://two/elements://symbol/Fe" })).await;
    let found = rows(&events(&rialto, &file).await);
    let expected = json!([
        ["call", "allowed", "one", "getElement", "one__getElement", "reads one", null],
        ["call", "hidden", "one", "getElementByPosition", "one__getElementByPosition", "nobody looks there", null],
        ["call", "allowed", "two", "getElement", "two__getElement", "only iron", null],
        ["call", "denied", "two", "getElement", "two__getElement", "only iron", null],
        ["step_up", "step_up", "two", "getElementByPosition", "two__getElementByPosition", "needs a scope", null],
        ["call", "hidden", "two", "surveyElements", "two__surveyElements", null, null],
        ["call", "allowed", "one", "elements://symbol/Fe", uri, "reads one", null],
        ["call", "hidden", "two", "elements://symbol/Fe", "rialto://two/elements://symbol/Fe", null, null],
    ]);
    assert_eq!(json!(found), expected);
}

#[tokio::test]
async fn limits_of_requests_and_of_tools_are_recorded_by_name() {
    let only = |burst| Some(Rate { count: 1, period: std::time::Duration::from_secs(3600), burst });
    let limits = vec![
        LimitRule { per: vec![LimitScope::Caller], rate: only(4), ..LimitRule::new("requests") },
        LimitRule { tools: vec![WildMatch::new("one/get*")], rate: only(1), ..LimitRule::new("lookups") },
    ];
    let (rialto, file, _folder) = start("limits", two_servers(), |settings| settings.rate_limits = limits).await;
    let session = Session::open(&rialto, "2025-11-25", None).await;
    for _ in 0..2 {
        session.ask("tools/call", json!({ "name": "one__getElement", "arguments": { "name": "Fe" } })).await;
    }
    // The rejected call took nothing, so two more requests have room.
    for status in [200, 200, 429] {
        assert_eq!(session.post(&request(9, "ping", json!({}))).status().await, status);
    }
    assert_eq!(rialto.modern("tools/list", json!({})).status().await, 429);
    assert_eq!(rialto.post("/mcp", &initialize("2025-11-25")).status().await, 429);
    let events = events(&rialto, &file).await;
    let over = |method: &str| json!(["rate_limit", "rate_limited", null, method, null, null, "requests"]);
    let expected = [
        json!(["call", "allowed", "one", "getElement", "one__getElement", null, null]),
        json!(["rate_limit", "rate_limited", "one", "getElement", "one__getElement", null, "lookups"]),
        over("ping"),
        over("tools/list"),
        over("initialize"),
    ];
    assert_eq!(rows(&events), expected);
    for event in &events {
        let caller = ["principal", "peer", "group"].map(|key| event[key].as_str().unwrap());
        assert_eq!(caller, ["anonymous", "127.0.0.1", "default"], "{event}");
        assert!(event["request_id"].is_string(), "{event}");
    }
    let metrics = rialto.inbound.admin.metrics();
    assert!(metrics.contains(r#"rialto_decisions_total{group="default",outcome="rate_limited"} 4"#), "{metrics}");
}

#[tokio::test]
async fn the_kind_of_the_upstream_credential_is_recorded_and_never_its_value() {
    let server = ScriptedServer::start("up", ServerTransport::Http).await;
    let with_header = server.target().with_header("authorization", "Bearer s3cret").unwrap();
    let specs = [
        UpstreamSpec::new("guarded", SpecKind::Target(with_header)),
        UpstreamSpec::new("open", SpecKind::Target(server.target())),
        UpstreamSpec::new("inside", SpecKind::Elements(TEST_TIMEOUT)),
    ];
    let group = GroupConfig::new(DEFAULT_GROUP, specs.iter().map(|spec| spec.name.clone()));
    let gateway = GatewayConfig { upstreams: specs.to_vec(), groups: vec![group] };
    let (rialto, file, _folder) = start("upstream", gateway, |_| {}).await;
    let session = Session::open(&rialto, "2025-11-25", None).await;
    for server in ["guarded", "open", "inside"] {
        let tool = if server == "inside" { "getElement" } else { "echo" };
        session.ask("tools/call", json!({ "name": format!("{server}__{tool}"), "arguments": { "name": "Fe" } })).await;
    }
    let kinds: Vec<Value> = events(&rialto, &file).await.iter().map(|event| event["upstream_auth"].clone()).collect();
    assert_eq!(kinds, [json!("headers"), json!("none"), Value::Null]);
}
