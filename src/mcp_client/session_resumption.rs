//! Saves the upstream session that belongs to a client session, so that another node can resume it.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;

use parking_lot::{Mutex, MutexGuard};

use super::target::{Address, HttpTransport};
use crate::call::ClientSink;
use crate::dialect::Revision;
use crate::dialect::to_upstream::{self, ServerHello};
use crate::protocol::Raw;

/// Saved record of one client's session with one upstream, kept with the client session in the store.
#[derive(Debug)]
pub(crate) struct ResumableSession {
    upstream: Arc<str>,
    /// URL of the server; a session of another URL is not resumed.
    url: String,
    /// The configured revision; a session of another revision is not resumed.
    pinned_revision: Option<Revision>,
    sink: Arc<dyn ClientSink>,
    saved: Mutex<Saved>,
}

#[derive(Debug, Default)]
struct Saved {
    /// The stored record, as long as it describes our current session.
    record: Option<Bytes>,
    /// The upstream is being removed: nothing is saved any more.
    is_retired: bool,
}

/// A saved session to resume.
#[derive(Debug)]
pub(crate) struct SavedSession {
    pub(crate) session_id: HeaderValue,
    /// Result of the server's `initialize` response.
    pub(crate) initialize_result: Raw,
    pub(crate) hello: ServerHello,
    /// Request ids of the resumed session start above this number.
    pub(crate) request_id_base: i64,
}

impl ResumableSession {
    /// `None` for HTTP+SSE servers, whose sessions end with their connection.
    pub(crate) fn new(
        upstream: &Arc<str>,
        address: &Address,
        pinned_revision: Option<Revision>,
        sink: &Arc<dyn ClientSink>,
    ) -> Option<Arc<Self>> {
        if address.transport == Some(HttpTransport::Sse) {
            return None;
        }
        Some(Arc::new(Self {
            upstream: Arc::clone(upstream),
            url: address.url.to_string(),
            pinned_revision,
            sink: Arc::clone(sink),
            saved: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Saved> {
        self.saved.lock()
    }

    /// The saved session, if there is one and it fits this upstream.
    pub(crate) fn load(&self) -> Option<SavedSession> {
        let mut saved = self.lock();
        if saved.is_retired {
            return None;
        }
        let record = self.sink.saved_upstream_session(&self.upstream)?;
        let decoded = self.decode(&record).zip(random_request_id_base());
        let Some(((session_id, initialize_result, hello), request_id_base)) = decoded else {
            tracing::debug!(upstream = %self.upstream, "saved upstream session cannot be resumed; ignored");
            return None;
        };
        saved.record = Some(record);
        Some(SavedSession { session_id, initialize_result, hello, request_id_base })
    }

    fn decode(&self, record: &Bytes) -> Option<(HeaderValue, Raw, ServerHello)> {
        let record = Raw::parse(record).ok()?;
        let text = |key: &str| record.get(key)?.text().map(|text| text.into_owned());
        let result = record.get("result")?;
        let hello = to_upstream::parse_initialize_result(&result).ok()?;
        let revision = Revision::parse(&text("revision")?)?;
        let is_same_server = text("url")? == self.url && revision == hello.revision;
        let is_allowed = self.pinned_revision.is_none_or(|pinned| pinned == revision);
        let session_id = HeaderValue::from_str(&text("session")?).ok()?;
        (is_same_server && is_allowed && !session_id.is_empty()).then_some((session_id, result, hello))
    }

    /// Saves the current session: its id and the result of `initialize`.
    pub(crate) fn save(&self, current: impl FnOnce() -> Option<(HeaderValue, Raw)>) {
        let mut saved = self.lock();
        // Read under the lock, so that of two concurrent saves the later one stores the later session.
        let record = current().and_then(|(session_id, result)| self.encode(&session_id, &result));
        if record == saved.record {
            return;
        }
        if saved.is_retired || self.sink.moved_to_other_node() {
            // Another node owns the client session now; the new upstream session stays ours.
            saved.record = None;
            return;
        }
        saved.record.clone_from(&record);
        self.sink.save_upstream_session(&self.upstream, record);
    }

    fn encode(&self, session_id: &HeaderValue, result: &Raw) -> Option<Bytes> {
        let revision = to_upstream::parse_initialize_result(result).ok()?.revision;
        let empty = Raw::empty();
        let record = empty.edit().set("url", Raw::of(self.url.as_str()));
        let record = record.set("session", Raw::of(session_id.to_str().ok()?));
        let record = record.set("revision", Raw::of(revision.as_str()));
        Some(record.set("result", result.clone()).finish().bytes())
    }

    /// Whether another node has taken the client session over and ours has ended.
    pub(crate) fn moved_to_other_node(&self) -> bool {
        self.sink.ended().is_cancelled() && self.sink.moved_to_other_node()
    }

    /// The upstream is being removed: erases the record, so that its successor does not resume a session that ends.
    pub(crate) fn retire(&self) {
        let mut saved = self.lock();
        saved.is_retired = true;
        if !self.sink.moved_to_other_node() {
            self.erase(&mut saved);
        }
    }

    /// The connection closes. True when the upstream session must stay open, because another node resumes it from the
    /// saved record.
    pub(crate) fn close(&self) -> bool {
        let mut saved = self.lock();
        if self.sink.moved_to_other_node() {
            return saved.record.take().is_some();
        }
        self.erase(&mut saved);
        false
    }

    /// Erases our record, unless another node has replaced it.
    fn erase(&self, saved: &mut Saved) {
        let Some(record) = saved.record.take() else { return };
        // The records of an ended client session are removed with it.
        let is_alive = !self.sink.ended().is_cancelled();
        if is_alive && self.sink.saved_upstream_session(&self.upstream) == Some(record) {
            self.sink.save_upstream_session(&self.upstream, None);
        }
    }
}

/// Random start of request ids in a resumed session: a response to a request that the previous node sent must not match
/// one of ours. 30 bits, because some servers read ids as 32-bit integers.
fn random_request_id_base() -> Option<i64> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).ok()?;
    Some(i64::from(u32::from_le_bytes(random) >> 2) + 1)
}
