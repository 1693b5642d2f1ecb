//! The `OTEL_*` variables of tracing.

use std::time::Duration;

use super::sampler::SamplerName;
use crate::otlp::{OtlpSignal, SignalVariables, VariableReader};

/// What the variables say about tracing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TraceVariables {
    pub(super) signal: SignalVariables,
    pub(super) sampler: Option<SamplerName>,
    pub(super) sample_ratio: Option<f64>,
    pub(super) interval: Option<Duration>,
    pub(super) export_timeout: Option<Duration>,
    pub(super) queue_size: Option<usize>,
    pub(super) batch_size: Option<usize>,
}

/// Most spans that a queue can hold: room for them is reserved at the start.
pub const MAX_QUEUE_SIZE: usize = 1 << 20;

impl TraceVariables {
    /// Reads the variables.
    pub fn read(reader: &mut VariableReader<'_>) -> Self {
        let ratio = "a number from 0 to 1";
        Self {
            signal: SignalVariables::read(reader, OtlpSignal::Traces),
            sampler: reader.parse("OTEL_TRACES_SAMPLER", "the name of a sampler that there is here", |text| {
                SamplerName::ALL.iter().find(|(name, _)| *name == text).map(|(_, sampler)| *sampler)
            }),
            sample_ratio: reader.parse("OTEL_TRACES_SAMPLER_ARG", ratio, |text| {
                text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio))
            }),
            interval: reader.milliseconds("OTEL_BSP_SCHEDULE_DELAY"),
            export_timeout: reader.milliseconds("OTEL_BSP_EXPORT_TIMEOUT"),
            queue_size: span_count(reader, "OTEL_BSP_MAX_QUEUE_SIZE"),
            batch_size: span_count(reader, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"),
        }
    }

    /// The values of headers, which are not to be shown.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.signal.secrets()
    }
}

fn span_count(reader: &mut VariableReader<'_>, name: &str) -> Option<usize> {
    let bounded = |text: &str| text.parse().ok().filter(|number| (1..=MAX_QUEUE_SIZE).contains(number));
    reader.parse(name, &format!("a number from 1 to {MAX_QUEUE_SIZE}"), bounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_cannot_be_used_is_named_and_ignored() {
        for (name, wrong) in [
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_TRACES_SAMPLER", "xray"),
            ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
            ("OTEL_TRACES_SAMPLER_ARG", "NaN"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
            ("OTEL_BSP_EXPORT_TIMEOUT", "soon"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "many"),
        ] {
            let find = |asked: &str| (asked == name).then(|| wrong.to_owned());
            let mut reader = VariableReader::new(&find);
            assert_eq!(TraceVariables::read(&mut reader), TraceVariables::default(), "{name}={wrong}");
            let warnings = reader.into_warnings();
            assert!(matches!(warnings.as_slice(), [warning] if warning.contains(name)), "{name}={wrong}: {warnings:?}");
        }
    }
}
