//! One call to an upstream: its limits, its questions, and the rounds that it takes.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connection::{Connection, Headers};
use super::task_driver::{self, TaskDriver};
use crate::call::{Answer, Call, Replies, Reply, ServerRequest};
use crate::dialect::tasks as dialect;
use crate::dialect::to_upstream::{self, InputRequired};
use crate::error::{Error, ErrorKind, Result};
use crate::protocol::{ErrorObject, Method, Notice, Notification, Outcome, Raw, code};
use crate::timer::PooledTimer;

/// One call, over as many rounds as it takes.
pub(super) struct UpstreamCall {
    connection: Arc<Connection>,
    call: Call,
    /// The parameters, with what later rounds add.
    params: Option<Raw>,
    replies: Option<Replies>,
    queue: VecDeque<Reply>,
    /// Questions that were passed on, and where their answers come.
    asked: Vec<Asked>,
    /// The addresses that somebody has agreed to go to.
    visited: HashSet<String>,
    /// How far the call has come, over all rounds.
    progress: f64,
    state: Option<Raw>,
    rounds: u32,
    /// The client was asked something, and may take its time.
    asked_client: bool,
    refreshed: bool,
    /// The server is asked to make a task of it.
    as_task: bool,
    /// The server is told that tasks are known here.
    knows_tasks: bool,
    /// What it became.
    task: Option<Box<TaskDriver>>,
    end: Instant,
}

/// A question that was passed on.
struct Asked {
    key: String,
    answered: oneshot::Receiver<Outcome>,
    /// The address that it sends people to.
    url: Option<String>,
}

/// How long to wait when a server only says to come back, at first.
const COME_BACK: Duration = Duration::from_millis(250);
/// The longest of such waits.
const COME_BACK_CAP: Duration = Duration::from_secs(5);
/// How long a person may take at an address before the server is asked again, at first.
const VISIT: Duration = Duration::from_secs(2);
/// The longest of such waits.
const VISIT_CAP: Duration = Duration::from_secs(30);

impl UpstreamCall {
    /// A call with these parameters, which may be more than its own.
    pub(super) fn new(connection: &Arc<Connection>, call: Call, params: Option<Raw>, as_task: bool) -> Self {
        if as_task {
            connection.related().expect();
        }
        Self {
            params,
            call,
            connection: Arc::clone(connection),
            replies: None,
            queue: VecDeque::new(),
            asked: Vec::new(),
            visited: HashSet::new(),
            progress: f64::NEG_INFINITY,
            state: None,
            rounds: 0,
            asked_client: false,
            refreshed: false,
            as_task,
            knows_tasks: false,
            task: None,
            end: Instant::now() + connection.settings().total_timeout,
        }
    }

    /// The replies; dropping them cancels the call.
    pub(super) fn replies(self) -> Replies {
        Replies::stream(futures_util::stream::unfold(Some(self), |conversation| async move {
            let mut conversation = conversation?;
            let reply = conversation.next().await;
            let more = !matches!(reply, Reply::End(_));
            Some((reply, more.then_some(conversation)))
        }))
    }

    async fn next(&mut self) -> Reply {
        loop {
            if let Some(reply) = self.queue.pop_front() {
                return reply;
            }
            if let Some(task) = &mut self.task {
                return Box::pin(task.next()).await;
            }
            if !self.asked.is_empty() || self.state.is_some() {
                if let Err(error) = Box::pin(self.answer_and_retry()).await {
                    return self.failed(&error);
                }
                continue;
            }
            let reply = match self.wait().await {
                Ok(reply) => reply,
                Err(error) => return Reply::End(Answer { outcome: Err(error), revision: self.connection.revision() }),
            };
            match reply {
                Reply::End(answer) => {
                    if let Some(reply) = self.ended(answer).await {
                        return reply;
                    }
                }
                Reply::Question(question) => {
                    // However long the client takes does not count.
                    self.asked_client = true;
                    self.end = Instant::now() + self.connection.settings().total_timeout;
                    return Reply::Question(question);
                }
                Reply::Notice(notification) if !self.goes_on(&notification) => {}
                notice @ Reply::Notice(_) => return notice,
            }
        }
    }

