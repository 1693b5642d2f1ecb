//! The two values of a call in flight: the [`Call`] on its way to an upstream, and the [`Replies`] that come
//! back.
//!
//! Replies are notifications and server requests, then exactly one answer. Dropping the replies cancels the
//! call: the task behind them sees [`ReplySender::cancelled`] resolve and stops.

mod responder;

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::access_log::AccessRecord;
use crate::dialect::Revision;
use crate::failure::{Failure, FailureKind};
use crate::identity::{CallerId, Identity};
use crate::metrics::OperationTarget;
use crate::protocol::{ErrorObject, Id, Level, Method, Notification, NotificationMethod, Outcome, Payload, Raw, code};
use crate::recorder::Mark;
use crate::trace::{CallTrace, RemoteParent};
pub use responder::{InputClock, Responder};

/// The HTTP request (or stdio connection) that a call arrived on, for upstreams and policy.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Who calls.
    pub identity: Arc<Identity>,
    /// The socket address of the client; `None` on stdio.
    pub peer: Option<SocketAddr>,
    /// The request id, for logs and upstreams; `None` for calls that came in no HTTP request.
    pub request_id: Option<HeaderValue>,
    /// The request headers that policy allows to be forwarded, but the request id.
    pub headers: HeaderMap,
    /// The record of the request in the access log, where there is one.
    pub access: Option<Arc<AccessRecord>>,
    /// The span of the node that relayed the request, where one did that traces calls.
    pub relay_span: Option<Arc<RemoteParent>>,
}

/// The header that carries the request id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The W3C trace context headers. In MCP messages the same names are members of `_meta`.
pub const TRACE_HEADERS: [&str; 3] = ["traceparent", "tracestate", "baggage"];

impl Caller {
    /// A caller that came in no HTTP request.
    pub fn local(identity: impl Into<Arc<Identity>>) -> Self {
        Self {
            identity: identity.into(),
            peer: None,
            request_id: None,
            headers: HeaderMap::new(),
            access: None,
            relay_span: None,
        }
    }

    /// The number of the call for the recorder; none where nobody watches.
    #[inline]
    pub fn mark(&self) -> Mark {
        self.access.as_ref().map_or(Mark::NONE, |access| access.mark())
    }

    /// What belongs to this caller is kept under this id.
    pub fn id(&self) -> &CallerId {
        &self.identity.caller_id
    }

    /// The request id for logs; `-` when the request has none.
    pub fn request_id(&self) -> &str {
        self.request_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or("-")
    }
}

/// A client's self-description, from its handshake or from the `_meta` of the request.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// The revision the client speaks.
    pub revision: Revision,
    /// The client capabilities, as declared.
    pub capabilities: Raw,
    /// The `clientInfo` object, if the client sent one.
    pub info: Option<Raw>,
}

/// One client request on its way to an upstream.
#[derive(Debug, Clone)]
pub struct Call {
    /// The client's request id.
    pub id: Id,
    /// The method of the request.
    pub method: Method,
    /// The parameters, byte for byte as received.
    pub params: Option<Payload>,
    /// The self-description of the client that sent the request.
    pub client: Arc<ClientInfo>,
    /// The identity and headers of the request.
    pub caller: Arc<Caller>,
    /// The minimum log level the client wants for this call; `None` means no log messages.
    pub level: Option<Level>,
    /// The progress token; `None` means that the client wants no progress notifications.
    pub progress_token: Option<Raw>,
    /// The session of the call; `None` in the per-request era.
    pub sink: Option<Arc<dyn ClientSink>>,
    /// The share of the call in the rate limits, kept while it is in flight; `None` where none matches.
    pub limits: Option<Arc<dyn CallLimits>>,
    /// Whether a long result may come in pieces.
    pub delivery: AnswerDelivery,
    /// The trace that the call belongs to.
    pub trace: CallTrace,
    /// The tool or prompt in metrics, as the client names it; `None` where it was not looked up.
    pub target_label: Option<OperationTarget>,
}

/// What rate limits have to do with a call. Dropping it ends the time that the call counts as in flight.
pub trait CallLimits: fmt::Debug + Send + Sync {
    /// Gives back what the call took, because it was not sent.
    fn give_back(&self);

    /// The longest that the call may take, where a limit says so.
    fn total_timeout(&self) -> Option<Duration>;
}

