//! What a scrape or an export sees: families of data points, whatever counted them.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::redact::redact;

/// The prefix of every metric name that no convention has.
const PREFIX: &str = "rialto";

/// One metric with all its series at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricFamily {
    /// The name as OpenTelemetry has it: without `_total`, and without the unit where the name has dots.
    pub name: String,
    /// The help text.
    pub help: &'static str,
    /// What its values count.
    pub unit: MetricUnit,
    /// How its values change.
    pub kind: MetricKind,
    /// One point for each series.
    pub points: Vec<MetricPoint>,
}

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that rises and falls.
    Gauge,
    /// A value that only rises while the process runs; Prometheus knows it with `_total`.
    Counter,
    /// A cumulative histogram.
    Histogram,
}

/// What the values of a metric count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricUnit {
    /// Things, which the name says.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// The labels of a series: names and values.
pub type MetricLabels = Vec<(&'static str, String)>;

/// One series at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricPoint {
    /// What distinguishes it from the other series of its family.
    pub labels: MetricLabels,
    /// Its value.
    pub value: PointValue,
}

/// The value of a series.
#[derive(Debug, Clone, PartialEq)]
pub enum PointValue {
    /// Of a counter or a gauge.
    Integer(i64),
    /// Of a gauge.
    Float(f64),
    /// Of a histogram.
    Histogram(HistogramPoint),
}

/// The observations of a histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramPoint {
    /// Upper bounds of the buckets in seconds, inclusive, without the last one, which has none.
    pub bounds: Vec<f64>,
    /// Observations in each bucket, not cumulative; one more than `bounds`.
    pub buckets: Vec<u64>,
    /// Sum of the observations in seconds.
    pub sum: f64,
}

/// A metric that is read when somebody asks for it.
#[derive(Debug)]
pub struct MetricsReading {
    /// The metric name without the common prefix.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// Whether it is a gauge or a counter.
    pub kind: MetricKind,
    /// Its pairs and value of each series.
    pub values: Vec<(MetricLabels, i64)>,
}

impl MetricUnit {
    /// The unit in the notation of UCUM, as OpenTelemetry writes it. Counts have none: gauges in `1` are ratios to those who
    /// translate to Prometheus, and get that word into their names.
    pub fn ucum(self) -> &'static str {
        match self {
            Self::Count => "",
            Self::Bytes => "By",
            Self::Seconds => "s",
        }
    }

    /// The unit at the end of a Prometheus name.
    pub(super) fn suffix(self) -> Option<&'static str> {
        match self {
            Self::Count => None,
            Self::Bytes => Some("bytes"),
            Self::Seconds => Some("seconds"),
        }
    }

    /// The unit that a Prometheus name says.
    fn of_name(name: &str) -> Self {
        [Self::Bytes, Self::Seconds]
            .into_iter()
            .find(|unit| unit.suffix().is_some_and(|suffix| name.ends_with(suffix)))
            .unwrap_or(Self::Count)
    }
}

impl HistogramPoint {
    /// The number of observations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl MetricFamily {
    /// A family whose name ends with its unit, if it has one; the common prefix is added.
    pub fn new(name: &str, help: &'static str, kind: MetricKind, points: Vec<MetricPoint>) -> Self {
        Self { name: format!("{PREFIX}_{name}"), help, unit: MetricUnit::of_name(name), kind, points }
    }

    /// The family without the secrets of the configuration. Series that only a secret told apart become one: a scrape with
    /// two of the same labels is refused.
    #[must_use]
    pub fn redacted(mut self) -> Self {
        let mut is_masked = false;
        for (_, value) in self.points.iter_mut().flat_map(|point| &mut point.labels) {
            if let Cow::Owned(masked) = redact(value) {
                (*value, is_masked) = (masked, true);
            }
        }
        if is_masked {
            self.merge_series();
        }
        self
    }

    /// Adds up the series with the same labels.
    fn merge_series(&mut self) {
        let mut places: HashMap<MetricLabels, usize> = HashMap::new();
        let mut merged: Vec<MetricPoint> = Vec::new();
        for point in std::mem::take(&mut self.points) {
            match places.get(&point.labels) {
                Some(place) => merged[*place].value.add(point.value),
                None => {
                    places.insert(point.labels.clone(), merged.len());
                    merged.push(point);
                }
            }
        }
        self.points = merged;
    }
}

impl PointValue {
    /// Adds a value of the same metric.
    fn add(&mut self, other: Self) {
        match (self, other) {
            (Self::Integer(sum), Self::Integer(value)) => *sum += value,
            (Self::Float(sum), Self::Float(value)) => *sum += value,
            (Self::Histogram(sum), Self::Histogram(value)) => {
                sum.buckets.iter_mut().zip(value.buckets).for_each(|(bucket, count)| *bucket += count);
                sum.sum += value.sum;
            }
            // A metric has values of one type.
            (Self::Integer(_) | Self::Float(_) | Self::Histogram(_), _) => {}
        }
    }
}

impl From<MetricsReading> for MetricFamily {
    fn from(reading: MetricsReading) -> Self {
        let point = |(labels, value)| MetricPoint { labels, value: PointValue::Integer(value) };
        let points = reading.values.into_iter().map(point).collect();
        Self::new(reading.name, reading.help, reading.kind, points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_with_the_same_labels_are_added_up() {
        let point = |label: &str, value| MetricPoint { labels: vec![("origin", label.to_owned())], value };
        let histogram = |buckets: [u64; 2], sum| HistogramPoint { bounds: vec![1.0], buckets: buckets.into(), sum };
        for (one, other, both) in [
            (PointValue::Integer(2), PointValue::Integer(3), PointValue::Integer(5)),
            (PointValue::Float(0.5), PointValue::Float(0.25), PointValue::Float(0.75)),
            (
                PointValue::Histogram(histogram([1, 2], 4.0)),
                PointValue::Histogram(histogram([3, 0], 1.0)),
                PointValue::Histogram(histogram([4, 2], 5.0)),
            ),
        ] {
            let points = vec![point("***", one), point("other", both.clone()), point("***", other)];
            let mut family = MetricFamily::new("connections", "Connections", MetricKind::Gauge, points);
            family.merge_series();
            assert_eq!(family.points, [point("***", both.clone()), point("other", both)]);
        }
    }
}
