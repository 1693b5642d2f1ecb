//! Test harness: a gateway running in this process, and a plain HTTP client that sends exactly the bytes a test specifies.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rialto::app::{App, AppSettings, BoundApp, Reloader};
use rialto::console::Console;
use rialto::gateway::Group;
use rialto::http::server::Http1Implementation;
use rialto::http::sse::{SseDecoder, SseEvent};
use rialto::inbound::Inbound;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Handshake-era revisions.
pub const HANDSHAKE: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// Per-request-era revision.
pub const PER_REQUEST: &str = "2026-07-28";
/// Upper bound for every wait in a test; exceeding it fails the test.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// How the harness speaks HTTP to the gateway; [`http_modes`](crate::http_modes) runs suites in each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpMode {
    /// HTTP/1.1, served by the gateway's own code.
    Http1,
    /// HTTP/1.1, served by hyper.
    HyperHttp1,
    /// HTTP/2 with prior knowledge.
    Http2,
}

/// HTTP/2 windows before any setting (RFC 9113, 6.9.2).
const WINDOW_BYTES: u32 = 65_535;

/// Environment variable that selects the [`HttpMode`] of a test process.
pub const HTTP_MODE: &str = "RIALTO_TEST_HTTP";

impl HttpMode {
    pub fn current() -> Self {
        match std::env::var(HTTP_MODE).as_deref() {
            Err(_) => Self::Http1,
            Ok("hyper") => Self::HyperHttp1,
            Ok("http2") => Self::Http2,
            Ok(other) => panic!("{HTTP_MODE}={other}"),
        }
    }
}

/// Environment variable of a test process that runs one test alone.
const ALONE: &str = "RIALTO_TEST_ALONE";

/// Whether this process runs only the test of that name. Otherwise runs it in a process of its own, and fails with its
/// output.
pub fn runs_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args([test, "--exact"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// Gateway running in this process on a port chosen by the system.
pub struct Rialto {
    pub address: SocketAddr,
    pub inbound: Arc<Inbound>,
    pub console: Arc<Console>,
    stop: Option<oneshot::Sender<()>>,
    done: Option<JoinHandle<bool>>,
}

/// Builder for one HTTP request; each request opens its own connection.
pub struct HttpRequest {
    address: SocketAddr,
    verb: &'static str,
    path: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Bytes,
}

/// Why a request has no response.
#[derive(Debug)]
pub enum SendFailure {
    /// The connection was refused or closed before the request was written.
    NotSent,
    /// The connection broke after the request may have reached the server.
    MaybeSent(String),
}

/// HTTP response. Dropping it closes the connection.
pub struct HttpResponse {
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
    connection: JoinHandle<()>,
}

/// Reader of an SSE response body.
pub struct Events {
    received: HttpResponse,
    decoder: SseDecoder,
    ready: VecDeque<SseEvent>,
}

/// Client side of a Streamable HTTP session.
pub struct Session<'r> {
    pub rialto: &'r Rialto,
    pub id: String,
    pub revision: String,
    token: Option<String>,
}

// === impl Rialto ===

impl Rialto {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut AppSettings)) -> Self {
        let mut settings = AppSettings { listen: ([127, 0, 0, 1], 0).into(), workers: 2, ..AppSettings::default() };
        if HttpMode::current() == HttpMode::HyperHttp1 {
            settings.inbound.http1 = Http1Implementation::Hyper;
        }
        change(&mut settings);
        Self::run(App::bind(settings).await.unwrap())
    }

    /// A gateway with the configuration of a file, which it reads again when the file changes.
    pub async fn from_file(file: &Path, change: impl FnOnce(&mut AppSettings)) -> Self {
        let config = rialto::config::load(file, &|_| None).unwrap().config;
        let mut settings = config.app_settings();
        if HttpMode::current() == HttpMode::HyperHttp1 {
            settings.inbound.http1 = Http1Implementation::Hyper;
        }
        change(&mut settings);
        let bound = App::bind(settings).await.unwrap();
        Self::run(bound.with_reloader(Some(Reloader::new(file.to_owned(), config))))
    }

    fn run(bound: BoundApp) -> Self {
        let address = bound.address();
        let inbound = Arc::clone(bound.app().inbound());
        let console = Arc::clone(bound.app().console().unwrap());
        let (stop, stopped) = oneshot::channel();
        let done = tokio::spawn(bound.run(async {
            let _ = stopped.await;
        }));
        Self { address, inbound, console, stop: Some(stop), done: Some(done) }
    }

    pub fn group(&self) -> Arc<Group> {
        self.inbound.gateway.group(None).unwrap()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn send(&self, verb: &'static str, path: &str) -> HttpRequest {
        HttpRequest::to(self.address, verb, path)
    }

    /// POST with a JSON body and the `Content-Type` and `Accept` headers that the specification requires.
    pub fn post(&self, path: &str, body: &Value) -> HttpRequest {
        self.send("POST", path)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(body.to_string())
    }

    /// Per-request-era POST with its `_meta` envelope and mirrored headers.
    pub fn modern(&self, method: &str, params: Value) -> HttpRequest {
        self.post("/mcp", &modern(1.into(), method, params.clone())).modern_headers(method, &params)
    }

    pub async fn open(&self, revision: &str) -> Session<'_> {
        Session::open(self, revision, None).await
    }

    /// Waits until calls are recorded, as while somebody looks.
    pub async fn wait_recording(&self) {
        self.inbound.calls.look();
        until("calls are recorded", || self.inbound.calls.state().is_on).await;
    }

    /// Starts the graceful shutdown; does not wait for it.
    pub fn begin_stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits for the shutdown without a timeout; true when every call drained in time.
    pub async fn done(&mut self) -> bool {
        self.done.take().unwrap().await.unwrap()
    }

    /// Waits for the shutdown, at most [`TEST_TIMEOUT`]; true when every call drained in time.
    pub async fn stopped(&mut self) -> bool {
        tokio::time::timeout(TEST_TIMEOUT, self.done.take().unwrap()).await.unwrap().unwrap()
    }
}

