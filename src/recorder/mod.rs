//! Records what passes through the gateway, while somebody watches.
//!
//! A request gets a [`Mark`] when it is let in; without a watcher that is [`Mark::NONE`], and every further place that
//! could note something asks for nothing else. Notes go into a ring of bytes of the worker thread, without a lock, or
//! into one shared ring where there is none. A [reader](reader::Reader) collects them from time to time.

mod clock;
mod pieces;
mod reader;
mod ring;
mod summary;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::{Mutex, RwLock};

pub use clock::{Clock, nanos};
pub use pieces::PieceNotes;
pub use reader::{CollectedRecords, Reader, RecordBatch};
pub use ring::{RECORD_HEAD, RecordHead, Ring, RingPart};
pub use summary::{Summary, SummaryField, SummaryWriter};

/// The number of a call that is recorded, or none.
///
/// Bits 48 to 61 are the recorder, of which a process can have several; the lower ones count its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Mark(u64);

/// Which wire a note is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Between the client and Rialto.
    Client,
    /// Between Rialto and the server.
    Server,
}

/// Which way a message went, seen from Rialto.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To Rialto.
    In,
    /// From Rialto.
    Out,
}

/// What a note has in its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoteKind {
    /// A message, or a batch of messages.
    Message,
    /// The next bytes of a message that passes in pieces, of the same wire and way.
    Piece,
    /// The head of an HTTP response whose messages follow by themselves.
    Head,
    /// Rialto begins to open a connection to the server.
    Opening,
    /// A connection is there; the body says which.
    Opened,
    /// What belongs to this mark belongs to the call whose mark is the body.
    Joins,
    /// The call has ended; the body is its summary.
    End,
    /// The last message of the same wire and way was not sent after all.
    Unsent,
    /// The last bytes of the message that passed in pieces, which were counted with those.
    Tail,
}

/// One thing that happened to a call.
#[derive(Debug, Clone, Copy)]
pub struct Note<'n> {
    /// Which wire.
    pub wire: Wire,
    /// Which way.
    pub way: Way,
    /// What it is.
    pub kind: NoteKind,
    /// The HTTP status; 0 where there is none.
    pub status: u16,
    /// The HTTP head.
    pub head: &'n [u8],
    /// The message.
    pub body: &'n [u8],
}

/// Decides which calls get a mark, and has the rings of one gateway.
#[derive(Debug)]
pub struct Recorder {
    number: u64,
    /// What is recorded now; see [`Detail`].
    detail: AtomicU32,
    /// Calls a second and worker that all get a mark.
    rate: AtomicU32,
    body_limit: AtomicU32,
    calls: AtomicU64,
    /// Calls that got no mark since somebody asked.
    unmarked: AtomicU64,
    shared: Arc<SharedRing>,
}

/// How much is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    Off = 0,
    /// Everything but the bytes of messages.
    Heads = 1,
    /// Everything.
    Bodies = 2,
}

/// A mark, and how many calls it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sampled {
    /// The mark.
    pub mark: Mark,
    /// One of how many calls got a mark when this one did.
    pub one_of: u16,
}

/// The ring for what runs beside the workers.
#[derive(Debug, Default)]
struct SharedRing {
    ring: Mutex<Option<Ring>>,
    body_limit: AtomicU32,
}

/// The ring of a worker.
#[derive(Debug)]
struct WorkerRing {
    recorder: u64,
    body_limit: u32,
    ring: Ring,
}

/// How many calls this thread marked in the current second.
#[derive(Debug, Clone, Copy, Default)]
struct SampleState {
    second: u64,
    seen: u32,
    /// Calls of the second before.
    last: u32,
    /// Calls since the last one that got a mark.
    unmarked: u32,
}

const RECORDER_SHIFT: u32 = 48;
const MAX_RECORDERS: u64 = 1 << 14;
/// The call leaves a summary if it fails, and nothing else.
const SUMMARY_ONLY: u64 = 1 << 62;
/// The bytes of messages are not kept.
const HEADS_ONLY: u64 = 1 << 63;
/// Most bytes of an HTTP head that are kept.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Longest period of sampling.
const MAX_ONE_OF: u32 = 1 << 12;

