//! Long answers of HTTP servers: they pass through in pieces, byte for byte, at the pace of the client, and break off where
//! the server's answer does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rialto::dialect::Revision;
use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::http::server::Http1Implementation;
use rialto::mcp_client::{ConnectionSettings, Target};
use rialto::recorder::{SummaryField, Way, Wire};
use rialto::recording::{BodyAccess, StoredCall, messages_of};
use rialto::upstream::{List, SpecKind, UpstreamSpec};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{
    HttpMode, HttpRequest, HttpResponse, PER_REQUEST, Rialto, TEST_TIMEOUT, modern, request, runs_alone, until,
};

const HANDSHAKE: &str = "2025-11-25";
const ERAS: [&str; 2] = [HANDSHAKE, PER_REQUEST];
const MODES: [HttpMode; 3] = [HttpMode::Http1, HttpMode::HyperHttp1, HttpMode::Http2];
const MEGABYTE: usize = 1_000_000;
/// Piece in which the server writes; no multiple of the characters in its answers.
const CHUNK: usize = 10_007;

/// A server over plain sockets that has one tool, whose arguments say how it answers.
#[derive(Debug, Default)]
struct LongServer {
    revision: &'static str,
    connections: AtomicUsize,
    written: AtomicUsize,
    /// Answers that the other side did not read to their end.
    abandoned: AtomicUsize,
}

/// The result of a call, with characters of every length and with escapes.
fn result_text(bytes: usize) -> String {
    let unit = r#"{ "a\n":[1.5e3,null,"é氢😀\u00e9\\"]} "#.replace('"', "\\\"").replace("\\n", "\\\\n");
    let unit = unit.replace("\\u00e9", "\\\\u00e9 \\u00e9");
    let text = unit.repeat(bytes / unit.len() + 1);
    format!(r#"{{"resultType":"complete" , "content":[{{"type":"text","text":"{text}"}}],"_meta":{{}} }}"#)
}

impl LongServer {
    async fn start(revision: &'static str) -> (Arc<Self>, String) {
        let server = Arc::new(Self { revision, ..Self::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let serving = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.connections.fetch_add(1, Ordering::SeqCst);
                let server = Arc::clone(&serving);
                tokio::spawn(async move { server.serve_connection(BufReader::new(stream)).await });
            }
        });
        (server, url)
    }

    async fn serve_connection(&self, mut stream: BufReader<TcpStream>) -> Option<()> {
        loop {
            let (mut line, mut length, mut is_post) = (String::new(), 0, false);
            while line != "\r\n" {
                line.clear();
                if stream.read_line(&mut line).await.ok()? == 0 {
                    return None;
                }
                is_post |= line.starts_with("POST");
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.ok()?;
            let message: Value = serde_json::from_slice(&body).unwrap_or_default();
            let stream = stream.get_mut();
            if !is_post {
                stream.write_all(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n").await.ok()?;
                continue;
            }
            if self.answer(stream, &message).await.is_none() {
                self.abandoned.fetch_add(1, Ordering::SeqCst);
                return None;
            }
        }
    }

    async fn answer(&self, stream: &mut TcpStream, message: &Value) -> Option<()> {
        let info = json!({ "name": "long", "version": "1" });
        let result = match message["method"].as_str().unwrap() {
            "initialize" => {
                json!({ "protocolVersion": self.revision, "capabilities": { "tools": {} }, "serverInfo": info })
            }
            "server/discover" if self.revision == PER_REQUEST => json!({
                "resultType": "complete", "supportedVersions": [PER_REQUEST], "capabilities": { "tools": {} },
                "ttlMs": 0, "cacheScope": "private", "_meta": { "io.modelcontextprotocol/serverInfo": info },
            }),
            "tools/list" => json!({
                "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
                "tools": [{ "name": "long", "inputSchema": { "type": "object" } }],
            }),
            "tools/call" => return self.answer_call(stream, message).await,
            _ => {
                let head = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
                return stream.write_all(head).await.ok();
            }
        };
        let body = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }).to_string();
        self.write_with_length(stream, body.as_bytes(), body.len()).await
    }

    async fn write_with_length(&self, stream: &mut TcpStream, body: &[u8], length: usize) -> Option<()> {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.ok()?;
        for piece in body.chunks(CHUNK) {
            stream.write_all(piece).await.ok()?;
            self.written.fetch_add(piece.len(), Ordering::SeqCst);
        }
        Some(())
    }

    async fn write_chunked(&self, stream: &mut TcpStream, body: &[u8]) -> Option<()> {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
            .await
            .ok()?;
        for piece in body.chunks(CHUNK) {
            self.write_chunk(stream, piece).await?;
        }
        Some(())
    }

    async fn write_chunk(&self, stream: &mut TcpStream, piece: &[u8]) -> Option<()> {
        let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        stream.write_all(&chunk).await.ok()?;
        self.written.fetch_add(piece.len(), Ordering::SeqCst);
        Some(())
    }

    async fn answer_call(&self, stream: &mut TcpStream, message: &Value) -> Option<()> {
        let (id, arguments) = (&message["id"], &message["params"]["arguments"]);
        let result = result_text(arguments["bytes"].as_u64().unwrap() as usize);
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}, "more":[{{}}]}}"#);
        let half = body.len() / 2;
        match arguments["form"].as_str().unwrap() {
            "length" => self.write_with_length(stream, body.as_bytes(), body.len()).await,
            "chunked" => {
                self.write_chunked(stream, body.as_bytes()).await?;
                stream.write_all(b"0\r\n\r\n").await.ok()
            }
            "id last" => {
                let body = format!(r#"{{"jsonrpc":"2.0","result":{result},"id":{id}}}"#);
                self.write_with_length(stream, body.as_bytes(), body.len()).await
            }
            "cut" => {
                self.write_with_length(stream, &body.as_bytes()[..half], body.len()).await?;
                None
            }
            "cut chunks" => {
                self.write_chunked(stream, &body.as_bytes()[..half]).await?;
                None
            }
            "garbage" => {
                let body = body.replace("\"}],\"_meta\"", "\"}}}}\"_meta\"");
                self.write_with_length(stream, body.as_bytes(), body.len()).await
            }
            "other id" => {
                let body = body.replace("\"more\":", "\"id\":");
                self.write_with_length(stream, body.as_bytes(), body.len()).await
            }
            "deep" => {
                let body = body.replace("\"more\":[{}]", &format!("\"more\":{}{}", "[".repeat(200), "]".repeat(200)));
                self.write_with_length(stream, body.as_bytes(), body.len()).await
            }
            "not UTF-8" => {
                let mut body = body.into_bytes();
                let place = body.windows(5).rposition(|window| window == b"null,").unwrap();
                body[place + 7] = 0xff;
                self.write_with_length(stream, &body, body.len()).await
            }
            "endless" => {
                let begin = body.find("\"text\":\"").unwrap() + 8;
                self.write_chunked(stream, &body.as_bytes()[..begin]).await?;
                loop {
                    self.write_chunk(stream, &[b'x'; CHUNK]).await?;
                }
            }
            other => panic!("{other}"),
        }
    }
}

