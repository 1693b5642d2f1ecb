//! What is remembered of the session that a server keeps for one of ours, so that another node can go
//! on with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::HeaderValue;

use super::target::{Address, HttpTransport};
use crate::call::ClientSink;
use crate::dialect::Revision;
use crate::dialect::to_upstream::{self, ServerHello};
use crate::protocol::Raw;

/// Where the session of one client with one server is written down.
#[derive(Debug)]
pub(crate) struct ResumableSession {
    upstream: Arc<str>,
    /// Where the server is; a session of one that is elsewhere is not gone on with.
    url: String,
    /// The only revision that may be spoken, if there is such a one.
    pinned: Option<Revision>,
    sink: Arc<dyn ClientSink>,
    page: Mutex<Saved>,
}

#[derive(Debug, Default)]
struct Saved {
    /// What is remembered, as far as it is of the session that we have.
    written: Option<Bytes>,
    /// Nothing is written any more: the upstream goes, and its sessions with it.
    over: bool,
}

/// A session to go on with.
#[derive(Debug)]
pub(crate) struct SavedSession {
    pub(crate) session: HeaderValue,
    /// What the server answered to `initialize`.
    pub(crate) result: Raw,
    pub(crate) introduction: ServerHello,
    /// After which the ids of requests begin.
    pub(crate) first_id: i64,
}

impl ResumableSession {
    /// One for a client, where the server is of a kind that can be gone on with.
    pub(crate) fn new(
        upstream: &Arc<str>,
        address: &Address,
        pinned: Option<Revision>,
        sink: &Arc<dyn ClientSink>,
    ) -> Option<Arc<Self>> {
        if address.transport == Some(HttpTransport::Sse) {
            return None;
        }
        Some(Arc::new(Self {
            upstream: Arc::clone(upstream),
            url: address.url.to_string(),
            pinned,
            sink: Arc::clone(sink),
            page: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Saved> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session to go on with, if one is remembered and can be read.
    pub(crate) fn read(&self) -> Option<SavedSession> {
        let mut page = self.lock();
        if page.over {
            return None;
        }
        let written = self.sink.remembered(&self.upstream)?;
        let entry = self.understood(&written).zip(first_id());
        let Some(((session, result, introduction), first_id)) = entry else {
            tracing::debug!(upstream = %self.upstream, "what is remembered of a session is of no use");
            return None;
        };
        page.written = Some(written);
        Some(SavedSession { session, result, introduction, first_id })
    }

    fn understood(&self, written: &Bytes) -> Option<(HeaderValue, Raw, ServerHello)> {
        let written = Raw::parse(written).ok()?;
        let text = |key: &str| written.get(key)?.text().map(|text| text.into_owned());
        let result = written.get("result")?;
        let introduction = to_upstream::read_handshake(&result).ok()?;
        let revision = Revision::parse(&text("revision")?)?;
        let same = text("url")? == self.url && revision == introduction.revision;
        let wanted = self.pinned.is_none_or(|pinned| pinned == revision);
        let session = HeaderValue::from_str(&text("session")?).ok()?;
        (same && wanted && !session.is_empty()).then_some((session, result, introduction))
    }

    /// Writes down the session that we have, with what the server answered to `initialize`.
    pub(crate) fn write(&self, current: impl FnOnce() -> Option<(HeaderValue, Raw)>) {
        let mut page = self.lock();
        // Looked at only now, so that of two who write at once the last one writes the last.
        let entry = current().and_then(|(session, result)| self.entry(&session, &result));
        if entry == page.written {
            return;
        }
        if page.over || self.sink.moved_to_other_node() {
            // Nobody will know of this one.
            page.written = None;
            return;
        }
        page.written.clone_from(&entry);
        self.sink.remember(&self.upstream, entry);
    }

    fn entry(&self, session: &HeaderValue, result: &Raw) -> Option<Bytes> {
        let revision = to_upstream::read_handshake(result).ok()?.revision;
        let empty = Raw::empty();
        let entry = empty.edit().set("url", Raw::of(self.url.as_str()));
        let entry = entry.set("session", Raw::of(session.to_str().ok()?));
        let entry = entry.set("revision", Raw::of(revision.facts().name));
        Some(entry.set("result", result.clone()).finish().bytes())
    }

    /// Whether the client is served elsewhere now.
    pub(crate) fn moved_to_other_node(&self) -> bool {
        self.sink.ended().is_cancelled() && self.sink.moved_to_other_node()
    }

    /// The upstream goes: whoever takes its place must not go on with a session that ends with it.
    pub(crate) fn retire(&self) {
        let mut page = self.lock();
        page.over = true;
        if !self.sink.moved_to_other_node() {
            self.forget(&mut page);
        }
    }

    /// Our connection ends; true when the session stays, because another node goes on with it. One
    /// that nobody else knows of does not.
    pub(crate) fn close(&self) -> bool {
        let mut page = self.lock();
        if self.sink.moved_to_other_node() {
            return page.written.take().is_some();
        }
        self.forget(&mut page);
        false
    }

    /// Takes back what was written, unless somebody else has written since.
    fn forget(&self, page: &mut Saved) {
        let Some(written) = page.written.take() else { return };
        // Of a client that is gone nothing is remembered anyway.
        let there = !self.sink.ended().is_cancelled();
        if there && self.sink.remembered(&self.upstream) == Some(written) {
            self.sink.remember(&self.upstream, None);
        }
    }
}

/// Where the ids of requests begin in a session that had some before: somewhere else every time, or
/// the answer to one that still runs could be taken for another's. Some servers read no more than
/// 32 bits.
fn first_id() -> Option<i64> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).ok()?;
    Some(i64::from(u32::from_le_bytes(random) >> 2) + 1)
}
