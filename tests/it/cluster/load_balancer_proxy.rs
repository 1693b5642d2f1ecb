//! HTTP reverse proxy in front of all nodes, for clients that take one URL. Like nginx with `deploy/nginx.conf`, it
//! sends each request to the next node, and to another only if it could not connect.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::balancer::{RETRY_DELAY, RoundRobinBalancer};
use crate::harness::{HttpRequest, HttpResponse, SendFailure};

type Body = UnsyncBoxBody<Bytes, SendFailure>;

/// Running proxy. Dropping it stops accepting.
pub struct LoadBalancerProxy {
    address: SocketAddr,
    inner: Arc<ProxyState>,
    accepting: AbortHandle,
}

struct ProxyState {
    balancer: Arc<RoundRobinBalancer>,
    /// Sessions opened through the proxy and not deleted.
    sessions: Mutex<HashMap<String, OpenedSession>>,
    /// Number of 503 responses.
    refused: AtomicU64,
    /// Signals, by the query of the client's URL, that a GET for a listening stream was refused.
    stream_refused: Mutex<Vec<(String, Arc<Notify>)>>,
}

/// A session that was opened through the proxy.
struct OpenedSession {
    /// The query of the client's URL.
    client: Option<String>,
    /// The client tried to delete it and failed, or opened another without deleting it. If its node is killed, no
    /// request makes another node take it over.
    is_left: bool,
}

/// Hop-by-hop headers, which the proxy does not forward.
const HOP_BY_HOP_HEADERS: [&str; 5] = ["host", "connection", "content-length", "transfer-encoding", "keep-alive"];

// === impl LoadBalancerProxy ===

