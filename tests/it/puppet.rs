//! An upstream in the hands of a test: it offers what the test says, does in a call what the call's
//! arguments say, and remembers everything that it was sent.
//!
//! It speaks the handshake era over Streamable HTTP, HTTP+SSE and stdio, and the per-request era over
//! HTTP. A child cannot live in the test's process, so over stdio a shell stands between.

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

/// How a puppet is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    Http,
    Sse,
    Stdio,
    PerRequest,
}

/// A running puppet. Dropping it ends it.
pub struct Puppet {
    pub name: String,
    pub address: SocketAddr,
    inner: Arc<Inner>,
}

/// What a puppet shows.
pub struct Offers {
    pub capabilities: Value,
    pub instructions: Option<String>,
    pub tools: Vec<Value>,
    pub prompts: Vec<Value>,
    pub resources: Vec<Value>,
    pub templates: Vec<Value>,
    /// The resources that it does not tell of.
    pub untold: Vec<String>,
}

/// What a puppet does instead of answering as it should.
#[derive(Clone)]
pub enum Mischief {
    /// Never answers.
    Hang,
    /// Answers once the gate of that name is open.
    Hold,
    /// Reads it once the gate of that name is open, as if it had been on its way until then; over HTTP only.
    Late,
    /// Answers with a status and a text, `$id` in it replaced; over HTTP only.
    Bytes(u16, String),
    /// Answers with what a function makes of the parameters.
    Result(Arc<dyn Fn(&Value) -> Value + Send + Sync>),
}

/// Something that was sent to a puppet.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The method, or the verb where there is no message.
    pub what: String,
    pub session: String,
    pub body: Value,
    pub headers: Vec<(String, String)>,
}

type Out = mpsc::UnboundedSender<Value>;

struct Inner {
    name: String,
    speaks: Speaks,
    offers: Mutex<Offers>,
    mischief: Mutex<HashMap<String, Mischief>>,
    seen: Mutex<Vec<Seen>>,
    talks: Mutex<HashMap<String, Arc<Talk>>>,
    renamed: Mutex<HashMap<String, String>>,
    listeners: Mutex<Vec<(Value, Value, Out)>>,
    opened: Mutex<BTreeSet<String>>,
    opening: Notify,
    last: AtomicI64,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// A session of a client with a puppet.
struct Talk {
    id: String,
    /// What belongs to no call goes here.
    out: Mutex<Option<Out>>,
    tools: Mutex<Vec<Value>>,
    /// How many calls there were.
    calls: AtomicI64,
    subscriptions: Mutex<BTreeSet<String>>,
    pending: Mutex<HashMap<i64, oneshot::Sender<Value>>>,
    running: Mutex<HashMap<String, CancellationToken>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

pub fn tool(name: &str) -> Value {
    json!({ "name": name, "description": format!("does {name}"), "inputSchema": { "type": "object" } })
}

impl Default for Offers {
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
            untold: Vec::new(),
        }
    }
}

// === impl Puppet ===

impl Puppet {
    pub async fn start(name: &str, speaks: Speaks) -> Self {
        Self::with(name, speaks, |_| {}).await
    }

