//! The official conformance suite, with a server behind the gateway under test.
//!
//! Two fixtures implement everything that the suite calls: `examples/conformance_server` and
//! `tests/peers/node/conformance.mjs`; the third is the Python SDK's own server for the suite. The suite runs against each alone and through the gateway, and its verdict must be
//! the same check by check, including the recorded details, because many checks pass whatever the response is. Allowed
//! differences are listed with their reason in `tests/conformance/server-differences.yml`.

mod allowed;
pub mod fixtures;
mod verdict;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::join_all;
use rialto::client::{Client, ClientOptions};
use rialto::dialect::Revision;
use rialto::error::Error;
use rialto::failure::FailureKind;
use rialto::mcp_client::{ConnectionSettings, Target};
use rialto::protocol::Raw;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use self::allowed::{AllowedDifference, faults, listed, parse};
use self::fixtures::{CommandLine, Fixture, Served, Shape, script};
use self::verdict::{DifferenceKind, HANDSHAKE, OLDER, OLDEST, PER_REQUEST, Suite, Verdict, differences, normalized};
use crate::harness::{HttpRequest, Rialto, TEST_TIMEOUT};
use crate::process::{exit_code, signal, spawn_gateway};

/// One suite run through the gateway.
pub struct Row {
    fixture: Fixture,
    shape: Shape,
    transport: Transport,
    placement: Placement,
    suite: Suite,
}

/// Transport between gateway and fixture; the suite always uses HTTP.
#[derive(Clone, Copy, PartialEq)]
enum Transport {
    Http,
    Stdio,
}

/// The group that serves the fixture.
#[derive(Clone, Copy, PartialEq)]
enum Placement {
    /// A group of the fixture alone.
    Alone,
    /// A group with two other servers and plain naming.
    Three,
}

use Fixture::{Python, Rmcp, TypeScript};
use Placement::{Alone, Three};
use Shape::{Both, PerRequest};
use Transport::{Http, Stdio};

const fn row(fixture: Fixture, shape: Shape, transport: Transport, placement: Placement, suite: Suite) -> Row {
    Row { fixture, shape, transport, placement, suite }
}

/// Suite and fixture share an era.
const ROWS: [Row; 17] = [
    row(Rmcp, Both, Http, Alone, HANDSHAKE),
    row(Rmcp, Both, Http, Alone, PER_REQUEST),
    row(Rmcp, Both, Stdio, Alone, HANDSHAKE),
    row(Rmcp, Both, Stdio, Alone, PER_REQUEST),
    row(Rmcp, Both, Http, Three, HANDSHAKE),
    row(Rmcp, Both, Http, Three, PER_REQUEST),
    row(Rmcp, Shape::Handshake, Http, Alone, HANDSHAKE),
    row(Rmcp, Shape::Handshake, Stdio, Alone, HANDSHAKE),
    row(Rmcp, PerRequest, Http, Alone, PER_REQUEST),
    row(Rmcp, PerRequest, Stdio, Alone, PER_REQUEST),
    row(Rmcp, Shape::Handshake, Http, Alone, OLDER),
    row(Rmcp, Shape::Handshake, Http, Alone, OLDEST),
    row(TypeScript, Both, Http, Alone, HANDSHAKE),
    row(TypeScript, Both, Http, Alone, PER_REQUEST),
    row(TypeScript, Shape::Handshake, Http, Alone, HANDSHAKE),
    row(TypeScript, PerRequest, Http, Alone, PER_REQUEST),
    row(TypeScript, Both, Http, Three, HANDSHAKE),
];

/// The Python SDK's own server, at every revision that the suite has.
const OFFICIAL_SERVER: [Row; 8] = [
    row(Python, Both, Http, Alone, OLDEST),
    row(Python, Both, Http, Alone, OLDER),
    row(Python, Both, Http, Alone, HANDSHAKE),
    row(Python, Both, Http, Alone, PER_REQUEST),
    row(Python, Both, Stdio, Alone, OLDEST),
    row(Python, Both, Stdio, Alone, OLDER),
    row(Python, Both, Stdio, Alone, HANDSHAKE),
    row(Python, Both, Stdio, Alone, PER_REQUEST),
];

