//! Figures of calls from the counters that exist, read every ten seconds into an hour of history.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::api::rfc3339;
use crate::inbound::Inbound;

/// The history of the counters.
#[derive(Debug, Default)]
pub(super) struct FigureHistory(Mutex<VecDeque<CounterSample>>);

/// The counters at one moment.
#[derive(Debug, Clone)]
pub(super) struct CounterSample {
    at: SystemTime,
    servers: BTreeMap<String, ServerCounters>,
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

/// Name, labels and value of a line of metrics.
type MetricLine<'l> = (&'l str, Vec<(&'l str, &'l str)>, f64);
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
        let now = CounterSample::read(inbound);
        let begin = now.at.checked_sub(range).unwrap_or(SystemTime::UNIX_EPOCH);
        let samples = self.0.lock();
        // The sample just before the range is what the first step is counted from.
        let first = samples.iter().position(|sample| sample.at >= begin).unwrap_or(samples.len()).saturating_sub(1);
        samples.iter().skip(first).cloned().chain([now]).collect()
    }
}

impl CounterSample {
    fn read(inbound: &Inbound) -> Self {
        let mut servers: BTreeMap<String, ServerCounters> = BTreeMap::new();
        let mut waited_sum = (0, 0);
        for line in inbound.admin.metrics().lines() {
            if let Some((name, labels, value)) = parse_line(line) {
                let label = |key: &str| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
                let is_call = label("mcp_method_name").is_some_and(|method| FORWARDED.contains(&method));
                match name {
                    "mcp_server_operation_duration_seconds_sum" if is_call => waited_sum.0 += micros(value),
                    "mcp_server_operation_duration_seconds_count" if is_call => waited_sum.1 += whole(value),
                    _ => {}
                }
                let Some(server) = label("upstream").filter(|server| *server != OWN_LABEL) else { continue };
                if !servers.contains_key(server) && servers.len() == MAX_SERVERS {
                    continue;
                }
                let counters = servers.entry(server.to_owned()).or_default();
                let bound = label("le").map(parse_bound);
                match (name, bound) {
                    ("rialto_calls_total", _) => {
                        let outcome = label("outcome").unwrap_or_default().to_owned();
                        *counters.outcomes.entry(outcome).or_default() += whole(value);
                    }
                    ("mcp_client_operation_duration_seconds_bucket", Some(bound)) => {
                        *counters.took.entry(bound).or_default() += whole(value);
                    }
                    ("mcp_client_operation_duration_seconds_sum", _) if is_call => {
                        counters.took_sum.0 += micros(value);
                    }
                    ("mcp_client_operation_duration_seconds_count", _) if is_call => {
                        counters.took_sum.1 += whole(value);
                    }
                    _ => {}
                }
            }
        }
        Self { at: SystemTime::now(), servers, waited_sum, sessions: inbound.sessions.count() }
    }

    fn total(&self) -> ServerCounters {
        let mut total = ServerCounters::default();
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
    let seconds = last.at.duration_since(first.at).unwrap_or_default().as_secs_f64().max(1.0);
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
    samples.first().map(|first| inbound.calls.overheads(first.at)).unwrap_or_default()
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
    json!({
        "from": rfc3339(samples.first().map_or_else(SystemTime::now, |sample| sample.at)),
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
    let minute = samples.last()?.at.checked_sub(Duration::from_secs(60))?;
    let first = samples.iter().position(|sample| sample.at >= minute)?.saturating_sub(1);
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

/// A value that counts something.
fn whole(value: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are whole and positive")]
    let whole = value as u64;
    whole
}

/// Seconds in microseconds.
fn micros(value: f64) -> u64 {
    whole(value * 1e6)
}

/// The name, the labels and the value of a line of metrics.
fn parse_line(line: &str) -> Option<MetricLine<'_>> {
    if line.starts_with('#') {
        return None;
    }
    let (name, rest) = line.split_once('{')?;
    let (labels, value) = rest.rsplit_once("} ")?;
    let labels = labels.split("\",").filter_map(|pair| pair.split_once("=\""));
    let labels = labels.map(|(key, value)| (key, value.trim_end_matches('"'))).collect();
    Some((name, labels, value.split(' ').next()?.parse().ok()?))
}

fn parse_bound(text: &str) -> Bound {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounds are small and positive")]
    text.parse::<f64>().ok().filter(|bound| bound.is_finite()).map_or(Bound::MAX, |bound| (bound * 1e6) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_metrics_is_taken_apart() {
        let line = r#"rialto_calls_total{group="default",upstream="a",method="tools/call",outcome="ok"} 12"#;
        let (name, labels, value) = parse_line(line).unwrap();
        assert_eq!((name, whole(value)), ("rialto_calls_total", 12));
        assert_eq!(labels[3], ("outcome", "ok"));
        assert_eq!(parse_line("# HELP x y"), None);
        assert_eq!((parse_bound("0.005"), parse_bound("+Inf")), (5000, Bound::MAX));
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
