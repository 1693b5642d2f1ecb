//! The access log of the binary: a line for each request, over every transport, and what happens when nobody reads it.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::harness::{call, modern, survey};
use crate::scripted_server::{ScriptedServer, ServerTransport};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TOKEN: &str = "s3cret-token-of-ann";

/// A gateway with a token and small limits that logs JSON.
const GUARDED: &str = r#"
[log]
format = "json"
[access.tokens]
ann = "s3cret-token-of-ann"
[limits]
body_bytes = "2KiB"
[[policy.limits]]
name = "pings"
rate = "20/h"
"#;

/// The members of the lines of the access log.
fn access_lines(log: &str) -> Vec<Value> {
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}")));
    let lines: Vec<Value> = lines.filter(|line| line["target"] == "access").collect();
    for line in &lines {
        assert!(line["level"] == "INFO" && line["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
        let [total, own, upstream] = ["total_ms", "rialto_ms", "upstream_ms"].map(|key| line["fields"][key].as_f64());
        assert!(total.unwrap() + 0.002 >= own.unwrap() + upstream.unwrap().min(total.unwrap()), "{line}");
    }
    lines.into_iter().map(|line| line["fields"].clone()).collect()
}

/// Some members of a line.
fn row(line: &Value, members: &[&str]) -> Value {
    members.iter().map(|member| line[*member].clone()).collect()
}

fn of_request<'l>(lines: &'l [Value], id: &str) -> &'l Value {
    let mut found = lines.iter().filter(|line| line["request"] == id);
    let line = found.next().unwrap_or_else(|| panic!("no line of {id}: {lines:?}"));
    assert!(found.next().is_none(), "one line of {id}: {lines:?}");
    line
}

fn authorized(sending: HttpRequest) -> HttpRequest {
    sending.header("authorization", &format!("Bearer {TOKEN}"))
}

fn post(rialto: &GatewayProcess, body: &Value, id: &str) -> HttpRequest {
    HttpRequest::to(rialto.address, "POST", "/mcp?key=s3cret-query")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("x-request-id", id)
        .body(body.to_string())
}

