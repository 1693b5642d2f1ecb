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
}

impl<'a> Route<'a> {
    /// The route of a path; one trailing slash is ignored.
    pub(super) fn parse(path: &'a str) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut parts = path.split('/');
        let (first, second, third) = (parts.next()?, parts.next(), parts.next());
        if parts.next().is_some() || second == Some("") || third == Some("") {
            return None;
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
            _ => return None,
        })
    }

    /// Value of the `Allow` header for this route.
    pub(super) fn allowed_methods(&self) -> &'static str {
        match self {
            Self::Streamable { .. } => "POST, GET, DELETE, OPTIONS",
            Self::SseStream { .. } => "GET, OPTIONS",
            Self::SseMessages { .. } => "POST, OPTIONS",
            Self::SseCombined { .. } => "GET, POST, OPTIONS",
            Self::Health | Self::Ready | Self::Metrics | Self::Status => "GET",
        }
    }
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
            ("/", None),
            ("", None),
            ("/other", None),
            ("/mcp//x", None),
            ("/mcp/a/b/c", None),
            ("/research/mcp", None),
        ] {
            assert_eq!(Route::parse(path), route, "{path}");
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