    /// Waits for the next reply, within the limits.
    async fn wait(&mut self) -> std::result::Result<Reply, ErrorObject> {
        if self.replies.is_none() {
            let mirrors = self.connection.mirrors_of(&self.call).await;
            let params = self.connection.params(self.params.as_ref(), &self.call, self.knows_tasks);
            let token = self.call.progress.clone();
            let headers = Headers { mirrors: &mirrors, caller: &self.call.caller };
            self.replies = Some(self.connection.send(self.call.method.clone(), params, token, headers));
        }
        let settings = self.connection.settings();
        let silence = if self.asked_client { settings.total_timeout } else { settings.idle_timeout };
        let now = Instant::now();
        let Some(replies) = &mut self.replies else { return Err(lost()) };
        let reply = match self.call.method {
            Method::Listen => replies.next().await,
            _ => match PooledTimer::limit_from(now, (now + silence).min(self.end), replies.next()).await {
                Some(reply) => reply,
                None => {
                    let whole = Instant::now() >= self.end;
                    let limit = if whole { settings.total_timeout } else { silence };
                    let why = format!("Request timed out: the server was silent for {limit:?}");
                    self.give_up();
                    return Err(ErrorObject::unavailable(why));
                }
            },
        };
        reply.ok_or_else(lost)
    }

    /// Looks at an answer: it may ask for input, or for headers that we do not know yet.
    async fn ended(&mut self, answer: Answer) -> Option<Reply> {
        self.replies = None;
        let mismatch = matches!(&answer.outcome, Err(error) if error.code() == code::HEADER_MISMATCH);
        if mismatch && self.connection.mirrors_arguments() && !std::mem::replace(&mut self.refreshed, true) {
            // Its list of tools has changed since we read it.
            Box::pin(self.connection.list_mirrors(&self.call)).await;
            return None;
        }
        if self.call.method == Method::ToolsCall && self.becomes_task(&answer.outcome) {
            return None;
        }
        let answers_questions = self.call.client.revision.facts().sessions;
        let (Ok(result), true) = (&answer.outcome, answers_questions && !self.connection.revision().facts().sessions)
        else {
            return Some(Reply::End(answer));
        };
        match to_upstream::input_required(result) {
            Ok(None) => Some(Reply::End(answer)),
            Ok(Some(input)) => {
                self.rounds += 1;
                if self.rounds > self.connection.settings().max_input_rounds {
                    let why = format!(
                        "the server asked for input more than {} times",
                        self.connection.settings().max_input_rounds
                    );
                    return Some(self.failed(&Error::new(ErrorKind::Protocol, why)));
                }
                self.forward_reply(input);
                None
            }
            Err(why) => Some(self.failed(&Error::new(ErrorKind::Protocol, why))),
        }
    }

    /// Whether an answer is a task that has to be driven here, or wants a caller that knows tasks.
    ///
    /// A server of the per-request era may make a task of any call of a client that declares the
    /// extension, and must not of any other's. A task has no progress and no log messages, and takes
    /// longer to be noticed when it is done, so it is not declared for clients that do not know it:
    /// whatever can be answered without a task is. A server that cannot do without answers `-32021` and
    /// has done nothing yet, so then the call is made again with the extension declared, and what it
    /// becomes is driven here. A client of that era is given the error itself, as it would be without us;
    /// but a task that is made for one that did not ask for it is nothing that it could use.
    fn becomes_task(&mut self, outcome: &Outcome) -> bool {
        let (client, revision) = (&self.call.client, self.connection.revision());
        let result = match outcome {
            Ok(result) => result,
            Err(error) => {
                let wanted = dialect::wanted_by(error) && revision.is_bridged_to(client.revision);
                return wanted && !std::mem::replace(&mut self.knows_tasks, true);
            }
        };
        // In the handshake era a task is made where the client, or we for it, have asked for one.
        if revision.facts().sessions && !self.as_task {
            return false;
        }
        let Some(task) = dialect::created(result, revision) else { return false };
        if !self.as_task && dialect::known_to(&client.capabilities, client.revision) {
            return false;
        }
        self.task = Some(TaskDriver::new(&self.connection, &self.call, &task, self.end));
        self.expect_no_longer();
        true
    }

    fn expect_no_longer(&mut self) {
        if std::mem::take(&mut self.as_task) {
            self.connection.related().expect_no_longer();
        }
    }