#[tokio::test]
async fn every_request_has_a_line_with_its_outcome() {
    let rialto = GatewayProcess::start("access-http", GUARDED).await;
    let opened = authorized(post(&rialto, &initialize("2025-11-25"), "open")).go().await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    opened.text().await;
    let in_session = |body: &Value, id: &str| authorized(post(&rialto, body, id)).header("mcp-session-id", &session);
    let iron = |id: u64| call(id, "getElement", json!({ "name": "Fe" }));
    assert_eq!(in_session(&iron(1), "call").header("traceparent", PARENT).status().await, 200);
    assert_eq!(in_session(&call(2, "getElement", json!({ "name": "none" })), "tool-error").status().await, 200);
    assert_eq!(in_session(&call(3, "no such tool\r\n\u{2028}\"", json!({})), "unknown").status().await, 200);
    assert_eq!(
        in_session(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }), "note").status().await,
        202
    );
    assert_eq!(in_session(&iron(4), "gone").replace("mcp-session-id", "none").status().await, 404);
    assert_eq!(in_session(&call(5, &"x".repeat(1500), json!({})), "long").status().await, 200);
    // Rejections.
    assert_eq!(post(&rialto, &iron(1), "nobody").status().await, 401);
    assert_eq!(authorized(post(&rialto, &iron(1), "host")).replace("host", "evil.example").status().await, 403);
    assert_eq!(authorized(rialto.get("/nowhere?s3cret")).header("x-request-id", "path").status().await, 404);
    let large = call(1, "getElement", json!({ "name": "x".repeat(4000) }));
    assert_eq!(in_session(&large, "large").status().await, 413);
    let by_path = authorized(rialto.get(&format!("/mcp/default/{session}"))).header("accept", "text/event-stream");
    let stream = by_path.header("x-request-id", "stream").go().await;
    assert_eq!(stream.status, 200);
    drop(stream);
    rialto.wait_for_log("\"request\":\"stream\"").await;
    // The per-request era.
    let params = json!({ "name": "getElement", "arguments": { "name": "Fe" },
        "_meta": { "io.modelcontextprotocol/clientInfo": { "name": "robo\n", "version": "7" } } });
    let sending = authorized(post(&rialto, &modern(1.into(), "tools/call", params.clone()), "modern"));
    assert_eq!(sending.modern_headers("tools/call", &params).status().await, 200);
    for _ in 0..30 {
        in_session(&request(9, "ping", json!({})), "ping").status().await;
    }
    assert_eq!(in_session(&request(9, "ping", json!({})), "over").status().await, 429);

    let log = rialto.stop().await;
    assert!(!log.contains("s3cret"), "{log}");
    let key = session.rsplit(':').next().unwrap();
    assert!(!log.contains(key), "the session id is in {log}");
    assert!(!log.contains(['\u{2028}', '\r']), "{log}");
    let lines = access_lines(&log);
    let members = ["principal", "client", "http", "method", "target", "upstream", "status", "outcome", "code"];
    let tool = "no such tool\r\n\u{2028}\"";
    for (id, expected) in [
        ("open", json!(["token|ann", "test/1", "POST /mcp", "initialize", null, null, 200, "ok", null])),
        ("call", json!(["token|ann", "test/1", "POST /mcp", "tools/call", "getElement", "elements", 200, "ok", null])),
        (
            "tool-error",
            json!([
                "token|ann",
                "test/1",
                "POST /mcp",
                "tools/call",
                "getElement",
                "elements",
                200,
                "tool_error",
                null
            ]),
        ),
        // The only server of a group is asked what it does not list.
        ("unknown", json!(["token|ann", "test/1", "POST /mcp", "tools/call", tool, "elements", 200, "error", -32602])),
        ("note", json!(["token|ann", "test/1", "POST /mcp", "notifications/initialized", null, null, 202, "ok", null])),
        ("gone", json!(["token|ann", null, "POST /mcp", "tools/call", "getElement", null, 404, "error", -32600])),
        ("nobody", json!([null, null, "POST /mcp", null, null, null, 401, "error", -32600])),
        ("host", json!([null, null, "POST /mcp", null, null, null, 403, "error", -32600])),
        ("path", json!([null, null, "GET /nowhere", null, null, null, 404, "error", -32600])),
        ("large", json!(["token|ann", null, "POST /mcp", null, null, null, 413, "error", -32600])),
        ("stream", json!(["token|ann", null, "GET /mcp/default", null, null, null, 200, "disconnected", null])),
        (
            "modern",
            json!(["token|ann", "robo\n/7", "POST /mcp", "tools/call", "getElement", "elements", 200, "ok", null]),
        ),
        ("over", json!(["token|ann", "test/1", "POST /mcp", "ping", null, null, 429, "error", -32600])),
    ] {
        assert_eq!(row(of_request(&lines, id), &members), expected, "{id}");
    }
    let ended = of_request(&lines, "call");
    assert_eq!(ended["trace"], "0af7651916cd43dd8448eb211c80319c");
    assert!(ended["bytes_in"].as_u64().unwrap() > 100 && ended["bytes_out"].as_u64().unwrap() > 100, "{ended}");
    assert_eq!(of_request(&lines, "long")["target"].as_str().unwrap().len(), 256);
}

