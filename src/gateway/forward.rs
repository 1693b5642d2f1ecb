//! Forwards a call to an upstream and maps its replies: names are mapped back, server requests and log
//! messages are filtered, and failures become errors that reveal no address.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::HeaderValue;
use memchr::memmem::Finder;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group::Group;
use super::name_mapping::NameMapping;
use super::parked_calls;
use super::view::GroupMember;
use crate::call::{
    Answer, Call, ClientInfo, ClientSink, DropGuard, GatewaySlot, Replies, Reply, ReplySink, ReplyYielder,
    ServerRequest, TRACE_HEADERS,
};
use crate::dialect::{Revision, server_requests, tasks};
use crate::error::Result;
use crate::failure::{Failure, FailureSide};
use crate::metrics::{CallMetrics, CallOutcome};
use crate::protocol::{ErrorObject, Key, Level, Method, Notification, NotificationMethod, Payload, Raw, code};
use crate::upstream::{LeaseGuard, Leg, SERVER_REQUEST_CAPABILITIES};

/// Spares most calls the search for a trace context that they do not have.
static TRACEPARENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"traceparent\""));

/// A call being forwarded to one upstream.
struct ForwardedCall {
    group: Arc<Group>,
    call: Call,
    leg: Arc<Leg>,
    name_mapping: NameMapping,
    metrics: Arc<CallMetrics>,
    purpose: Purpose,
    /// Set where the call may be parked.
    client_view: Option<ClientView>,
    started: Instant,
    /// The call was counted; dropped before that, it counts as cancelled.
    is_recorded: bool,
}

/// What is special about a forwarded call.
enum Purpose {
    Plain,
    /// The tool requires a task and the client did not ask for one, so the gateway drives the task.
    AsTask,
    /// The URI that the call subscribes to or unsubscribes from, as the client knows it.
    Subscription(String),
}

/// What the client sent, before names and capabilities were mapped. The call is parked with it when the server asks for
/// input and the client cannot be sent requests.
pub(super) struct ClientView {
    pub(super) params: Option<Payload>,
    pub(super) client: Arc<ClientInfo>,
}

/// Maps what an upstream sends during a call and hands it to the client.
struct MappedReplies<'c> {
    forward: &'c ForwardedCall,
    /// The connection of the call; none for a server in this process.
    lease: Option<&'c LeaseGuard>,
    out: &'c mut ReplyYielder,
    parking: Parking,
}

/// How far a call that may be parked has come.
#[derive(Clone, Copy, PartialEq)]
enum Parking {
    /// The client is sent server requests.
    Never,
    /// The first server request parks the call.
    OnRequest,
    /// The replies are read by [`parked_calls`].
    Begun,
}

/// Forwards a call to a member of a group. With `client_view` the call may be parked.
pub(super) fn call(group: &Arc<Group>, call: Call, member: &GroupMember, client_view: Option<ClientView>) -> Replies {
    let mut forward = ForwardedCall::new(group, call, member, Purpose::Plain);
    forward.client_view = client_view;
    if take_task_wish(&mut forward.call, member) {
        forward.purpose = Purpose::AsTask;
    }
    let Some(mut replies) = member.leg.call_local(&forward.call) else { return forward.replies() };
    if let Some(revision) = member.state.revision {
        member.leg.count_revision_pair(forward.call.client.revision, revision);
    }
    match replies.take_ready() {
        Some(answer) => forward.map_answer(answer).into(),
        None => Replies::run(|out| forward.run_local(replies, out)),
    }
}

/// Forwards a subscribe or unsubscribe request, and records the subscription when the upstream accepts it.
pub(super) fn subscription(group: &Arc<Group>, call: Call, member: &GroupMember, uri: &str) -> Replies {
    ForwardedCall::new(group, call, member, Purpose::Subscription(uri.to_owned())).replies()
}

/// Replies whose source is known only after a future resolves.
pub(super) fn deferred(begin: impl Future<Output = Replies> + Send + 'static) -> Replies {
    Replies::run(|mut out| async move { begin.await.forward_to(&mut out).await })
}

impl ForwardedCall {
    fn new(group: &Arc<Group>, call: Call, member: &GroupMember, purpose: Purpose) -> Self {
        let mut forward = Self {
            group: Arc::clone(group),
            call,
            purpose,
            client_view: None,
            leg: Arc::clone(&member.leg),
            name_mapping: member.name_mapping.clone(),
            metrics: Arc::clone(&member.metrics),
            started: Instant::now(),
            is_recorded: false,
        };
        remove_server_requests(&mut forward.call, &member.leg);
        copy_trace_context(&mut forward.call);
        forward
    }

