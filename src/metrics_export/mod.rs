//! Exports metrics by OTLP to a collector: all families at every interval, and once more at a stop.
//!
//! Values are cumulative, so an export that is lost costs nothing but its moment: the next one has newer values.

mod encode;
mod settings;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::metrics::MetricFamily;
use crate::otlp::{EncodedResource, OtlpSender, OtlpSettings, OtlpSignal};
use crate::redact::Secrets;
use encode::{ExportTimes, export_request};
use settings::MetricsExportConfig;
pub use settings::{MetricsExportSettings, MetricsVariables};

/// Reads all metrics; `None` once there is no gateway to read them from.
pub type MetricSource = Arc<dyn Fn() -> Option<Vec<MetricFamily>> + Send + Sync>;

/// Has metrics exported. Clones share everything.
#[derive(Clone)]
pub struct MetricsExporter(Arc<MetricsExporterState>);

struct MetricsExporterState {
    running: Mutex<Option<RunningExport>>,
    source: Mutex<Option<MetricSource>>,
    counters: Arc<ExportCounters>,
    /// The variables at the start, which count for every reload.
    variables: Mutex<MetricsVariables>,
    /// When counting began, in nanoseconds since 1970.
    started: u64,
}

/// The exports to one collector.
struct RunningExport {
    config: MetricsExportConfig,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// What became of exports, since the start.
#[derive(Debug, Default)]
pub struct ExportCounters {
    taken: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
}

/// The task that exports.
struct ExportTask {
    source: MetricSource,
    interval: Duration,
    sender: OtlpSender,
    resource: EncodedResource,
    counters: Arc<ExportCounters>,
    stop: CancellationToken,
    started: u64,
}

impl MetricsExporter {
    /// Whether metrics are exported.
    pub fn is_on(&self) -> bool {
        self.0.running.lock().is_some()
    }

    /// Takes over the variables of these settings and applies the settings, with metrics from `source`.
    ///
    /// # Errors
    /// When the address of the collector is not one.
    pub fn start(
        &self,
        settings: &MetricsExportSettings,
        otlp: &OtlpSettings,
        node: &str,
        source: MetricSource,
    ) -> Result<(), String> {
        *self.0.variables.lock() = settings.variables.clone();
        *self.0.source.lock() = Some(source);
        self.configure(settings, otlp, node)
    }

    /// Applies these settings, with the variables that were there at the start. Must be called within a runtime.
    ///
    /// # Errors
    /// When the address of the collector is not one; everything stays as it was.
    pub fn configure(&self, settings: &MetricsExportSettings, otlp: &OtlpSettings, node: &str) -> Result<(), String> {
        let config = settings.resolve(&self.0.variables.lock(), otlp, node)?;
        let mut running = self.0.running.lock();
        if running.as_ref().map(|running| &running.config) == config.as_ref() {
            return Ok(());
        }
        // No last export: what takes over has newer values, and an operator who turns exports off wants none.
        if let Some(before) = running.take() {
            before.task.abort();
        }
        let source = self.0.source.lock().clone();
        *running = config.zip(source).map(|(config, source)| self.run(config, source));
        Ok(())
    }

    fn run(&self, config: MetricsExportConfig, source: MetricSource) -> RunningExport {
        let stop = CancellationToken::new();
        let task = ExportTask {
            source,
            interval: config.interval,
            sender: OtlpSender::new(OtlpSignal::Metrics, &config.collector),
            resource: config.collector.encoded_resource(),
            counters: Arc::clone(&self.0.counters),
            stop: stop.clone(),
            started: self.0.started,
        };
        RunningExport { config, stop, task: tokio::spawn(task.run()) }
    }

    /// The secrets among the variables.
    pub fn secrets(&self) -> Secrets {
        Secrets::new(self.0.variables.lock().secrets().map(str::to_owned))
    }

    /// What became of exports so far.
    pub fn counters(&self) -> &ExportCounters {
        &self.0.counters
    }

    /// Exports once more and stops. Waits for it no longer than `timeout`; the export itself ends by its own.
    pub async fn stop(&self, timeout: Duration) {
        let Some(running) = self.0.running.lock().take() else { return };
        running.stop.cancel();
        if tokio::time::timeout(timeout, running.task).await.is_err() {
            tracing::warn!("metric export did not end in time; the last values may be lost");
        }
    }
}

impl ExportTask {
    /// Exports at every interval, and once more when it is stopped.
    async fn run(mut self) {
        let mut ticks = tokio::time::interval_at(Instant::now() + self.interval, self.interval);
        // After a collector that was away there is nothing to catch up with.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_last = tokio::select! {
                _ = ticks.tick() => false,
                () = self.stop.cancelled() => true,
            };
            let Some(families) = (self.source)() else { return };
            self.export(&families).await;
            if is_last {
                return;
            }
        }
    }

    async fn export(&mut self, families: &[MetricFamily]) {
        let times = ExportTimes { start: self.started, now: unix_nanoseconds().max(self.started) };
        let request = Bytes::from(export_request(&self.resource, families, times));
        let counter = match self.sender.send(request, &self.stop).await {
            Ok(rejected) if rejected.count > 0 => &self.counters.rejected,
            Ok(_) => &self.counters.taken,
            Err(error) => {
                tracing::debug!(%error, "metrics of one interval not exported");
                &self.counters.failed
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl ExportCounters {
    /// Exports by outcome.
    pub fn by_outcome(&self) -> [(&'static str, u64); 3] {
        [("ok", &self.taken), ("failed", &self.failed), ("rejected", &self.rejected)]
            .map(|(outcome, count)| (outcome, count.load(Ordering::Relaxed)))
    }
}

impl Default for MetricsExporter {
    /// Values count from now on; nothing is exported yet.
    fn default() -> Self {
        Self(Arc::new(MetricsExporterState {
            running: Mutex::default(),
            source: Mutex::default(),
            counters: Arc::default(),
            variables: Mutex::default(),
            started: unix_nanoseconds(),
        }))
    }
}

impl fmt::Debug for MetricsExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "MetricsExporter(on)" } else { "MetricsExporter(off)" })
    }
}

fn unix_nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
