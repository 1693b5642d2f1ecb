//! The stream on which a server of the handshake era says what belongs to no call: it is there
//! before the first call that a server may have a question about.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method as Verb, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rialto::client::{Client, ClientOptions, Host, ServerRequestFuture};
use rialto::mcp_client::Target;
use rialto::protocol::{Method, Notification, Raw};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::PATIENCE;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A server whose tool says whether somebody listens. It takes its time to answer a listener,
/// or all the time in the world.
async fn server(delay: Option<Duration>) -> Target {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let heard = Arc::new(AtomicBool::new(false));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let heard = Arc::clone(&heard);
            let service = service_fn(move |request| answer(request, delay, Arc::clone(&heard)));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Target::url(&url).unwrap()
}

async fn answer(
    request: Request<Incoming>,
    delay: Option<Duration>,
    heard: Arc<AtomicBool>,
) -> Result<Response<Body>, Infallible> {
    if request.method() == Verb::GET {
        match delay {
            Some(delay) => tokio::time::sleep(delay).await,
            None => std::future::pending().await,
        }
        heard.store(true, Ordering::SeqCst);
        let silence = futures_util::stream::pending::<Result<Frame<Bytes>, Infallible>>();
        let response = Response::builder().header("content-type", "text/event-stream");
        return Ok(response.body(StreamBody::new(silence).boxed_unsync()).unwrap());
    }
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "listener", "version": "1" },
        }),
        Some("tools/call") => {
            json!({ "content": [{ "type": "text", "text": heard.load(Ordering::SeqCst).to_string() }] })
        }
        Some("server/discover") => return Ok(status(StatusCode::BAD_REQUEST)),
        _ => return Ok(status(StatusCode::ACCEPTED)),
    };
    let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
    let response = Response::builder().header("content-type", "application/json").header("mcp-session-id", "one");
    Ok(response.body(Full::from(answer.to_string()).boxed_unsync()).unwrap())
}

fn status(status: StatusCode) -> Response<Body> {
    Response::builder().status(status).body(Full::default().boxed_unsync()).unwrap()
}

/// Somebody who can be asked.
struct Somebody;

impl Host for Somebody {
    fn capabilities(&self) -> Raw {
        Raw::of(&json!({ "elicitation": {} }))
    }

    fn notice(&self, _: &Notification) {}

    fn ask<'a>(&'a self, _: &'a Method, _: Option<&'a Raw>) -> ServerRequestFuture<'a> {
        Box::pin(async { Ok(Raw::empty()) })
    }
}

async fn listened(target: &Target) -> bool {
    let options = ClientOptions { host: Arc::new(Somebody), ..ClientOptions::default() };
    let client = Client::connect(target, options).await.unwrap();
    let result = client.call_tool("listens", Raw::empty()).await.unwrap();
    client.close().await;
    result.to_string().contains("true")
}

#[tokio::test]
async fn the_get_stream_is_open_before_the_first_call() {
    let target = server(Some(Duration::from_millis(100))).await;
    assert!(tokio::time::timeout(PATIENCE, listened(&target)).await.unwrap());
}

#[tokio::test]
async fn an_unanswered_get_stream_does_not_block_calls() {
    let target = server(None).await;
    assert!(!tokio::time::timeout(PATIENCE, listened(&target)).await.unwrap());
}
