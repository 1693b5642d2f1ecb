//! The official SDKs as clients while things go wrong. They resume and reconnect by themselves, or do not; what
//! they say of each call goes into the same books.

use std::collections::HashSet;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use super::balancer::AGAIN;
use super::driver::{Act, Books, Driver, Fate, Kind};
use super::gate::Gate;
use super::load::UNTIL_TOLD;
use super::news::number_of;
use super::proxy::Proxy;
use super::real::{Fleet, LEASE};
use super::rust;
use crate::peers::{PY1, PY2, Peer, TS1, TS2, installed, script};
use crate::redis::{Program, Server};

/// An SDK, of the era with sessions or the one without.
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

/// Every SDK.
pub const SDKS: [Kind; 8] = [
    Kind::Sdk(Sdk::TypeScript1),
    Kind::Sdk(Sdk::TypeScript2),
    Kind::Sdk(Sdk::TypeScript2PerRequest),
    Kind::Sdk(Sdk::Python1),
    Kind::Sdk(Sdk::Python2),
    Kind::Sdk(Sdk::Python2PerRequest),
    Kind::Sdk(Sdk::Rust),
    Kind::Sdk(Sdk::RustPerRequest),
];

/// Longer than an SDK waits for an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Lines to a client, and from it.
pub type Lines = (mpsc::UnboundedSender<Value>, mpsc::UnboundedReceiver<Value>);

/// One client, and what it has heard.
struct Client<'b> {
    books: &'b Books,
    who: String,
    listens: bool,
    orders: mpsc::UnboundedSender<Value>,
    lines: mpsc::UnboundedReceiver<Value>,
    /// It is another client than before, and has not looked at anything.
    fresh: bool,
    /// It was told that there are other tools, and has not looked.
    changed: bool,
    /// The changes that were told, where all are handled at once and come in no order.
    told: Option<HashSet<u64>>,
}

// === impl Sdk ===

impl Sdk {
    /// Its script, and the revision that this is told to speak.
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

    async fn start(self, gate: &Gate) -> Lines {
        let (url, deaf) = gate.entrance(&format!("{self:?}"));
        let Some((peer, name, revision)) = self.script() else { return rust::start(url, deaf, self.has_session()) };
        tokio::task::spawn_blocking(installed).await.unwrap();
        let mut command = script(peer.interpreter, name);
        command.arg(url).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if !revision.is_empty() {
            command.env("PEER_REVISION", revision);
        }
        let mut child = command.spawn().unwrap();
        let (orders, mut ordered) = mpsc::unbounded_channel::<Value>();
        let (said, lines) = mpsc::unbounded_channel();
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
                let _ = said.send(line);
            }
            let complaints = complaints.await.unwrap();
            assert!(child.wait().await.unwrap().success(), "{self:?}: {complaints}");
        });
        (orders, lines)
    }

    /// What was told of the progress of a call: in order, and nothing twice.
    fn judge_progress(self, act: Act, fate: &Fate, progress: &Value) {
        let told: Vec<u64> = progress.as_array().unwrap().iter().map(|step| step.as_f64().unwrap() as u64).collect();
        let context = format!("{self:?}, {act:?}, {fate:?}: {told:?}");
        assert!(told.iter().copied().eq(1..=told.len() as u64), "{context}");
        // The TypeScript SDKs drop notices that arrive in one piece with the answer.
        let whole = matches!(self, Self::Python1 | Self::Python2 | Self::Python2PerRequest);
        if whole && *fate == Fate::Answered {
            assert_eq!(told.len() as u64, act.reports(), "{context}");
        }
    }
}

// === impl Client ===

impl Client<'_> {
    /// The next line that answers an order. All others are dealt with.
    async fn answer(&mut self) -> Value {
        loop {
            let line = tokio::time::timeout(ANSWER, self.lines.recv()).await;
            let line = line.unwrap_or_else(|_| panic!("{} says nothing", self.who));
            let line = line.unwrap_or_else(|| panic!("{} has ended", self.who));
            if let Some(line) = self.take(line) {
                return line;
            }
        }
    }

    /// Takes a line; gives back what answers an order.
    fn take(&mut self, line: Value) -> Option<Value> {
        if !line["number"].is_null() || line.get("tools").is_some() {
            return Some(line);
        }
        assert!(line.get("twice").is_none(), "{}: {line}", self.who);
        if let Some(number) = line.get("updated") {
            let mut number = number.as_u64();
            if let Some(told) = &mut self.told
                && let Some(once) = number.take()
            {
                assert!(told.insert(once), "{}: {once} comes twice", self.who);
            }
            if !self.fresh && self.listens {
                self.books.news.updated(&self.who, number);
            }
        } else if line["changed"] == true {
            self.changed = true;
        } else {
            println!("{}: {line}", self.who);
            self.books.news.leaves(&self.who);
            self.fresh = true;
        }
        None
    }

    /// Looks at the tools if there are said to be others.
    async fn look(&mut self) {
        while self.listens && (self.fresh || self.changed) {
            let fresh = std::mem::take(&mut self.fresh);
            self.changed = false;
            self.orders.send(json!({ "list": true })).unwrap();
            let answer = self.answer().await;
            let Some(names) = answer["tools"].as_array() else {
                (self.fresh, self.changed) = (fresh || self.fresh, true);
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            let tools = number_of(names.iter().map(|name| name.as_str().unwrap()));
            if self.fresh {
                continue; // it is another again
            }
            match fresh {
                true => self.books.news.listens(&self.who, true, tools),
                false => self.books.news.listed(&self.who, tools),
            }
        }
    }
}

