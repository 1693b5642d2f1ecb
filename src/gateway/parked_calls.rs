//! Calls that wait for answers from a client of the per-request era.
//!
//! A server that keeps sessions asks in the middle of a call, and waits. Such a client cannot be
//! asked: its request ends with what is asked and a state, the upstream's call is held, and the
//! client's next request with that state brings the answers and goes on from there. A state is
//! sealed, good for one use, and for nobody but whom it was given to.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group::Group;
use super::request_state::{self, REQUEST_STATE, RequestState};
use super::route::invalid;
use crate::call::{Answer, Call, Principal, Replies, Reply, ServerRequest};
use crate::dialect::{server_requests, to_client};
use crate::protocol::{ErrorObject, Method, Notice, Notification, Raw, code};

/// What governs held calls.
#[derive(Debug, Clone, Copy)]
pub struct ParkingLimits {
    /// How many there may be in all.
    pub total: usize,
    /// How many one caller may have.
    pub per_caller: usize,
    /// How long people may take to answer.
    pub elicitation_timeout: Duration,
    /// How long programs may take to answer.
    pub sampling_timeout: Duration,
}

/// All held calls.
#[derive(Debug)]
pub(super) struct ParkedCalls {
    settings: ParkingLimits,
    /// What the ids of its calls begin with, so that calls that another process held are known as such.
    life: u64,
    held: Mutex<HashMap<u128, ParkedEntry>>,
}

#[derive(Debug)]
struct ParkedEntry {
    principal: Principal,
    wanted: CancellationToken,
    parked: JoinHandle<Option<Parked>>,
}

/// An upstream's call, and what became of it.
#[derive(Debug)]
struct Parked {
    replies: Replies,
    /// Questions that are not answered, by the key that the client knows them by.
    open: Vec<(String, ServerRequest)>,
    last_key: u32,
    notices: VecDeque<Notification>,
    ended: Option<Answer>,
}

/// A client's request that works on an upstream's call.
struct Attached {
    group: Arc<Group>,
    call: Call,
    parked: Option<Parked>,
}

/// How long to wait for more questions before the client is told.
const EXPIRE_BATCH: Duration = Duration::from_millis(30);
/// How long a server may take to end a call by itself once it knows that nobody will answer.
const ENDING: Duration = Duration::from_millis(250);
/// How many notices are kept for a client that is away.
const NOTICES: usize = 64;

/// Replies to a call of the per-request era, of which questions become results that ask for input.
pub(super) fn park(group: &Arc<Group>, call: Call, replies: Replies) -> Replies {
    let parked = Parked { replies, open: Vec::new(), last_key: 0, notices: VecDeque::new(), ended: None };
    attach(group, call, parked)
}

fn attach(group: &Arc<Group>, call: Call, parked: Parked) -> Replies {
    let attached = Attached { group: Arc::clone(group), call, parked: Some(parked) };
    Replies::stream(futures_util::stream::unfold(attached, |mut attached| async move {
        let reply = attached.next().await?;
        Some((reply, attached))
    }))
}

/// What a client is told whose call was held by a process that is no more.
pub fn lost_with_its_node() -> ErrorObject {
    let why = "Internal error: the call that waited for these answers was lost with the node that held it; \
        whether it was carried out is not known; call anew";
    ErrorObject::new(code::INTERNAL_ERROR, why)
}

/// Goes on with a held call, with what the client has to say.
pub(super) async fn resume(group: Arc<Group>, call: Call, id: u128) -> Replies {
    let Some(slot) = group.parked().take(id) else {
        if !group.parked().gave(id) {
            return lost_with_its_node().into();
        }
        return invalid("`requestState` was used already, or came too late; call anew").into();
    };
    slot.wanted.cancel();
    let Ok(Some(mut parked)) = slot.parked.await else {
        return invalid("`requestState` came too late; call anew").into();
    };
    parked.answer(call.params.as_ref().and_then(|params| params.get("inputResponses")).as_ref());
    attach(&group, call, parked)
}

fn halves(id: u128) -> (u64, u64) {
    let [first, second] = [id >> 64, id & u128::from(u64::MAX)];
    (u64::try_from(first).unwrap_or(0), u64::try_from(second).unwrap_or(0))
}

// === impl Holder ===

impl ParkedCalls {
    pub(super) fn new(settings: ParkingLimits) -> Self {
        let (life, _) = halves(request_state::random());
        Self { settings, life, held: Mutex::default() }
    }