/// A handshake suite against a per-request fixture.
const HANDSHAKE_TO_PER_REQUEST: [Row; 3] = [
    row(Rmcp, PerRequest, Http, Alone, HANDSHAKE),
    row(Rmcp, PerRequest, Stdio, Alone, HANDSHAKE),
    row(TypeScript, PerRequest, Http, Alone, HANDSHAKE),
];
/// A per-request suite against a handshake fixture; only verdicts are compared.
const PER_REQUEST_TO_HANDSHAKE: [Row; 3] = [
    row(Rmcp, Shape::Handshake, Http, Alone, PER_REQUEST),
    row(Rmcp, Shape::Handshake, Stdio, Alone, PER_REQUEST),
    row(TypeScript, Shape::Handshake, Http, Alone, PER_REQUEST),
];
/// Allowed differences within one era and for a handshake suite.
const ALLOWED_DIFFERENCES: &str = "server-differences.yml";
/// Allowed differences of the Python SDK's own server.
const ALLOWED_OFFICIAL_DIFFERENCES: &str = "official-differences.yml";
/// Allowed differences for a per-request suite against a handshake fixture.
const ALLOWED_BRIDGED_DIFFERENCES: &str = "bridged-differences.yml";

/// Checks whose details list everything a group offers.
const GROUP_LIST_CHECKS: [&str; 13] = [
    "json-schema-2020-12-tool-found",
    "prompts-list",
    "resources-list",
    "sep-2243-header-name-case-insensitive",
    "sep-2243-header-name-case-insensitive#2",
    "sep-2575-discover-capabilities-match-handlers",
    "sep-2575-request-meta-client-info-optional",
    "sep-2575-server-declares-prompts-in-discover",
    "sep-2575-server-implements-discover",
    "server-initialize",
    "tools-list",
    "tools-list-deterministic-order",
    "tools-name-format",
];

/// How often a row with faults is run again.
const MAX_REPEATED_RUNS: usize = 2;
/// Concurrent rows; each runs a gateway, one to three servers and a suite.
const MAX_CONCURRENT_ROWS: usize = 2;

// === impl Row ===

impl Row {
    /// Whether suite and fixture are of different eras.
    fn is_bridged(&self) -> bool {
        match self.shape {
            Both => false,
            Shape::Handshake => self.suite.revision == PER_REQUEST.revision,
            PerRequest => self.suite.revision != PER_REQUEST.revision,
        }
    }

    /// Runs the suite against the fixture directly and through the gateway; returns the faults.
    async fn faults(&self, list: &[AllowedDifference]) -> Vec<String> {
        let shape = if self.is_bridged() { Both } else { self.shape };
        let alone = self.fixture.verdict_alone(shape, self.suite).await;
        let list_checks: &[&str] = if self.placement == Three { &GROUP_LIST_CHECKS } else { &[] };
        let verdicts_only = self.is_bridged() && self.suite.revision == PER_REQUEST.revision;
        let run = async || {
            let mut found = differences(&alone, &self.run_through_gateway().await, list_checks);
            found.retain(|difference| !(verdicts_only && matches!(difference.kind, DifferenceKind::Details(_))));
            let worse = found.iter().filter(|difference| !verdicts_only && difference.is_worse());
            let worse: Vec<_> =
                worse.map(|difference| format!("{self}: worse, which no list allows: {difference}")).collect();
            [faults(self, &found, list), worse].concat()
        };
        let mut faults = run().await;
        // Some scenarios depend on timing: only faults that every run has count.
        for _ in 0..MAX_REPEATED_RUNS {
            if faults.is_empty() {
                break;
            }
            println!("{self} is run again: {}", faults.join("\n"));
            let again = run().await;
            faults.retain(|fault| again.contains(fault));
        }
        faults
    }

