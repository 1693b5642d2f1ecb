//! Figures of calls from the counters that exist, read every ten seconds into an hour of history.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::api::rfc3339;
use crate::inbound::Inbound;
use crate::metrics::{HistogramPoint, MetricPoint, PointValue};
use crate::recorder::nanos;

/// The history of the counters.
#[derive(Debug, Default)]
pub(super) struct FigureHistory(Mutex<VecDeque<CounterSample>>);

/// The counters at one moment.
#[derive(Debug, Clone)]
pub(super) struct CounterSample {
    /// When, by the clock of records, which does not jump.
    nanos: u64,
    /// The time of day, which is shown and counts for nothing.
    at: SystemTime,
    servers: BTreeMap<String, ServerCounters>,
    /// Calls for servers that went to none: their tool is unknown, its server is down, or the caller may not use it.
    unforwarded: ServerCounters,
    /// Microseconds that clients waited for calls that servers answer, and these calls.
    waited_sum: (u64, u64),
    sessions: usize,
}

/// The counters of the calls to one server.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ServerCounters {
    /// Calls by outcome.
    outcomes: BTreeMap<String, u64>,
    /// Upper bound in seconds and calls that took no longer.
    took: BTreeMap<Bound, u64>,
    /// Microseconds that servers took together, and calls.
    took_sum: (u64, u64),
}

/// The server of a recorded call, and the microseconds that Rialto added.
pub(super) type RecordedOverhead = (String, u64);
/// Upper bound of a bucket, in microseconds; the last one has none.
type Bound = u64;

/// How often the counters are read.
pub(super) const STEP: Duration = Duration::from_secs(10);
/// How much history there is.
pub(super) const MAX_RANGE: Duration = Duration::from_secs(3600);
/// Samples of an hour, and the one before.
const MAX_SAMPLES: usize = 361;
/// Servers that have figures.
const MAX_SERVERS: usize = 64;
/// Methods that servers answer.
const FORWARDED: [&str; 4] = ["tools/call", "prompts/get", "resources/read", "completion/complete"];
/// Label of calls that the gateway answers itself.
const OWN_LABEL: &str = "rialto";

impl FigureHistory {
    /// Reads the counters into the history.
    pub(super) fn read(&self, inbound: &Inbound) {
        let sample = CounterSample::read(inbound);
        let mut samples = self.0.lock();
        if samples.len() == MAX_SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// The samples of the last while, oldest first; the last one is of now.
    pub(super) fn since(&self, range: Duration, inbound: &Inbound) -> Vec<CounterSample> {
        self.until(CounterSample::read(inbound), range)
    }

    fn until(&self, now: CounterSample, range: Duration) -> Vec<CounterSample> {
        let (begin, samples) = (now.before(range), self.0.lock());
        // The sample just before the range is what the first step is counted from.
        let first = samples.iter().position(|sample| sample.nanos >= begin).unwrap_or(samples.len()).saturating_sub(1);
        samples.iter().skip(first).cloned().chain([now]).collect()
    }
}

impl CounterSample {
    fn new(nanos: u64, at: SystemTime, sessions: usize) -> Self {
        let (servers, unforwarded) = (BTreeMap::new(), ServerCounters::default());
        Self { nanos, at, servers, unforwarded, waited_sum: (0, 0), sessions }
    }

    /// A moment before this sample, by the clock of records.
    fn before(&self, time: Duration) -> u64 {
        self.nanos.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// How long after another sample this one was read.
    fn time_since(&self, other: &Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(other.nanos))
    }

    fn read(inbound: &Inbound) -> Self {
        let mut sample = Self::new(nanos(), SystemTime::now(), inbound.sessions.count());
        for family in inbound.gateway.metrics().families(Vec::new()) {
            for point in &family.points {
                sample.add(&family.name, point);
            }
        }
        sample
    }

    /// Adds a series of metrics, if it tells of calls.
    fn add(&mut self, name: &str, point: &MetricPoint) {
        let label = |key: &str| point.labels.iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_str());
        let method = label("mcp.method.name").or_else(|| label("method"));
        let is_call = method.is_some_and(|method| FORWARDED.contains(&method));
        match (name, &point.value) {
            ("mcp.server.operation.duration", PointValue::Histogram(waited)) if is_call => {
                add_times(&mut self.waited_sum, waited);
            }
            ("mcp.client.operation.duration", PointValue::Histogram(took)) => {
                let Some(counters) = label("upstream").and_then(|server| self.counters_of(server)) else { return };
                let mut below = 0;
                let bounds = took.bounds.iter().map(|bound| micros(*bound)).chain([Bound::MAX]);
                for (bound, count) in bounds.zip(&took.buckets) {
                    below += count;
                    *counters.took.entry(bound).or_default() += below;
                }
                if is_call {
                    add_times(&mut counters.took_sum, took);
                }
            }
            ("rialto_calls", PointValue::Integer(calls)) => {
                let outcome = label("outcome").unwrap_or_default().to_owned();
                let counters = match label("upstream") {
                    // Other answers of the gateway are none that a server would have given.
                    Some(OWN_LABEL) => is_call.then_some(&mut self.unforwarded),
                    server => server.and_then(|server| self.counters_of(server)),
                };
                if let Some(counters) = counters {
                    *counters.outcomes.entry(outcome).or_default() += u64::try_from(*calls).unwrap_or_default();
                }
            }
            _ => {}
        }
    }

