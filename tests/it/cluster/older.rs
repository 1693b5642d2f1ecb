//! A client of HTTP+SSE: its stream is at one node, what it says goes to any.

use std::sync::Arc;

use serde_json::{Value, json};

use super::balancer::AGAIN;
use super::clients::{hello, post};
use super::driver::{Act, Books, Fate, Kind, reply};
use super::news::number_in;
use crate::harness::{Events, Sending, notification, request};

/// One stream, and where messages go.
struct Talk<'b> {
    books: &'b Books,
    stream: Events,
    endpoint: String,
    /// It was told that there are other tools, and has not looked.
    changed: bool,
    asked: u64,
}

impl<'b> Talk<'b> {
    /// Opens one; nothing when it breaks.
    async fn open(books: &'b Books) -> Option<Self> {
        let opening = |node| Sending::to(node, "GET", "/sse").header("accept", "text/event-stream");
        let mut stream = books.balancer.insist(opening).await.ok()?.events();
        let endpoint = stream.next().await?.data;
        let mut talk = Self { books, stream, endpoint, changed: false, asked: 0 };
        talk.say(&hello("2024-11-05")).await.ok()?;
        while talk.stream.message().await?["id"] != "init" {}
        talk.say(&notification("notifications/initialized", json!({}))).await.ok()?;
        let tools = talk.tools().await?;
        books.news.listens(&talk.endpoint, false, tools);
        Some(talk)
    }

    /// Which tools there are; nothing when the stream breaks.
    async fn tools(&mut self) -> Option<u64> {
        self.asked += 1;
        let id = json!(format!("list-{}", self.asked));
        self.say(&request(id.clone(), "tools/list", json!({}))).await.ok()?;
        loop {
            let message = self.stream.message().await?;
            match message["method"].as_str() {
                Some("notifications/tools/list_changed") => self.changed = true,
                Some(other) => panic!("{other}: {message}"),
                // One that failed is asked anew, in another session.
                None if message["id"] == id => return message.get("result").map(number_in),
                None => {}
            }
        }
    }

    /// Looks at the tools if there are said to be others; nothing when the stream breaks.
    async fn look(&mut self) -> Option<()> {
        while std::mem::take(&mut self.changed) {
            let tools = self.tools().await?;
            self.books.news.listed(&self.endpoint, tools);
        }
        Some(())
    }

    /// Hears of nothing but tools; nothing when the stream breaks.
    async fn hear(&mut self) -> Option<()> {
        self.look().await?;
        let message = self.stream.message().await?;
        assert_eq!(message["method"], "notifications/tools/list_changed", "{message}");
        self.changed = true;
        self.look().await
    }

    /// Says something; tells whether it was heard, or the status of what came instead.
    async fn say(&self, body: &Value) -> Result<(), u16> {
        let said = self.books.balancer.insist(|node| post(node, &self.endpoint, body)).await;
        match said.map_or(0, |received| received.status) {
            202 => Ok(()),
            other @ (0 | 200 | 404 | 502) => Err(other),
            other => panic!("{other}"),
        }
    }

    /// Makes a call; nothing when the session was over before.
    async fn call(&mut self, number: u64, act: Act) -> Option<Fate> {
        match self.say(&request(number, "tools/call", act.params(number))).await {
            Ok(()) => {}
            Err(404) => return None,
            Err(status) => return Some(Fate::Failed(format!("it could not be said: {status}"))),
        }
        let mut progress = 0;
        loop {
            let Some(message) = self.stream.message().await else {
                return Some(Fate::Failed("the stream broke".into()));
            };
            match message["method"].as_str() {
                Some("notifications/progress") => {
                    progress += 1;
                    assert_eq!(message["params"]["progress"], progress, "{number} in order, without a gap");
                }
                Some("elicitation/create") => {
                    let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": reply(&message["params"]) });
                    // Until somebody has heard it. A stream that is gone is noticed soon enough.
                    while !matches!(self.say(&answer).await, Ok(()) | Err(404)) {
                        tokio::time::sleep(AGAIN).await;
                    }
                }
                Some("notifications/tools/list_changed") => self.changed = true,
                Some(other) => panic!("{other}: {message}"),
                None => return Some(act.judge(number, &message)),
            }
        }
    }
}

pub async fn run(books: Arc<Books>, place: usize) {
    let mut dice = books.dice(place);
    let mut talk = opened(&books).await;
    let mut made = 0;
    while books.goes_on(made) {
        let (number, act) = books.begin(Kind::Sse, &mut dice);
        let fate = loop {
            match talk.call(number, act).await {
                Some(fate) => break fate,
                None => talk = opened(&books).await,
            }
        };
        if fate != Fate::Answered || talk.look().await.is_none() {
            talk = opened(&books).await;
        }
        books.end(place, number, fate);
        made += 1;
    }
    let listening = async {
        loop {
            if talk.hear().await.is_none() {
                talk = opened(&books).await;
            }
        }
    };
    tokio::select! {
        () = listening => {}
        () = books.rests() => {}
    }
}

impl Drop for Talk<'_> {
    fn drop(&mut self) {
        self.books.news.leaves(&self.endpoint);
    }
}

async fn opened(books: &Books) -> Talk<'_> {
    loop {
        if let Some(talk) = Talk::open(books).await {
            return talk;
        }
        tokio::time::sleep(AGAIN).await;
    }
}