    async fn run_through_gateway(&self) -> Verdict {
        let mut served = Vec::new();
        let mut config = String::new();
        let line = self.fixture.command_line(self.transport.name(), self.shape).await;
        match self.transport {
            Http => {
                let fixture = Served::start(line).await;
                config += &at_url("fixture", &fixture.url);
                served.push(fixture);
            }
            Stdio => config += &as_child("fixture", &line),
        }
        config += "[groups.default]\nservers = [\"fixture\"]\n";
        if self.placement == Three {
            let other = Served::start(script("server2.mjs", vec!["http".into(), "0".into()]).await).await;
            config += &at_url("other", &other.url);
            config += "[servers.elements]\nbuiltin = \"elements\"\n";
            config += "[groups.three]\nservers = [\"fixture\", \"elements\", \"other\"]\nnaming = \"plain\"\n";
            served.push(other);
        }
        let file = TempConfig::new(&config);
        let (child, _output, address) = spawn_gateway(&["--config", file.0.to_str().unwrap()]).await;
        wait_ready(&address, &self.to_string()).await;
        let path = if self.placement == Three { "/mcp/three" } else { "/mcp" };
        let verdict = self.suite.run(&format!("http://{address}{path}")).await;
        // SIGTERM lets the gateway stop its children.
        signal(&child, "-TERM");
        assert_eq!(exit_code(child).await, Some(0), "{self}");
        verdict
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fixture, shape, revision) = (self.fixture.name(), self.shape.name(), self.suite.revision);
        write!(f, "{fixture} {shape} {} {} {revision}", self.transport.name(), self.placement.name())
    }
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Http => "http",
            Stdio => "stdio",
        }
    }
}

impl Placement {
    fn name(self) -> &'static str {
        match self {
            Alone => "alone",
            Three => "three",
        }
    }
}

fn at_url(name: &str, url: &str) -> String {
    format!("[servers.{name}]\nurl = {}\n", json!(url))
}

/// JSON strings and lists of strings are valid TOML. A child may start slowly while all tests run.
fn as_child(name: &str, (program, arguments): &CommandLine) -> String {
    let (program, arguments) = (json!(program), json!(arguments));
    format!("[servers.{name}]\ncommand = {program}\nargs = {arguments}\ndiscovery_timeout = \"60s\"\n")
}