/// Per-request-era request body, with the `_meta` envelope.
pub fn modern(id: Value, method: &str, mut params: Value) -> Value {
    let meta = &mut params["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = PER_REQUEST.into();
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// Handshake-era request body.
pub fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id.into(), "method": method, "params": params })
}

pub fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

pub fn initialize(revision: &str) -> Value {
    let info = json!({ "name": "test", "version": "1" });
    request("init", "initialize", json!({ "protocolVersion": revision, "capabilities": {}, "clientInfo": info }))
}

pub fn call(id: impl Into<Value>, tool: &str, arguments: Value) -> Value {
    request(id, "tools/call", json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "token" } }))
}

pub fn survey(id: impl Into<Value>, count: u32, delay: u32) -> Value {
    call(id, "surveyElements", json!({ "count": count, "delayMs": delay }))
}

impl std::fmt::Display for SendFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for SendFailure {}

// === impl HttpRequest ===

impl HttpRequest {
    /// Request to the server at `address`, with a matching `Host` header.
    pub fn to(address: SocketAddr, verb: &'static str, path: &str) -> Self {
        Self { address, verb, path: path.into(), headers: Vec::new(), body: Bytes::new() }
            .header("host", &address.to_string())
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Replaces every value of a header.
    pub fn replace(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self.header(name, value)
    }

    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub fn modern_headers(self, method: &str, params: &Value) -> Self {
        let sending = self.header("mcp-protocol-version", PER_REQUEST).header("mcp-method", method);
        let tasks = matches!(method, "tasks/get" | "tasks/update" | "tasks/cancel");
        match params["name"].as_str().or(params["uri"].as_str()).or(params["taskId"].as_str()) {
            Some(name) if tasks || matches!(method, "tools/call" | "prompts/get" | "resources/read") => {
                let name = rialto::dialect::headers::encode_value(name).into_owned();
                sending.header("mcp-name", &name)
            }
            _ => sending,
        }
    }

    pub async fn go(self) -> HttpResponse {
        self.attempt().await.unwrap_or_else(|broken| panic!("{broken:?}"))
    }

    /// Sends the request to a server that may be down or may close the connection before it responds.
    pub async fn attempt(self) -> Result<HttpResponse, SendFailure> {
        self.attempt_over(HttpMode::current()).await
    }

    /// Like [`Self::attempt`], over HTTP/1.1 or HTTP/2.
    pub async fn attempt_over(self, mode: HttpMode) -> Result<HttpResponse, SendFailure> {
        let connecting = tokio::time::timeout(TEST_TIMEOUT, tokio::net::TcpStream::connect(self.address));
        let Ok(stream) = connecting.await.expect("a connection in time") else { return Err(SendFailure::NotSent) };
        let io = TokioIo::new(stream);
        let (answering, connection): (BoxFuture<'_, _>, _) = match mode {
            HttpMode::Http2 => {
                // The windows of the specification: hyper's own hold megabytes of what a test does not read.
                let handshake = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(WINDOW_BYTES)
                    .initial_connection_window_size(WINDOW_BYTES)
                    .handshake(io)
                    .await;
                let (mut sender, connection) = handshake.unwrap();
                let request = self.http2_request();
                let answering = async move { sender.send_request(request).await };
                (Box::pin(answering), tokio::spawn(async move { drop(connection.await) }))
            }
            _ => {
                let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
                let request = self.http1_request();
                let answering = async move { sender.send_request(request).await };
                (Box::pin(answering), tokio::spawn(async move { drop(connection.await) }))
            }
        };
        let answered = tokio::time::timeout(TEST_TIMEOUT, answering).await.expect("an answer in time");
        let (parts, body) = match answered {
            Ok(response) => response.into_parts(),
            Err(error) if error.is_canceled() => return Err(SendFailure::NotSent),
            Err(error) => return Err(SendFailure::MaybeSent(error.to_string())),
        };
        Ok(HttpResponse { status: parts.status.as_u16(), headers: parts.headers, body, connection })
    }

    fn http1_request(self) -> Request<Full<Bytes>> {
        let mut request = Request::builder().method(self.verb).uri(self.path);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        request.body(Full::new(self.body)).unwrap()
    }

    /// The same request with its `Host` as `:authority`.
    fn http2_request(mut self) -> Request<Full<Bytes>> {
        let host = self.headers.iter().position(|(name, _)| name == "host").map(|at| self.headers.remove(at).1);
        let host = host.map_or_else(|| self.address.to_string(), |host| String::from_utf8(host).unwrap());
        self.path = format!("http://{host}{}", self.path);
        self.http1_request()
    }

    /// Sends the request; returns the status and the JSON body.
    pub async fn json(self) -> (u16, Value) {
        let received = self.go().await;
        (received.status, received.json().await)
    }

    /// Sends the request; returns the status and the response message, from a JSON body or the end of an SSE stream.
    pub async fn answer(self) -> (u16, Value) {
        let received = self.go().await;
        (received.status, received.response().await)
    }

    pub async fn status(self) -> u16 {
        self.go().await.status
    }

    /// Sends the request; returns the status and the JSON-RPC error code.
    pub async fn refused(self) -> (u16, i64) {
        let (status, body) = self.json().await;
        (status, body["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {body}")))
    }
}

