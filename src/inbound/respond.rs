//! Builds HTTP responses. The only module that chooses status codes.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, Response, StatusCode};

use super::body::{EventStreamBody, ResponseContent};
use super::challenge::{Challenge, scope_challenge};
use super::headers::{EVENT_STREAM, JSON, SESSION_ID};
use super::pieces::PiecesBody;
use crate::access_log::AccessRecord;
use crate::call::{Answer, Caller};
use crate::dialect::Revision;
use crate::dialect::classify::RefusedRequest;
use crate::failure::{Failure, FailureKind, QuotaReached, QuotaScope, whole_seconds};
use crate::gateway::{over_rate_limit, parked_call_lost};
use crate::http::codec::{self, RequestError};
use crate::http::sse;
use crate::issuers::TokenError;
use crate::policy::{CredentialError, Denied};
use crate::protocol::{self, ErrorObject, Id, Invalid, Outcome, code};
use crate::session::{SessionId, StreamError};
use crate::store::NodeId;

/// Why a request is not served. Each variant has one status and one error message.
#[derive(Debug)]
pub(super) enum Rejection {
    ShuttingDown,
    /// The audit log cannot record the request, and must.
    AuditUnavailable,
    /// The session store is unreachable, or this node does not hold its lease.
    StoreUnavailable,
    /// Another node must serve the request; relayed unless relaying fails.
    OnOtherNode(NodeId),
    /// The session is being handed over; it is looked up again.
    SessionMoving,
    /// The connection to the node that serves the request was lost; the outcome is unknown.
    RelayPeerLost,
    /// The node that must serve the request has too many messages waiting; nothing was sent to it.
    RelayPeerBusy,
    /// The node on which the call was parked is gone.
    ParkedCallLost,
    /// The store is out of memory and cannot retain the call's stream events.
    StoreFull,
    NotFound,
    HeadTooLarge,
    TransferEncodingNotSupported,
    /// Not a valid HTTP/1.1 request.
    MalformedHttp(codec::ParseError),
    MethodNotAllowed(&'static str),
    MethodRefused(&'static str),
    Denied(Denied),
    /// The caller may do nothing in the group.
    GroupForbidden,
    /// The call needs scopes that the caller can get.
    InsufficientScope(Box<Failure>),
    /// The credential is missing or not accepted.
    Credential(Box<Challenge>),
    /// Too many credentials of this address were invalid; it has to wait this long.
    TooManyFailures(Duration),
    NotAcceptable(&'static str),
    NotJson,
    BodyTooLarge(usize),
    BodyIncomplete,
    BodyTimeout,
    JsonTooDeep(usize),
    BatchNotSupported,
    MixedBatch,
    InvalidMessage(Invalid),
    SessionRequired,
    SessionParameterRequired,
    SessionNotFound(GivenSessionId),
    /// A rejection of the JSON-RPC request with this id.
    ForRequest(Id, Box<Rejection>),
    /// A quota is used up; nothing was begun.
    QuotaReached(QuotaReached),
    /// A rate limit has no room; nothing was begun. Try again after this time.
    OverRateLimit(Duration),
    StreamRefused(StreamError),
    Refused(RefusedRequest),
}

/// A session id as a client gave it. It may be that of another caller's session, so logs do not show it.
pub(super) struct GivenSessionId(pub(super) String);

impl std::fmt::Debug for GivenSessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// `Retry-After` of 503 responses.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// `Retry-After` where a token cannot be verified right now.
const UNVERIFIED_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Longest part of client input that an error message repeats, in characters.
const MAX_ECHOED_INPUT: usize = 100;

impl From<RequestError> for Rejection {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::TooLarge => Self::HeadTooLarge,
            RequestError::UnsupportedTransferEncoding => Self::TransferEncodingNotSupported,
            RequestError::Malformed(why) => Self::MalformedHttp(why),
        }
    }
}

impl Rejection {
    /// The request id, and the node to relay to; no node means that the session is moving and must be looked up
    /// again.
    ///
    /// # Errors
    /// The rejection itself when relaying does not help.
    pub(super) fn relay_target(self) -> Result<(Option<Id>, Option<NodeId>), Self> {
        match self {
            Self::OnOtherNode(node) => Ok((None, Some(node))),
            Self::SessionMoving => Ok((None, None)),
            Self::ForRequest(id, rejection) => match rejection.relay_target() {
                Ok((inner, node)) => Ok((inner.or(Some(id)), node)),
                Err(rejection) => Err(Self::ForRequest(id, Box::new(rejection))),
            },
            other => Err(other),
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::AuditUnavailable | Self::ShuttingDown | Self::StoreUnavailable | Self::RelayPeerBusy => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::OnOtherNode(_) | Self::SessionMoving => StatusCode::SERVICE_UNAVAILABLE,
            // The call has failed for good: a JSON-RPC error in a 200 response, which the client will not retry.
            Self::ForRequest(_, rejection)
                if matches!(**rejection, Self::RelayPeerLost | Self::ParkedCallLost | Self::StoreFull) =>
            {
                StatusCode::OK
            }
            Self::RelayPeerLost | Self::ParkedCallLost | Self::StoreFull => StatusCode::BAD_GATEWAY,
            Self::ForRequest(_, rejection) => rejection.status(),
            Self::NotFound | Self::SessionNotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) | Self::MethodRefused(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Denied(_) | Self::GroupForbidden | Self::InsufficientScope(_) => StatusCode::FORBIDDEN,
            Self::Credential(challenge) => credential_status(challenge.error),
            Self::TooManyFailures(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::NotAcceptable(_) => StatusCode::NOT_ACCEPTABLE,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TransferEncodingNotSupported => StatusCode::NOT_IMPLEMENTED,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::StreamRefused(StreamError::QuotaReached(reached)) | Self::QuotaReached(reached) => {
                match reached.scope {
                    QuotaScope::Gateway => StatusCode::SERVICE_UNAVAILABLE,
                    QuotaScope::Caller | QuotaScope::Session => StatusCode::TOO_MANY_REQUESTS,
                }
            }
            Self::OverRateLimit(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::StreamRefused(StreamError::SessionEnded) => StatusCode::NOT_FOUND,
            Self::Refused(refused) => refused_status(refused.error.code()),
            Self::BodyIncomplete
            | Self::MalformedHttp(_)
            | Self::JsonTooDeep(_)
            | Self::BatchNotSupported
            | Self::MixedBatch
            | Self::InvalidMessage(_)
            | Self::SessionRequired
            | Self::SessionParameterRequired
            | Self::StreamRefused(_) => StatusCode::BAD_REQUEST,
        }
    }

    /// JSON-RPC error for the client, with the id of its request.
    fn error(self) -> (Option<Id>, ErrorObject) {
        let message = match self {
            Self::ForRequest(id, rejection) => {
                let (inner, error) = rejection.error();
                return (inner.or(Some(id)), error);
            }
            Self::Refused(RefusedRequest { id, error }) => return (id, error),
            Self::InvalidMessage(invalid) => {
                let protocol::Response { id, outcome, .. } = invalid.response();
                let error = outcome.err();
                return (id, error.unwrap_or_else(|| ErrorObject::new(code::INVALID_REQUEST, "Invalid request")));
            }
            Self::InsufficientScope(failure) => return (None, (*failure).into()),
            Self::StoreUnavailable | Self::OnOtherNode(_) | Self::SessionMoving => {
                let failure = Failure::new(FailureKind::StoreUnavailable, "sessions cannot be kept or reached");
                return (None, failure.with_retry_after(Some(RETRY_DELAY)).into());
            }
            Self::RelayPeerBusy => {
                let failure = Failure::new(FailureKind::NodeBusy, "the mailbox of the other node is full");
                return (None, failure.with_retry_after(Some(RETRY_DELAY)).into());
            }
            Self::RelayPeerLost => {
                return (None, Failure::new(FailureKind::NodeLost, "connection to the other node lost").into());
            }
            Self::ParkedCallLost => return (None, parked_call_lost()),
            Self::StoreFull => {
                return (None, Failure::new(FailureKind::StoreFull, "the store is out of memory").into());
            }
            Self::AuditUnavailable => {
                let message = "Service Unavailable: the gateway cannot record calls right now; try again later";
                return (None, ErrorObject::new(code::INTERNAL_ERROR, message));
            }
            Self::ShuttingDown => {
                return (
                    None,
                    ErrorObject::new(code::INTERNAL_ERROR, "Service Unavailable: the gateway is shutting down"),
                );
            }
            Self::StreamRefused(StreamError::QuotaReached(reached)) | Self::QuotaReached(reached) => {
                return (None, quota_error(reached));
            }
            Self::OverRateLimit(wait) => return (None, over_rate_limit(wait)),
            Self::HeadTooLarge => "Request Header Fields Too Large: send fewer or shorter headers".to_owned(),
            Self::TransferEncodingNotSupported => {
                "Not Implemented: the only `Transfer-Encoding` understood is `chunked`, given once".to_owned()
            }
            Self::MalformedHttp(why) => format!("Bad Request: {why}"),
            Self::NotFound => "Not Found: nothing is served at this address".to_owned(),
            Self::MethodNotAllowed(methods) => format!("Method Not Allowed: this address knows {methods}"),
            Self::MethodRefused(why) => format!("Method Not Allowed: {why}"),
            Self::Denied(Denied::Host(host)) => {
                format!("Forbidden: the host {:?} is not one of ours; allow it with --allow-host", echo_excerpt(&host))
            }
            Self::Denied(Denied::Origin(origin)) => {
                format!("Forbidden: the origin {:?} may not call; allow it with --allow-origin", echo_excerpt(&origin))
            }
            Self::GroupForbidden => "Forbidden: you may not use this group".to_owned(),
            Self::Credential(challenge) => challenge.message(),
            Self::TooManyFailures(wait) => format!(
                "Too Many Requests: too many invalid credentials from this address; try again in {} s",
                whole_seconds(wait).max(1)
            ),
            Self::NotAcceptable(types) => format!("Not Acceptable: the header `Accept` must list {types}"),
            Self::NotJson => format!("Unsupported Media Type: the header `Content-Type` must be {JSON}"),
            Self::BodyTooLarge(limit) => format!("Payload Too Large: a body may have {limit} bytes"),
            Self::BodyIncomplete => "Bad Request: the body ended early".to_owned(),
            Self::BodyTimeout => "Request Timeout: the body did not arrive in time".to_owned(),
            Self::JsonTooDeep(limit) => format!("Bad Request: JSON may nest {limit} deep"),
            Self::BatchNotSupported => "Bad Request: batches exist in sessions of 2025-03-26 only".to_owned(),
            Self::MixedBatch => {
                "Bad Request: a batch holds requests and notifications, or responses, not both".to_owned()
            }
            Self::SessionRequired => "Bad Request: the header `Mcp-Session-Id` is required".to_owned(),
            Self::SessionParameterRequired => "Bad Request: the query parameter `sessionId` is required".to_owned(),
            Self::SessionNotFound(id) => format!("Session not found: {}", echo_excerpt(&id.0)),
            Self::StreamRefused(StreamError::UnknownEvent) => {
                "Bad Request: `Last-Event-ID` names no event of this session".to_owned()
            }
            Self::StreamRefused(StreamError::EventsTrimmed) => {
                "Bad Request: what came after `Last-Event-ID` is no longer kept; list and ask again".to_owned()
            }
            Self::StreamRefused(StreamError::SessionEnded) => "Session not found: it has just ended".to_owned(),
        };
        (None, ErrorObject::new(code::INVALID_REQUEST, message))
    }

    /// The rejection without its request id.
    fn cause(&self) -> &Self {
        match self {
            Self::ForRequest(_, rejection) => rejection.cause(),
            rejection => rejection,
        }
    }

    /// Encodes the rejection with its status and headers.
    pub(super) fn respond(self) -> Response<ResponseContent> {
        self.respond_logged(None)
    }

    /// The same; the access log gets the code of the error.
    pub(super) fn respond_logged(self, access: Option<&AccessRecord>) -> Response<ResponseContent> {
        let status = self.status();
        let header = match self.cause() {
            Self::MethodNotAllowed(methods) => Some((ALLOW, HeaderValue::from_static(methods))),
            Self::MethodRefused(_) => Some((ALLOW, HeaderValue::from_static("POST"))),
            Self::InsufficientScope(failure) => {
                scope_challenge(failure.scopes()).map(|value| (WWW_AUTHENTICATE, value))
            }
            Self::Credential(challenge) if challenge.error == CredentialError::Token(TokenError::Unavailable) => {
                Some((RETRY_AFTER, UNVERIFIED_RETRY_DELAY.as_secs().into()))
            }
            Self::Credential(challenge) => challenge.header().map(|value| (WWW_AUTHENTICATE, value)),
            Self::TooManyFailures(wait) => Some((RETRY_AFTER, whole_seconds(*wait).max(1).into())),
            Self::AuditUnavailable
            | Self::ShuttingDown
            | Self::StreamRefused(StreamError::QuotaReached(_))
            | Self::QuotaReached(_)
            | Self::StoreUnavailable
            | Self::RelayPeerBusy
            | Self::OnOtherNode(_)
            | Self::SessionMoving => Some((RETRY_AFTER, RETRY_DELAY.as_secs().into())),
            Self::OverRateLimit(wait) => Some((RETRY_AFTER, whole_seconds(*wait).max(1).into())),
            _ => None,
        };
        let is_private =
            matches!(self.cause(), Self::Credential(_) | Self::TooManyFailures(_)) || status == StatusCode::FORBIDDEN;
        let (id, error) = self.error();
        if let Some(access) = access {
            access.note_error(error.code());
        }
        let mut response = json_with(status, protocol::Response::new(id, Err(error)).encode());
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, value);
        }
        if is_private {
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        response
    }
}

/// The rejection of a call that needs more scopes, for a caller that can get them and a client that knows how. Others read
/// the error in the response.
pub(super) fn insufficient_scope(caller: &Caller, client: Revision, answer: &Answer) -> Option<Rejection> {
    let failure = answer.outcome.as_ref().err()?.failure()?;
    let is_challenged = failure.kind() == FailureKind::InsufficientScope
        && client.knows_scope_challenges()
        && caller.identity.credential.can_gain_scopes();
    is_challenged.then(|| Rejection::InsufficientScope(Box::new(failure.clone())))
}

/// Status of a request that is not admitted by its credential.
fn credential_status(error: CredentialError) -> StatusCode {
    match error {
        CredentialError::Token(TokenError::Unavailable) => StatusCode::SERVICE_UNAVAILABLE,
        CredentialError::Missing | CredentialError::Token(_) => StatusCode::UNAUTHORIZED,
        CredentialError::Malformed(_) => StatusCode::BAD_REQUEST,
        CredentialError::Group => StatusCode::FORBIDDEN,
    }
}

/// The error for a call, session or stream that a quota does not allow.
pub(super) fn quota_error(reached: QuotaReached) -> ErrorObject {
    let detail = format!("quota reached: {} ({:?})", reached.resource, reached.scope);
    Failure::new(FailureKind::QuotaReached(reached), detail).with_retry_after(Some(RETRY_DELAY)).into()
}

/// The whole response to a connection that a quota does not allow, as HTTP/1.1 writes it.
pub(super) fn refused_connection(reached: QuotaReached) -> Bytes {
    let rejection = Rejection::QuotaReached(reached);
    let status = rejection.status();
    let (id, error) = rejection.error();
    let body = protocol::Response::new(id, Err(error)).encode();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {JSON}\r\ncontent-length: {}\r\nretry-after: {}\r\nconnection: close\r\n\r\n",
        body.len(),
        RETRY_DELAY.as_secs()
    );
    [head.as_bytes(), &body].concat().into()
}

/// Status of a dialect error found before the call was forwarded.
fn refused_status(error: i64) -> StatusCode {
    match error {
        code::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Status of a call outcome in the per-request era, where some errors have their own.
pub(super) fn outcome_status(outcome: &Outcome) -> StatusCode {
    match outcome.as_ref().map_err(ErrorObject::code) {
        Err(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Err(code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// Client input shortened and without control characters, for an error message.
fn echo_excerpt(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(MAX_ECHOED_INPUT).collect()
}

/// A JSON response with status 200.
pub(super) fn json(message: Bytes) -> Response<ResponseContent> {
    json_with(StatusCode::OK, message)
}

/// A JSON response with the given status.
pub(super) fn json_with(status: StatusCode, message: Bytes) -> Response<ResponseContent> {
    let mut response = Response::new(ResponseContent::Full(message));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// A JSON response whose result is passed on as it arrives.
pub(super) fn json_in_pieces(body: PiecesBody) -> Response<ResponseContent> {
    let mut response = Response::new(ResponseContent::Pieces(Box::new(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// 202 for notifications and responses.
pub(super) fn accepted() -> Response<ResponseContent> {
    status_only(StatusCode::ACCEPTED)
}

/// A response without a body.
pub(super) fn status_only(status: StatusCode) -> Response<ResponseContent> {
    let mut response = Response::new(ResponseContent::Empty);
    *response.status_mut() = status;
    response
}

/// 200 for a deleted session.
pub(super) fn session_deleted() -> Response<ResponseContent> {
    status_only(StatusCode::OK)
}

/// Text response to a health or readiness probe: 200 or 503.
pub(super) fn probe(is_ok: bool, text: &'static str) -> Response<ResponseContent> {
    let mut response = Response::new(ResponseContent::Full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// A text response that must not be cached.
pub(super) fn text(media_type: &'static str, text: impl Into<Bytes>) -> Response<ResponseContent> {
    let mut response = Response::new(ResponseContent::Full(text.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// An SSE response; proxies must neither buffer nor transform it.
pub(super) fn event_stream(events: EventStreamBody) -> Response<ResponseContent> {
    let mut response = Response::new(ResponseContent::Events(Box::new(events)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// An SSE stream that ends at once. The client reconnects after `retry` milliseconds with the same `Last-Event-ID`.
pub(super) fn reconnect_later(last: Option<&str>, retry: u64) -> Response<ResponseContent> {
    let event = match last {
        Some(last) => sse::priming(last, retry),
        None => sse::retry(retry),
    };
    text(EVENT_STREAM, event)
}

/// A response from the node that the request was relayed to.
pub(super) fn relayed(status: StatusCode, headers: HeaderMap, body: ResponseContent) -> Response<ResponseContent> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Adds the `Mcp-Session-Id` header.
pub(super) fn with_session_id(mut response: Response<ResponseContent>, id: SessionId) -> Response<ResponseContent> {
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(&SESSION_ID, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Execution, FailureSide, Retry};

    /// The status of a call that fails in this way, and its error.
    fn answer(kind: FailureKind) -> (StatusCode, ErrorObject) {
        let rejection = match kind {
            FailureKind::StoreUnavailable => Rejection::StoreUnavailable,
            FailureKind::StoreFull => Rejection::StoreFull,
            FailureKind::NodeBusy => Rejection::RelayPeerBusy,
            FailureKind::NodeLost => Rejection::RelayPeerLost,
            FailureKind::ParkedCallLost => Rejection::ParkedCallLost,
            FailureKind::QuotaReached(reached) => Rejection::QuotaReached(reached),
            FailureKind::OverRateLimit => Rejection::OverRateLimit(Duration::from_millis(6500)),
            FailureKind::InsufficientScope => Rejection::InsufficientScope(Box::new(Failure::new(kind, ""))),
            kind => {
                assert_ne!(kind.side(), FailureSide::Gateway, "{kind:?} has no rejection");
                let error = ErrorObject::from(Failure::new(kind, "").of_upstream(&"files".into()));
                return (outcome_status(&Err(error.clone())), error);
            }
        };
        let rejection = Rejection::ForRequest(Id::Number(1), Box::new(rejection));
        (rejection.status(), rejection.error().1)
    }

    fn row(kind: FailureKind) -> String {
        let (status, error) = answer(kind);
        let failure = error.failure().unwrap();
        assert_eq!(failure.kind(), kind);
        let ran = match failure.execution() {
            Execution::NotRun => "no",
            Execution::MayHaveRun => "perhaps",
        };
        let retry = match failure.retry() {
            Retry::Never => "no".to_owned(),
            Retry::Later => "later".to_owned(),
            Retry::After(delay) => format!("after {} s", whole_seconds(delay)),
        };
        let (name, code, text) = (kind.name(), error.code(), error.message());
        format!("| `{name}` | {text} | {ran} | {retry} | {code} | {} |\n", status.as_u16())
    }

    #[test]
    fn retry_after_is_told_in_the_header_and_in_the_error() {
        let response = Rejection::StoreUnavailable.respond();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        let ResponseContent::Full(body) = response.into_body() else { panic!("a JSON body") };
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["data"]["retryAfterMs"], 1000, "{body}");
    }

    #[test]
    fn a_rate_limit_is_told_in_whole_seconds_and_at_least_one() {
        for (wait, seconds) in
            [(Duration::from_millis(6500), "7"), (Duration::from_nanos(1), "1"), (Duration::ZERO, "1")]
        {
            let response = Rejection::OverRateLimit(wait).respond();
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(response.headers()[RETRY_AFTER], seconds);
        }
    }

    #[test]
    fn docs_list_every_kind_of_failure() {
        let head = "| `failure` | `message` | can it have run | try again | code | HTTP |\n|---|---|---|---|---|---|\n";
        let table: String = std::iter::once(head.to_owned()).chain(FailureKind::ALL.map(row)).collect();
        let page = include_str!("../../docs/errors.md");
        let section =
            page.split_once("<!-- kinds -->\n").and_then(|(_, rest)| rest.split_once("<!-- end of kinds -->"));
        let (section, _) = section.unwrap();
        assert!(section == table, "docs/errors.md is out of date; its table is:\n{table}");
    }
}
