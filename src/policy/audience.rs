//! For which audiences a token is accepted: the addresses of the group that is asked for.

use std::borrow::Cow;

use crate::issuers::AudienceUrl;

/// The audiences that are accepted at the addresses of one group.
#[derive(Debug, Clone)]
pub struct Audience<'a> {
    /// The public URL of the gateway, without a slash at its end.
    base: Cow<'a, str>,
    group: &'a str,
    base_audience: BaseAudience,
    /// The port that an audience must have, where the client alone says by which address it knows the gateway.
    served_port: Option<u16>,
}

/// Whether a token for the gateway as a whole is accepted at the addresses of its groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaseAudience {
    /// It is: many clients ask for a token of the origin, whatever the metadata says.
    Accepted,
    /// Only tokens for an address of the group are.
    Refused,
}

/// The group whose addresses have forms without a group name.
const UNNAMED_GROUP: &str = "default";

impl<'a> Audience<'a> {
    /// The audiences for a group of the gateway at a public URL.
    pub fn new(base: impl Into<Cow<'a, str>>, group: &'a str, base_audience: BaseAudience) -> Self {
        Self { base: base.into(), group, base_audience, served_port: None }
    }

    /// Those audiences that have this port.
    #[must_use]
    pub fn served_at(self, port: u16) -> Self {
        Self { served_port: Some(port), ..self }
    }

    /// Whether a token with this audience is for the group. Paths never match by their beginning.
    pub fn accepts(&self, audience: &str) -> bool {
        let (Some(base), Some(given)) = (AudienceUrl::parse(&self.base), AudienceUrl::parse(audience)) else {
            return false;
        };
        if !base.is_same_origin(&given) || self.served_port.is_some_and(|port| !given.has_port(port)) {
            return false;
        }
        match given.path().strip_prefix(base.path()) {
            Some("") => self.base_audience == BaseAudience::Accepted,
            Some(path) => is_address_of(self.group, path),
            None => false,
        }
    }
}

/// Whether a group is served at this path.
fn is_address_of(group: &str, path: &str) -> bool {
    if group == UNNAMED_GROUP && matches!(path, "/mcp" | "/mcp/streamable" | "/sse") {
        return true;
    }
    ["/mcp/", "/sse/"].iter().any(|transport| path.strip_prefix(transport) == Some(group))
        || path.strip_prefix('/').and_then(|path| path.strip_suffix("/mcp/sse")) == Some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(base: &str, group: &str, audience: &str) -> bool {
        Audience::new(base, group, BaseAudience::Accepted).accepts(audience)
    }

    /// Rules 25 and 26.
    #[test]
    fn only_addresses_of_the_group_are_its_audiences() {
        let host = "https://mcp.example";
        for (group, path, accepted) in [
            ("default", "/mcp", true),
            ("default", "/mcp/", true),
            ("default", "/mcp/streamable", true),
            ("default", "/mcp/default", true),
            ("default", "/sse", true),
            ("default", "/default/mcp/sse", true),
            ("default", "/mcp//", false),
            ("default", "/MCP", false),
            ("default", "/mcp/research", false),
            ("default", "/mcp?x=1", false),
            ("default", "/mcp#x", false),
            ("default", "/mcpx", false),
            ("default", "/message", false),
            ("research", "/mcp/research", true),
            ("research", "/mcp/research/", true),
            ("research", "/sse/research", true),
            ("research", "/research/mcp/sse", true),
            ("research", "/mcp", false),
            ("research", "/mcp/streamable", false),
            ("research", "/mcp/research/session", false),
            ("research", "/mcp/researcher", false),
            ("research", "/mcp/%72esearch", false),
        ] {
            assert_eq!(accepts(host, group, &format!("{host}{path}")), accepted, "{group} {path}");
        }
        for (audience, accepted) in [
            ("HTTPS://MCP.Example/mcp", true),
            ("https://mcp.example:443/mcp", true),
            ("https://mcp.example:/mcp", true),
            ("https://mcp.example:80/mcp", false),
            ("https://mcp.example:8443/mcp", false),
            ("http://mcp.example/mcp", false),
            ("https://other.example/mcp", false),
            ("https://mcp.example.evil/mcp", false),
            ("https://ann@mcp.example/mcp", false),
            ("https://mcp.example\\@evil/mcp", false),
            ("mcp.example/mcp", false),
            ("api://mcp.example/mcp", false),
            ("/mcp", false),
            ("", false),
        ] {
            assert_eq!(accepts(host, "default", audience), accepted, "{audience}");
        }
        assert!(accepts("http://[::1]:3001", "default", "http://[::1]:3001/mcp"));
        assert!(accepts("http://[::1]", "default", "http://[::1]:80/mcp"));
    }

    #[test]
    fn an_audience_must_have_the_served_port_where_the_client_alone_says_it() {
        for (base, port, accepted) in [
            ("http://127.0.0.1:3001", 3001, true),
            ("http://localhost:3001", 3001, true),
            ("http://[::1]:3001", 3001, true),
            ("http://localhost:9", 3001, false),
            ("http://localhost:73001", 3001, false),
            ("http://localhost", 3001, false),
            ("http://localhost", 80, true),
            ("https://localhost", 443, true),
            ("https://localhost", 80, false),
        ] {
            let audience = Audience::new(base, "default", BaseAudience::Accepted).served_at(port);
            for path in ["", "/mcp"] {
                assert_eq!(audience.accepts(&format!("{base}{path}")), accepted, "{base}{path} {port}");
            }
            assert!(!audience.accepts(&format!("http://other.example:{port}/mcp")));
        }
    }

    /// Rule 27.
    #[test]
    fn the_origin_is_an_audience_unless_it_is_refused_or_others_live_there() {
        for audience in ["https://h", "https://h/", "HTTPS://H:443"] {
            assert!(accepts("https://h", "research", audience), "{audience}");
            let strict = Audience::new("https://h", "research", BaseAudience::Refused);
            assert!(!strict.accepts(audience) && strict.accepts("https://h/mcp/research"), "{audience}");
            assert!(!accepts("https://h/gate", "research", audience), "{audience}");
        }
        assert!(accepts("https://h/gate", "research", "https://h/gate/"));
        assert!(accepts("https://h/gate", "research", "https://h/gate/mcp/research"));
        assert!(!accepts("https://h/gate", "research", "https://h/mcp/research"));
        assert!(!accepts("https://h/gate", "research", "https://h/gateway/mcp/research"));
    }
}
