//! Notes of a message that passes in pieces.

use super::{Mark, Note, NoteKind, Way, Wire, put_parts, tail_of, with_ring, write_note};

/// Keeps the same parts of a message that passes in pieces as of one that is there whole: its beginning is noted as it comes,
/// its end when it is [over](PieceNotes::end) or this is dropped.
#[derive(Debug)]
pub struct PieceNotes {
    mark: Mark,
    wire: Wire,
    way: Way,
    passed: usize,
    /// What is kept of a long message.
    limit: usize,
    /// The last bytes that passed.
    tail: Vec<u8>,
}

impl PieceNotes {
    /// Notes of a message of this call that goes this way.
    pub fn new(mark: Mark, wire: Wire, way: Way) -> Self {
        Self { mark, wire, way, passed: 0, limit: 0, tail: Vec::new() }
    }

    /// Notes the next bytes, if the call is recorded.
    #[inline]
    pub fn note(&mut self, piece: &[u8]) {
        if self.mark.is_recorded() {
            self.write(piece);
        }
    }

    #[cold]
    fn write(&mut self, piece: &[u8]) {
        let note = self.record(NoteKind::Piece, piece);
        let (mark, passed) = (self.mark, self.passed);
        let written = with_ring(mark, |ring, limit| {
            let kept = (limit - tail_of(limit)).saturating_sub(passed).min(piece.len());
            put_parts(ring, mark, &note, [&piece[..kept], b""]);
            limit
        });
        // Nothing is recorded any more where there is no ring.
        self.limit = written.unwrap_or(0);
        self.passed += piece.len();
        self.keep_tail(piece);
    }

    fn keep_tail(&mut self, piece: &[u8]) {
        let most = tail_of(self.limit);
        let piece = &piece[piece.len().saturating_sub(most)..];
        let excess = (self.tail.len() + piece.len()).saturating_sub(most);
        self.tail.drain(..excess);
        self.tail.extend_from_slice(piece);
    }

    /// Notes the last bytes of the message.
    pub fn end(&mut self) {
        // What was kept as the beginning is not kept again.
        let rest = self.passed.saturating_sub(self.limit - tail_of(self.limit)).min(self.tail.len());
        let tail = std::mem::take(&mut self.tail);
        if rest > 0 {
            write_note(self.mark, &self.record(NoteKind::Tail, &tail[tail.len() - rest..]));
        }
    }

    fn record<'n>(&self, kind: NoteKind, body: &'n [u8]) -> Note<'n> {
        Note { wire: self.wire, way: self.way, kind, status: 0, head: b"", body }
    }
}

impl Drop for PieceNotes {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Detail, RecordBatch, Recorder};

    /// The beginning, the end and the length of what is noted of a body in pieces.
    fn noted(body: &[u8], piece: usize, limit: u32) -> (Vec<u8>, Vec<u8>, usize) {
        let recorder = Recorder::new();
        recorder.open(1 << 20, limit);
        recorder.set_detail(Detail::Bodies);
        let mut notes = PieceNotes::new(recorder.begin().mark, Wire::Client, Way::Out);
        for piece in body.chunks(piece) {
            notes.note(piece);
        }
        drop(notes);
        let batch = RecordBatch::new(recorder.read_shared(0, 1 << 20, u64::MAX).unwrap().bytes);
        let (mut first, mut last, mut length) = (Vec::new(), Vec::new(), 0);
        for (head, _, kept) in batch.records() {
            match NoteKind::from_tag(head.tags[2]) {
                Some(NoteKind::Piece) => {
                    length += head.length as usize;
                    first.extend_from_slice(kept);
                }
                Some(NoteKind::Tail) => last.extend_from_slice(kept),
                other => panic!("{other:?}"),
            }
        }
        (first, last, length)
    }

    #[test]
    fn the_beginning_and_the_end_are_kept_whatever_the_pieces() {
        let body: Vec<u8> = (0..10_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        for piece in [1, 7, 100, 999, 4_000, 9_999, 10_000] {
            let expected = (body[..750].to_vec(), body[9_750..].to_vec(), 10_000);
            assert_eq!(noted(&body, piece, 1000), expected, "pieces of {piece}");
            for length in [1, 750, 751, 999, 1000] {
                let (first, last, counted) = noted(&body[..length], piece, 1000);
                assert_eq!(([first, last].concat(), counted), (body[..length].to_vec(), length), "it is there whole");
            }
        }
        assert_eq!(noted(&body, 100, 0), (Vec::new(), Vec::new(), 10_000), "no bytes where none are kept");
    }

    #[test]
    fn nothing_is_noted_of_a_call_that_is_not_recorded() {
        let mut notes = PieceNotes::new(Mark::NONE, Wire::Client, Way::Out);
        notes.note(&[0; 1000]);
        assert_eq!((notes.passed, notes.tail.capacity()), (0, 0));
    }
}
