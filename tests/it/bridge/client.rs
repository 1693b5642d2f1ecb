//! Clients of every variant: they send exactly what their revision has and report everything it does not allow.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rialto::app::{App, AppSettings};
use rialto::dialect::Revision;
use rialto::gateway::{GatewayConfig, GroupConfig};
use rialto::inbound::Inbound;
use rialto::upstream::UpstreamSpec;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};

use super::handlers::raw_member;
use super::scripted_server::META;
use super::variants::{Transport, Variant};
use crate::harness::{HttpRequest, HttpResponse, PER_REQUEST};

/// A value, or a description of the fault.
pub type Checked<T> = Result<T, String>;

/// Maximum wait for one message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers a server request with a result or an error code.
pub type ServerRequestHandler = Box<dyn FnMut(&str, &Value) -> Result<Value, i64> + Send>;

/// A client connected to one group.
pub struct Client {
    pub variant: Variant,
    transport: ClientTransport,
    inbox: mpsc::UnboundedReceiver<InboundMessage>,
    inbox_sender: mpsc::UnboundedSender<InboundMessage>,
    last_id: u32,
    /// The declared capabilities.
    pub capabilities: Value,
    /// The server capabilities of the handshake.
    pub server_capabilities: Value,
    pub on_server_request: ServerRequestHandler,
    /// Every text that was sent.
    pub sent: Vec<String>,
    /// Every text that was received.
    pub received: Vec<String>,
    /// Notifications received outside of calls.
    notifications: Vec<Value>,
    /// Arguments mirrored in Mcp-Param headers, by tool.
    mirrors: HashMap<String, Vec<(String, String)>>,
    /// Stream readers by the request they belong to.
    tasks: Vec<(Value, AbortHandle)>,
}

enum ClientTransport {
    Sse { address: SocketAddr, endpoint: String },
    Http { address: SocketAddr, path: String, session: Option<String>, token: Option<String> },
    Stdio { input: WriteHalf<DuplexStream>, inbound: Arc<Inbound>, served: JoinHandle<std::io::Result<()>> },
}

/// A received message.
struct InboundMessage {
    raw: String,
    value: Value,
    source: MessageSource,
}

/// The stream that carried a message.
#[derive(Debug, Clone, PartialEq)]
enum MessageSource {
    /// The only stream of HTTP+SSE or stdio.
    SharedStream,
    /// The GET stream.
    GetStream,
    /// The response stream of a request.
    Request(Value),
    /// The response stream of a request has ended.
    RequestEnd(Value),
}

/// The response to a request, with what preceded it.
#[derive(Debug, Default)]
pub struct Response {
    /// The raw message text.
    pub raw: String,
    pub message: Value,
    /// Progress and log notifications before the response.
    pub notifications: Vec<Value>,
    pub raw_notifications: Vec<String>,
    /// Server requests during the call: method and params.
    pub server_requests: Vec<(String, Value)>,
}

/// Request params as raw JSON members, without braces, and the members of `_meta`.
#[derive(Debug, Clone, Default)]
pub struct Params {
    pub members: String,
    pub meta: String,
}

impl From<Value> for Params {
    fn from(value: Value) -> Self {
        let text = value.to_string();
        Self { members: text[1..text.len() - 1].to_owned(), meta: String::new() }
    }
}

impl Params {
    pub fn with_meta(mut self, meta: &str) -> Self {
        self.meta = meta.to_owned();
        self
    }
}

/// Accepts every server request.
pub fn accept_server_request(method: &str, params: &Value) -> Result<Value, i64> {
    Ok(match method {
        "sampling/createMessage" => {
            let text =
                format!("thoughts on {}", params["messages"][0]["content"]["text"].as_str().unwrap_or("nothing"));
            json!({ "role": "assistant", "model": "none", "content": { "type": "text", "text": text } })
        }
        "elicitation/create" if params["mode"] == "url" => json!({ "action": "accept" }),
        "elicitation/create" => json!({ "action": "accept", "content": { "name": "Ada" } }),
        _ => json!({ "roots": [{ "uri": "file:///somewhere" }] }),
    })
}

