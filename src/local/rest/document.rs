//! API documents (OpenAPI 3.x, Swagger 2.0): loading, parsing and references.

use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderMap, Method as Verb, StatusCode, Uri};
use serde_json::Value;

use super::spec;
use super::spec::RestLimits;
use crate::error::{self, Error, Result};
use crate::http::client::{self as web, HttpClient};
use crate::http::codec::RequestEncoder;

/// Size limit of a document.
const MAX_DOCUMENT_BYTES: usize = 64 << 20;
/// Node limit of a YAML document.
const MAX_YAML_NODES: usize = 2_000_000;
/// Limit on the events that YAML aliases expand to ("billion laughs").
const MAX_YAML_ALIAS_EVENTS: usize = 200_000;

/// Specification version of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenApiVersion {
    /// Swagger 2.0.
    Swagger2,
    /// OpenAPI 3.0, whose schemas are a JSON Schema dialect of their own.
    OpenApi30,
    /// OpenAPI 3.1 and later, whose schemas are JSON Schema 2020-12.
    OpenApi31,
}

/// A parsed API document.
#[derive(Debug)]
pub(super) struct ApiDocument {
    root: Value,
    version: OpenApiVersion,
}

impl ApiDocument {
    /// Parses JSON or YAML; `place` names the source in errors.
    pub(super) fn parse(bytes: &[u8], place: &str) -> Result<Self> {
        let usage_error = |why: String| Error::usage(format!("the document {place} {why}"));
        let text = std::str::from_utf8(bytes).map_err(|error| usage_error(format!("is no text: {error}")))?;
        let text = text.trim_start_matches('\u{feff}');
        let root = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| usage_error(format!("is no valid JSON: {error}")))?
        } else {
            parse_yaml(text).map_err(|error| usage_error(format!("is no valid YAML: {error}")))?
        };
        Self::new(root).map_err(|why| usage_error(why.to_owned()))
    }

    pub(super) fn new(root: Value) -> std::result::Result<Self, &'static str> {
        // YAML reads an unquoted version as a number.
        let stated = |key: &str| match &root[key] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        let version = match (stated("openapi"), stated("swagger")) {
            (Some(version), _) if version == "3" || version.starts_with("3.0") => OpenApiVersion::OpenApi30,
            (Some(version), _) if version.starts_with("3.") => OpenApiVersion::OpenApi31,
            (None, Some(version)) if version.starts_with('2') => OpenApiVersion::Swagger2,
            _ => return Err("says neither `openapi: 3.…` nor `swagger: \"2.0\"` at its top"),
        };
        Ok(Self { root, version })
    }

    pub(super) fn version(&self) -> OpenApiVersion {
        self.version
    }

    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    /// Resolves a `$ref` within the document; `None` for other documents and missing targets.
    pub(super) fn resolve_reference(&self, reference: &str) -> Option<&Value> {
        let pointer = reference.strip_prefix('#')?;
        let decoded = percent_encoding::percent_decode_str(pointer).decode_utf8().ok()?;
        self.root.pointer(&decoded).or_else(|| self.root.pointer(pointer))
    }
}

