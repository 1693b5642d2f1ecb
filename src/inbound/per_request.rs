//! Requests of the per-request era: every POST is self-contained, and closing it cancels the call.

use std::sync::Arc;

use http::Response;

use super::access_hook::note_client;
use super::body::{EventStreamBody, ResponseContent};
use super::http::{RequestContext, StreamKind};
use super::pieces::PiecesBody;
use super::respond::{self, Rejection};
use super::response_encoder::ReplyEncoder;
use super::session_messages::{InFlightCall, admit_request, check_listen, give_back_share};
use crate::call::{AnswerDelivery, Call, Caller, ClientInfo, Reply};
use crate::cluster::Cluster;
use crate::dialect::classify::{self, CheckedRequest, RefusedRequest, RequestMeta};
use crate::dialect::{Revision, headers};
use crate::protocol::{Invalid, Key, Message, Method, Raw, Request};
use crate::store::NodeId;
use crate::timer::WorkerTimer;
use crate::trace::CallTrace;

/// Builds the call of a request that passed the dialect checks.
pub(super) fn into_call(request: Request, checked: CheckedRequest, caller: Arc<Caller>) -> Call {
    let CheckedRequest { revision, meta } = checked;
    let client = ClientInfo { revision, capabilities: meta.capabilities, info: meta.info };
    Call {
        id: request.id,
        method: request.method,
        params: request.params,
        client: Arc::new(client),
        caller,
        level: meta.level,
        progress_token: meta.progress_token,
        sink: None,
        limits: None,
        delivery: AnswerDelivery::Whole,
        trace: CallTrace::PassedOn,
        target_label: None,
    }
}

/// Serves one message.
pub(super) async fn serve(
    context: &RequestContext<'_>,
    message: Message,
    meta: RequestMeta,
) -> Result<Response<ResponseContent>, Rejection> {
    let request = match message {
        Message::Request(request) => request,
        // Request ids are unique per client only, so a notification cannot name the call that it is about.
        Message::Notification(_) => return Ok(respond::accepted()),
        Message::Response(response) => {
            let why = "this revision has no requests from the server to answer";
            return Err(Rejection::InvalidMessage(Invalid::request(response.id, why)));
        }
    };
    let checked = classify::check_request(&request, meta, &context.head.headers).map_err(Rejection::Refused)?;
    check_mirrored_headers(context, &request)?;
    let mut call = into_call(request, checked, Arc::clone(&context.caller));
    call.delivery = context.delivery();
    note_client(call.caller.access.as_ref(), Some(&call.client));
    if let Some(cluster) = context.inbound.cluster.as_ref().filter(|_| !context.is_relayed)
        && let Some(rejection) = match required_node(cluster, context, &call).await {
            Ok(node) => node.map(Rejection::OnOtherNode),
            Err(rejection) => Some(rejection),
        }
    {
        return Err(Rejection::ForRequest(call.id, Box::new(rejection)));
    }
    answer_call(context, call).await
}

/// The other node that must run the call, if any: the one where the call is parked or the task is held, or the one with
/// affinity for this caller's child process.
async fn required_node(
    cluster: &Cluster,
    context: &RequestContext<'_>,
    call: &Call,
) -> Result<Option<NodeId>, Rejection> {
    if !cluster.has_sealing_key() && !context.group.can_open_request_state(call) {
        return Err(Rejection::StoreUnavailable);
    }
    if let Some(node_name) = context.group.parked_on(call) {
        return match node_name == *cluster.node().name() {
            true => Ok(None),
            false => Ok(Some(cluster.find_node(&node_name).await?.ok_or(Rejection::ParkedCallLost)?)),
        };
    }
    if let Some(holder) = context.group.task_holder(call) {
        // What a node held that is gone is unknown everywhere.
        let is_here = holder == *cluster.node().name();
        return if is_here { Ok(None) } else { Ok(cluster.find_node(&holder).await?) };
    }
    match context.group.affinity_key(call) {
        Some(affinity) => Ok(cluster.affinity_owner(&affinity).await?),
        None => Ok(None),
    }
}

