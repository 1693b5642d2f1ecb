//! The official conformance suite, with a server behind the gateway under test.
//!
//! There are two servers with everything that the suite calls by name, `examples/conformance_server`
//! and `tests/peers/node/conformance.mjs`. The suite is run against each alone, and then through the
//! gateway: what it says has to be the same, check by check, down to what it recorded of passing
//! ones, for many of its checks pass whatever is answered. What may differ stands in
//! `tests/conformance/server-differences.yml`, with the reason.

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
use rialto::error::ErrorKind;
use rialto::mcp_client::{ConnectionSettings, Target};
use rialto::protocol::Raw;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use self::allowed::{Allowed, faults, listed, parse};
use self::fixtures::{Fixture, Line, Served, Shape, script};
use self::verdict::{HANDSHAKE, OLDER, OLDEST, PER_REQUEST, Suite, Verdict, What, differences, normalized};
use crate::harness::{PATIENCE, Rialto};
use crate::process::{exit_code, serving, signal};

/// One run through the gateway.
pub struct Row {
    fixture: Fixture,
    shape: Shape,
    transport: Transport,
    placement: Placement,
    suite: Suite,
}

/// How the gateway reaches the fixture. The suite itself always comes over HTTP.
#[derive(Clone, Copy, PartialEq)]
enum Transport {
    Http,
    Stdio,
}

/// Where the fixture stands.
#[derive(Clone, Copy, PartialEq)]
enum Placement {
    /// It has a group of its own.
    Alone,
    /// It shares one with two other servers, and all keep their names.
    Three,
}

use Fixture::{Rmcp, TypeScript};
use Placement::{Alone, Three};
use Shape::{Both, PerRequest};
use Transport::{Http, Stdio};

const fn row(fixture: Fixture, shape: Shape, transport: Transport, placement: Placement, suite: Suite) -> Row {
    Row { fixture, shape, transport, placement, suite }
}

/// Clients of an era in front of a server that speaks it.
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

/// Where the suite is of the handshake era, and the fixture is not.
const TO_NEWER: [Row; 3] = [
    row(Rmcp, PerRequest, Http, Alone, HANDSHAKE),
    row(Rmcp, PerRequest, Stdio, Alone, HANDSHAKE),
    row(TypeScript, PerRequest, Http, Alone, HANDSHAKE),
];
/// Where the fixture is of the handshake era, and the suite is not. Only verdicts are compared.
const TO_OLDER: [Row; 3] = [
    row(Rmcp, Shape::Handshake, Http, Alone, PER_REQUEST),
    row(Rmcp, Shape::Handshake, Stdio, Alone, PER_REQUEST),
    row(TypeScript, Shape::Handshake, Http, Alone, PER_REQUEST),
];
/// What may differ where both are of one era, and where the suite is the older.
const LISTED: &str = "server-differences.yml";
/// What may differ where the suite is the newer.
const BRIDGED: &str = "bridged-differences.yml";

