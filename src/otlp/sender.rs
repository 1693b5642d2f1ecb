//! Sends export requests, again where that may help, and tells the log when that begins to fail and when it works again.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client::OtlpClient;
use super::settings::CollectorConfig;
use super::signal::OtlpSignal;

/// The way to the collector for one signal.
pub struct OtlpSender {
    client: OtlpClient,
    signal: OtlpSignal,
    /// How long a request is tried.
    export_timeout: Duration,
    /// Whether the last request failed; the log is told of the first and of the end only.
    is_failing: bool,
}

/// What the collector rejected of a request that it took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RejectedItems {
    /// How many spans or data points.
    pub count: u64,
    /// The reason that the collector gives.
    pub why: String,
}

/// The first delay before a request is sent again.
const RETRY_INITIAL_DELAY: Duration = Duration::from_millis(500);
/// The shortest one, even where the collector asks for none: a request must not be sent in a busy loop.
const RETRY_MIN_DELAY: Duration = Duration::from_millis(100);
/// The longest one, unless the collector asks for more.
const RETRY_MAX_DELAY: Duration = Duration::from_secs(10);

impl OtlpSender {
    /// A sender to this collector, which has not connected yet.
    pub fn new(signal: OtlpSignal, collector: &CollectorConfig) -> Self {
        let client = OtlpClient::new(collector);
        Self { client, signal, export_timeout: collector.export_timeout, is_failing: false }
    }

    /// Sends a request, again and again where that may help, until its time is up; once `stop` is cancelled, once only.
    ///
    /// # Errors
    /// When the collector did not take the request. The log has been told.
    pub async fn send(&mut self, request: Bytes, stop: &CancellationToken) -> Result<RejectedItems, String> {
        let deadline = Instant::now() + self.export_timeout;
        let request = self.client.pack(request);
        let mut delay = RETRY_INITIAL_DELAY;
        let error = loop {
            let sent = tokio::time::timeout_at(deadline, self.client.export(request.clone())).await;
            let error = match sent {
                Ok(Ok(rejected)) => return Ok(self.record_success(rejected)),
                Ok(Err(error)) => error,
                Err(_) => break "the collector did not answer in time".to_owned(),
            };
            let wait = error.retry_after.map_or(delay, |asked| asked.max(RETRY_MIN_DELAY));
            // While the gateway stops, nobody waits for a collector that is away.
            let gives_up = !error.is_retryable || Instant::now() + wait > deadline || stop.is_cancelled();
            if gives_up {
                break error.why;
            }
            self.complain(&error.why);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => {}
            }
            delay = (delay * 2).min(RETRY_MAX_DELAY);
        };
        self.complain(&error);
        Err(error)
    }

    fn record_success(&mut self, rejected: RejectedItems) -> RejectedItems {
        let signal = self.signal.log_word();
        if rejected != RejectedItems::default() {
            let RejectedItems { count, why } = &rejected;
            tracing::warn!(rejected = count, reason = why, "{signal} export: the collector rejected a part");
        }
        if std::mem::take(&mut self.is_failing) {
            tracing::info!(collector = self.client.name(), "{signal} export works again");
        }
        rejected
    }

    fn complain(&mut self, error: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            let signal = self.signal.log_word();
            tracing::warn!(collector = self.client.name(), error, "{signal} export failed; calls are not affected");
        }
    }
}

impl std::fmt::Debug for OtlpSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtlpSender").field("collector", &self.client.name()).finish_non_exhaustive()
    }
}
