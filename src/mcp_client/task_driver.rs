//! Calls that became tasks, for callers that know nothing of tasks: they are driven here until they
//! are done, and the caller gets a plain result.
//!
//! Where a server of the per-request era says how far a task is, it brings along what it asks and, in
//! the end, the result; answers go back by `tasks/update`. In the handshake era it only says how far,
//! and `tasks/result` brings what it asks and the result. Whoever drops the call cancels the task.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::connection::{Connection, Headers};
use super::probe;
use crate::call::{Answer, Call, Replies, Reply, ServerRequest};
use crate::dialect::tasks::{self, Task, TaskStatus};
use crate::dialect::to_upstream;
use crate::protocol::{ErrorObject, Method, Notification, Outcome, Raw, code};

/// A task at work, and the call that it stands for.
pub(super) struct TaskDriver {
    connection: Arc<Connection>,
    call: Call,
    id: String,
    status: TaskStatus,
    /// What the server says of it on whatever stream it likes.
    told: mpsc::Receiver<Reply>,
    /// The request that is under way: how far it is, or answers.
    asking: Option<PendingRequest>,
    /// The request for the result, where the revision has one.
    result: Option<PendingRequest>,
    queue: VecDeque<Reply>,
    /// What was passed on to the client, until it is answered.
    open: FuturesUnordered<BoxFuture<'static, InputAnswer>>,
    /// The keys of everything that was ever passed on; they are asked once.
    keys: HashSet<String>,
    /// What the server has not been told yet.
    answers: Vec<(String, Raw)>,
    /// When to ask how far it is.
    due: Instant,
    asked: u32,
    failures: u32,
    /// When patience ends.
    end: Instant,
    /// The server knows that it is over.
    over: bool,
}

/// A request of ours.
struct PendingRequest {
    replies: Replies,
    /// The answers that it carries.
    answers: Vec<(String, Raw)>,
    end: Instant,
}

/// What the client said to a question, by its key.
type InputAnswer = (String, Result<Outcome, oneshot::error::RecvError>);

/// What comes next.
enum Step {
    Answered(InputAnswer),
    Asked(Option<Reply>),
    Result(Option<Reply>),
    Told(Reply),
    Due,
    Late,
}

/// The least that we wait before we ask again, whatever the server says.
const LEAST: Duration = Duration::from_millis(100);
/// How long to wait before asking where the server does not say, at first.
const WAIT: Duration = Duration::from_millis(250);
/// The longest of such waits.
const WAIT_CAP: Duration = Duration::from_secs(5);
/// How often in a row the server may be out of reach before the task is given up.
const FAILURES: u32 = 3;

impl TaskDriver {
    /// Drives a task that a call has become; patience ends at `end`.
    pub(super) fn new(connection: &Arc<Connection>, call: &Call, task: &Task, end: Instant) -> Box<Self> {
        tracing::debug!(method = %call.method, "a call has become a task");
        let mut driven = Self {
            connection: Arc::clone(connection),
            call: call.clone(),
            id: task.id.clone(),
            status: task.status,
            told: connection.related().enter(&task.id),
            asking: None,
            result: None,
            queue: VecDeque::new(),
            open: FuturesUnordered::new(),
            keys: HashSet::new(),
            answers: Vec::new(),
            due: Instant::now(),
            asked: 0,
            failures: 0,
            end,
            over: false,
        };
        if task.status == TaskStatus::Working {
            driven.due += driven.pace(task);
        }
        Box::new(driven)
    }

    /// The next reply to the call; nothing more may be asked for after its answer.
    pub(super) async fn next(&mut self) -> Reply {
        loop {
            if let Some(reply) = self.queue.pop_front() {
                return reply;
            }
            if self.asking.is_none() && !self.answers.is_empty() {
                self.update();
            }
            match self.step().await {
                Step::Answered((key, answered)) => self.answered(key, answered),
                Step::Asked(reply) => self.replied(reply),
                Step::Result(reply) => self.resulted(reply),
                Step::Told(reply) => self.on_notification(reply),
                Step::Due => {
                    self.asked = self.asked.saturating_add(1);
                    self.asking = Some(self.ask("tasks/get", &tasks::named(&self.id)));
                }
                Step::Late => self.late(),
            }
        }
    }

