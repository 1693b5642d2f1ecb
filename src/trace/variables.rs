//! The environment variables of OpenTelemetry. A value that cannot be used is reported and ignored, as its specification
//! wants it: such variables are often meant for every program of a machine.

use std::time::Duration;

use http::Uri;
use percent_encoding::percent_decode_str;

use super::otlp::OtlpProtocol;
use super::sampler::SamplerName;
use super::settings::{ExportHeaders, ResourceAttributes};

/// What the `OTEL_*` variables say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OtelVariables {
    pub(super) disabled: bool,
    pub(super) exporter: Option<TracesExporter>,
    pub(super) endpoint: Option<Uri>,
    pub(super) traces_endpoint: Option<Uri>,
    pub(super) protocol: Option<OtlpProtocol>,
    pub(super) headers: Option<ExportHeaders>,
    pub(super) timeout: Option<Duration>,
    pub(super) service_name: Option<String>,
    pub(super) resource_attributes: ResourceAttributes,
    pub(super) sampler: Option<SamplerName>,
    pub(super) sample_ratio: Option<f64>,
    pub(super) interval: Option<Duration>,
    pub(super) export_timeout: Option<Duration>,
    pub(super) queue_size: Option<usize>,
    pub(super) batch_size: Option<usize>,
}

/// The values of `OTEL_TRACES_EXPORTER` that there are here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TracesExporter {
    Otlp,
    None,
}

/// Reads variables and collects what is wrong with them.
struct VariableReader<'l> {
    lookup: &'l dyn Fn(&str) -> Option<String>,
    warnings: Vec<String>,
}

impl OtelVariables {
    /// Reads the variables; also returns a sentence for each that cannot be used.
    pub fn read(lookup: &dyn Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut reader = VariableReader { lookup, warnings: Vec::new() };
        // The variable for traces alone counts more than the one for all signals.
        let signal = |reader: &VariableReader<'_>, name: &str| {
            let own = format!("OTEL_EXPORTER_OTLP_TRACES_{name}");
            let all = format!("OTEL_EXPORTER_OTLP_{name}");
            if reader.text(&own).is_some() { own } else { all }
        };
        let protocol = signal(&reader, "PROTOCOL");
        let headers = signal(&reader, "HEADERS");
        let timeout = signal(&reader, "TIMEOUT");
        let sampler = reader.parse("OTEL_TRACES_SAMPLER", "the name of a sampler that there is here", |text| {
            SamplerName::ALL.iter().find(|(name, _)| *name == text).map(|(_, sampler)| *sampler)
        });
        let ratio = "a number from 0 to 1";
        let variables = Self {
            disabled: reader.parse("OTEL_SDK_DISABLED", "`true` or `false`", parse_boolean).unwrap_or(false),
            exporter: reader.parse("OTEL_TRACES_EXPORTER", "`otlp` or `none`", |text| match text {
                "otlp" => Some(TracesExporter::Otlp),
                "none" => Some(TracesExporter::None),
                _ => None,
            }),
            endpoint: reader.parse("OTEL_EXPORTER_OTLP_ENDPOINT", "a URL", parse_url),
            traces_endpoint: reader.parse("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "a URL", parse_url),
            protocol: reader.parse(&protocol, "`http/protobuf` or `grpc`", |text| match text {
                "http/protobuf" => Some(OtlpProtocol::HttpProtobuf),
                "grpc" => Some(OtlpProtocol::Grpc),
                _ => None,
            }),
            headers: reader.parse(&headers, "a list such as `name=value,other=value`", parse_headers),
            timeout: reader.milliseconds(&timeout),
            service_name: reader.text("OTEL_SERVICE_NAME"),
            resource_attributes: ResourceAttributes(
                reader
                    .parse("OTEL_RESOURCE_ATTRIBUTES", "a list such as `name=value,other=value`", parse_pairs)
                    .unwrap_or_default(),
            ),
            sampler,
            sample_ratio: reader.parse("OTEL_TRACES_SAMPLER_ARG", ratio, |text| {
                text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio))
            }),
            interval: reader.milliseconds("OTEL_BSP_SCHEDULE_DELAY"),
            export_timeout: reader.milliseconds("OTEL_BSP_EXPORT_TIMEOUT"),
            queue_size: reader.count("OTEL_BSP_MAX_QUEUE_SIZE"),
            batch_size: reader.count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"),
        };
        (variables, reader.warnings)
    }

    pub(super) fn has_endpoint(&self) -> bool {
        self.endpoint.is_some() || self.traces_endpoint.is_some()
    }

    /// The values of headers, which are not to be shown.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().flat_map(|headers| headers.0.iter().map(|(_, value)| value.as_str()))
    }
}

