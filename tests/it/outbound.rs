//! Outbound HTTP: redirects, credentials, timeouts and how refusals are reported.

use std::time::Duration;

use rialto::client::{Client, ClientOptions};
use rialto::error::Error;
use rialto::failure::FailureKind;
use rialto::mcp_client::{Address, ConnectionSettings, HttpTransport, Target};
use rialto::protocol::{Method, Raw};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::harness::{Rialto, TEST_TIMEOUT, until};
use crate::rest::{call_tool, limits, manual_tool, spec};
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// A server that answers every request with the same bytes and records the requests.
async fn fixed_response_server(answer: String) -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut bytes = vec![0; 65536];
            let length = stream.read(&mut bytes).await.unwrap_or(0);
            let _ = sender.send(String::from_utf8_lossy(&bytes[..length]).into_owned());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (address, received)
}

fn redirect(to: &str) -> String {
    format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

#[tokio::test]
async fn a_cross_origin_redirect_is_refused_and_leaks_no_credentials() {
    let (other, mut seen_there) = fixed_response_server("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".into()).await;
    let (first, mut seen) = fixed_response_server(redirect(&format!("http://{other}/mcp"))).await;
    let target =
        Target::url(&format!("http://{first}/mcp")).unwrap().with_header("Authorization", "Bearer s3cret").unwrap();
    let error = Client::connect(&target, ClientOptions::default()).await.err().unwrap();
    assert_eq!(error.kind(), Some(FailureKind::Status(307)));
    assert!(error.to_string().contains("another origin"), "{error}");
    assert!(seen.recv().await.unwrap().contains("s3cret"));
    assert!(seen_there.try_recv().is_err(), "the redirect target received no request");
}

#[tokio::test]
async fn a_redirect_loop_is_refused() {
    let (address, _seen) = fixed_response_server(redirect("/mcp/")).await;
    let error = Client::connect(&Target::url(&format!("http://{address}/mcp")).unwrap(), ClientOptions::default())
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("again and again"), "{error}");
}

/// A relative message endpoint belongs to the URL that the stream came from, not to the one before the redirect.
#[tokio::test]
async fn the_sse_endpoint_is_resolved_against_the_redirected_url() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, mut received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut open_streams = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut bytes = vec![0; 65536];
            let length = stream.read(&mut bytes).await.unwrap_or(0);
            let line = String::from_utf8_lossy(&bytes[..length]).lines().next().unwrap_or_default().to_owned();
            let answer = match line.as_str() {
                "GET /sse HTTP/1.1" => redirect("/v2/sse"),
                "GET /v2/sse HTTP/1.1" => {
                    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: endpoint\ndata: message?id=1\n\n"
                        .into()
                }
                _ => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned(),
            };
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = sender.send(line);
            open_streams.push(stream);
        }
    });
    let target = Target::Url(Address {
        url: format!("http://{address}/sse").parse().unwrap(),
        headers: http::HeaderMap::new(),
        transport: Some(HttpTransport::Sse),
    });
    tokio::spawn(async move { Client::connect(&target, ClientOptions::default()).await });
    for expected in ["GET /sse HTTP/1.1", "GET /v2/sse HTTP/1.1", "POST /v2/message?id=1 HTTP/1.1"] {
        let line = tokio::time::timeout(Duration::from_secs(20), received.recv()).await.unwrap().unwrap();
        assert_eq!(line, expected);
    }
}

#[tokio::test]
async fn idle_and_total_timeouts_cancel_the_call() {
    let mut rialto = Rialto::start().await;
    for (revision, progress) in [("2025-11-25", false), ("2026-07-28", false), ("2025-11-25", true)] {
        // The one that is not meant is out of reach.
        let (idle_timeout, total_timeout) = match progress {
            true => (TEST_TIMEOUT, Duration::from_millis(900)),
            false => (Duration::from_millis(300), TEST_TIMEOUT),
        };
        let settings = ConnectionSettings {
            revision: rialto::dialect::Revision::parse(revision),
            idle_timeout,
            total_timeout,
            ..ConnectionSettings::default()
        };
        let options = ClientOptions { settings, ..ClientOptions::default() };
        let client = Client::connect(&Target::url(&rialto.url("/mcp")).unwrap(), options).await.unwrap();
        // Without progress the idle timeout applies; with constant progress the total timeout does.
        let delay = if progress { 50 } else { 5000 };
        let params = json!({ "name": "surveyElements", "arguments": { "count": 118, "delayMs": delay } });
        let error = client.request(Method::ToolsCall, Some(Raw::of(&params))).await.unwrap_err();
        let kind = match progress {
            true => FailureKind::TimedOut(total_timeout),
            false => FailureKind::Silent(idle_timeout),
        };
        assert_eq!(error.kind(), Some(kind), "{error}");
        client.close().await;
    }
    rialto.begin_stop();
    assert!(rialto.stopped().await, "the calls were cancelled at the server");
}

