//! What has arrived on a connection, and was not taken yet.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

use super::codec::{BodyDecoder, Decoded};

/// What has arrived on a connection, and was not taken yet.
#[derive(Debug, Default)]
pub struct ReadBuffer {
    arrived: BytesMut,
    /// The last reading has brought all that there was room for, so there is likely to be more.
    more: bool,
}

/// Why a body could not be read.
#[derive(Debug)]
pub enum BodyError {
    /// It is longer than it may be.
    TooLong,
    /// It broke off, or is none.
    Broken(io::Error),
}

/// How much is read at once, where nobody knows how much is coming.
const READ: usize = 4 << 10;
/// The same where more is likely to come.
const READ_MORE: usize = 64 << 10;
/// How much is read at once where little is expected.
const LITTLE: usize = 256;
/// With less room than this, more is made.
const LEAST: usize = 1 << 10;
/// Room for a body is made as it comes: somebody may say that it is longer than it is.
const STRIDE: usize = 1 << 20;
/// The longest body whose memory is kept for the next one.
const RETAINED_BUFFER_MAX: usize = 32 << 10;

impl ReadBuffer {
    /// Whether nothing is here.
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// What is here, to be taken from.
    pub fn buffered(&mut self) -> &mut BytesMut {
        &mut self.arrived
    }

    /// Reads what comes; nothing when the other side has closed the connection.
    pub fn poll_more(&mut self, stream: impl AsyncRead + Unpin, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.more {
            self.arrived.reserve(READ_MORE);
        } else if self.arrived.capacity() - self.arrived.len() < LEAST {
            self.arrived.reserve(READ);
        }
        let room = self.arrived.capacity() - self.arrived.len();
        let read = ready!(self.poll_fill(stream, context));
        self.more = matches!(read, Ok(read) if read == room);
        Poll::Ready(read)
    }

    /// The same where little is expected, and nothing is to be kept ready for it.
    pub fn poll_little(
        &mut self,
        stream: impl AsyncRead + Unpin,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.arrived.capacity() == self.arrived.len() {
            self.arrived.reserve(LITTLE);
        }
        self.poll_fill(stream, context)
    }

    /// Keeps no room for what may come.
    pub fn shrink(&mut self) {
        self.arrived = BytesMut::from(&self.arrived[..]);
    }

    /// Reads as much as there is room for.
    fn poll_fill(&mut self, mut stream: impl AsyncRead + Unpin, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        poll_read_buf(Pin::new(&mut stream), context, &mut self.arrived)
    }

    /// Takes so many bytes once they are there.
    ///
    /// # Errors
    /// When the connection ends before.
    pub async fn take(&mut self, stream: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<Bytes> {
        while self.arrived.len() < length {
            if self.arrived.capacity() == self.arrived.len() || self.arrived.capacity() < length.min(STRIDE) {
                let missing = length - self.arrived.len();
                self.arrived.reserve(missing.min(STRIDE.max(self.arrived.len())));
            }
            if poll_fn(|context| self.poll_fill(&mut *stream, context)).await? == 0 {
                return Err(closed());
            }
        }
        let taken = self.arrived.split_to(length).freeze();
        if length > RETAINED_BUFFER_MAX {
            // Its memory goes with it.
            self.shrink();
        }
        Ok(taken)
    }

    /// The next piece of a body; nothing at its end.
    pub fn poll_piece(
        &mut self,
        mut stream: impl AsyncRead + Unpin,
        framing: &mut BodyDecoder,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            match framing.take(&mut self.arrived).map_err(io::Error::other)? {
                Decoded::Data(data) => return Poll::Ready(Ok(Some(data))),
                Decoded::End => return Poll::Ready(Ok(None)),
                Decoded::Missing => match (ready!(self.poll_more(&mut stream, context))?, &*framing) {
                    (0, BodyDecoder::UntilClose) => return Poll::Ready(Ok(None)),
                    (0, _) => return Poll::Ready(Err(closed())),
                    _ => {}
                },
            }
        }
    }

    /// The rest of a body, if it is no longer than that.
    ///
    /// # Errors
    /// When it is longer, or breaks off.
    pub async fn read_body(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        framing: &mut BodyDecoder,
        longest: usize,
    ) -> Result<Bytes, BodyError> {
        if let BodyDecoder::Length(left) = framing {
            let length = usize::try_from(*left).ok().filter(|length| *length <= longest).ok_or(BodyError::TooLong)?;
            let body = self.take(stream, length).await.map_err(BodyError::Broken)?;
            *left = 0;
            return Ok(body);
        }
        let mut all = BytesMut::new();
        loop {
            let piece = poll_fn(|context| self.poll_piece(&mut *stream, framing, context)).await;
            match piece.map_err(BodyError::Broken)? {
                None => return Ok(all.freeze()),
                Some(piece) if piece.len() > longest - all.len() => return Err(BodyError::TooLong),
                Some(piece) => all.extend_from_slice(&piece),
            }
        }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed in the middle of a message")
}
