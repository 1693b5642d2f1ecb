//! What is known of one request for its line in the access log.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::AccessSink;
use super::line::MAX_FIELD_BYTES;
use crate::identity::Identity;

/// One request that runs. Cloned handles add to the same record; the first one that ends it writes the line.
pub struct AccessRecord {
    sink: Arc<AccessSink>,
    started: Instant,
    fields: Mutex<AccessFields>,
}

/// Ends the record when it is dropped: a request whose answer nobody waited for was given up by its client.
#[derive(Debug)]
pub struct AccessGuard {
    record: Option<Arc<AccessRecord>>,
    role: GuardRole,
}

/// What a guard waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GuardRole {
    /// The response to the request; it leaves a call that goes on to the guard of that call.
    Response,
    /// The end of the call.
    Call,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessEnd {
    /// The client has its answer.
    Answered,
    /// The client cancelled the request.
    Cancelled,
    /// The client closed the connection, or the response broke off.
    Disconnected,
}

/// What a line says.
#[derive(Debug)]
pub(super) struct AccessFields {
    pub(super) time: SystemTime,
    /// All texts, one behind the other: one allocation for a record.
    text: String,
    pub(super) http: StoredText,
    pub(super) client: StoredText,
    pub(super) method: StoredText,
    pub(super) target: StoredText,
    pub(super) request_id: StoredText,
    pub(super) trace_id: StoredText,
    pub(super) identity: Option<Arc<Identity>>,
    pub(super) upstream: Option<Arc<str>>,
    pub(super) status: Option<u16>,
    pub(super) error: Option<i64>,
    pub(super) is_tool_error: bool,
    pub(super) end: Option<AccessEnd>,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) total: Duration,
    pub(super) upstream_time: Duration,
    pub(super) waited: Duration,
    /// The line is written when the call has ended, which is after the response to its request.
    is_deferred: bool,
    counts_replies: bool,
    is_written: bool,
}

/// Where a text is; empty if it is not known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StoredText {
    start: u32,
    end: u32,
}

/// Room for the texts of most requests.
const TEXT_CAPACITY: usize = 192;
/// Hexadecimal digits of the trace id in `traceparent`: `00-{trace id}-{parent id}-{flags}`.
const TRACE_ID: std::ops::Range<usize> = 3..35;

impl AccessRecord {
    pub(super) fn new(sink: Arc<AccessSink>) -> Arc<Self> {
        let fields = AccessFields {
            time: SystemTime::now(),
            text: String::with_capacity(TEXT_CAPACITY),
            http: StoredText::default(),
            client: StoredText::default(),
            method: StoredText::default(),
            target: StoredText::default(),
            request_id: StoredText::default(),
            trace_id: StoredText::default(),
            identity: None,
            upstream: None,
            status: None,
            error: None,
            is_tool_error: false,
            end: None,
            bytes_in: 0,
            bytes_out: 0,
            total: Duration::ZERO,
            upstream_time: Duration::ZERO,
            waited: Duration::ZERO,
            is_deferred: false,
            counts_replies: false,
            is_written: false,
        };
        Arc::new(Self { sink, started: Instant::now(), fields: Mutex::new(fields) })
    }

    /// Notes verb and path of an HTTP request, which may not have a query, and its ids.
    pub fn note_http(&self, verb: &str, path: &str, request_id: &[u8], traceparent: Option<&[u8]>) {
        let mut fields = self.fields.lock();
        fields.http = fields.store(&[verb, " ", path]);
        fields.request_id = fields.store(&[str::from_utf8(request_id).unwrap_or_default()]);
        let trace_id = traceparent.and_then(|given| given.get(TRACE_ID));
        let is_id = |id: &&[u8]| id.iter().all(u8::is_ascii_hexdigit);
        if let Some(trace_id) = trace_id.filter(is_id).and_then(|id| str::from_utf8(id).ok()) {
            fields.trace_id = fields.store(&[trace_id]);
        }
    }

    /// Notes the trace that the request belongs to.
    pub fn note_trace(&self, trace_id: &str) {
        let mut fields = self.fields.lock();
        fields.trace_id = fields.store(&[trace_id]);
    }

    /// Notes who calls.
    pub fn note_identity(&self, identity: &Arc<Identity>) {
        self.fields.lock().identity = Some(Arc::clone(identity));
    }

    /// Notes the MCP method, and what it is about as the client calls it.
    pub fn note_message(&self, method: &str, target: Option<&str>) {
        let mut fields = self.fields.lock();
        fields.method = fields.store(&[method]);
        fields.target = fields.store(&[target.unwrap_or_default()]);
    }

