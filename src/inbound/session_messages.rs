//! Handles messages of handshake-era sessions, the same for every transport.

use std::sync::Arc;

use bytes::Bytes;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Inbound;
use super::response_encoder::ReplyEncoder;
use crate::call::{Answer, Call, Caller, ClientInfo, ClientSink, Replies, Reply};
use crate::dialect::classify::method_not_found;
use crate::dialect::{Era, has_method, meta, negotiate, to_client};
use crate::gateway::Group;
use crate::protocol::{ErrorObject, Id, Level, Message, Method, Notification, NotificationMethod, Raw, Request, code};
use crate::session::{CallGuard, Session, StreamTarget};

/// Longest resource URI that a session can subscribe to.
const MAX_SUBSCRIPTION_URI_BYTES: usize = 8 << 10;
/// Bound on `initialize` params: capabilities and client info are kept as long as the session.
const MAX_INITIALIZE_PARAMS_BYTES: usize = 64 << 10;

/// Parses the params of `initialize`.
pub(super) fn parse_initialize(params: Option<&Raw>) -> Result<ClientInfo, ErrorObject> {
    if params.is_some_and(|params| params.as_bytes().len() > MAX_INITIALIZE_PARAMS_BYTES) {
        return Err(invalid_params(&format!("an introduction may have {MAX_INITIALIZE_PARAMS_BYTES} bytes")));
    }
    let get = |key| params.and_then(|params| params.get(key));
    let proposed = get("protocolVersion");
    let Some(proposed) = proposed.as_ref().and_then(Raw::text) else {
        return Err(invalid_params("`protocolVersion` must be a string"));
    };
    // Several real clients omit `capabilities`; that means none.
    let capabilities = get("capabilities").unwrap_or_else(Raw::empty);
    if !capabilities.is_object() {
        return Err(invalid_params("`capabilities` must be an object"));
    }
    Ok(ClientInfo {
        revision: negotiate(&proposed),
        capabilities: compact(&capabilities),
        info: get("clientInfo").map(|info| compact(&info)),
    })
}

/// Copies a slice of the request body, so that the session does not keep the whole body alive.
fn compact(raw: &Raw) -> Raw {
    Raw::trusted(Bytes::copy_from_slice(raw.as_bytes()))
}

/// The result of `initialize`. Waits briefly for upstreams that are still connecting: capabilities cannot be changed
/// later.
pub(super) async fn initialize_result(group: &Group, client: &ClientInfo) -> Raw {
    group.wait_ready(client.revision).await;
    to_client::initialize_result(&group.view(client.revision).server_for(client.revision), client.revision)
}

/// Starts a request of a session and returns its replies.
pub(super) fn handle_request(
    inbound: &Inbound,
    session: &Arc<Session>,
    group: &Arc<Group>,
    request: &Request,
    caller: &Arc<Caller>,
) -> Replies {
    let Some(client) = session.client() else {
        return match request.method {
            Method::Ping => Answer::result(Raw::empty()).into(),
            _ => ErrorObject::new(code::INVALID_REQUEST, "Invalid request: send `initialize` first").into(),
        };
    };
    if !has_method(Era::Handshake, &request.method) {
        return method_not_found(&request.method).into();
    }
    inbound.mark_initialized(session);
    let params = request.params.as_ref();
    let checked = match &request.method {
        Method::Initialize => {
            Err(ErrorObject::new(code::INVALID_REQUEST, "Invalid request: the session is initialized already"))
        }
        Method::SetLevel => set_level(session, params),
        Method::Subscribe => check_subscription(session, params),
        _ => Ok(()),
    };
    if let Err(error) = checked {
        return error.into();
    }
    group.handle(&Call {
        id: request.id.clone(),
        method: request.method.clone(),
        params: request.params.clone(),
        client: Arc::clone(client),
        caller: Arc::clone(caller),
        level: session.level(),
        progress_token: meta::progress_token(params),
        sink: Some(Arc::clone(session) as Arc<dyn ClientSink>),
    })
}

