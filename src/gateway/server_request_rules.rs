//! Which requests of a server may reach a client.

use std::sync::Arc;

use crate::call::{Call, ClientInfo, ServerRequest};
use crate::dialect::server_requests;
use crate::protocol::{ErrorObject, Raw, code};
use crate::upstream::{Leg, SERVER_REQUEST_CAPABILITIES, without_server_requests};

/// Removes the client capabilities for server requests if the upstream is not allowed to send any.
pub(super) fn remove_server_requests(call: &mut Call, leg: &Leg) {
    if !leg.spec().allow_server_requests {
        let capabilities = without_server_requests(&call.client.capabilities);
        call.client = Arc::new(ClientInfo { capabilities, ..(*call.client).clone() });
    }
}

/// Passes a server request if the upstream may send it and the client supports it; otherwise responds with an
/// error at once.
pub(super) fn admit_server_request(request: ServerRequest, leg: &Leg, client: &ClientInfo) -> Option<ServerRequest> {
    let kind = request.method.as_str().split('/').next().unwrap_or_default();
    let known = SERVER_REQUEST_CAPABILITIES.contains(&kind);
    let url = kind == "elicitation" && {
        let mode = request.params.as_ref().and_then(|params| params.get("mode"));
        mode.as_ref().and_then(Raw::text).as_deref() == Some("url")
    };
    let is_supported = client.capabilities.get(kind).is_some_and(|declared| !url || declared.get("url").is_some());
    if known && !(leg.spec().allow_server_requests && is_supported) {
        request.refuse();
        return None;
    }
    let ServerRequest { method, params, responder: answer, asker } = request;
    match server_requests::for_client(&method, params, client.revision) {
        Ok(params) => Some(ServerRequest { method, params, responder: answer, asker }),
        Err(why) => {
            // A send error means that the upstream stopped waiting.
            let _ = answer.send(Err(ErrorObject::new(code::INVALID_PARAMS, why)));
            None
        }
    }
}
