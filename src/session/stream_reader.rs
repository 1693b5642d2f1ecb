//! A connection that reads a stream of a session.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::Session;

/// A connection that reads a stream of a session. Dropping it detaches the connection.
#[derive(Debug)]
pub struct Attachment {
    session: Arc<Session>,
    number: u32,
    serial: u64,
}

impl Attachment {
    pub(super) fn new(session: Arc<Session>, number: u32, serial: u64) -> Self {
        Self { session, number, serial }
    }

    /// The next thing to write; nothing when the stream has ended, or another connection reads it.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.session.poll(self.number, self.serial, context)
    }

    /// The next thing to write; nothing when the stream has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.session.detach(self.number, self.serial);
    }
}
