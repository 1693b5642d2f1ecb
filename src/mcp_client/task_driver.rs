//! Drives a task at the server to its end: for a client that does not know tasks, which gets a plain result; for the
//! gateway, which holds the task for a client of the other era; and for such a client's `tasks/result`.
//!
//! In the per-request era a task's status carries its input requests and, at the end, its result; input responses go back
//! with `tasks/update`. In the handshake era the status carries neither: `tasks/result` delivers server requests and the
//! result. Dropping the call cancels the task.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::connection::{Connection, RequestHeaders};
use super::request_trace::RequestTrace;
use super::round::total_timeout;
use super::task_registry::TaskRegistry;
use super::{call, probe};
use crate::call::{Answer, Call, Replies, Reply, ReplySink, ServerRequest};
use crate::dialect::tasks::{self, Task, TaskStatus};
use crate::dialect::to_upstream;
use crate::failure::{Failure, FailureKind};
use crate::protocol::{ErrorObject, Method, Notification, Outcome, Payload, Raw, code};

/// A running task and the call that it replaces.
pub(super) struct TaskDriver {
    connection: Arc<Connection>,
    call: Call,
    purpose: DriverPurpose,
    id: String,
    status: TaskStatus,
    /// Status notifications and server requests that name the task, from any stream.
    server_events: mpsc::Receiver<Reply>,
    /// The `tasks/get` or `tasks/update` request in flight.
    status_request: Option<PendingRequest>,
    /// The `tasks/result` request in flight; handshake era only.
    result_request: Option<PendingRequest>,
    queue: VecDeque<Reply>,
    /// Input requests that were forwarded to the client and await its response.
    open_inputs: FuturesUnordered<BoxFuture<'static, InputAnswer>>,
    /// Keys of all input requests forwarded so far; each is forwarded once.
    seen_input_keys: HashSet<String>,
    /// Keys of those that the client has not answered yet.
    unanswered_keys: HashSet<String>,
    /// Input responses that were not sent to the server yet.
    unsent_answers: Vec<(String, Raw)>,
    /// When to poll the status next.
    next_poll: Instant,
    polls: u32,
    failures: u32,
    /// When the call began to be driven, and when it times out.
    began: Instant,
    deadline: Instant,
    /// Nothing is cancelled when the driver is dropped: the task has ended at the server, or is the client's.
    is_finished: bool,
}

/// Whom a task is driven for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum DriverPurpose {
    /// A call of a client that does not know the task; without the call, the task is cancelled.
    Call,
    /// The gateway, which shows the client the task: every status is reported, as a notification of 2025-11-25.
    HeldTask,
    /// A request for the result of a task that the client has itself, and that goes on without the request.
    TaskResult,
}

/// A request that creates a task. Dropped before its response, it goes on in the background until the task's id is
/// known, and then the task is cancelled: a task is cancelled by its id only.
pub(super) struct TaskCreation<'c> {
    connection: &'c Arc<Connection>,
    call: &'c Call,
    replies: Replies,
}

/// Tells the registry that a task is about to be created, until dropped.
pub(super) struct ExpectedTask<'c>(&'c TaskRegistry);

/// A request of the driver in flight.
struct PendingRequest {
    replies: Replies,
    /// The input responses that it carries.
    answers: Vec<(String, Raw)>,
    deadline: Instant,
}

/// The client's response to an input request, by its key.
type InputAnswer = (String, Result<Outcome, oneshot::error::RecvError>);

/// What [`TaskDriver::next_event`] waited for.
enum DriverEvent {
    ClientAnswered(InputAnswer),
    StatusReply(Option<Reply>),
    ResultReply(Option<Reply>),
    ServerSent(Reply),
    PollDue,
    TimedOut,
}

/// Lower bound of the poll interval, whatever the server asks for.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// First poll interval where the server names none; doubles with each poll.
const INITIAL_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Upper bound of the doubled interval.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Failed requests in a row after which the task is given up.
const MAX_CONSECUTIVE_FAILURES: u32 = 3;

impl TaskDriver {
    /// Drives a task for `call`, which times out at `deadline`.
    pub(super) fn new(
        connection: &Arc<Connection>,
        (call, purpose): (&Call, DriverPurpose),
        task: &Task,
        deadline: Instant,
    ) -> Box<Self> {
        let mut driver = Self {
            connection: Arc::clone(connection),
            call: call.clone(),
            purpose,
            id: task.id.clone(),
            status: task.status,
            server_events: connection.task_registry().register(&task.id),
            status_request: None,
            result_request: None,
            queue: VecDeque::new(),
            open_inputs: FuturesUnordered::new(),
            seen_input_keys: HashSet::new(),
            unanswered_keys: HashSet::new(),
            unsent_answers: Vec::new(),
            next_poll: Instant::now(),
            polls: 0,
            failures: 0,
            began: Instant::now(),
            deadline,
            is_finished: purpose == DriverPurpose::TaskResult,
        };
        if task.status == TaskStatus::Working {
            driver.next_poll += driver.poll_interval(task);
        }
        Box::new(driver)
    }

