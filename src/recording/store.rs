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
    /// Records that came when there was no more room for calls that are kept on purpose.
    pub omitted: u64,
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
    /// Bytes of calls that go when there is no more room.
    bytes: usize,
    /// Bytes of calls that are kept on purpose, which have room of their own.
    kept_bytes: usize,
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
/// Most ends of requests that are noted of a call that has no more room.
const MAX_ENDS: usize = 64;

impl CallStore {
    /// Adds what was collected; keeps at most `limit` bytes beside calls that are kept on purpose.
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
        changes.changed.push(number);
        if call.is_kept && self.kept_bytes + bytes > MAX_KEPT_BYTES {
            call.omit(kind, (head.nanos, text));
            return;
        }
        call.bytes += bytes;
        *(if call.is_kept { &mut self.kept_bytes } else { &mut self.bytes }) += bytes;
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
        let Some(mut moved) = self.remove(own) else { return };
        if let Some(target) = self.calls.get_mut(&call) {
            if target.is_kept && self.kept_bytes + moved.bytes > MAX_KEPT_BYTES {
                moved.bytes = 0;
                target.omitted += moved.records.drain(..).len() as u64;
            }
            target.records.extend(moved.records);
            target.records.sort_by_key(|record| record.nanos);
            target.ends.extend(moved.ends);
            target.ends.sort_by_key(|(nanos, _)| *nanos);
            target.omitted += moved.omitted;
            target.bytes += moved.bytes;
            *(if target.is_kept { &mut self.kept_bytes } else { &mut self.bytes }) += moved.bytes;
            changes.changed.push(call);
            changes.gone.push(own);
        }
        if moved.is_kept {
            // The whole call, where there is room for it.
            let _ = self.keep(call);
        }
    }

    fn remove(&mut self, number: u64) -> Option<StoredCall> {
        let call = self.calls.remove(&number)?;
        *(if call.is_kept { &mut self.kept_bytes } else { &mut self.bytes }) -= call.bytes;
        Some(call)
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

    /// Keeps a call on purpose, if there is room.
    ///
    /// # Errors
    /// When it is no more, or as many are kept as may be.
    pub fn keep(&mut self, number: u64) -> Result<(), KeepError> {
        let count = self.kept_count();
        let call = self.calls.get_mut(&number).ok_or(KeepError::Gone)?;
        if call.is_kept {
            return Ok(());
        }
        if count >= MAX_KEPT_CALLS || self.kept_bytes + call.bytes > MAX_KEPT_BYTES {
            return Err(KeepError::Full);
        }
        call.is_kept = true;
        self.bytes -= call.bytes;
        self.kept_bytes += call.bytes;
        Ok(())
    }

    /// Lets a call go when its time comes; false if there is none.
    pub fn release(&mut self, number: u64) -> bool {
        let Some(call) = self.calls.get_mut(&number) else { return false };
        if std::mem::take(&mut call.is_kept) {
            self.kept_bytes -= call.bytes;
            self.bytes += call.bytes;
        }
        true
    }

    /// Frees everything but what is kept on purpose.
    pub fn clear(&mut self) {
        self.evicted_to = self.calls.keys().next_back().copied().unwrap_or(0).max(self.evicted_to);
        self.calls.retain(|_, call| call.is_kept);
        self.bytes = 0;
        self.joined.clear();
        self.states.clear();
    }

    /// Calls that are kept on purpose.
    pub fn kept_count(&self) -> usize {
        self.calls.values().filter(|call| call.is_kept).count()
    }

    /// Bytes in use, also by calls that are kept on purpose.
    pub fn bytes(&self) -> usize {
        self.bytes + self.kept_bytes
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
    /// Counts a record that is not kept, and notes of it only that the call has ended, so that its row is right.
    fn omit(&mut self, kind: NoteKind, (nanos, summary): (u64, &[u8])) {
        self.omitted += 1;
        if kind == NoteKind::End {
            self.ends.truncate(MAX_ENDS - 1);
            self.ends.push((nanos, Summary::decode(summary)));
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{RecordBatch, Ring, SummaryWriter};

    /// What a reader collects of these records: the number of the call, the kind, and the body.
    fn collected(records: &[(u64, NoteKind, &[u8])]) -> CollectedRecords {
        let mut ring = Ring::new(64 << 20);
        let mut summary = SummaryWriter::new();
        summary.text(SummaryField::Outcome, "ok");
        for (at, (mark, kind, body)) in records.iter().enumerate() {
            let text = if *kind == NoteKind::End { summary.bytes() } else { b"" };
            let length = u32::try_from(body.len()).unwrap();
            let head = RecordHead {
                mark: *mark,
                nanos: at as u64 + 1,
                length,
                kept: length,
                head_length: u16::try_from(text.len()).unwrap(),
                status: 0,
                tags: [Wire::Client as u8, Way::Out as u8, *kind as u8],
            };
            ring.write(&head, &[text, body]);
        }
        let part = ring.read(0, 64 << 20, u64::MAX);
        CollectedRecords { batches: vec![RecordBatch::new(part.bytes)], lost: 0 }
    }

    fn numbers(store: &CallStore) -> Vec<u64> {
        store.calls.keys().copied().collect()
    }

    #[test]
    fn kept_calls_take_no_room_of_others() {
        const LIMIT: usize = 1 << 20;
        let (mut store, body) = (CallStore::default(), vec![b'x'; 100 << 10]);
        for number in 1..=5 {
            store.add(&collected(&[(number, NoteKind::Message, &body), (number, NoteKind::End, b"")]), LIMIT);
            store.keep(number).unwrap();
        }
        // They grow beyond the limit of the others, which stay all the same.
        for _ in 0..5 {
            store.add(&collected(&[1, 2, 3, 4, 5].map(|number| (number, NoteKind::Message, &body[..]))), LIMIT);
        }
        for number in 6..=10 {
            store.add(&collected(&[(number, NoteKind::Message, &body)]), LIMIT);
        }
        assert_eq!(numbers(&store), (1..=10).collect::<Vec<_>>());
        assert!(store.kept_bytes > 2 * LIMIT && store.bytes < LIMIT, "{} {}", store.kept_bytes, store.bytes);
        assert_eq!(store.bytes(), store.calls.values().map(|call| call.bytes).sum::<usize>());
        for number in 1..=5 {
            assert!(store.release(number) && store.release(number));
        }
        assert_eq!(store.kept_bytes, 0);
        let changes = store.add(&collected(&[(11, NoteKind::Message, &body)]), LIMIT);
        assert_eq!(changes.gone[..4], [1, 2, 3, 4], "calls that were let go are the first to go");
        assert!(store.bytes <= LIMIT);
    }

    #[test]
    fn a_kept_call_that_grows_has_an_end_and_counts_what_it_omits() {
        let (mut store, body) = (CallStore::default(), vec![b'x'; 1 << 20]);
        store.add(&collected(&[(1, NoteKind::Message, &body)]), 32 << 20);
        store.keep(1).unwrap();
        for _ in 0..20 {
            store.add(&collected(&[(1, NoteKind::Message, &body)]), 32 << 20);
        }
        assert!(store.kept_bytes <= MAX_KEPT_BYTES, "{}", store.kept_bytes);
        store.add(&collected(&[(2, NoteKind::Message, &body)]), 32 << 20);
        assert_eq!(store.keep(2), Err(KeepError::Full));
        let rest = vec![b'x'; MAX_KEPT_BYTES - store.kept_bytes - RECORD_OVERHEAD];
        let last: [(u64, NoteKind, &[u8]); 3] =
            [(1, NoteKind::Message, &body), (1, NoteKind::Message, &rest), (1, NoteKind::End, b"")];
        let changes = store.add(&collected(&last), 32 << 20);
        assert_eq!((changes.changed, store.kept_bytes), (vec![1], MAX_KEPT_BYTES));
        let call = store.get(1).unwrap();
        assert_eq!((call.records.len(), call.omitted), (16, 8), "no record is uncounted");
        assert_eq!(call.field(SummaryField::Outcome), Some("ok"), "its row says how it ended");
        store.clear();
        assert_eq!((numbers(&store), store.bytes), (vec![1], 0));
    }

    #[test]
    fn a_request_that_joins_a_kept_call_is_kept_with_it() {
        let (mut store, body) = (CallStore::default(), [b'x'; 1000]);
        store.add(&collected(&[(1, NoteKind::Message, &body), (2, NoteKind::Message, &body)]), 1 << 20);
        store.keep(2).unwrap();
        let mut changes = StoreChanges::default();
        store.join(2, 1, &mut changes);
        assert_eq!((numbers(&store), store.kept_count(), store.bytes), (vec![1], 1, 0));
        assert_eq!(store.kept_bytes, store.get(1).unwrap().bytes);
        assert_eq!((changes.changed, changes.gone), (vec![1], vec![2]));
    }
}