/// The shared rings of all recorders of this process, by their number.
static SHARED_RINGS: LazyLock<RwLock<Vec<Weak<SharedRing>>>> = LazyLock::new(RwLock::default);

thread_local! {
    static WORKER_RING: RefCell<Option<Box<WorkerRing>>> = const { RefCell::new(None) };
    static SAMPLE: Cell<SampleState> = const { Cell::new(SampleState { second: 0, seen: 0, last: 0, unmarked: 0 }) };
}

impl Mark {
    /// Nothing is recorded.
    pub const NONE: Self = Self(0);

    /// Whether notes are taken.
    #[inline]
    pub fn is_recorded(self) -> bool {
        self.0 != 0 && self.0 & SUMMARY_ONLY == 0
    }

    /// Whether the summary of the call is kept even if it ends well.
    pub fn keeps_success(self) -> bool {
        self.is_recorded()
    }

    /// Whether anything of the call may be kept.
    pub fn is_some(self) -> bool {
        self.0 != 0
    }

    /// The same call, without the bytes of messages.
    #[must_use]
    pub fn without_bodies(self) -> Self {
        Self(if self.is_some() { self.0 | HEADS_ONLY } else { 0 })
    }

    /// The mark as it is in records.
    pub fn get(self) -> u64 {
        self.0
    }

    /// A mark as it is in records.
    pub fn from_record(mark: u64) -> Self {
        Self(mark)
    }

    /// The number of the call among those of its recorder.
    pub fn number(self) -> u64 {
        self.0 & ((1 << RECORDER_SHIFT) - 1)
    }

    fn recorder(self) -> u64 {
        (self.0 >> RECORDER_SHIFT) & (MAX_RECORDERS - 1)
    }
}

/// Takes a note of a call, if it is recorded. Never blocks for more than a copy.
#[inline]
pub fn note(mark: Mark, note: &Note<'_>) {
    if mark.is_recorded() {
        write_note(mark, note);
    }
}

/// Takes a note of a message that the client is sent.
#[inline]
pub fn note_sent(mark: Mark, message: &[u8]) {
    let (wire, way, kind) = (Wire::Client, Way::Out, NoteKind::Message);
    note(mark, &Note { wire, way, kind, status: 0, head: b"", body: message });
}

/// Takes a note of the end of a call, also of one that leaves nothing else.
pub fn note_end(mark: Mark, summary: &[u8]) {
    if mark.is_some() {
        let (wire, way, kind) = (Wire::Client, Way::Out, NoteKind::End);
        write_note(mark, &Note { wire, way, kind, status: 0, head: summary, body: b"" });
    }
}

/// Notes that opening a connection to the server begins or ends.
pub fn note_connecting(mark: Mark, kind: NoteKind) {
    note(mark, &Note { wire: Wire::Server, way: Way::Out, kind, status: 0, head: b"", body: b"" });
}

/// Notes that the last message to the server was not sent after all.
pub fn note_unsent(mark: Mark) {
    let (wire, way, kind) = (Wire::Server, Way::Out, NoteKind::Unsent);
    note(mark, &Note { wire, way, kind, status: 0, head: b"", body: b"" });
}

/// Notes that what belongs to `mark` belongs to the call of `call`.
pub fn note_joins(mark: Mark, call: Mark) {
    if mark != call && call.is_recorded() {
        let (wire, way, kind) = (Wire::Client, Way::In, NoteKind::Joins);
        note(mark, &Note { wire, way, kind, status: 0, head: &call.0.to_le_bytes(), body: b"" });
    }
}

#[cold]
fn write_note(mark: Mark, note: &Note<'_>) {
    with_ring(mark, |ring, body_limit| put(ring, body_limit, mark, note));
}

