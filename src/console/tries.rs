//! `try` and `probe`: calls that an operator makes as a client of any revision, and what a server is found to speak.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::AbortHandle;

use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult, ApiRoute, rfc3339};
use super::config_file::pasted_server;
use super::groups::parse_revision;
use super::{Console, Topic, groups, servers};
use crate::call::REQUEST_ID;
use crate::client::{Client, ClientOptions, Host, ProbeMeasurements, ServerRequestFuture};
use crate::dialect::Revision;
use crate::error::Error;
use crate::gateway::DEFAULT_GROUP;
use crate::inbound::ListenerRole;
use crate::mcp_client::{ConnectionSettings, HttpTransport, Target};
use crate::policy::Operator;
use crate::policy::OperatorRight::{self, Act};
use crate::protocol::{ErrorObject, Method, Notification, Outcome, Raw, code};
use crate::recorder::SummaryField;
use crate::recording::{RecordMode, StoredCall};
use crate::redact::redact;
use crate::upstream::SpecKind;
use crate::workers::Workers;

/// The calls that are tried, and the door by which they come in.
#[derive(Debug, Default)]
pub(super) struct Tries {
    calls: Mutex<HashMap<String, Arc<TriedCall>>>,
    /// Address of the listener for calls of the console.
    listener: OnceCell<SocketAddr>,
}

/// One call that is tried.
#[derive(Debug)]
struct TriedCall {
    id: String,
    operator: Operator,
    group: Option<String>,
    server: Option<String>,
    method: String,
    name: Option<String>,
    revision: Revision,
    started: SystemTime,
    began: Instant,
    state: Mutex<TryState>,
    console: std::sync::Weak<Console>,
}

#[derive(Debug, Default)]
struct TryState {
    questions: Vec<TryQuestion>,
    last_question: u64,
    notifications: Vec<Value>,
    /// Bytes of the notifications as they came.
    notification_bytes: usize,
    /// The text of the result as it came, or the error.
    outcome: Option<Result<String, Value>>,
    is_cancelled: bool,
    took: Option<Duration>,
    task: Option<AbortHandle>,
    /// The number of the recorded call, once it is known.
    recorded: Option<u64>,
}

/// What the server asks of the one who tries.
#[derive(Debug)]
struct TryQuestion {
    id: String,
    method: String,
    params: Value,
    /// Bytes of the parameters as they came.
    bytes: usize,
    answer: oneshot::Sender<Outcome>,
}

