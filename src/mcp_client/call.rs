//! One call to an upstream: timeouts, input rounds, retries and the hand-over to a task driver.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connection::{Connection, RequestHeaders};
use super::task_driver::{self, TaskDriver};
use crate::call::{Answer, Call, Replies, Reply, ServerRequest};
use crate::dialect::tasks as dialect;
use crate::dialect::to_upstream::{self, InputRequired};
use crate::failure::{Failure, FailureKind};
use crate::protocol::{ErrorObject, Method, Notification, NotificationMethod, Outcome, Raw, code};
use crate::timer::PooledTimer;

/// A call on its way, over all its input rounds.
pub(super) struct UpstreamCall {
    connection: Arc<Connection>,
    call: Call,
    /// The parameters of the next round: the caller's, with the input responses of earlier rounds.
    params: Option<Raw>,
    replies: Option<Replies>,
    queue: VecDeque<Reply>,
    /// Input requests that were forwarded to the client, with the receivers of its responses.
    pending_inputs: Vec<PendingInput>,
    /// URLs of elicitations that the client has accepted.
    accepted_urls: HashSet<String>,
    /// Highest progress reported over all rounds.
    highest_progress: f64,
    request_state: Option<Raw>,
    input_rounds: u32,
    /// The client has received a server request, so the idle timeout no longer applies.
    client_was_asked: bool,
    mirrors_refreshed: bool,
    /// The request asks the server to run the call as a task.
    as_task: bool,
    /// The request declares the tasks extension on behalf of a client that does not know it.
    declares_tasks: bool,
    /// Drives the call once the server has made it a task.
    task: Option<Box<TaskDriver>>,
    deadline: Instant,
}

/// An input request that was forwarded to the client.
struct PendingInput {
    key: String,
    response: oneshot::Receiver<Outcome>,
    /// The URL of a URL-mode elicitation.
    url: Option<String>,
}

/// First delay before a retry when the server returned a request state without input requests.
const STATE_RETRY_INITIAL_DELAY: Duration = Duration::from_millis(250);
/// Upper bound of that delay, which doubles with each round.
const STATE_RETRY_MAX_DELAY: Duration = Duration::from_secs(5);
/// First delay before a retry while the user visits a URL that was accepted earlier.
const URL_RETRY_INITIAL_DELAY: Duration = Duration::from_secs(2);
/// Upper bound of that delay, which doubles with each round.
const URL_RETRY_MAX_DELAY: Duration = Duration::from_secs(30);

impl UpstreamCall {
    /// A call that sends `params`, which may extend those of `call`.
    pub(super) fn new(connection: &Arc<Connection>, call: Call, params: Option<Raw>, as_task: bool) -> Self {
        if as_task {
            connection.task_registry().expect_task();
        }
        Self {
            params,
            call,
            connection: Arc::clone(connection),
            replies: None,
            queue: VecDeque::new(),
            pending_inputs: Vec::new(),
            accepted_urls: HashSet::new(),
            highest_progress: f64::NEG_INFINITY,
            request_state: None,
            input_rounds: 0,
            client_was_asked: false,
            mirrors_refreshed: false,
            as_task,
            declares_tasks: false,
            task: None,
            deadline: Instant::now() + connection.settings().total_timeout,
        }
    }