/// Runs on the ring that notes of this call go to from here, with how much of a message is kept in it.
fn with_ring<T>(mark: Mark, run: impl FnOnce(&mut Ring, usize) -> T) -> Option<T> {
    let limit_of = |ring: &Ring, body_limit: u32| match mark.0 & HEADS_ONLY {
        0 => ring.body_limit().min(body_limit as usize),
        _ => 0,
    };
    let mut run = Some(run);
    let done = WORKER_RING.with(|own| {
        let mut own = own.borrow_mut();
        let own = own.as_mut().filter(|own| own.recorder == mark.recorder())?;
        let limit = limit_of(&own.ring, own.body_limit);
        run.take().map(|run| run(&mut own.ring, limit))
    });
    if done.is_some() {
        return done;
    }
    let shared = SHARED_RINGS.read().get(usize::try_from(mark.recorder()).unwrap_or(0)).and_then(Weak::upgrade)?;
    let mut ring = shared.ring.lock();
    let ring = ring.as_mut()?;
    let limit = limit_of(ring, shared.body_limit.load(Ordering::Relaxed));
    run.take().map(|run| run(ring, limit))
}

/// Copies a note into a ring; of a long body the first three quarters and the last quarter of what is kept.
fn put(ring: &mut Ring, limit: usize, mark: Mark, note: &Note<'_>) {
    let (first, last) = if note.body.len() <= limit {
        (note.body, &b""[..])
    } else {
        let tail = tail_of(limit);
        (&note.body[..limit - tail], &note.body[note.body.len() - tail..])
    };
    put_parts(ring, mark, note, [first, last]);
}

/// How many of the bytes that are kept of a long message are its last ones.
pub fn tail_of(limit: usize) -> usize {
    limit / 4
}

/// Copies a note into a ring, and these parts of its body.
fn put_parts(ring: &mut Ring, mark: Mark, note: &Note<'_>, [first, last]: [&[u8]; 2]) {
    let head = &note.head[..note.head.len().min(MAX_HEAD_BYTES).min(ring.body_limit())];
    let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let record = RecordHead {
        mark: mark.0,
        nanos: nanos(),
        length: count(note.body.len()),
        kept: count(first.len() + last.len()),
        head_length: u16::try_from(head.len()).unwrap_or(0),
        status: note.status,
        tags: [note.wire as u8, note.way as u8, note.kind as u8],
    };
    ring.write(&record, &[head, first, last]);
}

/// The second of the clock of records.
fn second_now() -> u64 {
    nanos() / 1_000_000_000
}

impl SampleState {
    /// One of how many calls gets a mark: all up to the rate, of more as many as it. Where more come than in the second
    /// before, ever fewer do, so that a burst gets no more than twice the rate.
    fn one_of(self, rate: u32) -> u32 {
        let expected = self.last.max(rate);
        let beyond = self.seen.div_ceil(expected).min(MAX_ONE_OF);
        let one_of = expected.div_ceil(rate).saturating_mul(beyond * beyond).min(MAX_ONE_OF);
        one_of.next_power_of_two()
    }
}

impl Recorder {
    /// A recorder that is off.
    pub fn new() -> Arc<Self> {
        let shared = Arc::<SharedRing>::default();
        let mut rings = SHARED_RINGS.write();
        // Numbers of recorders that are gone are used again, so that a process may have many one after another.
        let free = rings.iter().position(|ring| ring.strong_count() == 0);
        let number = match free {
            Some(free) => {
                rings[free] = Arc::downgrade(&shared);
                free
            }
            None => {
                rings.push(Arc::downgrade(&shared));
                rings.len() - 1
            }
        };
        drop(rings);
        Arc::new(Self {
            number: (number as u64).min(MAX_RECORDERS - 1),
            detail: AtomicU32::new(Detail::Off as u32),
            rate: AtomicU32::new(u32::MAX),
            body_limit: AtomicU32::new(u32::MAX),
            calls: AtomicU64::new(0),
            unmarked: AtomicU64::new(0),
            shared,
        })
    }

