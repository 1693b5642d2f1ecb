//! One HTTP/1.1 client connection and the responses read from it.
//!
//! The task that waits for a response drives the connection itself: a request costs no wake-up of another task.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderName, Method as Verb};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::limit::{ConnectionPermit, WhenFull};
use super::pool::Pool;
use crate::http::codec::{BodyDecoder, HeadSearch, MAX_RESPONSE_HEAD_BYTES, ResponseHead};
use crate::http::read_buffer::{BodyError, ReadBuffer};
use crate::http::write::poll_write_both;
use crate::recorder::Mark;

/// How long a connection is reused after a response that names no `Keep-Alive` timeout: Node and uvicorn close after
/// 5 s, and a request that crosses with the close may or may not be carried out.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Bound of the `Keep-Alive` timeouts that are honoured.
const MAX_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A connection is reused until this long before the server's `Keep-Alive` timeout, or half of it if that is less.
const IDLE_TIMEOUT_MARGIN: Duration = Duration::from_secs(1);
/// How long the rest of a request may take once the response was read to its end.
const UNSENT_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// A request encoded for the wire.
#[derive(Debug)]
pub(crate) struct EncodedRequest {
    pub(crate) verb: Verb,
    /// The head, followed by the body where that is short enough to share one buffer.
    pub(crate) head: Vec<u8>,
    /// The body where it is too long to be copied behind the head.
    pub(crate) body: Bytes,
    /// Dropped when the response head has arrived.
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) when_full: WhenFull,
    /// The call that the request is a part of, for the recorder.
    pub(crate) mark: Mark,
}

/// Tracks a request until its response begins, so that its owner can wait for it or revoke it before it is sent.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    #[allow(dead_code, reason = "held to be dropped")]
    pub(crate) token: TaskTrackerToken,
    /// Set when the request must not be sent any more.
    pub(crate) revoked: Arc<AtomicBool>,
    /// How long to wait for the response to a request that was sent and whose caller has gone.
    pub(crate) abandoned_timeout: Duration,
}

/// An open connection, idle in a pool or in use by one request.
pub(crate) struct Http1Connection {
    stream: ByteStream,
    /// The pool shard of the worker whose runtime the socket is registered with.
    pub(crate) pool_shard: usize,
    read_buffer: ReadBuffer,
    /// The connection may carry another request.
    keep_alive: bool,
    /// A whole request was sent and its response head has not arrived.
    awaits_response: bool,
    /// Rest of a request whose response began before it was sent.
    unsent: Option<UnsentRequest>,
    /// The server may close the connection from here on. Counted from the head of the last response, because the server
    /// may have sent the end of the body long before it is read.
    idle_deadline: Instant,
    /// `None` where the connection does not count against the limit of its origin; it is not reused then.
    permit: Option<ConnectionPermit>,
}

/// A request of which a part is written.
#[derive(Debug)]
struct UnsentRequest {
    head: Bytes,
    body: Bytes,
    /// Bytes of head and body that are written.
    written: usize,
}

/// Stream of a connection. TLS, whose state is large, and streams in memory are boxed.
enum ByteStream {
    Plain(TcpStream),
    Boxed(Box<dyn DuplexIo>),
}

trait DuplexIo: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> DuplexIo for S {}

/// Why no response head arrived.
#[derive(Debug)]
pub(crate) struct SendError {
    /// No byte of the request was written, so it is safe to send it on another connection.
    pub(crate) not_sent: bool,
    pub(crate) error: io::Error,
}

/// A response head with its body, which is read on demand.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) head: ResponseHead,
    pub(crate) body: ResponseBody,
}

/// Body of a response. Returns its connection to the pool when it was read to the end, or when it is dropped and the
/// rest of it is already buffered.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    decoder: BodyDecoder,
    connection: Option<(Box<Http1Connection>, Arc<Pool>)>,
}

// === impl EncodedRequest ===

impl EncodedRequest {
    /// Whether the request must not be sent any more.
    pub(crate) fn is_revoked(&self) -> bool {
        self.in_flight.as_ref().is_some_and(InFlight::is_revoked)
    }
}

// === impl Http1Connection ===

