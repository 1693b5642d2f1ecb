//! One connection to a server over HTTP/1.1, and the answers that come on it.
//!
//! Nobody drives a connection but whoever waits for what comes on it, so that a call needs no other task to be woken
//! and to wake it.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Method as Verb;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::pool::Pool;
use crate::http::codec::{BodyDecoder, ResponseHead};
use crate::http::read_buffer::{BodyError, ReadBuffer};

/// A request as it goes out.
#[derive(Debug)]
pub(crate) struct EncodedRequest {
    pub(crate) verb: Verb,
    /// The head, with the body where that is short.
    pub(crate) head: Vec<u8>,
    /// The body where it is long.
    pub(crate) body: Bytes,
    /// What is held until the response begins.
    pub(crate) in_flight: Option<InFlight>,
}

/// Says that a request is on its way, to one who must not act before the server has read it.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    #[allow(dead_code, reason = "held to be dropped")]
    pub(crate) token: TaskTrackerToken,
    /// Set when the request must not be sent any more.
    pub(crate) revoked: Arc<AtomicBool>,
    /// How long to wait for the response of a request that was sent and that nobody waits for any more.
    pub(crate) limit: Duration,
}

/// One connection.
pub(crate) struct Http1Connection {
    stream: ByteStream,
    /// Where it was opened, and is woken.
    pub(crate) pool_shard: usize,
    read_buffer: ReadBuffer,
    /// Another request may follow.
    keep_alive: bool,
    /// A whole request was sent, and its response has not begun.
    awaits_response: bool,
}

/// What bytes go through.
enum ByteStream {
    Plain(TcpStream),
    Tls(Box<dyn Bytestream>),
}

trait Bytestream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Bytestream for S {}

/// Why no answer came.
#[derive(Debug)]
pub(crate) struct SendError {
    /// Nothing of the request has gone out.
    pub(crate) not_sent: bool,
    pub(crate) why: io::Error,
}

/// The head of an answer, and its body as it comes.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) head: ResponseHead,
    pub(crate) body: ResponseBody,
}

/// The body of an answer. Read to its end, or dropped when the rest has come, it gives its connection back.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    framing: BodyDecoder,
    line: Option<(Box<Http1Connection>, Arc<Pool>)>,
}

// === impl Written ===

impl EncodedRequest {
    /// Whether it must not be sent any more.
    pub(crate) fn is_revoked(&self) -> bool {
        self.in_flight.as_ref().is_some_and(InFlight::is_revoked)
    }
}

// === impl Line ===

impl Http1Connection {
    pub(crate) fn new(stream: MaybeHttpsStream<TokioIo<TcpStream>>, pool_shard: usize) -> Self {
        let stream = match stream {
            MaybeHttpsStream::Http(plain) => ByteStream::Plain(plain.into_inner()),
            tls @ MaybeHttpsStream::Https(_) => ByteStream::Tls(Box::new(TokioIo::new(tls))),
        };
        Self { stream, pool_shard, read_buffer: ReadBuffer::default(), keep_alive: true, awaits_response: false }
    }

    /// Whether it is open, as far as can be seen. A server that says something unasked is not listened to.
    pub(crate) fn is_open(&mut self) -> bool {
        let mut nobody = Context::from_waker(Waker::noop());
        self.keep_alive
            && self.read_buffer.is_empty()
            && self.read_buffer.poll_more(&mut self.stream, &mut nobody).is_pending()
    }

    /// Sends a request, and waits for the head of its answer.
    pub(crate) async fn ask(&mut self, request: &EncodedRequest) -> Result<(ResponseHead, BodyDecoder), SendError> {
        let mut written = 0;
        let mut failed = None;
        poll_fn(|context| {
            let mut sent = failed.is_some();
            while !sent {
                match self.poll_send(context, request, written) {
                    Poll::Ready(Ok(0)) => {
                        sent = true;
                        self.awaits_response = true;
                    }
                    Poll::Ready(Ok(more)) => written += more,
                    Poll::Ready(Err(why)) if written == 0 => {
                        return Poll::Ready(Err(SendError { not_sent: true, why }));
                    }
                    // It may have answered before it closed its ear.
                    Poll::Ready(Err(why)) => {
                        failed = Some(why);
                        sent = true;
                    }
                    Poll::Pending => break,
                }
            }
            loop {
                match self.take_head(&request.verb) {
                    Ok(Some((head, _))) if head.is_interim() => continue,
                    Ok(Some(answer)) => {
                        self.keep_alive = answer.0.keep_alive() && sent && failed.is_none();
                        self.awaits_response = false;
                        return Poll::Ready(Ok(answer));
                    }
                    Ok(None) => {}
                    Err(why) => return Poll::Ready(Err(SendError { not_sent: false, why })),
                }
                let why = match ready!(self.read_buffer.poll_more(&mut self.stream, context)) {
                    Ok(0) => failed.take().unwrap_or_else(unanswered),
                    Ok(_) => continue,
                    Err(why) => why,
                };
                return Poll::Ready(Err(SendError { not_sent: false, why }));
            }
        })
        .await
    }