    pub async fn with(name: &str, speaks: Speaks, change: impl FnOnce(&mut Offers)) -> Self {
        let mut offers = Offers::default();
        change(&mut offers);
        let inner = Arc::new(Inner {
            name: name.into(),
            speaks,
            offers: Mutex::new(offers),
            mischief: Mutex::default(),
            seen: Mutex::default(),
            talks: Mutex::default(),
            renamed: Mutex::default(),
            listeners: Mutex::default(),
            opened: Mutex::default(),
            opening: Notify::new(),
            last: AtomicI64::new(0),
            tasks: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let puppet = Self { name: name.into(), address, inner };
        puppet.inner.accept(listener);
        puppet
    }

    pub fn speaks(&self) -> Speaks {
        self.inner.speaks
    }

    /// Where it is.
    pub fn target(&self) -> Target {
        match self.inner.speaks {
            Speaks::Http | Speaks::PerRequest => Target::url(&format!("http://{}/mcp", self.address)).unwrap(),
            Speaks::Sse => {
                let url = format!("http://{}/sse", self.address).parse().unwrap();
                Target::Url(Address { url, headers: http::HeaderMap::new(), transport: Some(HttpTransport::Sse) })
            }
            Speaks::Stdio => {
                let script = "exec 3<>/dev/tcp/127.0.0.1/$0 4<&0; cat <&3 & cat <&4 >&3 & wait -n; echo last words >&2; kill %1 %2";
                let mut target = Target::command("bash", ["-c", script, &self.address.port().to_string()]);
                if let Target::Command(command) = &mut target {
                    command.environment = vec![("MARKER".into(), self.marker())];
                }
                target
            }
        }
    }

    /// What its children carry in their environment.
    pub fn marker(&self) -> String {
        format!("{}-{}", self.name, self.address.port())
    }

    /// Changes what it offers, and says so in `notice` if there is one.
    pub fn change(&self, notice: &str, change: impl FnOnce(&mut Offers)) {
        change(&mut lock(&self.inner.offers));
        if !notice.is_empty() {
            self.notify(notice, &json!({}));
        }
    }

    /// Says something to everybody who listens.
    pub fn notify(&self, method: &str, params: &Value) {
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        for talk in lock(&self.inner.talks).values() {
            let subscribed = |uri: &str| lock(&talk.subscriptions).contains(uri);
            if params["uri"].as_str().is_none_or(subscribed) {
                talk.say(message.clone());
            }
        }
        let wanted = |wishes: &Value| match method {
            "notifications/tools/list_changed" => wishes["toolsListChanged"] == true,
            "notifications/prompts/list_changed" => wishes["promptsListChanged"] == true,
            "notifications/resources/list_changed" => wishes["resourcesListChanged"] == true,
            _ => wishes["resourceSubscriptions"].as_array().is_some_and(|uris| uris.contains(&params["uri"])),
        };
        for (id, wishes, out) in lock(&self.inner.listeners).iter().filter(|(_, wishes, _)| wanted(wishes)) {
            let mut message = message.clone();
            message["params"]["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": id });
            let _ = (wishes, out.send(message));
        }
    }

    /// From now on it does something else when it is asked `method`.
    pub fn misbehave(&self, method: &str, mischief: Mischief) {
        lock(&self.inner.mischief).insert(method.into(), mischief);
    }

    /// It answers `method` only after that was [opened](Self::open).
    pub fn hold(&self, method: &str) {
        self.misbehave(method, Mischief::Hold);
    }

    pub fn behave(&self) {
        lock(&self.inner.mischief).clear();
    }

    /// Lets calls go on that wait for this.
    pub fn open(&self, gate: &str) {
        lock(&self.inner.opened).insert(gate.into());
        self.inner.opening.notify_waiters();
    }

    /// Lets them wait again.
    pub fn close(&self, gate: &str) {
        lock(&self.inner.opened).remove(gate);
    }

    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.inner.seen).clone()
    }

    /// How often it was sent something.
    pub fn count(&self, what: &str) -> usize {
        lock(&self.inner.seen).iter().filter(|seen| seen.what == what).count()
    }

    pub async fn sees(&self, what: &str, times: usize) {
        until(&format!("{} sees {times} {what}", self.name), || self.count(what) >= times).await;
    }

    /// Whether somebody who wants to hear of a resource can be told.
    pub fn hears(&self, uri: &str) -> bool {
        let talks = lock(&self.inner.talks);
        talks.values().any(|talk| lock(&talk.subscriptions).contains(uri) && lock(&talk.out).is_some())
    }

    /// How many sessions are open.
    pub fn sessions(&self) -> usize {
        lock(&self.inner.talks).len()
    }

    /// How many listen in the per-request era.
    pub fn listeners(&self) -> usize {
        let mut listeners = lock(&self.inner.listeners);
        listeners.retain(|(_, _, out)| !out.is_closed());
        listeners.len()
    }

    /// Ends every connection and every session, and accepts no more.
    pub fn stop(&self) {
        for task in std::mem::take(&mut *lock(&self.inner.tasks)) {
            task.abort();
        }
        self.forget();
    }

    /// Ends the streams that clients listen on, and keeps their sessions.
    pub fn end_streams(&self) {
        for talk in lock(&self.inner.talks).values() {
            lock(&talk.out).take();
        }
    }

    /// Forgets every session, but answers on.
    pub fn forget(&self) {
        lock(&self.inner.talks).clear();
        lock(&self.inner.listeners).clear();
    }

    /// From now on it names a session otherwise, and says so in its next answer; over HTTP only.
    pub fn rename(&self, session: &str, other: &str) {
        let mut talks = lock(&self.inner.talks);
        let talk = talks.get(session).cloned().unwrap();
        talks.insert(other.into(), talk);
        lock(&self.inner.renamed).insert(session.into(), other.into());
    }

    /// Is there again, at the same place.
    pub async fn restart(&self) {
        let listener = loop {
            // The one before may not be gone yet.
            match TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        self.inner.accept(listener);
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        self.stop();
    }
}

