//! Parked calls: calls that wait for input from a client of the per-request era.
//!
//! A handshake-era server sends a request during a call and waits for the response. A per-request client
//! cannot receive one: its request ends with an `input_required` result and a request state, the upstream
//! call is parked, and the client's next request with that state delivers the responses and resumes the call.
//! A request state is sealed, valid once and only for the caller it was issued to.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group::Group;
use super::request_state::{self, RequestState};
use super::route::invalid_params;
use crate::call::{Answer, Call, Caller, ClientInfo, Replies, Reply, ReplySink, ReplyYielder, ServerRequest};
use crate::dialect::{server_requests, to_client};
use crate::failure::{Failure, FailureKind, QuotaReached};
use crate::identity::Identity;
use crate::policy::{CallerPermit, Permit, QuotaKey, Quotas};
use crate::protocol::{ErrorObject, Key, Method, Notification, NotificationMethod, Payload, Raw, code};
use crate::recorder::{self, Mark};
use crate::trace::SpanContext;

/// How long parked calls wait.
#[derive(Debug, Clone, Copy)]
pub struct ParkingTimeouts {
    /// How long a parked call waits for an elicitation.
    pub elicitation_timeout: Duration,
    /// How long a parked call waits for sampling and other server requests.
    pub sampling_timeout: Duration,
}

/// All parked calls of this process.
#[derive(Debug)]
pub(super) struct ParkedCalls {
    timeouts: Mutex<ParkingTimeouts>,
    quotas: Arc<Quotas>,
    /// Random upper half of every id that this process issues, so that ids of a previous process are
    /// recognized.
    incarnation: u64,
    entries: Mutex<HashMap<u128, ParkedEntry>>,
}

#[derive(Debug)]
struct ParkedEntry {
    _permits: ParkingPermits,
    /// Whose call it is.
    owner: Arc<Identity>,
    group: Arc<str>,
    parked_at: Instant,
    /// Until when the call waits.
    until: Instant,
    upstream: Arc<str>,
    client: Arc<ClientInfo>,
    /// Methods and parameters of the server requests that wait for the client.
    questions: Vec<(Method, Option<Raw>)>,
    /// The number of the call for the recorder.
    mark: Mark,
    /// The span of the request that began it.
    span: Option<SpanContext>,
    resumed: CancellationToken,
    task: JoinHandle<Option<ParkedCall>>,
}

/// A call that waits for its client, for operators.
#[derive(Debug, Clone)]
pub struct ParkedReport {
    /// Stands for the call; no client can resume it by this.
    pub id: String,
    /// Name of the group.
    pub group: Arc<str>,
    /// Name of the server that asks.
    pub upstream: Arc<str>,
    /// Whose call it is.
    pub owner: Arc<Identity>,
    /// The client.
    pub client: Arc<ClientInfo>,
    /// Methods and parameters of the server requests.
    pub questions: Vec<(Method, Option<Raw>)>,
    /// The number of the call for the recorder.
    pub mark: Mark,
    /// How long it has waited.
    pub age: Duration,
    /// How long it will wait yet.
    pub left: Duration,
}

/// The shares of a parked call: in all, and of its caller.
pub(super) type ParkingPermits = (Permit, Option<CallerPermit>);

/// An upstream call with its unanswered server requests and buffered replies.
#[derive(Debug)]
struct ParkedCall {
    /// The name of the upstream that runs the call.
    upstream: Arc<str>,
    /// The number of the first round for the recorder; later ones join it.
    mark: Mark,
    replies: Replies,
    /// Unanswered server requests by the key that the client knows.
    pending: Vec<(String, ServerRequest)>,
    last_key: u32,
    notifications: VecDeque<Notification>,
    ended: Option<Answer>,
}

/// A client request attached to an upstream call.
struct AttachedCall {
    group: Arc<Group>,
    call: Call,
    parked: ParkedCall,
}

