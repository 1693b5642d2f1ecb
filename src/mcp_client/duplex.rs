//! JSON-RPC over a bidirectional transport: stdio and HTTP+SSE.
//!
//! One task reads and never waits for a caller: messages of a call go into that call's bounded queue. When the queue is
//! full, notifications are dropped, but never the response. It waits only for the server itself, to accept our answers to
//! its pings and to requests that we refuse. Pending calls are one table; closing the connection fails all of them, and
//! the table takes no more.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::batch::{MessageParser, Received};
use super::pending_calls::{MAX_OPEN_SERVER_REQUESTS, PendingCall, PendingCalls, Question, too_many_server_requests};
use super::request_trace::RequestTrace;
use super::server_notes::note_server;
use super::task_registry::TaskRegistry;
use super::unsolicited::{Unsolicited, UnsolicitedSender};
use crate::call::{Answer, Replies, Reply, ReplySink};
use crate::dialect::{Revision, meta};
use crate::failure::{Failure, FailureKind};
use crate::protocol::{
    ErrorObject, Id, Message, Method, Notification, NotificationMethod, Outcome, Payload, Raw, Request, Response,
    SkippedId, code,
};
use crate::recorder::{Mark, Way, note_unsent};

/// Replies that may wait for the reader of one call; further notifications are dropped.
const REPLY_QUEUE_CAPACITY: usize = 256;
/// Messages that may wait to be written; further senders wait.
const OUTGOING_QUEUE_CAPACITY: usize = 64;
/// Answers to pings and to refused server requests that may wait to be written; no more is read of the server meanwhile.
const CONTROL_QUEUE_CAPACITY: usize = 64;

/// Client end of a bidirectional connection.
#[derive(Debug)]
pub(super) struct Duplex {
    outgoing: mpsc::Sender<Bytes>,
    /// Answers to pings and to refused server requests, which never wait behind our own messages.
    control: mpsc::Sender<Bytes>,
    pub(super) parser: MessageParser,
    pending: Arc<PendingCalls>,
    pub(super) tasks: TaskRegistry,
    last_id: AtomicI64,
    /// Messages that the server has sent.
    received: AtomicU64,
    unsolicited: UnsolicitedSender,
    asks_newest_call: bool,
    closed: CancellationToken,
}

/// What a transport has to write.
#[derive(Debug)]
pub(super) struct OutgoingMessages {
    messages: mpsc::Receiver<Bytes>,
    control: mpsc::Receiver<Bytes>,
}

/// Cancels a call at the server when its replies are dropped before the response.
struct CancelOnDrop {
    pending: Arc<PendingCalls>,
    outgoing: mpsc::Sender<Bytes>,
    id: i64,
    mark: Mark,
    /// The request is on its way; before that there is nothing to cancel.
    is_sent: bool,
}

impl Duplex {
    /// A connection, and the encoded messages that its transport has to write.
    pub(super) fn new(parser: MessageParser, unsolicited: mpsc::Sender<Unsolicited>) -> (Self, OutgoingMessages) {
        let closed = CancellationToken::new();
        let (pending, tasks) = (Arc::default(), TaskRegistry::default());
        let unsolicited = UnsolicitedSender::new(unsolicited);
        let (outgoing, messages) = mpsc::channel(OUTGOING_QUEUE_CAPACITY);
        let (control, control_messages) = mpsc::channel(CONTROL_QUEUE_CAPACITY);
        let duplex = Self {
            outgoing,
            control,
            parser,
            pending,
            tasks,
            last_id: AtomicI64::new(0),
            received: AtomicU64::new(0),
            unsolicited,
            asks_newest_call: false,
            closed,
        };
        (duplex, OutgoingMessages { messages, control: control_messages })
    }

    /// Sends server requests that may belong to several calls to the newest of them, if `asks_newest_call`.
    pub(super) fn asking_newest_call(self, asks_newest_call: bool) -> Self {
        Self { asks_newest_call, ..self }
    }

