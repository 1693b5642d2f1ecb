//! A connection of a client that speaks HTTP/1.1: one request after the other, each answered before the next is read.
//!
//! A client that closes its side while it waits for an answer wants none any more.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Method as Verb, Request, Response};
use http_body::Body as _;
use memchr::memmem;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::body::ResponseContent;
use super::connection::WRITE_STALL_TIMEOUT;
use super::http::RequestBody;
use super::respond::Rejection;
use super::wake_gated::WakeGated;
use super::{Admission, Inbound, ListenerRole, date_header};
use crate::http::codec::{
    BodyDecoder, BodyLength, Decoded, LAST_PIECE, RequestError, RequestHead, ResponseEncoder, put_piece,
};
use crate::http::read_buffer::{BodyError, ReadBuffer};
use crate::timer::PooledTimer;

/// A connection at work.
struct Http1Server<'c, G> {
    inbound: &'c Arc<Inbound>,
    stream: TcpStream,
    read_buffer: ReadBuffer,
    /// What goes out next.
    out: Vec<u8>,
    /// Ends when the connection has no more to bring.
    going: WakeGated<G>,
    /// It has ended.
    leaving: bool,
    patience: ReadDeadline,
}

/// How long a client may take for the head of a request. Its timer is set once and for all: when it goes off, it is
/// looked how much time is left.
struct ReadDeadline {
    end: Instant,
    alarm: Option<PooledTimer>,
}

/// What an answer has to heed of its request.
#[derive(Clone, Copy)]
struct ResponseMode {
    /// Only the head is wanted.
    head_only: bool,
    is_http11: bool,
    keep_alive: bool,
}

/// The longest body that goes out in one piece with its head.
const INLINE_BODY_MAX: usize = 8 << 10;
/// How much of a stream is gathered before it goes out.
const WRITE_COALESCE_MAX: usize = 16 << 10;
/// The longest buffer that is kept for the next answer.
const RETAINED_BUFFER_MAX: usize = 16 << 10;
/// How much is read of what a client sends before it has its answer.
const MAX_PIPELINE_BUFFER: usize = 4 << 10;
/// The least that a head may have; settings can only allow more.
const LEAST_HEAD: usize = 8 << 10;
/// How long, and how much, is read from a client that is not heard any more: closing at once could take our answer
/// from it.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 8 << 20;

/// Serves a connection until it ends.
pub(super) async fn serve<G: Future<Output = ()>>(
    inbound: &Arc<Inbound>,
    side: ListenerRole,
    stream: TcpStream,
    peer: SocketAddr,
    going: G,
) -> io::Result<()> {
    let mut talk = Http1Server {
        inbound,
        stream,
        read_buffer: ReadBuffer::default(),
        out: Vec::new(),
        going: WakeGated::new(going),
        leaving: false,
        patience: ReadDeadline { end: Instant::now() + inbound.settings.body_timeout, alarm: None },
    };
    loop {
        let asked = match talk.head().await? {
            None => return Ok(()),
            Some(Ok(asked)) => asked,
            Some(Err(unfit)) => {
                let manner = ResponseMode { head_only: false, is_http11: true, keep_alive: false };
                talk.answer(Rejection::from(unfit).respond(), manner).await?;
                return talk.close().await;
            }
        };
        let RequestHead {
            verb,
            uri,
            headers,
            mut framing,
            keep_alive: keeps,
            is_http11: modern,
            expects_continue: waits,
        } = asked;
        let (mut parts, ()) = Request::new(()).into_parts();
        (parts.method, parts.uri, parts.headers) = (verb, uri, headers);
        let named = inbound.name(&mut parts.headers);
        let entered = inbound.admit(&parts, &named, side, peer);
        let body = match &entered {
            Ok(Admission::Call(..)) if parts.method == Verb::POST => talk.body(&mut framing, waits).await?,
            _ => RequestBody::Whole(Bytes::new()),
        };
        let response = {
            let work = pin!(inbound.respond(&parts, named, entered, body));
            talk.watch(work).await
        };
        let Some(response) = response else { return Ok(()) };
        let bare = parts.method == Verb::HEAD;
        // An answer may take long, and needs nothing of this.
        drop(parts);
        // Where a body that nobody wanted is here already, it is in nobody's way.
        let read = talk.skip(&mut framing);
        let manner = ResponseMode { head_only: bare, is_http11: modern, keep_alive: keeps && read };
        if !talk.answer(response, manner).await? {
            return if read { Ok(()) } else { talk.close().await };
        }
    }
}