// === impl HttpResponse ===

impl HttpResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn is_events(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }

    pub async fn text(self) -> String {
        self.try_text().await.unwrap()
    }

    /// Reads the body to its end; fails when the connection breaks first.
    pub async fn try_text(mut self) -> Result<String, SendFailure> {
        let collected = tokio::time::timeout(TEST_TIMEOUT, (&mut self.body).collect()).await.expect("a body in time");
        let collected = collected.map_err(|error| SendFailure::MaybeSent(error.to_string()))?;
        Ok(String::from_utf8(collected.to_bytes().to_vec()).unwrap())
    }

    /// Next chunk of the body, without a timeout; `None` at its end.
    pub async fn piece(&mut self) -> Option<Result<Bytes, SendFailure>> {
        let frame = self.body.frame().await?;
        Some(
            frame
                .map(|frame| frame.into_data().unwrap_or_default())
                .map_err(|error| SendFailure::MaybeSent(error.to_string())),
        )
    }

    pub async fn json(self) -> Value {
        let text = self.text().await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
    }

    /// Response message, from a JSON body or the end of an SSE stream.
    pub async fn response(self) -> Value {
        match self.is_events() {
            true => self.events().rest().await.pop().expect("an answer"),
            false => self.json().await,
        }
    }

    pub fn events(self) -> Events {
        assert!(self.is_events(), "{:?}", self.headers);
        Events { received: self, decoder: SseDecoder::new(1 << 24), ready: VecDeque::new() }
    }
}

