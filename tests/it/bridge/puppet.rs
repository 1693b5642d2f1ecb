//! A server of any revision that does one thing for each feature, and complains of everything that
//! its revision does not allow. It is moved by calls of its tools only.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rialto::dialect::Revision;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::acts::{Cx, Failed};
use super::forms::{Form, Transport};
use super::jobs::Jobs;

/// Where messages go out.
pub type Sink = mpsc::UnboundedSender<String>;

pub const CLOCK: &str = "puppet://clock";
pub const STATIC: &str = "puppet://static";
/// What the methods, headers and members of the newest revision begin with.
pub const META: &str = "io.modelcontextprotocol/";

/// A server, and what it remembers.
pub struct Puppet {
    pub form: Form,
    complaints: Mutex<Vec<String>>,
    memory: Mutex<Memory>,
    /// Told to let those go who wait for it.
    pub release: Notify,
    /// Whether it asks for the roots as soon as it can.
    pub eager: AtomicBool,
    pub jobs: Jobs,
    /// It answers nobody any more.
    pub dead: CancellationToken,
}

#[derive(Default)]
struct Memory {
    sessions: Vec<Weak<Session>>,
    /// Whether the tool that comes and goes is there.
    extra: bool,
    /// How many calls are at work.
    running: usize,
    /// How many were cancelled.
    cancelled: usize,
    /// How many sessions were ended by their client.
    ended: usize,
    /// What each state that was given away stands for.
    issued: HashMap<String, Issued>,
    rounds: u64,
    /// How often each tool was begun.
    begun: HashMap<String, usize>,
    /// The notifications that came.
    told: Vec<String>,
    /// The errors that questions were answered with.
    refusals: Vec<i64>,
    /// The answers to questions and the ends of calls, in order.
    log: Vec<String>,
}

/// What a state stands for.
pub struct Issued {
    /// The request that it belongs to.
    request: (String, Value),
    pub keys: Vec<String>,
    pub answers: serde_json::Map<String, Value>,
}

/// A session, a pipe, or one request that stands alone.
pub struct Session {
    pub id: String,
    pub out: Sink,
    live: Mutex<Live>,
}

#[derive(Default)]
struct Live {
    capabilities: Option<Value>,
    initialized: bool,
    level: Option<usize>,
    subscriptions: BTreeSet<String>,
    ids: HashSet<String>,
    /// What was cancelled before it came: over HTTP, one message can overtake another.
    early: HashSet<String>,
    running: HashMap<String, CancellationToken>,
    questions: HashMap<String, (String, oneshot::Sender<Result<Value, Value>>)>,
    asked: u32,
    listeners: Vec<Listener>,
}

/// A call that stays open to hear of changes.
pub struct Listener {
    pub id: Value,
    pub wishes: Value,
    pub sink: Sink,
}

pub const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

impl Live {
    /// The id of the last question; they are numbers and strings by turns.
    fn last_question(&self) -> Value {
        if self.asked.is_multiple_of(2) { json!(self.asked) } else { json!(format!("q-{}", self.asked)) }
    }
}

// === impl Session ===

impl Session {
    pub fn new(id: &str, out: Sink) -> Arc<Self> {
        Arc::new(Self { id: id.into(), out, live: Mutex::default() })
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap()
    }

    pub fn capabilities(&self) -> Value {
        self.live().capabilities.clone().unwrap_or_default()
    }

    pub fn level(&self) -> Option<usize> {
        self.live().level
    }

    /// Asks the client something.
    pub fn ask(&self, sink: &Sink, method: &str, params: &Value) -> oneshot::Receiver<Result<Value, Value>> {
        let mut live = self.live();
        live.asked += 1;
        let id = live.last_question();
        let (answer, answered) = oneshot::channel();
        live.questions.insert(id.to_string(), (method.to_owned(), answer));
        let _ = sink.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
        answered
    }

