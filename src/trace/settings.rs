//! What is traced, and where it goes: the settings of the file with the `OTEL_*` variables over them.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::otlp::{GRPC_METHOD, OtlpProtocol};
use super::sampler::{Sampler, SamplerName};
use super::variables::{OtelVariables, TracesExporter};

/// Settings of tracing, as the file has them.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSettings {
    /// Whether spans are exported; by default where there is an endpoint.
    pub enabled: Option<bool>,
    /// The address of the collector.
    pub endpoint: Option<Uri>,
    /// How spans are sent.
    pub protocol: Option<OtlpProtocol>,
    /// Headers for the collector.
    pub headers: ExportHeaders,
    /// How long the collector may take for a batch.
    pub timeout: Duration,
    /// The name of this service.
    pub service_name: Option<String>,
    /// More attributes of this service.
    pub resource_attributes: ResourceAttributes,
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
    /// How long a batch is tried to be sent.
    pub export_timeout: Duration,
    /// The variables, which count more.
    pub variables: OtelVariables,
}

/// Headers for the collector by name. Their values are secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExportHeaders(pub Vec<(String, String)>);

/// Attributes of this service by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceAttributes(pub Vec<(String, String)>);

/// Everything that is decided about tracing that is on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TraceConfig {
    pub(super) url: Uri,
    pub(super) protocol: OtlpProtocol,
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    pub(super) resource: Vec<(String, String)>,
    pub(super) sampler: Sampler,
    pub(super) queue_size: usize,
    pub(super) batch_size: usize,
    pub(super) interval: Duration,
    pub(super) export_timeout: Duration,
}

/// The name of this service, unless something says another.
const SERVICE_NAME: &str = "rialto";
/// Where a collector is expected on this machine.
const DEFAULT_HTTP_ENDPOINT: &str = "http://localhost:4318";
const DEFAULT_GRPC_ENDPOINT: &str = "http://localhost:4317";
/// What is added to the address of a collector over HTTP.
const TRACES_PATH: &str = "/v1/traces";
/// Spans that may wait, where nothing says how many (as `OTEL_BSP_*` define it).
const DEFAULT_QUEUE_SIZE: usize = 2048;
const DEFAULT_BATCH_SIZE: usize = 512;

impl Default for TraceSettings {
    fn default() -> Self {
        Self {
            enabled: None,
            endpoint: None,
            protocol: None,
            headers: ExportHeaders::default(),
            timeout: Duration::from_secs(10),
            service_name: None,
            resource_attributes: ResourceAttributes::default(),
            sampler: SamplerName::ParentBasedAlwaysOn,
            sample_ratio: 1.0,
            queue_size: DEFAULT_QUEUE_SIZE,
            batch_size: DEFAULT_BATCH_SIZE,
            interval: Duration::from_secs(5),
            export_timeout: Duration::from_secs(30),
            variables: OtelVariables::default(),
        }
    }
}

impl TraceSettings {
    /// Whether something says that spans are exported.
    fn is_on(&self) -> bool {
        let variables = &self.variables;
        match variables.exporter {
            _ if variables.disabled => false,
            Some(TracesExporter::None) => false,
            Some(TracesExporter::Otlp) => true,
            None => self.enabled.unwrap_or(self.endpoint.is_some() || variables.has_endpoint()),
        }
    }

    /// What is to be done; `None` where tracing is off. `node` names this process among others of the service.
    ///
    /// # Errors
    /// When the address of the collector is not one.
    pub(super) fn resolve(&self, node: &str) -> Result<Option<TraceConfig>, String> {
        if !self.is_on() {
            return Ok(None);
        }
        let variables = &self.variables;
        let protocol = variables.protocol.or(self.protocol).unwrap_or(OtlpProtocol::HttpProtobuf);
        let batch_size = variables.batch_size.unwrap_or(self.batch_size);
        let queue_size = variables.queue_size.unwrap_or(self.queue_size).max(1);
        let sampler = variables.sampler.unwrap_or(self.sampler);
        // Without a ratio of its own, a sampler that is named by a variable takes everything.
        let file_ratio = if variables.sampler.is_some() { 1.0 } else { self.sample_ratio };
        Ok(Some(TraceConfig {
            url: self.url(protocol)?,
            protocol,
            headers: self.headers(),
            timeout: variables.timeout.unwrap_or(self.timeout),
            resource: self.resource(node),
            sampler: sampler.with_ratio(variables.sample_ratio.unwrap_or(file_ratio)),
            queue_size,
            batch_size: batch_size.clamp(1, queue_size),
            interval: variables.interval.unwrap_or(self.interval),
            export_timeout: variables.export_timeout.unwrap_or(self.export_timeout),
        }))
    }

