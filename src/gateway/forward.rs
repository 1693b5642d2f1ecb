//! A call on its way to an upstream, and what comes back for it: names are changed back, questions
//! and log messages pass only where they may, and failures are told in our words.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use http::HeaderValue;
use memchr::memmem::Finder;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group::Group;
use super::name_mapping::NameMapping;
use super::view::GroupMember;
use crate::call::{Answer, Call, ClientInfo, ClientSink, DropGuard, GatewaySlot, Replies, Reply, ServerRequest, TRACE};
use crate::dialect::{Revision, server_requests, tasks};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{CallMetrics, CallOutcome};
use crate::protocol::{ErrorObject, Level, Method, Notice, Notification, Raw, code};
use crate::upstream::{LeaseGuard, QUESTIONS, Upstream};

/// What is looked for in every call, and in every result: seldom there, and then looked at.
static TRACEPARENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"traceparent\""));
static IS_ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"isError\""));

/// A call on its way.
struct ForwardedCall {
    group: Arc<Group>,
    call: Call,
    upstream: Arc<Upstream>,
    rename: NameMapping,
    tallies: Arc<CallMetrics>,
    /// The server takes the call as a task only, and the client does not ask for one.
    as_task: bool,
    phase: ForwardState,
    /// The URI, as the client knows it, that the call subscribes to.
    subscribes: Option<String>,
    begun: Instant,
}

enum ForwardState {
    Start,
    /// A connection is being opened.
    Borrowing(BoxFuture<'static, Result<LeaseGuard>>),
    Running(Replies, Option<LeaseGuard>),
    Done,
}

/// Passes a call on to a member of a group.
pub(super) fn call(group: &Arc<Group>, call: Call, member: &GroupMember) -> Replies {
    let mut forward = ForwardedCall::new(group, call, member, None);
    if let Some(mut replies) = member.upstream.answer(&forward.call) {
        if let Some(revision) = member.state.revision {
            member.upstream.count_revision_pair(forward.call.client.revision, revision);
        }
        if let Some(answer) = replies.take_ready() {
            forward.phase = ForwardState::Done;
            return forward.answer(answer).into();
        }
        forward.phase = ForwardState::Running(replies, None);
    }
    forward.replies()
}

/// Passes a subscription on, and remembers it when it was taken.
pub(super) fn subscription(group: &Arc<Group>, call: Call, member: &GroupMember, uri: &str) -> Replies {
    ForwardedCall::new(group, call, member, Some(uri.to_owned())).replies()
}

/// Replies that are known only after some waiting.
pub(super) fn later(begin: impl Future<Output = Replies> + Send + 'static) -> Replies {
    enum AcquireState<F> {
        Waiting(F),
        Running(Replies),
    }
    let state = AcquireState::Waiting(Box::pin(begin));
    Replies::stream(futures_util::stream::unfold(state, |state| async move {
        let mut replies = match state {
            AcquireState::Waiting(begin) => begin.await,
            AcquireState::Running(replies) => replies,
        };
        let reply = replies.next().await?;
        Some((reply, AcquireState::Running(replies)))
    }))
}

impl ForwardedCall {
    fn new(group: &Arc<Group>, call: Call, member: &GroupMember, subscribes: Option<String>) -> Self {
        let (call, as_task) = as_task(call, member);
        Self {
            group: Arc::clone(group),
            call: with_trace_headers(without_server_requests(call, &member.upstream)),
            as_task,
            upstream: Arc::clone(&member.upstream),
            rename: member.rename.clone(),
            tallies: Arc::clone(&member.tallies),
            phase: ForwardState::Start,
            subscribes,
            begun: Instant::now(),
        }
    }

    fn replies(self) -> Replies {
        Replies::stream(self)
    }

    /// Gets hold of a connection, at once if it can.
    fn start(&mut self) {
        if let Some(borrowed) = self.upstream.try_acquire(&self.call) {
            return self.begin(borrowed);
        }
        let (upstream, call, door) = (Arc::clone(&self.upstream), self.call.clone(), self.door());
        let sink = || door.map(|door| Arc::new(door) as Arc<dyn ClientSink>);
        self.phase = ForwardState::Borrowing(Box::pin(async move { upstream.acquire(&call, sink).await }));
    }