// === impl Talk ===

impl Talk {
    fn new(id: &str, out: Option<Out>) -> Arc<Self> {
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

    fn say(&self, message: Value) {
        if let Some(out) = &*lock(&self.out) {
            let _ = out.send(message);
        }
    }

    /// Takes what wants no answer: an answer, or a notice.
    fn take(&self, message: &Value) {
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

// === impl Inner ===

impl Inner {
    fn introduction(&self, asked: &Value) -> Value {
        let offers = lock(&self.offers);
        let info = json!({ "name": self.name, "version": "1", "title": format!("The {}", self.name) });
        let mut result = match self.speaks {
            Speaks::PerRequest => json!({
                "resultType": "complete", "supportedVersions": [PER_REQUEST], "ttlMs": 0, "cacheScope": "private",
                "_meta": { "io.modelcontextprotocol/serverInfo": info },
            }),
            _ => json!({ "protocolVersion": asked["protocolVersion"], "serverInfo": info }),
        };
        result["capabilities"] = offers.capabilities.clone();
        if let Some(instructions) = &offers.instructions {
            result["instructions"] = instructions.as_str().into();
        }
        result
    }

    /// Answers a request on `out`, until it is cancelled or nobody listens any more.
    async fn serve(self: Arc<Self>, talk: Option<Arc<Talk>>, message: Value, out: Out) {
        let id = message["id"].clone();
        let cancelled = CancellationToken::new();
        if let Some(talk) = &talk {
            lock(&talk.running).insert(id.to_string(), cancelled.clone());
        }
        let outcome = tokio::select! {
            outcome = self.outcome(talk.as_ref(), &message, &out) => outcome,
            () = cancelled.cancelled() => return self.note_end("cancelled", talk.as_ref(), message),
            () = out.closed() => return self.note_end("abandoned", talk.as_ref(), message),
        };
        if let Some(talk) = &talk {
            lock(&talk.running).remove(&id.to_string());
        }
        let answer = match outcome {
            Ok(mut result) => {
                if self.speaks == Speaks::PerRequest && result["resultType"].is_null() {
                    result["resultType"] = "complete".into();
                }
                json!({ "jsonrpc": "2.0", "id": id, "result": result })
            }
            Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
        };
        let _ = out.send(answer);
    }

    fn note_end(&self, how: &str, talk: Option<&Arc<Talk>>, body: Value) {
        let session = talk.map(|talk| talk.id.clone()).unwrap_or_default();
        lock(&self.seen).push(Seen { what: how.into(), session, body, headers: Vec::new() });
    }

    async fn outcome(&self, talk: Option<&Arc<Talk>>, message: &Value, out: &Out) -> Result<Value, Value> {
        let params = &message["params"];
        let method = message["method"].as_str().unwrap_or_default();
        let mischief = lock(&self.mischief).get(method).cloned();
        match mischief {
            Some(Mischief::Hang) => std::future::pending::<()>().await,
            Some(Mischief::Hold) => self.wait(method).await,
            Some(Mischief::Result(make)) => return Ok(make(params)),
            Some(Mischief::Late | Mischief::Bytes(..)) | None => {}
        }
        let uri = params["uri"].as_str().unwrap_or_default();
        Ok(match method {
            "initialize" | "server/discover" => self.introduction(params),
            "tools/list" => {
                let own = talk.map(|talk| lock(&talk.tools).clone()).unwrap_or_default();
                let tools = [lock(&self.offers).tools.clone(), own].concat();
                json!({ "tools": tools })
            }
            "prompts/list" => json!({ "prompts": lock(&self.offers).prompts }),
            "resources/list" => json!({ "resources": lock(&self.offers).resources }),
            "resources/templates/list" => json!({ "resourceTemplates": lock(&self.offers).templates }),
            "tools/call" => return self.call(talk, params, out).await,
            "prompts/get" => {
                let text = json!({ "type": "text", "text": format!("{} {}", self.name, params["name"]) });
                let resource = json!({ "type": "resource", "resource": { "uri": "res://one", "text": "one" } });
                json!({ "messages": [{ "role": "user", "content": text }, { "role": "user", "content": resource }] })
            }
            "resources/read" if uri.contains("missing") => {
                let code = if self.speaks == Speaks::PerRequest { -32602 } else { -32002 };
                return Err(json!({ "code": code, "message": "Resource not found", "data": { "uri": uri } }));
            }
            "resources/read" => json!({ "contents": [{ "uri": uri, "text": format!("{} has {uri}", self.name) }] }),
            "completion/complete" => {
                let named = params["ref"]["name"].as_str().or(params["ref"]["uri"].as_str());
                json!({ "completion": { "values": [self.name, named] } })
            }
            "resources/subscribe" if lock(&self.offers).untold.iter().any(|untold| untold == uri) => {
                return Err(json!({ "code": -32602, "message": "not to be told of" }));
            }
            "resources/subscribe" | "resources/unsubscribe" => {
                let mut subscriptions = lock(&talk.unwrap().subscriptions);
                let _ = if method == "resources/subscribe" {
                    subscriptions.insert(uri.into())
                } else {
                    subscriptions.remove(uri)
                };
                json!({})
            }
            "subscriptions/listen" => {
                let (id, mut wishes) = (message["id"].clone(), params["notifications"].clone());
                if let Some(uris) = wishes["resourceSubscriptions"].as_array_mut() {
                    let offers = lock(&self.offers);
                    uris.retain(|uri| !offers.untold.iter().any(|untold| uri == untold));
                }
                let mut ack = json!({ "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged" });
                ack["params"] = json!({ "notifications": wishes });
                ack["params"]["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": id });
                let _ = out.send(ack);
                lock(&self.listeners).push((id, wishes, out.clone()));
                std::future::pending().await
            }
            "ping" | "logging/setLevel" => json!({}),
            other if other.starts_with("x/") => json!({ "extension": other, "params": params }),
            other => return Err(json!({ "code": -32601, "message": format!("what is {other}?") })),
        })
    }

    /// Does what the arguments of a call say.
    async fn call(&self, talk: Option<&Arc<Talk>>, params: &Value, out: &Out) -> Result<Value, Value> {
        let arguments = &params["arguments"];
        let steps = arguments["steps"].as_array().cloned().unwrap_or_default();
        let mut answers = Vec::new();
        let asked: Vec<&Value> = steps.iter().map(|step| &step["ask"]).filter(|ask| !ask.is_null()).collect();
        if self.speaks == Speaks::PerRequest && !asked.is_empty() && params["inputResponses"].is_null() {
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
                self.wait(gate).await;
            }
            if let (Some(name), Some(talk)) = (step["grow"].as_str(), talk) {
                lock(&talk.tools).push(tool(name));
                talk.say(json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
            }
            if let Some(talk) = talk.filter(|_| step["ask"].is_object()) {
                let answer = self.ask(talk, &step["ask"], out).await;
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
        let session = talk.map(|talk| talk.id.as_str()).unwrap_or_default();
        let calls = talk.map(|talk| talk.calls.fetch_add(1, Ordering::SeqCst) + 1);
        let report = json!({
            "puppet": self.name, "session": session, "calls": calls, "tool": params["name"],
            "message": arguments["message"], "answers": answers,
        });
        Ok(json!({ "content": [{ "type": "text", "text": report.to_string() }] }))
    }

    async fn wait(&self, gate: &str) {
        loop {
            let opening = self.opening.notified();
            if lock(&self.opened).contains(gate) {
                return;
            }
            opening.await;
        }
    }

    async fn ask(&self, talk: &Talk, ask: &Value, out: &Out) -> Value {
        let id = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        let (answer, answered) = oneshot::channel();
        lock(&talk.pending).insert(id, answer);
        let mut request = ask.clone();
        request["jsonrpc"] = "2.0".into();
        request["id"] = id.into();
        let _ = out.send(request);
        answered.await.unwrap_or_else(|_| json!({ "error": "nobody is there" }))
    }
}
