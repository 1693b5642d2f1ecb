//! Which address is what.

use std::borrow::Cow;

/// What an address stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route<'a> {
    /// Streamable HTTP of a group, with a session's id if the path carries one.
    Streamable { group: Option<&'a str>, session: Option<Cow<'a, str>> },
    /// Where an HTTP+SSE stream opens.
    SseStream { group: Option<&'a str> },
    /// Where messages to such a stream are sent.
    SseMessages { group: Option<&'a str> },
    /// Both of these on one path.
    SseBoth { group: &'a str },
    /// Is the process alive?
    Health,
    /// Does it take work?
    Ready,
    /// Figures for Prometheus.
    Metrics,
    /// Everything that the gateway holds.
    Status,
}

impl<'a> Route<'a> {
    /// The route of a path.
    pub(super) fn of(path: &'a str) -> Option<Self> {
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
                Self::Streamable { group, session: session.map(decode) }
            }
            (group, Some("mcp"), Some("sse")) if !group.is_empty() => Self::SseBoth { group },
            ("sse", group, None) => Self::SseStream { group },
            ("message", group, None) => Self::SseMessages { group },
            ("healthz", None, None) => Self::Health,
            ("readyz", None, None) => Self::Ready,
            ("metrics", None, None) => Self::Metrics,
            ("admin", None | Some("status"), None) => Self::Status,
            _ => return None,
        })
    }

    /// The verbs that the address knows.
    pub(super) fn verbs(&self) -> &'static str {
        match self {
            Self::Streamable { .. } => "POST, GET, DELETE, OPTIONS",
            Self::SseStream { .. } => "GET, OPTIONS",
            Self::SseMessages { .. } => "POST, OPTIONS",
            Self::SseBoth { .. } => "GET, POST, OPTIONS",
            Self::Health | Self::Ready | Self::Metrics | Self::Status => "GET",
        }
    }
}

/// The value of a parameter in a query.
pub(super) fn query<'q>(query: Option<&'q str>, name: &str) -> Option<Cow<'q, str>> {
    let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(key, _)| *key == name)?;
    Some(decode(value))
}

/// Undoes percent-encoding. What is not a valid escape stays as it is.
fn decode(value: &str) -> Cow<'_, str> {
    if !value.contains('%') {
        return Cow::Borrowed(value);
    }
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escape = (byte == b'%').then(|| after.get(..2)).flatten();
        let decoded = escape.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match decoded {
            Some(decoded) => {
                out.push(decoded);
                rest = &after[2..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_has_one_meaning() {
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
            ("/research/mcp/sse", Some(Route::SseBoth { group: "research" })),
            ("/mcp/mcp/sse", Some(Route::SseBoth { group: "mcp" })),
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
            assert_eq!(Route::of(path), route, "{path}");
        }
    }

    #[test]
    fn queries_are_decoded() {
        assert_eq!(query(Some("a=1&sessionId=sse%3Aab"), "sessionId").unwrap(), "sse:ab");
        assert_eq!(query(Some("sessionId=%zz%"), "sessionId").unwrap(), "%zz%");
        assert_eq!(query(Some("sessionIdx=1"), "sessionId"), None);
        assert_eq!(query(None, "sessionId"), None);
    }
}