/// The capabilities of a client of this revision.
fn capabilities(revision: Revision) -> Value {
    let mut capabilities = json!({ "sampling": {}, "roots": { "listChanged": true } });
    match revision {
        Revision::V2025_06_18 => capabilities["elicitation"] = json!({}),
        Revision::V2025_11_25 => capabilities["elicitation"] = json!({ "form": {}, "url": {} }),
        Revision::V2026_07_28 => {
            capabilities["roots"] = json!({});
            capabilities["elicitation"] = json!({ "form": {}, "url": {} });
        }
        _ => {}
    }
    capabilities
}

// === impl Client ===

impl Client {
    fn new(variant: Variant, transport: ClientTransport) -> Self {
        let (inbox_sender, inbox) = mpsc::unbounded_channel();
        Self {
            variant,
            transport,
            inbox,
            inbox_sender,
            last_id: 0,
            capabilities: capabilities(variant.revision),
            server_capabilities: Value::Null,
            on_server_request: Box::new(accept_server_request),
            sent: Vec::new(),
            received: Vec::new(),
            notifications: Vec::new(),
            mirrors: HashMap::new(),
            tasks: Vec::new(),
        }
    }

    /// Connects to a group over HTTP with default capabilities.
    pub async fn over_http(variant: Variant, address: SocketAddr, group: &str, token: Option<&str>) -> Checked<Self> {
        Self::with_capabilities(variant, address, group, token, capabilities(variant.revision)).await
    }

    /// Connects to a group over HTTP.
    pub async fn with_capabilities(
        variant: Variant,
        address: SocketAddr,
        group: &str,
        token: Option<&str>,
        capabilities: Value,
    ) -> Checked<Self> {
        if variant.transport == Transport::Sse {
            let stream =
                HttpRequest::to(address, "GET", &format!("/sse/{group}")).header("accept", "text/event-stream");
            let mut events = stream.go().await.events();
            let first = events.next().await.ok_or("no first event")?;
            if first.name.as_deref() != Some("endpoint") {
                return Err(format!("the first event is {first:?}"));
            }
            let mut client = Self::new(variant, ClientTransport::Sse { address, endpoint: first.data });
            client.capabilities = capabilities;
            let inbox_sender = client.inbox_sender.clone();
            let reading = tokio::spawn(async move {
                while let Some(event) = events.next().await {
                    deliver(&inbox_sender, event.data, MessageSource::SharedStream);
                }
            });
            client.tasks.push((Value::Null, reading.abort_handle()));
            client.initialize().await?;
            return Ok(client);
        }
        let token = token.map(ToOwned::to_owned);
        let mut client =
            Self::new(variant, ClientTransport::Http { address, path: format!("/mcp/{group}"), session: None, token });
        client.capabilities = capabilities;
        if !variant.is_per_request() {
            client.initialize().await?;
            client.open_get_stream().await?;
        }
        Ok(client)
    }

