//! Rows: what has one, whatever became of it, and what belongs to one.

use std::sync::Arc;
use std::time::Duration;

use rialto::dialect::Revision;
use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::policy::Tokens;
use rialto::upstream::{List, SpecKind, UpstreamSpec};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{ended_rows, messages, only_detail, show_bodies};
use crate::config::TempFolder;
use crate::harness::{
    HttpMode, HttpRequest, PER_REQUEST, Rialto, TEST_TIMEOUT, call, initialize, modern, notification, request, until,
};
use crate::scripted_server::{ScriptedServer, ServerTransport};

const ANN: &str = "token-of-ann-0123456789";

/// A gateway with a group for each server, the first of which is the default, whose tools are known; it is watched.
pub async fn serving(specs: Vec<UpstreamSpec>, change: impl FnOnce(&mut rialto::app::AppSettings)) -> Rialto {
    let names: Vec<Arc<str>> = specs.iter().map(|spec| Arc::clone(&spec.name)).collect();
    let mut groups = vec![GroupConfig::new(DEFAULT_GROUP, [Arc::clone(&names[0])])];
    groups.extend(names.iter().map(|name| GroupConfig::new(name, [Arc::clone(name)])));
    let rialto = Rialto::with(|settings| {
        settings.gateway = GatewayConfig { upstreams: specs, groups };
        change(settings);
    })
    .await;
    for name in &names {
        let group = rialto.inbound.gateway.group(Some(name)).unwrap();
        until("the tools are known", || group.view(Revision::NEWEST).find_by_name(List::Tools, "do").is_some()).await;
    }
    rialto.wait_recording().await;
    rialto
}

pub fn spec(server: &ScriptedServer) -> UpstreamSpec {
    UpstreamSpec::new(&server.name, SpecKind::Target(server.target()))
}

