//! Who answers what a server asks.

use std::pin::Pin;
use std::sync::Arc;

use crate::call::ServerRequest;
use crate::protocol::{ErrorObject, Method, Notification, Outcome, Raw, code};

/// An answer that is being found.
pub type ServerRequestFuture<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// Hears what a server says, and answers what it asks.
pub trait Host: Send + Sync + 'static {
    /// What can be asked: the client capabilities `sampling`, `elicitation` and `roots`.
    fn capabilities(&self) -> Raw;

    /// Takes progress, log messages and news of changes. Must not wait.
    fn notice(&self, notification: &Notification);

    /// Answers a question. Questions may come several at a time.
    fn ask<'a>(&'a self, method: &'a Method, params: Option<&'a Raw>) -> ServerRequestFuture<'a>;
}

/// A host that hears nothing and answers nothing.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Host for Silent {
    fn capabilities(&self) -> Raw {
        Raw::empty()
    }

    fn notice(&self, _: &Notification) {}

    fn ask<'a>(&'a self, method: &'a Method, _: Option<&'a Raw>) -> ServerRequestFuture<'a> {
        Box::pin(
            async move { Err(ErrorObject::new(code::METHOD_NOT_FOUND, format!("this client is not asked {method}"))) },
        )
    }
}

/// Lets the host answer a question, in a task of its own.
pub(super) fn answer(host: &Arc<dyn Host>, question: ServerRequest) {
    let host = Arc::clone(host);
    tokio::spawn(async move {
        let ServerRequest { method, params, mut answer } = question;
        let outcome = tokio::select! {
            outcome = host.ask(&method, params.as_ref()) => outcome,
            () = answer.closed() => return, // nobody waits for it any more
        };
        let _ = answer.send(outcome);
    });
}