    fn begin(&mut self, borrowed: LeaseGuard) {
        let (connection, call) = (borrowed.connection(), self.call.clone());
        self.upstream.count_revision_pair(call.client.revision, connection.revision());
        let replies = if self.as_task { connection.call_as_task(call) } else { connection.call(call) };
        self.phase = ForwardState::Running(replies, Some(borrowed));
    }

    /// Where things go that the server says to this caller outside of its calls.
    fn door(&self) -> Option<SessionSink> {
        let sink = self.call.sink.clone()?;
        Some(SessionSink {
            group: Arc::clone(&self.group),
            upstream: Arc::clone(&self.upstream),
            client: Arc::clone(&self.call.client),
            sink,
        })
    }

    fn reply(&mut self, reply: Reply) -> Option<Reply> {
        match reply {
            Reply::Notice(notification) => {
                let passes = notification.notice != Notice::Message
                    || logs(&notification, self.call.level, self.call.sink.is_some());
                passes.then(|| Reply::Notice(self.rename.notification(notification)))
            }
            Reply::Question(question) => {
                if let ForwardState::Running(_, Some(borrowed)) = &self.phase
                    && !borrowed.may_ask()
                {
                    return None; // dropping the question says that no answer will come
                }
                let question = admit(question, &self.upstream, &self.call.client)?;
                Some(Reply::Question(self.rename.question(question)))
            }
            Reply::End(answer) => {
                let phase = std::mem::replace(&mut self.phase, ForwardState::Done);
                if let (ForwardState::Running(_, Some(borrowed)), Ok(_)) = (phase, &answer.outcome) {
                    self.remember(&borrowed);
                }
                Some(Reply::End(self.answer(answer)))
            }
        }
    }

    fn remember(&self, borrowed: &LeaseGuard) {
        let (Some(uri), Some(sink)) = (&self.subscribes, &self.call.sink) else { return };
        let own = self.call.params.as_ref().and_then(|params| params.get("uri"));
        let own = own.as_ref().and_then(Raw::text).unwrap_or_default();
        let subscribes = self.call.method == Method::Subscribe;
        borrowed.remember(&own, subscribes);
        if subscribes {
            sink.subscribed(uri, None);
        } else {
            sink.unsubscribed(uri);
        }
    }

    fn note(&self, ending: CallOutcome) {
        tracing::debug!(
            request = self.call.caller.request(),
            group = %self.group.name(),
            upstream = %self.upstream.name(),
            method = %self.call.method,
            outcome = ending.as_str(),
            took = ?self.begun.elapsed(),
            "a call ended"
        );
        self.group.note((&self.tallies, self.upstream.name()), &self.call.method, self.begun, ending);
    }

    fn answer(&self, answer: Answer) -> Answer {
        self.note(match &answer.outcome {
            Ok(result) if self.call.method == Method::ToolsCall && says_error(result) => CallOutcome::ToolError,
            Ok(_) => CallOutcome::Ok,
            Err(error) if error.is_unavailable() => CallOutcome::Unavailable,
            Err(_) => CallOutcome::Error,
        });
        let outcome = match answer.outcome {
            Ok(result) => Ok(self.rename.result(&self.call.method, result)),
            Err(error) if error.is_unavailable() => Err(self.unavailable(&error)),
            Err(error) => Err(self.rename.error(error)),
        };
        Answer { outcome, ..answer }
    }

    /// An answer that did not come, in words that are fit for anybody: where the server is, and what
    /// it said last, is for the log.
    fn unavailable(&self, error: &ErrorObject) -> ErrorObject {
        let name = self.upstream.name();
        tracing::warn!(request = self.call.caller.request(), upstream = %name, group = %self.group.name(), method = %self.call.method, error = error.message(), "a call was not answered");
        let why = match error.message().starts_with("Request timed out") {
            true => "did not answer in time",
            false => "broke off before it answered; the call may or may not have been carried out",
        };
        ErrorObject::unavailable(format!("Upstream unavailable: {name:?} {why}"))
    }

