//! Where exports go and who exports: the settings of the file with the `OTEL_*` variables over them.

use std::sync::LazyLock;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::client::{OtlpCompression, OtlpProtocol};
use super::signal::OtlpSignal;
use super::variables::{SignalExporter, SignalVariables};

/// Settings that spans and metrics share, as the file has them.
#[derive(Debug, Clone, PartialEq)]
pub struct OtlpSettings {
    /// The address of the collector.
    pub endpoint: Option<Uri>,
    /// How requests are sent.
    pub protocol: Option<OtlpProtocol>,
    /// How requests are compressed.
    pub compression: OtlpCompression,
    /// Headers for the collector.
    pub headers: ExportHeaders,
    /// How long the collector may take for a request.
    pub timeout: Duration,
    /// How long a request is tried to be sent.
    pub export_timeout: Duration,
    /// The name of this service.
    pub service_name: Option<String>,
    /// More attributes of this service.
    pub resource_attributes: ResourceAttributes,
}

/// Headers for the collector by name. Their values are secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExportHeaders(pub Vec<(String, String)>);

/// Attributes of this service by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceAttributes(pub Vec<(String, String)>);

/// Everything that is decided about the collector of a signal that is exported.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectorConfig {
    /// The whole address.
    pub url: Uri,
    /// How requests are sent.
    pub protocol: OtlpProtocol,
    /// How requests are compressed.
    pub compression: OtlpCompression,
    /// Headers of each request.
    pub headers: HeaderMap,
    /// How long the collector may take for a request.
    pub timeout: Duration,
    /// How long a request is tried to be sent.
    pub export_timeout: Duration,
    /// The attributes of this service.
    pub resource: Vec<(String, String)>,
}

/// The name of this service, unless something says another.
const SERVICE_NAME: &str = "rialto";
/// Where a collector is expected on this machine.
const DEFAULT_HTTP_ENDPOINT: &str = "http://localhost:4318";
const DEFAULT_GRPC_ENDPOINT: &str = "http://localhost:4317";

/// Tells this process apart where it has no name in a cluster: metrics of two processes must not be taken for one.
static PROCESS_ID: LazyLock<String> = LazyLock::new(|| {
    let mut random = [0; 16];
    // Without randomness the attribute is left out.
    if getrandom::fill(&mut random).is_err() {
        return String::new();
    }
    // The version and the variant of a random UUID.
    let number = u128::from_be_bytes(random) & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let digits = format!("{number:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
});

impl Default for OtlpSettings {
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: None,
            compression: OtlpCompression::Off,
            headers: ExportHeaders::default(),
            timeout: Duration::from_secs(10),
            export_timeout: Duration::from_secs(30),
            service_name: None,
            resource_attributes: ResourceAttributes::default(),
        }
    }
}

impl OtlpSettings {
    /// Where a signal goes; `None` where it is not exported. `enabled` is what the file says about it, and `node` names this
    /// process among others of the service.
    ///
    /// # Errors
    /// When the address of the collector is not one.
    pub fn resolve(
        &self,
        signal: OtlpSignal,
        enabled: Option<bool>,
        variables: &SignalVariables,
        node: &str,
    ) -> Result<Option<CollectorConfig>, String> {
        let is_on = match variables.exporter {
            _ if variables.disabled => false,
            Some(SignalExporter::None) => false,
            Some(SignalExporter::Otlp) => true,
            None => enabled.unwrap_or(self.endpoint.is_some() || variables.has_endpoint()),
        };
        if !is_on {
            return Ok(None);
        }
        let protocol = variables.protocol.or(self.protocol).unwrap_or(OtlpProtocol::HttpProtobuf);
        Ok(Some(CollectorConfig {
            url: self.url(signal, variables, protocol)?,
            protocol,
            compression: variables.compression.unwrap_or(self.compression),
            headers: header_map(variables.headers.as_ref().unwrap_or(&self.headers)),
            timeout: variables.timeout.unwrap_or(self.timeout),
            export_timeout: self.export_timeout,
            resource: self.resource(variables, node),
        }))
    }

