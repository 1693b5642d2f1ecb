//! URL paths and the routes they map to.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// What a path serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route<'a> {
    /// Streamable HTTP of a group, optionally with a session id in the path.
    Streamable { group: Option<&'a str>, session: Option<Cow<'a, str>> },
    /// GET endpoint of HTTP+SSE, which opens the stream.
    SseStream { group: Option<&'a str> },
    /// POST endpoint of HTTP+SSE.
    SseMessages { group: Option<&'a str> },
    /// Both HTTP+SSE endpoints on one path.
    SseCombined { group: &'a str },
    /// Liveness probe.
    Health,
    /// Readiness probe.
    Ready,
    /// Prometheus metrics.
    Metrics,
    /// Status report as JSON.
    Status,
    /// The console or its API, at this path.
    Console { path: &'a str },
    /// Protected resource metadata of an address of a group; of the gateway as a whole without one.
    ResourceMetadata { address: Option<(&'a str, Option<&'a str>)> },
    /// Where clients of 2025-03-26 look for the authorization server.
    AuthorizationServerMetadata,
}

/// Well-known path of protected resource metadata (RFC 9728).
pub(super) const RESOURCE_METADATA: &str = "/.well-known/oauth-protected-resource";
/// Well-known path of authorization server metadata (RFC 8414).
const AUTHORIZATION_SERVER_METADATA: &str = "/.well-known/oauth-authorization-server";

impl<'a> Route<'a> {
    /// The kind of address, without what a client put into it.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Streamable { .. } => "/mcp",
            Self::SseStream { .. } | Self::SseCombined { .. } => "/sse",
            Self::SseMessages { .. } => "/message",
            Self::Health => "/healthz",
            Self::Ready => "/readyz",
            Self::Metrics => "/metrics",
            Self::Status => "/admin/status",
            Self::Console { path } if path.starts_with("/admin") => "/admin/v1",
            Self::Console { .. } => "/console",
            Self::ResourceMetadata { .. } => RESOURCE_METADATA,
            Self::AuthorizationServerMetadata => AUTHORIZATION_SERVER_METADATA,
        }
    }

    /// The route of a path; one trailing slash is ignored. `public_path` is the path of the public URL, which a proxy may
    /// leave in the path.
    pub(super) fn parse(path: &'a str, public_path: &str) -> Option<Self> {
        let own = own_path(path, public_path);
        match own.starts_with("/.") {
            true => Self::parse_well_known(own, public_path),
            false => Self::parse_own(own),
        }
    }

    fn parse_well_known(path: &'a str, public_path: &str) -> Option<Self> {
        if path == AUTHORIZATION_SERVER_METADATA {
            return Some(Self::AuthorizationServerMetadata);
        }
        let rest = path.strip_prefix(RESOURCE_METADATA)?;
        let rest = if rest == public_path { "" } else { own_path(rest, public_path) };
        if rest.is_empty() || rest == "/" {
            return Some(Self::ResourceMetadata { address: None });
        }
        let address = match Self::parse_own(rest)? {
            Self::Streamable { group, session: None } | Self::SseStream { group } => (rest, group),
            Self::SseCombined { group } => (rest, Some(group)),
            _ => return None,
        };
        Some(Self::ResourceMetadata { address: Some(address) })
    }

    fn parse_own(path: &'a str) -> Option<Self> {
        let whole = path;
        let path = path.strip_prefix('/')?;
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut parts = path.split('/');
        let (first, second, third) = (parts.next()?, parts.next(), parts.next());
        if parts.next().is_some() || second == Some("") || third == Some("") {
            return is_console(first, second).then_some(Self::Console { path: whole });
        }
        Some(match (first, second, third) {
            ("mcp", None | Some("streamable"), None) => Self::Streamable { group: None, session: None },
            ("mcp", group, session) if !(group.is_some() && session == Some("sse")) => {
                Self::Streamable { group, session: session.map(percent_decode) }
            }
            (group, Some("mcp"), Some("sse")) if !group.is_empty() => Self::SseCombined { group },
            ("sse", group, None) => Self::SseStream { group },
            ("message", group, None) => Self::SseMessages { group },
            ("healthz", None, None) => Self::Health,
            ("readyz", None, None) => Self::Ready,
            ("metrics", None, None) => Self::Metrics,
            ("admin", None | Some("status"), None) => Self::Status,
            _ if is_console(first, second) => Self::Console { path: whole },
            _ => return None,
        })
    }

    /// The path of the console or its API.
    pub(super) fn console_path(&self) -> &'a str {
        match self {
            Self::Console { path } => path,
            _ => "",
        }
    }

    /// Value of the `Allow` header for this route.
    pub(super) fn allowed_methods(&self) -> &'static str {
        match self {
            Self::Streamable { .. } => "POST, GET, DELETE, OPTIONS",
            Self::SseStream { .. } => "GET, OPTIONS",
            Self::SseMessages { .. } => "POST, OPTIONS",
            Self::SseCombined { .. } => "GET, POST, OPTIONS",
            Self::Health | Self::Ready | Self::Metrics | Self::Status => "GET",
            Self::Console { .. } => "GET, POST, PUT, DELETE",
            Self::ResourceMetadata { .. } | Self::AuthorizationServerMetadata => "GET, HEAD, OPTIONS",
        }
    }

    /// The group in the path.
    pub(super) fn group(&self) -> Option<&'a str> {
        match *self {
            Self::Streamable { group, .. } | Self::SseStream { group } | Self::SseMessages { group } => group,
            Self::SseCombined { group } => Some(group),
            Self::ResourceMetadata { address } => address.and_then(|(_, group)| group),
            Self::Health | Self::Ready | Self::Metrics | Self::Status | Self::Console { .. } => None,
            Self::AuthorizationServerMetadata => None,
        }
    }

    /// The address that a token for this route names, without the path of the public URL: no session id is part of it,
    /// and messages of HTTP+SSE belong to its stream.
    pub(super) fn resource_path(&self, path: &'a str, public_path: &str) -> Cow<'a, str> {
        match *self {
            Self::Streamable { group: Some(group), session: Some(_) } => format!("/mcp/{group}").into(),
            Self::SseMessages { group: Some(group) } => format!("/sse/{group}").into(),
            Self::SseMessages { group: None } => "/sse".into(),
            _ => own_path(path, public_path).into(),
        }
    }
}