/// Checks whose details tell of all that a group offers.
const OVERVIEWS: [&str; 13] = [
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

/// How many rows are under way at once: each has a gateway, one to three servers and a suite.
const AT_ONCE: usize = 2;

// === impl Row ===

impl Row {
    /// Whether the fixture speaks what the suite does.
    fn is_bridged(&self) -> bool {
        match self.shape {
            Both => false,
            Shape::Handshake => self.suite.revision == PER_REQUEST.revision,
            PerRequest => self.suite.revision != PER_REQUEST.revision,
        }
    }

    /// Runs the suite with nothing in between and through the gateway; gives back what is wrong.
    async fn faults(&self, list: &[Allowed]) -> Vec<String> {
        let shape = if self.is_bridged() { Both } else { self.shape };
        let alone = self.fixture.alone(shape, self.suite).await;
        let overviews: &[&str] = if self.placement == Three { &OVERVIEWS } else { &[] };
        let verdicts_only = self.is_bridged() && self.suite.revision == PER_REQUEST.revision;
        let run = async || {
            let mut found = differences(&alone, &self.through().await, overviews);
            found.retain(|difference| !(verdicts_only && matches!(difference.what, What::Details(_))));
            faults(self, &found, list)
        };
        let mut faults = run().await;
        if !faults.is_empty() {
            // The suite waits for some things by the clock. What is wrong is wrong a second time.
            let again = run().await;
            println!("{self} was run twice; the first time {} things differed", faults.len());
            faults.retain(|fault| again.contains(fault));
        }
        faults
    }

    async fn through(&self) -> Verdict {
        let mut served = Vec::new();
        let mut config = String::new();
        let line = self.fixture.line(self.transport.name(), self.shape).await;
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
        let file = Written::new(&config);
        let (child, _output, address) = serving(&["--config", file.0.to_str().unwrap()]).await;
        let path = if self.placement == Three { "/mcp/three" } else { "/mcp" };
        let verdict = self.suite.run(&format!("http://{address}{path}")).await;
        // Told to stop, it stops the children that it has started.
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

/// What JSON writes is TOML, too, as far as strings and lists of them go.
fn as_child(name: &str, (program, arguments): &Line) -> String {
    format!("[servers.{name}]\ncommand = {}\nargs = {}\n", json!(program), json!(arguments))
}

/// A configuration file, for as long as it is needed.
struct Written(PathBuf);

impl Written {
    fn new(text: &str) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-{}-{number}.toml", std::process::id());
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&file, text).unwrap();
        Self(file)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Goes through rows, a few at a time, and says all that is wrong with any of them.
async fn check(rows: &[Row], list: &str) {
    let list = listed(list);
    let turns = Semaphore::new(AT_ONCE);
    let faults = rows.iter().map(async |row| {
        let _turn = turns.acquire().await.unwrap();
        row.faults(&list).await
    });
    let faults = join_all(faults).await.concat();
    assert!(faults.is_empty(), "{} differences:\n{}", faults.len(), faults.join("\n"));
}

#[tokio::test]
async fn conformance_through_the_gateway_matches_the_fixture_alone() {
    check(&ROWS, LISTED).await;
}

#[tokio::test]
async fn handshake_conformance_matches_in_front_of_a_per_request_server() {
    check(&TO_NEWER, LISTED).await;
}

#[tokio::test]
async fn per_request_conformance_matches_in_front_of_a_handshake_server() {
    check(&TO_OLDER, BRIDGED).await;
}

#[test]
fn bridged_runs_are_in_the_bridged_tables() {
    for (rows, bridged) in [(&ROWS[..], false), (&TO_NEWER[..], true), (&TO_OLDER[..], true)] {
        for row in rows {
            assert_eq!(row.is_bridged(), bridged, "{row}");
        }
    }
    // One that speaks of no row would never be found to be stale.
    for entry in listed(LISTED) {
        assert!(ROWS.iter().chain(&TO_NEWER).any(|row| entry.speaks_of(row)), "{entry:?}");
    }
    for entry in listed(BRIDGED) {
        assert!(TO_OLDER.iter().any(|row| entry.speaks_of(row)), "{entry:?}");
    }
}

/// Everything passes, scored or not; but one SDK has no tasks.
async fn passes(fixture: Fixture, shape: Shape, suite: Suite, scenarios: usize) -> Arc<Verdict> {
    let name = format!("{} {} {}", fixture.name(), shape.name(), suite.revision);
    let verdict = fixture.alone(shape, suite).await;
    assert!(verdict.passed, "{name}:\n{}", verdict.text);
    assert_eq!(verdict.scenarios.len(), scenarios, "{name}");
    for (scenario, checks) in &verdict.scenarios {
        let wanted = fixture != TypeScript || !scenario.starts_with("tasks-");
        for (check, seen) in checks.iter().filter(|_| wanted) {
            let passed = !matches!(seen.status.as_str(), "FAILURE" | "WARNING");
            assert!(passed, "{name}: {scenario} / {check}: {} {}", seen.status, seen.seen);
        }
    }
    verdict
}

/// A second run says the same: what is compared does not change by itself.
async fn is_steady(fixture: Fixture, suite: Suite, first: &Verdict) {
    let mut changed: Vec<String> = Vec::new();
    for _ in 0..2 {
        let served = Served::start(fixture.line("http", Both).await).await;
        let second = suite.run(&served.url).await;
        changed = differences(first, &second, &[]).iter().map(ToString::to_string).collect();
        if changed.is_empty() {
            break;
        }
    }
    assert!(changed.is_empty(), "{} {} changes:\n{}", fixture.name(), suite.revision, changed.join("\n"));
}

/// Uses a fixture, if it speaks a revision.
async fn speaks(target: &Target, revision: Revision) -> bool {
    let settings = ConnectionSettings {
        revision: Some(revision),
        idle_timeout: PATIENCE,
        discovery_timeout: PATIENCE,
        ..ConnectionSettings::default()
    };
    let client = match Client::connect(target, ClientOptions { settings, ..ClientOptions::default() }).await {
        Ok(client) => client,
        Err(error) => {
            // The SDKs refuse in different words, but both refuse.
            let refused =
                matches!(error.kind(), ErrorKind::Revision | ErrorKind::Answer(-32022) | ErrorKind::Status(400));
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

/// That it speaks what its shape says, and nothing else, over both transports.
async fn keeps_to_its_shape(fixture: Fixture) {
    for (shape, handshake, per_request) in
        [(Both, true, true), (Shape::Handshake, true, false), (PerRequest, false, true)]
    {
        let served = Served::start(fixture.line("http", shape).await).await;
        let (program, arguments) = fixture.line("stdio", shape).await;
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
            async fn passes_in_both_eras() {
                for (suite, scenarios) in [(HANDSHAKE, 33), (PER_REQUEST, 50)] {
                    let verdict = passes($fixture, Both, suite, scenarios).await;
                    is_steady($fixture, suite, &verdict).await;
                }
            }

            #[tokio::test]
            async fn passes_in_one_era() {
                passes($fixture, Shape::Handshake, HANDSHAKE, 33).await;
                passes($fixture, PerRequest, PER_REQUEST, 50).await;
            }

            #[tokio::test]
            async fn passes_on_older_wires() {
                passes($fixture, Shape::Handshake, OLDER, 27).await;
                passes($fixture, Shape::Handshake, OLDEST, 27).await;
            }

            #[tokio::test]
            async fn keeps_to_its_shape() {
                super::keeps_to_its_shape($fixture).await;
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
        let alone = Rmcp.alone(Both, suite).await;
        let table = suite.run(&rialto.url("/mcp")).await;
        let found = differences(&alone, &table, &[]);
        let has = |check: &str| found.iter().find(|difference| difference.check == check);
        // It passes this check just as well, with other tools.
        let tools = has("tools-list").expect("it has other tools");
        assert!(matches!(tools.what, What::Details(_)), "{tools}");
        // A tool that it does not have.
        let image = has("tools-call-image").expect("it has no images");
        assert!(matches!(image.what, What::Status(_)), "{image}");
        // With the lists allowed to be longer, they are still not those of the fixture.
        assert!(differences(&alone, &table, &OVERVIEWS).iter().any(|difference| difference.check == "tools-list"));
        // None of it is listed.
        let row = row(Rmcp, Both, Http, Alone, suite);
        assert!(faults(&row, &found, &[]).len() == found.len() && !found.is_empty());
    }
}

/// The verdict of a suite with one scenario.
fn said(checks: Value) -> Verdict {
    let checks = verdict::checks(checks.as_array().unwrap(), "http://127.0.0.1:4000/mcp");
    Verdict { passed: true, text: String::new(), scenarios: [("scenario".to_owned(), checks)].into() }
}

fn shown(one: Value, other: Value, overviews: &[&str]) -> Vec<String> {
    differences(&said(one), &said(other), overviews).iter().map(ToString::to_string).collect()
}

#[test]
fn volatile_values_are_normalized() {
    let url = "http://127.0.0.1:4000/mcp";
    for (value, expected) in [
        (json!({ "sessionId": "abc" }), json!({ "sessionId": "<sessionId>" })),
        // That there is none, though, counts.
        (json!({ "sessionId": null }), json!({ "sessionId": null })),
        (json!({ "url": url }), json!({ "url": "<url>" })),
        (json!(["localhost:4000", "40001"]), json!(["localhost:<port>", "40001"])),
        (json!("it is 2026-07-28T10:20:30.123Z in é"), json!("it is <time> in é")),
        (json!("2026-07-28"), json!("2026-07-28")),
        (json!("session 0b2f7d2e-9c1c-4e0e-8f6a-0123456789ab!"), json!("session <uuid>!")),
        (json!({ "id": "0/1", "data": "" }), json!({ "id": "<id>", "data": "" })),
        // The id of a message is that of the request.
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
    // It is the body that is looked into, and nothing else.
    let other = json!({ "text": format!("data: {message}\n\n") });
    assert_eq!(normalized(&other, url), other);
}

/// What differs between the details of two checks.
fn differing(check: &str, one: Value, other: Value) -> Vec<String> {
    let said = |details: Value| json!([{ "id": check, "status": "SUCCESS", "details": details }]);
    shown(said(one), said(other), &[])
}

#[test]
fn messages_of_gateway_errors_are_not_compared() {
    let error = |code: i64, message: &str| json!({ "error": { "code": code, "message": message } });
    let own = error(-32601, "Method not found: ping");
    assert_eq!(differing("a", error(-32601, "ping"), own.clone()), Vec::<String>::new());
    // The code counts, and so do the words of a server.
    assert_eq!(differing("a", error(-32600, "ping"), own), ["scenario / a: details.error.code: -32600 became -32601"]);
    for other in [error(-32602, "Method not found: ping"), error(-32601, "no ping")] {
        assert_eq!(differing("a", error(-32601, "ping"), other.clone()).len(), 1, "{other}");
    }
    assert_eq!(differing("a", error(-32602, "no such tool"), error(-32602, "no tool")).len(), 1);
    // Of the data, what the protocol defines.
    let error = |message: &str, data: Value| json!({ "error": { "code": -32022, "message": message, "data": data } });
    let own = "Unsupported protocol version \"x\"";
    let one = error("no", json!({ "supported": ["2026-07-28"], "requested": "x", "hint": 1 }));
    let other = error(own, json!({ "supported": ["2026-07-28"], "requested": "x", "more": 1 }));
    assert_eq!(differing("a", one.clone(), other), Vec::<String>::new());
    for data in [json!({ "supported": [], "requested": "x" }), json!({ "supported": ["2026-07-28"] }), json!(null)] {
        assert!(!differing("a", one.clone(), error(own, data.clone())).is_empty(), "{data}");
    }
    // In the words of a server, all of it.
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
        // What was read is passed on, and so is how long it may be kept.
        ("resources-read-caching-hints", hint(1000), hint(999), false),
        ("a", list(1000), list(10), true),
        ("a", list(1000), list(0), false),
        ("a", endpoint("tools/list", 1000), endpoint("tools/list", 10), true),
        ("a", endpoint("resources/read", 1000), endpoint("resources/read", 10), false),
        // A task lives as long as it is said to.
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
        // Nothing is to be read there.
        (answered(202, null.clone()), answered(202, result.clone()), false),
        (answered(200, null.clone()), answered(403, result.clone()), false),
        (answered(200, null.clone()), answered(200, json!("text")), false),
        // It was there, and is lost.
        (answered(200, result.clone()), answered(200, null), false),
        (json!({ "body": null }), json!({ "body": result }), false),
    ] {
        assert_eq!(differing("a", one.clone(), other.clone()).is_empty(), same, "{one} {other}");
    }
}

#[test]
fn task_poll_counts_are_not_compared() {
    let verdict = |scenario: &str, messages: u32| {
        let recorded = json!([{ "id": "a", "status": "SUCCESS", "details": { "messagesValidated": messages } }]);
        let checks = verdict::checks(recorded.as_array().unwrap(), "http://127.0.0.1:4000/mcp");
        Verdict { passed: true, text: String::new(), scenarios: [(scenario.to_owned(), checks)].into() }
    };
    for (scenario, one, other, same) in
        [("tasks-lifecycle", 42, 44, true), ("tasks-lifecycle", 42, 0, false), ("tools-list", 42, 44, false)]
    {
        let found = differences(&verdict(scenario, one), &verdict(scenario, other), &[]);
        assert_eq!(found.is_empty(), same, "{scenario} {one} {other}");
    }
}

#[test]
fn every_other_difference_is_reported() {
    let check = |id: &str, status: &str, details: Value| json!({ "id": id, "status": status, "details": details });
    let one = json!([check("a", "SUCCESS", json!({ "n": 1 })), check("a", "SUCCESS", json!({ "n": 2 }))]);
    assert_eq!(shown(one.clone(), one.clone(), &[]), Vec::<String>::new());
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
        assert_eq!(shown(one.clone(), other, &[]), [expected]);
    }
    assert_eq!(shown(json!([]), one.clone(), &[]), ["scenario / a: was not there", "scenario / a#2: was not there"]);
    let empty = Verdict { passed: true, text: String::new(), scenarios: Default::default() };
    let found = differences(&said(one), &empty, &[]);
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), ["scenario / all: is missing"]);
}

#[test]
fn a_list_of_a_larger_group_may_have_extra_entries_only() {
    let listing = |names: Value| json!([{ "id": "list", "status": "SUCCESS", "details": { "toolCount": names.as_array().unwrap().len(), "tools": names } }]);
    let ours = listing(json!(["a", "b"]));
    let more = listing(json!(["x", "a", "y", "b"]));
    assert_eq!(shown(ours.clone(), more.clone(), &[]).len(), 1);
    assert_eq!(shown(ours.clone(), more, &["list"]), Vec::<String>::new());
    for less in [json!(["a"]), json!(["b", "a"]), json!(["a", "c", "d"])] {
        assert_eq!(shown(ours.clone(), listing(less.clone()), &["list"]).len(), 1, "{less}");
    }
}

#[test]
fn unlisted_and_stale_differences_are_faults() {
    let entry =
        "# why\n\n- fixture: rmcp\n  revision: \"2025-11-25\"\n  scenario: scenario\n  check: a\n  reason: so\n";
    let list = parse(entry).unwrap();
    let different = differences(
        &said(json!([{ "id": "a", "status": "SUCCESS" }])),
        &said(json!([{ "id": "a", "status": "WARNING" }])),
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
    let check = |status: &str, details: Value| said(json!([{ "id": "a", "status": status, "details": details }]));
    let one = check("SUCCESS", json!({ "n": 1, "m": 1 }));
    let found = |other: Verdict| differences(&one, &other, &[]);
    let here = row(Rmcp, Both, Http, Alone, HANDSHAKE);
    let [n, m] = ["    - details.n\n", "    - details.m\n"];
    let both = check("SUCCESS", json!({ "n": 2, "m": 2 }));
    let both = found(both);
    assert_eq!(faults(&here, &both, &[entry(&format!("{n}{m}"))]), Vec::<String>::new());
    assert_eq!(faults(&here, &both, &[entry(n), entry(m)]), Vec::<String>::new());
    // There is one more.
    assert_eq!(faults(&here, &both, &[entry(n)]).len(), 1);
    // There is one less.
    let less = found(check("SUCCESS", json!({ "n": 2, "m": 1 })));
    let stale = ["rmcp both http alone 2025-11-25: scenario / a: details.m is listed, but the same"];
    assert_eq!(faults(&here, &less, &[entry(n), entry(m)]), stale);
    // It is something else altogether.
    let worse = found(check("FAILURE", json!({ "n": 2, "m": 1 })));
    assert_eq!(faults(&here, &worse, &[entry(n)]).len(), 2);
}
