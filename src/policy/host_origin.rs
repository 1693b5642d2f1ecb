//! Which `Host` and `Origin` a request may name, so that a web page cannot reach a gateway that
//! listens on the user's own machine.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};

use super::Denied;

/// The hosts and origins that are allowed, beside those of this machine.
#[derive(Debug, Clone, Default)]
pub struct HostOriginRules {
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// Stands for every host or every origin.
const ANY: &str = "*";

impl HostOriginRules {
    /// Allows hosts (`name` or `name:port`) and origins (`scheme://host:port`), or `*`.
    pub fn new(hosts: &[String], origins: &[String]) -> Self {
        let lower = |list: &[String]| list.iter().map(|item| item.trim_end_matches('/').to_ascii_lowercase()).collect();
        Self { hosts: lower(hosts), origins: lower(origins) }
    }

    /// Judges the host and the origin that a request names.
    ///
    /// # Errors
    /// When one of them is not allowed.
    pub fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
        let host = named(uri, headers);
        if !self.host_allowed(&host) {
            return Err(Denied::Host(host.into_owned()));
        }
        match headers.get(ORIGIN).map(|origin| String::from_utf8_lossy(origin.as_bytes())) {
            Some(origin) if !self.origin_allowed(&origin) => Err(Denied::Origin(origin.into_owned())),
            _ => Ok(()),
        }
    }

    /// Whether pages of this origin may call us.
    pub fn origin_allowed(&self, origin: &str) -> bool {
        if self.origins.iter().any(|allowed| allowed == ANY || allowed.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let Some((scheme, host)) = origin.split_once("://") else { return false };
        ["http", "https"].iter().any(|known| known.eq_ignore_ascii_case(scheme)) && is_loopback(host_of(host))
    }

    /// Judges the host that a request to operators' own listener names. Any address will do: names can be
    /// made to mean another machine, so that a page there seems to be of ours, but addresses cannot.
    ///
    /// # Errors
    /// When it is a name that is not allowed.
    pub fn admit_operator(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
        let host = named(uri, headers);
        let is_address = host_of(&host).parse::<IpAddr>().is_ok();
        match is_address || self.host_allowed(&host) {
            true => Ok(()),
            false => Err(Denied::Host(host.into_owned())),
        }
    }

    fn host_allowed(&self, host: &str) -> bool {
        let name = host_of(host);
        let listed = |allowed: &String| {
            allowed == ANY || allowed.eq_ignore_ascii_case(host) || allowed.eq_ignore_ascii_case(name)
        };
        is_loopback(name) || self.hosts.iter().any(listed)
    }
}

/// The host that a request names, with its port.
fn named<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Cow<'r, str> {
    match headers.get(HOST) {
        Some(host) => String::from_utf8_lossy(host.as_bytes()),
        None => uri.authority().map_or("", |authority| authority.as_str()).into(),
    }
}

/// The host of `host:port`, an IPv6 address without its brackets.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(address, _)| address);
    }
    authority.split_once(':').map_or(authority, |(host, _)| host)
}

fn is_loopback(host: &str) -> bool {
    // What nearly everybody writes needs no reading.
    matches!(host, "127.0.0.1" | "localhost" | "::1")
        || host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(doors: &HostOriginRules, host: &str, origin: Option<&str>) -> Result<(), Denied> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        doors.admit(&Uri::from_static("/mcp"), &headers)
    }

    #[test]
    fn this_machine_is_allowed_and_nobody_else() {
        let doors = HostOriginRules::default();
        for host in ["localhost", "localhost:3001", "127.0.0.1:1", "127.0.0.2", "[::1]", "[::1]:3001", "LOCALHOST"] {
            assert_eq!(judge(&doors, host, None), Ok(()), "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example", "10.0.0.1", "", "[::2]", "127.0.0.1.evil.example", "[::1"]
        {
            assert!(matches!(judge(&doors, host, None), Err(Denied::Host(_))), "{host}");
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
            assert_eq!(judge(&doors, "localhost", Some(origin)).is_ok(), allowed, "{origin}");
        }
    }

    #[test]
    fn others_are_let_in_by_name() {
        let doors = HostOriginRules::new(&["gate.example".into()], &["https://app.example".into(), "null".into()]);
        assert_eq!(judge(&doors, "gate.example:8080", Some("https://app.example")), Ok(()));
        assert_eq!(judge(&doors, "Gate.Example", Some("null")), Ok(()));
        assert!(judge(&doors, "gate.example", Some("https://app.example:8443")).is_err());
        let operator = |host: &str| {
            let headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
            doors.admit_operator(&Uri::from_static("/metrics"), &headers).is_ok()
        };
        assert!(["10.0.0.1:9100", "[fd00::1]:9100", "gate.example", "localhost:9100"].into_iter().all(operator));
        assert!(!["evil.example:9100", "10.0.0.1.evil.example", ""].into_iter().any(operator));
        let open = HostOriginRules::new(&["*".into()], &["*".into()]);
        assert_eq!(judge(&open, "anything", Some("https://anything")), Ok(()));
    }
}
