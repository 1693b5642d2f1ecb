//! Our side in whole: the loop of the HTTP/1.1 server and the pooled connection of the client, over a stream in memory.

use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Method as Verb, Response, StatusCode};
use http_body_util::Empty;
use rialto::http::client::InMemoryClient;
use rialto::http::codec::{RequestError, RequestHead};
use rialto::http::server::{Http1Implementation, HttpService, ReceivedBody, ServerSettings, serve_in_memory};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::differential::{ClientRequest, End, Ending, HEAD_RULES, Message};

/// More than any input or what answers it.
const STREAM_BYTES: usize = 1 << 20;
/// What follows an input that ends between two messages.
const NEXT_REQUEST: &[u8] = b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
const NEXT_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext";

/// What becomes of the bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bodies {
    /// Read whole.
    Whole,
    /// Read as they come; for responses.
    InParts,
    /// Not read, because the head of the request decides the answer.
    Unread,
}

/// What a loop made of its input: the positions of messages are not seen from outside.
#[derive(Debug, PartialEq, Eq)]
pub struct LoopTranscript {
    pub messages: Vec<Message>,
    /// `Open` also within a head.
    pub end: End,
    /// Whether what follows the input is read as the next message.
    pub reads_next: bool,
}

/// Records the requests of a connection.
#[derive(Clone)]
struct RecordingService {
    recorded: Arc<Mutex<Recorded>>,
    bodies: Bodies,
}

#[derive(Default)]
struct Recorded {
    messages: Vec<Message>,
    is_refused: bool,
}

#[derive(Default)]
struct WakeFlag(AtomicBool);

impl RecordingService {
    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap()
    }
}

impl HttpService for RecordingService {
    type Admission<'r> = Bodies;
    type ResponseBody = Empty<Bytes>;

    fn settings(&self) -> ServerSettings {
        let never = Duration::from_secs(3600);
        ServerSettings {
            head: HEAD_RULES,
            max_body_bytes: usize::MAX,
            header_timeout: never,
            body_timeout: never,
            keep_alive_timeout: never,
            write_stall_timeout: never,
            http1: Http1Implementation::Rialto,
        }
    }

    fn admit<'r>(&'r self, head: &'r RequestHead) -> Bodies {
        let start_line = format!("{} {}", head.verb, head.uri);
        let message = Message { start_line, headers: head.headers.to_map(), ..Message::default() };
        self.recorded().messages.push(message);
        self.bodies
    }

    fn wants_body(bodies: &Bodies) -> bool {
        *bodies != Bodies::Unread
    }

    async fn respond(&self, _: Bodies, body: ReceivedBody) -> Response<Empty<Bytes>> {
        // The connection reads ahead meanwhile.
        yield_once().await;
        let mut recorded = self.recorded();
        match body {
            Ok(body) => {
                let message = recorded.messages.last_mut().unwrap();
                (message.body, message.is_complete) = (body.to_vec(), true);
            }
            Err(_) => recorded.is_refused = true,
        }
        Response::new(Empty::new())
    }

    fn reject_head(&self, _: RequestError) -> Response<Empty<Bytes>> {
        self.recorded().is_refused = true;
        let mut response = Response::new(Empty::new());
        *response.status_mut() = StatusCode::BAD_REQUEST;
        response
    }

    fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        pending()
    }

    fn closing(&self) -> impl Future<Output = ()> + Send + 'static {
        pending()
    }
}

/// What the server makes of requests that arrive in pieces.
pub fn serve(pieces: &[&[u8]], bodies: Bodies) -> LoopTranscript {
    let service = RecordingService { recorded: Arc::default(), bodies };
    let (stream, mut client) = duplex(STREAM_BYTES);
    let mut serving = pin!(serve_in_memory(service.clone(), stream));
    let mut ended = poll_until_idle(serving.as_mut());
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        send(&mut client, piece);
        if ended.is_pending() {
            ended = poll_until_idle(serving.as_mut());
        }
    }
    let is_closed = ended.is_ready() || is_at_end(&mut client);
    let is_refused = service.recorded().is_refused;
    let messages = service.recorded().messages.clone();
    let is_complete = messages.last().is_none_or(|message| message.is_complete);
    let end = match is_closed {
        _ if is_refused => End::Refused,
        true => End::Closed { consumed: 0 },
        false if is_complete => End::Open { consumed: 0 },
        false => End::InBody,
    };
    if end == (End::Open { consumed: 0 }) {
        send(&mut client, NEXT_REQUEST);
        let _ = poll_until_idle(serving.as_mut());
    }
    let after = service.recorded().messages[messages.len()..].to_vec();
    let reads_next = matches!(&after[..], [next] if next.start_line == "GET /next" && next.is_complete);
    LoopTranscript { messages, end, reads_next }
}

