//! Lines for a file or a standard stream, written in batches by a thread of their own, so that no call ever waits for a disk
//! or a reader.
//!
//! What waits is bounded. Lines beyond that are lost, counted, and told of in the next line that can be written.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::redact::redact;

/// What waits for the writer.
pub trait PendingLines: Default + Send + 'static {
    /// Moves everything to the end of `text`, one line with its line break for each entry.
    fn move_into(&mut self, text: &mut String);
}

/// Lines that are made where they happen, one behind the other.
#[derive(Debug, Default)]
pub struct TextLines(pub String);

/// How lines are written.
pub struct LineLogOptions {
    /// Name of the thread.
    pub name: &'static str,
    /// Entries that may wait.
    pub capacity: usize,
    /// Takes entries beyond the capacity, too, and writes a line until it succeeds.
    pub lossless: bool,
    /// How long the writer gathers entries that are in no hurry.
    pub batch_delay: Duration,
    /// Lost entries since the start.
    pub lost: Arc<AtomicU64>,
    /// The line, with its line break, that tells how many were lost.
    pub loss_line: fn(u64) -> String,
    /// Opens the output again; `None` where it stays as it is.
    pub reopen: Box<dyn Fn() -> io::Result<Option<File>> + Send>,
    /// Reports that writing failed.
    pub complain: Box<dyn Fn(&io::Error) + Send>,
}

/// The entrance to a thread that writes lines.
#[derive(Debug)]
pub struct LineLog<P> {
    state: Mutex<LogState<P>>,
    changed: Condvar,
    capacity: usize,
    lossless: bool,
    /// Entries that are not written yet.
    waiting: AtomicUsize,
    lost: Arc<AtomicU64>,
    /// Lost entries that no line has told of yet.
    untold: AtomicU64,
    /// The last write failed.
    failing: AtomicBool,
}

#[derive(Debug, Default)]
struct LogState<P> {
    pending: P,
    entries: usize,
    /// The writer waits for a change; only then it has to be woken.
    is_idle: bool,
    /// Something is to be written at once.
    is_urgent: bool,
    reopens: bool,
    is_closed: bool,
    flushes: Vec<oneshot::Sender<()>>,
}

struct LineWriter<P> {
    log: Arc<LineLog<P>>,
    target: File,
    options: LineLogOptions,
    /// A write ended within a line, which could not be removed: the next one begins with a line break.
    is_within_line: bool,
    complained: Option<Instant>,
}

/// Most bytes of one write to a pipe, which takes that many whole or not at all (`PIPE_BUF`), so that lines of others do not
/// come between.
const PIPE_WRITE_MAX: usize = 4096;
/// Bytes of a buffer that are kept for the next batch.
const RETAINED_TEXT_MAX: usize = 1 << 20;
/// How long the writer waits before it tries again where no line may be lost.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// How often a failing output is complained of.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// `000` to `999`, one behind the other.
const THREE_DIGITS: &str = {
    const BYTES: [u8; 3000] = {
        let (mut bytes, mut number) = ([0; 3000], 0);
        while number < 1000 {
            bytes[3 * number] = b'0' + (number / 100) as u8;
            bytes[3 * number + 1] = b'0' + (number / 10 % 10) as u8;
            bytes[3 * number + 2] = b'0' + (number % 10) as u8;
            number += 1;
        }
        bytes
    };
    match str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => panic!(),
    }
};

thread_local! {
    /// The second that was written last, and its text: a busy log has many lines in each.
    static LAST_SECOND: Cell<(u64, [u8; 20])> = const { Cell::new((0, *b"1970-01-01T00:00:00.")) };
}

impl PendingLines for TextLines {
    fn move_into(&mut self, text: &mut String) {
        text.push_str(&self.0);
        self.0.clear();
        self.0.shrink_to(RETAINED_TEXT_MAX);
    }
}