/// Answers for a call that is tried.
struct TryHost(Arc<TriedCall>);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TryBody {
    group: Option<String>,
    server: Option<String>,
    #[serde(rename = "as")]
    revision: Option<String>,
    method: Option<String>,
    name: Option<String>,
    arguments: Option<Box<serde_json::value::RawValue>>,
    params: Option<Box<serde_json::value::RawValue>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TryAnswer {
    question: String,
    action: Option<String>,
    content: Option<Value>,
    result: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbeBody {
    url: Option<String>,
    server: Option<String>,
    command: Option<Vec<String>>,
    /// A URL, a command or an `mcp.json`, as for a new server of the file.
    add: Option<String>,
    /// Which server of it.
    name: Option<String>,
}

/// Calls that are remembered; the oldest that have ended are forgotten first.
const MAX_TRIES: usize = 50;
/// Bytes of results, questions and notifications that are remembered of all calls together.
const MAX_TRY_BYTES: usize = 16 << 20;
/// Notifications that are kept of one call.
const MAX_NOTIFICATIONS: usize = 100;
/// Bytes of notifications that are kept of one call.
const MAX_NOTIFICATION_BYTES: usize = 1 << 20;
/// How long a call that is tried may take, people included.
const TRY_TIME: Duration = Duration::from_secs(900);
/// Requests of one tried call that are looked at for its first.
const MAX_ROUNDS: usize = 100;
/// How long the recorded call of a try is looked for after its end: the thread that collects gives way to calls.
const RECORD_LOOK_TIME: Duration = Duration::from_secs(60);
/// The time between the first two looks, and the longest one: each goes through the calls that are kept.
const RECORD_LOOK_INTERVAL: Duration = Duration::from_millis(50);
const RECORD_LOOK_MAX_INTERVAL: Duration = Duration::from_secs(1);
/// How long a probe may take.
const PROBE_TIME: Duration = Duration::from_secs(30);

pub(super) fn routes() -> Vec<ApiRoute> {
    vec![
        ApiRoute::post("try", Act, |request| Box::pin(start(request))),
        ApiRoute::get("try/{try}", Act, |request| Box::pin(async move { look(&request) })),
        ApiRoute::post("try/{try}/answer", Act, |request| Box::pin(async move { answer(&request) })),
        ApiRoute::delete("try/{try}", Act, |request| Box::pin(async move { cancel(&request) })),
        ApiRoute::post("probe", Act, |request| Box::pin(probe(request))),
    ]
}

impl TriedCall {
    /// The id of the recorded call: the first of this method whose request has the name of the try.
    fn recorded_id(&self) -> Option<String> {
        let (console, known) = (self.console.upgrade()?, self.state.lock().recorded);
        let inbound = console.inbound().ok()?;
        let is_it = |call: &StoredCall| {
            call.field(SummaryField::RequestId) == Some(&self.id)
                && call.field(SummaryField::Method) == Some(&self.method)
        };
        let find = || inbound.calls.newest(u64::MAX, is_it, MAX_ROUNDS).last().map(|call| call.number);
        let number = known.or_else(find)?;
        self.state.lock().recorded = Some(number);
        Some(inbound.calls.rows(console.node()).id(number))
    }

    /// Tells streams the id of the recorded call, which is known a moment after its end.
    async fn publish_recorded(&self) {
        let (end, mut interval) = (Instant::now() + RECORD_LOOK_TIME, RECORD_LOOK_INTERVAL);
        while Instant::now() < end {
            if self.recorded_id().is_some() {
                return self.publish();
            }
            tokio::time::sleep(interval).await;
            interval = (interval * 2).min(RECORD_LOOK_MAX_INTERVAL);
        }
    }

    fn to_json(&self) -> Value {
        let recorded = self.recorded_id();
        let state = self.state.lock();
        let question =
            |question: &TryQuestion| json!({ "id": question.id, "method": question.method, "params": question.params });
        let took = state.took.unwrap_or_else(|| self.began.elapsed());
        let (result, error) = match &state.outcome {
            Some(Ok(result)) => (result.clone().into(), Value::Null),
            Some(Err(error)) => (Value::Null, error.clone()),
            None => (Value::Null, Value::Null),
        };
        json!({
            "try": self.id, "call": recorded, "state": state.word(), "group": self.group, "server": self.server,
            "method": self.method, "name": self.name, "revision": self.revision.as_str(),
            "started": rfc3339(self.started),
            "took_us": u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            "questions": state.questions.iter().map(question).collect::<Vec<_>>(),
            "notifications": state.notifications, "result": result, "error": error,
        })
    }

    /// Tells the streams of its operator that it went on; what came is read by `GET try/{try}`.
    fn publish(&self) {
        if let Some(console) = self.console.upgrade().filter(|console| console.live().is_watched(Topic::Try)) {
            let call = self.recorded_id();
            let event = json!({ "try": self.id, "call": call, "state": self.state.lock().word() });
            console.live().publish_to(&self.operator, Topic::Try, &event);
        }
    }

    /// Adds what came with so many bytes, if there is room; a console that is gone keeps nothing.
    fn add(&self, bytes: usize, add: impl FnOnce(&mut TryState)) -> bool {
        self.console.upgrade().is_some_and(|console| console.tries.add(self, bytes, add))
    }

    fn finish(&self, outcome: Result<String, Value>) {
        if let Some(console) = self.console.upgrade() {
            console.tries.finish(self, outcome);
        }
        self.publish();
    }
}

impl TryState {
    fn word(&self) -> &'static str {
        match (&self.outcome, self.is_cancelled, self.questions.is_empty()) {
            (_, true, _) => "cancelled",
            (Some(_), ..) => "done",
            (None, false, false) => "asking",
            (None, false, true) => "running",
        }
    }

    /// Bytes of what is remembered.
    fn bytes(&self) -> usize {
        let questions: usize = self.questions.iter().map(|question| question.bytes).sum();
        self.notification_bytes + questions + self.outcome.as_ref().map_or(0, outcome_bytes)
    }
}

fn outcome_bytes(outcome: &Result<String, Value>) -> usize {
    match outcome {
        Ok(result) => result.len(),
        Err(error) => ["message", "data"].iter().filter_map(|key| error[key].as_str()).map(str::len).sum(),
    }
}

impl Host for TryHost {
    fn capabilities(&self) -> Raw {
        Raw::of(&json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {} }))
    }

    fn on_notification(&self, notification: &Notification) {
        let text = notification.encode();
        let has_room = {
            let state = self.0.state.lock();
            state.notifications.len() < MAX_NOTIFICATIONS
                && state.notification_bytes + text.len() <= MAX_NOTIFICATION_BYTES
        };
        if has_room {
            let message = serde_json::from_slice(&text).unwrap_or_default();
            self.0.add(text.len(), |state| {
                state.notifications.push(message);
                state.notification_bytes += text.len();
            });
        }
        self.0.publish();
    }

    fn on_server_request<'a>(&'a self, method: &'a Method, params: Option<&'a Raw>) -> ServerRequestFuture<'a> {
        let (sender, receiver) = oneshot::channel();
        let bytes = params.map_or(0, |params| params.as_bytes().len());
        let (method, params) = (method.to_string(), params.and_then(|params| params.read().ok()).unwrap_or_default());
        let is_asked = self.0.add(bytes, |state| {
            state.last_question += 1;
            let id = state.last_question.to_string();
            state.questions.push(TryQuestion { id, method, params, bytes, answer: sender });
        });
        self.0.publish();
        Box::pin(async move {
            if !is_asked {
                return Err(ErrorObject::new(code::INTERNAL_ERROR, "there is no room for the question"));
            }
            receiver.await.unwrap_or_else(|_| Err(ErrorObject::new(code::INTERNAL_ERROR, "nobody answered")))
        })
    }
}