    /// The counters of a server, where it has figures.
    fn counters_of(&mut self, server: &str) -> Option<&mut ServerCounters> {
        if !self.servers.contains_key(server) {
            if server == OWN_LABEL || self.servers.len() == MAX_SERVERS {
                return None;
            }
            self.servers.insert(server.to_owned(), ServerCounters::default());
        }
        self.servers.get_mut(server)
    }

    fn total(&self) -> ServerCounters {
        let mut total = self.unforwarded.clone();
        for counters in self.servers.values() {
            total.add(counters);
        }
        total
    }

    fn of(&self, server: Option<&str>) -> ServerCounters {
        match server {
            Some(server) => self.servers.get(server).cloned().unwrap_or_default(),
            None => self.total(),
        }
    }
}

impl ServerCounters {
    fn add(&mut self, other: &Self) {
        let add = |into: &mut BTreeMap<Bound, u64>, from: &BTreeMap<Bound, u64>| {
            from.iter().for_each(|(bound, count)| *into.entry(*bound).or_default() += count);
        };
        add(&mut self.took, &other.took);
        self.took_sum = (self.took_sum.0 + other.took_sum.0, self.took_sum.1 + other.took_sum.1);
        other.outcomes.iter().for_each(|(word, count)| *self.outcomes.entry(word.clone()).or_default() += count);
    }

    /// What was counted since a sample before.
    fn since(&self, before: &Self) -> Self {
        let minus = |now: &BTreeMap<Bound, u64>, before: &BTreeMap<Bound, u64>| {
            let rest = |(bound, count): (&Bound, &u64)| {
                (*bound, count.saturating_sub(before.get(bound).copied().unwrap_or_default()))
            };
            now.iter().map(rest).collect()
        };
        let outcome = |(word, count): (&String, &u64)| {
            (word.clone(), count.saturating_sub(before.outcomes.get(word).copied().unwrap_or_default()))
        };
        Self {
            outcomes: self.outcomes.iter().map(outcome).collect(),
            took: minus(&self.took, &before.took),
            took_sum: difference(self.took_sum, before.took_sum),
        }
    }

    pub(super) fn calls(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// Calls that got no answer, or an error.
    pub(super) fn failed(&self) -> u64 {
        ["error", "unavailable"].iter().filter_map(|word| self.outcomes.get(*word)).sum()
    }

    pub(super) fn outcomes(&self) -> &BTreeMap<String, u64> {
        &self.outcomes
    }

    fn failed_ratio(&self) -> f64 {
        ratio(self.failed(), self.calls())
    }
}

/// Figures of the samples: since the first one.
pub(super) fn summary(samples: &[CounterSample], server: Option<&str>) -> (ServerCounters, f64) {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return (ServerCounters::default(), 0.0) };
    let counted = last.of(server).since(&first.of(server));
    let seconds = last.time_since(first).as_secs_f64().max(1.0);
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    let rate = counted.calls() as f64 / seconds;
    (counted, rate)
}

/// Figures of the whole gateway.
pub(super) fn gateway_figures(samples: &[CounterSample], inbound: &Inbound) -> Value {
    let (counted, rate) = summary(samples, None);
    let stats = inbound.sessions.stats();
    json!({
        "at": rfc3339(samples.last().map_or_else(SystemTime::now, |sample| sample.at)),
        "calls_per_s": rate,
        "failed": counted.failed_ratio(),
        "server_us": quantiles(&counted.took),
        "rialto_us": overhead(samples, &overheads(samples, inbound), None),
        "sessions": inbound.sessions.count(),
        "streams": stats.open_streams,
        "calls_in_flight": inbound.shutdown.calls_in_flight(),
        "parked": inbound.gateway.parked_calls(),
    })
}

/// Figures of one server.
pub(super) fn server_figures(samples: &[CounterSample], recorded: &[RecordedOverhead], server: &str) -> Value {
    let (counted, rate) = summary(samples, Some(server));
    let since_start = samples.last().map(|sample| sample.of(Some(server))).unwrap_or_default();
    json!({
        "calls": since_start.calls(),
        "failed": since_start.failed(),
        "calls_per_s": rate,
        "failed_ratio": counted.failed_ratio(),
        "server_us": quantiles(&counted.took),
        "rialto_us": overhead(samples, recorded, Some(server)),
        "series": steps(samples, Some(server)).map(|(step, _)| step.calls()).collect::<Vec<_>>(),
    })
}