    fn replies(self) -> Replies {
        Replies::run(|out| self.run(out))
    }

    /// Acquires a connection, sends the call and maps its replies.
    async fn run(mut self, mut out: ReplyYielder) -> Answer {
        let lease = match self.leg.try_acquire(&self.call) {
            Some(lease) => Ok(lease),
            None => Box::pin(self.acquire()).await,
        };
        let lease = match lease {
            Ok(lease) => lease,
            Err(error) => {
                self.record_outcome(CallOutcome::Unavailable);
                return Answer::error(self.failed(error.into_failure().before_sending()));
            }
        };
        let connection = lease.connection();
        self.leg.count_revision_pair(self.call.client.revision, connection.revision());
        let parking = if self.client_view.is_some() { Parking::OnRequest } else { Parking::Never };
        let mut mapped = MappedReplies { forward: &self, lease: Some(&lease), out: &mut out, parking };
        let answer = match self.purpose {
            Purpose::AsTask => Box::pin(connection.run_call_as_task(&self.call, &mut mapped)).await,
            _ => connection.run_call(&self.call, &mut mapped).await,
        };
        let is_parked = mapped.parking == Parking::Begun;
        if let (Purpose::Subscription(uri), Ok(_)) = (&self.purpose, &answer.outcome) {
            self.record_subscription(uri, &lease);
        }
        drop(lease);
        let answer = self.map_answer(answer);
        match &self.client_view {
            // The answer of a parked call is mapped for the request that resumes it.
            Some(view) if !is_parked => parked_calls::map_answer(&self.group, || self.client_call(view), answer),
            _ => answer,
        }
    }

    /// Maps the replies of a server in this process.
    async fn run_local(mut self, replies: Replies, mut out: ReplyYielder) -> Answer {
        let mut mapped = MappedReplies { forward: &self, lease: None, out: &mut out, parking: Parking::Never };
        let answer = replies.forward_to(&mut mapped).await;
        self.map_answer(answer)
    }

    async fn acquire(&self) -> Result<LeaseGuard> {
        let session_sink = self.session_sink();
        let sink = || session_sink.map(|session_sink| Arc::new(session_sink) as Arc<dyn ClientSink>);
        self.leg.acquire(&self.call, sink).await
    }

    /// The call as the client made it.
    fn client_call(&self, view: &ClientView) -> Call {
        Call { params: view.params.clone(), client: Arc::clone(&view.client), ..self.call.clone() }
    }

    /// The sink for messages that the server sends to this session outside its calls.
    fn session_sink(&self) -> Option<SessionSink> {
        let sink = self.call.sink.clone()?;
        Some(SessionSink {
            group: Arc::clone(&self.group),
            leg: Arc::clone(&self.leg),
            client: Arc::clone(&self.call.client),
            sink,
        })
    }

    fn map_notification(&self, notification: Notification) -> Option<Notification> {
        let passes = notification.method != NotificationMethod::Message
            || passes_log_level(&notification, self.call.level, self.call.sink.is_some());
        passes.then(|| self.name_mapping.map_notification(notification))
    }

    fn map_server_request(&self, request: ServerRequest) -> Option<ServerRequest> {
        let request = admit_server_request(request, &self.leg, &self.call.client)?;
        Some(self.name_mapping.map_server_request(request))
    }

    fn record_subscription(&self, uri: &str, lease: &LeaseGuard) {
        let Some(sink) = &self.call.sink else { return };
        let own = self.call.params.as_ref().and_then(|params| params.text_of(Key::Uri)).unwrap_or_default();
        let subscribes = self.call.method == Method::Subscribe;
        lease.record_subscription(&own, subscribes);
        if subscribes {
            sink.add_subscription(uri, None);
        } else {
            sink.remove_subscription(uri);
        }
    }

    fn record_outcome(&mut self, outcome: CallOutcome) {
        self.is_recorded = true;
        tracing::debug!(
            request = self.call.caller.request_id(),
            group = %self.group.name(),
            upstream = %self.leg.name(),
            method = %self.call.method,
            outcome = outcome.as_str(),
            took = ?self.started.elapsed(),
            "a call ended"
        );
        self.group.record_call((&self.metrics, self.leg.name()), &self.call.method, self.started, outcome);
    }