/// Makes calls, one after the other.
pub async fn run(books: Arc<Books>, place: usize, sdk: Sdk) {
    let mut dice = books.dice(place);
    let (orders, lines) = sdk.start(&books.gate).await;
    let (who, listens) = (format!("{sdk:?}"), sdk.has_session());
    let told = (sdk == Sdk::Rust).then(HashSet::new);
    let mut client = Client { books: &books, who, listens, orders, lines, fresh: true, changed: false, told };
    let mut made = 0;
    while books.goes_on(made) {
        client.look().await;
        let (number, act) = books.begin(Kind::Sdk(sdk), &mut dice);
        let params = act.params(number);
        let order = json!({ "number": number, "name": params["name"], "arguments": params["arguments"] });
        client.orders.send(order).unwrap();
        let line = client.answer().await;
        assert_eq!(line["number"], number, "{line}");
        let fate = match line["answered"].as_str() {
            Some(text) => {
                let content = json!([{ "type": "text", "text": text }]);
                act.judge(number, &json!({ "id": number, "result": { "content": content } }))
            }
            None => Fate::Failed(line["failed"].as_str().unwrap().into()),
        };
        sdk.judge_progress(act, &fate, &line["progress"]);
        books.end(place, number, fate);
        made += 1;
    }
    let listening = async {
        loop {
            client.look().await;
            let line = client.lines.recv().await.expect("it goes on");
            assert!(client.take(line).is_none(), "nobody asked");
        }
    };
    tokio::select! {
        () = listening => {}
        () = books.rests() => {}
    }
    books.news.leaves(&client.who);
    let Client { orders, mut lines, .. } = client;
    drop(orders);
    let ending = async { while lines.recv().await.is_some() {} };
    tokio::time::timeout(ANSWER, ending).await.expect("an end in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_clients_notice_nothing_of_a_restart_of_all_nodes() {
    tokio::task::spawn_blocking(installed).await.unwrap();
    let mut fleet = Fleet::three().await;
    let driver = Driver::start(&fleet, &SDKS, UNTIL_TOLD);
    driver.all_begin().await;
    driver.each_makes(2).await;
    for name in ["a", "b", "c"] {
        let node = fleet.node_mut(name);
        node.terminate();
        assert_eq!(node.ended().await, Some(0), "{name}");
        driver.each_makes(2).await;
        let node = fleet.node_mut(name);
        assert!(node.again().await);
        node.ready().await;
        driver.each_makes(2).await;
    }
    let books = Arc::clone(&driver.books);
    let report = driver.finish().await;
    assert_eq!((report.failed, books.gate.refused()), (vec![], 0));
    fleet.settle().await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_the_official_clients_go_on_and_no_call_is_made_twice() {
    tokio::task::spawn_blocking(installed).await.unwrap();
    let store = Server::start(Program::Redis).await;
    let (url, proxy) = (store.url(), Proxy::to(store.port()).await);
    let through = format!("redis://{}", proxy.address);
    let mut fleet =
        Fleet::with(store, &["a", "b", "c"], |name| if name == "b" { through.clone() } else { url.clone() }).await;
    for node in &fleet.nodes {
        node.ready().await;
    }
    let driver = Driver::start(&fleet, &SDKS, UNTIL_TOLD);
    driver.all_begin().await;
    driver.each_makes(2).await;

    println!("a is killed");
    fleet.node_mut("a").kill().await;
    driver.each_makes(2).await;
    assert!(fleet.node_mut("a").again().await);
    fleet.node("a").ready().await;
    driver.each_makes(2).await;

    println!("c is halted");
    let halted = fleet.node("c");
    fleet.balancer.leave_out(halted.address, true);
    halted.pause();
    tokio::time::sleep(LEASE * 3 / 2).await;
    halted.resume();
    halted.ready().await;
    fleet.balancer.leave_out(halted.address, false);
    driver.each_makes(2).await;

    println!("b is cut off");
    proxy.cut(true);
    fleet.node("b").says(503).await;
    driver.each_makes(2).await;
    proxy.mend();
    fleet.node("b").ready().await;
    driver.each_makes(2).await;

    println!("the store is restarted");
    fleet.store.stop();
    for node in &fleet.nodes {
        node.says(503).await;
    }
    assert!(fleet.store.again().await);
    for node in &fleet.nodes {
        node.ready().await;
    }
    driver.each_makes(3).await;
    driver.finish().await;
    fleet.settle().await;
    fleet.end().await;
}
