//! A server for the official conformance suite, on the official Rust SDK.
//!
//! It has the tools, resources and prompts that the suite calls by name, so that the suite can be
//! run against it, and against a gateway in front of it:
//!
//! ```sh
//! cargo run --example conformance_server -- http          # says where it listens
//! conformance server --url http://127.0.0.1:PORT/mcp --requirements 2026-07-28
//! ```
//!
//! The first word is the transport, `http` or `stdio`. The second is the shape: `both` eras, which
//! is the default, `handshake`, which knows nothing of 2026-07-28, or `modern`, which knows nothing
//! else. For the last the SDK only has to be told. A server of the handshake era, though, still says
//! in the words of the newer one that it does not speak it; real ones have never heard of it, so
//! there the question is answered before the SDK sees it: the method is not found.
//!
//! Every tool that asks something does so in the way of the request's era: by requests in the
//! middle of the call, or by a result that says what is wanted.
//!
//! What the SDK does not let a tool do: `test_reconnection` cannot close the stream of its own call,
//! because the handler is not told which one it is. It answers like any other.

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

/// Longer than any body of the suite.
const LONGEST_BODY: usize = 1 << 20;

type Body = BoxBody<Bytes, Infallible>;

/// Which eras are served.
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

/// Passes lines on to the SDK, except for those that are answered here.
async fn over_stdio(shape: Shape) -> std::result::Result<(), Box<dyn Error>> {
    let (near, far) = tokio::io::duplex(1 << 16);
    let served = tokio::spawn(async move {
        let fixture = Fixture::new(shape, Arc::default());
        // A peer that leaves before the opening is over is not an error of ours.
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

    /// The answer of a server that has never heard of the per-request era.
    fn refusal(self, message: &Value) -> Option<Value> {
        let meta = &message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
        let newer = message["method"] == "server/discover" || meta.is_string();
        (self == Self::Handshake && newer && message.get("id").is_some()).then(|| {
            let error = json!({ "code": -32601, "message": "Method not found" });
            json!({ "jsonrpc": "2.0", "id": message["id"], "error": error })
        })
    }
}
