//! The metadata of an issuer (RFC 8414, OpenID Connect Discovery): where it lies, and what of it is believed.

use bytes::Bytes;
use http::Uri;
use serde_json::{Map, Value};
use url::{Host, Url};

use super::fetch::{self, FetchError, IssuerDocument, MAX_DOCUMENT_BYTES};

/// Longest address that is taken from a document.
const MAX_URL_BYTES: usize = 2048;

/// The addresses of an issuer that are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IssuerMetadata {
    pub(super) jwks_uri: Option<Uri>,
    pub(super) introspection_endpoint: Option<Uri>,
    /// The whole document, for clients that look for it at the gateway.
    pub(super) document: Bytes,
}

/// Fetches the metadata of an issuer: the first document that is there, in the order of the specification.
///
/// # Errors
/// Why there is none, or why it is not believed.
pub(super) async fn discover(issuer: &str) -> Result<(IssuerMetadata, std::time::Duration), String> {
    let mut reasons = Vec::new();
    for url in metadata_urls(issuer).ok_or("the issuer is no HTTP URL")? {
        match fetch::get(&url, MAX_DOCUMENT_BYTES).await {
            Ok(IssuerDocument { content, max_age }) => return Ok((IssuerMetadata::read(issuer, &content)?, max_age)),
            Err(FetchError::NotThere(why)) => reasons.push(why),
            Err(FetchError::Failed(why)) => return Err(why),
        }
    }
    Err(format!("it has no metadata: {}", reasons.join("; ")))
}

/// Where the metadata of an issuer may lie.
fn metadata_urls(issuer: &str) -> Option<Vec<Uri>> {
    let url = Url::parse(issuer).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    let origin = url.origin().ascii_serialization();
    let path = url.path().trim_end_matches('/');
    let places = match path {
        "" => vec![
            format!("{origin}/.well-known/oauth-authorization-server"),
            format!("{origin}/.well-known/openid-configuration"),
        ],
        path => vec![
            format!("{origin}/.well-known/oauth-authorization-server{path}"),
            format!("{origin}/.well-known/openid-configuration{path}"),
            format!("{origin}{path}/.well-known/openid-configuration"),
        ],
    };
    places.iter().map(|place| place.parse().ok()).collect()
}

impl IssuerMetadata {
    fn read(issuer: &str, document: &Map<String, Value>) -> Result<Self, String> {
        let named = document.get("issuer").and_then(Value::as_str).unwrap_or_default();
        let root = |text: &str| Url::parse(text).is_ok_and(|url| url.path() == "/");
        let only_slash_differs =
            root(named) && root(issuer) && named.trim_end_matches('/') == issuer.trim_end_matches('/');
        if named != issuer && !only_slash_differs {
            let named: String = named.chars().take(MAX_URL_BYTES).collect();
            return Err(format!("its metadata are of the issuer {named:?}, not of {issuer:?}; set `issuer` to that"));
        }
        if named != issuer {
            tracing::warn!(issuer, "its metadata spell the issuer {named:?}; tokens that do so are refused");
        }
        let endpoint = |name: &str| match document.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => endpoint_url(issuer, text).map(Some).map_err(|why| format!("`{name}` {why}")),
            Some(_) => Err(format!("`{name}` is no string")),
        };
        Ok(Self {
            jwks_uri: endpoint("jwks_uri")?,
            introspection_endpoint: endpoint("introspection_endpoint")?,
            document: serde_json::to_vec(document).unwrap_or_default().into(),
        })
    }
}

/// An address that a document names. Plain HTTP is used only where the file itself chose it, on the same host or on
/// loopback.
fn endpoint_url(issuer: &str, text: &str) -> Result<Uri, &'static str> {
    if text.len() > MAX_URL_BYTES {
        return Err("is too long");
    }
    let (Ok(issuer), Ok(url)) = (Url::parse(issuer), Url::parse(text)) else { return Err("is no URL") };
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err("has user information or a fragment");
    }
    let is_near = url.host() == issuer.host() || (is_loopback(&url) && is_loopback(&issuer));
    match url.scheme() {
        "https" => {}
        "http" if issuer.scheme() == "http" && is_near => {}
        _ => return Err("is no https URL"),
    }
    url.as_str().parse().map_err(|_| "is no URL")
}

/// Whether a URL is on this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_is_looked_for_in_order() {
        let urls = |issuer: &str| -> Vec<String> {
            metadata_urls(issuer).unwrap_or_default().iter().map(ToString::to_string).collect()
        };
        for issuer in ["https://h", "https://h/"] {
            assert_eq!(
                urls(issuer),
                ["https://h/.well-known/oauth-authorization-server", "https://h/.well-known/openid-configuration"]
            );
        }
        assert_eq!(
            urls("https://h:8443/realms/corp"),
            [
                "https://h:8443/.well-known/oauth-authorization-server/realms/corp",
                "https://h:8443/.well-known/openid-configuration/realms/corp",
                "https://h:8443/realms/corp/.well-known/openid-configuration"
            ]
        );
        assert!(urls("ftp://h").is_empty() && urls("h").is_empty());
    }

    #[test]
    fn metadata_of_another_issuer_is_not_believed() {
        for (issuer, named, is_read) in [
            ("https://h", json!("https://h"), true),
            ("https://h", json!("https://h/"), true),
            ("https://h/", json!("https://h"), true),
            ("https://h/t", json!("https://h/t/"), false),
            ("https://h/t", json!("https://h"), false),
            ("https://h", json!("https://H"), false),
            ("https://h", json!("http://h"), false),
            ("https://h", json!(null), false),
            ("https://h", json!(["https://h"]), false),
        ] {
            let document = json!({"issuer": named, "jwks_uri": "https://keys.example/k"});
            let read = IssuerMetadata::read(issuer, document.as_object().unwrap());
            assert_eq!(read.is_ok(), is_read, "{issuer} {named}");
        }
    }

    #[test]
    fn endpoints_are_https_or_as_near_as_the_issuer() {
        for (issuer, url, is_allowed) in [
            ("https://h", "https://h/keys", true),
            ("https://h", "https://keys.example/keys?v=1", true),
            ("https://h", "http://h/keys", false),
            ("https://h", "http://127.0.0.1/keys", false),
            ("http://127.0.0.1:1", "http://127.0.0.1:2/keys", true),
            ("http://127.0.0.1:1", "http://localhost:2/keys", true),
            ("http://localhost:1", "http://[::1]:2/keys", true),
            ("http://127.0.0.1:1", "http://169.254.169.254/keys", false),
            ("http://keycloak:8080/realms/a", "http://keycloak:8080/keys", true),
            ("http://keycloak:8080/realms/a", "http://other:8080/keys", false),
            ("https://h", "https://user@h/keys", false),
            ("https://h", "https://h/keys#a", false),
            ("https://h", "file:///etc/passwd", false),
            ("https://h", "/keys", false),
            ("https://h", "", false),
        ] {
            assert_eq!(endpoint_url(issuer, url).is_ok(), is_allowed, "{issuer} {url}");
        }
        assert!(endpoint_url("https://h", &format!("https://h/{}", "a".repeat(3000))).is_err());
    }
}
