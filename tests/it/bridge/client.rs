//! Clients that say exactly what their revision says, and complain of everything that it does not allow.

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

use super::acts::member;
use super::forms::{Form, Transport};
use super::puppet::META;
use crate::harness::{PER_REQUEST, Received, Sending};

/// What came of something, or a sentence about what is wrong.
pub type Checked<T> = Result<T, String>;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a client answers what it is asked.
pub type Answering = Box<dyn FnMut(&str, &Value) -> Result<Value, i64> + Send>;

/// One client.
pub struct Client {
    pub form: Form,
    wire: Wire,
    inbox: mpsc::UnboundedReceiver<Arrived>,
    arrivals: mpsc::UnboundedSender<Arrived>,
    last_id: u32,
    /// What it can do, as it says.
    pub capabilities: Value,
    pub answering: Answering,
    /// What it heard outside of its calls.
    heard: Vec<Value>,
    /// Which arguments of which tools are mirrored in headers.
    mirrors: HashMap<String, Vec<(String, String)>>,
    /// What reads the streams, by the request that each belongs to.
    tasks: Vec<(Value, AbortHandle)>,
}

enum Wire {
    Sse { address: SocketAddr, endpoint: String },
    Http { address: SocketAddr, path: String, session: Option<String>, token: Option<String> },
    Stdio { input: WriteHalf<DuplexStream>, inbound: Arc<Inbound>, served: JoinHandle<std::io::Result<()>> },
}

/// Something that came.
struct Arrived {
    raw: String,
    value: Value,
    place: Place,
}

/// Where something came.
#[derive(Debug, Clone, PartialEq)]
enum Place {
    /// On the one stream that there is.
    Pipe,
    /// On the stream that listens.
    Listening,
    /// In answer to a request.
    Request(Value),
    /// Nothing more comes in answer to a request.
    End(Value),
}

/// What came back for a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// The message, as it was written.
    pub raw: String,
    pub message: Value,
    /// The notices before it.
    pub notices: Vec<Value>,
    pub raw_notices: Vec<String>,
    /// What was asked meanwhile.
    pub asked: Vec<(String, Value)>,
}

/// The parameters of a request, as they are to be written, without their braces.
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

