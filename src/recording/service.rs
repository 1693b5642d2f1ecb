//! Keeps the recorded calls of a gateway: records while somebody watches, collects, and lets go.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use super::messages::messages_of;
use super::redaction::RedactionRules;
use super::row::RowMaker;
use super::store::{CallStore, KeepError, StoredCall};
use super::time_parts::TimeParts;
use crate::recorder::{Clock, Detail, Reader, Recorder, SummaryField, nanos};

/// When calls are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecordMode {
    /// Never.
    Off,
    /// While somebody watches.
    #[default]
    Watch,
    /// Always; without the bytes of messages while nobody watches.
    Always,
}

/// Whether operators who may see bodies do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyRule {
    /// Never.
    Never,
    /// For a while, after they asked for it.
    #[default]
    Ask,
    /// Always.
    Always,
}

/// How calls are recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingSettings {
    /// When.
    pub mode: RecordMode,
    /// Whether bodies are shown.
    pub bodies: BodyRule,
    /// Bytes of all rings and collected calls.
    pub bytes: usize,
    /// Bytes of one message that are kept.
    pub body_bytes: usize,
    /// Calls a second and worker that are all recorded.
    pub rate: u32,
    /// More names and pointers that are hidden.
    pub redact: Vec<String>,
    /// Headers whose values the file gives, in small letters.
    pub headers: Vec<String>,
    /// How long recording goes on after the last viewer has gone.
    pub linger: Duration,
}

impl Default for RecordingSettings {
    fn default() -> Self {
        Self {
            mode: RecordMode::default(),
            bodies: BodyRule::default(),
            bytes: 32 << 20,
            body_bytes: 64 << 10,
            rate: 200,
            redact: Vec::new(),
            headers: Vec::new(),
            linger: Duration::from_secs(30),
        }
    }
}

/// Told of rows that changed. Runs on the task that collects, and must not block.
pub trait RowEvents: Send + Sync {
    /// Whether anybody wants rows.
    fn is_watched(&self) -> bool;

    /// Calls have other rows.
    fn changed(&self, calls: &[StoredCall], rows: RowMaker);

    /// A call is no more.
    fn gone(&self, id: &str);

    /// Something is not shown: so many calls, or nobody knows how many.
    fn lost(&self, count: Option<u64>, why: &str);
}

/// The recorded calls of one gateway.
pub struct CallLog {
    recorder: Arc<Recorder>,
    settings: RwLock<RecordingSettings>,
    store: Mutex<CallStore>,
    clock: Clock,
    viewers: AtomicUsize,
    /// Until when somebody looks who has no stream open, by the clock of records.
    looked_until: AtomicU64,
    bodies_until: Mutex<Option<Instant>>,
    /// Until when calls are recorded at the rate of an operator.
    rate_until: Mutex<Option<Instant>>,
    wake: Notify,
    /// Whether calls are recorded, for who waits for it.
    is_recording: watch::Sender<bool>,
    lost: AtomicU64,
    losses: Mutex<Losses>,
    /// What Rialto added to calls that were looked at for figures, by their number and when they ended.
    timed: Mutex<HashMap<(u64, u64), u64>>,
}

/// What is not shown, and was not told yet.
#[derive(Debug, Default)]
struct Losses {
    /// Bytes that were overwritten before they were read, or had no room.
    bytes: u64,
    /// Calls that got no mark.
    unmarked: u64,
    told_at: Option<Instant>,
    /// When a call got no mark last.
    sampled_at: Option<Instant>,
}

/// What is recorded, for people.
#[derive(Debug, Clone, Copy)]
pub struct RecordingState {
    /// Whether anything is.
    pub is_on: bool,
    /// How long bodies are shown for.
    pub bodies_for: Option<Duration>,
    /// Whether bodies may be shown at all.
    pub bodies: BodyRule,
    /// Calls a second and worker that are all recorded.
    pub rate: u32,
    /// How long that rate goes on, where an operator chose it.
    pub rate_for: Option<Duration>,
    /// Bytes in use.
    pub bytes: usize,
    /// Bytes that were lost so far.
    pub lost: u64,
    /// When calls are recorded.
    pub mode: RecordMode,
    /// Calls that are kept on purpose.
    pub kept: usize,
    /// Whether a part of the calls was not recorded just now, because there were more than the rate.
    pub is_sampling: bool,
}