impl Http1Connection {
    pub(super) fn new(
        stream: MaybeHttpsStream<TokioIo<TcpStream>>,
        pool_shard: usize,
        permit: Option<ConnectionPermit>,
    ) -> Self {
        let stream = match stream {
            MaybeHttpsStream::Http(plain) => ByteStream::Plain(plain.into_inner()),
            tls @ MaybeHttpsStream::Https(_) => ByteStream::Boxed(Box::new(TokioIo::new(tls))),
        };
        Self::over(stream, pool_shard, permit)
    }

    /// A connection over a stream in memory, for the current worker.
    pub(super) fn in_memory(stream: DuplexStream, permit: Option<ConnectionPermit>) -> Self {
        Self::over(ByteStream::Boxed(Box::new(stream)), super::pool::current_shard(), permit)
    }

    fn over(stream: ByteStream, pool_shard: usize, permit: Option<ConnectionPermit>) -> Self {
        Self {
            stream,
            pool_shard,
            read_buffer: ReadBuffer::default(),
            keep_alive: true,
            awaits_response: false,
            unsent: None,
            idle_deadline: Instant::now() + DEFAULT_IDLE_TIMEOUT,
            permit,
        }
    }

    /// Whether another request can be sent without the risk that the server closes the connection meanwhile.
    pub(crate) fn is_reusable(&mut self, now: Instant) -> bool {
        !self.is_expired(now) && self.is_open()
    }

    /// Whether the connection was idle for longer than the server may keep it open.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        now >= self.idle_deadline
    }

    /// Whether the connection can carry another request, as far as the socket shows. Unsolicited bytes make it unusable:
    /// they would be taken for the next response.
    pub(crate) fn is_open(&mut self) -> bool {
        let mut noop = Context::from_waker(Waker::noop());
        self.keep_alive
            && self.read_buffer.is_empty()
            && self.read_buffer.poll_read_more(&mut self.stream, &mut noop).is_pending()
    }

    /// Sends a request and waits for the head of its final response. Reads while it writes, because a server may respond
    /// before it has read the whole body; the rest is sent while the response is read.
    pub(crate) async fn send(&mut self, request: &EncodedRequest) -> Result<(ResponseHead, BodyDecoder), SendError> {
        let mut written = 0;
        let mut write_error = None;
        let mut head_search = HeadSearch::default();
        poll_fn(|context| {
            let mut write_done = write_error.is_some();
            while !write_done {
                match poll_send(&mut self.stream, context, &request.head, &request.body, written) {
                    Poll::Ready(Ok(0)) => {
                        write_done = true;
                        self.awaits_response = true;
                    }
                    Poll::Ready(Ok(count)) => written += count,
                    Poll::Ready(Err(error)) if written == 0 => {
                        return Poll::Ready(Err(SendError { not_sent: true, error }));
                    }
                    // The server may have sent a response before it closed its side for reading.
                    Poll::Ready(Err(error)) => {
                        write_error = Some(error);
                        write_done = true;
                    }
                    Poll::Pending => break,
                }
            }
            loop {
                match self.parse_head(&request.verb, &mut head_search) {
                    Ok(Some((head, _))) if head.is_interim() => {
                        head_search = HeadSearch::default();
                        continue;
                    }
                    Ok(Some(response)) => {
                        self.begin_response(&response.0);
                        match write_done {
                            true => self.keep_alive &= write_error.is_none(),
                            false => self.keep_unsent(&response.0, request, written),
                        }
                        return Poll::Ready(Ok(response));
                    }
                    Ok(None) => {}
                    Err(error) => return Poll::Ready(Err(SendError { not_sent: false, error })),
                }
                let error = match ready!(self.read_buffer.poll_read_more(&mut self.stream, context)) {
                    Ok(0) => write_error.take().unwrap_or_else(closed_before_response),
                    Ok(_) => continue,
                    Err(error) => error,
                };
                return Poll::Ready(Err(SendError { not_sent: false, error }));
            }
        })
        .await
    }

    /// Waits until the server sends the first byte of a response or closes the connection.
    async fn wait_for_response(&mut self) {
        let read = |context: &mut Context<'_>| self.read_buffer.poll_read_more(&mut self.stream, context);
        let _ = poll_fn(read).await;
    }

    fn begin_response(&mut self, head: &ResponseHead) {
        self.awaits_response = false;
        self.keep_alive = head.keep_alive();
        self.idle_deadline = Instant::now() + idle_timeout(head.get(&KEEP_ALIVE));
    }

    /// Keeps the rest of a request for [`Self::poll_send_rest`]. A server that refuses the request and closes the
    /// connection wants no more of it (RFC 9112, 9.5).
    fn keep_unsent(&mut self, head: &ResponseHead, request: &EncodedRequest, written: usize) {
        if self.keep_alive || head.status().is_success() {
            let rest_of_head = Bytes::copy_from_slice(&request.head[written.min(request.head.len())..]);
            let written_of_body = written.saturating_sub(request.head.len());
            self.unsent =
                Some(UnsentRequest { head: rest_of_head, body: request.body.slice(written_of_body..), written: 0 });
        }
    }

    /// Writes the rest of a request. An error ends only that: the response can be complete nevertheless.
    fn poll_send_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Some(UnsentRequest { head, body, written }) = &mut self.unsent {
            match ready!(poll_send(&mut self.stream, context, head, body, *written)) {
                Ok(0) => self.unsent = None,
                Ok(count) => *written += count,
                Err(_) => {
                    self.unsent = None;
                    self.keep_alive = false;
                }
            }
        }
        Poll::Ready(())
    }

    /// Sends the rest of a request whose response was read, and returns the connection to the pool. A server that closes
    /// the connection or sends more than its response ends it.
    async fn finish_request(mut self: Box<Self>, pool: Arc<Pool>) {
        let sent = poll_fn(|context| {
            if self.poll_send_rest(context).is_ready() {
                return Poll::Ready(self.keep_alive);
            }
            self.read_buffer.poll_read_more(&mut self.stream, context).map(|_| false)
        });
        if let Ok(true) = tokio::time::timeout(UNSENT_REQUEST_TIMEOUT, sent).await {
            pool.release(self);
        }
    }

    fn parse_head(
        &mut self,
        request_verb: &Verb,
        head_search: &mut HeadSearch,
    ) -> io::Result<Option<(ResponseHead, BodyDecoder)>> {
        let buffered = self.read_buffer.buffered();
        match head_search.should_parse(buffered, MAX_RESPONSE_HEAD_BYTES) {
            true => ResponseHead::parse(buffered, request_verb).map_err(io::Error::other),
            false => Ok(None),
        }
    }
}