    fn map_answer(&mut self, answer: Answer) -> Answer {
        self.record_outcome(match &answer.outcome {
            Ok(result) if self.call.method == Method::ToolsCall && result.is_true(Key::IsError) => {
                CallOutcome::ToolError
            }
            Ok(_) => CallOutcome::Ok,
            Err(error) => match error.failure().map(|failure| failure.kind().side()) {
                Some(FailureSide::Upstream) => CallOutcome::Unavailable,
                Some(FailureSide::Client | FailureSide::Gateway) | None => CallOutcome::Error,
            },
        });
        let outcome = match answer.outcome {
            Ok(result) => Ok(self.name_mapping.map_result(&self.call.method, result)),
            Err(error) => Err(match error.failure() {
                Some(failure) => self.failed(failure.clone()),
                None => self.name_mapping.map_error(error),
            }),
        };
        Answer { outcome, ..answer }
    }

    /// The client's error for a call without an answer. The address and the last output of the server go to the log
    /// only.
    fn failed(&self, failure: Failure) -> ErrorObject {
        let name = self.leg.name();
        tracing::warn!(request = self.call.caller.request_id(), upstream = %name, group = %self.group.name(), method = %self.call.method, kind = failure.kind().name(), error = %failure, "upstream call failed");
        failure.of_upstream(name).into()
    }
}

impl Drop for ForwardedCall {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.record_outcome(CallOutcome::Cancelled);
        }
    }
}

impl ReplySink for MappedReplies<'_> {
    async fn send(&mut self, reply: Reply) {
        match reply {
            Reply::Notification(notification) => {
                if let Some(notification) = self.forward.map_notification(notification) {
                    self.out.send(Reply::Notification(notification)).await;
                }
            }
            // Dropping a server request tells the server that no response will come.
            Reply::ServerRequest(_) if self.lease.is_some_and(|lease| !lease.allows_server_requests()) => {}
            Reply::ServerRequest(request) => {
                if let Some(request) = self.forward.map_server_request(request) {
                    self.send_request(request).await;
                }
            }
            Reply::End(_) => {}
        }
    }
}

impl MappedReplies<'_> {
    /// Sends a server request to the client, or parks the call of a client that cannot be sent any.
    async fn send_request(&mut self, request: ServerRequest) {
        match &self.forward.client_view {
            Some(view) if self.parking == Parking::OnRequest => {
                self.parking = Parking::Begun;
                let (group, call) = (Arc::clone(&self.forward.group), self.forward.client_call(view));
                self.out.wrap(move |replies| parked_calls::park(&group, call, replies, request)).await;
            }
            _ => self.out.send(Reply::ServerRequest(request)).await,
        }
    }
}

/// Decides whether the gateway must run the call as a task, and removes a wish for one that cannot be granted. A client
/// that asks for a task and was told it may have one keeps it: the client then drives the task itself.
fn take_task_wish(call: &mut Call, member: &GroupMember) -> bool {
    let has_tool_tasks = |revision: Revision| revision.creates_tool_tasks();
    if !member.state.revision.is_some_and(has_tool_tasks) {
        return false;
    }
    if tasks::requests_task(&call.method, call.params.as_ref()) {
        // A group with several upstreams declares no tasks of this revision.
        if has_tool_tasks(call.client.revision) && member.name_mapping.task_prefix.is_none() {
            return false;
        }
        call.params = call.params.take().map(|params| params.edit().remove(Key::Task.as_str()).finish().into());
    }
    member.state.requires_task(call)
}

/// Removes the client capabilities for server requests if the upstream is not allowed to send any.
fn remove_server_requests(call: &mut Call, leg: &Leg) {
    if !leg.spec().allow_server_requests {
        let mut client = (*call.client).clone();
        for kind in SERVER_REQUEST_CAPABILITIES {
            client.capabilities = client.capabilities.edit().remove(kind).finish();
        }
        call.client = Arc::new(client);
    }
}

