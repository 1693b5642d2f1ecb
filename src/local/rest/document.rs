//! The document that describes an API: where it comes from, and what it refers to.

use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderMap, Method as Verb, StatusCode, Uri};
use serde_json::Value;

use super::spec;
use super::spec::RestLimits;
use crate::error::{Error, ErrorKind, Result};
use crate::http::client::{self as web, HttpClient};
use crate::http::codec::RequestEncoder;

/// The largest document that is read.
const LARGEST: usize = 64 << 20;
/// How many values a YAML document may have.
const MOST_NODES: usize = 2_000_000;
/// How many more its aliases may unfold to.
const MOST_REPEATED: usize = 200_000;

/// Which specification a document follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Swagger 2.0.
    Swagger,
    /// OpenAPI 3.0.
    Older,
    /// OpenAPI 3.1 and later, whose schemas are JSON Schema.
    Newest,
}

/// A document that describes an API.
#[derive(Debug)]
pub(super) struct ApiDocument {
    root: Value,
    dialect: Dialect,
}

impl ApiDocument {
    /// Reads the bytes of a document; `place` is where they are from.
    pub(super) fn parse(bytes: &[u8], place: &str) -> Result<Self> {
        let wrong = |why: String| Error::new(ErrorKind::Usage, format!("the document {place} {why}"));
        let text = std::str::from_utf8(bytes).map_err(|error| wrong(format!("is no text: {error}")))?;
        let text = text.trim_start_matches('\u{feff}');
        let root = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| wrong(format!("is no valid JSON: {error}")))?
        } else {
            yaml(text).map_err(|error| wrong(format!("is no valid YAML: {error}")))?
        };
        Self::new(root).map_err(|why| wrong(why.to_owned()))
    }

    pub(super) fn new(root: Value) -> std::result::Result<Self, &'static str> {
        // In YAML a version without quotes is a number.
        let version = |key: &str| match &root[key] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        let dialect = match (version("openapi"), version("swagger")) {
            (Some(version), _) if version == "3" || version.starts_with("3.0") => Dialect::Older,
            (Some(version), _) if version.starts_with("3.") => Dialect::Newest,
            (None, Some(version)) if version.starts_with('2') => Dialect::Swagger,
            _ => return Err("says neither `openapi: 3.…` nor `swagger: \"2.0\"` at its top"),
        };
        Ok(Self { root, dialect })
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    /// What a reference within the document means; nothing for one that leads elsewhere.
    pub(super) fn find(&self, reference: &str) -> Option<&Value> {
        let pointer = reference.strip_prefix('#')?;
        let decoded = percent_encoding::percent_decode_str(pointer).decode_utf8().ok()?;
        self.root.pointer(&decoded).or_else(|| self.root.pointer(pointer))
    }
}

/// Brings a document here and reads it, as far from other work as reading megabytes should be.
pub(super) async fn load(
    from: &spec::DocumentSource,
    spec: &spec::RestSpec,
    settings: &RestLimits,
) -> Result<ApiDocument> {
    match from {
        spec::DocumentSource::File(path) => {
            let path = path.clone();
            let read = move || ApiDocument::parse(&file(&path)?, &path.display().to_string());
            tokio::task::spawn_blocking(read).await.map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?
        }
        spec::DocumentSource::Url(url) => {
            let bytes = fetched(url, spec, settings).await?;
            let place = web::redacted(url);
            let read = move || ApiDocument::parse(&bytes, &place);
            tokio::task::spawn_blocking(read).await.map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?
        }
    }
}

fn file(path: &Path) -> Result<Vec<u8>> {
    let wrong = |error: std::io::Error| {
        Error::new(ErrorKind::Usage, format!("the document {} cannot be read: {error}", path.display()))
    };
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(LARGEST as u64 + 1).read_to_end(&mut bytes)).map_err(wrong)?;
    if bytes.len() > LARGEST {
        let why = format!("the document {} has more than {LARGEST} bytes", path.display());
        return Err(Error::new(ErrorKind::Usage, why));
    }
    Ok(bytes)
}

async fn fetched(url: &Uri, spec: &spec::RestSpec, settings: &RestLimits) -> Result<Bytes> {
    let own = web::same_origin(url, &spec.base_url);
    let secrets = if own { spec.headers.clone() } else { HeaderMap::new() };
    let web = HttpClient::new(url.clone(), secrets, settings.connect_timeout, LARGEST);
    let headers = |head: &mut RequestEncoder| head.put_static(&ACCEPT, "application/json, application/yaml, */*;q=0.5");
    let response = web.send(Verb::GET, headers, Bytes::new(), Some(settings.discovery_timeout)).await?;
    let status = response.head.status();
    let body = web.read(response.body, settings.call_timeout).await?;
    if status != StatusCode::OK {
        return Err(Error::refused(&web.url(), status, &body));
    }
    Ok(body)
}

fn yaml(text: &str) -> std::result::Result<Value, String> {
    let options = serde_saphyr::options! {
        // Only `true` and `false` are that, so that `NO` stays a country.
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_nodes: MOST_NODES,
            max_events: 2 * MOST_NODES,
            max_depth: 200,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MOST_REPEATED },
    };
    let read = serde_saphyr::from_str_with_options(text, options);
    read.map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_and_json_are_the_same() {
        let yaml =
            "openapi: 3.1.0\npaths:\n  /a:\n    get:\n      responses:\n        200:\n          description: yes\n";
        let json = r#"{"openapi":"3.1.0","paths":{"/a":{"get":{"responses":{"200":{"description":"yes"}}}}}}"#;
        let (yaml, json) =
            (ApiDocument::parse(yaml.as_bytes(), "a").unwrap(), ApiDocument::parse(json.as_bytes(), "b").unwrap());
        assert_eq!(yaml.root(), json.root());
        assert_eq!(yaml.dialect(), Dialect::Newest);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
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
    fn aliases_that_unfold_without_end_are_refused() {
        let mut bomb = "openapi: 3.1.0\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let before = vec![format!("*a{}", n - 1); 10].join(", ");
            bomb.push_str(&format!("a{n}: &a{n} [{before}]\n"));
        }
        let said = ApiDocument::parse(bomb.as_bytes(), "x").unwrap_err().to_string();
        assert!(said.starts_with("the document x is no valid YAML: "), "{said}");
        let few = "openapi: 3.1.0\na: &a { b: 1 }\nc: [*a, *a]\n";
        assert_eq!(ApiDocument::parse(few.as_bytes(), "x").unwrap().find("#/c/1/b"), Some(&json!(1)));
    }

    #[test]
    fn references_are_found_within_the_document_only() {
        let document = json!({ "swagger": "2.0", "paths": { "/a/{b}": 1 }, "x y": 2, "l": [3] });
        let document = ApiDocument::new(document).unwrap();
        assert_eq!(document.find("#/paths/~1a~1{b}"), Some(&json!(1)));
        assert_eq!(document.find("#/paths/~1a~1%7Bb%7D"), Some(&json!(1)));
        assert_eq!(document.find("#/x%20y"), Some(&json!(2)));
        assert_eq!(document.find("#/l/0"), Some(&json!(3)));
        assert_eq!(document.find("other.json#/l/0"), None);
        assert_eq!(document.find("#l"), None);
    }
}
