//! What a server over Streamable HTTP asks, and which call that belongs to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Context;

use futures_util::task::AtomicWaker;
use tokio::sync::oneshot;

use crate::call::ServerRequest;
use crate::mcp_client::task_registry::TaskRegistry;
use crate::protocol::{Id, Raw};
use foldhash::HashMap;

/// The open questions of one session, and the calls that they may belong to.
#[derive(Debug, Default)]
pub(in crate::mcp_client) struct PendingServerRequests {
    state: Mutex<ServerRequestState>,
    /// The tasks that they may belong to.
    pub(in crate::mcp_client) related: TaskRegistry,
}

#[derive(Debug, Default)]
struct ServerRequestState {
    /// Dropping one takes it back.
    open: HashMap<Id, oneshot::Sender<()>>,
    /// Calls during which something may be asked.
    calls: HashMap<Id, Arc<RequestInbox>>,
}

/// Questions that wait for the reader of a call. There is one for each call, and hardly ever something in it.
#[derive(Debug, Default)]
pub(in crate::mcp_client) struct RequestInbox {
    waiting: Mutex<VecDeque<ServerRequest>>,
    reader: AtomicWaker,
}

/// How many questions that came on another stream may wait for the reader of a call.
const WAITING: usize = 16;

impl PendingServerRequests {
    fn lock(&self) -> MutexGuard<'_, ServerRequestState> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }

    /// Something is asked; what is given back ends when it is taken back.
    pub(in crate::mcp_client) fn open(&self, id: &Id) -> oneshot::Receiver<()> {
        let (withdraw, withdrawn) = oneshot::channel();
        self.lock().open.insert(id.clone(), withdraw);
        withdrawn
    }

    /// It is answered.
    pub(in crate::mcp_client) fn answered(&self, id: &Id) {
        self.lock().open.remove(id);
    }

    /// The server takes something back.
    pub(in crate::mcp_client) fn cancel(&self, params: Option<&Raw>) {
        let id = params.and_then(|params| params.get("requestId"));
        if let Some(id) = id.as_ref().and_then(Id::from_raw) {
            self.lock().open.remove(&id);
        }
    }

    /// A call during which something may be asked, and where that comes.
    pub(in crate::mcp_client) fn enter(&self, call: &Id) -> Arc<RequestInbox> {
        let inbox = Arc::default();
        self.lock().calls.insert(call.clone(), Arc::clone(&inbox));
        inbox
    }

    /// The call is over.
    pub(in crate::mcp_client) fn leave(&self, call: &Id) {
        self.lock().calls.remove(call);
    }

    /// Passes a question on that does not say which call it belongs to: with one call at work it is
    /// clear. Gives it back where it is not.
    pub(in crate::mcp_client) fn offer_to_only_call(&self, question: ServerRequest) -> Option<ServerRequest> {
        let only = {
            let state = self.lock();
            let mut calls = state.calls.values();
            calls.next().filter(|_| calls.next().is_none()).cloned()
        };
        match only {
            Some(only) => only.put(question),
            None => Some(question),
        }
    }
}

impl RequestInbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<ServerRequest>> {
        self.waiting.lock().expect("no thread panics while it holds this lock")
    }

    /// Gives it back where too many wait.
    fn put(&self, question: ServerRequest) -> Option<ServerRequest> {
        let mut waiting = self.lock();
        if waiting.len() == WAITING {
            return Some(question);
        }
        waiting.push_back(question);
        drop(waiting);
        self.reader.wake();
        None
    }

    /// The next one; whoever asks is woken when there is one.
    pub(in crate::mcp_client) fn next(&self, context: &Context<'_>) -> Option<ServerRequest> {
        self.reader.register(context.waker());
        self.lock().pop_front()
    }
}
