//! What is exported, and where a collector takes it.

/// A kind of data that collectors take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtlpSignal {
    /// Spans.
    Traces,
    /// Metrics.
    Metrics,
}

impl OtlpSignal {
    /// The word in the names of its variables.
    pub fn variable_part(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
        }
    }

    /// What is added to the address of a collector over HTTP.
    pub(super) fn http_path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
        }
    }

    /// The path of the method of the collector's gRPC service.
    pub(super) fn grpc_method(self) -> &'static str {
        match self {
            Self::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        }
    }

    /// What is exported, in lines of the log.
    pub(super) fn log_word(self) -> &'static str {
        match self {
            Self::Traces => "span",
            Self::Metrics => "metric",
        }
    }
}
