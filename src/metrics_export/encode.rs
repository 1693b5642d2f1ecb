//! OTLP: the protobuf messages of metrics, as `opentelemetry/proto/collector/metrics/v1` defines them.

use crate::metrics::{HistogramPoint, MetricFamily, MetricKind, MetricPoint, PointValue};
use crate::otlp::{self, EncodedResource, MessageWriter};

/// The period that cumulative values cover, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExportTimes {
    /// When counting began.
    pub(super) start: u64,
    /// When the values were read.
    pub(super) now: u64,
}

/// `AggregationTemporality` of values that count from the start.
const CUMULATIVE: u64 = 2;
/// Room for a point with its labels; most have less.
const POINT_BYTES: usize = 256;

/// An `ExportMetricsServiceRequest` with these families. Those without a series are left out.
pub(super) fn export_request(resource: &EncodedResource, families: &[MetricFamily], times: ExportTimes) -> Vec<u8> {
    let points: usize = families.iter().map(|family| family.points.len()).sum();
    otlp::export_request(resource, points * POINT_BYTES, |writer| {
        for family in families.iter().filter(|family| !family.points.is_empty()) {
            writer.message(2, |metric| write_metric(metric, family, times));
        }
    })
}

fn write_metric(writer: &mut MessageWriter<'_>, family: &MetricFamily, times: ExportTimes) {
    writer.text(1, &family.name);
    writer.text(2, family.help);
    writer.text(3, family.unit.ucum());
    // The number of the field says what the data is.
    let field = match family.kind {
        MetricKind::Gauge => 5,
        MetricKind::Counter => 7,
        MetricKind::Histogram => 9,
    };
    writer.message(field, |data| {
        for point in &family.points {
            data.message(1, |writer| write_point(writer, family.kind, point, times));
        }
        if family.kind != MetricKind::Gauge {
            data.number(2, CUMULATIVE);
        }
        if family.kind == MetricKind::Counter {
            data.number(3, u64::from(true));
        }
    });
}

fn write_point(writer: &mut MessageWriter<'_>, kind: MetricKind, point: &MetricPoint, times: ExportTimes) {
    // A gauge covers no period.
    if kind != MetricKind::Gauge {
        writer.fixed_64(2, times.start);
    }
    writer.fixed_64(3, times.now);
    let labels_field = match &point.value {
        PointValue::Integer(number) => {
            writer.fixed_64(6, number.cast_unsigned());
            7
        }
        PointValue::Float(number) => {
            writer.fixed_64(4, number.to_bits());
            7
        }
        PointValue::Histogram(histogram) => {
            write_histogram(writer, histogram);
            9
        }
    };
    for (name, value) in &point.labels {
        writer.text_attribute(labels_field, name, value);
    }
}

