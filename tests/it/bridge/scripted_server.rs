//! A scripted server of any variant. It has one tool, resource or prompt per feature and records every message that its
//! revision does not allow. Its state changes only through calls of its tools.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rialto::dialect::Revision;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::handlers::{RequestCx, RpcError};
use super::scripted_tasks::ScriptedTasks;
use super::variants::{Transport, Variant};

/// Sends messages to the client.
pub type Sink = mpsc::UnboundedSender<String>;

pub const CLOCK: &str = "puppet://clock";
pub const STATIC: &str = "puppet://static";
/// Prefix of the reserved `_meta` keys.
pub const META: &str = "io.modelcontextprotocol/";

/// A server and its recorded state.
pub struct ScriptedServer {
    pub variant: Variant,
    violations: Mutex<Vec<String>>,
    /// Every text that arrived.
    pub received: Mutex<Vec<String>>,
    /// Every text that was sent.
    pub sent: Mutex<Vec<String>>,
    server_state: Mutex<ServerState>,
    /// Lets tools that wait for it continue.
    pub release: Notify,
    /// Sends roots/list right after notifications/initialized.
    pub requests_roots_at_start: AtomicBool,
    pub tasks: ScriptedTasks,
    /// Cancelled once the server has crashed.
    pub crashed: CancellationToken,
}

#[derive(Default)]
struct ServerState {
    sessions: Vec<Weak<Session>>,
    /// Whether the `extra` tool is listed.
    extra: bool,
    /// Running calls.
    running: usize,
    /// Cancelled calls.
    cancelled: usize,
    /// Sessions ended by their client.
    ended: usize,
    /// Issued request states.
    issued: HashMap<String, IssuedRequestState>,
    rounds: u64,
    /// Calls by tool.
    begun: HashMap<String, usize>,
    /// Methods of received notifications.
    notifications: Vec<String>,
    /// Error codes received for server requests.
    refusals: Vec<i64>,
    /// Responses to server requests and cancellations, in order.
    log: Vec<String>,
}

/// The request and input behind a request state.
pub struct IssuedRequestState {
    /// Method and stable params of the request.
    request: (String, Value),
    pub keys: Vec<String>,
    pub answers: serde_json::Map<String, Value>,
}

/// A session, a stdio connection or a single per-request call.
pub struct Session {
    pub id: String,
    pub out: Sink,
    session_state: Mutex<SessionState>,
}

#[derive(Default)]
struct SessionState {
    capabilities: Option<Value>,
    initialized: bool,
    level: Option<usize>,
    subscriptions: BTreeSet<String>,
    ids: HashSet<String>,
    /// Cancelled before the request arrived: over HTTP one message can overtake another.
    early_cancellations: HashSet<String>,
    running: HashMap<String, CancellationToken>,
    pending_requests: HashMap<String, (String, oneshot::Sender<Result<Value, Value>>)>,
    requests_sent: u32,
    listeners: Vec<Listener>,
}

/// An open subscriptions/listen request.
pub struct Listener {
    pub id: Value,
    pub filter: Value,
    pub sink: Sink,
}

pub const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

impl SessionState {
    /// Id of the last server request; ids alternate between numbers and strings.
    fn last_request_id(&self) -> Value {
        if self.requests_sent.is_multiple_of(2) {
            json!(self.requests_sent)
        } else {
            json!(format!("q-{}", self.requests_sent))
        }
    }
}

// === impl Session ===

impl Session {
    pub fn new(id: &str, out: Sink) -> Arc<Self> {
        Arc::new(Self { id: id.into(), out, session_state: Mutex::default() })
    }

    fn session_state(&self) -> MutexGuard<'_, SessionState> {
        self.session_state.lock().unwrap()
    }

    pub fn capabilities(&self) -> Value {
        self.session_state().capabilities.clone().unwrap_or_default()
    }

    pub fn level(&self) -> Option<usize> {
        self.session_state().level
    }

    /// Sends a request to the client.
    pub fn send_request(&self, sink: &Sink, method: &str, params: &Value) -> oneshot::Receiver<Result<Value, Value>> {
        let mut session_state = self.session_state();
        session_state.requests_sent += 1;
        let id = session_state.last_request_id();
        let (answer, answered) = oneshot::channel();
        session_state.pending_requests.insert(id.to_string(), (method.to_owned(), answer));
        let _ = sink.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
        answered
    }

    /// Cancels the last server request.
    pub fn cancel_last_request(&self, sink: &Sink) {
        let mut session_state = self.session_state();
        let id = session_state.last_request_id();
        session_state.pending_requests.remove(&id.to_string());
        let _ = sink.send(notification_json("notifications/cancelled", &json!({ "requestId": id })));
    }

    /// Ends the session: cancels its calls and drops its subscriptions.
    pub fn end(&self) {
        let mut session_state = self.session_state();
        session_state.running.drain().for_each(|(_, cancel)| cancel.cancel());
        session_state.pending_requests.clear();
        session_state.subscriptions.clear();
        session_state.listeners.clear();
        session_state.initialized = false;
    }
}

