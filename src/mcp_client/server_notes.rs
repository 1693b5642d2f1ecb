//! Notes for the recorder what servers are sent and send.

use bytes::Bytes;

use crate::http::client::HttpError;
use crate::http::codec::{RequestEncoder, ResponseHead};
use crate::recorder::{self, Mark, Note, NoteKind, Way, Wire};

/// Notes a message.
#[inline]
pub(super) fn note_server(mark: Mark, way: Way, message: &[u8]) {
    let (wire, kind) = (Wire::Server, NoteKind::Message);
    recorder::note(mark, &Note { wire, way, kind, status: 0, head: b"", body: message });
}

/// Notes a request with its HTTP head so far.
#[inline]
pub(super) fn note_request(mark: Mark, head: &RequestEncoder, body: &[u8]) {
    let (wire, way, kind) = (Wire::Server, Way::Out, NoteKind::Message);
    recorder::note(mark, &Note { wire, way, kind, status: 0, head: head.as_bytes(), body });
}

/// Notes that a request, which is noted when it is encoded, was not sent after all.
pub(super) fn note_failure(mark: Mark, error: &HttpError) {
    if error.kind().is_before_sending() {
        recorder::note_unsent(mark);
    }
}

/// Notes a response with its body, which is returned.
#[inline]
pub(super) fn note_answer(mark: Mark, head: &ResponseHead, body: Bytes) -> Bytes {
    note_response(mark, NoteKind::Message, head, &body);
    body
}

/// Notes the head of a response whose messages follow.
#[inline]
pub(super) fn note_response_head(mark: Mark, head: &ResponseHead) {
    note_response(mark, NoteKind::Head, head, b"");
}

fn note_response(mark: Mark, kind: NoteKind, head: &ResponseHead, body: &[u8]) {
    if mark.is_recorded() {
        let (wire, way, status, fields) = (Wire::Server, Way::In, head.status().as_u16(), head.encode_fields());
        recorder::note(mark, &Note { wire, way, kind, status, head: &fields, body });
    }
}
