//! HTTP/1.1 server side of a client connection: requests are answered one at a time, in order.
//!
//! A client that closes its write side while it waits for a response is taken as disconnected, and its request is
//! dropped.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Method as Verb, Response};
use http_body::Body;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use super::super::codec::{
    BodyDecoder, BodyLength, Decoded, HeadSearch, LAST_CHUNK, RequestError, RequestFraming, RequestHead,
    ResponseEncoder, put_chunk,
};
use super::super::read_buffer::{BodyError, ReadBuffer};
use super::super::write::poll_write_both;
use super::client_stream::ClientStream;
use super::wake_gated::WakeGated;
use super::{HttpService, ReceivedBody, RequestBodyError, ServerSettings, date_header};
use crate::timer::WorkerTimer;

/// State of one connection.
struct Http1Server<G, I> {
    settings: ServerSettings,
    stream: I,
    read_buffer: ReadBuffer,
    /// Bytes to write next.
    write_buffer: Vec<u8>,
    /// Completes when the connection must take no further requests.
    stop_signal: WakeGated<G>,
    /// `stop_signal` has completed.
    is_stopping: bool,
    read_deadline: ReadDeadline,
}

/// Deadline for the next request: for its first byte, and from then on for its head. Re-armed lazily when the timer fires
/// early.
struct ReadDeadline {
    at: Instant,
    timer: Option<Pin<Box<WorkerTimer>>>,
    /// The first byte of the head has arrived.
    is_in_head: bool,
}

/// Properties of the request that shape its response.
#[derive(Clone, Copy)]
struct ResponseMode {
    /// The request was HEAD: no body is written.
    head_only: bool,
    is_http11: bool,
    keep_alive: bool,
}

/// Bodies up to this size are copied behind the head and written together.
const INLINE_BODY_MAX: usize = 8 << 10;
/// Stream frames are coalesced into one write up to this size.
const WRITE_COALESCE_MAX: usize = 16 << 10;
/// A larger write buffer is freed after the response.
const RETAINED_BUFFER_MAX: usize = 16 << 10;
/// How much of a pipelined request is buffered while the current one is served.
const MAX_PIPELINE_BUFFER: usize = 4 << 10;
/// Bounds of a lingering close: closing with unread input would reset the connection and could destroy the response
/// in transit.
const LINGER_TIME: Duration = Duration::from_secs(1);
const MAX_LINGER_BYTES: usize = 8 << 20;

/// Serves a connection until it closes.
pub(super) async fn serve<S, I>(service: S, stream: I) -> io::Result<()>
where
    S: HttpService,
    I: ClientStream,
{
    let settings = service.settings();
    let mut connection = Http1Server {
        settings,
        stream,
        read_buffer: ReadBuffer::default(),
        write_buffer: Vec::new(),
        stop_signal: WakeGated::new(service.draining()),
        is_stopping: false,
        read_deadline: ReadDeadline::new(Instant::now() + settings.header_timeout),
    };
    loop {
        let head = match connection.read_head().await? {
            None => return Ok(()),
            Some(Ok(head)) => head,
            Some(Err(error)) => {
                let mode = ResponseMode { head_only: false, is_http11: true, keep_alive: false };
                let mut response = service.reject_head(error);
                service.decorate(response.headers_mut());
                connection.write_response(response, mode).await?;
                return connection.lingering_close().await;
            }
        };
        let (head, mut framing) = head;
        let head_only = head.verb == Verb::HEAD;
        let mut admission = service.admit(&head);
        if S::is_undecided(&admission) {
            // Rare and large: boxed to keep the future of every other request small.
            let work = pin!(Box::pin(service.complete(admission)));
            match connection.run_until_disconnect(work).await {
                Some(completed) => admission = completed,
                None => return Ok(()),
            }
        }
        let body = match S::wants_body(&admission) {
            true => connection.read_body(&mut framing).await?,
            false => Ok(Bytes::new()),
        };
        let response = {
            let work = pin!(service.respond(admission, body));
            connection.run_until_disconnect(work).await
        };
        let Some(mut response) = response else { return Ok(()) };
        service.decorate(response.headers_mut());
        // Free the request head: an SSE response may stay open for hours.
        drop(head);
        // An unread body that is already buffered is discarded, and the connection can be kept alive.
        let body_read = connection.discard_body(&mut framing.body);
        let mode =
            ResponseMode { head_only, is_http11: framing.is_http11, keep_alive: framing.keep_alive && body_read };
        if !connection.write_response(response, mode).await? {
            return if body_read { Ok(()) } else { connection.lingering_close().await };
        }
    }
}

