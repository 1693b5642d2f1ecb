//! Minimal strict servers that check each request of our client against the specification.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method as Verb, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;

type Body = BoxBody<Bytes, std::io::Error>;

/// A received request.
struct ReceivedRequest {
    verb: Verb,
    headers: HeaderMap,
    body: Value,
}

/// Serves with a response function until the test ends.
async fn serve(answer: impl Fn(ReceivedRequest) -> Response<Body> + Send + Sync + 'static) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = Arc::clone(&answer);
            let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
                let answer = Arc::clone(&answer);
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let body = serde_json::from_slice(&body).unwrap_or_default();
                    Ok::<_, Infallible>(answer(ReceivedRequest { verb: parts.method, headers: parts.headers, body }))
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Target::url(&url).unwrap()
}

fn respond(status: u16, kind: &str, body: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed();
    Response::builder().status(status).header("content-type", kind).body(body).unwrap()
}

fn result(request: &ReceivedRequest, result: Value) -> Response<Body> {
    let answer = json!({ "jsonrpc": "2.0", "id": request.body["id"], "result": result });
    respond(200, "application/json", answer.to_string())
}

fn error_response(status: u16, message: &str) -> Response<Body> {
    let error = json!({ "code": -32000, "message": message });
    respond(status, "application/json", json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string())
}

/// The response to `initialize` with a session id.
fn initialize_response(request: &ReceivedRequest, session: &str) -> Response<Body> {
    let info = json!({ "name": "strict", "version": "1" });
    let result = json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} }, "serverInfo": info });
    let mut response = self::result(request, result);
    response.headers_mut().insert("mcp-session-id", session.parse().unwrap());
    response
}

fn echo_response(request: &ReceivedRequest) -> Response<Body> {
    result(request, json!({ "content": [{ "type": "text", "text": request.body["params"]["arguments"]["message"] }] }))
}

fn has_session(request: &ReceivedRequest, session: &str) -> bool {
    request.headers.get("mcp-session-id").is_some_and(|id| id == session)
}

async fn echo(client: &Client, message: &str) {
    assert_eq!(text(&call(client, "echo", json!({ "message": message })).await), message);
}

#[tokio::test]
async fn every_request_carries_session_id_and_protocol_version() {
    let violations = Arc::new(Mutex::new(Vec::new()));
    let verbs = Arc::new(Mutex::new(Vec::new()));
    let (violations_writer, recorder) = (Arc::clone(&violations), Arc::clone(&verbs));
    let target = serve(move |request| {
        let method = request.body["method"].as_str().unwrap_or_default();
        let report_violation = |what: String| violations_writer.lock().unwrap().push(what);
        if method == "initialize" {
            if request.headers.contains_key("mcp-session-id") {
                report_violation("a session id on initialize".into());
            }
            return initialize_response(&request, "s-1");
        }
        if !request.headers.contains_key("mcp-session-id") {
            if method != "server/discover" {
                report_violation(format!("{} {method} without a session", request.verb));
            }
            return error_response(400, "Bad Request: Missing session ID");
        }
        recorder.lock().unwrap().push(format!("{} {method}", request.verb));
        if !has_session(&request, "s-1")
            || request.headers.get("mcp-protocol-version").is_none_or(|name| name != "2025-11-25")
        {
            report_violation(format!("{} {method} with {:?}", request.verb, request.headers));
        }
        match (request.verb.as_str(), method) {
            ("GET", _) => respond(405, "text/plain", ""),
            ("DELETE", _) => respond(200, "text/plain", ""),
            (_, "notifications/initialized") => {
                // Some servers refuse params that are null or empty.
                if request.body.get("params").is_some() {
                    report_violation(format!("initialized has params: {}", request.body));
                }
                respond(202, "text/plain", "")
            }
            (_, "tools/call") => echo_response(&request),
            (_, other) => {
                report_violation(format!("unknown method {other}"));
                error_response(400, "no")
            }
        }
    })
    .await;
    let (client, _) = connect(&target, None).await.unwrap();
    assert_eq!((client.probe_report().transport, client.revision()), ("streamable-http", Revision::V2025_11_25));
    assert_eq!(client.session_id().as_deref(), Some("s-1"));
    echo(&client, "one").await;
    echo(&client, "two").await;
    in_time("closed", client.close()).await;
    assert_eq!(*violations.lock().unwrap(), Vec::<String>::new());
    let verbs = verbs.lock().unwrap();
    let count = |what: &str| verbs.iter().filter(|verb| *verb == what).count();
    assert_eq!((count("POST notifications/initialized"), count("POST tools/call")), (1, 2), "{verbs:?}");
    assert_eq!(verbs.last().unwrap(), "DELETE ", "{verbs:?}");
}

