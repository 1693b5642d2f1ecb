//! Rules: what callers may do, seen from outside by clients of both eras over HTTP, HTTP+SSE and stdio.

mod changes;
mod check;
mod checklist;
mod step_up;
mod visibility;

use std::sync::Arc;

use rialto::app::{App, AppSettings};
use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::identity::{Credential, Identity};
use rialto::policy::Tokens;
use rialto::policy::rules::{
    AccessRule, ArgumentCondition, DefaultAccess, PrincipalPattern, RuleBook, TargetKind, TargetPattern,
};
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::harness::{Events, HANDSHAKE, Rialto, Session, TEST_TIMEOUT, initialize, modern, request};
use crate::scripted_server::ScriptedServer;

/// A rule as a test writes it.
struct Rule(AccessRule);

fn callers(principals: &[&str]) -> Rule {
    let mut rule = AccessRule::new(&format!("for {}", principals.join(", ")));
    rule.principals = principals.iter().map(|text| PrincipalPattern::parse(text).unwrap()).collect();
    Rule(rule)
}

impl Rule {
    fn allow(mut self, kind: TargetKind, patterns: &[&str]) -> Self {
        patterns.iter().for_each(|text| self.0.allow.push(kind, TargetPattern::parse(text).unwrap()));
        self
    }

    fn allow_all(self, patterns: &[&str]) -> Self {
        TargetKind::ALL.into_iter().fold(self, |rule, kind| rule.allow(kind, patterns))
    }

    fn deny(mut self, kind: TargetKind, patterns: &[&str]) -> Self {
        patterns.iter().for_each(|text| self.0.deny.push(kind, TargetPattern::parse(text).unwrap()));
        self
    }

    fn scopes(mut self, scopes: &[&str]) -> Self {
        self.0.require_scopes = scopes.iter().map(|scope| (*scope).into()).collect();
        self
    }

    fn when(mut self, pointer: &str, pattern: &str) -> Self {
        self.0.when.push(ArgumentCondition::parse(pointer, &[pattern.to_owned()]).unwrap());
        self
    }

    fn groups(mut self, groups: &[&str]) -> Self {
        self.0.groups = Some(groups.iter().map(|group| (*group).into()).collect());
        self
    }
}

/// Rules that deny what they do not allow. `admin` contains `write`.
fn book(rules: Vec<Rule>) -> Arc<RuleBook> {
    book_with(DefaultAccess::Deny, rules)
}

fn book_with(default: DefaultAccess, rules: Vec<Rule>) -> Arc<RuleBook> {
    let hierarchy = vec![("admin".to_owned(), vec!["write".to_owned()])];
    Arc::new(RuleBook::new(rules.into_iter().map(|rule| rule.0).collect(), default, hierarchy))
}

/// Somebody with a token of the issuer `corp`; the token is the name.
fn person(name: &str, roles: &[&str], scopes: &[&str]) -> (Identity, String) {
    let mut identity = Identity::new(format!("https://login.example|{name}"), Credential::Jwt("corp".into()));
    identity.roles = roles.iter().map(|role| (*role).into()).collect();
    identity.scopes = scopes.iter().map(|scope| (*scope).into()).collect();
    (identity, name.to_owned())
}

/// Ann has the role `a`, bob the role `b`, eve a static token.
fn people() -> Vec<(Identity, String)> {
    let eve = Identity::new("token|eve", Credential::Token("eve".into()));
    vec![person("ann", &["a"], &[]), person("bob", &["b"], &[]), (eve, "eve".to_owned())]
}

fn scripted(servers: &[&ScriptedServer]) -> GatewayConfig {
    let upstreams: Vec<UpstreamSpec> =
        servers.iter().map(|server| UpstreamSpec::new(&server.name, SpecKind::Target(server.target()))).collect();
    let group = GroupConfig::new(DEFAULT_GROUP, upstreams.iter().map(|spec| Arc::clone(&spec.name)));
    GatewayConfig { upstreams, groups: vec![group] }
}

fn elements() -> GatewayConfig {
    rialto::app::builtin_config(std::time::Duration::from_secs(3600))
}

fn with_rules(mut config: GatewayConfig, rules: &Arc<RuleBook>) -> GatewayConfig {
    config.groups.iter_mut().for_each(|group| group.rules = Some(Arc::clone(rules)));
    config
}

async fn gateway(config: GatewayConfig, rules: &Arc<RuleBook>) -> Rialto {
    gateway_for(config, rules, people()).await
}

async fn gateway_for(config: GatewayConfig, rules: &Arc<RuleBook>, people: Vec<(Identity, String)>) -> Rialto {
    Rialto::with(|settings| {
        settings.gateway = with_rules(config, rules);
        settings.policy.tokens = Tokens::of_identities(people);
    })
    .await
}

