//! What clients of each kind do: one call after the other, each request at another node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::balancer::{AGAIN, Balancer};
use super::driver::{Act, Books, Fate, Kind, RESOURCE, reply};
use super::real::Node;
use super::{listener, older, sdks};
use crate::harness::{Events, Received, Sending, modern, notification, request};

/// How often the stream of one call may break.
const MOST_BREAKS: usize = 200;

/// A client, until it has made its calls.
pub async fn run(books: Arc<Books>, place: usize, kind: Kind) {
    match kind {
        Kind::Session(revision) => session(books, place, revision).await,
        Kind::Sse => older::run(books, place).await,
        Kind::PerRequest => per_request(books, place).await,
        Kind::Sdk(sdk) => sdks::run(books, place, sdk).await,
    }
}

/// A POST of JSON to a node.
pub fn post(node: SocketAddr, path: &str, body: &Value) -> Sending {
    Sending::to(node, "POST", path)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .body(body.to_string())
}

/// What a client says when it comes.
pub fn hello(revision: &str) -> Value {
    let info = json!({ "name": "test", "version": "1" });
    let capabilities = json!({ "elicitation": { "form": {} } });
    let params = json!({ "protocolVersion": revision, "capabilities": capabilities, "clientInfo": info });
    request("init", "initialize", params)
}

/// A session of Streamable HTTP.
#[derive(Clone)]
pub struct Session {
    pub balancer: Arc<Balancer>,
    pub id: String,
    pub revision: &'static str,
    /// How many requests had names of their own.
    pub named: Arc<AtomicU64>,
}

impl Session {
    pub async fn open(balancer: &Arc<Balancer>, revision: &'static str) -> Self {
        let id = loop {
            // A session of which nobody heard is of no harm.
            let received = balancer.insist(|node| post(node, "/mcp", &hello(revision))).await;
            if let Ok(received) = received
                && let Some(id) = received.header("mcp-session-id").map(str::to_owned)
                && received.try_text().await.is_ok()
            {
                break id;
            }
            tokio::time::sleep(AGAIN).await;
        };
        let session = Self { balancer: Arc::clone(balancer), id, revision, named: Arc::default() };
        session.tell(&notification("notifications/initialized", json!({}))).await;
        session
    }

    /// The same session, at one node alone.
    pub fn at(&self, node: &Node) -> Self {
        Self { balancer: Balancer::new(vec![node.address]), ..self.clone() }
    }

    /// A number that no other request has.
    pub fn next(&self) -> u64 {
        self.named.fetch_add(1, Ordering::SeqCst)
    }

    fn within(&self, sending: Sending) -> Sending {
        sending.header("mcp-session-id", &self.id).header("mcp-protocol-version", self.revision)
    }

    pub fn post(&self, node: SocketAddr, body: &Value) -> Sending {
        self.within(post(node, "/mcp", body))
    }

    pub fn get(&self, node: SocketAddr, last: Option<&str>) -> Sending {
        let get = self.within(Sending::to(node, "GET", "/mcp").header("accept", "text/event-stream"));
        match last {
            Some(last) => get.header("last-event-id", last),
            None => get,
        }
    }