/// How long to collect further server requests before the client is sent the batch.
const REQUEST_BATCH_WINDOW: Duration = Duration::from_millis(30);
/// How long a server may take to end an abandoned call by itself before it is cancelled.
const ABANDONED_CALL_TIMEOUT: Duration = Duration::from_millis(250);
/// Notifications buffered while no client request is attached.
const MAX_BUFFERED_NOTIFICATIONS: usize = 64;

/// Reads on for a per-request call whose server has sent `request`: server requests become `input_required` results.
pub(super) fn park(
    group: &Arc<Group>,
    (call, upstream): (Call, Arc<str>),
    replies: Replies,
    request: ServerRequest,
) -> Replies {
    let (mark, notifications) = (call.caller.mark(), VecDeque::new());
    let mut parked =
        ParkedCall { upstream, mark, replies, pending: Vec::new(), last_key: 0, notifications, ended: None };
    parked.record(Reply::ServerRequest(request));
    attach(group, call, parked)
}

fn attach(group: &Arc<Group>, call: Call, parked: ParkedCall) -> Replies {
    let attached = AttachedCall { group: Arc::clone(group), call, parked };
    Replies::run(|out| async move {
        let (started, access) = (Instant::now(), attached.call.caller.access.clone());
        let upstream = access.as_ref().map(|_| Arc::clone(&attached.parked.upstream));
        let answer = attached.run(out).await;
        if let (Some(access), Some(upstream)) = (access, upstream) {
            access.note_upstream(&upstream, started.elapsed());
        }
        answer
    })
}

/// The error for a parked call that was lost with the process that held it.
pub fn parked_call_lost() -> ErrorObject {
    Failure::new(FailureKind::ParkedCallLost, "parked call lost with its node").into()
}

/// Resumes a parked call with the client's responses.
pub(super) async fn resume(group: Arc<Group>, call: Call, id: u128) -> Replies {
    let Some(entry) = group.parked().take(id) else {
        if !group.parked().issued(id) {
            return parked_call_lost().into();
        }
        return invalid_params("`requestState` was used already, or came too late; call anew").into();
    };
    entry.resumed.cancel();
    if let Some(access) = &call.caller.access {
        access.note_waited(entry.parked_at.elapsed());
    }
    if let (Some(span), Some(first)) = (call.trace.span(), entry.span) {
        span.link(first);
    }
    let Ok(Some(mut parked)) = entry.task.await else {
        return invalid_params("`requestState` came too late; call anew").into();
    };
    recorder::note_joins(call.caller.mark(), parked.mark);
    if let Some(span) = call.trace.span() {
        span.set_upstream(&parked.upstream);
    }
    parked.deliver_responses(call.params.as_ref().and_then(|params| params.member(Key::InputResponses)).as_ref());
    attach(&group, call, parked)
}

fn split_id(id: u128) -> (u64, u64) {
    let [first, second] = [id >> 64, id & u128::from(u64::MAX)];
    (u64::try_from(first).unwrap_or(0), u64::try_from(second).unwrap_or(0))
}

// === impl ParkedCalls ===

impl ParkedCalls {
    pub(super) fn new(timeouts: ParkingTimeouts, quotas: Arc<Quotas>) -> Self {
        let (incarnation, _) = split_id(request_state::random_id());
        Self { timeouts: Mutex::new(timeouts), quotas, incarnation, entries: Mutex::default() }
    }

    /// Applies other timeouts to calls that are parked from now on.
    pub(super) fn set_timeouts(&self, timeouts: ParkingTimeouts) {
        *self.timeouts.lock() = timeouts;
    }

    /// A new unguessable id.
    fn new_id(&self) -> u128 {
        (u128::from(self.incarnation) << 64) | u128::from(split_id(request_state::random_id()).1)
    }

    /// Whether this process issued the id.
    fn issued(&self, id: u128) -> bool {
        split_id(id).0 == self.incarnation
    }