/// How the result of a call may reach its reader. A layer that has to see or change whole results asks for
/// [`Self::Whole`] before it passes the call on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AnswerDelivery {
    /// In the answer.
    #[default]
    Whole,
    /// As [pieces](Reply::Piece) before the answer, where it is long.
    InPieces,
}

/// A client that can be sent messages outside its calls: a session, or a session behind the name mapping of
/// its group.
pub trait ClientSink: fmt::Debug + Send + Sync {
    /// Unique key of the session.
    fn key(&self) -> u128;

    /// The session in logs and traces, where it tells sessions apart and opens none.
    fn log_tag(&self) -> Option<String> {
        None
    }

    /// The log level set by `logging/setLevel`; `None` until the client sets one.
    fn level(&self) -> Option<Level>;

    /// Sends a notification that belongs to no call. Never blocks.
    fn notify(&self, notification: Notification);

    /// Sends a server request that belongs to no call. Never blocks.
    fn send_request(self: Arc<Self>, question: ServerRequest);

    /// Cancelled when the session ends.
    fn ended(&self) -> &CancellationToken;

    /// Records a resource subscription. The guard is dropped when the subscription or the session ends.
    fn add_subscription(&self, uri: &str, kept: DropGuard);

    /// Removes a resource subscription and drops its guard.
    fn remove_subscription(&self, uri: &str);

    /// Whether the session is subscribed to exactly this URI.
    fn is_subscribed(&self, uri: &str) -> bool;

    /// The slot in which the gateway caches state for this session.
    fn gateway_slot(&self) -> &GatewaySlot;

    /// The saved upstream session that this session can resume, as written by
    /// [`Self::save_upstream_session`].
    fn saved_upstream_session(&self, _upstream: &str) -> Option<Bytes> {
        None
    }

    /// Saves the id of an upstream session so that another node can resume it; `None` removes it. Never
    /// blocks.
    fn save_upstream_session(&self, _upstream: &str, _what: Option<Bytes>) {}

    /// Whether another node owns the session now. If so, its upstream sessions must not be closed here.
    fn moved_to_other_node(&self) -> bool {
        false
    }
}

/// A guard that releases a resource when dropped.
pub type DropGuard = Option<Box<dyn Any + Send + Sync>>;

/// A type-erased slot for one value of the gateway.
#[derive(Default)]
pub struct GatewaySlot(Mutex<Option<Arc<dyn Any + Send + Sync>>>);

/// One item of the replies to a call.
#[derive(Debug)]
pub enum Reply {
    /// A notification that belongs to the call.
    Notification(Notification),
    /// A request that the upstream sends to the client during the call.
    ServerRequest(ServerRequest),
    /// The next bytes of a long result, of a call whose [delivery](Call::delivery) allows it. Nothing but pieces and
    /// the end follow. The result in the answer then says only what kind of result it was; an error in the answer
    /// means that the result broke off.
    Piece(Bytes),
    /// The final answer; the last item.
    End(Answer),
}

/// A request from an upstream to the client: sampling, elicitation or roots.
#[derive(Debug)]
pub struct ServerRequest {
    /// The method of the request.
    pub method: Method,
    /// The parameters of the request.
    pub params: Option<Raw>,
    /// Receives the client's response.
    pub responder: Responder,
    /// Name of the server that asks, once the gateway has passed it on.
    pub asker: Option<Arc<str>>,
}

/// The final answer to a call.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The result or the error.
    pub outcome: Outcome,
    /// The revision whose schema the outcome follows.
    pub revision: Revision,
}

/// A change of an upstream's lists or resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeEvent {
    /// The list of tools changed.
    Tools,
    /// The list of prompts changed.
    Prompts,
    /// The list of resources or resource templates changed.
    Resources,
    /// The resource with this URI changed.
    ResourceUpdated(Arc<str>),
}

/// Content fingerprints of the tool, prompt and resource lists, comparable between nodes.
pub type ListFingerprints = [u64; 3];

/// The replies to one call: notifications and server requests, then exactly one answer.
#[derive(Debug)]
pub struct Replies(ReplySource);

enum ReplySource {
    Queue(VecDeque<Reply>),
    Ready(Option<Answer>),
    Channel(Option<mpsc::Receiver<Reply>>),
    Running(Option<RunningFuture>),
}

/// A call as one future: it hands out replies through its [`ReplyYielder`] and completes with the answer.
type RunningFuture = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Takes the replies of a running call that precede its answer.
pub trait ReplySink: Send {
    /// Hands over a notification or a server request; completes when the reader asks for the next reply.
    fn send(&mut self, reply: Reply) -> impl Future<Output = ()> + Send;
}