    /// Sends a request once its replies are polled. `params` are as the server receives them, except for the progress
    /// token, which is replaced by the request id where the caller has one.
    pub(super) fn call(
        &self,
        (method, params): (Method, Option<Payload>),
        progress_token: Option<Raw>,
        revision: Revision,
        (mark, trace): (Mark, Option<&RequestTrace>),
    ) -> Replies {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(trace) = trace {
            trace.note_id(&id.into());
        }
        let params = match &progress_token {
            Some(_) => Some(meta::with_member(params.as_deref(), "progressToken", Raw::of(&id)).into()),
            None => params,
        };
        self.send_request(id, &Request::new(id.into(), method, params), progress_token, (revision, mark))
    }

    fn send_request(
        &self,
        id: i64,
        request: &Request,
        progress_token: Option<Raw>,
        (revision, mark): (Revision, Mark),
    ) -> Replies {
        let (replies, mut receiver) = mpsc::channel(REPLY_QUEUE_CAPACITY);
        let Ok(final_permit) = replies.clone().try_reserve_owned() else {
            return ErrorObject::new(code::INTERNAL_ERROR, "Internal error: a new queue is full").into();
        };
        let is_listen = request.method == Method::Listen;
        let accepts_server_requests = request.method.may_trigger_server_messages();
        let accepts_logs = accepts_server_requests
            && (revision.has_session_log_level() || meta::requests_logs(request.params.as_ref()));
        let call = PendingCall {
            replies,
            final_permit,
            progress_token,
            revision,
            is_listen,
            accepts_server_requests,
            accepts_logs,
            server_requests: 0,
            mark,
        };
        if let Err(failure) = self.pending.insert(id, call) {
            return ErrorObject::from(failure.before_sending()).into();
        }
        let (pending, outgoing) = (Arc::clone(&self.pending), self.outgoing.clone());
        let mut guard = CancelOnDrop { pending, outgoing, id, mark, is_sent: false };
        let message = request.encode();
        Replies::run(move |mut out| async move {
            note_server(mark, Way::Out, &message);
            // If the writer has gone, `close` ends this call with the reason.
            guard.is_sent = guard.outgoing.send(message).await.is_ok();
            loop {
                match receiver.recv().await {
                    Some(Reply::End(mut answer)) => {
                        if !guard.is_sent {
                            note_unsent(mark);
                            answer.mark_not_sent();
                        }
                        return answer;
                    }
                    Some(reply) => out.send(reply).await,
                    None => return Answer { revision, ..Answer::missing() },
                }
            }
        })
    }

    /// Sends a notification.
    pub(super) async fn notify(&self, notification: &Notification) {
        // A closed connection has already failed all pending calls.
        let _ = self.outgoing.send(notification.encode()).await;
    }

    /// Handles a message of the server. Waits only for the server to accept our answer to a ping or a refused request.
    /// `text` is what it was read from.
    pub(super) async fn dispatch(&self, received: impl Into<Received>, text: &[u8]) {
        self.received.fetch_add(1, Ordering::Relaxed);
        match received.into() {
            Received::Message(Message::Response(response)) => self.on_response(response, text),
            Received::Message(Message::Request(request)) if request.method == Method::Ping => {
                self.respond(request.id, Ok(Payload::empty())).await;
            }
            Received::Message(Message::Request(request)) => {
                if let Err((id, error)) = self.on_server_request(request, text) {
                    self.respond(id, Err(error)).await;
                }
            }
            Received::Message(Message::Notification(notification)) => self.on_notification(notification, text),
            Received::Unacceptable(id, error) => self.respond(id, Err(error)).await,
        }
    }

    fn on_response(&self, response: Response, text: &[u8]) {
        let Some(id) = &response.id else {
            tracing::debug!(outcome = ?response.outcome, "upstream response without an id ignored");
            return;
        };
        let id = numeric_id(id).unwrap_or(-1);
        match self.pending.remove(id) {
            Some(call) => {
                note_server(call.mark, Way::In, text);
                call.complete(response.outcome);
            }
            None => tracing::debug!(id, "upstream response to an unknown request ignored"),
        }
    }

