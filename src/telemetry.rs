//! Logging to standard error, and a count of panics.

mod sampling;

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::line_log::{LineLog, LineLogOptions, TextLines, push_rfc3339};
use crate::redact::redact;
use sampling::LineSampling;
pub use sampling::{SampleCounter, SampleRate, set_samples};

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// How log lines get to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogDelivery {
    /// By whoever logs, in order with what a command prints.
    Direct,
    /// By a thread of its own, so that nobody who serves a call waits for a slow reader.
    Queued,
}

/// A level of log lines, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What failed.
    Error,
    /// What may fail, or failed for one caller.
    Warn,
    /// What operators want to know.
    Info,
    /// What helps to find a fault.
    Debug,
    /// Everything.
    Trace,
}

/// Masks secrets in log lines. The subscriber writes each line with one call, so none is split.
struct RedactingWriter<W>(W);

/// Hands log lines to the thread that writes them, which masks secrets.
struct QueuedWriter(Arc<LineLog<TextLines>>);

/// Lines of standard error that may wait for their reader.
const LOG_QUEUE_CAPACITY: usize = 10_000;
/// How long lines that are in no hurry are gathered.
const LOG_BATCH_DELAY: Duration = Duration::from_millis(20);
/// How long the end of the process waits for a slow reader.
const LOG_FLUSH_TIME: Duration = Duration::from_secs(1);

/// What is logged by a process that serves clients, unless something else is configured.
pub const SERVING_FILTER: &str = "info";
/// What is logged by other commands.
pub const COMMAND_FILTER: &str = "error";

/// The lines on their way to standard error; started with the first one.
static QUEUED_LINES: OnceLock<Option<Arc<LineLog<TextLines>>>> = OnceLock::new();
static INSTALLED: OnceLock<(LogFormat, reload::Handle<EnvFilter, tracing_subscriber::Registry>)> = OnceLock::new();
static LOST_LINES: OnceLock<Arc<AtomicU64>> = OnceLock::new();

/// Lines on their way to standard error, written in order by one thread; `None` where no thread can be started.
pub fn queued_lines() -> Option<&'static Arc<LineLog<TextLines>>> {
    let start = || {
        // A copy of the descriptor, because a blocked write must not hold the lock of the standard stream.
        let target = io::stderr().as_fd().try_clone_to_owned().ok()?.into();
        let options = LineLogOptions {
            name: "log",
            capacity: LOG_QUEUE_CAPACITY,
            lossless: false,
            batch_delay: LOG_BATCH_DELAY,
            lost: Arc::clone(LOST_LINES.get_or_init(Arc::default)),
            loss_line,
            reopen: Box::new(|| Ok(None)),
            // There is nowhere else to tell it; the lost lines are counted.
            complain: Box::new(|_| {}),
        };
        LineLog::start(target, options).ok()
    };
    QUEUED_LINES.get_or_init(start).as_ref()
}

/// Lines that standard error could not take since the start.
pub fn lost_lines() -> u64 {
    LOST_LINES.get().map_or(0, |lost| lost.load(Ordering::Relaxed))
}

/// Waits until the lines so far are written, as long as a reader that still reads may need.
pub fn flush() {
    let Some(Some(lines)) = QUEUED_LINES.get() else { return };
    let (mut flushed, deadline) = (lines.flush(), Instant::now() + LOG_FLUSH_TIME);
    while flushed.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn loss_line(lost: u64) -> String {
    let mut time = String::new();
    push_rfc3339(&mut time, SystemTime::now());
    match format() {
        LogFormat::Text => format!("{time}  WARN rialto::telemetry: log lines were lost lost={lost}\n"),
        LogFormat::Json => format!(
            "{{\"timestamp\":\"{time}\",\"level\":\"WARN\",\"fields\":{{\"message\":\"log lines were lost\",\
             \"lost\":{lost}}},\"target\":\"rialto::telemetry\"}}\n"
        ),
    }
}

impl LogLevel {
    /// The level as a word of a filter.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl Write for QueuedWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(|lines| lines.0.push_str(&String::from_utf8_lossy(line)));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A line that cannot be written is lost: the subscriber would print the error to stderr, which panics when that
        // is on a full disk.
        let _ = self.0.write_all(redact(&String::from_utf8_lossy(line)).as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Counts and logs panics from now on. A panic ends its task; locks are not poisoned, and others go on.
pub fn count_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%panic, "a task panicked and was ended; others go on");
            previous(panic);
        }));
    });
}

/// Panics of this process since [`count_panics`].
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Whether `filter` is a valid `tracing` filter.
pub fn is_valid_filter(filter: &str) -> bool {
    EnvFilter::try_new(filter).is_ok()
}

/// Whether this process logs by a subscriber of ours.
pub fn is_installed() -> bool {
    INSTALLED.get().is_some()
}

/// The format of the log; text before [`init`].
pub fn format() -> LogFormat {
    INSTALLED.get().map_or(LogFormat::Text, |(format, _)| *format)
}

fn parse_filter(filter: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(filter).map_err(|error| format!("invalid log filter {filter:?}: {error}"))
}

/// Installs the global log subscriber. `filter` is a level, or targets with levels as in `rialto=debug,hyper=warn`.
///
/// # Errors
/// When the filter is invalid or a subscriber is already installed.
pub fn init(filter: &str, format: LogFormat, delivery: LogDelivery) -> Result<(), String> {
    let (filter, handle) = reload::Layer::new(parse_filter(filter)?);
    let queue = queued_lines_for(delivery);
    let make_writer = move || -> Box<dyn Write> {
        match queue {
            Some(lines) => Box::new(QueuedWriter(Arc::clone(lines))),
            None => Box::new(RedactingWriter(io::stderr())),
        }
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(make_writer)
        .with_ansi(io::stderr().is_terminal())
        .with_span_events(FmtSpan::NONE);
    let registry = tracing_subscriber::registry().with(filter).with(LineSampling);
    match format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json()).try_init(),
    }
    .map_err(|error| format!("installing the log subscriber failed: {error}"))?;
    let _ = INSTALLED.set((format, handle));
    Ok(())
}

fn queued_lines_for(delivery: LogDelivery) -> Option<&'static Arc<LineLog<TextLines>>> {
    match delivery {
        LogDelivery::Direct => None,
        LogDelivery::Queued => queued_lines(),
    }
}

/// Replaces the filter of [`init`] for what is logged from now on. Does nothing in a program that logs in its own way.
///
/// # Errors
/// When the filter is invalid.
pub fn set_filter(filter: &str) -> Result<(), String> {
    let filter = parse_filter(filter)?;
    match INSTALLED.get() {
        Some((_, handle)) => handle.reload(filter).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file on a full disk.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_line_that_cannot_be_written_is_lost_without_an_error() {
        assert_eq!(RedactingWriter(Full).write(b"line\n").unwrap(), 5);
    }
}