/// Records while it lives.
pub struct ViewerGuard(Arc<CallLog>);

/// Calls that a filter looks at between two locks of the store.
const LOOK_BATCH: usize = 64;
/// How often rings are read.
const COLLECT_INTERVAL: Duration = Duration::from_millis(100);
/// How long recording may take to begin, on a machine with other work.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How often what is not shown is told.
const LOSS_INTERVAL: Duration = Duration::from_secs(1);
/// How long after the last call that got no mark calls count as sampled.
const SAMPLING_TIME: Duration = Duration::from_secs(30);
/// How often a log that is off looks whether anybody came.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);
/// Most calls whose time is looked at for figures.
const MAX_TIMED_CALLS: usize = 200;
/// Longest time for which bodies are shown after one click.
const MAX_BODIES_TIME: Duration = Duration::from_secs(15 * 60);

impl CallLog {
    /// The log of what this recorder notes.
    pub fn new(recorder: Arc<Recorder>, settings: RecordingSettings) -> Arc<Self> {
        recorder.set_rate(settings.rate);
        Arc::new(Self {
            recorder,
            settings: RwLock::new(settings),
            store: Mutex::default(),
            clock: Clock::new(),
            viewers: AtomicUsize::new(0),
            looked_until: AtomicU64::new(0),
            bodies_until: Mutex::new(None),
            wake: Notify::new(),
            is_recording: watch::Sender::new(false),
            lost: AtomicU64::new(0),
            losses: Mutex::default(),
            timed: Mutex::default(),
            rate_until: Mutex::new(None),
        })
    }

    /// Applies other settings.
    pub fn configure(&self, settings: RecordingSettings) {
        *self.rate_until.lock() = None;
        self.recorder.set_rate(settings.rate);
        *self.settings.write() = settings;
        self.wake.notify_one();
    }

    /// Records while the guard lives, and a while after.
    pub fn watch(self: &Arc<Self>) -> ViewerGuard {
        self.viewers.fetch_add(1, Ordering::AcqRel);
        self.wake.notify_one();
        ViewerGuard(Arc::clone(self))
    }

    /// Records for a while, because somebody looked.
    pub fn look(&self) {
        let linger = u64::try_from(self.settings.read().linger.as_nanos()).unwrap_or(u64::MAX);
        self.looked_until.fetch_max(nanos().saturating_add(linger), Ordering::AcqRel);
        if !self.recorder.is_on() {
            self.wake.notify_one();
        }
    }

    /// Waits until calls are recorded. False if they are not to be, or it took too long.
    pub async fn wait_until_on(&self) -> bool {
        self.look();
        let mut is_recording = self.is_recording.subscribe();
        let is_on = is_recording.wait_for(|is_on| *is_on);
        self.wanted() != Detail::Off && matches!(tokio::time::timeout(START_TIMEOUT, is_on).await, Ok(Ok(_)))
    }

    /// What is to be recorded now.
    fn wanted(&self) -> Detail {
        let is_watched =
            self.viewers.load(Ordering::Acquire) > 0 || self.looked_until.load(Ordering::Acquire) > nanos();
        match (self.settings.read().mode, is_watched) {
            (RecordMode::Off, _) | (RecordMode::Watch, false) => Detail::Off,
            (RecordMode::Always, false) => Detail::Heads,
            (RecordMode::Watch | RecordMode::Always, true) => Detail::Bodies,
        }
    }