    fn on_notification(&self, notification: Notification, text: &[u8]) {
        let params = notification.params.as_ref();
        match notification.method {
            NotificationMethod::Progress => {
                let token = params.and_then(|params| params.get("progressToken"));
                let id = token.as_ref().and_then(Id::from_raw).as_ref().and_then(numeric_id);
                let mut state = self.pending.lock();
                if let Some(call) = id.and_then(|id| state.calls.get_mut(&id)) {
                    note_server(call.mark, Way::In, text);
                    call.forward_progress(&notification);
                }
            }
            NotificationMethod::Cancelled => {
                let id = params.and_then(|params| params.get("requestId"));
                let Some(id) = id.as_ref().and_then(Id::from_raw) else { return };
                let mut state = self.pending.lock();
                state.server_requests.remove(&id);
                // A server also ends a listen request with a cancellation.
                let listen_id = numeric_id(&id).filter(|id| state.calls.get(id).is_some_and(|call| call.is_listen));
                if let Some(call) = listen_id.and_then(|id| state.calls.remove(&id)) {
                    call.complete(Ok(Payload::empty()));
                }
            }
            // In the per-request era a change notification names the listen request that it belongs to.
            _ if self.forward_to_listener(&notification) => {}
            _ if self.tasks.on_notification(&notification) => {}
            // A log message does not name its call; with one call in flight it is unambiguous.
            NotificationMethod::Message => {
                let mut state = self.pending.lock();
                match state.only_call(|call| call.accepts_logs) {
                    Some(call) => {
                        note_server(call.mark, Way::In, text);
                        call.forward_log(notification);
                    }
                    None => {
                        drop(state);
                        self.unsolicited.send(Unsolicited::Notification(notification));
                    }
                }
            }
            _ => self.unsolicited.send(Unsolicited::Notification(notification)),
        }
    }

    /// Forwards a server request: to the task it names, to the only call in flight, or as unsolicited.
    ///
    /// # Errors
    /// The answer to a request beyond the limit.
    fn on_server_request(&self, request: Request, text: &[u8]) -> Result<(), (Id, ErrorObject)> {
        let (responder, response) = oneshot::channel();
        let (withdraw, withdrawn) = oneshot::channel();
        let id = request.id;
        {
            let mut state = self.pending.lock();
            if state.server_requests.len() >= MAX_OPEN_SERVER_REQUESTS {
                return Err((id, too_many_server_requests(MAX_OPEN_SERVER_REQUESTS)));
            }
            state.server_requests.insert(id.clone(), withdraw);
        }
        let question = Question { method: request.method, params: request.params.map(Payload::into_raw) };
        let (mut asked_call, mut mark) = (None, Mark::NONE);
        if let Some(request) = self.tasks.route_server_request(question.with_responder(responder)) {
            let unrouted = match self.asks_newest_call {
                true => self.pending.ask_newest(request).map(|(call, asked)| (asked_call, mark) = (Some(call), asked)),
                false => self.pending.ask_only(request).map(|asked| mark = asked),
            };
            note_server(mark, Way::In, text);
            if let Err(request) = unrouted {
                self.unsolicited.send(Unsolicited::ServerRequest(request));
            }
        }
        let (outgoing, pending) = (self.outgoing.clone(), Arc::clone(&self.pending));
        tokio::spawn(async move {
            let outcome = tokio::select! {
                outcome = pending.wait_for_answer(&question, response, asked_call) => outcome,
                _ = withdrawn => return,
            };
            pending.lock().server_requests.remove(&id);
            let response = Response::new(Some(id), outcome).encode();
            note_server(mark, Way::Out, &response);
            let _ = outgoing.send(response).await;
        });
        Ok(())
    }

