//! Forwards a call to an upstream and maps its replies: names are mapped back, server requests and log
//! messages are filtered, and failures become errors that reveal no address.

mod outcome;

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::decisions::AuditedTarget;
use super::group::Group;
use super::held_tasks::{self, NewTask};
use super::hidden_calls;
use super::name_mapping::NameMapping;
use super::operations::{operation_error, outcome_error};
use super::parked_calls;
use super::server_request_rules::{admit_server_request, remove_server_requests};
use super::session_sink::SessionSink;
use super::task_bridge::{CreatedTask, OfferedTask, TaskRequest};
use super::task_mapping::TaskMapping;
use super::trace_context;
use super::view::GroupMember;
use crate::access_log::ServerFacts;
use crate::call::{
    Answer, AnswerDelivery, Call, ClientInfo, ClientSink, InputClock, Replies, Reply, ReplySink, ReplyYielder,
    ServerRequest,
};
use crate::dialect::{Revision, tasks, to_client};
use crate::error::Result;
use crate::failure::{Failure, FailureKind, FailureSide};
use crate::metrics::{CallMetrics, CallOutcome, OperationError};
use crate::protocol::{ErrorObject, Key, Level, Method, Notification, NotificationMethod, Payload};
use crate::trace::{AttributeValue, SpanKind};
use crate::upstream::{LeaseGuard, Leg};

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
    /// What the audit log needs.
    audited: AuditedTarget,
    started: Instant,
    /// The revision of the server, once there is a connection.
    server_revision: Option<Revision>,
    /// Set where the client is sent requests of the server.
    input: OnceLock<Arc<InputClock>>,
    /// The call was counted; dropped before that, it counts as cancelled.
    is_recorded: bool,
}