#[tokio::test]
async fn streamed_cancelled_and_abandoned_calls_are_logged_when_they_end() {
    let rialto = GatewayProcess::start("access-streams", "[log]\nformat = \"json\"\n").await;
    let session = rialto.open("/mcp").await;
    let streamed = session.post(&survey(1, 3, 5)).header("x-request-id", "streamed").go().await;
    assert!(streamed.is_events());
    let received = streamed.text().await;
    let cancelled = session.post(&survey(2, 118, 5000)).header("x-request-id", "cancelled").go().await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 2 } });
    assert_eq!(session.post(&cancel).status().await, 202);
    cancelled.text().await;
    let params = survey(3, 118, 5000)["params"].clone();
    let sending = post(&rialto, &modern(3.into(), "tools/call", params.clone()), "abandoned");
    let sending = sending.modern_headers("tools/call", &params).header("mcp-param-count", "118");
    let mut abandoned = sending.go().await;
    abandoned.piece().await.unwrap().unwrap();
    drop(abandoned);
    rialto.wait_for_log("\"request\":\"abandoned\"").await;

    // HTTP+SSE: the POST is answered at once, its call later and on the stream.
    let stream = rialto.get("/sse").header("accept", "text/event-stream").header("x-request-id", "sse");
    let mut stream = stream.go().await.events();
    let endpoint = stream.next().await.unwrap().data;
    let send = |body: Value, id: &'static str| {
        let sending = HttpRequest::to(rialto.address, "POST", &endpoint).header("content-type", "application/json");
        sending.header("x-request-id", id).body(body.to_string()).status()
    };
    assert_eq!(send(initialize("2024-11-05"), "sse-open").await, 202);
    stream.message().await.unwrap();
    assert_eq!(send(survey(1, 2, 5), "sse-call").await, 202);
    while stream.message().await.unwrap()["id"] != 1 {}
    rialto.wait_for_log("\"request\":\"sse-call\"").await;
    drop(stream);
    rialto.wait_for_log("\"request\":\"sse\"").await;

    let lines = access_lines(&rialto.stop().await);
    let members = ["method", "target", "upstream", "status", "outcome"];
    for (id, outcome) in [("streamed", "ok"), ("cancelled", "cancelled")] {
        let expected = json!(["tools/call", "surveyElements", "elements", 200, outcome]);
        assert_eq!(row(of_request(&lines, id), &members), expected, "{id}");
    }
    assert_eq!(of_request(&lines, "abandoned")["outcome"], "disconnected");
    let ended = of_request(&lines, "streamed");
    assert!(ended["bytes_out"].as_u64().unwrap() >= received.len() as u64 && ended["total_ms"].as_f64() > Some(9.0));
    let sse = of_request(&lines, "sse-call");
    assert_eq!(row(sse, &members), json!(["tools/call", "surveyElements", "elements", 202, "ok"]));
    assert!(sse["bytes_out"].as_u64().unwrap() > 100 && sse["client"] == "test/1", "{sse}");
    assert_eq!(of_request(&lines, "sse")["outcome"], "disconnected");
}

/// The parts of a line in the combined log format, as programs that read such logs take it apart.
fn combined_parts(line: &str) -> Option<[&str; 7]> {
    let (address, rest) = line.split_once(" - ")?;
    let (user, rest) = rest.split_once(" [")?;
    let (time, rest) = rest.split_once("] \"")?;
    let (request, rest) = rest.split_once("\" ")?;
    let (numbers, rest) = rest.split_once(" \"-\" \"")?;
    let (status, bytes) = numbers.split_once(' ')?;
    Some([address, user, time, request, status, bytes, rest.strip_suffix('"')?])
}

