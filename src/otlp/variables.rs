//! The environment variables of OpenTelemetry. A value that cannot be used is reported and ignored, as its specification
//! wants it: such variables are often meant for every program of a machine.

use std::time::Duration;

use http::Uri;
use percent_encoding::percent_decode_str;

use super::client::{OtlpCompression, OtlpProtocol};
use super::settings::{ExportHeaders, ResourceAttributes};
use super::signal::OtlpSignal;

/// What the `OTEL_*` variables say about one signal.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SignalVariables {
    pub(super) disabled: bool,
    pub(super) exporter: Option<SignalExporter>,
    /// The address for all signals.
    pub(super) endpoint: Option<Uri>,
    /// The address for this signal alone.
    pub(super) own_endpoint: Option<Uri>,
    pub(super) protocol: Option<OtlpProtocol>,
    pub(super) compression: Option<OtlpCompression>,
    pub(super) headers: Option<ExportHeaders>,
    pub(super) timeout: Option<Duration>,
    pub(super) service_name: Option<String>,
    pub(super) resource_attributes: ResourceAttributes,
}

/// The values of `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` that there are here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalExporter {
    Otlp,
    None,
}

/// Reads variables and collects what is wrong with them.
pub struct VariableReader<'l> {
    lookup: &'l dyn Fn(&str) -> Option<String>,
    warnings: Vec<String>,
}

impl SignalVariables {
    /// Reads the variables of a signal and those of all signals, which count less.
    pub fn read(reader: &mut VariableReader<'_>, signal: OtlpSignal) -> Self {
        let part = signal.variable_part();
        let most_specific = |reader: &VariableReader<'_>, name: &str| {
            let own = format!("OTEL_EXPORTER_OTLP_{part}_{name}");
            let all = format!("OTEL_EXPORTER_OTLP_{name}");
            if reader.text(&own).is_some() { own } else { all }
        };
        let protocol = most_specific(reader, "PROTOCOL");
        let headers = most_specific(reader, "HEADERS");
        let timeout = most_specific(reader, "TIMEOUT");
        let compression = most_specific(reader, "COMPRESSION");
        let list = "a list such as `name=value,other=value`";
        Self {
            disabled: reader.parse("OTEL_SDK_DISABLED", "`true` or `false`", parse_boolean).unwrap_or(false),
            exporter: reader.parse(&format!("OTEL_{part}_EXPORTER"), "`otlp` or `none`", |text| match text {
                "otlp" => Some(SignalExporter::Otlp),
                "none" => Some(SignalExporter::None),
                _ => None,
            }),
            endpoint: reader.parse("OTEL_EXPORTER_OTLP_ENDPOINT", "a URL", parse_url),
            own_endpoint: reader.parse(&format!("OTEL_EXPORTER_OTLP_{part}_ENDPOINT"), "a URL", parse_url),
            protocol: reader.parse(&protocol, "`http/protobuf` or `grpc`", |text| match text {
                "http/protobuf" => Some(OtlpProtocol::HttpProtobuf),
                "grpc" => Some(OtlpProtocol::Grpc),
                _ => None,
            }),
            compression: reader.parse(&compression, "`gzip` or `none`", |text| match text {
                "gzip" => Some(OtlpCompression::Gzip),
                "none" => Some(OtlpCompression::Off),
                _ => None,
            }),
            headers: reader.parse(&headers, list, parse_headers),
            timeout: reader.milliseconds(&timeout),
            service_name: reader.text("OTEL_SERVICE_NAME"),
            resource_attributes: ResourceAttributes(
                reader.parse("OTEL_RESOURCE_ATTRIBUTES", list, parse_pairs).unwrap_or_default(),
            ),
        }
    }

    pub(super) fn has_endpoint(&self) -> bool {
        self.endpoint.is_some() || self.own_endpoint.is_some()
    }

    /// The values of headers, which are not to be shown.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().flat_map(|headers| headers.0.iter().map(|(_, value)| value.as_str()))
    }
}

impl<'l> VariableReader<'l> {
    /// Reads variables by this function.
    pub fn new(lookup: &'l dyn Fn(&str) -> Option<String>) -> Self {
        Self { lookup, warnings: Vec::new() }
    }

