//! The access log: one line for each request, when it has ended.
//!
//! A request has an [`AccessRecord`] while it runs, to which every layer adds what it knows. The line goes where the log goes,
//! by the same thread. Where the access log is off, a request costs one branch.

mod client_names;
mod line;
mod record;

use std::fmt;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use crate::line_log::{LineLog, TextLines};
use crate::recorder::Recorder;
use crate::telemetry::{self, LogFormat};
pub use record::{AccessEnd, AccessGuard, AccessRecord, ServerFacts};

/// What the access log has.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AccessSettings {
    /// Whether there is one; by default there is where standard error is no terminal.
    pub enabled: Option<bool>,
    /// The part of the requests that succeed which is logged.
    pub sample: SampleRate,
    /// The form of its lines; by default that of the log.
    pub format: Option<AccessFormat>,
}

/// The form of the lines of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessFormat {
    /// Like other lines of text.
    Text,
    /// One JSON object per line.
    Json,
    /// The combined log format of Apache and nginx.
    Combined,
}

/// A part of the whole, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRate(f64);

/// A handle to the access log.
#[derive(Clone, Default)]
pub struct AccessLog(Arc<AccessState>);

struct AccessState {
    is_on: AtomicBool,
    sink: ArcSwapOption<AccessSink>,
    /// Records the same requests for those who watch.
    recorder: Arc<Recorder>,
}

/// Where lines go, and which.
struct AccessSink {
    lines: Arc<LineLog<TextLines>>,
    format: AccessFormat,
    sample: SampleRate,
    /// Requests so far that are logged by chance.
    sampled: AtomicU64,
}

/// An odd number near the golden ratio: its multiples are spread evenly over all 64-bit values.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

const TWO_TO_THE_32: f64 = 4_294_967_296.0;

impl AccessLog {
    /// Applies these settings to requests that begin from now on.
    pub fn configure(&self, settings: AccessSettings) {
        let is_shown = || tracing::enabled!(target: "access", tracing::Level::INFO);
        let is_on = match (settings.enabled, telemetry::is_installed()) {
            (Some(enabled), false) => enabled,
            (Some(enabled), true) => enabled && is_shown(),
            (None, false) => false,
            (None, true) => !std::io::stderr().is_terminal() && is_shown(),
        };
        let lines = if is_on { telemetry::queued_lines() } else { None };
        let sink = lines.map(|lines| {
            let (lines, format) = (Arc::clone(lines), settings.format.unwrap_or_else(|| telemetry::format().into()));
            Arc::new(AccessSink { lines, format, sample: settings.sample, sampled: AtomicU64::new(0) })
        });
        self.0.is_on.store(sink.is_some(), Ordering::Release);
        self.0.sink.store(sink);
    }

    /// The record of a request that begins; `None` where there is no access log and nobody watches.
    #[inline]
    pub fn begin(&self) -> Option<Arc<AccessRecord>> {
        let sampled = self.0.recorder.begin();
        let sink = if self.0.is_on.load(Ordering::Relaxed) { self.0.sink.load_full() } else { None };
        if sink.is_none() && !sampled.mark.is_some() {
            return None;
        }
        Some(AccessRecord::new(sink, sampled))
    }

    /// The record of a request that another node relays here; `None` where nobody watches. That node has its line.
    pub fn begin_relayed(&self) -> Option<Arc<AccessRecord>> {
        let sampled = self.0.recorder.begin();
        sampled.mark.is_some().then(|| AccessRecord::new(None, sampled))
    }

    /// Records the requests that this log has a line for.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.0.recorder
    }
}

impl Default for AccessState {
    fn default() -> Self {
        Self { is_on: AtomicBool::new(false), sink: ArcSwapOption::empty(), recorder: Recorder::new() }
    }
}

impl AccessSink {
    /// Whether a request that succeeded is logged.
    fn takes_sample(&self) -> bool {
        if self.sample.0 >= 1.0 {
            return true;
        }
        let number = self.sampled.fetch_add(1, Ordering::Relaxed).wrapping_mul(SPREAD);
        f64::from(u32::try_from(number >> 32).unwrap_or(0)) < self.sample.0 * TWO_TO_THE_32
    }
}

impl From<LogFormat> for AccessFormat {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

impl SampleRate {
    /// A part from 0 to 1.
    pub fn new(part: f64) -> Option<Self> {
        (0.0..=1.0).contains(&part).then_some(Self(part))
    }

    /// The part as a number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for SampleRate {
    fn default() -> Self {
        Self(1.0)
    }
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_on.load(Ordering::Relaxed) { "AccessLog(on)" } else { "AccessLog(off)" })
    }
}

impl fmt::Debug for AccessSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccessSink({:?}, {:?})", self.format, self.sample)
    }
}
