//! HTTP/1.1 as bytes on a socket: framing, order, and what becomes of a connection.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{PATIENCE, PER_REQUEST, Rialto, modern, survey, until};

/// A request that is answered at once.
const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// What nobody may get to see as a request of its own.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A client that says bytes.
struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
}

/// An answer, its body out of its pieces.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Wire {
    async fn to(rialto: &Rialto) -> Self {
        let stream = TcpStream::connect(rialto.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, read: Vec::new() }
    }

    /// A client that has said something.
    async fn saying(rialto: &Rialto, text: &str) -> Self {
        let mut wire = Self::to(rialto).await;
        wire.say(text).await;
        wire
    }

    async fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads more; false at the end. Whoever was reset hears no more either.
    async fn more(&mut self) -> bool {
        let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.read)).await;
        read.expect("something in time").is_ok_and(|read| read > 0)
    }

    /// Takes everything to some text, with it.
    async fn through(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.read.windows(end.len()).position(|window| window == end.as_bytes()) {
                let rest = self.read.split_off(at + end.len());
                return String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap();
            }
            assert!(self.more().await, "no {end:?} in {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    async fn take(&mut self, length: usize) -> String {
        while self.read.len() < length {
            assert!(self.more().await, "only {:?}", String::from_utf8_lossy(&self.read));
        }
        let rest = self.read.split_off(length);
        String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap()
    }

    /// Everything to the end of the connection.
    async fn rest(&mut self) -> String {
        while self.more().await {}
        String::from_utf8(std::mem::take(&mut self.read)).unwrap()
    }

    /// The next answer, of which only the head comes where only that was asked for.
    async fn answer_to(&mut self, verb: &str) -> Answer {
        let head = self.through("\r\n\r\n").await.to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: String::new() };
        let length = answer.header("content-length").map(|length| length.parse().unwrap());
        if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = self.through("\r\n").await;
                let size = usize::from_str_radix(size.trim(), 16).unwrap();
                answer.body.push_str(&self.take(size).await);
                assert_eq!(self.take(2).await, "\r\n");
                if size == 0 {
                    break;
                }
            }
        } else if verb != "HEAD" && !matches!(status, 100 | 204) {
            answer.body = match length {
                Some(length) => self.take(length).await,
                None => self.rest().await,
            };
        }
        answer
    }

    async fn answer(&mut self) -> Answer {
        self.answer_to("GET").await
    }

    /// That nothing more comes.
    async fn ends(&mut self) {
        assert_eq!(self.rest().await, "");
    }

    /// That the connection can still be used.
    async fn goes_on(&mut self) {
        self.say(HEALTH).await;
        assert_eq!(self.answer().await.body, "alive\n");
    }
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// The name of the element that a look-up has found.
    fn symbol(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        body["result"]["structuredContent"]["symbol"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

/// The head of a request of the per-request era, but for how its body is framed.
fn head(version: &str, tool: &str) -> String {
    format!(
        "POST /mcp HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: */*\r\n\
         mcp-protocol-version: {PER_REQUEST}\r\nmcp-method: tools/call\r\nmcp-name: {tool}\r\n"
    )
}

fn look_up(element: &str) -> String {
    modern(1.into(), "tools/call", json!({ "name": "getElement", "arguments": { "name": element } })).to_string()
}

/// A whole request for an element, with some more headers.
fn asking(element: &str, more: &str) -> String {
    let body = look_up(element);
    format!("{}{more}content-length: {}\r\n\r\n{body}", head("1.1", "getElement"), body.len())
}

/// A request for an element in pieces.
fn asking_in_pieces(element: &str) -> String {
    let body = look_up(element);
    let (first, second) = body.split_at(7);
    format!(
        "{}transfer-encoding: chunked\r\n\r\n7;some=thing\r\n{first}\r\n{:X}\r\n{second}\r\n0\r\nx: y\r\n\r\n",
        head("1.1", "getElement"),
        second.len()
    )
}

/// A call that says nothing before it is answered.
fn counting(count: u32, delay: u32) -> String {
    let params = json!({ "name": "surveyElements", "arguments": { "count": count, "delayMs": delay } });
    let body = modern(1.into(), "tools/call", params).to_string();
    let head = head("1.1", "surveyElements");
    format!("{head}mcp-param-count: {count}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A POST of some JSON.
fn posted(body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: */*\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn responses_carry_status_date_and_content_length() {
    let rialto = Rialto::start().await;
    let preflight = "OPTIONS /mcp HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost\r\n\r\n";
    let notified = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    let mut notified = posted(&notified);
    notified.insert_str(notified.find("\r\n").unwrap() + 2, "mcp-protocol-version: 2026-07-28\r\n");
    let mut wire = Wire::to(&rialto).await;
    for (verb, text, status, length) in [
        ("GET", HEALTH.to_owned(), 200, Some("6")),
        ("HEAD", HEALTH.replace("GET", "HEAD"), 200, Some("6")),
        ("GET", HEALTH.replace("\r\n", "\n"), 200, Some("6")),
        ("GET", format!("\r\n\r\n{HEALTH}"), 200, Some("6")),
        ("GET", HEALTH.replace("/healthz", "http://localhost/healthz"), 200, Some("6")),
        ("OPTIONS", preflight.to_owned(), 204, None),
    ] {
        wire.say(&text).await;
        let answer = wire.answer_to(verb).await;
        assert!(answer.head.starts_with(&format!("http/1.1 {status} ")), "{text:?}: {answer:?}");
        assert_eq!((answer.header("content-length"), answer.header("connection")), (length, None), "{text:?}");
        let date = answer.header("date").unwrap();
        assert!(date.len() == 29 && date.ends_with(" gmt"), "{date}");
        for name in ["date", "content-length"] {
            assert!(answer.head.matches(&format!("\r\n{name}:")).count() <= 1, "{answer:?}");
        }
    }
    wire.say(&notified).await;
    let told = wire.answer().await;
    assert_eq!((told.status, told.header("content-length")), (202, Some("0")));
    wire.goes_on().await;
}

#[tokio::test]
async fn a_request_split_at_any_byte_is_parsed() {
    let rialto = Rialto::start().await;
    let (mut wire, mut other) = (Wire::to(&rialto).await, Wire::to(&rialto).await);
    for text in [asking("Fe", ""), asking_in_pieces("Fe")] {
        for cut in 1..text.len() {
            wire.say(&text[..cut]).await;
            // Most of the time this is long enough for the first part to be read alone.
            other.goes_on().await;
            wire.say(&text[cut..]).await;
            assert_eq!(wire.answer().await.symbol(), "Fe", "cut at {cut} of {text:?}");
        }
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let rialto = Rialto::start().await;
    let elements = ["H", "He", "Li", "Be", "B", "C"];
    let each = |element: &&str| [asking(element, ""), HEALTH.to_owned(), asking_in_pieces(element)].concat();
    let all: String = elements.iter().map(each).collect();
    let mut wire = Wire::saying(&rialto, &all.repeat(20)).await;
    for symbol in elements.repeat(20) {
        assert_eq!(wire.answer().await.symbol(), symbol);
        assert_eq!(wire.answer().await.body, "alive\n");
        assert_eq!(wire.answer().await.symbol(), symbol);
    }
}

#[tokio::test]
async fn a_pipelined_request_waits_for_the_sse_response_before_it() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let streamed = posted(&survey(1, 3, 1));
    let streamed = streamed.replacen("\r\n", &format!("\r\nmcp-session-id: {}\r\n", session.id), 1);
    let mut wire = Wire::saying(&rialto, &format!("{streamed}{HEALTH}")).await;
    let stream = wire.answer().await;
    assert_eq!((stream.header("content-type"), stream.header("content-length")), (Some("text/event-stream"), None));
    assert!(stream.body.contains("3 elements: H He Li"), "{stream:?}");
    assert_eq!(wire.answer().await.body, "alive\n");
    // Before pieces were known, a stream was all that came until the end.
    let mut old = Wire::saying(&rialto, &streamed.replace("HTTP/1.1", "HTTP/1.0")).await;
    let stream = old.answer().await;
    assert_eq!((stream.header("transfer-encoding"), stream.header("connection")), (None, Some("close")));
    assert!(stream.body.contains("3 elements: H He Li"), "{stream:?}");
}

/// Nothing that somebody else could read in another way is read in any.
#[tokio::test]
async fn ambiguous_framing_is_refused_against_request_smuggling() {
    let rialto = Rialto::start().await;
    let start = head("1.1", "getElement");
    for (framing, body) in [
        ("content-length: 5\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"),
        ("transfer-encoding: chunked\r\ncontent-length: 5\r\n", "0\r\n\r\n"),
        ("content-length: 5\r\ncontent-length: 6\r\n", "12345"),
        ("content-length: 5, 5\r\n", "12345"),
        ("content-length: +5\r\n", "12345"),
        ("content-length: 0x5\r\n", "12345"),
        ("content-length:\r\n", ""),
        ("content-length : 5\r\n", "12345"),
        ("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", "0\r\n\r\n"),
        ("transfer-encoding: chunked, gzip\r\n", "0\r\n\r\n"),
        ("transfer-encoding:\r\n chunked\r\n", "0\r\n\r\n"),
        ("transfer-encoding: chunked\r\n", "\r\n\r\n"),
        ("transfer-encoding: chunked\r\n", ";x\r\n\r\n"),
        ("transfer-encoding: chunked\r\n", "1;x\ny\r\n2\r\n0\r\n\r\n"),
        ("transfer-encoding: chunked\r\n", "1\n2\r\n0\r\n\r\n"),
        ("transfer-encoding: chunked\r\n", "1\r\n23\r\n0\r\n\r\n"),
        ("transfer-encoding: chunked\r\n", "0x1\r\n2\r\n0\r\n\r\n"),
        ("transfer-encoding: chunked\r\n", "0\r\n\n"),
        ("transfer-encoding: chunked\r\n", "0\r\nx: y\n\r\n"),
    ] {
        for text in [&start, &start.replace("/mcp", "/nowhere")] {
            let mut wire = Wire::saying(&rialto, &format!("{text}{framing}\r\n{body}{SMUGGLED}")).await;
            let answer = wire.answer().await;
            assert!(matches!(answer.status, 400 | 404), "{framing:?} {body:?}: {answer:?}");
            assert_eq!(answer.header("connection"), Some("close"), "{framing:?} {body:?}");
            assert_eq!(wire.rest().await, "", "{framing:?} {body:?}");
        }
    }
    let old = head("1.0", "getElement");
    for text in [
        format!("{old}transfer-encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}"),
        "\u{16}\u{3}\u{1}\0\u{5}hello".to_owned(),
        "GET  /healthz HTTP/1.1\r\n\r\n".to_owned(),
        "GET /healthz HTTP/3.0\r\n\r\n".to_owned(),
        HEALTH.replace("host", "ho st"),
    ] {
        let mut wire = Wire::saying(&rialto, &text).await;
        assert_eq!(wire.answer().await.status, 400, "{text:?}");
        wire.ends().await;
    }
}

/// A body that nobody wants is left out if it is here, and closes the connection if it is not, wherever it stops.
#[tokio::test]
async fn an_unread_request_body_is_drained_or_closes_the_connection() {
    let rialto = Rialto::start().await;
    let text = asking_in_pieces("H").replace("/mcp", "/nowhere");
    let body = text.find("\r\n\r\n").unwrap() + 4;
    for cut in body..=text.len() {
        let mut wire = Wire::saying(&rialto, &text[..cut]).await;
        let answer = wire.answer().await;
        assert_eq!(answer.status, 404, "cut at {cut}");
        match cut == text.len() {
            true => wire.goes_on().await,
            false => assert_eq!(answer.header("connection"), Some("close"), "cut at {cut}"),
        }
    }
    for refused in [text, asking("H", "").replace("/mcp", "/nowhere")] {
        let mut wire = Wire::saying(&rialto, &format!("{refused}{HEALTH}")).await;
        assert_eq!((wire.answer().await.status, wire.answer().await.status), (404, 200));
    }
    let mut wire = Wire::saying(&rialto, &HEALTH.replace("\r\n\r\n", "\r\ncontent-length: 5\r\n\r\n1234")).await;
    let answer = wire.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    wire.ends().await;
}

#[tokio::test]
async fn expect_100_continue_is_sent_before_the_body() {
    let rialto = Rialto::with(|settings| settings.inbound.limits.body_bytes = 500).await;
    let text = asking("Fe", "expect: 100-continue\r\n");
    let body = text.find("\r\n\r\n").unwrap() + 4;
    let mut wire = Wire::saying(&rialto, &text[..body]).await;
    assert_eq!(wire.through("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    wire.say(&text[body..]).await;
    assert_eq!(wire.answer().await.symbol(), "Fe");
    // Where the body is here already there is nothing to wait for.
    wire.say(&text).await;
    assert_eq!(wire.answer().await.symbol(), "Fe");
    // Nobody is asked for what is not wanted.
    for (text, status) in [
        (text[..body].replace("/mcp", "/nowhere"), 404),
        (format!("{}expect: 100-continue\r\ncontent-length: 501\r\n\r\n", head("1.1", "getElement")), 413),
    ] {
        let mut wire = Wire::saying(&rialto, &text).await;
        let answer = wire.answer().await;
        assert_eq!((answer.status, answer.header("connection")), (status, Some("close")));
        wire.ends().await;
    }
}

#[tokio::test]
async fn connection_close_wins_over_keep_alive() {
    let rialto = Rialto::start().await;
    for (version, connection, said) in [
        ("1.1", "", None),
        ("1.1", "connection: keep-alive\r\n", None),
        ("1.1", "connection: close\r\n", Some("close")),
        ("1.1", "connection: Keep-Alive, Close\r\n", Some("close")),
        ("1.1", "connection: close, keep-alive\r\n", Some("close")),
        ("1.1", "connection: close\r\nconnection: keep-alive\r\n", Some("close")),
        ("1.0", "", Some("close")),
        ("1.0", "connection: keep-alive\r\n", Some("keep-alive")),
        ("1.0", "connection: x, Keep-Alive\r\n", Some("keep-alive")),
    ] {
        let text = format!("GET /healthz HTTP/{version}\r\nhost: localhost\r\n{connection}\r\n");
        let mut wire = Wire::saying(&rialto, &text).await;
        let answer = wire.answer().await;
        assert_eq!((answer.body.as_str(), answer.header("connection")), ("alive\n", said), "{text:?}");
        match said {
            Some("close") => wire.ends().await,
            _ => wire.goes_on().await,
        }
    }
}

/// Also while it still sends.
#[tokio::test]
async fn oversized_heads_and_bodies_get_431_and_413_while_still_sending() {
    let rialto = Rialto::with(|settings| {
        settings.inbound.limits.body_bytes = 500;
        settings.inbound.limits.header_count = 20;
    })
    .await;
    let start = head("1.1", "getElement");
    let endless = "x".repeat(1 << 20);
    for (text, more, status) in [
        (format!("{start}content-length: 18446744073709551615\r\n\r\n"), endless.clone(), 413),
        (format!("{start}content-length: {}\r\n\r\n", endless.len()), endless.clone(), 413),
        (format!("{start}transfer-encoding: chunked\r\n\r\n"), "7\r\n1234567\r\n".repeat(1 << 16), 413),
        (format!("{start}transfer-encoding: chunked\r\n\r\nfffffff\r\n"), endless.clone(), 413),
        (start.clone(), format!("x: {endless}"), 431),
        (start.clone(), "x: y\r\n".repeat(1 << 16), 431),
        (start.clone(), format!("{}\r\n", "x: y\r\n".repeat(21)), 431),
        ("\r\n".to_owned(), "\r\n".repeat(1 << 18), 431),
    ] {
        let (mut reading, mut writing) = Wire::saying(&rialto, &text).await.stream.into_split();
        // Nobody has to read all of it.
        let sending = tokio::spawn(async move { drop(writing.write_all(more.as_bytes()).await) });
        let mut answer = [0; 12];
        tokio::time::timeout(PATIENCE, reading.read_exact(&mut answer)).await.expect("an answer in time").unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"), "{text:?}");
        sending.await.unwrap();
    }
    until("all connections are closed", || rialto.inbound.shutdown.connections().len() == 1).await;
}

#[tokio::test]
async fn slow_heads_bodies_and_idle_keep_alive_time_out() {
    let rialto = Rialto::with(|settings| settings.inbound.body_timeout = Duration::from_millis(500)).await;
    let (whole, pieces) = (asking("H", ""), asking_in_pieces("H"));
    let (body, piece) = (whole.find("\r\n\r\n").unwrap() + 4, pieces.find("\r\n\r\n").unwrap() + 4);
    let cases = [
        ("", None),
        ("P", None),
        ("GET /healthz", None),
        (&whole[..body - 2], None),
        (&whole[..body], Some(408)),
        (&whole[..whole.len() - 1], Some(408)),
        (&pieces[..piece], Some(408)),
        (&pieces[..piece + 1], Some(408)),
        (&pieces[..piece + 16], Some(408)),
        (&pieces[..piece + 22], Some(408)),
        (&pieces[..pieces.len() - 1], Some(408)),
    ];
    let each = cases.iter().map(async |(text, status)| {
        let mut wire = Wire::saying(&rialto, text).await;
        if let Some(status) = status {
            assert_eq!(wire.answer().await.status, *status, "{text:?}");
        }
        wire.ends().await;
    });
    // Nor is one that brings no other request.
    let idle = async {
        let mut wire = Wire::to(&rialto).await;
        wire.goes_on().await;
        wire.ends().await;
    };
    tokio::join!(futures_util::future::join_all(each), idle);
}

/// Whatever was begun, nothing is left of it.
#[tokio::test]
async fn a_disconnect_during_a_request_leaks_no_connection_or_call() {
    let rialto = Rialto::start().await;
    let whole = asking("H", "");
    for cut in [0, 1, 20, whole.len() - 200, whole.len() - 1] {
        for close in [true, false] {
            let mut wire = Wire::saying(&rialto, &whole[..cut]).await;
            match close {
                true => drop(wire),
                false => {
                    wire.stream.shutdown().await.unwrap();
                    wire.rest().await;
                }
            }
        }
    }
    // The one left is the door.
    until("all connections are closed", || rialto.inbound.shutdown.connections().len() == 1).await;
    assert_eq!(rialto.inbound.shutdown.running_calls(), 0);
}

/// In the per-request era, before and after the answer has begun, also where something was sent behind the call.
#[tokio::test]
async fn a_client_disconnect_cancels_a_per_request_call() {
    for (stream_after, begun) in [(Duration::from_secs(600), false), (Duration::from_millis(1), true)] {
        let rialto = Rialto::with(|settings| settings.inbound.sse_after = stream_after).await;
        for (behind, half) in [("", false), ("", true), ("\r\n", false), (HEALTH, false), (HEALTH, true)] {
            let mut wire = Wire::saying(&rialto, &format!("{}{behind}", counting(118, 5000))).await;
            until("the call runs", || rialto.inbound.shutdown.running_calls() == 1).await;
            if begun {
                wire.through("\r\n\r\n").await;
            }
            match half {
                true => wire.stream.shutdown().await.unwrap(),
                false => drop(wire),
            }
            until("the call is given up", || rialto.inbound.shutdown.running_calls() == 0).await;
        }
    }
}

#[tokio::test]
async fn shutdown_closes_idle_keep_alive_connections_and_finishes_started_requests() {
    let mut rialto = Rialto::start().await;
    let mut idle = Wire::to(&rialto).await;
    idle.goes_on().await;
    let mut blank = Wire::to(&rialto).await;
    blank.goes_on().await;
    blank.say("\r\n").await;
    let silent = Wire::to(&rialto).await;
    let (begun, rest) = HEALTH.split_at(20);
    let mut half = Wire::saying(&rialto, HEALTH).await;
    half.answer().await;
    half.say(begun).await;
    // What was said before is here once this has been answered.
    Wire::to(&rialto).await.goes_on().await;
    let mut calling = Wire::saying(&rialto, &counting(1, 500)).await;
    until("the call runs", || rialto.inbound.shutdown.running_calls() == 1).await;
    rialto.begin_stop();
    assert!(calling.answer().await.body.contains("1 elements: H"), "a running call comes to its end");
    calling.ends().await;
    idle.ends().await;
    blank.ends().await;
    until("it stops", || rialto.inbound.shutdown.closing().is_cancelled()).await;
    half.say(rest).await;
    let last = half.answer().await;
    assert_eq!((last.status, last.header("connection")), (200, Some("close")), "who has begun to ask is answered");
    half.ends().await;
    drop(silent);
    assert!(rialto.stopped().await);
}