impl<P: PendingLines> LineLog<P> {
    /// Starts a thread that writes to `target` until [`Self::close`].
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(target: File, options: LineLogOptions) -> io::Result<Arc<Self>> {
        let log = Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            capacity: options.capacity,
            lossless: options.lossless,
            waiting: AtomicUsize::new(0),
            lost: Arc::clone(&options.lost),
            untold: AtomicU64::new(0),
            failing: AtomicBool::new(false),
        });
        let name = options.name.to_owned();
        let writer = LineWriter { log: Arc::clone(&log), target, options, is_within_line: false, complained: None };
        std::thread::Builder::new().name(name).spawn(move || writer.run())?;
        Ok(log)
    }

    /// Adds an entry that is written at once. Never blocks: without room it is lost, unless none may be.
    pub fn push(&self, add: impl FnOnce(&mut P)) {
        self.push_when(true, add);
    }

    /// Adds an entry that may wait for others.
    pub fn push_batched(&self, add: impl FnOnce(&mut P)) {
        self.push_when(false, add);
    }

    fn push_when(&self, is_urgent: bool, add: impl FnOnce(&mut P)) {
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= self.capacity && !self.lossless {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.count_lost(1);
            return;
        }
        let mut state = self.state.lock();
        add(&mut state.pending);
        state.entries += 1;
        let wakes = state.is_idle || (is_urgent && !state.is_urgent);
        state.is_urgent |= is_urgent;
        drop(state);
        if wakes {
            self.changed.notify_one();
        }
    }

    /// Opens the output again by its name before anything else is written.
    pub fn reopen(&self) {
        self.change(|state| state.reopens = true);
    }

    /// Completes when everything so far was written.
    pub fn flush(&self) -> oneshot::Receiver<()> {
        let (flushed, wait) = oneshot::channel();
        self.change(|state| state.flushes.push(flushed));
        wait
    }

    /// Ends the thread once everything so far was written.
    pub fn close(&self) {
        self.change(|state| state.is_closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut LogState<P>)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.is_urgent = true;
        drop(state);
        self.changed.notify_one();
    }

    /// Whether no further entry has room, or the last write failed.
    pub fn is_stuck(&self) -> bool {
        self.waiting.load(Ordering::Acquire) >= self.capacity || self.failing.load(Ordering::Acquire)
    }

    fn count_lost(&self, lines: u64) {
        self.untold.fetch_add(lines, Ordering::AcqRel);
        self.lost.fetch_add(lines, Ordering::AcqRel);
    }
}

impl<P: PendingLines> LineWriter<P> {
    fn run(mut self) {
        let (log, mut batch, mut text) = (Arc::clone(&self.log), P::default(), String::new());
        loop {
            let mut state = log.state.lock();
            while state.entries == 0 && state.flushes.is_empty() && !state.reopens {
                if state.is_closed {
                    return;
                }
                (state.is_idle, state.is_urgent) = (true, false);
                log.changed.wait(&mut state);
            }
            state.is_idle = false;
            let deadline = Instant::now() + self.options.batch_delay;
            while !state.is_urgent && !log.changed.wait_until(&mut state, deadline).timed_out() {}
            std::mem::swap(&mut state.pending, &mut batch);
            let (entries, flushes) = (std::mem::take(&mut state.entries), std::mem::take(&mut state.flushes));
            let reopens = std::mem::take(&mut state.reopens);
            state.is_urgent = false;
            drop(state);
            if reopens {
                self.reopen();
            }
            batch.move_into(&mut text);
            self.write_batch(&redact(&text));
            log.waiting.fetch_sub(entries, Ordering::AcqRel);
            text.clear();
            text.shrink_to(RETAINED_TEXT_MAX);
            for flushed in flushes {
                // Nobody waits any more.
                let _ = flushed.send(());
            }
        }
    }

    fn write_batch(&mut self, mut text: &str) {
        let log = Arc::clone(&self.log);
        loop {
            let mut whole = 0;
            if let Err(error) = self.write_losses().and_then(|()| self.write_lines(text, &mut whole)) {
                self.complain(&error);
            }
            text = &text[whole..];
            log.failing.store(!text.is_empty(), Ordering::Release);
            if text.is_empty() || !self.options.lossless {
                break;
            }
            // A rotated or repaired file may be the way out.
            std::thread::sleep(RETRY_INTERVAL);
            if log.state.lock().is_closed {
                break;
            }
            self.reopen();
        }
        log.count_lost(text.lines().count() as u64);
    }

    /// Tells how many lines were lost, if there were any.
    fn write_losses(&mut self) -> io::Result<()> {
        let lost = self.log.untold.swap(0, Ordering::AcqRel);
        if lost == 0 {
            return Ok(());
        }
        let line = (self.options.loss_line)(lost);
        self.write_lines(&line, &mut 0).inspect_err(|_| {
            self.log.untold.fetch_add(lost, Ordering::AcqRel);
        })
    }

