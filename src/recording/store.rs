//! Collected records, put together by call. The oldest calls go first when there is no more room.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

use bytes::Bytes;

use crate::recorder::{CollectedRecords, Mark, NoteKind, RecordHead, Summary, SummaryField, Way, Wire};

/// One record of a call.
#[derive(Debug, Clone)]
pub struct StoredRecord {
    /// When, by the clock of records.
    pub nanos: u64,
    /// Which wire.
    pub wire: Wire,
    /// Which way.
    pub way: Way,
    /// What it is.
    pub kind: NoteKind,
    /// The HTTP status, or 0.
    pub status: u16,
    /// Bytes that the body had.
    pub length: usize,
    /// The HTTP head.
    pub head: Bytes,
    /// What is kept of the body.
    pub body: Bytes,
}

/// Everything that is known of a call.
#[derive(Debug, Clone, Default)]
pub struct StoredCall {
    /// Its number; later calls have higher ones.
    pub number: u64,
    /// Its records in the order of time.
    pub records: Vec<StoredRecord>,
    /// What was known of the call while it ran.
    pub begun: Option<Summary>,
    /// How each of its requests ended, with when.
    pub ends: Vec<(u64, Summary)>,
    /// Whether it stays when others go.
    pub is_kept: bool,
    bytes: usize,
}

/// The calls of a node.
#[derive(Debug, Default)]
pub struct CallStore {
    calls: BTreeMap<u64, StoredCall>,
    /// Numbers of requests that belong to another call.
    joined: HashMap<u64, u64>,
    /// Calls by the hash of the request state that their client was given.
    states: HashMap<u64, u64>,
    bytes: usize,
    /// Calls up to this one were given up, and are not begun again by a late record.
    evicted_to: u64,
}

/// What changed when records were added.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoreChanges {
    /// Calls that have other rows now.
    pub changed: Vec<u64>,
    /// Calls that are no more.
    pub gone: Vec<u64>,
}

/// Bytes that a record counts for beside its own.
const RECORD_OVERHEAD: usize = 128;
/// Most calls that are kept on purpose.
const MAX_KEPT_CALLS: usize = 100;
/// Most bytes of calls that are kept on purpose.
const MAX_KEPT_BYTES: usize = 16 << 20;

impl CallStore {
    /// Adds what was collected; keeps at most `limit` bytes.
    pub fn add(&mut self, collected: &CollectedRecords, limit: usize) -> StoreChanges {
        let mut records: Vec<(RecordHead, &[u8], &[u8])> =
            collected.batches.iter().flat_map(|batch| batch.records()).collect();
        records.sort_by_key(|(head, ..)| head.nanos);
        let mut changes = StoreChanges::default();
        for (head, text, body) in records {
            self.add_record(&head, text, body, &mut changes);
        }
        while self.bytes > limit {
            let Some(oldest) = self.calls.values().find(|call| !call.is_kept).map(|call| call.number) else { break };
            self.remove(oldest);
            self.evicted_to = self.evicted_to.max(oldest);
            changes.gone.push(oldest);
        }
        self.joined.retain(|_, call| self.calls.contains_key(call));
        self.states.retain(|_, call| self.calls.contains_key(call));
        changes.changed.sort_unstable();
        changes.changed.dedup();
        changes.changed.retain(|number| self.calls.contains_key(number));
        changes
    }

    fn add_record(&mut self, head: &RecordHead, text: &[u8], body: &[u8], changes: &mut StoreChanges) {
        let own = Mark::from_record(head.mark).number();
        self.follow_state(own, head, body, changes);
        let number = self.joined.get(&own).copied().unwrap_or(own);
        let Some(kind) = NoteKind::from_tag(head.tags[2]) else { return };
        if number <= self.evicted_to && !self.calls.contains_key(&number) {
            return;
        }
        if kind == NoteKind::Joins {
            let call = text.try_into().map(u64::from_le_bytes).map(|mark| Mark::from_record(mark).number());
            return self.join(own, call.unwrap_or(own), changes);
        }
        let call = self.calls.entry(number).or_insert_with(|| StoredCall { number, ..StoredCall::default() });
        let bytes = RECORD_OVERHEAD + text.len() + body.len();
        call.bytes += bytes;
        self.bytes += bytes;
        changes.changed.push(number);
        match kind {
            NoteKind::End => call.ends.push((head.nanos, Summary::decode(text))),
            // The pool says only that the connection is there.
            NoteKind::Opened if !text.is_empty() => call.begun = Some(Summary::decode(text)),
            _ => {}
        }
        call.records.push(StoredRecord {
            nanos: head.nanos,
            wire: Wire::from_tag(head.tags[0]),
            way: Way::from_tag(head.tags[1]),
            kind,
            status: head.status,
            length: head.length as usize,
            head: if kind == NoteKind::End || kind == NoteKind::Opened { Bytes::new() } else { text.to_vec().into() },
            body: body.to_vec().into(),
        });
        // Records of different rings are read one after another.
        if let [.., before, last] = &call.records[..]
            && before.nanos > last.nanos
        {
            call.records.sort_by_key(|record| record.nanos);
        }
    }