    /// The number of parked calls.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Cancels the calls whose caller and group match; returns how many there were.
    pub(super) fn end_owned_by(&self, is_ending: impl Fn(&Identity, &str) -> bool) -> usize {
        let ended: Vec<_> =
            self.lock().extract_if(|_, entry| is_ending(&entry.owner, &entry.group)).map(|(_, entry)| entry).collect();
        // Dropping the replies of a call cancels it.
        ended.iter().for_each(|entry| entry.task.abort());
        ended.len()
    }

    /// The calls that wait, for operators.
    pub(super) fn report(&self) -> Vec<ParkedReport> {
        let now = Instant::now();
        let one = |(id, entry): (&u128, &ParkedEntry)| ParkedReport {
            // The lower half alone: the whole id is what a client resumes by.
            id: format!("{:016x}", split_id(*id).1.rotate_left(17) ^ self.incarnation),
            group: Arc::clone(&entry.group),
            upstream: Arc::clone(&entry.upstream),
            owner: Arc::clone(&entry.owner),
            client: Arc::clone(&entry.client),
            questions: entry.questions.clone(),
            mark: entry.mark,
            age: now.duration_since(entry.parked_at),
            left: entry.until.saturating_duration_since(now),
        };
        self.lock().iter().map(one).collect()
    }

    /// Cancels the call with that id of a report; false if it no longer waits.
    pub(super) fn end_reported(&self, id: &str) -> bool {
        let incarnation = self.incarnation;
        let ended: Vec<_> = self
            .lock()
            .extract_if(|key, _| format!("{:016x}", split_id(*key).1.rotate_left(17) ^ incarnation) == id)
            .map(|(_, entry)| entry)
            .collect();
        ended.iter().for_each(|entry| entry.task.abort());
        !ended.is_empty()
    }

    fn take(&self, id: u128) -> Option<ParkedEntry> {
        self.lock().remove(&id)
    }

    /// Takes the shares of one more parked call, or of a task that is held.
    pub(super) fn take_room(&self, caller: &Caller) -> Result<ParkingPermits, QuotaReached> {
        let own = QuotaKey::of(caller).map(|key| self.quotas.parked_calls_per_caller.acquire(key)).transpose()?;
        Ok((self.quotas.parked_calls.acquire(1)?, own))
    }

    /// How long the client may take to respond: the shortest timeout of these server requests.
    fn input_timeout(&self, open: &[(String, ServerRequest)]) -> Duration {
        let timeouts = *self.timeouts.lock();
        let one = |(_, request): &(String, ServerRequest)| match request.method.as_str() {
            "elicitation/create" => timeouts.elicitation_timeout,
            _ => timeouts.sampling_timeout,
        };
        open.iter().map(one).min().unwrap_or(timeouts.sampling_timeout)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u128, ParkedEntry>> {
        self.entries.lock()
    }
}

// === impl AttachedCall ===

impl AttachedCall {
    async fn run(mut self, mut out: ReplyYielder) -> Answer {
        loop {
            while let Some(notification) = self.parked.notifications.pop_front() {
                if let Some(notification) = self.with_progress_token(notification) {
                    out.send(Reply::Notification(notification)).await;
                }
            }
            if let Some(answer) = self.parked.ended.take() {
                return map_answer(&self.group, || self.call.clone(), answer);
            }
            if self.parked.pending.is_empty() {
                match self.parked.replies.next().await {
                    Some(reply) => self.parked.record(reply),
                    None => return Answer::error(parked_call_lost()),
                }
                continue;
            }
            self.parked.collect_batch().await;
            if self.parked.ended.is_none()
                && self.parked.notifications.is_empty()
                && let Some(permits) = self.take_room()
            {
                return self.park(permits);
            }
        }
    }

    /// The shares of a call that may be parked; otherwise its server requests are rejected.
    fn take_room(&mut self) -> Option<ParkingPermits> {
        match self.group.parked().take_room(&self.call.caller) {
            Ok(permits) => Some(permits),
            Err(reached) => {
                let (principal, scope) = (self.call.caller.id(), reached.scope);
                tracing::warn!(%principal, ?scope, "parked call limit reached; server request rejected");
                for (_, request) in self.parked.pending.drain(..) {
                    request.refuse();
                }
                None
            }
        }
    }

