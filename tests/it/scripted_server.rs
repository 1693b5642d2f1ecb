//! Upstream MCP server controlled by the test: the test sets its catalog and injects faults, the arguments of a
//! call script what the call does, and every received message is recorded.
//!
//! Transports: Streamable HTTP, HTTP+SSE and stdio (handshake era), and HTTP (per-request era). The server lives in the
//! test process; over stdio a shell child forwards between its stdin/stdout and a TCP connection to the server.

mod dual;
mod transports;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rialto::mcp_client::{Address, HttpTransport, Target};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::harness::{PER_REQUEST, until};
use crate::ports::ReservedPort;

pub use dual::DualServer;

/// Transport and era of a scripted server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerTransport {
    Http,
    /// Streamable HTTP in the handshake era without sessions.
    Stateless,
    Sse,
    Stdio,
    PerRequest,
}

/// Running server. Dropping it closes all connections.
pub struct ScriptedServer {
    pub name: String,
    pub address: SocketAddr,
    _port: ReservedPort,
    inner: Arc<ServerState>,
}

/// Capabilities and lists of the server.
pub struct ServerCatalog {
    pub capabilities: Value,
    pub instructions: Option<String>,
    pub tools: Vec<Value>,
    pub prompts: Vec<Value>,
    pub resources: Vec<Value>,
    pub templates: Vec<Value>,
    /// Resources whose subscription the server refuses.
    pub unsubscribable: Vec<String>,
}

/// Replacement for the regular handling of one method.
#[derive(Clone)]
pub enum InjectedFault {
    /// Never responds.
    Hang,
    /// Responds once the gate named after the method is open.
    HoldResponse,
    /// Handles the request once the gate named after the method is open, as if it had been in flight until then;
    /// HTTP only.
    DelayedDelivery,
    /// Responds with this status and body, with `$id` replaced by the request id; HTTP only.
    RawResponse(u16, String),
    /// Responds with this status and `Retry-After`; HTTP only.
    RetryLater(u16, String),
    /// Redirects with this status to this address; HTTP only.
    Redirect(u16, String),
    /// Responds with this text, with `$id` replaced by the request id; any transport.
    Text(String),
    /// Responds with this error.
    Error(Value),
    /// Responds with a result computed from the parameters.
    Result(Arc<dyn Fn(&Value) -> Value + Send + Sync>),
}

/// Message or body-less request received by the server.
#[derive(Debug, Clone)]
pub struct ReceivedMessage {
    /// JSON-RPC method, HTTP verb of a request without a body, or `answer`, `cancelled` or `abandoned`.
    pub kind: String,
    pub session: String,
    pub body: Value,
    pub headers: Vec<(String, String)>,
}

/// Messages to send; a string stands for the text that it holds.
type MessageSender = mpsc::UnboundedSender<Value>;

fn text_of(message: &Value) -> String {
    message.as_str().map_or_else(|| message.to_string(), ToOwned::to_owned)
}