/// The gateway in front of servers that speak `revision`, in one group.
async fn gateway(urls: &[String], revision: &str, http1: Http1Implementation) -> Rialto {
    let spec = |(n, url): (usize, &String)| {
        let mut spec = UpstreamSpec::new(&format!("long{n}"), SpecKind::Target(Target::url(url).unwrap()));
        spec.settings = ConnectionSettings {
            revision: Revision::parse(revision),
            message_bytes: 64 << 20,
            ..ConnectionSettings::default()
        };
        spec
    };
    let upstreams: Vec<_> = urls.iter().enumerate().map(spec).collect();
    let group = GroupConfig::new(DEFAULT_GROUP, upstreams.iter().map(|spec| Arc::clone(&spec.name)));
    let rialto = Rialto::with(|settings| {
        settings.gateway = GatewayConfig { upstreams, groups: vec![group] };
        settings.inbound.http1 = http1;
        // A slow machine must not make a stream of the response.
        settings.inbound.sse_after = TEST_TIMEOUT;
    })
    .await;
    let has_tools = || {
        let view = rialto.group().view(Revision::parse(revision).unwrap());
        ["long", "long0__long", "long0_long"].iter().any(|name| view.find_by_name(List::Tools, name).is_some())
    };
    until("the tools are known", has_tools).await;
    rialto
}

fn http1_of(mode: HttpMode) -> Http1Implementation {
    match mode {
        HttpMode::HyperHttp1 => Http1Implementation::Hyper,
        _ => Http1Implementation::Rialto,
    }
}

/// Calls the tool as a client of this revision.
async fn call(rialto: &Rialto, revision: &str, mode: HttpMode, tool: &str, arguments: Value) -> HttpResponse {
    let params = json!({ "name": tool, "arguments": arguments });
    let request: HttpRequest = match revision {
        PER_REQUEST => rialto
            .post("/mcp", &modern("the client's".into(), "tools/call", params.clone()))
            .modern_headers("tools/call", &params),
        _ => rialto.open(revision).await.post(&request("the client's", "tools/call", params)),
    };
    let response = request.attempt_over(mode).await.unwrap();
    assert_eq!(response.status, 200);
    assert!(!response.is_events());
    response
}

fn response_text(bytes: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"the client's","result":{}}}"#, result_text(bytes))
}

fn in_pieces(response: &HttpResponse) -> bool {
    response.header("content-length").is_none()
}