/// What is special about a forwarded call.
enum Purpose {
    Plain,
    /// The tool requires a task and the client did not ask for one, so the gateway drives the task.
    AsTask,
    /// The same, for a client of the other era that knows tasks: the gateway holds the task.
    HeldTask,
    /// The client asks for a task at a server of the other era, which decides.
    OfferedTask(Box<OfferedTask>),
    /// A request about a task.
    TaskRequest(Box<TaskRequest>),
    /// A request for the tasks of the caller.
    TaskList,
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
    holding: Holding,
    /// Whether the call ends when its target is hidden.
    is_watched: bool,
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

/// How far a call that may become a held task has come.
#[derive(Clone, Copy, PartialEq)]
enum Holding {
    /// The client sees no task.
    Never,
    /// The task is held once it is created.
    OnCreation,
    /// The replies are read by [`held_tasks`].
    Begun,
}

/// Forwards a call to a member of a group. With `client_view` the call may be parked.
pub(super) fn call(
    group: &Arc<Group>,
    call: Call,
    member: &GroupMember,
    client_view: Option<ClientView>,
    audited: AuditedTarget,
) -> Replies {
    let mut forward = ForwardedCall::new(group, call, member, Purpose::Plain);
    (forward.client_view, forward.audited) = (client_view, audited);
    match task_purpose(group, &mut forward.call, member) {
        Ok(None) => {}
        Ok(Some(purpose)) => forward.purpose = purpose,
        Err(error) => {
            forward.record_outcome(CallOutcome::Error, Some(operation_error(&error)));
            return error.into();
        }
    }
    let Some(mut replies) = trace_context::call_local(&member.leg, &forward.call) else { return forward.replies() };
    if let Some(revision) = member.state.revision {
        member.leg.count_revision_pair(forward.call.client.revision, revision);
        let facts = ServerFacts { revision: revision.as_str(), transport: "built-in", is_leased: false, process: None };
        forward.note_connection(facts);
        forward.server_revision = Some(revision);
    }
    match replies.take_ready() {
        Some(answer) => forward.map_answer(answer).into(),
        None => Replies::run(|out| forward.run_local(replies, out)),
    }
}

/// Forwards a subscribe or unsubscribe request, and records the subscription when the upstream accepts it.
pub(super) fn subscription(
    group: &Arc<Group>,
    call: Call,
    member: &GroupMember,
    (uri, audited): (&str, AuditedTarget),
) -> Replies {
    let mut forward = ForwardedCall::new(group, call, member, Purpose::Subscription(uri.to_owned()));
    forward.audited = audited;
    forward.replies()
}

/// Forwards a request for the tasks of a server.
pub(super) fn task_list(group: &Arc<Group>, call: Call, member: &GroupMember) -> Replies {
    ForwardedCall::new(group, call, member, Purpose::TaskList).replies()
}

/// Forwards a request about a task.
pub(super) fn task_request(group: &Arc<Group>, call: Call, member: &GroupMember, request: TaskRequest) -> Replies {
    ForwardedCall::new(group, call, member, Purpose::TaskRequest(Box::new(request))).replies()
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
            audited: AuditedTarget::default(),
            leg: Arc::clone(&member.leg),
            name_mapping: member.name_mapping.clone(),
            metrics: Arc::clone(&member.metrics),
            started: Instant::now(),
            server_revision: None,
            input: OnceLock::new(),
            is_recorded: false,
        };
        remove_server_requests(&mut forward.call, &member.leg);
        trace_context::copy_to_headers(&mut forward.call);
        if let Some(span) = forward.call.trace.span() {
            span.set_upstream(member.leg.name());
        }
        if let Some(params) = forward.call.params.take() {
            forward.call.params = Some(forward.tasks().map_request(params));
        }
        forward
    }

    /// The tasks that the caller has at the upstream.
    fn tasks(&self) -> TaskMapping<'_> {
        TaskMapping { group: &self.group, upstream: self.leg.name(), caller: self.call.caller.id() }
    }

    /// Whether client and server share the tasks that messages of this call name.
    fn shares_tasks(&self) -> bool {
        match &self.purpose {
            Purpose::TaskRequest(request) => request.is_direct(),
            Purpose::Plain | Purpose::TaskList | Purpose::Subscription(_) => true,
            Purpose::AsTask | Purpose::HeldTask | Purpose::OfferedTask(_) => false,
        }
    }

    /// Whether the result of a server of this revision may be a task of the client's own era.
    fn may_be_task(&self, server: Revision) -> bool {
        matches!(self.purpose, Purpose::Plain)
            && self.call.method == Method::ToolsCall
            && !self.leg.spec().is_local()
            && !server.is_bridged_to(self.call.client.revision)
            && (!server.has_sessions() || tasks::requests_task(&self.call.method, self.call.params.as_ref()))
    }

    fn replies(self) -> Replies {
        Replies::run(|out| self.run(out))
    }

    /// Acquires a connection, sends the call and maps its replies.
    #[allow(clippy::manual_async_fn, reason = "an async fn would have its arguments twice")]
    fn run(mut self, mut out: ReplyYielder) -> impl Future<Output = Answer> + Send {
        async move {
            let lease = match self.leg.try_acquire(&self.call) {
                Some(lease) => Ok(lease),
                None => {
                    if let Some(access) = &self.call.caller.access {
                        access.note_opening();
                    }
                    Box::pin(self.acquire()).await
                }
            };
            let lease = match lease {
                Ok(lease) => lease,
                Err(error) => {
                    let failure = error.into_failure().before_sending();
                    self.record_outcome(CallOutcome::Unavailable, Some(OperationError::of_kind(failure.kind().name())));
                    self.give_back_share();
                    return Answer::error(self.failed(failure));
                }
            };
            let connection = lease.connection();
            self.leg.count_revision_pair(self.call.client.revision, connection.revision());
            self.note_connection(ServerFacts {
                revision: connection.revision().as_str(),
                transport: connection.transport(),
                is_leased: lease.is_exclusive(),
                process: connection.process(),
            });
            self.server_revision = Some(connection.revision());
            if !self.passes_results_unchanged(connection.revision()) {
                self.call.delivery = AnswerDelivery::Whole;
            }
            let parking = if self.client_view.is_some() { Parking::OnRequest } else { Parking::Never };
            let holding = if matches!(self.purpose, Purpose::HeldTask) { Holding::OnCreation } else { Holding::Never };
            let mut mapped = MappedReplies {
                forward: &self,
                lease: Some(&lease),
                out: &mut out,
                parking,
                holding,
                is_watched: false,
            };
            let answer = match &self.purpose {
                Purpose::Plain | Purpose::Subscription(_) => connection.run_call(&self.call, &mut mapped).await,
                Purpose::TaskList => Box::pin(self.tasks().run_list(&lease, &self.call, &mut mapped)).await,
                purpose => Box::pin(purpose.run_with_task(&lease, &self.call, &mut mapped)).await,
            };
            let is_parked = mapped.parking == Parking::Begun;
            if let (Purpose::Subscription(uri), Ok(_)) = (&self.purpose, &answer.outcome) {
                self.record_subscription(uri, &lease);
            }
            let created = match self.purpose {
                Purpose::OfferedTask(_) => CreatedTask::of(&answer, &self.call, &lease),
                _ => None,
            };
            drop(lease);
            let answer = self.map_answer(answer);
            match std::mem::replace(&mut self.purpose, Purpose::Plain) {
                Purpose::TaskRequest(request) => {
                    return request.convert((&self.group, self.leg.name()), &self.call, answer);
                }
                Purpose::TaskList => {
                    let outcome = answer.outcome.map(|page| self.tasks().map_list(&page));
                    return Answer { outcome, ..answer };
                }
                Purpose::OfferedTask(offered) => {
                    return offered.answer((&self.group, self.leg.name()), (&self.call, answer), created);
                }
                _ => {}
            }
            match &self.client_view {
                // The answer of a parked call is mapped for the request that resumes it.
                Some(view) if !is_parked => parked_calls::map_answer(&self.group, || self.client_call(view), answer),
                _ => answer,
            }
        }
    }

    /// Maps the replies of a server in this process.
    async fn run_local(mut self, replies: Replies, mut out: ReplyYielder) -> Answer {
        let (parking, holding) = (Parking::Never, Holding::Never);
        let mut mapped =
            MappedReplies { forward: &self, lease: None, out: &mut out, parking, holding, is_watched: false };
        let replies = replies.forward_to(&mut mapped);
        let answer = match self.call.limits.as_ref().and_then(|limits| limits.total_timeout()) {
            None => replies.await,
            Some(limit) => Box::pin(tokio::time::timeout(limit, replies)).await.unwrap_or_else(|_| {
                let failure = Failure::new(FailureKind::TimedOut(limit), format!("no answer within {limit:?}"));
                Answer::error(failure.into())
            }),
        };
        self.map_answer(answer)
    }

    /// Notes the connection of the call for those who watch.
    fn note_connection(&self, server: ServerFacts) {
        if let Some(access) = &self.call.caller.access {
            access.note_connection(self.leg.name(), server);
        }
    }

    /// Gives the share of the rate limits back: nothing was sent.
    fn give_back_share(&self) {
        if let Some(limits) = &self.call.limits {
            limits.give_back();
        }
    }

    async fn acquire(&self) -> Result<LeaseGuard> {
        let connecting = self.call.trace.span().map(|span| span.child(SpanKind::Internal, "connect"));
        let acquired = self.acquire_connection().await;
        if let Some(connecting) = connecting {
            connecting.set("rialto.upstream", Arc::clone(self.leg.name()));
            if let Err(error) = &acquired {
                connecting.fail(AttributeValue::Static("unavailable"), &error.to_string());
            }
        }
        acquired
    }

    async fn acquire_connection(&self) -> Result<LeaseGuard> {
        let session_sink = self.session_sink();
        let sink = || session_sink.map(|session_sink| Arc::new(session_sink) as Arc<dyn ClientSink>);
        self.leg.acquire(&self.call, sink).await
    }

    /// The call as the client made it.
    fn client_call(&self, view: &ClientView) -> Call {
        let (params, client) = (view.params.clone(), Arc::clone(&view.client));
        // Whoever keeps it is not the call that the limits count.
        Call { params, client, limits: None, ..self.call.clone() }
    }

    /// The sink for messages that the server sends to this session outside its calls.
    fn session_sink(&self) -> Option<SessionSink> {
        let sink = self.call.sink.clone()?;
        Some(SessionSink {
            group: Arc::clone(&self.group),
            leg: Arc::clone(&self.leg),
            client: Arc::clone(&self.call.client),
            identity: Arc::clone(&self.call.caller.identity),
            sink,
        })
    }

    fn map_notification(&self, notification: Notification) -> Option<Notification> {
        let passes = notification.method != NotificationMethod::Message
            || passes_log_level(&notification, self.call.level, self.call.sink.is_some());
        if !passes {
            return None;
        }
        let notification =
            if self.shares_tasks() { self.tasks().map_notification(notification)? } else { notification };
        Some(self.name_mapping.map_notification(notification))
    }

    fn map_server_request(&self, request: ServerRequest) -> Option<ServerRequest> {
        let request = admit_server_request(request, &self.leg, &self.call.client)?;
        let request = self.name_mapping.map_server_request(request);
        let mut request = match &self.purpose {
            _ if self.shares_tasks() => self.tasks().map_server_request(request),
            Purpose::TaskRequest(task) => {
                ServerRequest { params: Some(task.with_related_task(request.params)), ..request }
            }
            _ => request,
        };
        request.responder = request.responder.timed(self.input.get_or_init(Arc::default));
        request.asker = Some(Arc::clone(self.leg.name()));
        Some(request)
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

    /// Whether no result of a server of this revision is looked at or changed on its way to the client.
    fn passes_results_unchanged(&self, server: Revision) -> bool {
        let method = &self.call.method;
        matches!(self.purpose, Purpose::Plain)
            && self.name_mapping.passes_results_unchanged()
            // A task in pieces has no id that could be mapped; per-request servers say beforehand what a result is.
            && !tasks::requests_task(method, self.call.params.as_ref())
            && to_client::passes_results_unchanged(method, server, self.call.client.revision)
    }

    fn map_answer(&mut self, answer: Answer) -> Answer {
        if answer.outcome.as_ref().is_err_and(|error| error.failure().is_some_and(Failure::is_unsent)) {
            self.give_back_share();
        }
        let error = outcome_error(&self.call.method, &answer.outcome);
        let outcome = match &answer.outcome {
            Ok(_) if error.is_some() => CallOutcome::ToolError,
            Ok(_) => CallOutcome::Ok,
            Err(error) => match error.failure().map(|failure| failure.kind().side()) {
                Some(FailureSide::Upstream) => CallOutcome::Unavailable,
                Some(FailureSide::Client | FailureSide::Gateway) | None => CallOutcome::Error,
            },
        };
        self.record_outcome(outcome, error);
        let outcome = match answer.outcome {
            Ok(result) => {
                let method = match &self.purpose {
                    Purpose::TaskRequest(request) => request.result_method(&self.call.method),
                    _ => &self.call.method,
                };
                let result = self.name_mapping.map_result(method, result);
                Ok(match self.may_be_task(answer.revision) {
                    true => self.tasks().map_created(result, answer.revision),
                    false => result,
                })
            }
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

impl ReplySink for MappedReplies<'_> {
    async fn send(&mut self, reply: Reply) {
        match reply {
            Reply::Notification(notification) if self.holding == Holding::OnCreation => {
                self.hold_task(notification).await;
            }
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
            piece @ Reply::Piece(_) => self.out.send(piece).await,
            Reply::End(_) => {}
        }
    }
}

impl MappedReplies<'_> {
    /// Has the task held that a status notification tells of; other notifications pass.
    async fn hold_task(&mut self, notification: Notification) {
        let forward = self.forward;
        let (Some(task), Some(lease)) = (tasks::status_of(&notification), self.lease) else {
            if let Some(notification) = forward.map_notification(notification) {
                self.out.send(Reply::Notification(notification)).await;
            }
            return;
        };
        let call = forward.client_view.as_ref().map_or_else(|| forward.call.clone(), |view| forward.client_call(view));
        let Some(new) = NewTask::of(&forward.group, call, forward.leg.name(), task, lease) else {
            // Without room the task is driven, and the client gets a plain result.
            self.holding = Holding::Never;
            return;
        };
        (self.parking, self.holding) = (Parking::Begun, Holding::Begun);
        let group = Arc::clone(&forward.group);
        self.out.wrap(move |replies| held_tasks::hold(&group, new, replies)).await;
    }

    /// Sends a server request to the client, or parks the call of a client that cannot be sent any.
    async fn send_request(&mut self, request: ServerRequest) {
        let request = match self.forward.call.trace.span() {
            Some(span) => trace_context::traced_server_request(span, request),
            None => request,
        };
        match &self.forward.client_view {
            Some(view) if self.parking == Parking::OnRequest => {
                self.parking = Parking::Begun;
                let (group, call) = (Arc::clone(&self.forward.group), self.forward.client_call(view));
                let upstream = Arc::clone(self.forward.leg.name());
                self.out.wrap(move |replies| parked_calls::park(&group, (call, upstream), replies, request)).await;
            }
            _ => self.send_watched(request).await,
        }
    }

    /// Sends a server request to the client. From the first one on the call ends when its target is hidden.
    async fn send_watched(&mut self, request: ServerRequest) {
        let is_watched = std::mem::replace(&mut self.is_watched, true) || self.parking != Parking::Never;
        let ForwardedCall { group, leg, call, .. } = self.forward;
        match hidden_calls::as_client_knows_it(group, leg, call).filter(|_| !is_watched) {
            Some(call) => {
                let group = Arc::clone(group);
                self.out.wrap(move |replies| hidden_calls::pass_until_hidden(&group, call, replies, request)).await;
            }
            None => self.out.send(Reply::ServerRequest(request)).await,
        }
    }
}

impl Purpose {
    /// Runs a call, or a request about a task, where tasks are driven, held or bridged.
    async fn run_with_task(&self, lease: &LeaseGuard, call: &Call, out: &mut impl ReplySink) -> Answer {
        let connection = lease.connection();
        match self {
            Self::AsTask => connection.run_call_as_task(call, out).await,
            Self::HeldTask => connection.run_call_as_held_task(call, out).await,
            Self::OfferedTask(_) => connection.run_call_offering_task(call, out).await,
            Self::TaskRequest(request) => request.run(lease, call, out).await,
            Self::Plain | Self::TaskList | Self::Subscription(_) => connection.run_call(call, out).await,
        }
    }
}

/// Decides who has the task of a call, if it becomes one, and removes a wish for one that cannot be granted. A client that
/// asks for a task and was told it may have one of its own era keeps it: the client then drives the task itself.
///
/// # Errors
/// When the caller may have no more tasks.
fn task_purpose(
    group: &Group,
    call: &mut Call,
    member: &GroupMember,
) -> std::result::Result<Option<Purpose>, ErrorObject> {
    let (client, Some(server)) = (call.client.revision, member.state.revision) else { return Ok(None) };
    let (asks_for_tasks, creates_tasks) = (client.creates_tool_tasks(), server.creates_tool_tasks());
    if tasks::requests_task(&call.method, call.params.as_ref()) {
        // A group with several upstreams declares no tasks of this revision.
        if asks_for_tasks && creates_tasks && member.is_only {
            return Ok(None);
        }
        let is_offered = asks_for_tasks && member.bridges_tasks_to(client);
        let offered = if is_offered { Some(group.offer_task(call)?) } else { None };
        if creates_tasks || server.is_bridged_to(client) {
            call.params = call.params.take().map(|params| params.edit().remove(Key::Task.as_str()).finish().into());
        }
        if let Some(offered) = offered {
            return Ok(Some(Purpose::OfferedTask(Box::new(offered))));
        }
    }
    if !creates_tasks || !member.state.requires_task(call) {
        return Ok(None);
    }
    let is_held = tasks::client_supports_tasks(&call.client.capabilities, client) && member.bridges_tasks_to(client);
    Ok(Some(if is_held { Purpose::HeldTask } else { Purpose::AsTask }))
}

/// Whether a log message passes the client's log level.
pub(super) fn passes_log_level(notification: &Notification, wanted: Option<Level>, in_session: bool) -> bool {
    // A session that has set no level gets what the server sends by default.
    let Some(wanted) = wanted else { return in_session };
    let level = notification.params.as_ref().and_then(|params| params.get("level"));
    level.as_ref().and_then(Level::from_raw).is_none_or(|level| level >= wanted)
}
