//! What is known of one request for its line in the access log.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderValue, Version};
use parking_lot::Mutex;

use super::client_names::client_name;
use super::line::MAX_FIELD_BYTES;
use super::{AccessFormat, AccessSink};
use crate::identity::Identity;
use crate::protocol::Raw;
use crate::recorder::{self, Mark, Note, NoteKind, Sampled, SummaryField, SummaryWriter, Way, Wire};

/// One request that runs. Cloned handles add to the same record; the first one that ends it writes the line.
pub struct AccessRecord {
    /// Where the line goes; `None` where there is no access log.
    sink: Option<Arc<AccessSink>>,
    /// The number of the call, where it is recorded.
    mark: AtomicU64,
    /// One of how many calls is recorded.
    one_of: u16,
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
    /// When the request began; known once it has ended.
    pub(super) time: SystemTime,
    /// All texts, one behind the other: one allocation for a record.
    text: String,
    pub(super) http: StoredText,
    /// Its name, made of `client_info` where something is written: most requests of a gateway that is watched leave nothing.
    pub(super) client: Option<Arc<str>>,
    pub(super) method: StoredText,
    pub(super) target: StoredText,
    pub(super) request_id: Option<HeaderValue>,
    pub(super) trace_id: StoredText,
    pub(super) identity: Option<Arc<Identity>>,
    client_info: Option<Raw>,
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
    recorded: RecordedFields,
    pub(super) combined: CombinedFields,
    /// The line is written when the call has ended, which is after the response to its request.
    is_deferred: bool,
    counts_replies: bool,
    is_written: bool,
}

/// What lines in the combined log format have beside the others.
#[derive(Debug, Default)]
pub(super) struct CombinedFields {
    pub(super) address: Option<IpAddr>,
    pub(super) version: Option<Version>,
    pub(super) user_agent: StoredText,
}

/// What the access log does not show, but a recorded call does.
#[derive(Debug, Default)]
struct RecordedFields {
    group: Option<Arc<str>>,
    session: Option<Arc<str>>,
    client_revision: Option<&'static str>,
    client_transport: &'static str,
    server: Option<ServerFacts>,
    outcome: Option<&'static str>,
    reason: Option<&'static str>,
    relayed_to: Option<Arc<str>>,
    is_relayed: bool,
}

/// How a server is reached.
#[derive(Debug, Clone, Copy)]
pub struct ServerFacts {
    /// The revision that it speaks.
    pub revision: &'static str,
    /// The transport.
    pub transport: &'static str,
    /// Whether the client has the connection for itself.
    pub is_leased: bool,
    /// The process id of the child that the server is.
    pub process: Option<u32>,
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
    pub(super) fn new(sink: Option<Arc<AccessSink>>, sampled: Sampled) -> Arc<Self> {
        let fields = AccessFields {
            time: SystemTime::UNIX_EPOCH,
            text: String::with_capacity(TEXT_CAPACITY),
            http: StoredText::default(),
            client: None,
            method: StoredText::default(),
            target: StoredText::default(),
            request_id: None,
            trace_id: StoredText::default(),
            identity: None,
            client_info: None,
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
            recorded: RecordedFields::default(),
            combined: CombinedFields::default(),
            is_deferred: false,
            counts_replies: false,
            is_written: false,
        };
        let Sampled { mark, one_of } = sampled;
        Arc::new(Self {
            sink,
            mark: AtomicU64::new(mark.get()),
            one_of,
            started: Instant::now(),
            fields: Mutex::new(fields),
        })
    }

    /// Notes verb and path of an HTTP request, which may not have a query, and its ids.
    pub fn note_http(&self, verb: &str, path: &str, request_id: Option<&HeaderValue>, traceparent: Option<&[u8]>) {
        let mut fields = self.fields.lock();
        fields.http = fields.store(&[verb, " ", path]);
        fields.request_id = request_id.cloned();
        let trace_id = traceparent.and_then(|given| given.get(TRACE_ID));
        let is_id = |id: &&[u8]| id.iter().all(u8::is_ascii_hexdigit);
        if let Some(trace_id) = trace_id.filter(is_id).and_then(|id| str::from_utf8(id).ok()) {
            fields.trace_id = fields.store(&[trace_id]);
        }
    }

