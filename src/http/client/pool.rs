//! Connection pool of one origin (HTTP/1.1). A connection returns to the pool after a complete response and is closed
//! when it stays idle.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tower_service::Service;

use super::connection::{EncodedRequest, Http1Connection, HttpResponse, PendingResponse, ResponseBody, SendError};

type HttpsConnect = HttpsConnector<HttpConnector>;
type BoxError = Box<dyn StdError + Send + Sync>;
/// Pools of the process by origin and connect timeout.
type Pools = HashMap<(Uri, Duration), Weak<Pool>>;

/// Interval of the idle sweep. A connection that was idle at two sweeps in a row is closed.
const IDLE_SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// Number of idle lists. With more workers than this, some share a list and wake each other's runtimes.
const POOL_SHARDS: usize = 64;

/// Idle connections to one origin, shared by all clients with the same connect timeout: many clients of one server need
/// few connections.
pub(crate) struct Pool {
    connector: HttpsConnect,
    /// Scheme and authority, with `/` as the path.
    origin: Uri,
    /// Idle connections by worker: a socket wakes the runtime that opened it, so only that worker reuses it.
    idle: [PoolShard; POOL_SHARDS],
}

/// Idle list of one worker, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct PoolShard(Mutex<IdleConnections>);

#[derive(Default)]
struct IdleConnections {
    /// Idle connections, most recently used last, each with the sweep count at its return.
    connections: VecDeque<(Box<Http1Connection>, u64)>,
    /// Task that closes idle connections; ends when the list is empty.
    sweeper: Option<AbortHandle>,
    /// Number of sweeps so far.
    sweeps: u64,
}

/// Why no response head was received.
#[derive(Debug)]
pub(crate) enum PoolError {
    /// No connection could be opened.
    Unreachable(BoxError),
    /// The connection broke before a byte of the request was written.
    NotSent(io::Error),
    /// The connection broke, or the response is malformed.
    Broken(io::Error),
}

// === impl Pool ===

impl Pool {
    /// The pool for the origin of `url`; created once per origin and connect timeout.
    pub(crate) fn for_origin(url: &Uri, connect_timeout: Duration) -> Arc<Self> {
        static POOLS: LazyLock<Mutex<Pools>> = LazyLock::new(Mutex::default);
        let mut pools = POOLS.lock();
        let origin = origin(url);
        if let Some(pool) = pools.get(&(origin.clone(), connect_timeout)).and_then(Weak::upgrade) {
            return pool;
        }
        pools.retain(|_, pool| pool.strong_count() > 0);
        let idle = std::array::from_fn(|_| PoolShard::default());
        let pool = Arc::new(Self { connector: connector(connect_timeout), origin: origin.clone(), idle });
        pools.insert((origin, connect_timeout), Arc::downgrade(&pool));
        pool
    }