#[tokio::test]
async fn http_status_errors_are_reported_by_kind() {
    for (answer, kind, word) in [
        (
            "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            FailureKind::Credentials(401),
            "credentials",
        ),
        (
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbusy",
            FailureKind::Unavailable,
            "busy",
        ),
        ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", FailureKind::Status(404), "404"),
        (
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>",
            FailureKind::Protocol,
            "without a JSON-RPC response",
        ),
    ] {
        let (address, _seen) = fixed_response_server(answer.into()).await;
        let target = Target::url(&format!("http://{address}/mcp")).unwrap();
        let error = Client::connect(&target, ClientOptions::default()).await.err().unwrap();
        assert_eq!(error.kind(), Some(kind), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    for bad in ["", "x", "ftp://h/x", "http://", "http://user:secret@h/mcp"] {
        let error = Target::url(bad).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{bad}");
    }
}

/// Ports of a Node server that closes idle connections after 2 s and says so in `Keep-Alive`.
async fn node_servers(count: usize) -> (tokio::process::Child, Vec<u16>) {
    let interpreter = tokio::task::spawn_blocking(crate::peers::installed).await.unwrap();
    let script = r#"
        const http = require("http");
        for (let n = 0; n < Number(process.argv[1]); n++) {
            const server = http.createServer((request, response) => {
                request.on("data", () => {});
                request.on("end", () => response.end("done"));
            });
            server.keepAliveTimeout = 2000;
            server.listen(0, "127.0.0.1", () => console.log(server.address().port));
        }
    "#;
    let mut command = tokio::process::Command::new(interpreter.join("node/node_modules/.bin/node"));
    command.args(["-e", script, &count.to_string()]).stdout(std::process::Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(child.stdout.take().unwrap()));
    let mut ports = Vec::new();
    while ports.len() < count {
        let line = tokio::time::timeout(TEST_TIMEOUT, lines.next_line()).await.unwrap().unwrap();
        ports.push(line.expect("the server listens").parse().unwrap());
    }
    (child, ports)
}

/// Every server has connections of its own, and each is asked again after another pause around its timeout.
#[tokio::test]
async fn no_call_meets_a_node_server_that_closes_its_idle_connection() {
    let pauses: Vec<Duration> = (0..24).map(|n| Duration::from_millis(n * 100)).collect();
    let (_child, ports) = node_servers(pauses.len()).await;
    let calls = pauses.iter().zip(ports).map(|(pause, port)| async move {
        let tools = vec![manual_tool("send", http::Method::POST, "/send", &[])];
        let api = rialto::local::rest::RestSpec { tools, ..spec(&format!("http://127.0.0.1:{port}")) };
        let rest = rialto::local::rest::Rest::load(&api, &limits()).await.unwrap();
        for _ in 0..2 {
            let result = call_tool(&rest, "send", json!({})).await;
            assert_eq!(result["isError"], false, "after {pause:?}: {result}");
            // The pause itself is what is tested.
            tokio::time::sleep(*pause).await;
        }
        let result = call_tool(&rest, "send", json!({})).await;
        assert_eq!(result["isError"], false, "after {pause:?}: {result}");
    });
    futures_util::future::join_all(calls).await;
}

#[tokio::test]
async fn a_configured_header_replaces_that_of_the_caller() {
    for transport in [ServerTransport::Http, ServerTransport::PerRequest] {
        let server = ScriptedServer::start("server", transport).await;
        let target = server.target().with_header("X-Tenant", "configured").unwrap();
        let upstream = rialto::upstream::UpstreamSpec::new("server", rialto::upstream::SpecKind::Target(target));
        let rialto = Rialto::with(|settings| {
            let group = rialto::gateway::GroupConfig::new(rialto::gateway::DEFAULT_GROUP, ["server".into()]);
            settings.gateway = rialto::gateway::GatewayConfig { upstreams: vec![upstream], groups: vec![group] };
            settings.policy.forward_headers = ["x-tenant", "x-user"].map(http::HeaderName::from_static).to_vec();
        })
        .await;
        until("it is connected", || rialto.inbound.gateway.upstreams()[0].state().startup_finished).await;
        let call = rialto.modern("tools/call", json!({ "name": "echo", "arguments": {} }));
        let (_, answer) = call.header("x-tenant", "caller").header("x-user", "ada").answer().await;
        assert!(answer["result"].is_object(), "{answer}");
        let received = server.received().into_iter().find(|message| message.kind == "tools/call").unwrap();
        let sent = |name: &str| -> Vec<String> {
            received.headers.iter().filter(|(other, _)| other == name).map(|(_, value)| value.clone()).collect()
        };
        assert_eq!((sent("x-tenant"), sent("x-user")), (vec!["configured".to_owned()], vec!["ada".to_owned()]));
    }
}