    fn url(&self, signal: OtlpSignal, variables: &SignalVariables, protocol: OtlpProtocol) -> Result<Uri, String> {
        let own = variables.own_endpoint.as_ref();
        let base = variables.endpoint.as_ref().or(self.endpoint.as_ref());
        let text = match (protocol, own, base) {
            // The address for one signal alone is used as it is.
            (OtlpProtocol::HttpProtobuf, Some(own), _) => own.to_string(),
            (OtlpProtocol::HttpProtobuf, None, Some(base)) => with_path(base, signal.http_path()),
            (OtlpProtocol::HttpProtobuf, None, None) => format!("{DEFAULT_HTTP_ENDPOINT}{}", signal.http_path()),
            (OtlpProtocol::Grpc, own, base) => {
                let given = own.or(base).map_or_else(|| DEFAULT_GRPC_ENDPOINT.to_owned(), ToString::to_string);
                let origin: Uri = given.parse().map_err(|_| "the address of the collector is not valid".to_owned())?;
                // The path of a method is that of its service, whatever the address says.
                let (scheme, authority) = (origin.scheme_str().unwrap_or("http"), origin.authority());
                let authority = authority.map_or("", |authority| authority.as_str());
                format!("{scheme}://{authority}{}", signal.grpc_method())
            }
        };
        text.parse().map_err(|_| "the address of the collector is not valid".to_owned())
    }

    /// The attributes of the resource: what variables say counts more than the file, and both more than what is known.
    fn resource(&self, variables: &SignalVariables, node: &str) -> Vec<(String, String)> {
        let version = env!("CARGO_PKG_VERSION");
        let known = [
            ("service.name", SERVICE_NAME),
            ("service.version", version),
            ("service.instance.id", if node.is_empty() { PROCESS_ID.as_str() } else { node }),
            ("telemetry.sdk.name", "rialto"),
            ("telemetry.sdk.language", "rust"),
            ("telemetry.sdk.version", version),
        ];
        let known = known.iter().filter(|(_, value)| !value.is_empty());
        let mut resource: Vec<(String, String)> = Vec::new();
        let mut set = |key: &str, value: &str| match resource.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => value.clone_into(known),
            None => resource.push((key.to_owned(), value.to_owned())),
        };
        known.for_each(|(key, value)| set(key, value));
        self.resource_attributes.0.iter().for_each(|(key, value)| set(key, value));
        self.service_name.iter().for_each(|name| set("service.name", name));
        variables.resource_attributes.0.iter().for_each(|(key, value)| set(key, value));
        variables.service_name.iter().for_each(|name| set("service.name", name));
        resource
    }
}