    /// Takes the last question back.
    pub fn withdraw(&self, sink: &Sink) {
        let mut live = self.live();
        let id = live.last_question();
        live.questions.remove(&id.to_string());
        let _ = sink.send(notice("notifications/cancelled", &json!({ "requestId": id })));
    }

    /// Nobody is there any more.
    pub fn end(&self) {
        let mut live = self.live();
        live.running.drain().for_each(|(_, cancel)| cancel.cancel());
        live.questions.clear();
        live.subscriptions.clear();
        live.listeners.clear();
        live.initialized = false;
    }
}

// === impl Puppet ===

impl Puppet {
    pub fn new(form: Form) -> Arc<Self> {
        Arc::new(Self {
            form,
            complaints: Mutex::default(),
            memory: Mutex::default(),
            release: Notify::new(),
            eager: AtomicBool::new(false),
            jobs: Jobs::default(),
            dead: CancellationToken::new(),
        })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }

    pub fn complain(&self, what: impl Into<String>) {
        self.complaints.lock().unwrap().push(format!("{}: {}", self.form.name, what.into()));
    }

    /// What it had to complain of since it was last asked.
    pub fn complaints(&self) -> Vec<String> {
        std::mem::take(&mut self.complaints.lock().unwrap())
    }

    pub fn die(&self) {
        self.dead.cancel();
    }

    pub fn is_at_least(&self, revision: Revision) -> bool {
        self.form.revision >= revision
    }

    pub fn running(&self) -> usize {
        self.memory().running
    }

    pub fn cancelled(&self) -> usize {
        self.memory().cancelled
    }

    pub fn begun(&self, tool: &str) -> usize {
        self.memory().begun.get(tool).copied().unwrap_or_default()
    }

    pub fn ended(&self) -> usize {
        self.memory().ended
    }

    pub fn note_end(&self) {
        self.memory().ended += 1;
    }

    /// How often it was told something.
    pub fn heard(&self, method: &str) -> usize {
        self.memory().told.iter().filter(|told| *told == method).count()
    }

    /// The errors that questions were answered with since it was last asked.
    pub fn refusals(&self) -> Vec<i64> {
        std::mem::take(&mut self.memory().refusals)
    }