impl LoadBalancerProxy {
    pub fn open(balancer: &Arc<RoundRobinBalancer>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let inner = ProxyState {
            balancer: Arc::clone(balancer),
            sessions: Mutex::default(),
            refused: AtomicU64::new(0),
            stream_refused: Mutex::default(),
        };
        let inner = Arc::new(inner);
        let shared = Arc::clone(&inner);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let inner = Arc::clone(&shared);
                let service = service_fn(move |request| {
                    let inner = Arc::clone(&inner);
                    async move { Ok::<_, Infallible>(inner.forward(request).await) }
                });
                let server = hyper::server::conn::http1::Builder::new();
                let connection = server.serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move {
                    let _ = connection.await;
                });
            }
        });
        Self { address, inner, accepting: accepting.abort_handle() }
    }

    /// Bounds for the number of live sessions: all in use, plus some of those that their clients left.
    pub fn sessions(&self) -> RangeInclusive<u64> {
        let sessions = self.inner.sessions.lock().unwrap();
        let left = sessions.values().filter(|session| session.is_left).count();
        (sessions.len() - left) as u64..=sessions.len() as u64
    }

    /// Number of 503 responses.
    pub fn refused(&self) -> u64 {
        self.inner.refused.load(Ordering::SeqCst)
    }

    /// URL for a client, and the signal that its listening stream was refused: some SDKs do not report that.
    pub fn url_for(&self, name: &str) -> (String, Arc<Notify>) {
        let stream_refused = Arc::new(Notify::new());
        self.inner.stream_refused.lock().unwrap().push((name.to_owned(), Arc::clone(&stream_refused)));
        (format!("http://{}/mcp?{name}", self.address), stream_refused)
    }

    /// Deletes the sessions that their clients could not delete; returns their number.
    pub async fn delete_leftover_sessions(&self) -> usize {
        let left: Vec<String> = self.inner.sessions.lock().unwrap().drain().map(|(id, _)| id).collect();
        for id in &left {
            let deleting = |node| HttpRequest::to(node, "DELETE", "/mcp").header("mcp-session-id", id);
            while !matches!(
                self.inner.balancer.send_until_accepted(deleting).await,
                Ok(HttpResponse { status: 200 | 404, .. })
            ) {
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
        left.len()
    }
}

impl Drop for LoadBalancerProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

// === impl ProxyState ===

impl ProxyState {
    async fn forward(&self, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let Ok(body) = body.collect().await.map(|body| body.to_bytes()) else { return empty_response(400) };
        let verb = ["GET", "POST", "DELETE"].into_iter().find(|verb| *verb == parts.method.as_str()).unwrap();
        let path = parts.uri.path_and_query().unwrap().as_str();
        let make = |node| {
            let passed = parts.headers.iter().filter(|(name, _)| !HOP_BY_HOP_HEADERS.contains(&name.as_str()));
            let sending = HttpRequest::to(node, verb, path).body(body.clone());
            passed.fold(sending, |sending, (name, value)| sending.header(name.as_str(), value.to_str().unwrap()))
        };
        if let Some(id) = parts.headers.get("mcp-session-id").filter(|_| verb == "DELETE") {
            self.sessions
                .lock()
                .unwrap()
                .entry(id.to_str().unwrap().to_owned())
                .and_modify(|session| session.is_left = true);
        }
        let received = match self.balancer.send(make).await {
            Ok(received) => received,
            Err(why) => {
                record(format!("{:?} {verb} is lost: {why}", parts.uri.query()));
                println!("nobody knows what became of {verb} {}: {why}", String::from_utf8_lossy(&body));
                return empty_response(502);
            }
        };
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("-");
        record(format!(
            "{:?} {verb} session {} last event {} -> {}",
            parts.uri.query().unwrap_or_default(),
            header("mcp-session-id"),
            header("last-event-id"),
            received.status
        ));
        if received.status == 503 {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
        if verb == "GET" && received.status != 200 {
            let stream_refused = self.stream_refused.lock().unwrap();
            stream_refused
                .iter()
                .filter(|(name, _)| parts.uri.query() == Some(name))
                .for_each(|(_, stream_refused)| stream_refused.notify_one());
        }
        let mut sessions = self.sessions.lock().unwrap();
        if let Some(id) = received.header("mcp-session-id").filter(|_| parts.headers.get("mcp-session-id").is_none()) {
            let client = parts.uri.query().map(str::to_owned);
            sessions.values_mut().filter(|session| session.client == client).for_each(|session| session.is_left = true);
            sessions.insert(id.to_owned(), OpenedSession { client, is_left: false });
        }
        let ended = (verb == "DELETE" && received.status == 200) || received.status == 404;
        if let Some(id) = parts.headers.get("mcp-session-id").filter(|_| ended) {
            sessions.remove(id.to_str().unwrap());
        }
        drop(sessions);
        proxied_response(received)
    }
}

/// Streams the response of a node; breaks off where the node's response breaks off.
fn proxied_response(received: HttpResponse) -> Response<Body> {
    let mut response = Response::builder().status(received.status);
    for (name, value) in received.headers.iter().filter(|(name, _)| !HOP_BY_HOP_HEADERS.contains(&name.as_str())) {
        response = response.header(name, value);
    }
    let pieces = futures_util::stream::unfold(received, |mut received| async move {
        let piece = received.piece().await?;
        Some((piece.map(Frame::data), received))
    });
    response.body(StreamBody::new(pieces).boxed_unsync()).unwrap()
}

fn empty_response(status: u16) -> Response<Body> {
    let body = Full::new(Bytes::new()).map_err(|never| match never {});
    Response::builder().status(status).body(body.boxed_unsync()).unwrap()
}

/// Log of the latest proxied requests, printed when a test fails.
static RECENT_REQUESTS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
/// Number of requests kept in the log.
const MAX_RECENT_REQUESTS: usize = 400;

fn record(line: String) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut passed = RECENT_REQUESTS.lock().unwrap();
    passed.push_back(format!("{}.{:03} {line}", now.as_secs() % 3600, now.subsec_millis()));
    if passed.len() > MAX_RECENT_REQUESTS {
        passed.pop_front();
    }
}

/// The latest proxied requests.
pub fn recent_requests() -> Vec<String> {
    RECENT_REQUESTS.lock().unwrap().iter().cloned().collect()
}