#[tokio::test]
async fn the_combined_format_is_that_of_other_servers() {
    let file = "[log]\naccess_format = \"combined\"\n[access]\ntrusted_proxies = [\"127.0.0.1\"]\n\
                allow_anonymous = true\ntokens = { ann = \"s3cret-token-of-ann\" }\n";
    let rialto = GatewayProcess::start("access-combined", file).await;
    let opened = authorized(post(&rialto, &initialize("2025-11-25"), "open"))
        .header("x-forwarded-for", "203.0.113.7")
        .header("user-agent", "desk \"1.9\"");
    let length = opened.go().await.text().await.len();
    assert_eq!(post(&rialto, &json!({}), "wrong").status().await, 400);
    let mut socket = TcpStream::connect(rialto.address).await.unwrap();
    socket.write_all(b"no HTTP\r\n\r\n").await.unwrap();
    socket.read_to_end(&mut Vec::new()).await.unwrap();
    let log = rialto.stop().await;
    let lines: Vec<[&str; 7]> = log.lines().filter_map(combined_parts).collect();
    let line = |status: &str| *lines.iter().find(|line| line[4] == status).unwrap_or_else(|| panic!("{status}: {log}"));
    let [address, user, time, request, _, bytes, agent] = line("200");
    assert_eq!((address, user, request), ("203.0.113.7", "token|ann", "POST /mcp HTTP/1.1"));
    assert_eq!((bytes, agent), (&*length.to_string(), "desk \\\"1.9\\\""));
    let digits: String = time.chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect();
    assert!(digits.starts_with("00/") && digits.ends_with("/0000:00:00:00 +0000"), "{time}");
    let refused: Vec<_> = lines.iter().filter(|line| line[4] == "400").collect();
    assert_eq!(
        refused.iter().map(|line| (line[0], line[3])).collect::<Vec<_>>(),
        [("127.0.0.1", "POST /mcp HTTP/1.1"), ("127.0.0.1", "-")]
    );
}

#[tokio::test]
async fn a_parked_call_tells_how_long_it_waited_for_a_person() {
    let server = ScriptedServer::start("db", ServerTransport::Http).await;
    let rialto::mcp_client::Target::Url(address) = server.target() else { panic!("a URL") };
    let file = format!("[log]\nformat = \"json\"\n[servers.db]\nurl = \"{}\"\n", address.url);
    let rialto = GatewayProcess::start("access-parked", &file).await;
    rialto.until_ready().await;
    let form = json!({ "message": "?", "requestedSchema": { "type": "object", "properties": {} } });
    let steps = json!({ "steps": [{ "ask": { "method": "elicitation/create", "params": form } }] });
    let ask = async |id: &'static str, extra: Value| {
        let mut params = json!({ "name": "do", "arguments": steps.clone() });
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let mut body = modern(1.into(), "tools/call", params.clone());
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
            json!({ "elicitation": { "form": {} } });
        let received = post(&rialto, &body, id).modern_headers("tools/call", &params).go().await;
        read_response(received).await["result"].clone()
    };
    let first = ask("asked", json!({})).await;
    assert_eq!(first["resultType"], "input_required", "{first}");
    let key = first["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let answers = json!({ key: { "action": "accept", "content": {} } });
    let second = ask("answered", json!({ "inputResponses": answers, "requestState": first["requestState"] })).await;
    assert!(second["content"].is_array(), "{second}");
    let lines = access_lines(&rialto.stop().await);
    let (asked, answered) = (of_request(&lines, "asked"), of_request(&lines, "answered"));
    let members = ["method", "target", "upstream", "status", "outcome"];
    for line in [asked, answered] {
        assert_eq!(row(line, &members), json!(["tools/call", "do", "db", 200, "ok"]), "{line}");
    }
    assert!(asked.get("waited_ms").is_none() && answered["waited_ms"].as_f64() > Some(0.0), "{answered}");
}

#[tokio::test]
async fn text_lines_have_the_fields_in_order() {
    let rialto = GatewayProcess::start("access-text", "").await;
    let session = rialto.open("/mcp").await;
    session.post(&call(1, "getElement", json!({ "name": "Fe" }))).header("x-request-id", "mine").status().await;
    rialto.get("/no where\"".replace(' ', "%20").replace('"', "%22").as_str()).status().await;
    let log = rialto.stop().await;
    let line = log.lines().find(|line| line.contains("request=mine")).unwrap();
    let (time, rest) = line.split_once("  INFO access: ").unwrap_or_else(|| panic!("{line}"));
    assert!(time.len() == 24 && time.ends_with('Z'), "{line}");
    let head = "anonymous \"test/1\" \"POST /mcp\" tools/call \"getElement\" elements 200 ok total=";
    assert!(rest.starts_with(head), "{line}");
    for field in ["ms rialto=", "ms upstream=", " in=", " out="] {
        assert!(rest.contains(field), "{line}");
    }
    let other = log.lines().find(|line| line.contains("GET /no%20where%22")).unwrap();
    assert!(other.contains(" access: - - \"GET /no%20where%22\" - - - 404 error code=-32600 total="), "{other}");
}

