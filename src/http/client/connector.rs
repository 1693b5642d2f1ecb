//! Opens TCP and TLS connections.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::builderstates::WantsSchemes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiAddrs, GaiFuture, GaiResolver, Name};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tower_service::Service;

use super::error::HttpErrorKind;

type TcpConnector = HttpConnector<SystemResolver>;
pub(super) type HttpsConnect = HttpsConnector<TcpConnector>;
pub(super) type BoxError = Box<dyn StdError + Send + Sync>;

/// The resolver of the system, whose errors can be told from those of connections.
#[derive(Debug, Clone)]
pub(super) struct SystemResolver(GaiResolver);

/// The lookup of one name.
pub(super) struct NameLookup(GaiFuture);

/// A name has no address.
#[derive(Debug)]
pub(super) struct NameError(io::Error);

/// Idle time of a connection before the first TCP keep-alive probe.
const TCP_KEEPALIVE_TIME: Duration = Duration::from_secs(15);
/// Interval between unanswered TCP keep-alive probes.
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered TCP keep-alive probes after which a connection is broken.
const TCP_KEEPALIVE_PROBES: u32 = 3;
/// How long sent data may stay unacknowledged before a connection is broken; as long as all keep-alive probes take.
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens a connection to `origin` before `deadline`, which covers name resolution, TCP and the TLS handshake.
/// `connect_timeout` is the whole time that was given, divided among the addresses of a name.
pub(super) async fn connect(
    origin: &Uri,
    connect_timeout: Duration,
    deadline: Instant,
) -> Result<MaybeHttpsStream<TokioIo<TcpStream>>, BoxError> {
    let mut connector = connector(connect_timeout);
    let connecting = async {
        poll_fn(|context| connector.poll_ready(context)).await?;
        connector.call(origin.clone()).await
    };
    timeout_at(deadline, connecting).await.unwrap_or_else(|_| {
        let why = format!("no connection was established within {connect_timeout:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
    })
}

/// The step at which a connection failed, and the root cause.
pub(super) fn why_unconnected<'e>(
    error: &'e (dyn StdError + 'static),
) -> (HttpErrorKind, &'e (dyn StdError + 'static)) {
    let (mut cause, mut is_name) = (error, error.is::<NameError>());
    while let Some(inner) = cause.source() {
        cause = inner;
        is_name |= cause.is::<NameError>();
    }
    // The connector reports its own timeout and that of the system as the same kind of I/O error.
    let io_kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
    let kind = match io_kind {
        _ if is_name => HttpErrorKind::NameNotResolved,
        Some(io::ErrorKind::TimedOut) => HttpErrorKind::ConnectTimeout,
        // The connector wraps errors of TCP in a type of its own, and those of TLS in none.
        _ if error.is::<io::Error>() => HttpErrorKind::TlsFailed,
        _ => HttpErrorKind::Unreachable,
    };
    (kind, cause)
}

impl Service<Name> for SystemResolver {
    type Response = GaiAddrs;
    type Error = NameError;
    type Future = NameLookup;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), NameError>> {
        self.0.poll_ready(context).map_err(NameError)
    }

    fn call(&mut self, name: Name) -> NameLookup {
        NameLookup(self.0.call(name))
    }
}

impl Future for NameLookup {
    type Output = Result<GaiAddrs, NameError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(NameError)
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("name lookup failed")
    }
}

impl StdError for NameError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

/// The connector for a connect timeout. Loading the system's trust roots is slow, so each is built once.
fn connector(connect_timeout: Duration) -> HttpsConnect {
    static CONNECTORS: Mutex<BTreeMap<Duration, HttpsConnect>> = Mutex::new(BTreeMap::new());
    let mut connectors = CONNECTORS.lock();
    connectors.entry(connect_timeout).or_insert_with(|| new_connector(connect_timeout)).clone()
}