    /// Reports the status with which the task was created.
    pub(super) fn report_created(&mut self, task: &Raw) {
        self.report(Some(task));
    }

    /// Reports a status of the task to a client that sees the task.
    fn report(&mut self, task: Option<&Raw>) {
        if let (DriverPurpose::HeldTask, Some(task)) = (self.purpose, task) {
            self.queue.push_back(Reply::Notification(tasks::status_notification(task.clone())));
        }
    }

    /// Drives the task to its end.
    pub(super) async fn run(mut self: Box<Self>, out: &mut impl ReplySink) -> Answer {
        loop {
            while let Some(reply) = self.queue.pop_front() {
                match reply {
                    Reply::End(answer) => return answer,
                    reply => out.send(reply).await,
                }
            }
            if self.status_request.is_none() && !self.unsent_answers.is_empty() {
                self.send_answers();
            }
            match self.next_event().await {
                DriverEvent::ClientAnswered((key, response)) => self.on_client_answer(key, response),
                DriverEvent::StatusReply(reply) => self.on_status_reply(reply),
                DriverEvent::ResultReply(reply) => self.on_result_reply(reply),
                DriverEvent::ServerSent(reply) => self.on_server_event(reply),
                DriverEvent::PollDue => {
                    self.polls = self.polls.saturating_add(1);
                    self.status_request = Some(self.send_request("tasks/get", &tasks::task_params(&self.id)));
                }
                DriverEvent::TimedOut => self.on_timeout(),
            }
        }
    }

    /// Waits for the next event. Cancel-safe.
    async fn next_event(&mut self) -> DriverEvent {
        let deadlines =
            [&self.status_request, &self.result_request].into_iter().flatten().map(|request| request.deadline);
        // A result request may take as long as its task, so its deadline counts only once the task has ended.
        let applies = |deadline: &Instant| {
            self.status.is_final() || self.status_request.as_ref().is_some_and(|request| request.deadline == *deadline)
        };
        let timeout = deadlines.filter(applies).chain([self.deadline]).min().unwrap_or(self.deadline);
        let may_poll = self.status_request.is_none() && !(self.status.is_final() && self.result_request.is_some());
        tokio::select! {
            Some(answer) = self.open_inputs.next(), if !self.open_inputs.is_empty() => DriverEvent::ClientAnswered(answer),
            reply = next(&mut self.status_request), if self.status_request.is_some() => DriverEvent::StatusReply(reply),
            reply = next(&mut self.result_request), if self.result_request.is_some() => DriverEvent::ResultReply(reply),
            Some(reply) = self.server_events.recv() => DriverEvent::ServerSent(reply),
            () = tokio::time::sleep_until(self.next_poll), if may_poll => DriverEvent::PollDue,
            () = tokio::time::sleep_until(timeout) => DriverEvent::TimedOut,
        }
    }

    /// Sends a request about the task, with the idle timeout as its deadline.
    fn send_request(&self, method: &str, params: &Raw) -> PendingRequest {
        let replies = send(&self.connection, &self.call, method, params);
        PendingRequest {
            replies,
            answers: Vec::new(),
            deadline: Instant::now() + self.connection.settings().idle_timeout,
        }
    }

    /// Sends the client's input responses with `tasks/update`.
    fn send_answers(&mut self) {
        let answers = std::mem::take(&mut self.unsent_answers);
        let params = to_upstream::retry_params(Some(&tasks::task_params(&self.id)), &answers, None);
        self.status_request = Some(PendingRequest { answers, ..self.send_request("tasks/update", &params) });
    }

    /// Time until the next poll: what the server asks for, within bounds. At most the idle timeout, because only a poll
    /// detects that the server has gone.
    fn poll_interval(&self, task: &Task) -> Duration {
        let max_interval = self.connection.settings().idle_timeout.max(MIN_POLL_INTERVAL);
        let default_interval =
            INITIAL_POLL_INTERVAL.saturating_mul(2u32.saturating_pow(self.polls)).min(MAX_POLL_INTERVAL);
        task.poll_interval.unwrap_or(default_interval).clamp(MIN_POLL_INTERVAL, max_interval)
    }

