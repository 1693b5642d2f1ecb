//! Requests about tasks, and tasks between a client of one era and a server of the other.
//!
//! Where both are of one era, the server's own answer passes with [mapped ids](super::task_mapping). A client of 2025-11-25 asks for a task with its call; the server of 2026-07-28 may make one. The server then answers for
//! the task, whose id names it, and each request about the task is translated on its way. A server of 2025-11-25 cannot
//! answer a client of 2026-07-28: such a task is [held](super::held_tasks).

use std::sync::Arc;

use super::caller_view::CallerView;
use super::forward;
use super::group::Group;
use super::held_tasks::{self, NewTask};
use super::parked_calls::ParkingPermits;
use super::request_state;
use super::task_id::TaskId;
use super::task_mapping::TaskMapping;
use super::view::{GroupMember, View};
use crate::call::{Answer, Call, Replies, Reply, ReplySink};
use crate::dialect::classify::method_not_found;
use crate::dialect::task_details::{self, TaskDetails};
use crate::dialect::tasks::{self, TaskStatus};
use crate::dialect::{Revision, to_client};
use crate::failure::{Failure, FailureKind};
use crate::protocol::{ErrorObject, Key, Method, Payload, Raw};
use crate::upstream::LeaseGuard;

/// A request about a task that a server answers for.
#[derive(Debug)]
pub(super) struct TaskRequest {
    kind: TaskRequestKind,
    /// The id that the client knows.
    id: Arc<str>,
    /// The server's own id.
    own: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskRequestKind {
    /// Of a client of the server's own era: the request passes.
    Direct,
    /// Of a handshake-era client at a per-request server, as are the others.
    Get,
    Result,
    Cancel,
}

/// What is kept for a call of a handshake-era client that asks for a task at a per-request server.
#[derive(Debug)]
pub(super) struct OfferedTask {
    /// The lifetime that the client asks for.
    ttl: Raw,
    /// The shares of a held task, where the server makes none.
    permits: ParkingPermits,
}

impl Group {
    /// Routes a request about tasks.
    pub(super) fn route_task(self: &Arc<Self>, call: &Call, caller: &CallerView<'_>) -> Replies {
        if call.method.as_str() == "tasks/list" {
            return self.route_task_list(call, caller).unwrap_or_else(Replies::from);
        }
        let id = call.params.as_ref().and_then(|params| params.text_of(Key::TaskId));
        match id.and_then(|id| Some((Arc::from(id.as_ref()), TaskId::open(self, call.caller.id(), &id)?))) {
            Some((id, task)) => self.route_known_task(call, caller, id, task).unwrap_or_else(Replies::from),
            None => refuse_unknown_task(call, caller.view()).into(),
        }
    }

    /// Forwards a request for the tasks of the only server; there is no list across servers or eras.
    fn route_task_list(self: &Arc<Self>, call: &Call, caller: &CallerView<'_>) -> Result<Replies, ErrorObject> {
        let only = caller.view().single_member().filter(|_| caller.may_use_member(0));
        let only = only.filter(|only| only.has_tasks_for(call.client.revision) && call.client.revision.has_sessions());
        let only = only.ok_or_else(|| method_not_found(&call.method))?;
        let tasks = TaskMapping { group: self, upstream: only.upstream.name(), caller: call.caller.id() };
        let params = tasks.map_list_request(call.params.clone())?;
        Ok(forward::task_list(self, Call { params, ..call.clone() }, only))
    }

