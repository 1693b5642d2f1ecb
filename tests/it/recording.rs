//! Recorded calls: what has a row, what is shown of it, and what recording leaves behind.

mod replayed;
pub mod rows;

use std::time::Duration;

use rialto::recording::{BodyAccess, BodyRule, CallFilter, RecordMode, StoredCall};
use serde_json::{Value, json};

use crate::console::{asked, get};
use crate::harness::{PER_REQUEST, Rialto, TEST_TIMEOUT};

/// Rows of the API for a query, once as many have ended.
async fn ended_rows(rialto: &Rialto, query: &str, count: usize) -> Vec<Value> {
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    let words: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
    loop {
        let found = get(rialto, &format!("calls?limit=500&q={words}")).await;
        let ended: Vec<Value> =
            found["items"].as_array().unwrap().iter().filter(|row| row["done"] == true).cloned().collect();
        if ended.len() >= count {
            return ended;
        }
        assert!(tokio::time::Instant::now() < deadline, "{query}: {found:#}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The only row of a query, with its messages.
async fn only_detail(rialto: &Rialto, query: &str) -> Value {
    let found = ended_rows(rialto, query, 1).await;
    assert_eq!(found.len(), 1, "{query}: {found:#?}");
    get(rialto, &format!("calls/{}", found[0]["id"].as_str().unwrap())).await
}

/// Shows bodies of calls from now on.
async fn show_bodies(rialto: &Rialto) {
    let (status, shown) = asked(rialto, "PUT", "recording").body("{\"bodies\": true}").json().await;
    assert_eq!((status, &shown["bodies"]), (200, &json!(true)));
}

/// Messages of a call on one wire that went one way.
fn messages<'d>(detail: &'d Value, wire: &str, way: &str) -> Vec<&'d Value> {
    let all = detail["messages"].as_array().unwrap().iter();
    all.filter(|one| one["wire"] == wire && one["way"] == way).collect()
}

/// Rows of a gateway, once there are as many that match.
async fn rows(rialto: &Rialto, query: &str, count: usize) -> Vec<Value> {
    let (calls, filter) = (&rialto.inbound.calls, CallFilter::parse(query).unwrap());
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    loop {
        let maker = calls.rows("node".to_owned());
        let all = calls.newest(u64::MAX, |_| true, 10_000);
        let rows = all.iter().map(|call| maker.row_value(call, BodyAccess::Shapes));
        let rows: Vec<Value> = rows.filter(|row| row["done"] == true && filter.matches(row)).collect();
        if rows.len() >= count {
            return rows;
        }
        assert!(tokio::time::Instant::now() < deadline, "{query}: {rows:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn watched() -> Rialto {
    let rialto = Rialto::start().await;
    rialto.wait_recording().await;
    rialto
}

fn call_body(text: &str) -> Value {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": PER_REQUEST,
        "io.modelcontextprotocol/clientInfo": { "name": "desk", "version": "1.9" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params =
        json!({ "name": "echo", "arguments": { "message": text, "password": "hunter2hunter2" }, "_meta": meta });
    json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params })
}

async fn call(rialto: &Rialto, text: &str) -> u16 {
    let body = call_body(text);
    let request = rialto.send("POST", "/mcp").header("content-type", "application/json");
    let request = request.header("accept", "application/json, text/event-stream");
    let request = request.header("mcp-param-message", text).header("mcp-param-password", "hunter2hunter2");
    request.modern_headers("tools/call", &body["params"]).body(body.to_string()).go().await.status
}

fn only_call(rialto: &Rialto) -> StoredCall {
    let mut calls = rialto.inbound.calls.newest(u64::MAX, |_| true, 10);
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_recorded_while_nobody_watches() {
    let rialto = Rialto::start().await;
    assert!(!rialto.inbound.calls.state().is_on);
    call(&rialto, "unseen").await;
    rialto.wait_recording().await;
    call(&rialto, "seen").await;
    let found = rows(&rialto, "method:tools/call", 1).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["client"]["name"], "desk");
}

#[tokio::test(flavor = "multi_thread")]
async fn recording_ends_and_frees_everything_after_the_last_viewer() {
    let rialto = Rialto::with(|settings| settings.recording.linger = Duration::from_millis(300)).await;
    let viewer = rialto.inbound.calls.watch();
    rialto.wait_recording().await;
    call(&rialto, "seen").await;
    rows(&rialto, "", 1).await;
    drop(viewer);
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    while rialto.inbound.calls.state().is_on || rialto.inbound.calls.state().bytes > 0 {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_calls_never_take_more_than_they_may() {
    const BYTES: usize = 1 << 20;
    let rialto = Rialto::with(|settings| settings.recording.bytes = BYTES).await;
    let _viewer = rialto.inbound.calls.watch();
    rialto.wait_recording().await;
    let text = "x".repeat(30_000);
    let mut most = 0;
    let newest =
        || rialto.inbound.calls.newest(u64::MAX, |call| !call.ends.is_empty(), 1).first().map(|one| one.number);
    for number in 1..=40 {
        call(&rialto, &text).await;
        crate::harness::until("it is collected", || newest() == Some(number)).await;
        most = most.max(rialto.inbound.calls.state().bytes);
    }
    // A quarter is for the rings, whose size is fixed.
    assert!(most > BYTES / 2 && most <= BYTES / 4 * 3, "{most}");
    let kept = rialto.inbound.calls.newest(u64::MAX, |_| true, 1000).len();
    assert!(kept > 3 && kept < 40, "the oldest went first: {kept}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorder_that_is_off_stays_off() {
    let rialto = Rialto::with(|settings| settings.recording.mode = RecordMode::Off).await;
    let _viewer = rialto.inbound.calls.watch();
    assert!(!rialto.inbound.calls.wait_until_on().await);
    call(&rialto, "unseen").await;
    assert!(!rialto.inbound.calls.state().is_on);
    assert!(rialto.inbound.calls.newest(u64::MAX, |_| true, 10).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_shown_only_with_bodies_and_secrets_never() {
    let rialto = watched().await;
    call(&rialto, "a value of the payload").await;
    rows(&rialto, "", 1).await;
    let (calls, recorded) = (&rialto.inbound.calls, only_call(&rialto));
    let shapes = calls.rows("node".to_owned()).detail(&recorded, BodyAccess::Shapes);
    let texts = |detail: &Value| -> String {
        let all = detail["messages"].as_array().unwrap();
        all.iter().filter_map(|one| one["text"].as_str()).collect()
    };
    assert!(!shapes.to_string().contains("a value of the payload"), "{shapes}");
    assert!(shapes.to_string().contains(r#"["mcp-param-message","string 22"]"#), "{shapes}");
    assert_eq!(shapes["bodies"], "shape");
    let shown = calls.rows("node".to_owned()).detail(&recorded, BodyAccess::Shown);
    assert!(texts(&shown).contains("a value of the payload"), "{shown}");
    assert!(!shown.to_string().contains("hunter2"), "{shown}");
    assert_eq!(shown["messages"][0]["hidden"], json!(["/params/arguments/password"]));
    let time = &shown["time"];
    let parts = ["rialto_us", "open_us", "server_us", "client_us"].map(|part| time[part].as_i64().unwrap());
    assert!((shown["took_us"].as_i64().unwrap() - parts.iter().sum::<i64>()).abs() <= 4, "{time} {}", shown["took_us"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_shown_for_a_while_and_never_where_they_are_never_shown() {
    let rialto = Rialto::start().await;
    let calls = &rialto.inbound.calls;
    assert!(!calls.shows_bodies());
    calls.show_bodies(Some(Duration::from_secs(60)));
    assert!(calls.shows_bodies());
    calls.show_bodies(Some(Duration::from_nanos(1)));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(!calls.shows_bodies(), "it ends by itself");
    let never = Rialto::with(|settings| settings.recording.bodies = BodyRule::Never).await;
    never.inbound.calls.show_bodies(Some(Duration::from_secs(60)));
    assert!(!never.inbound.calls.shows_bodies());
    for (gateway, may) in [(&rialto, true), (&never, false)] {
        let recording = crate::console::get(gateway, "recording").await;
        assert_eq!((&recording["may_show_bodies"], &recording["bodies"]), (&json!(may), &json!(false)), "{recording}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_page_through_calls_without_a_gap_or_a_double() {
    let rialto = watched().await;
    for n in 0..30 {
        call(&rialto, &n.to_string()).await;
    }
    rows(&rialto, "", 30).await;
    let (calls, mut below, mut seen) = (&rialto.inbound.calls, u64::MAX, Vec::new());
    loop {
        let page = calls.newest(below, |_| true, 7);
        let Some(last) = page.last() else { break };
        below = last.number;
        seen.extend(page.iter().map(|call| call.number));
        if seen.len() < 30 {
            call(&rialto, "new").await;
        }
    }
    let first = *seen.last().unwrap();
    assert_eq!(seen, (first..first + 30).rev().collect::<Vec<_>>());
}