fn write_histogram(writer: &mut MessageWriter<'_>, histogram: &HistogramPoint) {
    writer.fixed_64(4, histogram.count());
    writer.fixed_64(5, histogram.sum.to_bits());
    writer.packed_64(6, histogram.buckets.iter().copied());
    writer.packed_64(7, histogram.bounds.iter().map(|bound| bound.to_bits()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{MetricLabels, MetricUnit};
    use crate::otlp::{FieldValue, fields};

    const TIMES: ExportTimes = ExportTimes { start: 5, now: 9 };

    fn family(name: &str, kind: MetricKind, labels: MetricLabels, value: PointValue) -> MetricFamily {
        let points = vec![MetricPoint { labels, value }];
        MetricFamily { name: name.to_owned(), help: "What it is", unit: MetricUnit::Seconds, kind, points }
    }

    /// The metrics of a request with these families.
    fn encoded(families: &[MetricFamily]) -> Vec<Vec<u8>> {
        let resource = EncodedResource::new([("service.name", "it")]);
        let request = export_request(&resource, families, TIMES);
        let resource_metrics = only(&request, 1);
        assert_eq!(only(&only(&only(&resource_metrics, 1), 1), 1), b"service.name");
        let scope_metrics = only(&resource_metrics, 2);
        assert_eq!(only(&only(&scope_metrics, 1), 1), b"rialto");
        all(&scope_metrics, 2)
    }

    fn all(message: &[u8], wanted: u64) -> Vec<Vec<u8>> {
        let bytes = |(field, value)| match value {
            FieldValue::Bytes(bytes) if field == wanted => Some(bytes.to_vec()),
            _ => None,
        };
        fields(message).filter_map(bytes).collect()
    }

    fn only(message: &[u8], wanted: u64) -> Vec<u8> {
        let found = all(message, wanted);
        assert_eq!(found.len(), 1, "field {wanted}");
        found.into_iter().next().unwrap()
    }

    fn numbers(message: &[u8]) -> Vec<(u64, u64)> {
        let number = |(field, value)| match value {
            FieldValue::Number(number) => Some((field, number)),
            FieldValue::Bytes(_) => None,
        };
        fields(message).filter_map(number).collect()
    }

    /// Whether a message has this number of eight bytes.
    fn has_fixed_64(message: &[u8], field: u8, number: u64) -> bool {
        let mut expected = vec![field << 3 | 1];
        expected.extend_from_slice(&number.to_le_bytes());
        message.windows(expected.len()).any(|part| part == expected)
    }

    #[test]
    fn a_counter_is_a_monotonic_cumulative_sum() {
        let labels = vec![("outcome", "ok".to_owned())];
        let metrics = encoded(&[family("rialto_calls", MetricKind::Counter, labels, PointValue::Integer(7))]);
        assert_eq!((only(&metrics[0], 1), only(&metrics[0], 2)), (b"rialto_calls".to_vec(), b"What it is".to_vec()));
        assert_eq!(only(&metrics[0], 3), b"s");
        let sum = only(&metrics[0], 7);
        assert_eq!(numbers(&sum), [(2, CUMULATIVE), (3, 1)]);
        let point = only(&sum, 1);
        assert!(has_fixed_64(&point, 2, 5) && has_fixed_64(&point, 3, 9) && has_fixed_64(&point, 6, 7));
        let label = only(&point, 7);
        assert_eq!((only(&label, 1), only(&only(&label, 2), 1)), (b"outcome".to_vec(), b"ok".to_vec()));
    }

    #[test]
    fn a_gauge_has_no_start_and_may_be_negative_or_a_fraction() {
        let gauge = |value| family("rialto_lag", MetricKind::Gauge, Vec::new(), value);
        let metrics = encoded(&[gauge(PointValue::Integer(-1)), gauge(PointValue::Float(0.25))]);
        let points: Vec<_> = metrics.iter().map(|metric| only(&only(metric, 5), 1)).collect();
        assert!(has_fixed_64(&points[0], 6, u64::MAX) && has_fixed_64(&points[1], 4, 0.25f64.to_bits()));
        assert!(points.iter().all(|point| has_fixed_64(point, 3, 9) && !has_fixed_64(point, 2, 5)));
        assert!(metrics.iter().all(|metric| numbers(&only(metric, 5)).is_empty()));
    }

    #[test]
    fn a_histogram_has_count_sum_bounds_and_one_bucket_more() {
        let histogram = HistogramPoint { bounds: vec![0.5, 1.0], buckets: vec![2, 0, 300], sum: 3.5 };
        let labels = vec![("mcp.method.name", "tools/call".to_owned())];
        let kind = MetricKind::Histogram;
        let metrics = encoded(&[family("mcp.x", kind, labels, PointValue::Histogram(histogram))]);
        let data = only(&metrics[0], 9);
        assert_eq!(numbers(&data), [(2, CUMULATIVE)]);
        let point = only(&data, 1);
        assert!(
            has_fixed_64(&point, 2, 5) && has_fixed_64(&point, 4, 302) && has_fixed_64(&point, 5, 3.5f64.to_bits())
        );
        assert_eq!(only(&point, 6), [2u64, 0, 300].map(u64::to_le_bytes).concat());
        assert_eq!(only(&point, 7), [0.5f64, 1.0].map(f64::to_le_bytes).concat());
        assert_eq!(only(&only(&point, 9), 1), b"mcp.method.name");
    }

    #[test]
    fn a_family_without_series_is_left_out() {
        let nothing = MetricFamily::new("nothing", "Has no series", MetricKind::Gauge, Vec::new());
        assert!(encoded(&[nothing]).is_empty());
    }
}