/// Begins a call.
async fn start(request: AdminRequest) -> ApiResult {
    let body: TryBody = request.json()?;
    let console = Arc::clone(&request.console);
    let revision = body.revision.as_deref().map_or(Ok(Revision::NEWEST), parse_revision)?;
    let method = body.method.clone().unwrap_or_else(|| "tools/call".to_owned());
    let params = call_params(&body);
    let id = new_id()?;
    let target = match (&body.group, &body.server) {
        (_, Some(server)) => server_target(&console, server)?,
        (group, None) => {
            let (group, inbound) = (group.as_deref().unwrap_or(DEFAULT_GROUP), console.inbound()?);
            groups::find(&inbound, group)?;
            if !inbound.calls.wait_until_on().await && inbound.calls.state().mode != RecordMode::Off {
                let message = "the call was not made: it would not have been recorded yet";
                let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_recorded", message);
                return Err(error.hint("the gateway is busy; try again"));
            }
            let target = console.own_target(group).await?;
            let named = target.with_header(REQUEST_ID.as_str(), &id);
            named.map_err(|error| ApiError::invalid(error.to_string()))?
        }
    };
    let call = Arc::new(TriedCall {
        id,
        operator: request.operator.clone(),
        group: body.server.is_none().then(|| body.group.unwrap_or_else(|| DEFAULT_GROUP.to_owned())),
        server: body.server,
        name: body.name,
        revision,
        started: SystemTime::now(),
        began: Instant::now(),
        state: Mutex::default(),
        console: Arc::downgrade(&console),
        method: method.clone(),
    });
    console.tries.remember(Arc::clone(&call));
    let task = tokio::spawn(run(Arc::clone(&call), target, Method::from(method.as_str()), params));
    call.state.lock().task = Some(task.abort_handle());
    Ok(ApiAnswer::json_with(StatusCode::ACCEPTED, &json!({ "try": call.id, "call": null })))
}