    /// Answers a request about a task of this caller, or forwards it to the server that has the task.
    fn route_known_task(
        self: &Arc<Self>,
        call: &Call,
        caller: &CallerView<'_>,
        id: Arc<str>,
        task: TaskId,
    ) -> Result<Replies, ErrorObject> {
        check_task_method(call)?;
        // A server that the caller may no longer use has no tasks for it, held ones included.
        let member = caller.members().find(|member| **member.upstream.name() == *task.upstream);
        if caller.has_rules() && member.is_none() {
            return Err(tasks::unknown_task());
        }
        if task.holder.is_some() {
            return self.answer_for_held_task(call, &id).map(Replies::from);
        }
        // A server that was not reached yet may have the task.
        let revision = call.client.revision;
        let is_direct = |member: &GroupMember| !member.is_bridged_to(revision);
        let may_have = |member: &&GroupMember| is_direct(member) || member.bridges_tasks_to(revision);
        let member = member.filter(may_have).ok_or_else(tasks::unknown_task)?;
        let kind = match call.method.as_str() {
            _ if is_direct(member) => {
                // The seal says whose task it is, also where another node or an earlier process has made it.
                let (upstream, caller) = (member.upstream.name(), call.caller.id());
                TaskMapping { group: self, upstream, caller }.adopt(&task.own);
                TaskRequestKind::Direct
            }
            "tasks/get" => TaskRequestKind::Get,
            "tasks/result" => TaskRequestKind::Result,
            _ => TaskRequestKind::Cancel,
        };
        let own_params = call.params.as_ref().map(|params| params.with(Key::TaskId, &Raw::of(&task.own)));
        let own_call = Call { params: own_params, ..call.clone() };
        Ok(forward::task_request(self, own_call, member, TaskRequest { kind, id, own: task.own }))
    }

    /// Answers a request about a task that is held here.
    fn answer_for_held_task(&self, call: &Call, id: &str) -> Result<Answer, ErrorObject> {
        let task = self.held_tasks().get(id).ok_or_else(tasks::unknown_task)?;
        let revision = call.client.revision;
        let result = match (call.method.as_str(), revision.has_sessions()) {
            ("tasks/result", _) => {
                task.outcome(self, revision).unwrap_or_else(|| Err(tasks::unknown_task()))?.into_raw()
            }
            ("tasks/get", true) => task.describe_for_session(self, revision).1,
            (_, true) => return Err(tasks::already_ended(task.describe_for_session(self, revision).0)),
            ("tasks/get", false) => self.complete_task_result(&task.describe(self), call),
            ("tasks/update", false) => {
                let responses = call.params.as_ref().and_then(|params| params.member(Key::InputResponses));
                task.deliver(&responses.unwrap_or_else(Raw::empty));
                self.complete_task_result(&Raw::empty(), call)
            }
            (_, false) => {
                task.cancel();
                self.complete_task_result(&Raw::empty(), call)
            }
        };
        Ok(Answer { outcome: Ok(result.into()), revision })
    }

    fn complete_task_result(&self, result: &Raw, call: &Call) -> Raw {
        task_details::complete_result(result, &self.view(call.client.revision).server)
    }

    /// The node that holds the task which a call is about, or the first task that it listens to.
    pub fn task_holder(&self, call: &Call) -> Option<Arc<str>> {
        let params = call.params.as_ref()?;
        let listened;
        let id = match call.method {
            Method::Listen => {
                listened = params.at(&["notifications", "taskIds"])?.items();
                listened.first()?.text()?
            }
            _ if call.method.is_task_method() => params.text_of(Key::TaskId)?,
            _ => return None,
        };
        TaskId::open(self, call.caller.id(), &id)?.holder
    }