#[tokio::test]
async fn stdio_clients_have_lines_too() {
    let run = async |messages: &[Value]| {
        let mut child = rialto().args(["stdio", "--log-format", "json"]).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        for message in messages {
            input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        }
        drop(input);
        let output = tokio::time::timeout(TEST_TIMEOUT, child.wait_with_output()).await.unwrap().unwrap();
        access_lines(&String::from_utf8(output.stderr).unwrap())
    };
    let members = ["principal", "client", "http", "method", "target", "upstream", "outcome", "code"];
    let handshake = [
        initialize("2025-11-25"),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        call(1, "getElement", json!({ "name": "Fe" })),
        survey(2, 2, 5),
        call(3, "nothing\n", json!({})),
    ];
    let lines = run(&handshake).await;
    let find = |method: &str, target: Value| {
        lines
            .iter()
            .find(|line| line["method"] == method && line["target"] == target)
            .unwrap_or_else(|| panic!("{lines:?}"))
    };
    assert_eq!(lines.len(), 4, "{lines:?}");
    let called = find("tools/call", "getElement".into());
    assert_eq!(
        row(called, &members),
        json!(["local", "test/1", null, "tools/call", "getElement", "elements", "ok", null])
    );
    assert!(called["bytes_in"].as_u64() > Some(50) && called["bytes_out"].as_u64() > Some(50), "{called}");
    assert_eq!(find("tools/call", "surveyElements".into())["outcome"], "ok");
    assert_eq!(find("tools/call", "nothing\n".into())["code"], -32602);
    find("initialize", Value::Null);

    let params = json!({ "name": "getElement", "arguments": { "name": "Fe" } });
    let lines = run(&[modern(1.into(), "tools/call", params), request(2, "tools/list", json!({}))]).await;
    let outcomes: Vec<Value> = lines.iter().map(|line| row(line, &["method", "outcome", "code"])).collect();
    assert_eq!(outcomes, [json!(["tools/call", "ok", null]), json!(["tools/list", "error", -32602])]);
}

#[tokio::test]
async fn an_unread_log_costs_lines_and_no_call() {
    const BATCH: usize = 500;
    const BATCHES: usize = 26;
    let mut command = rialto();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "debug"]).env_remove("RIALTO_CONFIG");
    // Nobody reads standard error until the end.
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = tokio::time::timeout(TEST_TIMEOUT, output.next_line()).await.unwrap().unwrap().unwrap();
    let (_, rest) = first.split_once("http://").unwrap();
    let address: SocketAddr = rest.split(['/', ' ']).next().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let one = format!("GET /nowhere HTTP/1.1\r\nhost: {address}\r\n\r\n");
    for _ in 0..BATCHES {
        let (mut read_half, mut write_half) = stream.split();
        let requests = one.repeat(BATCH);
        let reading = async {
            let (mut seen, mut buffer) = (0, vec![0; 64 << 10]);
            let mut tail = Vec::new();
            while seen < BATCH {
                let read = read_half.read(&mut buffer).await.unwrap();
                assert!(read > 0, "the connection stays open");
                tail.extend_from_slice(&buffer[..read]);
                seen += tail.windows(12).filter(|window| window == b"HTTP/1.1 404").count();
                tail.drain(..tail.len().saturating_sub(11));
            }
        };
        let exchange =
            async { tokio::join!(async { write_half.write_all(requests.as_bytes()).await.unwrap() }, reading) };
        tokio::time::timeout(TEST_TIMEOUT, exchange).await.expect("answers in time, though nobody reads the log");
    }
    let metrics = HttpRequest::to(address, "GET", "/metrics").go().await.text().await;
    let lost = metrics.lines().find_map(|line| line.strip_prefix("rialto_log_lost_lines_total "));
    assert!(lost.and_then(|lost| lost.parse::<u64>().ok()) > Some(0), "{metrics}");
    let mut log = child.stderr.take().unwrap();
    let reading = tokio::spawn(async move {
        let mut text = Vec::new();
        log.read_to_end(&mut text).await.unwrap();
        String::from_utf8(text).unwrap()
    });
    signal(&child, "-TERM");
    assert_eq!(exit_code(child).await, Some(0));
    let text = tokio::time::timeout(TEST_TIMEOUT, reading).await.unwrap().unwrap();
    assert!(text.contains("log lines were lost lost="), "the loss is told");
}