impl<G: Future<Output = ()>, I: ClientStream> Http1Server<G, I> {
    /// Reads the next request head; `None` when the client closed, timed out or must not send another.
    async fn read_head(&mut self) -> io::Result<Option<Result<(RequestHead, RequestFraming), RequestError>>> {
        let (rules, header_timeout) = (self.settings.head, self.settings.header_timeout);
        let mut head_search = HeadSearch::default();
        poll_fn(|context| {
            loop {
                let buffered = self.read_buffer.buffered();
                if head_search.should_parse(buffered, rules.max_bytes) {
                    match RequestHead::parse(buffered, &rules) {
                        Ok(Some(head)) => return Poll::Ready(Ok(Some(Ok(head)))),
                        Ok(None) => {}
                        Err(error) => return Poll::Ready(Ok(Some(Err(error)))),
                    }
                }
                if !is_only_line_breaks(self.read_buffer.buffered()) {
                    self.read_deadline.begin_head(header_timeout);
                }
                match self.read_buffer.poll_read_more(&mut self.stream, context)? {
                    Poll::Ready(0) => return Poll::Ready(Ok(None)),
                    Poll::Ready(_) => continue,
                    Poll::Pending => {}
                }
                // Bytes that arrived before the stop signal were read above, so a request that was already sent is
                // still answered.
                if self.poll_stopping(context) && is_only_line_breaks(self.read_buffer.buffered()) {
                    return Poll::Ready(Ok(None));
                }
                ready!(self.read_deadline.poll(context));
                return Poll::Ready(Ok(None));
            }
        })
        .await
    }

    fn poll_stopping(&mut self, context: &mut Context<'_>) -> bool {
        self.is_stopping = self.is_stopping || Pin::new(&mut self.stop_signal).poll(context).is_ready();
        self.is_stopping
    }

    /// Reads a request body within the size limit and the body timeout. A client that expects it gets `100 Continue`
    /// first, unless the body is refused or already here.
    async fn read_body(&mut self, framing: &mut RequestFraming) -> io::Result<ReceivedBody> {
        let max_bytes = self.settings.max_body_bytes;
        let buffered = self.read_buffer.buffered().len() as u64;
        match framing.body {
            BodyDecoder::Length(length) if length > max_bytes as u64 => return Ok(Err(RequestBodyError::TooLarge)),
            BodyDecoder::Length(length) if length <= buffered => {
                framing.body = BodyDecoder::Length(0);
                return Ok(Ok(self.read_buffer.buffered().split_to(length as usize).freeze()));
            }
            _ => {}
        }
        if framing.expects_continue {
            self.write_buffer.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            self.flush_with(&[]).await?;
        }
        let end = Instant::now() + self.settings.body_timeout;
        let body = self.read_buffer.read_body(&mut self.stream, &mut framing.body, max_bytes);
        let read = WorkerTimer::timeout_at(end, body).await;
        Ok(match read {
            Some(Ok(body)) => Ok(body),
            Some(Err(BodyError::TooLong)) => Err(RequestBodyError::TooLarge),
            Some(Err(BodyError::Broken(_))) => Err(RequestBodyError::Incomplete),
            None => Err(RequestBodyError::TimedOut),
        })
    }

    /// Discards the buffered part of a body; true when that was all of it.
    fn discard_body(&mut self, framing: &mut BodyDecoder) -> bool {
        while let Ok(Decoded::Data(_)) = framing.decode(self.read_buffer.buffered()) {}
        framing.is_done()
    }