    /// The idle list of the current worker.
    fn worker_shard(&self) -> MutexGuard<'_, IdleConnections> {
        self.idle[current_shard()].lock()
    }

    /// Sends a request. When an idle connection turns out closed before a byte was written, another one is tried.
    pub(crate) async fn send(self: &Arc<Self>, request: &EncodedRequest) -> Result<HttpResponse, PoolError> {
        loop {
            let (connection, is_reused) = match self.take_idle() {
                Some(connection) => (connection, true),
                None => (Box::pin(self.connect()).await.map_err(PoolError::Unreachable)?, false),
            };
            let pending = PendingResponse::new(connection, request.in_flight.clone());
            match pending.send(request).await {
                Ok((head, decoder, connection)) => {
                    return Ok(HttpResponse { head, body: ResponseBody::new(decoder, connection, self) });
                }
                Err(SendError { not_sent: true, .. }) if is_reused && !request.is_revoked() => {}
                Err(SendError { not_sent: true, error }) => return Err(PoolError::NotSent(error)),
                Err(SendError { error, .. }) => return Err(PoolError::Broken(error)),
            }
        }
    }

    /// Takes the most recently used idle connection that is still open.
    fn take_idle(&self) -> Option<Box<Http1Connection>> {
        loop {
            let (mut connection, _) = self.worker_shard().connections.pop_back()?;
            if connection.is_open() {
                return Some(connection);
            }
        }
    }

    async fn connect(&self) -> Result<Box<Http1Connection>, BoxError> {
        let mut connector = self.connector.clone();
        std::future::poll_fn(|context| connector.poll_ready(context)).await?;
        let stream = connector.call(self.origin.clone()).await?;
        Ok(Box::new(Http1Connection::new(stream, current_shard())))
    }

    /// Returns a connection to the idle list of the worker that opened it.
    pub(crate) fn release(self: &Arc<Self>, connection: Box<Http1Connection>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let shard = connection.pool_shard;
        let mut idle = self.idle[shard].lock();
        let sweeps = idle.sweeps;
        idle.connections.push_back((connection, sweeps));
        if idle.sweeper.as_ref().is_none_or(AbortHandle::is_finished) {
            idle.sweeper = Some(runtime.spawn(sweep(Arc::downgrade(self), shard)).abort_handle());
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let idle: usize = self.idle.iter().map(|shard| shard.lock().connections.len()).sum();
        f.debug_struct("Pool").field("origin", &self.origin).field("idle", &idle).finish()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for shard in &self.idle {
            if let Some(sweeper) = shard.lock().sweeper.take() {
                sweeper.abort();
            }
        }
    }
}

impl PoolShard {
    fn lock(&self) -> MutexGuard<'_, IdleConnections> {
        self.0.lock()
    }
}

/// Index of the current worker's idle list.
fn current_shard() -> usize {
    crate::workers::current_worker() % POOL_SHARDS
}

/// Closes connections that stayed idle for two sweeps; ends when the list is empty.
async fn sweep(pool: Weak<Pool>, shard: usize) {
    loop {
        tokio::time::sleep(IDLE_SWEEP_INTERVAL).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut idle = pool.idle[shard].lock();
        idle.sweeps += 1;
        let sweeps = idle.sweeps;
        while idle.connections.front().is_some_and(|(_, returned_at)| returned_at + 2 <= sweeps) {
            idle.connections.pop_front();
        }
        if idle.connections.is_empty() {
            idle.sweeper = None;
            return;
        }
    }
}

/// Scheme and authority of a URL.
fn origin(url: &Uri) -> Uri {
    let mut parts = url.clone().into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    Uri::from_parts(parts).unwrap_or_else(|_| url.clone())
}

/// The connector for a connect timeout. Loading the system's trust roots is slow, so each is built once.
fn connector(connect_timeout: Duration) -> HttpsConnect {
    static CONNECTORS: Mutex<BTreeMap<Duration, HttpsConnect>> = Mutex::new(BTreeMap::new());
    let mut connectors = CONNECTORS.lock();
    connectors.entry(connect_timeout).or_insert_with(|| new_connector(connect_timeout)).clone()
}

fn new_connector(connect_timeout: Duration) -> HttpsConnect {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(connect_timeout));
    let builder = HttpsConnectorBuilder::new().with_native_roots().unwrap_or_else(|error| {
        // Without roots plain HTTP still works, and TLS handshakes fail with an untrusted issuer.
        tracing::warn!(%error, "loading system TLS roots failed; no HTTPS server will be trusted");
        HttpsConnectorBuilder::new().with_tls_config(tls_without_roots())
    });
    builder.https_or_http().enable_http1().wrap_connector(tcp)
}

