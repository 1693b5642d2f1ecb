//! Clients of all kinds that number everything that they do, and one who keeps the books: each call was
//! answered once, with its own result, and carried out once; or its client was told that it failed, and it
//! was carried out no more than once.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::balancer::Balancer;
use super::gate::Gate;
use super::news::News;
use super::real::{Fleet, eventually};
use super::sdks::Sdk;
use super::{clients, listener};
use crate::puppet::Puppet;

/// A client of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A session of Streamable HTTP, of this revision.
    Session(&'static str),
    /// A session of HTTP+SSE.
    Sse,
    /// No session: 2026-07-28.
    PerRequest,
    /// An official SDK, which does all that by itself.
    Sdk(Sdk),
}

pub const ALL: [Kind; 4] = [Kind::Session("2025-11-25"), Kind::Session("2025-06-18"), Kind::Sse, Kind::PerRequest];

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Nothing but answer.
    Plain,
    /// Tells this often how it goes.
    Progress(u64),
    /// Asks its client something.
    Ask,
    /// Is for the child.
    Child,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    Answered,
    Failed(String),
}

/// Who makes calls and keeps the books.
pub struct Driver {
    pub books: Arc<Books>,
    clients: Vec<JoinHandle<()>>,
    count: usize,
    updates: JoinHandle<()>,
}

/// What all clients share.
pub struct Books {
    pub balancer: Arc<Balancer>,
    pub web: Arc<Puppet>,
    kid: Arc<Puppet>,
    pub news: Arc<News>,
    /// Where clients go that know one address only.
    pub gate: Gate,
    seed: u64,
    /// Clients stop when this is cancelled, or after this many calls each.
    pub stop: CancellationToken,
    most: u64,
    /// How many have made their calls, and wait until they may leave.
    resting: AtomicUsize,
    pub leave: CancellationToken,
    last: AtomicU64,
    calls: Mutex<BTreeMap<u64, Entry>>,
    done: Mutex<HashMap<usize, u64>>,
}

/// Who made a call, what it does, and what became of it, if anything has.
type Entry = (Kind, Act, Option<Fate>);

/// What came of a run.
#[derive(Debug, Default)]
pub struct Report {
    pub answered: usize,
    pub failed: Vec<(u64, Kind, Act, String)>,
}

/// How long clients may take to make their calls.
const END: Duration = Duration::from_secs(40);
/// The resource that changes, with a number each time.
pub const RESOURCE: &str = "res://one";

/// Numbers that look like chance and are the same for the same seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below that.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

// === impl Driver ===

impl Driver {
    /// Some clients of each kind, until they are told to stop or each has made this many calls.
    pub fn start(fleet: &Fleet, kinds: &[Kind], most: u64) -> Self {
        Self::with(fleet, kinds, most, false)
    }