/// Answers everything in a friendly way.
pub fn friendly(method: &str, params: &Value) -> Result<Value, i64> {
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

/// What a client of a revision can do.
fn capabilities(revision: Revision) -> Value {
    let mut able = json!({ "sampling": {}, "roots": { "listChanged": true } });
    match revision {
        Revision::V2025_06_18 => able["elicitation"] = json!({}),
        Revision::V2025_11_25 => able["elicitation"] = json!({ "form": {}, "url": {} }),
        Revision::V2026_07_28 => {
            able["roots"] = json!({});
            able["elicitation"] = json!({ "form": {}, "url": {} });
        }
        _ => {}
    }
    able
}

// === impl Client ===

impl Client {
    fn new(form: Form, wire: Wire) -> Self {
        let (arrivals, inbox) = mpsc::unbounded_channel();
        Self {
            form,
            wire,
            inbox,
            arrivals,
            last_id: 0,
            capabilities: capabilities(form.revision),
            answering: Box::new(friendly),
            heard: Vec::new(),
            mirrors: HashMap::new(),
            tasks: Vec::new(),
        }
    }

    /// A client of a group of a gateway, over HTTP.
    pub async fn over_http(form: Form, address: SocketAddr, group: &str, token: Option<&str>) -> Checked<Self> {
        Self::able(form, address, group, token, capabilities(form.revision)).await
    }

    /// The same, and what it can do.
    pub async fn able(
        form: Form,
        address: SocketAddr,
        group: &str,
        token: Option<&str>,
        capabilities: Value,
    ) -> Checked<Self> {
        if form.transport == Transport::Sse {
            let stream = Sending::to(address, "GET", &format!("/sse/{group}")).header("accept", "text/event-stream");
            let mut events = stream.go().await.events();
            let first = events.next().await.ok_or("no first event")?;
            if first.name.as_deref() != Some("endpoint") {
                return Err(format!("the first event is {first:?}"));
            }
            let mut client = Self::new(form, Wire::Sse { address, endpoint: first.data });
            client.capabilities = capabilities;
            let arrivals = client.arrivals.clone();
            let reading = tokio::spawn(async move {
                while let Some(event) = events.next().await {
                    arrive(&arrivals, event.data, Place::Pipe);
                }
            });
            client.tasks.push((Value::Null, reading.abort_handle()));
            client.shake_hands().await?;
            return Ok(client);
        }
        let token = token.map(ToOwned::to_owned);
        let mut client = Self::new(form, Wire::Http { address, path: format!("/mcp/{group}"), session: None, token });
        client.capabilities = capabilities;
        if !form.is_per_request() {
            client.shake_hands().await?;
            client.listen_by_get().await?;
        }
        Ok(client)
    }

    /// A client of a gateway of its own, on a pipe.
    pub async fn over_stdio(form: Form, upstreams: Vec<UpstreamSpec>, group: &str) -> Checked<Self> {
        let plan = GroupConfig::new(group, upstreams.iter().map(|spec| Arc::clone(&spec.name)));
        let layout = GatewayConfig { upstreams, groups: vec![plan] };
        let app = App::new(AppSettings { layout, ..AppSettings::default() });
        let group = app.gateway().group(Some(group)).ok_or("no such group")?;
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (read, write) = tokio::io::split(theirs);
        let inbound = Arc::clone(app.inbound());
        tokio::spawn(Arc::clone(&inbound).look_after_sessions());
        let served = tokio::spawn(Arc::clone(&inbound).serve_stdio(group, BufReader::new(read), write));
        let (output, input) = tokio::io::split(ours);
        let mut client = Self::new(form, Wire::Stdio { input, inbound, served });
        let arrivals = client.arrivals.clone();
        let reading = tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                arrive(&arrivals, line, Place::Pipe);
            }
        });
        client.tasks.push((Value::Null, reading.abort_handle()));
        if !form.is_per_request() {
            client.shake_hands().await?;
        }
        Ok(client)
    }

    async fn shake_hands(&mut self) -> Checked<()> {
        let revision = self.form.revision.to_string();
        let info = json!({ "name": "client", "version": "1" });
        let params = json!({ "protocolVersion": revision, "capabilities": self.capabilities, "clientInfo": info });
        let answer = self.ask("initialize", params).await?;
        ensure(answer.message["result"]["protocolVersion"] == revision, "another revision", &answer.message)?;
        ensure(answer.message["result"].get("resultType").is_none(), "of another era", &answer.message)?;
        self.tell("notifications/initialized", json!({})).await
    }

    async fn listen_by_get(&mut self) -> Checked<()> {
        let Wire::Http { address, path, .. } = &self.wire else { return Ok(()) };
        let sending = Sending::to(*address, "GET", path).header("accept", "text/event-stream");
        let received = self.headed(sending).go().await;
        ensure(received.status == 200, "no stream to listen on", &json!(received.status))?;
        let mut events = received.events();
        let arrivals = self.arrivals.clone();
        let reading = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                arrive(&arrivals, event.data, Place::Listening);
            }
        });
        self.tasks.push((Value::Null, reading.abort_handle()));
        Ok(())
    }

    /// A request of this client over Streamable HTTP.
    fn headed(&self, sending: Sending) -> Sending {
        let Wire::Http { session, token, .. } = &self.wire else { return sending };
        let sending = match session {
            Some(session) => sending
                .header("mcp-session-id", session)
                .header("mcp-protocol-version", &self.form.revision.to_string()),
            None => sending,
        };
        match token {
            Some(token) => sending.header("authorization", &format!("Bearer {token}")),
            None => sending,
        }
    }

    /// Begins a request; gives back its id. Ids are numbers and strings by turns.
    pub async fn send(&mut self, method: &str, params: impl Into<Params>) -> Checked<Value> {
        self.last_id += 1;
        let id =
            if self.last_id.is_multiple_of(2) { json!(self.last_id) } else { json!(format!("id-{}", self.last_id)) };
        let Params { members, meta } = params.into();
        let mut all = vec![meta.clone()];
        if self.form.is_per_request() {
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

    /// Sends a message; where it is a request, its answers come by themselves.
    async fn write(&mut self, body: &str, request: Option<(&Value, &str)>) -> Checked<()> {
        match &mut self.wire {
            Wire::Stdio { input, .. } => {
                input.write_all(format!("{body}\n").as_bytes()).await.map_err(|error| error.to_string())
            }
            Wire::Sse { address, endpoint } => {
                let sent = json_body(Sending::to(*address, "POST", endpoint), body).status().await;
                ensure(sent == 202, "a message was not taken", &json!(sent))
            }
            Wire::Http { address, path, .. } => {
                let mut sending = json_body(Sending::to(*address, "POST", path), body)
                    .header("accept", "application/json, text/event-stream");
                if self.form.is_per_request() {
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
                let sending = self.headed(sending);
                let Some((id, method)) = request else {
                    let sent = sending.status().await;
                    return ensure(sent == 202, "a message was not taken", &json!(sent));
                };
                if method == "initialize" {
                    let received = sending.go().await;
                    let session = received.header("mcp-session-id").map(ToOwned::to_owned);
                    if let Wire::Http { session: known, .. } = &mut self.wire {
                        *known = session;
                    }
                    arrive(&self.arrivals, received.text().await, Place::Request(id.clone()));
                    return Ok(());
                }
                let arrivals = self.arrivals.clone();
                let reading = tokio::spawn(read(sending, arrivals, id.clone()));
                self.tasks.push((id.clone(), reading.abort_handle()));
                Ok(())
            }
        }
    }

    pub async fn tell(&mut self, method: &str, params: Value) -> Checked<()> {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string();
        self.write(&body, None).await
    }

    async fn next(&mut self) -> Checked<Arrived> {
        match tokio::time::timeout(PATIENCE, self.inbox.recv()).await {
            Ok(Some(arrived)) => Ok(arrived),
            Ok(None) => Err("the connection ended".into()),
            Err(_) => Err("nothing comes".into()),
        }
    }

    /// Waits for the answer to a request, and answers what is asked meanwhile.
    pub async fn response(&mut self, id: &Value) -> Checked<Answer> {
        let mut answer = Answer::default();
        loop {
            let Arrived { raw, value, place } = self.next().await?;
            if let Place::End(ended) = &place {
                if ended == id {
                    return Err(format!("nothing came for {id} but {:?}", answer.raw_notices));
                }
                continue;
            }
            let at_home = matches!(&place, Place::Pipe) || place == Place::Request(id.clone());
            match (value["method"].as_str(), value.get("id")) {
                (Some(method), Some(question)) => {
                    ensure(!self.form.is_per_request(), "a question of another era", &value)?;
                    ensure(at_home, "a question on another stream", &value)?;
                    let params = value["params"].clone();
                    check_question(self.form.revision, method, &params)?;
                    let answered = match (self.answering)(method, &params) {
                        Ok(result) => json!({ "jsonrpc": "2.0", "id": question, "result": result }),
                        Err(code) => {
                            let error = json!({ "code": code, "message": "no" });
                            json!({ "jsonrpc": "2.0", "id": question, "error": error })
                        }
                    };
                    answer.asked.push((method.to_owned(), params));
                    self.write(&answered.to_string(), None).await?;
                }
                (None, Some(answered)) if answered == id => {
                    ensure(at_home, "an answer on another stream", &value)?;
                    self.check_result(&value)?;
                    answer.raw = raw;
                    answer.message = value;
                    return Ok(answer);
                }
                (None, Some(_)) => return Err(format!("an answer to nothing: {raw}")),
                (Some("notifications/progress" | "notifications/message"), None) => {
                    ensure(at_home, "a notice on another stream", &value)?;
                    answer.notices.push(value);
                    answer.raw_notices.push(raw);
                }
                _ => self.heard.push(value),
            }
        }
    }

    /// Waits until something is asked during a request, and gives the id of that. It is not answered.
    pub async fn question(&mut self, id: &Value) -> Checked<Value> {
        loop {
            let Arrived { raw, value, place } = self.next().await?;
            let at_home = place == Place::Pipe || place == Place::Request(id.clone());
            match (value["method"].as_str(), value.get("id")) {
                (Some(_), Some(question)) if at_home => return Ok(question.clone()),
                (Some(_), None) => self.heard.push(value),
                _ if matches!(&place, Place::End(other) if other != id) => {}
                _ => return Err(format!("something else came: {raw} {place:?}")),
            }
        }
    }

    /// Waits for a sign that a request is at work.
    pub async fn begun(&mut self, id: &Value) -> Checked<Value> {
        self.first(id).await?.map_err(|end| format!("it ended before: {end}"))
    }

    /// The first thing that comes for a request: progress, or its end.
    pub async fn first(&mut self, id: &Value) -> Checked<Result<Value, String>> {
        loop {
            let Arrived { raw, value, place } = self.next().await?;
            let at_home = place == Place::Pipe || place == Place::Request(id.clone());
            match value["method"].as_str() {
                Some("notifications/progress") if at_home => return Ok(Ok(value)),
                Some(_) if value.get("id").is_none() => self.heard.push(value),
                None if value.get("id") == Some(id) => return Ok(Err(raw)),
                _ if matches!(&place, Place::End(other) if other != id) => {}
                _ => return Err(format!("something else came: {raw} {place:?}")),
            }
        }
    }

    /// That a result has what the revision wants, and nothing else of an era.
    fn check_result(&self, message: &Value) -> Checked<()> {
        let Some(result) = message.get("result") else { return Ok(()) };
        let meta = result["_meta"].as_object().cloned().unwrap_or_default();
        if !self.form.is_per_request() {
            let strange = ["resultType", "ttlMs", "cacheScope", "inputRequests", "requestState"];
            let odd = strange.iter().any(|key| result.get(key).is_some());
            let related = format!("{META}related-task");
            let foreign = |key: &String| key.starts_with(META) && !(self.knows_tasks() && *key == related);
            return ensure(!odd && !meta.keys().any(foreign), "of another era", message);
        }
        let kind = result["resultType"].as_str();
        let known = matches!(kind, Some("complete" | "input_required")) || self.knows_tasks() && kind == Some("task");
        ensure(known, "no kind of result", message)?;
        let named = meta.get(&format!("{META}serverInfo")).is_some_and(|info| info["name"].is_string());
        ensure(named || meta.contains_key(&format!("{META}subscriptionId")), "no name of the server", message)?;
        ensure(!meta.contains_key("progressToken"), "of another hop", message)
    }

    /// Makes a request, over as many rounds as it takes.
    pub async fn ask(&mut self, method: &str, params: impl Into<Params>) -> Checked<Answer> {
        let params = params.into();
        let mut sent = params.clone();
        let mut all = Answer::default();
        for _ in 0..5 {
            let id = self.send(method, sent.clone()).await?;
            let answer = self.response(&id).await?;
            let result = answer.message["result"].clone();
            all = Answer {
                notices: [all.notices, answer.notices].concat(),
                raw_notices: [all.raw_notices, answer.raw_notices].concat(),
                asked: [all.asked, answer.asked].concat(),
                ..answer
            };
            if result["resultType"] != "input_required" {
                return Ok(all);
            }
            let mut responses = Map::new();
            for (key, request) in result["inputRequests"].as_object().into_iter().flatten() {
                let method = request["method"].as_str().unwrap_or_default();
                ensure(request.get("id").is_none(), "a question with an id", request)?;
                check_question(self.form.revision, method, &request["params"])?;
                if let Ok(response) = (self.answering)(method, &request["params"]) {
                    responses.insert(key.clone(), response);
                }
                all.asked.push((method.to_owned(), request["params"].clone()));
            }
            let state = member(&all.raw, "result").and_then(|result| member(result, "requestState"));
            sent = retry(&params, &Value::Object(responses), state);
        }
        Err(format!("it asks without end: {}", all.raw))
    }

    pub async fn call(&mut self, tool: &str, arguments: Value) -> Checked<Answer> {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Remembers which arguments of the listed tools are mirrored.
    pub fn note_tools(&mut self, tools: &Value) {
        for tool in tools.as_array().into_iter().flatten() {
            let properties = tool["inputSchema"]["properties"].as_object().into_iter().flatten();
            let named =
                properties.filter_map(|(key, schema)| Some((key.clone(), schema["x-mcp-header"].as_str()?.into())));
            self.mirrors.insert(tool["name"].as_str().unwrap_or_default().into(), named.collect());
        }
    }

    /// Gives a request up, as the revision and the transport have it.
    pub async fn cancel(&mut self, id: &Value) -> Checked<()> {
        if self.form.is_per_request() && self.form.transport == Transport::Http {
            // Ending what reads the answer closes the connection.
            self.tasks.iter().filter(|(of, _)| of == id).for_each(|(_, task)| task.abort());
            return Ok(());
        }
        self.tell("notifications/cancelled", json!({ "requestId": id, "reason": "no longer" })).await
    }

    /// That nothing has come for a request that was given up: something else is asked and answered,
    /// and nothing of the old one was before it.
    pub async fn is_quiet_about(&mut self, id: &Value) -> Checked<()> {
        let asked = self.send("tools/list", json!({})).await?;
        loop {
            let Arrived { raw, value, place } = self.next().await?;
            if matches!(place, Place::End(_)) {
                continue;
            }
            ensure(value.get("id") != Some(id) && place != Place::Request(id.clone()), "it goes on", &value)?;
            if value.get("id") == Some(&asked) {
                return Ok(());
            }
            if value.get("id").is_none() {
                ensure(value["method"] != "notifications/progress", "progress goes on", &json!(raw))?;
                self.heard.push(value);
            }
        }
    }

    /// The next notice outside of calls that fits.
    pub async fn hear(&mut self, method: &str) -> Checked<Value> {
        loop {
            if let Some(at) = self.heard.iter().position(|heard| heard["method"] == method) {
                return Ok(self.heard.remove(at));
            }
            let Arrived { value, place, raw } = self.next().await.map_err(|why| format!("{why}: {method}"))?;
            match place {
                Place::End(_) => {}
                _ if value.get("method").is_some() && value.get("id").is_none() => self.heard.push(value),
                _ => return Err(format!("something else came: {raw}")),
            }
        }
    }

    /// Whether it has said that it knows tasks; the word means nothing before the newest era.
    fn knows_tasks(&self) -> bool {
        self.capabilities["extensions"][format!("{META}tasks")].is_object()
    }

    /// Whether it heard something outside of its calls.
    pub fn has_heard(&self, method: &str) -> bool {
        self.heard.iter().any(|heard| heard["method"] == method)
    }

    pub fn forget(&mut self) {
        self.heard.clear();
    }

    /// Ends everything, as the transport has it.
    pub async fn close(mut self) -> Checked<()> {
        if let Wire::Http { address, path, session: Some(_), .. } = &self.wire {
            let sending = Sending::to(*address, "DELETE", path);
            let ended = self.headed(sending).status().await;
            ensure(ended == 200, "the session was not ended", &json!(ended))?;
        }
        if let Wire::Stdio { input, inbound, served } = &mut self.wire {
            input.shutdown().await.map_err(|error| error.to_string())?;
            let served = tokio::time::timeout(PATIENCE, served).await.map_err(|_| "it does not end")?;
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

/// A request once more, with answers and the state that belongs to them.
pub fn retry(params: &Params, responses: &Value, state: Option<&str>) -> Params {
    let state = state.map(|state| format!(r#","requestState":{state}"#)).unwrap_or_default();
    let members = format!(r#"{},"inputResponses":{responses}{state}"#, params.members);
    Params { members, meta: params.meta.clone() }
}

fn json_body(sending: Sending, body: &str) -> Sending {
    sending.header("content-type", "application/json").body(body.to_owned())
}

fn arrive(arrivals: &mpsc::UnboundedSender<Arrived>, raw: String, place: Place) {
    if !raw.is_empty() {
        let value = serde_json::from_str(&raw).unwrap_or_else(|error| panic!("{error}: {raw}"));
        let _ = arrivals.send(Arrived { raw, value, place });
    }
}

async fn read(sending: Sending, arrivals: mpsc::UnboundedSender<Arrived>, id: Value) {
    let received: Received = sending.go().await;
    if received.is_events() {
        let mut events = received.events();
        while let Some(event) = events.next().await {
            arrive(&arrivals, event.data, Place::Request(id.clone()));
        }
    } else {
        arrive(&arrivals, received.text().await, Place::Request(id.clone()));
    }
    let _ = arrivals.send(Arrived { raw: String::new(), value: Value::Null, place: Place::End(id) });
}

/// That a question has the shape that a client of the revision knows.
fn check_question(revision: Revision, method: &str, params: &Value) -> Checked<()> {
    let fits = match method {
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
    ensure(fits, "a question that the revision does not have", &json!({ "method": method, "params": params }))
}

pub fn ensure(fine: bool, what: &str, about: &Value) -> Checked<()> {
    if fine { Ok(()) } else { Err(format!("{what}: {about}")) }
}
