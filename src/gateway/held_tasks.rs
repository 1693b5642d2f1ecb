//! Held tasks: tasks that the gateway answers for itself, because the server cannot answer in the client's era.
//!
//! A handshake-era server asks for input with requests and has the result of a task in a response of its own. For a
//! per-request client the gateway drives such a task, keeps what the server asks and how the task ended, and shows both in
//! `tasks/get`. A per-request server may answer a call plainly that a handshake-era client wants as a task: then the
//! gateway keeps the answer as a task that has ended.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foldhash::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group::Group;
use super::parked_calls::ParkingPermits;
use super::task_id::TaskId;
use crate::call::{Answer, Call, Caller, Replies, Reply, ServerRequest};
use crate::dialect::task_details::{TaskContent, TaskDetails, timestamp};
use crate::dialect::tasks::{self, TaskStatus};
use crate::dialect::{Revision, server_requests, to_client};
use crate::identity::Identity;
use crate::policy::{CallerPermit, Permit, QuotaKey, Quotas};
use crate::protocol::{ErrorObject, Method, Outcome, Payload, Raw};
use crate::upstream::LeaseGuard;

/// All tasks that this process holds.
#[derive(Debug)]
pub(super) struct HeldTasks {
    /// By the id that the client knows.
    entries: Mutex<HashMap<Arc<str>, Arc<HeldTask>>>,
    quotas: Arc<Quotas>,
}

/// A task that the gateway answers for.
#[derive(Debug)]
pub(super) struct HeldTask {
    id: Arc<str>,
    state: Mutex<HeldState>,
    /// Counts the changes, for listeners.
    changes: watch::Sender<u64>,
    cancelled: CancellationToken,
    /// Whose task it is.
    owner: Arc<Identity>,
    group: Arc<str>,
    /// Cancelled when the task is not kept any longer.
    forgotten: CancellationToken,
    /// Whether the server can be told to cancel the task.
    is_cancellable: bool,
    /// The shares of parked calls that the task takes.
    _permits: ParkingPermits,
}

#[derive(Debug)]
struct HeldState {
    details: TaskDetails,
    /// Unanswered server requests by the key that the client knows.
    pending: Vec<(String, ServerRequest)>,
    last_key: u32,
    ended: Option<Answer>,
}

/// A task that is about to be held.
pub(super) struct NewTask {
    /// The call that has become the task, as the client made it.
    pub(super) call: Call,
    pub(super) upstream: Arc<str>,
    /// The upstream's own id of the task.
    pub(super) own: String,
    pub(super) details: TaskDetails,
    /// Whether the server can be told to cancel the task.
    pub(super) is_cancellable: bool,
    pub(super) permits: ParkingPermits,
}

impl NewTask {
    /// The task of a handshake-era server; `None` when there is no room for it.
    pub(super) fn of(group: &Group, call: Call, upstream: &Arc<str>, task: &Raw, lease: &LeaseGuard) -> Option<Self> {
        let connection = lease.connection();
        let revision = connection.revision();
        let permits = match group.parked().take_room(&call.caller) {
            Ok(permits) => permits,
            Err(reached) => {
                let (principal, scope) = (call.caller.id(), reached.scope);
                tracing::warn!(%principal, ?scope, "parked call limit reached; task is driven");
                return None;
            }
        };
        Some(Self {
            details: TaskDetails::read(task, revision, &now()).ok()?,
            own: tasks::parse_task(task, revision).ok()?.id,
            call,
            upstream: Arc::clone(upstream),
            is_cancellable: tasks::server_cancels_tasks(&connection.server().capabilities, revision),
            permits,
        })
    }
}

/// How long a task is kept after its end, unless its lifetime is over before.
const ENDED_TASK_RETENTION: Duration = Duration::from_secs(3600);