#[tokio::test]
async fn a_reload_changes_levels_sampling_and_the_access_log() {
    let rialto = GatewayProcess::start("access-reload", "[log]\nformat = \"json\"\n").await;
    let count = |id: &str| rialto.log().matches(&format!("\"request\":\"{id}\"")).count();
    let ping = async |id: &'static str| {
        let params = json!({ "name": "getElement", "arguments": { "name": "Fe" } });
        let sending = post(&rialto, &modern(1.into(), "tools/call", params.clone()), id);
        assert_eq!(sending.modern_headers("tools/call", &params).status().await, 200);
    };
    // Each version has an audit log of its own, which tells when that version is in use.
    let reload = async |log: &str, n: usize| {
        rialto.replace_config(&format!("[audit]\noutput = \"file:{n}.jsonl\"\n[log]\nformat = \"json\"\n{log}"));
        let file = rialto.path(&format!("{n}.jsonl"));
        let is_applied = || std::fs::read_to_string(&file).is_ok_and(|events| events.contains("applied"));
        until("the configuration is served", is_applied).await;
    };
    ping("first").await;
    rialto.wait_for_log("\"request\":\"first\"").await;

    reload("access = false", 1).await;
    ping("second").await;
    reload("level = \"info\"\n[log.levels]\ngateway = \"debug\"\naccess = \"off\"", 2).await;
    ping("third").await;
    // The only line of that request is one of the gateway.
    rialto.wait_for_log("\"request\":\"third\"").await;
    reload("samples = { access = 0 }", 3).await;
    ping("fourth").await;
    rialto.get("/nowhere").header("x-request-id", "failed").status().await;
    rialto.wait_for_log("\"request\":\"failed\"").await;
    reload("samples = { access = 1.0 }", 4).await;
    ping("fifth").await;
    rialto.wait_for_log("\"request\":\"fifth\"").await;
    // The access log has a line, and at this level the gateway another one.
    reload("levels = { gateway = \"debug\" }\nsamples = { gateway = 0 }", 5).await;
    ping("sixth").await;
    rialto.wait_for_log("\"request\":\"sixth\"").await;
    reload("levels = { gateway = \"debug\" }", 6).await;
    ping("seventh").await;
    until("both lines are there", || count("seventh") == 2).await;
    let counts = ["first", "second", "third", "fourth", "fifth", "sixth"].map(count);
    assert_eq!(counts, [1, 0, 1, 0, 1, 1]);

    rialto.replace_config("[log]\nformat = \"text\"\n");
    rialto.wait_for_log("restart to change log.format").await;
    rialto.replace_config("[log]\nformat = \"json\"\nlevels = { upstream = \"loud\" }\n");
    rialto.wait_for_log("must be one of off, error, warn, info, debug, trace").await;
    rialto.stop().await;
}