fn set_level(session: &Session, params: Option<&Raw>) -> Result<(), ErrorObject> {
    let level = params.and_then(|params| params.get("level"));
    let level = level.as_ref().and_then(Level::from_raw);
    let level = level.ok_or_else(|| invalid_params(&format!("`level` must be one of {}", Level::choices())))?;
    session.set_log_level(level);
    Ok(())
}

fn check_subscription(session: &Session, params: Option<&Raw>) -> Result<(), ErrorObject> {
    let uri = params.and_then(|params| params.get("uri"));
    let uri = uri.as_ref().and_then(Raw::text).ok_or_else(|| invalid_params("`uri` must be a string"))?;
    if uri.len() > MAX_SUBSCRIPTION_URI_BYTES {
        return Err(invalid_params(&format!("`uri` may have {MAX_SUBSCRIPTION_URI_BYTES} bytes")));
    }
    if !session.may_subscribe(&uri) {
        return Err(invalid_params(
            "the session is subscribed to as many resources as it may be; unsubscribe from some",
        ));
    }
    Ok(())
}

/// Handles a notification or a response. One that matches nothing is ignored.
pub(super) fn on_message(inbound: &Inbound, session: &Arc<Session>, group: &Group, message: Message) {
    match message {
        Message::Notification(Notification { method: NotificationMethod::Initialized, .. }) => {
            inbound.mark_initialized(session);
        }
        Message::Notification(Notification { method: NotificationMethod::Cancelled, params, .. }) => {
            let id = params.as_ref().and_then(|params| params.get("requestId"));
            if let Some(id) = id.as_ref().and_then(Id::from_raw) {
                session.cancel_call(&id);
            }
        }
        Message::Response(response) => {
            let is_matched =
                response.id.as_ref().is_some_and(|id| session.resolve_server_request(id, response.outcome));
            if !is_matched {
                tracing::debug!(session = %session.id(), "response matches no server request");
            }
        }
        Message::Notification(notification) => group.forward_notification(session.as_ref(), &notification),
        Message::Request(_) => {}
    }
}

fn invalid_params(why: &str) -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {why}"))
}

/// A running call, whose replies are delivered to a stream of its session.
#[derive(Debug)]
pub(super) struct RunningCall {
    pub(super) guard: CallGuard,
    pub(super) replies: Replies,
    pub(super) encoder: ReplyEncoder,
    /// The shutdown waits until this is dropped.
    pub(super) in_flight: TaskTrackerToken,
}

impl RunningCall {
    /// Delivers one reply; true when it was the final response.
    pub(super) async fn send(&mut self, stream: StreamTarget, reply: Reply) -> bool {
        let session = self.guard.session();
        match reply {
            Reply::ServerRequest(question) => {
                if self.encoder.revision.accepts_server_requests() {
                    session.send_server_request(stream, &self.guard, question).await;
                } else {
                    self.encoder.encode(Reply::ServerRequest(question));
                }
                false
            }
            reply => {
                let last = matches!(reply, Reply::End(_));
                match self.encoder.encode(reply) {
                    Some(message) if last => {
                        session.deliver_response(stream, &self.guard, &self.encoder.id, message).await;
                    }
                    Some(message) => session.deliver(stream, message).await,
                    None => {}
                }
                last
            }
        }
    }

    /// Delivers replies until the final response; false when the client cancelled the call first.
    pub(super) async fn run(mut self, stream: StreamTarget) -> bool {
        loop {
            let reply = tokio::select! {
                biased;
                () = self.guard.cancelled() => return false,
                reply = self.replies.next() => reply,
            };
            let Some(reply) = reply else { return true };
            if self.send(stream, reply).await {
                return true;
            }
        }
    }

    /// Runs the call, then closes `stream`: finished after the final response, abandoned after a cancellation.
    pub(super) async fn run_and_close_stream(self, stream: StreamTarget) {
        let session = Arc::clone(self.guard.session());
        if self.run(stream).await {
            session.finish_stream(stream);
        } else {
            session.abandon_stream(stream);
        }
    }
}