    /// Whether anything is recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.detail.load(Ordering::Relaxed) != Detail::Off as u32
    }

    /// Records as much as this from now on.
    pub fn set_detail(&self, detail: Detail) {
        self.detail.store(detail as u32, Ordering::Relaxed);
    }

    /// Gives all of this many calls a second and worker a mark, and a part of further ones.
    pub fn set_rate(&self, rate: u32) {
        self.rate.store(rate.max(1), Ordering::Relaxed);
    }

    /// The calls a second and worker that all get a mark.
    pub fn rate(&self) -> u32 {
        self.rate.load(Ordering::Relaxed)
    }

    /// How many calls got no mark since this was asked last, because more came than all get one.
    pub fn take_unmarked(&self) -> u64 {
        self.unmarked.swap(0, Ordering::Relaxed)
    }

    /// A mark for a request that is let in.
    #[inline]
    pub fn begin(&self) -> Sampled {
        match self.detail.load(Ordering::Relaxed) {
            0 => Sampled::default(),
            detail => self.begin_recorded(detail),
        }
    }

    #[cold]
    fn begin_recorded(&self, detail: u32) -> Sampled {
        let (one_of, is_chosen) = self.sample(second_now());
        // From 1, so that no mark is 0.
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let mut mark = (self.number << RECORDER_SHIFT) | (number & ((1 << RECORDER_SHIFT) - 1));
        if detail == Detail::Heads as u32 {
            mark |= HEADS_ONLY;
        }
        if !is_chosen {
            mark |= SUMMARY_ONLY;
        }
        Sampled { mark: Mark(mark), one_of }
    }

    /// One of how many calls gets a mark in this second, and whether this one does.
    fn sample(&self, second: u64) -> (u16, bool) {
        self.count_unmarked(second);
        let mut state = SAMPLE.get();
        if state.second != second {
            let last = if state.second + 1 == second { state.seen } else { 0 };
            state = SampleState { second, seen: 0, last, unmarked: 0 };
        }
        state.seen += 1;
        state.unmarked += 1;
        let one_of = state.one_of(self.rate());
        let is_chosen = state.seen.is_multiple_of(one_of);
        if is_chosen {
            // Counted with the one that was chosen, because all workers share the counter.
            self.add_unmarked(state.unmarked - 1);
            state.unmarked = 0;
        }
        SAMPLE.set(state);
        (u16::try_from(one_of).unwrap_or(u16::MAX), is_chosen)
    }

    /// Counts the calls of this thread that came after the last mark of a second that is over.
    fn count_unmarked(&self, second: u64) {
        let mut state = SAMPLE.get();
        if state.second != second && state.unmarked > 0 {
            self.add_unmarked(state.unmarked);
            state.unmarked = 0;
            SAMPLE.set(state);
        }
    }

    fn add_unmarked(&self, count: u32) {
        if count > 0 {
            self.unmarked.fetch_add(u64::from(count), Ordering::Relaxed);
        }
    }

    /// Makes the shared ring, and sets how much of one message is kept.
    fn open(&self, shared_bytes: usize, body_limit: u32) {
        self.body_limit.store(body_limit, Ordering::Relaxed);
        self.shared.body_limit.store(body_limit, Ordering::Relaxed);
        self.shared.ring.lock().get_or_insert_with(|| Ring::new(shared_bytes));
    }

    fn free_shared(&self) {
        *self.shared.ring.lock() = None;
    }

    fn read_shared(&self, offset: u64, limit: usize, until: u64) -> Option<RingPart> {
        self.shared.ring.lock().as_mut().map(|ring| ring.read(offset, limit, until))
    }

    /// Gives this thread, which has to be a worker of the gateway, a ring of its own.
    fn open_here(&self, bytes: usize) {
        WORKER_RING.with(|own| {
            let mut own = own.borrow_mut();
            if own.as_ref().is_none_or(|own| own.recorder != self.number) {
                let body_limit = self.body_limit.load(Ordering::Relaxed);
                *own = Some(Box::new(WorkerRing { recorder: self.number, body_limit, ring: Ring::new(bytes) }));
            }
        });
    }

    fn read_here(&self, offset: u64, limit: usize, until: u64) -> Option<RingPart> {
        // Nobody else would count them until the next call, which may never come.
        self.count_unmarked(second_now());
        WORKER_RING.with(|own| {
            let mut own = own.borrow_mut();
            let own = own.as_mut().filter(|own| own.recorder == self.number);
            own.map(|own| own.ring.read(offset, limit, until))
        })
    }

    fn free_here(&self) {
        WORKER_RING.with(|own| {
            let mut own = own.borrow_mut();
            if own.as_ref().is_some_and(|own| own.recorder == self.number) {
                *own = None;
            }
        });
    }
}