/// What the client makes of a response that arrives in pieces.
pub fn receive(request: ClientRequest, pieces: &[&[u8]], ending: Ending, bodies: Bodies) -> LoopTranscript {
    let verb = match request {
        ClientRequest::Post => Verb::POST,
        ClientRequest::Head => Verb::HEAD,
    };
    let (stream, mut server) = duplex(STREAM_BYTES);
    let client = InMemoryClient::new(stream);
    let messages = Mutex::new(Vec::new());
    let mut exchange = pin!(exchange(&client, verb, bodies, &messages));
    let mut ended = poll_until_idle(exchange.as_mut());
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        send(&mut server, piece);
        if ended.is_pending() {
            ended = poll_until_idle(exchange.as_mut());
        }
    }
    if ending == Ending::Close {
        let _ = poll_until_idle(pin!(server.shutdown()));
        if ended.is_pending() {
            ended = poll_until_idle(exchange.as_mut());
        }
    }
    let end = match ended {
        Poll::Ready(Some(())) if client.is_open() => End::Open { consumed: 0 },
        Poll::Ready(Some(())) => End::Closed { consumed: 0 },
        Poll::Ready(None) => End::Refused,
        Poll::Pending if messages.lock().unwrap().is_empty() => End::Open { consumed: 0 },
        Poll::Pending => End::InBody,
    };
    let reads_next = matches!(ended, Poll::Ready(Some(()))) && client.is_open() && {
        let next = Mutex::new(Vec::new());
        let mut exchange = pin!(self::exchange(&client, Verb::POST, bodies, &next));
        let _ = poll_until_idle(exchange.as_mut());
        send(&mut server, NEXT_RESPONSE);
        let _ = poll_until_idle(exchange.as_mut());
        next.lock().unwrap().iter().map(|message: &Message| &message.body[..]).eq([b"next"])
    };
    let messages = messages.lock().unwrap().clone();
    LoopTranscript { messages, end, reads_next }
}

/// Sends a request and records its response; `None` when there is none, or no whole one.
async fn exchange(client: &InMemoryClient, verb: Verb, bodies: Bodies, messages: &Mutex<Vec<Message>>) -> Option<()> {
    let (head, mut body) = client.send(verb).await.ok()?;
    let message =
        Message { start_line: head.status().as_str().to_owned(), headers: head.headers(), ..Message::default() };
    messages.lock().unwrap().push(message);
    let mut read = Vec::new();
    if bodies == Bodies::Whole {
        read.extend_from_slice(&body.read_to_end().await.ok()?);
    } else {
        while let Some(data) = body.next().await {
            read.extend_from_slice(&data.ok()?);
        }
    }
    let mut messages = messages.lock().unwrap();
    let message = messages.last_mut()?;
    (message.body, message.is_complete) = (read, true);
    Some(())
}

/// Writes to a stream that has room; one that the other side has closed takes nothing.
fn send(stream: &mut DuplexStream, bytes: &[u8]) {
    assert!(poll_until_idle(pin!(stream.write_all(bytes))).is_ready(), "the stream is full");
}

/// Reads what the other side has sent; whether it has closed the stream.
fn is_at_end(stream: &mut DuplexStream) -> bool {
    let mut read = Vec::new();
    poll_until_idle(pin!(stream.read_to_end(&mut read))).is_ready()
}

/// Polls until the future is ready, or waits for something that no poll brings about.
fn poll_until_idle<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    let woken = Arc::new(WakeFlag::default());
    let waker = Waker::from(Arc::clone(&woken));
    loop {
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() || !woken.0.swap(false, Ordering::Relaxed) {
            return polled;
        }
    }
}

async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
