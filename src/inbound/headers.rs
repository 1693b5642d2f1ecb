//! Request headers that decide the response format and the session.

use std::borrow::Cow;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderName, Uri};

use super::route::query_parameter;
use crate::http::codec::HeaderFields;

pub(super) static SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) static X_SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");
pub(super) static LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
pub(super) const JSON: &str = "application/json";
pub(super) const EVENT_STREAM: &str = "text/event-stream";
/// The `Accept` value of nearly every client; compared first, to skip parsing.
const COMMON_ACCEPT: &str = "application/json, text/event-stream";

/// Whether `Accept` allows both media types that a POST may be answered with.
pub(super) fn accepts_json_and_events(headers: &HeaderFields) -> bool {
    headers.get(ACCEPT) == Some(COMMON_ACCEPT.as_bytes()) || (accepts(headers, JSON) && accepts(headers, EVENT_STREAM))
}

/// Whether `Accept` allows a media type. A range with `q=0` excludes it.
pub(super) fn accepts(headers: &HeaderFields, media: &str) -> bool {
    let (main_type, _) = media.split_once('/').unwrap_or((media, ""));
    let admits = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let excluded =
            parts.any(|part| matches!(part.replace(' ', "").as_str(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000"));
        let matches = name.eq_ignore_ascii_case(media)
            || name == "*/*"
            || name.strip_suffix("/*").is_some_and(|range| range.eq_ignore_ascii_case(main_type));
        matches && !excluded
    };
    let values = headers.get_all(ACCEPT).filter_map(|value| str::from_utf8(value).ok());
    values.flat_map(|value| value.split(',')).any(admits)
}

/// Whether `Content-Type` is JSON.
pub(super) fn is_json(headers: &HeaderFields) -> bool {
    let value = headers.get(CONTENT_TYPE);
    if value == Some(JSON.as_bytes()) {
        return true;
    }
    let value = value.and_then(|value| str::from_utf8(value).ok());
    let media = value.and_then(|value| value.split(';').next()).unwrap_or_default();
    media.trim().eq_ignore_ascii_case(JSON)
}

/// The session id of a request. Precedence: path, `Mcp-Session-Id`, `X-Session-Id`, `?sessionId=`.
pub(super) fn session_id<'r>(
    in_path: Option<&'r str>,
    headers: &'r HeaderFields,
    uri: &'r Uri,
) -> Option<Cow<'r, str>> {
    in_path
        .map(Cow::Borrowed)
        .or_else(|| headers.get_text(&SESSION_ID))
        .or_else(|| headers.get_text(&X_SESSION_ID))
        .or_else(|| query_parameter(uri.query(), "sessionId"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_media_ranges_and_q_zero_are_honoured() {
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
            let headers = HeaderFields::of(&[("accept", value)]);
            assert_eq!((accepts(&headers, JSON), accepts(&headers, EVENT_STREAM)), (json, events), "{value}");
        }
        assert!(!accepts(&HeaderFields::default(), JSON));
    }

    #[test]
    fn content_type_parameters_are_ignored() {
        for (value, json) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain; x=application/json", false),
            ("application/json-seq", false),
        ] {
            assert_eq!(is_json(&HeaderFields::of(&[("content-type", value)])), json, "{value}");
        }
    }

    #[test]
    fn session_id_is_taken_from_path_then_headers_then_query() {
        let (none, old) = (HeaderFields::default(), HeaderFields::of(&[("x-session-id", "x")]));
        let both = HeaderFields::of(&[("x-session-id", "x"), ("mcp-session-id", "m")]);
        let uri = Uri::from_static("/mcp?sessionId=q");
        assert_eq!(session_id(None, &none, &uri).unwrap(), "q");
        assert_eq!(session_id(None, &old, &uri).unwrap(), "x");
        assert_eq!(session_id(None, &both, &uri).unwrap(), "m");
        assert_eq!(session_id(Some("p"), &both, &uri).unwrap(), "p");
        assert_eq!(session_id(None, &none, &Uri::from_static("/mcp")), None);
    }
}
