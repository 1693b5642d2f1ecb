//! What browsers ask before and after a page calls us.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::body::ResponseContent;
use super::respond;

const METHODS: &str = "POST, GET, DELETE, OPTIONS";
const HEADERS: &str = "content-type, accept, authorization, mcp-protocol-version, mcp-session-id, \
                       x-session-id, last-event-id, mcp-method, mcp-name";
const EXPOSED: &str = "mcp-session-id, www-authenticate, retry-after";
/// How long a browser may remember the answer, in seconds.
const MAX_AGE: &str = "7200";

/// The answer to a browser's question what it may send. Headers that mirror arguments have names
/// of their own, so those that it asks for are allowed one by one.
pub(super) fn preflight(request: &HeaderMap) -> Response<ResponseContent> {
    let mut response = respond::empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    let asked = request.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(|value| value.to_str().ok());
    let params = asked.into_iter().flat_map(|names| names.split(',')).map(str::trim);
    let params = params.filter(|name| name.to_ascii_lowercase().starts_with(crate::dialect::headers::PARAM_PREFIX));
    let allowed = std::iter::once(HEADERS).chain(params).collect::<Vec<_>>().join(", ");
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    }
    response
}

/// Lets the page that asked, which policy has admitted, read the response.
pub(super) fn decorate(response: &mut Response<ResponseContent>, origin: Option<&HeaderValue>) {
    let Some(origin) = origin else { return };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    headers.append(VARY, HeaderValue::from_name(ORIGIN));
}