/// How a client reaches the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Via {
    Session(&'static str),
    PerRequest,
    Sse(&'static str),
}

/// Every way over HTTP.
fn every_way() -> Vec<Via> {
    let sessions = HANDSHAKE.into_iter().map(Via::Session);
    sessions.chain([Via::PerRequest, Via::Sse("2024-11-05"), Via::Sse("2025-11-25")]).collect()
}

/// The status and the text of the response to one request.
async fn ask(rialto: &Rialto, via: Via, token: &str, method: &str, params: Value) -> (u16, String) {
    match via {
        Via::Session(revision) => {
            let session = Session::open(rialto, revision, Some(token)).await;
            let received = session.post(&request(7, method, params)).go().await;
            (received.status, text_of(received).await)
        }
        Via::PerRequest => {
            let sending = rialto.post("/mcp", &modern(7.into(), method, params.clone()));
            let sending = sending.modern_headers(method, &params).header("authorization", &format!("Bearer {token}"));
            let received = sending.go().await;
            (received.status, text_of(received).await)
        }
        Via::Sse(revision) => {
            let authorization = format!("Bearer {token}");
            let stream = rialto.send("GET", "/sse").header("accept", "text/event-stream");
            let mut events = stream.header("authorization", &authorization).go().await.events();
            let endpoint = events.next().await.unwrap().data;
            let mut answer = Value::Null;
            for message in [initialize(revision), request(7, method, params)] {
                let posted = rialto.post(&endpoint, &message).header("authorization", &authorization);
                assert_eq!(posted.status().await, 202);
                answer = events.message().await.unwrap();
            }
            (200, answer.to_string())
        }
    }
}

/// The response message, from a JSON body or the end of a stream.
async fn text_of(received: crate::harness::HttpResponse) -> String {
    match received.is_events() {
        true => received.events().rest().await.pop().expect("an answer").to_string(),
        false => received.text().await,
    }
}

async fn answer(rialto: &Rialto, via: Via, token: &str, method: &str, params: Value) -> Value {
    let (_, text) = ask(rialto, via, token, method, params).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// One member of every item of a list.
async fn listed(rialto: &Rialto, via: Via, token: &str, list: &str) -> Vec<String> {
    let (method, key) = match list {
        "tools" | "prompts" => (format!("{list}/list"), "name"),
        "resources" => ("resources/list".to_owned(), "uri"),
        _ => ("resources/templates/list".to_owned(), "uriTemplate"),
    };
    let answer = answer(rialto, via, token, &method, json!({})).await;
    let items = answer["result"][list].as_array().unwrap_or_else(|| panic!("no {list}: {answer}"));
    items.iter().map(|item| item[key].as_str().unwrap().to_owned()).collect()
}

fn call_of(tool: &str) -> Value {
    json!({ "name": tool, "arguments": {} })
}

/// Waits for a notification of a method and returns its parameters.
async fn wait_for(events: &mut Events, method: &str) -> Value {
    loop {
        let message = events.message().await.expect("the stream stays open");
        if message["method"] == method {
            return message["params"].clone();
        }
    }
}

/// Opens `subscriptions/listen` and returns its stream with the granted filter.
async fn listen(rialto: &Rialto, token: &str, notifications: Value) -> (Events, Value) {
    let params = json!({ "notifications": notifications });
    let sending = rialto.post("/mcp", &modern(9.into(), "subscriptions/listen", params.clone()));
    let sending = sending.modern_headers("subscriptions/listen", &params);
    let mut events = sending.header("authorization", &format!("Bearer {token}")).go().await.events();
    let granted = wait_for(&mut events, "notifications/subscriptions/acknowledged").await["notifications"].clone();
    (events, granted)
}

/// Answers of a gateway to requests over stdio.
async fn over_stdio(settings: AppSettings, messages: &[Value]) -> Vec<Value> {
    let app = App::new(settings);
    let group = app.gateway().group(None).unwrap();
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (read, write) = tokio::io::split(theirs);
    let served = tokio::spawn(Arc::clone(app.inbound()).serve_stdio(group, BufReader::new(read), write));
    let (output, mut input) = tokio::io::split(ours);
    let mut lines = BufReader::new(output).lines();
    let mut answers = Vec::new();
    for message in messages {
        input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        loop {
            let line = tokio::time::timeout(TEST_TIMEOUT, lines.next_line()).await.expect("a line in time");
            let line: Value = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
            if line["id"] == message["id"] {
                answers.push(line);
                break;
            }
        }
    }
    drop((input, lines));
    served.await.unwrap().unwrap();
    app.gateway().stop().await;
    answers
}
