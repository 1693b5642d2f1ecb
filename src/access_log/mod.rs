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
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

use crate::line_log::{LineLog, TextLines};
use crate::recorder::Recorder;
use crate::telemetry::{self, LogFormat, SampleCounter, SampleRate};
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
    /// Takes the part of the requests that succeed which is logged.
    sample: SampleCounter,
}

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
            Arc::new(AccessSink { lines, format, sample: SampleCounter::new(settings.sample) })
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

impl From<LogFormat> for AccessFormat {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
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