impl Wire {
    /// The wire of a record.
    pub fn from_tag(tag: u8) -> Self {
        if tag == Self::Client as u8 { Self::Client } else { Self::Server }
    }
}

impl Way {
    /// The way of a record.
    pub fn from_tag(tag: u8) -> Self {
        if tag == Self::In as u8 { Self::In } else { Self::Out }
    }
}

impl NoteKind {
    const ALL: [Self; 9] = [
        Self::Message,
        Self::Piece,
        Self::Head,
        Self::Opening,
        Self::Opened,
        Self::Joins,
        Self::End,
        Self::Unsent,
        Self::Tail,
    ];

    /// The kind of a record.
    pub fn from_tag(tag: u8) -> Option<Self> {
        Self::ALL.get(usize::from(tag)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: Note<'_> =
        Note { wire: Wire::Client, way: Way::In, kind: NoteKind::Message, status: 0, head: b"POST /", body: b"{}" };

    fn read_shared(recorder: &Recorder) -> RingPart {
        recorder.read_shared(0, 100_000, u64::MAX).unwrap_or_default()
    }

    fn read_here(recorder: &Recorder) -> RingPart {
        recorder.read_here(0, 100_000, u64::MAX).unwrap_or_default()
    }

    fn bodies(part: &RingPart) -> Vec<(u64, Vec<u8>, u32)> {
        let (mut found, mut rest) = (Vec::new(), &part.bytes[..]);
        while let Some(head) = RecordHead::decode(rest) {
            let (record, after) = rest.split_at(head.record_length());
            let body = record[RECORD_HEAD + usize::from(head.head_length)..].to_vec();
            found.push((head.mark, body, head.length));
            rest = after;
        }
        found
    }

    #[test]
    fn nothing_is_noted_without_a_watcher() {
        let recorder = Recorder::new();
        assert_eq!(recorder.begin(), Sampled::default());
        assert!(!Mark::NONE.is_recorded() && !Mark::NONE.is_some());
        recorder.open(1000, 100);
        note(Mark::NONE, &MESSAGE);
        note_end(Mark::NONE, b"");
        assert_eq!(read_shared(&recorder).bytes, b"");
    }

    #[test]
    fn notes_go_to_the_ring_of_the_worker_or_to_the_shared_one() {
        let recorder = Recorder::new();
        recorder.open(1000, 100);
        recorder.set_detail(Detail::Bodies);
        let mark = recorder.begin().mark;
        note(mark, &MESSAGE);
        assert_eq!(bodies(&read_shared(&recorder)), [(mark.get(), b"{}".to_vec(), 2)]);
        recorder.open_here(1000);
        note(mark, &MESSAGE);
        assert_eq!(bodies(&read_here(&recorder)).len(), 1);
        assert_eq!(bodies(&read_shared(&recorder)).len(), 1);
        let other = Recorder::new();
        other.open(1000, 100);
        other.set_detail(Detail::Bodies);
        note(other.begin().mark, &MESSAGE);
        assert_eq!(bodies(&read_here(&recorder)).len(), 1, "another gateway in the process has its own");
        assert_eq!(bodies(&read_shared(&other)).len(), 1);
        recorder.free_here();
        recorder.free_shared();
        assert_eq!(read_here(&recorder), RingPart::default());
        assert_eq!(read_shared(&recorder), RingPart::default());
    }

    #[test]
    fn long_bodies_are_cut_in_the_middle_and_left_out_without_bodies() {
        let recorder = Recorder::new();
        recorder.open(10_000, 100);
        recorder.set_detail(Detail::Bodies);
        let body: Vec<u8> = (0..=255).collect();
        note(recorder.begin().mark, &Note { body: &body, ..MESSAGE });
        recorder.set_detail(Detail::Heads);
        note(recorder.begin().mark, &Note { body: &body, ..MESSAGE });
        let found = bodies(&read_shared(&recorder));
        assert_eq!((&found[0].1[..75], &found[0].1[75..], found[0].2), (&body[..75], &body[231..], 256));
        assert_eq!((found[1].1.len(), found[1].2), (0, 256));
    }

    #[test]
    fn a_message_takes_a_quarter_of_its_ring_at_most() {
        let recorder = Recorder::new();
        recorder.open(4000, 64 << 10);
        recorder.set_detail(Detail::Bodies);
        let (head, body) = ([b'h'; 30_000], [b'b'; 60_000]);
        note(recorder.begin().mark, &Note { head: &head, body: &body, ..MESSAGE });
        let part = read_shared(&recorder);
        assert_eq!(part.lost, 0);
        let [(_, kept, length)] = &bodies(&part)[..] else { panic!("the message is there") };
        assert_eq!((kept.len(), *length), (1000, 60_000));
    }

    #[test]
    fn all_calls_up_to_the_rate_get_a_mark_and_bursts_at_most_twice_as_many() {
        let marked = |last: u32, calls: u32| {
            let state = |seen| SampleState { second: 1, seen, last, unmarked: 0 };
            (1..=calls).filter(|seen| seen.is_multiple_of(state(*seen).one_of(500))).count()
        };
        assert_eq!((marked(0, 500), marked(400, 500)), (500, 500));
        for calls in [1_000, 5_000, 50_000, 500_000] {
            assert!((500..=1_000).contains(&marked(0, calls)), "a burst of {calls}: {}", marked(0, calls));
            assert!((122..=500).contains(&marked(calls, calls)), "{calls} in every second: {}", marked(calls, calls));
        }
    }

    #[test]
    fn every_call_without_a_mark_is_counted_once_its_second_is_over() {
        let recorder = Recorder::new();
        recorder.set_rate(500);
        let marked = |second, calls: u64| (0..calls).filter(|_| recorder.sample(second).1).count() as u64;
        let burst = marked(1, 500_000);
        let after = marked(2, 900);
        assert_eq!(after, 0, "far more are expected");
        assert_eq!(recorder.take_unmarked(), 500_000 - burst);
        recorder.count_unmarked(2);
        assert_eq!(recorder.take_unmarked(), 0, "one of them may still get a mark");
        recorder.count_unmarked(3);
        assert_eq!(recorder.take_unmarked(), 900);
        recorder.count_unmarked(4);
        assert_eq!(recorder.take_unmarked(), 0);
    }

    #[test]
    fn above_the_rate_a_part_of_the_calls_gets_a_mark_and_ends_are_noted_all_the_same() {
        let recorder = Recorder::new();
        recorder.set_rate(10);
        recorder.set_detail(Detail::Bodies);
        let sampled: Vec<Sampled> = (0..1000).map(|_| recorder.begin()).collect();
        let marked = sampled.iter().filter(|sampled| sampled.mark.is_recorded()).count();
        assert!((10..=40).contains(&marked), "in two seconds at most: {marked}");
        assert!(sampled.iter().all(|sampled| sampled.mark.is_some()));
        recorder.open(100_000, 100);
        let unmarked = sampled.iter().find(|sampled| !sampled.mark.is_recorded()).unwrap().mark;
        note(unmarked, &MESSAGE);
        note_end(unmarked, b"failed");
        assert_eq!(bodies(&read_shared(&recorder)).len(), 1);
    }

    #[test]
    fn numbers_of_recorders_are_used_again() {
        let numbers: Vec<u64> = (0..100).map(|_| Recorder::new().number).collect();
        assert!(numbers.iter().max().unwrap() - numbers.iter().min().unwrap() < 100);
        let both = [Recorder::new(), Recorder::new()];
        assert_ne!(both[0].number, both[1].number);
    }
}
