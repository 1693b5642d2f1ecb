//! Takes audiences apart and compares them: those of tokens, those that the file lists, and the addresses of groups.

/// An audience that is an `http` or `https` URL, taken apart for a comparison.
#[derive(Debug, Clone, Copy)]
pub struct AudienceUrl<'u> {
    scheme: &'u str,
    host: &'u str,
    /// `None` for the default of the scheme.
    port: Option<&'u str>,
    /// Path and query, without one slash at the end.
    path: &'u str,
}

/// Whether an audience of a token is one that the file lists: of URLs scheme and host are compared in any case, the default
/// port and one slash at the end do not count; anything else is compared byte for byte. A URL with a fragment or user
/// information never matches.
pub(super) fn is_same_audience(given: &str, listed: &str) -> bool {
    if !is_http(given) {
        return given == listed;
    }
    match (AudienceUrl::parse(given), AudienceUrl::parse(listed)) {
        (Some(given), Some(listed)) => given.is_same_origin(&listed) && given.path == listed.path,
        _ => false,
    }
}

fn is_http(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

impl<'u> AudienceUrl<'u> {
    /// Takes a URL apart; `None` for what is none, or could be read in two ways.
    pub fn parse(text: &'u str) -> Option<Self> {
        if !is_http(text) || text.contains(['#', '\\']) {
            return None;
        }
        let (scheme, rest) = text.split_once("://")?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return None;
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (authority, None),
        };
        let default_port = if scheme.eq_ignore_ascii_case("https") { "443" } else { "80" };
        let port = port.filter(|port| !port.is_empty() && *port != default_port);
        let is_valid = !host.is_empty() && port.is_none_or(|port| port.bytes().all(|digit| digit.is_ascii_digit()));
        is_valid.then(|| Self { scheme, host, port, path: path.strip_suffix('/').unwrap_or(path) })
    }

    /// Path and query, without one slash at the end.
    pub fn path(&self) -> &'u str {
        self.path
    }

    /// Whether this is its port, given or by its scheme.
    pub fn has_port(&self, port: u16) -> bool {
        let default_port = if self.scheme.eq_ignore_ascii_case("https") { 443 } else { 80 };
        self.port.map_or(Ok(default_port), str::parse) == Ok(port)
    }

    /// Whether scheme, host and port are the same.
    pub fn is_same_origin(&self, other: &Self) -> bool {
        self.scheme.eq_ignore_ascii_case(other.scheme)
            && self.host.eq_ignore_ascii_case(other.host)
            && self.port == other.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audiences_are_compared_by_url() {
        let same = is_same_audience;
        for (one, other) in [
            ("https://h/mcp", "https://h/mcp/"),
            ("https://h", "https://h/"),
            ("https://h/mcp", "HTTPS://H:443/mcp"),
            ("http://h:80", "http://h"),
            ("http://[::1]:3001/mcp", "http://[::1]:3001/mcp"),
            ("api://x", "api://x"),
            ("5f0c-guid", "5f0c-guid"),
            ("https://h/a/", "https://H/a"),
        ] {
            assert!(same(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("https://h/mcp", "https://h/mcp/research"),
            ("https://h/mcp", "https://h/mcp//"),
            ("https://h/mcp", "https://h/MCP"),
            ("https://h/mcp", "http://h/mcp"),
            ("https://h/mcp", "https://h:8443/mcp"),
            ("https://h/mcp", "https://h/mcp?x"),
            ("https://h/mcp", "https://h/%6dcp"),
            ("https://h/mcp#a", "https://h/mcp#a"),
            ("https://u@h/mcp", "https://u@h/mcp"),
            ("api://x", "api://X"),
            ("api://x", "api://x/"),
            ("api://x", "API://x"),
            ("https://h/a", "https://h/b"),
            ("GUID", "guid"),
        ] {
            assert!(!same(one, other), "{one} {other}");
        }
    }
}