    /// What is kept for a call that asks for a task at a server of the other era.
    ///
    /// # Errors
    /// When the caller has as many parked calls and tasks as it may have.
    pub(super) fn offer_task(&self, call: &Call) -> Result<OfferedTask, ErrorObject> {
        let permits = self.parked().take_room(&call.caller).map_err(|reached| {
            Failure::new(FailureKind::QuotaReached(reached), "no room for another task").before_sending()
        })?;
        Ok(OfferedTask { ttl: tasks::requested_ttl(call.params.as_ref()), permits })
    }
}

/// Whether the method is one of the client's era, and the client may use it.
fn check_task_method(call: &Call) -> Result<(), ErrorObject> {
    let (method, revision) = (call.method.as_str(), call.client.revision);
    let is_known = match revision.has_sessions() {
        true => matches!(method, "tasks/get" | "tasks/result" | "tasks/cancel"),
        false => matches!(method, "tasks/get" | "tasks/update" | "tasks/cancel"),
    };
    if !is_known {
        return Err(method_not_found(&call.method));
    }
    match revision.has_sessions() || tasks::client_supports_tasks(&call.client.capabilities, revision) {
        true => Ok(()),
        false => Err(tasks::missing_task_support()),
    }
}

/// The error for a request about a task that no server has for this caller.
fn refuse_unknown_task(call: &Call, view: &View) -> ErrorObject {
    let revision = call.client.revision;
    if !view.bridges_tasks_to(revision) && !view.members.iter().any(|member| member.has_tasks_for(revision)) {
        return method_not_found(&call.method);
    }
    check_task_method(call).err().unwrap_or_else(tasks::unknown_task)
}

impl GroupMember {
    /// Whether this upstream is of the era of that revision and clients see its tasks as they are.
    pub(super) fn has_tasks_for(&self, client: Revision) -> bool {
        match (&self.state.server, self.state.revision) {
            (Some(server), Some(revision)) => {
                // A group with several upstreams declares no tasks of the handshake era.
                tasks::are_shared(&server.capabilities, revision, client) && (self.is_only || !revision.has_sessions())
            }
            _ => false,
        }
    }

    /// Whether tasks of this upstream reach clients of that revision, which is of the other era.
    pub(super) fn bridges_tasks_to(&self, client: Revision) -> bool {
        match (&self.state.server, self.state.revision) {
            (Some(server), Some(revision)) => tasks::are_bridged(&server.capabilities, revision, client),
            _ => false,
        }
    }
}

// === impl TaskRequest ===

impl TaskRequest {
    /// Sends the request in the form of the server's era.
    pub(super) async fn run(&self, lease: &LeaseGuard, call: &Call, out: &mut impl ReplySink) -> Answer {
        let connection = lease.connection();
        match self.kind {
            TaskRequestKind::Direct => connection.run_call(call, out).await,
            TaskRequestKind::Get => connection.run_call_offering_task(call, out).await,
            TaskRequestKind::Result => connection.run_task_result(call, &self.own, out).await,
            TaskRequestKind::Cancel => connection.run_task_cancel(call, &self.own).await,
        }
    }

    /// The method whose result the answer has: the outcome of a task is that of its call.
    pub(super) fn result_method<'m>(&self, method: &'m Method) -> &'m Method {
        match self.kind {
            TaskRequestKind::Result => &Method::ToolsCall,
            TaskRequestKind::Direct if method.as_str() == "tasks/result" => &Method::ToolsCall,
            _ => method,
        }
    }

    /// Whether the client is of the server's own era.
    pub(super) fn is_direct(&self) -> bool {
        self.kind == TaskRequestKind::Direct
    }

    /// Names the task in a server request.
    pub(super) fn with_related_task(&self, params: Option<Raw>) -> Raw {
        tasks::with_related_task(&params.unwrap_or_else(Raw::empty), &self.id)
    }

    /// Converts the answer to the client's era, with the id that the client knows.
    pub(super) fn convert(&self, (group, upstream): (&Group, &str), call: &Call, answer: Answer) -> Answer {
        let (from, revision) = (answer.revision, call.client.revision);
        if self.is_direct() {
            let tasks = TaskMapping { group, upstream, caller: call.caller.id() };
            let outcome = answer.outcome.map(|result| tasks.map_answer((&self.own, &self.id), result));
            return Answer { outcome, revision: from };
        }
        let outcome = match answer.outcome {
            outcome if self.kind == TaskRequestKind::Result => {
                let server = &group.view(revision).server;
                let outcome = to_client::convert_outcome(outcome, &Method::ToolsCall, from, revision, server);
                outcome.map(|result| tasks::with_related_task(&result, &self.id).into())
            }
            Ok(task) => match TaskDetails::read_with_outcome(&task, from, &held_tasks::now()) {
                Ok(mut details) => {
                    // The server has acknowledged the cancellation, and shows it when it likes.
                    if self.kind == TaskRequestKind::Cancel {
                        details.status = TaskStatus::Cancelled;
                    }
                    Ok(details.write(&self.id, revision).into())
                }
                Err(why) => Err(Failure::new(FailureKind::Protocol, why).into()),
            },
            Err(error) => return Answer { outcome: Err(error), revision: from },
        };
        Answer { outcome, revision }
    }
}

