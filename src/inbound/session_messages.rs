//! What messages of the handshake era do, whichever transport brings them.

use std::sync::Arc;

use bytes::Bytes;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Inbound;
use super::response_encoder::ReplyEncoder;
use crate::call::{Answer, Call, Caller, ClientInfo, ClientSink, Replies, Reply};
use crate::dialect::classify::method_not_found;
use crate::dialect::{Era, has_method, meta, negotiate, to_client};
use crate::gateway::Group;
use crate::protocol::{ErrorObject, Id, Level, Message, Method, Notice, Notification, Raw, Request, code};
use crate::session::{CallGuard, Session, StreamTarget};

/// The longest URI that can be subscribed to.
const LONGEST_URI: usize = 8 << 10;
/// How much a client may say of itself; it is kept as long as the session.
const LONGEST_INTRODUCTION: usize = 64 << 10;

/// Reads how a client introduces itself in `initialize`.
pub(super) fn introduction(params: Option<&Raw>) -> Result<ClientInfo, ErrorObject> {
    if params.is_some_and(|params| params.as_bytes().len() > LONGEST_INTRODUCTION) {
        return Err(invalid(&format!("an introduction may have {LONGEST_INTRODUCTION} bytes")));
    }
    let get = |key| params.and_then(|params| params.get(key));
    let proposed = get("protocolVersion");
    let Some(proposed) = proposed.as_ref().and_then(Raw::text) else {
        return Err(invalid("`protocolVersion` must be a string"));
    };
    // A client that names no capabilities has none; several real ones leave the member out.
    let capabilities = get("capabilities").unwrap_or_else(Raw::empty);
    if !capabilities.is_object() {
        return Err(invalid("`capabilities` must be an object"));
    }
    Ok(ClientInfo {
        revision: negotiate(&proposed),
        capabilities: compact(&capabilities),
        info: get("clientInfo").map(|info| compact(&info)),
    })
}

/// A copy that does not keep the whole body of the handshake alive.
fn compact(raw: &Raw) -> Raw {
    Raw::trusted(Bytes::copy_from_slice(raw.as_bytes()))
}

/// The result of `initialize`. Waits a little for upstreams that are being connected: what is said
/// here cannot be taken back.
pub(super) async fn welcome(group: &Group, client: &ClientInfo) -> Raw {
    group.wait_ready().await;
    to_client::handshake(&group.view().server_for(client.revision), client.revision)
}

/// Begins to answer a request in a session.
pub(super) fn request(
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
    inbound.note_initialized(session);
    let params = request.params.as_ref();
    let prepared = match &request.method {
        Method::Initialize => {
            Err(ErrorObject::new(code::INVALID_REQUEST, "Invalid request: the session is initialized already"))
        }
        Method::SetLevel => set_level(session, params),
        Method::Subscribe => may_subscribe(session, params),
        _ => Ok(()),
    };
    if let Err(error) = prepared {
        return error.into();
    }
    group.handle(&Call {
        id: request.id.clone(),
        method: request.method.clone(),
        params: request.params.clone(),
        client: Arc::clone(client),
        caller: Arc::clone(caller),
        level: session.level(),
        progress: meta::progress_token(params),
        sink: Some(Arc::clone(session) as Arc<dyn ClientSink>),
    })
}

fn set_level(session: &Session, params: Option<&Raw>) -> Result<(), ErrorObject> {
    let level = params.and_then(|params| params.get("level"));
    let level = level.as_ref().and_then(Level::from_raw);
    let level = level.ok_or_else(|| invalid(&format!("`level` must be one of {}", Level::choices())))?;
    session.set_level(level);
    Ok(())
}

fn may_subscribe(session: &Session, params: Option<&Raw>) -> Result<(), ErrorObject> {
    let uri = params.and_then(|params| params.get("uri"));
    let uri = uri.as_ref().and_then(Raw::text).ok_or_else(|| invalid("`uri` must be a string"))?;
    if uri.len() > LONGEST_URI {
        return Err(invalid(&format!("`uri` may have {LONGEST_URI} bytes")));
    }
    if !session.may_subscribe(&uri) {
        return Err(invalid("the session is subscribed to as many resources as it may be; unsubscribe from some"));
    }
    Ok(())
}

/// Takes a notification or a response in a session. Those that concern nothing here are no fault.
pub(super) fn on_message(inbound: &Inbound, session: &Arc<Session>, group: &Group, message: Message) {
    match message {
        Message::Notification(Notification { notice: Notice::Initialized, .. }) => inbound.note_initialized(session),
        Message::Notification(Notification { notice: Notice::Cancelled, params, .. }) => {
            let id = params.as_ref().and_then(|params| params.get("requestId"));
            if let Some(id) = id.as_ref().and_then(Id::from_raw) {
                session.cancel(&id);
            }
        }
        Message::Response(response) => {
            let known = response.id.as_ref().is_some_and(|id| session.answer(id, response.outcome));
            if !known {
                tracing::debug!(session = %session.id(), "an answer came to no question");
            }
        }
        Message::Notification(notification) => group.forward_notification(session.as_ref(), &notification),
        Message::Request(_) => {}
    }
}

fn invalid(why: &str) -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {why}"))
}

/// A call at work: its replies go to a stream of its session as they come.
#[derive(Debug)]
pub(super) struct RunningCall {
    pub(super) running: CallGuard,
    pub(super) replies: Replies,
    pub(super) answering: ReplyEncoder,
    /// What a stop waits for.
    pub(super) counted: TaskTrackerToken,
}

impl RunningCall {
    /// Sends one reply; true when it was the last.
    pub(super) async fn send(&mut self, stream: StreamTarget, reply: Reply) -> bool {
        let session = self.running.session();
        match reply {
            Reply::Question(question) => {
                if self.answering.revision.facts().sessions {
                    session.ask_in(stream, &self.running, question).await;
                } else {
                    self.answering.encode(Reply::Question(question));
                }
                false
            }
            reply => {
                let last = matches!(reply, Reply::End(_));
                match self.answering.encode(reply) {
                    Some(message) if last => {
                        session.deliver_response(stream, &self.running, &self.answering.id, message).await;
                    }
                    Some(message) => session.deliver(stream, message).await,
                    None => {}
                }
                last
            }
        }
    }

    /// Sends replies to a stream until the last, or until the client wants them no more; false
    /// in that case.
    pub(super) async fn run(mut self, stream: StreamTarget) -> bool {
        loop {
            let reply = tokio::select! {
                biased;
                () = self.running.unwanted() => return false,
                reply = self.replies.next() => reply,
            };
            let Some(reply) = reply else { return true };
            if self.send(stream, reply).await {
                return true;
            }
        }
    }

    /// Works on a stream of its own: when it ends, so does that.
    pub(super) async fn run_alone(self, stream: StreamTarget) {
        let session = Arc::clone(self.running.session());
        if self.run(stream).await {
            session.finish(stream);
        } else {
            session.abandon(stream);
        }
    }
}
