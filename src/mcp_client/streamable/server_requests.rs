//! Open server requests of a Streamable HTTP connection, and the calls that they may belong to.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Context;

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::StreamableClient;
use crate::call::ServerRequest;
use crate::mcp_client::pending_calls::{MAX_OPEN_SERVER_REQUESTS, too_many_server_requests, unsupported_by_client};
use crate::mcp_client::server_notes::note_server;
use crate::mcp_client::task_registry::TaskRegistry;
use crate::protocol::{ErrorObject, Id, Outcome, Raw, Request, Response};
use crate::recorder::{Mark, Way};
use foldhash::HashMap;

/// Open server requests and the calls that accept them.
#[derive(Debug, Default)]
pub(in crate::mcp_client) struct PendingServerRequests {
    state: Mutex<ServerRequestState>,
    /// The tasks that server requests may belong to.
    pub(in crate::mcp_client) task_registry: TaskRegistry,
}

#[derive(Debug, Default)]
struct ServerRequestState {
    /// Open requests; dropping the sender withdraws the request.
    open_requests: HashMap<Id, oneshot::Sender<()>>,
    /// Calls in flight during which the server may send requests.
    calls: HashMap<Id, Arc<RequestInbox>>,
}

/// Server requests that arrived on another stream and wait for the reader of a call. Almost always empty.
#[derive(Debug, Default)]
pub(in crate::mcp_client) struct RequestInbox {
    queue: Mutex<VecDeque<ServerRequest>>,
    reader: AtomicWaker,
}

/// Server requests that may wait for the reader of one call.
const INBOX_CAPACITY: usize = 16;

impl PendingServerRequests {
    fn lock(&self) -> MutexGuard<'_, ServerRequestState> {
        self.state.lock()
    }

    /// Registers a server request; the returned receiver resolves when the server cancels it.
    pub(in crate::mcp_client) fn register(&self, id: &Id) -> oneshot::Receiver<()> {
        let (withdraw, withdrawn) = oneshot::channel();
        self.lock().open_requests.insert(id.clone(), withdraw);
        withdrawn
    }

    /// Removes a server request that the client has responded to.
    pub(in crate::mcp_client) fn complete(&self, id: &Id) {
        self.lock().open_requests.remove(id);
    }

    /// Handles `notifications/cancelled` of the server.
    pub(in crate::mcp_client) fn cancel(&self, params: Option<&Raw>) {
        let id = params.and_then(|params| params.get("requestId"));
        if let Some(id) = id.as_ref().and_then(Id::from_raw) {
            self.lock().open_requests.remove(&id);
        }
    }

    /// Registers a call during which the server may send requests.
    pub(in crate::mcp_client) fn register_call(&self, call: &Id) -> Arc<RequestInbox> {
        let inbox = Arc::default();
        self.lock().calls.insert(call.clone(), Arc::clone(&inbox));
        inbox
    }

    /// Removes a call that has ended.
    pub(in crate::mcp_client) fn unregister_call(&self, call: &Id) {
        self.lock().calls.remove(call);
    }

    /// Gives a server request that names no call to the only call in flight; returns it when there is none or more than one.
    pub(in crate::mcp_client) fn offer_to_only_call(&self, request: ServerRequest) -> Option<ServerRequest> {
        let only_call = {
            let state = self.lock();
            let mut calls = state.calls.values();
            calls.next().filter(|_| calls.next().is_none()).cloned()
        };
        match only_call {
            Some(only_call) => only_call.try_push(request),
            None => Some(request),
        }
    }
}

impl StreamableClient {
    /// Posts an answer that waits for nobody but the server.
    pub(super) async fn post_control(self: &Arc<Self>, id: Id, outcome: Outcome) {
        let Ok(permit) = Arc::clone(&self.control_permits).acquire_owned().await else { return };
        let Ok(session) = self.use_session() else { return };
        let http = Arc::clone(self);
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = http.post(session, Response::new(Some(id), outcome).encode()).await {
                tracing::debug!(%error, "posting the answer to a ping or a refused request failed");
            }
        });
    }

    /// Registers a server request and spawns a task that posts the client's response.
    ///
    /// # Errors
    /// The answer to a request beyond the limit.
    pub(super) fn accept_server_request(
        self: &Arc<Self>,
        request: Request,
        mark: Mark,
    ) -> Result<ServerRequest, (Id, ErrorObject)> {
        let Ok(permit) = Arc::clone(&self.server_request_permits).try_acquire_owned() else {
            return Err((request.id, too_many_server_requests(MAX_OPEN_SERVER_REQUESTS)));
        };
        let (responder, response) = oneshot::channel();
        let withdrawn = self.server_requests.register(&request.id);
        let http = Arc::clone(self);
        tokio::spawn(async move {
            let _permit = permit;
            let outcome = tokio::select! {
                outcome = response => outcome.unwrap_or_else(|_| Err(unsupported_by_client())),
                _ = withdrawn => return,
            };
            http.server_requests.complete(&request.id);
            let response = Response::new(Some(request.id), outcome).encode();
            note_server(mark, Way::Out, &response);
            let posted = async { http.post(http.use_session()?, response).await };
            if let Err(error) = posted.await {
                tracing::debug!(%error, "posting the response to a server request failed");
            }
        });
        Ok(ServerRequest {
            method: request.method,
            params: request.params.map(Into::into),
            responder: responder.into(),
            asker: None,
        })
    }
}

impl RequestInbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<ServerRequest>> {
        self.queue.lock()
    }

    /// Queues a request and wakes the reader; returns the request when the inbox is full.
    fn try_push(&self, request: ServerRequest) -> Option<ServerRequest> {
        let mut queue = self.lock();
        if queue.len() == INBOX_CAPACITY {
            return Some(request);
        }
        queue.push_back(request);
        drop(queue);
        self.reader.wake();
        None
    }

    /// Takes the next request; registers the waker first, so that none is missed.
    pub(in crate::mcp_client) fn pop_or_register(&self, context: &Context<'_>) -> Option<ServerRequest> {
        self.reader.register(context.waker());
        self.lock().pop_front()
    }
}
