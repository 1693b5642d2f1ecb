//! Clients of the load test: sequential calls, each request at another node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::balancer::{RETRY_DELAY, RoundRobinBalancer};
use super::load_driver::{CallKind, CallLedger, CallOutcome, ClientKind, RESOURCE, reply};
use super::processes::Node;
use super::{listeners, sdks, sse_client};
use crate::harness::{Events, HttpRequest, HttpResponse, modern, notification, request};

/// How often the stream of one call may break before the test fails.
const MAX_STREAM_BREAKS: usize = 200;

/// Runs one client until it has made its calls.
pub async fn run(ledger: Arc<CallLedger>, client_index: usize, kind: ClientKind) {
    match kind {
        ClientKind::Session(revision) => session(ledger, client_index, revision).await,
        ClientKind::Sse => sse_client::run(ledger, client_index).await,
        ClientKind::PerRequest => per_request(ledger, client_index).await,
        ClientKind::Sdk(sdk) => sdks::run(ledger, client_index, sdk).await,
    }
}

/// POST of a JSON body to a node.
pub fn post(node: SocketAddr, path: &str, body: &Value) -> HttpRequest {
    HttpRequest::to(node, "POST", path)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .body(body.to_string())
}

/// `initialize` request of a client with form elicitation.
pub fn initialize_request(revision: &str) -> Value {
    let info = json!({ "name": "test", "version": "1" });
    let capabilities = json!({ "elicitation": { "form": {} } });
    let params = json!({ "protocolVersion": revision, "capabilities": capabilities, "clientInfo": info });
    request("init", "initialize", params)
}

/// Streamable HTTP session whose requests go through the balancer.
#[derive(Clone)]
pub struct Session {
    pub balancer: Arc<RoundRobinBalancer>,
    pub id: String,
    pub revision: &'static str,
    /// Counter for request ids outside of the numbered calls.
    pub named: Arc<AtomicU64>,
}

impl Session {
    pub async fn open(balancer: &Arc<RoundRobinBalancer>, revision: &'static str) -> Self {
        let id = loop {
            // A session whose response was lost expires by itself.
            let received = balancer.send_until_accepted(|node| post(node, "/mcp", &initialize_request(revision))).await;
            if let Ok(received) = received
                && let Some(id) = received.header("mcp-session-id").map(str::to_owned)
                && received.try_text().await.is_ok()
            {
                break id;
            }
            tokio::time::sleep(RETRY_DELAY).await;
        };
        let session = Self { balancer: Arc::clone(balancer), id, revision, named: Arc::default() };
        session.tell(&notification("notifications/initialized", json!({}))).await;
        session
    }

    /// The same session, with all requests sent to one node.
    pub fn at(&self, node: &Node) -> Self {
        Self { balancer: RoundRobinBalancer::new(vec![node.address]), ..self.clone() }
    }

    /// Next number for a request id.
    pub fn next(&self) -> u64 {
        self.named.fetch_add(1, Ordering::SeqCst)
    }

    fn within(&self, sending: HttpRequest) -> HttpRequest {
        sending.header("mcp-session-id", &self.id).header("mcp-protocol-version", self.revision)
    }

    pub fn post(&self, node: SocketAddr, body: &Value) -> HttpRequest {
        self.within(post(node, "/mcp", body))
    }

    pub fn get(&self, node: SocketAddr, last: Option<&str>) -> HttpRequest {
        let get = self.within(HttpRequest::to(node, "GET", "/mcp").header("accept", "text/event-stream"));
        match last {
            Some(last) => get.header("last-event-id", last),
            None => get,
        }
    }

    /// Sends a notification or response until a node accepts it.
    pub async fn tell(&self, body: &Value) {
        loop {
            match self.balancer.send_until_accepted(|node| self.post(node, body)).await {
                Ok(received) if received.status == 202 => return,
                Ok(received) if received.status != 502 => panic!("{}", describe(received).await),
                _ => tokio::time::sleep(RETRY_DELAY).await,
            }
        }
    }

