//! A gateway in this process, and a plain HTTP client that says exactly what a test tells it to.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rialto::app::{App, AppSettings};
use rialto::gateway::Group;
use rialto::http::sse::{Decoder, Event};
use rialto::inbound::Inbound;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The revisions that open with a handshake.
pub const HANDSHAKE: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// The revision that does not.
pub const PER_REQUEST: &str = "2026-07-28";
/// A test that waits longer than this for something has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A running gateway.
pub struct Rialto {
    pub address: SocketAddr,
    pub inbound: Arc<Inbound>,
    stop: Option<oneshot::Sender<()>>,
    done: Option<JoinHandle<bool>>,
}

/// A request that is being put together.
pub struct Sending {
    address: SocketAddr,
    verb: &'static str,
    path: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Bytes,
}

/// Why nothing came back.
#[derive(Debug)]
pub enum Broken {
    /// Nobody was there to take it.
    NotSent,
    /// Somebody may have taken it.
    Lost(String),
}

/// What came back. Dropping it closes the connection.
pub struct Received {
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
    connection: JoinHandle<()>,
}

/// A stream of events.
pub struct Events {
    received: Received,
    decoder: Decoder,
    ready: VecDeque<Event>,
}

/// A session of Streamable HTTP.
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
        change(&mut settings);
        let bound = App::bind(settings).await.unwrap();
        let address = bound.address();
        let inbound = Arc::clone(bound.app().inbound());
        let (stop, stopped) = oneshot::channel();
        let done = tokio::spawn(bound.run(async {
            let _ = stopped.await;
        }));
        Self { address, inbound, stop: Some(stop), done: Some(done) }
    }

    pub fn group(&self) -> Arc<Group> {
        self.inbound.gateway.group(None).unwrap()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn send(&self, verb: &'static str, path: &str) -> Sending {
        Sending::to(self.address, verb, path)
    }

    /// A POST of JSON with the headers that every client sends.
    pub fn post(&self, path: &str, body: &Value) -> Sending {
        self.send("POST", path)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(body.to_string())
    }

    /// A request of the per-request era with everything that it needs.
    pub fn modern(&self, method: &str, params: Value) -> Sending {
        self.post("/mcp", &modern(1.into(), method, params.clone())).modern_headers(method, &params)
    }

    pub async fn open(&self, revision: &str) -> Session<'_> {
        Session::open(self, revision, None).await
    }

    /// Asks the gateway to stop.
    pub fn begin_stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Whenever it has stopped.
    pub async fn done(&mut self) -> bool {
        self.done.take().unwrap().await.unwrap()
    }

    /// Waits until it has stopped; true when nothing had to be cut off.
    pub async fn stopped(&mut self) -> bool {
        tokio::time::timeout(PATIENCE, self.done.take().unwrap()).await.unwrap().unwrap()
    }
}

/// A request body of the per-request era.
pub fn modern(id: Value, method: &str, mut params: Value) -> Value {
    let meta = &mut params["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = PER_REQUEST.into();
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// A request body of the handshake era.
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

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Broken {}

// === impl Sending ===

impl Sending {
    /// A request to whoever listens at an address.
    pub fn to(address: SocketAddr, verb: &'static str, path: &str) -> Self {
        Self { address, verb, path: path.into(), headers: Vec::new(), body: Bytes::new() }
            .header("host", &address.to_string())
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets a header that was set before.
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
                let name = rialto::dialect::headers::encode(name).into_owned();
                sending.header("mcp-name", &name)
            }
            _ => sending,
        }
    }

    pub async fn go(self) -> Received {
        self.attempt().await.unwrap_or_else(|broken| panic!("{broken:?}"))
    }

    /// Sends it to somebody who may not be there, or may go before the answer begins.
    pub async fn attempt(self) -> Result<Received, Broken> {
        let connecting = tokio::time::timeout(PATIENCE, tokio::net::TcpStream::connect(self.address));
        let Ok(stream) = connecting.await.expect("a connection in time") else { return Err(Broken::NotSent) };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        let mut request = Request::builder().method(self.verb).uri(self.path);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(self.body)).unwrap();
        let answered = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time");
        let (parts, body) = match answered {
            Ok(response) => response.into_parts(),
            Err(error) if error.is_canceled() => return Err(Broken::NotSent),
            Err(error) => return Err(Broken::Lost(error.to_string())),
        };
        Ok(Received { status: parts.status.as_u16(), headers: parts.headers, body, connection })
    }

    /// Sends, and takes the answer as JSON.
    pub async fn json(self) -> (u16, Value) {
        let received = self.go().await;
        (received.status, received.json().await)
    }

    /// Sends, and takes the answer, however it comes: a slow one may come on a stream.
    pub async fn answer(self) -> (u16, Value) {
        let received = self.go().await;
        let status = received.status;
        match received.is_events() {
            true => (status, received.events().rest().await.pop().expect("an answer")),
            false => (status, received.json().await),
        }
    }

    pub async fn status(self) -> u16 {
        self.go().await.status
    }

    /// Sends, and takes the status and the JSON-RPC error code.
    pub async fn refused(self) -> (u16, i64) {
        let (status, body) = self.json().await;
        (status, body["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {body}")))
    }
}

