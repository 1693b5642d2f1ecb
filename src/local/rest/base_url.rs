//! Base URL of an API: every request stays below it, whatever document, arguments or redirects say.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use percent_encoding::percent_decode_str;

use super::encode::Escape;
use super::spec::RestSpec;
use crate::error::{Error, Result};
use crate::http::client as web;

/// Headers that neither a document nor an argument can set: message framing, credentials, forwarding and method
/// overrides.
const PROTECTED_HEADERS: &[&str] = &[
    "host",
    "authorization",
    "cookie",
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "forwarded",
    "via",
    "x-real-ip",
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
];
/// Prefixes of further protected headers.
const PROTECTED_HEADER_PREFIXES: &[&str] = &["mcp-", "proxy-", "x-forwarded-", "sec-"];
/// Length limit of a request URL.
const MAX_URL_BYTES: usize = 16 << 10;

/// Base URL with the headers and query parameters that the configuration adds to each request.
#[derive(Clone)]
pub(super) struct BaseUrl {
    scheme: Scheme,
    authority: Authority,
    /// Path prefix without a trailing slash.
    prefix: String,
    headers: HeaderMap,
    query: Vec<(String, String)>,
}

impl BaseUrl {
    pub(super) fn new(spec: &RestSpec) -> Result<Self> {
        let usage_error = |why: &str| {
            let shown = web::redacted(&spec.base_url);
            Error::usage(format!("the base URL {shown} {why}; give something like https://api.example.com/v1"))
        };
        let parts = spec.base_url.clone().into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(usage_error("is no absolute URL"));
        };
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(usage_error("is no HTTP address"));
        }
        if authority.as_str().contains('@') {
            let why = "the base URL has credentials in it; give them as a header";
            return Err(Error::usage(why));
        }
        let path = parts.path_and_query;
        if path.as_ref().is_some_and(|path| path.query().is_some()) {
            return Err(usage_error("has a query; give its parameters as `query`"));
        }
        let prefix = path.as_ref().map_or("", PathAndQuery::path).trim_end_matches('/').to_owned();
        if has_dot_segment(&prefix) {
            return Err(usage_error("has `.` or `..` in its path"));
        }
        let mut headers = spec.headers.clone();
        headers.iter_mut().for_each(|(_, value)| value.set_sensitive(true));
        Ok(Self { scheme, authority, prefix, headers, query: spec.query.clone() })
    }

    /// The base URL itself.
    pub(super) fn uri(&self) -> Option<Uri> {
        self.join(if self.prefix.is_empty() { "/" } else { &self.prefix })
    }

    /// Configured headers, sent with each request.
    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Whether only the configuration can set the header.
    pub(super) fn is_header_protected(&self, name: &HeaderName) -> bool {
        is_protected_header(name) || self.headers.contains_key(name)
    }

    /// Whether only the configuration can set the query parameter. Compared without case, because some servers
    /// ignore the case of parameter names.
    pub(super) fn is_query_protected(&self, name: &str) -> bool {
        self.query.iter().any(|(configured, _)| configured.eq_ignore_ascii_case(name))
    }

    /// Request URI from a percent-encoded path and from pairs of plain names and percent-encoded values.
    pub(super) fn request_uri(&self, path: &str, query: &[(String, String)]) -> std::result::Result<Uri, String> {
        if has_dot_segment(path) {
            return Err("a part of the path would be `.` or `..`, which means another place".to_owned());
        }
        let mut target = format!("{}/{}", self.prefix, path.trim_start_matches('/'));
        let given = query.iter().filter(|(name, _)| !self.is_query_protected(name));
        let given = given.map(|(name, value)| format!("{}={value}", Escape::Strict.apply(name)));
        let pairs: Vec<String> = given.chain(self.configured_query(|_| true)).collect();
        if !pairs.is_empty() {
            target = format!("{target}?{}", pairs.join("&"));
        }
        if target.len() > MAX_URL_BYTES {
            return Err(format!("the URL would have {} bytes; at most {MAX_URL_BYTES} are sent", target.len()));
        }
        self.join(&target).ok_or_else(|| "the arguments make no URL".to_owned())
    }

    /// Resolves a redirect; `None` unless it has the same origin and stays below the base URL.
    pub(super) fn resolve_redirect(&self, from: &Uri, location: &str) -> Option<Uri> {
        let next = web::resolve(from, location.split('#').next().unwrap_or_default())?;
        let is_below = next.path() == self.prefix || next.path().strip_prefix(&self.prefix)?.starts_with('/');
        if !web::same_origin(from, &next) || !is_below || has_dot_segment(next.path()) {
            return None;
        }
        // Redirects often omit configured query parameters, such as an API key: add them again.
        let given = next.query().unwrap_or_default();
        let has = |name: &str| given.split('&').any(|pair| pair.split('=').next() == Some(name));
        let missing = self.configured_query(|name| !has(&Escape::Strict.apply(name)));
        let pairs: Vec<String> =
            Some(given.to_owned()).filter(|given| !given.is_empty()).into_iter().chain(missing).collect();
        match pairs.is_empty() {
            true => self.join(next.path()),
            false => self.join(&format!("{}?{}", next.path(), pairs.join("&"))),
        }
    }

    fn configured_query(&self, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
        let configured = self.query.iter().filter(move |(name, _)| wanted(name));
        configured.map(|(name, value)| format!("{}={}", Escape::Strict.apply(name), Escape::Strict.apply(value)))
    }

    fn join(&self, path_and_query: &str) -> Option<Uri> {
        let builder = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        builder.path_and_query(path_and_query).build().ok()
    }
}