/// Hands the replies of a [running](Replies::run) call to the reader of its [`Replies`].
#[derive(Debug)]
pub struct ReplyYielder(());

/// What a running call has handed out during a poll.
enum Yielded {
    Reply(Reply),
    /// The reader goes on with what this makes of the replies.
    Wrap(Box<dyn FnOnce(Replies) -> Replies + Send>),
}

thread_local! {
    /// Filled by [`ReplyYielder`] while the call's future is polled, and emptied by the same poll: passing the reply
    /// through the future itself would need shared state on the heap for each call.
    static YIELDED: RefCell<Option<Yielded>> = const { RefCell::new(None) };
}

/// The sending half of [`Replies`].
#[derive(Debug)]
pub struct ReplySender(mpsc::Sender<Reply>);

/// Replies buffered for a slow reader before the sender waits. Only the task of this one call waits.
const REPLY_CHANNEL_CAPACITY: usize = 16;

// === impl Answer ===

impl Answer {
    /// A result that follows the newest revision.
    pub fn result(result: Raw) -> Self {
        Self { outcome: Ok(result.into()), revision: Revision::NEWEST }
    }

    /// An error that follows the newest revision.
    pub fn error(error: ErrorObject) -> Self {
        Self { outcome: Err(error), revision: Revision::NEWEST }
    }

    /// The answer of a call whose source ended without one.
    pub fn missing() -> Self {
        Self::error(Failure::new(FailureKind::Broken, "the call ended without an answer").into())
    }

    /// Records that the call of a failure was not sent, so that it cannot have run.
    pub fn mark_not_sent(&mut self) {
        self.map_failure(Failure::before_sending);
    }

    /// Records that the call of a failure was sent, at least in part, so that it may have run.
    pub fn mark_sent(&mut self) {
        self.map_failure(Failure::after_sending);
    }

    fn map_failure(&mut self, map: impl FnOnce(Failure) -> Failure) {
        if let Err(error) = &mut self.outcome
            && let Some(failure) = error.failure()
        {
            *error = map(failure.clone()).into();
        }
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

// === impl ChangeEvent ===

impl ChangeEvent {
    /// The lists that can change, in the order of [`ListFingerprints`].
    pub const LISTS: [Self; 3] = [Self::Tools, Self::Prompts, Self::Resources];

    /// The notification that announces the change.
    pub fn notification(&self) -> Notification {
        match self {
            Self::Tools => Notification::new(NotificationMethod::ToolsChanged, None),
            Self::Prompts => Notification::new(NotificationMethod::PromptsChanged, None),
            Self::Resources => Notification::new(NotificationMethod::ResourcesChanged, None),
            Self::ResourceUpdated(uri) => {
                let params = Raw::empty().edit().set("uri", Raw::of(uri.as_ref())).finish();
                Notification::new(NotificationMethod::ResourceUpdated, Some(params))
            }
        }
    }
}

// === impl ServerRequest ===

impl ServerRequest {
    /// Responds that the client does not support this request.
    pub fn refuse(self) {
        // A send error means that the upstream stopped waiting.
        let _ = self.responder.send(Err(ErrorObject::new(code::METHOD_NOT_FOUND, "the client cannot be asked this")));
    }

    /// Responds that the client has as many open server requests as it may have.
    pub fn refuse_over_limit(self, limit: usize) {
        let why = format!("{limit} server requests of this client are open; wait for their answers first");
        let _ = self.responder.send(Err(ErrorObject::new(code::INTERNAL_ERROR, format!("Internal error: {why}"))));
    }

    /// Responds that the user is gone, with the outcome that each method defines for it.
    pub fn abandon(self) {
        let outcome = match self.method.as_str() {
            "elicitation/create" => Ok(Raw::constant(r#"{"action":"cancel"}"#).into()),
            "sampling/createMessage" => Err(ErrorObject::new(SAMPLING_REJECTED_CODE, "nobody is there to sample")),
            _ => Err(ErrorObject::new(code::METHOD_NOT_FOUND, "nobody is there to answer")),
        };
        let _ = self.responder.send(outcome);
    }
}

/// The error code by which clients reject a sampling request.
const SAMPLING_REJECTED_CODE: i64 = -1;

// === impl GatewaySlot ===

impl GatewaySlot {
    /// The stored value, if it has type `T`.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let here = self.0.lock().clone();
        here.and_then(|here| here.downcast().ok())
    }

    /// Replaces the stored value.
    pub fn set<T: Any + Send + Sync>(&self, thing: Arc<T>) {
        *self.0.lock() = Some(thing);
    }
}

impl fmt::Debug for GatewaySlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GatewaySlot")
    }
}

// === impl Replies ===

impl Replies {
    /// A bounded channel of replies.
    pub fn channel() -> (ReplySender, Self) {
        let (sender, receiver) = mpsc::channel(REPLY_CHANNEL_CAPACITY);
        (ReplySender(sender), Self(ReplySource::Channel(Some(receiver))))
    }