    /// A sentence for each variable that cannot be used.
    pub fn into_warnings(self) -> Vec<String> {
        self.warnings
    }
}

impl VariableReader<'_> {
    /// The value of a variable; an empty one counts as unset.
    fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.trim().is_empty())
    }

    /// The value of a variable as something else. `expected` says what it must be.
    pub fn parse<T>(&mut self, name: &str, expected: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(name)?;
        let parsed = parse(text.trim());
        if parsed.is_none() {
            // The value is not shown: it may be a secret in the wrong variable.
            let warning = format!("the variable {name} must be {expected}; it is ignored");
            // What all signals share is read for each of them.
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
        parsed
    }

    /// A duration, which variables have in milliseconds.
    pub fn milliseconds(&mut self, name: &str) -> Option<Duration> {
        let positive = |text: &str| text.parse().ok().filter(|number| *number > 0).map(Duration::from_millis);
        self.parse(name, "a number of milliseconds above 0", positive)
    }
}

impl std::fmt::Debug for VariableReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VariableReader").field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

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

    const BOTH: [OtlpSignal; 2] = [OtlpSignal::Traces, OtlpSignal::Metrics];

    fn read(signal: OtlpSignal, lookup: &dyn Fn(&str) -> Option<String>) -> (SignalVariables, Vec<String>) {
        let mut reader = VariableReader::new(lookup);
        (SignalVariables::read(&mut reader, signal), reader.into_warnings())
    }

    #[test]
    fn a_variable_that_cannot_be_used_is_named_and_ignored() {
        for (name, wrong) in [
            ("OTEL_SDK_DISABLED", "yes"),
            ("OTEL_*_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://collector"),
            ("OTEL_EXPORTER_OTLP_*_ENDPOINT", "/v1/traces"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_*_PROTOCOL", "http"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "s3cret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x y=s3cret"),
            ("OTEL_EXPORTER_OTLP_*_HEADERS", "x=a%0ab"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_EXPORTER_OTLP_*_TIMEOUT", "0"),
            ("OTEL_RESOURCE_ATTRIBUTES", "=x"),
        ] {
            for signal in BOTH {
                let name = name.replace('*', signal.variable_part());
                let (variables, warnings) = read(signal, &|asked| (asked == name).then(|| wrong.to_owned()));
                assert_eq!(variables, SignalVariables::default(), "{name}={wrong}");
                assert_eq!(warnings.len(), 1, "{name}={wrong}: {warnings:?}");
                assert!(warnings[0].contains(&name) && !warnings[0].contains("s3cret"), "{warnings:?}");
            }
        }
    }

    #[test]
    fn a_variable_of_all_signals_is_named_once() {
        let wrong = |name: &str| (name == "OTEL_EXPORTER_OTLP_ENDPOINT").then(|| "nowhere".to_owned());
        let mut reader = VariableReader::new(&wrong);
        for signal in BOTH {
            SignalVariables::read(&mut reader, signal);
        }
        assert_eq!(reader.into_warnings().len(), 1);
    }

    #[test]
    fn empty_variables_count_as_unset() {
        for signal in BOTH {
            assert_eq!(read(signal, &|_| Some(" ".to_owned())), (SignalVariables::default(), Vec::new()));
        }
    }

    #[test]
    fn the_variable_for_a_signal_counts_more_than_the_one_for_all() {
        let find = |name: &str| match name {
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" => Some("grpc".to_owned()),
            "OTEL_EXPORTER_OTLP_PROTOCOL" => Some("http/protobuf".to_owned()),
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT" => Some("7".to_owned()),
            _ => None,
        };
        let (traces, _) = read(OtlpSignal::Traces, &find);
        assert_eq!((traces.protocol, traces.timeout), (Some(OtlpProtocol::Grpc), Some(Duration::from_millis(7))));
        let (metrics, _) = read(OtlpSignal::Metrics, &find);
        assert_eq!((metrics.protocol, metrics.timeout), (Some(OtlpProtocol::HttpProtobuf), None));
    }
}