    /// The call's deadline has passed, or that of a request in flight.
    fn on_timeout(&mut self) {
        let now = Instant::now();
        if now >= self.deadline && self.purpose == DriverPurpose::HeldTask {
            let lifetime = Duration::from_secs(self.deadline.duration_since(self.began).as_secs());
            return self.fail(call::timed_out(lifetime));
        }
        if now >= self.deadline {
            let total_timeout = total_timeout(self.connection.settings(), &self.call);
            return self.fail(call::timed_out(total_timeout));
        }
        let failure = call::silent(self.connection.settings().idle_timeout);
        let is_overdue = |request: &mut PendingRequest| request.deadline <= now;
        if self.status_request.take_if(is_overdue).map(|request| self.unsent_answers.extend(request.answers)).is_none()
        {
            self.result_request = None;
        }
        self.on_failure(failure);
    }

    /// Handles a reply to `tasks/get` or `tasks/update`.
    fn on_status_reply(&mut self, reply: Option<Reply>) {
        let outcome = match reply {
            Some(Reply::Notification(notification)) => return self.forward_notification(notification),
            Some(Reply::Piece(_)) => return, // results of tasks come whole
            Some(Reply::ServerRequest(request)) => return self.forward_server_request(request),
            Some(Reply::End(answer)) => answer.outcome,
            None => Err(Failure::new(FailureKind::Broken, "no answer came").into()),
        };
        let answers = self.status_request.take().map(|request| request.answers).unwrap_or_default();
        match outcome {
            Err(error) => match error.failure() {
                Some(failure) => {
                    self.unsent_answers.extend(answers);
                    self.on_failure(failure.clone());
                }
                None => self.on_unknown_task(&error),
            },
            Ok(_) if !answers.is_empty() => {
                self.failures = 0;
                self.next_poll = self.next_poll.min(Instant::now() + MIN_POLL_INTERVAL);
            }
            Ok(result) => {
                self.failures = 0;
                match tasks::parse_task(&result, self.connection.revision()) {
                    Ok(task) => self.on_status(&task, Some(&result)),
                    Err(why) => self.fail(Failure::new(FailureKind::Protocol, why)),
                }
            }
        }
    }

    /// Handles a new status of the task; `body` is the response that carried it, if any.
    fn on_status(&mut self, task: &Task, body: Option<&Raw>) {
        self.status = task.status;
        self.report(body);
        self.next_poll = Instant::now() + self.poll_interval(task);
        let inlined = tasks::results_are_inline(self.connection.revision());
        match task.status {
            TaskStatus::Working => {}
            TaskStatus::Cancelled => {
                let reason = task.message.as_deref().unwrap_or("it does not say why");
                let error =
                    ErrorObject::new(code::INTERNAL_ERROR, format!("The server has cancelled the task: {reason}"));
                self.finish(Err(error));
            }
            _ if !inlined => self.request_result(),
            TaskStatus::InputRequired => self.forward_input_requests(body),
            TaskStatus::Completed => {
                let failure = || Failure::new(FailureKind::Protocol, "the task is done without a result").into();
                self.finish(body.and_then(tasks::inline_result).map(Payload::from).ok_or_else(failure));
            }
            TaskStatus::Failed => {
                let reason = task.message.as_deref().unwrap_or("it does not say why");
                let error = || ErrorObject::new(code::INTERNAL_ERROR, format!("The task has failed: {reason}"));
                let server_error = body.and_then(|task| task.get("error")).and_then(ErrorObject::read);
                self.finish(Err(server_error.unwrap_or_else(error)));
            }
        }
    }

    /// Sends `tasks/result` unless it is in flight; once the task has ended, the response is due within the idle timeout.
    fn request_result(&mut self) {
        match &mut self.result_request {
            Some(request) if self.status.is_final() => {
                request.deadline = Instant::now() + self.connection.settings().idle_timeout;
            }
            Some(_) => {}
            None => self.result_request = Some(self.send_request("tasks/result", &tasks::task_params(&self.id))),
        }
    }

    /// Handles a reply to `tasks/result`.
    fn on_result_reply(&mut self, reply: Option<Reply>) {
        let outcome = match reply {
            Some(Reply::Notification(notification)) => return self.forward_notification(notification),
            Some(Reply::Piece(_)) => return, // results of tasks come whole
            Some(Reply::ServerRequest(request)) => return self.forward_server_request(request),
            Some(Reply::End(answer)) => answer.outcome,
            None => Err(Failure::new(FailureKind::Broken, "no result came").into()),
        };
        self.result_request = None;
        match outcome {
            Ok(result) => self.finish(Ok(tasks::without_related_task(&result).into())),
            Err(error) => match error.failure() {
                Some(failure) => self.on_failure(failure.clone()),
                None if self.status.is_final() => self.finish(Err(error)),
                // The task has just ended, or the server does not let us wait for the result: poll the status soon.
                None => self.next_poll = self.next_poll.min(Instant::now() + MIN_POLL_INTERVAL),
            },
        }
    }

