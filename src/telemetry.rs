//! Logging to standard error, and a count of panics.

use std::io::{self, IsTerminal, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::redact::redact;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Masks secrets in log lines. The subscriber writes each line with one call, so none is split.
struct RedactingWriter<W>(W);

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(redact(&String::from_utf8_lossy(line)).as_bytes())?;
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

/// Installs the global log subscriber. `filter` is a level, or targets with levels as in `rialto=debug,hyper=warn`.
///
/// # Errors
/// When the filter is invalid or a subscriber is already installed.
pub fn init(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| format!("invalid log filter {filter:?}: {error}"))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| RedactingWriter(io::stderr()))
        .with_ansi(io::stderr().is_terminal())
        .with_span_events(FmtSpan::NONE);
    match format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().try_init(),
    }
    .map_err(|error| format!("installing the log subscriber failed: {error}"))
}