/// Waits until every server of the gateway is ready: the suite's first scenario must not depend on how fast they start.
async fn wait_ready(address: &str, row: &str) {
    let address = address.parse().unwrap();
    let deadline = tokio::time::Instant::now() + 6 * TEST_TIMEOUT;
    loop {
        let status = HttpRequest::to(address, "GET", "/admin/status").go().await.json().await;
        let upstreams = status["upstreams"].as_array().unwrap_or_else(|| panic!("{status}"));
        if upstreams.iter().all(|upstream| upstream["phase"] == "ready") {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{row}: {status}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// A temporary config file.
struct TempConfig(PathBuf);

impl TempConfig {
    fn new(text: &str) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-{}-{number}.toml", std::process::id());
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&file, text).unwrap();
        Self(file)
    }
}

impl Drop for TempConfig {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs the rows, a few at a time, and asserts that none has faults.
async fn check(rows: &[Row], list: &str) {
    let list = listed(list);
    let turns = Semaphore::new(MAX_CONCURRENT_ROWS);
    let faults = rows.iter().map(async |row| {
        let _turn = turns.acquire().await.unwrap();
        row.faults(&list).await
    });
    let faults = join_all(faults).await.concat();
    assert!(faults.is_empty(), "{} differences:\n{}", faults.len(), faults.join("\n"));
}

#[tokio::test]
async fn conformance_through_the_gateway_matches_the_fixture_alone() {
    check(&ROWS, ALLOWED_DIFFERENCES).await;
}

#[tokio::test]
async fn conformance_of_an_official_server_is_the_same_through_the_gateway() {
    for suite in [OLDEST, OLDER, HANDSHAKE, PER_REQUEST] {
        let alone = Python.verdict_alone(Both, suite).await;
        assert!(alone.passed, "{}:\n{}", suite.revision, alone.text);
    }
    check(&OFFICIAL_SERVER, ALLOWED_OFFICIAL_DIFFERENCES).await;
}

#[tokio::test]
async fn handshake_conformance_matches_in_front_of_a_per_request_server() {
    check(&HANDSHAKE_TO_PER_REQUEST, ALLOWED_DIFFERENCES).await;
}

#[tokio::test]
async fn per_request_conformance_matches_in_front_of_a_handshake_server() {
    check(&PER_REQUEST_TO_HANDSHAKE, ALLOWED_BRIDGED_DIFFERENCES).await;
}

#[test]
fn bridged_runs_are_in_the_bridged_tables() {
    for (rows, bridged) in [
        (&ROWS[..], false),
        (&OFFICIAL_SERVER[..], false),
        (&HANDSHAKE_TO_PER_REQUEST[..], true),
        (&PER_REQUEST_TO_HANDSHAKE[..], true),
    ] {
        for row in rows {
            assert_eq!(row.is_bridged(), bridged, "{row}");
        }
    }
    // An entry that applies to no row would never be reported as stale.
    for entry in listed(ALLOWED_DIFFERENCES) {
        assert!(ROWS.iter().chain(&HANDSHAKE_TO_PER_REQUEST).any(|row| entry.applies_to(row)), "{entry:?}");
    }
    for entry in listed(ALLOWED_OFFICIAL_DIFFERENCES) {
        assert!(OFFICIAL_SERVER.iter().any(|row| entry.applies_to(row)), "{entry:?}");
    }
    for entry in listed(ALLOWED_BRIDGED_DIFFERENCES) {
        assert!(PER_REQUEST_TO_HANDSHAKE.iter().any(|row| entry.applies_to(row)), "{entry:?}");
    }
}

/// Every check passes, scored or not; the TypeScript SDK has no tasks.
async fn assert_passes(fixture: Fixture, shape: Shape, suite: Suite, scenarios: usize) -> Arc<Verdict> {
    let name = format!("{} {} {}", fixture.name(), shape.name(), suite.revision);
    let verdict = fixture.verdict_alone(shape, suite).await;
    assert!(verdict.passed, "{name}:\n{}", verdict.text);
    assert_eq!(verdict.scenarios.len(), scenarios, "{name}");
    for (scenario, checks) in &verdict.scenarios {
        let wanted = fixture != TypeScript || !scenario.starts_with("tasks-");
        for (check, seen) in checks.iter().filter(|_| wanted) {
            let passed = !matches!(seen.status.as_str(), "FAILURE" | "WARNING");
            assert!(passed, "{name}: {scenario} / {check}: {} {}", seen.status, seen.recorded);
        }
    }
    verdict
}

/// A second run has the same verdict: the comparison is deterministic.
async fn assert_deterministic(fixture: Fixture, suite: Suite, first: &Verdict) {
    let mut changed: Vec<String> = Vec::new();
    for _ in 0..2 {
        let served = Served::start(fixture.command_line("http", Both).await).await;
        let second = suite.run(&served.url).await;
        changed = differences(first, &second, &[]).iter().map(ToString::to_string).collect();
        if changed.is_empty() {
            break;
        }
    }
    assert!(changed.is_empty(), "{} {} changes:\n{}", fixture.name(), suite.revision, changed.join("\n"));
}

/// Whether a fixture speaks a revision; calls a tool if it does.
async fn speaks(target: &Target, revision: Revision) -> bool {
    let settings = ConnectionSettings {
        revision: Some(revision),
        idle_timeout: TEST_TIMEOUT,
        discovery_timeout: TEST_TIMEOUT,
        ..ConnectionSettings::default()
    };
    let client = match Client::connect(target, ClientOptions { settings, ..ClientOptions::default() }).await {
        Ok(client) => client,
        Err(error) => {
            // The SDKs refuse a revision with different errors.
            let refused = match &error {
                Error::Failure(failure) => {
                    matches!(failure.kind(), FailureKind::NoCommonRevision | FailureKind::Status(400))
                }
                Error::ErrorResponse(object) => object.code() == -32022,
                Error::Usage(_) => false,
            };
            assert!(refused, "{error}");
            return false;
        }
    };
    assert_eq!(client.revision(), revision);
    let result = client.call_tool("test_simple_text", Raw::empty()).await.unwrap();
    assert!(result.to_string().contains("plain text"), "{result}");
    client.close().await;
    true
}

/// Over both transports a fixture speaks exactly the eras of its shape.
async fn check_eras(fixture: Fixture) {
    for (shape, handshake, per_request) in
        [(Both, true, true), (Shape::Handshake, true, false), (PerRequest, false, true)]
    {
        let served = Served::start(fixture.command_line("http", shape).await).await;
        let (program, arguments) = fixture.command_line("stdio", shape).await;
        for target in [Target::url(&served.url).unwrap(), Target::command(&program, arguments)] {
            let spoken = [Revision::NEWEST_HANDSHAKE, Revision::NEWEST].map(|revision| speaks(&target, revision));
            let spoken = join_all(spoken).await;
            assert_eq!(spoken, [handshake, per_request], "{} {}", fixture.name(), shape.name());
        }
    }
}

macro_rules! alone {
    ($($name:ident: $fixture:ident;)+) => {
        $(mod $name {
            use super::*;

            #[tokio::test]
            async fn fixture_passes_conformance_in_both_eras() {
                for (suite, scenarios) in [(HANDSHAKE, 33), (PER_REQUEST, 50)] {
                    let verdict = assert_passes($fixture, Both, suite, scenarios).await;
                    assert_deterministic($fixture, suite, &verdict).await;
                }
            }

            #[tokio::test]
            async fn fixture_passes_conformance_in_one_era() {
                assert_passes($fixture, Shape::Handshake, HANDSHAKE, 33).await;
                assert_passes($fixture, PerRequest, PER_REQUEST, 50).await;
            }

            #[tokio::test]
            async fn fixture_passes_conformance_at_older_revisions() {
                assert_passes($fixture, Shape::Handshake, OLDER, 27).await;
                assert_passes($fixture, Shape::Handshake, OLDEST, 27).await;
            }

            #[tokio::test]
            async fn fixture_speaks_only_the_eras_of_its_shape() {
                super::check_eras($fixture).await;
            }
        })+
    };
}

alone! {
    rmcp_alone: Rmcp;
    typescript_alone: TypeScript;
}

#[tokio::test]
async fn another_server_differs_from_the_fixture() {
    let rialto = Rialto::start().await;
    for suite in [HANDSHAKE, PER_REQUEST] {
        let alone = Rmcp.verdict_alone(Both, suite).await;
        let table = suite.run(&rialto.url("/mcp")).await;
        let found = differences(&alone, &table, &[]);
        let has = |check: &str| found.iter().find(|difference| difference.check == check);
        // This check passes for any server, but its details differ.
        let tools = has("tools-list").expect("it has other tools");
        assert!(matches!(tools.kind, DifferenceKind::Details(_)), "{tools}");
        // The tool is missing.
        let image = has("tools-call-image").expect("it has no images");
        assert!(matches!(image.kind, DifferenceKind::Status(_)), "{image}");
        // Allowing longer lists does not hide the difference.
        assert!(
            differences(&alone, &table, &GROUP_LIST_CHECKS).iter().any(|difference| difference.check == "tools-list")
        );
        // Nothing is listed, so every difference is a fault.
        let row = row(Rmcp, Both, Http, Alone, suite);
        assert!(faults(&row, &found, &[]).len() == found.len() && !found.is_empty());
    }
}

/// A verdict with one scenario.
fn verdict_of(checks: Value) -> Verdict {
    let checks = verdict::checks(checks.as_array().unwrap(), "http://127.0.0.1:4000/mcp");
    Verdict { passed: true, text: String::new(), scenarios: [("scenario".to_owned(), checks)].into() }
}

fn difference_texts(one: Value, other: Value, list_checks: &[&str]) -> Vec<String> {
    differences(&verdict_of(one), &verdict_of(other), list_checks).iter().map(ToString::to_string).collect()
}

#[test]
fn volatile_values_are_normalized() {
    let url = "http://127.0.0.1:4000/mcp";
    for (value, expected) in [
        (json!({ "sessionId": "abc" }), json!({ "sessionId": "<sessionId>" })),
        // A missing session id is significant.
        (json!({ "sessionId": null }), json!({ "sessionId": null })),
        (json!({ "url": url }), json!({ "url": "<url>" })),
        (json!(["localhost:4000", "40001"]), json!(["localhost:<port>", "40001"])),
        (json!("it is 2026-07-28T10:20:30.123Z in é"), json!("it is <time> in é")),
        (json!("2026-07-28"), json!("2026-07-28")),
        (json!("session 0b2f7d2e-9c1c-4e0e-8f6a-0123456789ab!"), json!("session <uuid>!")),
        (json!({ "id": "0/1", "data": "" }), json!({ "id": "<id>", "data": "" })),
        // A JSON-RPC id is significant.
        (json!({ "id": 7, "result": {} }), json!({ "id": 7, "result": {} })),
        (
            json!({ "eventId": "3", "data": "{\"id\":1,\"result\":{\"nextCursor\":\"x\"}}" }),
            json!({ "eventId": "<eventId>", "data": { "id": 1, "result": { "nextCursor": "<nextCursor>" } } }),
        ),
        (
            json!({ "headers": {
                "Date": "today", "content-type": "application/json", "mcp-session-id": "s", "x-request-id": "r",
            } }),
            json!({ "headers": { "content-type": "application/json", "mcp-session-id": "<mcp-session-id>" } }),
        ),
        (json!({ "ttlMs": 1000, "progress": 50 }), json!({ "ttlMs": 1000, "progress": 50 })),
    ] {
        assert_eq!(normalized(&value, url), expected);
    }
}

#[test]
fn an_sse_body_with_one_message_is_normalized_to_the_message() {
    let url = "http://127.0.0.1:4000/mcp";
    let message = json!({ "jsonrpc": "2.0", "id": 1, "result": { "n": 1.50 } });
    for text in [
        format!("data: {message}\n\n"),
        format!("id: 0/0\nretry: 3000\ndata:\n\n: still here\n\nevent: message\nid: 1/0\ndata: {message}\n\n"),
    ] {
        assert_eq!(normalized(&json!({ "responseBody": text }), url), json!({ "responseBody": message }), "{text}");
    }
    for text in [
        "".to_owned(),
        "data:\n\n".to_owned(),
        "data: text\n\n".to_owned(),
        "Forbidden: no".to_owned(),
        format!("data: {message}\n\ndata: {message}\n\n"),
        format!("event: endpoint\ndata: {message}\n\n"),
    ] {
        let body = json!({ "responseBody": text });
        assert_eq!(normalized(&body, url), body);
    }
    // Only `responseBody` is parsed as SSE.
    let other = json!({ "text": format!("data: {message}\n\n") });
    assert_eq!(normalized(&other, url), other);
}

/// The differences between the details of two checks.
fn differing(check: &str, one: Value, other: Value) -> Vec<String> {
    let check_with = |details: Value| json!([{ "id": check, "status": "SUCCESS", "details": details }]);
    difference_texts(check_with(one), check_with(other), &[])
}

#[test]
fn messages_of_gateway_errors_are_not_compared() {
    let error = |code: i64, message: &str| json!({ "error": { "code": code, "message": message } });
    let own = error(-32601, "Method not found: ping");
    assert_eq!(differing("a", error(-32601, "ping"), own.clone()), Vec::<String>::new());
    // Codes are compared, and so are messages that come from a server.
    assert_eq!(differing("a", error(-32600, "ping"), own), ["scenario / a: details.error.code: -32600 became -32601"]);
    for other in [error(-32602, "Method not found: ping"), error(-32601, "no ping")] {
        assert_eq!(differing("a", error(-32601, "ping"), other.clone()).len(), 1, "{other}");
    }
    assert_eq!(differing("a", error(-32602, "no such tool"), error(-32602, "no tool")).len(), 1);
    // Only the data members that the protocol defines are compared.
    let error = |message: &str, data: Value| json!({ "error": { "code": -32022, "message": message, "data": data } });
    let own = "Unsupported protocol version \"x\"";
    let one = error("no", json!({ "supported": ["2026-07-28"], "requested": "x", "hint": 1 }));
    let other = error(own, json!({ "supported": ["2026-07-28"], "requested": "x", "more": 1 }));
    assert_eq!(differing("a", one.clone(), other), Vec::<String>::new());
    for data in [json!({ "supported": [], "requested": "x" }), json!({ "supported": ["2026-07-28"] }), json!(null)] {
        assert!(!differing("a", one.clone(), error(own, data.clone())).is_empty(), "{data}");
    }
    // All data of a server's own error is compared.
    let [one, other] = [json!({ "hint": 1 }), json!({})].map(|data| error("no", data));
    assert_eq!(differing("a", one, other).len(), 1);
}

#[test]
fn a_cached_list_may_have_a_shorter_ttl() {
    let hint = |ttl: u64| json!({ "ttlMs": ttl, "hasTtlMs": true, "cacheScope": "public" });
    let list = |ttl: u64| json!({ "tools": [], "ttlMs": ttl });
    let endpoint = |name: &str, ttl: u64| json!([{ "endpoint": name, "ttlMs": ttl }]);
    for (check, one, other, same) in [
        ("tools-list-caching-hints", hint(1000), hint(1), true),
        ("tools-list-caching-hints", hint(1000), hint(0), false),
        ("tools-list-caching-hints", hint(1000), hint(1001), false),
        ("tools-list-caching-hints", hint(0), hint(1), false),
        // resources/read is forwarded with its TTL unchanged.
        ("resources-read-caching-hints", hint(1000), hint(999), false),
        ("a", list(1000), list(10), true),
        ("a", list(1000), list(0), false),
        ("a", endpoint("tools/list", 1000), endpoint("tools/list", 10), true),
        ("a", endpoint("resources/read", 1000), endpoint("resources/read", 10), false),
        // The TTL of a task is not a cache hint.
        ("a", json!({ "taskId": "t", "ttlMs": 1000 }), json!({ "taskId": "t", "ttlMs": 999 }), false),
        (
            "a",
            json!({ "capabilities": { "tools": {} }, "ttlMs": 2 }),
            json!({ "capabilities": { "tools": {} }, "ttlMs": 1 }),
            false,
        ),
    ] {
        assert_eq!(differing(check, one.clone(), other.clone()).is_empty(), same, "{check}: {one} {other}");
    }
}

#[test]
fn a_body_the_suite_did_not_read_is_not_compared() {
    let answered = |status: u16, body: Value| json!({ "statusCode": status, "body": body });
    let result = json!({ "jsonrpc": "2.0", "id": 1, "result": {} });
    let null = Value::Null;
    for (one, other, same) in [
        (answered(200, null.clone()), answered(200, result.clone()), true),
        // 202 has no body.
        (answered(202, null.clone()), answered(202, result.clone()), false),
        (answered(200, null.clone()), answered(403, result.clone()), false),
        (answered(200, null.clone()), answered(200, json!("text")), false),
        // A body that was present must stay.
        (answered(200, result.clone()), answered(200, null), false),
        (json!({ "body": null }), json!({ "body": result }), false),
    ] {
        assert_eq!(differing("a", one.clone(), other.clone()).is_empty(), same, "{one} {other}");
    }
}

#[test]
fn only_fewer_messages_are_a_difference_and_not_in_polling() {
    let verdict = |scenario: &str, messages: u32| {
        let recorded = json!([{ "id": "a", "status": "SUCCESS", "details": { "messagesValidated": messages } }]);
        let checks = verdict::checks(recorded.as_array().unwrap(), "http://127.0.0.1:4000/mcp");
        Verdict { passed: true, text: String::new(), scenarios: [(scenario.to_owned(), checks)].into() }
    };
    for (scenario, one, other, same) in [
        ("tasks-lifecycle", 42, 41, true),
        ("tasks-lifecycle", 42, 0, false),
        ("tools-list", 42, 43, true),
        ("tools-list", 42, 41, false),
        ("tools-list", 0, 1, false),
    ] {
        let found = differences(&verdict(scenario, one), &verdict(scenario, other), &[]);
        assert_eq!(found.is_empty(), same, "{scenario} {one} {other}");
    }
}

#[test]
fn every_other_difference_is_reported() {
    let check = |id: &str, status: &str, details: Value| json!({ "id": id, "status": status, "details": details });
    let one = json!([check("a", "SUCCESS", json!({ "n": 1 })), check("a", "SUCCESS", json!({ "n": 2 }))]);
    assert_eq!(difference_texts(one.clone(), one.clone(), &[]), Vec::<String>::new());
    for (other, expected) in [
        (json!([check("a", "SUCCESS", json!({ "n": 1 }))]), "scenario / a#2: is missing"),
        (
            json!([check("a", "SUCCESS", json!({ "n": 1 })), check("a", "FAILURE", json!({ "n": 2 }))]),
            "scenario / a#2: SUCCESS became FAILURE: ",
        ),
        (
            json!([check("a", "SUCCESS", json!({ "n": 1 })), check("a", "SUCCESS", json!({ "n": 3, "m": null }))]),
            "scenario / a#2: details.n: 2 became 3; details.m was not there: null",
        ),
        (
            json!([check("a", "SUCCESS", json!({})), check("a", "SUCCESS", json!({ "n": 2 }))]),
            "scenario / a: details.n is missing; it was 1",
        ),
    ] {
        assert_eq!(difference_texts(one.clone(), other, &[]), [expected]);
    }
    assert_eq!(
        difference_texts(json!([]), one.clone(), &[]),
        ["scenario / a: was not there", "scenario / a#2: was not there"]
    );
    let empty = Verdict { passed: true, text: String::new(), scenarios: Default::default() };
    let found = differences(&verdict_of(one), &empty, &[]);
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), ["scenario / all: is missing"]);
}