    /// Connects over stdio to a gateway of its own.
    pub async fn over_stdio(variant: Variant, upstreams: Vec<UpstreamSpec>, group: &str) -> Checked<Self> {
        let group_config = GroupConfig::new(group, upstreams.iter().map(|spec| Arc::clone(&spec.name)));
        let layout = GatewayConfig { upstreams, groups: vec![group_config] };
        let app = App::new(AppSettings { gateway: layout, ..AppSettings::default() });
        let group = app.gateway().group(Some(group)).ok_or("no such group")?;
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (read, write) = tokio::io::split(theirs);
        let inbound = Arc::clone(app.inbound());
        tokio::spawn(Arc::clone(&inbound).maintain_sessions());
        let served = tokio::spawn(Arc::clone(&inbound).serve_stdio(group, BufReader::new(read), write));
        let (output, input) = tokio::io::split(ours);
        let mut client = Self::new(variant, ClientTransport::Stdio { input, inbound, served });
        let inbox_sender = client.inbox_sender.clone();
        let reading = tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                deliver(&inbox_sender, line, MessageSource::SharedStream);
            }
        });
        client.tasks.push((Value::Null, reading.abort_handle()));
        if !variant.is_per_request() {
            client.initialize().await?;
        }
        Ok(client)
    }

    /// The gateway of a stdio client.
    pub fn own_gateway(&self) -> Option<Arc<Inbound>> {
        match &self.transport {
            ClientTransport::Stdio { inbound, .. } => Some(Arc::clone(inbound)),
            _ => None,
        }
    }

    async fn initialize(&mut self) -> Checked<()> {
        let revision = self.variant.revision.to_string();
        let info = json!({ "name": "client", "version": "1" });
        let params = json!({ "protocolVersion": revision, "capabilities": self.capabilities, "clientInfo": info });
        let answer = self.request("initialize", params).await?;
        ensure(answer.message["result"]["protocolVersion"] == revision, "another revision", &answer.message)?;
        ensure(answer.message["result"].get("resultType").is_none(), "members of another era", &answer.message)?;
        self.server_capabilities = answer.message["result"]["capabilities"].clone();
        self.notify("notifications/initialized", json!({})).await
    }

    async fn open_get_stream(&mut self) -> Checked<()> {
        let ClientTransport::Http { address, path, .. } = &self.transport else { return Ok(()) };
        let sending = HttpRequest::to(*address, "GET", path).header("accept", "text/event-stream");
        let received = self.with_session_headers(sending).go().await;
        ensure(received.status == 200, "no stream to listen on", &json!(received.status))?;
        let mut events = received.events();
        let inbox_sender = self.inbox_sender.clone();
        let reading = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                deliver(&inbox_sender, event.data, MessageSource::GetStream);
            }
        });
        self.tasks.push((Value::Null, reading.abort_handle()));
        Ok(())
    }

    /// Adds session, version and authorization headers.
    fn with_session_headers(&self, sending: HttpRequest) -> HttpRequest {
        let ClientTransport::Http { session, token, .. } = &self.transport else { return sending };
        let sending = match session {
            Some(session) => sending
                .header("mcp-session-id", session)
                .header("mcp-protocol-version", &self.variant.revision.to_string()),
            None => sending,
        };
        match token {
            Some(token) => sending.header("authorization", &format!("Bearer {token}")),
            None => sending,
        }
    }

    /// Sends a request and returns its id; ids alternate between numbers and strings.
    pub async fn send(&mut self, method: &str, params: impl Into<Params>) -> Checked<Value> {
        self.last_id += 1;
        let id =
            if self.last_id.is_multiple_of(2) { json!(self.last_id) } else { json!(format!("id-{}", self.last_id)) };
        let Params { members, meta } = params.into();
        let mut all = vec![meta.clone()];
        if self.variant.is_per_request() {
            all.push(format!(r#""{META}protocolVersion":"{PER_REQUEST}""#));
            all.push(format!(r#""{META}clientCapabilities":{}"#, self.capabilities));
            all.push(format!(r#""{META}clientInfo":{{"name":"client","version":"1"}}"#));
        }
        all.retain(|part| !part.is_empty());
        let mut parts = vec![members];
        if !all.is_empty() {
            parts.push(format!(r#""_meta":{{{}}}"#, all.join(",")));
        }
        parts.retain(|part| !part.is_empty());
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{}}}}}"#, parts.join(","));
        self.write(&body, Some((&id, method))).await?;
        Ok(id)
    }

    /// Writes a message. The response of a request is read by a task and delivered to the inbox.
    async fn write(&mut self, body: &str, request: Option<(&Value, &str)>) -> Checked<()> {
        self.sent.push(body.to_owned());
        match &mut self.transport {
            ClientTransport::Stdio { input, .. } => {
                input.write_all(format!("{body}\n").as_bytes()).await.map_err(|error| error.to_string())
            }
            ClientTransport::Sse { address, endpoint } => {
                let sent = json_body(HttpRequest::to(*address, "POST", endpoint), body).status().await;
                ensure(sent == 202, "a message was not accepted", &json!(sent))
            }
            ClientTransport::Http { address, path, .. } => {
                let mut sending = json_body(HttpRequest::to(*address, "POST", path), body)
                    .header("accept", "application/json, text/event-stream");
                if self.variant.is_per_request() {
                    let message: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
                    let method = message["method"].as_str().unwrap_or_default();
                    sending = sending.modern_headers(method, &message["params"]);
                    let tool = message["params"]["name"].as_str().unwrap_or_default();
                    for (argument, header) in self.mirrors.get(tool).into_iter().flatten() {
                        if let Some(value) = message["params"]["arguments"].get(argument) {
                            sending = sending.header(&format!("mcp-param-{header}"), &value.to_string());
                        }
                    }
                }
                let sending = self.with_session_headers(sending);
                let Some((id, method)) = request else {
                    let sent = sending.status().await;
                    return ensure(sent == 202, "a message was not accepted", &json!(sent));
                };
                if method == "initialize" {
                    let received = sending.go().await;
                    let session = received.header("mcp-session-id").map(ToOwned::to_owned);
                    if let ClientTransport::Http { session: known, .. } = &mut self.transport {
                        *known = session;
                    }
                    deliver(&self.inbox_sender, received.text().await, MessageSource::Request(id.clone()));
                    return Ok(());
                }
                let inbox_sender = self.inbox_sender.clone();
                let reading = tokio::spawn(read(sending, inbox_sender, id.clone()));
                self.tasks.push((id.clone(), reading.abort_handle()));
                Ok(())
            }
        }
    }

    pub async fn notify(&mut self, method: &str, params: Value) -> Checked<()> {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string();
        self.write(&body, None).await
    }

    async fn next(&mut self) -> Checked<InboundMessage> {
        match tokio::time::timeout(MESSAGE_TIMEOUT, self.inbox.recv()).await {
            Ok(Some(arrived)) => {
                self.received.push(arrived.raw.clone());
                Ok(arrived)
            }
            Ok(None) => Err("the connection ended".into()),
            Err(_) => Err("no message in time".into()),
        }
    }

    /// Waits for the response to a request and answers server requests meanwhile.
    pub async fn response(&mut self, id: &Value) -> Checked<Response> {
        let mut answer = Response::default();
        loop {
            let InboundMessage { raw, value, source } = self.next().await?;
            if let MessageSource::RequestEnd(ended) = &source {
                if ended == id {
                    return Err(format!("nothing came for {id} but {:?}", answer.raw_notifications));
                }
                continue;
            }
            let on_own_stream =
                matches!(&source, MessageSource::SharedStream) || source == MessageSource::Request(id.clone());
            match (value["method"].as_str(), value.get("id")) {
                (Some(method), Some(request_id)) => {
                    ensure(!self.variant.is_per_request(), "a server request in the per-request era", &value)?;
                    ensure(on_own_stream, "a server request on another stream", &value)?;
                    let params = value["params"].clone();
                    check_server_request(self.variant.revision, method, &params)?;
                    let answered = match (self.on_server_request)(method, &params) {
                        Ok(result) => json!({ "jsonrpc": "2.0", "id": request_id, "result": result }),
                        Err(code) => {
                            let error = json!({ "code": code, "message": "no" });
                            json!({ "jsonrpc": "2.0", "id": request_id, "error": error })
                        }
                    };
                    answer.server_requests.push((method.to_owned(), params));
                    self.write(&answered.to_string(), None).await?;
                }
                (None, Some(answered)) if answered == id => {
                    ensure(on_own_stream, "a response on another stream", &value)?;
                    self.check_result(&value)?;
                    answer.raw = raw;
                    answer.message = value;
                    return Ok(answer);
                }
                (None, Some(_)) => return Err(format!("a response to no request: {raw}")),
                (Some("notifications/progress" | "notifications/message"), None) => {
                    ensure(on_own_stream, "a notification on another stream", &value)?;
                    answer.notifications.push(value);
                    answer.raw_notifications.push(raw);
                }
                _ => self.notifications.push(value),
            }
        }
    }

    /// Waits for a server request during a call and returns its id without answering it.
    pub async fn wait_for_server_request(&mut self, id: &Value) -> Checked<Value> {
        Ok(self.wait_for_server_request_message(id).await?["id"].clone())
    }

    /// Waits for a server request during a call and returns it without answering it.
    pub async fn wait_for_server_request_message(&mut self, id: &Value) -> Checked<Value> {
        loop {
            let InboundMessage { raw, value, source } = self.next().await?;
            let on_own_stream = source == MessageSource::SharedStream || source == MessageSource::Request(id.clone());
            match (value["method"].as_str(), value.get("id")) {
                (Some(_), Some(_)) if on_own_stream => return Ok(value),
                (Some(_), None) => self.notifications.push(value),
                _ if matches!(&source, MessageSource::RequestEnd(other) if other != id) => {}
                _ => return Err(format!("unexpected message: {raw} {source:?}")),
            }
        }
    }

    /// Answers a server request.
    pub async fn answer(&mut self, id: &Value, result: Value) -> Checked<()> {
        self.write(&json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string(), None).await
    }

    /// Waits for the response to any of these requests, which it takes out.
    pub async fn any_response(&mut self, open: &mut Vec<Value>) -> Checked<Response> {
        loop {
            let InboundMessage { raw, value, source } = self.next().await?;
            if matches!(&source, MessageSource::RequestEnd(_)) {
                continue;
            }
            match (value["method"].as_str(), value.get("id")) {
                (Some(_), None) => self.notifications.push(value),
                (None, Some(answered)) if open.contains(answered) => {
                    open.retain(|id| id != answered);
                    self.check_result(&value)?;
                    return Ok(Response { raw, message: value, ..Response::default() });
                }
                _ => return Err(format!("unexpected message: {raw} {source:?}")),
            }
        }
    }

    /// Waits for the first progress notification of a request.
    pub async fn wait_for_progress(&mut self, id: &Value) -> Checked<Value> {
        self.first_message(id).await?.map_err(|end| format!("the call ended before progress: {end}"))
    }

    /// The first message for a request: progress (`Ok`) or the raw response (`Err`).
    pub async fn first_message(&mut self, id: &Value) -> Checked<Result<Value, String>> {
        loop {
            let InboundMessage { raw, value, source } = self.next().await?;
            let on_own_stream = source == MessageSource::SharedStream || source == MessageSource::Request(id.clone());
            match value["method"].as_str() {
                Some("notifications/progress") if on_own_stream => return Ok(Ok(value)),
                Some(_) if value.get("id").is_none() => self.notifications.push(value),
                None if value.get("id") == Some(id) => return Ok(Err(raw)),
                _ if matches!(&source, MessageSource::RequestEnd(other) if other != id) => {}
                _ => return Err(format!("unexpected message: {raw} {source:?}")),
            }
        }
    }

    /// A result has the required members of its era and none of the other era.
    fn check_result(&self, message: &Value) -> Checked<()> {
        let Some(result) = message.get("result") else { return Ok(()) };
        let meta = result["_meta"].as_object().cloned().unwrap_or_default();
        if !self.variant.is_per_request() {
            let strange = ["resultType", "ttlMs", "cacheScope", "inputRequests", "requestState"];
            let odd = strange.iter().any(|key| result.get(key).is_some());
            let related = format!("{META}related-task");
            let foreign = |key: &String| key.starts_with(META) && !(self.knows_tasks() && *key == related);
            return ensure(!odd && !meta.keys().any(foreign), "members of another era", message);
        }
        let kind = result["resultType"].as_str();
        let known = matches!(kind, Some("complete" | "input_required")) || self.knows_tasks() && kind == Some("task");
        ensure(known, "no valid resultType", message)?;
        let named = meta.get(&format!("{META}serverInfo")).is_some_and(|info| info["name"].is_string());
        ensure(named || meta.contains_key(&format!("{META}subscriptionId")), "no serverInfo", message)?;
        ensure(!meta.contains_key("progressToken"), "_meta of another hop", message)
    }

    /// Sends a request and follows input rounds until it completes.
    pub async fn request(&mut self, method: &str, params: impl Into<Params>) -> Checked<Response> {
        let params = params.into();
        let mut sent = params.clone();
        let mut all = Response::default();
        for _ in 0..5 {
            let id = self.send(method, sent.clone()).await?;
            let answer = self.response(&id).await?;
            let result = answer.message["result"].clone();
            all = Response {
                notifications: [all.notifications, answer.notifications].concat(),
                raw_notifications: [all.raw_notifications, answer.raw_notifications].concat(),
                server_requests: [all.server_requests, answer.server_requests].concat(),
                ..answer
            };
            if result["resultType"] != "input_required" {
                return Ok(all);
            }
            let mut responses = Map::new();
            for (key, request) in result["inputRequests"].as_object().into_iter().flatten() {
                let method = request["method"].as_str().unwrap_or_default();
                ensure(request.get("id").is_none(), "an input request with an id", request)?;
                check_server_request(self.variant.revision, method, &request["params"])?;
                if let Ok(response) = (self.on_server_request)(method, &request["params"]) {
                    responses.insert(key.clone(), response);
                }
                all.server_requests.push((method.to_owned(), request["params"].clone()));
            }
            let state = raw_member(&all.raw, "result").and_then(|result| raw_member(result, "requestState"));
            sent = retry(&params, &Value::Object(responses), state);
        }
        Err(format!("input rounds do not end: {}", all.raw))
    }

    pub async fn call(&mut self, tool: &str, arguments: Value) -> Checked<Response> {
        self.request("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Records the Mcp-Param annotations of the listed tools.
    pub fn record_header_mirrors(&mut self, tools: &Value) {
        for tool in tools.as_array().into_iter().flatten() {
            let properties = tool["inputSchema"]["properties"].as_object().into_iter().flatten();
            let named =
                properties.filter_map(|(key, schema)| Some((key.clone(), schema["x-mcp-header"].as_str()?.into())));
            self.mirrors.insert(tool["name"].as_str().unwrap_or_default().into(), named.collect());
        }
    }

    /// Cancels a request: by disconnect in the per-request era over HTTP, else by notification.
    pub async fn cancel(&mut self, id: &Value) -> Checked<()> {
        if self.variant.is_per_request() && self.variant.transport == Transport::Http {
            // Aborting the reader closes the connection.
            self.tasks.iter().filter(|(of, _)| of == id).for_each(|(_, task)| task.abort());
            return Ok(());
        }
        self.notify("notifications/cancelled", json!({ "requestId": id, "reason": "no longer" })).await
    }

    /// Checks that nothing more arrives for a cancelled request, by completing another request.
    pub async fn check_silent(&mut self, id: &Value) -> Checked<()> {
        let probe_id = self.send("tools/list", json!({})).await?;
        loop {
            let InboundMessage { raw, value, source } = self.next().await?;
            if matches!(source, MessageSource::RequestEnd(_)) {
                continue;
            }
            ensure(
                value.get("id") != Some(id) && source != MessageSource::Request(id.clone()),
                "messages after cancellation",
                &value,
            )?;
            if value.get("id") == Some(&probe_id) {
                return Ok(());
            }
            if value.get("id").is_none() {
                ensure(value["method"] != "notifications/progress", "progress after cancellation", &json!(raw))?;
                self.notifications.push(value);
            }
        }
    }

    /// Waits for the next notification of a method outside of calls.
    pub async fn wait_for_notification(&mut self, method: &str) -> Checked<Value> {
        loop {
            if let Some(at) = self.notifications.iter().position(|received| received["method"] == method) {
                return Ok(self.notifications.remove(at));
            }
            let InboundMessage { value, source, raw } = self.next().await.map_err(|why| format!("{why}: {method}"))?;
            match source {
                MessageSource::RequestEnd(_) => {}
                _ if value.get("method").is_some() && value.get("id").is_none() => self.notifications.push(value),
                _ => return Err(format!("unexpected message: {raw}")),
            }
        }
    }

    /// Whether the tasks extension is declared (per-request era).
    fn knows_tasks(&self) -> bool {
        self.capabilities["extensions"][format!("{META}tasks")].is_object()
    }

    /// Whether a notification arrived outside of calls.
    pub fn has_notification(&self, method: &str) -> bool {
        self.notifications.iter().any(|received| received["method"] == method)
    }

    pub fn clear_notifications(&mut self) {
        self.notifications.clear();
    }

    /// Closes the session or the stdio gateway.
    pub async fn close(mut self) -> Checked<()> {
        if let ClientTransport::Http { address, path, session: Some(_), .. } = &self.transport {
            let sending = HttpRequest::to(*address, "DELETE", path);
            let ended = self.with_session_headers(sending).status().await;
            ensure(ended == 200, "the session was not ended", &json!(ended))?;
        }
        if let ClientTransport::Stdio { input, inbound, served } = &mut self.transport {
            input.shutdown().await.map_err(|error| error.to_string())?;
            let served =
                tokio::time::timeout(MESSAGE_TIMEOUT, served).await.map_err(|_| "the stdio gateway does not stop")?;
            served.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            inbound.gateway.stop().await;
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|(_, task)| task.abort());
    }
}

/// The params of a retry with input responses and the request state.
pub fn retry(params: &Params, responses: &Value, state: Option<&str>) -> Params {
    let state = state.map(|state| format!(r#","requestState":{state}"#)).unwrap_or_default();
    let members = format!(r#"{},"inputResponses":{responses}{state}"#, params.members);
    Params { members, meta: params.meta.clone() }
}

fn json_body(sending: HttpRequest, body: &str) -> HttpRequest {
    sending.header("content-type", "application/json").body(body.to_owned())
}

fn deliver(inbox_sender: &mpsc::UnboundedSender<InboundMessage>, raw: String, source: MessageSource) {
    if !raw.is_empty() {
        let value = serde_json::from_str(&raw).unwrap_or_else(|error| panic!("{error}: {raw}"));
        let _ = inbox_sender.send(InboundMessage { raw, value, source });
    }
}

async fn read(sending: HttpRequest, inbox_sender: mpsc::UnboundedSender<InboundMessage>, id: Value) {
    let received: HttpResponse = sending.go().await;
    if received.is_events() {
        let mut events = received.events();
        while let Some(event) = events.next().await {
            deliver(&inbox_sender, event.data, MessageSource::Request(id.clone()));
        }
    } else {
        deliver(&inbox_sender, received.text().await, MessageSource::Request(id.clone()));
    }
    let _ = inbox_sender.send(InboundMessage {
        raw: String::new(),
        value: Value::Null,
        source: MessageSource::RequestEnd(id),
    });
}

/// A server request has the shape of the client revision.
fn check_server_request(revision: Revision, method: &str, params: &Value) -> Checked<()> {
    let is_valid = match method {
        "sampling/createMessage" => params["messages"].is_array() && params["maxTokens"].is_u64(),
        "roots/list" => true,
        "elicitation/create" if params["mode"] == "url" => match revision {
            Revision::V2025_11_25 => params["url"].is_string() && params["elicitationId"].is_string(),
            Revision::V2026_07_28 => params["url"].is_string() && params.get("elicitationId").is_none(),
            _ => false,
        },
        "elicitation/create" => match revision {
            Revision::V2025_06_18 => params.get("mode").is_none() && params["requestedSchema"].is_object(),
            Revision::V2025_11_25 | Revision::V2026_07_28 => params["requestedSchema"].is_object(),
            _ => false,
        },
        _ => false,
    };
    ensure(is_valid, "a server request that the revision does not have", &json!({ "method": method, "params": params }))
}

pub fn ensure(fine: bool, what: &str, about: &Value) -> Checked<()> {
    if fine { Ok(()) } else { Err(format!("{what}: {about}")) }
}