/// A connection that waits for a response head. When it is dropped after the request was sent, a task keeps the
/// request in flight until the server responds or `abandoned_timeout` has passed; the connection is then closed.
pub(crate) struct PendingResponse {
    connection: Option<Box<Http1Connection>>,
    in_flight: Option<InFlight>,
}

impl PendingResponse {
    pub(crate) fn new(connection: Box<Http1Connection>, in_flight: Option<InFlight>) -> Self {
        Self { connection: Some(connection), in_flight }
    }

    /// Sends the request; on success returns the connection with the response head.
    pub(crate) async fn send(
        mut self,
        request: &EncodedRequest,
    ) -> Result<(ResponseHead, BodyDecoder, Box<Http1Connection>), SendError> {
        let connection = self.connection.as_mut().expect("the connection is only taken below");
        if request.is_revoked() {
            let error = io::Error::new(io::ErrorKind::ConnectionAborted, "the request was revoked before it was sent");
            return Err(SendError { not_sent: true, error });
        }
        let response = connection.send(request).await;
        let connection = self.connection.take().expect("the connection was not taken before");
        response.map(|(head, decoder)| (head, decoder, connection))
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        let connection = self.connection.take().filter(|connection| connection.awaits_response);
        let (Some(mut connection), Some(in_flight)) = (connection, self.in_flight.take()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let _ = tokio::time::timeout(in_flight.abandoned_timeout, connection.wait_for_response()).await;
            drop(in_flight);
        });
    }
}

impl InFlight {
    /// Whether the request must not be sent any more.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }
}