    /// Notifications that are already known, followed by the answer.
    pub fn queued(notices: impl IntoIterator<Item = Notification>, answer: Answer) -> Self {
        let mut queue: VecDeque<Reply> = notices.into_iter().map(Reply::Notification).collect();
        queue.push_back(Reply::End(answer));
        Self(ReplySource::Queue(queue))
    }

    /// Replies of a call that runs as they are read; dropping the replies drops the future.
    pub fn run<F: Future<Output = Answer> + Send + 'static>(run: impl FnOnce(ReplyYielder) -> F) -> Self {
        Self(ReplySource::Running(Some(Box::pin(run(ReplyYielder(()))))))
    }

    /// Takes the answer if it is available now and no other reply precedes it.
    pub fn take_ready(&mut self) -> Option<Answer> {
        match &mut self.0 {
            ReplySource::Ready(answer) => answer.take(),
            _ => None,
        }
    }

    /// The next reply; `None` after the answer. Cancel-safe.
    pub async fn next(&mut self) -> Option<Reply> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the next reply; `None` after the answer.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Reply>> {
        match &mut self.0 {
            ReplySource::Ready(answer) => Poll::Ready(answer.take().map(Reply::End)),
            ReplySource::Queue(queue) => Poll::Ready(queue.pop_front()),
            ReplySource::Channel(open) => {
                let Some(receiver) = open else { return Poll::Ready(None) };
                let reply = match receiver.poll_recv(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(reply) => reply.unwrap_or_else(|| Reply::End(Answer::missing())),
                };
                if matches!(reply, Reply::End(_)) {
                    *open = None;
                }
                Poll::Ready(Some(reply))
            }
            ReplySource::Running(_) => self.poll_running(context),
        }
    }

    fn poll_running(&mut self, context: &mut Context<'_>) -> Poll<Option<Reply>> {
        let ReplySource::Running(running) = &mut self.0 else { return self.poll_next(context) };
        let Some(future) = running else { return Poll::Ready(None) };
        // A call may read the replies of another one: what that one yields must not be taken for its own.
        let outer = YIELDED.take();
        let polled = future.as_mut().poll(context);
        let yielded = YIELDED.replace(outer);
        match (polled, yielded) {
            (Poll::Ready(answer), _) => {
                *running = None;
                Poll::Ready(Some(Reply::End(answer)))
            }
            (Poll::Pending, None) => Poll::Pending,
            (Poll::Pending, Some(Yielded::Reply(reply))) => Poll::Ready(Some(reply)),
            (Poll::Pending, Some(Yielded::Wrap(wrap))) => {
                *self = wrap(Self(ReplySource::Running(running.take())));
                self.poll_next(context)
            }
        }
    }

    /// Takes the replies that are left; `None` after the answer.
    pub fn take_unfinished(&mut self) -> Option<Self> {
        match std::mem::replace(&mut self.0, ReplySource::Ready(None)) {
            ReplySource::Ready(None) | ReplySource::Channel(None) | ReplySource::Running(None) => None,
            ReplySource::Queue(queue) if queue.is_empty() => None,
            unfinished => Some(Self(unfinished)),
        }
    }

    /// Hands every reply but the answer to `sink` and returns the answer.
    pub async fn forward_to(mut self, sink: &mut impl ReplySink) -> Answer {
        loop {
            match self.next().await {
                Some(Reply::End(answer)) => return answer,
                Some(reply) => sink.send(reply).await,
                None => return Answer::missing(),
            }
        }
    }
}

// === impl ReplyYielder ===

