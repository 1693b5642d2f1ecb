//! The calls of one connection that await their responses, and the server requests that they are asked.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::OwnedPermit;
use tokio::sync::{mpsc, oneshot};

use crate::call::{Answer, Reply, ServerRequest};
use crate::dialect::Revision;
use crate::failure::Failure;
use crate::protocol::{ErrorObject, Id, Method, Notification, NotificationMethod, Outcome, Raw, code};
use crate::recorder::Mark;

/// Server requests that may be open on one connection, which several callers without a session can share. One stays open
/// for as long as a parked call waits for a client that has gone.
pub(super) const MAX_OPEN_SERVER_REQUESTS: usize = 128;

/// Calls that await responses, by request id.
#[derive(Debug, Default)]
pub(super) struct PendingCalls(Mutex<PendingState>);

#[derive(Debug, Default)]
pub(super) struct PendingState {
    pub(super) calls: HashMap<i64, PendingCall>,
    /// Server requests that were not responded to yet; dropping a sender withdraws the request.
    pub(super) server_requests: HashMap<Id, oneshot::Sender<()>>,
    /// Set once the connection is closed, with the reason.
    pub(super) closed: Option<Failure>,
}

/// A server request as the server sent it.
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) params: Option<Raw>,
}

#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) replies: mpsc::Sender<Reply>,
    /// Queue space reserved for the final response.
    pub(super) final_permit: OwnedPermit<Reply>,
    /// The caller's progress token; the server is given the request id instead.
    pub(super) progress_token: Option<Raw>,
    pub(super) revision: Revision,
    /// A `subscriptions/listen` request, which receives only its change notifications.
    pub(super) is_listen: bool,
    /// A server request may belong to this call.
    pub(super) accepts_server_requests: bool,
    /// A log message may belong to this call.
    pub(super) accepts_logs: bool,
    /// Server requests that went to this call.
    pub(super) server_requests: u32,
    /// The number of the call for the recorder.
    pub(super) mark: Mark,
}

// === impl PendingCalls ===

impl PendingCalls {
    pub(super) fn lock(&self) -> MutexGuard<'_, PendingState> {
        self.0.lock()
    }

    pub(super) fn insert(&self, id: i64, call: PendingCall) -> Result<(), Failure> {
        let mut state = self.lock();
        if let Some(failure) = &state.closed {
            return Err(failure.clone());
        }
        state.calls.insert(id, call);
        Ok(())
    }

    pub(super) fn remove(&self, id: i64) -> Option<PendingCall> {
        self.lock().calls.remove(&id)
    }

    /// Hands a server request to the only call that it can belong to, or gives it back.
    pub(super) fn ask_only(&self, request: ServerRequest) -> Result<Mark, ServerRequest> {
        match self.lock().only_call(|call| call.accepts_server_requests) {
            Some(call) => {
                call.forward_server_request(request);
                Ok(call.mark)
            }
            None => Err(request),
        }
    }

    /// Hands a server request to the newest call of those that were asked least, or gives it back: each of several calls
    /// that ask at once gets a request. Returns the id and the mark of the call.
    pub(super) fn ask_newest(&self, request: ServerRequest) -> Result<(i64, Mark), ServerRequest> {
        let mut state = self.lock();
        let calls = state.calls.iter_mut().filter(|(_, call)| call.accepts_server_requests);
        match calls.max_by_key(|(id, call)| (std::cmp::Reverse(call.server_requests), **id)) {
            Some((id, call)) => {
                call.server_requests += 1;
                call.forward_server_request(request);
                Ok((*id, call.mark))
            }
            None => Err(request),
        }
    }

    /// Waits for the client's answer. A question whose `asked_call` ended without it belonged to another call, which is
    /// asked instead.
    pub(super) async fn wait_for_answer(
        &self,
        question: &Question,
        mut response: oneshot::Receiver<Outcome>,
        mut asked_call: Option<i64>,
    ) -> Outcome {
        loop {
            if let Ok(outcome) = response.await {
                return outcome;
            }
            if asked_call.is_none_or(|call| self.lock().calls.contains_key(&call)) {
                return Err(unsupported_by_client());
            }
            let (responder, answered) = oneshot::channel();
            let Ok((call, _)) = self.ask_newest(question.with_responder(responder)) else {
                return Err(unsupported_by_client());
            };
            (response, asked_call) = (answered, Some(call));
        }
    }
}

// === impl PendingState ===

impl PendingState {
    /// The only pending call that satisfies `fits`.
    pub(super) fn only_call(&mut self, fits: impl Fn(&PendingCall) -> bool) -> Option<&mut PendingCall> {
        let mut calls = self.calls.values_mut().filter(|call| fits(call));
        calls.next().filter(|_| calls.next().is_none())
    }
}

// === impl Question ===

impl Question {
    pub(super) fn with_responder(&self, responder: oneshot::Sender<Outcome>) -> ServerRequest {
        let (method, params) = (self.method.clone(), self.params.clone());
        ServerRequest { method, params, responder: responder.into(), asker: None }
    }
}

// === impl PendingCall ===

impl PendingCall {
    pub(super) fn complete(self, outcome: Outcome) {
        self.final_permit.send(Reply::End(Answer { outcome, revision: self.revision }));
    }

    /// Forwards a notification; false when the call's queue is full or its reader has gone.
    pub(super) fn try_notify(&mut self, notification: Notification) -> bool {
        let queued = self.replies.try_send(Reply::Notification(notification)).is_ok();
        if !queued {
            tracing::debug!("upstream notification dropped: its call reads too slowly or has gone");
        }
        queued
    }

    pub(super) fn forward_log(&mut self, notification: Notification) {
        self.try_notify(notification);
    }

    pub(super) fn forward_progress(&mut self, notification: &Notification) {
        let (Some(progress_token), Some(params)) = (&self.progress_token, &notification.params) else { return };
        let params = params.edit().set("progressToken", progress_token.clone()).finish();
        self.try_notify(Notification::new(NotificationMethod::Progress, Some(params)));
    }

    pub(super) fn forward_server_request(&mut self, request: ServerRequest) {
        // If the queue is full, dropping the request sends an error response to the server.
        let _ = self.replies.try_send(Reply::ServerRequest(request));
    }
}

/// The answer to a server request that no client answers.
pub(super) fn unsupported_by_client() -> ErrorObject {
    ErrorObject::new(code::METHOD_NOT_FOUND, "the client does not answer this")
}

/// The answer to a server request beyond the limit of open ones.
pub(super) fn too_many_server_requests(limit: usize) -> ErrorObject {
    let why = format!("{limit} server requests are open on this connection; wait for their answers first");
    ErrorObject::new(code::INTERNAL_ERROR, format!("Internal error: {why}"))
}
