//! The audit log: what is recorded, what is never in it, and what happens when it cannot be written.

mod checklist;
mod decisions;
mod outputs;

use std::path::PathBuf;

use rialto::audit::{ArgumentDetail, AuditOutput, AuditSettings, RedactedPointers};
use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::policy::Tokens;
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};

use crate::config::TempFolder;
use crate::harness::{HttpRequest, Rialto, Session, TEST_TIMEOUT, call, initialize, request};

/// Tokens that no output may show.
const ANN_TOKEN: &str = "ann-t0ken-0123456789";
const ADMIN_TOKEN: &str = "admin-t0ken-0123456789";

/// A gateway with two servers of the same tools, an audit log and callers with tokens.
struct Audited {
    rialto: Rialto,
    file: PathBuf,
    _folder: TempFolder,
}

impl Audited {
    async fn start(name: &str, change: impl FnOnce(&mut AuditSettings)) -> Self {
        let folder = TempFolder::new(&format!("audit-{name}"));
        let file = folder.0.join("audit.jsonl");
        let _ = std::fs::remove_file(&file);
        let mut audit = AuditSettings { output: AuditOutput::File(file.clone()), ..AuditSettings::default() };
        change(&mut audit);
        let rialto = Rialto::with(|settings| {
            settings.audit = audit;
            settings.gateway = two_servers();
            settings.policy.tokens = Tokens::parse(&[format!("ann={ANN_TOKEN}")]).unwrap();
            settings.policy.admin_token = rialto::policy::AdminToken::new(ADMIN_TOKEN);
        })
        .await;
        Self { rialto, file, _folder: folder }
    }

    fn post(&self, body: &Value) -> HttpRequest {
        self.rialto.post("/mcp", body).header("authorization", &format!("Bearer {ANN_TOKEN}"))
    }

    fn modern(&self, method: &str, params: Value) -> HttpRequest {
        self.rialto.modern(method, params).header("authorization", &format!("Bearer {ANN_TOKEN}"))
    }

    /// What was recorded so far.
    async fn events(&self) -> Vec<Value> {
        self.rialto.inbound.gateway.audit().flush(TEST_TIMEOUT).await;
        read_events(&std::fs::read_to_string(&self.file).unwrap())
    }

    async fn events_of(&self, kind: &str) -> Vec<Value> {
        self.events().await.into_iter().filter(|event| event["event"] == kind).collect()
    }
}

fn two_servers() -> GatewayConfig {
    let servers = ["one", "two"].map(|name| UpstreamSpec::new(name, SpecKind::Elements(TEST_TIMEOUT)));
    let group = GroupConfig::new(DEFAULT_GROUP, servers.iter().map(|server| server.name.clone()));
    GatewayConfig { upstreams: servers.to_vec(), groups: vec![group] }
}

/// The events of a log. Each line must be one JSON object, and none may hold a secret.
fn read_events(text: &str) -> Vec<Value> {
    for secret in [ANN_TOKEN, ADMIN_TOKEN, "Bearer", "s3cret"] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

async fn open(audited: &Audited) -> Session<'_> {
    Session::open(&audited.rialto, "2025-11-25", Some(ANN_TOKEN)).await
}

