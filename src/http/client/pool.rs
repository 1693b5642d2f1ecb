//! Connection pool of one origin (HTTP/1.1). A connection returns to the pool after a complete response and is closed
//! when it stays idle.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use http::Uri;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::connection::{EncodedRequest, Http1Connection, HttpResponse, PendingResponse, ResponseBody, SendError};
use super::connector::{self, BoxError};
use super::limit::{ConnectionLimit, DEFAULT_CONNECTIONS_PER_ORIGIN, Granted, MAX_WAITING_REQUESTS, WhenFull};
use crate::metrics::SharedCounter;
use crate::recorder::{self, NoteKind};

/// Requests that were sent again, because the idle connection that they were to use was closed.
pub static SENT_AGAIN: SharedCounter = SharedCounter::new();

/// Pools of the process by origin.
type Pools = HashMap<Uri, Weak<Pool>>;

/// Interval at which connections that were idle for too long are closed.
const IDLE_SWEEP_INTERVAL: Duration = Duration::from_secs(2);
/// Number of idle lists. With more workers than this, some share a list and wake each other's runtimes.
const POOL_SHARDS: usize = 64;

static POOLS: LazyLock<Mutex<Pools>> = LazyLock::new(Mutex::default);
/// Connections that each origin may have.
static MAX_CONNECTIONS: AtomicUsize = AtomicUsize::new(DEFAULT_CONNECTIONS_PER_ORIGIN);

/// The connections of this process to one origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginUsage {
    /// Scheme and authority.
    pub origin: String,
    /// Open connections.
    pub connections: usize,
    /// Requests that got none since the start, because all were in use.
    pub refusals: u64,
}

/// Sets how many connections this process may have to each origin. Pools belong to the process, because gateways in it
/// share them.
pub fn set_connections_per_origin(limit: usize) {
    MAX_CONNECTIONS.store(limit, Ordering::Relaxed);
    for pool in POOLS.lock().values().filter_map(Weak::upgrade) {
        pool.limit.set_max_connections(limit);
    }
}

/// The connections to every origin in use, sorted by origin.
pub fn origin_usage() -> Vec<OriginUsage> {
    let pools: Vec<Arc<Pool>> = POOLS.lock().values().filter_map(Weak::upgrade).collect();
    let usage = |pool: &Arc<Pool>| {
        let (connections, refusals) = pool.limit.usage();
        OriginUsage { origin: pool.origin.to_string().trim_end_matches('/').to_owned(), connections, refusals }
    };
    let mut usages: Vec<OriginUsage> = pools.iter().map(usage).collect();
    usages.sort_by(|one, other| one.origin.cmp(&other.origin));
    usages
}

/// Connections to one origin, shared by all its clients: many clients of one server need few connections.
pub(crate) struct Pool {
    /// Scheme and authority, with `/` as the path.
    origin: Uri,
    /// Idle connections by worker: a socket wakes the runtime that opened it, so others reuse it only where they would
    /// have to wait otherwise.
    idle: [PoolShard; POOL_SHARDS],
    limit: Arc<ConnectionLimit>,
}

/// Idle list of one worker, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct PoolShard(Mutex<IdleConnections>);

#[derive(Default)]
struct IdleConnections {
    /// Idle connections, most recently used last.
    connections: VecDeque<Box<Http1Connection>>,
    /// Task that closes idle connections; ends when the list is empty.
    sweeper: Option<AbortHandle>,
}

/// Why no response head was received.
#[derive(Debug)]
pub(crate) enum PoolError {
    /// No connection could be opened, or it was closed before a byte was written.
    Unreachable(BoxError),
    /// The origin has this many connections, all in use; nothing was sent.
    LimitReached(usize, ConnectionShortage),
    /// The connection broke before a byte of the request was written.
    NotSent(io::Error),
    /// The connection broke, or the response is malformed.
    Broken(io::Error),
}

/// Why a request got no connection while all were in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionShortage {
    /// None became free within the connect timeout.
    TimedOut(Duration),
    /// This many requests were waiting already.
    QueueFull(usize),
}

/// Whether a connection has carried a request before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionAge {
    Fresh,
    Reused,
}

// === impl Pool ===