/// A call of 2026-07-28 to the tool of a group that takes steps.
fn modern_call(rialto: &Rialto, group: &str, steps: &Value) -> HttpRequest {
    let params = json!({ "name": "do", "arguments": { "steps": steps } });
    let body = modern(1.into(), "tools/call", params.clone());
    rialto.post(&format!("/mcp/{group}"), &body).modern_headers("tools/call", &params)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_cancelled_timed_out_or_never_sent_have_a_row_and_a_reason() {
    let notes = ScriptedServer::start("notes", ServerTransport::Http).await;
    let slow = ScriptedServer::start("slow", ServerTransport::Http).await;
    let gone = ScriptedServer::start("gone", ServerTransport::PerRequest).await;
    let mut slow_spec = spec(&slow);
    slow_spec.settings.idle_timeout = Duration::from_millis(300);
    let rialto = serving(vec![spec(&notes), slow_spec, spec(&gone)], |_| {}).await;
    let never = json!([{ "wait": "never" }]);

    let session = rialto.open("2025-11-25").await;
    let cancelled = session.post(&call(3, "do", json!({ "steps": never }))).go().await;
    notes.wait_received("tools/call", 1).await;
    let cancel = session.post(&notification("notifications/cancelled", json!({ "requestId": 3 })));
    assert_eq!(cancel.status().await, 202);
    let row = &ended_rows(&rialto, "outcome:cancelled", 1).await[0];
    assert_eq!(row["error"]["message"], "the client cancelled the call", "{row}");
    assert_eq!((&row["server"]["name"], &row["name"]), (&json!("notes"), &json!("do")));
    drop(cancelled);

    let progress = json!([{ "progress": 1 }, { "wait": "never" }]);
    let params = json!({ "name": "do", "arguments": { "steps": progress }, "_meta": { "progressToken": 1 } });
    let left = rialto.modern("tools/call", params).go().await;
    notes.wait_received("tools/call", 2).await;
    drop(left);
    let row = &ended_rows(&rialto, "outcome:disconnected", 1).await[0];
    assert_eq!(row["error"]["message"], "the client went away", "{row}");

    let (_, answer) = modern_call(&rialto, "slow", &never).answer().await;
    assert!(answer["error"].is_object(), "{answer}");
    let row = &ended_rows(&rialto, "server:slow outcome:unavailable", 1).await[0];
    assert_eq!(row["error"]["message"], "silent", "{row}");
    assert!(row["time"]["server_us"].as_u64().unwrap() >= 300_000, "the server had the time: {row}");

    gone.stop();
    let (_, answer) = modern_call(&rialto, "gone", &json!([])).answer().await;
    assert!(answer["error"].is_object(), "{answer}");
    let detail = only_detail(&rialto, "group:gone outcome:unavailable").await;
    assert_eq!(detail["error"]["message"], "unreachable", "{detail}");
    assert_eq!(messages(&detail, "server", "out").len(), 0, "it was never sent: {detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_refused_have_a_row_with_their_status() {
    let rialto = Rialto::with(|settings| {
        settings.inbound.limits.body_bytes = 2000;
        settings.policy.tokens = Tokens::new([("ann".to_owned(), ANN.to_owned())]);
    })
    .await;
    rialto.wait_recording().await;
    let ping = request(1, "ping", json!({}));
    let by_ann = |request: HttpRequest| request.header("authorization", &format!("Bearer {ANN}"));
    let post = |path: &str| by_ann(rialto.post(path, &ping));
    let cases: Vec<(u16, &str, HttpRequest)> = vec![
        (400, "Bad Request", post("/mcp").body("{")),
        (401, "Unauthorized", rialto.post("/mcp", &ping)),
        (403, "Forbidden", post("/mcp").header("origin", "https://evil.example")),
        (404, "Not Found", post("/mcp/nowhere")),
        (404, "Not Found", post("/mcp").header("mcp-session-id", "http:0123456789abcdef0123456789abcdef")),
        (405, "Method Not Allowed", by_ann(rialto.send("PUT", "/mcp"))),
        (406, "Not Acceptable", post("/mcp").without("accept").header("accept", "text/html")),
        (413, "Payload Too Large", post("/mcp").body(format!("[\"{}\"]", "x".repeat(3000)))),
        (415, "Unsupported Media Type", post("/mcp").without("content-type").header("content-type", "text/plain")),
    ];
    for (number, (status, phrase, request)) in cases.into_iter().enumerate() {
        assert_eq!(request.status().await, status, "{phrase}");
        let found = ended_rows(&rialto, "outcome:refused", number + 1).await;
        assert_eq!(found.len(), number + 1, "one row for each: {found:#?}");
        let error = &found[0]["error"];
        assert_eq!((&error["status"], &error["message"]), (&json!(status), &json!(phrase)), "{found:#?}");
        let method = found[0]["method"].as_str().unwrap();
        // A request whose message was read has its method.
        assert_eq!(found[0]["mcp"], !method.contains(' '), "{}", found[0]);
        assert!(!matches!(status, 401 | 405 | 413) || method.contains(" /mcp"), "{}", found[0]);
        let is_known = !matches!(status, 401 | 403);
        let caller = if is_known { "token|ann" } else { "unknown" };
        assert_eq!(found[0]["client"]["caller"], caller, "{}", found[0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_two_rounds_is_one_row_with_two_request_names() {
    for transport in [ServerTransport::Http, ServerTransport::PerRequest, ServerTransport::Stdio] {
        let notes = ScriptedServer::start("notes", transport).await;
        let rialto = serving(vec![spec(&notes)], |_| {}).await;
        let schema = json!({ "type": "object", "properties": { "sure": { "type": "boolean" } } });
        let ask =
            json!({ "method": "elicitation/create", "params": { "message": "Sure?", "requestedSchema": schema } });
        let capabilities = json!({ "elicitation": { "form": {} } });
        let params = json!({ "name": "do", "arguments": { "steps": [{ "ask": ask }] } });
        let post = |params: &Value| {
            let mut body = modern(1.into(), "tools/call", params.clone());
            body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities.clone();
            rialto.post("/mcp", &body).modern_headers("tools/call", params)
        };
        let first = post(&params).go().await;
        let first_name = first.header("x-request-id").unwrap().to_owned();
        let asked = match first.is_events() {
            true => first.events().rest().await.pop().unwrap(),
            false => first.json().await,
        };
        assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
        let answered_at = std::time::Instant::now();
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        loop {
            let waiting = crate::console::get(&rialto, "calls?q=method:tools/call").await["items"][0].clone();
            if waiting["outcome"] == "waiting" && waiting["done"] == false {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "until somebody answers, it waits: {waiting}");
        }
        let mut second = params.clone();
        let key = asked["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        second["inputResponses"] = json!({ key: { "action": "accept", "content": { "sure": true } } });
        second["requestState"] = asked["result"]["requestState"].clone();
        let waited = answered_at.elapsed();
        let answered = post(&second).go().await;
        let second_name = answered.header("x-request-id").unwrap().to_owned();
        let text = answered.text().await;
        assert!(text.contains("accept"), "{text}");
        let detail = only_detail(&rialto, "method:tools/call").await;
        assert_eq!(detail["requests"], json!([first_name, second_name]), "{transport:?}");
        assert_eq!((&detail["rounds"], &detail["outcome"]), (&json!(2), &json!("ok")), "{detail:#}");
        let time = Duration::from_micros(detail["time"]["client_us"].as_u64().unwrap() + 1);
        assert!(time >= waited, "the client had the time between its requests: {waited:?}, {detail:#}");
        let sent = messages(&detail, "server", "out");
        let calls = sent.iter().filter(|one| one["method"] == "tools/call").count();
        assert_eq!(calls, if transport == ServerTransport::PerRequest { 2 } else { 1 }, "{transport:?} {detail:#}");
        let parent = detail["server"]["process"].as_u64().map(parent_of);
        let expected = (transport == ServerTransport::Stdio).then(std::process::id);
        assert_eq!(parent, expected, "the gateway of this test is the parent of a child: {transport:?} {detail:#}");
    }
}

/// The parent of a process.
fn parent_of(process: u64) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_2025_03_26_shows_each_of_its_messages() {
    let notes = ScriptedServer::start("notes", ServerTransport::Http).await;
    let rialto = serving(vec![spec(&notes)], |_| {}).await;
    show_bodies(&rialto).await;
    let session = rialto.open("2025-03-26").await;
    let batch = json!([
        call("one", "echo", json!({ "message": "first of the batch" })),
        notification("notifications/roots/list_changed", json!({})),
        call("two", "echo", json!({ "message": "second of the batch" })),
    ]);
    let answered = session.post(&batch).go().await;
    let answers = match answered.is_events() {
        true => answered.events().rest().await,
        false => answered.json().await.as_array().unwrap().clone(),
    };
    assert_eq!(answers.iter().flat_map(|one| one.as_array().cloned().unwrap_or_else(|| vec![one.clone()])).count(), 2);
    let detail = only_detail(&rialto, "method:batch").await;
    let said: Vec<(&Value, &Value)> =
        messages(&detail, "client", "in").iter().map(|one| (&one["kind"], &one["method"])).collect();
    let (request, call) = (json!("request"), json!("tools/call"));
    let notified = (json!("notification"), json!("notifications/roots/list_changed"));
    assert_eq!(said, [(&request, &call), (&notified.0, &notified.1), (&request, &call)], "{detail:#}");
    let paired = |one: &Value| detail["messages"][usize::try_from(one["with"].as_u64().unwrap()).unwrap()].clone();
    for text in ["first of the batch", "second of the batch"] {
        let has_text = |one: &&&Value| one["text"].as_str().is_some_and(|shown| shown.contains(text));
        for (wire, way) in [("client", "in"), ("server", "out"), ("server", "in"), ("client", "out")] {
            let all = messages(&detail, wire, way);
            let found: Vec<&&Value> = all.iter().filter(has_text).collect();
            assert_eq!(found.len(), 1, "{text} on the {wire} wire, {way}: {detail:#}");
            let other = paired(found[0]);
            assert!(other["text"].as_str().unwrap().contains(text), "{text}: paired with {other}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_over_http2_are_recorded() {
    let notes = ScriptedServer::start("notes", ServerTransport::Http).await;
    let rialto = serving(vec![spec(&notes)], |_| {}).await;
    show_bodies(&rialto).await;
    let params = json!({ "name": "echo", "arguments": { "message": "over two" } });
    let answer = rialto.modern("tools/call", params).attempt_over(HttpMode::Http2).await.unwrap();
    assert_eq!(answer.status, 200);
    let text = answer.text().await;
    let detail = only_detail(&rialto, "tool:echo").await;
    assert_eq!((&detail["outcome"], &detail["client"]["revision"]), (&json!("ok"), &json!(PER_REQUEST)));
    let said = messages(&detail, "client", "in");
    assert!(said[0]["text"].as_str().unwrap().contains("over two"), "{detail:#}");
    assert_eq!((&said[0]["http"]["verb"], &said[0]["http"]["path"]), (&json!("POST"), &json!("/mcp")));
    assert_eq!(messages(&detail, "client", "out").last().unwrap()["text"], text.as_str());
    assert!(messages(&detail, "server", "out")[0]["text"].as_str().unwrap().contains("over two"));
}

/// Calls of a client on standard input and output, at the program itself.
#[tokio::test(flavor = "multi_thread")]
async fn calls_over_stdio_are_recorded() {
    let folder = TempFolder::new("recorded-stdio");
    let mut command = crate::process::rialto();
    command.args(["stdio", "--console"]).current_dir(&folder.0).env("XDG_RUNTIME_DIR", &folder.0);
    let mut child = command.spawn().unwrap();
    let file = folder.0.join(format!("rialto/console-{}.json", child.id().unwrap()));
    until("the console is announced", || std::fs::read(&file).is_ok_and(|text| text.ends_with(b"}"))).await;
    let running: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let address = running["url"].as_str().unwrap().strip_prefix("http://").unwrap().strip_suffix("/console").unwrap();
    let address: std::net::SocketAddr = address.parse().unwrap();
    let key = format!("Bearer {}", running["key"].as_str().unwrap());
    let ask = |path: &str| HttpRequest::to(address, "GET", &format!("/admin/v1/{path}")).header("authorization", &key);
    let show = HttpRequest::to(address, "PUT", "/admin/v1/recording").header("authorization", &key);
    let show = show.header("content-type", "application/json").body("{\"bodies\":true}");
    assert_eq!(show.json().await.1["bodies"], true);
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    while ask("recording").json().await.1["on"] != true {
        assert!(tokio::time::Instant::now() < deadline, "never on");
    }
    let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut lines = BufReader::new(output).lines();
    let element = json!({ "name": "Fe" });
    for message in
        [initialize("2025-11-25"), notification("notifications/initialized", json!({})), call(2, "getElement", element)]
    {
        input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }
    let answer = loop {
        let line = tokio::time::timeout(TEST_TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
        if line.contains("Iron") {
            break line;
        }
    };
    let row = loop {
        let rows = ask("calls?q=method:tools/call").json().await.1;
        match &rows["items"][0] {
            row if row["done"] == true => break row.clone(),
            _ => assert!(tokio::time::Instant::now() < deadline, "{rows}"),
        }
    };
    assert_eq!((&row["client"]["transport"], &row["name"]), (&json!("stdio"), &json!("getElement")), "{row}");
    let (_, detail) = ask(&format!("calls/{}", row["id"].as_str().unwrap())).json().await;
    assert_eq!(messages(&detail, "client", "out").last().unwrap()["text"], answer.as_str(), "{detail:#}");
    let opened = ask("calls?q=method:initialize").json().await.1;
    assert_eq!(opened["items"][0]["client"]["transport"], "stdio", "{opened}");
    drop(input);
    assert_eq!(crate::process::exit_code(child).await, Some(0));
}