/// What Rialto added to recorded calls in the time of the samples.
pub(super) fn overheads(samples: &[CounterSample], inbound: &Inbound) -> Vec<RecordedOverhead> {
    samples.first().map(|first| inbound.calls.overheads(first.nanos)).unwrap_or_default()
}

/// What Rialto adds to calls: quantiles of those that are recorded, and the mean of all by their counters, which know
/// no quantile of a difference.
fn overhead(samples: &[CounterSample], recorded: &[RecordedOverhead], server: Option<&str>) -> Value {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return quantiles(&BTreeMap::new()) };
    let is_asked = |(of, _): &&RecordedOverhead| server.is_none_or(|server| of == server);
    let mut times: Vec<u64> = recorded.iter().filter(is_asked).map(|(_, time)| *time).collect();
    times.sort_unstable();
    let at = |part: usize| times.get((times.len() * part / 100).min(times.len().saturating_sub(1)));
    let mean = if server.is_none() { mean_overhead(first, last) } else { None };
    json!({ "p50": at(50), "p99": at(99), "mean": mean })
}

/// The time that clients waited longer than servers took, for each call between two samples.
fn mean_overhead(before: &CounterSample, now: &CounterSample) -> Option<u64> {
    let (waited, calls) = difference(now.waited_sum, before.waited_sum);
    let (took, _) = difference(now.total().took_sum, before.total().took_sum);
    waited.saturating_sub(took).checked_div(calls)
}

fn difference(now: (u64, u64), before: (u64, u64)) -> (u64, u64) {
    (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1))
}

/// Calls since the start, by outcome.
pub(super) fn server_outcomes(samples: &[CounterSample], server: &str) -> BTreeMap<String, u64> {
    samples.last().map(|sample| sample.of(Some(server)).outcomes().clone()).unwrap_or_default()
}

/// The samples as series.
pub(super) fn series(samples: &[CounterSample], server: Option<&str>) -> Value {
    let steps: Vec<(ServerCounters, usize)> = steps(samples, server).collect();
    let p = |place: f64, of: fn(&ServerCounters) -> &BTreeMap<Bound, u64>| -> Vec<Option<u64>> {
        steps.iter().map(|(step, _)| quantile(of(step), place)).collect()
    };
    let range = samples.first().zip(samples.last()).map(|(first, last)| (last.at, last.time_since(first)));
    let begin = range.and_then(|(at, time)| at.checked_sub(time)).unwrap_or_else(SystemTime::now);
    json!({
        "from": rfc3339(begin),
        "step_us": u64::try_from(STEP.as_micros()).unwrap_or_default(),
        "calls": steps.iter().map(|(step, _)| step.calls()).collect::<Vec<_>>(),
        "failed": steps.iter().map(|(step, _)| step.failed()).collect::<Vec<_>>(),
        "server_p50_us": p(0.5, |step| &step.took),
        "server_p99_us": p(0.99, |step| &step.took),
        "rialto_p50_us": samples.windows(2).map(|pair| mean_overhead(&pair[0], &pair[1])).collect::<Vec<_>>(),
        "sessions": steps.iter().map(|(_, sessions)| sessions).collect::<Vec<_>>(),
    })
}

/// The part of calls that failed in the last minute, if there were enough to tell.
pub(super) fn recent_error_ratio(samples: &[CounterSample], server: Option<&str>) -> Option<f64> {
    const FEW: u64 = 20;
    let minute = samples.last()?.before(Duration::from_secs(60));
    let first = samples.iter().position(|sample| sample.nanos >= minute)?.saturating_sub(1);
    let (counted, _) = summary(&samples[first..], server);
    (counted.calls() >= FEW).then(|| counted.failed_ratio())
}

fn steps<'s>(
    samples: &'s [CounterSample],
    server: Option<&'s str>,
) -> impl Iterator<Item = (ServerCounters, usize)> + 's {
    samples.windows(2).map(move |pair| (pair[1].of(server).since(&pair[0].of(server)), pair[1].sessions))
}

pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    let ratio = part as f64 / whole.max(1) as f64;
    ratio
}

fn quantiles(buckets: &BTreeMap<Bound, u64>) -> Value {
    json!({ "p50": quantile(buckets, 0.5), "p99": quantile(buckets, 0.99) })
}