    fn unreachable(&self, error: &Error) -> ErrorObject {
        let name = self.upstream.name();
        tracing::warn!(request = self.call.caller.request(), upstream = %name, group = %self.group.name(), method = %self.call.method, %error, "a call cannot be passed on");
        let why = match error.kind() {
            ErrorKind::Timeout => "is still starting; try again in a moment",
            ErrorKind::Credentials => "wants other credentials than it is given here",
            ErrorKind::Revision => "speaks no revision that is spoken here",
            _ if error.to_string().contains("connections are in use") => {
                "has as many clients as it may have; try again later"
            }
            _ => "cannot be reached just now; the call was not sent",
        };
        ErrorObject::unavailable(format!("Upstream unavailable: {name:?} {why}"))
    }
}

impl Stream for ForwardedCall {
    type Item = Reply;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Reply>> {
        let forward = self.get_mut();
        loop {
            match &mut forward.phase {
                ForwardState::Done => return Poll::Ready(None),
                ForwardState::Start => forward.start(),
                ForwardState::Borrowing(borrowing) => match ready!(borrowing.as_mut().poll(context)) {
                    Ok(borrowed) => forward.begin(borrowed),
                    Err(error) => {
                        forward.phase = ForwardState::Done;
                        forward.note(CallOutcome::Unavailable);
                        return Poll::Ready(Some(Reply::End(Answer::error(forward.unreachable(&error)))));
                    }
                },
                ForwardState::Running(replies, _) => {
                    let Some(reply) = ready!(replies.poll_next(context)) else { return Poll::Ready(None) };
                    if let Some(reply) = forward.reply(reply) {
                        return Poll::Ready(Some(reply));
                    }
                }
            }
        }
    }
}

impl Drop for ForwardedCall {
    fn drop(&mut self) {
        if !matches!(self.phase, ForwardState::Done) {
            self.note(CallOutcome::Cancelled);
        }
    }
}

/// A call as the upstream takes it, and whether that is as a task only. A client that asks for one, and
/// was told that it can have one, gets it: then its task is its own business.
fn as_task(mut call: Call, member: &GroupMember) -> (Call, bool) {
    let speaks = |revision: Revision| revision.facts().tool_tasks;
    if !member.state.revision.is_some_and(speaks) {
        return (call, false);
    }
    if tasks::are_asked_for(&call.method, call.params.as_ref()) {
        // Of several upstreams nobody is told that they have tasks of this kind.
        if speaks(call.client.revision) && member.rename.tasks.is_none() {
            return (call, false);
        }
        call.params = call.params.map(|params| params.edit().remove("task").finish());
    }
    let needed = member.state.needs_task(&call);
    (call, needed)
}

/// A call of a client that cannot be asked anything, if the upstream may not ask.
fn without_server_requests(mut call: Call, upstream: &Upstream) -> Call {
    if !upstream.spec().allow_server_requests {
        let mut client = (*call.client).clone();
        for kind in QUESTIONS {
            client.capabilities = client.capabilities.edit().remove(kind).finish();
        }
        call.client = Arc::new(client);
    }
    call
}

/// A call whose headers tell the trace that its message does, for upstreams that read it there.
fn with_trace_headers(mut call: Call) -> Call {
    let told = call.params.as_ref().filter(|params| TRACEPARENT.find(params.as_bytes()).is_some());
    let Some(meta) = told.and_then(|params| params.get("_meta")) else { return call };
    let mut caller = (*call.caller).clone();
    for name in TRACE {
        let value = meta.get(name);
        let value = value.as_ref().and_then(Raw::text).and_then(|text| HeaderValue::from_str(&text).ok());
        if let Some(value) = value {
            caller.headers.insert(name, value);
        }
    }
    call.caller = Arc::new(caller);
    call
}

/// Whether a result says that the tool failed.
fn says_error(result: &Raw) -> bool {
    let text = result.as_bytes();
    // It is there in most results, and false.
    let is_true = |at: usize| {
        let rest = text[at + IS_ERROR.needle().len()..].trim_ascii_start();
        rest.strip_prefix(b":").is_some_and(|value| value.trim_ascii_start().starts_with(b"true"))
    };
    IS_ERROR.find_iter(text).any(is_true) && result.get("isError").is_some_and(|flag| flag.as_bytes() == b"true")
}

/// Whether a log message is wanted.
fn logs(notification: &Notification, wanted: Option<Level>, in_session: bool) -> bool {
    // A session that has not chosen gets what the server sends by itself.
    let Some(wanted) = wanted else { return in_session };
    let level = notification.params.as_ref().and_then(|params| params.get("level"));
    level.as_ref().and_then(Level::from_raw).is_none_or(|level| level >= wanted)
}

/// Lets a question pass if the upstream may ask and the client can answer; otherwise whoever asks is
/// told so at once.
fn admit(question: ServerRequest, upstream: &Upstream, client: &ClientInfo) -> Option<ServerRequest> {
    let kind = question.method.as_str().split('/').next().unwrap_or_default();
    let known = QUESTIONS.contains(&kind);
    let url = kind == "elicitation" && {
        let mode = question.params.as_ref().and_then(|params| params.get("mode"));
        mode.as_ref().and_then(Raw::text).as_deref() == Some("url")
    };
    let able = client.capabilities.get(kind).is_some_and(|able| !url || able.get("url").is_some());
    if known && !(upstream.spec().allow_server_requests && able) {
        question.refuse();
        return None;
    }
    let ServerRequest { method, params, answer } = question;
    match server_requests::for_client(&method, params, client.revision) {
        Ok(params) => Some(ServerRequest { method, params, answer }),
        Err(why) => {
            // The upstream may have stopped waiting; then nobody has to be told.
            let _ = answer.send(Err(ErrorObject::new(code::INVALID_PARAMS, why)));
            None
        }
    }
}

/// What a server says to one session outside of its calls.
#[derive(Debug)]
struct SessionSink {
    group: Arc<Group>,
    upstream: Arc<Upstream>,
    client: Arc<ClientInfo>,
    sink: Arc<dyn ClientSink>,
}

impl SessionSink {
    fn rename(&self) -> NameMapping {
        self.group.member(self.upstream.name()).map(|member| member.rename).unwrap_or_default()
    }
}

impl ClientSink for SessionSink {
    fn key(&self) -> u128 {
        self.sink.key()
    }

