//! Who may use the console, from where, and by which page: everything that is decided by the head of a request.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ORIGIN, REFERRER_POLICY, RETRY_AFTER,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue, Method as Verb, Response, StatusCode};

use super::api::{ApiError, ApiRoute, JSON};
use super::{API_PREFIX, Console};
use crate::audit::{AuditEvent, AuditKind, AuditOutcome};
use crate::inbound::{ConsoleAdmission, ConsoleCaller, ConsoleHead, ResponseContent};
use crate::policy::{OperationsListener, Policy, presented_token};

/// Largest body of a request to the API.
pub(super) const MAX_BODY_BYTES: usize = 1 << 20;
/// Wrong keys of one address in a minute that are told so; further ones have to wait.
pub(super) const MAX_WRONG_KEYS: u32 = 10;

/// Stands for the name of an operator where a key opens nothing.
const UNKNOWN_OPERATOR: &str = "unknown";

const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                              connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                              require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers that every answer has.
const FIXED_HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
    (X_FRAME_OPTIONS, "DENY"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

impl Console {
    /// Decides about a request by its head: where it comes from, which page makes it, and who shows which key.
    pub(super) fn admit_head(&self, policy: &Policy, head: &ConsoleHead<'_>) -> ConsoleAdmission {
        // On an address that others can reach, the key of this start would be all that guards it.
        let is_exposed = head.listener == OperationsListener::Operators && self.settings.is_admin_exposed;
        if is_exposed && !policy.console.has_operators() {
            return ConsoleAdmission::Absent;
        }
        let Some(place) = policy.console_place(head.listener, head.uri, head.headers, head.peer) else {
            return ConsoleAdmission::Absent;
        };
        let Some(path) = api_path(head.path) else {
            return match check_page(head, true) {
                Err(error) => answered(&error),
                Ok(()) if matches!(*head.verb, Verb::GET | Verb::HEAD) => {
                    ConsoleAdmission::Admitted(ConsoleCaller::Public)
                }
                Ok(()) => answered(&not_allowed("GET, HEAD")),
            };
        };
        if let Err(error) = check_page(head, false) {
            return answered(&error);
        }
        let route = self.find_route(head.verb, path);
        if matches!(route, Ok((ApiRoute { may: None, .. }, _))) {
            return ConsoleAdmission::Admitted(ConsoleCaller::Public);
        }
        let caller = match presented_token(head.headers) {
            None => return answered(&key_missing()),
            Some(token) => match policy.console.operator(&self.key, place, token) {
                Some(operator) => ConsoleCaller::Operator(operator),
                None if !policy.console.principals.is_empty() => ConsoleCaller::Credential,
                None => {
                    let client = policy.trusted_proxies.client_address(head.peer, head.headers);
                    return answered(&self.wrong_key(client, head.request_id, (head.verb, path)));
                }
            },
        };
        match route.and_then(|(route, _)| check_body_head(route, head)) {
            Err(error) => answered(&error),
            Ok(()) => ConsoleAdmission::Admitted(caller),
        }
    }

    /// The answer to a key that opens nothing. As many as are told so are recorded.
    pub(super) fn wrong_key(
        &self,
        client: SocketAddr,
        request_id: &HeaderValue,
        (verb, path): (&Verb, &str),
    ) -> ApiError {
        if let Some(wait) = self.wrong_keys.record(client) {
            return too_many(wait);
        }
        // Not the path itself, which is a text of somebody unknown.
        let path = self.find_route(verb, path).map_or("", |(route, _)| route.path);
        let mut event = AuditEvent::new(AuditKind::Admin, AuditOutcome::Unauthenticated);
        event.request_id = Some(request_id.clone());
        event.peer = Some(client);
        self.record(event, UNKNOWN_OPERATOR, &format!("{verb} {API_PREFIX}/{path}"), StatusCode::UNAUTHORIZED);
        ApiError::new(StatusCode::UNAUTHORIZED, "key_wrong", "this key opens nothing here")
            .hint("the link that `rialto console` prints has the key of the running gateway")
    }
}

/// The path of a resource below `/admin/v1/`.
pub(super) fn api_path(path: &str) -> Option<&str> {
    let rest = path.strip_prefix(API_PREFIX)?;
    Some(rest.trim_matches('/'))
}

/// Refuses requests that a page of another origin makes.
fn check_page(head: &ConsoleHead<'_>, is_page: bool) -> Result<(), ApiError> {
    let text = |name: &str| head.headers.get_text(name);
    if let Some(origin) = text(ORIGIN.as_str())
        && !is_own_origin(head, &origin)
    {
        let message = "pages of another origin may not use the console";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "origin", message));
    }
    let site = text("sec-fetch-site");
    // A link on another page may open the console, which then asks for the key; it may not be put into that page.
    let is_opened = is_page
        && *head.verb == Verb::GET
        && text("sec-fetch-mode").as_deref() == Some("navigate")
        && text("sec-fetch-dest").as_deref() == Some("document");
    match site.as_deref() {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) if is_opened => Ok(()),
        Some(_) => Err(ApiError::new(StatusCode::FORBIDDEN, "site", "pages of another site may not use the console")),
    }
}