    /// Drops what is under way, which cancels it; unless it becomes a task, which has its own way.
    fn give_up(&mut self) {
        if let Some(replies) = self.replies.take().filter(|_| self.as_task) {
            task_driver::give_up(&self.connection, &self.call, replies);
        }
    }

    /// Whether a notice may be passed on: progress that begins anew with a round has to catch up first.
    fn goes_on(&mut self, notification: &Notification) -> bool {
        let told = notification.params.as_ref().filter(|_| notification.notice == Notice::Progress);
        let value = told.and_then(|params| params.get("progress")).and_then(|value| value.read::<f64>().ok());
        let Some(value) = value else { return true };
        let further = self.rounds == 0 || value > self.progress;
        self.progress = self.progress.max(value);
        further
    }

    fn forward_reply(&mut self, input: InputRequired) {
        self.state = input.state;
        for (key, method, params) in input.questions {
            let (answer, answered) = oneshot::channel();
            let url = params.as_ref().and_then(|params| params.get("url"));
            let url = url.as_ref().and_then(Raw::text).map(std::borrow::Cow::into_owned);
            if url.as_ref().is_some_and(|url| self.visited.contains(url)) {
                // Somebody is on the way there already; the server only has to be asked again later.
                let _ = answer.send(Ok(Raw::constant(r#"{"action":"accept"}"#)));
            } else {
                self.queue.push_back(Reply::Question(ServerRequest { method, params, answer }));
            }
            self.asked.push(Asked { key, answered, url });
        }
    }

    /// Waits for the client's answers, and sends the request again with them.
    async fn answer_and_retry(&mut self) -> Result<()> {
        let asked = std::mem::take(&mut self.asked);
        let begun = Instant::now();
        if asked.is_empty() {
            // It only wants us to come back later.
            let wait = COME_BACK * 2u32.saturating_pow(self.rounds.saturating_sub(1));
            tokio::time::sleep(wait.min(COME_BACK_CAP)).await;
        } else if asked.iter().all(|asked| asked.url.as_ref().is_some_and(|url| self.visited.contains(url))) {
            let wait = VISIT * 2u32.saturating_pow(self.rounds.saturating_sub(2));
            tokio::time::sleep(wait.min(VISIT_CAP)).await;
        }
        let mut answers = Vec::with_capacity(asked.len());
        for Asked { key, answered, url } in asked {
            match tokio::time::timeout(self.connection.settings().total_timeout, answered).await {
                Ok(Ok(Ok(result))) => {
                    let action = result.get("action");
                    let agreed = action.as_ref().and_then(Raw::text).as_deref() == Some("accept");
                    self.visited.extend(url.filter(|_| agreed));
                    answers.push((key, result.edit().remove("_meta").finish()));
                }
                Ok(Ok(Err(error))) => {
                    return Err(Error::new(
                        ErrorKind::Protocol,
                        format!("the client did not answer: {}", error.message()),
                    ));
                }
                Ok(Err(_)) => {
                    return Err(Error::new(ErrorKind::Protocol, "the client does not answer questions of this kind"));
                }
                Err(_) => return Err(Error::new(ErrorKind::Timeout, "the client did not answer in time")),
            }
        }
        self.end += begun.elapsed();
        let state = self.state.take();
        self.params = Some(to_upstream::retried(self.params.as_ref(), &answers, state.as_ref()));
        Ok(())
    }

    /// A call that cannot go on: a tool's failure is a result, anything else an error.
    fn failed(&self, error: &Error) -> Reply {
        let outcome = if self.call.method == Method::ToolsCall {
            let content = [serde_json::json!({ "type": "text", "text": error.to_string() })];
            Ok(Raw::of(&serde_json::json!({ "content": content, "isError": true, "resultType": "complete" })))
        } else {
            Err(ErrorObject::new(code::INTERNAL_ERROR, error.to_string()))
        };
        Reply::End(Answer { outcome, revision: self.connection.revision() })
    }
}

impl Drop for UpstreamCall {
    fn drop(&mut self) {
        self.give_up();
        self.expect_no_longer();
    }
}

fn lost() -> ErrorObject {
    ErrorObject::new(code::INTERNAL_ERROR, "Internal error: the call ended without an answer")
}
