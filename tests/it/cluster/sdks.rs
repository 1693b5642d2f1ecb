//! Official SDKs as load clients during faults. They resume and reconnect on their own; the outcomes that they report
//! go into the call ledger.

use std::collections::HashSet;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use super::balancer::RETRY_DELAY;
use super::change_ledger::tools_version;
use super::load::UNBOUNDED_CALLS;
use super::load_balancer_proxy::LoadBalancerProxy;
use super::load_driver::{CallKind, CallLedger, CallOutcome, ClientKind, LoadDriver};
use super::processes::{LEASE, TestCluster};
use super::rust_sdk;
use super::store_proxy::StoreProxy;
use crate::peers::{PY1, PY2, Peer, TS1, TS2, installed, script};
use crate::redis::{RedisFlavor, RedisServer};

/// SDK and era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sdk {
    TypeScript1,
    TypeScript2,
    TypeScript2PerRequest,
    Python1,
    Python2,
    Python2PerRequest,
    Rust,
    RustPerRequest,
}

/// Every SDK in every era that it speaks.
pub const SDKS: [ClientKind; 8] = [
    ClientKind::Sdk(Sdk::TypeScript1),
    ClientKind::Sdk(Sdk::TypeScript2),
    ClientKind::Sdk(Sdk::TypeScript2PerRequest),
    ClientKind::Sdk(Sdk::Python1),
    ClientKind::Sdk(Sdk::Python2),
    ClientKind::Sdk(Sdk::Python2PerRequest),
    ClientKind::Sdk(Sdk::Rust),
    ClientKind::Sdk(Sdk::RustPerRequest),
];

/// Timeout of an SDK request where calls are lost with a node, and are to be given up soon.
pub const SDK_TIMEOUT: Duration = Duration::from_secs(8);
/// Timeout of an SDK request where no call is lost, however long a busy machine takes for it.
const PATIENT_SDK_TIMEOUT: Duration = Duration::from_secs(60);
/// By how much longer than its request an SDK may take to report the outcome.
const SDK_REPORT_TIME: Duration = Duration::from_secs(22);

/// Orders to an SDK client, and the lines that it reports.
pub type SdkChannels = (mpsc::UnboundedSender<Value>, mpsc::UnboundedReceiver<Value>);

/// One SDK client and its notifications.
struct Client<'b> {
    ledger: &'b CallLedger,
    who: String,
    listens: bool,
    orders: mpsc::UnboundedSender<Value>,
    lines: mpsc::UnboundedReceiver<Value>,
    /// The client has reconnected and not read the lists yet.
    fresh: bool,
    /// A list-changed notification arrived since the last `tools/list`.
    changed: bool,
    /// Received changes, for an SDK that handles notifications concurrently and therefore in any order.
    received: Option<HashSet<u64>>,
}

// === impl Sdk ===

impl Sdk {
    /// Script of the SDK and the revision it is started with.
    fn script(self) -> Option<(Peer, &'static str, &'static str)> {
        match self {
            Self::TypeScript1 => Some((TS1, "node/calls1.mjs", "")),
            Self::TypeScript2 => Some((TS2, "node/calls2.mjs", "")),
            Self::TypeScript2PerRequest => Some((TS2, "node/calls2.mjs", "2026-07-28")),
            Self::Python1 => Some((PY1, "python/calls1.py", "")),
            Self::Python2 => Some((PY2, "python/calls2.py", "legacy")),
            Self::Python2PerRequest => Some((PY2, "python/calls2.py", "2026-07-28")),
            Self::Rust | Self::RustPerRequest => None,
        }
    }

    fn has_session(self) -> bool {
        !matches!(self, Self::TypeScript2PerRequest | Self::Python2PerRequest | Self::RustPerRequest)
    }