struct ServerState {
    name: String,
    transport: ServerTransport,
    catalog: Mutex<ServerCatalog>,
    fault: Mutex<HashMap<String, InjectedFault>>,
    received: Mutex<Vec<ReceivedMessage>>,
    sessions: Mutex<HashMap<String, Arc<ClientSession>>>,
    renamed_sessions: Mutex<HashMap<String, String>>,
    listeners: Mutex<Vec<(Value, Value, MessageSender)>>,
    open_gates: Mutex<BTreeSet<String>>,
    gate_opened: Notify,
    last_id: AtomicI64,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Server side of one client session.
struct ClientSession {
    id: String,
    /// Listening stream, for messages that belong to no call.
    out: Mutex<Option<MessageSender>>,
    tools: Mutex<Vec<Value>>,
    /// Number of tool calls in this session.
    calls: AtomicI64,
    subscriptions: Mutex<BTreeSet<String>>,
    pending: Mutex<HashMap<i64, oneshot::Sender<Value>>>,
    running: Mutex<HashMap<String, CancellationToken>>,
}

/// A child that forwards between its stdin/stdout and a TCP connection.
fn stdio_target(address: SocketAddr, marker: &str) -> Target {
    let script = "exec 3<>/dev/tcp/127.0.0.1/$0 4<&0; cat <&3 & cat <&4 >&3 & wait -n; echo last words >&2; kill %1 %2";
    let mut target = Target::command("bash", ["-c", script, &address.port().to_string()]);
    if let Target::Command(command) = &mut target {
        command.environment = vec![("MARKER".into(), marker.into())];
    }
    target
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

pub fn tool(name: &str) -> Value {
    json!({ "name": name, "description": format!("does {name}"), "inputSchema": { "type": "object" } })
}

impl Default for ServerCatalog {
    fn default() -> Self {
        let changes = json!({ "listChanged": true });
        let resources = json!({ "listChanged": true, "subscribe": true });
        Self {
            capabilities: json!({
                "tools": changes, "prompts": changes, "resources": resources, "completions": {}, "logging": {},
            }),
            instructions: None,
            tools: vec![tool("echo"), tool("do")],
            prompts: vec![json!({ "name": "hello", "arguments": [{ "name": "who" }] })],
            resources: vec![json!({ "uri": "res://one", "name": "one" })],
            templates: vec![json!({ "uriTemplate": "res://item/{id}", "name": "item" })],
            unsubscribable: Vec::new(),
        }
    }
}

// === impl ScriptedServer ===

impl ScriptedServer {
    pub async fn start(name: &str, transport: ServerTransport) -> Self {
        Self::with(name, transport, |_| {}).await
    }

    pub async fn with(name: &str, transport: ServerTransport, change: impl FnOnce(&mut ServerCatalog)) -> Self {
        let mut catalog = ServerCatalog::default();
        change(&mut catalog);
        let inner = Arc::new(ServerState {
            name: name.into(),
            transport,
            catalog: Mutex::new(catalog),
            fault: Mutex::default(),
            received: Mutex::default(),
            sessions: Mutex::default(),
            renamed_sessions: Mutex::default(),
            listeners: Mutex::default(),
            open_gates: Mutex::default(),
            gate_opened: Notify::new(),
            last_id: AtomicI64::new(0),
            tasks: Mutex::default(),
        });
        let port = ReservedPort::new();
        let scripted = Self { name: name.into(), address: port.address, _port: port, inner };
        scripted.restart().await;
        scripted
    }

    pub fn transport(&self) -> ServerTransport {
        self.inner.transport
    }

    /// Target with which an upstream connects to this server.
    pub fn target(&self) -> Target {
        match self.inner.transport {
            ServerTransport::Http | ServerTransport::Stateless | ServerTransport::PerRequest => {
                Target::url(&format!("http://{}/mcp", self.address)).unwrap()
            }
            ServerTransport::Sse => {
                let url = format!("http://{}/sse", self.address).parse().unwrap();
                Target::Url(Address { url, headers: http::HeaderMap::new(), transport: Some(HttpTransport::Sse) })
            }
            ServerTransport::Stdio => stdio_target(self.address, &self.marker()),
        }
    }

    /// Value of the `MARKER` environment variable of the stdio children.
    pub fn marker(&self) -> String {
        format!("{}-{}", self.name, self.address.port())
    }

    /// Changes the catalog and sends the notification `notice`, unless it is empty.
    pub fn change(&self, notice: &str, change: impl FnOnce(&mut ServerCatalog)) {
        change(&mut lock(&self.inner.catalog));
        if !notice.is_empty() {
            self.notify(notice, &json!({}));
        }
    }

    /// Sends a notification on every listening stream whose subscriptions match.
    pub fn notify(&self, method: &str, params: &Value) {
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        for client_session in lock(&self.inner.sessions).values() {
            let subscribed = |uri: &str| lock(&client_session.subscriptions).contains(uri);
            if params["uri"].as_str().is_none_or(subscribed) {
                client_session.send(message.clone());
            }
        }
        let wanted = |filter: &Value| match method {
            "notifications/tools/list_changed" => filter["toolsListChanged"] == true,
            "notifications/prompts/list_changed" => filter["promptsListChanged"] == true,
            "notifications/resources/list_changed" => filter["resourcesListChanged"] == true,
            _ => filter["resourceSubscriptions"].as_array().is_some_and(|uris| uris.contains(&params["uri"])),
        };
        for (id, filter, out) in lock(&self.inner.listeners).iter().filter(|(_, filter, _)| wanted(filter)) {
            let mut message = message.clone();
            message["params"]["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": id });
            let _ = (filter, out.send(message));
        }
    }

    /// Sends a text as it is on the listening stream of every session.
    pub fn send_text(&self, text: &str) {
        for client_session in lock(&self.inner.sessions).values() {
            client_session.send(Value::String(text.into()));
        }
    }

    /// Replaces the handling of `method` until [`Self::clear_faults`].
    pub fn inject_fault(&self, method: &str, fault: InjectedFault) {
        lock(&self.inner.fault).insert(method.into(), fault);
    }

    /// Holds responses to `method` until its gate is [opened](Self::open).
    pub fn hold_responses(&self, method: &str) {
        self.inject_fault(method, InjectedFault::HoldResponse);
    }

    pub fn clear_faults(&self) {
        lock(&self.inner.fault).clear();
    }

    /// Opens a gate: releases the calls that wait for it, now and later.
    pub fn open(&self, gate: &str) {
        lock(&self.inner.open_gates).insert(gate.into());
        self.inner.gate_opened.notify_waiters();
    }

    /// Closes a gate: calls wait for it again.
    pub fn close(&self, gate: &str) {
        lock(&self.inner.open_gates).remove(gate);
    }

    pub fn received(&self) -> Vec<ReceivedMessage> {
        lock(&self.inner.received).clone()
    }

    /// What `read` finds in the received messages, without a copy of them all.
    pub fn read_received<T>(&self, read: impl FnMut(&ReceivedMessage) -> Option<T>) -> Vec<T> {
        lock(&self.inner.received).iter().filter_map(read).collect()
    }

    /// Number of received messages of this kind.
    pub fn count(&self, kind: &str) -> usize {
        lock(&self.inner.received).iter().filter(|received| received.kind == kind).count()
    }

    pub async fn wait_received(&self, kind: &str, times: usize) {
        until(&format!("{} receives {times} {kind}", self.name), || self.count(kind) >= times).await;
    }

    /// Whether a session with an open listening stream is subscribed to `uri`.
    pub fn has_subscriber(&self, uri: &str) -> bool {
        let sessions = lock(&self.inner.sessions);
        sessions.values().any(|client_session| {
            lock(&client_session.subscriptions).contains(uri) && lock(&client_session.out).is_some()
        })
    }

    /// Number of open sessions.
    pub fn sessions(&self) -> usize {
        lock(&self.inner.sessions).len()
    }

    /// Number of open `subscriptions/listen` streams.
    pub fn listeners(&self) -> usize {
        let mut listeners = lock(&self.inner.listeners);
        listeners.retain(|(_, _, out)| !out.is_closed());
        listeners.len()
    }

    /// Closes every connection and session and stops accepting.
    pub fn stop(&self) {
        for task in std::mem::take(&mut *lock(&self.inner.tasks)) {
            task.abort();
        }
        self.forget_sessions();
    }

    /// Waits until every session has a stream for messages that belong to no call.
    pub async fn wait_streams(&self) {
        let has_stream = |session: &Arc<ClientSession>| lock(&session.out).is_some();
        until("every session listens", || lock(&self.inner.sessions).values().all(has_stream)).await;
    }

    /// Closes the listening streams; the sessions stay open.
    pub fn end_streams(&self) {
        for client_session in lock(&self.inner.sessions).values() {
            lock(&client_session.out).take();
        }
    }

    /// Drops every session, as a restarted server would; connections stay open.
    pub fn forget_sessions(&self) {
        lock(&self.inner.sessions).clear();
        lock(&self.inner.listeners).clear();
    }

    /// Changes the id of a session; the next response carries the new id. HTTP only.
    pub fn rename_session(&self, session: &str, other: &str) {
        let mut sessions = lock(&self.inner.sessions);
        let client_session = sessions.get(session).cloned().unwrap();
        sessions.insert(other.into(), client_session);
        lock(&self.inner.renamed_sessions).insert(session.into(), other.into());
    }

    /// Listens again on the same address.
    pub async fn restart(&self) {
        let listener = loop {
            // The previous listener may still hold the port.
            match TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        self.inner.accept(listener);
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.stop();
    }
}

// === impl ClientSession ===

impl ClientSession {
    fn new(id: &str, out: Option<MessageSender>) -> Arc<Self> {
        Arc::new(Self {
            id: id.into(),
            out: Mutex::new(out),
            tools: Mutex::default(),
            calls: AtomicI64::new(0),
            subscriptions: Mutex::default(),
            pending: Mutex::default(),
            running: Mutex::default(),
        })
    }

    fn send(&self, message: Value) {
        if let Some(out) = &*lock(&self.out) {
            let _ = out.send(message);
        }
    }

    /// Handles a response to a server request, or a cancellation.
    fn on_response_or_notification(&self, message: &Value) {
        let cancelled = &message["params"]["requestId"];
        if let Some(running) = lock(&self.running).remove(&cancelled.to_string()) {
            running.cancel();
        }
        let answered = message["id"].as_i64().filter(|_| message["method"].is_null());
        if let Some(answer) = answered.and_then(|id| lock(&self.pending).remove(&id)) {
            let _ = answer.send(message.clone());
        }
    }
}

// === impl ServerState ===

impl ServerState {
    fn hello_result(&self, asked: &Value) -> Value {
        let catalog = lock(&self.catalog);
        let info = json!({ "name": self.name, "version": "1", "title": format!("The {}", self.name) });
        let mut result = match self.transport {
            ServerTransport::PerRequest => json!({
                "resultType": "complete", "supportedVersions": [PER_REQUEST], "ttlMs": 0, "cacheScope": "private",
                "_meta": { "io.modelcontextprotocol/serverInfo": info },
            }),
            _ => json!({ "protocolVersion": asked["protocolVersion"], "serverInfo": info }),
        };
        result["capabilities"] = catalog.capabilities.clone();
        if let Some(instructions) = &catalog.instructions {
            result["instructions"] = instructions.as_str().into();
        }
        result
    }

    /// Responds to a request on `out`, unless it is cancelled or the client disconnects first.
    async fn serve(self: Arc<Self>, client_session: Option<Arc<ClientSession>>, message: Value, out: MessageSender) {
        let id = message["id"].clone();
        let fault = lock(&self.fault).get(message["method"].as_str().unwrap_or_default()).cloned();
        if let Some(InjectedFault::Text(text)) = fault {
            let _ = out.send(Value::String(text.replace("$id", &id.to_string())));
            return;
        }
        let cancelled = CancellationToken::new();
        if let Some(client_session) = &client_session {
            lock(&client_session.running).insert(id.to_string(), cancelled.clone());
        }
        let outcome = tokio::select! {
            outcome = self.outcome(client_session.as_ref(), &message, &out) => outcome,
            () = cancelled.cancelled() => return self.record_end("cancelled", client_session.as_ref(), message),
            () = out.closed() => return self.record_end("abandoned", client_session.as_ref(), message),
        };
        if let Some(client_session) = &client_session {
            lock(&client_session.running).remove(&id.to_string());
        }
        let answer = match outcome {
            Ok(mut result) => {
                if self.transport == ServerTransport::PerRequest && result["resultType"].is_null() {
                    result["resultType"] = "complete".into();
                }
                json!({ "jsonrpc": "2.0", "id": id, "result": result })
            }
            Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
        };
        let _ = out.send(answer);
    }

    fn record_end(&self, how: &str, client_session: Option<&Arc<ClientSession>>, body: Value) {
        let session = client_session.map(|client_session| client_session.id.clone()).unwrap_or_default();
        lock(&self.received).push(ReceivedMessage { kind: how.into(), session, body, headers: Vec::new() });
    }

    async fn outcome(
        &self,
        client_session: Option<&Arc<ClientSession>>,
        message: &Value,
        out: &MessageSender,
    ) -> Result<Value, Value> {
        let params = &message["params"];
        let method = message["method"].as_str().unwrap_or_default();
        let fault = lock(&self.fault).get(method).cloned();
        match fault {
            Some(InjectedFault::Hang) => std::future::pending::<()>().await,
            Some(InjectedFault::HoldResponse) => self.wait_gate(method).await,
            Some(InjectedFault::Error(error)) => return Err(error),
            Some(InjectedFault::Result(make)) => return Ok(make(params)),
            Some(
                InjectedFault::DelayedDelivery
                | InjectedFault::RawResponse(..)
                | InjectedFault::RetryLater(..)
                | InjectedFault::Redirect(..)
                | InjectedFault::Text(_),
            )
            | None => {}
        }
        let uri = params["uri"].as_str().unwrap_or_default();
        Ok(match method {
            "initialize" | "server/discover" => self.hello_result(params),
            "tools/list" => {
                let own = client_session.map(|client_session| lock(&client_session.tools).clone()).unwrap_or_default();
                let tools = [lock(&self.catalog).tools.clone(), own].concat();
                json!({ "tools": tools })
            }
            "prompts/list" => json!({ "prompts": lock(&self.catalog).prompts }),
            "resources/list" => json!({ "resources": lock(&self.catalog).resources }),
            "resources/templates/list" => json!({ "resourceTemplates": lock(&self.catalog).templates }),
            "tools/call" => return self.call(client_session, params, out).await,
            "prompts/get" => {
                let text = json!({ "type": "text", "text": format!("{} {}", self.name, params["name"]) });
                let resource = json!({ "type": "resource", "resource": { "uri": "res://one", "text": "one" } });
                json!({ "messages": [{ "role": "user", "content": text }, { "role": "user", "content": resource }] })
            }
            "resources/read" if uri.contains("missing") => {
                let code = if self.transport == ServerTransport::PerRequest { -32602 } else { -32002 };
                return Err(json!({ "code": code, "message": "Resource not found", "data": { "uri": uri } }));
            }
            "resources/read" => json!({ "contents": [{ "uri": uri, "text": format!("{} has {uri}", self.name) }] }),
            "completion/complete" => {
                let named = params["ref"]["name"].as_str().or(params["ref"]["uri"].as_str());
                json!({ "completion": { "values": [self.name, named] } })
            }
            "resources/subscribe" if lock(&self.catalog).unsubscribable.iter().any(|other| other == uri) => {
                return Err(json!({ "code": -32602, "message": "not to be told of" }));
            }
            "resources/subscribe" | "resources/unsubscribe" => {
                let mut subscriptions = lock(&client_session.unwrap().subscriptions);
                let _ = if method == "resources/subscribe" {
                    subscriptions.insert(uri.into())
                } else {
                    subscriptions.remove(uri)
                };
                json!({})
            }
            "subscriptions/listen" => {
                let (id, mut filter) = (message["id"].clone(), params["notifications"].clone());
                if let Some(uris) = filter["resourceSubscriptions"].as_array_mut() {
                    let catalog = lock(&self.catalog);
                    uris.retain(|uri| !catalog.unsubscribable.iter().any(|other| uri == other));
                }
                let mut ack = json!({ "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged" });
                ack["params"] = json!({ "notifications": filter });
                ack["params"]["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": id });
                let _ = out.send(ack);
                lock(&self.listeners).push((id, filter, out.clone()));
                std::future::pending().await
            }
            "ping" | "logging/setLevel" => json!({}),
            other if other.starts_with("x/") => json!({ "extension": other, "params": params }),
            other => return Err(json!({ "code": -32601, "message": format!("what is {other}?") })),
        })
    }

    /// Runs the steps given in the arguments of a tool call, then returns a report of the call.
    async fn call(
        &self,
        client_session: Option<&Arc<ClientSession>>,
        params: &Value,
        out: &MessageSender,
    ) -> Result<Value, Value> {
        let arguments = &params["arguments"];
        let steps = arguments["steps"].as_array().cloned().unwrap_or_default();
        let mut answers = Vec::new();
        let asked: Vec<&Value> = steps.iter().map(|step| &step["ask"]).filter(|ask| !ask.is_null()).collect();
        if self.transport == ServerTransport::PerRequest && !asked.is_empty() && params["inputResponses"].is_null() {
            let asked: serde_json::Map<_, _> =
                asked.into_iter().enumerate().map(|(n, ask)| (format!("q{n}"), ask.clone())).collect();
            return Ok(json!({ "resultType": "input_required", "inputRequests": asked, "requestState": "mine" }));
        }
        for step in &steps {
            let notice = |method: &str, params: Value| {
                let _ = out.send(json!({ "jsonrpc": "2.0", "method": method, "params": params }));
            };
            let token = &params["_meta"]["progressToken"];
            if step["progress"].is_number() && !token.is_null() {
                notice("notifications/progress", json!({ "progressToken": token, "progress": step["progress"] }));
            }
            if step["log"].is_object() {
                notice("notifications/message", step["log"].clone());
            }
            if let Some(millis) = step["pause"].as_u64() {
                tokio::time::sleep(std::time::Duration::from_millis(millis)).await;
            }
            if let Some(gate) = step["wait"].as_str() {
                self.wait_gate(gate).await;
            }
            if let (Some(name), Some(client_session)) = (step["grow"].as_str(), client_session) {
                lock(&client_session.tools).push(tool(name));
                client_session.send(json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
            }
            if let (Some(uri), Some(client_session)) = (step["touch"].as_str(), client_session)
                && lock(&client_session.subscriptions).contains(uri)
            {
                let params = json!({ "uri": uri });
                client_session
                    .send(json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params }));
            }
            if let Some(client_session) = client_session.filter(|_| step["ask"].is_object()) {
                let answer = self.ask(client_session, &step["ask"], out).await;
                answers.push(if answer["error"].is_null() {
                    answer["result"].clone()
                } else {
                    answer["error"].clone()
                });
            }
        }
        if let Some(responses) = params["inputResponses"].as_object() {
            answers.extend(responses.values().cloned());
        }
        if !arguments["error"].is_null() {
            return Err(arguments["error"].clone());
        }
        if !arguments["result"].is_null() {
            return Ok(arguments["result"].clone());
        }
        let session = client_session.map(|client_session| client_session.id.as_str()).unwrap_or_default();
        let calls = client_session.map(|client_session| client_session.calls.fetch_add(1, Ordering::SeqCst) + 1);
        let report = json!({
            "server": self.name, "session": session, "calls": calls, "tool": params["name"],
            "message": arguments["message"], "answers": answers,
        });
        Ok(json!({ "content": [{ "type": "text", "text": report.to_string() }] }))
    }

    async fn wait_gate(&self, gate: &str) {
        loop {
            let gate_opened = self.gate_opened.notified();
            if lock(&self.open_gates).contains(gate) {
                return;
            }
            gate_opened.await;
        }
    }

    async fn ask(&self, client_session: &ClientSession, ask: &Value, out: &MessageSender) -> Value {
        let id = self.last_id.fetch_add(1, Ordering::SeqCst) + 1;
        let (answer, answered) = oneshot::channel();
        lock(&client_session.pending).insert(id, answer);
        let mut request = ask.clone();
        request["jsonrpc"] = "2.0".into();
        request["id"] = id.into();
        let _ = out.send(request);
        answered.await.unwrap_or_else(|_| json!({ "error": "nobody is there" }))
    }
}