    /// Writes lines; `whole` is where those that were written whole end. What a failed write left of a line is removed.
    fn write_lines(&mut self, text: &str, whole: &mut usize) -> io::Result<()> {
        if self.is_within_line && !text.is_empty() {
            self.target.write_all(b"\n")?;
            self.is_within_line = false;
        }
        let bytes = text.as_bytes();
        let is_file = self.target.metadata().is_ok_and(|metadata| metadata.is_file());
        let (mut done, mut result) = (0, Ok(()));
        while done < bytes.len() && result.is_ok() {
            let end = if is_file { bytes.len() } else { end_of_pipe_write(bytes, done) };
            match self.target.write(&bytes[done..end]) {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
        }
        *whole = bytes[..done].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        if done > *whole {
            self.is_within_line = !self.remove_tail((done - *whole) as u64);
        }
        result
    }

    /// Cuts the last bytes off a regular file; false where that is not possible.
    fn remove_tail(&self, bytes: u64) -> bool {
        let is_cut = || {
            let metadata = self.target.metadata().ok().filter(std::fs::Metadata::is_file)?;
            self.target.set_len(metadata.len().checked_sub(bytes)?).ok()
        };
        is_cut().is_some()
    }

    fn reopen(&mut self) {
        match (self.options.reopen)() {
            Ok(Some(target)) => {
                self.target = target;
                self.is_within_line = false;
            }
            Ok(None) => {}
            Err(error) => self.complain(&error),
        }
    }

    /// Reports that lines cannot be written, now and then.
    fn complain(&mut self, error: &io::Error) {
        if self.complained.is_none_or(|last| last.elapsed() > COMPLAINT_INTERVAL) {
            self.complained = Some(Instant::now());
            (self.options.complain)(error);
        }
    }
}

/// The end of the lines that one write to a pipe takes whole; a longer line is written alone.
fn end_of_pipe_write(bytes: &[u8], start: usize) -> usize {
    let most = bytes.len().min(start + PIPE_WRITE_MAX);
    if let Some(last) = bytes[start..most].iter().rposition(|byte| *byte == b'\n') {
        return start + last + 1;
    }
    bytes[most..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |next| most + next + 1)
}

/// Writes a time as `2026-07-28T09:05:00.123Z`.
pub fn push_rfc3339(text: &mut String, time: SystemTime) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (known, mut written) = LAST_SECOND.get();
    if known != since.as_secs() {
        written = rfc3339_second(since.as_secs());
        LAST_SECOND.set((since.as_secs(), written));
    }
    text.push_str(str::from_utf8(&written).unwrap_or_default());
    text.push_str(three_digits(since.subsec_millis() as usize));
    text.push('Z');
}

/// A second since 1970 as `2026-07-28T09:05:00.`.
fn rfc3339_second(since: u64) -> [u8; 20] {
    let (seconds, days) = (since % 86_400, since / 86_400);
    let (year, month, day) = date(days);
    let mut written = *b"0000-00-00T00:00:00.";
    for (place, number) in [
        (0..4, year),
        (5..7, month),
        (8..10, day),
        (11..13, seconds / 3600),
        (14..16, seconds / 60 % 60),
        (17..19, seconds % 60),
    ] {
        put_digits(&mut written[place], number);
    }
    written
}

/// Writes a time as the common log format has it: `28/Jul/2026:09:05:00 +0000`.
pub fn push_common_log_time(text: &mut String, time: SystemTime) {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, days) = (since.as_secs() % 86_400, since.as_secs() / 86_400);
    let (year, month, day) = date(days);
    let mut written = *b"00/Jan/0000:00:00:00 +0000";
    let name = usize::try_from(month - 1).unwrap_or(0) * 3;
    written[3..6].copy_from_slice(&MONTHS[name..name + 3]);
    for (place, number) in
        [(0..2, day), (7..11, year), (12..14, seconds / 3600), (15..17, seconds / 60 % 60), (18..20, seconds % 60)]
    {
        put_digits(&mut written[place], number);
    }
    text.push_str(str::from_utf8(&written).unwrap_or_default());
}

/// Writes milliseconds with three digits behind the point.
pub fn push_milliseconds(text: &mut String, time: Duration) {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    push_number(text, micros / 1000);
    text.push('.');
    text.push_str(three_digits((micros % 1000) as usize));
}

/// A number below 1000 with leading zeros.
fn three_digits(number: usize) -> &'static str {
    THREE_DIGITS.get(3 * number..3 * number + 3).unwrap_or_default()
}

/// Writes a number. A line has many, and `fmt` takes several times as long for each.
pub fn push_number(text: &mut String, number: impl itoa::Integer) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Fills a place with the last digits of a number.
fn put_digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// The Gregorian date of a number of days since 1970-01-01. Years begin in March here, so that a leap day is the last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, of_year - (153 * shifted + 2) / 5 + 1)
}

/// Whether a character could end a line, or do something else than be shown, in some program.
pub fn is_unprintable(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (milliseconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (7, "1970-01-01T00:00:00.007Z"),
            (951_782_399_000, "2000-02-28T23:59:59.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            let mut text = String::new();
            push_rfc3339(&mut text, UNIX_EPOCH + Duration::from_millis(milliseconds));
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn durations_have_three_digits_behind_the_point() {
        let mut out = String::new();
        push_milliseconds(&mut out, Duration::from_micros(41_007));
        assert_eq!(out, "41.007");
    }

    #[test]
    fn a_write_to_a_pipe_ends_with_a_line() {
        let lines = format!("{}\n", "x".repeat(999)).repeat(10);
        assert_eq!(end_of_pipe_write(lines.as_bytes(), 0), 4000);
        assert_eq!(end_of_pipe_write(lines.as_bytes(), 8000), 10_000);
        let long = format!("{}\nshort\n", "x".repeat(9000));
        assert_eq!(end_of_pipe_write(long.as_bytes(), 0), 9001);
        assert_eq!(end_of_pipe_write(long.as_bytes(), 9001), long.len());
    }
}