fn is_own_origin(head: &ConsoleHead<'_>, origin: &str) -> bool {
    let authority = head.uri.authority().map(|authority| authority.as_str().to_owned());
    let authority = authority.or_else(|| head.headers.get_text("host").map(std::borrow::Cow::into_owned));
    let scheme = if head.is_tls { "https" } else { "http" };
    let is_asked = authority.is_some_and(|authority| origin == format!("{scheme}://{authority}"));
    // Behind a proxy, the address that clients know counts: scheme and authority of the base URL.
    let base_origin = head.base_url.match_indices('/').nth(2).map_or(head.base_url, |(at, _)| &head.base_url[..at]);
    is_asked || origin == base_origin
}

/// Refuses what a form could send, and bodies that are too large.
fn check_body_head(route: ApiRoute, head: &ConsoleHead<'_>) -> Result<(), ApiError> {
    if matches!(*route.verb, Verb::GET) {
        return Ok(());
    }
    let media_type = head.headers.get_text(CONTENT_TYPE);
    let media_type = media_type.as_deref().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case(JSON) {
        let message = "everything but GET needs Content-Type: application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", message));
    }
    let length: Option<usize> =
        head.headers.get(CONTENT_LENGTH).and_then(|length| str::from_utf8(length).ok()?.parse().ok());
    match length {
        Some(length) if length > MAX_BODY_BYTES => Err(too_large()),
        _ => Ok(()),
    }
}

pub(super) fn too_large() -> ApiError {
    let message = format!("a body has at most {MAX_BODY_BYTES} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}

pub(super) fn not_allowed(verbs: &str) -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method", format!("this address takes {verbs}"))
}

fn key_missing() -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "key_missing", "the console needs a key")
        .hint("it is in the link that `rialto console` prints; send it as Authorization: Bearer")
}

pub(super) fn too_many(wait: Duration) -> ApiError {
    let message = "too many wrong keys from this address";
    let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_failures", message);
    ApiError { retry_after: Some(wait), ..error }
}

fn answered(error: &ApiError) -> ConsoleAdmission {
    ConsoleAdmission::Answered(Box::new(error_response(error)))
}

/// The response that tells an error.
pub(super) fn error_response(error: &ApiError) -> Response<ResponseContent> {
    let body = error.to_json().to_string();
    let mut response = secured(error.status, JSON, ResponseContent::Full(Bytes::from(body)));
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if error.status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(wait) = error.retry_after {
        headers.insert(RETRY_AFTER, (wait.as_secs() + 1).into());
    }
    if error.status == StatusCode::METHOD_NOT_ALLOWED {
        let verbs = error.message.rsplit("takes ").next().unwrap_or_default();
        headers.extend(HeaderValue::from_str(verbs).ok().map(|verbs| (ALLOW, verbs)));
    }
    response
}

/// A response with the headers that protect the page.
pub(super) fn secured(
    status: StatusCode,
    media_type: &'static str,
    body: ResponseContent,
) -> Response<ResponseContent> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in FIXED_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !media_type.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    }
    response
}