impl Drop for HttpResponse {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

// === impl Events ===

impl Events {
    /// Next event; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let frame = tokio::time::timeout(TEST_TIMEOUT, self.received.body.frame()).await.expect("an event in time");
            let bytes = frame?.ok()?.into_data().unwrap_or_default();
            self.ready.extend(self.decoder.push(&bytes).unwrap());
        }
    }

    /// Next body frame, undecoded.
    pub async fn frame(&mut self) -> Bytes {
        let frame = tokio::time::timeout(TEST_TIMEOUT, self.received.body.frame()).await.expect("a frame in time");
        frame.expect("the stream goes on").unwrap().into_data().unwrap_or_default()
    }

    /// Next message, skipping priming events; `None` at the end of the stream.
    pub async fn message(&mut self) -> Option<Value> {
        loop {
            let event = self.next().await?;
            if !event.data.is_empty() {
                return Some(serde_json::from_str(&event.data).unwrap());
            }
        }
    }

    /// Reads all messages to the end of the stream.
    pub async fn rest(mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(message) = self.message().await {
            messages.push(message);
        }
        messages
    }

    /// Reads all events to the end of the stream.
    pub async fn rest_events(mut self) -> Vec<SseEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

// === impl Session ===

impl<'r> Session<'r> {
    pub async fn open(rialto: &'r Rialto, revision: &str, token: Option<&str>) -> Self {
        let mut session = Self { rialto, id: String::new(), revision: revision.into(), token: token.map(Into::into) };
        let received = session.authorized(rialto.post("/mcp", &initialize(revision))).go().await;
        assert_eq!(received.status, 200);
        session.id = received.header("mcp-session-id").expect("a session id").into();
        let answer = received.json().await;
        assert_eq!(answer["result"]["protocolVersion"], revision);
        let told = session.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).go().await;
        assert_eq!((told.status, told.text().await.as_str()), (202, ""));
        session
    }

    /// The same session, with requests sent to another node.
    pub fn at_node<'o>(&self, rialto: &'o Rialto) -> Session<'o> {
        Session { rialto, id: self.id.clone(), revision: self.revision.clone(), token: self.token.clone() }
    }

    fn authorized(&self, sending: HttpRequest) -> HttpRequest {
        match &self.token {
            Some(token) => sending.header("authorization", &format!("Bearer {token}")),
            None => sending,
        }
    }

    pub fn post(&self, body: &Value) -> HttpRequest {
        let sending = self.rialto.post("/mcp", body);
        self.authorized(sending).header("mcp-session-id", &self.id).header("mcp-protocol-version", &self.revision)
    }

    pub async fn ask(&self, method: &str, params: Value) -> Value {
        let (status, answer) = self.post(&request(7, method, params)).answer().await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub fn get(&self) -> HttpRequest {
        let sending = self.rialto.send("GET", "/mcp").header("accept", "text/event-stream");
        self.authorized(sending).header("mcp-session-id", &self.id).header("mcp-protocol-version", &self.revision)
    }

    pub fn resume(&self, event: &str) -> HttpRequest {
        self.get().header("last-event-id", event)
    }

    pub fn delete(&self) -> HttpRequest {
        self.authorized(self.rialto.send("DELETE", "/mcp")).header("mcp-session-id", &self.id)
    }
}

/// Polls a condition every 5 ms; panics with `what` after [`TEST_TIMEOUT`].
pub async fn until(what: &str, holds: impl FnMut() -> bool) {
    until_with(what, holds, String::new).await;
}

/// Like [`until`]; the panic says the state as well.
pub async fn until_with(what: &str, mut holds: impl FnMut() -> bool, state: impl Fn() -> String) {
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what} {}", state());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