/// Whether a path with these first parts is the console's or its API's.
fn is_console(first: &str, second: Option<&str>) -> bool {
    first == "console" || first == "admin" && second == Some("v1")
}

/// A path without that of the public URL, if it is there and something that is served follows it.
pub(super) fn own_path<'p>(path: &'p str, public_path: &str) -> &'p str {
    if public_path.is_empty() {
        return path;
    }
    let rest = path.strip_prefix(public_path).filter(|rest| rest.starts_with('/'));
    rest.filter(|rest| rest.starts_with("/.") || Route::parse_own(rest).is_some()).unwrap_or(path)
}

/// The percent-decoded value of the first query parameter with that name.
pub(super) fn query_parameter<'q>(query: Option<&'q str>, name: &str) -> Option<Cow<'q, str>> {
    let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(key, _)| *key == name)?;
    Some(percent_decode(value))
}

/// Decodes percent-encoding. Invalid escapes are kept as they are.
fn percent_decode(value: &str) -> Cow<'_, str> {
    percent_decode_str(value).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_maps_to_one_route() {
        let streamable = |group, session: Option<&'static str>| {
            Some(Route::Streamable { group, session: session.map(Cow::Borrowed) })
        };
        for (path, route) in [
            ("/mcp", streamable(None, None)),
            ("/mcp/", streamable(None, None)),
            ("/mcp/streamable", streamable(None, None)),
            ("/mcp/research", streamable(Some("research"), None)),
            ("/mcp/research/http%3A1", streamable(Some("research"), Some("http:1"))),
            ("/mcp/research/http:1", streamable(Some("research"), Some("http:1"))),
            ("/sse", Some(Route::SseStream { group: None })),
            ("/sse/research", Some(Route::SseStream { group: Some("research") })),
            ("/message", Some(Route::SseMessages { group: None })),
            ("/message/research", Some(Route::SseMessages { group: Some("research") })),
            ("/research/mcp/sse", Some(Route::SseCombined { group: "research" })),
            ("/mcp/mcp/sse", Some(Route::SseCombined { group: "mcp" })),
            ("/healthz", Some(Route::Health)),
            ("/metrics", Some(Route::Metrics)),
            ("/admin/status", Some(Route::Status)),
            ("/admin/v1", Some(Route::Console { path: "/admin/v1" })),
            ("/admin/v1/calls/a/kept", Some(Route::Console { path: "/admin/v1/calls/a/kept" })),
            ("/admin/v2/calls/a/kept", None),
            ("/console", Some(Route::Console { path: "/console" })),
            ("/console/", Some(Route::Console { path: "/console/" })),
            ("/console/0/style/a.css", Some(Route::Console { path: "/console/0/style/a.css" })),
            ("/console/mcp/sse", Some(Route::SseCombined { group: "console" })),
            ("/consoles", None),
            ("/", None),
            ("", None),
            ("/other", None),
            ("/mcp//x", None),
            ("/mcp/a/b/c", None),
            ("/research/mcp", None),
        ] {
            assert_eq!(Route::parse(path, ""), route, "{path}");
        }
    }

    #[test]
    fn metadata_is_found_below_and_above_the_public_path() {
        let of = |address| Some(Route::ResourceMetadata { address });
        for (path, public_path, route) in [
            ("/.well-known/oauth-protected-resource", "", of(None)),
            ("/.well-known/oauth-protected-resource/", "", of(None)),
            ("/.well-known/oauth-protected-resource/mcp", "", of(Some(("/mcp", None)))),
            ("/.well-known/oauth-protected-resource/mcp/", "", of(Some(("/mcp/", None)))),
            ("/.well-known/oauth-protected-resource/mcp/streamable", "", of(Some(("/mcp/streamable", None)))),
            ("/.well-known/oauth-protected-resource/mcp/a", "", of(Some(("/mcp/a", Some("a"))))),
            ("/.well-known/oauth-protected-resource/sse/a", "", of(Some(("/sse/a", Some("a"))))),
            ("/.well-known/oauth-protected-resource/a/mcp/sse", "", of(Some(("/a/mcp/sse", Some("a"))))),
            ("/.well-known/oauth-protected-resource/mcp/a/session", "", None),
            ("/.well-known/oauth-protected-resource/message", "", None),
            ("/.well-known/oauth-protected-resource/mcp/../admin", "", None),
            ("/.well-known/oauth-protected-resource/../mcp", "", None),
            ("/.well-known/oauth-protected-resource//mcp", "", None),
            ("/.well-known/oauth-protected-resource/admin", "", None),
            ("/.well-known/oauth-protected-resourcex", "", None),
            ("/.well-known/oauth-protected-resource/p", "/p", of(None)),
            ("/.well-known/oauth-protected-resource/p/mcp", "/p", of(Some(("/mcp", None)))),
            ("/.well-known/oauth-protected-resource/mcp", "/p", of(Some(("/mcp", None)))),
            ("/p/.well-known/oauth-protected-resource", "/p", of(None)),
            ("/p/.well-known/oauth-protected-resource/mcp/a", "/p", of(Some(("/mcp/a", Some("a"))))),
            ("/p/.well-known/oauth-protected-resource/p/mcp/a", "/p", of(Some(("/mcp/a", Some("a"))))),
            ("/px/.well-known/oauth-protected-resource", "/p", None),
            ("/.well-known/oauth-authorization-server", "", Some(Route::AuthorizationServerMetadata)),
            ("/p/mcp", "/p", Some(Route::Streamable { group: None, session: None })),
            ("/mcp", "/p", Some(Route::Streamable { group: None, session: None })),
            ("/p/p/mcp", "/p", None),
            ("/p", "/p", None),
        ] {
            assert_eq!(Route::parse(path, public_path), route, "{path} {public_path}");
        }
    }

    #[test]
    fn a_token_names_the_address_without_session_and_message() {
        for (path, public_path, resource) in [
            ("/mcp", "", "/mcp"),
            ("/mcp/", "", "/mcp/"),
            ("/mcp/streamable", "", "/mcp/streamable"),
            ("/mcp/a/http:1", "", "/mcp/a"),
            ("/message", "", "/sse"),
            ("/message/a", "", "/sse/a"),
            ("/a/mcp/sse", "", "/a/mcp/sse"),
            ("/p/mcp/a", "/p", "/mcp/a"),
        ] {
            let route = Route::parse(path, public_path).unwrap();
            assert_eq!(route.resource_path(path, public_path), resource, "{path}");
        }
    }

    #[test]
    fn query_parameters_are_percent_decoded() {
        assert_eq!(query_parameter(Some("a=1&sessionId=sse%3Aab"), "sessionId").unwrap(), "sse:ab");
        assert_eq!(query_parameter(Some("sessionId=%+1%zz%3"), "sessionId").unwrap(), "%+1%zz%3");
        assert_eq!(query_parameter(Some("sessionId=%zz%"), "sessionId").unwrap(), "%zz%");
        assert_eq!(query_parameter(Some("sessionIdx=1"), "sessionId"), None);
        assert_eq!(query_parameter(None, "sessionId"), None);
    }
}
