//! A server for the official conformance suite, on the official Rust SDK.
//!
//! It has the tools, resources and prompts that the suite expects, so that the suite can run against it directly and
//! through a gateway:
//!
//! ```sh
//! cargo run --example conformance_server -- http          # says where it listens
//! conformance server --url http://127.0.0.1:PORT/mcp --requirements 2026-07-28
//! ```
//!
//! The first argument is the transport, `http` or `stdio`. The second is the set of eras: `both` (the default),
//! `handshake` (without 2026-07-28) or `modern` (2026-07-28 only). In `handshake` mode the SDK would still answer
//! `server/discover` with an error of the newer era. Real handshake-era servers do not know the method, so it is
//! answered with "method not found" before it reaches the SDK.
//!
//! Tools request input in the way of the request's era: by server requests during the call, or by an input-required
//! result.
//!
//! Limitation of the SDK: `test_reconnection` cannot close the stream of its own call, because the handler does not
//! know the stream. It answers like any other tool.

#![allow(
    deprecated,
    reason = "logging, sampling and roots are deprecated in the newest revision, and are what is tested"
)]

mod fixture;
mod offers;
mod tasks;

use std::convert::Infallible;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rmcp::ServiceExt;
use rmcp::model::ProtocolVersion;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use self::fixture::{Fixture, Shared};

/// Maximum body size; larger than any body of the suite.
const LONGEST_BODY: usize = 1 << 20;

type Body = BoxBody<Bytes, Infallible>;

/// Eras to serve.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Both,
    Handshake,
    Modern,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let shape = match arguments.get(1) {
        None | Some(&"both") => Shape::Both,
        Some(&"handshake") => Shape::Handshake,
        Some(&"modern") => Shape::Modern,
        Some(_) => return usage(),
    };
    let served = match arguments.first() {
        Some(&"http") => over_http(shape).await,
        Some(&"stdio") => over_stdio(shape).await,
        _ => return usage(),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("conformance_server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: conformance_server http|stdio [both|handshake|modern]");
    ExitCode::from(2)
}

// === transports ===

async fn over_http(shape: Shape) -> std::result::Result<(), Box<dyn Error>> {
    let shared = Arc::new(Shared::default());
    let origins = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];
    let config = StreamableHttpServerConfig::default()
        .with_allowed_origins(origins)
        .with_legacy_session_mode(shape != Shape::Modern)
        .with_stateless_protocol_metadata_required(shape == Shape::Modern);
    let sessions = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(Fixture::new(shape, Arc::clone(&shared))), sessions, config);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}/mcp", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(connection(stream, service.clone(), shape));
    }
}

async fn connection(
    stream: TcpStream,
    service: StreamableHttpService<Fixture, LocalSessionManager>,
    shape: Shape,
) -> std::result::Result<(), hyper::Error> {
    let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(respond(&service, request, shape).await) }
    });
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await
}

async fn respond(
    service: &StreamableHttpService<Fixture, LocalSessionManager>,
    request: Request<Incoming>,
    shape: Shape,
) -> Response<Body> {
    if request.uri().path() != "/mcp" {
        return plain(StatusCode::NOT_FOUND, Bytes::new());
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = Limited::new(body, LONGEST_BODY).collect().await else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, Bytes::new());
    };
    let body = body.to_bytes();
    if let Some(refusal) = serde_json::from_slice(&body).ok().and_then(|message| shape.refusal(&message)) {
        return plain(StatusCode::BAD_REQUEST, refusal.to_string().into());
    }
    service.handle(Request::from_parts(parts, Full::new(body))).await
}

fn plain(status: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

/// Forwards lines to the SDK, except those answered here.
async fn over_stdio(shape: Shape) -> std::result::Result<(), Box<dyn Error>> {
    let (near, far) = tokio::io::duplex(1 << 16);
    let served = tokio::spawn(async move {
        let fixture = Fixture::new(shape, Arc::default());
        // A peer that disconnects during the handshake is not an error.
        if let Ok(running) = fixture.serve(tokio::io::split(far)).await {
            let _ = running.waiting().await;
        }
    });
    let (answers, mut requests) = tokio::io::split(near);
    let mut answers = BufReader::new(answers).lines();
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let mut output = tokio::io::stdout();
    let mut open = true;
    loop {
        let line = tokio::select! {
            line = input.next_line(), if open => match line? {
                Some(line) => match serde_json::from_str(&line).ok().and_then(|message| shape.refusal(&message)) {
                    Some(refusal) => refusal.to_string(),
                    None => {
                        requests.write_all(format!("{line}\n").as_bytes()).await?;
                        continue;
                    }
                },
                None => {
                    open = false;
                    requests.shutdown().await?;
                    continue;
                }
            },
            line = answers.next_line() => match line? {
                Some(line) => line,
                None => break,
            },
        };
        output.write_all(format!("{line}\n").as_bytes()).await?;
        output.flush().await?;
    }
    served.await?;
    Ok(())
}

// === impl Shape ===

impl Shape {
    fn versions(self) -> &'static [ProtocolVersion] {
        match self {
            Self::Both => ProtocolVersion::KNOWN_VERSIONS,
            Self::Handshake => ProtocolVersion::known_up_to(&ProtocolVersion::V_2025_11_25),
            Self::Modern => &[ProtocolVersion::V_2026_07_28],
        }
    }

    /// The response of a server that does not know the per-request era.
    fn refusal(self, message: &Value) -> Option<Value> {
        let meta = &message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
        let newer = message["method"] == "server/discover" || meta.is_string();
        (self == Self::Handshake && newer && message.get("id").is_some()).then(|| {
            let error = json!({ "code": -32601, "message": "Method not found" });
            json!({ "jsonrpc": "2.0", "id": message["id"], "error": error })
        })
    }
}