    /// Repeats a request that can be repeated until it has a result; `None` when the session has ended.
    pub async fn result_of(&self, method: &str, params: Value) -> Option<Value> {
        loop {
            let body = request(format!("{method}-{}", self.next()), method, params.clone());
            let received = self.balancer.send_until_accepted(|node| self.post(node, &body)).await;
            let answer = match received {
                Ok(received) if received.status == 404 => return None,
                Ok(received) if received.is_events() => received.events().rest().await.pop(),
                Ok(received) => received.try_text().await.ok().and_then(|text| serde_json::from_str(&text).ok()),
                Err(_) => None,
            };
            if let Some(result) = answer.and_then(|mut answer: Value| answer.get_mut("result").map(Value::take)) {
                return Some(result);
            }
            tokio::time::sleep(RETRY_DELAY / 4).await;
        }
    }

    /// Deletes the session.
    pub async fn end(&self) {
        loop {
            match self.balancer.send_until_accepted(|node| self.within(HttpRequest::to(node, "DELETE", "/mcp"))).await {
                Ok(received) if received.status == 200 => return,
                Ok(received) if received.status == 404 => return println!("{} had ended before", self.id),
                Ok(received) if received.status != 502 => panic!("not ended: {}", describe(received).await),
                _ => tokio::time::sleep(RETRY_DELAY).await,
            }
        }
    }

    /// Makes a call; resumes its stream at another node whenever it breaks.
    pub async fn call(&self, number: u64, call_kind: CallKind) -> CallOutcome {
        let body = request(number, "tools/call", call_kind.params(number));
        let received = match self.balancer.send_until_accepted(|node| self.post(node, &body)).await {
            Ok(received) => received,
            Err(why) => return CallOutcome::Failed(why),
        };
        if !received.is_events() {
            return match whole(received).await {
                Ok(answer) => call_kind.check_response(number, &answer),
                Err(why) => CallOutcome::Failed(why),
            };
        }
        let mut stream = received.events();
        let mut last = None;
        let mut progress = 0;
        for _ in 0..MAX_STREAM_BREAKS {
            match self.follow(number, call_kind, &mut stream, &mut last, &mut progress).await {
                Some(outcome) => return outcome,
                None => {
                    let Some(last) = &last else {
                        return CallOutcome::Failed("the stream broke before its first event".into());
                    };
                    // The `retry` time that a client is told: while the store is away streams end at once.
                    tokio::time::sleep(RETRY_DELAY).await;
                    stream = self.resumed(last).await;
                }
            }
        }
        panic!("{number} has no end, after {last:?}")
    }

    /// Resumes a stream after an event.
    pub async fn resumed(&self, last: &str) -> Events {
        loop {
            match self.balancer.send_until_accepted(|node| self.get(node, Some(last))).await {
                Ok(received) if received.status == 200 => return received.events(),
                Ok(received) if received.status != 502 => {
                    panic!("{last} is not resumed: {}", describe(received).await)
                }
                _ => tokio::time::sleep(RETRY_DELAY).await,
            }
        }
    }

    /// Reads a stream to its end; `None` when it broke before the response.
    async fn follow(
        &self,
        number: u64,
        call_kind: CallKind,
        stream: &mut Events,
        last: &mut Option<String>,
        progress: &mut u64,
    ) -> Option<CallOutcome> {
        while let Some(event) = stream.next().await {
            if let Some(id) = event.id {
                assert_ne!(last.as_ref().filter(|_| !event.data.is_empty()), Some(&id), "an event comes twice");
                *last = Some(id);
            }
            if event.data.is_empty() {
                continue;
            }
            let message: Value = serde_json::from_str(&event.data).unwrap();
            match message["method"].as_str() {
                Some("notifications/progress") => {
                    assert_eq!(message["params"]["progressToken"], number, "{message}");
                    *progress += 1;
                    assert_eq!(message["params"]["progress"], *progress, "{number} in order, without a gap");
                }
                Some("elicitation/create") => {
                    let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": reply(&message["params"]) });
                    self.tell(&answer).await;
                }
                Some(other) => panic!("{other}: {message}"),
                None => {
                    let outcome = call_kind.check_response(number, &message);
                    if outcome == CallOutcome::Answered {
                        assert_eq!(*progress, call_kind.reports(), "{number} without a gap");
                    }
                    return Some(outcome);
                }
            }
        }
        None
    }
}

