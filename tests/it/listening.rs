//! The GET stream of a handshake-era upstream, which carries messages outside of calls: our client opens it before the
//! first call, because a server may send requests for that call on it.

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

use crate::harness::TEST_TIMEOUT;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A server whose tool reports whether a GET stream is open. It answers GET after `delay`, or never without one.
async fn server(delay: Option<Duration>) -> Target {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let get_stream_open = Arc::new(AtomicBool::new(false));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let get_stream_open = Arc::clone(&get_stream_open);
            let service = service_fn(move |request| respond(request, delay, Arc::clone(&get_stream_open)));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Target::url(&url).unwrap()
}

async fn respond(
    request: Request<Incoming>,
    delay: Option<Duration>,
    get_stream_open: Arc<AtomicBool>,
) -> Result<Response<Body>, Infallible> {
    if request.method() == Verb::GET {
        match delay {
            Some(delay) => tokio::time::sleep(delay).await,
            None => std::future::pending().await,
        }
        get_stream_open.store(true, Ordering::SeqCst);
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
            json!({ "content": [{ "type": "text", "text": get_stream_open.load(Ordering::SeqCst).to_string() }] })
        }
        Some("server/discover") => return Ok(status(StatusCode::BAD_REQUEST)),
        _ => return Ok(status(StatusCode::ACCEPTED)),
    };
    let response_body = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
    let response = Response::builder().header("content-type", "application/json").header("mcp-session-id", "one");
    Ok(response.body(Full::from(response_body.to_string()).boxed_unsync()).unwrap())
}

fn status(status: StatusCode) -> Response<Body> {
    Response::builder().status(status).body(Full::default().boxed_unsync()).unwrap()
}

/// A host that accepts elicitation.
struct ElicitationHost;

impl Host for ElicitationHost {
    fn capabilities(&self) -> Raw {
        Raw::of(&json!({ "elicitation": {} }))
    }

    fn on_notification(&self, _: &Notification) {}

    fn on_server_request<'a>(&'a self, _: &'a Method, _: Option<&'a Raw>) -> ServerRequestFuture<'a> {
        Box::pin(async { Ok(Raw::empty().into()) })
    }
}

async fn get_stream_was_open(target: &Target) -> bool {
    let options = ClientOptions { host: Arc::new(ElicitationHost), ..ClientOptions::default() };
    let client = Client::connect(target, options).await.unwrap();
    let result = client.call_tool("listens", Raw::empty()).await.unwrap();
    client.close().await;
    result.to_string().contains("true")
}

#[tokio::test]
async fn the_get_stream_is_open_before_the_first_call() {
    let target = server(Some(Duration::from_millis(100))).await;
    assert!(tokio::time::timeout(TEST_TIMEOUT, get_stream_was_open(&target)).await.unwrap());
}

#[tokio::test]
async fn an_unanswered_get_stream_does_not_block_calls() {
    let target = server(None).await;
    assert!(!tokio::time::timeout(TEST_TIMEOUT, get_stream_was_open(&target)).await.unwrap());
}
