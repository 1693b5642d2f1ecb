//! The part of a session that is kept in a shared store: what has changed, and how far that is safe.
//!
//! Whoever changes a session marks it, and goes on. The [`Keeper`](super::Keeper) writes what is new, many
//! sessions at a time; connections are given nothing before it is kept, so nothing that a client has seen
//! is lost with the node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::time::Instant;

use super::outbox::Outbox;
use super::sse_stream::DurableUpTo;
use super::{CallGuard, Persister, Record, Session, SessionState, StreamTarget};
use crate::call::{ChangeEvent, ClientSink, ListFingerprints, Principal};
use crate::protocol::{ErrorObject, Id, Notice, Response, code};
use crate::store::traits::{SessionDelta, StoredEvent};

/// What is known of the copy of a session in the store.
#[derive(Debug)]
pub(super) struct Persistence {
    pub(super) persister: Arc<Persister>,
    /// Counts the changes of what is remembered, on from node to node.
    version: u64,
    /// The change that is kept.
    saved: u64,
    durable: DurableUpTo,
    /// The keeper knows that there is something to write.
    queued: bool,
    pub(super) takeovers: u32,
    pub(super) upstreams: BTreeMap<String, Bytes>,
    /// The resources that it was subscribed to elsewhere.
    pub(super) pending_subscriptions: Vec<String>,
    /// The lists that the client knows, or was told to look at.
    pub(super) lists: Option<ListFingerprints>,
}

/// How far a session is kept once what was taken from it is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checkpoint {
    version: u64,
    safe: DurableUpTo,
}

/// How long one who answers waits until what was changed is kept.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

impl Persistence {
    pub(super) fn new(persister: Arc<Persister>, takeovers: u32) -> Self {
        let durable = DurableUpTo { position: 0, number: 0 };
        // What the node before may have written last, or writes too late, is less.
        let before = u64::from(takeovers) << 32;
        Self {
            persister,
            version: before + 1,
            saved: before,
            durable,
            queued: false,
            takeovers,
            upstreams: BTreeMap::new(),
            pending_subscriptions: Vec::new(),
            lists: None,
        }
    }

    /// Everything that is there was read from the store.
    pub(super) fn all_kept(&mut self, position: u64, number: u32) {
        self.durable = DurableUpTo { position, number };
    }
}

impl SessionState {
    /// What connections may be given.
    pub(super) fn durable_up_to(&self) -> DurableUpTo {
        self.persistence.as_ref().map_or(DurableUpTo::ALL, |keeping| keeping.durable)
    }

    /// The answer to a request is about to be sent on its stream.
    pub(super) fn response_sent(&mut self, stream: StreamTarget, id: &Id) {
        if let (Some(keeping), Outbox::Streams(streams), StreamTarget::Call(number)) =
            (&mut self.persistence, &mut self.outbox, stream)
        {
            streams.response_sent(number, id);
            keeping.version += 1; // whoever sends it marks the session
        }
    }

    /// What it was subscribed to elsewhere does not have to be subscribed to anew.
    pub(super) fn forget_pending_subscription(&mut self, uri: &str) {
        if let Some(keeping) = &mut self.persistence {
            keeping.pending_subscriptions.retain(|other| other != uri);
        }
    }

    fn first_kept(&self) -> u64 {
        match &self.outbox {
            Outbox::Streams(streams) => streams.log().first(),
            Outbox::Single(_) => 0,
        }
    }
}

impl Session {
    /// Changes something that is kept.
    pub(super) fn change<T>(&self, act: impl FnOnce(&mut SessionState) -> T) -> T {
        let mut live = self.lock();
        let done = act(&mut live);
        self.mark(&mut live, true);
        done
    }

    /// Sends something that is kept.
    pub(super) fn append<T>(&self, live: &mut SessionState, act: impl FnOnce(&mut SessionState) -> T) -> T {
        let before = live.persistence.is_some().then(|| live.first_kept());
        let done = act(live);
        if let Some(before) = before {
            let trimmed = before != live.first_kept();
            self.mark(live, trimmed);
        }
        done
    }

    /// There is something new to keep.
    pub(super) fn mark(&self, live: &mut SessionState, record: bool) {
        let Some(keeping) = &mut live.persistence else { return };
        keeping.version += u64::from(record);
        if !std::mem::replace(&mut keeping.queued, true) {
            keeping.persister.queue(self.me.upgrade());
        }
    }

