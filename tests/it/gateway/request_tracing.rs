//! Request ids and trace context from client to upstream, and redaction of secrets.

use std::path::Path;

use http::{HeaderMap, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{GatewayProcess, shell_server};
use crate::harness::{HttpRequest, modern, request};
use crate::ports::ReservedPort;
use crate::redis::{RedisFlavor, RedisServer};
use crate::rest::{Api, RecordedRequest, json_response};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const OTHER_PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A 2025-06-18 Streamable HTTP server with one tool that records its requests.
async fn recording_server() -> Api {
    Api::start(|seen: &RecordedRequest| {
        let empty = |status: u16| Response::builder().status(status).body(http_body_util::Full::default()).unwrap();
        let Ok(message) = serde_json::from_slice::<Value>(&seen.body) else { return empty(405) };
        let result = match message["method"].as_str().unwrap() {
            "initialize" => {
                let info = json!({ "name": "traced", "version": "1" });
                json!({ "protocolVersion": "2025-06-18", "capabilities": { "tools": {} }, "serverInfo": info })
            }
            "tools/list" => json!({ "tools": [{ "name": "answer", "inputSchema": { "type": "object" } }] }),
            "tools/call" => json!({ "content": [{ "type": "text", "text": "hi" }] }),
            _ => return empty(202),
        };
        json_response(200, json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }).to_string())
    })
    .await
}

/// The headers of the last tools/call that a server received.
fn last_call_headers(api: &Api) -> HeaderMap {
    let calls = |seen: &&RecordedRequest| String::from_utf8_lossy(&seen.body).contains("tools/call");
    api.requests().iter().rfind(calls).expect("the server received a call").headers.clone()
}

fn file(mcp: &Api, rest: &Api, more: &str) -> String {
    let (mcp, rest) = (mcp.address, rest.address);
    format!(
        r#"
        [log]
        filter = "debug"
        format = "json"
        [servers.mcp]
        url = "http://{mcp}/mcp?key=${{IN_QUERY}}"
        headers = {{ X-Key = "${{IN_HEADER}}" }}
        revision = "2025-06-18"
        [servers.api]
        base_url = "http://{rest}/base"
        headers = {{ X-Key = "${{IN_HEADER}}" }}
        query = {{ key = "${{IN_QUERY}}" }}
        [[servers.api.tools]]
        name = "now"
        url = "/now"
        {more}"#
    )
}

const SECRETS: [(&str, &str); 4] = [
    ("IN_QUERY", "s3cret-of-query"),
    ("IN_HEADER", "s3cret-of-header"),
    ("IN_ENV", "s3cret-of-env"),
    ("IN_TOKEN", "s3cret-of-token"),
];

