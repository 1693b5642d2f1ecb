//! The reading end of one session stream.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::Session;
use crate::policy::Permit;

/// A client connection attached to a stream. Dropping it detaches the reader.
#[derive(Debug)]
pub struct StreamReader {
    session: Arc<Session>,
    stream_number: u32,
    serial: u64,
    _permit: Permit,
}

impl StreamReader {
    /// A reader of the stream and with the serial number given, which counts as an open stream.
    pub(super) fn new(session: Arc<Session>, (stream_number, serial): (u32, u64), permit: Permit) -> Self {
        Self { session, stream_number, serial, _permit: permit }
    }

    /// Polls the next event; `None` when the stream is complete, another reader replaced this one, or it lags behind
    /// the trimmed events.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.session.poll_stream(self.stream_number, self.serial, context)
    }

    /// Waits for the next event, as [`StreamReader::poll_next`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.session.detach_reader(self.stream_number, self.serial);
    }
}
