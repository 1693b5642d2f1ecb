//! Connections to one origin over HTTP/1.1. One that has brought a whole answer is kept for the next
//! request, for a while.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tower_service::Service;

type Connector = HttpsConnector<HttpConnector>;
type Sender = SendRequest<Full<Bytes>>;
type BoxError = Box<dyn StdError + Send + Sync>;

/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(60);

/// The connections to one origin. Everybody who goes there with the same patience shares them, so that
/// many sessions with one server use few connections.
pub(super) struct Pool {
    connector: Connector,
    /// Scheme and authority.
    origin: Uri,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    /// The unused ones, the latest at the end, and since when they are.
    all: VecDeque<(Sender, Instant)>,
    /// Who lets those go that were unused for too long.
    sweeper: Option<AbortHandle>,
}

/// Why no answer came.
#[derive(Debug)]
pub(super) enum Failed {
    /// There is no connection.
    Unreachable(BoxError),
    /// The connection broke.
    Broken(hyper::Error),
}

/// The body of a response. Read to its end, or dropped when the rest has come, it gives its connection back.
#[derive(Debug)]
pub(super) struct Reading {
    body: Incoming,
    connection: Option<(Sender, Arc<Pool>)>,
}

// === impl Pool ===

impl Pool {
    /// The connections to the origin of an address, for those who give connecting so much time.
    pub(super) fn of(url: &Uri, connect: Duration) -> Arc<Self> {
        static ALL: Mutex<Option<HashMap<(Uri, Duration), Weak<Pool>>>> = Mutex::new(None);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        let origin = origin(url);
        if let Some(pool) = all.get(&(origin.clone(), connect)).and_then(Weak::upgrade) {
            return pool;
        }
        all.retain(|_, pool| pool.strong_count() > 0);
        let pool = Arc::new(Self { connector: connector(connect), origin: origin.clone(), idle: Mutex::default() });
        all.insert((origin, connect), Arc::downgrade(&pool));
        pool
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request, whose address is a path and whose headers name the host. What a connection that
    /// was closed meanwhile has not taken is sent on another.
    pub(super) async fn send(self: &Arc<Self>, mut request: Request<Full<Bytes>>) -> Result<Response<Reading>, Failed> {
        loop {
            let (mut sender, used) = match self.unused().await {
                Some(sender) => (sender, true),
                None => (self.connect().await.map_err(Failed::Unreachable)?, false),
            };
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(response.map(|body| self.reading(body, sender))),
                Err(mut error) => match error.take_message().filter(|_| used) {
                    Some(unsent) => request = unsent,
                    None => return Err(Failed::Broken(error.into_error())),
                },
            }
        }
    }

    /// A connection that nobody uses.
    async fn unused(&self) -> Option<Sender> {
        loop {
            let (mut sender, _) = self.lock().all.pop_back()?;
            // The last answer has come, but whoever drives the connection may not have noticed yet.
            if !sender.is_closed() && sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    async fn connect(&self) -> Result<Sender, BoxError> {
        let mut connector = self.connector.clone();
        std::future::poll_fn(|context| connector.poll_ready(context)).await?;
        let stream = connector.call(self.origin.clone()).await?;
        let (sender, connection) = http1::handshake(stream).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a server broke");
            }
        });
        Ok(sender)
    }

    fn reading(self: &Arc<Self>, body: Incoming, sender: Sender) -> Reading {
        let mut reading = Reading { body, connection: Some((sender, Arc::clone(self))) };
        reading.give_back_at_end();
        reading
    }

    fn put(self: &Arc<Self>, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.lock();
        idle.all.push_back((sender, Instant::now()));
        if idle.sweeper.as_ref().is_none_or(AbortHandle::is_finished) {
            idle.sweeper = Some(tokio::spawn(sweep(Arc::downgrade(self))).abort_handle());
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("origin", &self.origin).field("idle", &self.lock().all.len()).finish()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(sweeper) = self.lock().sweeper.take() {
            sweeper.abort();
        }
    }
}

/// Lets connections go that were unused for too long, until there are none.
async fn sweep(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(IDLE / 2).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut idle = pool.lock();
        while idle.all.front().is_some_and(|(sender, since)| sender.is_closed() || since.elapsed() >= IDLE) {
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
fn connector(patience: Duration) -> Connector {
    static ALL: Mutex<BTreeMap<Duration, Connector>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.entry(patience).or_insert_with(|| new_connector(patience)).clone()
}

fn new_connector(patience: Duration) -> Connector {
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

// === impl Reading ===

impl Reading {
    fn give_back_at_end(&mut self) {
        if self.body.is_end_stream() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let Some((sender, pool)) = self.connection.take() {
            pool.put(sender);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // Whoever drives the connection drops the rest if that is there, and closes it otherwise.
        self.give_back();
    }
}

impl Body for Reading {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(_)) => self.give_back_at_end(),
            Some(Err(_)) => self.connection = None,
            None => self.give_back(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