    /// Waits until the server has begun to answer, or is gone. Nobody wants the response.
    async fn read_until_answered(&mut self) {
        let context = |context: &mut Context<'_>| self.read_buffer.poll_more(&mut self.stream, context);
        let _ = poll_fn(context).await;
    }

    /// Sends some of what is left of a request; nothing when all has gone out.
    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        request: &EncodedRequest,
        from: usize,
    ) -> Poll<io::Result<usize>> {
        let head = &request.head[from.min(request.head.len())..];
        let body = &request.body[from.saturating_sub(request.head.len())..];
        let stream = Pin::new(&mut self.stream);
        let sent = match (head, body) {
            ([], []) => return stream.poll_flush(context).map_ok(|()| 0),
            (one, []) | ([], one) => ready!(stream.poll_write(context, one)),
            (head, body) => ready!(stream.poll_write_vectored(context, &[IoSlice::new(head), IoSlice::new(body)])),
        };
        Poll::Ready(match sent {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            sent => sent,
        })
    }

    fn take_head(&mut self, asked: &Verb) -> io::Result<Option<(ResponseHead, BodyDecoder)>> {
        match self.read_buffer.is_empty() {
            true => Ok(None),
            false => ResponseHead::take(self.read_buffer.buffered(), asked).map_err(io::Error::other),
        }
    }
}

/// A connection that waits for the response to its request. Where whoever waits for that goes away, the request
/// stays in flight until the server has begun to answer it.
pub(crate) struct PendingResponse {
    line: Option<Box<Http1Connection>>,
    in_flight: Option<InFlight>,
}

impl PendingResponse {
    pub(crate) fn new(line: Box<Http1Connection>, in_flight: Option<InFlight>) -> Self {
        Self { line: Some(line), in_flight }
    }

    /// The connection, which is there until the response is.
    pub(crate) async fn ask(
        mut self,
        request: &EncodedRequest,
    ) -> Result<(ResponseHead, BodyDecoder, Box<Http1Connection>), SendError> {
        let line = self.line.as_mut().expect("it is taken at the end of this");
        if self.in_flight.as_ref().is_some_and(InFlight::is_revoked) {
            let why = io::Error::new(io::ErrorKind::ConnectionAborted, "the session ended before the request was sent");
            return Err(SendError { not_sent: true, why });
        }
        let answered = line.ask(request).await;
        let line = self.line.take().expect("it was there");
        answered.map(|(head, framing)| (head, framing, line))
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        let line = self.line.take().filter(|line| line.awaits_response);
        let (Some(mut line), Some(in_flight)) = (line, self.in_flight.take()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let _ = tokio::time::timeout(in_flight.limit, line.read_until_answered()).await;
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

fn unanswered() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection before it answered")
}

impl std::fmt::Debug for Http1Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("keeps", &self.keep_alive).finish()
    }
}

// === impl Stream ===

impl AsyncRead for ByteStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_read(context, into),
            Self::Tls(tls) => Pin::new(tls).poll_read(context, into),
        }
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_write(context, from),
            Self::Tls(tls) => Pin::new(tls).poll_write(context, from),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_write_vectored(context, from),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(context, from),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_flush(context),
            Self::Tls(tls) => Pin::new(tls).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_shutdown(context),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(context),
        }
    }
}

// === impl Reading ===

impl ResponseBody {
    pub(crate) fn new(framing: BodyDecoder, line: Box<Http1Connection>, pool: &Arc<Pool>) -> Self {
        let mut reading = Self { framing, line: Some((line, Arc::clone(pool))) };
        if reading.framing.is_done() {
            reading.give_back();
        }
        reading
    }

    fn give_back(&mut self) {
        if let Some((line, pool)) = self.line.take().filter(|(line, _)| line.keep_alive) {
            pool.put(line);
        }
    }