/// The time as a timestamp.
pub(super) fn now() -> String {
    timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Holds a task whose call goes on in `replies`, and answers the call with the task.
pub(super) fn hold(group: &Arc<Group>, new: NewTask, replies: Replies) -> Replies {
    begin(group, new, |task| tokio::spawn(Arc::clone(task).run(Arc::clone(group), replies))).into()
}

/// Holds the answer of a call as a task that has ended, and answers the call with the task.
pub(super) fn hold_answer(group: &Arc<Group>, new: NewTask, answer: Answer) -> Answer {
    begin(group, new, |task| {
        task.lock().end(answer);
        tokio::spawn(Arc::clone(task).retain(Arc::clone(group)))
    })
}

/// Registers a task, has it started, and answers its call. In its first answer a task is always running.
fn begin<T>(group: &Arc<Group>, new: NewTask, start: impl FnOnce(&Arc<HeldTask>) -> T) -> Answer {
    let NewTask { call, upstream, own, details, is_cancellable, permits } = new;
    let id = TaskId { upstream: upstream.to_string(), own, holder: Some(group.node()) }.seal(group, call.caller.id());
    let revision = call.client.revision;
    let result = details.creation_result(&id, revision, &group.view(revision).server);
    let task = Arc::new(HeldTask {
        id: Arc::clone(&id),
        state: Mutex::new(HeldState { details, pending: Vec::new(), last_key: 0, ended: None }),
        changes: watch::Sender::new(0),
        cancelled: CancellationToken::new(),
        owner: Arc::clone(&call.caller.identity),
        group: Arc::clone(group.name()),
        forgotten: CancellationToken::new(),
        is_cancellable,
        _permits: permits,
    });
    group.held_tasks().entries.lock().insert(id, Arc::clone(&task));
    start(&task);
    Answer { outcome: Ok(result.into()), revision }
}

impl HeldTasks {
    pub(super) fn new(quotas: Arc<Quotas>) -> Self {
        Self { entries: Mutex::default(), quotas }
    }

    /// Cancels and forgets the tasks whose caller and group match; returns how many there were.
    pub(super) fn end_owned_by(&self, is_ending: impl Fn(&Identity, &str) -> bool) -> usize {
        let mut entries = self.entries.lock();
        let ended: Vec<_> = entries.extract_if(|_, task| is_ending(&task.owner, &task.group)).collect();
        drop(entries);
        ended.iter().for_each(|(_, task)| task.forgotten.cancel());
        ended.len()
    }

    /// The task with that id.
    pub(super) fn get(&self, id: &str) -> Option<Arc<HeldTask>> {
        self.entries.lock().get(id).cloned()
    }

    /// The shares of a stream on which a server tells of a task.
    pub(super) fn take_stream(&self, caller: &Caller) -> Option<(Permit, Option<CallerPermit>)> {
        let own = QuotaKey::of(caller).map(|key| self.quotas.listens_per_caller.acquire(key)).transpose().ok()?;
        Some((self.quotas.listens.acquire(1).ok()?, own))
    }
}

impl HeldTask {
    fn lock(&self) -> MutexGuard<'_, HeldState> {
        self.state.lock()
    }

    /// Reads on until the call ends or the task is cancelled, and keeps the task for a while.
    async fn run(self: Arc<Self>, group: Arc<Group>, mut replies: Replies) {
        loop {
            let reply = tokio::select! {
                () = self.cancelled.cancelled() => break,
                () = self.forgotten.cancelled() => break,
                () = group.ended().cancelled() => break,
                reply = replies.next() => reply,
            };
            let is_over = matches!(reply, None | Some(Reply::End(_)));
            self.lock().record(reply.unwrap_or_else(|| Reply::End(Answer::missing())));
            self.announce();
            if is_over {
                break;
            }
        }
        // The replies of a task that has not ended cancel it.
        drop(replies);
        self.retain(group).await;
    }

    /// Keeps a task that has ended, then forgets it.
    async fn retain(self: Arc<Self>, group: Arc<Group>) {
        let ttl = self.lock().details.ttl.read::<f64>().ok();
        let ttl = ttl.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok());
        let retention = ttl.map_or(ENDED_TASK_RETENTION, |ttl| ttl.min(ENDED_TASK_RETENTION));
        tokio::select! {
            () = self.forgotten.cancelled() => {}
            () = group.ended().cancelled() => {}
            () = tokio::time::sleep_until(Instant::now() + retention) => {}
        }
        group.held_tasks().entries.lock().remove(&self.id);
    }

    fn announce(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// The id that the client knows.
    pub(super) fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Whether the task has its final status.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().details.status.is_final()
    }

    /// Notices that the task has changed, the first one at once.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        let mut changes = self.changes.subscribe();
        changes.mark_changed();
        changes
    }

    /// The task with its content, as a per-request client sees it.
    pub(super) fn describe(&self, group: &Group) -> Raw {
        let (details, content) = self.lock().current(group, Revision::NEWEST);
        details.write_with(&self.id, &content)
    }

    /// The task without its content, as a handshake-era client sees it.
    pub(super) fn describe_for_session(&self, group: &Group, revision: Revision) -> (TaskStatus, Raw) {
        let (details, content) = self.lock().current(group, revision);
        let task = match content {
            TaskContent::Result(result) => details.write(&self.id, revision).edit().set("result", result).finish(),
            _ => details.write(&self.id, revision),
        };
        let details = TaskDetails::read_with_outcome(&task, revision, &details.created_at).unwrap_or(details);
        (details.status, details.write(&self.id, revision))
    }

    /// How the call ended, for a client of that revision.
    pub(super) fn outcome(&self, group: &Group, revision: Revision) -> Option<Outcome> {
        let state = self.lock();
        let answer = state.ended.as_ref()?;
        Some(converted(answer, group, revision).map(|result| tasks::with_related_task(&result, &self.id).into()))
    }

    /// Hands the client's responses to the server requests that they answer; others are ignored.
    pub(super) fn deliver(&self, responses: &Raw) {
        self.lock().deliver(responses);
        self.announce();
    }

    /// Cancels the task if it has not ended and the server takes cancellations.
    pub(super) fn cancel(&self) {
        let mut state = self.lock();
        if self.is_cancellable && !state.details.status.is_final() && state.ended.is_none() {
            state.pending.clear();
            state.set_status(TaskStatus::Cancelled);
            drop(state);
            self.cancelled.cancel();
            self.announce();
        }
    }
}

