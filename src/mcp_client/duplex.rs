//! A connection that messages go both ways on: stdio and HTTP+SSE.
//!
//! One task reads and never waits for anybody: what belongs to a call goes into the call's own
//! queue, and when that is full notices are dropped, never the answer. Who waits for what is one
//! table; once the connection is closed the table takes no more, and everybody in it is told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::task_registry::TaskRegistry;
use super::unsolicited::{Unsolicited, UnsolicitedSender};
use crate::call::{Answer, Replies, Reply, ServerRequest};
use crate::dialect::{Revision, meta};
use crate::error::{Error, ErrorKind};
use crate::protocol::{ErrorObject, Id, Message, Method, Notice, Notification, Outcome, Raw, Request, Response, code};

/// How many replies may wait for the reader of one call; more notices than that are dropped.
const REPLIES_WAITING: usize = 256;
/// How many questions of the upstream may be open at once; more are dropped.
const QUESTIONS: usize = 64;
/// How many messages may wait to be written; who wants to send more waits.
pub(super) const MESSAGES_WAITING: usize = 64;

/// One end of a two-way connection.
#[derive(Debug)]
pub(super) struct Duplex {
    outgoing: mpsc::Sender<Bytes>,
    table: Arc<PendingCalls>,
    pub(super) tasks: TaskRegistry,
    last_id: AtomicI64,
    unsolicited: UnsolicitedSender,
    closed: CancellationToken,
}

/// Who waits for what.
#[derive(Debug, Default)]
struct PendingCalls(Mutex<PendingState>);

#[derive(Debug, Default)]
struct PendingState {
    calls: HashMap<i64, PendingCall>,
    /// Questions of the upstream that are not answered yet.
    questions: HashMap<Id, oneshot::Sender<()>>,
    /// Why there will be no more answers.
    closed: Option<Error>,
}

#[derive(Debug)]
struct PendingCall {
    replies: mpsc::Sender<Reply>,
    /// Room that is kept for the answer.
    end: OwnedPermit<Reply>,
    /// What the caller knows the progress by.
    token: Option<Raw>,
    revision: Revision,
    /// It stays open to hear of changes, and nothing else belongs to it.
    listens: bool,
    /// What the server asks may belong to it.
    converses: bool,
    /// Log messages may belong to it.
    logs: bool,
}

/// Takes a call out of the table when nobody waits for it any more, and tells the upstream.
struct CancelOnDrop {
    table: Arc<PendingCalls>,
    outgoing: mpsc::Sender<Bytes>,
    id: i64,
}

impl Duplex {
    /// A connection that writes to `outgoing`.
    pub(super) fn new(outgoing: mpsc::Sender<Bytes>, unsolicited: mpsc::Sender<Unsolicited>) -> Self {
        let closed = CancellationToken::new();
        let (table, tasks) = (Arc::default(), TaskRegistry::default());
        let unsolicited = UnsolicitedSender::new(unsolicited);
        Self { outgoing, table, tasks, last_id: AtomicI64::new(0), unsolicited, closed }
    }

    /// Begins a request. `params` are as the upstream is to get them, but for the progress token,
    /// which is made here when the caller has one.
    pub(super) fn call(&self, method: Method, params: Option<Raw>, token: Option<Raw>, revision: Revision) -> Replies {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let params = match &token {
            Some(_) => Some(meta::with(params.as_ref(), "progressToken", Raw::of(&id))),
            None => params,
        };
        self.send_request(id, &Request::new(id.into(), method, params), token, revision)
    }

    fn send_request(&self, id: i64, request: &Request, token: Option<Raw>, revision: Revision) -> Replies {
        let (replies, receiver) = mpsc::channel(REPLIES_WAITING);
        let Ok(end) = replies.clone().try_reserve_owned() else {
            return ErrorObject::new(code::INTERNAL_ERROR, "Internal error: a new queue is full").into();
        };
        let listens = request.method == Method::Listen;
        let converses = request.method.converses();
        let logs = converses && (revision.facts().sessions || meta::asks_for_logs(request.params.as_ref()));
        let waiting = PendingCall { replies, end, token, revision, listens, converses, logs };
        if let Err(error) = self.table.enter(id, waiting) {
            return error.into_object().into();
        }
        let guard = CancelOnDrop { table: Arc::clone(&self.table), outgoing: self.outgoing.clone(), id };
        let outgoing = self.outgoing.clone();
        let message = request.encode();
        let begin = (Some(message), receiver, guard);
        Replies::stream(futures_util::stream::unfold(begin, move |(message, mut receiver, guard)| {
            let outgoing = outgoing.clone();
            async move {
                if let Some(message) = message {
                    // Closed means that the table is, too, and the answer says so.
                    let _ = outgoing.send(message).await;
                }
                let reply = receiver.recv().await?;
                Some((reply, (None, receiver, guard)))
            }
        }))
    }

    /// Sends a notification.
    pub(super) async fn notify(&self, notification: &Notification) {
        // A connection that is closed has told everybody who waits.
        let _ = self.outgoing.send(notification.encode()).await;
    }