/// Parses a header name that a document or an argument may set.
pub(super) fn settable_header(base: &BaseUrl, name: &str) -> Option<HeaderName> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    (!base.is_header_protected(&name)).then_some(name)
}

/// Header value from trimmed text.
pub(super) fn header_value(name: &HeaderName, text: &str) -> std::result::Result<HeaderValue, String> {
    let value = HeaderValue::from_str(text.trim());
    value.map_err(|_| format!("the header `{name}` can only hold visible ASCII characters"))
}

/// Whether a header is protected whatever the configuration.
pub(super) fn is_protected_header(name: &HeaderName) -> bool {
    let name = name.as_str();
    PROTECTED_HEADERS.contains(&name) || PROTECTED_HEADER_PREFIXES.iter().any(|beginning| name.starts_with(beginning))
}

/// Whether a path has a `.` or `..` segment, also percent-encoded or after a backslash.
pub(super) fn has_dot_segment(path: &str) -> bool {
    path.split('/').any(|part| {
        let decoded = percent_decode_str(part).decode_utf8_lossy();
        decoded.split(['/', '\\']).any(|part| matches!(part, "." | ".."))
    })
}

impl std::fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Base({}://{}{})", self.scheme, self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn base(url: &str) -> BaseUrl {
        let spec = RestSpec {
            base_url: url.parse().unwrap(),
            headers: HeaderMap::new(),
            query: vec![("key".to_owned(), "a b".to_owned())],
            document: None,
            allow: Vec::new(),
            deny: Vec::new(),
            tools: Vec::new(),
        };
        BaseUrl::new(&spec).unwrap()
    }

    #[test]
    fn redirects_stay_below_the_base_url() {
        let base = base("https://api.example.com/v1/");
        let from = base.request_uri("/a", &[]).unwrap();
        for (location, expected) in [
            ("/v1/b", Some("https://api.example.com/v1/b?key=a%20b")),
            ("b?x=1#f", Some("https://api.example.com/v1/b?x=1&key=a%20b")),
            ("https://API.example.com:443/v1/b?key=c", Some("https://api.example.com/v1/b?key=c")),
            ("/v2/b", None),
            ("/v10", None),
            ("/v1/../b", None),
            ("/v1/%2e%2e/b", None),
            ("http://api.example.com/v1/b", None),
            ("https://me@api.example.com/v1/b", None),
            ("//evil.example/v1/b", None),
            ("file:///v1/b", None),
        ] {
            let next = base.resolve_redirect(&from, location).map(|next| next.to_string());
            assert_eq!(next.as_deref(), expected, "{location}");
        }
    }

    proptest! {
        #[test]
        fn every_request_uri_is_below_the_base_url(path in any::<String>(), name in any::<String>(), value in any::<String>()) {
            let base = base("http://h:1/v1");
            let path = super::super::encode::encode_path_literal(&path);
            if let Ok(address) = base.request_uri(&path, &[(name, Escape::Strict.apply(&value))]) {
                prop_assert_eq!(address.authority().unwrap().as_str(), "h:1");
                prop_assert_eq!(address.scheme_str(), Some("http"));
                prop_assert!(address.path().starts_with("/v1/"));
                prop_assert!(address.query().unwrap().ends_with("key=a%20b"));
            }
        }
    }
}