/// Loads and parses a document; parsing megabytes runs on the blocking pool.
pub(super) async fn load(
    from: &spec::DocumentSource,
    spec: &spec::RestSpec,
    settings: &RestLimits,
) -> Result<ApiDocument> {
    match from {
        spec::DocumentSource::File(path) => {
            let path = path.clone();
            let read = move || ApiDocument::parse(&read_file(&path)?, &path.display().to_string());
            tokio::task::spawn_blocking(read).await.map_err(|error| Error::usage(error.to_string()))?
        }
        spec::DocumentSource::Url(url) => {
            let bytes = fetch(url, spec, settings).await?;
            let place = web::redacted(url);
            let read = move || ApiDocument::parse(&bytes, &place);
            tokio::task::spawn_blocking(read).await.map_err(|error| Error::usage(error.to_string()))?
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let usage_error =
        |error: std::io::Error| Error::usage(format!("the document {} cannot be read: {error}", path.display()));
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_DOCUMENT_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(usage_error)?;
    if bytes.len() > MAX_DOCUMENT_BYTES {
        let why = format!("the document {} has more than {MAX_DOCUMENT_BYTES} bytes", path.display());
        return Err(Error::usage(why));
    }
    Ok(bytes)
}

async fn fetch(url: &Uri, spec: &spec::RestSpec, settings: &RestLimits) -> Result<Bytes> {
    let is_same_origin = web::same_origin(url, &spec.base_url);
    let secrets = if is_same_origin { spec.headers.clone() } else { HeaderMap::new() };
    let web = HttpClient::new(url.clone(), secrets, settings.connect_timeout, MAX_DOCUMENT_BYTES);
    let headers = |head: &mut RequestEncoder| head.put_static(&ACCEPT, "application/json, application/yaml, */*;q=0.5");
    let response = web.send(Verb::GET, headers, Bytes::new(), Some(settings.discovery_timeout)).await?;
    let (status, retry_after) = (response.head.status(), error::retry_after(&response.head));
    let body = web.read_body(response.body, settings.call_timeout).await?;
    if status != StatusCode::OK {
        return Err(Error::from_status(&web.url(), status, retry_after, &body));
    }
    Ok(body)
}

fn parse_yaml(text: &str) -> std::result::Result<Value, String> {
    let options = serde_saphyr::options! {
        // Only `true` and `false` are booleans, so that `NO` stays a country code.
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_nodes: MAX_YAML_NODES,
            max_events: 2 * MAX_YAML_NODES,
            max_depth: 200,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_YAML_ALIAS_EVENTS },
    };
    let read = serde_saphyr::from_str_with_options(text, options);
    read.map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_and_json_parse_alike() {
        let yaml =
            "openapi: 3.1.0\npaths:\n  /a:\n    get:\n      responses:\n        200:\n          description: yes\n";
        let json = r#"{"openapi":"3.1.0","paths":{"/a":{"get":{"responses":{"200":{"description":"yes"}}}}}}"#;
        let (yaml, json) =
            (ApiDocument::parse(yaml.as_bytes(), "a").unwrap(), ApiDocument::parse(json.as_bytes(), "b").unwrap());
        assert_eq!(yaml.root(), json.root());
        assert_eq!(yaml.version(), OpenApiVersion::OpenApi31);
    }

    #[test]
    fn parse_errors_name_the_source() {
        for (text, expected) in [
            ("{ \"openapi\": ", "the document x is no valid JSON: EOF while parsing a value at line 1 column 13"),
            ("{}", "the document x says neither `openapi: 3.…` nor `swagger: \"2.0\"` at its top"),
            ("openapi: 4.0.0", "the document x says neither `openapi: 3.…` nor `swagger: \"2.0\"` at its top"),
        ] {
            assert_eq!(ApiDocument::parse(text.as_bytes(), "x").unwrap_err().to_string(), expected);
        }
        let yaml = ApiDocument::parse(b"a: [1, 2", "x").unwrap_err().to_string();
        assert!(yaml.starts_with("the document x is no valid YAML: "), "{yaml}");
        assert!(ApiDocument::parse(b"\xff\xfe", "x").is_err());
    }

    #[test]
    fn yaml_alias_bombs_are_refused() {
        let mut bomb = "openapi: 3.1.0\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let before = vec![format!("*a{}", n - 1); 10].join(", ");
            bomb.push_str(&format!("a{n}: &a{n} [{before}]\n"));
        }
        let error = ApiDocument::parse(bomb.as_bytes(), "x").unwrap_err().to_string();
        assert!(error.starts_with("the document x is no valid YAML: "), "{error}");
        let few = "openapi: 3.1.0\na: &a { b: 1 }\nc: [*a, *a]\n";
        assert_eq!(ApiDocument::parse(few.as_bytes(), "x").unwrap().resolve_reference("#/c/1/b"), Some(&json!(1)));
    }

    #[test]
    fn references_resolve_within_the_document_only() {
        let document = json!({ "swagger": "2.0", "paths": { "/a/{b}": 1 }, "x y": 2, "l": [3] });
        let document = ApiDocument::new(document).unwrap();
        assert_eq!(document.resolve_reference("#/paths/~1a~1{b}"), Some(&json!(1)));
        assert_eq!(document.resolve_reference("#/paths/~1a~1%7Bb%7D"), Some(&json!(1)));
        assert_eq!(document.resolve_reference("#/x%20y"), Some(&json!(2)));
        assert_eq!(document.resolve_reference("#/l/0"), Some(&json!(3)));
        assert_eq!(document.resolve_reference("other.json#/l/0"), None);
        assert_eq!(document.resolve_reference("#l"), None);
    }
}