    /// The replies of the call. Dropping them cancels it.
    pub(super) fn replies(self) -> Replies {
        Replies::stream(futures_util::stream::unfold(Some(self), |upstream_call| async move {
            let mut upstream_call = upstream_call?;
            let reply = upstream_call.next().await;
            let has_more = !matches!(reply, Reply::End(_));
            Some((reply, has_more.then_some(upstream_call)))
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
            if !self.pending_inputs.is_empty() || self.request_state.is_some() {
                if let Err(failure) = Box::pin(self.answer_and_retry()).await {
                    return self.failure_reply(failure);
                }
                continue;
            }
            let reply = match self.next_from_server().await {
                Ok(reply) => reply,
                Err(error) => return Reply::End(Answer { outcome: Err(error), revision: self.connection.revision() }),
            };
            match reply {
                Reply::End(answer) => {
                    if let Some(reply) = self.on_response(answer).await {
                        return reply;
                    }
                }
                Reply::ServerRequest(request) => {
                    // The time that the client takes does not count towards the timeouts.
                    self.client_was_asked = true;
                    self.deadline = Instant::now() + self.connection.settings().total_timeout;
                    return Reply::ServerRequest(request);
                }
                Reply::Notification(notification) if !self.advances_progress(&notification) => {}
                notification @ Reply::Notification(_) => return notification,
            }
        }
    }

    /// Waits for the next message of the server, at most for the idle timeout and until the call's deadline.
    async fn next_from_server(&mut self) -> Result<Reply, ErrorObject> {
        if self.replies.is_none() {
            let mirrors = self.connection.mirrors_for(&self.call).await;
            let params = self.connection.params(self.params.as_ref(), &self.call, self.declares_tasks);
            let progress_token = self.call.progress_token.clone();
            let headers = RequestHeaders { mirrors: &mirrors, caller: &self.call.caller };
            self.replies = Some(self.connection.send(self.call.method.clone(), params, progress_token, headers));
        }
        let settings = self.connection.settings();
        let idle_timeout = if self.client_was_asked { settings.total_timeout } else { settings.idle_timeout };
        let now = Instant::now();
        let Some(replies) = &mut self.replies else { return Err(missing_response()) };
        let reply = match self.call.method {
            Method::Listen => replies.next().await,
            _ => match PooledTimer::timeout_at_from(now, (now + idle_timeout).min(self.deadline), replies.next()).await
            {
                Some(reply) => reply,
                None => {
                    let failure = match Instant::now() >= self.deadline {
                        true => timed_out(settings.total_timeout),
                        false => silent(idle_timeout),
                    };
                    self.cancel_in_flight();
                    return Err(failure.into());
                }
            },
        };
        reply.ok_or_else(missing_response)
    }

    /// Handles a response: it may require input, header mirrors that changed, or a task. `None` when the call continues.
    async fn on_response(&mut self, mut answer: Answer) -> Option<Reply> {
        self.replies = None;
        if self.input_rounds > 0 {
            // The server worked on the call before it asked for input.
            answer.mark_sent();
        }
        let mismatch = matches!(&answer.outcome, Err(error) if error.code() == code::HEADER_MISMATCH);
        if mismatch && self.connection.requires_mirrors() && !std::mem::replace(&mut self.mirrors_refreshed, true) {
            // The tool list has changed since it was read; read it again for the header mirrors.
            Box::pin(self.connection.refresh_mirrors(&self.call)).await;
            return None;
        }
        if self.call.method == Method::ToolsCall && self.becomes_task(&answer.outcome) {
            return None;
        }
        let client_has_session = self.call.client.revision.accepts_server_requests();
        let (Ok(result), true) = (&answer.outcome, client_has_session && self.connection.revision().asks_by_result())
        else {
            return Some(Reply::End(answer));
        };
        match to_upstream::input_required(result) {
            Ok(None) => Some(Reply::End(answer)),
            Ok(Some(input)) => {
                self.input_rounds += 1;
                if self.input_rounds > self.connection.settings().max_input_rounds {
                    let message = format!(
                        "the server asked for input more than {} times",
                        self.connection.settings().max_input_rounds
                    );
                    return Some(self.failure_reply(Failure::new(FailureKind::Protocol, message)));
                }
                self.forward_input_requests(input);
                None
            }
            Err(message) => Some(self.failure_reply(Failure::new(FailureKind::Protocol, message))),
        }
    }

    /// Whether the call continues as a task that is driven here, or is sent again with the tasks extension declared.
    ///
    /// A per-request server may make a task of a call only if the client declares the extension. Tasks report no
    /// progress and no log messages, and their end is noticed later, so the extension is not declared for a client that
    /// does not know it. A server that requires it responds `-32021` and has run nothing: the call is sent again with
    /// the extension declared, and the task is driven here. A per-request client receives that error itself, as it would
    /// from the server directly; a task that the server makes unasked is of no use to the client and is driven here, too.
    fn becomes_task(&mut self, outcome: &Outcome) -> bool {
        let (client, revision) = (&self.call.client, self.connection.revision());
        let result = match outcome {
            Ok(result) => result,
            Err(error) => {
                let requires_tasks = dialect::requires_task_support(error) && revision.is_bridged_to(client.revision);
                return requires_tasks && !std::mem::replace(&mut self.declares_tasks, true);
            }
        };
        // In the handshake era only a request that asks for a task can become one.
        if revision.creates_tasks_on_request() && !self.as_task {
            return false;
        }
        let Some(task) = dialect::created_task(result, revision) else { return false };
        if !self.as_task && dialect::client_supports_tasks(&client.capabilities, client.revision) {
            return false;
        }
        self.task = Some(TaskDriver::new(&self.connection, &self.call, &task, self.deadline));
        self.stop_expecting_task();
        true
    }

    fn stop_expecting_task(&mut self) {
        if std::mem::take(&mut self.as_task) {
            self.connection.task_registry().stop_expecting_task();
        }
    }

    /// Cancels the request in flight by dropping its replies. A call that is to become a task is cancelled by task id
    /// instead, once that is known.
    fn cancel_in_flight(&mut self) {
        if let Some(replies) = self.replies.take().filter(|_| self.as_task) {
            task_driver::abandon_task_creation(&self.connection, &self.call, replies);
        }
    }

    /// Whether a notification may be forwarded. Progress that restarts with a new round must exceed the previous highest
    /// value first, because progress must increase.
    fn advances_progress(&mut self, notification: &Notification) -> bool {
        let params = notification.params.as_ref().filter(|_| notification.method == NotificationMethod::Progress);
        let value = params.and_then(|params| params.get("progress")).and_then(|value| value.read::<f64>().ok());
        let Some(value) = value else { return true };
        let advances = self.input_rounds == 0 || value > self.highest_progress;
        self.highest_progress = self.highest_progress.max(value);
        advances
    }

    fn forward_input_requests(&mut self, input: InputRequired) {
        self.request_state = input.state;
        for (key, method, params) in input.requests {
            let (responder, response) = oneshot::channel();
            let url = params.as_ref().and_then(|params| params.get("url"));
            let url = url.as_ref().and_then(Raw::text).map(std::borrow::Cow::into_owned);
            if url.as_ref().is_some_and(|url| self.accepted_urls.contains(url)) {
                // The user has already accepted this URL; only the retry has to wait.
                let _ = responder.send(Ok(Raw::constant(r#"{"action":"accept"}"#)));
            } else {
                self.queue.push_back(Reply::ServerRequest(ServerRequest { method, params, responder }));
            }
            self.pending_inputs.push(PendingInput { key, response, url });
        }
    }

    /// Waits for the client's responses to the input requests and prepares the retry that carries them.
    async fn answer_and_retry(&mut self) -> Result<(), Failure> {
        let pending = std::mem::take(&mut self.pending_inputs);
        let started = Instant::now();
        if pending.is_empty() {
            // No input requests: the server only wants a retry later.
            let delay = STATE_RETRY_INITIAL_DELAY * 2u32.saturating_pow(self.input_rounds.saturating_sub(1));
            tokio::time::sleep(delay.min(STATE_RETRY_MAX_DELAY)).await;
        } else if pending.iter().all(|input| input.url.as_ref().is_some_and(|url| self.accepted_urls.contains(url))) {
            let delay = URL_RETRY_INITIAL_DELAY * 2u32.saturating_pow(self.input_rounds.saturating_sub(2));
            tokio::time::sleep(delay.min(URL_RETRY_MAX_DELAY)).await;
        }
        let mut responses = Vec::with_capacity(pending.len());
        for PendingInput { key, response, url } in pending {
            match tokio::time::timeout(self.connection.settings().total_timeout, response).await {
                Ok(Ok(Ok(result))) => {
                    let action = result.get("action");
                    let is_accepted = action.as_ref().and_then(Raw::text).as_deref() == Some("accept");
                    self.accepted_urls.extend(url.filter(|_| is_accepted));
                    responses.push((key, result.edit().remove("_meta").finish()));
                }
                Ok(Ok(Err(error))) => {
                    return Err(client_unanswered(format!("the client did not answer: {}", error.message())));
                }
                Ok(Err(_)) => {
                    return Err(client_unanswered("the client does not answer questions of this kind"));
                }
                Err(_) => return Err(client_unanswered("the client did not answer in time")),
            }
        }
        self.deadline += started.elapsed();
        let request_state = self.request_state.take();
        self.params = Some(to_upstream::retry_params(self.params.as_ref(), &responses, request_state.as_ref()));
        Ok(())
    }

    /// The final reply of a call that cannot continue: `isError` for a tool call, a JSON-RPC error otherwise.
    fn failure_reply(&self, failure: Failure) -> Reply {
        let outcome = if self.call.method == Method::ToolsCall {
            let content = [serde_json::json!({ "type": "text", "text": failure.to_string() })];
            Ok(Raw::of(&serde_json::json!({ "content": content, "isError": true, "resultType": "complete" })))
        } else {
            Err(failure.into())
        };
        Reply::End(Answer { outcome, revision: self.connection.revision() })
    }
}

impl Drop for UpstreamCall {
    fn drop(&mut self) {
        self.cancel_in_flight();
        self.stop_expecting_task();
    }
}

/// The failure of a call whose server sent nothing for `limit`.
pub(super) fn silent(limit: Duration) -> Failure {
    Failure::new(FailureKind::Silent(limit), format!("call timed out: the server was silent for {limit:?}"))
}

/// The failure of a call that was not done within `limit`.
pub(super) fn timed_out(limit: Duration) -> Failure {
    Failure::new(FailureKind::TimedOut(limit), format!("call timed out: it was not done within {limit:?}"))
}

fn client_unanswered(why: impl Into<String>) -> Failure {
    Failure::new(FailureKind::ClientUnanswered, why)
}

fn missing_response() -> ErrorObject {
    ErrorObject::new(code::INTERNAL_ERROR, "Internal error: the call ended without an answer")
}
