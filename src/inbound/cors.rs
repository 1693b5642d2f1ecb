//! CORS: preflight responses, and headers that let an allowed page read a response.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ORIGIN, VARY,
};
use http::{HeaderValue, Response, StatusCode};

use super::body::ResponseContent;
use super::respond;
use crate::http::codec::HeaderFields;

const ALLOWED_METHODS: &str = "POST, GET, DELETE, OPTIONS";
const ALLOWED_HEADERS: &str = "content-type, accept, authorization, mcp-protocol-version, mcp-session-id, \
                       x-session-id, last-event-id, mcp-method, mcp-name";
const EXPOSED_HEADERS: &str = "mcp-session-id, www-authenticate, retry-after";
/// How long a browser may cache a preflight response.
const PREFLIGHT_MAX_AGE_SECONDS: &str = "7200";

/// Answers a preflight request. Headers that mirror tool arguments have arbitrary names behind a common prefix, so
/// those that the browser asks for are allowed individually.
pub(super) fn preflight(request: &HeaderFields) -> Response<ResponseContent> {
    let mut response = respond::status_only(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(ALLOWED_METHODS));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_MAX_AGE_SECONDS));
    let requested = request.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(|value| str::from_utf8(value).ok());
    let params = requested.into_iter().flat_map(|names| names.split(',')).map(str::trim);
    let params = params.filter(|name| name.to_ascii_lowercase().starts_with(crate::dialect::headers::PARAM_PREFIX));
    let allowed = std::iter::once(ALLOWED_HEADERS).chain(params).collect::<Vec<_>>().join(", ");
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    }
    response
}

/// Allows a page of this origin, which policy has admitted, to read the response.
pub(super) fn allow_origin(response: &mut Response<ResponseContent>, origin: &[u8]) {
    let Ok(origin) = HeaderValue::from_bytes(origin) else { return };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED_HEADERS));
    headers.append(VARY, HeaderValue::from_name(ORIGIN));
}
