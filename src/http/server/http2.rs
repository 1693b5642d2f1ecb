//! HTTP/2 server side of a client connection, by hyper.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;

use super::wake_gated::WakeGated;
use super::{HttpService, ReceivedBody, RequestBodyError, ServerSettings, WRITE_STALL_TIMEOUT};

/// Interval of HTTP/2 keep-alive pings, and timeout for their acknowledgement.
const H2_KEEPALIVE: Duration = Duration::from_secs(20);
/// How long an HTTP/2 connection may take to close after GOAWAY.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a connection until it closes.
pub(super) async fn serve<S: HttpService>(service: S, stream: TcpStream) -> hyper::Result<()> {
    let max_head_bytes = u32::try_from(service.settings().head.max_bytes).unwrap_or(u32::MAX);
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(max_head_bytes)
        .keep_alive_interval(H2_KEEPALIVE)
        .keep_alive_timeout(H2_KEEPALIVE);
    let request_service = service.clone();
    let respond = service_fn(move |request| {
        let service = request_service.clone();
        async move { Ok::<_, Infallible>(respond(&service, request).await) }
    });
    let connection = builder.serve_connection(with_write_timeout(stream), respond);
    tokio::pin!(connection);
    tokio::select! {
        biased; // requests that already arrived are answered before GOAWAY
        ended = connection.as_mut() => ended,
        () = WakeGated::new(service.draining()) => {
            connection.as_mut().graceful_shutdown();
            let closed = async {
                service.closing().await;
                tokio::time::sleep(GRACEFUL_CLOSE_TIMEOUT).await;
            };
            tokio::select! {
                ended = connection => ended,
                () = closed => Ok(()),
            }
        }
    }
}

async fn respond<S: HttpService>(service: &S, request: Request<Incoming>) -> Response<S::ResponseBody> {
    let (mut parts, body) = request.into_parts();
    let admission = service.admit(&mut parts);
    let body = match S::wants_body(&admission) {
        true => read_body(body, &service.settings()).await,
        false => Ok(Bytes::new()),
    };
    service.respond(admission, body).await
}

async fn read_body(body: Incoming, settings: &ServerSettings) -> ReceivedBody {
    if body.size_hint().lower() > settings.max_body_bytes as u64 {
        return Err(RequestBodyError::TooLarge);
    }
    let collected = Limited::new(body, settings.max_body_bytes).collect();
    match tokio::time::timeout(settings.body_timeout, collected).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(RequestBodyError::TooLarge),
        Ok(Err(_)) => Err(RequestBodyError::Incomplete),
        Err(_) => Err(RequestBodyError::TimedOut),
    }
}

/// Fails writes that the client does not accept within [`WRITE_STALL_TIMEOUT`].
fn with_write_timeout(stream: TcpStream) -> TokioIo<Pin<Box<TimeoutStream<TcpStream>>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_STALL_TIMEOUT));
    TokioIo::new(Box::pin(stream))
}