    /// The same; if nothing goes wrong, no change of a resource is left out, and `complete` says so.
    pub fn with(fleet: &Fleet, kinds: &[Kind], most: u64, complete: bool) -> Self {
        let seed = std::env::var("CLUSTER_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| {
            let mut random = [0; 2];
            getrandom::fill(&mut random).unwrap();
            u16::from_be_bytes(random).into()
        });
        println!("CLUSTER_SEED={seed}");
        let books = Arc::new(Books {
            balancer: Arc::clone(&fleet.balancer),
            web: Arc::clone(&fleet.web),
            kid: Arc::clone(&fleet.kid),
            news: News::of(&fleet.web, complete),
            gate: Gate::open(&fleet.balancer),
            seed,
            stop: CancellationToken::new(),
            most,
            resting: AtomicUsize::new(0),
            leave: CancellationToken::new(),
            last: AtomicU64::new(0),
            calls: Mutex::default(),
            done: Mutex::default(),
        });
        let run = |(place, kind): (usize, &Kind)| tokio::spawn(clients::run(Arc::clone(&books), place, *kind));
        let clients: Vec<_> = kinds.iter().enumerate().map(run).collect();
        let updates = tokio::spawn(Arc::clone(&books.news).publish(books.dice(kinds.len())));
        Self { books, count: clients.len(), clients, updates }
    }

    /// Waits until each client has made a call: to start an SDK may take a while.
    pub async fn all_begin(&self) {
        let deadline = tokio::time::Instant::now() + END;
        while self.books.done.lock().unwrap().len() < self.count {
            assert!(tokio::time::Instant::now() < deadline, "only some have begun: {:?}", self.books.done);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until each client has made this many calls more.
    pub async fn each_makes(&self, calls: u64) {
        let before = self.books.done.lock().unwrap().clone();
        let wanted = |place: usize| before.get(&place).copied().unwrap_or(0) + calls;
        eventually("every client goes on", async || {
            if let Some(ended) = self.clients.iter().position(JoinHandle::is_finished) {
                return Err(format!("client {ended} has ended"));
            }
            let done = self.books.done.lock().unwrap().clone();
            let behind: Vec<usize> = (0..self.clients.len())
                .filter(|place| done.get(place).copied().unwrap_or(0) < wanted(*place))
                .collect();
            if behind.is_empty() {
                return Ok(());
            }
            Err(format!("{behind:?} of {done:?} are behind; open: {:?}", self.books.open()))
        })
        .await;
    }

    /// Makes one more call, in a session that is none of the clients'.
    pub async fn call(&self, session: &clients::Session, act: Act) -> Fate {
        session.call(self.books.number(), act).await
    }

    /// Lets the clients finish, and looks at the books.
    pub async fn finish(self) -> Report {
        self.books.stop.cancel();
        self.end().await
    }

    /// Waits until the clients have made all their calls, and looks at the books.
    pub async fn end(self) -> Report {
        // All at once, so that none that has failed is waited for.
        let clients = futures_util::future::try_join_all(self.clients);
        let resting = async {
            let begun = tokio::time::Instant::now();
            while self.books.resting.load(Ordering::SeqCst) < self.count {
                assert!(begun.elapsed() < END, "a client does not end; open: {:?}", self.books.open());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            self.books.news.end().await;
            listener::all_list(&self.books.balancer, self.books.news.tools()).await;
            self.updates.abort();
            self.books.leave.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = clients => drop(ended.unwrap()),
            () = resting => {}
        }
        let left = self.books.gate.clear().await;
        println!("{left} sessions were not ended by their clients");
        self.books.check()
    }
}

// === impl Books ===

impl Books {
    pub fn dice(&self, place: usize) -> Dice {
        Dice::new(self.seed + (place as u64) * 7919 + 1)
    }

    /// Whether a client that has made this many calls makes another.
    pub fn goes_on(&self, made: u64) -> bool {
        made < self.most && !self.stop.is_cancelled()
    }

    /// A client has made its calls, and waits until all have.
    pub async fn rests(&self) {
        self.resting.fetch_add(1, Ordering::SeqCst);
        self.leave.cancelled().await;
    }

    /// The next number.
    fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// A call is about to be made.
    pub fn begin(&self, kind: Kind, dice: &mut Dice) -> (u64, Act) {
        let number = self.number();
        let act = match dice.below(10) {
            0..4 => Act::Plain,
            4..7 => Act::Progress(1 + dice.below(6)),
            7..9 => Act::Ask,
            _ => Act::Child,
        };
        self.calls.lock().unwrap().insert(number, (kind, act, None));
        (number, act)
    }

    /// A call has ended.
    pub fn end(&self, place: usize, number: u64, fate: Fate) {
        let before = self.calls.lock().unwrap().get_mut(&number).unwrap().2.replace(fate);
        assert_eq!(before, None, "{number} ends twice");
        *self.done.lock().unwrap().entry(place).or_default() += 1;
    }

    /// The calls that have no end yet.
    fn open(&self) -> Vec<(u64, Kind, Act)> {
        let calls = self.calls.lock().unwrap();
        let open = calls.iter().filter(|(_, (_, _, fate))| fate.is_none());
        open.map(|(number, (kind, act, _))| (*number, *kind, *act)).collect()
    }

    /// How often each number was carried out.
    fn executions(&self) -> HashMap<u64, usize> {
        let mut executions = HashMap::new();
        for seen in self.web.seen().into_iter().chain(self.kid.seen()).filter(|seen| seen.what == "tools/call") {
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
        for (number, (kind, act, fate)) in std::mem::take(&mut *self.calls.lock().unwrap()) {
            let times = executions.get(&number).copied().unwrap_or(0);
            let right = match &fate {
                Some(Fate::Answered) => times == 1,
                Some(Fate::Failed(_)) => times <= 1,
                None => false,
            };
            if !right {
                faults.push(format!("{number} ({kind:?}, {act:?}): {fate:?}, carried out {times} times"));
            }
            match fate {
                Some(Fate::Failed(why)) => report.failed.push((number, kind, act, why)),
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

// === impl Act ===

impl Act {
    /// What is called, and with what.
    pub fn params(self, number: u64) -> Value {
        let schema = json!({ "type": "object", "properties": { "number": { "type": "integer" } } });
        let (name, steps) = match self {
            Self::Plain => ("echo", json!([])),
            Self::Child => ("kid", json!([])),
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

    /// How often it tells how it goes.
    pub fn reports(self) -> u64 {
        if let Self::Progress(times) = self { times } else { 0 }
    }

    /// Looks at an answer: it is this call's, or an error.
    pub fn judge(self, number: u64, answer: &Value) -> Fate {
        assert_eq!(answer["id"], number, "{answer}");
        if let Some(error) = answer.get("error") {
            return Fate::Failed(error.to_string());
        }
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no report: {answer}"));
        let Ok(report) = serde_json::from_str::<Value>(text) else { return Fate::Failed(text.to_owned()) };
        assert_eq!(report["message"], number, "{answer}");
        if self == Self::Ask {
            assert_eq!(report["answers"][0]["content"]["number"], number, "{answer}");
        }
        Fate::Answered
    }
}

/// What a client answers when a call asks it.
pub fn reply(params: &Value) -> Value {
    let number: u64 = params["message"].as_str().unwrap().parse().unwrap();
    json!({ "action": "accept", "content": { "number": number } })
}