    /// Takes a message from the upstream. Never waits.
    pub(super) fn take(&self, message: Message) {
        match message {
            Message::Response(response) => self.complete(response),
            Message::Request(request) if request.method == Method::Ping => {
                self.reply(&Response::new(Some(request.id), Ok(Raw::empty())));
            }
            Message::Request(request) => self.ask(request),
            Message::Notification(notification) => self.on_notification(notification),
        }
    }

    fn complete(&self, response: Response) {
        let Some(id) = &response.id else {
            tracing::debug!(outcome = ?response.outcome, "an answer came without an id");
            return;
        };
        let id = number(id).unwrap_or(-1);
        match self.table.leave(id) {
            Some(waiting) => waiting.answer(response.outcome),
            None => tracing::debug!(id, "an answer came that nobody waits for"),
        }
    }

    fn on_notification(&self, notification: Notification) {
        let params = notification.params.as_ref();
        match notification.notice {
            Notice::Progress => {
                let token = params.and_then(|params| params.get("progressToken"));
                let id = token.as_ref().and_then(Id::from_raw).as_ref().and_then(number);
                let mut state = self.table.lock();
                if let Some(waiting) = id.and_then(|id| state.calls.get_mut(&id)) {
                    waiting.progress(&notification);
                }
            }
            Notice::Cancelled => {
                let id = params.and_then(|params| params.get("requestId"));
                let Some(id) = id.as_ref().and_then(Id::from_raw) else { return };
                let mut state = self.table.lock();
                state.questions.remove(&id);
                // A server ends a listen request this way, too.
                let ours = number(&id).filter(|id| state.calls.get(id).is_some_and(|waiting| waiting.listens));
                if let Some(waiting) = ours.and_then(|id| state.calls.remove(&id)) {
                    waiting.answer(Ok(Raw::empty()));
                }
            }
            // In the per-request era news of changes name the request that asked for them.
            _ if self.subscribed(&notification) => {}
            _ if self.tasks.on_notification(&notification) => {}
            // A log line does not say what it belongs to; with one call at work it is clear.
            Notice::Message if self.only_call(|call| call.logs, |call| call.log(notification.clone())) => {}
            _ => self.unsolicited.send(Unsolicited::Notice(notification)),
        }
    }

    /// Passes a question of the upstream on: to the one call at work, or to nobody's call.
    fn ask(&self, request: Request) {
        let (answer, answered) = oneshot::channel();
        let (withdraw, withdrawn) = oneshot::channel();
        let id = request.id;
        {
            let mut state = self.table.lock();
            if state.questions.len() >= QUESTIONS {
                tracing::debug!("the upstream asks too much at once; a question is dropped");
                return;
            }
            state.questions.insert(id.clone(), withdraw);
        }
        let outgoing = self.outgoing.clone();
        let table = Arc::clone(&self.table);
        tokio::spawn(async move {
            let outcome = tokio::select! {
                outcome = answered => outcome.unwrap_or_else(|_| Err(unanswered())),
                _ = withdrawn => return,
            };
            table.lock().questions.remove(&id);
            let _ = outgoing.send(Response::new(Some(id), outcome).encode()).await;
        });
        let mut question = self.tasks.ask(ServerRequest { method: request.method, params: request.params, answer });
        if question.is_none() {
            return;
        }
        let ask = |call: &mut PendingCall| {
            if let Some(question) = question.take() {
                call.question(question);
            }
        };
        self.only_call(|call| call.converses, ask);
        if let Some(question) = question {
            self.unsolicited.send(Unsolicited::Question(question));
        }
    }

    /// Passes a notice on to the listen request that it names; false when it names none of ours.
    fn subscribed(&self, notification: &Notification) -> bool {
        let id = meta::subscription(notification.params.as_ref());
        let Some(id) = id.as_ref().and_then(Id::from_raw).as_ref().and_then(number) else { return false };
        let mut state = self.table.lock();
        let Some(waiting) = state.calls.get_mut(&id) else { return false };
        if waiting.notice(notification.clone()) || !waiting.listens {
            return true;
        }
        // One who listens and has missed a change must know: the request ends, and is made again.
        if let Some(waiting) = state.calls.remove(&id) {
            drop(state);
            waiting.answer(Err(ErrorObject::unavailable("changes were told faster than they were read")));
            let _ = self.outgoing.try_send(Notification::cancelled(&id.into()).encode());
        }
        true
    }

    /// Does something to the one call at work that fits; false when there is none, or more than one.
    fn only_call(&self, fits: impl Fn(&PendingCall) -> bool, act: impl FnOnce(&mut PendingCall)) -> bool {
        let mut state = self.table.lock();
        let mut calls = state.calls.values_mut().filter(|waiting| fits(waiting));
        match (calls.next(), calls.next()) {
            (Some(waiting), None) => {
                act(waiting);
                true
            }
            _ => false,
        }
    }

    /// Sends a short answer from the reading task, which may not wait.
    fn reply(&self, response: &Response) {
        let message = response.encode();
        if self.outgoing.try_send(message).is_err() {
            // It asks whether we are there, and does not read that we are.
            tracing::debug!("a ping was not answered");
        }
    }