    /// The answers to questions and the ends of calls, in order, since it was last asked.
    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.memory().log)
    }

    pub fn has_extra(&self) -> bool {
        self.memory().extra
    }

    /// How many want to hear of the clock.
    pub fn subscribers(&self) -> usize {
        let wants = |session: &Arc<Session>| {
            let live = session.live();
            live.subscriptions.contains(CLOCK)
                || live.listeners.iter().any(|listener| {
                    let uris = listener.wishes["resourceSubscriptions"].as_array();
                    uris.is_some_and(|uris| uris.iter().any(|uri| uri == CLOCK)) && !listener.sink.is_closed()
                })
        };
        self.sessions().iter().filter(|session| wants(session)).count()
    }

    fn sessions(&self) -> Vec<Arc<Session>> {
        self.memory().sessions.iter().filter_map(Weak::upgrade).collect()
    }

    pub fn open(&self, session: &Arc<Session>) {
        self.memory().sessions.push(Arc::downgrade(session));
    }

    /// Remembers what is asked, under a state that has to come back.
    pub fn issue(
        &self,
        method: &str,
        params: &Value,
        keys: Vec<String>,
        answers: serde_json::Map<String, Value>,
    ) -> String {
        let mut memory = self.memory();
        memory.rounds += 1;
        // Letters that a careless hand would spoil.
        let state = format!("{}.é \"\\/\u{7f}.{}", memory.rounds, self.form.name);
        memory.issued.insert(state.clone(), Issued { request: (method.into(), steady(params)), keys, answers });
        state
    }

    /// Tells everybody who wants to know.
    fn publish(&self, method: &str, params: &Value, wanted: impl Fn(&Live) -> bool, wish: impl Fn(&Value) -> bool) {
        for session in self.sessions() {
            let live = session.live();
            if live.initialized && wanted(&live) {
                let _ = session.out.send(notice(method, params));
            }
            for listener in live.listeners.iter().filter(|listener| wish(&listener.wishes)) {
                let mut params = params.clone();
                params["_meta"][format!("{META}subscriptionId")] = listener.id.clone();
                let _ = listener.sink.send(notice(method, &params));
            }
        }
    }

    /// The resource that changes has changed.
    pub fn tick(&self) {
        let uri = json!({ "uri": CLOCK });
        let wish = |wishes: &Value| {
            wishes["resourceSubscriptions"].as_array().is_some_and(|uris| uris.iter().any(|uri| uri == CLOCK))
        };
        self.publish("notifications/resources/updated", &uri, |live| live.subscriptions.contains(CLOCK), wish);
    }

    /// A tool comes or goes.
    pub fn grow(&self) {
        {
            let mut memory = self.memory();
            memory.extra = !memory.extra;
        }
        let wish = |wishes: &Value| wishes["toolsListChanged"] == true;
        self.publish("notifications/tools/list_changed", &json!({}), |_| true, wish);
    }

    /// Takes a message. What comes back for a request goes to `sink`.
    pub fn take(self: &Arc<Self>, session: &Arc<Session>, raw: &str, sink: &Sink) {
        let message: Value = match serde_json::from_str(raw) {
            Ok(message) => message,
            Err(error) => return self.complain(format!("{error}: {raw}")),
        };
        if message["jsonrpc"] != "2.0" || message.get("params").is_some_and(|params| !params.is_object()) {
            self.complain(format!("no message of the protocol: {raw}"));
        }
        match (message["method"].as_str(), message.get("id")) {
            (Some(_), Some(_)) => self.request(session, raw, &message, sink),
            (Some(method), None) => self.notice(session, method, &message["params"], raw),
            (None, Some(id)) => self.response(session, id, &message, raw),
            (None, None) => self.complain(format!("neither request nor response: {raw}")),
        }
    }

    fn request(self: &Arc<Self>, session: &Arc<Session>, raw: &str, message: &Value, sink: &Sink) {
        let (method, id) = (message["method"].as_str().unwrap_or_default(), &message["id"]);
        let respond = {
            let (sink, id) = (sink.clone(), id.clone());
            move |outcome: Result<String, Failed>| {
                let _ = sink.send(response(&id, outcome));
            }
        };
        if !(id.is_string() || id.is_i64()) {
            self.complain(format!("a strange id: {raw}"));
        }
        let params = message["params"].clone();
        if method == "server/discover" && !self.form.is_per_request() {
            // They want to know what is here; that is no fault before a handshake.
            if session.live().capabilities.is_some() {
                self.complain("asked what it is after the handshake");
            }
            return respond(Err(Failed::new(-32601, "Method not found")));
        }
        let faults = if self.form.is_per_request() {
            self.faults_alone(&params)
        } else {
            self.faults_in_session(session, method, &params)
        };
        for fault in faults {
            self.complain(format!("{fault}: {raw}"));
        }
        let cancel = CancellationToken::new();
        {
            let mut live = session.live();
            let fresh = live.ids.insert(id.to_string());
            let taken = if self.form.is_per_request() { live.running.contains_key(&id.to_string()) } else { !fresh };
            if taken {
                self.complain(format!("an id was used before: {raw}"));
            }
            if live.early.remove(&id.to_string()) {
                cancel.cancel();
            }
            live.running.insert(id.to_string(), cancel.clone());
        }
        let (puppet, session, sink, raw) = (Arc::clone(self), Arc::clone(session), sink.clone(), raw.to_owned());
        let (method, id) = (method.to_owned(), id.clone());
        self.memory().running += 1;
        tokio::spawn(async move {
            let cx = Cx {
                puppet: &puppet,
                session: &session,
                sink: &sink,
                method: &method,
                id: id.clone(),
                params,
                raw: &raw,
            };
            let closes = puppet.form.is_per_request() && puppet.form.transport == Transport::Http;
            let outcome = tokio::select! {
                biased;
                () = cancel.cancelled() => None,
                outcome = cx.act() => Some(outcome),
                () = sink.closed(), if closes => None,
            };
            session.live().running.remove(&id.to_string());
            {
                let mut memory = puppet.memory();
                memory.running -= 1;
                if outcome.is_none() && method != "subscriptions/listen" {
                    memory.cancelled += 1;
                    memory.log.push("cancelled".into());
                }
            }
            session.live().listeners.retain(|listener| listener.id != id);
            if let Some(outcome) = outcome {
                respond(outcome);
            }
        });
    }

    /// What is wrong with a request of the newest revision.
    fn faults_alone(&self, params: &Value) -> Vec<String> {
        let meta = &params["_meta"];
        let mut faults = Vec::new();
        if meta[format!("{META}protocolVersion")] != self.form.revision.to_string() {
            faults.push("no version".to_owned());
        }
        let able = &meta[format!("{META}clientCapabilities")];
        if !able.is_object() || able.get("tasks").is_some() || able["roots"].get("listChanged").is_some() {
            faults.push("capabilities that this revision does not have".to_owned());
        }
        if !meta[format!("{META}clientInfo")]["name"].is_string() {
            faults.push("no name of the client".to_owned());
        }
        for key in ["serverInfo", "subscriptionId"] {
            if meta.get(format!("{META}{key}")).is_some() {
                faults.push(format!("{key} of another hop"));
            }
        }
        faults
    }

    /// What is wrong with a request in a session.
    fn faults_in_session(&self, session: &Session, method: &str, params: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        let live = session.live();
        match method {
            "initialize" if live.capabilities.is_some() => faults.push("a second handshake".to_owned()),
            "initialize" | "ping" => {}
            _ if live.capabilities.is_none() => faults.push("before the handshake".to_owned()),
            _ if !live.initialized => faults.push("before the handshake was over".to_owned()),
            _ => {}
        }
        let meta = params["_meta"].as_object();
        for key in meta.into_iter().flat_map(|meta| meta.keys()).filter(|key| key.starts_with(META)) {
            faults.push(format!("{key} of another era"));
        }
        for key in ["inputResponses", "requestState"] {
            if params.get(key).is_some() {
                faults.push(format!("{key} of another era"));
            }
        }
        faults
    }

    /// The answers that a retry brings.
    pub fn retried(&self, method: &str, params: &Value) -> Result<serde_json::Map<String, Value>, Failed> {
        let responses = params.get("inputResponses");
        let Some(state) = params.get("requestState") else {
            if responses.is_some() {
                self.complain("answers without the state that was given");
            }
            return Ok(serde_json::Map::new());
        };
        let issued = state.as_str().and_then(|state| self.memory().issued.remove(state));
        let Some(Issued { request, keys, mut answers }) = issued else {
            self.complain(format!("a state that was not given, or used before: {state}"));
            return Err(Failed::new(-32602, "no such state"));
        };
        if request != (method.to_owned(), steady(params)) {
            self.complain(format!("a state of another request: {params}"));
        }
        for (key, answer) in responses.and_then(Value::as_object).into_iter().flatten() {
            if !keys.contains(key) || !answer.is_object() || answer.get("_meta").is_some() {
                self.complain(format!("an answer to nothing, or of another hop: {key} {answer}"));
            }
            answers.insert(key.clone(), answer.clone());
        }
        Ok(answers)
    }

    fn notice(&self, session: &Session, method: &str, params: &Value, raw: &str) {
        self.memory().told.push(method.to_owned());
        let handshake = !self.form.is_per_request();
        match method {
            "notifications/initialized" if handshake => {
                session.live().initialized = true;
                if self.eager.load(Ordering::Relaxed) && session.capabilities()["roots"].is_object() {
                    drop(session.ask(&session.out, "roots/list", &json!({})));
                }
            }
            "notifications/cancelled" if handshake || self.form.transport == Transport::Stdio => {
                let mut live = session.live();
                let id = params["requestId"].to_string();
                if handshake && self.jobs.has(session, &params["requestId"]) {
                    self.complain(format!("a task is not cancelled this way: {raw}"));
                }
                match live.running.get(&id) {
                    Some(cancel) => cancel.cancel(),
                    None if live.ids.contains(&id) => {}
                    None if self.form.transport != Transport::Stdio => drop(live.early.insert(id)),
                    None => self.complain(format!("what is cancelled never began: {raw}")),
                }
            }
            "notifications/roots/list_changed" | "notifications/progress" if handshake => {}
            _ => self.complain(format!("nothing of this revision: {raw}")),
        }
    }

    fn response(&self, session: &Session, id: &Value, message: &Value, raw: &str) {
        let asked = session.live().questions.remove(&id.to_string());
        let Some((method, answer)) = asked else {
            return self.complain(format!("an answer to nothing: {raw}"));
        };
        let (result, error) = (message.get("result"), message.get("error"));
        let outcome = match (result, error) {
            (Some(result), None) => {
                let fits = match method.as_str() {
                    "elicitation/create" => result["action"].is_string(),
                    "sampling/createMessage" => result["role"].is_string() && result["content"].is_object(),
                    _ => result["roots"].is_array(),
                };
                if !fits || result.get("resultType").is_some() {
                    self.complain(format!("no answer to {method}: {raw}"));
                }
                self.memory().log.push(result["action"].as_str().unwrap_or("answered").to_owned());
                Ok(result.clone())
            }
            (None, Some(error)) if error["code"].is_i64() && error["message"].is_string() => {
                let mut memory = self.memory();
                memory.refusals.push(error["code"].as_i64().unwrap());
                memory.log.push(error["code"].to_string());
                Err(error.clone())
            }
            _ => return self.complain(format!("no answer: {raw}")),
        };
        let _ = answer.send(outcome);
    }

    pub fn initialize(&self, session: &Session, params: &Value) {
        let known = params["protocolVersion"].is_string()
            && params["capabilities"].is_object()
            && params["clientInfo"]["name"].is_string();
        if !known {
            self.complain(format!("an incomplete handshake: {params}"));
        }
        session.live().capabilities = Some(params["capabilities"].clone());
    }

    pub fn set_level(&self, session: &Session, level: &Value) {
        let level = LEVELS.iter().position(|name| level == name);
        if level.is_none() {
            self.complain("a level that does not exist");
        }
        session.live().level = level;
    }

    pub fn subscribe(&self, session: &Session, uri: &Value, wanted: bool) {
        let uri = uri.as_str().unwrap_or_default().to_owned();
        let mut live = session.live();
        let changed = if wanted { live.subscriptions.insert(uri) } else { live.subscriptions.remove(&uri) };
        if !changed {
            self.complain("a subscription that is there, or an end of one that is not");
        }
    }

    /// Who has been told that it is heard is among the listeners: nothing comes between.
    pub fn listen(&self, session: &Session, acknowledgement: String, listener: Listener) {
        let mut live = session.live();
        let _ = listener.sink.send(acknowledgement);
        live.listeners.push(listener);
    }

    pub fn note_begun(&self, tool: &str) {
        *self.memory().begun.entry(tool.to_owned()).or_default() += 1;
    }
}

/// What of a request stays the same from round to round.
fn steady(params: &Value) -> Value {
    let keep = |key: &str| !matches!(key, "_meta" | "inputResponses" | "requestState");
    let members = params.as_object().into_iter().flatten().filter(|(key, _)| keep(key));
    Value::Object(members.map(|(key, value)| (key.clone(), value.clone())).collect())
}

pub fn notice(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
}

pub fn response(id: &Value, outcome: Result<String, Failed>) -> String {
    match outcome {
        Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        Err(Failed { code, message, data }) => {
            let data = data.map(|data| format!(r#","data":{data}"#)).unwrap_or_default();
            let message = json!(message);
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}{data}}}}}"#)
        }
    }
}