impl<G: Future<Output = ()>> Http1Server<'_, G> {
    /// The head of the next request; nothing when there will be none.
    async fn head(&mut self) -> io::Result<Option<Result<RequestHead, RequestError>>> {
        let limits = &self.inbound.settings.limits;
        let (most, longest) = (limits.header_count, limits.header_bytes.max(LEAST_HEAD));
        // So much of it was looked at.
        let mut seen = 0;
        poll_fn(|context| {
            loop {
                let here = self.read_buffer.buffered();
                if here.len() > seen && (seen == 0 || may_end(&here[seen.saturating_sub(3)..]) || here.len() > longest)
                {
                    match RequestHead::take(here, most, longest) {
                        Ok(Some(asked)) => return Poll::Ready(Ok(Some(Ok(asked)))),
                        Ok(None) => {}
                        Err(unfit) => return Poll::Ready(Ok(Some(Err(unfit)))),
                    }
                }
                seen = self.read_buffer.buffered().len();
                match self.read_buffer.poll_more(&mut self.stream, context)? {
                    Poll::Ready(0) => return Poll::Ready(Ok(None)),
                    Poll::Ready(_) => continue,
                    Poll::Pending => {}
                }
                // What has arrived was read, or it would not be answered.
                if self.is_leaving(context) && is_blank(self.read_buffer.buffered()) {
                    return Poll::Ready(Ok(None));
                }
                ready!(self.patience.poll(context));
                return Poll::Ready(Ok(None));
            }
        })
        .await
    }

    fn is_leaving(&mut self, context: &mut Context<'_>) -> bool {
        self.leaving = self.leaving || Pin::new(&mut self.going).poll(context).is_ready();
        self.leaving
    }

    /// Reads a body, no more of it than allowed, no longer than allowed.
    async fn body(&mut self, framing: &mut BodyDecoder, waits: bool) -> io::Result<RequestBody> {
        let longest = self.inbound.settings.limits.body_bytes;
        let here = self.read_buffer.buffered().len() as u64;
        match *framing {
            BodyDecoder::Length(length) if length > longest as u64 => {
                return Ok(RequestBody::Refused(Rejection::BodyTooLarge(longest)));
            }
            BodyDecoder::Length(length) if length <= here => {
                *framing = BodyDecoder::Length(0);
                return Ok(RequestBody::Whole(self.read_buffer.buffered().split_to(length as usize).freeze()));
            }
            _ => {}
        }
        if waits {
            self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            self.send(&[]).await?;
        }
        let end = Instant::now() + self.inbound.settings.body_timeout;
        let read = PooledTimer::limit(end, self.read_buffer.read_body(&mut self.stream, framing, longest)).await;
        Ok(match read {
            Some(Ok(body)) => RequestBody::Whole(body),
            Some(Err(BodyError::TooLong)) => RequestBody::Refused(Rejection::BodyTooLarge(longest)),
            Some(Err(BodyError::Broken(_))) => RequestBody::Refused(Rejection::BodyBroken),
            None => RequestBody::Refused(Rejection::BodyTooSlow),
        })
    }

    /// Leaves a body out as far as it is here; true when that was all of it.
    fn skip(&mut self, framing: &mut BodyDecoder) -> bool {
        while let Ok(Decoded::Data(_)) = framing.take(self.read_buffer.buffered()) {}
        framing.is_done()
    }

    /// Waits for something that the client waits for; nothing when it does so no longer.
    async fn watch<T>(&mut self, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            self.poll_disconnected(context).map(|()| None)
        })
        .await
    }

    /// Whether the client has gone away. What it sends meanwhile waits, and is looked past while it is little.
    fn poll_disconnected(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.is_leaving(context);
        while self.read_buffer.buffered().len() < MAX_PIPELINE_BUFFER {
            if let Ok(0) | Err(_) = ready!(self.read_buffer.poll_little(&mut self.stream, context)) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Sends an answer; true when another request may follow.
    async fn answer(&mut self, response: Response<ResponseContent>, manner: ResponseMode) -> io::Result<bool> {
        let (parts, body) = response.into_parts();
        let extent = match &body {
            ResponseContent::Empty => BodyLength::Length(0),
            ResponseContent::Full(bytes) => BodyLength::Length(bytes.len()),
            ResponseContent::Events(_) | ResponseContent::Carried(_) if manner.is_http11 => BodyLength::Chunked,
            ResponseContent::Events(_) | ResponseContent::Carried(_) => BodyLength::UntilClose,
        };
        let keeps = manner.keep_alive && !self.leaving && extent != BodyLength::UntilClose;
        // From here on the next request is waited for.
        let now = Instant::now();
        self.patience.end = now + self.inbound.settings.body_timeout;
        date_header::with(now.into_std(), |date| {
            let (status, headers) = (parts.status, &parts.headers);
            ResponseEncoder { status, headers, extent, keeps, is_http11: manner.is_http11, date }.put(&mut self.out);
        });
        drop(parts);
        match body {
            ResponseContent::Empty => self.send(&[]).await?,
            _ if manner.head_only => self.send(&[]).await?,
            ResponseContent::Full(bytes) if bytes.len() <= INLINE_BODY_MAX => {
                self.out.extend_from_slice(&bytes);
                self.send(&[]).await?;
            }
            ResponseContent::Full(bytes) => self.send(&bytes).await?,
            body => {
                self.write_stream(body, extent == BodyLength::Chunked).await?;
                self.patience.end = Instant::now() + self.inbound.settings.body_timeout;
            }
        }
        Ok(keeps && !self.leaving)
    }

    /// Sends a stream as it comes, until it ends or the client has gone away.
    async fn write_stream(&mut self, mut body: ResponseContent, pieces: bool) -> io::Result<()> {
        let mut ended = false;
        self.read_buffer.shrink();
        while !ended {
            let gathered = poll_fn(|context| {
                while self.out.len() < WRITE_COALESCE_MAX && !ended {
                    match Pin::new(&mut body).poll_frame(context) {
                        Poll::Pending => break,
                        Poll::Ready(None) => ended = true,
                        Poll::Ready(Some(Ok(frame))) => match frame.data_ref() {
                            Some(data) if pieces && !data.is_empty() => put_piece(&mut self.out, data),
                            Some(data) => self.out.extend_from_slice(data),
                            None => {}
                        },
                    }
                }
                match self.out.is_empty() && !ended {
                    true => self.poll_disconnected(context).map(|()| false),
                    false => Poll::Ready(true),
                }
            });
            if !gathered.await {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if ended && pieces {
                self.out.extend_from_slice(LAST_PIECE);
            }
            self.send(&[]).await?;
            // There may be many streams, and most of them are quiet.
            self.out = Vec::new();
        }
        Ok(())
    }

    /// Sends what is to go out, and something more after it. A client has to read now and then.
    async fn send(&mut self, more: &[u8]) -> io::Result<()> {
        let (mut sent, mut stuck) = (0, None);
        let all = self.out.len() + more.len();
        let written = poll_fn(|context| {
            while sent < all {
                match poll_write(&mut self.stream, context, &self.out, more, sent) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(some)) => {
                        sent += some;
                        stuck = None;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        let alarm = stuck.get_or_insert_with(|| PooledTimer::after(WRITE_STALL_TIMEOUT));
                        ready!(Pin::new(alarm).poll(context));
                        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                    }
                }
            }
            Poll::Ready(Ok(()))
        });
        written.await?;
        match self.out.capacity() > RETAINED_BUFFER_MAX {
            true => self.out = Vec::new(),
            false => self.out.clear(),
        }
        Ok(())
    }

    /// Ends a connection whose client may still be sending.
    async fn close(mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        let rest = async {
            let mut left = LINGER_BYTES;
            loop {
                self.read_buffer.buffered().clear();
                match poll_fn(|context| self.read_buffer.poll_more(&mut self.stream, context)).await {
                    Ok(read @ 1..) if read < left => left -= read,
                    _ => return,
                }
            }
        };
        PooledTimer::limit(Instant::now() + LINGER, rest).await;
        Ok(())
    }
}

