//! What counts and measures. Each worker adds to a shard of its own, without a lock; a reader sums the shards.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::family::{HistogramPoint, MetricLabels, MetricPoint, PointValue};
use crate::workers::current_worker;

/// Number of shards; workers beyond it share them.
const SHARDS: usize = 8;
/// Most series that a family has; what is left of its label sets shares one.
const MAX_SERIES: usize = 2000;
/// Most buckets of a histogram, with the last one.
const MAX_BUCKETS: usize = 15;

/// A value for each worker, made when the worker first needs it.
#[derive(Debug)]
struct Sharded<T>([OnceLock<Box<T>>; SHARDS]);

/// Counts what happens.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<SharedCounter>);

/// A counter of the whole process.
#[derive(Debug)]
pub struct SharedCounter(Sharded<CounterShard>);

/// Apart in memory, so that workers do not wait for one another's cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CounterShard(AtomicU64);

/// A histogram of durations.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds of the buckets but the last, in nanoseconds.
    bounds: &'static [u64],
    shards: Sharded<HistogramShard>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct HistogramShard {
    buckets: [AtomicU64; MAX_BUCKETS],
    sum_nanos: AtomicU64,
}

/// The labels of a series, from a bounded set.
pub(super) trait SeriesLabels: Clone + Eq + Hash {
    /// The labels of the series that counts what has no series of its own.
    fn overflow() -> Self;
}

/// Series by their labels. Looking one up takes no lock.
#[derive(Debug)]
pub(super) struct SeriesMap<L, T> {
    series: ArcSwap<HashMap<L, Arc<T>, RandomState>>,
    adding: Mutex<()>,
}

impl<T> Sharded<T> {
    const fn new() -> Self {
        Self([const { OnceLock::new() }; SHARDS])
    }

    fn shards(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(OnceLock::get).map(|shard| &**shard)
    }
}

impl<T: Default> Sharded<T> {
    #[inline]
    fn own(&self) -> &T {
        self.0[current_worker() % SHARDS].get_or_init(Box::default)
    }
}

impl SharedCounter {
    /// A counter at zero.
    pub const fn new() -> Self {
        Self(Sharded::new())
    }

    /// Adds to the counter.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.own().0.fetch_add(count, Ordering::Relaxed);
    }

    /// The sum of all workers.
    pub fn value(&self) -> u64 {
        self.0.shards().map(|shard| shard.0.load(Ordering::Relaxed)).sum()
    }
}

impl Default for SharedCounter {
    fn default() -> Self {
        Self::new()
    }
}

impl Counter {
    /// Adds one.
    #[inline]
    pub fn increment(&self) {
        self.0.add(1);
    }

    /// The sum of all workers.
    pub fn value(&self) -> u64 {
        self.0.value()
    }
}

impl Histogram {
    /// A histogram with these upper bounds, in nanoseconds; at most 14.
    pub const fn new(bounds: &'static [u64]) -> Self {
        assert!(bounds.len() < MAX_BUCKETS, "a histogram has room for its buckets");
        Self { bounds, shards: Sharded::new() }
    }

    /// Adds a duration.
    #[inline]
    pub fn observe(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = self.bounds.iter().position(|bound| nanos <= *bound).unwrap_or(self.bounds.len());
        let shard = self.shards.own();
        shard.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        shard.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The observations so far.
    pub fn read(&self) -> HistogramPoint {
        let mut point = HistogramPoint {
            bounds: self.bounds.iter().map(|bound| seconds(*bound)).collect(),
            buckets: vec![0; self.bounds.len() + 1],
            sum: 0.0,
        };
        for shard in self.shards.shards() {
            for (sum, bucket) in point.buckets.iter_mut().zip(&shard.buckets) {
                *sum += bucket.load(Ordering::Relaxed);
            }
            point.sum += seconds(shard.sum_nanos.load(Ordering::Relaxed));
        }
        point
    }
}

#[allow(clippy::cast_precision_loss, reason = "durations beyond a hundred days need no nanoseconds")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

impl<L: SeriesLabels, T> SeriesMap<L, T> {
    pub(super) fn new() -> Self {
        Self { series: ArcSwap::from_pointee(HashMap::default()), adding: Mutex::new(()) }
    }

