//! Handles messages of handshake-era sessions, the same for every transport.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Inbound;
use super::recorder_hook::{note_line, note_sent};
use super::response_encoder::ReplyEncoder;
use crate::access_log::AccessEnd;
use crate::call::{Answer, AnswerDelivery, Call, Caller, ClientInfo, ClientSink, Replies, Reply};
use crate::dialect::classify::method_not_found;
use crate::dialect::{Era, Revision, has_method, meta, negotiate, to_client};
use crate::failure::QuotaReached;
use crate::gateway::{Group, TracedRequest};
use crate::identity::Identity;
use crate::metrics::OperationTarget;
use crate::policy::{AdmittedShare, CallerPermit, LimitExcess, LimitedRequest, NotAdmitted, Permit, QuotaKey};
use crate::protocol::method::MethodRoute;
use crate::protocol::{
    ErrorObject, Id, Key, Level, Message, Method, Notification, NotificationMethod, Payload, Raw, Request, code,
};
use crate::recorder::{self, Mark};
use crate::session::{BeginCallError, CallGuard, Session, StreamTarget};
use crate::trace::CallTrace;

/// Longest resource URI that a session can subscribe to.
const MAX_SUBSCRIPTION_URI_BYTES: usize = 8 << 10;
/// Members of `clientInfo` that are kept where all of them would be too much.
const NEEDED_CLIENT_INFO: [&str; 3] = ["name", "title", "version"];

/// Parses the params of `initialize`. Capabilities and client info are kept as long as the session, so they are bounded:
/// of a larger client info only the name is kept, and larger capabilities are refused.
pub(super) fn parse_initialize(params: Option<&Raw>, max_kept_bytes: usize) -> Result<ClientInfo, ErrorObject> {
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
    let left = max_kept_bytes.checked_sub(capabilities.as_bytes().len());
    let info = get("clientInfo").map(|info| match left {
        Some(left) if info.as_bytes().len() > left => needed_client_info(&info),
        _ => info,
    });
    if left.is_none_or(|left| info.as_ref().is_some_and(|info| info.as_bytes().len() > left)) {
        let why = format!("`capabilities` and the name of the client may have {max_kept_bytes} bytes together");
        return Err(invalid_params(&why));
    }
    Ok(ClientInfo {
        revision: negotiate(&proposed),
        capabilities: compact(&capabilities),
        info: info.map(|info| compact(&info)),
    })
}

/// The client info without what no server needs to tell clients apart, such as icons.
fn needed_client_info(info: &Raw) -> Raw {
    let nothing = Raw::empty();
    let members = NEEDED_CLIENT_INFO.into_iter().filter_map(|key| Some((key, info.get(key)?)));
    members.fold(nothing.edit(), |needed, (key, value)| needed.set(key, value)).finish()
}

/// Checks that a `subscriptions/listen` call names no more resources, and no more tasks, than a session may subscribe to.
pub(super) fn check_listen(inbound: &Inbound, call: &Call) -> Result<(), ErrorObject> {
    if call.method != Method::Listen {
        return Ok(());
    }
    let limit = inbound.sessions.settings().max_subscriptions;
    for (key, what) in [("resourceSubscriptions", "resources"), ("taskIds", "tasks")] {
        let names = call.params.as_ref().and_then(|params| params.at(&["notifications", key]));
        if names.is_some_and(|names| names.items().len() > limit) {
            let why = format!("`notifications.{key}` may name {limit} {what}; listen to fewer");
            return Err(invalid_params(&why));
        }
    }
    Ok(())
}

/// Registers a call and takes its share of the quotas, before anything is sent for it.
pub(super) fn begin_call(inbound: &Inbound, session: &Arc<Session>, id: Id) -> Result<BegunCall, BeginCallError> {
    let permit = inbound.sessions.quotas().calls.acquire(1).map_err(BeginCallError::QuotaReached)?;
    let guard = session.begin_call(id)?;
    let tracked = inbound.shutdown.track_call();
    Ok((guard, InFlightCall { tracked, _permit: permit, _listen: None, _share: None }))
}

/// Whether a request may do something at a server, so that it must have its share of the quotas first. Others are
/// answered here, or do no harm if they are repeated.
pub(super) fn may_run_upstream(method: &Method) -> bool {
    !matches!(method, Method::Ping | Method::Initialize | Method::SetLevel)
        && !matches!(method.route(), MethodRoute::List)
}