    fn url(&self, protocol: OtlpProtocol) -> Result<Uri, String> {
        let variables = &self.variables;
        let own = variables.traces_endpoint.as_ref();
        let base = variables.endpoint.as_ref().or(self.endpoint.as_ref());
        let text = match (protocol, own, base) {
            // The address for traces alone is used as it is.
            (OtlpProtocol::HttpProtobuf, Some(own), _) => own.to_string(),
            (OtlpProtocol::HttpProtobuf, None, Some(base)) => with_path(base, TRACES_PATH),
            (OtlpProtocol::HttpProtobuf, None, None) => format!("{DEFAULT_HTTP_ENDPOINT}{TRACES_PATH}"),
            (OtlpProtocol::Grpc, own, base) => {
                let given = own.or(base).map_or_else(|| DEFAULT_GRPC_ENDPOINT.to_owned(), ToString::to_string);
                let origin: Uri = given.parse().map_err(|_| "the address of the collector is not valid".to_owned())?;
                // The path of a method is that of its service, whatever the address says.
                let (scheme, authority) = (origin.scheme_str().unwrap_or("http"), origin.authority());
                format!("{scheme}://{}{GRPC_METHOD}", authority.map_or("", |authority| authority.as_str()))
            }
        };
        text.parse().map_err(|_| "the address of the collector is not valid".to_owned())
    }

    fn headers(&self) -> HeaderMap {
        let given = self.variables.headers.as_ref().unwrap_or(&self.headers);
        let valid = given.0.iter().filter_map(|(name, value)| {
            let mut value = HeaderValue::from_str(value).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
        });
        valid.collect()
    }

    /// The attributes of the resource: what variables say counts more than the file, and both more than what is known.
    fn resource(&self, node: &str) -> Vec<(String, String)> {
        let version = env!("CARGO_PKG_VERSION");
        let known = [
            ("service.name", SERVICE_NAME),
            ("service.version", version),
            ("service.instance.id", node),
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
        self.variables.resource_attributes.0.iter().for_each(|(key, value)| set(key, value));
        self.variables.service_name.iter().for_each(|name| set("service.name", name));
        resource
    }
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
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> TraceSettings {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let (variables, warnings) = OtelVariables::read(&find);
        assert_eq!(warnings, Vec::<String>::new());
        TraceSettings { variables, ..TraceSettings::default() }
    }

    fn url(variables: &[(&str, &str)]) -> Option<String> {
        settings(variables).resolve("").unwrap().map(|config| config.url.to_string())
    }

    #[test]
    fn tracing_is_off_unless_something_turns_it_on() {
        const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1");
        assert_eq!(url(&[]), None);
        assert!(url(&[ENDPOINT]).is_some());
        assert!(url(&[("OTEL_TRACES_EXPORTER", "otlp")]).is_some());
        assert_eq!(url(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]), None);
        assert_eq!(url(&[ENDPOINT, ("OTEL_SDK_DISABLED", "true")]), None);
        assert!(url(&[ENDPOINT, ("OTEL_SDK_DISABLED", "false")]).is_some());
        let off = TraceSettings { enabled: Some(false), ..settings(&[ENDPOINT]) };
        assert_eq!(off.resolve("").unwrap(), None, "what the file says counts more than an endpoint");
        let on = TraceSettings { enabled: Some(true), ..TraceSettings::default() };
        assert!(on.resolve("").unwrap().is_some());
    }

    #[test]
    fn the_address_depends_on_variable_and_protocol() {
        const GRPC: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        let grpc = |origin: &str| Some(format!("{origin}{GRPC_METHOD}"));
        let only = [("OTEL_TRACES_EXPORTER", "otlp")];
        assert_eq!(url(&only).as_deref(), Some("http://localhost:4318/v1/traces"));
        assert_eq!(url(&[only[0], GRPC]), grpc("http://localhost:4317"));
        for (base, http) in [
            ("http://c:1", "http://c:1/v1/traces"),
            ("http://c:1/", "http://c:1/v1/traces"),
            ("https://c/otlp/", "https://c/otlp/v1/traces"),
        ] {
            assert_eq!(url(&[("OTEL_EXPORTER_OTLP_ENDPOINT", base)]).as_deref(), Some(http));
        }
        let both =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:2/x")];
        assert_eq!(url(&both).as_deref(), Some("http://t:2/x"));
        assert_eq!(url(&[both[0], both[1], GRPC]), grpc("http://t:2"));
        assert_eq!(url(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:1/"), GRPC]), grpc("https://c:1"));
    }

    #[test]
    fn variables_count_more_than_the_file() {
        let variables = [
            ("OTEL_TRACES_EXPORTER", "otlp"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,zone=b%2Cc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=v%20w"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "20"),
        ];
        let file = TraceSettings {
            resource_attributes: ResourceAttributes(vec![("zone".into(), "file".into()), ("own".into(), "1".into())]),
            service_name: Some("file".into()),
            sample_ratio: 0.5,
            ..settings(&variables)
        };
        let config = file.resolve("node-1").unwrap().unwrap();
        let attribute =
            |key: &str| config.resource.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        assert_eq!(attribute("service.name"), Some("a"));
        assert_eq!(attribute("zone"), Some("b,c"));
        assert_eq!(attribute("own"), Some("1"));
        assert_eq!(attribute("service.instance.id"), Some("node-1"));
        assert_eq!(config.headers.get("x-key").unwrap(), "v w");
        assert_eq!(config.timeout, Duration::from_millis(1500));
        assert_eq!(config.sampler, SamplerName::TraceIdRatio.with_ratio(0.25));
        assert_eq!((config.queue_size, config.batch_size), (10, 10), "a batch is no larger than the queue");
        assert!(!format!("{file:?}").contains("v w"), "values of headers are not shown");
    }
}
