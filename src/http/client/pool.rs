//! Connections to one origin over HTTP/1.1. One that has brought a whole answer is kept for the next
//! request, for a while.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tower_service::Service;

use super::connection::{EncodedRequest, Http1Connection, HttpResponse, PendingResponse, ResponseBody, SendError};

type HttpsConnect = HttpsConnector<HttpConnector>;
type BoxError = Box<dyn StdError + Send + Sync>;
/// By origin, and by how much time connecting is given.
type Pools = HashMap<(Uri, Duration), Weak<Pool>>;

/// How often unused connections are looked for. One that was seen twice, and not used in between, is let go.
const IDLE_SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// How many workers have their own connections. Where there are more, some share, and wake each other.
const POOL_SHARDS: usize = 64;

/// The connections to one origin. Everybody who goes there with the same patience shares them, so that
/// many sessions with one server use few connections.
pub(crate) struct Pool {
    connector: HttpsConnect,
    /// Scheme and authority.
    origin: Uri,
    /// By worker: a connection wakes the thread that opened it, so it is used there only.
    idle: [PoolShard; POOL_SHARDS],
}

/// What one worker has, apart from what others look at.
#[derive(Default)]
#[repr(align(64))]
struct PoolShard(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    /// The unused ones, the latest at the end, and since which look they are.
    all: VecDeque<(Box<Http1Connection>, u64)>,
    /// Who looks for those that were unused for too long, and lets them go.
    sweeper: Option<AbortHandle>,
    /// How often that was.
    looks: u64,
}

/// Why no answer came.
#[derive(Debug)]
pub(crate) enum PoolError {
    /// There is no connection.
    Unreachable(BoxError),
    /// The connection broke.
    Broken(io::Error),
}

// === impl Pool ===

impl Pool {
    /// The connections to the origin of an address, for those who give connecting so much time.
    pub(crate) fn of(url: &Uri, connect: Duration) -> Arc<Self> {
        static ALL: LazyLock<Mutex<Pools>> = LazyLock::new(Mutex::default);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let origin = origin(url);
        if let Some(pool) = all.get(&(origin.clone(), connect)).and_then(Weak::upgrade) {
            return pool;
        }
        all.retain(|_, pool| pool.strong_count() > 0);
        let idle = std::array::from_fn(|_| PoolShard::default());
        let pool = Arc::new(Self { connector: connector(connect), origin: origin.clone(), idle });
        all.insert((origin, connect), Arc::downgrade(&pool));
        pool
    }

    /// What this thread has.
    fn worker_shard(&self) -> MutexGuard<'_, Idle> {
        self.idle[here()].lock()
    }

    /// Sends a request. What a connection that was closed meanwhile has not taken is sent on another.
    pub(crate) async fn send(self: &Arc<Self>, request: &EncodedRequest) -> Result<HttpResponse, PoolError> {
        loop {
            let (line, used) = match self.unused() {
                Some(line) => (line, true),
                None => (Box::pin(self.connect()).await.map_err(PoolError::Unreachable)?, false),
            };
            let pending = PendingResponse::new(line, request.in_flight.clone());
            match pending.ask(request).await {
                Ok((head, framing, line)) => {
                    return Ok(HttpResponse { head, body: ResponseBody::new(framing, line, self) });
                }
                Err(SendError { not_sent: true, .. }) if used && !request.is_revoked() => {}
                Err(SendError { why, .. }) => return Err(PoolError::Broken(why)),
            }
        }
    }

    /// A connection that nobody uses and that is still open, as far as can be seen.
    fn unused(&self) -> Option<Box<Http1Connection>> {
        loop {
            let (mut line, _) = self.worker_shard().all.pop_back()?;
            if line.is_open() {
                return Some(line);
            }
        }
    }

    async fn connect(&self) -> Result<Box<Http1Connection>, BoxError> {
        let mut connector = self.connector.clone();
        std::future::poll_fn(|context| connector.poll_ready(context)).await?;
        let stream = connector.call(self.origin.clone()).await?;
        Ok(Box::new(Http1Connection::new(stream, here())))
    }

    pub(crate) fn put(self: &Arc<Self>, line: Box<Http1Connection>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let place = line.pool_shard;
        let mut idle = self.idle[place].lock();
        let looks = idle.looks;
        idle.all.push_back((line, looks));
        if idle.sweeper.as_ref().is_none_or(AbortHandle::is_finished) {
            idle.sweeper = Some(runtime.spawn(sweep(Arc::downgrade(self), place)).abort_handle());
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let idle: usize = self.idle.iter().map(|place| place.lock().all.len()).sum();
        f.debug_struct("Pool").field("origin", &self.origin).field("idle", &idle).finish()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for place in &self.idle {
            if let Some(sweeper) = place.lock().sweeper.take() {
                sweeper.abort();
            }
        }
    }
}

