//! How late the event loops wake: a timer in each of them measures its own delay.

use std::sync::Weak;
use std::time::Duration;

use tokio::time::Instant;

use super::family::{MetricFamily, MetricKind};
use super::instruments::SeriesLabels;
use super::{Metrics, OVERFLOW};
use crate::workers::current_worker;

/// The worker of a thread, by number; 0 is the main runtime.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct WorkerLabel(Option<usize>);

/// How often the delay is measured.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// Buckets of the delays, in nanoseconds. Timers have a resolution of a millisecond.
const LAG_BOUNDS: [u64; 10] = [
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
];

/// Measures the event loop that runs this, until the metrics are gone.
pub async fn measure_loop_lag(metrics: Weak<Metrics>) {
    loop {
        let due = Instant::now() + MEASURE_INTERVAL;
        tokio::time::sleep_until(due).await;
        let Some(metrics) = metrics.upgrade() else { return };
        metrics.loop_lag.observe(&WorkerLabel(Some(current_worker())), &LAG_BOUNDS, due.elapsed());
    }
}

impl Metrics {
    pub(super) fn loop_lag_family(&self) -> MetricFamily {
        let pairs = |label: &WorkerLabel| {
            vec![("worker", label.0.map_or_else(|| OVERFLOW.to_owned(), |number| number.to_string()))]
        };
        let help = "How late an event loop wakes; worker 0 is the main one";
        MetricFamily::new("event_loop_lag_seconds", help, MetricKind::Histogram, self.loop_lag.histograms(pairs))
    }
}

impl SeriesLabels for WorkerLabel {
    fn overflow() -> Self {
        Self(None)
    }
}
