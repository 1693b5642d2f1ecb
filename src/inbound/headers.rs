//! Reading the headers that say how to answer and in which session.

use std::borrow::Cow;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, Uri};

use super::route::query;

pub(super) static SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
static OTHER_SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");
pub(super) static LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
pub(super) const JSON: &str = "application/json";
pub(super) const EVENTS: &str = "text/event-stream";
/// What nearly every client writes.
const USUAL: &str = "application/json, text/event-stream";

/// Whether `Accept` admits a media type. Types that it refuses with `q=0` it does not admit.
pub(super) fn accepts(headers: &HeaderMap, media: &str) -> bool {
    if headers.get(ACCEPT).is_some_and(|value| value == USUAL) && matches!(media, JSON | EVENTS) {
        return true;
    }
    let (family, _) = media.split_once('/').unwrap_or((media, ""));
    let admits = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let refused =
            parts.any(|part| matches!(part.replace(' ', "").as_str(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000"));
        let named = name.eq_ignore_ascii_case(media)
            || name == "*/*"
            || name.strip_suffix("/*").is_some_and(|range| range.eq_ignore_ascii_case(family));
        named && !refused
    };
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(admits)
}

/// Whether the body is declared as JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = value.and_then(|value| value.split(';').next()).unwrap_or_default();
    media.trim().eq_ignore_ascii_case(JSON)
}

/// The id of the session that a request names, looked for in a fixed order: path, headers, query.
pub(super) fn session_id<'r>(in_path: Option<&'r str>, headers: &'r HeaderMap, uri: &'r Uri) -> Option<Cow<'r, str>> {
    let header = |name: &HeaderName| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    in_path
        .map(Cow::Borrowed)
        .or_else(|| header(&SESSION_ID))
        .or_else(|| header(&OTHER_SESSION_ID))
        .or_else(|| query(uri.query(), "sessionId"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_is_read_as_ranges() {
        for (value, json, events) in [
            ("application/json, text/event-stream", true, true),
            ("*/*", true, true),
            ("application/*, text/*", true, true),
            ("application/json", true, false),
            ("Text/Event-Stream; q=0.5", false, true),
            ("application/json;q=0, text/event-stream", false, true),
            ("application/jsonx", false, false),
            ("", false, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, value.parse().unwrap());
            assert_eq!((accepts(&headers, JSON), accepts(&headers, EVENTS)), (json, events), "{value}");
        }
        assert!(!accepts(&HeaderMap::new(), JSON));
    }

    #[test]
    fn content_type_is_the_media_type_alone() {
        for (value, json) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain; x=application/json", false),
            ("application/json-seq", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, value.parse().unwrap());
            assert_eq!(is_json(&headers), json, "{value}");
        }
    }

    #[test]
    fn session_ids_are_looked_for_in_order() {
        let mut headers = HeaderMap::new();
        let uri = Uri::from_static("/mcp?sessionId=q");
        assert_eq!(session_id(None, &headers, &uri).unwrap(), "q");
        headers.insert(&OTHER_SESSION_ID, "x".parse().unwrap());
        assert_eq!(session_id(None, &headers, &uri).unwrap(), "x");
        headers.insert(&SESSION_ID, "m".parse().unwrap());
        assert_eq!(session_id(None, &headers, &uri).unwrap(), "m");
        assert_eq!(session_id(Some("p"), &headers, &uri).unwrap(), "p");
        assert_eq!(session_id(None, &HeaderMap::new(), &Uri::from_static("/mcp")), None);
    }
}
