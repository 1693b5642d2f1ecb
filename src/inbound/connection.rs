//! One client connection: detects HTTP/1.1 or HTTP/2 and applies the connection timeouts.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;

use super::wake_gated::WakeGated;
use super::{Inbound, ListenerRole, http1};

/// Client connection preface of HTTP/2 (RFC 9113, 3.4).
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A client that accepts no byte for this long is disconnected.
pub(super) const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of HTTP/2 keep-alive pings, and timeout for their acknowledgement.
const H2_KEEPALIVE: Duration = Duration::from_secs(20);
/// How long an HTTP/2 connection may take to close after GOAWAY.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a connection until it closes.
pub(super) async fn serve(inbound: Arc<Inbound>, role: ListenerRole, stream: TcpStream, peer: SocketAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "setting TCP_NODELAY failed");
    }
    let timeout = inbound.settings.body_timeout;
    let detected = tokio::select! {
        biased; // bytes that already arrived win over a shutdown
        detected = tokio::time::timeout(timeout, is_http2(&stream)) => detected,
        () = preface_wait_over(&inbound) => return,
    };
    let ended = match detected {
        Err(_) => return, // timed out before the first byte
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(true)) => serve_http2(&inbound, role, stream, peer).await.map_err(|error| error.to_string()),
        Ok(Ok(false)) => {
            let served = http1::serve(&inbound, role, stream, peer, stop_signal(&inbound, role)).await;
            served.map_err(|error| error.to_string())
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "client connection failed");
    }
}

/// Completes when a shutdown stops waiting for the first bytes of a connection. Connections accepted last get
/// [`ACCEPT_DRAIN_TIME`](super::ACCEPT_DRAIN_TIME) to send a request.
async fn preface_wait_over(inbound: &Inbound) {
    inbound.shutdown.closing().cancelled().await;
    tokio::time::sleep(super::ACCEPT_DRAIN_TIME).await;
}

/// Whether the client begins with the HTTP/2 preface. Peeks, so the bytes stay in the socket buffer.
async fn is_http2(stream: &TcpStream) -> std::io::Result<bool> {
    let mut first = [0; H2_PREFACE.len()];
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == 0 || first[..seen] != H2_PREFACE[..seen] {
            return Ok(false);
        }
        if seen == H2_PREFACE.len() {
            return Ok(true);
        }
        if stream.ready(Interest::READABLE).await?.is_read_closed() {
            return Ok(false); // the client closed its side within the preface
        }
        // Part of the preface is there: the socket stays readable, so waiting for readiness would spin.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Fails writes that the client does not accept within [`WRITE_STALL_TIMEOUT`].
fn with_write_timeout(stream: TcpStream) -> TokioIo<Pin<Box<TimeoutStream<TcpStream>>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_STALL_TIMEOUT));
    TokioIo::new(Box::pin(stream))
}

/// Completes when the connection must take no further requests.
async fn stop_signal(inbound: &Inbound, role: ListenerRole) {
    tokio::select! {
        () = inbound.shutdown.closing().cancelled() => {}
        () = inbound.shutdown.leaving().cancelled(), if role != ListenerRole::Operators => {}
    }
}

async fn serve_http2(
    inbound: &Arc<Inbound>,
    role: ListenerRole,
    stream: TcpStream,
    peer: SocketAddr,
) -> hyper::Result<()> {
    let header_bytes = u32::try_from(inbound.settings.limits.header_bytes).unwrap_or(u32::MAX);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(header_bytes)
        .keep_alive_interval(H2_KEEPALIVE)
        .keep_alive_timeout(H2_KEEPALIVE);
    let inbound = Arc::clone(inbound);
    let service_inbound = Arc::clone(&inbound);
    let service = service_fn(move |request| {
        let inbound = Arc::clone(&service_inbound);
        async move { Ok::<_, Infallible>(inbound.serve(request, role, peer).await) }
    });
    let connection = builder.serve_connection(with_write_timeout(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        biased; // requests that already arrived are answered before GOAWAY
        ended = connection.as_mut() => ended,
        () = WakeGated::new(stop_signal(&inbound, role)) => {
            connection.as_mut().graceful_shutdown();
            let closed = async {
                inbound.shutdown.closing().cancelled().await;
                tokio::time::sleep(GRACEFUL_CLOSE_TIMEOUT).await;
            };
            tokio::select! {
                ended = connection => ended,
                () = closed => Ok(()),
            }
        }
    }
}
