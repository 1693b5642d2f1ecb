//! The two values that travel the line: a [`Call`] on its way to an upstream, and the [`Replies`]
//! that come back for it.
//!
//! Replies are notices and questions, then exactly one answer. Dropping them gives the call up:
//! whoever works on it sees [`Replier::abandoned`] and stops.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderName};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::dialect::Revision;
use crate::protocol::{ErrorObject, Id, Level, Method, Notice, Notification, Outcome, Raw, code};

/// Who a caller is, as far as policy can tell.
pub type Principal = Arc<str>;

/// Facts about the request that brought a call, for upstreams and policy.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Who it is.
    pub principal: Principal,
    /// Where it connected from; nothing on stdio.
    pub peer: Option<SocketAddr>,
    /// The headers that policy lets through.
    pub headers: HeaderMap,
}

/// The header that names a request.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The headers that tell a trace across processes; in messages they are members of `_meta`.
pub const TRACE: [&str; 3] = ["traceparent", "tracestate", "baggage"];

impl Caller {
    /// The name of the request, for logs.
    pub fn request(&self) -> &str {
        self.headers.get(&REQUEST_ID).and_then(|name| name.to_str().ok()).unwrap_or("-")
    }
}

/// What a client has said of itself, in its handshake or with the request.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// The revision that it speaks.
    pub revision: Revision,
    /// What it can do.
    pub capabilities: Raw,
    /// Who it is, if it says.
    pub info: Option<Raw>,
}

/// One request of a client on its way.
#[derive(Debug, Clone)]
pub struct Call {
    /// The client's id for it.
    pub id: Id,
    /// What is asked.
    pub method: Method,
    /// With what, as it came.
    pub params: Option<Raw>,
    /// What the client has said of itself.
    pub client: Arc<ClientInfo>,
    /// Who asks, and from where.
    pub caller: Arc<Caller>,
    /// From which level on the client wants log messages; nothing means none.
    pub level: Option<Level>,
    /// What progress is to be reported under; nothing means that none is wanted.
    pub progress: Option<Raw>,
    /// The session that the call belongs to; nothing in the per-request era.
    pub sink: Option<Arc<dyn ClientSink>>,
}

/// A client that can be reached outside of its calls: a session, or a session behind the name mapping of its group.
pub trait ClientSink: fmt::Debug + Send + Sync {
    /// Tells it from every other.
    fn key(&self) -> u128;

    /// From which level on it wants log messages, once it has chosen.
    fn level(&self) -> Option<Level>;

    /// Sends it a notification that belongs to no call. Never waits.
    fn notify(&self, notification: Notification);

    /// Asks it something that belongs to no call. Never waits.
    fn ask(self: Arc<Self>, question: ServerRequest);

    /// Cancelled when it is gone.
    fn ended(&self) -> &CancellationToken;

    /// It hears of a resource from now on; what is kept is let go when it does no longer.
    fn subscribed(&self, uri: &str, kept: DropGuard);

    /// It hears of a resource no longer.
    fn unsubscribed(&self, uri: &str);

    /// Whether it wants to hear of a resource under this very URI.
    fn follows(&self, uri: &str) -> bool;

    /// A place for what the gateway remembers of it.
    fn shelf(&self) -> &GatewaySlot;

    /// What is remembered of the session that an upstream keeps for it.
    fn remembered(&self, _upstream: &str) -> Option<Bytes> {
        None
    }

    /// An upstream keeps a session for it which another node could go on with, or no longer does.
    /// Never waits.
    fn remember(&self, _upstream: &str, _what: Option<Bytes>) {}

    /// Whether it lives on elsewhere: what upstreams keep for it stays.
    fn moved_to_other_node(&self) -> bool {
        false
    }
}

/// Something that is let go by dropping it.
pub type DropGuard = Option<Box<dyn Any + Send + Sync>>;

/// A place for one thing that somebody else knows the type of.
#[derive(Default)]
pub struct GatewaySlot(Mutex<Option<Arc<dyn Any + Send + Sync>>>);

/// One thing that comes back for a call.
#[derive(Debug)]
pub enum Reply {
    /// Something that belongs to the call and wants no answer.
    Notice(Notification),
    /// Something that the upstream wants to know of the client.
    Question(ServerRequest),
    /// How the call ended; nothing comes after it.
    End(Answer),
}