impl Pool {
    /// The pool for the origin of `url`; created once per origin.
    pub(crate) fn for_origin(url: &Uri) -> Arc<Self> {
        let mut pools = POOLS.lock();
        let origin = origin(url);
        if let Some(pool) = pools.get(&origin).and_then(Weak::upgrade) {
            return pool;
        }
        pools.retain(|_, pool| pool.strong_count() > 0);
        let limit = ConnectionLimit::new(MAX_CONNECTIONS.load(Ordering::Relaxed), MAX_WAITING_REQUESTS);
        let pool = Arc::new(Self::new(origin.clone(), limit));
        pools.insert(origin, Arc::downgrade(&pool));
        pool
    }

    pub(super) fn new(origin: Uri, limit: Arc<ConnectionLimit>) -> Self {
        Self { origin, idle: std::array::from_fn(|_| PoolShard::default()), limit }
    }

    /// Sends a request. When an idle connection turns out closed before a byte was written, another one is tried.
    /// `connect_timeout` bounds the wait for a connection: in the queue, for name resolution, TCP and TLS together.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: &EncodedRequest,
        connect_timeout: Duration,
    ) -> Result<HttpResponse, PoolError> {
        loop {
            let (connection, age) = match self.take_idle() {
                Some(connection) => (connection, ConnectionAge::Reused),
                None => Box::pin(self.acquire_noted(request, connect_timeout)).await?,
            };
            let pending = PendingResponse::new(connection, request.in_flight.clone());
            match pending.send(request).await {
                Ok((head, decoder, connection)) => {
                    return Ok(HttpResponse { head, body: ResponseBody::new(decoder, connection, self) });
                }
                Err(SendError { not_sent: true, .. }) if age == ConnectionAge::Reused && !request.is_revoked() => {
                    SENT_AGAIN.add(1);
                }
                Err(SendError { not_sent: true, error }) => return Err(PoolError::NotSent(error)),
                Err(SendError { error, .. }) => return Err(PoolError::Broken(error)),
            }
        }
    }

    /// Takes the most recently used idle connection of this worker that can be reused.
    fn take_idle(&self) -> Option<Box<Http1Connection>> {
        self.idle[current_shard()].take_reusable()
    }

    /// Whether this worker has an idle connection that can be reused.
    pub(super) fn has_idle(self: &Arc<Self>) -> bool {
        let connection = self.take_idle();
        let is_there = connection.is_some();
        if let Some(connection) = connection {
            self.release(connection);
        }
        is_there
    }

    /// Like [`Self::acquire`]; the recorder is told how long it takes.
    async fn acquire_noted(
        &self,
        request: &EncodedRequest,
        connect_timeout: Duration,
    ) -> Result<(Box<Http1Connection>, ConnectionAge), PoolError> {
        recorder::note_connecting(request.mark, NoteKind::Opening);
        let acquired = self.acquire(request.when_full, connect_timeout).await;
        recorder::note_connecting(request.mark, NoteKind::Opened);
        acquired
    }

    /// Opens a connection, or waits for one where all that the origin may have are in use.
    async fn acquire(
        &self,
        when_full: WhenFull,
        connect_timeout: Duration,
    ) -> Result<(Box<Http1Connection>, ConnectionAge), PoolError> {
        let deadline = Instant::now() + connect_timeout;
        let permit = match self.limit.try_acquire() {
            None if when_full == WhenFull::Wait => {
                let granted = self.wait_in_queue(connect_timeout, deadline).await;
                let granted = granted.map_err(|why| {
                    self.limit.count_refusal();
                    PoolError::LimitReached(self.limit.max_connections(), why)
                });
                match granted? {
                    Granted::Connection(connection) => return Ok((connection, ConnectionAge::Reused)),
                    Granted::Permit(permit) => Some(permit),
                }
            }
            permit => permit,
        };
        let stream = connector::connect(&self.origin, connect_timeout, deadline).await;
        let stream = stream.map_err(PoolError::Unreachable)?;
        Ok((Box::new(Http1Connection::new(stream, current_shard(), permit)), ConnectionAge::Fresh))
    }

    /// Waits until a connection is returned or closed.
    async fn wait_in_queue(&self, connect_timeout: Duration, deadline: Instant) -> Result<Granted, ConnectionShortage> {
        let mut place = self.limit.enqueue().ok_or(ConnectionShortage::QueueFull(self.limit.max_waiting()))?;
        // Connections that are returned from now on go to the queue; those that were returned before lie idle, perhaps
        // with another worker.
        if let Some(connection) = self.idle.iter().find_map(PoolShard::take_reusable) {
            return Ok(Granted::Connection(connection));
        }
        match timeout_at(deadline, &mut place.granted).await {
            Ok(Ok(granted)) => Ok(granted),
            _ => Err(ConnectionShortage::TimedOut(connect_timeout)),
        }
    }

    /// Returns a connection: to the first request that waits for one, else to the idle list of the worker that opened it.
    pub(crate) fn release(self: &Arc<Self>, mut connection: Box<Http1Connection>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let shard = connection.pool_shard;
        loop {
            let mut idle = self.idle[shard].lock();
            // Asked under the lock: whoever joins the queue later finds the connection in the list.
            if !self.limit.has_waiting() {
                idle.connections.push_back(connection);
                if idle.sweeper.as_ref().is_none_or(AbortHandle::is_finished) {
                    idle.sweeper = Some(runtime.spawn(sweep(Arc::downgrade(self), shard)).abort_handle());
                }
                return;
            }
            drop(idle);
            if !connection.is_reusable(Instant::now()) {
                return;
            }
            match self.limit.offer(Granted::Connection(connection)) {
                Some(Granted::Connection(returned)) => connection = returned,
                _ => return,
            }
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

    /// Takes the most recently used connection that can be reused, and closes those that cannot.
    fn take_reusable(&self) -> Option<Box<Http1Connection>> {
        let mut connection = self.lock().connections.pop_back()?;
        let now = Instant::now();
        while !connection.is_reusable(now) {
            connection = self.lock().connections.pop_back()?;
        }
        Some(connection)
    }
}

/// Index of the current worker's idle list.
pub(super) fn current_shard() -> usize {
    crate::workers::current_worker() % POOL_SHARDS
}

/// Closes connections that were idle for too long; ends when the list is empty.
async fn sweep(pool: Weak<Pool>, shard: usize) {
    loop {
        tokio::time::sleep(IDLE_SWEEP_INTERVAL).await;
        let Some(pool) = pool.upgrade() else { return };
        let now = Instant::now();
        let mut idle = pool.idle[shard].lock();
        let all = std::mem::take(&mut idle.connections);
        let (expired, kept): (VecDeque<_>, _) = all.into_iter().partition(|connection| connection.is_expired(now));
        idle.connections = kept;
        let is_empty = idle.connections.is_empty();
        if is_empty {
            idle.sweeper = None;
        }
        drop(idle);
        // Closed without the lock: their permits may go to requests that wait.
        drop(expired);
        if is_empty {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Mark;
    use bytes::Bytes;
    use http::Method as Verb;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;
    use tokio::sync::Notify;

    const CONNECT_TIMEOUT: Duration = Duration::from_secs(7);

    impl Pool {
        /// The idle list of the current worker.
        fn worker_shard(&self) -> MutexGuard<'_, IdleConnections> {
            self.idle[current_shard()].lock()
        }
    }

    /// After this time without a request the server closes a connection, as Node and uvicorn do.
    const SERVER_IDLE_TIMEOUT: Duration = Duration::from_secs(5);

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
            (server, Pool::for_origin(&url.parse().unwrap()))
        }

        /// Like [`Self::start`], with a pool of its own limits.
        async fn start_limited(max_connections: usize, max_waiting: usize) -> (Arc<Self>, Arc<Pool>) {
            let (server, pool) = Self::start().await;
            let limit = ConnectionLimit::new(max_connections, max_waiting);
            (server, Arc::new(Pool::new(pool.origin.clone(), limit)))
        }

        fn opened(&self) -> usize {
            self.opened.load(Ordering::Relaxed)
        }

        async fn serve(&self, stream: tokio::net::TcpStream) {
            let mut stream = BufReader::new(stream);
            loop {
                let (mut path, mut header) = (String::new(), String::new());
                while header.trim() != "" || path.is_empty() {
                    header.clear();
                    let read = tokio::time::timeout(SERVER_IDLE_TIMEOUT, stream.read_line(&mut header)).await;
                    if !matches!(read, Ok(Ok(1..))) {
                        return;
                    }
                    if path.is_empty() {
                        path = header.split(' ').nth(1).unwrap().to_owned();
                    }
                }
                let response = match path.as_str() {
                    "/silent" => "",
                    "/endless" => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
                    "/keep-alive-3" => "HTTP/1.1 200 OK\r\nkeep-alive: timeout=3\r\ncontent-length: 2\r\n\r\nok",
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

    fn get_request(path: &str) -> EncodedRequest {
        let head = format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n").into_bytes();
        let (when_full, mark) = (WhenFull::Wait, Mark::NONE);
        EncodedRequest { verb: Verb::GET, head, body: Bytes::new(), in_flight: None, when_full, mark }
    }

    async fn get(pool: &Arc<Pool>, path: &str) -> HttpResponse {
        pool.send(&get_request(path), CONNECT_TIMEOUT).await.unwrap()
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
        assert_eq!(server.opened(), 2, "two requests at once need two connections");
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
            idle.connections.front_mut().is_none_or(|connection| !connection.is_open())
        };
        while !close_is_visible(&pool) {
            tokio::task::yield_now().await;
        }
        assert_eq!(read(get(&pool, "/").await).await, "Accepted");
        assert_eq!(server.opened(), 2);
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

    /// Lets `time` pass without waiting for it.
    async fn advance(time: Duration) {
        tokio::time::pause();
        tokio::time::advance(time).await;
        tokio::time::resume();
    }

    #[tokio::test]
    async fn connection_is_reused_within_the_keep_alive_timeout_only() {
        let (server, pool) = TestServer::start().await;
        // Far from the limits of 4 s and 2 s, since real time passes as well.
        for (path, idle_ms, opened) in [
            ("/", 0, 1),
            ("/", 2_000, 1),
            ("/", 4_000, 2),
            ("/keep-alive-3", 0, 2),
            ("/keep-alive-3", 500, 2),
            ("/", 2_000, 3),
            ("/", 2_000, 3),
        ] {
            advance(Duration::from_millis(idle_ms)).await;
            read(get(&pool, path).await).await;
            assert_eq!(server.opened(), opened, "{path} after {idle_ms} ms");
        }
    }

    /// Otherwise the request and the close cross, and nobody knows whether the request was processed.
    #[tokio::test]
    async fn no_request_meets_the_close_of_an_idle_connection() {
        let (server, pool) = TestServer::start().await;
        for step in 0..40 {
            let sent = pool.send(&get_request("/"), CONNECT_TIMEOUT).await;
            read(sent.unwrap_or_else(|error| panic!("step {step}: {error:?}"))).await;
            advance(SERVER_IDLE_TIMEOUT - Duration::from_millis(200) + Duration::from_millis(10) * step).await;
        }
        assert_eq!(server.opened(), 40);
    }

    #[tokio::test]
    async fn connections_that_stay_idle_are_closed() {
        let (server, pool) = TestServer::start().await;
        read(get(&pool, "/keep-alive-3").await).await;
        // Two seconds of the keep-alive timeout and two sweeps.
        tokio::time::pause();
        let idle_since = Instant::now();
        server.wait_for_closed(1).await;
        assert!(idle_since.elapsed() < SERVER_IDLE_TIMEOUT, "closed by the pool, not by the server");
        assert!(pool.worker_shard().connections.is_empty());
    }

    #[tokio::test]
    async fn request_beyond_the_connection_limit_fails_before_it_is_sent() {
        let (server, pool) = TestServer::start_limited(2, 1).await;
        let streams = [get(&pool, "/endless").await, get(&pool, "/endless").await];
        let request = get_request("/");
        let timeout = Duration::from_millis(50);
        let error = pool.send(&request, timeout).await.unwrap_err();
        let expected = ConnectionShortage::TimedOut(timeout);
        assert!(matches!(error, PoolError::LimitReached(2, shortage) if shortage == expected), "{error:?}");
        // The place of the request that timed out is free again; the one after it finds the queue full.
        let mut waiting = std::pin::pin!(pool.send(&request, CONNECT_TIMEOUT));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        let error = pool.send(&request, CONNECT_TIMEOUT).await.unwrap_err();
        let expected = ConnectionShortage::QueueFull(1);
        assert!(matches!(error, PoolError::LimitReached(2, shortage) if shortage == expected), "{error:?}");
        assert_eq!(server.opened(), 2);
        // A closed connection makes room for the one that waits.
        drop(streams);
        assert_eq!(read(waiting.await.unwrap()).await, "Accepted");
        assert_eq!(server.opened(), 3);
    }

    #[tokio::test]
    async fn returned_connection_goes_to_the_first_request_that_waits() {
        let (server, pool) = TestServer::start_limited(1, 10).await;
        let held = get(&pool, "/").await;
        let requests = [get_request("/"), get_request("/chunked")];
        let mut first = Box::pin(pool.send(&requests[0], CONNECT_TIMEOUT));
        let mut second = Box::pin(pool.send(&requests[1], CONNECT_TIMEOUT));
        assert!(futures_util::poll!(&mut first).is_pending());
        assert!(futures_util::poll!(&mut second).is_pending());
        read(held).await;
        assert!(futures_util::poll!(&mut second).is_pending(), "the second waits for the first");
        assert_eq!(read(first.await.unwrap()).await, "Accepted");
        assert_eq!(read(second.await.unwrap()).await, "ab");
        assert_eq!(server.opened(), 1);
        assert_eq!(pool.worker_shard().connections.len(), 1, "nobody waits any more");
    }

    #[tokio::test]
    async fn at_the_limit_idle_connections_of_other_workers_are_used() {
        let (server, pool) = TestServer::start_limited(1, 10).await;
        read(get(&pool, "/").await).await;
        let mut connection = pool.worker_shard().connections.pop_back().unwrap();
        connection.pool_shard = current_shard() + 1;
        pool.release(connection);
        assert_eq!(read(get(&pool, "/").await).await, "Accepted");
        assert_eq!(server.opened(), 1);
    }

    /// Neither may be kept from being sent by calls that wait for it, and neither takes connections from calls.
    #[tokio::test]
    async fn listening_streams_and_messages_that_exceed_the_limit_do_not_count() {
        let (server, pool) = TestServer::start_limited(1, 10).await;
        let mut listening = get(&pool, "/endless").await;
        listening.body.release_permit();
        let call = get(&pool, "/endless").await;
        let exceeding = EncodedRequest { when_full: WhenFull::Exceed, ..get_request("/") };
        read(pool.send(&exceeding, CONNECT_TIMEOUT).await.unwrap()).await;
        assert_eq!(server.opened(), 3);
        server.wait_for_closed(1).await;
        assert!(pool.worker_shard().connections.is_empty(), "what does not count is not reused");
        drop((listening, call));
    }

    /// More than the buffers of both sockets hold where that of the receiver is small.
    static LONG_BODY: [u8; 12 << 20] = [b'x'; 12 << 20];

    fn post_request(body: &'static [u8]) -> EncodedRequest {
        let head = format!("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
        let body = Bytes::from_static(body);
        EncodedRequest { verb: Verb::POST, head, body, in_flight: None, when_full: WhenFull::Wait, mark: Mark::NONE }
    }

    async fn read_request_head(stream: &mut BufReader<tokio::net::TcpStream>) {
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(stream.read_line(&mut line).await.unwrap() > 0);
        }
    }

    async fn read_long_body(stream: &mut BufReader<tokio::net::TcpStream>) {
        let mut body = vec![0; LONG_BODY.len()];
        stream.read_exact(&mut body).await.unwrap();
        assert!(body == LONG_BODY);
    }

    /// A server on one connection that answers the head of a request before it reads the body: with the whole response
    /// the first time, with half of it the second time. Then it answers a short request. It reads no body before the
    /// client has seen the head of the response.
    async fn serve_early_responses(listener: TcpListener, head_received: Arc<Notify>) {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        read_request_head(&mut stream).await;
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nearly").await.unwrap();
        head_received.notified().await;
        read_long_body(&mut stream).await;
        read_request_head(&mut stream).await;
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf").await.unwrap();
        head_received.notified().await;
        read_long_body(&mut stream).await;
        stream.get_mut().write_all(b"half").await.unwrap();
        read_request_head(&mut stream).await;
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlast").await.unwrap();
    }

    #[tokio::test]
    async fn request_is_sent_to_its_end_after_an_early_response() {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // A fixed size keeps the system from enlarging the buffer.
        socket.set_recv_buffer_size(64 << 10).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(8).unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let head_received = Arc::new(Notify::new());
        let serving = tokio::spawn(serve_early_responses(listener, Arc::clone(&head_received)));
        // One connection for all, so each request waits until the one before it was sent to its end.
        let pool = Arc::new(Pool::new(url.parse().unwrap(), ConnectionLimit::new(1, 1)));
        for (request, expected) in
            [(post_request(&LONG_BODY), "early"), (post_request(&LONG_BODY), "halfhalf"), (post_request(b""), "last")]
        {
            let response = pool.send(&request, Duration::from_secs(30)).await.unwrap();
            head_received.notify_one();
            let body = tokio::time::timeout(Duration::from_secs(30), read(response)).await;
            assert_eq!(body.expect("the request is sent while the response is read"), expected);
        }
        serving.await.unwrap();
    }
}