/// Writes some of a request from offset `from`; `Ok(0)` once everything is written and flushed.
fn poll_send(
    stream: &mut ByteStream,
    context: &mut Context<'_>,
    head: &[u8],
    body: &[u8],
    from: usize,
) -> Poll<io::Result<usize>> {
    match from < head.len() + body.len() {
        true => poll_write_both(stream, context, head, body, from),
        false => Pin::new(stream).poll_flush(context).map_ok(|()| 0),
    }
}

/// How long a connection may be idle before its reuse, by the `Keep-Alive` field of a response.
fn idle_timeout(keep_alive: Option<&[u8]>) -> Duration {
    let Some(keep_alive) = keep_alive else { return DEFAULT_IDLE_TIMEOUT };
    let seconds = keep_alive.split(|byte| *byte == b',').find_map(|parameter| {
        let parameter = std::str::from_utf8(parameter).ok()?;
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("timeout").then(|| value.trim().trim_matches('"').parse::<u32>().ok())?
    });
    let Some(seconds) = seconds else { return DEFAULT_IDLE_TIMEOUT };
    let timeout = Duration::from_secs(seconds.into());
    (timeout - IDLE_TIMEOUT_MARGIN.min(timeout / 2)).min(MAX_IDLE_TIMEOUT)
}

fn closed_before_response() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection before it answered")
}

impl std::fmt::Debug for Http1Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http1Connection").field("keep_alive", &self.keep_alive).finish()
    }
}

// === impl ByteStream ===

impl AsyncRead for ByteStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_read(context, into),
            Self::Boxed(boxed) => Pin::new(boxed).poll_read(context, into),
        }
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_write(context, from),
            Self::Boxed(boxed) => Pin::new(boxed).poll_write(context, from),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_write_vectored(context, from),
            Self::Boxed(boxed) => Pin::new(boxed).poll_write_vectored(context, from),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_flush(context),
            Self::Boxed(boxed) => Pin::new(boxed).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_shutdown(context),
            Self::Boxed(boxed) => Pin::new(boxed).poll_shutdown(context),
        }
    }
}

// === impl ResponseBody ===

impl ResponseBody {
    pub(crate) fn new(decoder: BodyDecoder, connection: Box<Http1Connection>, pool: &Arc<Pool>) -> Self {
        let mut body = Self { decoder, connection: Some((connection, Arc::clone(pool))) };
        if body.decoder.is_done() {
            body.return_to_pool();
        }
        body
    }

    /// Takes a listening stream out of the count of its origin's connections, because it stays open as long as its
    /// lease. Its connection is closed after it.
    pub(crate) fn release_permit(&mut self) {
        if let Some((connection, _)) = &mut self.connection {
            connection.permit = None;
        }
    }