    /// Records and collects until the process ends. `workers` have rings of their own.
    pub async fn run(self: Arc<Self>, workers: Vec<Handle>, events: Arc<dyn RowEvents>) {
        let mut reader = Reader::new(Arc::clone(&self.recorder), workers);
        let mut current = Detail::Off;
        loop {
            self.end_rate();
            let wanted = self.wanted();
            if wanted != current {
                self.switch(&mut reader, (current, wanted)).await;
                current = wanted;
                // Whoever looked meanwhile found calls being recorded, and woke nobody.
                continue;
            }
            let interval = if current == Detail::Off { IDLE_INTERVAL } else { COLLECT_INTERVAL };
            let _ = tokio::time::timeout(interval, self.wake.notified()).await;
            if current != Detail::Off {
                self.collect(&mut reader, &*events).await;
            }
        }
    }

    async fn switch(&self, reader: &mut Reader, (current, wanted): (Detail, Detail)) {
        let (bytes, body_bytes) = {
            let settings = self.settings.read();
            (settings.bytes, settings.body_bytes)
        };
        match (current, wanted) {
            (_, Detail::Off) => {
                self.is_recording.send_replace(false);
                reader.close().await;
                self.store.lock().clear();
            }
            // A quarter for what waits to be collected.
            (Detail::Off, _) => reader.open(bytes / 4, body_bytes, wanted).await,
            _ => self.recorder.set_detail(wanted),
        }
        self.is_recording.send_replace(wanted != Detail::Off);
        tracing::info!(detail = ?wanted, "recording of calls changed");
    }

    async fn collect(&self, reader: &mut Reader, events: &dyn RowEvents) {
        let collected = reader.read().await;
        self.lost.fetch_add(collected.lost, Ordering::Relaxed);
        self.tell_losses(collected.lost, events);
        if collected.batches.is_empty() {
            return;
        }
        let limit = self.settings.read().bytes / 4 * 3;
        let (changed, gone) = {
            let mut store = self.store.lock();
            let changes = store.add(&collected, limit);
            let is_watched = events.is_watched();
            let changed: Vec<StoredCall> = match is_watched {
                true => changes.changed.iter().filter_map(|number| store.get(*number).cloned()).collect(),
                false => Vec::new(),
            };
            (changed, changes.gone)
        };
        for number in gone {
            events.gone(&super::row::encode_number(number));
        }
        if !changed.is_empty() {
            events.changed(&changed, self.rows(String::new()));
        }
    }

    /// Tells once a second what is not shown.
    fn tell_losses(&self, bytes: u64, events: &dyn RowEvents) {
        let (now, unmarked) = (Instant::now(), self.recorder.take_unmarked());
        let mut losses = self.losses.lock();
        losses.bytes += bytes;
        losses.unmarked += unmarked;
        if unmarked > 0 {
            losses.sampled_at = Some(now);
        }
        if losses.told_at.is_some_and(|told| now.duration_since(told) < LOSS_INTERVAL) {
            return;
        }
        losses.told_at = Some(now);
        let (bytes, unmarked) = (std::mem::take(&mut losses.bytes), std::mem::take(&mut losses.unmarked));
        drop(losses);
        if unmarked > 0 {
            let rate = self.recorder.rate();
            let why = format!("more than {rate} calls a second; those that fail are shown all the same");
            events.lost(Some(unmarked), &why);
        }
        if bytes > 0 {
            events.lost(None, &format!("{bytes} bytes were overwritten before they were read, or had no room"));
        }
    }

    /// Makes rows of calls of the node of this name.
    pub fn rows(&self, node: String) -> RowMaker {
        let settings = self.settings.read();
        let rules = RedactionRules::new(&settings.redact, &settings.headers);
        drop(settings);
        RowMaker { node, clock: self.clock, rules, now: nanos() }
    }

    /// Collected calls, newest first, below a number.
    pub fn newest(&self, below: u64, wanted: impl FnMut(&StoredCall) -> bool, limit: usize) -> Vec<StoredCall> {
        let (mut below, mut wanted, mut found) = (below, wanted, Vec::new());
        // Filters take their time, so they look at calls while nobody waits for the lock.
        while found.len() < limit {
            let looked_at: Vec<StoredCall> = self.store.lock().newest_below(below).take(LOOK_BATCH).cloned().collect();
            let Some(last) = looked_at.last() else { break };
            below = last.number;
            let left = limit - found.len();
            found.extend(looked_at.into_iter().filter(|call| wanted(call)).take(left));
        }
        found
    }

