//! What is traced: the settings of the file with the `OTEL_*` variables over them.

use std::time::Duration;

use super::sampler::{Sampler, SamplerName};
use super::variables::TraceVariables;
use crate::otlp::{CollectorConfig, OtlpSettings, OtlpSignal};

/// Settings of tracing, as the file has them.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSettings {
    /// Whether spans are exported; by default where there is an endpoint.
    pub enabled: Option<bool>,
    /// Who decides what is traced.
    pub sampler: SamplerName,
    /// The part of traces, for samplers that have one.
    pub sample_ratio: f64,
    /// Spans that may wait for the collector.
    pub queue_size: usize,
    /// Most spans of a request to the collector.
    pub batch_size: usize,
    /// How long spans wait for others.
    pub interval: Duration,
    /// The variables, which count more.
    pub variables: TraceVariables,
}

/// Everything that is decided about tracing that is on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TraceConfig {
    pub(super) collector: CollectorConfig,
    pub(super) sampler: Sampler,
    pub(super) queue_size: usize,
    pub(super) batch_size: usize,
    pub(super) interval: Duration,
}

/// Spans that may wait, where nothing says how many (as `OTEL_BSP_*` define it).
const DEFAULT_QUEUE_SIZE: usize = 2048;
const DEFAULT_BATCH_SIZE: usize = 512;

impl Default for TraceSettings {
    fn default() -> Self {
        Self {
            enabled: None,
            sampler: SamplerName::ParentBasedAlwaysOn,
            sample_ratio: 1.0,
            queue_size: DEFAULT_QUEUE_SIZE,
            batch_size: DEFAULT_BATCH_SIZE,
            interval: Duration::from_secs(5),
            variables: TraceVariables::default(),
        }
    }
}

impl TraceSettings {
    /// What is to be done; `None` where tracing is off. `node` names this process among others of the service.
    ///
    /// # Errors
    /// When the address of the collector is not one.
    pub(super) fn resolve(&self, otlp: &OtlpSettings, node: &str) -> Result<Option<TraceConfig>, String> {
        let variables = &self.variables;
        let resolved = otlp.resolve(OtlpSignal::Traces, self.enabled, &variables.signal, node)?;
        let Some(mut collector) = resolved else { return Ok(None) };
        collector.export_timeout = variables.export_timeout.unwrap_or(collector.export_timeout);
        let batch_size = variables.batch_size.unwrap_or(self.batch_size);
        let queue_size = variables.queue_size.unwrap_or(self.queue_size).max(1);
        let sampler = variables.sampler.unwrap_or(self.sampler);
        // Without a ratio of its own, a sampler that is named by a variable takes everything.
        let file_ratio = if variables.sampler.is_some() { 1.0 } else { self.sample_ratio };
        Ok(Some(TraceConfig {
            collector,
            sampler: sampler.with_ratio(variables.sample_ratio.unwrap_or(file_ratio)),
            queue_size,
            batch_size: batch_size.clamp(1, queue_size),
            interval: variables.interval.unwrap_or(self.interval),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::VariableReader;

    #[test]
    fn variables_count_more_than_the_file() {
        let find = |name: &str| {
            let value = match name {
                "OTEL_TRACES_EXPORTER" => "otlp",
                "OTEL_TRACES_SAMPLER" => "traceidratio",
                "OTEL_TRACES_SAMPLER_ARG" => "0.25",
                "OTEL_BSP_MAX_QUEUE_SIZE" => "10",
                "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" => "20",
                "OTEL_BSP_EXPORT_TIMEOUT" => "1500",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let mut reader = VariableReader::new(&find);
        let variables = TraceVariables::read(&mut reader);
        assert_eq!(reader.into_warnings(), Vec::<String>::new());
        let file = TraceSettings { sample_ratio: 0.5, variables, ..TraceSettings::default() };
        let config = file.resolve(&OtlpSettings::default(), "").unwrap().unwrap();
        assert_eq!(config.collector.export_timeout, Duration::from_millis(1500));
        assert_eq!(config.sampler, SamplerName::TraceIdRatio.with_ratio(0.25));
        assert_eq!((config.queue_size, config.batch_size), (10, 10), "a batch is no larger than the queue");
    }
}