#[tokio::test]
async fn a_404_session_is_initialized_again_and_the_call_retried() {
    let sessions = Arc::new(AtomicU32::new(0));
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (counting, recorder) = (Arc::clone(&sessions), Arc::clone(&calls));
    let target = serve(move |request| {
        let session = format!("s-{}", counting.load(Ordering::SeqCst));
        match request.body["method"].as_str() {
            Some("initialize") => {
                let number = counting.fetch_add(1, Ordering::SeqCst) + 1;
                initialize_response(&request, &format!("s-{number}"))
            }
            Some("server/discover") => error_response(400, "Bad Request: Missing session ID"),
            _ if !has_session(&request, &session) => error_response(404, "Session not found"),
            _ if request.verb == Verb::GET => respond(405, "text/plain", ""),
            Some("tools/call") => {
                let message = request.body["params"]["arguments"]["message"].as_str().unwrap().to_owned();
                if message == "forget" && session == "s-1" {
                    // As after a server restart: the session is lost and the call was not executed.
                    return error_response(404, "Session not found");
                }
                recorder.lock().unwrap().push(format!("{session} {message}"));
                echo_response(&request)
            }
            _ => respond(202, "text/plain", ""),
        }
    })
    .await;
    let (client, _) = connect(&target, None).await.unwrap();
    echo(&client, "before").await;
    echo(&client, "forget").await;
    assert_eq!(client.session_id().as_deref(), Some("s-2"));
    echo(&client, "after").await;
    in_time("closed", client.close()).await;
    assert_eq!(sessions.load(Ordering::SeqCst), 2);
    assert_eq!(*calls.lock().unwrap(), ["s-1 before", "s-2 forget", "s-2 after"]);
}

/// SSE events followed by a clean end or a broken connection.
fn events(frames: &[String], broken: bool) -> Response<Body> {
    let frames: Vec<_> = frames.iter().map(|frame| Ok(Frame::data(Bytes::from(frame.clone())))).collect();
    let cut = stream::iter(broken.then_some(())).then(|()| async {
        // hyper flushes the events before this only when the body is pending.
        tokio::task::yield_now().await;
        Err(std::io::Error::other("cut"))
    });
    let body = BodyExt::boxed(StreamBody::new(Box::pin(stream::iter(frames).chain(cut))));
    Response::builder().status(200).header("content-type", "text/event-stream").body(body).unwrap()
}

#[tokio::test]
async fn a_broken_post_stream_is_resumed_after_retry() {
    for broken in [false, true] {
        let (resumed, sent_at) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
        let (recorder, sent_at_writer) = (Arc::clone(&resumed), Arc::clone(&sent_at));
        let pending = Mutex::new(Value::Null);
        let target = serve(move |request| {
            let progress = |id: u32, token: &Value, retry: &str| {
                let params = json!({ "progressToken": token, "progress": id });
                let notice = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
                format!("id: e-{id}\n{retry}data: {notice}\n\n")
            };
            match (request.verb.as_str(), request.body["method"].as_str()) {
                (_, Some("initialize")) => initialize_response(&request, "s-1"),
                (_, Some("server/discover")) => error_response(400, "Bad Request: Missing session ID"),
                (_, Some("tools/call")) => {
                    *pending.lock().unwrap() = request.body.clone();
                    *sent_at_writer.lock().unwrap() = Some(std::time::Instant::now());
                    let token = &request.body["params"]["_meta"]["progressToken"];
                    events(&["id: e-0\ndata:\n\n".into(), progress(1, token, "retry: 150\n")], broken)
                }
                ("GET", _) => {
                    let Some(last) = request.headers.get("last-event-id") else {
                        return respond(405, "text/plain", "");
                    };
                    let waited = sent_at_writer.lock().unwrap().unwrap().elapsed();
                    recorder.lock().unwrap().push((last.to_str().unwrap().to_owned(), waited));
                    let call_message = pending.lock().unwrap();
                    let token = &call_message["params"]["_meta"]["progressToken"];
                    if last == "e-1" {
                        // Broken once more before the response.
                        return events(&[progress(2, token, "")], broken);
                    }
                    let content = json!([{ "type": "text", "text": "at last" }]);
                    let answer =
                        json!({ "jsonrpc": "2.0", "id": call_message["id"], "result": { "content": content } });
                    events(&[format!("id: e-3\ndata: {answer}\n\n")], false)
                }
                _ => respond(202, "text/plain", ""),
            }
        })
        .await;
        let (client, host) = connect(&target, None).await.unwrap();
        assert_eq!(text(&call(&client, "slow", json!({})).await), "at last");
        assert_eq!(host.take_progress(), [1, 2]);
        in_time("closed", client.close()).await;
        let resumed = resumed.lock().unwrap();
        assert_eq!(resumed.iter().map(|(last, _)| last.as_str()).collect::<Vec<_>>(), ["e-1", "e-2"]);
        assert!(resumed[0].1 >= Duration::from_millis(150), "it did not wait for the retry interval: {resumed:?}");
    }
}