    /// A call.
    pub fn get(&self, number: u64) -> Option<StoredCall> {
        self.store.lock().get(number).cloned()
    }

    /// How far back calls are kept, if there are any.
    pub fn reach(&self) -> Option<Duration> {
        let started = self.store.lock().oldest()?.started();
        Some(Duration::from_nanos(nanos().saturating_sub(started)))
    }

    /// What Rialto added to the newest calls that servers answered since a time by the clock of records, in microseconds,
    /// with their servers.
    pub fn overheads(&self, since: u64) -> Vec<(String, u64)> {
        let is_wanted = |call: &StoredCall| {
            call.field(SummaryField::Upstream).is_some() && call.last_end().is_some() && call.started() >= since
        };
        let calls = self.newest(u64::MAX, is_wanted, MAX_TIMED_CALLS);
        let mut known = self.timed.lock();
        // Reading the messages of a call takes time, and several figures ask for the same calls each second.
        let before = std::mem::take(&mut *known);
        let mut overhead = |call: &StoredCall| {
            let end = call.last_end().map_or(0, |(nanos, _)| *nanos);
            let read = || TimeParts::of(call, &messages_of(call), end).rialto / 1000;
            let key = (call.number, end);
            let took = before.get(&key).copied().unwrap_or_else(read);
            known.insert(key, took);
            (call.field(SummaryField::Upstream).unwrap_or_default().to_owned(), took)
        };
        calls.iter().map(&mut overhead).collect()
    }

    /// The number of the call that a request belongs to, if it is recorded.
    pub fn find(&self, number: u64) -> Option<u64> {
        self.store.lock().call_of(number)
    }

    /// Keeps a call until it is released.
    ///
    /// # Errors
    /// When it is no more, or as many are kept as may be.
    pub fn keep(&self, number: u64) -> Result<(), KeepError> {
        self.store.lock().keep(number)
    }

    /// Lets a call go; false if there is none.
    pub fn release(&self, number: u64) -> bool {
        self.store.lock().release(number)
    }

    /// Shows bodies for a while, or no more.
    pub fn show_bodies(&self, time: Option<Duration>) {
        *self.bodies_until.lock() = time.map(|time| Instant::now() + time.min(MAX_BODIES_TIME));
    }

    /// Whether bodies are shown to who may see them.
    pub fn shows_bodies(&self) -> bool {
        match self.settings.read().bodies {
            BodyRule::Never => false,
            BodyRule::Always => true,
            BodyRule::Ask => self.bodies_until.lock().is_some_and(|until| until > Instant::now()),
        }
    }

    /// Records all of this many calls a second and worker for a while.
    pub fn set_rate(&self, rate: u32, time: Duration) {
        *self.rate_until.lock() = Some(Instant::now() + time);
        self.recorder.set_rate(rate);
    }

    /// Goes back to the rate of the settings once the time of an operator's is over.
    fn end_rate(&self) {
        let mut until = self.rate_until.lock();
        if until.is_some_and(|until| until <= Instant::now()) {
            *until = None;
            self.recorder.set_rate(self.settings.read().rate);
        }
    }