    fn level(&self) -> Option<Level> {
        self.sink.level()
    }

    fn notify(&self, notification: Notification) {
        if notification.notice == Notice::Message && !logs(&notification, self.sink.level(), true) {
            return;
        }
        let renamed = self.rename().notification(notification.clone());
        // A client that knows a resource by the upstream's own URI hears of it under that.
        let follows = |told: &Notification| {
            let uri = told.params.as_ref().and_then(|params| params.get("uri"));
            uri.as_ref().and_then(Raw::text).is_some_and(|uri| self.sink.follows(&uri))
        };
        let updated = notification.notice == Notice::ResourceUpdated;
        let as_it_is = updated && follows(&notification) && !follows(&renamed);
        self.sink.notify(if as_it_is { notification } else { renamed });
    }

    fn ask(self: Arc<Self>, question: ServerRequest) {
        if let Some(question) = admit(question, &self.upstream, &self.client) {
            Arc::clone(&self.sink).ask(self.rename().question(question));
        }
    }

    fn ended(&self) -> &CancellationToken {
        self.sink.ended()
    }

    fn subscribed(&self, uri: &str, kept: DropGuard) {
        self.sink.subscribed(uri, kept);
    }

    fn unsubscribed(&self, uri: &str) {
        self.sink.unsubscribed(uri);
    }

    fn follows(&self, uri: &str) -> bool {
        self.sink.follows(uri)
    }

    fn shelf(&self) -> &GatewaySlot {
        self.sink.shelf()
    }

    fn remembered(&self, upstream: &str) -> Option<Bytes> {
        self.sink.remembered(upstream)
    }

    fn remember(&self, upstream: &str, what: Option<Bytes>) {
        self.sink.remember(upstream, what);
    }

    fn moved_to_other_node(&self) -> bool {
        self.sink.moved_to_other_node()
    }
}
