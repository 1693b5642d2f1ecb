//! HTTP+SSE, the transport of 2024-11-05: one stream for everything that we say, POSTs for
//! everything that the client says. The session lives as long as its stream.

use std::borrow::Cow;
use std::sync::Arc;

use http::Response;

use super::Inbound;
use super::body::{CloseSessionOnDrop, Events, ResponseContent};
use super::headers::{EVENTS, accepts, is_json};
use super::http::{RequestBody, RequestContext};
use super::respond::{self, Rejection};
use super::response_encoder::ReplyEncoder;
use super::route::query;
use super::session_messages::{self, RunningCall};
use crate::call::{Caller, ClientInfo};
use crate::dialect::classify;
use crate::gateway::Group;
use crate::http::sse;
use crate::protocol::{self, ErrorObject, Incoming, Message, Method, Request, code};
use crate::session::{NotBegun, Session, SessionId, SessionOwner, SessionTransport, StreamTarget};

/// Opens the stream. Its first event says where to send messages: `path` with the session's id.
pub(super) async fn open(visit: &RequestContext<'_>, path: &str) -> Result<Response<ResponseContent>, Rejection> {
    if visit.inbound.shutdown.is_draining() {
        return Err(Rejection::ShuttingDown);
    }
    if !accepts(&visit.parts.headers, EVENTS) {
        return Err(Rejection::NotAcceptable(EVENTS));
    }
    let inbound = visit.inbound;
    inbound.check_sure()?;
    let opening = SessionOwner { principal: visit.caller.principal.clone(), group: Arc::clone(visit.group.name()) };
    let opened = inbound.sessions.open_single(SessionTransport::Sse, opening);
    let (session, attachment) = opened.map_err(|_| Rejection::SessionsFull)?;
    // From here on it ends with whoever has it, even while it is being kept.
    let ending = CloseSessionOnDrop { sessions: Arc::clone(&inbound.sessions), session: Some(Arc::clone(&session)) };
    inbound.keep(&session).await?;
    let head = sse::endpoint(&format!("{path}?sessionId={}", session.id()));
    Ok(respond::events(Events::single(attachment, head, ending, inbound.settings.sse_heartbeat)))
}

/// Takes a message to a stream. The answer goes there, not here.
pub(super) async fn message(
    visit: &RequestContext<'_>,
    body: RequestBody,
) -> Result<Response<ResponseContent>, Rejection> {
    let session = match session(visit).await {
        Ok(session) => session,
        Err(problem) => {
            if matches!(problem, Rejection::OnOtherNode(_) | Rejection::SessionMoving) {
                visit.read_body(body).await?;
            }
            return Err(problem);
        }
    };
    if !is_json(&visit.parts.headers) {
        return Err(Rejection::NotJson);
    }
    let body = visit.inbound.read_body(body).await?;
    match visit.inbound.read_messages(&body)? {
        Incoming::One(Message::Request(_)) if visit.inbound.refuses() => {
            return Err(Rejection::ShuttingDown);
        }
        Incoming::One(message) if is_per_request(&message) => {
            session.deliver(StreamTarget::Listening, elsewhere(&message)).await;
        }
        Incoming::One(message) => {
            if !take(visit.inbound, &visit.group, &session, message, &visit.caller).await {
                return Err(Rejection::SessionNotFound(session.id().to_string()));
            }
        }
        Incoming::Batch(items) => {
            if !session.client().is_some_and(|client| client.revision.facts().batches) {
                return Err(Rejection::NoBatches);
            }
            for item in items {
                match item {
                    Ok(message) => {
                        take(visit.inbound, &visit.group, &session, message, &visit.caller).await;
                    }
                    Err(invalid) => session.deliver(StreamTarget::Listening, invalid.response().encode()).await,
                }
            }
        }
    }
    Ok(respond::accepted())
}

/// Whether a message is of the era that has no sessions.
fn is_per_request(message: &Message) -> bool {
    matches!(classify::classify(message, &http::HeaderMap::new()), Ok(classify::Path::PerRequest(_)))
}

/// Tells a client of that era where it is served.
fn elsewhere(message: &Message) -> bytes::Bytes {
    let id = match message {
        Message::Request(request) => Some(request.id.clone()),
        _ => None,
    };
    let why = "this transport begins with `initialize`; requests that describe themselves go to /mcp";
    protocol::Invalid::request(id, why).response().encode()
}

async fn session(visit: &RequestContext<'_>) -> Result<Arc<Session>, Rejection> {
    let named = named(visit).ok_or(Rejection::SessionParameterRequired)?;
    visit.find(SessionId::parse(&named, SessionTransport::Sse), &named).await
}

/// The session that a request names.
pub(super) fn named<'v>(visit: &'v RequestContext<'_>) -> Option<Cow<'v, str>> {
    let uri = &visit.parts.uri;
    query(uri.query(), "sessionId").or_else(|| query(uri.query(), "session_id"))
}

/// Takes one message of a session that lives by a single connection, HTTP+SSE or stdio; false when that has
/// ended, and nothing was done.
pub(super) async fn take(
    inbound: &Inbound,
    group: &Arc<Group>,
    session: &Arc<Session>,
    message: Message,
    caller: &Arc<Caller>,
) -> bool {
    match message {
        Message::Request(request) if request.method == Method::Initialize && session.client().is_none() => {
            let outcome = match session_messages::introduction(request.params.as_ref()) {
                Ok(client) => {
                    let client: Arc<ClientInfo> = Arc::new(client);
                    let result = session_messages::welcome(group, &client).await;
                    session.introduce(client);
                    Ok(result)
                }
                Err(error) => Err(error),
            };
            session.deliver(StreamTarget::Listening, protocol::Response::new(Some(request.id), outcome).encode()).await;
        }
        Message::Request(request) => return answer(inbound, group, session, &request, caller).await,
        message => session_messages::on_message(inbound, session, group, message),
    }
    true
}

async fn answer(
    inbound: &Inbound,
    group: &Arc<Group>,
    session: &Arc<Session>,
    request: &Request,
    caller: &Arc<Caller>,
) -> bool {
    let mut replies = session_messages::request(inbound, session, group, request, caller);
    let revision = session.client().map_or(crate::dialect::Revision::NEWEST_HANDSHAKE, |client| client.revision);
    let answering =
        ReplyEncoder { id: request.id.clone(), method: request.method.clone(), revision, group: Arc::clone(group) };
    if let Some(answer) = replies.take_ready() {
        session.deliver(StreamTarget::Listening, answering.response(answer)).await;
        return true;
    }
    match session.begin(request.id.clone()) {
        Ok(running) => {
            let work = RunningCall { running, replies, answering, counted: inbound.shutdown.call() };
            tokio::spawn(work.run_alone(StreamTarget::Listening));
        }
        Err(NotBegun::Ended) => return false,
        Err(not_begun) => {
            let error = ErrorObject::new(code::INVALID_REQUEST, format!("Invalid request: {not_begun}"));
            session.deliver(StreamTarget::Listening, answering.encode_outcome(Err(error))).await;
        }
    }
    true
}