    /// Handles a status notification or server request that names the task.
    fn on_server_event(&mut self, reply: Reply) {
        match reply {
            Reply::ServerRequest(request) => self.forward_server_request(request),
            Reply::Notification(Notification { params: Some(params), .. }) => {
                if let Ok(task) = tasks::parse_task(&params, self.connection.revision()) {
                    self.report(Some(&params));
                    self.on_status(&task, None);
                }
            }
            Reply::Notification(_) | Reply::Piece(_) | Reply::End(_) => {}
        }
    }

    fn forward_notification(&mut self, notification: Notification) {
        let params = notification.params.as_ref().map(tasks::without_related_task);
        self.queue.push_back(Reply::Notification(Notification::new(notification.method, params)));
    }

    /// Forwards a server request of the task without its task metadata, which is added again to the client's response.
    fn forward_server_request(&mut self, request: ServerRequest) {
        let ServerRequest { method, params, responder: mut to_server, .. } = request;
        let (answer, response) = oneshot::channel::<Outcome>();
        let id = self.id.clone();
        tokio::spawn(async move {
            tokio::select! {
                response = response => if let Ok(outcome) = response {
                    let _ = to_server.send(outcome.map(|result| tasks::with_related_task(&result, &id).into()));
                },
                () = to_server.closed() => {} // the server has cancelled its request
            }
        });
        self.queue_server_request(ServerRequest {
            method,
            params: params.as_ref().map(tasks::without_related_task),
            responder: answer.into(),
            asker: None,
        });
    }

    /// Queues a server request and restarts the total timeout: the time that the client takes does not count.
    fn queue_server_request(&mut self, request: ServerRequest) {
        self.deadline = self.deadline.max(Instant::now() + total_timeout(self.connection.settings(), &self.call));
        self.queue.push_back(Reply::ServerRequest(request));
    }

    /// Forwards the input requests of a status, each of them once.
    fn forward_input_requests(&mut self, task: Option<&Raw>) {
        let input_requests = match to_upstream::input_requests(task.and_then(|task| task.get("inputRequests")).as_ref())
        {
            Ok(input_requests) => input_requests,
            Err(why) => return self.fail(Failure::new(FailureKind::Protocol, why)),
        };
        for (key, method, params) in input_requests {
            // Two requests for one result ask the client once.
            if self.seen_input_keys.contains(&key) || !self.connection.task_registry().claim_input(&self.id, &key) {
                continue;
            }
            self.seen_input_keys.insert(key.clone());
            self.unanswered_keys.insert(key.clone());
            let (answer, response) = oneshot::channel();
            self.open_inputs.push(Box::pin(async move { (key, response.await) }));
            self.queue_server_request(ServerRequest { method, params, responder: answer.into(), asker: None });
        }
    }

    /// Handles the client's response to an input request. An error cannot be sent in `tasks/update`, so it ends the call.
    fn on_client_answer(&mut self, key: String, response: Result<Outcome, oneshot::error::RecvError>) {
        match call::client_input(response) {
            Ok(result) => {
                self.unanswered_keys.remove(&key);
                self.unsent_answers.push((key, result.edit().remove("_meta").finish()));
            }
            Err(failure) => {
                // Without its input the task cannot end by itself.
                self.is_finished = false;
                self.end_call(call::failed(&self.call.method, failure));
            }
        }
    }

    /// Handles a failed request: retries with back-off, then gives the task up.
    fn on_failure(&mut self, failure: Failure) {
        self.failures += 1;
        if self.failures > MAX_CONSECUTIVE_FAILURES || self.connection.is_closed() {
            // The server has the task, whatever became of the request about it.
            return self.fail(failure.after_sending());
        }
        self.status = TaskStatus::Working;
        self.next_poll = Instant::now() + INITIAL_POLL_INTERVAL.saturating_mul(2u32.saturating_pow(self.failures));
    }

    /// The server does not know the task that it has created; there is nothing to cancel.
    fn on_unknown_task(&mut self, error: &ErrorObject) {
        if self.purpose == DriverPurpose::TaskResult {
            return self.finish(Err(error.clone()));
        }
        let message = format!("The server has lost the task: {}", error.message());
        let data = Raw::of(&serde_json::json!({ "code": error.code() }));
        self.finish(Err(ErrorObject::new(code::INTERNAL_ERROR, message).with_data(data)));
    }

