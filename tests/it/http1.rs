//! HTTP/1.1 at the byte level: message framing, pipelining, keep-alive, timeouts and drain.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{PER_REQUEST, Rialto, TEST_TIMEOUT, modern, survey, until};

/// A cheap request that is answered immediately.
const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// Trailing bytes that must never be parsed as a second request.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A client that writes raw bytes to a socket.
pub struct RawClient {
    stream: TcpStream,
    read: Vec<u8>,
}

/// A parsed response; a chunked body is decoded.
#[derive(Debug)]
pub struct RawResponse {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl RawClient {
    pub async fn connect(rialto: &Rialto) -> Self {
        let stream = TcpStream::connect(rialto.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, read: Vec::new() }
    }

    pub async fn connect_and_send(rialto: &Rialto, text: &str) -> Self {
        let mut wire = Self::connect(rialto).await;
        wire.send_text(text).await;
        wire
    }

    pub async fn send_text(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads more bytes; false at end of file or after a connection reset.
    pub async fn read_more(&mut self) -> bool {
        let read = tokio::time::timeout(TEST_TIMEOUT, self.stream.read_buf(&mut self.read)).await;
        read.expect("something in time").is_ok_and(|read| read > 0)
    }

    /// Reads up to and including a delimiter.
    pub async fn read_through(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.read.windows(end.len()).position(|window| window == end.as_bytes()) {
                let rest = self.read.split_off(at + end.len());
                return String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap();
            }
            assert!(self.read_more().await, "no {end:?} in {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    pub async fn read_exactly(&mut self, length: usize) -> String {
        while self.read.len() < length {
            assert!(self.read_more().await, "only {:?}", String::from_utf8_lossy(&self.read));
        }
        let rest = self.read.split_off(length);
        String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap()
    }

    /// Reads until the server closes the connection.
    pub async fn read_to_end(&mut self) -> String {
        while self.read_more().await {}
        String::from_utf8(std::mem::take(&mut self.read)).unwrap()
    }

    /// Reads the next response; a response to HEAD has no body.
    pub async fn response_to(&mut self, verb: &str) -> RawResponse {
        let head = self.read_through("\r\n\r\n").await.to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = RawResponse { status, head, body: String::new() };
        let length = answer.header("content-length").map(|length| length.parse().unwrap());
        if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = self.read_through("\r\n").await;
                let size = usize::from_str_radix(size.trim(), 16).unwrap();
                answer.body.push_str(&self.read_exactly(size).await);
                assert_eq!(self.read_exactly(2).await, "\r\n");
                if size == 0 {
                    break;
                }
            }
        } else if verb != "HEAD" && !matches!(status, 100 | 204) {
            answer.body = match length {
                Some(length) => self.read_exactly(length).await,
                None => self.read_to_end().await,
            };
        }
        answer
    }

    pub async fn response(&mut self) -> RawResponse {
        self.response_to("GET").await
    }

    /// Checks that the server closes the connection without further bytes.
    pub async fn assert_closed(&mut self) {
        assert_eq!(self.read_to_end().await, "");
    }