#[tokio::test]
async fn rejections_are_recorded_with_their_reason_and_nothing_else() {
    let audited = Audited::start("rejections", |_| {}).await;
    let opening = initialize("2025-11-25");
    let post = || audited.rialto.post("/mcp", &opening);
    assert_eq!(post().status().await, 401);
    assert_eq!(post().header("authorization", "Bearer s3cret-guess").status().await, 401);
    assert_eq!(audited.post(&opening).replace("host", "evil.example").status().await, 403);
    assert_eq!(audited.post(&opening).header("origin", "https://evil.example").status().await, 403);
    let asked = audited.rialto.send("GET", "/mcp/streamable/http:0123456789abcdef0123456789abcdef?s3cret=1");
    assert_eq!(asked.header("x-request-id", "mine").status().await, 401);
    let events = audited.events().await;
    let outcomes: Vec<_> =
        events.iter().map(|event| (event["outcome"].as_str().unwrap(), event["status"].as_str().unwrap())).collect();
    let (unknown, denied) = (("unauthenticated", "401"), ("denied", "403"));
    assert_eq!(outcomes, [unknown, unknown, denied, denied, unknown]);
    for event in &events {
        assert_eq!((&event["event"], &event["peer"]), (&json!("admission"), &json!("127.0.0.1")), "{event}");
        assert!(event["time"].as_str().unwrap().ends_with('Z') && event["request_id"].is_string(), "{event}");
        assert!(event.get("principal").is_none() && event.get("session").is_none(), "{event}");
    }
    assert_eq!((&events[4]["request_id"], &events[4]["detail"]), (&json!("mine"), &json!("GET /mcp")));
    let metrics = audited.rialto.inbound.admin.metrics();
    assert!(metrics.contains(r#"rialto_admissions_total{issuer="none",outcome="unauthenticated"} 3"#), "{metrics}");
    assert!(metrics.contains(r#"rialto_admissions_total{issuer="none",outcome="denied"} 2"#), "{metrics}");
}

#[tokio::test]
async fn a_session_is_recorded_once_and_every_call_with_its_target() {
    let audited = Audited::start("session", |_| {}).await;
    let session = open(&audited).await;
    let answer = session.ask("tools/call", json!({ "name": "two__getElement", "arguments": { "name": "Fe" } })).await;
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    session.ask("tools/call", json!({ "name": "one__getElement", "arguments": { "name": "none" } })).await;
    session.ask("tools/call", json!({ "name": "nothing", "arguments": {} })).await;
    session.ask("resources/read", json!({ "uri": "rialto://one/elements://symbol/Fe" })).await;
    session.ask("prompts/get", json!({ "name": "one__describeElement", "arguments": { "name": "Fe" } })).await;
    session.ask("tools/list", json!({})).await;

    let admissions = audited.events_of("admission").await;
    assert_eq!(admissions.len(), 1, "{admissions:?}");
    let admission = &admissions[0];
    assert_eq!(admission["outcome"], "allowed");
    assert_eq!((&admission["principal"], &admission["credential"]), (&json!("token|ann"), &json!("token:ann")));
    assert_eq!((&admission["group"], &admission["revision"]), (&json!("default"), &json!("2025-11-25")));
    let digest = admission["session"].as_str().unwrap();
    assert_eq!(digest.len(), 16);

    let calls = audited.events_of("call").await;
    let row = |event: &Value| {
        ["outcome", "status", "server", "kind", "target", "exposed_name"].map(|member| event[member].clone())
    };
    let iron = "elements://symbol/Fe";
    for (event, expected) in calls.iter().zip([
        json!(["allowed", "ok", "two", "tool", "getElement", "two__getElement"]),
        json!(["allowed", "tool_error", "one", "tool", "getElement", "one__getElement"]),
        json!(["failed", "error", null, "tool", null, "nothing"]),
        json!(["allowed", "ok", "one", "resource", iron, format!("rialto://one/{iron}")]),
        json!(["allowed", "ok", "one", "prompt", "describeElement", "one__describeElement"]),
    ]) {
        assert_eq!(json!(row(event)), expected, "{event}");
        assert_eq!((&event["session"], &event["principal"]), (&json!(digest), &json!("token|ann")), "{event}");
        assert_eq!(event["duration_ms"].is_number(), event["outcome"] == "allowed", "{event}");
        assert!(event["revision"] == "2025-11-25" && event.get("arguments").is_none(), "{event}");
    }
    assert_eq!(calls.len(), 5);
    let text = std::fs::read_to_string(&audited.file).unwrap();
    let (_, key) = session.id.split_once(':').unwrap_or(("", &session.id));
    assert!(!text.contains(key), "the session id is in {text}");
    assert!(audited.events_of("list").await.is_empty());
    let metrics = audited.rialto.inbound.admin.metrics();
    assert!(metrics.contains(r#"rialto_decisions_total{group="default",outcome="allowed"} 4"#), "{metrics}");
    assert!(metrics.contains(r#"rialto_decisions_total{group="default",outcome="failed"} 1"#), "{metrics}");
    assert!(!metrics.contains("ann"), "no principal is a label: {metrics}");
}

#[tokio::test]
async fn callers_without_a_session_are_recorded_once_in_a_while() {
    let audited = Audited::start("sessionless", |audit| audit.lists = true).await;
    let params = json!({ "name": "one__getElement", "arguments": { "name": "Fe" } });
    for _ in 0..3 {
        assert_eq!(audited.modern("tools/call", params.clone()).status().await, 200);
    }
    assert_eq!(audited.modern("tools/list", json!({})).status().await, 200);
    assert_eq!(audited.events_of("admission").await.len(), 1);
    assert_eq!(audited.events_of("call").await.len(), 3);
    let lists = audited.events_of("list").await;
    assert_eq!(
        (lists.len(), &lists[0]["outcome"], &lists[0]["revision"]),
        (1, &json!("allowed"), &json!("2026-07-28"))
    );
}

#[tokio::test]
async fn operators_requests_are_recorded() {
    let audited = Audited::start("admin", |_| {}).await;
    let get = |token: &str| {
        let asked = audited.rialto.send("GET", "/admin/status").header("x-forwarded-for", "10.0.0.1");
        asked.header("authorization", &format!("Bearer {token}"))
    };
    assert_eq!(get(ANN_TOKEN).status().await, 404);
    let status = get(ADMIN_TOKEN).go().await;
    assert_eq!(status.status, 200);
    let shown = status.text().await + &audited.rialto.inbound.admin.metrics();
    assert!(!shown.contains(ANN_TOKEN) && !shown.contains(ADMIN_TOKEN), "{shown}");
    assert_eq!(audited.rialto.send("GET", "/healthz").status().await, 200);
    let events = audited.events().await;
    let rows: Vec<_> = events.iter().map(|event| json!([event["event"], event["outcome"], event["detail"]])).collect();
    let row = |outcome: &str| json!(["admin", outcome, "GET /admin/status"]);
    assert_eq!(rows, [row("denied"), row("allowed")]);
}

#[tokio::test]
async fn arguments_are_written_as_configured() {
    for (detail, expected) in [
        (ArgumentDetail::Keys, json!(["name", "password"])),
        (ArgumentDetail::All, json!({ "name": "Fe", "password": "***" })),
    ] {
        let audited = Audited::start(&format!("arguments-{detail:?}"), |audit| {
            audit.arguments = detail;
            audit.redact = RedactedPointers::new(&["/password".into()]);
        })
        .await;
        let session = open(&audited).await;
        let arguments = json!({ "name": "Fe", "password": "s3cret" });
        session.ask("tools/call", json!({ "name": "one__getElement", "arguments": arguments })).await;
        assert_eq!(audited.events_of("call").await[0]["arguments"], expected);
    }
    let digests = async |name: &str, key: Option<&str>| {
        let audited = Audited::start(name, |audit| {
            audit.arguments = ArgumentDetail::Digest;
            audit.digest_key = key.map(str::to_owned);
        })
        .await;
        let session = open(&audited).await;
        for element in ["Fe", "Fe", "H"] {
            session.ask("tools/call", json!({ "name": "one__getElement", "arguments": { "name": element } })).await;
        }
        let calls = audited.events_of("call").await;
        calls.iter().map(|call| call["arguments"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let random = digests("digest-random", None).await;
    assert!(random[0] == random[1] && random[1] != random[2], "{random:?}");
    let (one, two) = (digests("digest-one", Some("key")).await, digests("digest-two", Some("key")).await);
    assert_eq!(one, two, "nodes with the same key write the same digests");
    assert_ne!(one, random);
}

#[tokio::test]
async fn hostile_names_stay_on_one_line_and_are_cut() {
    let audited = Audited::start("hostile", |audit| audit.arguments = ArgumentDetail::Keys).await;
    let session = open(&audited).await;
    let hostile =
        ["a\r\nb", "\u{2028}\u{85}\u{0}", "{\"event\":\"call\"}\n{\"event\":\"forged\"}", &"x".repeat(1 << 20)];
    for name in hostile {
        session.post(&call(1, name, json!({ name: name }))).go().await;
        session.ask("resources/read", json!({ "uri": name })).await;
        let asked = audited.rialto.send("GET", "/mcp").header("user-agent", &"y".repeat(1000));
        let guess = format!("Bearer {}", name.escape_default().take(2000).collect::<String>());
        // What is no token is a bad request; the 1 MiB of letters is a token that nobody knows.
        let is_token = !guess.contains(['\\', '{', '"']);
        assert_eq!(asked.header("authorization", &guess).status().await, if is_token { 401 } else { 400 });
    }
    session.post(&request("\n\"", "x/\r\n", json!({}))).go().await;
    let events = audited.events().await;
    let count = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!((count("admission"), count("call")), (1 + hostile.len(), 2 * hostile.len()), "{events:?}");
    let text = std::fs::read_to_string(&audited.file).unwrap();
    assert!(text.lines().all(|line| line.len() < 4000), "lines are bounded");
    assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n' || letter == '\u{2028}'));
}
