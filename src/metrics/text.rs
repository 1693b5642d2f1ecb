//! Metrics as text: OpenMetrics, or the format that Prometheus had before it.

use std::fmt::Write;

use super::family::{HistogramPoint, MetricFamily, MetricKind, MetricLabels, PointValue};

/// How metrics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format 0.0.4 of Prometheus.
    Prometheus,
}

impl TextFormat {
    /// The format that a client takes, by the values of its `Accept` header.
    pub fn accepted(accept: Option<&[u8]>) -> Self {
        let takes_open_metrics = accept.is_some_and(|accept| {
            let accept = String::from_utf8_lossy(accept);
            accept.split(',').any(|kind| kind.trim().starts_with("application/openmetrics-text"))
        });
        if takes_open_metrics { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Renders families; of one without series its description, so that rules and dashboards can be checked.
    pub fn render(self, families: &[MetricFamily]) -> String {
        let mut out = String::new();
        for family in families {
            self.write_family(&mut out, family);
        }
        if self == Self::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }

    fn write_family(self, out: &mut String, family: &MetricFamily) {
        let name = family.prometheus_name();
        let kind = match family.kind {
            MetricKind::Gauge => "gauge",
            MetricKind::Counter => "counter",
            MetricKind::Histogram => "histogram",
        };
        let total = if family.kind == MetricKind::Counter { "_total" } else { "" };
        // OpenMetrics names the family of a counter without the end that its samples have.
        let described = if self == Self::OpenMetrics { "" } else { total };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {name}{described} {}", family.help);
        let _ = writeln!(out, "# TYPE {name}{described} {kind}");
        if let (Self::OpenMetrics, Some(unit)) = (self, family.unit.suffix()) {
            let _ = writeln!(out, "# UNIT {name} {unit}");
        }
        for point in &family.points {
            match &point.value {
                PointValue::Integer(value) => write_sample(out, (&name, total), (&point.labels, None), value),
                PointValue::Float(value) => write_sample(out, (&name, total), (&point.labels, None), value),
                PointValue::Histogram(histogram) => write_histogram(out, &name, &point.labels, histogram),
            }
        }
    }
}

impl MetricFamily {
    /// The name that Prometheus gives the family, without `_total`: dots become underscores, and the unit is the end.
    pub fn prometheus_name(&self) -> String {
        let mut name = self.name.replace('.', "_");
        if let Some(unit) = self.unit.suffix().filter(|unit| !name.ends_with(unit)) {
            name.push('_');
            name.push_str(unit);
        }
        name
    }
}

fn write_histogram(out: &mut String, name: &str, labels: &MetricLabels, histogram: &HistogramPoint) {
    let mut below = 0;
    for (n, count) in histogram.buckets.iter().enumerate() {
        below += count;
        let bound = histogram.bounds.get(n).map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound:?}"));
        write_sample(out, (name, "_bucket"), (labels, Some(&bound)), &below);
    }
    write_sample(out, (name, "_sum"), (labels, None), &histogram.sum);
    write_sample(out, (name, "_count"), (labels, None), &below);
}

fn write_sample(
    out: &mut String,
    (name, end): (&str, &str),
    (labels, bound): (&MetricLabels, Option<&str>),
    value: &dyn std::fmt::Display,
) {
    out.push_str(name);
    out.push_str(end);
    let mut separator = '{';
    for (label, value) in labels.iter().map(|(label, value)| (*label, value.as_str())).chain(bound.map(|le| ("le", le)))
    {
        out.push(separator);
        out.extend(label.chars().map(|letter| if letter == '.' { '_' } else { letter }));
        out.push_str("=\"");
        for letter in value.chars() {
            match letter {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                _ => out.push(letter),
            }
        }
        out.push('"');
        separator = ',';
    }
    if separator == ',' {
        out.push('}');
    }
    let _ = writeln!(out, " {value}");
}

#[cfg(test)]
mod tests {
    use super::super::family::{MetricPoint, MetricUnit};
    use super::*;

    fn families() -> [MetricFamily; 3] {
        let histogram = HistogramPoint { bounds: vec![0.01, 1.0], buckets: vec![2, 0, 1], sum: 3.5 };
        [
            MetricFamily {
                name: "mcp.server.operation.duration".to_owned(),
                help: "How long",
                unit: MetricUnit::Seconds,
                kind: MetricKind::Histogram,
                points: vec![MetricPoint {
                    labels: vec![("mcp.method.name", "tools/call".to_owned())],
                    value: PointValue::Histogram(histogram),
                }],
            },
            MetricFamily::new(
                "received_bytes",
                "Bytes",
                MetricKind::Counter,
                vec![MetricPoint { labels: vec![("tool", "a\"b\\c\nd".to_owned())], value: PointValue::Integer(7) }],
            ),
            MetricFamily::new("nothing", "Has no series", MetricKind::Gauge, Vec::new()),
        ]
    }

    #[test]
    fn both_formats_name_counters_and_units_as_their_specifications_say() {
        let samples = concat!(
            "mcp_server_operation_duration_seconds_bucket{mcp_method_name=\"tools/call\",le=\"0.01\"} 2\n",
            "mcp_server_operation_duration_seconds_bucket{mcp_method_name=\"tools/call\",le=\"1.0\"} 2\n",
            "mcp_server_operation_duration_seconds_bucket{mcp_method_name=\"tools/call\",le=\"+Inf\"} 3\n",
            "mcp_server_operation_duration_seconds_sum{mcp_method_name=\"tools/call\"} 3.5\n",
            "mcp_server_operation_duration_seconds_count{mcp_method_name=\"tools/call\"} 3\n",
        );
        let bytes = "rialto_received_bytes_total{tool=\"a\\\"b\\\\c\\nd\"} 7\n";
        assert_eq!(
            TextFormat::Prometheus.render(&families()),
            format!(
                "# HELP mcp_server_operation_duration_seconds How long\n\
                 # TYPE mcp_server_operation_duration_seconds histogram\n{samples}\
                 # HELP rialto_received_bytes_total Bytes\n# TYPE rialto_received_bytes_total counter\n{bytes}\
                 # HELP rialto_nothing Has no series\n# TYPE rialto_nothing gauge\n"
            )
        );
        assert_eq!(
            TextFormat::OpenMetrics.render(&families()),
            format!(
                "# HELP mcp_server_operation_duration_seconds How long\n\
                 # TYPE mcp_server_operation_duration_seconds histogram\n\
                 # UNIT mcp_server_operation_duration_seconds seconds\n{samples}\
                 # HELP rialto_received_bytes Bytes\n# TYPE rialto_received_bytes counter\n\
                 # UNIT rialto_received_bytes bytes\n{bytes}\
                 # HELP rialto_nothing Has no series\n# TYPE rialto_nothing gauge\n# EOF\n"
            )
        );
    }

    #[test]
    fn a_client_gets_openmetrics_if_it_takes_it() {
        let prometheus = b"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;q=0.2";
        assert_eq!(TextFormat::accepted(Some(prometheus)), TextFormat::OpenMetrics);
        for other in [None, Some(b"*/*".as_slice()), Some(b"text/plain")] {
            assert_eq!(TextFormat::accepted(other), TextFormat::Prometheus);
        }
    }
}