    /// Forwards a notification to the listen request that it names; false when it names none of ours.
    fn forward_to_listener(&self, notification: &Notification) -> bool {
        let id = meta::subscription_id(notification.params.as_ref());
        let Some(id) = id.as_ref().and_then(Id::from_raw).as_ref().and_then(numeric_id) else { return false };
        let mut state = self.pending.lock();
        let Some(call) = state.calls.get_mut(&id) else { return false };
        if call.try_notify(notification.clone()) || !call.is_listen {
            return true;
        }
        // A listener that missed a change must know: end the request, so that it is made again and everything re-read.
        if let Some(call) = state.calls.remove(&id) {
            drop(state);
            call.complete(
                Err(Failure::new(FailureKind::Broken, "changes were told faster than they were read").into()),
            );
            let _ = self.outgoing.try_send(Notification::cancelled(&id.into()).encode());
        }
        true
    }

    /// Sends a short response from the reader task. A server that does not read its answers is not read either.
    async fn respond(&self, id: Id, outcome: Outcome) {
        // A closed connection needs no answer.
        let _ = self.control.send(Response::new(Some(id), outcome).encode()).await;
    }

    /// Fails the call whose response was skipped; all pending calls where that cannot be told.
    pub(super) fn fail_skipped(&self, id: SkippedId, failure: &Failure) {
        let calls = match id {
            SkippedId::Found(id) => {
                let id = Raw::parse(&id.into()).ok().as_ref().and_then(Id::from_raw).as_ref().and_then(numeric_id);
                let call = id.and_then(|id| Some((id, self.pending.remove(id)?)));
                HashMap::from_iter(call)
            }
            SkippedId::Absent => return,
            SkippedId::Unknown => std::mem::take(&mut self.pending.lock().calls),
        };
        for call in calls.into_values() {
            call.complete(Err(failure.clone().into()));
        }
    }

    /// Closes the connection and fails all pending calls. The first reason is kept.
    pub(super) fn close(&self, failure: Failure) {
        let mut state = self.pending.lock();
        let calls = std::mem::take(&mut state.calls);
        state.server_requests.clear();
        let reason = state.closed.get_or_insert(failure).clone();
        drop(state);
        for call in calls.into_values() {
            call.complete(Err(reason.clone().into()));
        }
        self.closed.cancel();
    }

    /// Waits until the connection is closed and returns the reason.
    pub(super) async fn closed(&self) -> Failure {
        self.closed.cancelled().await;
        self.close_reason()
    }

    /// Whether the connection is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.pending.lock().closed.is_some()
    }

    /// Number of messages that the server has sent.
    pub(super) fn received_messages(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether calls are in flight. A listen request stays open for ever and keeps no server busy.
    pub(super) fn has_calls_in_flight(&self) -> bool {
        self.pending.lock().calls.values().any(|call| !call.is_listen)
    }

    fn close_reason(&self) -> Failure {
        let closed = self.pending.lock().closed.clone();
        closed.unwrap_or_else(|| Failure::new(FailureKind::Broken, "the connection was closed"))
    }
}

/// A request id of ours as the server returns it. Some servers turn the number into a string.
fn numeric_id(id: &Id) -> Option<i64> {
    match id {
        Id::Number(id) => Some(*id),
        Id::Text(text) => text.parse().ok(),
    }
}

// === impl OutgoingMessages ===

impl OutgoingMessages {
    /// The next message to write; `None` when the connection has gone or is draining and all are written. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        tokio::select! {
            biased;
            Some(message) = self.control.recv() => Some(message),
            message = self.messages.recv() => message,
        }
    }

    /// Takes no more messages; those that are queued are still returned.
    pub(super) fn drain(&mut self) {
        self.messages.close();
        self.control.close();
    }
}