/// Writes some of two texts that stand one after the other, from a place on.
fn poll_write(
    stream: &mut TcpStream,
    context: &mut Context<'_>,
    first: &[u8],
    second: &[u8],
    from: usize,
) -> Poll<io::Result<usize>> {
    let stream = Pin::new(stream);
    let (first, second) = (&first[from.min(first.len())..], &second[from.saturating_sub(first.len())..]);
    match (first, second) {
        (one, []) | ([], one) => stream.poll_write(context, one),
        _ => stream.poll_write_vectored(context, &[IoSlice::new(first), IoSlice::new(second)]),
    }
}

/// Whether no request has begun in here: some end what they have sent with a line of its own.
fn is_blank(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b'\r' | b'\n'))
}

/// Whether the end of a head can be in here.
fn may_end(text: &[u8]) -> bool {
    memmem::find(text, b"\n\r\n").is_some() || memmem::find(text, b"\n\n").is_some()
}

// === impl Patience ===

impl ReadDeadline {
    /// Ready when the time is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let alarm = self.alarm.get_or_insert_with(|| PooledTimer::at(self.end));
            ready!(Pin::new(alarm).poll(context));
            self.alarm = None;
            if self.end <= Instant::now() {
                return Poll::Ready(());
            }
        }
    }
}
