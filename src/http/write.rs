//! Writes a message that lies in two buffers, its head and its body, without copying them together.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

/// Writes some of two consecutive slices from offset `from` on, which must lie before the end of the second.
pub(crate) fn poll_write_both(
    stream: &mut (impl AsyncWrite + Unpin),
    context: &mut Context<'_>,
    first: &[u8],
    second: &[u8],
    from: usize,
) -> Poll<io::Result<usize>> {
    let stream = Pin::new(stream);
    let (first, second) = (&first[from.min(first.len())..], &second[from.saturating_sub(first.len())..]);
    let written = match (first, second) {
        (one, []) | ([], one) => stream.poll_write(context, one),
        _ => stream.poll_write_vectored(context, &[IoSlice::new(first), IoSlice::new(second)]),
    };
    match written {
        Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn both_slices_are_written_from_any_offset() {
        let mut context = Context::from_waker(Waker::noop());
        for (first, second) in [("head", "body"), ("head", ""), ("", "body")] {
            let whole = format!("{first}{second}");
            for from in 0..whole.len() {
                let mut out = Vec::new();
                let written = poll_write_both(&mut out, &mut context, first.as_bytes(), second.as_bytes(), from);
                assert!(matches!(written, Poll::Ready(Ok(count)) if count == out.len()), "{whole} from {from}");
                assert_eq!(out, &whole.as_bytes()[from..], "{whole} from {from}");
            }
        }
    }

    #[test]
    fn writer_that_takes_nothing_is_an_error() {
        let mut writer = io::Cursor::new(&mut [][..]);
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Err(error)) = poll_write_both(&mut writer, &mut context, b"head", b"", 0) else {
            panic!("nothing can be written")
        };
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }
}
