//! One address in front of all nodes, for clients that know only one. It does what nginx does with the file in
//! `deploy`: each request goes to the next node, and to another only if that one was not there to take it.

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

use super::balancer::{AGAIN, Balancer};
use crate::harness::{Broken, Received, Sending};

type Body = UnsyncBoxBody<Bytes, Broken>;

/// Passes requests on. Dropping it ends it.
pub struct Gate {
    address: SocketAddr,
    inner: Arc<Inner>,
    accepting: AbortHandle,
}

struct Inner {
    balancer: Arc<Balancer>,
    /// The sessions that were opened here and not ended, and whether their clients have left and could not end them.
    sessions: Mutex<HashMap<String, bool>>,
    /// How many requests were answered with 503.
    refused: AtomicU64,
    /// Those who are told when a session is refused the stream that it listens on, by what they put into their URL.
    deaf: Mutex<Vec<(String, Arc<Notify>)>>,
}

/// Headers that are between two neighbours, or are set anew.
const OWN: [&str; 5] = ["host", "connection", "content-length", "transfer-encoding", "keep-alive"];

// === impl Gate ===

impl Gate {
    pub fn open(balancer: &Arc<Balancer>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Inner {
            balancer: Arc::clone(balancer),
            sessions: Mutex::default(),
            refused: AtomicU64::new(0),
            deaf: Mutex::default(),
        };
        let inner = Arc::new(inner);
        let shared = Arc::clone(&inner);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let inner = Arc::clone(&shared);
                let service = service_fn(move |request| {
                    let inner = Arc::clone(&inner);
                    async move { Ok::<_, Infallible>(inner.pass(request).await) }
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

    /// How many sessions that were opened here have a home: all that are used, and some of those that are left.
    pub fn sessions(&self) -> RangeInclusive<u64> {
        let sessions = self.inner.sessions.lock().unwrap();
        let left = sessions.values().filter(|left| **left).count();
        (sessions.len() - left) as u64..=sessions.len() as u64
    }

    /// How many requests were answered with 503.
    pub fn refused(&self) -> u64 {
        self.inner.refused.load(Ordering::SeqCst)
    }

    /// Where a client finds this, and what says that a stream of its was refused: some SDKs tell nobody.
    pub fn entrance(&self, name: &str) -> (String, Arc<Notify>) {
        let deaf = Arc::new(Notify::new());
        self.inner.deaf.lock().unwrap().push((name.to_owned(), Arc::clone(&deaf)));
        (format!("http://{}/mcp?{name}", self.address), deaf)
    }

    /// Ends the sessions that their clients could not end, and tells how many these were.
    pub async fn clear(&self) -> usize {
        let left: Vec<String> = self.inner.sessions.lock().unwrap().drain().map(|(id, _)| id).collect();
        for id in &left {
            let deleting = |node| Sending::to(node, "DELETE", "/mcp").header("mcp-session-id", id);
            while !matches!(self.inner.balancer.insist(deleting).await, Ok(Received { status: 200 | 404, .. })) {
                tokio::time::sleep(AGAIN).await;
            }
        }
        left.len()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

// === impl Inner ===

impl Inner {
    async fn pass(&self, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let Ok(body) = body.collect().await.map(|body| body.to_bytes()) else { return plain(400) };
        let verb = ["GET", "POST", "DELETE"].into_iter().find(|verb| *verb == parts.method.as_str()).unwrap();
        let path = parts.uri.path_and_query().unwrap().as_str();
        let make = |node| {
            let passed = parts.headers.iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
            let sending = Sending::to(node, verb, path).body(body.clone());
            passed.fold(sending, |sending, (name, value)| sending.header(name.as_str(), value.to_str().unwrap()))
        };
        if let Some(id) = parts.headers.get("mcp-session-id").filter(|_| verb == "DELETE") {
            self.sessions.lock().unwrap().entry(id.to_str().unwrap().to_owned()).and_modify(|left| *left = true);
        }
        let received = match self.balancer.send(make).await {
            Ok(received) => received,
            Err(why) => {
                note(format!("{:?} {verb} is lost: {why}", parts.uri.query()));
                println!("nobody knows what became of {verb} {}: {why}", String::from_utf8_lossy(&body));
                return plain(502);
            }
        };
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("-");
        note(format!(
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
            let deaf = self.deaf.lock().unwrap();
            deaf.iter().filter(|(name, _)| parts.uri.query() == Some(name)).for_each(|(_, deaf)| deaf.notify_one());
        }
        let mut sessions = self.sessions.lock().unwrap();
        if let Some(id) = received.header("mcp-session-id").filter(|_| parts.headers.get("mcp-session-id").is_none()) {
            sessions.insert(id.to_owned(), false);
        }
        let ended = (verb == "DELETE" && received.status == 200) || received.status == 404;
        if let Some(id) = parts.headers.get("mcp-session-id").filter(|_| ended) {
            sessions.remove(id.to_str().unwrap());
        }
        drop(sessions);
        back(received)
    }
}

/// What a node answered, as it comes. Where it breaks off, so does this.
fn back(received: Received) -> Response<Body> {
    let mut response = Response::builder().status(received.status);
    for (name, value) in received.headers.iter().filter(|(name, _)| !OWN.contains(&name.as_str())) {
        response = response.header(name, value);
    }
    let pieces = futures_util::stream::unfold(received, |mut received| async move {
        let piece = received.piece().await?;
        Some((piece.map(Frame::data), received))
    });
    response.body(StreamBody::new(pieces).boxed_unsync()).unwrap()
}

fn plain(status: u16) -> Response<Body> {
    let body = Full::new(Bytes::new()).map_err(|never| match never {});
    Response::builder().status(status).body(body.boxed_unsync()).unwrap()
}

/// What passed through gates last, for whoever looks into a failure.
static PASSED: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
/// How much of it is remembered.
const REMEMBERED: usize = 400;

fn note(line: String) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut passed = PASSED.lock().unwrap();
    passed.push_back(format!("{}.{:03} {line}", now.as_secs() % 3600, now.subsec_millis()));
    if passed.len() > REMEMBERED {
        passed.pop_front();
    }
}

/// What passed through gates last.
pub fn passed() -> Vec<String> {
    PASSED.lock().unwrap().iter().cloned().collect()
}