/// What an upstream asks of the client during a call.
#[derive(Debug)]
pub struct ServerRequest {
    /// What is asked.
    pub method: Method,
    /// With what.
    pub params: Option<Raw>,
    /// Where the client's answer goes. Dropped, it tells the upstream that none will come.
    pub answer: oneshot::Sender<Outcome>,
}

/// How a call ended.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The result or the error.
    pub outcome: Outcome,
    /// The revision whose shapes it has.
    pub revision: Revision,
}

/// Something at an upstream that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeEvent {
    /// Its list of tools.
    Tools,
    /// Its list of prompts.
    Prompts,
    /// Its list of resources.
    Resources,
    /// One resource, by its URI.
    Updated(Arc<str>),
}

/// What tells whether lists are the same on two nodes: those of tools, of prompts and of resources.
pub type ListFingerprints = [u64; 3];

/// What comes back for a call.
#[derive(Debug)]
pub struct Replies(ReplySource);

enum ReplySource {
    Queue(VecDeque<Reply>),
    Ready(Option<Answer>),
    Channel(Option<mpsc::Receiver<Reply>>),
    Stream(Option<Pin<Box<dyn Stream<Item = Reply> + Send>>>),
}

/// The other end of [`Replies`].
#[derive(Debug)]
pub struct ReplySender(mpsc::Sender<Reply>);

/// How many replies may wait for a slow reader before the sender waits too. Only the task that
/// works on the one call ever waits.
const REPLIES_WAITING: usize = 16;

// === impl Answer ===

impl Answer {
    /// A result in the shapes of the newest revision.
    pub fn result(result: Raw) -> Self {
        Self { outcome: Ok(result), revision: Revision::NEWEST }
    }

    /// An error in the shapes of the newest revision.
    pub fn error(error: ErrorObject) -> Self {
        Self { outcome: Err(error), revision: Revision::NEWEST }
    }
}

impl From<Answer> for Replies {
    fn from(answer: Answer) -> Self {
        Self(ReplySource::Ready(Some(answer)))
    }
}

impl From<ErrorObject> for Replies {
    fn from(error: ErrorObject) -> Self {
        Answer::error(error).into()
    }
}

// === impl Change ===

impl ChangeEvent {
    /// The lists that can change, in the order of [`Prints`].
    pub const LISTS: [Self; 3] = [Self::Tools, Self::Prompts, Self::Resources];

    /// The notification that tells of it.
    pub fn notification(&self) -> Notification {
        match self {
            Self::Tools => Notification::new(Notice::ToolsChanged, None),
            Self::Prompts => Notification::new(Notice::PromptsChanged, None),
            Self::Resources => Notification::new(Notice::ResourcesChanged, None),
            Self::Updated(uri) => {
                let params = Raw::empty().edit().set("uri", Raw::of(uri.as_ref())).finish();
                Notification::new(Notice::ResourceUpdated, Some(params))
            }
        }
    }
}

// === impl Question ===

impl ServerRequest {
    /// Says that the client cannot be asked this.
    pub fn refuse(self) {
        // The upstream may have stopped waiting; then nobody has to be told.
        let _ = self.answer.send(Err(ErrorObject::new(code::METHOD_NOT_FOUND, "the client cannot be asked this")));
    }

    /// Says that there is nobody to answer, in the way that each kind of question has for it.
    pub fn abandon(self) {
        let outcome = match self.method.as_str() {
            "elicitation/create" => Ok(Raw::constant(r#"{"action":"cancel"}"#)),
            "sampling/createMessage" => Err(ErrorObject::new(REFUSED, "nobody is there to sample")),
            _ => Err(ErrorObject::new(code::METHOD_NOT_FOUND, "nobody is there to answer")),
        };
        let _ = self.answer.send(outcome);
    }
}

/// The code by which clients decline to sample.
const REFUSED: i64 = -1;

// === impl Shelf ===

impl GatewaySlot {
    /// What lies there, if it is of that type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let here = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        here.and_then(|here| here.downcast().ok())
    }

    /// Puts something there instead of what was.
    pub fn put<T: Any + Send + Sync>(&self, thing: Arc<T>) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(thing);
    }
}