    /// The length of the rest of the body, where it is known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self.decoder {
            BodyDecoder::Length(length) => Some(length),
            _ => None,
        }
    }

    /// Closes the connection without reading the rest of the body.
    pub(crate) fn close(&mut self) {
        self.connection = None;
    }

    fn return_to_pool(&mut self) {
        let is_pooled =
            |(connection, _): &(Box<Http1Connection>, _)| connection.keep_alive && connection.permit.is_some();
        let Some((connection, pool)) = self.connection.take().filter(is_pooled) else { return };
        if connection.unsent.is_none() {
            pool.release(connection);
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(connection.finish_request(pool));
        }
    }

    /// The next data of the body; `None` at its end.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let Some((connection, _)) = &mut self.connection else { return Poll::Ready(None) };
        // Also while no data arrives: the server may need the rest of the request first.
        let _ = connection.poll_send_rest(context);
        let data = ready!(connection.read_buffer.poll_body_data(&mut connection.stream, &mut self.decoder, context));
        match &data {
            Err(_) => self.connection = None,
            Ok(data) if data.is_none() || self.decoder.is_done() => self.return_to_pool(),
            Ok(_) => {}
        }
        Poll::Ready(data.transpose())
    }

    /// The next data of the body; `None` at its end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Reads the rest of the body, of at most `max_bytes`.
    pub(crate) async fn read_to_end(mut self, max_bytes: usize) -> Result<Bytes, BodyError> {
        let Some((connection, _)) = &mut self.connection else { return Ok(Bytes::new()) };
        let connection = &mut **connection;
        if connection.unsent.is_some() {
            return Box::pin(self.read_while_sending(max_bytes)).await;
        }
        let body = connection.read_buffer.read_body(&mut connection.stream, &mut self.decoder, max_bytes).await?;
        self.return_to_pool();
        Ok(body)
    }

    /// Reads the rest of the body while the rest of the request is sent.
    async fn read_while_sending(&mut self, max_bytes: usize) -> Result<Bytes, BodyError> {
        let mut body = BytesMut::new();
        while let Some(data) = self.next().await {
            let data = data.map_err(BodyError::Broken)?;
            if data.len() > max_bytes - body.len() {
                return Err(BodyError::TooLong);
            }
            body.extend_from_slice(&data);
        }
        Ok(body.freeze())
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let mut noop = Context::from_waker(Waker::noop());
        // Consume what is already buffered: a complete body makes the connection reusable.
        while self.connection.is_some() && matches!(self.poll_next(&mut noop), Poll::Ready(Some(Ok(_)))) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    /// A connection with the server's end of it.
    fn connected() -> (Http1Connection, DuplexStream) {
        let (stream, server) = duplex(1 << 20);
        (Http1Connection::in_memory(stream, None), server)
    }

    fn request(body: &'static [u8]) -> EncodedRequest {
        EncodedRequest {
            verb: Verb::POST,
            head: b"POST / HTTP/1.1\r\n\r\n".to_vec(),
            body: Bytes::from_static(body),
            in_flight: None,
            when_full: WhenFull::Wait,
            mark: Mark::NONE,
        }
    }

    fn pool() -> Arc<Pool> {
        Pool::for_origin(&http::Uri::from_static("http://127.0.0.1:9/"))
    }

    /// What the client reads from a server that sends `sent` and closes the connection.
    async fn body_from(sent: &[u8], max_bytes: usize) -> Result<Bytes, String> {
        let (mut connection, mut server) = connected();
        server.write_all(sent).await.unwrap();
        server.shutdown().await.unwrap();
        let (_, decoder) = connection.send(&request(b"body")).await.map_err(|failed| failed.error.to_string())?;
        let body = ResponseBody::new(decoder, Box::new(connection), &pool()).read_to_end(max_bytes).await;
        body.map_err(|failed| match failed {
            BodyError::TooLong => "too long".to_owned(),
            BodyError::Broken(error) => error.to_string(),
        })
    }

    #[tokio::test]
    async fn response_is_complete_or_an_error() {
        for (sent, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", Ok("hi")),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\n\r\nhi", Ok("hi")),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", Ok("hi")),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi", Err("in the middle of a message")),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nh\r\n", Err("in the middle of a message")),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz", Err("this is no HTTP")),
            ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi", Err("too long")),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\n123456789\r\n0\r\n\r\n", Err("too long")),
            ("HTTP/1.1 200 OK\r\n", Err("before it answered")),
            ("", Err("before it answered")),
            ("rubbish\r\n\r\n", Err("this is no HTTP")),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
                Err("where the body ends"),
            ),
        ] {
            let body = body_from(sent.as_bytes(), 8).await;
            match expected {
                Ok(text) => assert_eq!(body.as_deref(), Ok(text.as_bytes()), "{sent}"),
                Err(why) => assert!(body.as_ref().is_err_and(|text| text.contains(why)), "{sent}: {body:?}"),
            }
        }
    }

    #[tokio::test]
    async fn long_bodies_are_sent_and_received() {
        static LONG: [u8; 3 << 20] = [b'x'; 3 << 20];
        let (mut connection, mut server) = connected();
        let serving = tokio::spawn(async move {
            let mut got = vec![0; 19 + LONG.len()];
            server.read_exact(&mut got).await.unwrap();
            assert!(got.starts_with(b"POST / HTTP/1.1\r\n\r\n") && got.ends_with(&LONG));
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", LONG.len());
            server.write_all(head.as_bytes()).await.unwrap();
            server.write_all(&LONG).await.unwrap();
            server
        });
        let (_, decoder) = connection.send(&request(&LONG)).await.unwrap();
        let BodyDecoder::Length(length) = decoder else { panic!() };
        let body = connection.read_buffer.read_exact(&mut connection.stream, length as usize).await.unwrap();
        assert!(body[..] == LONG[..]);
        assert!(connection.read_buffer.buffered().capacity() < LONG.len(), "the large allocation is released");
        let _server = serving.await.unwrap();
        assert!(connection.is_open());
    }

    /// A server that refuses a request and closes reads no more of it; others have to be sent the rest.
    #[tokio::test]
    async fn rest_of_the_request_follows_an_early_response_unless_it_is_refused_with_close() {
        static LONG: [u8; 3 << 20] = [b'x'; 3 << 20];
        for (status, fields, goes_on, keep_alive) in [
            ("200 OK", "content-length: 2", true, true),
            ("413 Too Large", "content-length: 2", true, true),
            ("413 Too Large", "content-length: 2\r\nconnection: close", false, false),
            ("200 OK", "content-length: 2\r\nconnection: close", true, false),
        ] {
            let (mut connection, mut server) = connected();
            let response = format!("HTTP/1.1 {status}\r\n{fields}\r\n\r\nno");
            server.write_all(response.as_bytes()).await.unwrap();
            let (_, decoder) = connection.send(&request(&LONG)).await.unwrap();
            assert_eq!(decoder, BodyDecoder::Length(2));
            assert_eq!((connection.unsent.is_some(), connection.keep_alive), (goes_on, keep_alive), "{response}");
        }
        // Nothing of the request was written, so another connection may send it.
        let (mut closed, mut server) = connected();
        server.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno").await.unwrap();
        drop(server);
        assert!(closed.send(&request(&LONG)).await.unwrap_err().not_sent);
    }

    #[test]
    fn connections_are_reused_until_shortly_before_the_keep_alive_timeout() {
        for (field, milliseconds) in [
            (None, 4_000),
            (Some("timeout=5"), 4_000),
            (Some("max=100, Timeout = 30"), 29_000),
            (Some("timeout=\"5\""), 4_000),
            (Some("timeout=2"), 1_000),
            (Some("timeout=1"), 500),
            (Some("timeout=0"), 0),
            (Some("timeout=4000000000"), 60_000),
            (Some("timeout=soon"), 4_000),
            (Some("timeout=-1"), 4_000),
            (Some("max=5"), 4_000),
            (Some(""), 4_000),
        ] {
            let idle = idle_timeout(field.map(str::as_bytes));
            assert_eq!(idle, Duration::from_millis(milliseconds), "{field:?}");
        }
    }

    /// Any doubt about where the next response begins closes the connection.
    #[tokio::test]
    async fn connection_is_reused_only_after_unambiguous_framing() {
        for (head, body, open) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2", "hi", true),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2", "hi", true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked", "2\r\nhi\r\n0\r\nx: y\r\n\r\n", true),
            ("HTTP/1.1 204 No Content", "", true),
            ("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2", "hi", true),
            ("HTTP/1.0 200 OK\r\ncontent-length: 2", "hi", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close", "hi", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close, keep-alive", "hi", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2", "hiHTTP/1.1 200 OK\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2", "hi\r\n", false),
            ("HTTP/1.1 204 No Content\r\ncontent-length: 2", "hi", false),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked", "2\r\nhi\r\n0\r\n\r\n0", false),
        ] {
            let (mut connection, mut server) = connected();
            server.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
            let (_, mut decoder) = connection.send(&request(b"")).await.unwrap();
            let read = connection.read_buffer.read_body(&mut connection.stream, &mut decoder, 100).await.unwrap();
            assert!(decoder.is_done() && matches!(&read[..], b"hi" | b""), "{head} {body}");
            assert_eq!(connection.is_open(), open, "{head} {body}");
        }
    }

    #[tokio::test]
    async fn unsolicited_response_makes_the_connection_unusable() {
        let (mut connection, mut server) = connected();
        assert!(connection.is_open());
        server.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        assert!(!connection.is_open());
    }
}
