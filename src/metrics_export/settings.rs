//! Whether and how often metrics are exported: the settings of the file with the `OTEL_*` variables over them.

use std::time::Duration;

use crate::otlp::{CollectorConfig, OtlpSettings, OtlpSignal, SignalVariables, VariableReader};

/// Settings of metrics by OTLP, as the file has them.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricsExportSettings {
    /// Whether metrics are exported; by default where there is an endpoint.
    pub enabled: Option<bool>,
    /// Time between two exports.
    pub interval: Duration,
    /// The variables, which count more.
    pub variables: MetricsVariables,
}

/// What the `OTEL_*` variables say about metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricsVariables {
    signal: SignalVariables,
    interval: Option<Duration>,
    export_timeout: Option<Duration>,
}

/// Everything that is decided about exports that are on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MetricsExportConfig {
    pub(super) collector: CollectorConfig,
    pub(super) interval: Duration,
}

impl Default for MetricsExportSettings {
    fn default() -> Self {
        Self { enabled: None, interval: Duration::from_secs(60), variables: MetricsVariables::default() }
    }
}

impl MetricsVariables {
    /// Reads the variables.
    pub fn read(reader: &mut VariableReader<'_>) -> Self {
        Self {
            signal: SignalVariables::read(reader, OtlpSignal::Metrics),
            interval: reader.milliseconds("OTEL_METRIC_EXPORT_INTERVAL"),
            export_timeout: reader.milliseconds("OTEL_METRIC_EXPORT_TIMEOUT"),
        }
    }

    /// The values of headers, which are not to be shown.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.signal.secrets()
    }
}

impl MetricsExportSettings {
    /// What is to be done; `None` where exports are off.
    pub(super) fn resolve(
        &self,
        variables: &MetricsVariables,
        otlp: &OtlpSettings,
        node: &str,
    ) -> Result<Option<MetricsExportConfig>, String> {
        let resolved = otlp.resolve(OtlpSignal::Metrics, self.enabled, &variables.signal, node)?;
        let Some(mut collector) = resolved else { return Ok(None) };
        let interval = variables.interval.unwrap_or(self.interval);
        let longest = variables.export_timeout.unwrap_or(collector.export_timeout);
        // When the next export is due, values of before are not sent again; but one request has its full time.
        collector.export_timeout = longest.min(interval.max(collector.timeout));
        Ok(Some(MetricsExportConfig { collector, interval }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(settings: &MetricsExportSettings, variables: &[(&str, &str)]) -> Option<MetricsExportConfig> {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let mut reader = VariableReader::new(&find);
        let read = MetricsVariables::read(&mut reader);
        assert_eq!(reader.into_warnings(), Vec::<String>::new());
        settings.resolve(&read, &OtlpSettings::default(), "").unwrap()
    }

    #[test]
    fn variables_count_more_than_the_file() {
        const ON: (&str, &str) = ("OTEL_METRICS_EXPORTER", "otlp");
        let settings = MetricsExportSettings::default();
        assert_eq!(resolve(&settings, &[]), None);
        let times = |variables: &[(&str, &str)]| {
            let config = resolve(&settings, variables).unwrap();
            (config.interval.as_millis(), config.collector.export_timeout.as_millis())
        };
        assert_eq!(times(&[ON]), (60_000, 30_000));
        assert_eq!(times(&[ON, ("OTEL_METRIC_EXPORT_INTERVAL", "15000")]), (15_000, 15_000));
        assert_eq!(times(&[ON, ("OTEL_METRIC_EXPORT_INTERVAL", "20")]), (20, 10_000), "a request has its full time");
        assert_eq!(times(&[ON, ("OTEL_METRIC_EXPORT_TIMEOUT", "700")]), (60_000, 700));
        let off = MetricsExportSettings { enabled: Some(false), ..settings.clone() };
        assert_eq!(resolve(&off, &[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:1/x")]), None);
        assert!(resolve(&off, &[ON]).is_some());
    }

    #[test]
    fn an_interval_that_cannot_be_used_is_named() {
        for (name, wrong) in [("OTEL_METRIC_EXPORT_INTERVAL", "0"), ("OTEL_METRIC_EXPORT_TIMEOUT", "1m")] {
            let find = |asked: &str| (asked == name).then(|| wrong.to_owned());
            let mut reader = VariableReader::new(&find);
            assert_eq!(MetricsVariables::read(&mut reader), MetricsVariables::default());
            assert!(matches!(reader.into_warnings().as_slice(), [warning] if warning.contains(name)));
        }
    }
}