// === impl CreatedTask ===

/// A task that a per-request server made of a call.
pub(super) struct CreatedTask {
    own: String,
    task: Payload,
    /// What the server tells of the task.
    events: Replies,
}

impl CreatedTask {
    /// The task in an answer; `None` when the server has answered plainly.
    pub(super) fn of(answer: &Answer, call: &Call, lease: &LeaseGuard) -> Option<Self> {
        let task = answer.outcome.as_ref().ok()?;
        let own = tasks::created_task(task, answer.revision)?.id;
        Some(Self { events: lease.connection().listen_to_task(call, &own), task: task.clone(), own })
    }

    /// Tells a session what the server tells of its task, until the task or the session ends. Status notifications are
    /// optional, so there are none where the server offers none or too many streams are open.
    fn watch(self, group: &Arc<Group>, call: &Call, from: Revision, id: Arc<str>) {
        let Some(sink) = call.sink.clone() else { return };
        let Some(permits) = group.held_tasks().take_stream(&call.caller) else { return };
        let (revision, group_ended) = (call.client.revision, group.ended().clone());
        let Self { own, mut events, .. } = self;
        tokio::spawn(async move {
            let _permits = permits;
            loop {
                let event = tokio::select! {
                    () = sink.ended().cancelled() => return,
                    () = group_ended.cancelled() => return,
                    event = events.next() => event,
                };
                let notification = match event {
                    Some(Reply::Notification(notification)) => notification,
                    Some(Reply::ServerRequest(_) | Reply::Piece(_)) => continue,
                    Some(Reply::End(_)) | None => return,
                };
                let task = tasks::notified_task(&notification);
                let is_own = |task: &&Raw| task.get("taskId").is_some_and(|told| told.text().as_deref() == Some(&own));
                let Some(task) = task.filter(is_own) else { continue };
                let Ok(details) = TaskDetails::read_with_outcome(task, from, &held_tasks::now()) else { continue };
                sink.notify(tasks::status_notification(details.write(&id, revision)));
                if details.status.is_final() {
                    return;
                }
            }
        });
    }
}

// === impl OfferedTask ===

impl OfferedTask {
    /// The answer to the call: the task that the server made, or one that is held with the server's answer.
    pub(super) fn answer(
        self,
        (group, upstream): (&Arc<Group>, &Arc<str>),
        (call, answer): (&Call, Answer),
        created: Option<CreatedTask>,
    ) -> Answer {
        if answer.outcome.is_err() {
            return answer;
        }
        let (now, revision) = (held_tasks::now(), call.client.revision);
        let Some(created) = created else {
            let new = NewTask {
                call: call.clone(),
                upstream: Arc::clone(upstream),
                own: request_state::random_id().to_string(),
                details: TaskDetails::new(&now, self.ttl),
                is_cancellable: false,
                permits: self.permits,
            };
            return held_tasks::hold_answer(group, new, answer);
        };
        let details = match TaskDetails::read(&created.task, answer.revision, &now) {
            Ok(details) => details,
            Err(why) => return Answer::error(Failure::new(FailureKind::Protocol, why).into()),
        };
        let id = TaskId { upstream: upstream.to_string(), own: created.own.clone(), holder: None };
        let id = id.seal(group, call.caller.id());
        let result = details.creation_result(&id, revision, &group.view(revision).server);
        created.watch(group, call, answer.revision, id);
        Answer { outcome: Ok(result.into()), revision }
    }
}