    /// Gives the series of these labels to `record`.
    #[inline]
    pub(super) fn with<R>(&self, labels: &L, new: impl FnOnce() -> T, record: impl FnOnce(&T) -> R) -> R {
        match self.series.load().get(labels) {
            Some(series) => record(series),
            None => record(&self.add(labels, new)),
        }
    }

    #[cold]
    fn add(&self, labels: &L, new: impl FnOnce() -> T) -> Arc<T> {
        let _adding = self.adding.lock();
        let known = self.series.load();
        let labels = if known.len() < MAX_SERIES { labels.clone() } else { L::overflow() };
        if let Some(series) = known.get(&labels) {
            return Arc::clone(series);
        }
        let series = Arc::new(new());
        let mut more = HashMap::clone(&known);
        more.insert(labels, Arc::clone(&series));
        self.series.store(Arc::new(more));
        series
    }

    /// The points of all series.
    fn points(&self, pairs: impl Fn(&L) -> MetricLabels, value: impl Fn(&T) -> PointValue) -> Vec<MetricPoint> {
        let known = self.series.load();
        let point = |(labels, series): (&L, &Arc<T>)| MetricPoint { labels: pairs(labels), value: value(series) };
        let mut points: Vec<_> = known.iter().map(point).collect();
        points.sort_by(|one, other| one.labels.cmp(&other.labels));
        points
    }
}

impl<L: SeriesLabels> SeriesMap<L, Counter> {
    /// The counter of these labels.
    pub(super) fn counter(&self, labels: &L) -> Counter {
        self.with(labels, Counter::default, Counter::clone)
    }

    /// Adds one to the counter of these labels.
    #[inline]
    pub(super) fn increment(&self, labels: &L) {
        self.with(labels, Counter::default, Counter::increment);
    }

    pub(super) fn counts(&self, pairs: impl Fn(&L) -> MetricLabels) -> Vec<MetricPoint> {
        self.points(pairs, |counter| PointValue::Integer(i64::try_from(counter.value()).unwrap_or(i64::MAX)))
    }
}

impl<L: SeriesLabels> SeriesMap<L, Histogram> {
    /// Adds a duration to the histogram of these labels.
    #[inline]
    pub(super) fn observe(&self, labels: &L, bounds: &'static [u64], duration: Duration) {
        self.with(labels, || Histogram::new(bounds), |histogram| histogram.observe(duration));
    }

    /// How many durations were added, by labels, and whether all labels have a series of their own.
    pub(super) fn observations(&self) -> (Vec<(L, u64)>, bool) {
        let known = self.series.load();
        let count = |histogram: &Histogram| histogram.read().buckets.iter().sum();
        (known.iter().map(|(labels, histogram)| (labels.clone(), count(histogram))).collect(), known.len() < MAX_SERIES)
    }

    pub(super) fn histograms(&self, pairs: impl Fn(&L) -> MetricLabels) -> Vec<MetricPoint> {
        self.points(pairs, |histogram| PointValue::Histogram(histogram.read()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Number(usize);

    impl SeriesLabels for Number {
        fn overflow() -> Self {
            Self(usize::MAX)
        }
    }

    fn pairs(number: &Number) -> MetricLabels {
        vec![("number", number.0.to_string())]
    }

    #[test]
    fn series_beyond_the_limit_share_one() {
        let map = SeriesMap::<Number, Counter>::new();
        for number in 0..MAX_SERIES + 50 {
            map.increment(&Number(number));
        }
        map.increment(&Number(3));
        let points = map.counts(pairs);
        assert_eq!(points.len(), MAX_SERIES + 1);
        let value = |number: usize| {
            points.iter().find(|point| point.labels == pairs(&Number(number))).map(|point| point.value.clone())
        };
        assert_eq!(value(3), Some(PointValue::Integer(2)));
        assert_eq!(value(usize::MAX), Some(PointValue::Integer(50)));
    }

    #[test]
    fn threads_add_to_one_histogram() {
        static BOUNDS: [u64; 2] = [1_000_000, 1_000_000_000];
        let histogram = Histogram::new(&BOUNDS);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for duration in [Duration::from_millis(1), Duration::from_millis(2), Duration::from_secs(2)] {
                        histogram.observe(duration);
                    }
                });
            }
        });
        let point = histogram.read();
        assert_eq!((point.buckets.as_slice(), point.count()), ([4, 4, 4].as_slice(), 12));
        assert!((point.sum - 8.012).abs() < 1e-9, "{}", point.sum);
    }
}