    /// An id that nobody can guess.
    fn new_id(&self) -> u128 {
        (u128::from(self.life) << 64) | u128::from(halves(request_state::random()).1)
    }

    /// Whether an id was given out here.
    fn gave(&self, id: u128) -> bool {
        halves(id).0 == self.life
    }

    /// How many calls are held.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    fn take(&self, id: u128) -> Option<ParkedEntry> {
        self.lock().remove(&id)
    }

    fn has_room(&self, principal: &Principal) -> bool {
        let held = self.lock();
        let own = held.values().filter(|slot| slot.principal == *principal).count();
        held.len() < self.settings.total && own < self.settings.per_caller
    }

    /// How long answers to these questions may take.
    fn patience(&self, open: &[(String, ServerRequest)]) -> Duration {
        let one = |(_, question): &(String, ServerRequest)| match question.method.as_str() {
            "elicitation/create" => self.settings.elicitation_timeout,
            _ => self.settings.sampling_timeout,
        };
        open.iter().map(one).min().unwrap_or(self.settings.sampling_timeout)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u128, ParkedEntry>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Attached ===

impl Attached {
    async fn next(&mut self) -> Option<Reply> {
        loop {
            let parked = self.parked.as_mut()?;
            if let Some(notification) = parked.notices.pop_front() {
                if let Some(notification) = self.passed_on(notification) {
                    return Some(Reply::Notice(notification));
                }
                continue;
            }
            if let Some(answer) = parked.ended.take() {
                self.parked = None;
                return Some(Reply::End(self.ended(answer)));
            }
            if !parked.open.is_empty() {
                parked.wait_for_more().await;
                let parks = parked.ended.is_none() && parked.notices.is_empty();
                if parks && let Some(reply) = self.park() {
                    return Some(reply);
                }
                continue;
            }
            let reply = parked.replies.next().await?;
            parked.note(reply);
        }
    }

    /// Progress under the name that this request has given it.
    fn passed_on(&self, notification: Notification) -> Option<Notification> {
        if notification.notice != Notice::Progress {
            return Some(notification);
        }
        let (params, token) = (notification.params?, self.call.progress.clone()?);
        let params = params.edit().set("progressToken", token).finish();
        Some(Notification::new(Notice::Progress, Some(params)))
    }

    /// Holds the call, and ends the client's request with what is asked. Nothing where no more
    /// calls can be held: then whoever asks is told so.
    fn park(&mut self) -> Option<Reply> {
        let holder = Arc::clone(self.group.parked());
        let mut parked = self.parked.take()?;
        if !holder.has_room(&self.call.caller.principal) {
            tracing::warn!(principal = %self.call.caller.principal, "no more calls can be held; a question is refused");
            for (_, question) in parked.open.drain(..) {
                question.refuse();
            }
            self.parked = Some(parked);
            return None;
        }
        let patience = holder.patience(&parked.open);
        let asked: Vec<(String, Raw)> = parked
            .open
            .iter()
            .map(|(key, question)| {
                (key.clone(), server_requests::input_request(&question.method, question.params.as_ref()))
            })
            .collect();
        let id = holder.new_id();
        let sealed = RequestState::Parked(id, self.group.node()).seal(&self.group, &self.call, patience);
        let wanted = CancellationToken::new();
        let waiting = wait(parked, wanted.clone(), Instant::now() + patience, Arc::clone(&holder), id);
        let slot = ParkedEntry { principal: self.call.caller.principal.clone(), wanted, parked: tokio::spawn(waiting) };
        holder.lock().insert(id, slot);
        let result = to_client::input_required(&asked, &sealed, &self.group.view().server);
        Some(Reply::End(Answer::result(result)))
    }

    /// The end of the upstream's call. One that needs a person at some address first is asked for
    /// again after the client has sent them there.
    fn ended(&self, answer: Answer) -> Answer {
        let error = match &answer.outcome {
            Ok(result) => match self.wrapped(result) {
                Some(result) => return Answer { outcome: Ok(result), ..answer },
                None => return answer,
            },
            Err(error) => error,
        };
        if error.code() != code::URL_ELICITATION_REQUIRED {
            return answer;
        }
        if self.call.client.capabilities.at(&["elicitation", "url"]).is_none() {
            let needed = Raw::of(&json!({ "requiredCapabilities": { "elicitation": { "url": {} } } }));
            let why = "Missing required client capability: elicitation.url";
            return Answer::error(ErrorObject::new(code::MISSING_CAPABILITY, why).with_data(needed));
        }
        let asked = error.data().and_then(|data| data.get("elicitations")).map(|all| all.items()).unwrap_or_default();
        let one = |(n, asked): (usize, &Raw)| {
            let asked = asked.edit().set("mode", Raw::constant(r#""url""#)).finish();
            (format!("u{}", n + 1), server_requests::input_request(&Method::from("elicitation/create"), Some(&asked)))
        };
        let asked: Vec<(String, Raw)> = asked.iter().enumerate().map(one).collect();
        let sealed =
            RequestState::Retry.seal(&self.group, &self.call, self.group.parked().settings.elicitation_timeout);
        Answer::result(to_client::input_required(&asked, &sealed, &self.group.view().server))
    }
}

impl Attached {
    /// A result whose state is the upstream's own, sealed for this caller: the upstream may know all of
    /// us as one.
    fn wrapped(&self, result: &Raw) -> Option<Raw> {
        REQUEST_STATE.find(result.as_bytes())?;
        let asks = result.get("resultType").is_some_and(|kind| kind.text().as_deref() == Some("input_required"));
        let own = result.get("requestState").filter(|_| asks)?;
        let sealed = RequestState::Upstream(own).seal(&self.group, &self.call, request_state::LIFETIME);
        Some(result.edit().set("requestState", Raw::of(&sealed)).finish())
    }
}

// === impl Parked ===

impl Parked {
    fn note(&mut self, reply: Reply) {
        match reply {
            Reply::Notice(notification) => {
                let stale = |kept: &Notification| kept.notice == Notice::Progress;
                if notification.notice == Notice::Progress && self.notices.len() >= NOTICES {
                    self.notices.retain(|kept| !stale(kept));
                }
                if self.notices.len() < NOTICES {
                    self.notices.push_back(notification);
                }
            }
            Reply::Question(question) => {
                self.last_key += 1;
                self.open.push((format!("u{}", self.last_key), question));
            }
            Reply::End(answer) => self.ended = Some(answer),
        }
    }

    /// Takes whatever else comes at nearly the same time.
    async fn wait_for_more(&mut self) {
        let end = Instant::now() + EXPIRE_BATCH;
        while self.ended.is_none() {
            match tokio::time::timeout_at(end, self.replies.next()).await {
                Ok(Some(reply)) => self.note(reply),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Passes answers on to whoever asked. One that is none stays open, and is asked again.
    fn answer(&mut self, responses: Option<&Raw>) {
        self.open.retain(|(_, question)| !question.answer.is_closed());
        let Some(responses) = responses else { return };
        for (key, response) in responses.entries() {
            let Some(at) = self.open.iter().position(|(open, _)| *open == key) else { continue };
            if server_requests::answers(&self.open[at].1.method, &response) {
                let (_, question) = self.open.remove(at);
                // The upstream may have stopped waiting; then nobody wants the answer.
                let _ = question.answer.send(Ok(response));
            }
        }
    }
}

/// Holds a call until its client comes back, or does not.
async fn wait(
    mut parked: Parked,
    wanted: CancellationToken,
    deadline: Instant,
    holder: Arc<ParkedCalls>,
    id: u128,
) -> Option<Parked> {
    loop {
        let over = parked.ended.is_some();
        tokio::select! {
            () = wanted.cancelled() => return Some(parked),
            () = tokio::time::sleep_until(deadline) => break,
            reply = parked.replies.next(), if !over => match reply {
                Some(reply) => parked.note(reply),
                None => break,
            },
        }
    }
    // Whoever came for it just now has it already.
    if holder.take(id).is_none() {
        return Some(parked);
    }
    tracing::info!("a held call was abandoned by its client");
    for (_, question) in parked.open.drain(..) {
        question.abandon();
    }
    let ended = async { while !matches!(parked.replies.next().await, None | Some(Reply::End(_))) {} };
    // Otherwise dropping the replies cancels it, after it has been answered.
    let _ = tokio::time::timeout(ENDING, ended).await;
    None
}

impl Default for ParkingLimits {
    fn default() -> Self {
        Self {
            total: 10_000,
            per_caller: 1_000,
            elicitation_timeout: Duration::from_secs(600),
            sampling_timeout: Duration::from_secs(120),
        }
    }
}