// === impl CancelOnDrop ===

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if self.pending.remove(self.id).is_none() || !self.is_sent {
            return; // the response has arrived, or the server knows of no request
        }
        let message = Notification::cancelled(&self.id.into()).encode();
        note_server(self.mark, Way::Out, &message);
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
    use crate::failure::Execution;
    use serde_json::json;

    fn parser() -> MessageParser {
        MessageParser::new(128, "test")
    }

    #[tokio::test]
    async fn listen_request_with_a_slow_reader_ends_and_is_cancelled() {
        let (unsolicited, _unsolicited_receiver) = mpsc::channel(8);
        let (duplex, mut sent) = Duplex::new(parser(), unsolicited);
        let mut replies = duplex.call((Method::Listen, None), None, Revision::NEWEST, (Mark::NONE, None));
        assert!(tokio::time::timeout(std::time::Duration::from_millis(1), replies.next()).await.is_err());
        assert!(Message::parse(&sent.next().await.unwrap()).is_ok());
        let meta = json!({ "io.modelcontextprotocol/subscriptionId": 1 });
        let notification =
            Notification::new(NotificationMethod::ToolsChanged, Some(Raw::of(&json!({ "_meta": meta }))));
        for _ in 0..REPLY_QUEUE_CAPACITY + 10 {
            duplex.dispatch(Message::Notification(notification.clone()), b"").await;
        }
        let mut last = None;
        while let Some(reply) = replies.next().await {
            last = Some(reply);
        }
        let Some(Reply::End(answer)) = last else { panic!("{last:?}") };
        assert!(answer.outcome.is_err_and(|error| error.failure().is_some()));
        let cancelled = String::from_utf8(sent.next().await.unwrap().to_vec()).unwrap();
        assert!(cancelled.contains("notifications/cancelled"), "{cancelled}");
    }

    #[tokio::test]
    async fn call_that_was_not_sent_is_not_cancelled() {
        let (unsolicited, _unsolicited_receiver) = mpsc::channel(8);
        let (duplex, mut sent) = Duplex::new(parser(), unsolicited);
        drop(duplex.call((Method::ToolsCall, None), None, Revision::NEWEST, (Mark::NONE, None)));
        let mut replies = duplex.call((Method::ToolsCall, None), None, Revision::NEWEST, (Mark::NONE, None));
        assert!(futures_util::poll!(std::pin::pin!(replies.next())).is_pending());
        drop(replies);
        let mut methods = Vec::new();
        sent.drain();
        while let Some(message) = sent.next().await {
            methods.push(match Message::parse(&message).unwrap() {
                Message::Request(request) => request.method.as_str().to_owned(),
                other => format!("{other:?}"),
            });
        }
        assert_eq!(methods.len(), 2, "{methods:?}");
        assert!(methods[0] == "tools/call" && methods[1].contains("Cancelled"), "{methods:?}");
    }

    /// The failure of a call whose connection closes; `writer` is what becomes of the messages to write.
    async fn failure_at_close<W>(writer: impl FnOnce(OutgoingMessages) -> W) -> Failure {
        let (unsolicited, _unsolicited_receiver) = mpsc::channel(8);
        let (duplex, sent) = Duplex::new(parser(), unsolicited);
        let mut replies = duplex.call((Method::ToolsCall, None), None, Revision::NEWEST, (Mark::NONE, None));
        let _writer = writer(sent);
        let reply = replies.next();
        tokio::pin!(reply);
        assert!(futures_util::poll!(&mut reply).is_pending());
        duplex.close(Failure::new(FailureKind::ChildExited, "exited"));
        let Some(Reply::End(answer)) = reply.await else { panic!("the end of the call") };
        answer.outcome.unwrap_err().failure().unwrap().clone()
    }

    #[tokio::test]
    async fn call_that_was_not_written_cannot_have_run() {
        assert_eq!(failure_at_close(|sent| sent).await.execution(), Execution::MayHaveRun);
        assert_eq!(failure_at_close(drop).await.execution(), Execution::NotRun);
    }

    #[tokio::test]
    async fn call_on_a_closed_connection_cannot_have_run() {
        let (unsolicited, _unsolicited_receiver) = mpsc::channel(8);
        let (duplex, _sent) = Duplex::new(parser(), unsolicited);
        duplex.close(Failure::new(FailureKind::ChildExited, "exited"));
        let mut replies = duplex.call((Method::ToolsCall, None), None, Revision::NEWEST, (Mark::NONE, None));
        let Some(Reply::End(answer)) = replies.next().await else { panic!("the end of the call") };
        let error = answer.outcome.unwrap_err();
        let failure = error.failure().unwrap();
        assert_eq!((failure.kind(), failure.execution()), (FailureKind::ChildExited, Execution::NotRun));
    }
}
