//! Notes for the recorder what clients send and are sent.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::body::ResponseContent;
use crate::access_log::AccessRecord;
use crate::http::codec::RequestHead;
use crate::recorder::{self, Mark, Note, NoteKind, Way, Wire};

/// Notes an HTTP request with its body.
#[inline]
pub(super) fn note_request(access: Option<&AccessRecord>, head: &RequestHead, body: &[u8]) {
    if let Some(mark) = access.map(AccessRecord::mark).filter(|mark| mark.is_recorded()) {
        note_client(mark, Way::In, NoteKind::Message, (0, &encode_head(head)), body);
    }
}

/// Notes the response to an HTTP request: whole where its body is, and otherwise its head.
#[inline]
pub(super) fn note_response(record: &AccessRecord, response: &Response<ResponseContent>) {
    if !record.mark().is_recorded() {
        return;
    }
    let mut head = Vec::with_capacity(256);
    for (name, value) in response.headers() {
        put_header(&mut head, name.as_str().as_bytes(), value.as_bytes());
    }
    let (kind, body) = match response.body() {
        ResponseContent::Full(body) => (NoteKind::Message, &body[..]),
        _ => (NoteKind::Head, &b""[..]),
    };
    note_client(record.mark(), Way::Out, kind, (response.status().as_u16(), &head), body);
}

/// Notes a message that a client is sent on a stream.
#[inline]
pub(super) fn note_sent(access: Option<&Arc<AccessRecord>>, message: &[u8]) {
    if let Some(access) = access {
        note_client(access.mark(), Way::Out, NoteKind::Message, (0, b""), message);
    }
}

/// Notes a message of a client that comes in no HTTP request.
pub(super) fn note_line(mark: Mark, line: &Bytes) {
    note_client(mark, Way::In, NoteKind::Message, (0, b""), line);
}

fn note_client(mark: Mark, way: Way, kind: NoteKind, (status, head): (u16, &[u8]), body: &[u8]) {
    recorder::note(mark, &Note { wire: Wire::Client, way, kind, status, head, body });
}

/// The head of a request as text.
fn encode_head(head: &RequestHead) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(head.verb.as_str().as_bytes());
    out.push(b' ');
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in head.headers.iter() {
        put_header(&mut out, name, value);
    }
    out
}

fn put_header(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}