impl ReplyYielder {
    /// Replaces the replies that the reader holds, which are those of this call, by what `wrap` makes of them.
    /// Completes when the reader asks for the next reply.
    pub async fn wrap(&mut self, wrap: impl FnOnce(Replies) -> Replies + Send + 'static) {
        yield_to_reader(Yielded::Wrap(Box::new(wrap))).await;
    }
}

impl ReplySink for ReplyYielder {
    async fn send(&mut self, reply: Reply) {
        yield_to_reader(Yielded::Reply(reply)).await;
    }
}

/// Suspends the running call once, with something for its reader. No waker is needed: the reader, which gets what was
/// yielded, polls again for the next reply.
async fn yield_to_reader(item: Yielded) {
    let mut item = Some(item);
    std::future::poll_fn(|_| match item.take() {
        Some(item) => {
            YIELDED.set(Some(item));
            Poll::Pending
        }
        None => Poll::Ready(()),
    })
    .await;
}

impl fmt::Debug for ReplySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queue(_) => "Queue",
            Self::Ready(_) => "Ready",
            Self::Channel(_) => "Channel",
            Self::Running(_) => "Running",
        })
    }
}

// === impl ReplySender ===

impl ReplySender {
    /// Sends a notification; false when the call was cancelled.
    pub async fn notify(&self, notification: Notification) -> bool {
        self.0.send(Reply::Notification(notification)).await.is_ok()
    }

    /// Sends the final answer.
    pub async fn end(self, answer: Answer) {
        // A send error means that the call was cancelled.
        let _ = self.0.send(Reply::End(answer)).await;
    }

    /// Resolves when the call is cancelled: the replies were dropped.
    pub async fn cancelled(&self) {
        self.0.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn replies_end_after_the_answer() {
        let (sender, mut replies) = Replies::channel();
        tokio::spawn(async move { sender.end(Answer::result(Raw::empty())).await });
        assert!(matches!(replies.next().await, Some(Reply::End(_))));
        assert!(replies.next().await.is_none());
        assert!(replies.next().await.is_none());
    }

    #[tokio::test]
    async fn dropped_sender_yields_an_internal_error() {
        let (sender, mut replies) = Replies::channel();
        drop(sender);
        let Some(Reply::End(answer)) = replies.next().await else { panic!() };
        assert_eq!(answer.outcome.unwrap_err().code(), code::INTERNAL_ERROR);
        assert!(replies.next().await.is_none());
    }

    fn notification(text: &str) -> Reply {
        Reply::Notification(Notification::new(NotificationMethod::Message, Some(Raw::of(text))))
    }

    fn text(reply: Option<Reply>) -> String {
        let Some(Reply::Notification(notification)) = reply else { panic!("{reply:?}") };
        notification.params.unwrap().text().unwrap().into_owned()
    }

    #[tokio::test]
    async fn running_call_yields_replies_before_its_answer() {
        let inner = |name: &'static str| {
            Replies::run(move |mut out| async move {
                for n in 0..3 {
                    out.send(notification(&format!("{name}{n}"))).await;
                    tokio::task::yield_now().await;
                }
                Answer::result(Raw::empty())
            })
        };
        // Nested, so that a reply of the inner call cannot be taken for one of the outer call.
        let mut replies = Replies::run(|mut out| async move {
            out.send(notification("first")).await;
            inner("a").forward_to(&mut out).await
        });
        let mut other = inner("b");
        for expected in ["first", "a0", "a1", "a2"] {
            assert_eq!(text(replies.next().await), expected);
            if expected != "first" {
                assert_eq!(text(other.next().await), expected.replace('a', "b"));
            }
        }
        assert!(matches!(replies.next().await, Some(Reply::End(_))));
        assert!(replies.next().await.is_none());
    }

    #[tokio::test]
    async fn running_call_can_have_its_replies_wrapped() {
        let mut replies = Replies::run(|mut out| async move {
            out.wrap(|rest| {
                Replies::run(|mut out| async move {
                    out.send(notification("wrapped")).await;
                    rest.forward_to(&mut out).await
                })
            })
            .await;
            out.send(notification("rest")).await;
            Answer::result(Raw::empty())
        });
        assert_eq!(text(replies.next().await), "wrapped");
        assert_eq!(text(replies.next().await), "rest");
        assert!(matches!(replies.next().await, Some(Reply::End(_))));
    }

    #[tokio::test]
    async fn dropping_the_replies_cancels_the_call() {
        let (sender, replies) = Replies::channel();
        drop(replies);
        sender.cancelled().await;
    }
}
