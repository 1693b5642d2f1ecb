//! Logs, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Whether a filter can be read.
pub fn is_filter(filter: &str) -> bool {
    EnvFilter::try_new(filter).is_ok()
}

/// Starts logging. `filter` is a level, or targets with levels as in `rialto=debug,hyper=warn`.
///
/// # Errors
/// When the filter cannot be read, or logging was started before.
pub fn start(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter =
        EnvFilter::try_new(filter).map_err(|error| format!("the log filter {filter:?} cannot be read: {error}"))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_span_events(FmtSpan::NONE);
    match format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().try_init(),
    }
    .map_err(|error| format!("logging cannot start: {error}"))
}