impl PoolShard {
    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of this thread.
fn here() -> usize {
    crate::workers::current_worker() % POOL_SHARDS
}

/// Lets connections go that were unused for too long, until there are none.
async fn sweep(pool: Weak<Pool>, place: usize) {
    loop {
        tokio::time::sleep(IDLE_SWEEP_INTERVAL).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut idle = pool.idle[place].lock();
        idle.looks += 1;
        let looks = idle.looks;
        while idle.all.front().is_some_and(|(_, since)| since + 2 <= looks) {
            idle.all.pop_front();
        }
        if idle.all.is_empty() {
            idle.sweeper = None;
            return;
        }
    }
}

/// An address without its path.
fn origin(url: &Uri) -> Uri {
    let mut parts = url.clone().into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    Uri::from_parts(parts).unwrap_or_else(|_| url.clone())
}

/// What opens connections. Reading the system's roots takes a while, so it is made once.
fn connector(patience: Duration) -> HttpsConnect {
    static ALL: Mutex<BTreeMap<Duration, HttpsConnect>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.entry(patience).or_insert_with(|| new_connector(patience)).clone()
}

fn new_connector(patience: Duration) -> HttpsConnect {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(patience));
    let builder = HttpsConnectorBuilder::new().with_native_roots().unwrap_or_else(|error| {
        // A system without roots can still reach what needs none; TLS will say that it trusts nobody.
        tracing::warn!(%error, "the system's TLS roots cannot be read; no HTTPS server will be trusted");
        HttpsConnectorBuilder::new().with_tls_config(trusting_nobody())
    });
    builder.https_or_http().enable_http1().wrap_connector(tcp)
}

fn trusting_nobody() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("the provider has the usual versions");
    config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::Method as Verb;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;
    use tokio::sync::Notify;

    /// A server that answers by path, and counts its connections.
    #[derive(Default)]
    struct TestServer {
        opened: AtomicUsize,
        closed: AtomicUsize,
        changed: Notify,
        asked: Notify,
    }

    impl TestServer {
        async fn start() -> (Arc<Self>, Arc<Pool>) {
            let server = Arc::new(Self::default());
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let own = Arc::clone(&server);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let server = Arc::clone(&own);
                    server.opened.fetch_add(1, Ordering::Relaxed);
                    tokio::spawn(async move {
                        server.serve(stream).await;
                        server.closed.fetch_add(1, Ordering::Relaxed);
                        server.changed.notify_waiters();
                    });
                }
            });
            (server, Pool::of(&url.parse().unwrap(), Duration::from_secs(7)))
        }

        async fn serve(&self, stream: tokio::net::TcpStream) {
            let mut stream = BufReader::new(stream);
            loop {
                let (mut path, mut line) = (String::new(), String::new());
                while line.trim() != "" || path.is_empty() {
                    line.clear();
                    if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                        return;
                    }
                    if path.is_empty() {
                        path = line.split(' ').nth(1).unwrap().to_owned();
                    }
                }
                let answer = match path.as_str() {
                    "/silent" => "",
                    "/endless" => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
                    "/chunked" => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
                    _ => "HTTP/1.1 202 Accepted\r\ncontent-length: 8\r\n\r\nAccepted",
                };
                self.asked.notify_one();
                if stream.get_mut().write_all(answer.as_bytes()).await.is_err() || path == "/then-close" {
                    return;
                }
            }
        }

        async fn until_closed(&self, count: usize) {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            while self.closed.load(Ordering::Relaxed) < count {
                changed.as_mut().await;
                changed.set(self.changed.notified());
                changed.as_mut().enable();
            }
        }
    }

    async fn ask(pool: &Arc<Pool>, path: &str) -> HttpResponse {
        let head = format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n").into_bytes();
        pool.send(&EncodedRequest { verb: Verb::GET, head, body: Bytes::new(), in_flight: None }).await.unwrap()
    }

    async fn read(answered: HttpResponse) -> Bytes {
        answered.body.read_to_end(100).await.unwrap()
    }

    #[tokio::test]
    async fn a_connection_is_used_again() {
        let (server, pool) = TestServer::start().await;
        for path in ["/", "/chunked", "/"] {
            assert!(!read(ask(&pool, path).await).await.is_empty());
        }
        // What nobody reads is in nobody's way.
        drop(ask(&pool, "/").await);
        let both = [ask(&pool, "/").await, ask(&pool, "/").await];
        assert_eq!(server.opened.load(Ordering::Relaxed), 2, "one each for those at once");
        for response in both {
            assert_eq!(read(response).await, "Accepted");
        }
        assert_eq!(pool.worker_shard().all.len(), 2);
    }

    #[tokio::test]
    async fn one_that_was_closed_meanwhile_is_not() {
        let (server, pool) = TestServer::start().await;
        read(ask(&pool, "/then-close").await).await;
        // It takes a moment until that is seen here.
        let is_seen = |pool: &Pool| {
            let mut idle = pool.worker_shard();
            idle.all.front_mut().is_none_or(|(line, _)| !line.is_open())
        };
        while !is_seen(&pool) {
            tokio::task::yield_now().await;
        }
        assert_eq!(read(ask(&pool, "/").await).await, "Accepted");
        assert_eq!(server.opened.load(Ordering::Relaxed), 2);
    }

    /// Nobody else may get an answer that was not waited for.
    #[tokio::test]
    async fn one_that_nobody_waits_for_any_more_is_closed() {
        let (server, pool) = TestServer::start().await;
        tokio::select! {
            _ = ask(&pool, "/silent") => panic!("there is no answer"),
            () = server.asked.notified() => {}
        }
        server.until_closed(1).await;
        let endless = ask(&pool, "/endless").await;
        assert!(tokio::time::timeout(Duration::ZERO, endless.body.read_to_end(100)).await.is_err());
        server.until_closed(2).await;
        assert!(pool.worker_shard().all.is_empty());
    }

    #[tokio::test]
    async fn one_that_still_brings_something_is_closed() {
        let (server, pool) = TestServer::start().await;
        let mut endless = ask(&pool, "/endless").await.body;
        assert_eq!(endless.next().await.unwrap().unwrap(), "ab");
        drop(endless);
        server.until_closed(1).await;
        assert!(pool.worker_shard().all.is_empty());
    }
}