    /// The stream of a call owes answers to these requests, should this node not give them.
    pub fn expect_response(&self, stream: StreamTarget, ids: impl FnOnce() -> Vec<Id>) {
        let mut live = self.lock();
        let kept = live.persistence.is_some();
        if let (true, Outbox::Streams(streams), StreamTarget::Call(number)) = (kept, &mut live.outbox, stream) {
            streams.expect_response(number, ids());
            self.mark(&mut live, true);
        }
    }

    /// Sends the answer to a call as [`Session::deliver`] does. The call is in the books until that is on its
    /// stream, and in the same moment neither runs nor is owed: who looks in between would lose it.
    pub async fn deliver_response(&self, stream: StreamTarget, call: &CallGuard, id: &Id, message: Bytes) {
        self.cancel_server_requests(call.serial);
        let concluded = |live: &mut SessionState| {
            live.calls.retain(|running| running.serial != call.serial);
            live.response_sent(stream, id);
        };
        self.deliver_and(stream, message, concluded).await;
    }

    /// The client has seen no lists but these, or was told that there are others.
    pub(crate) fn knows_lists(&self, change: Option<&ChangeEvent>, prints: &ListFingerprints) {
        let mut live = self.lock();
        let Some(keeping) = &mut live.persistence else { return };
        let before = keeping.lists;
        let lists = keeping.lists.get_or_insert(*prints);
        for (place, _) in
            ChangeEvent::LISTS.iter().enumerate().filter(|(_, list)| change.is_none_or(|change| change == *list))
        {
            lists[place] = prints[place];
        }
        if keeping.lists != before {
            self.mark(&mut live, true);
        }
    }

    /// The client is told of lists that it alone sees, so no other node can tell whether it knows its own.
    pub(super) fn knows_own_list(&self, notice: &Notice) {
        let told = |change: &&ChangeEvent| change.notification().notice == *notice;
        if let Some(change) = ChangeEvent::LISTS.iter().find(told) {
            self.knows_lists(Some(change), &ListFingerprints::default());
        }
    }

    /// Tells the client of the lists that are others here than on the node that it was on.
    pub(crate) fn compare_lists(&self, prints: &ListFingerprints) {
        let known = self.lock().persistence.as_ref().and_then(|keeping| keeping.lists);
        for (place, change) in ChangeEvent::LISTS.iter().enumerate() {
            if known.is_none_or(|known| known[place] != prints[place]) {
                self.notify(change.notification());
                self.knows_lists(Some(change), prints);
            }
        }
    }

    /// The session as it is to be kept.
    pub(super) fn record(&self, live: &SessionState) -> Record {
        let mut record = Record::new(&self.principal, &self.group);
        if let Some(client) = self.client.get() {
            record.describe(client, live.level);
        }
        record.initialized = live.initialized;
        record.subscriptions = live.subscriptions.keys().map(ToString::to_string).collect();
        if let Some(keeping) = &live.persistence {
            record.subscriptions.extend(keeping.pending_subscriptions.iter().cloned());
            record.takeovers = keeping.takeovers;
            record.lists = keeping.lists;
            let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
            record.upstreams = keeping.upstreams.iter().map(|(name, what)| (name.clone(), text(what))).collect();
        }
        if let Outbox::Streams(streams) = &live.outbox {
            record.streams = Some(streams.record());
        }
        record
    }

    /// What is new since it was written last, or all that there is; nothing when it has ended.
    pub(super) fn delta(&self, all: bool, life: Duration) -> Option<(SessionDelta, Checkpoint)> {
        self.delta_of(&mut self.lock(), all, life)
    }

    fn delta_of(&self, live: &mut SessionState, all: bool, life: Duration) -> Option<(SessionDelta, Checkpoint)> {
        if live.closed {
            return None;
        }
        let keeping = live.persistence.as_mut()?;
        keeping.queued = false;
        let (version, saved, safe) = (keeping.version, keeping.saved, keeping.durable);
        let mut news = SessionDelta { life, version, ..SessionDelta::default() };
        let mut mark = Checkpoint { version, safe };
        if let Outbox::Streams(streams) = &live.outbox {
            let log = streams.log();
            let from = if all { 0 } else { safe.position };
            news.events = log.since(from).map(|(id, at, event)| kept(id, at, event)).collect();
            news.keep_from = log.first();
            mark.safe = DurableUpTo { position: log.position(), number: streams.last_number() };
        }
        if all || version != saved {
            news.record = Some(self.record(live).write());
        }
        Some((news, mark))
    }

    /// What is new, for the last time here: nothing begins in it any more. Nothing when it has ended, or
    /// something runs in it that must not be cut off.
    pub(super) fn freeze(&self, life: Duration, cut: bool) -> Option<(SessionDelta, Checkpoint)> {
        let mut live = self.lock();
        if !cut && !live.calls.is_empty() {
            return None;
        }
        let news = self.delta_of(&mut live, false, life)?;
        live.closed = true;
        self.moved.store(true, Ordering::Release);
        Some(news)
    }