/// Copies the trace context from `_meta` to the headers, for upstreams that read it there.
fn copy_trace_context(call: &mut Call) {
    let meta = call.params.as_ref().and_then(|params| params.member(Key::Meta));
    let Some(meta) = meta.filter(|meta| TRACEPARENT.find(meta.as_bytes()).is_some()) else { return };
    let mut caller = (*call.caller).clone();
    for name in TRACE_HEADERS {
        let value = meta.get(name);
        let value = value.as_ref().and_then(Raw::text).and_then(|text| HeaderValue::from_str(&text).ok());
        if let Some(value) = value {
            caller.headers.insert(name, value);
        }
    }
    call.caller = Arc::new(caller);
}

/// Whether a log message passes the client's log level.
fn passes_log_level(notification: &Notification, wanted: Option<Level>, in_session: bool) -> bool {
    // A session that has set no level gets what the server sends by default.
    let Some(wanted) = wanted else { return in_session };
    let level = notification.params.as_ref().and_then(|params| params.get("level"));
    level.as_ref().and_then(Level::from_raw).is_none_or(|level| level >= wanted)
}

/// Passes a server request if the upstream may send it and the client supports it; otherwise responds with an
/// error at once.
fn admit_server_request(request: ServerRequest, leg: &Leg, client: &ClientInfo) -> Option<ServerRequest> {
    let kind = request.method.as_str().split('/').next().unwrap_or_default();
    let known = SERVER_REQUEST_CAPABILITIES.contains(&kind);
    let url = kind == "elicitation" && {
        let mode = request.params.as_ref().and_then(|params| params.get("mode"));
        mode.as_ref().and_then(Raw::text).as_deref() == Some("url")
    };
    let is_supported = client.capabilities.get(kind).is_some_and(|declared| !url || declared.get("url").is_some());
    if known && !(leg.spec().allow_server_requests && is_supported) {
        request.refuse();
        return None;
    }
    let ServerRequest { method, params, responder: answer } = request;
    match server_requests::for_client(&method, params, client.revision) {
        Ok(params) => Some(ServerRequest { method, params, responder: answer }),
        Err(why) => {
            // A send error means that the upstream stopped waiting.
            let _ = answer.send(Err(ErrorObject::new(code::INVALID_PARAMS, why)));
            None
        }
    }
}

/// The sink that an upstream uses for one session: maps names, then delivers to the session.
#[derive(Debug)]
struct SessionSink {
    group: Arc<Group>,
    leg: Arc<Leg>,
    client: Arc<ClientInfo>,
    sink: Arc<dyn ClientSink>,
}

impl SessionSink {
    fn rename(&self) -> NameMapping {
        self.group.name_mapping(self.leg.name()).unwrap_or_default()
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
        if notification.method == NotificationMethod::Message
            && !passes_log_level(&notification, self.sink.level(), true)
        {
            return;
        }
        let renamed = self.rename().map_notification(notification.clone());
        // A client subscribed under the upstream's own URI is notified under that URI.
        let follows = |told: &Notification| {
            let uri = told.params.as_ref().and_then(|params| params.get("uri"));
            uri.as_ref().and_then(Raw::text).is_some_and(|uri| self.sink.is_subscribed(&uri))
        };
        let updated = notification.method == NotificationMethod::ResourceUpdated;
        let as_it_is = updated && follows(&notification) && !follows(&renamed);
        self.sink.notify(if as_it_is { notification } else { renamed });
    }

    fn send_request(self: Arc<Self>, request: ServerRequest) {
        if let Some(request) = admit_server_request(request, &self.leg, &self.client) {
            Arc::clone(&self.sink).send_request(self.rename().map_server_request(request));
        }
    }

    fn ended(&self) -> &CancellationToken {
        self.sink.ended()
    }

    fn add_subscription(&self, uri: &str, kept: DropGuard) {
        self.sink.add_subscription(uri, kept);
    }

    fn remove_subscription(&self, uri: &str) {
        self.sink.remove_subscription(uri);
    }

    fn is_subscribed(&self, uri: &str) -> bool {
        self.sink.is_subscribed(uri)
    }

    fn gateway_slot(&self) -> &GatewaySlot {
        self.sink.gateway_slot()
    }

    fn saved_upstream_session(&self, upstream: &str) -> Option<Bytes> {
        self.sink.saved_upstream_session(upstream)
    }

    fn save_upstream_session(&self, upstream: &str, what: Option<Bytes>) {
        self.sink.save_upstream_session(upstream, what);
    }

    fn moved_to_other_node(&self) -> bool {
        self.sink.moved_to_other_node()
    }
}