/// Takes the share of a request in the limits that count requests. `resumes` says whether it goes on with a call that is in
/// flight already.
///
/// # Errors
/// The time after which there may be room.
pub(super) async fn admit_request(
    inbound: &Inbound,
    caller: &Caller,
    (group, method): (&Group, &Method),
    resumes: impl FnOnce() -> bool,
) -> Result<AdmittedShare, Duration> {
    let limits = inbound.gateway.rate_limits();
    if !limits.counts_requests() {
        return Ok(None);
    }
    let asked = LimitedRequest { caller, group: group.name(), target: None, resumes: resumes() };
    let admitted = match limits.try_admit(&asked, None) {
        Err(NotAdmitted::StoreNeeded) => Box::pin(limits.admit(&asked, None)).await,
        Err(NotAdmitted::Exceeded(exceeded)) => Err(exceeded),
        Ok(share) => Ok(share),
    };
    admitted.map_err(|exceeded| {
        group.record_limited_request(caller, method, &exceeded.limit);
        match exceeded.excess {
            LimitExcess::Rate(wait) => wait,
            LimitExcess::ArgumentBytes(_) => Duration::ZERO,
        }
    })
}

/// Gives back what a call took of the rate limits that is refused for another reason.
pub(super) fn give_back_share(call: &Call) {
    if let Some(limits) = &call.limits {
        limits.give_back();
    }
}

/// Copies a slice of the request body, so that the session does not keep the whole body alive.
fn compact(raw: &Raw) -> Raw {
    Raw::trusted(Bytes::copy_from_slice(raw.as_bytes()))
}

/// The result of `initialize`. Waits briefly for upstreams that are still connecting: capabilities cannot be changed
/// later.
pub(super) async fn initialize_result(
    group: &Group,
    client: &ClientInfo,
    (request, caller): (&Request, &Caller),
) -> Raw {
    let traced = TracedRequest {
        method: &request.method,
        params: request.params.as_ref(),
        id: &request.id,
        caller,
        group: group.name(),
        revision: Some(client.revision),
    };
    // The span ends when it is dropped.
    let _trace = traced.begin(group.tracer());
    group.wait_ready(client.revision).await;
    to_client::initialize_result(&group.view(client.revision).server_for(client.revision), client.revision)
}

/// Starts a request of a session and returns its replies.
pub(super) fn handle_request(
    inbound: &Inbound,
    session: &Arc<Session>,
    group: &Arc<Group>,
    request: &Request,
    (caller, share, delivery): (&Arc<Caller>, AdmittedShare, AnswerDelivery),
    target_label: Option<OperationTarget>,
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
    if !Arc::ptr_eq(session.identity(), &caller.identity) {
        note_identity(session, group, &caller.identity);
    }
    let params = request.params.as_ref();
    let checked = match &request.method {
        Method::Initialize => {
            Err(ErrorObject::new(code::INVALID_REQUEST, "Invalid request: the session is initialized already"))
        }
        Method::SetLevel => set_level(session, request.params.as_deref()),
        Method::Subscribe => check_subscription(session, params),
        _ => Ok(()),
    };
    if let Err(error) = checked {
        return error.into();
    }
    let mut call = Call {
        id: request.id.clone(),
        method: request.method.clone(),
        params: request.params.clone(),
        client: Arc::clone(client),
        caller: Arc::clone(caller),
        level: session.level(),
        progress_token: meta::progress_token(params),
        sink: Some(Arc::clone(session) as Arc<dyn ClientSink>),
        limits: share,
        delivery,
        trace: CallTrace::PassedOn,
        target_label,
    };
    group.begin_span(&mut call);
    group.handle(&call)
}

/// Tells the client which lists it sees otherwise since its credential says something else: a new token with other roles,
/// for example.
pub(super) fn note_identity(session: &Session, group: &Group, identity: &Arc<Identity>) {
    let Some(before) = session.replace_identity(identity) else { return };
    let revision = session.client().map_or(Revision::NEWEST_HANDSHAKE, |client| client.revision);
    for change in group.lists_that_differ(revision, &before, identity) {
        session.notify(change.notification());
    }
}

fn set_level(session: &Session, params: Option<&Raw>) -> Result<(), ErrorObject> {
    let level = params.and_then(|params| params.get("level"));
    let level = level.as_ref().and_then(Level::from_raw);
    let level = level.ok_or_else(|| invalid_params(&format!("`level` must be one of {}", Level::choices())))?;
    session.set_log_level(level);
    Ok(())
}

