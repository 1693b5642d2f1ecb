//! HTTP/1.1 byte by byte: what a connection does with whatever a client writes.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{PATIENCE, PER_REQUEST, Rialto, modern};

/// A connection, and what has come on it.
struct Wire {
    stream: TcpStream,
    came: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Wire {
    async fn open(rialto: &Rialto) -> Self {
        let stream = TcpStream::connect(rialto.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, came: Vec::new() }
    }

    async fn say(&mut self, text: impl AsRef<[u8]>) {
        self.stream.write_all(text.as_ref()).await.unwrap();
    }

    /// Reads some more; false at the end.
    async fn more(&mut self) -> bool {
        let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.came)).await.expect("in time");
        read.unwrap_or(0) > 0
    }

    /// The next answer. Only its head is waited for where it has no body.
    async fn hear(&mut self, has_body: bool) -> Answer {
        let end = loop {
            if let Some(end) = self.came.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            assert!(self.more().await, "closed after {:?}", String::from_utf8_lossy(&self.came));
        };
        let head: Vec<u8> = self.came.drain(..end).collect();
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = header(&head, "content-length").map_or(0, |length| length.parse().unwrap());
        let length = if has_body { length } else { 0 };
        while self.came.len() < length {
            assert!(self.more().await, "closed in the middle of a body");
        }
        let body = self.came.drain(..length).collect();
        Answer { status, head, body: String::from_utf8(body).unwrap() }
    }

    /// Nothing more comes.
    async fn ends(mut self) -> bool {
        while self.more().await {}
        self.came.is_empty()
    }
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

fn message(id: i64) -> String {
    modern(id.into(), "tools/list", json!({})).to_string()
}