    /// Notes the request state that a client is given, and joins the request that brings it back to its call: the server
    /// keeps such a call, so nothing else tells that it is one.
    fn follow_state(&mut self, own: u64, head: &RecordHead, body: &[u8], changes: &mut StoreChanges) {
        let is_message = NoteKind::from_tag(head.tags[2]) == Some(NoteKind::Message);
        if !is_message || Wire::from_tag(head.tags[0]) != Wire::Client {
            return;
        }
        let way = Way::from_tag(head.tags[1]);
        let Some(state) = request_state(way, body) else { return };
        match (way, self.states.get(&state).copied()) {
            (Way::In, Some(call)) => self.join(own, call, changes),
            (Way::In, None) => {}
            (Way::Out, _) => {
                let call = self.joined.get(&own).copied().unwrap_or(own);
                self.states.insert(state, call);
            }
        }
    }

    /// Moves what belongs to a request to the call that it is a part of.
    fn join(&mut self, own: u64, call: u64, changes: &mut StoreChanges) {
        let call = self.joined.get(&call).copied().unwrap_or(call);
        if own == call || !self.calls.contains_key(&call) {
            return;
        }
        self.joined.insert(own, call);
        let Some(moved) = self.calls.remove(&own) else { return };
        if let Some(target) = self.calls.get_mut(&call) {
            target.records.extend(moved.records);
            target.records.sort_by_key(|record| record.nanos);
            target.ends.extend(moved.ends);
            target.ends.sort_by_key(|(nanos, _)| *nanos);
            target.bytes += moved.bytes;
            changes.changed.push(call);
            changes.gone.push(own);
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(call) = self.calls.remove(&number) {
            self.bytes -= call.bytes;
        }
    }

    /// A call.
    pub fn get(&self, number: u64) -> Option<&StoredCall> {
        self.calls.get(&number)
    }

    /// The number of the call that a request belongs to.
    pub fn call_of(&self, number: u64) -> Option<u64> {
        let call = self.joined.get(&number).copied().unwrap_or(number);
        self.calls.contains_key(&call).then_some(call)
    }

    /// Calls, newest first, below a number.
    pub fn newest_below(&self, number: u64) -> impl Iterator<Item = &StoredCall> {
        self.calls.range(..number).rev().map(|(_, call)| call)
    }

    /// The oldest call that nobody keeps on purpose.
    pub fn oldest(&self) -> Option<&StoredCall> {
        self.calls.values().find(|call| !call.is_kept)
    }

    /// Whether there is room to keep a call on purpose, and keeps it.
    pub fn keep(&mut self, number: u64) -> Result<(), KeepError> {
        let kept = self.calls.values().filter(|call| call.is_kept && call.number != number);
        let (count, bytes) = kept.fold((0, 0), |(count, bytes), call| (count + 1, bytes + call.bytes));
        let call = self.calls.get_mut(&number).ok_or(KeepError::Gone)?;
        if count >= MAX_KEPT_CALLS || bytes + call.bytes > MAX_KEPT_BYTES {
            return Err(KeepError::Full);
        }
        call.is_kept = true;
        Ok(())
    }

    /// Lets a call go when its time comes; false if there is none.
    pub fn release(&mut self, number: u64) -> bool {
        self.calls.get_mut(&number).map(|call| call.is_kept = false).is_some()
    }

    /// Frees everything but what is kept on purpose.
    pub fn clear(&mut self) {
        self.evicted_to = self.calls.keys().next_back().copied().unwrap_or(0).max(self.evicted_to);
        self.calls.retain(|_, call| call.is_kept);
        self.bytes = self.calls.values().map(|call| call.bytes).sum();
        self.joined.clear();
        self.states.clear();
    }

    /// Calls that are kept on purpose.
    pub fn kept_count(&self) -> usize {
        self.calls.values().filter(|call| call.is_kept).count()
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The hash of the request state in a message of the client's wire.
fn request_state(way: Way, body: &[u8]) -> Option<u64> {
    const KEY: &[u8] = b"\"requestState\"";
    if !body.windows(KEY.len()).any(|part| part == KEY) {
        return None;
    }
    let message: serde_json::Value = serde_json::from_slice(body).ok()?;
    let part = if way == Way::In { "params" } else { "result" };
    let state = message.get(part)?.get("requestState")?.as_str()?;
    Some(foldhash::fast::FixedState::default().hash_one(state))
}

/// Why a call is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepError {
    /// There is none.
    Gone,
    /// As many are kept as may be.
    Full,
}

impl StoredCall {
    /// Ends of the call's own requests. What a client answers meanwhile is a request with an end of its own, which comes first.
    fn own_ends(&self) -> impl DoubleEndedIterator<Item = &(u64, Summary)> {
        let is_answer = |end: &Summary| end.get(SummaryField::Method) == Some("response");
        let is_nothing_else = self.begun.is_none() && self.ends.iter().all(|(_, end)| is_answer(end));
        self.ends.iter().filter(move |(_, end)| is_nothing_else || !is_answer(end))
    }

    /// A field of the call: as it was at its end, or as it is known so far.
    pub fn field(&self, field: SummaryField) -> Option<&str> {
        let ended = self.own_ends().find_map(|(_, end)| end.get(field));
        ended.or_else(|| self.begun.as_ref().and_then(|begun| begun.get(field)))
    }

    /// The end of the request that the call ended with: the last one of its own method.
    pub fn last_end(&self) -> Option<&(u64, Summary)> {
        let method = self.own_ends().next().and_then(|(_, end)| end.get(SummaryField::Method));
        self.own_ends().rev().find(|(_, end)| end.get(SummaryField::Method) == method)
    }

    /// When it began, by the clock of records.
    pub fn started(&self) -> u64 {
        self.records.first().map_or(0, |record| record.nanos)
    }
}