    /// Waits for whatever comes first. Cancel-safe.
    async fn step(&mut self) -> Step {
        let ends = [&self.asking, &self.result].into_iter().flatten().map(|asking| asking.end);
        // A result may take as long as its task does.
        let waits =
            |end: &Instant| self.status.is_final() || self.asking.as_ref().is_some_and(|asking| asking.end == *end);
        let late = ends.filter(waits).chain([self.end]).min().unwrap_or(self.end);
        let is_due = self.asking.is_none() && !(self.status.is_final() && self.result.is_some());
        tokio::select! {
            Some(answered) = self.open.next(), if !self.open.is_empty() => Step::Answered(answered),
            reply = next(&mut self.asking), if self.asking.is_some() => Step::Asked(reply),
            reply = next(&mut self.result), if self.result.is_some() => Step::Result(reply),
            Some(reply) = self.told.recv() => Step::Told(reply),
            () = tokio::time::sleep_until(self.due), if is_due => Step::Due,
            () = tokio::time::sleep_until(late) => Step::Late,
        }
    }

    fn ask(&self, method: &str, params: &Raw) -> PendingRequest {
        let replies = send(&self.connection, &self.call, method, params);
        PendingRequest { replies, answers: Vec::new(), end: Instant::now() + self.connection.settings().idle_timeout }
    }

    /// Tells the server what the client has answered.
    fn update(&mut self) {
        let answers = std::mem::take(&mut self.answers);
        let params = to_upstream::retried(Some(&tasks::named(&self.id)), &answers, None);
        self.asking = Some(PendingRequest { answers, ..self.ask("tasks/update", &params) });
    }

    /// How long to wait before the server is asked again: as long as it wants, within reason. At least
    /// as often as a call may be silent, because a server that is gone is only noticed by asking.
    fn pace(&self, task: &Task) -> Duration {
        let most = self.connection.settings().idle_timeout.max(LEAST);
        let own = WAIT.saturating_mul(2u32.saturating_pow(self.asked)).min(WAIT_CAP);
        task.pace.unwrap_or(own).clamp(LEAST, most)
    }

    fn late(&mut self) {
        let now = Instant::now();
        if now >= self.end {
            let cap = self.connection.settings().total_timeout;
            let why = format!("Request timed out: the task was not done within {cap:?}");
            return self.fail(ErrorObject::unavailable(why));
        }
        let silence = self.connection.settings().idle_timeout;
        let why = ErrorObject::unavailable(format!("Request timed out: the server was silent for {silence:?}"));
        let is_late = |asking: &mut PendingRequest| asking.end <= now;
        if self.asking.take_if(is_late).map(|asking| self.answers.extend(asking.answers)).is_none() {
            self.result = None;
        }
        self.trouble(why);
    }

    /// What came back for a request of ours.
    fn replied(&mut self, reply: Option<Reply>) {
        let outcome = match reply {
            Some(Reply::Notice(notification)) => return self.forward_reply(notification),
            Some(Reply::Question(question)) => return self.question(question),
            Some(Reply::End(answer)) => answer.outcome,
            None => Err(ErrorObject::unavailable("no answer came")),
        };
        let answers = self.asking.take().map(|asking| asking.answers).unwrap_or_default();
        match outcome {
            Err(error) if error.is_unavailable() => {
                self.answers.extend(answers);
                self.trouble(error);
            }
            Err(error) => self.lost(&error),
            Ok(_) if !answers.is_empty() => {
                self.failures = 0;
                self.due = self.due.min(Instant::now() + LEAST);
            }
            Ok(result) => {
                self.failures = 0;
                match tasks::read(&result, self.connection.revision()) {
                    Ok(task) => self.on_reply(&task, Some(&result)),
                    Err(why) => self.fail(ErrorObject::new(code::INTERNAL_ERROR, format!("Internal error: {why}"))),
                }
            }
        }
    }