impl VariableReader<'_> {
    /// The value of a variable; an empty one counts as unset.
    fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.trim().is_empty())
    }

    fn parse<T>(&mut self, name: &str, expected: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(name)?;
        let parsed = parse(text.trim());
        if parsed.is_none() {
            // The value is not shown: it may be a secret in the wrong variable.
            self.warnings.push(format!("the variable {name} must be {expected}; it is ignored"));
        }
        parsed
    }

    fn milliseconds(&mut self, name: &str) -> Option<Duration> {
        let positive = |text: &str| text.parse().ok().filter(|number| *number > 0).map(Duration::from_millis);
        self.parse(name, "a number of milliseconds above 0", positive)
    }

    fn count(&mut self, name: &str) -> Option<usize> {
        let bounded = |text: &str| text.parse().ok().filter(|number| (1..=MAX_QUEUE_SIZE).contains(number));
        self.parse(name, &format!("a number from 1 to {MAX_QUEUE_SIZE}"), bounded)
    }
}

/// Most spans that a queue can hold: room for them is reserved at the start.
pub const MAX_QUEUE_SIZE: usize = 1 << 20;

fn parse_boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

fn parse_url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    (matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some_and(|host| !host.is_empty()))
        .then_some(url)
}

/// A list as in the `baggage` header: names and percent-encoded values.
fn parse_pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let decoded = |text: &str| percent_decode_str(text.trim()).decode_utf8().ok().map(std::borrow::Cow::into_owned);
        let key = decoded(key).filter(|key| !key.is_empty())?;
        Some((key, decoded(value)?))
    });
    pairs.collect()
}

fn parse_headers(text: &str) -> Option<ExportHeaders> {
    let pairs = parse_pairs(text)?;
    let is_valid = |(name, value): &(String, String)| {
        http::HeaderName::from_bytes(name.as_bytes()).is_ok() && http::HeaderValue::from_str(value).is_ok()
    };
    pairs.iter().all(is_valid).then_some(ExportHeaders(pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_cannot_be_used_is_named_and_ignored() {
        for (name, wrong) in [
            ("OTEL_SDK_DISABLED", "yes"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://collector"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "/v1/traces"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "s3cret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x y=s3cret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x=a%0ab"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_RESOURCE_ATTRIBUTES", "=x"),
            ("OTEL_TRACES_SAMPLER", "xray"),
            ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
            ("OTEL_TRACES_SAMPLER_ARG", "NaN"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
            ("OTEL_BSP_EXPORT_TIMEOUT", "soon"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "many"),
        ] {
            let (variables, warnings) = OtelVariables::read(&|asked| (asked == name).then(|| wrong.to_owned()));
            assert_eq!(variables, OtelVariables::default(), "{name}={wrong}");
            assert_eq!(warnings.len(), 1, "{name}={wrong}: {warnings:?}");
            assert!(warnings[0].contains(name) && !warnings[0].contains("s3cret"), "{warnings:?}");
        }
    }

    #[test]
    fn empty_variables_count_as_unset() {
        assert_eq!(OtelVariables::read(&|_| Some(" ".to_owned())), (OtelVariables::default(), Vec::new()));
    }

    #[test]
    fn the_variable_for_traces_counts_more_than_the_one_for_all() {
        let find = |name: &str| match name {
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" => Some("grpc".to_owned()),
            "OTEL_EXPORTER_OTLP_PROTOCOL" => Some("http/protobuf".to_owned()),
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT" => Some("7".to_owned()),
            _ => None,
        };
        let (variables, _) = OtelVariables::read(&find);
        assert_eq!(variables.protocol, Some(OtlpProtocol::Grpc));
        assert_eq!(variables.timeout, Some(Duration::from_millis(7)));
    }
}