/// The parameters of the call, with numbers as they were written.
fn call_params(body: &TryBody) -> Option<Raw> {
    if let Some(params) = &body.params {
        return Some(Raw::of(params));
    }
    let name = body.name.as_ref()?;
    let arguments = match &body.arguments {
        Some(arguments) => Raw::of(arguments),
        None => Raw::empty(),
    };
    Some(Raw::of(&json!({ "name": name })).edit().set("arguments", arguments).finish())
}

async fn run(call: Arc<TriedCall>, target: Target, method: Method, params: Option<Raw>) {
    let settings = ConnectionSettings {
        revision: Some(call.revision),
        idle_timeout: TRY_TIME,
        total_timeout: TRY_TIME,
        ..ConnectionSettings::default()
    };
    let info = Raw::of(&json!({ "name": "rialto-console", "version": env!("CARGO_PKG_VERSION") }));
    let options = ClientOptions { settings, info, host: Arc::new(TryHost(Arc::clone(&call))), level: None };
    let outcome = match Client::connect(&target, options).await {
        Err(error) => Err(error_json(&error)),
        Ok(client) => {
            let result = client.request(method, params).await;
            client.close().await;
            result.map(|result| text_of(&result)).map_err(|error| error_json(&error))
        }
    };
    call.finish(outcome);
    if call.group.is_some() {
        call.publish_recorded().await;
    }
}

/// A payload as it came: neither the order of its keys nor its numbers survive being read.
fn text_of(payload: &Raw) -> String {
    String::from_utf8_lossy(payload.as_bytes()).into_owned()
}

fn error_json(error: &Error) -> Value {
    let Some(object) = error.object() else {
        return json!({ "message": redact(&error.to_string()), "code": null, "data": null });
    };
    let data = object.data().map(|data| redact(&text_of(&data)).into_owned());
    json!({ "message": redact(&object.message()), "code": object.code(), "data": data })
}

fn new_id() -> Result<String, ApiError> {
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes)
        .map_err(|_| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_random", "there are no random bytes"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The address of a configured server, reached without the gateway.
fn server_target(console: &Console, name: &str) -> Result<Target, ApiError> {
    let upstream = servers::find(&*console.inbound()?, name)?;
    match &upstream.spec().kind {
        SpecKind::Target(target) => Ok(target.clone()),
        _ => Err(ApiError::new(StatusCode::CONFLICT, "no_address", format!("{name} is inside the gateway"))
            .hint("try it in a group")),
    }
}

impl Tries {
    fn remember(&self, call: Arc<TriedCall>) {
        let mut calls = self.calls.lock();
        if calls.len() >= MAX_TRIES {
            let ended = calls.values().filter(|call| call.state.lock().took.is_some());
            let oldest =
                ended.min_by_key(|call| call.started).or_else(|| calls.values().min_by_key(|call| call.started));
            if let Some(oldest) = oldest.map(|call| call.id.clone()) {
                calls.remove(&oldest);
            }
        }
        calls.insert(call.id.clone(), call);
    }

    /// Adds what came to a call with so many bytes; of all calls together no more than a total is remembered, for which the
    /// oldest that have ended are forgotten. False if that is not enough.
    fn add(&self, call: &TriedCall, bytes: usize, add: impl FnOnce(&mut TryState)) -> bool {
        let mut calls = self.calls.lock();
        while calls.values().map(|call| call.state.lock().bytes()).sum::<usize>() + bytes > MAX_TRY_BYTES {
            let ended = calls.values().filter(|other| other.id != call.id && other.state.lock().took.is_some());
            let oldest = ended.min_by_key(|other| other.began).map(|other| other.id.clone());
            // What is too large for all of them makes none of them go.
            let Some(oldest) = oldest.filter(|_| bytes <= MAX_TRY_BYTES) else { return false };
            calls.remove(&oldest);
        }
        add(&mut call.state.lock());
        true
    }

    /// Remembers how a call ended, or that its result is too large for that.
    fn finish(&self, call: &TriedCall, outcome: Result<String, Value>) {
        let end = |state: &mut TryState, outcome| {
            state.outcome = Some(outcome);
            state.took = Some(call.began.elapsed());
            state.questions.clear();
        };
        let bytes = outcome_bytes(&outcome);
        let mut outcome = Some(outcome);
        if !self.add(call, bytes, |state| end(state, outcome.take().unwrap_or_else(|| Ok(String::new())))) {
            let message = format!(
                "the answer of {bytes} bytes is too large to be shown: calls that are tried have {} MiB together",
                MAX_TRY_BYTES >> 20
            );
            end(&mut call.state.lock(), Err(json!({ "message": message, "code": null, "data": null })));
        }
    }

    /// A call of this operator.
    fn find(&self, request: &AdminRequest) -> Result<Arc<TriedCall>, ApiError> {
        let found = self.calls.lock().get(request.parameter(0)).cloned();
        let own = found.filter(|call| call.operator.is(&request.operator));
        own.ok_or_else(|| ApiError::not_found("there is no such call, or it is forgotten"))
    }
}

impl Console {
    /// The address of a group at the listener that takes calls of the console only.
    async fn own_target(&self, group: &str) -> Result<Target, ApiError> {
        let inbound = self.inbound()?;
        let failed = |error: std::io::Error| {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_listener", format!("no port for the call: {error}"))
        };
        let bind = || async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let address = listener.local_addr()?;
            let workers = Arc::new(Workers::start(0)?);
            self.runtime.spawn(inbound.listen(ListenerRole::Console, listener, workers));
            Ok(address)
        };
        let address = self.tries.listener.get_or_try_init(bind).await.map_err(failed)?;
        let target = Target::url(&format!("http://{address}/mcp/{group}"));
        let target = target
            .and_then(|target| target.with_header("authorization", &format!("Bearer {}", self.call_key.reveal())));
        let mut target = target.map_err(|error| ApiError::invalid(error.to_string()))?;
        if let Target::Url(address) = &mut target {
            address.transport = Some(HttpTransport::Streamable);
        }
        Ok(target)
    }
}