impl fmt::Debug for GatewaySlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shelf")
    }
}

// === impl Replies ===

impl Replies {
    /// Replies that will come later, and where to put them.
    pub fn channel() -> (ReplySender, Self) {
        let (sender, receiver) = mpsc::channel(REPLIES_WAITING);
        (ReplySender(sender), Self(ReplySource::Channel(Some(receiver))))
    }

    /// Notices that are already there, and the answer.
    pub fn queued(notices: impl IntoIterator<Item = Notification>, answer: Answer) -> Self {
        let mut queue: VecDeque<Reply> = notices.into_iter().map(Reply::Notice).collect();
        queue.push_back(Reply::End(answer));
        Self(ReplySource::Queue(queue))
    }

    /// Replies that are made as they are read; dropping them drops their maker.
    pub fn stream(stream: impl Stream<Item = Reply> + Send + 'static) -> Self {
        Self(ReplySource::Stream(Some(Box::pin(stream))))
    }

    /// The answer, if it is there and nothing comes before it.
    pub fn take_ready(&mut self) -> Option<Answer> {
        match &mut self.0 {
            ReplySource::Ready(answer) => answer.take(),
            _ => None,
        }
    }

    /// The next reply; nothing after the answer. Cancel-safe.
    pub async fn next(&mut self) -> Option<Reply> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The next reply; nothing after the answer.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Reply>> {
        match &mut self.0 {
            ReplySource::Ready(answer) => Poll::Ready(answer.take().map(Reply::End)),
            ReplySource::Queue(queue) => Poll::Ready(queue.pop_front()),
            ReplySource::Channel(open) => {
                let Some(receiver) = open else { return Poll::Ready(None) };
                let reply = match receiver.poll_recv(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(reply) => reply.unwrap_or_else(unanswered),
                };
                if matches!(reply, Reply::End(_)) {
                    *open = None;
                }
                Poll::Ready(Some(reply))
            }
            ReplySource::Stream(open) => {
                let Some(stream) = open else { return Poll::Ready(None) };
                let reply = match stream.as_mut().poll_next(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(reply) => reply.unwrap_or_else(unanswered),
                };
                if matches!(reply, Reply::End(_)) {
                    *open = None;
                }
                Poll::Ready(Some(reply))
            }
        }
    }
}

impl fmt::Debug for ReplySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queue(_) => "Queue",
            Self::Ready(_) => "Ready",
            Self::Channel(_) => "Channel",
            Self::Stream(_) => "Stream",
        })
    }
}

/// Whoever worked on the call went away without a word.
fn unanswered() -> Reply {
    let message = "Internal error: the call ended without an answer";
    Reply::End(Answer::error(ErrorObject::new(code::INTERNAL_ERROR, message)))
}

// === impl Replier ===

impl ReplySender {
    /// Passes a notice on; false when nobody wants the call any more.
    pub async fn notice(&self, notification: Notification) -> bool {
        self.0.send(Reply::Notice(notification)).await.is_ok()
    }

    /// Ends the call.
    pub async fn end(self, answer: Answer) {
        // A reader that went away has given the call up; nobody is left to tell.
        let _ = self.0.send(Reply::End(answer)).await;
    }

    /// Waits until nobody wants the call any more.
    pub async fn abandoned(&self) {
        self.0.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_comes_after_the_answer() {
        let (replier, mut replies) = Replies::channel();
        tokio::spawn(async move { replier.end(Answer::result(Raw::empty())).await });
        assert!(matches!(replies.next().await, Some(Reply::End(_))));
        assert!(replies.next().await.is_none());
        assert!(replies.next().await.is_none());
    }

    #[tokio::test]
    async fn a_lost_replier_is_an_error() {
        let (replier, mut replies) = Replies::channel();
        drop(replier);
        let Some(Reply::End(answer)) = replies.next().await else { panic!() };
        assert_eq!(answer.outcome.unwrap_err().code(), code::INTERNAL_ERROR);
        assert!(replies.next().await.is_none());
    }

    #[tokio::test]
    async fn dropping_replies_gives_the_call_up() {
        let (replier, replies) = Replies::channel();
        drop(replies);
        replier.abandoned().await;
    }
}