fn tls_without_roots() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("ring supports the default TLS versions");
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

    /// A server that answers by path and counts its connections.
    #[derive(Default)]
    struct TestServer {
        opened: AtomicUsize,
        closed: AtomicUsize,
        changed: Notify,
        request_received: Notify,
    }

    impl TestServer {
        async fn start() -> (Arc<Self>, Arc<Pool>) {
            let server = Arc::new(Self::default());
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let accepting = Arc::clone(&server);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let server = Arc::clone(&accepting);
                    server.opened.fetch_add(1, Ordering::Relaxed);
                    tokio::spawn(async move {
                        server.serve(stream).await;
                        server.closed.fetch_add(1, Ordering::Relaxed);
                        server.changed.notify_waiters();
                    });
                }
            });
            (server, Pool::for_origin(&url.parse().unwrap(), Duration::from_secs(7)))
        }

        async fn serve(&self, stream: tokio::net::TcpStream) {
            let mut stream = BufReader::new(stream);
            loop {
                let (mut path, mut header) = (String::new(), String::new());
                while header.trim() != "" || path.is_empty() {
                    header.clear();
                    if stream.read_line(&mut header).await.unwrap_or(0) == 0 {
                        return;
                    }
                    if path.is_empty() {
                        path = header.split(' ').nth(1).unwrap().to_owned();
                    }
                }
                let response = match path.as_str() {
                    "/silent" => "",
                    "/endless" => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
                    "/chunked" => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
                    _ => "HTTP/1.1 202 Accepted\r\ncontent-length: 8\r\n\r\nAccepted",
                };
                self.request_received.notify_one();
                if stream.get_mut().write_all(response.as_bytes()).await.is_err() || path == "/then-close" {
                    return;
                }
            }
        }

        async fn wait_for_closed(&self, count: usize) {
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

    async fn get(pool: &Arc<Pool>, path: &str) -> HttpResponse {
        let head = format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n").into_bytes();
        pool.send(&EncodedRequest { verb: Verb::GET, head, body: Bytes::new(), in_flight: None }).await.unwrap()
    }

    async fn read(response: HttpResponse) -> Bytes {
        response.body.read_to_end(100).await.unwrap()
    }

    #[tokio::test]
    async fn connection_is_reused_after_a_complete_response() {
        let (server, pool) = TestServer::start().await;
        for path in ["/", "/chunked", "/"] {
            assert!(!read(get(&pool, path).await).await.is_empty());
        }
        // An unread response that is already buffered does not cost the connection.
        drop(get(&pool, "/").await);
        let both = [get(&pool, "/").await, get(&pool, "/").await];
        assert_eq!(server.opened.load(Ordering::Relaxed), 2, "two requests at once need two connections");
        for response in both {
            assert_eq!(read(response).await, "Accepted");
        }
        assert_eq!(pool.worker_shard().connections.len(), 2);
    }

    #[tokio::test]
    async fn connection_closed_while_idle_is_not_reused() {
        let (server, pool) = TestServer::start().await;
        read(get(&pool, "/then-close").await).await;
        // The close reaches this end of the connection after a moment.
        let close_is_visible = |pool: &Pool| {
            let mut idle = pool.worker_shard();
            idle.connections.front_mut().is_none_or(|(connection, _)| !connection.is_open())
        };
        while !close_is_visible(&pool) {
            tokio::task::yield_now().await;
        }
        assert_eq!(read(get(&pool, "/").await).await, "Accepted");
        assert_eq!(server.opened.load(Ordering::Relaxed), 2);
    }

    /// No later request may receive the response to an abandoned one.
    #[tokio::test]
    async fn connection_of_an_abandoned_request_is_closed() {
        let (server, pool) = TestServer::start().await;
        tokio::select! {
            _ = get(&pool, "/silent") => panic!("the server sends no response"),
            () = server.request_received.notified() => {}
        }
        server.wait_for_closed(1).await;
        let endless = get(&pool, "/endless").await;
        assert!(tokio::time::timeout(Duration::ZERO, endless.body.read_to_end(100)).await.is_err());
        server.wait_for_closed(2).await;
        assert!(pool.worker_shard().connections.is_empty());
    }

    #[tokio::test]
    async fn connection_with_an_unfinished_body_is_closed() {
        let (server, pool) = TestServer::start().await;
        let mut endless = get(&pool, "/endless").await.body;
        assert_eq!(endless.next().await.unwrap().unwrap(), "ab");
        drop(endless);
        server.wait_for_closed(1).await;
        assert!(pool.worker_shard().connections.is_empty());
    }
}