// === impl Puppet ===

impl ScriptedServer {
    pub fn new(variant: Variant) -> Arc<Self> {
        Arc::new(Self {
            variant,
            violations: Mutex::default(),
            received: Mutex::default(),
            sent: Mutex::default(),
            server_state: Mutex::default(),
            release: Notify::new(),
            requests_roots_at_start: AtomicBool::new(false),
            tasks: ScriptedTasks::default(),
            crashed: CancellationToken::new(),
        })
    }

    fn server_state(&self) -> MutexGuard<'_, ServerState> {
        self.server_state.lock().unwrap()
    }

    pub fn report_violation(&self, what: impl Into<String>) {
        self.violations.lock().unwrap().push(format!("{}: {}", self.variant.name, what.into()));
    }

    /// Takes the recorded protocol violations.
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.violations.lock().unwrap())
    }

    pub fn crash(&self) {
        self.crashed.cancel();
    }

    pub fn is_at_least(&self, revision: Revision) -> bool {
        self.variant.revision >= revision
    }

    pub fn running_calls(&self) -> usize {
        self.server_state().running
    }

    pub fn cancelled_calls(&self) -> usize {
        self.server_state().cancelled
    }

    pub fn call_count(&self, tool: &str) -> usize {
        self.server_state().begun.get(tool).copied().unwrap_or_default()
    }

    pub fn ended_sessions(&self) -> usize {
        self.server_state().ended
    }

    pub fn count_ended_session(&self) {
        self.server_state().ended += 1;
    }

    /// How often a notification was received.
    pub fn notification_count(&self, method: &str) -> usize {
        self.server_state().notifications.iter().filter(|received| *received == method).count()
    }

    /// Takes the error codes received for server requests.
    pub fn take_refusals(&self) -> Vec<i64> {
        std::mem::take(&mut self.server_state().refusals)
    }

    /// Takes the log of responses to server requests and cancellations.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.server_state().log)
    }

    pub fn has_extra_tool(&self) -> bool {
        self.server_state().extra
    }

    /// Sessions and listeners subscribed to the clock.
    pub fn subscriber_count(&self) -> usize {
        let wants = |session: &Arc<Session>| {
            let session_state = session.session_state();
            session_state.subscriptions.contains(CLOCK)
                || session_state.listeners.iter().any(|listener| {
                    let uris = listener.filter["resourceSubscriptions"].as_array();
                    uris.is_some_and(|uris| uris.iter().any(|uri| uri == CLOCK)) && !listener.sink.is_closed()
                })
        };
        self.sessions().iter().filter(|session| wants(session)).count()
    }

    fn sessions(&self) -> Vec<Arc<Session>> {
        self.server_state().sessions.iter().filter_map(Weak::upgrade).collect()
    }

    pub fn open(&self, session: &Arc<Session>) {
        self.server_state().sessions.push(Arc::downgrade(session));
    }

    /// Issues a request state that the retry must echo.
    pub fn issue_request_state(
        &self,
        method: &str,
        params: &Value,
        keys: Vec<String>,
        answers: serde_json::Map<String, Value>,
    ) -> String {
        let mut server_state = self.server_state();
        server_state.rounds += 1;
        // Characters that need escaping, to detect re-encoding.
        let state = format!("{}.é \"\\/\u{7f}.{}", server_state.rounds, self.variant.name);
        server_state.issued.insert(
            state.clone(),
            IssuedRequestState { request: (method.into(), stable_params(params)), keys, answers },
        );
        state
    }

    /// Sends a notification to subscribed sessions and listeners.
    fn publish(
        &self,
        method: &str,
        params: &Value,
        wanted: impl Fn(&SessionState) -> bool,
        wish: impl Fn(&Value) -> bool,
    ) {
        for session in self.sessions() {
            let session_state = session.session_state();
            if session_state.initialized && wanted(&session_state) {
                let _ = session.out.send(notification_json(method, params));
            }
            for listener in session_state.listeners.iter().filter(|listener| wish(&listener.filter)) {
                let mut params = params.clone();
                params["_meta"][format!("{META}subscriptionId")] = listener.id.clone();
                let _ = listener.sink.send(notification_json(method, &params));
            }
        }
    }

    /// Sends notifications/tasks to the listeners of a task.
    pub fn publish_task(&self, id: &str, task: &Value) {
        let names_task =
            |filter: &Value| filter["taskIds"].as_array().is_some_and(|ids| ids.iter().any(|own| own == id));
        self.publish("notifications/tasks", task, |_| false, names_task);
    }

    /// Listeners of tasks.
    pub fn task_listener_count(&self) -> usize {
        let is_open = |listener: &&Listener| listener.filter["taskIds"].is_array() && !listener.sink.is_closed();
        let count = |session: &Arc<Session>| session.session_state().listeners.iter().filter(is_open).count();
        self.sessions().iter().map(count).sum()
    }

    /// Sends notifications/resources/updated for the clock.
    pub fn update_clock(&self) {
        let uri = json!({ "uri": CLOCK });
        let wish = |filter: &Value| {
            filter["resourceSubscriptions"].as_array().is_some_and(|uris| uris.iter().any(|uri| uri == CLOCK))
        };
        self.publish(
            "notifications/resources/updated",
            &uri,
            |session_state| session_state.subscriptions.contains(CLOCK),
            wish,
        );
    }

    /// Adds or removes the `extra` tool and sends a list change.
    pub fn toggle_extra_tool(&self) {
        {
            let mut server_state = self.server_state();
            server_state.extra = !server_state.extra;
        }
        let wish = |filter: &Value| filter["toolsListChanged"] == true;
        self.publish("notifications/tools/list_changed", &json!({}), |_| true, wish);
    }

    /// Handles a received message; the response to a request goes to `sink`.
    pub fn receive(self: &Arc<Self>, session: &Arc<Session>, raw: &str, sink: &Sink) {
        let message: Value = match serde_json::from_str(raw) {
            Ok(message) => message,
            Err(error) => return self.report_violation(format!("{error}: {raw}")),
        };
        if message["jsonrpc"] != "2.0" || message.get("params").is_some_and(|params| !params.is_object()) {
            self.report_violation(format!("not a JSON-RPC message: {raw}"));
        }
        match (message["method"].as_str(), message.get("id")) {
            (Some(_), Some(_)) => self.handle_request(session, raw, &message, sink),
            (Some(method), None) => self.handle_notification(session, method, &message["params"], raw),
            (None, Some(id)) => self.handle_response(session, id, &message, raw),
            (None, None) => self.report_violation(format!("neither request nor response: {raw}")),
        }
    }

    fn handle_request(self: &Arc<Self>, session: &Arc<Session>, raw: &str, message: &Value, sink: &Sink) {
        let (method, id) = (message["method"].as_str().unwrap_or_default(), &message["id"]);
        let respond = {
            let (sink, id) = (sink.clone(), id.clone());
            move |outcome: Result<String, RpcError>| {
                let _ = sink.send(response_json(&id, outcome));
            }
        };
        if !(id.is_string() || id.is_i64()) {
            self.report_violation(format!("an invalid id: {raw}"));
        }
        let params = message["params"].clone();
        if method == "server/discover" && !self.variant.is_per_request() {
            // A discovery probe is allowed before initialize.
            if session.session_state().capabilities.is_some() {
                self.report_violation("server/discover after initialize");
            }
            return respond(Err(RpcError::new(-32601, "Method not found")));
        }
        if method == "initialize" && self.variant.is_per_request() {
            // A gateway may ask whether there is a handshake leg, too.
            return respond(Err(RpcError::new(-32022, "Unsupported protocol version")));
        }
        let faults = if self.variant.is_per_request() {
            self.per_request_faults(&params)
        } else {
            self.session_faults(session, method, &params)
        };
        for fault in faults {
            self.report_violation(format!("{fault}: {raw}"));
        }
        let cancel = CancellationToken::new();
        {
            let mut session_state = session.session_state();
            let fresh = session_state.ids.insert(id.to_string());
            let is_reused = if self.variant.is_per_request() {
                session_state.running.contains_key(&id.to_string())
            } else {
                !fresh
            };
            if is_reused {
                self.report_violation(format!("a reused id: {raw}"));
            }
            if session_state.early_cancellations.remove(&id.to_string()) {
                cancel.cancel();
            }
            session_state.running.insert(id.to_string(), cancel.clone());
        }
        let (scripted, session, sink, raw) = (Arc::clone(self), Arc::clone(session), sink.clone(), raw.to_owned());
        let (method, id) = (method.to_owned(), id.clone());
        self.server_state().running += 1;
        tokio::spawn(async move {
            let request_cx = RequestCx {
                scripted: &scripted,
                session: &session,
                sink: &sink,
                method: &method,
                id: id.clone(),
                params,
                raw: &raw,
            };
            let closes = scripted.variant.is_per_request() && scripted.variant.transport == Transport::Http;
            let outcome = tokio::select! {
                biased;
                () = cancel.cancelled() => None,
                outcome = request_cx.handle() => Some(outcome),
                () = sink.closed(), if closes => None,
            };
            session.session_state().running.remove(&id.to_string());
            {
                let mut server_state = scripted.server_state();
                server_state.running -= 1;
                if outcome.is_none() && method != "subscriptions/listen" {
                    server_state.cancelled += 1;
                    server_state.log.push("cancelled".into());
                }
            }
            session.session_state().listeners.retain(|listener| listener.id != id);
            if let Some(outcome) = outcome {
                respond(outcome);
            }
        });
    }

    /// Faults of a per-request envelope.
    fn per_request_faults(&self, params: &Value) -> Vec<String> {
        let meta = &params["_meta"];
        let mut faults = Vec::new();
        if meta[format!("{META}protocolVersion")] != self.variant.revision.to_string() {
            faults.push("no protocolVersion".to_owned());
        }
        let capabilities = &meta[format!("{META}clientCapabilities")];
        if !capabilities.is_object()
            || capabilities.get("tasks").is_some()
            || capabilities["roots"].get("listChanged").is_some()
        {
            faults.push("capabilities that this revision does not have".to_owned());
        }
        if !meta[format!("{META}clientInfo")]["name"].is_string() {
            faults.push("no clientInfo".to_owned());
        }
        for key in ["serverInfo", "subscriptionId"] {
            if meta.get(format!("{META}{key}")).is_some() {
                faults.push(format!("{key} of another hop"));
            }
        }
        faults
    }

    /// Faults of a request in a session.
    fn session_faults(&self, session: &Session, method: &str, params: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        let session_state = session.session_state();
        match method {
            "initialize" if session_state.capabilities.is_some() => faults.push("a second initialize".to_owned()),
            "initialize" | "ping" => {}
            _ if session_state.capabilities.is_none() => faults.push("a request before initialize".to_owned()),
            _ if !session_state.initialized => faults.push("a request before notifications/initialized".to_owned()),
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

    /// The input responses of a retry, checked against its request state.
    pub fn take_input_responses(
        &self,
        method: &str,
        params: &Value,
    ) -> Result<serde_json::Map<String, Value>, RpcError> {
        let responses = params.get("inputResponses");
        let Some(state) = params.get("requestState") else {
            if responses.is_some() {
                self.report_violation("inputResponses without requestState");
            }
            return Ok(serde_json::Map::new());
        };
        let issued = state.as_str().and_then(|state| self.server_state().issued.remove(state));
        let Some(IssuedRequestState { request, keys, mut answers }) = issued else {
            self.report_violation(format!("an unknown or replayed requestState: {state}"));
            return Err(RpcError::new(-32602, "no such state"));
        };
        if request != (method.to_owned(), stable_params(params)) {
            self.report_violation(format!("a requestState of another request: {params}"));
        }
        for (key, answer) in responses.and_then(Value::as_object).into_iter().flatten() {
            if !keys.contains(key) || !answer.is_object() || answer.get("_meta").is_some() {
                self.report_violation(format!("an invalid input response: {key} {answer}"));
            }
            answers.insert(key.clone(), answer.clone());
        }
        Ok(answers)
    }

    fn handle_notification(&self, session: &Session, method: &str, params: &Value, raw: &str) {
        self.server_state().notifications.push(method.to_owned());
        let handshake = !self.variant.is_per_request();
        match method {
            "notifications/initialized" if handshake => {
                session.session_state().initialized = true;
                if self.requests_roots_at_start.load(Ordering::Relaxed) && session.capabilities()["roots"].is_object() {
                    drop(session.send_request(&session.out, "roots/list", &json!({})));
                }
            }
            "notifications/cancelled" if handshake || self.variant.transport == Transport::Stdio => {
                let mut session_state = session.session_state();
                let id = params["requestId"].to_string();
                if handshake && self.tasks.has(session, &params["requestId"]) {
                    self.report_violation(format!("notifications/cancelled for a task: {raw}"));
                }
                match session_state.running.get(&id) {
                    Some(cancel) => cancel.cancel(),
                    None if session_state.ids.contains(&id) => {}
                    None if self.variant.transport != Transport::Stdio => {
                        session_state.early_cancellations.insert(id);
                    }
                    None => self.report_violation(format!("cancellation of an unknown request: {raw}")),
                }
            }
            "notifications/roots/list_changed" | "notifications/progress" if handshake => {}
            _ => self.report_violation(format!("unknown notification in this revision: {raw}")),
        }
    }

    fn handle_response(&self, session: &Session, id: &Value, message: &Value, raw: &str) {
        let pending = session.session_state().pending_requests.remove(&id.to_string());
        let Some((method, answer)) = pending else {
            return self.report_violation(format!("a response to no request: {raw}"));
        };
        let (result, error) = (message.get("result"), message.get("error"));
        let outcome = match (result, error) {
            (Some(result), None) => {
                let is_valid = match method.as_str() {
                    "elicitation/create" => result["action"].is_string(),
                    "sampling/createMessage" => result["role"].is_string() && result["content"].is_object(),
                    _ => result["roots"].is_array(),
                };
                if !is_valid || result.get("resultType").is_some() {
                    self.report_violation(format!("invalid result of {method}: {raw}"));
                }
                self.server_state().log.push(result["action"].as_str().unwrap_or("answered").to_owned());
                Ok(result.clone())
            }
            (None, Some(error)) if error["code"].is_i64() && error["message"].is_string() => {
                let mut server_state = self.server_state();
                server_state.refusals.push(error["code"].as_i64().unwrap());
                server_state.log.push(error["code"].to_string());
                Err(error.clone())
            }
            _ => return self.report_violation(format!("neither result nor error: {raw}")),
        };
        let _ = answer.send(outcome);
    }

    pub fn initialize(&self, session: &Session, params: &Value) {
        let known = params["protocolVersion"].is_string()
            && params["capabilities"].is_object()
            && params["clientInfo"]["name"].is_string();
        if !known {
            self.report_violation(format!("incomplete initialize params: {params}"));
        }
        session.session_state().capabilities = Some(params["capabilities"].clone());
    }

    pub fn set_level(&self, session: &Session, level: &Value) {
        let level = LEVELS.iter().position(|name| level == name);
        if level.is_none() {
            self.report_violation("an invalid log level");
        }
        session.session_state().level = level;
    }

    pub fn subscribe(&self, session: &Session, uri: &Value, wanted: bool) {
        let uri = uri.as_str().unwrap_or_default().to_owned();
        let mut session_state = session.session_state();
        let changed =
            if wanted { session_state.subscriptions.insert(uri) } else { session_state.subscriptions.remove(&uri) };
        if !changed {
            self.report_violation("a duplicate subscribe, or unsubscribe without a subscription");
        }
    }

    /// Acknowledges and registers a listener under one lock, so that no notification is missed in between.
    pub fn listen(&self, session: &Session, acknowledgement: String, listener: Listener) {
        let mut session_state = session.session_state();
        let _ = listener.sink.send(acknowledgement);
        session_state.listeners.push(listener);
    }

    pub fn count_call(&self, tool: &str) {
        *self.server_state().begun.entry(tool.to_owned()).or_default() += 1;
    }
}

/// The params that stay the same across input rounds.
fn stable_params(params: &Value) -> Value {
    let keep = |key: &str| !matches!(key, "_meta" | "inputResponses" | "requestState");
    let members = params.as_object().into_iter().flatten().filter(|(key, _)| keep(key));
    Value::Object(members.map(|(key, value)| (key.clone(), value.clone())).collect())
}

pub fn notification_json(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
}

pub fn response_json(id: &Value, outcome: Result<String, RpcError>) -> String {
    match outcome {
        Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        Err(RpcError { code, message, data }) => {
            let data = data.map(|data| format!(r#","data":{data}"#)).unwrap_or_default();
            let message = json!(message);
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}{data}}}}}"#)
        }
    }
}