    /// Runs `work` while watching the connection; `None` when the client disconnects first.
    async fn run_until_disconnect<T>(&mut self, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            self.poll_disconnected(context).map(|()| None)
        })
        .await
    }

    /// Ready when the client has disconnected. Pipelined bytes are buffered up to [`MAX_PIPELINE_BUFFER`]; beyond
    /// that a disconnect is not noticed.
    fn poll_disconnected(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.poll_stopping(context);
        while self.read_buffer.buffered().len() < MAX_PIPELINE_BUFFER {
            if let Ok(0) | Err(_) = ready!(self.read_buffer.poll_read_small(&mut self.stream, context)) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Writes a response; true when the connection can be kept alive.
    async fn write_response<B>(&mut self, response: Response<B>, mode: ResponseMode) -> io::Result<bool>
    where
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin,
    {
        let (parts, mut body) = response.into_parts();
        let known_length = body.size_hint().exact();
        let body_length = match known_length {
            Some(length) => BodyLength::Length(length),
            None if mode.is_http11 => BodyLength::Chunked,
            None => BodyLength::UntilClose,
        };
        let keep_alive = mode.keep_alive && !self.is_stopping && body_length != BodyLength::UntilClose;
        // The idle timeout for the next request counts from here.
        let now = Instant::now();
        self.read_deadline.begin_idle(now + self.settings.keep_alive_timeout);
        date_header::with_date(now.into_std(), |date| {
            let (status, headers) = (parts.status, &parts.headers);
            ResponseEncoder { status, headers, body_length, keep_alive, is_http11: mode.is_http11, date }
                .encode(&mut self.write_buffer);
        });
        drop(parts);
        if mode.head_only {
            self.flush_with(&[]).await?;
        } else if let Some(length) = known_length {
            self.write_whole(&mut body, length).await?;
        } else {
            self.write_stream(body, body_length == BodyLength::Chunked).await?;
            self.read_deadline.begin_idle(Instant::now() + self.settings.keep_alive_timeout);
        }
        Ok(keep_alive && !self.is_stopping)
    }

    /// Writes a body of known length behind the head.
    async fn write_whole<B>(&mut self, body: &mut B, length: u64) -> io::Result<()>
    where
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin,
    {
        let frame = match length {
            0 => None,
            _ => poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await,
        };
        let data = frame.and_then(|frame| frame.ok()?.into_data().ok()).unwrap_or_default();
        if data.len() as u64 != length {
            return Err(io::Error::other("a response body differs from its announced length"));
        }
        match data.len() <= INLINE_BODY_MAX {
            true => {
                self.write_buffer.extend_from_slice(&data);
                self.flush_with(&[]).await
            }
            false => self.flush_with(&data).await,
        }
    }

    /// Writes a streaming body until it ends, breaks off, or the client disconnects.
    async fn write_stream<B>(&mut self, mut body: B, is_chunked: bool) -> io::Result<()>
    where
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin,
    {
        let (mut ended, mut broken) = (false, None);
        self.read_buffer.shrink();
        while !ended {
            let is_connected = poll_fn(|context| {
                while self.write_buffer.len() < WRITE_COALESCE_MAX && !ended {
                    match Pin::new(&mut body).poll_frame(context) {
                        Poll::Pending => break,
                        Poll::Ready(None) => ended = true,
                        Poll::Ready(Some(Err(error))) => (ended, broken) = (true, Some(error)),
                        Poll::Ready(Some(Ok(frame))) => match frame.data_ref() {
                            Some(data) if is_chunked && !data.is_empty() => put_chunk(&mut self.write_buffer, data),
                            Some(data) => self.write_buffer.extend_from_slice(data),
                            None => {}
                        },
                    }
                }
                match self.write_buffer.is_empty() && !ended {
                    true => self.poll_disconnected(context).map(|()| false),
                    false => Poll::Ready(true),
                }
            });
            if !is_connected.await {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if ended && is_chunked && broken.is_none() {
                self.write_buffer.extend_from_slice(LAST_CHUNK);
            }
            self.flush_with(&[]).await?;
            // Most streams are idle most of the time: hold no buffer between events.
            self.write_buffer = Vec::new();
        }
        let Some(error) = broken else { return Ok(()) };
        if !is_chunked {
            // The end of the connection would be that of the body; only a reset tells the client.
            self.stream.reset_on_close()?;
        }
        Err(io::Error::other(error))
    }

    /// Writes the write buffer, then `body`. Fails when the client accepts no byte for the write stall timeout.
    async fn flush_with(&mut self, body: &[u8]) -> io::Result<()> {
        let (mut sent, mut stall_timer, stall_timeout) = (0, None, self.settings.write_stall_timeout);
        let total = self.write_buffer.len() + body.len();
        let written = poll_fn(|context| {
            loop {
                // TLS keeps what the socket has not taken; a socket has nothing to flush.
                let polled = match sent < total {
                    true => poll_write_both(&mut self.stream, context, &self.write_buffer, body, sent),
                    false => Pin::new(&mut self.stream).poll_flush(context).map_ok(|()| 0),
                };
                match polled {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                    Poll::Ready(Ok(count)) => {
                        sent += count;
                        stall_timer = None;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        let timer = stall_timer.get_or_insert_with(|| Box::pin(WorkerTimer::after(stall_timeout)));
                        ready!(timer.as_mut().poll(context));
                        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                    }
                }
            }
        });
        written.await?;
        match self.write_buffer.capacity() > RETAINED_BUFFER_MAX {
            true => self.write_buffer = Vec::new(),
            false => self.write_buffer.clear(),
        }
        Ok(())
    }

    /// Closes the write side, then reads and discards input for a bounded time before closing the socket.
    async fn lingering_close(mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        let drain = async {
            let mut remaining = MAX_LINGER_BYTES;
            loop {
                self.read_buffer.buffered().clear();
                match poll_fn(|context| self.read_buffer.poll_read_more(&mut self.stream, context)).await {
                    Ok(read @ 1..) if read < remaining => remaining -= read,
                    _ => return,
                }
            }
        };
        WorkerTimer::timeout_at(Instant::now() + LINGER_TIME, drain).await;
        Ok(())
    }
}

/// Whether the buffer holds only CR and LF: some clients send an extra line break after a body, which begins no
/// request.
fn is_only_line_breaks(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n'))
}

impl ReadDeadline {
    fn new(at: Instant) -> Self {
        Self { at, timer: None, is_in_head: false }
    }

    /// A connection waits for its next request.
    fn begin_idle(&mut self, at: Instant) {
        self.at = at;
        self.is_in_head = false;
    }

    /// The first byte of a head has arrived; the rest is due within `timeout`.
    fn begin_head(&mut self, timeout: Duration) {
        if !std::mem::replace(&mut self.is_in_head, true) {
            self.at = Instant::now() + timeout;
            // The timer of the idle time may fire later than that.
            self.timer = None;
        }
    }

    /// Ready when the deadline has passed.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let timer = self.timer.get_or_insert_with(|| Box::pin(WorkerTimer::at(self.at)));
            ready!(timer.as_mut().poll(context));
            self.timer = None;
            if self.at <= Instant::now() {
                return Poll::Ready(());
            }
        }
    }
}