/// A good request, with other headers and another body.
fn posted(more: &str, body: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: */*\r\n\
         mcp-protocol-version: {PER_REQUEST}\r\nmcp-method: tools/list\r\n{more}\r\n{body}"
    )
}

fn post(id: i64) -> String {
    let body = message(id);
    posted(&format!("content-length: {}\r\n", body.len()), &body)
}

#[tokio::test]
async fn requests_that_come_together_are_answered_one_after_the_other() {
    let rialto = Rialto::start().await;
    let mut wire = Wire::open(&rialto).await;
    wire.say([post(1), post(2), "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), post(3)].concat()).await;
    for id in [Some(1), Some(2), None, Some(3)] {
        let answer = wire.hear(true).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("date").map(str::len), Some("Sun, 06 Nov 1994 08:49:37 GMT".len()));
        assert_eq!(answer.header("connection"), None);
        match id {
            Some(id) => assert_eq!(answer.json()["id"], id),
            None => assert_eq!(answer.body, "alive\n"),
        }
    }
    assert!(wire.came.is_empty());
}

#[tokio::test]
async fn however_a_request_is_cut_it_is_the_same() {
    let rialto = Rialto::start().await;
    let mut wire = Wire::open(&rialto).await;
    let body = message(7);
    let (one, other) = body.split_at(20);
    let pieces = format!("{:x}\r\n{one}\r\n{:X};a=b\r\n{other}\r\n0\r\nx: y\r\n\r\n", one.len(), other.len());
    for request in [posted("transfer-encoding: chunked\r\n", &pieces), post(7)] {
        for step in [1, 2, 7] {
            for part in request.as_bytes().chunks(step) {
                wire.say(part).await;
            }
            assert_eq!(wire.hear(true).await.json()["id"], 7, "by {step}");
        }
    }
}

#[tokio::test]
async fn a_client_that_waits_is_told_to_go_on_or_refused() {
    let rialto = Rialto::with(|settings| settings.inbound.limits.body_bytes = 1000).await;
    let body = message(1);
    let mut wire = Wire::open(&rialto).await;
    wire.say(posted(&format!("expect: 100-continue\r\ncontent-length: {}\r\n", body.len()), "")).await;
    assert_eq!(wire.hear(false).await.head, "HTTP/1.1 100 Continue\r\n\r\n");
    wire.say(&body).await;
    assert_eq!(wire.hear(true).await.status, 200);
    wire.say(posted("expect: 100-continue\r\ncontent-length: 1001\r\n", "")).await;
    let refused = wire.hear(true).await;
    assert_eq!((refused.status, refused.header("connection")), (413, Some("close")));
    assert!(wire.ends().await);
}

#[tokio::test]
async fn older_clients_are_served_in_their_way() {
    let rialto = Rialto::start().await;
    let older = |more: &str| post(1).replace("HTTP/1.1", "HTTP/1.0").replace("accept", &format!("{more}accept"));
    let mut wire = Wire::open(&rialto).await;
    for _ in 0..2 {
        wire.say(older("connection: keep-alive\r\n")).await;
        let answer = wire.hear(true).await;
        assert_eq!((answer.status, answer.header("connection")), (200, Some("keep-alive")));
    }
    wire.say(older("")).await;
    let answer = wire.hear(true).await;
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert!(wire.ends().await);
    // A stream to one that knows no pieces ends with its connection.
    let session = rialto.open("2025-11-25").await;
    let mut wire = Wire::open(&rialto).await;
    let head = "GET /mcp HTTP/1.0\r\nhost: localhost\r\naccept: text/event-stream\r\n";
    wire.say(format!("{head}mcp-session-id: {}\r\n\r\n", session.id)).await;
    let answer = wire.hear(false).await;
    assert_eq!((answer.header("transfer-encoding"), answer.header("connection")), (None, Some("close")));
    assert_eq!(session.delete().status().await, 200);
    while wire.more().await {}
    assert!(String::from_utf8(wire.came).unwrap().starts_with("id: "), "events as they are");
}

#[tokio::test]
async fn a_head_alone_is_answered_by_one() {
    let rialto = Rialto::start().await;
    let mut wire = Wire::open(&rialto).await;
    wire.say(format!("HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n{}", post(1))).await;
    let answer = wire.hear(false).await;
    assert_eq!((answer.status, answer.header("content-length")), (200, Some("6")));
    assert_eq!(wire.hear(true).await.json()["id"], 1);
}

/// What two readers could understand in two ways is no request at all.
#[tokio::test]
async fn what_is_no_request_is_refused_with_a_sentence() {
    let rialto = Rialto::start().await;
    let long = format!("GET /mcp HTTP/1.1\r\nx: {}", "y".repeat(70 << 10));
    for (says, status) in [
        (posted("content-length: 3\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"), 400),
        (posted("content-length: 3\r\ncontent-length: 4\r\n", "abcd"), 400),
        (posted("transfer-encoding: gzip, chunked, gzip\r\n", "0\r\n\r\n"), 400),
        (posted("content-length : 3\r\n", "abc"), 400),
        (posted("x: y\r\n z: w\r\n", ""), 400),
        ("GET /mcp HTTP/3.0\r\n\r\n".to_owned(), 400),
        ("\u{16}\u{3}\u{1}\u{2}".to_owned(), 400),
        ("hello\r\n\r\n".to_owned(), 400),
        (long, 431),
    ] {
        let mut wire = Wire::open(&rialto).await;
        wire.say(&says).await;
        let answer = wire.hear(true).await;
        let begin = &says[..says.len().min(200)];
        assert_eq!((answer.status, answer.header("connection")), (status, Some("close")), "{begin}");
        assert!(answer.json()["error"]["message"].is_string(), "{begin}: {answer:?}");
        assert!(wire.ends().await);
    }
}

#[tokio::test]
async fn a_body_that_nobody_wants_is_in_nobodys_way() {
    let rialto = Rialto::start().await;
    let mut wire = Wire::open(&rialto).await;
    let elsewhere = post(1).replace("POST /mcp ", "POST /nowhere ");
    let with_get = "GET /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc";
    wire.say([&elsewhere, with_get, &post(2)].concat()).await;
    assert_eq!(wire.hear(true).await.status, 404);
    assert_eq!(wire.hear(true).await.status, 405);
    assert_eq!(wire.hear(true).await.json()["id"], 2);
    // One that is still being sent ends the connection, but the answer is not lost.
    let size = 3 << 20;
    wire.say(format!("POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n\r\n")).await;
    for part in "x".repeat(size).as_bytes().chunks(1 << 16) {
        wire.say(part).await;
    }
    let answer = wire.hear(true).await;
    assert_eq!((answer.status, answer.header("connection")), (404, Some("close")));
    assert!(wire.ends().await);
}

#[tokio::test]
async fn who_says_nothing_or_half_of_it_is_not_waited_for() {
    let rialto = Rialto::with(|settings| settings.inbound.body_timeout = Duration::from_millis(30)).await;
    for says in ["", "GET /mcp HT", "GET /mcp HTTP/1.1\r\nhost: localhost\r\n"] {
        let mut wire = Wire::open(&rialto).await;
        wire.say(says).await;
        assert!(wire.ends().await, "{says}");
    }
    let mut wire = Wire::open(&rialto).await;
    wire.say(post(1)).await;
    assert_eq!(wire.hear(true).await.status, 200);
    assert!(wire.ends().await);
}

#[tokio::test]
async fn a_stop_ends_connections_in_order() {
    let mut rialto = Rialto::start().await;
    let mut idle = Wire::open(&rialto).await;
    idle.say(post(1)).await;
    assert_eq!(idle.hear(true).await.status, 200);
    // A stop waits for a call, and its connection takes no other.
    let mut busy = Wire::open(&rialto).await;
    let params = json!({
        "name": "surveyElements", "arguments": { "count": 20, "delayMs": 20 }, "_meta": { "progressToken": 1 },
    });
    let body = modern(1.into(), "tools/call", params).to_string();
    let more = format!("mcp-name: surveyElements\r\nmcp-param-count: 20\r\ncontent-length: {}\r\n", body.len());
    busy.say(posted(&more, &body).replace("tools/list\r\n", "tools/call\r\n")).await;
    busy.hear(false).await;
    rialto.begin_stop();
    assert!(idle.ends().await);
    while busy.more().await {}
    assert!(String::from_utf8(busy.came).unwrap().ends_with("\r\n0\r\n\r\n"), "it ends as it should");
    assert!(rialto.stopped().await);
}