fn look(request: &AdminRequest) -> ApiResult {
    Ok(ApiAnswer::json(&request.console.tries.find(request)?.to_json()))
}

fn answer(request: &AdminRequest) -> ApiResult {
    let body: TryAnswer = request.json()?;
    let call = request.console.tries.find(request)?;
    let result = match (body.result, body.action.as_deref()) {
        (Some(result), None) => result,
        (None, Some(action @ ("accept" | "decline" | "cancel"))) => match body.content {
            Some(content) if action == "accept" => json!({ "action": action, "content": content }),
            _ => json!({ "action": action }),
        },
        _ => return Err(ApiError::invalid("give either a result, or an action: accept, decline or cancel")),
    };
    let mut state = call.state.lock();
    let place = state.questions.iter().position(|question| question.id == body.question);
    let place = place.ok_or_else(|| ApiError::not_found("nobody waits for this answer"))?;
    let question = state.questions.remove(place);
    drop(state);
    let gone = || ApiError::new(StatusCode::GONE, "withdrawn", "the server no longer waits for this answer");
    question.answer.send(Ok(Raw::of(&result).into())).map_err(|_| gone())?;
    call.publish();
    Ok(ApiAnswer::empty())
}

fn cancel(request: &AdminRequest) -> ApiResult {
    let call = request.console.tries.find(request)?;
    let mut state = call.state.lock();
    if state.took.is_none() {
        state.is_cancelled = true;
        state.took = Some(call.began.elapsed());
        state.questions.clear();
        if let Some(task) = state.task.take() {
            // Dropping the call cancels it at the gateway.
            task.abort();
        }
    }
    drop(state);
    call.publish();
    Ok(ApiAnswer::empty())
}

/// A command only for those who may edit.
fn may_run(request: &AdminRequest, target: Target) -> Result<Target, ApiError> {
    if matches!(target, Target::Command(_)) && request.operator.may < OperatorRight::Edit {
        let message = "running a command needs the right to edit";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "not_allowed", message));
    }
    Ok(target)
}