#[test]
fn a_list_of_a_larger_group_may_have_extra_entries_only() {
    let listing = |names: Value| json!([{ "id": "list", "status": "SUCCESS", "details": { "toolCount": names.as_array().unwrap().len(), "tools": names } }]);
    let ours = listing(json!(["a", "b"]));
    let more = listing(json!(["x", "a", "y", "b"]));
    assert_eq!(difference_texts(ours.clone(), more.clone(), &[]).len(), 1);
    assert_eq!(difference_texts(ours.clone(), more, &["list"]), Vec::<String>::new());
    for less in [json!(["a"]), json!(["b", "a"]), json!(["a", "c", "d"])] {
        assert_eq!(difference_texts(ours.clone(), listing(less.clone()), &["list"]).len(), 1, "{less}");
    }
}

#[test]
fn unlisted_and_stale_differences_are_faults() {
    let entry =
        "# why\n\n- fixture: rmcp\n  revision: \"2025-11-25\"\n  scenario: scenario\n  check: a\n  reason: so\n";
    let list = parse(entry).unwrap();
    let different = differences(
        &verdict_of(json!([{ "id": "a", "status": "SUCCESS" }])),
        &verdict_of(json!([{ "id": "a", "status": "WARNING" }])),
        &[],
    );
    let here = row(Rmcp, Both, Http, Alone, HANDSHAKE);
    let there = row(Rmcp, Both, Http, Three, HANDSHAKE);
    assert_eq!(faults(&here, &different, &list), Vec::<String>::new());
    assert_eq!(faults(&here, &different, &[]).len(), 1);
    assert_eq!(faults(&here, &[], &list), ["rmcp both http alone 2025-11-25: scenario / a is listed, but the same"]);
    assert_eq!(faults(&row(TypeScript, Both, Http, Alone, HANDSHAKE), &different, &list).len(), 1);
    let narrow = parse(&format!("{entry}  placement: three\n")).unwrap();
    assert_eq!(faults(&there, &different, &narrow), Vec::<String>::new());
    assert_eq!(faults(&here, &[], &narrow), Vec::<String>::new());
    let shaped = parse(&format!("{entry}  shape: handshake\n")).unwrap();
    assert_eq!(faults(&here, &[], &shaped), Vec::<String>::new());
    let several = entry.replace("  check: a\n", "  checks:\n    - a\n    - b\n");
    let stale = ["rmcp both http alone 2025-11-25: scenario / b is listed, but the same"];
    assert_eq!(faults(&here, &different, &parse(&several).unwrap()), stale);
    for wrong in [
        "- fixture: rmcp\n",
        "    - a\n",
        &format!("{entry}    - b\n"),
        &several.replace("checks", "lists"),
        &several.replace("    - a\n    - b\n", ""),
        "  check: a\n",
        "what\n",
        "- reason:\n",
        &format!("{entry}  check: b\n"),
        &format!("{entry}  since: today\n"),
    ] {
        parse(wrong).unwrap_err();
    }
}

