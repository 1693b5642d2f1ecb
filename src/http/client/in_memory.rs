//! The client over one stream in memory, by the same pool and the same connection as over a socket.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method as Verb, Uri};
use tokio::io::DuplexStream;

use super::connection::{EncodedRequest, Http1Connection, ResponseBody};
use super::limit::{ConnectionLimit, WhenFull};
use super::pool::{Pool, PoolError};
use crate::http::codec::ResponseHead;
use crate::http::read_buffer::BodyError;
use crate::recorder::Mark;

/// A client of one connection, which it never opens again.
#[derive(Debug)]
pub struct InMemoryClient(Arc<Pool>);

/// Body of a response.
#[derive(Debug)]
pub struct InMemoryBody(ResponseBody);

impl InMemoryClient {
    /// A client on a stream. Needs a tokio runtime.
    pub fn new(stream: DuplexStream) -> Self {
        let limit = ConnectionLimit::new(1, 0);
        let permit = limit.try_acquire();
        let pool = Arc::new(Pool::new(Uri::from_static("http://in-memory.invalid/"), limit));
        pool.release(Box::new(Http1Connection::in_memory(stream, permit)));
        Self(pool)
    }

    /// Sends a request without a body, and waits for the head of its final response.
    ///
    /// # Errors
    /// When the connection breaks, is not open any more, or what arrives is no response.
    pub async fn send(&self, verb: Verb) -> io::Result<(ResponseHead, InMemoryBody)> {
        if !self.0.has_idle() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let head = format!("{verb} / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").into_bytes();
        let (body, when_full, mark) = (Bytes::new(), WhenFull::Wait, Mark::NONE);
        let request = EncodedRequest { verb, head, body, in_flight: None, when_full, mark };
        match self.0.send(&request, Duration::ZERO).await {
            Ok(response) => Ok((response.head, InMemoryBody(response.body))),
            Err(PoolError::NotSent(error) | PoolError::Broken(error)) => Err(error),
            Err(PoolError::Unreachable(_) | PoolError::LimitReached(..)) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Whether the connection is open, and would carry another request.
    pub fn is_open(&self) -> bool {
        self.0.has_idle()
    }
}

impl InMemoryBody {
    /// The next data; `None` at the end of the body.
    pub async fn next(&mut self) -> Option<io::Result<Bytes>> {
        self.0.next().await
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// When the body is malformed or cut off.
    pub async fn read_to_end(self) -> io::Result<Bytes> {
        self.0.read_to_end(usize::MAX).await.map_err(|error| match error {
            BodyError::Broken(error) => error,
            BodyError::TooLong => io::ErrorKind::FileTooLarge.into(),
        })
    }
}
