//! The host: handles notifications and server requests for a client.

use std::pin::Pin;
use std::sync::Arc;

use crate::call::ServerRequest;
use crate::protocol::{ErrorObject, Method, Notification, Outcome, Raw, code};

/// Future of the answer to a server request.
pub type ServerRequestFuture<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// Receives notifications and answers server requests.
pub trait Host: Send + Sync + 'static {
    /// The client capabilities that the host supports: `sampling`, `elicitation`, `roots`.
    fn capabilities(&self) -> Raw;

    /// Called for progress, log messages and change notifications. Must not block.
    fn on_notification(&self, notification: &Notification);

    /// Answers a server request. May be called concurrently.
    fn on_server_request<'a>(&'a self, method: &'a Method, params: Option<&'a Raw>) -> ServerRequestFuture<'a>;
}

/// A host that ignores notifications and refuses all server requests.
#[derive(Debug, Clone, Copy)]
pub struct NullHost;

impl Host for NullHost {
    fn capabilities(&self) -> Raw {
        Raw::empty()
    }

    fn on_notification(&self, _: &Notification) {}

    fn on_server_request<'a>(&'a self, method: &'a Method, _: Option<&'a Raw>) -> ServerRequestFuture<'a> {
        Box::pin(
            async move { Err(ErrorObject::new(code::METHOD_NOT_FOUND, format!("this client is not asked {method}"))) },
        )
    }
}

/// Spawns a task in which the host answers a server request.
pub(super) fn spawn_answer(host: &Arc<dyn Host>, question: ServerRequest) {
    let host = Arc::clone(host);
    tokio::spawn(async move {
        let ServerRequest { method, params, responder: mut answer, .. } = question;
        let outcome = tokio::select! {
            outcome = host.on_server_request(&method, params.as_ref()) => outcome,
            () = answer.closed() => return, // the server cancelled the request
        };
        let _ = answer.send(outcome);
    });
}