    /// Checks that the connection serves another request.
    pub async fn assert_keep_alive(&mut self) {
        self.send_text(HEALTH).await;
        assert_eq!(self.response().await.body, "alive\n");
    }
}

impl RawResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// The element symbol in the result of a `getElement` call.
    fn symbol(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        body["result"]["structuredContent"]["symbol"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

/// A per-request head without its framing headers.
fn head(version: &str, tool: &str) -> String {
    format!(
        "POST /mcp HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: */*\r\n\
         mcp-protocol-version: {PER_REQUEST}\r\nmcp-method: tools/call\r\nmcp-name: {tool}\r\n"
    )
}

fn get_element_body(element: &str) -> String {
    modern(1.into(), "tools/call", json!({ "name": "getElement", "arguments": { "name": element } })).to_string()
}

/// A `getElement` request with Content-Length and extra headers.
fn request_with_length(element: &str, extra: &str) -> String {
    let body = get_element_body(element);
    format!("{}{extra}content-length: {}\r\n\r\n{body}", head("1.1", "getElement"), body.len())
}

/// A `getElement` request with a chunked body, a chunk extension and a trailer.
fn chunked_request(element: &str) -> String {
    let body = get_element_body(element);
    let (first, second) = body.split_at(7);
    format!(
        "{}transfer-encoding: chunked\r\n\r\n7;some=thing\r\n{first}\r\n{:X}\r\n{second}\r\n0\r\nx: y\r\n\r\n",
        head("1.1", "getElement"),
        second.len()
    )
}

/// A call without a progress token: nothing is sent before its response.
fn slow_call(count: u32, delay: u32) -> String {
    let params = json!({ "name": "surveyElements", "arguments": { "count": count, "delayMs": delay } });
    let body = modern(1.into(), "tools/call", params).to_string();
    let head = head("1.1", "surveyElements");
    format!("{head}mcp-param-count: {count}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn post_request(body: &Value) -> String {
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
    let notification = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    let mut notification = post_request(&notification);
    notification.insert_str(notification.find("\r\n").unwrap() + 2, "mcp-protocol-version: 2026-07-28\r\n");
    let mut wire = RawClient::connect(&rialto).await;
    for (verb, text, status, length) in [
        ("GET", HEALTH.to_owned(), 200, Some("6")),
        ("HEAD", HEALTH.replace("GET", "HEAD"), 200, Some("6")),
        ("GET", format!("\r\n\r\n{HEALTH}"), 200, Some("6")),
        ("GET", HEALTH.replace("/healthz", "http://localhost/healthz"), 200, Some("6")),
        ("OPTIONS", preflight.to_owned(), 204, None),
    ] {
        wire.send_text(&text).await;
        let answer = wire.response_to(verb).await;
        assert!(answer.head.starts_with(&format!("http/1.1 {status} ")), "{text:?}: {answer:?}");
        assert_eq!((answer.header("content-length"), answer.header("connection")), (length, None), "{text:?}");
        let date = answer.header("date").unwrap();
        assert!(date.len() == 29 && date.ends_with(" gmt"), "{date}");
        for name in ["date", "content-length"] {
            assert!(answer.head.matches(&format!("\r\n{name}:")).count() <= 1, "{answer:?}");
        }
    }
    wire.send_text(&notification).await;
    let accepted = wire.response().await;
    assert_eq!((accepted.status, accepted.header("content-length")), (202, Some("0")));
    wire.assert_keep_alive().await;
}

#[tokio::test]
async fn a_request_split_at_any_byte_is_parsed() {
    let rialto = Rialto::start().await;
    let (mut wire, mut other) = (RawClient::connect(&rialto).await, RawClient::connect(&rialto).await);
    for text in [request_with_length("Fe", ""), chunked_request("Fe")] {
        for cut in 1..text.len() {
            wire.send_text(&text[..cut]).await;
            // A round trip on another connection usually gives the server time to read the first part alone.
            other.assert_keep_alive().await;
            wire.send_text(&text[cut..]).await;
            assert_eq!(wire.response().await.symbol(), "Fe", "cut at {cut} of {text:?}");
        }
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let rialto = Rialto::start().await;
    let elements = ["H", "He", "Li", "Be", "B", "C"];
    let each =
        |element: &&str| [request_with_length(element, ""), HEALTH.to_owned(), chunked_request(element)].concat();
    let all: String = elements.iter().map(each).collect();
    let mut wire = RawClient::connect_and_send(&rialto, &all.repeat(20)).await;
    for symbol in elements.repeat(20) {
        assert_eq!(wire.response().await.symbol(), symbol);
        assert_eq!(wire.response().await.body, "alive\n");
        assert_eq!(wire.response().await.symbol(), symbol);
    }
}

#[tokio::test]
async fn a_pipelined_request_waits_for_the_sse_response_before_it() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let streamed = post_request(&survey(1, 3, 1));
    let streamed = streamed.replacen("\r\n", &format!("\r\nmcp-session-id: {}\r\n", session.id), 1);
    let mut wire = RawClient::connect_and_send(&rialto, &format!("{streamed}{HEALTH}")).await;
    let stream = wire.response().await;
    assert_eq!((stream.header("content-type"), stream.header("content-length")), (Some("text/event-stream"), None));
    assert!(stream.body.contains("3 elements: H He Li"), "{stream:?}");
    assert_eq!(wire.response().await.body, "alive\n");
    // HTTP/1.0 has no chunked encoding: the stream is delimited by the end of the connection.
    let mut old = RawClient::connect_and_send(&rialto, &streamed.replace("HTTP/1.1", "HTTP/1.0")).await;
    let stream = old.response().await;
    assert_eq!((stream.header("transfer-encoding"), stream.header("connection")), (None, Some("close")));
    assert!(stream.body.contains("3 elements: H He Li"), "{stream:?}");
}

/// Framing that another HTTP parser could read differently: Content-Length with Transfer-Encoding, duplicate or
/// malformed lengths, obsolete line folding, malformed chunks.
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
            let mut wire = RawClient::connect_and_send(&rialto, &format!("{text}{framing}\r\n{body}{SMUGGLED}")).await;
            let answer = wire.response().await;
            assert!(matches!(answer.status, 400 | 404 | 501), "{framing:?} {body:?}: {answer:?}");
            assert_eq!(answer.header("connection"), Some("close"), "{framing:?} {body:?}");
            assert_eq!(wire.read_to_end().await, "", "{framing:?} {body:?}");
        }
    }
    let old = head("1.0", "getElement");
    for text in [
        format!("{old}transfer-encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}"),
        "\u{16}\u{3}\u{1}\0\u{5}hello".to_owned(),
        "GET  /healthz HTTP/1.1\r\n\r\n".to_owned(),
        "GET /healthz HTTP/1.1\r\n\r\n".to_owned(),
        HEALTH.replace("\r\n\r\n", "\r\nhost: localhost\r\n\r\n"),
        HEALTH.replace("\r\n\r\n", "\n\r\n"),
        HEALTH.replace("\r\n", "\n"),
        "GET /healthz HTTP/3.0\r\n\r\n".to_owned(),
        HEALTH.replace("host", "ho st"),
    ] {
        let mut wire = RawClient::connect_and_send(&rialto, &text).await;
        assert_eq!(wire.response().await.status, 400, "{text:?}");
        wire.assert_closed().await;
    }
}

#[tokio::test]
async fn transfer_encodings_other_than_chunked_get_501() {
    let rialto = Rialto::start().await;
    for encoding in ["gzip, chunked", "chunked, chunked", "identity", "chunked\r\ntransfer-encoding: chunked"] {
        let text = format!("{}transfer-encoding: {encoding}\r\n\r\n0\r\n\r\n{SMUGGLED}", head("1.1", "getElement"));
        let mut wire = RawClient::connect_and_send(&rialto, &text).await;
        let answer = wire.response().await;
        assert_eq!((answer.status, answer.header("connection")), (501, Some("close")), "{encoding}");
        assert!(answer.body.contains("the only `Transfer-Encoding` understood is `chunked`"), "{answer:?}");
        wire.assert_closed().await;
    }
}

/// DNS rebinding: the host that counts is the one that the target names.
#[tokio::test]
async fn absolute_form_target_wins_over_the_host_header() {
    let rialto = Rialto::start().await;
    for (target, host, status) in [
        ("http://localhost/mcp", "localhost", 405),
        ("http://localhost/mcp", "evil.example", 405),
        ("http://evil.example/mcp", "localhost", 403),
        ("/mcp", "evil.example", 403),
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\n\r\n");
        let mut wire = RawClient::connect_and_send(&rialto, &text).await;
        assert_eq!(wire.response().await.status, status, "{target} {host}");
    }
}

/// A refused request whose body is fully buffered keeps the connection alive; a partial body closes it.
#[tokio::test]
async fn an_unread_request_body_is_drained_or_closes_the_connection() {
    let rialto = Rialto::start().await;
    let text = chunked_request("H").replace("/mcp", "/nowhere");
    let body = text.find("\r\n\r\n").unwrap() + 4;
    for cut in body..=text.len() {
        let mut wire = RawClient::connect_and_send(&rialto, &text[..cut]).await;
        let answer = wire.response().await;
        assert_eq!(answer.status, 404, "cut at {cut}");
        match cut == text.len() {
            true => wire.assert_keep_alive().await,
            false => assert_eq!(answer.header("connection"), Some("close"), "cut at {cut}"),
        }
    }
    for refused in [text, request_with_length("H", "").replace("/mcp", "/nowhere")] {
        let mut wire = RawClient::connect_and_send(&rialto, &format!("{refused}{HEALTH}")).await;
        assert_eq!((wire.response().await.status, wire.response().await.status), (404, 200));
    }
    let mut wire =
        RawClient::connect_and_send(&rialto, &HEALTH.replace("\r\n\r\n", "\r\ncontent-length: 5\r\n\r\n1234")).await;
    let answer = wire.response().await;
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    wire.assert_closed().await;
}

#[tokio::test]
async fn expect_100_continue_is_sent_before_the_body() {
    let rialto = Rialto::with(|settings| settings.inbound.limits.body_bytes = 500).await;
    let text = request_with_length("Fe", "expect: 100-continue\r\n");
    let body = text.find("\r\n\r\n").unwrap() + 4;
    let mut wire = RawClient::connect_and_send(&rialto, &text[..body]).await;
    assert_eq!(wire.read_through("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    wire.send_text(&text[body..]).await;
    assert_eq!(wire.response().await.symbol(), "Fe");
    // No 100 Continue when the body has already arrived.
    wire.send_text(&text).await;
    assert_eq!(wire.response().await.symbol(), "Fe");
    // No 100 Continue for a request that is refused.
    for (text, status) in [
        (text[..body].replace("/mcp", "/nowhere"), 404),
        (format!("{}expect: 100-continue\r\ncontent-length: 501\r\n\r\n", head("1.1", "getElement")), 413),
    ] {
        let mut wire = RawClient::connect_and_send(&rialto, &text).await;
        let answer = wire.response().await;
        assert_eq!((answer.status, answer.header("connection")), (status, Some("close")));
        wire.assert_closed().await;
    }
}

#[tokio::test]
async fn connection_close_wins_over_keep_alive() {
    let rialto = Rialto::start().await;
    for (version, connection, expected) in [
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
        let mut wire = RawClient::connect_and_send(&rialto, &text).await;
        let answer = wire.response().await;
        assert_eq!((answer.body.as_str(), answer.header("connection")), ("alive\n", expected), "{text:?}");
        match expected {
            Some("close") => wire.assert_closed().await,
            _ => wire.assert_keep_alive().await,
        }
    }
}

/// The status arrives even while the client is still sending.
#[tokio::test]
async fn oversized_heads_and_bodies_get_431_and_413_while_still_sending() {
    let rialto = Rialto::with(|settings| {
        settings.inbound.limits.body_bytes = 500;
        settings.inbound.limits.header_count = 20;
    })
    .await;
    let start = head("1.1", "getElement");
    let endless = "x".repeat(1 << 20);
    for (text, extra, status) in [
        (format!("{start}content-length: 9223372036854775807\r\n\r\n"), endless.clone(), 413),
        (format!("{start}content-length: {}\r\n\r\n", endless.len()), endless.clone(), 413),
        (format!("{start}transfer-encoding: chunked\r\n\r\n"), "7\r\n1234567\r\n".repeat(1 << 16), 413),
        (format!("{start}transfer-encoding: chunked\r\n\r\nfffffff\r\n"), endless.clone(), 413),
        (start.clone(), format!("x: {endless}"), 431),
        (start.clone(), "x: y\r\n".repeat(1 << 16), 431),
        (start.clone(), format!("{}\r\n", "x: y\r\n".repeat(21)), 431),
        ("\r\n".to_owned(), "\r\n".repeat(1 << 18), 431),
    ] {
        let (mut reading, mut writing) = RawClient::connect_and_send(&rialto, &text).await.stream.into_split();
        // The write may fail: the server need not read all of it.
        let sending = tokio::spawn(async move { drop(writing.write_all(extra.as_bytes()).await) });
        let mut answer = [0; 12];
        tokio::time::timeout(TEST_TIMEOUT, reading.read_exact(&mut answer)).await.expect("an answer in time").unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"), "{text:?}");
        sending.await.unwrap();
    }
    until("all connections are closed", || rialto.inbound.shutdown.connections().len() == 1).await;
}

#[tokio::test]
async fn slow_heads_bodies_and_idle_keep_alive_time_out() {
    let rialto = Rialto::with(|settings| {
        let inbound = &mut settings.inbound;
        let timeouts = [&mut inbound.header_timeout, &mut inbound.body_timeout, &mut inbound.keep_alive_timeout];
        timeouts.into_iter().for_each(|timeout| *timeout = Duration::from_millis(500));
    })
    .await;
    let (whole, pieces) = (request_with_length("H", ""), chunked_request("H"));
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
        let mut wire = RawClient::connect_and_send(&rialto, text).await;
        if let Some(status) = status {
            assert_eq!(wire.response().await.status, *status, "{text:?}");
        }
        wire.assert_closed().await;
    });
    // An idle keep-alive connection times out as well.
    let idle = async {
        let mut wire = RawClient::connect(&rialto).await;
        wire.assert_keep_alive().await;
        wire.assert_closed().await;
    };
    tokio::join!(futures_util::future::join_all(each), idle);
}

/// A long keep-alive timeout does not apply to a head that has begun, nor a short header timeout to an idle connection.
#[tokio::test]
async fn header_timeout_begins_with_the_first_byte_of_a_head() {
    let rialto = Rialto::with(|settings| settings.inbound.header_timeout = Duration::from_secs(2)).await;
    let mut wire = RawClient::connect(&rialto).await;
    wire.assert_keep_alive().await;
    // Longer than the header timeout: nothing but time shows that an idle connection is not closed by it.
    tokio::time::sleep(Duration::from_secs(3)).await;
    wire.assert_keep_alive().await;
    wire.stream.write_all(b"GET /hea").await.unwrap();
    wire.assert_closed().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_disconnected_after_the_write_stall_timeout() {
    let rialto = Rialto::with(|settings| settings.inbound.write_stall_timeout = Duration::from_millis(200)).await;
    let wire = RawClient::connect(&rialto).await;
    let (_unread, mut writing) = wire.stream.into_split();
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    // Responses that nobody reads fill the socket buffers, and then the gateway waits to write.
    let sending = tokio::spawn(async move { while writing.write_all(&request.repeat(64)).await.is_ok() {} });
    until("the connection is closed", || rialto.inbound.shutdown.connections().len() == 1).await;
    sending.await.unwrap();
}

/// Full close and half close, at every stage of a request.
#[tokio::test]
async fn a_disconnect_during_a_request_leaks_no_connection_or_call() {
    let rialto = Rialto::start().await;
    let whole = request_with_length("H", "");
    for cut in [0, 1, 20, whole.len() - 200, whole.len() - 1] {
        for close in [true, false] {
            let mut wire = RawClient::connect_and_send(&rialto, &whole[..cut]).await;
            match close {
                true => drop(wire),
                false => {
                    wire.stream.shutdown().await.unwrap();
                    wire.read_to_end().await;
                }
            }
        }
    }
    // The remaining one is the listener.
    until("all connections are closed", || rialto.inbound.shutdown.connections().len() == 1).await;
    assert_eq!(rialto.inbound.shutdown.calls_in_flight(), 0);
}

/// Before and after the response head is sent, with and without pipelined bytes behind the call.
#[tokio::test]
async fn a_client_disconnect_cancels_a_per_request_call() {
    for (sse_after, head_sent) in [(Duration::from_secs(600), false), (Duration::from_millis(1), true)] {
        let rialto = Rialto::with(|settings| settings.inbound.sse_after = sse_after).await;
        for (pipelined, half_close) in [("", false), ("", true), ("\r\n", false), (HEALTH, false), (HEALTH, true)] {
            let mut wire = RawClient::connect_and_send(&rialto, &format!("{}{pipelined}", slow_call(118, 5000))).await;
            until("the call runs", || rialto.inbound.shutdown.calls_in_flight() == 1).await;
            if head_sent {
                wire.read_through("\r\n\r\n").await;
            }
            match half_close {
                true => wire.stream.shutdown().await.unwrap(),
                false => drop(wire),
            }
            until("the call is cancelled", || rialto.inbound.shutdown.calls_in_flight() == 0).await;
        }
    }
}

#[tokio::test]
async fn shutdown_closes_idle_keep_alive_connections_and_finishes_started_requests() {
    let mut rialto = Rialto::start().await;
    let mut idle = RawClient::connect(&rialto).await;
    idle.assert_keep_alive().await;
    let mut blank = RawClient::connect(&rialto).await;
    blank.assert_keep_alive().await;
    blank.send_text("\r\n").await;
    let silent = RawClient::connect(&rialto).await;
    let (first_part, rest) = HEALTH.split_at(20);
    let mut partial = RawClient::connect_and_send(&rialto, HEALTH).await;
    partial.response().await;
    partial.send_text(first_part).await;
    // Once this round trip is done, the server has read the bytes sent before.
    RawClient::connect(&rialto).await.assert_keep_alive().await;
    let mut calling = RawClient::connect_and_send(&rialto, &slow_call(1, 500)).await;
    until("the call runs", || rialto.inbound.shutdown.calls_in_flight() == 1).await;
    rialto.begin_stop();
    assert!(calling.response().await.body.contains("1 elements: H"), "a running call finishes");
    calling.assert_closed().await;
    idle.assert_closed().await;
    blank.assert_closed().await;
    until("it stops", || rialto.inbound.shutdown.closing().is_cancelled()).await;
    partial.send_text(rest).await;
    let last = partial.response().await;
    assert_eq!((last.status, last.header("connection")), (200, Some("close")), "a request already started is answered");
    partial.assert_closed().await;
    drop(silent);
    assert!(rialto.stopped().await);
}