    /// Notes the address of the client, and the version of HTTP and the program that it says.
    pub fn note_peer<'r>(&self, address: IpAddr, request: impl FnOnce() -> Option<(Version, Option<&'r [u8]>)>) {
        if self.is_combined() {
            let mut fields = self.fields.lock();
            fields.combined.address = Some(address);
            if let Some((version, user_agent)) = request() {
                fields.combined.version = Some(version);
                fields.combined.user_agent =
                    fields.store(&[user_agent.and_then(|agent| str::from_utf8(agent).ok()).unwrap_or_default()]);
            }
        }
    }

    fn is_combined(&self) -> bool {
        self.sink.as_ref().is_some_and(|sink| sink.format == AccessFormat::Combined)
    }

    /// The number of the call for the recorder.
    #[inline]
    pub fn mark(&self) -> Mark {
        Mark::from_record(self.mark.load(Ordering::Relaxed))
    }

    /// Records nothing of this request: it is one of an operator who watches.
    pub fn leave_unrecorded(&self) {
        self.mark.store(0, Ordering::Relaxed);
    }

    /// Notes the group and the transport that the client uses.
    pub fn note_group(&self, group: &Arc<str>, transport: &'static str) {
        if self.mark().is_some() {
            let mut fields = self.fields.lock();
            fields.recorded.group = Some(Arc::clone(group));
            fields.recorded.client_transport = transport;
        }
    }

    /// Notes the session, by what stands for its id in logs.
    pub fn note_session(&self, tag: &Arc<str>) {
        self.fields.lock().recorded.session = Some(Arc::clone(tag));
    }

    /// Notes the node that served the request for this one.
    pub fn note_relayed_to(&self, node: &Arc<str>) {
        self.fields.lock().recorded.relayed_to = Some(Arc::clone(node));
    }

    /// Notes that another node, where the client is, relayed the request to this one.
    pub fn note_relayed(&self) {
        self.fields.lock().recorded.is_relayed = true;
    }

    /// Notes that a connection to a server has to be opened for the call.
    pub fn note_opening(&self) {
        self.note(NoteKind::Opening, &[]);
    }

    /// Notes the connection that the call is sent on.
    pub fn note_connection(&self, upstream: &Arc<str>, server: ServerFacts) {
        if self.mark().is_recorded() {
            let mut fields = self.fields.lock();
            fields.upstream = Some(Arc::clone(upstream));
            fields.recorded.server = Some(server);
            fields.name_client();
            let summary = fields.summary(self.one_of);
            drop(fields);
            self.note(NoteKind::Opened, summary.bytes());
        }
    }

    fn note(&self, kind: NoteKind, head: &[u8]) {
        let (wire, way) = (Wire::Server, Way::Out);
        recorder::note(self.mark(), &Note { wire, way, kind, status: 0, head, body: b"" });
    }

    /// Notes how the server answered, as a word.
    pub fn note_outcome(&self, outcome: &'static str) {
        self.fields.lock().recorded.outcome = Some(outcome);
    }

    /// Notes why there is no result, as a word.
    pub fn note_reason(&self, reason: &'static str) {
        self.fields.lock().recorded.reason = Some(reason);
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

    /// Notes the program of the client, as it says it, and its revision.
    pub fn note_client(&self, info: Option<&Raw>, revision: &'static str) {
        let mut fields = self.fields.lock();
        (fields.client_info, fields.recorded.client_revision) = (info.cloned(), Some(revision));
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
        let (is_failure, mark) = (fields.is_failure(), self.mark());
        let sink = self.sink.as_ref().filter(|sink| is_failure || sink.sample.takes_next());
        let is_recorded = mark.is_some() && (is_failure || mark.keeps_success());
        if sink.is_none() && !is_recorded {
            return;
        }
        fields.time = SystemTime::now().checked_sub(fields.total).unwrap_or(SystemTime::UNIX_EPOCH);
        fields.name_client();
        if let Some(sink) = sink {
            sink.lines.push_batched(|lines| fields.write_line(sink.format, &mut lines.0));
        }
        if is_recorded {
            recorder::note_end(mark, fields.summary(self.one_of).bytes());
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
            self.text.push_str(if part.len() <= room { part } else { &part[..part.floor_char_boundary(room)] });
        }
        let position = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        StoredText { start: position(start), end: position(self.text.len()) }
    }

    /// Makes the text of the client.
    fn name_client(&mut self) {
        if let Some(info) = self.client_info.take() {
            self.client = client_name(&info);
        }
    }

    /// What is known of the request so far, for the recorder.
    fn summary(&self, one_of: u16) -> SummaryWriter {
        let (mut out, recorded) = (SummaryWriter::new(), &self.recorded);
        let principal = self.identity.as_ref().map(|identity| &*identity.principal);
        let (server, outcome) = (recorded.server, self.end.map(|_| self.recorded_outcome()));
        for (field, text) in [
            (SummaryField::Http, self.text(self.http)),
            (SummaryField::Client, self.client.as_deref()),
            (SummaryField::Method, self.text(self.method)),
            (SummaryField::Target, self.text(self.target)),
            (SummaryField::RequestId, self.request_id()),
            (SummaryField::TraceId, self.text(self.trace_id)),
            (SummaryField::Principal, principal),
            (SummaryField::Group, recorded.group.as_deref()),
            (SummaryField::Session, recorded.session.as_deref()),
            (SummaryField::ClientRevision, recorded.client_revision),
            (SummaryField::ClientTransport, Some(recorded.client_transport).filter(|text| !text.is_empty())),
            (SummaryField::Upstream, self.upstream.as_deref()),
            (SummaryField::ServerRevision, server.map(|server| server.revision)),
            (SummaryField::ServerTransport, server.map(|server| server.transport)),
            (SummaryField::Leased, server.filter(|server| server.is_leased).map(|_| "1")),
            (SummaryField::Outcome, outcome),
            (SummaryField::Reason, recorded.reason),
            (SummaryField::RelayedTo, recorded.relayed_to.as_deref()),
            (SummaryField::Relayed, recorded.is_relayed.then_some("1")),
        ] {
            if let Some(text) = text {
                out.text(field, text);
            }
        }
        if let Some(process) = server.and_then(|server| server.process) {
            out.number(SummaryField::ServerProcess, process);
        }
        if let Some(code) = self.error {
            out.number(SummaryField::ErrorCode, code);
        }
        if let Some(status) = self.status {
            out.number(SummaryField::Status, status);
        }
        out.number(SummaryField::BytesIn, self.bytes_in);
        out.number(SummaryField::BytesOut, self.bytes_out);
        out.number(SummaryField::Total, u64::try_from(self.total.as_nanos()).unwrap_or(u64::MAX));
        out.number(SummaryField::OneOf, one_of);
        out
    }

    /// How the call ended, in one word: as its server answered, unless something went wrong on the way to the client.
    fn recorded_outcome(&self) -> &'static str {
        match (self.end, self.recorded.outcome) {
            (Some(AccessEnd::Cancelled), _) => "cancelled",
            (Some(AccessEnd::Disconnected), _) => "disconnected",
            (_, Some(outcome)) if outcome != "ok" => outcome,
            _ if self.is_tool_error => "tool_error",
            _ if self.status.is_some_and(|status| status >= 400) && self.recorded.outcome.is_none() => "refused",
            _ if self.error.is_some() => "error",
            _ => "ok",
        }
    }

    /// The text at a place; `None` if it is not known.
    pub(super) fn text(&self, span: StoredText) -> Option<&str> {
        self.text.get(span.start as usize..span.end as usize).filter(|text| !text.is_empty())
    }

    /// The request id, which has visible characters only.
    pub(super) fn request_id(&self) -> Option<&str> {
        self.request_id.as_ref().and_then(|id| str::from_utf8(id.as_bytes()).ok())
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