impl CollectorConfig {
    /// The attributes of this service, encoded.
    pub fn encoded_resource(&self) -> super::EncodedResource {
        super::EncodedResource::new(self.resource.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }
}

fn header_map(given: &ExportHeaders) -> HeaderMap {
    let valid = given.0.iter().filter_map(|(name, value)| {
        let mut value = HeaderValue::from_str(value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
    });
    valid.collect()
}

/// An address with a path added to its own.
fn with_path(base: &Uri, path: &str) -> String {
    let own = base.path().trim_end_matches('/');
    let authority = base.authority().map_or("", |authority| authority.as_str());
    format!("{}://{authority}{own}{path}", base.scheme_str().unwrap_or("http"))
}

impl std::fmt::Debug for ExportHeaders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::variables::VariableReader;
    use super::*;

    fn read(signal: OtlpSignal, variables: &[(&str, &str)]) -> SignalVariables {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let mut reader = VariableReader::new(&find);
        let read = SignalVariables::read(&mut reader, signal);
        assert_eq!(reader.into_warnings(), Vec::<String>::new());
        read
    }

    fn url_of(signal: OtlpSignal, variables: &[(&str, &str)]) -> Option<String> {
        let config = OtlpSettings::default().resolve(signal, None, &read(signal, variables), "").unwrap();
        config.map(|config| config.url.to_string())
    }

    #[test]
    fn a_signal_is_off_unless_something_turns_it_on() {
        const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1");
        for signal in [OtlpSignal::Traces, OtlpSignal::Metrics] {
            let url = |variables: &[(&str, &str)]| url_of(signal, variables);
            let exporter = format!("OTEL_{}_EXPORTER", signal.variable_part());
            assert_eq!(url(&[]), None);
            assert!(url(&[ENDPOINT]).is_some());
            assert!(url(&[(&exporter, "otlp")]).is_some());
            assert_eq!(url(&[ENDPOINT, (&exporter, "none")]), None);
            assert_eq!(url(&[ENDPOINT, ("OTEL_SDK_DISABLED", "true")]), None);
            assert!(url(&[ENDPOINT, ("OTEL_SDK_DISABLED", "false")]).is_some());
            let resolve = |enabled, variables: &[(&str, &str)]| {
                OtlpSettings::default().resolve(signal, enabled, &read(signal, variables), "").unwrap()
            };
            assert_eq!(resolve(Some(false), &[ENDPOINT]), None, "what the file says counts more than an endpoint");
            assert!(resolve(Some(true), &[]).is_some());
        }
        assert_eq!(url_of(OtlpSignal::Metrics, &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:2/x")]), None);
        assert_eq!(url_of(OtlpSignal::Traces, &[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://t:2/x")]), None);
    }

    #[test]
    fn the_address_depends_on_signal_variable_and_protocol() {
        const GRPC: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        for (signal, path) in [(OtlpSignal::Traces, "/v1/traces"), (OtlpSignal::Metrics, "/v1/metrics")] {
            let url = |variables: &[(&str, &str)]| url_of(signal, variables);
            let grpc = |origin: &str| Some(format!("{origin}{}", signal.grpc_method()));
            let exporter = format!("OTEL_{}_EXPORTER", signal.variable_part());
            let only = [(exporter.as_str(), "otlp")];
            assert_eq!(url(&only), Some(format!("http://localhost:4318{path}")));
            assert_eq!(url(&[only[0], GRPC]), grpc("http://localhost:4317"));
            for (base, start) in
                [("http://c:1", "http://c:1"), ("http://c:1/", "http://c:1"), ("https://c/otlp/", "https://c/otlp")]
            {
                assert_eq!(url(&[("OTEL_EXPORTER_OTLP_ENDPOINT", base)]), Some(format!("{start}{path}")));
            }
            let own = format!("OTEL_EXPORTER_OTLP_{}_ENDPOINT", signal.variable_part());
            let both = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"), (own.as_str(), "http://t:2/x")];
            assert_eq!(url(&both).as_deref(), Some("http://t:2/x"));
            assert_eq!(url(&[both[0], both[1], GRPC]), grpc("http://t:2"));
            assert_eq!(url(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:1/"), GRPC]), grpc("https://c:1"));
        }
    }

    #[test]
    fn variables_count_more_than_the_file() {
        let variables = [
            ("OTEL_METRICS_EXPORTER", "otlp"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,zone=b%2Cc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=v%20w"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
        ];
        let variables = read(OtlpSignal::Metrics, &variables);
        let file = OtlpSettings {
            resource_attributes: ResourceAttributes(vec![("zone".into(), "file".into()), ("own".into(), "1".into())]),
            service_name: Some("file".into()),
            compression: OtlpCompression::Gzip,
            ..OtlpSettings::default()
        };
        let config = file.resolve(OtlpSignal::Metrics, None, &variables, "node-1").unwrap().unwrap();
        let attribute =
            |key: &str| config.resource.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        assert_eq!(attribute("service.name"), Some("a"));
        assert_eq!(attribute("zone"), Some("b,c"));
        assert_eq!(attribute("own"), Some("1"));
        assert_eq!(attribute("service.instance.id"), Some("node-1"));
        assert_eq!(config.headers.get("x-key").unwrap(), "v w");
        assert_eq!((config.timeout, config.compression), (Duration::from_millis(1500), OtlpCompression::Off));
        assert!(!format!("{variables:?}").contains("v w"), "values of headers are not shown");
    }

    #[test]
    fn a_process_without_a_node_name_has_a_random_uuid() {
        let parts: Vec<_> = PROCESS_ID.split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('4') && parts[3].starts_with(['8', '9', 'a', 'b']), "{}", *PROCESS_ID);
    }
}