    /// The next piece; nothing at the end.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let Some((line, _)) = &mut self.line else { return Poll::Ready(None) };
        let piece = ready!(line.read_buffer.poll_piece(&mut line.stream, &mut self.framing, context));
        match &piece {
            Err(_) => self.line = None,
            Ok(piece) if piece.is_none() || self.framing.is_done() => self.give_back(),
            Ok(_) => {}
        }
        Poll::Ready(piece.transpose())
    }

    /// The next piece; nothing at the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// All of it, if it is no longer than that.
    pub(crate) async fn read_to_end(mut self, longest: usize) -> Result<Bytes, BodyError> {
        let Some((line, _)) = &mut self.line else { return Ok(Bytes::new()) };
        let line = &mut **line;
        let body = line.read_buffer.read_body(&mut line.stream, &mut self.framing, longest).await?;
        self.give_back();
        Ok(body)
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let mut nobody = Context::from_waker(Waker::noop());
        // What was here, and nobody wants.
        while self.line.is_some() && matches!(self.poll_next(&mut nobody), Poll::Ready(Some(Ok(_)))) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    /// A connection, and the server's end of it.
    fn line() -> (Http1Connection, DuplexStream) {
        let (stream, server) = duplex(1 << 20);
        (
            Http1Connection {
                stream: ByteStream::Tls(Box::new(stream)),
                pool_shard: 0,
                read_buffer: ReadBuffer::default(),
                keep_alive: true,
                awaits_response: false,
            },
            server,
        )
    }

    fn request(body: &'static [u8]) -> EncodedRequest {
        EncodedRequest {
            verb: Verb::POST,
            head: b"POST / HTTP/1.1\r\n\r\n".to_vec(),
            body: Bytes::from_static(body),
            in_flight: None,
        }
    }

    fn pool() -> Arc<Pool> {
        Pool::of(&http::Uri::from_static("http://127.0.0.1:9/"), std::time::Duration::from_secs(1))
    }

    /// What a server that says this and closes is understood to have answered.
    async fn answered(says: &[u8], longest: usize) -> Result<Bytes, String> {
        let (mut line, mut server) = line();
        server.write_all(says).await.unwrap();
        server.shutdown().await.unwrap();
        let (_, framing) = line.ask(&request(b"body")).await.map_err(|lost| lost.why.to_string())?;
        let body = ResponseBody::new(framing, Box::new(line), &pool()).read_to_end(longest).await;
        body.map_err(|unread| match unread {
            BodyError::TooLong => "too long".to_owned(),
            BodyError::Broken(why) => why.to_string(),
        })
    }

    #[tokio::test]
    async fn an_answer_is_whole_or_an_error() {
        for (says, expected) in [
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
        ] {
            let body = answered(says.as_bytes(), 8).await;
            match expected {
                Ok(text) => assert_eq!(body.as_deref(), Ok(text.as_bytes()), "{says}"),
                Err(why) => assert!(body.as_ref().is_err_and(|said| said.contains(why)), "{says}: {body:?}"),
            }
        }
    }

    #[tokio::test]
    async fn long_messages_go_both_ways() {
        static LONG: [u8; 3 << 20] = [b'x'; 3 << 20];
        let (mut line, mut server) = line();
        let serving = tokio::spawn(async move {
            let mut got = vec![0; 19 + LONG.len()];
            server.read_exact(&mut got).await.unwrap();
            assert!(got.starts_with(b"POST / HTTP/1.1\r\n\r\n") && got.ends_with(&LONG));
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", LONG.len());
            server.write_all(head.as_bytes()).await.unwrap();
            server.write_all(&LONG).await.unwrap();
            server
        });
        let (_, framing) = line.ask(&request(&LONG)).await.unwrap();
        let BodyDecoder::Length(length) = framing else { panic!() };
        let body = line.read_buffer.take(&mut line.stream, length as usize).await.unwrap();
        assert!(body[..] == LONG[..]);
        assert!(line.read_buffer.buffered().capacity() < LONG.len(), "nothing of that room is kept");
        let _server = serving.await.unwrap();
        assert!(line.is_open());
    }

    /// A server may refuse before it has read everything, and then reads no more of it.
    #[tokio::test]
    async fn an_early_answer_is_heard_and_the_connection_not_used_again() {
        static LONG: [u8; 3 << 20] = [b'x'; 3 << 20];
        let refusal = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno";
        let (mut one, mut server) = line();
        server.write_all(refusal).await.unwrap();
        let (head, framing) = one.ask(&request(&LONG)).await.unwrap();
        assert_eq!((head.status().as_u16(), framing), (413, BodyDecoder::Length(2)));
        assert!(!one.keep_alive && !one.is_open());
        // Where nothing of the request has gone out, it can go elsewhere.
        let (mut other, mut server) = line();
        server.write_all(refusal).await.unwrap();
        drop(server);
        assert!(other.ask(&request(&LONG)).await.unwrap_err().not_sent);
    }

    /// Whatever leaves a doubt where the next answer begins ends the connection.
    #[tokio::test]
    async fn a_connection_is_used_again_only_where_nothing_is_in_doubt() {
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
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2", "2\r\nhi\r\n0\r\n\r\n", false),
        ] {
            let (mut line, mut server) = line();
            server.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
            let (_, mut framing) = line.ask(&request(b"")).await.unwrap();
            let read = line.read_buffer.read_body(&mut line.stream, &mut framing, 100).await.unwrap();
            assert!(framing.is_done() && matches!(&read[..], b"hi" | b""), "{head} {body}");
            assert_eq!(line.is_open(), open, "{head} {body}");
        }
    }

    #[tokio::test]
    async fn who_speaks_unasked_is_not_listened_to() {
        let (mut line, mut server) = line();
        assert!(line.is_open());
        server.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        assert!(!line.is_open());
    }
}