impl HeldState {
    fn set_status(&mut self, status: TaskStatus) {
        self.details.status = status;
        self.details.updated_at = now();
    }

    fn record(&mut self, reply: Reply) {
        match reply {
            Reply::Notification(notification) => {
                let told = tasks::status_of(&notification);
                let told = told.and_then(|task| TaskDetails::read(task, Revision::NEWEST_HANDSHAKE, &now()).ok());
                // How the task ended is known when its result is.
                if let Some(told) = told.filter(|told| !told.status.is_final()) {
                    self.details = told;
                }
            }
            Reply::ServerRequest(request) => {
                self.last_key += 1;
                self.pending.push((format!("u{}", self.last_key), request));
                self.details.updated_at = now();
            }
            // The result of a task comes whole.
            Reply::Piece(_) => {}
            Reply::End(answer) => self.end(answer),
        }
    }

    fn end(&mut self, answer: Answer) {
        self.pending.clear();
        self.set_status(if answer.outcome.is_ok() { TaskStatus::Completed } else { TaskStatus::Failed });
        self.details.message = answer.outcome.as_ref().err().map(|error| error.message());
        self.ended = Some(answer);
    }

    fn deliver(&mut self, responses: &Raw) {
        for (key, response) in responses.entries() {
            let Some(at) = self.pending.iter().position(|(open, _)| *open == key) else { continue };
            if server_requests::is_valid_response(&self.pending[at].1.method, &response) {
                let (_, request) = self.pending.remove(at);
                // A send error means that the upstream stopped waiting.
                let _ = request.responder.send(Ok(response.into()));
            }
        }
    }

    /// The details and the content at this moment.
    fn current(&mut self, group: &Group, revision: Revision) -> (TaskDetails, TaskContent) {
        self.pending.retain(|(_, request)| !request.responder.is_closed());
        let mut details = self.details.clone();
        let content = match &self.ended {
            Some(answer) => match converted(answer, group, revision) {
                Ok(result) => TaskContent::Result(result),
                Err(error) => TaskContent::Error(error),
            },
            None if self.pending.is_empty() => TaskContent::None,
            None => TaskContent::InputRequests(self.pending.iter().map(input_request).collect()),
        };
        if !details.status.is_final() {
            // What counts is what the client can be asked, not what the server will ask.
            details.status = if self.pending.is_empty() { TaskStatus::Working } else { TaskStatus::InputRequired };
        }
        (details, content)
    }
}

fn input_request((key, request): &(String, ServerRequest)) -> (String, Raw) {
    (key.clone(), server_requests::input_request(&request.method, request.params.as_ref()))
}

/// The outcome of a tool call for a client of that revision.
fn converted(answer: &Answer, group: &Group, revision: Revision) -> Result<Raw, ErrorObject> {
    let (outcome, server) = (answer.outcome.clone(), &group.view(revision).server);
    to_client::convert_outcome(outcome, &Method::ToolsCall, answer.revision, revision, server).map(Payload::into_raw)
}
