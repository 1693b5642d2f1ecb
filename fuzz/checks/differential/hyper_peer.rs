//! Their side: hyper's HTTP/1.1 server and client, polled by hand over bytes in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use http::{Method as Verb, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;

use super::{ClientRequest, End, Ending, HEAD_RULES, Message, Role, Transcript};

/// Polls without progress after which a connection is idle: hyper hands bodies over between its own parts.
const IDLE_POLLS: usize = 3;

/// A socket that yields one piece for each read and swallows what is written.
struct PieceIo {
    pieces: VecDeque<Bytes>,
    ending: Ending,
    /// Whether the peer sends already; a server answers after it got a request.
    is_sending: bool,
    delivered: usize,
}

/// What the service or the response reader has seen, shared with it.
#[derive(Clone, Default)]
struct Recorder(Rc<RefCell<Recorded>>);

#[derive(Default)]
struct Recorded {
    messages: Vec<Message>,
    has_failed: bool,
}

#[derive(Default)]
struct WakeRecorder(AtomicBool);

pub(super) fn read(role: Role, pieces: &[&[u8]], ending: Ending) -> Transcript {
    let pieces = pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| Bytes::copy_from_slice(piece)).collect();
    let socket = PieceIo { pieces, ending, is_sending: role == Role::Server, delivered: 0 };
    match role {
        Role::Server => serve(socket),
        Role::Client { request } => receive(socket, request),
    }
}

fn serve(socket: PieceIo) -> Transcript {
    let recorder = Recorder::default();
    let service = service_fn(|request: Request<Incoming>| {
        let recorder = recorder.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            // A success would turn the connection into a tunnel.
            let status = if parts.method == Verb::CONNECT { StatusCode::METHOD_NOT_ALLOWED } else { StatusCode::OK };
            let start_line = format!("{} {} {:?}", parts.method, parts.uri, parts.version);
            recorder.record(Message { start_line, headers: parts.headers, ..Message::default() }, body).await;
            let mut response = Response::new(Empty::<Bytes>::new());
            *response.status_mut() = status;
            Ok::<_, Infallible>(response)
        })
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    let mut connection = builder.max_headers(HEAD_RULES.max_headers).serve_connection(socket, service);
    let outcome = poll_until_idle(&recorder, |context| connection.poll_without_shutdown(context));
    let parts = connection.into_parts();
    let consumed = parts.io.delivered - parts.read_buf.len();
    let is_in_head = !parts.read_buf.is_empty();
    drop(parts);
    match recorder.transcript(&outcome, consumed) {
        Transcript { messages, end: End::Open { consumed } } if is_in_head => {
            Transcript { messages, end: End::InHead { consumed } }
        }
        transcript => transcript,
    }
}

fn receive(socket: PieceIo, request: ClientRequest) -> Transcript {
    let verb = match request {
        ClientRequest::Post => Verb::POST,
        ClientRequest::Head => Verb::HEAD,
    };
    let recorder = Recorder::default();
    let mut handshake = Box::pin(hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(socket));
    let Poll::Ready(Ok((mut sender, mut connection))) =
        handshake.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("a handshake needs no I/O");
    };
    let request = Request::builder().method(verb).uri("/").header("host", "a").body(Empty::new()).expect("a request");
    let response = sender.send_request(request);
    let reading = recorder.clone();
    let mut reading = Box::pin(async move {
        match response.await {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                let start_line = parts.status.as_str().to_owned();
                reading.record(Message { start_line, headers: parts.headers, ..Message::default() }, body).await;
            }
            Err(_) => reading.0.borrow_mut().has_failed = true,
        }
    });
    let (mut is_closed, mut has_read) = (false, false);
    let outcome = poll_until_idle(&recorder, |context| {
        // Unsolicited bytes behind a response are an error of the connection, not of the response.
        is_closed = is_closed || connection.poll_without_shutdown(context).is_ready();
        has_read = has_read || reading.as_mut().poll(context).is_ready();
        if is_closed && has_read { Poll::Ready(Ok(())) } else { Poll::Pending }
    });
    // Without its sender, hyper would close the idle connection.
    drop(sender);
    let parts = connection.into_parts();
    let consumed = parts.io.delivered - parts.read_buf.len();
    match recorder.0.borrow().messages.is_empty() && outcome.is_pending() {
        true => Transcript { messages: Vec::new(), end: End::InHead { consumed } },
        false => recorder.transcript(&outcome, consumed),
    }
}

/// Polls until the future is ready, or has stopped making progress.
fn poll_until_idle(
    recorder: &Recorder,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<hyper::Result<()>>,
) -> Poll<hyper::Result<()>> {
    let wakes = Arc::new(WakeRecorder::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let (mut idle_polls, mut seen) = (0, recorder.progress());
    while idle_polls < IDLE_POLLS {
        if let Poll::Ready(outcome) = poll(&mut Context::from_waker(&waker)) {
            return Poll::Ready(outcome);
        }
        let now = recorder.progress();
        let has_progressed = now != seen || wakes.0.swap(false, Ordering::Relaxed);
        idle_polls = if has_progressed { 0 } else { idle_polls + 1 };
        seen = now;
    }
    Poll::Pending
}

// === impl Recorder ===

impl Recorder {
    /// Records a message and reads its body into it.
    async fn record(&self, message: Message, mut body: Incoming) {
        self.0.borrow_mut().messages.push(message);
        loop {
            let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
            let mut recorded = self.0.borrow_mut();
            let message = recorded.messages.last_mut().expect("it was pushed above");
            match frame {
                None => message.is_complete = true,
                Some(Ok(frame)) => {
                    message.body.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..]));
                    continue;
                }
                Some(Err(_)) => recorded.has_failed = true,
            }
            return;
        }
    }

    fn progress(&self) -> (usize, usize, bool) {
        let recorded = self.0.borrow();
        let last = recorded.messages.last();
        let body = last.map_or(0, |message| message.body.len());
        (recorded.messages.len(), body, last.is_some_and(|message| message.is_complete))
    }

    fn transcript(&self, outcome: &Poll<hyper::Result<()>>, consumed: usize) -> Transcript {
        let recorded = self.0.borrow();
        let is_complete = recorded.messages.last().is_none_or(|message| message.is_complete);
        let end = match outcome {
            _ if recorded.has_failed => End::Refused,
            Poll::Ready(Err(_)) => End::Refused,
            Poll::Ready(Ok(())) if is_complete => End::Closed { consumed },
            Poll::Ready(Ok(())) => End::Refused,
            Poll::Pending if is_complete => End::Open { consumed },
            Poll::Pending => End::InBody,
        };
        Transcript { messages: recorded.messages.clone(), end }
    }
}

impl Wake for WakeRecorder {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// === impl PieceIo ===

impl Read for PieceIo {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if !self.is_sending {
            return Poll::Pending;
        }
        let Some(mut piece) = self.pieces.pop_front() else {
            return if self.ending == Ending::Close { Poll::Ready(Ok(())) } else { Poll::Pending };
        };
        let now = piece.split_to(piece.len().min(into.remaining()));
        if !piece.is_empty() {
            self.pieces.push_front(piece);
        }
        self.delivered += now.len();
        into.put_slice(&now);
        Poll::Ready(Ok(()))
    }
}

impl Write for PieceIo {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.is_sending = true;
        Poll::Ready(Ok(from.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
