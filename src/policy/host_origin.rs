//! Allowed `Host` and `Origin` headers: protects a gateway on the user's own machine against DNS rebinding and
//! cross-site requests.

use std::borrow::Cow;
use std::net::IpAddr;

use http::Uri;
use http::header::{HOST, ORIGIN};

use super::Denied;
use crate::http::codec::HeaderFields;

/// The allowed hosts and origins. Loopback names and addresses are always allowed.
#[derive(Debug, Clone, Default)]
pub struct HostOriginRules {
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// Allows every host or every origin.
const WILDCARD: &str = "*";

impl HostOriginRules {
    /// Allows hosts (`name` or `name:port`) and origins (`scheme://host:port`), or `*`. Matching ignores case.
    pub fn new(hosts: &[String], origins: &[String]) -> Self {
        let lower = |list: &[String]| list.iter().map(|item| item.trim_end_matches('/').to_ascii_lowercase()).collect();
        Self { hosts: lower(hosts), origins: lower(origins) }
    }

    /// Checks the `Host` and `Origin` of a request.
    ///
    /// # Errors
    /// When one of them is not allowed.
    pub fn admit(&self, uri: &Uri, headers: &HeaderFields) -> Result<(), Denied> {
        self.admit_host(uri, headers)?;
        match headers.get_text(ORIGIN) {
            Some(origin) if !self.origin_allowed(&origin) => Err(Denied::Origin(origin.into_owned())),
            _ => Ok(()),
        }
    }

    /// Checks the `Host` of a request that pages of any origin may make.
    ///
    /// # Errors
    /// When it is not allowed.
    pub fn admit_host(&self, uri: &Uri, headers: &HeaderFields) -> Result<(), Denied> {
        let host = request_authority(uri, headers);
        match self.host_allowed(&host) {
            true => Ok(()),
            false => Err(Denied::Host(host.into_owned())),
        }
    }

    /// Whether web pages of this origin may call the gateway.
    pub fn origin_allowed(&self, origin: &str) -> bool {
        if self.origins.iter().any(|allowed| allowed == WILDCARD || allowed.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let Some((scheme, host)) = origin.split_once("://") else { return false };
        ["http", "https"].iter().any(|known| known.eq_ignore_ascii_case(scheme)) && is_loopback(host_without_port(host))
    }

    /// Checks the `Host` of a request to the operators' listener. Any IP address is allowed: DNS rebinding needs a
    /// host name.
    ///
    /// # Errors
    /// When the host is a name that is not allowed.
    pub fn admit_operator(&self, uri: &Uri, headers: &HeaderFields) -> Result<(), Denied> {
        let host = request_authority(uri, headers);
        let is_address = host_without_port(&host).parse::<IpAddr>().is_ok();
        match is_address || self.host_allowed(&host) {
            true => Ok(()),
            false => Err(Denied::Host(host.into_owned())),
        }
    }

    fn host_allowed(&self, host: &str) -> bool {
        let name = host_without_port(host);
        let listed = |allowed: &String| {
            allowed == WILDCARD || allowed.eq_ignore_ascii_case(host) || allowed.eq_ignore_ascii_case(name)
        };
        is_loopback(name) || self.hosts.iter().any(listed)
    }
}

/// Whether a request names this machine as its host.
pub(super) fn is_loopback_host(uri: &Uri, headers: &HeaderFields) -> bool {
    is_loopback(host_without_port(&request_authority(uri, headers)))
}

/// The authority of the request target, which goes before `Host` (RFC 9112, section 3.2.2), or else the `Host` header.
pub(super) fn request_authority<'r>(uri: &'r Uri, headers: &'r HeaderFields) -> Cow<'r, str> {
    match (uri.authority(), headers.get_text(HOST)) {
        (Some(authority), _) => authority.as_str().into(),
        (None, Some(host)) => host,
        (None, None) => "".into(),
    }
}

/// The host of `host:port`; an IPv6 address loses its brackets.
fn host_without_port(authority: &str) -> &str {
    // User information is no host: `localhost:x@evil.example` is not this machine.
    if authority.contains('@') {
        return "";
    }
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(address, _)| address);
    }
    // A short text that every request has: cheaper byte by byte than by a search.
    authority.bytes().position(|byte| byte == b':').map_or(authority, |colon| &authority[..colon])
}