    /// How far the task is.
    fn on_reply(&mut self, task: &Task, whole: Option<&Raw>) {
        self.status = task.status;
        self.due = Instant::now() + self.pace(task);
        let inlined = tasks::are_inlined(self.connection.revision());
        match task.status {
            TaskStatus::Working => {}
            TaskStatus::Cancelled => {
                let why = task.message.as_deref().unwrap_or("it does not say why");
                let error = ErrorObject::new(code::INTERNAL_ERROR, format!("The server has cancelled the task: {why}"));
                self.done(Err(error));
            }
            _ if !inlined => self.want_result(),
            TaskStatus::InputRequired => self.input_required(whole),
            TaskStatus::Completed => {
                let error =
                    || ErrorObject::new(code::INTERNAL_ERROR, "Internal error: the task is done without a result");
                self.done(whole.and_then(tasks::inlined).ok_or_else(error));
            }
            TaskStatus::Failed => {
                let why = task.message.as_deref().unwrap_or("it does not say why");
                let error = || ErrorObject::new(code::INTERNAL_ERROR, format!("The task has failed: {why}"));
                let own = whole.and_then(|task| task.get("error")).and_then(ErrorObject::read);
                self.done(Err(own.unwrap_or_else(error)));
            }
        }
    }

    fn want_result(&mut self) {
        match &mut self.result {
            Some(asking) if self.status.is_final() => {
                asking.end = Instant::now() + self.connection.settings().idle_timeout;
            }
            Some(_) => {}
            None => self.result = Some(self.ask("tasks/result", &tasks::named(&self.id))),
        }
    }

    /// What came for the request for the result.
    fn resulted(&mut self, reply: Option<Reply>) {
        let outcome = match reply {
            Some(Reply::Notice(notification)) => return self.forward_reply(notification),
            Some(Reply::Question(question)) => return self.question(question),
            Some(Reply::End(answer)) => answer.outcome,
            None => Err(ErrorObject::unavailable("no result came")),
        };
        self.result = None;
        match outcome {
            Ok(result) => self.done(Ok(tasks::unrelated(&result))),
            Err(error) if error.is_unavailable() => self.trouble(error),
            Err(error) if self.status.is_final() => self.done(Err(error)),
            // It has ended just now, or the server does not let us wait; how far it is will tell.
            Err(_) => self.due = self.due.min(Instant::now() + LEAST),
        }
    }

    /// What the server says of the task by itself.
    fn on_notification(&mut self, reply: Reply) {
        match reply {
            Reply::Question(question) => self.question(question),
            Reply::Notice(Notification { params: Some(params), .. }) => {
                if let Ok(task) = tasks::read(&params, self.connection.revision()) {
                    self.on_reply(&task, None);
                }
            }
            Reply::Notice(_) | Reply::End(_) => {}
        }
    }

    fn forward_reply(&mut self, notification: Notification) {
        let params = notification.params.as_ref().map(tasks::unrelated);
        self.queue.push_back(Reply::Notice(Notification::new(notification.notice, params)));
    }

    /// Passes on what is asked in the middle of the task. The answer has to name the task, which the
    /// client does not know.
    fn question(&mut self, question: ServerRequest) {
        let ServerRequest { method, params, answer: mut wanted } = question;
        let (answer, answered) = oneshot::channel::<Outcome>();
        let id = self.id.clone();
        tokio::spawn(async move {
            tokio::select! {
                answered = answered => if let Ok(outcome) = answered {
                    let _ = wanted.send(outcome.map(|result| tasks::answering(&result, &id)));
                },
                () = wanted.closed() => {} // it was taken back
            }
        });
        self.put(ServerRequest { method, params: params.as_ref().map(tasks::unrelated), answer });
    }

    /// However long the client takes does not count.
    fn put(&mut self, question: ServerRequest) {
        self.end = Instant::now() + self.connection.settings().total_timeout;
        self.queue.push_back(Reply::Question(question));
    }

    /// Passes on what is asked, each thing once.
    fn input_required(&mut self, task: Option<&Raw>) {
        let asked = match to_upstream::input_requests(task.and_then(|task| task.get("inputRequests")).as_ref()) {
            Ok(asked) => asked,
            Err(why) => return self.fail(ErrorObject::new(code::INTERNAL_ERROR, format!("Internal error: {why}"))),
        };
        for (key, method, params) in asked {
            if !self.keys.insert(key.clone()) {
                continue;
            }
            let (answer, answered) = oneshot::channel();
            self.open.push(Box::pin(async move { (key, answered.await) }));
            self.put(ServerRequest { method, params, answer });
        }
    }