    /// Says something that wants no answer, until somebody has heard it.
    pub async fn tell(&self, body: &Value) {
        loop {
            match self.balancer.insist(|node| self.post(node, body)).await {
                Ok(received) if received.status == 202 => return,
                Ok(received) if received.status != 502 => panic!("{}", shown(received).await),
                _ => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Ends it.
    pub async fn end(&self) {
        loop {
            match self.balancer.insist(|node| self.within(Sending::to(node, "DELETE", "/mcp"))).await {
                Ok(received) if received.status == 200 => return,
                Ok(received) if received.status == 404 => return println!("{} had ended before", self.id),
                Ok(received) if received.status != 502 => panic!("not ended: {}", shown(received).await),
                _ => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Makes a call, and follows it wherever its stream goes.
    pub async fn call(&self, number: u64, act: Act) -> Fate {
        let body = request(number, "tools/call", act.params(number));
        let received = match self.balancer.insist(|node| self.post(node, &body)).await {
            Ok(received) => received,
            Err(why) => return Fate::Failed(why),
        };
        if !received.is_events() {
            return match whole(received).await {
                Ok(answer) => act.judge(number, &answer),
                Err(why) => Fate::Failed(why),
            };
        }
        let mut stream = received.events();
        let mut last = None;
        let mut progress = 0;
        for _ in 0..MOST_BREAKS {
            match self.follow(number, act, &mut stream, &mut last, &mut progress).await {
                Some(fate) => return fate,
                None => {
                    let Some(last) = &last else {
                        return Fate::Failed("the stream broke before its first event".into());
                    };
                    stream = self.resumed(last).await;
                }
            }
        }
        panic!("{number} has no end, after {last:?}")
    }

    /// A stream from an event on.
    pub async fn resumed(&self, last: &str) -> Events {
        loop {
            match self.balancer.insist(|node| self.get(node, Some(last))).await {
                Ok(received) if received.status == 200 => return received.events(),
                Ok(received) if received.status != 502 => {
                    panic!("{last} is not resumed: {}", shown(received).await)
                }
                _ => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Reads a stream to its end; nothing when that came before the answer did.
    async fn follow(
        &self,
        number: u64,
        act: Act,
        stream: &mut Events,
        last: &mut Option<String>,
        progress: &mut u64,
    ) -> Option<Fate> {
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
                    let fate = act.judge(number, &message);
                    if fate == Fate::Answered {
                        assert_eq!(*progress, act.reports(), "{number} without a gap");
                    }
                    return Some(fate);
                }
            }
        }
        None
    }
}

/// What came, for people.
pub async fn shown(received: Received) -> String {
    let status = received.status;
    format!("{status} {}", received.text().await)
}

async fn whole(received: Received) -> Result<Value, String> {
    let status = received.status;
    let text = received.try_text().await.map_err(|broken| format!("{broken:?}"))?;
    assert!(status == 200 || status == 502, "{status}: {text}");
    Ok(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

async fn session(books: Arc<Books>, place: usize, revision: &'static str) {
    let mut dice = books.dice(place);
    let session = Session::open(&books.balancer, revision).await;
    let subscribed = request("subscribe", "resources/subscribe", json!({ "uri": RESOURCE }));
    while books.balancer.insist(|node| session.post(node, &subscribed)).await.is_err() {}
    let listening = tokio::spawn(listener::listen(Arc::clone(&books.news), session.clone()));
    let mut made = 0;
    while books.goes_on(made) {
        let (number, act) = books.begin(Kind::Session(revision), &mut dice);
        let fate = session.call(number, act).await;
        books.end(place, number, fate);
        made += 1;
    }
    books.rests().await;
    session.end().await;
    match tokio::time::timeout(crate::harness::PATIENCE / 2, listening).await {
        Ok(listened) => listened.unwrap(),
        Err(_) => panic!("{} has ended, and is listened to: {:?}", session.id, books.balancer.statuses().await),
    }
}

async fn per_request(books: Arc<Books>, place: usize) {
    let mut dice = books.dice(place);
    let listening = tokio::spawn(listener::listen_per_request(Arc::clone(&books), place));
    let mut made = 0;
    while books.goes_on(made) {
        let (number, act) = books.begin(Kind::PerRequest, &mut dice);
        let fate = rounds(&books, number, act).await;
        books.end(place, number, fate);
        made += 1;
    }
    books.rests().await;
    listening.await.unwrap();
}

/// A request of the era without sessions, from a client that can be asked.
pub fn describing(node: SocketAddr, number: u64, params: &Value) -> Sending {
    let mut body = modern(number.into(), "tools/call", params.clone());
    let capabilities = json!({ "elicitation": { "form": {} } });
    body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    post(node, "/mcp", &body).modern_headers("tools/call", params)
}

/// The answers to what a call asks, with which it is made again.
pub fn answers(params: &Value, result: &Value) -> Value {
    let mut again = params.clone();
    let asked = result["inputRequests"].as_object().unwrap();
    again["inputResponses"] = asked.iter().map(|(key, asked)| (key.clone(), reply(&asked["params"]))).collect();
    again["requestState"] = result["requestState"].clone();
    again
}

/// A call without a session, with as many rounds as it takes.
async fn rounds(books: &Books, number: u64, act: Act) -> Fate {
    let mut params = act.params(number);
    for _ in 0..3 {
        let received = match books.balancer.insist(|node| describing(node, number, &params)).await {
            Ok(received) => received,
            Err(why) => return Fate::Failed(why),
        };
        let answer = if received.is_events() {
            let mut stream = received.events();
            let mut progress = 0;
            loop {
                let Some(message) = stream.message().await else { return Fate::Failed("the stream broke".into()) };
                if message["method"] != "notifications/progress" {
                    break message;
                }
                progress += 1;
                assert_eq!(message["params"]["progress"], progress, "{number} in order, without a gap");
            }
        } else {
            match whole(received).await {
                Ok(answer) => answer,
                Err(why) => return Fate::Failed(why),
            }
        };
        if answer["result"]["resultType"] != "input_required" {
            return act.judge(number, &answer);
        }
        params = answers(&act.params(number), &answer["result"]);
    }
    panic!("{number} never ends")
}