    /// Ends the call; the task has ended at the server.
    fn finish(&mut self, outcome: Outcome) {
        self.is_finished = true;
        self.end_call(outcome);
    }

    /// Ends the call; dropping the driver then cancels the task.
    fn fail(&mut self, failure: Failure) {
        self.end_call(Err(failure.into()));
    }

    fn end_call(&mut self, outcome: Outcome) {
        self.queue.push_back(Reply::End(Answer { outcome, revision: self.connection.revision() }));
    }
}

impl Drop for TaskDriver {
    fn drop(&mut self) {
        let registry = self.connection.task_registry();
        registry.unregister(&self.id);
        self.unanswered_keys.iter().for_each(|key| registry.release_input(&self.id, key));
        if !self.is_finished {
            spawn_cancel(&self.connection, &self.call, self.id.clone());
        }
    }
}

async fn next(request: &mut Option<PendingRequest>) -> Option<Reply> {
    match request {
        Some(request) => request.replies.next().await,
        None => None,
    }
}

/// Sends a request about a task, with the tasks extension declared.
pub(super) fn send(connection: &Connection, call: &Call, method: &str, params: &Raw) -> Replies {
    let (method, params) = (Method::from(method), params.clone().into());
    let trace = RequestTrace::begin(connection, call, &method, Some(&params));
    let params = connection.params(Some(&params), call, true, trace.as_ref());
    let headers = RequestHeaders { mirrors: &[], caller: &call.caller, trace: trace.as_ref() };
    let replies = connection.send(method.clone(), params, None, headers);
    RequestTrace::end_with(trace, &method, replies)
}

/// Cancels a task in the background.
fn spawn_cancel(connection: &Arc<Connection>, call: &Call, id: String) {
    let (connection, call) = (Arc::clone(connection), call.clone());
    spawn_before_close(&Arc::clone(&connection), async move { send_cancel(&connection, &call, &id).await });
}

/// Sends `tasks/cancel` if the server supports it.
async fn send_cancel(connection: &Connection, call: &Call, id: &str) {
    if !tasks::server_cancels_tasks(&connection.server().capabilities, connection.revision()) {
        return;
    }
    let replies = send(connection, call, "tasks/cancel", &tasks::task_params(id));
    let timeout = connection.settings().idle_timeout;
    if let Ok(Err(error)) | Err(error) = probe::wait_for_response(replies, timeout, "`tasks/cancel`")
        .await
        .map(|outcome| outcome.map_err(crate::error::Error::from_error_object))
    {
        tracing::debug!(%error, "cancelling an upstream task failed");
    }
}

impl<'c> TaskCreation<'c> {
    pub(super) fn new(connection: &'c Arc<Connection>, call: &'c Call, replies: Replies) -> Self {
        Self { connection, call, replies }
    }

    /// The replies to the request.
    pub(super) fn replies(&mut self) -> &mut Replies {
        &mut self.replies
    }
}

impl Drop for TaskCreation<'_> {
    fn drop(&mut self) {
        if let Some(replies) = self.replies.take_unfinished() {
            abandon_task_creation(self.connection, self.call, replies);
        }
    }
}

impl<'c> ExpectedTask<'c> {
    pub(super) fn new(registry: &'c TaskRegistry) -> Self {
        registry.expect_task();
        Self(registry)
    }
}

impl Drop for ExpectedTask<'_> {
    fn drop(&mut self) {
        self.0.stop_expecting_task();
    }
}

/// Waits for the response in the background and cancels the task that it names.
fn abandon_task_creation(connection: &Arc<Connection>, call: &Call, replies: Replies) {
    let (connection, call) = (Arc::clone(connection), call.clone());
    spawn_before_close(&Arc::clone(&connection), async move {
        let timeout = connection.settings().idle_timeout;
        let Ok(Ok(result)) = probe::wait_for_response(replies, timeout, "`tools/call`").await else { return };
        if let Some(task) = tasks::created_task(&result, connection.revision()).filter(|task| !task.status.is_final()) {
            send_cancel(&connection, &call, &task.id).await;
        }
    });
}

/// Spawns work that [`Connection::close`] waits for.
fn spawn_before_close(connection: &Connection, work: impl Future<Output = ()> + Send + 'static) {
    if tokio::runtime::Handle::try_current().is_ok() {
        connection.closing_tasks().spawn(work);
    }
}
