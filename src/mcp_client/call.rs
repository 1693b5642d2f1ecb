//! One call to an upstream: timeouts, input rounds, retries and the hand-over to a task driver.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connection::{Connection, RequestHeaders};
use super::request_trace::RequestTrace;
use super::round::{ProgressFilter, Round, WaitLimits};
use super::task_driver::{DriverPurpose, ExpectedTask, TaskDriver};
use crate::call::{Answer, Call, Reply, ReplySink, ServerRequest};
use crate::dialect::tasks as dialect;
use crate::dialect::to_upstream::{self, InputRequired};
use crate::failure::{Failure, FailureKind};
use crate::protocol::{Key, Method, Outcome, Payload, Raw, code};

/// A call on its way, over all its input rounds.
struct UpstreamCall<'c> {
    connection: &'c Arc<Connection>,
    call: &'c Call,
    /// The parameters of the next round: the caller's, with the input responses of earlier rounds.
    params: Option<Payload>,
    task_use: TaskUse<'c>,
    /// URLs of elicitations that the client has accepted.
    accepted_urls: HashSet<String>,
    progress: ProgressFilter,
    limits: WaitLimits,
    input_rounds: u32,
    mirrors: MirrorState,
}

/// What the request says about tasks.
enum TaskUse<'c> {
    /// Nothing.
    Unspecified,
    /// It asks the server to run the call as a task.
    Requested(#[allow(dead_code, reason = "held to be dropped")] ExpectedTask<'c>, DriverPurpose),
    /// It declares the tasks extension for a client that gets the task, in the form of its own era.
    Offered,
    /// It declares the tasks extension on behalf of a client that does not know it.
    Declared,
}

/// Whether the header mirrors were read again because the server refused those it was sent.
#[derive(PartialEq)]
enum MirrorState {
    AsListed,
    Refreshed,
}

/// What follows a response of the server.
enum NextStep {
    /// The call has ended.
    End(Answer),
    /// The request is sent again.
    Send,
    /// The client is asked, and the request is sent again with its responses.
    AskClient(InputRequired),
    /// The server has made the call a task, which is driven to its end.
    DriveTask(Box<TaskDriver>),
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
/// How much longer a task that we request lives than a call may take: elicitations do not count towards that.
const TASK_TTL_MARGIN: Duration = Duration::from_secs(3600);

/// Longest time that a task is driven for because it lives that long.
const MAX_HELD_TASK_TIME: Duration = Duration::from_secs(24 * 3600);

/// Runs a call to its answer; dropping the future cancels it.
pub(super) async fn run(connection: &Arc<Connection>, call: &Call, out: &mut impl ReplySink) -> Answer {
    UpstreamCall::new(connection, call, call.params.clone(), TaskUse::Unspecified).run(out).await
}

/// Runs a call of a tool that runs only as a task.
pub(super) async fn run_as_task(
    connection: &Arc<Connection>,
    (call, purpose): (&Call, DriverPurpose),
    out: &mut impl ReplySink,
) -> Answer {
    let params = dialect::with_task_request(call.params.as_deref(), task_ttl(connection));
    let task_use = TaskUse::Requested(ExpectedTask::new(connection.task_registry()), purpose);
    UpstreamCall::new(connection, call, Some(params.into()), task_use).run(out).await
}

/// Runs a call, or a request about a task, with the tasks extension declared. A task is returned as it is.
pub(super) async fn run_offering_task(connection: &Arc<Connection>, call: &Call, out: &mut impl ReplySink) -> Answer {
    UpstreamCall::new(connection, call, call.params.clone(), TaskUse::Offered).run(out).await
}

/// The lifetime of a task that we request.
fn task_ttl(connection: &Connection) -> Duration {
    connection.settings().total_timeout + TASK_TTL_MARGIN
}

impl<'c> UpstreamCall<'c> {
    fn new(connection: &'c Arc<Connection>, call: &'c Call, params: Option<Payload>, task_use: TaskUse<'c>) -> Self {
        Self {
            connection,
            call,
            params,
            task_use,
            accepted_urls: HashSet::new(),
            progress: ProgressFilter::default(),
            limits: WaitLimits::new(connection.settings(), call),
            input_rounds: 0,
            mirrors: MirrorState::AsListed,
        }
    }

    /// Borrows itself, because a future that owns what is large is moved with all its room before it runs.
    async fn run(&mut self, out: &mut impl ReplySink) -> Answer {
        loop {
            let outcome = self.send(out).await;
            match self.on_response(outcome).await {
                NextStep::End(answer) => return answer,
                NextStep::Send => {}
                NextStep::AskClient(input) => {
                    if let Err(error) = Box::pin(self.ask_client(input, out)).await {
                        return self.failure(error);
                    }
                }
                NextStep::DriveTask(driver) => return Box::pin(driver.run(out)).await,
            }
        }
    }

