//! Connections served by hyper: HTTP/2, and HTTP/1.1 where the settings say so.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_io_timeout::TimeoutStream;

use super::super::codec::RequestHead;
use super::wake_gated::WakeGated;
use super::{HttpService, ReceivedBody, RequestBodyError, ServerSettings};

/// Interval of HTTP/2 keep-alive pings, and timeout for their acknowledgement.
const H2_KEEPALIVE: Duration = Duration::from_secs(20);
/// How long a connection may take to close after GOAWAY, or after its last response.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Counts the requests of a connection whose responses are not complete.
#[derive(Debug, Default)]
struct RequestCounter {
    open: AtomicUsize,
    /// When the first byte of a request head arrived whose rest has not.
    head_began: Mutex<Option<Instant>>,
    /// Notified when a request head or a request begins, and when a request ends.
    changed: Notify,
}

/// Notes when the head of a request begins: hyper's own timeout cannot tell a slow head from an idle connection.
struct HeadWatch<T> {
    io: T,
    counter: Arc<RequestCounter>,
}

/// One request until its response is written or dropped.
#[derive(Debug)]
struct OpenRequest(Arc<RequestCounter>);

/// A response body that keeps its request open.
#[derive(Debug)]
struct TrackedBody<B> {
    body: B,
    _request: OpenRequest,
}

/// Serves an HTTP/2 connection until it closes.
pub(super) async fn serve_http2<S, I>(service: S, stream: I) -> hyper::Result<()>
where
    S: HttpService,
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let settings = service.settings();
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(settings.head.max_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(H2_KEEPALIVE)
        .keep_alive_timeout(H2_KEEPALIVE);
    let counter = Arc::new(RequestCounter::default());
    let (requests, request_service) = (Arc::clone(&counter), service.clone());
    let respond = service_fn(move |request| respond(request_service.clone(), OpenRequest::new(&requests), request));
    let connection =
        builder.serve_connection(TokioIo::new(with_write_timeout(stream, settings.write_stall_timeout)), respond);
    run(service, connection, &counter, settings.keep_alive_timeout).await
}

/// Serves an HTTP/1.1 connection until it closes.
pub(super) async fn serve_http1<S, I>(service: S, stream: I) -> hyper::Result<()>
where
    S: HttpService,
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let settings = service.settings();
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Bounds only what `HeadWatch` does not see: a head that began while the previous request was served.
        .header_read_timeout(settings.header_timeout.max(settings.keep_alive_timeout))
        .max_headers(settings.head.max_headers)
        .max_buf_size(settings.head.max_bytes);
    let counter = Arc::new(RequestCounter::default());
    let (requests, request_service) = (Arc::clone(&counter), service.clone());
    let respond = service_fn(move |request| respond(request_service.clone(), OpenRequest::new(&requests), request));
    let stream = with_write_timeout(stream, settings.write_stall_timeout);
    let io = TokioIo::new(HeadWatch { io: stream, counter: Arc::clone(&counter) });
    let connection = builder.serve_connection(io, respond);
    tokio::select! {
        ended = run(service, connection, &counter, settings.keep_alive_timeout) => ended,
        () = counter.slow_head(settings.header_timeout) => Ok(()),
    }
}

/// Runs a connection until it closes, is idle for too long, or the server stops.
async fn run<S: HttpService>(
    service: S,
    connection: impl GracefulConnection<Error = hyper::Error>,
    counter: &RequestCounter,
    keep_alive_timeout: Duration,
) -> hyper::Result<()> {
    tokio::pin!(connection);
    tokio::select! {
        biased; // requests that already arrived are answered before the connection is closed
        ended = connection.as_mut() => return ended,
        () = WakeGated::new(service.draining()) => {}
        () = counter.idle_for(keep_alive_timeout) => {}
    }
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

async fn respond<S: HttpService>(
    service: S,
    open: OpenRequest,
    request: Request<Incoming>,
) -> Result<Response<TrackedBody<S::ResponseBody>>, Infallible> {
    let (parts, body) = request.into_parts();
    let is_http1 = parts.version < Version::HTTP_2;
    let head = match RequestHead::try_from(parts) {
        Ok(head) => head,
        Err(error) => {
            let mut response = service.reject_head(error);
            service.decorate(response.headers_mut());
            if is_http1 {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            return Ok(response.map(|body| TrackedBody { body, _request: open }));
        }
    };
    let mut admission = service.admit(&head);
    if S::is_undecided(&admission) {
        admission = Box::pin(service.complete(admission)).await;
    }
    let body = match S::wants_body(&admission) {
        true => read_body(body, &service.settings()).await,
        false => Ok(Bytes::new()),
    };
    let mut response = service.respond(admission, body).await;
    service.decorate(response.headers_mut());
    Ok(response.map(|body| TrackedBody { body, _request: open }))
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

/// Fails writes that the client does not accept within `timeout`.
fn with_write_timeout<I: AsyncRead + AsyncWrite>(stream: I, timeout: Duration) -> Pin<Box<TimeoutStream<I>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(timeout));
    Box::pin(stream)
}

// === impl RequestCounter ===

impl RequestCounter {
    /// Completes when the head of a request takes longer than `timeout`.
    async fn slow_head(&self, timeout: Duration) {
        loop {
            let changed = self.changed.notified();
            let began = *self.head_began.lock();
            match began {
                None => changed.await,
                Some(began) => {
                    let in_time = tokio::time::timeout_at(began + timeout, changed).await.is_ok();
                    if !in_time && *self.head_began.lock() == Some(began) {
                        return;
                    }
                }
            }
        }
    }

    /// Notes that bytes arrived: the head of a request, unless one is being served.
    fn bytes_arrived(&self) {
        if self.open.load(Ordering::Acquire) == 0 {
            let mut head_began = self.head_began.lock();
            if head_began.is_none() {
                *head_began = Some(Instant::now());
                self.changed.notify_waiters();
            }
        }
    }

    /// Completes when no request has been open for `timeout`.
    async fn idle_for(&self, timeout: Duration) {
        loop {
            let changed = self.changed.notified();
            if self.open.load(Ordering::Acquire) > 0 {
                changed.await;
            } else if tokio::time::timeout(timeout, changed).await.is_err() {
                return;
            }
        }
    }
}

impl OpenRequest {
    fn new(counter: &Arc<RequestCounter>) -> Self {
        counter.open.fetch_add(1, Ordering::AcqRel);
        *counter.head_began.lock() = None;
        counter.changed.notify_waiters();
        Self(Arc::clone(counter))
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_waiters();
    }
}

// === impl HeadWatch ===

impl<T: AsyncRead + Unpin> AsyncRead for HeadWatch<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.counter.bytes_arrived();
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for HeadWatch<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }
}

// === impl TrackedBody ===

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