/// A connector for HTTP/2 alone.
pub(super) fn http2_connector(connect_timeout: Duration) -> HttpsConnect {
    tls_builder().https_or_http().enable_http2().wrap_connector(tcp_connector(connect_timeout))
}

fn new_connector(connect_timeout: Duration) -> HttpsConnect {
    tls_builder().https_or_http().enable_http1().wrap_connector(tcp_connector(connect_timeout))
}

fn tcp_connector(connect_timeout: Duration) -> TcpConnector {
    let mut tcp = HttpConnector::new_with_resolver(SystemResolver(GaiResolver::new()));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(connect_timeout));
    // A peer that vanished without a word would otherwise hold a call or a listening stream for hours.
    tcp.set_keepalive(Some(TCP_KEEPALIVE_TIME));
    tcp.set_keepalive_interval(Some(TCP_KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(TCP_KEEPALIVE_PROBES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT));
    tcp
}

fn tls_builder() -> HttpsConnectorBuilder<WantsSchemes> {
    HttpsConnectorBuilder::new().with_native_roots().unwrap_or_else(|error| {
        // Without roots plain HTTP still works, and TLS handshakes fail with an untrusted issuer.
        tracing::warn!(%error, "loading system TLS roots failed; no HTTPS server will be trusted");
        HttpsConnectorBuilder::new().with_tls_config(tls_without_roots())
    })
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
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    async fn listener(scheme: &str) -> (TcpListener, Uri) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("{scheme}://{}/", listener.local_addr().unwrap()).parse().unwrap();
        (listener, origin)
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn connections_probe_their_peer() {
        use rustix::net::sockopt;
        let (_listener, origin) = listener("http").await;
        let timeout = Duration::from_secs(5);
        let stream = connect(&origin, timeout, Instant::now() + timeout).await.unwrap();
        let MaybeHttpsStream::Http(stream) = stream else { panic!("the URL has no TLS") };
        let socket = stream.inner();
        assert!(sockopt::socket_keepalive(socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), Duration::from_secs(15));
        assert_eq!(sockopt::tcp_keepintvl(socket).unwrap(), Duration::from_secs(5));
        assert_eq!(sockopt::tcp_keepcnt(socket).unwrap(), 3);
        assert_eq!(sockopt::tcp_user_timeout(socket).unwrap(), 30_000, "milliseconds");
        assert!(socket.nodelay().unwrap());
    }

    #[tokio::test]
    async fn the_step_that_failed_is_known() {
        let (tls, plain) = (listener("https").await, listener("https").await.1);
        let silent = tokio::spawn(async move {
            while let Ok((stream, _)) = tls.0.accept().await {
                drop(stream);
            }
        });
        let nowhere: Uri = "http://no-such-host.invalid/".parse().unwrap();
        for (origin, kind) in [
            (nowhere, HttpErrorKind::NameNotResolved),
            (plain, HttpErrorKind::Unreachable),
            (tls.1, HttpErrorKind::TlsFailed),
        ] {
            let timeout = Duration::from_secs(20);
            let error = connect(&origin, timeout, Instant::now() + timeout).await.err().unwrap();
            assert_eq!(why_unconnected(&*error).0, kind, "{origin}: {error:?}");
        }
        silent.abort();
    }

    #[tokio::test]
    async fn connect_timeout_covers_the_tls_handshake() {
        let (listener, origin) = listener("https").await;
        let silent = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The client hello arrives, no server hello is sent, and the client gives up.
            let mut hello = Vec::new();
            let _ = stream.read_to_end(&mut hello).await;
            hello.len()
        });
        let timeout = Duration::from_millis(200);
        let connecting = connect(&origin, timeout, Instant::now() + timeout);
        let error = tokio::time::timeout(Duration::from_secs(20), connecting).await.expect("bounded").err().unwrap();
        assert_eq!(error.to_string(), "no connection was established within 200ms");
        assert!(silent.await.unwrap() > 0, "TCP was connected and TLS begun");
    }
}
