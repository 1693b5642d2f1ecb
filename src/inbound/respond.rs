//! Answers and problems as HTTP responses. The only place that makes statuses.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, Response, StatusCode};

use super::body::{Events, ResponseContent};
use super::headers::{EVENTS, JSON, SESSION_ID};
use crate::dialect::classify::RefusedRequest;
use crate::gateway::lost_with_its_node;
use crate::http::codec::{self, RequestError};
use crate::http::sse;
use crate::policy::Denied;
use crate::protocol::{self, ErrorObject, Id, Invalid, Outcome, code};
use crate::session::{SessionId, StreamError};
use crate::store::NodeId;

/// Every way in which a request is turned away before it is handled.
#[derive(Debug)]
pub(super) enum Rejection {
    ShuttingDown,
    /// The store that sessions are kept in is away.
    StoreUnavailable,
    /// The session lives on another node.
    OnOtherNode(NodeId),
    /// The session has just moved to another node, and is to be looked for again.
    SessionMoving,
    /// The node that had the request is gone.
    RelayPeerLost,
    /// The node that held the call is gone.
    ParkedCallLost,
    /// The store has no room for what a call has to say.
    StoreFull,
    NotFound,
    HeadTooLarge,
    /// What was sent is no request of HTTP.
    NotHttp(codec::ParseError),
    Verb(&'static str),
    NoSession(&'static str),
    Denied(Denied),
    NotAcceptable(&'static str),
    NotJson,
    BodyTooLarge(usize),
    BodyBroken,
    BodyTooSlow,
    TooDeep(usize),
    NoBatches,
    MixedBatch,
    Invalid(Invalid),
    SessionRequired,
    SessionParameterRequired,
    SessionNotFound(String),
    /// One of the above, about a request that has an id.
    About(Id, Box<Rejection>),
    SessionsFull,
    NotResumable(StreamError),
    TooManyCalls(Id),
    Refused(RefusedRequest),
}

/// How long a client should wait when we cannot serve it now, in seconds.
const RETRY_SECONDS: &str = "1";
/// How much of a client's own text is told back to it.
const MAX_ECHOED_INPUT: usize = 100;

impl From<RequestError> for Rejection {
    fn from(unfit: RequestError) -> Self {
        match unfit {
            RequestError::TooLarge => Self::HeadTooLarge,
            RequestError::Malformed(why) => Self::NotHttp(why),
        }
    }
}

impl Rejection {
    /// Where the request is to be carried, nowhere when it is to be looked for again, and the request's id.
    ///
    /// # Errors
    /// The problem itself when it is another.
    pub(super) fn elsewhere(self) -> Result<(Option<Id>, Option<NodeId>), Self> {
        match self {
            Self::OnOtherNode(node) => Ok((None, Some(node))),
            Self::SessionMoving => Ok((None, None)),
            Self::About(id, problem) => match problem.elsewhere() {
                Ok((inner, node)) => Ok((inner.or(Some(id)), node)),
                Err(problem) => Err(Self::About(id, Box::new(problem))),
            },
            other => Err(other),
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::ShuttingDown | Self::SessionsFull | Self::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::OnOtherNode(_) | Self::SessionMoving => StatusCode::SERVICE_UNAVAILABLE,
            // The call has an end, if not a good one.
            Self::About(_, problem)
                if matches!(**problem, Self::RelayPeerLost | Self::ParkedCallLost | Self::StoreFull) =>
            {
                StatusCode::OK
            }
            Self::RelayPeerLost | Self::ParkedCallLost | Self::StoreFull => StatusCode::BAD_GATEWAY,
            Self::About(_, problem) => problem.status(),
            Self::NotFound | Self::SessionNotFound(_) => StatusCode::NOT_FOUND,
            Self::Verb(_) | Self::NoSession(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Denied(Denied::Credentials) => StatusCode::UNAUTHORIZED,
            Self::Denied(_) => StatusCode::FORBIDDEN,
            Self::NotAcceptable(_) => StatusCode::NOT_ACCEPTABLE,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::NotResumable(StreamError::TooMany) | Self::TooManyCalls(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::NotResumable(StreamError::Ended) => StatusCode::NOT_FOUND,
            Self::Refused(refused) => refused_status(refused.error.code()),
            Self::BodyBroken
            | Self::NotHttp(_)
            | Self::TooDeep(_)
            | Self::NoBatches
            | Self::MixedBatch
            | Self::Invalid(_)
            | Self::SessionRequired
            | Self::SessionParameterRequired
            | Self::NotResumable(_) => StatusCode::BAD_REQUEST,
        }
    }

    /// What to tell the client, and the request it is about.
    fn error(self) -> (Option<Id>, ErrorObject) {
        let message = match self {
            Self::About(id, problem) => {
                let (inner, error) = problem.error();
                return (inner.or(Some(id)), error);
            }
            Self::Refused(RefusedRequest { id, error }) => return (id, error),
            Self::Invalid(invalid) => {
                let protocol::Response { id, outcome, .. } = invalid.response();
                let error = outcome.err();
                return (id, error.unwrap_or_else(|| ErrorObject::new(code::INVALID_REQUEST, "Invalid request")));
            }
            Self::StoreUnavailable | Self::OnOtherNode(_) | Self::SessionMoving => {
                let why = "Service Unavailable: sessions cannot be kept or reached just now; try again";
                return (None, ErrorObject::new(code::INTERNAL_ERROR, why));
            }
            Self::RelayPeerLost => {
                let why = "Internal error: the node that has this call cannot be reached; whether it was carried out is not known";
                return (None, ErrorObject::new(code::INTERNAL_ERROR, why));
            }
            Self::ParkedCallLost => return (None, lost_with_its_node()),
            Self::StoreFull => {
                let why = "Internal error: the store has no room for what this call has to say before its answer; whether it was carried out is not known";
                return (None, ErrorObject::new(code::INTERNAL_ERROR, why));
            }
            Self::ShuttingDown => {
                return (
                    None,
                    ErrorObject::new(code::INTERNAL_ERROR, "Service Unavailable: the gateway is shutting down"),
                );
            }
            Self::SessionsFull => {
                return (
                    None,
                    ErrorObject::new(
                        code::INTERNAL_ERROR,
                        "Service Unavailable: there are too many sessions; try again later",
                    ),
                );
            }
            Self::HeadTooLarge => "Request Header Fields Too Large: send fewer or shorter headers".to_owned(),
            Self::NotHttp(why) => format!("Bad Request: {why}"),
            Self::NotFound => "Not Found: nothing is served at this address".to_owned(),
            Self::Verb(verbs) => format!("Method Not Allowed: this address knows {verbs}"),
            Self::NoSession(why) => format!("Method Not Allowed: {why}"),
            Self::Denied(Denied::Host(host)) => {
                format!("Forbidden: the host {:?} is not one of ours; allow it with --allow-host", excerpt(&host))
            }
            Self::Denied(Denied::Origin(origin)) => {
                format!("Forbidden: the origin {:?} may not call; allow it with --allow-origin", excerpt(&origin))
            }
            Self::Denied(Denied::Credentials) => "Unauthorized: a valid bearer token is required".to_owned(),
            Self::NotAcceptable(types) => format!("Not Acceptable: the header `Accept` must list {types}"),
            Self::NotJson => format!("Unsupported Media Type: the header `Content-Type` must be {JSON}"),
            Self::BodyTooLarge(limit) => format!("Payload Too Large: a body may have {limit} bytes"),
            Self::BodyBroken => "Bad Request: the body ended early".to_owned(),
            Self::BodyTooSlow => "Request Timeout: the body did not arrive in time".to_owned(),
            Self::TooDeep(limit) => format!("Bad Request: JSON may nest {limit} deep"),
            Self::NoBatches => "Bad Request: batches exist in sessions of 2025-03-26 only".to_owned(),
            Self::MixedBatch => {
                "Bad Request: a batch holds requests and notifications, or responses, not both".to_owned()
            }
            Self::SessionRequired => "Bad Request: the header `Mcp-Session-Id` is required".to_owned(),
            Self::SessionParameterRequired => "Bad Request: the query parameter `sessionId` is required".to_owned(),
            Self::SessionNotFound(id) => format!("Session not found: {}", excerpt(&id)),
            Self::NotResumable(StreamError::Unknown) => {
                "Bad Request: `Last-Event-ID` names no event of this session".to_owned()
            }
            Self::NotResumable(StreamError::Gone) => {
                "Bad Request: what came after `Last-Event-ID` is no longer kept; list and ask again".to_owned()
            }
            Self::NotResumable(StreamError::TooMany) => {
                "Too Many Requests: the session has too many open streams; close one first".to_owned()
            }
            Self::NotResumable(StreamError::Ended) => "Session not found: it has just ended".to_owned(),
            Self::TooManyCalls(id) => {
                let message = "Too Many Requests: too many calls run in this session; wait for some to end";
                return (Some(id), ErrorObject::new(code::INVALID_REQUEST, message));
            }
        };
        (None, ErrorObject::new(code::INVALID_REQUEST, message))
    }

    /// What is the matter, whichever request it is about.
    fn itself(&self) -> &Self {
        match self {
            Self::About(_, problem) => problem.itself(),
            problem => problem,
        }
    }

    /// The response.
    pub(super) fn respond(self) -> Response<ResponseContent> {
        let status = self.status();
        let (name, value) = match self.itself() {
            Self::Verb(verbs) => (Some(ALLOW), *verbs),
            Self::NoSession(_) => (Some(ALLOW), "POST"),
            Self::Denied(Denied::Credentials) => (Some(WWW_AUTHENTICATE), "Bearer"),
            Self::ShuttingDown
            | Self::SessionsFull
            | Self::StoreUnavailable
            | Self::OnOtherNode(_)
            | Self::SessionMoving => (Some(RETRY_AFTER), RETRY_SECONDS),
            _ => (None, ""),
        };
        let (id, error) = self.error();
        let mut response = json_with(status, protocol::Response::new(id, Err(error)).encode());
        if let Some(name) = name {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// The status of an error that ends a request of the per-request era before anything was sent.
fn refused_status(error: i64) -> StatusCode {
    match error {
        code::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// The status of an outcome in the per-request era, which shows some errors in it.
pub(super) fn outcome_status(outcome: &Outcome) -> StatusCode {
    match outcome.as_ref().map_err(ErrorObject::code) {
        Err(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Err(code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// A client's text, cut, so that it can be told back.
fn excerpt(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(MAX_ECHOED_INPUT).collect()
}

/// One message as JSON.
pub(super) fn json(message: Bytes) -> Response<ResponseContent> {
    json_with(StatusCode::OK, message)
}

/// One message as JSON, with another status.
pub(super) fn json_with(status: StatusCode, message: Bytes) -> Response<ResponseContent> {
    let mut response = Response::new(ResponseContent::Full(message));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// The answer to a message that wants none.
pub(super) fn accepted() -> Response<ResponseContent> {
    empty(StatusCode::ACCEPTED)
}

/// A status alone.
pub(super) fn empty(status: StatusCode) -> Response<ResponseContent> {
    let mut response = Response::new(ResponseContent::Empty);
    *response.status_mut() = status;
    response
}

/// A session has ended.
pub(super) fn ended() -> Response<ResponseContent> {
    empty(StatusCode::OK)
}

/// What a probe of the process itself asks for.
pub(super) fn state(good: bool, text: &'static str) -> Response<ResponseContent> {
    let mut response = Response::new(ResponseContent::Full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// A text of some kind.
pub(super) fn text(kind: &'static str, text: impl Into<Bytes>) -> Response<ResponseContent> {
    let mut response = Response::new(ResponseContent::Full(text.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A stream of events.
pub(super) fn events(events: Events) -> Response<ResponseContent> {
    let mut response = Response::new(ResponseContent::Events(Box::new(events)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENTS));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// A stream that ends at once. Its client reconnects after `retry` milliseconds, from the position that it came with.
pub(super) fn reconnect_later(last: Option<&str>, retry: u64) -> Response<ResponseContent> {
    let event = match last {
        Some(last) => sse::priming(last, retry),
        None => sse::retry(retry),
    };
    text(EVENTS, event)
}

/// An answer that another node has given.
pub(super) fn carried(status: StatusCode, headers: HeaderMap, body: ResponseContent) -> Response<ResponseContent> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Names the session that a response belongs to.
pub(super) fn in_session(mut response: Response<ResponseContent>, id: SessionId) -> Response<ResponseContent> {
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(&SESSION_ID, value);
    }
    response
}