/// Checks the headers that mirror tool arguments against the arguments.
fn check_mirrored_headers(context: &RequestContext<'_>, request: &Request) -> Result<(), Rejection> {
    let Some(params) = request.params.as_ref().filter(|_| request.method == Method::ToolsCall) else {
        return Ok(());
    };
    let view = context.group.view(Revision::NEWEST);
    if !view.has_header_mirrors() {
        return Ok(());
    }
    let Some(name) = params.text_of(Key::Name) else { return Ok(()) };
    let mirrors = view.header_mirrors(&name);
    // A tool that rules hide has no headers to check: it does not exist.
    if mirrors.is_empty() || !context.group.shows_tool(Revision::NEWEST, &context.caller.identity, &name) {
        return Ok(());
    }
    let arguments = params.member(Key::Arguments).unwrap_or_else(Raw::empty);
    let checked = headers::check_mirrors(mirrors, &arguments, &context.head.headers);
    checked.map_err(|error| Rejection::Refused(request.refuse(error)))
}

/// Answers a call with JSON if the final response is the first reply; with an SSE stream if another reply comes first
/// or none comes within `sse_after`.
async fn answer_call(context: &RequestContext<'_>, mut call: Call) -> Result<Response<ResponseContent>, Rejection> {
    context.inbound.record_sessionless(&context.caller, context.group.name());
    if let Err(error) = check_listen(context.inbound, &call) {
        return Err(Rejection::Refused(RefusedRequest { id: Some(call.id), error }));
    }
    let resumes = || context.group.parked_on(&call).is_some();
    match admit_request(context.inbound, &context.caller, (&context.group, &call.method), resumes).await {
        Ok(share) => call.limits = share,
        Err(wait) => return Err(Rejection::ForRequest(call.id, Box::new(Rejection::OverRateLimit(wait)))),
    }
    let in_flight = match InFlightCall::begin(context.inbound, &call) {
        Ok(in_flight) => in_flight,
        Err(reached) => {
            give_back_share(&call);
            return Err(Rejection::ForRequest(call.id, Box::new(Rejection::QuotaReached(reached))));
        }
    };
    let is_listening = call.method == Method::Listen;
    context.group.begin_span(&mut call);
    let target = (&call.method, call.params.as_ref());
    let operation = context.group.begin_operation(target, Some(call.client.revision), &context.caller);
    call.target_label = operation.target();
    let mut replies = context.group.handle(&call);
    let mut encoder = ReplyEncoder::of_call(call, operation);
    let sse_after = context.inbound.settings().sse_after;
    let first = match replies.take_ready() {
        Some(answer) => Some(Reply::End(answer)),
        None => tokio::select! {
            biased;
            reply = replies.next() => reply,
            () = WorkerTimer::after(sse_after) => None,
        },
    };
    let first = match first {
        Some(Reply::End(answer)) => {
            if let Some(rejection) = respond::insufficient_scope(&context.caller, encoder.revision, &answer) {
                encoder.operation.end(&encoder.method, &answer.outcome);
                return Err(Rejection::ForRequest(encoder.id, Box::new(rejection)));
            }
            let outcome = encoder.outcome(answer);
            let status = respond::outcome_status(&outcome);
            return Ok(respond::json_with(status, encoder.encode_outcome(outcome)));
        }
        Some(Reply::Piece(piece)) => {
            let revocation = context.inbound.policy().revocation(&context.caller.identity);
            let body = PiecesBody::for_call(encoder, (piece, replies), in_flight, revocation);
            return Ok(respond::json_in_pieces(body));
        }
        first => first,
    };
    let stream = context.inbound.sessions.quotas().streams.acquire_begun(1);
    let heartbeat = context.inbound.settings().sse_heartbeat;
    let end = context.stream_end(if is_listening { StreamKind::Listening } else { StreamKind::Call });
    let events = EventStreamBody::for_call((first, replies), encoder, (in_flight, stream), end, heartbeat);
    Ok(respond::event_stream(events))
}