    async fn start(self, load_balancer: &LoadBalancerProxy, timeout: Duration) -> SdkChannels {
        let (url, stream_refused) = load_balancer.url_for(&format!("{self:?}"));
        let Some((peer, name, revision)) = self.script() else {
            return rust_sdk::start(url, stream_refused, self.has_session(), timeout);
        };
        tokio::task::spawn_blocking(installed).await.unwrap();
        let mut command = script(peer.interpreter, name);
        command.arg(url).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("PEER_TIMEOUT_SECONDS", timeout.as_secs().to_string());
        if !revision.is_empty() {
            command.env("PEER_REVISION", revision);
        }
        let mut child = command.spawn().unwrap();
        let (orders, mut ordered) = mpsc::unbounded_channel::<Value>();
        let (reports, lines) = mpsc::unbounded_channel();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        tokio::spawn(async move {
            while let Some(order) = ordered.recv().await {
                if input.write_all(format!("{order}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        let mut complaining = child.stderr.take().unwrap();
        let complaints = tokio::spawn(async move {
            let mut complaints = Vec::new();
            let _ = complaining.read_to_end(&mut complaints).await;
            String::from_utf8_lossy(&complaints).into_owned()
        });
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                let line = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                let _ = reports.send(line);
            }
            let complaints = complaints.await.unwrap();
            assert!(child.wait().await.unwrap().success(), "{self:?}: {complaints}");
        });
        (orders, lines)
    }

    /// Asserts that the progress of a call arrived in order and without duplicates.
    fn check_progress(self, call_kind: CallKind, outcome: &CallOutcome, progress: &Value) {
        let received: Vec<u64> =
            progress.as_array().unwrap().iter().map(|step| step.as_f64().unwrap() as u64).collect();
        let context = format!("{self:?}, {call_kind:?}, {outcome:?}: {received:?}");
        assert!(received.iter().copied().eq(1..=received.len() as u64), "{context}");
        // The TypeScript SDKs drop notifications that arrive in the same chunk as the response.
        let whole = matches!(self, Self::Python1 | Self::Python2 | Self::Python2PerRequest);
        if whole && *outcome == CallOutcome::Answered {
            assert_eq!(received.len() as u64, call_kind.reports(), "{context}");
        }
    }
}

// === impl Client ===

impl Client<'_> {
    /// Next line that answers an order; handles all other lines.
    async fn answer(&mut self) -> Value {
        loop {
            let limit = self.ledger.sdk_timeout + SDK_REPORT_TIME;
            let line = tokio::time::timeout(limit, self.lines.recv()).await;
            let line = line.unwrap_or_else(|_| panic!("{} says nothing", self.who));
            let line = line.unwrap_or_else(|| panic!("{} has ended", self.who));
            if let Some(line) = self.take(line) {
                return line;
            }
        }
    }

    /// Handles a notification line; returns a line that answers an order.
    fn take(&mut self, line: Value) -> Option<Value> {
        if !line["number"].is_null() || line.get("tools").is_some() {
            return Some(line);
        }
        assert!(line.get("twice").is_none(), "{}: {line}", self.who);
        if let Some(number) = line.get("updated") {
            let mut number = number.as_u64();
            if let Some(received) = &mut self.received
                && let Some(once) = number.take()
            {
                assert!(received.insert(once), "{}: {once} comes twice", self.who);
            }
            if !self.fresh && self.listens {
                self.ledger.changes.record_update(&self.who, number);
            }
        } else if line["changed"] == true {
            self.changed = true;
        } else {
            println!("{}: {line}", self.who);
            self.ledger.changes.remove_listener(&self.who);
            self.fresh = true;
        }
        None
    }

    /// Reads the tools list if it may have changed.
    async fn refresh_tools(&mut self) {
        while self.listens && (self.fresh || self.changed) {
            let fresh = std::mem::take(&mut self.fresh);
            self.changed = false;
            self.orders.send(json!({ "list": true })).unwrap();
            let answer = self.answer().await;
            let Some(names) = answer["tools"].as_array() else {
                (self.fresh, self.changed) = (fresh || self.fresh, true);
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            };
            let tools = tools_version(names.iter().map(|name| name.as_str().unwrap()));
            if self.fresh {
                continue; // it has reconnected again
            }
            match fresh {
                true => self.ledger.changes.add_listener(&self.who, true, tools),
                false => self.ledger.changes.record_list(&self.who, tools),
            }
        }
    }
}

/// Runs an SDK client until it has made its calls.
pub async fn run(ledger: Arc<CallLedger>, client_index: usize, sdk: Sdk) {
    let mut rng = ledger.rng(client_index);
    let (orders, lines) = sdk.start(&ledger.load_balancer, ledger.sdk_timeout).await;
    let (who, listens) = (format!("{sdk:?}"), sdk.has_session());
    let received = (sdk == Sdk::Rust).then(HashSet::new);
    let mut client = Client { ledger: &ledger, who, listens, orders, lines, fresh: true, changed: false, received };
    let mut made = 0;
    while ledger.wants_another_call(made) {
        client.refresh_tools().await;
        let (number, call_kind) = ledger.begin(ClientKind::Sdk(sdk), &mut rng);
        let params = call_kind.params(number);
        let order = json!({ "number": number, "name": params["name"], "arguments": params["arguments"] });
        client.orders.send(order).unwrap();
        let line = client.answer().await;
        assert_eq!(line["number"], number, "{line}");
        let outcome = match line["answered"].as_str() {
            Some(text) => {
                let content = json!([{ "type": "text", "text": text }]);
                call_kind.check_response(number, &json!({ "id": number, "result": { "content": content } }))
            }
            None => CallOutcome::Failed(line["failed"].as_str().unwrap().into()),
        };
        sdk.check_progress(call_kind, &outcome, &line["progress"]);
        ledger.end(client_index, number, outcome);
        made += 1;
    }
    let listening = async {
        loop {
            client.refresh_tools().await;
            let line = client.lines.recv().await.expect("it goes on");
            assert!(client.take(line).is_none(), "an answer without an order");
        }
    };
    tokio::select! {
        () = listening => {}
        () = ledger.wait_until_all_done() => {}
    }
    ledger.changes.remove_listener(&client.who);
    let Client { orders, mut lines, .. } = client;
    drop(orders);
    let ending = async { while lines.recv().await.is_some() {} };
    tokio::time::timeout(ledger.sdk_timeout + SDK_REPORT_TIME, ending).await.expect("an end in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn official_sdks_lose_no_call_in_a_rolling_restart() {
    tokio::task::spawn_blocking(installed).await.unwrap();
    let mut cluster = TestCluster::three().await;
    let driver = LoadDriver::with_sdk_timeout(&cluster, &SDKS, PATIENT_SDK_TIMEOUT);
    driver.wait_all_started().await;
    driver.wait_calls_each(2).await;
    for name in ["a", "b", "c"] {
        let node = cluster.node_mut(name);
        node.terminate();
        assert_eq!(node.wait_exit().await, Some(0), "{name}");
        driver.wait_calls_each(2).await;
        let node = cluster.node_mut(name);
        node.restart().await;
        node.wait_ready().await;
        driver.wait_calls_each(2).await;
    }
    let ledger = Arc::clone(&driver.ledger);
    let report = driver.finish().await;
    assert_eq!((report.failed, ledger.load_balancer.refused()), (vec![], 0));
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn official_sdks_recover_from_every_fault_and_no_call_runs_twice() {
    tokio::task::spawn_blocking(installed).await.unwrap();
    let store = RedisServer::start(RedisFlavor::Redis).await;
    let (url, store_proxy) = (store.url(), StoreProxy::to(store.port()).await);
    let proxied_url = store_proxy.url();
    let mut cluster =
        TestCluster::with(store, &["a", "b", "c"], |name| if name == "b" { proxied_url.clone() } else { url.clone() })
            .await;
    for node in &cluster.nodes {
        node.wait_ready().await;
    }
    let driver = LoadDriver::start(&cluster, &SDKS, UNBOUNDED_CALLS);
    driver.wait_all_started().await;
    driver.wait_calls_each(2).await;

    println!("a is killed");
    cluster.node_mut("a").kill().await;
    driver.wait_calls_each(2).await;
    cluster.node_mut("a").restart().await;
    cluster.node("a").wait_ready().await;
    driver.wait_calls_each(2).await;

    println!("c is halted");
    let halted = cluster.node("c");
    cluster.balancer.set_excluded(halted.address, true);
    halted.pause();
    tokio::time::sleep(LEASE * 3 / 2).await;
    halted.resume();
    halted.wait_ready().await;
    cluster.balancer.set_excluded(halted.address, false);
    driver.wait_calls_each(2).await;

    println!("b is cut off");
    store_proxy.cut(true);
    let cut_off = cluster.node("b");
    cut_off.wait_ready_status(503).await;
    // As balancers do that ask /readyz: a client that meets this node in every turn could go on only by luck.
    cluster.balancer.set_excluded(cut_off.address, true);
    driver.wait_calls_each(2).await;
    store_proxy.mend();
    cut_off.wait_ready().await;
    cluster.balancer.set_excluded(cut_off.address, false);
    driver.wait_calls_each(2).await;

    println!("the store is restarted");
    cluster.store.stop();
    for node in &cluster.nodes {
        node.wait_ready_status(503).await;
    }
    cluster.store.restart().await;
    for node in &cluster.nodes {
        node.wait_ready().await;
    }
    driver.wait_calls_each(3).await;
    driver.finish().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}