    /// Notes the program of the client.
    pub fn note_client(&self, name: &str, version: Option<&str>) {
        let mut fields = self.fields.lock();
        fields.client = match version {
            Some(version) => fields.store(&[name, "/", version]),
            None => fields.store(&[name]),
        };
    }

    /// Notes the upstream that answered, and how long it took.
    pub fn note_upstream(&self, name: &Arc<str>, took: Duration) {
        let mut fields = self.fields.lock();
        fields.upstream_time += took;
        fields.upstream = Some(Arc::clone(name));
    }

    /// Notes that the tool says that it failed.
    pub fn note_tool_error(&self) {
        self.fields.lock().is_tool_error = true;
    }

    /// Notes how long the call waited for input before this request brought it.
    pub fn note_waited(&self, waited: Duration) {
        self.fields.lock().waited += waited;
    }

    /// Notes the code of the JSON-RPC error that the client gets.
    pub fn note_error(&self, code: i64) {
        self.fields.lock().error = Some(code);
    }

    /// Notes the size of the request.
    pub fn note_received(&self, bytes: usize) {
        self.fields.lock().bytes_in += bytes as u64;
    }

    /// Notes the size of a part of the response.
    pub fn note_sent(&self, bytes: usize) {
        self.fields.lock().bytes_out += bytes as u64;
    }

    /// Notes the status of the HTTP response.
    pub fn note_status(&self, status: u16) {
        self.fields.lock().status = Some(status);
    }

    /// Notes how the call ended, whatever becomes of its response.
    pub fn note_end(&self, end: AccessEnd) {
        self.fields.lock().end.get_or_insert(end);
    }

    /// Has the line written by the guard that is returned, which ends the call, and not with the response to its request.
    pub fn defer(self: &Arc<Self>) -> AccessGuard {
        let mut fields = self.fields.lock();
        (fields.is_deferred, fields.counts_replies) = (true, true);
        drop(fields);
        AccessGuard { record: Some(Arc::clone(self)), role: GuardRole::Call }
    }

    /// Counts the replies as the response: there is no HTTP response, or it does not have them.
    pub fn count_replies(&self) {
        self.fields.lock().counts_replies = true;
    }

    /// Notes a reply, and the code of its error.
    pub fn note_reply(&self, bytes: usize, error: Option<i64>) {
        let mut fields = self.fields.lock();
        if fields.counts_replies {
            fields.bytes_out += bytes as u64;
        }
        fields.error = error.or(fields.error);
    }

    fn finish(&self, end: AccessEnd, role: GuardRole) {
        let mut fields = self.fields.lock();
        if fields.is_written || (role == GuardRole::Response && fields.is_deferred) {
            return;
        }
        fields.is_written = true;
        fields.end.get_or_insert(end);
        fields.total = self.started.elapsed();
        if fields.is_failure() || self.sink.takes_sample() {
            self.sink.lines.push_batched(|lines| fields.write_line(self.sink.format, &mut lines.0));
        }
    }
}

impl AccessGuard {
    /// Ends this record, if there is one.
    pub fn new(record: Option<&Arc<AccessRecord>>) -> Self {
        Self { record: record.cloned(), role: GuardRole::Response }
    }

    /// The record that has not ended.
    #[inline]
    pub fn record(&self) -> Option<&AccessRecord> {
        self.record.as_deref()
    }

    /// Ends the record.
    #[inline]
    pub fn finish(&mut self, end: AccessEnd) {
        if let Some(record) = self.record.take() {
            record.finish(end, self.role);
        }
    }
}

impl Drop for AccessGuard {
    fn drop(&mut self) {
        self.finish(AccessEnd::Disconnected);
    }
}

impl AccessFields {
    /// Keeps a text, cut at a bound.
    fn store(&mut self, parts: &[&str]) -> StoredText {
        let start = self.text.len();
        for part in parts {
            let room = MAX_FIELD_BYTES.saturating_sub(self.text.len() - start);
            self.text.push_str(&part[..part.floor_char_boundary(room)]);
        }
        let position = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        StoredText { start: position(start), end: position(self.text.len()) }
    }

    /// The text at a place; `None` if it is not known.
    pub(super) fn text(&self, span: StoredText) -> Option<&str> {
        self.text.get(span.start as usize..span.end as usize).filter(|text| !text.is_empty())
    }

    /// Whether the request did not end as its client wanted; such a request is always logged.
    fn is_failure(&self) -> bool {
        self.error.is_some()
            || self.is_tool_error
            || self.status.is_some_and(|status| status >= 400)
            || self.end != Some(AccessEnd::Answered)
    }
}

impl fmt::Debug for AccessRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessRecord")
    }
}