    /// Replaces the progress token by that of the attached request; `None` when the client wants no progress.
    fn with_progress_token(&self, notification: Notification) -> Option<Notification> {
        if notification.method != NotificationMethod::Progress {
            return Some(notification);
        }
        let (params, token) = (notification.params?, self.call.progress_token.clone()?);
        let params = params.edit().set("progressToken", token).finish();
        Some(Notification::new(NotificationMethod::Progress, Some(params)))
    }

    /// Parks the call and ends the client's request with `input_required`.
    fn park(self, permits: ParkingPermits) -> Answer {
        let parked_calls = Arc::clone(self.group.parked());
        let parked = self.parked;
        let timeout = parked_calls.input_timeout(&parked.pending);
        let input_requests: Vec<(String, Raw)> = parked
            .pending
            .iter()
            .map(|(key, request)| {
                (key.clone(), server_requests::input_request(&request.method, request.params.as_ref()))
            })
            .collect();
        let id = parked_calls.new_id();
        let sealed = RequestState::Parked(id, self.group.node()).seal(&self.group, &self.call, timeout);
        let resumed = CancellationToken::new();
        let span = self.call.trace.span().map(|span| span.context());
        let (revision, owner) = (self.call.client.revision, Arc::clone(&self.call.caller.identity));
        let (upstream, client) = (Arc::clone(&parked.upstream), Arc::clone(&self.call.client));
        let question = |(_, request): &(String, ServerRequest)| (request.method.clone(), request.params.clone());
        let (questions, mark) = (parked.pending.iter().map(question).collect(), parked.mark);
        let until = Instant::now() + timeout;
        let target = (Arc::clone(&self.group), self.call);
        let waiting = wait_for_resume(parked, target, resumed.clone(), until, id);
        let entry = ParkedEntry {
            _permits: permits,
            owner,
            group: Arc::clone(self.group.name()),
            parked_at: Instant::now(),
            until,
            upstream,
            client,
            questions,
            mark,
            span,
            resumed,
            task: tokio::spawn(waiting),
        };
        parked_calls.lock().insert(id, entry);
        let result = to_client::input_required(&input_requests, &sealed, &self.group.view(revision).server);
        Answer::result(result)
    }
}

/// Maps the upstream's answer to a per-request client. A URL elicitation error becomes `input_required`, and the client's
/// next request repeats the call, which is `call` as the client made it.
pub(super) fn map_answer(group: &Group, call: impl FnOnce() -> Call, answer: Answer) -> Answer {
    let error = match &answer.outcome {
        Ok(result) => match seal_upstream_state(group, call, result) {
            Some(result) => return Answer { outcome: Ok(result), ..answer },
            None => return answer,
        },
        Err(error) if error.code() == code::URL_ELICITATION_REQUIRED => error,
        Err(_) => return answer,
    };
    let call = call();
    if call.client.capabilities.at(&["elicitation", "url"]).is_none() {
        let needed = Raw::of(&json!({ "requiredCapabilities": { "elicitation": { "url": {} } } }));
        let why = "Missing required client capability: elicitation.url";
        return Answer::error(ErrorObject::new(code::MISSING_CAPABILITY, why).with_data(needed));
    }
    let input_requests =
        error.data().and_then(|data| data.get("elicitations")).map(|all| all.items()).unwrap_or_default();
    let one = |(n, input_requests): (usize, &Raw)| {
        let input_requests = input_requests.edit().set("mode", Raw::constant(r#""url""#)).finish();
        (
            format!("u{}", n + 1),
            server_requests::input_request(&Method::from("elicitation/create"), Some(&input_requests)),
        )
    };
    let input_requests: Vec<(String, Raw)> = input_requests.iter().enumerate().map(one).collect();
    let sealed = RequestState::Retry.seal(group, &call, group.parked().timeouts.lock().elicitation_timeout);
    Answer::result(to_client::input_required(&input_requests, &sealed, &group.view(call.client.revision).server))
}

/// Seals the upstream's own request state for this caller, as the upstream cannot tell callers apart.
fn seal_upstream_state(group: &Group, call: impl FnOnce() -> Call, result: &Payload) -> Option<Payload> {
    let asks = result.text_of(Key::ResultType).as_deref() == Some("input_required");
    let own = result.member(Key::RequestState).filter(|_| asks)?;
    let sealed = RequestState::Upstream(own).seal(group, &call(), request_state::UPSTREAM_STATE_LIFETIME);
    Some(result.with(Key::RequestState, &Raw::of(&sealed)))
}

// === impl ParkedCall ===

impl ParkedCall {
    fn record(&mut self, reply: Reply) {
        match reply {
            Reply::Notification(notification) => {
                let stale = |kept: &Notification| kept.method == NotificationMethod::Progress;
                if notification.method == NotificationMethod::Progress
                    && self.notifications.len() >= MAX_BUFFERED_NOTIFICATIONS
                {
                    self.notifications.retain(|kept| !stale(kept));
                }
                if self.notifications.len() < MAX_BUFFERED_NOTIFICATIONS {
                    self.notifications.push_back(notification);
                }
            }
            Reply::ServerRequest(request) => {
                self.last_key += 1;
                self.pending.push((format!("u{}", self.last_key), request));
            }
            // The result of a call that may be parked by a request comes whole.
            Reply::Piece(_) => {}
            Reply::End(answer) => self.ended = Some(answer),
        }
    }

    /// Collects the replies that arrive within the batch window.
    async fn collect_batch(&mut self) {
        let end = Instant::now() + REQUEST_BATCH_WINDOW;
        while self.ended.is_none() {
            match tokio::time::timeout_at(end, self.replies.next()).await {
                Ok(Some(reply)) => self.record(reply),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Delivers responses to their server requests. A request with an invalid response stays pending and is
    /// sent again.
    fn deliver_responses(&mut self, responses: Option<&Raw>) {
        self.pending.retain(|(_, request)| !request.responder.is_closed());
        let Some(responses) = responses else { return };
        for (key, response) in responses.entries() {
            let Some(at) = self.pending.iter().position(|(open, _)| *open == key) else { continue };
            if server_requests::is_valid_response(&self.pending[at].1.method, &response) {
                let (_, request) = self.pending.remove(at);
                // A send error means that the upstream stopped waiting.
                let _ = request.responder.send(Ok(response.into()));
            }
        }
    }
}

/// Keeps a call until the client resumes it, the deadline passes, or its target is hidden from the client.
async fn wait_for_resume(
    mut parked: ParkedCall,
    (group, call): (Arc<Group>, Call),
    resumed: CancellationToken,
    deadline: Instant,
    id: u128,
) -> Option<ParkedCall> {
    let mut views = group.watch_views();
    loop {
        let over = parked.ended.is_some();
        tokio::select! {
            () = resumed.cancelled() => return Some(parked),
            () = tokio::time::sleep_until(deadline) => break,
            reply = parked.replies.next(), if !over => match reply {
                Some(reply) => parked.record(reply),
                None => break,
            },
            // A request that resumes the call is then refused like the call itself.
            _ = views.changed() => if group.hidden_answer(&call).is_some() { break },
        }
    }
    // A concurrent resume already took the entry; hand the call over.
    if group.parked().take(id).is_none() {
        return Some(parked);
    }
    tracing::info!("parked call ended: its client did not resume it, or may not make it any more");
    for (_, request) in parked.pending.drain(..) {
        request.abandon();
    }
    let ended = async { while !matches!(parked.replies.next().await, None | Some(Reply::End(_))) {} };
    // After the timeout, dropping the replies cancels the call.
    let _ = tokio::time::timeout(ABANDONED_CALL_TIMEOUT, ended).await;
    None
}

impl Default for ParkingTimeouts {
    fn default() -> Self {
        Self { elicitation_timeout: Duration::from_secs(600), sampling_timeout: Duration::from_secs(120) }
    }
}