fn post(rialto: &GatewayProcess, body: &Value) -> HttpRequest {
    HttpRequest::to(rialto.address, "POST", "/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .body(body.to_string())
}

#[tokio::test]
async fn request_ids_reach_upstreams_and_logs() {
    let (mcp, rest) = (recording_server().await, Api::json(r#"{"now":1}"#).await);
    let rialto = GatewayProcess::with("traces", &file(&mcp, &rest, ""), &[], &SECRETS).await;
    rialto.until_ready().await;
    let session = rialto.open("/mcp").await;
    for (tool, api) in [("mcp__answer", &mcp), ("api__now", &rest)] {
        let id = format!("client-chose-{tool}");
        let body = request(1, "tools/call", json!({ "name": tool, "arguments": {} }));
        let received = session.post(&body).header("x-request-id", &id).header("traceparent", PARENT).go().await;
        assert_eq!(received.header("x-request-id"), Some(id.as_str()));
        assert!(received.json().await["result"].is_object());
        let headers = if tool == "mcp__answer" { last_call_headers(api) } else { api.take_only_request().headers };
        assert_eq!(headers["x-request-id"], id.as_str());
        assert_eq!(headers["traceparent"], PARENT);
        assert_eq!(headers["x-key"], "s3cret-of-header");
        rialto.wait_for_log(&id).await;
        // A request without an id gets one.
        let received = session.post(&body).go().await;
        let name = received.header("x-request-id").unwrap().to_owned();
        assert!(received.json().await["result"].is_object());
        rialto.wait_for_log(&name).await;
    }
    // A refused request has an id, too.
    let received = rialto.get("/nowhere").header("x-request-id", "lost-one").go().await;
    assert_eq!((received.status, received.header("x-request-id")), (404, Some("lost-one")));
    rialto.wait_for_log("lost-one").await;

    let log = rialto.stop().await;
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(lines.iter().all(|line| line["level"].is_string() && line["timestamp"].is_string()), "{log}");
    let of = |id: &str| lines.iter().find(|line| line["fields"]["request"] == id).unwrap_or_else(|| panic!("{log}"));
    let ended = &of("client-chose-mcp__answer")["fields"];
    assert_eq!((&ended["group"], &ended["upstream"]), (&json!("default"), &json!("mcp")));
    assert_eq!((&ended["method"], &ended["outcome"]), (&json!("tools/call"), &json!("ok")));
    assert_eq!(of("lost-one")["fields"]["message"], "a request was turned away");
}

#[tokio::test]
async fn traceparent_is_forwarded_from_headers_and_meta() {
    let (mcp, rest) = (recording_server().await, Api::json(r#"{"now":1}"#).await);
    let folder = crate::config::TempFolder::new("gateway-notes");
    let note = folder.0.join("note");
    let shell_server = shell_server("sh", &[("SAYS", "hi"), ("NOTE", note.to_str().unwrap())]);
    let rialto = GatewayProcess::with("parents", &file(&mcp, &rest, &shell_server), &[], &SECRETS).await;
    rialto.until_ready().await;
    // `_meta` wins over the header: an intermediary may have set the header.
    for (header, meta, wanted) in [
        (Some(PARENT), None, PARENT),
        (None, Some(OTHER_PARENT), OTHER_PARENT),
        (Some(PARENT), Some(OTHER_PARENT), OTHER_PARENT),
    ] {
        for tool in ["mcp__answer", "api__now", "sh__answer"] {
            let mut params = json!({ "name": tool, "arguments": {} });
            if let Some(meta) = meta {
                params["_meta"] = json!({ "traceparent": meta, "tracestate": "a=b" });
            }
            let mut sending =
                post(&rialto, &modern(json!(1), "tools/call", params.clone())).modern_headers("tools/call", &params);
            if let Some(header) = header {
                sending = sending.header("traceparent", header);
            }
            let (status, answer) = sending.json().await;
            assert_eq!((status, &answer["error"]), (200, &Value::Null), "{answer}");
            match tool {
                "sh__answer" => {
                    let noted = std::fs::read_to_string(&note).unwrap();
                    let noted: Value = serde_json::from_str(noted.lines().last().unwrap()).unwrap();
                    assert_eq!(noted["params"]["_meta"]["traceparent"], wanted, "{noted}");
                }
                "mcp__answer" => {
                    assert_eq!(last_call_headers(&mcp).get_all("traceparent").iter().collect::<Vec<_>>(), [wanted]);
                }
                _ => assert_eq!(rest.take_only_request().headers["traceparent"], wanted),
            }
        }
    }
    assert_eq!(last_call_headers(&mcp)["tracestate"], "a=b");
    rialto.stop().await;
}

/// What the three servers heard of the trace of a call: the headers of two, and `_meta` of the MCP servers.
async fn heard_contexts(
    rialto: &GatewayProcess,
    meta: Option<&str>,
    (mcp, rest, note): (&Api, &Api, &Path),
) -> [Value; 4] {
    let mut heard = [const { Value::Null }; 4];
    for (n, tool) in ["mcp__answer", "api__now", "sh__answer"].into_iter().enumerate() {
        let mut params = json!({ "name": tool, "arguments": {} });
        if let Some(meta) = meta {
            params["_meta"] = json!({ "traceparent": meta, "tracestate": "a=b" });
        }
        let sending =
            post(rialto, &modern(json!(1), "tools/call", params.clone())).modern_headers("tools/call", &params);
        let (status, answer) = sending.header("x-request-id", tool).json().await;
        assert_eq!((status, &answer["error"]), (200, &Value::Null), "{answer}");
        let header = |headers: &HeaderMap| match headers.get("traceparent") {
            Some(value) => json!(value.to_str().unwrap()),
            None => Value::Null,
        };
        heard[n] = match tool {
            "mcp__answer" => {
                let is_call = |seen: &&RecordedRequest| String::from_utf8_lossy(&seen.body).contains("tools/call");
                let seen: Value = serde_json::from_slice(&mcp.requests().iter().rfind(is_call).unwrap().body).unwrap();
                heard[3] = seen["params"]["_meta"]["traceparent"].clone();
                header(&last_call_headers(mcp))
            }
            "api__now" => header(&rest.take_only_request().headers),
            _ => {
                let noted = std::fs::read_to_string(note).unwrap();
                let noted: Value = serde_json::from_str(noted.lines().last().unwrap()).unwrap();
                noted["params"]["_meta"]["traceparent"].clone()
            }
        };
    }
    heard
}

#[tokio::test]
async fn servers_hear_our_span_only_where_a_call_is_traced() {
    let away = ReservedPort::new();
    let endpoint = format!("http://{away}");
    let unsampled = PARENT.replace("-01", "-00");
    for (sampler, parent, expected) in [
        // A span of ours in the trace of the client, or in a new one.
        ("parentbased_always_on", Some(PARENT), "ours"),
        ("parentbased_always_on", None, "new"),
        // A new trace that is not sampled is told by its flag.
        ("parentbased_always_off", None, "unsampled"),
        // What is not sampled here passes as it came.
        ("parentbased_always_on", Some(unsampled.as_str()), "unchanged"),
        ("always_off", Some(PARENT), "unchanged"),
    ] {
        let (mcp, rest) = (recording_server().await, Api::json(r#"{"now":1}"#).await);
        let folder = crate::config::TempFolder::new(&format!("gateway-heard-{sampler}-{expected}"));
        let note = folder.0.join("note");
        let shell_server = shell_server("sh", &[("SAYS", "hi"), ("NOTE", note.to_str().unwrap())]);
        let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_TRACES_SAMPLER", sampler)];
        let variables = [&SECRETS[..], &variables].concat();
        let name = format!("heard-{sampler}-{expected}");
        let rialto = GatewayProcess::with(&name, &file(&mcp, &rest, &shell_server), &[], &variables).await;
        rialto.until_ready().await;
        let heard = heard_contexts(&rialto, parent, (&mcp, &rest, &note)).await;
        let log = rialto.stop().await;
        let [http, api, stdio, meta] = &heard;
        let text =
            |value: &Value| value.as_str().unwrap_or_else(|| panic!("{sampler} {parent:?}: {heard:?}")).to_owned();
        let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let is_line = |line: &&Value| line["target"] == "access" && line["fields"]["request"] == "mcp__answer";
        let logged = lines.iter().find(is_line).unwrap_or_else(|| panic!("{log}"))["fields"]["trace"].clone();
        assert_eq!(logged, text(http)[3..35], "the access log has the trace in use");
        for one in [http, api, stdio] {
            let (trace, span, flags) = (&text(one)[3..35], &text(one)[36..52], &text(one)[53..]);
            let is_clients = (trace == &PARENT[3..35], span == &PARENT[36..52]);
            let wanted = match expected {
                "ours" => ((true, false), "01"),
                "new" => ((false, false), "01"),
                "unsampled" => ((false, false), "00"),
                _ => ((true, true), &parent.unwrap()[53..]),
            };
            assert_eq!((is_clients, flags), wanted, "{sampler} {parent:?}: {heard:?}");
        }
        match expected {
            "ours" | "new" => assert_eq!(meta, http, "the message says the same as the header"),
            "unsampled" => assert_eq!(meta, &Value::Null),
            _ => assert_eq!(meta, &json!(parent)),
        }
    }
}

#[tokio::test]
async fn secrets_are_redacted_from_logs_status_and_errors() {
    let away = ReservedPort::new();
    let failing = Api::start(|_| json_response(500, r#"{"why":"no"}"#)).await;
    let mcp = recording_server().await;
    let more = format!(
        r#"
        [access.tokens]
        ann = "${{IN_TOKEN}}"
        [servers.away]
        url = "http://{away}/mcp?key=${{IN_QUERY}}"
        headers = {{ Authorization = "Bearer ${{IN_HEADER}}" }}
        [servers.broken]
        command = "sh"
        args = ["-c", "echo tells $KEY >&2; exit 3", "${{IN_ENV}}"]
        env = {{ KEY = "${{IN_ENV}}" }}
        [servers.offline]
        base_url = "http://{away}/base"
        query = {{ key = "${{IN_QUERY}}" }}
        openapi = "http://{away}/openapi.json?key=${{IN_QUERY}}"
        {}"#,
        shell_server("sh", &[("KEY", "${IN_ENV}"), ("SAYS", "hi")])
    );
    let rialto = GatewayProcess::with("secrets", &file(&mcp, &failing, &more), &[], &SECRETS).await;
    let authorized = |sending: HttpRequest| sending.header("authorization", "Bearer s3cret-of-token");
    let mut output = String::new();
    // Wait until every failing upstream has failed.
    for word in ["exit status: 3", "API document load failed", "upstream connect failed"] {
        rialto.wait_for_log(word).await;
    }
    let foreign = |path: &str| rialto.get(path).header("x-forwarded-for", "10.0.0.1");
    for (sending, status) in [
        (foreign("/metrics"), 404),
        (foreign("/admin/status"), 404),
        (foreign("/metrics").header("authorization", "Bearer s3cret-that-is-wrong"), 404),
        (foreign("/mcp?token=s3cret-in-address").header("authorization", "Bearer s3cret-that-is-wrong"), 401),
    ] {
        let received = sending.go().await;
        assert_eq!(received.status, status);
        output += &received.text().await;
    }
    for tool in ["mcp__answer", "api__now", "sh__answer", "sh__crash"] {
        let params = json!({ "name": tool, "arguments": {} });
        let sending =
            post(&rialto, &modern(json!(1), "tools/call", params.clone())).modern_headers("tools/call", &params);
        output += &authorized(sending).go().await.text().await;
    }
    for path in ["/metrics", "/admin/status"] {
        let received = authorized(rialto.get(path)).go().await;
        assert_eq!(received.status, 200);
        output += &received.text().await;
    }
    assert!(
        output.contains("500")
            && output.contains("tool_error")
            && output.contains("the call may have been carried out"),
        "{output}"
    );
    output += &rialto.stop().await;
    // The child prints its own secret: masked in the log of its stderr, and in the status.
    assert!(output.matches("tells ***").count() > 1, "{output}");
    let (_, found) = output.split_once("s3cret").unwrap_or_default();
    assert!(found.is_empty(), "{}", &output[output.find("s3cret").unwrap().saturating_sub(300)..]);
}

/// Hosts of servers, and of the store, that came from variables.
#[tokio::test]
async fn secrets_are_masked_in_metrics_and_in_the_address_of_the_store() {
    // Numbers that stand for addresses of this machine.
    let hosts = [("IN_HOST", "127.83.3.107"), ("IN_OTHER", "127.83.3.109"), ("IN_STORE", "0x7f000001")];
    let store = RedisServer::start(RedisFlavor::Redis).await;
    let listener = TcpListener::bind((hosts[0].1, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = TcpListener::bind((hosts[1].1, port)).await.unwrap();
    let file = format!(
        r#"
        store = "redis://${{IN_STORE}}:{}"
        [servers.silent]
        url = "http://${{IN_HOST}}:{port}/mcp"
        [servers.other]
        url = "http://${{IN_OTHER}}:{port}/mcp"
        [servers.elements]
        builtin = "elements""#,
        store.port()
    );
    let rialto = GatewayProcess::with("masked-hosts", &file, &[], &hosts).await;
    // Both connections are open, and stay so.
    let _connections = (listener.accept().await.unwrap(), other.accept().await.unwrap());
    let metrics = rialto.get("/metrics").go().await.text().await;
    let status = rialto.get("/admin/status").go().await.text().await;
    for (name, host) in hosts {
        assert!(!metrics.contains(host) && !status.contains(host), "{name}: {metrics}\n{status}");
    }
    let connections = format!("rialto_origin_connections{{origin=\"http://***:{port}\"}} 2\n");
    assert!(metrics.contains(&connections), "one series for both: {metrics}");
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["cluster"]["store"], json!(format!("redis://***:{}", store.port())));
    assert!(status["upstreams"].as_array().unwrap().iter().any(|upstream| upstream["name"] == "elements"));
}
