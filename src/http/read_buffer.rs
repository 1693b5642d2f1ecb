//! Read buffer of one connection: bytes read from the socket that the codec has not consumed yet.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

use super::codec::{BodyDecoder, Decoded};

/// Bytes read from a connection and not consumed yet. Grows with the traffic and gives large allocations back.
#[derive(Debug, Default)]
pub struct ReadBuffer {
    bytes: BytesMut,
    /// The last read filled all free space, so more bytes are probably waiting in the socket: read larger next time.
    last_read_was_full: bool,
}

/// Why a body could not be read to its end.
#[derive(Debug)]
pub enum BodyError {
    /// The body exceeds the caller's limit.
    TooLong,
    /// The connection was closed or failed within the body, or the body is malformed.
    Broken(io::Error),
}

/// Space reserved for a read of unknown size, in bytes.
const READ_SIZE: usize = 4 << 10;
/// Space reserved once a read has filled its buffer.
const LARGE_READ_SIZE: usize = 64 << 10;
/// Space reserved by [`ReadBuffer::poll_read_small`].
const SMALL_READ_SIZE: usize = 256;
/// With less free space than this, [`READ_SIZE`] more is reserved before a read.
const MIN_FREE_SPACE: usize = 1 << 10;
/// At most this much is reserved ahead of the data, whatever length the peer announced.
const MAX_RESERVE_STEP: usize = 1 << 20;
/// The allocation of a larger body is not kept for the next message.
const RETAINED_BUFFER_MAX: usize = 32 << 10;

impl ReadBuffer {
    /// Whether no unconsumed byte is buffered.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The unconsumed bytes; the codec splits what it consumes off the front.
    pub fn buffered(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    /// Reads into the buffer; `Ok(0)` means that the peer has closed the connection.
    pub fn poll_read_more(
        &mut self,
        stream: impl AsyncRead + Unpin,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.last_read_was_full {
            self.bytes.reserve(LARGE_READ_SIZE);
        } else if self.bytes.capacity() - self.bytes.len() < MIN_FREE_SPACE {
            self.bytes.reserve(READ_SIZE);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let read = ready!(self.poll_fill(stream, context));
        self.last_read_was_full = matches!(read, Ok(read) if read == room);
        Poll::Ready(read)
    }

    /// Like [`Self::poll_read_more`], but reserves little space: for connections on which no data is expected.
    pub fn poll_read_small(
        &mut self,
        stream: impl AsyncRead + Unpin,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.capacity() == self.bytes.len() {
            self.bytes.reserve(SMALL_READ_SIZE);
        }
        self.poll_fill(stream, context)
    }

    /// Releases unused capacity.
    pub fn shrink(&mut self) {
        self.bytes = BytesMut::from(&self.bytes[..]);
    }

    /// Reads as much as fits into the free capacity.
    fn poll_fill(&mut self, mut stream: impl AsyncRead + Unpin, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        poll_read_buf(Pin::new(&mut stream), context, &mut self.bytes)
    }

    /// Waits until `length` bytes are buffered and returns them.
    ///
    /// # Errors
    /// When the connection is closed or fails first.
    pub async fn read_exact(&mut self, stream: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<Bytes> {
        while self.bytes.len() < length {
            if self.bytes.capacity() == self.bytes.len() || self.bytes.capacity() < length.min(MAX_RESERVE_STEP) {
                let missing = length - self.bytes.len();
                self.bytes.reserve(missing.min(MAX_RESERVE_STEP.max(self.bytes.len())));
            }
            if poll_fn(|context| self.poll_fill(&mut *stream, context)).await? == 0 {
                return Err(unexpected_eof());
            }
        }
        let data = self.bytes.split_to(length).freeze();
        if length > RETAINED_BUFFER_MAX {
            // The bytes share the buffer's allocation; drop the rest of it.
            self.shrink();
        }
        Ok(data)
    }

    /// The next data of a body as the decoder finds it; `None` at the end of the body.
    pub fn poll_body_data(
        &mut self,
        mut stream: impl AsyncRead + Unpin,
        decoder: &mut BodyDecoder,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            match decoder.decode(&mut self.bytes).map_err(io::Error::other)? {
                Decoded::Data(data) => return Poll::Ready(Ok(Some(data))),
                Decoded::End => return Poll::Ready(Ok(None)),
                Decoded::NeedMore => match (ready!(self.poll_read_more(&mut stream, context))?, &*decoder) {
                    (0, BodyDecoder::UntilClose) => return Poll::Ready(Ok(None)),
                    (0, _) => return Poll::Ready(Err(unexpected_eof())),
                    _ => {}
                },
            }
        }
    }

    /// Reads the rest of a body of at most `max_bytes`.
    ///
    /// # Errors
    /// When the body is longer, malformed, or cut off.
    pub async fn read_body(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        decoder: &mut BodyDecoder,
        max_bytes: usize,
    ) -> Result<Bytes, BodyError> {
        if let BodyDecoder::Length(left) = decoder {
            let length = usize::try_from(*left).ok().filter(|length| *length <= max_bytes).ok_or(BodyError::TooLong)?;
            let body = self.read_exact(stream, length).await.map_err(BodyError::Broken)?;
            *left = 0;
            return Ok(body);
        }
        let mut body = BytesMut::new();
        loop {
            let data = poll_fn(|context| self.poll_body_data(&mut *stream, decoder, context)).await;
            match data.map_err(BodyError::Broken)? {
                None => return Ok(body.freeze()),
                Some(data) if data.len() > max_bytes - body.len() => return Err(BodyError::TooLong),
                Some(data) => body.extend_from_slice(&data),
            }
        }
    }
}

fn unexpected_eof() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed in the middle of a message")
}
