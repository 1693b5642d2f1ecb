//! One connection of a client: which HTTP it speaks, and how patient we are with it.

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

/// What a connection that speaks HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long a client may take to read anything of what we have for it.
pub(super) const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a quiet HTTP/2 connection is asked whether it is there, and how long it may take to say so.
const H2_KEEPALIVE: Duration = Duration::from_secs(20);
/// How long an HTTP/2 connection may take to agree that it is over.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a connection until it ends.
pub(super) async fn serve(inbound: Arc<Inbound>, side: ListenerRole, stream: TcpStream, peer: SocketAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "small writes to a connection may be delayed");
    }
    let patience = inbound.settings.body_timeout;
    let begun = tokio::select! {
        biased; // what has arrived is looked at
        begun = tokio::time::timeout(patience, is_http2(&stream)) => begun,
        () = silence(&inbound) => return,
    };
    let ended = match begun {
        Err(_) => return, // it says nothing
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(true)) => serve_http2(&inbound, side, stream, peer).await.map_err(|error| error.to_string()),
        Ok(Ok(false)) => {
            let served = http1::serve(&inbound, side, stream, peer, going(&inbound, side)).await;
            served.map_err(|error| error.to_string())
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection broke");
    }
}

/// Ends when a client that has said nothing yet is not waited for. One that came last is about to speak.
async fn silence(inbound: &Inbound) {
    inbound.shutdown.closing().cancelled().await;
    tokio::time::sleep(super::ACCEPT_DRAIN_TIME).await;
}

/// Looks at the first bytes without taking them.
async fn is_http2(stream: &TcpStream) -> std::io::Result<bool> {
    let mut first = [0; PREFACE.len()];
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == 0 || first[..seen] != PREFACE[..seen] {
            return Ok(false);
        }
        if seen == PREFACE.len() {
            return Ok(true);
        }
        if stream.ready(Interest::READABLE).await?.is_read_closed() {
            return Ok(false); // no more will come
        }
        // Part of it is there, and looking again would not wait for the rest.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The stream of a client that has to read now and then.
fn watched(stream: TcpStream) -> TokioIo<Pin<Box<TimeoutStream<TcpStream>>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_STALL_TIMEOUT));
    TokioIo::new(Box::pin(stream))
}

/// Ends when a connection has no more to bring.
async fn going(inbound: &Inbound, side: ListenerRole) {
    tokio::select! {
        () = inbound.shutdown.closing().cancelled() => {}
        () = inbound.shutdown.leaving().cancelled(), if side != ListenerRole::Operators => {}
    }
}

async fn serve_http2(
    inbound: &Arc<Inbound>,
    side: ListenerRole,
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
    let own = Arc::clone(&inbound);
    let service = service_fn(move |request| {
        let inbound = Arc::clone(&own);
        async move { Ok::<_, Infallible>(inbound.serve(request, side, peer).await) }
    });
    let connection = builder.serve_connection(watched(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        biased; // what has arrived is read, or it would not be answered
        ended = connection.as_mut() => ended,
        () = WakeGated::new(going(&inbound, side)) => {
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