/// A quantile of a cumulative histogram, between the bounds of its bucket.
fn quantile(buckets: &BTreeMap<Bound, u64>, place: f64) -> Option<u64> {
    let all = *buckets.values().last()?;
    if all == 0 {
        return None;
    }
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    let wanted = place * all as f64;
    let (mut below, mut lower) = (0, 0);
    for (bound, count) in buckets {
        #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
        if *count as f64 >= wanted {
            if *bound == Bound::MAX {
                return Some(lower);
            }
            let part = (wanted - below as f64) / (count - below).max(1) as f64;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the bucket")]
            return Some(lower + ((*bound - lower) as f64 * part) as u64);
        }
        (below, lower) = (*count, *bound);
    }
    None
}

/// Adds the sum of a histogram in microseconds, and the number of its observations.
fn add_times(sum: &mut (u64, u64), times: &HistogramPoint) {
    *sum = (sum.0 + micros(times.sum), sum.1 + times.count());
}

/// Seconds in microseconds.
fn micros(seconds: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "durations are positive")]
    let micros = (seconds * 1e6) as u64;
    micros
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_of(points: &[(&str, MetricPoint)]) -> CounterSample {
        let mut sample = CounterSample::new(0, SystemTime::UNIX_EPOCH, 0);
        points.iter().for_each(|(name, point)| sample.add(name, point));
        sample
    }

    fn point(labels: &[(&'static str, &str)], value: PointValue) -> MetricPoint {
        MetricPoint { labels: labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(), value }
    }

    #[test]
    fn calls_that_reach_no_server_count_for_the_gateway_alone() {
        let calls = |upstream, method, outcome, count| {
            let labels = [("group", "all"), ("upstream", upstream), ("method", method), ("outcome", outcome)];
            ("rialto_calls", point(&labels, PointValue::Integer(count)))
        };
        let sample = sample_of(&[
            calls("a", "tools/call", "ok", 6),
            calls("a", "tools/call", "error", 1),
            calls(OWN_LABEL, "tools/call", "error", 3),
            calls(OWN_LABEL, "tools/list", "ok", 100),
        ]);
        assert_eq!((sample.total().calls(), sample.total().failed()), (10, 4));
        assert_eq!((sample.of(Some("a")).calls(), sample.of(Some("a")).failed()), (7, 1));
        assert_eq!(sample.servers.len(), 1);
    }

    #[test]
    fn a_clock_that_jumps_changes_no_figure() {
        const HOUR: Duration = Duration::from_secs(3600);
        let wall = SystemTime::UNIX_EPOCH + HOUR * 24;
        let sample = |step: u32, at| {
            let labels = [("upstream", "a"), ("method", "tools/call"), ("outcome", "error")];
            let mut sample = CounterSample::new(u64::from(step) * 10_000_000_000, at, 0);
            sample.add("rialto_calls", &point(&labels, PointValue::Integer(i64::from(step) * 20)));
            sample
        };
        for jumped in [wall - HOUR, wall + HOUR] {
            let history = FigureHistory::default();
            history.0.lock().extend((0..12).map(|step| sample(step, if step < 6 { wall } else { jumped })));
            let samples = history.until(sample(12, jumped), Duration::from_secs(60));
            assert_eq!(samples.len(), 8, "a minute, and the sample before it");
            let (counted, rate) = summary(&samples, Some("a"));
            assert_eq!((counted.calls(), rate), (140, 2.0));
            assert_eq!(recent_error_ratio(&samples, Some("a")), Some(1.0));
            assert_eq!(series(&samples, None)["from"], rfc3339(jumped - STEP * 7));
        }
    }

    #[test]
    fn buckets_of_all_series_of_a_server_are_added_up() {
        let took = |method, buckets: [u64; 3]| {
            let histogram = HistogramPoint { bounds: vec![0.001, 0.005], buckets: buckets.to_vec(), sum: 0.25 };
            let labels = [("upstream", "a"), ("mcp.method.name", method)];
            ("mcp.client.operation.duration", point(&labels, PointValue::Histogram(histogram)))
        };
        let sample = sample_of(&[took("tools/call", [1, 2, 3]), took("resources/read", [1, 0, 0])]);
        let counters = sample.of(Some("a"));
        assert_eq!(counters.took, BTreeMap::from([(1000, 2), (5000, 4), (Bound::MAX, 7)]));
        assert_eq!(counters.took_sum, (500_000, 7));
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let buckets = BTreeMap::from([(1000, 50), (10_000, 100), (Bound::MAX, 100)]);
        assert_eq!(quantile(&buckets, 0.5), Some(1000));
        assert_eq!(quantile(&buckets, 0.75), Some(5500));
        assert_eq!(quantile(&BTreeMap::from([(1000, 0), (Bound::MAX, 0)]), 0.5), None);
        assert_eq!(quantile(&BTreeMap::from([(1000, 0), (Bound::MAX, 3)]), 0.5), Some(1000), "at least");
    }
}
