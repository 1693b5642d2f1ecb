//! Where the requests of an API go, and what no argument and no document can change about that.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use percent_encoding::percent_decode_str;

use super::encode::Escape;
use super::spec::RestSpec;
use crate::error::{Error, ErrorKind, Result};
use crate::http::client as web;

/// Headers that neither a document nor an argument can set: those that frame a message, that say who
/// we are or whom we speak for, or that belong to this protocol.
const CLOSED: &[&str] = &[
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
/// The beginnings of further such headers.
const CLOSED_BEGINNINGS: &[&str] = &["mcp-", "proxy-", "x-forwarded-", "sec-"];
/// The most bytes that a URL may have.
const LONGEST_URL: usize = 16 << 10;

/// Where requests go: the only place, whatever a document, an argument or an answer says.
#[derive(Clone)]
pub(super) struct Base {
    scheme: Scheme,
    authority: Authority,
    /// The path that everything is below, without a slash at its end.
    prefix: String,
    headers: HeaderMap,
    query: Vec<(String, String)>,
}

impl Base {
    pub(super) fn new(spec: &RestSpec) -> Result<Self> {
        let wrong = |why: &str| {
            let shown = web::redacted(&spec.base_url);
            Error::new(
                ErrorKind::Usage,
                format!("the base URL {shown} {why}; give something like https://api.example.com/v1"),
            )
        };
        let parts = spec.base_url.clone().into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(wrong("is no absolute URL"));
        };
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(wrong("is no HTTP address"));
        }
        if authority.as_str().contains('@') {
            let why = "the base URL has credentials in it; give them as a header";
            return Err(Error::new(ErrorKind::Usage, why));
        }
        let path = parts.path_and_query;
        if path.as_ref().is_some_and(|path| path.query().is_some()) {
            return Err(wrong("has a query; give its parameters as `query`"));
        }
        let prefix = path.as_ref().map_or("", PathAndQuery::path).trim_end_matches('/').to_owned();
        if climbs(&prefix) {
            return Err(wrong("has `.` or `..` in its path"));
        }
        let mut headers = spec.headers.clone();
        headers.iter_mut().for_each(|(_, value)| value.set_sensitive(true));
        Ok(Self { scheme, authority, prefix, headers, query: spec.query.clone() })
    }

    /// The base URL itself.
    pub(super) fn uri(&self) -> Option<Uri> {
        self.join(if self.prefix.is_empty() { "/" } else { &self.prefix })
    }

    /// The headers that go with each request.
    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Whether only the configuration can set a header.
    pub(super) fn keeps_header(&self, name: &HeaderName) -> bool {
        closed(name) || self.headers.contains_key(name)
    }

    /// Whether only the configuration can set a parameter of the query. Some servers take names in
    /// whatever case.
    pub(super) fn keeps_query(&self, name: &str) -> bool {
        self.query.iter().any(|(kept, _)| kept.eq_ignore_ascii_case(name))
    }

    /// The address of a request: an encoded path below the base, and names with encoded values.
    pub(super) fn address(&self, path: &str, query: &[(String, String)]) -> std::result::Result<Uri, String> {
        if climbs(path) {
            return Err("a part of the path would be `.` or `..`, which means another place".to_owned());
        }
        let mut all = format!("{}/{}", self.prefix, path.trim_start_matches('/'));
        let own = query.iter().filter(|(name, _)| !self.keeps_query(name));
        let own = own.map(|(name, value)| format!("{}={value}", Escape::Strict.apply(name)));
        let pairs: Vec<String> = own.chain(self.kept_query(|_| true)).collect();
        if !pairs.is_empty() {
            all = format!("{all}?{}", pairs.join("&"));
        }
        if all.len() > LONGEST_URL {
            return Err(format!("the URL would have {} bytes; at most {LONGEST_URL} are sent", all.len()));
        }
        self.join(&all).ok_or_else(|| "the arguments make no URL".to_owned())
    }

    /// Where an answer sends us, if that is below the base.
    pub(super) fn redirected(&self, from: &Uri, location: &str) -> Option<Uri> {
        let next = web::resolve(from, location.split('#').next().unwrap_or_default())?;
        let below = next.path() == self.prefix || next.path().strip_prefix(&self.prefix)?.starts_with('/');
        if !web::same_origin(from, &next) || !below || climbs(next.path()) {
            return None;
        }
        // What the configuration adds to a query is not always repeated by those who redirect.
        let given = next.query().unwrap_or_default();
        let has = |name: &str| given.split('&').any(|pair| pair.split('=').next() == Some(name));
        let missing = self.kept_query(|name| !has(&Escape::Strict.apply(name)));
        let pairs: Vec<String> =
            Some(given.to_owned()).filter(|given| !given.is_empty()).into_iter().chain(missing).collect();
        match pairs.is_empty() {
            true => self.join(next.path()),
            false => self.join(&format!("{}?{}", next.path(), pairs.join("&"))),
        }
    }

    fn kept_query(&self, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
        let kept = self.query.iter().filter(move |(name, _)| wanted(name));
        kept.map(|(name, value)| format!("{}={}", Escape::Strict.apply(name), Escape::Strict.apply(value)))
    }

    fn join(&self, path_and_query: &str) -> Option<Uri> {
        let builder = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        builder.path_and_query(path_and_query).build().ok()
    }
}

/// The name of a header that a document or an argument may set.
pub(super) fn open_header(base: &Base, name: &str) -> Option<HeaderName> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    (!base.keeps_header(&name)).then_some(name)
}

/// A header's value from text.
pub(super) fn header_value(name: &HeaderName, text: &str) -> std::result::Result<HeaderValue, String> {
    let value = HeaderValue::from_str(text.trim());
    value.map_err(|_| format!("the header `{name}` can only hold visible ASCII characters"))
}

/// Whether only the configuration can set a header, whatever API it is.
pub(super) fn closed(name: &HeaderName) -> bool {
    let name = name.as_str();
    CLOSED.contains(&name) || CLOSED_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// Whether a path has a part that means another place.
pub(super) fn climbs(path: &str) -> bool {
    path.split('/').any(|part| {
        let decoded = percent_decode_str(part).decode_utf8_lossy();
        decoded.split(['/', '\\']).any(|part| matches!(part, "." | ".."))
    })
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Base({}://{}{})", self.scheme, self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn base(url: &str) -> Base {
        let spec = RestSpec {
            base_url: url.parse().unwrap(),
            headers: HeaderMap::new(),
            query: vec![("key".to_owned(), "a b".to_owned())],
            document: None,
            allow: Vec::new(),
            deny: Vec::new(),
            tools: Vec::new(),
        };
        Base::new(&spec).unwrap()
    }

    #[test]
    fn redirects_stay_below_the_base() {
        let base = base("https://api.example.com/v1/");
        let from = base.address("/a", &[]).unwrap();
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
            let next = base.redirected(&from, location).map(|next| next.to_string());
            assert_eq!(next.as_deref(), expected, "{location}");
        }
    }

    proptest! {
        #[test]
        fn every_address_is_below_the_base(path in any::<String>(), name in any::<String>(), value in any::<String>()) {
            let base = base("http://h:1/v1");
            let path = super::super::encode::literal(&path);
            if let Ok(address) = base.address(&path, &[(name, Escape::Strict.apply(&value))]) {
                prop_assert_eq!(address.authority().unwrap().as_str(), "h:1");
                prop_assert_eq!(address.scheme_str(), Some("http"));
                prop_assert!(address.path().starts_with("/v1/"));
                prop_assert!(address.query().unwrap().ends_with("key=a%20b"));
            }
        }
    }
}