/// Calls that ended so.
fn counted(rialto: &Rialto, outcome: &str) -> bool {
    let metrics = rialto.inbound.admin.metrics();
    metrics.lines().any(|line| line.contains("rialto_calls_total") && line.contains(&format!("outcome=\"{outcome}\"")))
}

/// The only call of a tool, once it is recorded to its end.
async fn recorded_call(rialto: &Rialto) -> StoredCall {
    let is_call = |call: &StoredCall| {
        call.last_end().is_some() && call.field(SummaryField::Method).is_some_and(|method| method == "tools/call")
    };
    let find = || rialto.inbound.calls.newest(u64::MAX, is_call, 10);
    until("the call is recorded", || !find().is_empty()).await;
    let [call] = &find()[..] else { panic!("there is one call") };
    call.clone()
}

#[tokio::test]
async fn both_wires_of_a_long_answer_show_its_beginning_and_its_end() {
    for revision in ERAS {
        let (_server, url) = LongServer::start(revision).await;
        let rialto = gateway(&[url], revision, Http1Implementation::Rialto).await;
        rialto.inbound.calls.wait_until_on().await;
        let arguments = json!({ "form": "length", "bytes": 600_000 });
        let response = call(&rialto, revision, HttpMode::Http1, "long", arguments).await;
        assert!(in_pieces(&response), "{revision}");
        response.text().await;

        let recorded = recorded_call(&rialto).await;
        let messages = messages_of(&recorded);
        let answer = |wire, way| {
            let found = messages.iter().position(|one| one.wire == wire && one.way == way && one.length > 600_000);
            found.unwrap_or_else(|| panic!("{revision}: {messages:?}"))
        };
        let (client, server) = (answer(Wire::Client, Way::Out), answer(Wire::Server, Way::In));
        let result = result_text(600_000).into_bytes();
        let detail = rialto.inbound.calls.rows("node".to_owned()).detail(&recorded, BodyAccess::Shown);
        for (at, after) in [(client, &b"}"[..]), (server, b", \"more\":[{}]}")] {
            let (first, last) = messages[at].parts();
            assert_eq!((first.len(), last.len()), (48 << 10, 16 << 10), "{revision}");
            let begin = first.windows(9).position(|part| part == b"\"result\":").unwrap() + 9;
            assert!(result.starts_with(&first[begin..]), "{revision}: the beginning");
            assert!(result.ends_with(last.strip_suffix(after).unwrap()), "{revision}: the end");
            let (shown, length) = (&detail["messages"][at], messages[at].length);
            assert_eq!((&shown["bytes"], &shown["cut"]), (&json!(length), &json!(true)));
            assert_eq!(shown["kept"], json!({ "first": 48 << 10, "last": 16 << 10 }));
            let missing = format!("\n… {} bytes are not kept …\n", length - (64 << 10));
            let (begin, end) = shown["text"].as_str().unwrap().split_once(&missing).expect("what is missing is told");
            // What is at the cut may be half of a secret and is left out.
            assert!(first.starts_with(begin.as_bytes()) && begin.len() > (47 << 10), "{revision}: {}", begin.len());
            assert!(last.ends_with(end.as_bytes()) && end.len() > (11 << 10), "{revision}: {}", end.len());
        }
        assert_eq!(detail["bodies"], "cut");
    }
}

