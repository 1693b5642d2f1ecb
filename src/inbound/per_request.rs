//! The per-request era: every POST stands by itself, and closing it gives the call up.

use std::sync::Arc;

use http::Response;

use super::body::{Events, ResponseContent};
use super::http::RequestContext;
use super::respond::{self, Rejection};
use super::response_encoder::ReplyEncoder;
use crate::call::{Call, Caller, ClientInfo, Reply};
use crate::cluster::Cluster;
use crate::dialect::classify::{self, Checked, Told};
use crate::dialect::headers;
use crate::protocol::{Invalid, Message, Method, Raw, Request};
use crate::store::NodeId;
use crate::timer::PooledTimer;

/// A request as a call.
pub(super) fn call(request: Request, checked: Checked, caller: Arc<Caller>) -> Call {
    let Checked { revision, meta } = checked;
    let client = ClientInfo { revision, capabilities: meta.capabilities, info: meta.info };
    Call {
        id: request.id,
        method: request.method,
        params: request.params,
        client: Arc::new(client),
        caller,
        level: meta.level,
        progress: meta.progress,
        sink: None,
    }
}

/// Serves one message.
pub(super) async fn serve(
    visit: &RequestContext<'_>,
    message: Message,
    told: Told,
) -> Result<Response<ResponseContent>, Rejection> {
    let request = match message {
        Message::Request(request) => request,
        // Ids are the clients' own, so a notification here cannot say whose call it means.
        Message::Notification(_) => return Ok(respond::accepted()),
        Message::Response(response) => {
            let why = "this revision has no requests from the server to answer";
            return Err(Rejection::Invalid(Invalid::request(response.id, why)));
        }
    };
    let checked = classify::check(&request, told, &visit.parts.headers).map_err(Rejection::Refused)?;
    check_mirrors(visit, &request)?;
    let call = call(request, checked, Arc::clone(&visit.caller));
    if let Some(cluster) = visit.inbound.cluster.as_ref().filter(|_| !visit.carried)
        && let Some(problem) = match elsewhere(cluster, visit, &call).await {
            Ok(node) => node.map(Rejection::OnOtherNode),
            Err(problem) => Some(problem),
        }
    {
        return Err(Rejection::About(call.id, Box::new(problem)));
    }
    answer(visit, call).await
}

/// The other node that has to make a call, if one has: it holds what the call goes on with, or runs the
/// child that serves this caller.
async fn elsewhere(cluster: &Cluster, visit: &RequestContext<'_>, call: &Call) -> Result<Option<NodeId>, Rejection> {
    if let Some(holder) = visit.group.parked_on(call) {
        return match holder == *cluster.node().name() {
            true => Ok(None),
            false => Ok(Some(cluster.named(&holder).await?.ok_or(Rejection::ParkedCallLost)?)),
        };
    }
    match visit.group.place_of(call) {
        Some(place) => Ok(cluster.place(&place).await?),
        None => Ok(None),
    }
}

/// Compares the headers that mirror a tool's arguments with them.
fn check_mirrors(visit: &RequestContext<'_>, request: &Request) -> Result<(), Rejection> {
    let Some(params) = request.params.as_ref().filter(|_| request.method == Method::ToolsCall) else {
        return Ok(());
    };
    let view = visit.group.view();
    if !view.mirrors_any() {
        return Ok(());
    }
    let name = params.get("name");
    let Some(name) = name.as_ref().and_then(Raw::text) else { return Ok(()) };
    let mirrors = view.mirrors(&name);
    if mirrors.is_empty() {
        return Ok(());
    }
    let arguments = params.get("arguments").unwrap_or_else(Raw::empty);
    let checked = headers::check(mirrors, &arguments, &visit.parts.headers);
    checked.map_err(|error| Rejection::Refused(request.refused(error)))
}

/// Answers a call: with JSON when the answer is the first thing that comes, with a stream when
/// something comes before it or nothing comes for a while.
async fn answer(visit: &RequestContext<'_>, call: Call) -> Result<Response<ResponseContent>, Rejection> {
    let mut replies = visit.group.handle(&call);
    // A stop does not wait for those who only listen; it tells them goodbye.
    let shutdown = &visit.inbound.shutdown;
    let running = if call.method == Method::Listen { shutdown.lingering() } else { shutdown.call() };
    let answering = ReplyEncoder {
        id: call.id,
        method: call.method,
        revision: call.client.revision,
        group: Arc::clone(&visit.group),
    };
    let first = match replies.take_ready() {
        Some(answer) => Some(Reply::End(answer)),
        None => tokio::select! {
            biased;
            reply = replies.next() => reply,
            () = PooledTimer::after(visit.inbound.settings.sse_after) => None,
        },
    };
    if let Some(Reply::End(answer)) = first {
        let outcome = answering.outcome(answer);
        let status = respond::outcome_status(&outcome);
        return Ok(respond::json_with(status, answering.encode_outcome(outcome)));
    }
    let events = Events::of_call(first, replies, answering, running, visit.inbound.settings.sse_heartbeat);
    Ok(respond::events(events))
}