fn is_loopback(host: &str) -> bool {
    // The common spellings first, without parsing an address.
    matches!(host, "127.0.0.1" | "localhost" | "::1")
        || host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rules: &HostOriginRules, host: &str, origin: Option<&str>) -> Result<(), Denied> {
        let mut fields = vec![("host", host)];
        fields.extend(origin.map(|origin| ("origin", origin)));
        rules.admit(&Uri::from_static("/mcp"), &HeaderFields::of(&fields))
    }

    #[test]
    fn only_loopback_hosts_and_origins_are_allowed_by_default() {
        let rules = HostOriginRules::default();
        for host in ["localhost", "localhost:3001", "127.0.0.1:1", "127.0.0.2", "[::1]", "[::1]:3001", "LOCALHOST"] {
            assert_eq!(check(&rules, host, None), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1",
            "",
            "[::2]",
            "127.0.0.1.evil.example",
            "[::1",
            "localhost:x@evil.example",
            "x@localhost",
        ] {
            assert!(matches!(check(&rules, host, None), Err(Denied::Host(_))), "{host}");
        }
        for (origin, allowed) in [
            ("http://localhost:5173", true),
            ("https://127.0.0.1", true),
            ("http://[::1]:80", true),
            ("http://evil.example", false),
            ("http://localhost.evil.example", false),
            ("null", false),
            ("file://localhost", false),
            ("http://evil.example/localhost", false),
        ] {
            assert_eq!(check(&rules, "localhost", Some(origin)).is_ok(), allowed, "{origin}");
        }
    }

    #[test]
    fn authority_of_the_target_is_checked_instead_of_the_host_header() {
        let rules = HostOriginRules::default();
        for (target, host, allowed) in [
            ("http://localhost:3001/mcp", "localhost:3001", true),
            ("http://localhost:3001/mcp", "evil.example", true),
            ("http://evil.example/mcp", "localhost:3001", false),
            ("http://evil.example:3001/mcp", "127.0.0.1", false),
            ("/mcp", "localhost:3001", true),
            ("/mcp", "evil.example", false),
        ] {
            let headers = HeaderFields::of(&[("host", host)]);
            let uri = Uri::from_static(target);
            assert_eq!(rules.admit(&uri, &headers).is_ok(), allowed, "{target} {host}");
            assert_eq!(rules.admit_operator(&uri, &headers).is_ok(), allowed, "{target} {host}");
        }
        assert!(rules.admit(&Uri::from_static("/mcp"), &HeaderFields::default()).is_err());
    }

    #[test]
    fn configured_hosts_and_origins_are_allowed() {
        let rules = HostOriginRules::new(&["gate.example".into()], &["https://app.example".into(), "null".into()]);
        assert_eq!(check(&rules, "gate.example:8080", Some("https://app.example")), Ok(()));
        assert_eq!(check(&rules, "Gate.Example", Some("null")), Ok(()));
        assert!(check(&rules, "gate.example", Some("https://app.example:8443")).is_err());
        let operator = |host: &str| {
            let headers = HeaderFields::of(&[("host", host)]);
            rules.admit_operator(&Uri::from_static("/metrics"), &headers).is_ok()
        };
        assert!(["10.0.0.1:9100", "[fd00::1]:9100", "gate.example", "localhost:9100"].into_iter().all(operator));
        assert!(!["evil.example:9100", "10.0.0.1.evil.example", ""].into_iter().any(operator));
        let open = HostOriginRules::new(&["*".into()], &["*".into()]);
        assert_eq!(check(&open, "anything", Some("https://anything")), Ok(()));
    }
}
