//! Server requests of a session: sent to its client, resolved by the response, withdrawn with their call.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::outbox::StreamTarget;
use super::{CallGuard, PendingServerRequest, Session};
use crate::call::ServerRequest;
use crate::protocol::{Id, Notification, Outcome, Request};
use crate::recorder::{self, Mark};

impl Session {
    /// Sends a server request on the stream of a call. Without a stream the request is dropped, which fails it at
    /// once.
    pub async fn send_server_request(
        &self,
        stream: StreamTarget,
        (call, mark): (&CallGuard, Mark),
        request: ServerRequest,
    ) {
        if stream == StreamTarget::Discard {
            return; // dropping the request fails it at the upstream
        }
        let limit = call.session.settings().max_server_requests;
        if call.session.lock().server_requests.len() >= limit {
            return request.refuse_over_limit(limit);
        }
        let message = call.session.register_server_request(stream, (call.serial, mark), request);
        recorder::note_sent(mark, &message);
        self.deliver(stream, message).await;
    }

    /// Registers a server request, assigns its id and returns the encoded message. When the upstream drops its
    /// receiver before the response, the client gets `notifications/cancelled`.
    pub(super) fn register_server_request(
        self: &Arc<Self>,
        stream: StreamTarget,
        (call_serial, mark): (u64, Mark),
        request: ServerRequest,
    ) -> Bytes {
        let ServerRequest { method, params, responder: mut upstream_sender, asker } = request;
        let (response_sender, client_response) = oneshot::channel();
        let mut state = self.lock();
        state.last_server_request_id += 1;
        let id = state.last_server_request_id;
        state.server_requests.push(PendingServerRequest {
            id,
            method: method.clone(),
            params: params.clone(),
            asker,
            asked_at: Instant::now(),
            call_serial,
            mark,
            stream,
            response_sender,
        });
        drop(state);
        let session = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                // On a closed channel `upstream_sender` is dropped, which fails the request at the upstream.
                outcome = client_response => if let Ok(outcome) = outcome {
                    // The upstream may have dropped its receiver; the response is then discarded.
                    let _ = upstream_sender.send(outcome);
                },
                () = upstream_sender.closed() => session.withdraw_server_request(id),
            }
        });
        Request::new(id.into(), method, params.map(Into::into)).encode()
    }

    /// Cancels one server request at the client because the upstream no longer waits for it.
    fn withdraw_server_request(&self, id: i64) {
        let mut state = self.lock();
        let Some(index) = state.server_requests.iter().position(|pending| pending.id == id) else { return };
        let pending = state.server_requests.swap_remove(index);
        drop(state);
        self.send(pending.stream, Notification::cancelled(&id.into()).encode());
    }

    /// Completes a server request with the client's response; returns the mark of its call, and `None` for an unknown id.
    pub fn resolve_server_request(&self, id: &Id, outcome: Outcome) -> Option<Mark> {
        let mut state = self.lock();
        let pending = state.server_requests.iter().position(|pending| Id::from(pending.id) == *id);
        let pending = state.server_requests.swap_remove(pending?);
        drop(state);
        // The upstream may have dropped its receiver; the response is then discarded.
        let _ = pending.response_sender.send(outcome);
        Some(pending.mark)
    }

    /// Cancels the pending server requests of a call.
    pub(super) fn cancel_server_requests_of(&self, call_serial: u64) {
        let mut state = self.lock();
        let all = std::mem::take(&mut state.server_requests);
        let (cancelled, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|pending| pending.call_serial == call_serial);
        state.server_requests = rest;
        drop(state);
        for pending in cancelled {
            self.send(pending.stream, Notification::cancelled(&pending.id.into()).encode());
        }
    }
}
