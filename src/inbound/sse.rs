//! HTTP+SSE, the transport of 2024-11-05: one GET stream to the client, one POST per message from it.
//!
//! The session is closed when its stream ends.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::Inbound;
use super::access_hook::{note_client, note_message};
use super::body::{CloseSessionOnDrop, EventStreamBody, ResponseContent};
use super::headers::{EVENT_STREAM, accepts, is_json};
use super::http::{RequestContext, StreamKind};
use super::recorder_hook::note_sent;
use super::respond::{self, GivenSessionId, Rejection, quota_error};
use super::response_encoder::ReplyEncoder;
use super::route::query_parameter;
use super::session_messages::{self, ArrivedMessage, RunningCall};
use crate::access_log::{AccessEnd, AccessRecord};
use crate::call::{AnswerDelivery, Caller, ClientInfo};
use crate::dialect::classify;
use crate::gateway::{Group, over_rate_limit};
use crate::http::codec::HeaderFields;
use crate::http::server::ReceivedBody;
use crate::http::sse;
use crate::protocol::{self, ErrorObject, Incoming, Message, Method, Request, code};
use crate::session::{BeginCallError, Session, SessionId, SessionTransport, StreamTarget};

/// Opens the stream. Its first event is `endpoint`: `path` with the session id as a parameter.
pub(super) async fn open_stream(
    context: &RequestContext<'_>,
    path: &str,
) -> Result<Response<ResponseContent>, Rejection> {
    if context.inbound.shutdown.is_draining() {
        return Err(Rejection::ShuttingDown);
    }
    if !accepts(&context.head.headers, EVENT_STREAM) {
        return Err(Rejection::NotAcceptable(EVENT_STREAM));
    }
    let inbound = context.inbound;
    inbound.check_lease()?;
    let opened = inbound.sessions.open_single(SessionTransport::Sse, context.session_owner());
    let (session, reader) = opened.map_err(Rejection::QuotaReached)?;
    // From here on, dropping the stream or this future closes the session.
    let close_guard =
        CloseSessionOnDrop { sessions: Arc::clone(&inbound.sessions), session: Some(Arc::clone(&session)) };
    inbound.persist_new(&session).await?;
    inbound.record_session(&context.caller, &session);
    let endpoint_event = sse::endpoint(&format!("{path}?sessionId={}", session.id()));
    Ok(respond::event_stream(EventStreamBody::for_single_stream(
        reader,
        endpoint_event,
        close_guard,
        context.stream_end(StreamKind::Listening),
        inbound.settings().sse_heartbeat,
    )))
}

/// Accepts a posted message. Its response goes to the stream; the POST gets 202.
pub(super) async fn post_message(
    context: &RequestContext<'_>,
    body: ReceivedBody,
) -> Result<Response<ResponseContent>, Rejection> {
    let session = match find_session(context).await {
        Ok(session) => session,
        Err(rejection) => {
            if matches!(rejection, Rejection::OnOtherNode(_) | Rejection::SessionMoving) {
                context.retain_body(body)?;
            }
            return Err(rejection);
        }
    };
    if !is_json(&context.head.headers) {
        return Err(Rejection::NotJson);
    }
    let body = context.inbound.check_body(body)?;
    match context.inbound.read_messages(&body)? {
        Incoming::One(Message::Request(_)) if context.inbound.refuses_new_calls() => {
            return Err(Rejection::ShuttingDown);
        }
        Incoming::One(message) if is_per_request(&message) => {
            session.deliver(StreamTarget::Listening, wrong_transport_error(&message)).await;
        }
        Incoming::One(message) => {
            note_message(context.caller.access.as_ref(), &message);
            note_client(context.caller.access.as_ref(), session.client());
            let message = (message, &ArrivedMessage::of(&context.caller));
            if !handle_message(context.inbound, &context.group, &session, message, &context.caller).await {
                return Err(Rejection::SessionNotFound(GivenSessionId(session.id().to_string())));
            }
        }
        Incoming::Batch(items) => {
            if !session.client().is_some_and(|client| client.revision.allows_batches()) {
                return Err(Rejection::BatchNotSupported);
            }
            for item in items {
                match item {
                    Ok(message) => {
                        let message = (message, &ArrivedMessage::of(&context.caller));
                        handle_message(context.inbound, &context.group, &session, message, &context.caller).await;
                    }
                    Err(invalid) => session.deliver(StreamTarget::Listening, invalid.response().encode()).await,
                }
            }
        }
    }
    Ok(respond::accepted())
}

/// Whether a message is of the per-request era, which this transport does not serve.
fn is_per_request(message: &Message) -> bool {
    matches!(classify::classify(message, &HeaderFields::default()), Ok(classify::MessageClass::PerRequest(_)))
}

/// Error that points a per-request client to Streamable HTTP.
fn wrong_transport_error(message: &Message) -> bytes::Bytes {
    let id = match message {
        Message::Request(request) => Some(request.id.clone()),
        _ => None,
    };
    let why = "this transport begins with `initialize`; requests that describe themselves go to /mcp";
    protocol::Invalid::request(id, why).response().encode()
}