/// Probes a server as `rialto probe` does.
async fn probe(request: AdminRequest) -> ApiResult {
    let body: ProbeBody = request.json()?;
    let invalid = |error: Error| ApiError::invalid(error.to_string());
    let mut settings = ConnectionSettings::default();
    let target = match (&body.url, &body.server, &body.command, &body.add) {
        (Some(url), None, None, None) => Target::url(url).map_err(invalid)?,
        (None, Some(server), None, None) => server_target(&request.console, server)?,
        (None, None, Some(command), None) => {
            let (program, arguments) =
                command.split_first().ok_or_else(|| ApiError::invalid("the command is empty"))?;
            may_run(&request, Target::command(program, arguments))?
        }
        (None, None, None, Some(added)) => {
            let spec = pasted_server(added, body.name.as_deref(), request.operator.may)?;
            let SpecKind::Target(target) = spec.kind else {
                return Err(ApiError::invalid("only a server of MCP can be probed"));
            };
            settings = spec.settings;
            may_run(&request, target)?
        }
        _ => return Err(ApiError::invalid("give one of url, server, command and add")),
    };
    let (settings, pinned) = (&settings, settings.revision);
    let connect = |target: Target, revision: Option<Revision>| async move {
        let settings = ConnectionSettings { revision, ..settings.clone() };
        Client::connect(&target, ClientOptions { settings, ..ClientOptions::default() }).await
    };
    let probed = tokio::time::timeout(PROBE_TIME, async {
        let client = connect(target.clone(), pinned).await?;
        let mut other_target = target.clone();
        if let Target::Url(address) = &mut other_target {
            address.transport = Some(HttpTransport::Streamable);
        }
        let other = match client.revision().opens_with_handshake() {
            _ if pinned.is_some() => None,
            true => None,
            false => connect(other_target, Some(Revision::NEWEST_HANDSHAKE)).await.ok(),
        };
        let measured = ProbeMeasurements::take(&client, other).await;
        let report = measured.report_json(&target, &client);
        client.close().await;
        Ok::<Raw, Error>(report)
    });
    let failed = |message: String| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "unreachable", message);
    match probed.await {
        Ok(Ok(report)) => Ok(ApiAnswer::json(&report.read::<Value>().unwrap_or_default())),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed(format!("the server did not answer within {} s", PROBE_TIME.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn begun(tries: &Tries, id: &str) -> Arc<TriedCall> {
        let call = Arc::new(TriedCall {
            id: id.to_owned(),
            operator: Operator { name: "ann".into(), may: Act, principal: None },
            group: None,
            server: None,
            method: "tools/call".to_owned(),
            name: None,
            revision: Revision::NEWEST,
            started: SystemTime::now(),
            began: Instant::now(),
            state: Mutex::default(),
            console: std::sync::Weak::new(),
        });
        tries.remember(Arc::clone(&call));
        call
    }

    fn remembered(tries: &Tries) -> Vec<String> {
        let mut ids: Vec<String> = tries.calls.lock().keys().cloned().collect();
        ids.sort();
        ids
    }

    #[test]
    fn tried_calls_have_a_total_and_the_oldest_that_ended_go_first() {
        let tries = Tries::default();
        let running = begun(&tries, "0");
        assert!(tries.add(&running, MIB, |state| state.notification_bytes += MIB));
        for id in 1..=9 {
            tries.finish(&begun(&tries, &id.to_string()), Ok("x".repeat(3 * MIB)));
        }
        assert_eq!(remembered(&tries), ["0", "5", "6", "7", "8", "9"], "the running one stays");
        assert!(tries.calls.lock().values().map(|call| call.state.lock().bytes()).sum::<usize>() <= MAX_TRY_BYTES);
    }

    #[test]
    fn a_result_beyond_the_total_is_told_as_too_large() {
        let tries = Tries::default();
        tries.finish(&begun(&tries, "1"), Ok("small".to_owned()));
        let large = begun(&tries, "2");
        tries.finish(&large, Ok("x".repeat(MAX_TRY_BYTES + 1)));
        let shown = large.to_json();
        assert_eq!((&shown["state"], &shown["result"]), (&json!("done"), &Value::Null));
        assert!(shown["error"]["message"].as_str().unwrap().contains("16777217 bytes is too large"), "{shown}");
        assert_eq!(remembered(&tries), ["1", "2"], "nothing else goes for it");
    }
}