#[tokio::test]
async fn long_answers_pass_in_pieces_byte_for_byte() {
    for revision in ERAS {
        let (server, url) = LongServer::start(revision).await;
        for mode in MODES {
            let rialto = gateway(std::slice::from_ref(&url), revision, http1_of(mode)).await;
            for (form, bytes) in [("length", MEGABYTE), ("chunked", MEGABYTE), ("length", 20 * MEGABYTE)] {
                let connections = server.connections.load(Ordering::SeqCst);
                let response = call(&rialto, revision, mode, "long", json!({ "form": form, "bytes": bytes })).await;
                assert!(in_pieces(&response), "{revision} {mode:?} {form}");
                let text = response.text().await;
                assert!(text == response_text(bytes), "{revision} {mode:?} {form}: {} bytes", text.len());
                let opened = server.connections.load(Ordering::SeqCst) - connections;
                assert!(opened <= 4, "{opened} connections for one call");
            }
            assert!(counted(&rialto, "ok"));
        }
        assert_eq!(server.abandoned.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn answers_that_are_short_or_name_their_request_last_come_whole() {
    for revision in ERAS {
        let (_, url) = LongServer::start(revision).await;
        let rialto = gateway(&[url], revision, Http1Implementation::Rialto).await;
        for (form, bytes) in [("length", 100_000), ("chunked", 100_000), ("id last", MEGABYTE)] {
            let arguments = json!({ "form": form, "bytes": bytes });
            let response = call(&rialto, revision, HttpMode::Http1, "long", arguments).await;
            assert!(!in_pieces(&response), "{revision} {form}");
            assert!(response.text().await == response_text(bytes), "{revision} {form}");
        }
    }
}

/// A client of another revision may need the result changed.
#[tokio::test]
async fn answers_that_are_changed_come_whole() {
    for (client, server) in [(PER_REQUEST, HANDSHAKE), (HANDSHAKE, PER_REQUEST), ("2025-06-18", HANDSHAKE)] {
        let (_, url) = LongServer::start(server).await;
        let rialto = gateway(&[url], server, Http1Implementation::Rialto).await;
        let arguments = json!({ "form": "chunked", "bytes": MEGABYTE });
        let response = call(&rialto, client, HttpMode::Http1, "long", arguments).await;
        assert!(!in_pieces(&response), "{client} {server}");
        assert!(response.json().await["result"]["content"][0]["text"].is_string());
    }
}

#[tokio::test]
async fn groups_that_map_names_get_answers_whole() {
    let (_first, first_url) = LongServer::start(PER_REQUEST).await;
    let (_second, second_url) = LongServer::start(PER_REQUEST).await;
    let rialto = gateway(&[first_url, second_url], PER_REQUEST, Http1Implementation::Rialto).await;
    let tools = rialto.modern("tools/list", json!({})).json().await.1;
    let tool = tools["result"]["tools"][0]["name"].as_str().unwrap().to_owned();
    let arguments = json!({ "form": "chunked", "bytes": MEGABYTE });
    let response = call(&rialto, PER_REQUEST, HttpMode::Http1, &tool, arguments).await;
    assert!(!in_pieces(&response));
    assert!(response.text().await == response_text(MEGABYTE));
}

#[tokio::test]
async fn broken_answers_break_off() {
    for revision in ERAS {
        let (_, url) = LongServer::start(revision).await;
        for mode in MODES {
            let rialto = gateway(std::slice::from_ref(&url), revision, http1_of(mode)).await;
            for form in ["cut", "cut chunks", "garbage", "other id", "deep", "not UTF-8"] {
                let arguments = json!({ "form": form, "bytes": MEGABYTE });
                let response = call(&rialto, revision, mode, "long", arguments).await;
                assert!(in_pieces(&response), "{revision} {mode:?} {form}");
                assert!(response.try_text().await.is_err(), "{revision} {mode:?} {form}");
            }
            assert!(counted(&rialto, "unavailable") && !counted(&rialto, "ok"), "{}", rialto.inbound.admin.metrics());
        }
    }
}

#[tokio::test]
async fn client_that_disconnects_ends_the_request_at_the_server() {
    for revision in ERAS {
        for mode in MODES {
            let (server, url) = LongServer::start(revision).await;
            let rialto = gateway(&[url], revision, http1_of(mode)).await;
            let arguments = json!({ "form": "endless", "bytes": 0 });
            let mut response = call(&rialto, revision, mode, "long", arguments).await;
            response.piece().await.unwrap().unwrap();
            drop(response);
            until("the server's answer is cut", || server.abandoned.load(Ordering::SeqCst) == 1).await;
            until("the call is counted", || counted(&rialto, "cancelled")).await;
        }
    }
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// The client, the gateway and the server are one process here, so the figure is an upper bound.
#[tokio::test]
async fn client_that_stops_reading_holds_two_mebibytes_at_most() {
    if !runs_alone("pieces::client_that_stops_reading_holds_two_mebibytes_at_most") {
        return;
    }
    const CALLS: usize = 16;
    for mode in MODES {
        let (server, url) = LongServer::start(PER_REQUEST).await;
        let rialto = gateway(&[url], PER_REQUEST, http1_of(mode)).await;
        let arguments = || json!({ "form": "endless", "bytes": 0 });
        // What a first call allocates for good is not counted.
        drop(call(&rialto, PER_REQUEST, mode, "long", arguments()).await);
        until("the first call ended", || server.abandoned.load(Ordering::SeqCst) == 1).await;
        let before = resident_bytes();
        let mut stopped = Vec::new();
        for _ in 0..CALLS {
            let mut response = call(&rialto, PER_REQUEST, mode, "long", arguments()).await;
            response.piece().await.unwrap().unwrap();
            stopped.push(response);
        }
        let mut seen = (0, 0);
        until("the server waits for its readers", || {
            let written = server.written.load(Ordering::SeqCst);
            seen = if seen.0 == written { (written, seen.1 + 1) } else { (written, 0) };
            seen.1 > 40
        })
        .await;
        let grown = resident_bytes().saturating_sub(before);
        println!("{mode:?}: {} KiB resident per call", grown / CALLS / 1024);
        assert!(grown <= CALLS * (2 << 20), "{mode:?}: {grown} bytes");
        drop(stopped);
        until("every answer is cut", || server.abandoned.load(Ordering::SeqCst) == CALLS + 1).await;
    }
}