async fn find_session(context: &RequestContext<'_>) -> Result<Arc<Session>, Rejection> {
    let given = session_parameter(context).ok_or(Rejection::SessionParameterRequired)?;
    context.find_session(SessionId::parse(&given, SessionTransport::Sse), &given).await
}

/// The session id in the query, in either spelling.
pub(super) fn session_parameter<'v>(context: &'v RequestContext<'_>) -> Option<Cow<'v, str>> {
    let uri = &context.head.uri;
    query_parameter(uri.query(), "sessionId").or_else(|| query_parameter(uri.query(), "session_id"))
}

/// Handles one message of a session that is bound to a single connection: HTTP+SSE or stdio. Returns false when the
/// session has ended; the message was not handled then.
pub(super) async fn handle_message(
    inbound: &Inbound,
    group: &Arc<Group>,
    session: &Arc<Session>,
    (message, arrived): (Message, &ArrivedMessage),
    caller: &Arc<Caller>,
) -> bool {
    match message {
        Message::Request(request) if request.method == Method::Initialize && session.client().is_none() => {
            let share = match session_messages::admit_request(inbound, caller, (group, &request.method), || false).await
            {
                Ok(share) => share,
                Err(wait) => {
                    let response = protocol::Response::new(Some(request.id), Err(over_rate_limit(wait)));
                    deliver(session, caller, response.encode()).await;
                    return true;
                }
            };
            let mut operation = group.begin_operation((&request.method, None), None, caller);
            let outcome = match session_messages::parse_initialize(
                request.params.as_deref(),
                inbound.settings().limits.initialize_bytes,
            ) {
                Ok(client) => {
                    let client: Arc<ClientInfo> = Arc::new(client);
                    let result = session_messages::initialize_result(group, &client, (&request, caller)).await;
                    operation.succeed(client.revision);
                    session.set_client(client);
                    Ok(result.into())
                }
                Err(error) => Err(error),
            };
            operation.end(&request.method, &outcome);
            let error = outcome.as_ref().err().map(ErrorObject::code);
            let response = protocol::Response::new(Some(request.id), outcome).encode();
            if let Some(access) = &caller.access {
                note_client(caller.access.as_ref(), session.client());
                access.note_reply(response.len(), error);
            }
            deliver(session, caller, response).await;
            drop(share);
        }
        Message::Request(request) => return answer_request(inbound, group, session, &request, caller).await,
        message => session_messages::on_message(inbound, session, group, (message, arrived)),
    }
    true
}

async fn answer_request(
    inbound: &Inbound,
    group: &Arc<Group>,
    session: &Arc<Session>,
    request: &Request,
    caller: &Arc<Caller>,
) -> bool {
    let mut encoder = ReplyEncoder::in_session(session, request, group, caller);
    let begin = || session_messages::begin_call(inbound, session, request.id.clone()).map(Some);
    let runs_upstream = session_messages::may_run_upstream(&request.method);
    let mut begun = if runs_upstream { begin() } else { Ok(None) };
    if begun.is_ok() {
        let share = match session_messages::admit_request(inbound, caller, (group, &request.method), || false).await {
            Ok(share) => share,
            Err(wait) => {
                deliver(session, caller, encoder.encode_outcome(Err(over_rate_limit(wait)))).await;
                return true;
            }
        };
        let by = (caller, share.clone(), AnswerDelivery::Whole);
        let mut replies =
            session_messages::handle_request(inbound, session, group, request, by, encoder.operation.target());
        if let Some(answer) = replies.take_ready() {
            deliver(session, caller, encoder.response(answer)).await;
            return true;
        }
        if !runs_upstream {
            begun = begin();
        }
        if let Ok(Some((guard, mut in_flight))) = begun {
            in_flight.keep_share(share);
            let call = RunningCall { guard, replies, encoder, in_flight };
            let mut access = caller.access.as_ref().map(AccessRecord::defer);
            tokio::spawn(async move {
                call.run_and_close_stream(StreamTarget::Listening).await;
                if let Some(access) = &mut access {
                    access.finish(AccessEnd::Answered);
                }
            });
            return true;
        }
    }
    let error = match begun {
        Ok(_) | Err(BeginCallError::SessionEnded) => return false,
        Err(BeginCallError::QuotaReached(reached)) => quota_error(reached),
        Err(not_begun) => ErrorObject::new(code::INVALID_REQUEST, format!("Invalid request: {not_begun}")),
    };
    deliver(session, caller, encoder.encode_outcome(Err(error))).await;
    true
}

/// Sends a response on the only stream of a session.
async fn deliver(session: &Session, caller: &Caller, response: Bytes) {
    note_sent(caller.access.as_ref(), &response);
    session.deliver(StreamTarget::Listening, response).await;
}