    /// Sends the request and waits for its response.
    async fn send(&mut self, out: &mut impl ReplySink) -> Outcome {
        let mirrors = self.connection.mirrors_for(self.call).await;
        let declares_tasks = matches!(self.task_use, TaskUse::Declared | TaskUse::Offered);
        let (method, own) = (&self.call.method, self.params.as_ref());
        let trace = RequestTrace::begin(self.connection, self.call, method, own);
        let params = self.connection.params(own, self.call, declares_tasks, trace.as_ref());
        let progress_token = self.call.progress_token.clone();
        let headers = RequestHeaders { mirrors: &mirrors, caller: &self.call.caller, trace: trace.as_ref() };
        let (progress, limits, delivery) = (&mut self.progress, &mut self.limits, self.call.delivery);
        let mut round = Round { out, progress, limits, delivery };
        let outcome = match self.task_use {
            // The task is cancelled by its id, so a request that is dropped goes on until its response has come.
            TaskUse::Requested(..) => {
                let replies = self.connection.send(self.call.method.clone(), params, progress_token, headers);
                Box::pin(round.wait_for_task(self.connection, self.call, replies)).await
            }
            _ => {
                self.connection.run_request(self.call.method.clone(), params, progress_token, headers, &mut round).await
            }
        };
        if let Some(trace) = trace {
            trace.end(&self.call.method, &outcome);
        }
        outcome
    }

    /// Handles a response: it may require input, header mirrors that changed, or a task.
    async fn on_response(&mut self, outcome: Outcome) -> NextStep {
        let mut answer = self.answer(outcome);
        if self.input_rounds > 0 {
            // The server worked on the call before it asked for input.
            answer.mark_sent();
        }
        let outcome = answer.outcome;
        let mismatch = matches!(&outcome, Err(error) if error.code() == code::HEADER_MISMATCH);
        if mismatch && self.connection.requires_mirrors() && self.mirrors == MirrorState::AsListed {
            self.mirrors = MirrorState::Refreshed;
            // The tool list has changed since it was read; read it again for the header mirrors.
            Box::pin(self.connection.refresh_mirrors(self.call)).await;
            return NextStep::Send;
        }
        if self.call.method == Method::ToolsCall
            && let Some(step) = self.task_step(&outcome)
        {
            return step;
        }
        if !self.call.method.may_require_input()
            && self.connection.revision().asks_by_result()
            && outcome.as_ref().is_ok_and(to_upstream::is_input_required)
        {
            let message = format!("the server asked for input to answer {}", self.call.method.as_str());
            return NextStep::End(self.failure(Failure::new(FailureKind::Protocol, message)));
        }
        let client_has_session = self.call.client.revision.accepts_server_requests();
        let (Ok(result), true) = (&outcome, client_has_session && self.connection.revision().asks_by_result()) else {
            return NextStep::End(self.answer(outcome));
        };
        match to_upstream::input_required(result) {
            Ok(None) => NextStep::End(self.answer(outcome)),
            Ok(Some(input)) => {
                self.input_rounds += 1;
                let max_input_rounds = self.connection.settings().max_input_rounds;
                if self.input_rounds <= max_input_rounds {
                    return NextStep::AskClient(input);
                }
                let message = format!("the server asked for input more than {max_input_rounds} times");
                NextStep::End(self.failure(Failure::new(FailureKind::Protocol, message)))
            }
            Err(message) => NextStep::End(self.failure(Failure::new(FailureKind::Protocol, message))),
        }
    }

    /// Whether the call continues as a task that is driven here, or is sent again with the tasks extension declared.
    ///
    /// A per-request server may make a task of a call only if the client declares the extension. Tasks report no
    /// progress and no log messages, and their end is noticed later, so the extension is not declared for a client that
    /// does not know it. A server that requires it responds `-32021` and has run nothing: the call is sent again with
    /// the extension declared, and the task is driven here. A per-request client receives that error itself, as it would
    /// from the server directly; a task that the server makes unasked is of no use to the client and is driven here, too.
    fn task_step(&mut self, outcome: &Outcome) -> Option<NextStep> {
        let (client, revision) = (&self.call.client, self.connection.revision());
        if matches!(self.task_use, TaskUse::Offered) {
            return None;
        }
        let result = match outcome {
            Ok(result) => result,
            Err(error) => {
                let requires_tasks = dialect::requires_task_support(error) && revision.is_bridged_to(client.revision);
                if !requires_tasks || matches!(self.task_use, TaskUse::Declared) {
                    return None;
                }
                self.task_use = TaskUse::Declared;
                return Some(NextStep::Send);
            }
        };
        let requested_for = match self.task_use {
            TaskUse::Requested(_, purpose) => Some(purpose),
            _ => None,
        };
        let is_requested = requested_for.is_some();
        // In the handshake era only a request that asks for a task can become one.
        if revision.creates_tasks_on_request() && !is_requested {
            return None;
        }
        let task = dialect::created_task(result, revision)?;
        if !is_requested && dialect::client_supports_tasks(&client.capabilities, client.revision) {
            return None;
        }
        tracing::debug!(method = %self.call.method, "call became a task");
        let purpose = requested_for.unwrap_or(DriverPurpose::Call);
        let deadline = match purpose {
            // The client waits for no response; the task may take as long as it lives.
            DriverPurpose::HeldTask => {
                let lifetime = task.ttl.unwrap_or_default().min(MAX_HELD_TASK_TIME);
                Instant::now() + lifetime.max(task_ttl(self.connection))
            }
            DriverPurpose::Call | DriverPurpose::TaskResult => self.limits.deadline(),
        };
        let mut driver = TaskDriver::new(self.connection, (self.call, purpose), &task, deadline);
        if let Some(created) = result.member(Key::Task) {
            driver.report_created(&created);
        }
        self.task_use = TaskUse::Unspecified;
        Some(NextStep::DriveTask(driver))
    }