    /// The client's answer. One that refuses has no place in the answers, and ends the call.
    fn answered(&mut self, key: String, answered: Result<Outcome, oneshot::error::RecvError>) {
        let why = match answered {
            Ok(Ok(result)) => return self.answers.push((key, result.edit().remove("_meta").finish())),
            Ok(Err(error)) => format!("the client did not answer: {}", error.message()),
            Err(_) => "the client does not answer questions of this kind".to_owned(),
        };
        let content = [serde_json::json!({ "type": "text", "text": why })];
        let failed = serde_json::json!({ "content": content, "isError": true, "resultType": "complete" });
        self.end_with(Ok(Raw::of(&failed)));
    }

    /// The server is out of reach; that may pass.
    fn trouble(&mut self, error: ErrorObject) {
        self.failures += 1;
        if self.failures > FAILURES || self.connection.is_closed() {
            return self.fail(error);
        }
        self.status = TaskStatus::Working;
        self.due = Instant::now() + WAIT.saturating_mul(2u32.saturating_pow(self.failures));
    }

    /// The server does not know the task that it has made; there is nothing left to cancel.
    fn lost(&mut self, error: &ErrorObject) {
        let why = format!("The server has lost the task: {}", error.message());
        let data = Raw::of(&serde_json::json!({ "code": error.code() }));
        self.done(Err(ErrorObject::new(code::INTERNAL_ERROR, why).with_data(data)));
    }

    /// The task is over.
    fn done(&mut self, outcome: Outcome) {
        self.over = true;
        self.end_with(outcome);
    }

    /// The call is over, and the task is not wanted any more.
    fn fail(&mut self, error: ErrorObject) {
        self.end_with(Err(error));
    }

    fn end_with(&mut self, outcome: Outcome) {
        self.queue.push_back(Reply::End(Answer { outcome, revision: self.connection.revision() }));
    }
}

impl Drop for TaskDriver {
    fn drop(&mut self) {
        self.connection.related().leave(&self.id);
        if !self.over {
            cancel(&self.connection, &self.call, self.id.clone());
        }
    }
}

async fn next(asking: &mut Option<PendingRequest>) -> Option<Reply> {
    match asking {
        Some(asking) => asking.replies.next().await,
        None => None,
    }
}

/// Sends something that is about a task, as somebody who knows tasks.
fn send(connection: &Connection, call: &Call, method: &str, params: &Raw) -> Replies {
    let params = connection.params(Some(params), call, true);
    let headers = Headers { mirrors: &[], caller: &call.caller };
    connection.send(Method::from(method), params, None, headers)
}

/// Tells the server that nobody wants a task any more, where it can be told.
fn cancel(connection: &Arc<Connection>, call: &Call, id: String) {
    let (connection, call) = (Arc::clone(connection), call.clone());
    part(&Arc::clone(&connection), async move { cancelled(&connection, &call, &id).await });
}

async fn cancelled(connection: &Connection, call: &Call, id: &str) {
    if !tasks::ended_by(&connection.server().capabilities, connection.revision()) {
        return;
    }
    let replies = send(connection, call, "tasks/cancel", &tasks::named(id));
    let patience = connection.settings().idle_timeout;
    if let Ok(Err(error)) | Err(error) = probe::answer(replies, patience, "`tasks/cancel`")
        .await
        .map(|outcome| outcome.map_err(crate::error::Error::answered))
    {
        tracing::debug!(%error, "a task was not cancelled");
    }
}

/// A call that was to become a task is given up. Nobody knows the task's name yet, and a task may only
/// be cancelled by that, so it is waited for.
pub(super) fn give_up(connection: &Arc<Connection>, call: &Call, replies: Replies) {
    let (connection, call) = (Arc::clone(connection), call.clone());
    part(&Arc::clone(&connection), async move {
        let patience = connection.settings().idle_timeout;
        let Ok(Ok(result)) = probe::answer(replies, patience, "`tools/call`").await else { return };
        if let Some(task) = tasks::created(&result, connection.revision()).filter(|task| !task.status.is_final()) {
            cancelled(&connection, &call, &task.id).await;
        }
    });
}

/// Says a last word before the connection may go.
fn part(connection: &Connection, word: impl Future<Output = ()> + Send + 'static) {
    if tokio::runtime::Handle::try_current().is_ok() {
        connection.closing_tasks().spawn(word);
    }
}
