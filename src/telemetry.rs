//! Logging to standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
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
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_span_events(FmtSpan::NONE);
    match format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().try_init(),
    }
    .map_err(|error| format!("installing the log subscriber failed: {error}"))
}