/// Status and body, for panic messages.
pub async fn describe(received: HttpResponse) -> String {
    let status = received.status;
    format!("{status} {}", received.text().await)
}

async fn whole(received: HttpResponse) -> Result<Value, String> {
    let status = received.status;
    let text = received.try_text().await.map_err(|broken| format!("{broken:?}"))?;
    assert!(status == 200 || status == 502, "{status}: {text}");
    Ok(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

async fn session(ledger: Arc<CallLedger>, client_index: usize, revision: &'static str) {
    let mut rng = ledger.rng(client_index);
    let session = Session::open(&ledger.balancer, revision).await;
    session.result_of("resources/subscribe", json!({ "uri": RESOURCE })).await.expect("the session goes on");
    let listening = tokio::spawn(listeners::listen(Arc::clone(&ledger.changes), session.clone()));
    let mut made = 0;
    while ledger.wants_another_call(made) {
        let (number, call_kind) = ledger.begin(ClientKind::Session(revision), &mut rng);
        let outcome = session.call(number, call_kind).await;
        ledger.end(client_index, number, outcome);
        made += 1;
    }
    ledger.wait_until_all_done().await;
    session.end().await;
    match tokio::time::timeout(crate::harness::TEST_TIMEOUT / 2, listening).await {
        Ok(listened) => listened.unwrap(),
        Err(_) => panic!("{} has ended, and is listened to: {:?}", session.id, ledger.balancer.statuses().await),
    }
}

async fn per_request(ledger: Arc<CallLedger>, client_index: usize) {
    let mut rng = ledger.rng(client_index);
    let listening = tokio::spawn(listeners::listen_per_request(Arc::clone(&ledger), client_index));
    let mut made = 0;
    while ledger.wants_another_call(made) {
        let (number, call_kind) = ledger.begin(ClientKind::PerRequest, &mut rng);
        let outcome = run_input_rounds(&ledger, number, call_kind).await;
        ledger.end(client_index, number, outcome);
        made += 1;
    }
    ledger.wait_until_all_done().await;
    listening.await.unwrap();
}

/// Per-request-era call by a client with form elicitation.
pub fn per_request_call(node: SocketAddr, number: u64, params: &Value) -> HttpRequest {
    let mut body = modern(number.into(), "tools/call", params.clone());
    let capabilities = json!({ "elicitation": { "form": {} } });
    body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    post(node, "/mcp", &body).modern_headers("tools/call", params)
}

/// Parameters of the retry that answers the input requests of `result`.
pub fn answers(params: &Value, result: &Value) -> Value {
    let mut again = params.clone();
    let asked = result["inputRequests"].as_object().unwrap();
    again["inputResponses"] = asked.iter().map(|(key, asked)| (key.clone(), reply(&asked["params"]))).collect();
    again["requestState"] = result["requestState"].clone();
    again
}

/// Makes a per-request call with as many input rounds as it takes.
async fn run_input_rounds(ledger: &CallLedger, number: u64, call_kind: CallKind) -> CallOutcome {
    let mut params = call_kind.params(number);
    for _ in 0..3 {
        let received = match ledger.balancer.send_until_accepted(|node| per_request_call(node, number, &params)).await {
            Ok(received) => received,
            Err(why) => return CallOutcome::Failed(why),
        };
        let answer = if received.is_events() {
            let mut stream = received.events();
            let mut progress = 0;
            loop {
                let Some(message) = stream.message().await else {
                    return CallOutcome::Failed("the stream broke".into());
                };
                if message["method"] != "notifications/progress" {
                    break message;
                }
                progress += 1;
                assert_eq!(message["params"]["progress"], progress, "{number} in order, without a gap");
            }
        } else {
            match whole(received).await {
                Ok(answer) => answer,
                Err(why) => return CallOutcome::Failed(why),
            }
        };
        if answer["result"]["resultType"] != "input_required" {
            return call_kind.check_response(number, &answer);
        }
        params = answers(&call_kind.params(number), &answer["result"]);
    }
    panic!("{number} never ends")
}