fn check_subscription(session: &Session, params: Option<&Payload>) -> Result<(), ErrorObject> {
    let uri = params.and_then(|params| params.text_of(Key::Uri));
    let uri = uri.ok_or_else(|| invalid_params("`uri` must be a string"))?;
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
pub(super) fn on_message(
    inbound: &Inbound,
    session: &Arc<Session>,
    group: &Group,
    (message, arrived): (Message, &ArrivedMessage),
) {
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
            match response.id.as_ref().and_then(|id| session.resolve_server_request(id, response.outcome)) {
                Some(call) => arrived.note_belongs_to(call),
                None => tracing::debug!(session = %session.id().log_tag(), "response matches no server request"),
            }
        }
        Message::Notification(notification) => {
            group.forward_notification(session.as_ref(), &session.latest_identity(), &notification);
        }
        Message::Request(_) => {}
    }
}

fn invalid_params(why: &str) -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {why}"))
}

/// How a message of a session arrived, for the recorder: in a request that is recorded itself, or as a line.
#[derive(Debug, Clone, Default)]
pub(super) struct ArrivedMessage {
    pub(super) mark: Mark,
    pub(super) line: Bytes,
}

impl ArrivedMessage {
    /// A message that came in the request of this caller.
    pub(super) fn of(caller: &Caller) -> Self {
        Self { mark: caller.mark(), line: Bytes::new() }
    }

    fn note_belongs_to(&self, call: Mark) {
        match self.line.is_empty() {
            true => recorder::note_joins(self.mark, call),
            false => note_line(call, &self.line),
        }
    }
}

/// A running call, whose replies are delivered to a stream of its session.
#[derive(Debug)]
pub(super) struct RunningCall {
    pub(super) guard: CallGuard,
    pub(super) replies: Replies,
    pub(super) encoder: ReplyEncoder,
    pub(super) in_flight: InFlightCall,
}

/// A registered call with its share of the quotas.
pub(super) type BegunCall = (CallGuard, InFlightCall);

/// A call in flight: a shutdown waits until this is dropped, and the quotas get their share back.
#[derive(Debug)]
pub(super) struct InFlightCall {
    pub(super) tracked: TaskTrackerToken,
    _permit: Permit,
    /// The shares that only `subscriptions/listen` has.
    _listen: Option<CallerPermit>,
    /// The share in the rate limits.
    _share: AdmittedShare,
}

impl InFlightCall {
    /// Takes the share of a per-request call, before anything is sent for it.
    ///
    /// # Errors
    /// When a quota of calls, listening streams or streams is used up.
    pub(super) fn begin(inbound: &Inbound, call: &Call) -> Result<Self, QuotaReached> {
        let (quotas, shutdown) = (inbound.sessions.quotas(), &inbound.shutdown);
        quotas.streams.check_room()?;
        let share = call.limits.clone();
        if call.method != Method::Listen {
            let (permit, tracked) = (quotas.calls.acquire(1)?, shutdown.track_call());
            return Ok(Self { _permit: permit, _listen: None, tracked, _share: share });
        }
        // A shutdown does not wait for these to end by themselves; it ends them with a final result.
        let own = QuotaKey::of(&call.caller).map(|key| quotas.listens_per_caller.acquire(key)).transpose()?;
        let (permit, tracked) = (quotas.listens.acquire(1)?, shutdown.track_listen());
        Ok(Self { _permit: permit, _listen: own, tracked, _share: share })
    }

    /// Keeps the share of the request in the rate limits until the call has ended.
    pub(super) fn keep_share(&mut self, share: AdmittedShare) {
        self._share = share;
    }
}

impl RunningCall {
    /// Delivers one reply; true when it was the final response.
    pub(super) async fn send(&mut self, stream: StreamTarget, reply: Reply) -> bool {
        let session = self.guard.session();
        match reply {
            Reply::ServerRequest(question) => {
                self.encoder.operation.note_input(question.responder.clock());
                if self.encoder.revision.accepts_server_requests() {
                    let mark = self.encoder.access.as_ref().map_or(Mark::NONE, |access| access.mark());
                    session.send_server_request(stream, (&self.guard, mark), question).await;
                } else {
                    self.encoder.encode(Reply::ServerRequest(question));
                }
                false
            }
            // Nobody reads the result.
            Reply::Piece(_) if stream == StreamTarget::Discard => false,
            reply => {
                let last = matches!(reply, Reply::End(_));
                let message = self.encoder.encode(reply);
                if let Some(message) = message.as_ref().filter(|_| stream != StreamTarget::Discard) {
                    note_sent(self.encoder.access.as_ref(), message);
                }
                match message {
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
                () = self.guard.cancelled() => {
                    if let Some(access) = &self.encoder.access {
                        access.note_end(AccessEnd::Cancelled);
                    }
                    return false;
                }
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