#[tokio::test]
async fn a_slow_discovery_response_is_not_taken_for_a_handshake_server() {
    // It answers server/discover only after the client has timed out and sent initialize, then refuses initialize.
    let script = r#"
        discovery='"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{},"ttlMs":0,"cacheScope":"private"}'
        asked=0
        while read -r line; do
          id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
          case "$line" in
            *server/discover*) asked=$((asked + 1)); [ $asked = 1 ] && first=$id ||
              printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$discovery" ;;
            *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$first" "$discovery"
              printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"no","data":{"supported":["2026-07-28"],"requested":"2025-11-25"}}}\n' "$id" ;;
          esac
        done"#;
    let target = Target::command("sh", ["-c", script]);
    let settings = ConnectionSettings { discovery_timeout: Duration::from_secs(1), ..ConnectionSettings::default() };
    let options = ClientOptions { settings, ..ClientOptions::default() };
    let client = in_time("connected", Client::connect(&target, options)).await.unwrap();
    assert_eq!(client.revision(), Revision::NEWEST);
    in_time("closed", client.close()).await;
}

/// How a server sends several messages at once.
#[derive(Clone, Copy, Debug)]
enum Together {
    BatchInEvent,
    BatchInBody,
    /// One message per line, as the conformance suite's example server does.
    LinesInBody,
}

/// In 2025-03-26 a server may send a batch in one SSE event or in a JSON response; some write lines instead.
#[tokio::test]
async fn messages_that_a_server_sends_together_are_read() {
    for together in [Together::BatchInEvent, Together::BatchInBody, Together::LinesInBody] {
        let target = serve(move |request| match (request.verb.as_str(), request.body["method"].as_str()) {
            (_, Some("server/discover")) => error_response(400, "Bad Request: Missing session ID"),
            (_, Some("initialize")) => {
                let info = json!({ "name": "strict", "version": "1" });
                let able = json!({ "tools": {}, "logging": {} });
                result(&request, json!({ "protocolVersion": "2025-03-26", "capabilities": able, "serverInfo": info }))
            }
            (_, Some("tools/call")) => {
                let token = &request.body["params"]["_meta"]["progressToken"];
                let progress = json!({ "progressToken": token, "progress": 1 });
                let logged = json!({ "level": "info", "data": "in a batch" });
                let content = json!([{ "type": "text", "text": "at last" }]);
                let batch = json!([
                    { "jsonrpc": "2.0", "method": "notifications/progress", "params": progress },
                    { "jsonrpc": "2.0", "method": "notifications/message", "params": logged },
                    { "jsonrpc": "2.0", "id": request.body["id"], "result": { "content": content } },
                ]);
                let lines = batch.as_array().unwrap().iter().map(|message| format!("{message}\r\n"));
                match together {
                    Together::BatchInEvent => events(&[format!("data: {batch}\n\n")], false),
                    Together::BatchInBody => respond(200, "application/json", batch.to_string()),
                    Together::LinesInBody => respond(200, "application/json", lines.collect::<String>()),
                }
            }
            (_, Some("logging/setLevel")) => result(&request, json!({})),
            ("GET", _) => respond(405, "text/plain", ""),
            _ => respond(202, "text/plain", ""),
        })
        .await;
        let (client, host) = connect(&target, None).await.unwrap();
        assert_eq!(client.revision(), Revision::V2025_03_26);
        assert_eq!(text(&call(&client, "echo", json!({})).await), "at last");
        assert_eq!((host.take_progress(), host.has_logged("in a batch")), (vec![1], true), "{together:?}");
        in_time("closed", client.close()).await;
    }
}

/// A listen stream as JSON lines instead of SSE, as the conformance suite's example server sends it.
#[tokio::test]
async fn a_listen_stream_of_json_lines_is_read() {
    let target = serve(move |request| match request.body["method"].as_str() {
        Some("server/discover") => {
            let able = json!({ "tools": { "listChanged": true } });
            result(&request, json!({ "supportedVersions": ["2026-07-28"], "capabilities": able }))
        }
        Some("subscriptions/listen") => {
            let meta = json!({ "io.modelcontextprotocol/subscriptionId": request.body["id"] });
            let line = |method: &str, params: Value| json!({ "jsonrpc": "2.0", "method": method, "params": params });
            let granted = json!({ "_meta": meta, "notifications": { "toolsListChanged": true } });
            let lines = [
                line("notifications/subscriptions/acknowledged", granted),
                line("notifications/tools/list_changed", json!({ "_meta": meta })),
            ];
            let lines = lines.map(|line| Ok(Frame::data(Bytes::from(format!("{line}\n")))));
            let body = StreamBody::new(stream::iter(lines).chain(stream::pending()));
            Response::builder().header("content-type", "application/json").body(BodyExt::boxed(body)).unwrap()
        }
        _ => respond(404, "text/plain", ""),
    })
    .await;
    let (client, _) = connect(&target, Some(Revision::NEWEST)).await.unwrap();
    let filter = ListenRequest { lists: true, ..ListenRequest::default() };
    let mut listening = in_time("listening", client.listen(filter)).await.unwrap();
    let notified = in_time("notified", listening.next()).await.unwrap();
    assert_eq!(notified.method, NotificationMethod::ToolsChanged);
    in_time("closed", client.close()).await;
}
