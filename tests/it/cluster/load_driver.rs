//! Load driver: clients of all kinds make numbered calls, and a ledger checks them. Every call is either answered once
//! with its own result and executed exactly once, or reported as failed and executed at most once.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::balancer::RoundRobinBalancer;
use super::change_ledger::ChangeLedger;
use super::load::UNBOUNDED_CALLS;
use super::load_balancer_proxy::LoadBalancerProxy;
use super::processes::TestCluster;
use super::sdks::{SDK_TIMEOUT, Sdk};
use super::{listeners, load_clients};
use crate::scripted_server::ScriptedServer;

/// Kind of a load client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientKind {
    /// Streamable HTTP session of this revision.
    Session(&'static str),
    /// HTTP+SSE session.
    Sse,
    /// Per-request client (2026-07-28), without a session.
    PerRequest,
    /// Official SDK with its own reconnect logic.
    Sdk(Sdk),
}

pub const ALL: [ClientKind; 4] =
    [ClientKind::Session("2025-11-25"), ClientKind::Session("2025-06-18"), ClientKind::Sse, ClientKind::PerRequest];

/// What the server does in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// Responds immediately.
    Plain,
    /// Sends this many progress notifications.
    Progress(u64),
    /// Sends an elicitation to the client.
    Ask,
    /// Calls the stdio server.
    Child,
}

/// Outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    Answered,
    Failed(String),
}

/// Running load: the client tasks and their shared ledger.
pub struct LoadDriver {
    pub ledger: Arc<CallLedger>,
    clients: Vec<JoinHandle<()>>,
    count: usize,
    updates: JoinHandle<()>,
}

/// Record of every call, shared by all clients.
pub struct CallLedger {
    pub balancer: Arc<RoundRobinBalancer>,
    pub http_server: Arc<ScriptedServer>,
    child_server: Arc<ScriptedServer>,
    pub changes: Arc<ChangeLedger>,
    /// Proxy for clients that take one URL.
    pub load_balancer: LoadBalancerProxy,
    /// Timeout of one request of an SDK.
    pub sdk_timeout: Duration,
    seed: u64,
    /// Clients stop when this is cancelled, or after `max_calls` calls each.
    pub stop: CancellationToken,
    max_calls: u64,
    /// Clients that have made their calls and wait for `leave`.
    finished_clients: AtomicUsize,
    pub leave: CancellationToken,
    last: AtomicU64,
    calls: Mutex<BTreeMap<u64, Entry>>,
    done: Mutex<HashMap<usize, u64>>,
}

/// Client, kind and outcome of a call; `None` while it is in flight.
type Entry = (ClientKind, CallKind, Option<CallOutcome>);

/// Totals of a run.
#[derive(Debug, Default)]
pub struct Report {
    pub answered: usize,
    pub failed: Vec<(u64, ClientKind, CallKind, String)>,
}

/// Bound for what a run waits for: SDKs start slowly, and may wait a minute for a call.
const RUN_TIMEOUT: Duration = Duration::from_secs(160);
/// Resource with the numbered changes.
pub const RESOURCE: &str = "res://one";

/// Deterministic pseudo-random generator.
pub struct SeededRng(u64);

impl SeededRng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

// === impl LoadDriver ===

impl LoadDriver {
    /// Starts one client per entry of `kinds`; each makes at most `max_calls` calls.
    pub fn start(cluster: &TestCluster, kinds: &[ClientKind], max_calls: u64) -> Self {
        Self::with(cluster, kinds, max_calls, false)
    }

    /// Like [`Self::start`]; with `complete`, every resource change must be notified.
    pub fn with(cluster: &TestCluster, kinds: &[ClientKind], max_calls: u64, complete: bool) -> Self {
        let changes = ChangeLedger::of(&cluster.http_server, complete);
        Self::begin(cluster, kinds, changes, max_calls, SDK_TIMEOUT)
    }

    /// Like [`Self::start`] without a bound of calls, where a request of an SDK may take this long.
    pub fn with_sdk_timeout(cluster: &TestCluster, kinds: &[ClientKind], sdk_timeout: Duration) -> Self {
        let changes = ChangeLedger::of(&cluster.http_server, false);
        Self::begin(cluster, kinds, changes, UNBOUNDED_CALLS, sdk_timeout)
    }