// === impl Received ===

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn is_events(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }

    pub async fn text(self) -> String {
        self.try_text().await.unwrap()
    }

    /// The body, if it comes to its end.
    pub async fn try_text(mut self) -> Result<String, Broken> {
        let collected = tokio::time::timeout(PATIENCE, (&mut self.body).collect()).await.expect("a body in time");
        let collected = collected.map_err(|error| Broken::Lost(error.to_string()))?;
        Ok(String::from_utf8(collected.to_bytes().to_vec()).unwrap())
    }

    /// The next piece of the body, however long it takes; nothing at its end.
    pub async fn piece(&mut self) -> Option<Result<Bytes, Broken>> {
        let frame = self.body.frame().await?;
        Some(frame.map(|frame| frame.into_data().unwrap_or_default()).map_err(|error| Broken::Lost(error.to_string())))
    }

    pub async fn json(self) -> Value {
        let text = self.text().await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
    }

    pub fn events(self) -> Events {
        assert!(self.is_events(), "{:?}", self.headers);
        Events { received: self, decoder: Decoder::new(1 << 24), ready: VecDeque::new() }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

// === impl Events ===

impl Events {
    /// The next event; nothing at the end of the stream.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let frame = tokio::time::timeout(PATIENCE, self.received.body.frame()).await.expect("an event in time");
            let bytes = frame?.ok()?.into_data().unwrap_or_default();
            self.ready.extend(self.decoder.push(&bytes).unwrap());
        }
    }

    /// The next piece of the stream, as it was written.
    pub async fn frame(&mut self) -> Bytes {
        let frame = tokio::time::timeout(PATIENCE, self.received.body.frame()).await.expect("a frame in time");
        frame.expect("the stream goes on").unwrap().into_data().unwrap_or_default()
    }

    /// The next message, past priming events.
    pub async fn message(&mut self) -> Option<Value> {
        loop {
            let event = self.next().await?;
            if !event.data.is_empty() {
                return Some(serde_json::from_str(&event.data).unwrap());
            }
        }
    }

    /// All messages to the end.
    pub async fn rest(mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(message) = self.message().await {
            messages.push(message);
        }
        messages
    }

    /// All events to the end.
    pub async fn rest_events(mut self) -> Vec<Event> {
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

    /// The same session at another node.
    pub fn elsewhere<'o>(&self, rialto: &'o Rialto) -> Session<'o> {
        Session { rialto, id: self.id.clone(), revision: self.revision.clone(), token: self.token.clone() }
    }

    fn authorized(&self, sending: Sending) -> Sending {
        match &self.token {
            Some(token) => sending.header("authorization", &format!("Bearer {token}")),
            None => sending,
        }
    }

    pub fn post(&self, body: &Value) -> Sending {
        let sending = self.rialto.post("/mcp", body);
        self.authorized(sending).header("mcp-session-id", &self.id).header("mcp-protocol-version", &self.revision)
    }

    pub async fn ask(&self, method: &str, params: Value) -> Value {
        let (status, answer) = self.post(&request(7, method, params)).answer().await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub fn get(&self) -> Sending {
        let sending = self.rialto.send("GET", "/mcp").header("accept", "text/event-stream");
        self.authorized(sending).header("mcp-session-id", &self.id).header("mcp-protocol-version", &self.revision)
    }

    pub fn resume(&self, event: &str) -> Sending {
        self.get().header("last-event-id", event)
    }

    pub fn delete(&self) -> Sending {
        self.authorized(self.rialto.send("DELETE", "/mcp")).header("mcp-session-id", &self.id)
    }
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