    /// Something that cannot be told apart was lost: everybody who waits is told.
    pub(super) fn fail_all(&self, error: &Error) {
        let calls = std::mem::take(&mut self.table.lock().calls);
        for waiting in calls.into_values() {
            waiting.answer(Err(error.clone().into_object()));
        }
    }

    /// The connection is over.
    pub(super) fn close(&self, error: Error) {
        let mut state = self.table.lock();
        let calls = std::mem::take(&mut state.calls);
        state.questions.clear();
        let why = state.closed.get_or_insert(error).clone();
        drop(state);
        for waiting in calls.into_values() {
            waiting.answer(Err(why.clone().into_object()));
        }
        self.closed.cancel();
    }

    /// Waits until the connection is over, and says why.
    pub(super) async fn closed(&self) -> Error {
        self.closed.cancelled().await;
        self.closed_why()
    }

    /// Whether the connection is over.
    pub(super) fn is_closed(&self) -> bool {
        self.table.lock().closed.is_some()
    }

    /// Whether a call is at work.
    pub(super) fn is_busy(&self) -> bool {
        !self.table.lock().calls.is_empty()
    }

    fn closed_why(&self) -> Error {
        let closed = self.table.lock().closed.clone();
        closed.unwrap_or_else(|| Error::new(ErrorKind::Broken, "the connection was closed"))
    }
}

/// One of our ids as it comes back. A number written as a string is a common slip.
fn number(id: &Id) -> Option<i64> {
    match id {
        Id::Number(id) => Some(*id),
        Id::Text(text) => text.parse().ok(),
    }
}

fn unanswered() -> ErrorObject {
    ErrorObject::new(code::METHOD_NOT_FOUND, "the client does not answer this")
}

// === impl Table ===

impl PendingCalls {
    fn lock(&self) -> MutexGuard<'_, PendingState> {
        self.0.lock().expect("no thread panics while it holds this lock")
    }

    fn enter(&self, id: i64, waiting: PendingCall) -> Result<(), Error> {
        let mut state = self.lock();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        state.calls.insert(id, waiting);
        Ok(())
    }

    fn leave(&self, id: i64) -> Option<PendingCall> {
        self.lock().calls.remove(&id)
    }
}

// === impl Waiting ===

impl PendingCall {
    fn answer(self, outcome: Outcome) {
        self.end.send(Reply::End(Answer { outcome, revision: self.revision }));
    }

    /// Passes a notice on; false when its reader is too slow for it, or gone.
    fn notice(&mut self, notification: Notification) -> bool {
        let taken = self.replies.try_send(Reply::Notice(notification)).is_ok();
        if !taken {
            tracing::debug!("a notice was dropped; the reader of its call is too slow or gone");
        }
        taken
    }

    fn log(&mut self, notification: Notification) {
        self.notice(notification);
    }

    fn progress(&mut self, notification: &Notification) {
        let (Some(token), Some(params)) = (&self.token, &notification.params) else { return };
        let params = params.edit().set("progressToken", token.clone()).finish();
        self.notice(Notification::new(Notice::Progress, Some(params)));
    }

    fn question(&mut self, question: ServerRequest) {
        // Dropped, it tells the upstream that nobody answers.
        let _ = self.replies.try_send(Reply::Question(question));
    }
}

// === impl Abandon ===

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if self.table.leave(self.id).is_none() {
            return; // it was answered
        }
        let message = Notification::cancelled(&self.id.into()).encode();
        if let Err(mpsc::error::TrySendError::Full(message)) = self.outgoing.try_send(message) {
            let outgoing = self.outgoing.clone();
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { outgoing.send(message).await });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A listen request that has missed a change ends, so that it is made again and everything read anew.
    #[tokio::test]
    async fn a_listen_request_whose_reader_falls_behind_ends_and_is_cancelled() {
        let (outgoing, mut sent) = mpsc::channel(8);
        let (unsolicited, _heard) = mpsc::channel(8);
        let duplex = Duplex::new(outgoing, unsolicited);
        let mut replies = duplex.call(Method::Listen, None, None, Revision::NEWEST);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(1), replies.next()).await.is_err());
        assert!(Message::parse(&sent.recv().await.unwrap()).is_ok());
        let meta = json!({ "io.modelcontextprotocol/subscriptionId": 1 });
        let notice = Notification::new(Notice::ToolsChanged, Some(Raw::of(&json!({ "_meta": meta }))));
        for _ in 0..REPLIES_WAITING + 10 {
            duplex.take(Message::Notification(notice.clone()));
        }
        let mut last = None;
        while let Some(reply) = replies.next().await {
            last = Some(reply);
        }
        let Some(Reply::End(answer)) = last else { panic!("{last:?}") };
        assert!(answer.outcome.is_err_and(|error| error.is_unavailable()));
        let cancelled = String::from_utf8(sent.recv().await.unwrap().to_vec()).unwrap();
        assert!(cancelled.contains("notifications/cancelled"), "{cancelled}");
    }
}