    fn begin(
        cluster: &TestCluster,
        kinds: &[ClientKind],
        changes: Arc<ChangeLedger>,
        max_calls: u64,
        sdk_timeout: Duration,
    ) -> Self {
        let seed = std::env::var("CLUSTER_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| {
            let mut random = [0; 2];
            getrandom::fill(&mut random).unwrap();
            u16::from_be_bytes(random).into()
        });
        println!("CLUSTER_SEED={seed}");
        let ledger = Arc::new(CallLedger {
            balancer: Arc::clone(&cluster.balancer),
            http_server: Arc::clone(&cluster.http_server),
            child_server: Arc::clone(&cluster.child_server),
            changes,
            load_balancer: LoadBalancerProxy::open(&cluster.balancer),
            sdk_timeout,
            seed,
            stop: CancellationToken::new(),
            max_calls,
            finished_clients: AtomicUsize::new(0),
            leave: CancellationToken::new(),
            last: AtomicU64::new(0),
            calls: Mutex::default(),
            done: Mutex::default(),
        });
        let run = |(client_index, kind): (usize, &ClientKind)| {
            tokio::spawn(load_clients::run(Arc::clone(&ledger), client_index, *kind))
        };
        let clients: Vec<_> = kinds.iter().enumerate().map(run).collect();
        let updates = tokio::spawn(Arc::clone(&ledger.changes).publish(ledger.rng(kinds.len())));
        Self { ledger, count: clients.len(), clients, updates }
    }

    /// Waits until each client has made a call; an SDK starts slowly.
    pub async fn wait_all_started(&self) {
        let deadline = tokio::time::Instant::now() + RUN_TIMEOUT;
        while self.ledger.done.lock().unwrap().len() < self.count {
            assert!(tokio::time::Instant::now() < deadline, "only some have begun: {:?}", self.ledger.done);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until each client has made this many further calls.
    pub async fn wait_calls_each(&self, calls: u64) {
        let before = self.ledger.done.lock().unwrap().clone();
        let wanted = |client_index: usize| before.get(&client_index).copied().unwrap_or(0) + calls;
        // A call may take as long as an SDK waits for it, so the bound of other waits would be too short.
        let deadline = tokio::time::Instant::now() + RUN_TIMEOUT;
        loop {
            let ended = self.clients.iter().position(JoinHandle::is_finished);
            assert_eq!(ended, None, "a client has ended");
            let done = self.ledger.done.lock().unwrap().clone();
            let behind: Vec<usize> = (0..self.clients.len())
                .filter(|client_index| done.get(client_index).copied().unwrap_or(0) < wanted(*client_index))
                .collect();
            if behind.is_empty() {
                return;
            }
            let open = self.ledger.unfinished();
            assert!(tokio::time::Instant::now() < deadline, "{behind:?} of {done:?} are behind; open: {open:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Makes a numbered call in a session of the test.
    pub async fn call(&self, session: &load_clients::Session, call_kind: CallKind) -> CallOutcome {
        session.call(self.ledger.number(), call_kind).await
    }

    /// Stops the clients and checks the ledger.
    pub async fn finish(self) -> Report {
        self.ledger.stop.cancel();
        self.end().await
    }

    /// Waits until the clients have made all their calls and checks the ledger.
    pub async fn end(self) -> Report {
        // Joined together, so that a failed client fails the test at once.
        let clients = futures_util::future::try_join_all(self.clients);
        let finished_clients = async {
            let started = tokio::time::Instant::now();
            while self.ledger.finished_clients.load(Ordering::SeqCst) < self.count {
                assert!(started.elapsed() < RUN_TIMEOUT, "a client does not end; open: {:?}", self.ledger.unfinished());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            self.ledger.changes.end().await;
            listeners::wait_all_list(&self.ledger.balancer, self.ledger.changes.tools()).await;
            self.updates.abort();
            self.ledger.leave.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = clients => drop(ended.unwrap()),
            () = finished_clients => {}
        }
        let left = self.ledger.load_balancer.delete_leftover_sessions().await;
        println!("{left} sessions were not ended by their clients");
        self.ledger.check()
    }
}

// === impl CallLedger ===

impl CallLedger {
    pub fn rng(&self, client_index: usize) -> SeededRng {
        SeededRng::new(self.seed + (client_index as u64) * 7919 + 1)
    }

    /// Whether a client that has made `made` calls makes another.
    pub fn wants_another_call(&self, made: u64) -> bool {
        made < self.max_calls && !self.stop.is_cancelled()
    }

    /// Reports that a client has made its calls, and waits until all have.
    pub async fn wait_until_all_done(&self) {
        self.finished_clients.fetch_add(1, Ordering::SeqCst);
        self.leave.cancelled().await;
    }

    /// Next call number.
    fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Registers a new call of a random kind.
    pub fn begin(&self, kind: ClientKind, rng: &mut SeededRng) -> (u64, CallKind) {
        let number = self.number();
        let call_kind = match rng.below(10) {
            0..4 => CallKind::Plain,
            4..7 => CallKind::Progress(1 + rng.below(6)),
            7..9 => CallKind::Ask,
            _ => CallKind::Child,
        };
        self.calls.lock().unwrap().insert(number, (kind, call_kind, None));
        (number, call_kind)
    }

    /// Records the outcome of a call.
    pub fn end(&self, client_index: usize, number: u64, outcome: CallOutcome) {
        let before = self.calls.lock().unwrap().get_mut(&number).unwrap().2.replace(outcome);
        assert_eq!(before, None, "{number} ends twice");
        *self.done.lock().unwrap().entry(client_index).or_default() += 1;
    }

    /// Calls without an outcome.
    fn unfinished(&self) -> Vec<(u64, ClientKind, CallKind)> {
        let calls = self.calls.lock().unwrap();
        let open = calls.iter().filter(|(_, (_, _, outcome))| outcome.is_none());
        open.map(|(number, (kind, call_kind, _))| (*number, *kind, *call_kind)).collect()
    }

    /// Number of executions of each call, as received by the servers.
    fn executions(&self) -> HashMap<u64, usize> {
        let mut executions = HashMap::new();
        for seen in self
            .http_server
            .received()
            .into_iter()
            .chain(self.child_server.received())
            .filter(|seen| seen.kind == "tools/call")
        {
            if let Some(number) = seen.body["params"]["arguments"]["message"].as_u64() {
                *executions.entry(number).or_default() += 1;
            }
        }
        executions
    }

    fn check(&self) -> Report {
        let executions = self.executions();
        let mut report = Report::default();
        let mut faults = Vec::new();
        for (number, (kind, call_kind, outcome)) in std::mem::take(&mut *self.calls.lock().unwrap()) {
            let times = executions.get(&number).copied().unwrap_or(0);
            let right = match &outcome {
                Some(CallOutcome::Answered) => times == 1,
                Some(CallOutcome::Failed(_)) => times <= 1,
                None => false,
            };
            if !right {
                faults.push(format!("{number} ({kind:?}, {call_kind:?}): {outcome:?}, carried out {times} times"));
            }
            match outcome {
                Some(CallOutcome::Failed(why)) => report.failed.push((number, kind, call_kind, why)),
                _ => report.answered += 1,
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        println!("{} calls answered, {} failed", report.answered, report.failed.len());
        for failed in &report.failed {
            println!("  {failed:?}");
        }
        report
    }
}

// === impl CallKind ===

impl CallKind {
    /// Parameters of the `tools/call` request.
    pub fn params(self, number: u64) -> Value {
        let schema = json!({ "type": "object", "properties": { "number": { "type": "integer" } } });
        let (name, steps) = match self {
            Self::Plain => ("echo", json!([])),
            Self::Child => ("child", json!([])),
            Self::Progress(times) => {
                let steps = (1..=times).flat_map(|n| [json!({ "progress": n }), json!({ "pause": 15 })]);
                ("do", steps.collect())
            }
            Self::Ask => {
                let params = json!({ "message": number.to_string(), "requestedSchema": schema });
                ("do", json!([{ "ask": { "method": "elicitation/create", "params": params } }]))
            }
        };
        let meta = json!({ "progressToken": number });
        json!({ "name": name, "arguments": { "message": number, "steps": steps }, "_meta": meta })
    }

    /// Number of progress notifications.
    pub fn reports(self) -> u64 {
        if let Self::Progress(times) = self { times } else { 0 }
    }

    /// Asserts that a response belongs to this call; returns its outcome.
    pub fn check_response(self, number: u64, answer: &Value) -> CallOutcome {
        assert_eq!(answer["id"], number, "{answer}");
        if let Some(error) = answer.get("error") {
            return CallOutcome::Failed(error.to_string());
        }
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no report: {answer}"));
        let Ok(report) = serde_json::from_str::<Value>(text) else { return CallOutcome::Failed(text.to_owned()) };
        assert_eq!(report["message"], number, "{answer}");
        if self == Self::Ask {
            assert_eq!(report["answers"][0]["content"]["number"], number, "{answer}");
        }
        CallOutcome::Answered
    }
}

/// Client's result for the elicitation of a call.
pub fn reply(params: &Value) -> Value {
    let number: u64 = params["message"].as_str().unwrap().parse().unwrap();
    json!({ "action": "accept", "content": { "number": number } })
}