    /// Forwards the input requests to the client and waits for its responses, which the next request carries.
    async fn ask_client(&mut self, input: InputRequired, out: &mut impl ReplySink) -> Result<(), Failure> {
        let request_state = input.state;
        let mut pending = Vec::with_capacity(input.requests.len());
        for (key, method, params) in input.requests {
            let (responder, response) = oneshot::channel();
            let url = params.as_ref().and_then(|params| params.get("url"));
            let url = url.as_ref().and_then(Raw::text).map(std::borrow::Cow::into_owned);
            if url.as_ref().is_some_and(|url| self.accepted_urls.contains(url)) {
                // The user has already accepted this URL; only the retry has to wait.
                let _ = responder.send(Ok(Raw::constant(r#"{"action":"accept"}"#).into()));
            } else {
                let request = ServerRequest { method, params, responder: responder.into(), asker: None };
                out.send(Reply::ServerRequest(request)).await;
            }
            pending.push(PendingInput { key, response, url });
        }
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
            let result = self.wait_for_input(response).await?;
            let action = result.get("action");
            let is_accepted = action.as_ref().and_then(Raw::text).as_deref() == Some("accept");
            self.accepted_urls.extend(url.filter(|_| is_accepted));
            responses.push((key, result.edit().remove("_meta").finish()));
        }
        self.limits.extend(started.elapsed());
        self.progress.begin_round();
        let retry = to_upstream::retry_params(self.params.as_deref(), &responses, request_state.as_ref());
        self.params = Some(retry.into());
        Ok(())
    }

    /// The client's response to one input request.
    async fn wait_for_input(&self, response: oneshot::Receiver<Outcome>) -> Result<Raw, Failure> {
        match tokio::time::timeout(self.connection.settings().total_timeout, response).await {
            Ok(response) => client_input(response),
            Err(_) => Err(Failure::new(FailureKind::ClientUnanswered, "the client did not answer in time")),
        }
    }

    fn answer(&self, outcome: Outcome) -> Answer {
        Answer { outcome, revision: self.connection.revision() }
    }

    /// The answer of a call that cannot continue.
    fn failure(&self, failure: Failure) -> Answer {
        self.answer(failed(&self.call.method, failure))
    }
}

/// What the client gave for an input request.
pub(super) fn client_input(response: Result<Outcome, oneshot::error::RecvError>) -> Result<Raw, Failure> {
    let why = match response {
        Ok(Ok(result)) => return Ok(result.into_raw()),
        Ok(Err(error)) => format!("the client did not answer: {}", error.message()),
        Err(_) => "the client does not answer questions of this kind".to_owned(),
    };
    Err(Failure::new(FailureKind::ClientUnanswered, why))
}

/// The outcome of a call that failed: a tool call whose client did not answer has a result with the client's own words,
/// because only its model can do something about it.
pub(super) fn failed(method: &Method, failure: Failure) -> Outcome {
    if *method != Method::ToolsCall || failure.kind() != FailureKind::ClientUnanswered {
        return Err(failure.into());
    }
    let content = [serde_json::json!({ "type": "text", "text": failure.to_string() })];
    Ok(Raw::of(&serde_json::json!({ "content": content, "isError": true, "resultType": "complete" })).into())
}

/// The failure of a call whose server sent nothing for `limit`.
pub(super) fn silent(limit: Duration) -> Failure {
    Failure::new(FailureKind::Silent(limit), format!("call timed out: the server was silent for {limit:?}"))
}

/// The failure of a call that was not done within `limit`.
pub(super) fn timed_out(limit: Duration) -> Failure {
    Failure::new(FailureKind::TimedOut(limit), format!("call timed out: it was not done within {limit:?}"))
}