#[test]
fn listed_paths_limit_an_allowed_difference() {
    let entry = |places: &str| {
        let text = "- fixture: any\n  revision: any\n  scenario: scenario\n  check: a\n  reason: so\n  places:\n";
        parse(&format!("{text}{places}")).unwrap().remove(0)
    };
    let check = |status: &str, details: Value| verdict_of(json!([{ "id": "a", "status": status, "details": details }]));
    let one = check("SUCCESS", json!({ "n": 1, "m": 1 }));
    let found = |other: Verdict| differences(&one, &other, &[]);
    let here = row(Rmcp, Both, Http, Alone, HANDSHAKE);
    let [n, m] = ["    - details.n\n", "    - details.m\n"];
    let both = check("SUCCESS", json!({ "n": 2, "m": 2 }));
    let both = found(both);
    assert_eq!(faults(&here, &both, &[entry(&format!("{n}{m}"))]), Vec::<String>::new());
    assert_eq!(faults(&here, &both, &[entry(n), entry(m)]), Vec::<String>::new());
    // One path more than listed.
    assert_eq!(faults(&here, &both, &[entry(n)]).len(), 1);
    // One path less than listed.
    let less = found(check("SUCCESS", json!({ "n": 2, "m": 1 })));
    let stale = ["rmcp both http alone 2025-11-25: scenario / a: details.m is listed, but the same"];
    assert_eq!(faults(&here, &less, &[entry(n), entry(m)]), stale);
    // A status change is not covered by listed paths.
    let worse = found(check("FAILURE", json!({ "n": 2, "m": 1 })));
    assert_eq!(faults(&here, &worse, &[entry(n)]).len(), 2);
}