    /// How long the rate of an operator goes on.
    fn rate_for(&self) -> Option<Duration> {
        self.end_rate();
        self.rate_until.lock().map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// What is recorded.
    pub fn state(&self) -> RecordingState {
        // Each lock is released before the next one is taken.
        let until = *self.bodies_until.lock();
        let rate_for = self.rate_for();
        let (mode, bodies) = {
            let settings = self.settings.read();
            (settings.mode, settings.bodies)
        };
        let (bytes, kept) = {
            let store = self.store.lock();
            (store.bytes(), store.kept_count())
        };
        let sampled_at = self.losses.lock().sampled_at;
        let bodies_for = until.map(|until| until.saturating_duration_since(Instant::now()));
        RecordingState {
            is_on: self.recorder.is_on(),
            bodies_for: bodies_for.filter(|left| !left.is_zero()),
            bodies,
            rate: self.recorder.rate(),
            rate_for,
            bytes,
            lost: self.lost.load(Ordering::Relaxed),
            mode,
            kept,
            is_sampling: sampled_at.is_some_and(|at| at.elapsed() < SAMPLING_TIME),
        }
    }

    /// Whether bodies can be shown at all.
    pub fn may_show_bodies(&self) -> bool {
        self.settings.read().bodies != BodyRule::Never
    }
}

impl Drop for ViewerGuard {
    fn drop(&mut self) {
        self.0.look();
        self.0.viewers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl std::fmt::Debug for CallLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CallLog({:?})", self.state())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{SummaryWriter, note_end};

    #[tokio::test]
    async fn the_messages_of_a_call_are_read_once_for_figures() {
        let recorder = Recorder::new();
        let calls = CallLog::new(Arc::clone(&recorder), RecordingSettings::default());
        let mut reader = Reader::new(Arc::clone(&recorder), Vec::new());
        reader.open(1 << 20, 1000, Detail::Bodies).await;
        let mut summary = SummaryWriter::new();
        summary.text(SummaryField::Upstream, "db");
        note_end(recorder.begin().mark, summary.bytes());
        let collected = reader.read().await;
        calls.store.lock().add(&collected, 1 << 20);
        assert_eq!(calls.overheads(0), [("db".to_owned(), 0)]);
        calls.timed.lock().values_mut().for_each(|took| *took = 7);
        assert_eq!(calls.overheads(0), [("db".to_owned(), 7)], "what is known is not read again");
        assert!(calls.overheads(u64::MAX).is_empty() && calls.timed.lock().is_empty(), "nothing else is remembered");
    }

    #[test]
    fn the_rate_of_an_operator_ends_by_itself() {
        let calls = CallLog::new(Recorder::new(), RecordingSettings::default());
        calls.set_rate(5000, MAX_BODIES_TIME);
        assert!(calls.state().rate == 5000 && calls.state().rate_for.is_some());
        calls.set_rate(5000, Duration::ZERO);
        assert_eq!((calls.state().rate, calls.state().rate_for), (200, None));
        calls.set_rate(5000, MAX_BODIES_TIME);
        calls.configure(RecordingSettings { rate: 300, ..RecordingSettings::default() });
        assert_eq!((calls.state().rate, calls.state().rate_for), (300, None), "a reload ends it");
    }

    struct NoEvents;

    impl RowEvents for NoEvents {
        fn is_watched(&self) -> bool {
            false
        }

        fn changed(&self, _: &[StoredCall], _: RowMaker) {}

        fn gone(&self, _: &str) {}

        fn lost(&self, _: Option<u64>, _: &str) {}
    }

    fn log(mode: RecordMode) -> Arc<CallLog> {
        CallLog::new(Recorder::new(), RecordingSettings { mode, ..RecordingSettings::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn recording_that_begins_late_is_waited_for() {
        let log = log(RecordMode::Watch);
        let waiting = tokio::spawn({
            let log = Arc::clone(&log);
            async move { (log.wait_until_on().await, log.state().is_on) }
        });
        tokio::time::sleep(START_TIMEOUT / 2).await;
        assert!(!waiting.is_finished());
        tokio::spawn(Arc::clone(&log).run(Vec::new(), Arc::new(NoEvents)));
        assert_eq!(waiting.await.unwrap(), (true, true));
    }

    #[tokio::test(start_paused = true)]
    async fn recording_that_does_not_begin_is_told() {
        assert!(!log(RecordMode::Watch).wait_until_on().await);
        // Nobody waits for what is never recorded.
        let began = tokio::time::Instant::now();
        assert!(!log(RecordMode::Off).wait_until_on().await);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