    /// It stays after all.
    pub(super) fn unfreeze(&self) {
        let mut live = self.lock();
        live.closed = false;
        self.moved.store(false, Ordering::Release);
        if let Some(keeping) = &mut live.persistence {
            keeping.queued = false;
        }
        self.mark(&mut live, false);
    }

    /// Whether a copy of it belongs in the store.
    pub(super) fn is_persisted(&self) -> bool {
        self.lock().persistence.is_some()
    }

    /// What was taken is written.
    pub(super) fn ack(&self, mark: Checkpoint) {
        let mut live = self.lock();
        let Some(keeping) = &mut live.persistence else { return };
        keeping.saved = keeping.saved.max(mark.version);
        keeping.durable.position = keeping.durable.position.max(mark.safe.position);
        keeping.durable.number = keeping.durable.number.max(mark.safe.number);
        if let Outbox::Streams(streams) = &mut live.outbox {
            streams.wake_all();
        }
        drop(live);
        self.read.notify_waiters();
    }

    /// Something could not be written, and is to be tried again.
    pub(super) fn nack(&self) {
        self.mark(&mut self.lock(), false);
    }

    /// Waits until what was changed so far is kept; false when that takes too long.
    pub async fn flush(&self) -> bool {
        let wanted = match &self.lock().persistence {
            Some(keeping) => keeping.version,
            None => return true,
        };
        let kept = async {
            loop {
                let written = self.read.notified();
                tokio::pin!(written);
                written.as_mut().enable();
                {
                    let live = self.lock();
                    let saved = live.persistence.as_ref().map_or(u64::MAX, |keeping| keeping.saved);
                    if saved >= wanted || live.over {
                        return saved >= wanted || !self.has_moved();
                    }
                }
                written.await;
            }
        };
        tokio::time::timeout(PATIENCE, kept).await.unwrap_or(false)
    }

    /// Whether it lives on on another node.
    pub fn has_moved(&self) -> bool {
        self.moved.load(Ordering::Acquire)
    }

    /// Whether it is this caller's, and on its way to another node.
    pub fn is_moving_for(&self, principal: &Principal, group: &str) -> bool {
        self.has_moved() && self.principal == *principal && *self.group == *group
    }

    /// Lets every connection go; their clients can resume.
    pub(super) fn disconnect_readers(&self) {
        let mut live = self.lock();
        let kept = live.persistence.is_some();
        if let (true, Outbox::Streams(streams)) = (kept, &mut live.outbox) {
            streams.disconnect_readers();
        }
    }

    /// Lets every connection go, if one waits for something that cannot be kept.
    pub(super) fn disconnect_unpersisted_readers(&self) {
        let mut live = self.lock();
        let safe = live.durable_up_to();
        if let Outbox::Streams(streams) = &mut live.outbox
            && streams.log().position() > safe.position
        {
            streams.disconnect_readers();
        }
    }

    /// Ends the stream of calls that ran on another node, with an error for each that has no answer.
    pub(super) fn fail_expected(&self, stream: StreamTarget, ids: Vec<Id>) {
        for id in ids {
            let why = "Internal error: the node that ran this call is gone; whether it was carried out is not known";
            let error = ErrorObject::new(code::INTERNAL_ERROR, why);
            self.send(stream, Response::new(Some(id), Err(error)).encode());
        }
        self.finish(stream);
    }

    /// How many calls run in it.
    pub fn running(&self) -> usize {
        self.lock().calls.len()
    }

    /// The resources that it was subscribed to elsewhere, which have to be subscribed to anew.
    pub fn pending_subscriptions(&self) -> Vec<String> {
        self.lock().persistence.as_ref().map(|keeping| keeping.pending_subscriptions.clone()).unwrap_or_default()
    }

    /// One of them is.
    pub fn resubscribed(&self, uri: &str) {
        self.change(|live| live.forget_pending_subscription(uri));
    }
}

fn kept(id: crate::store::EventId, at: Instant, event: &Bytes) -> StoredEvent {
    let at = SystemTime::now().checked_sub(at.elapsed()).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    StoredEvent { id, at: at.map_or(0, |at| u64::try_from(at.as_millis()).unwrap_or(u64::MAX)), event: event.clone() }
}

/// When a kept event happened, by the clock of this process.
pub(super) fn happened(event: &StoredEvent) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_millis(event.at));
    Instant::now().checked_sub(age).unwrap_or_else(Instant::now)
}
