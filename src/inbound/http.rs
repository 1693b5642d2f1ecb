//! Streamable HTTP: both eras on one URL.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::{Method as Verb, Response as HttpResponse};
use tokio_util::sync::CancellationToken;

use super::access_hook::{note_client, note_message, note_session};
use super::body::{CloseSessionOnDrop, EventStreamBody, ResponseContent, StreamEnd};
use super::headers::{EVENT_STREAM, LAST_EVENT_ID, accepts, accepts_json_and_events, is_json, session_id};
use super::pieces::PiecesBody;
use super::recorder_hook::note_sent;
use super::relay::RetainedBody;
use super::respond::{self, Rejection};
use super::response_encoder::ReplyEncoder;
use super::route::Route;
use super::session_messages::{self, ArrivedMessage, BegunCall, RunningCall};
use super::{Inbound, per_request, sse};
use crate::access_log::AccessEnd;
use crate::call::{Answer, AnswerDelivery, Caller, Reply};
use crate::dialect::Revision;
use crate::dialect::classify::{self, MessageClass};
use crate::gateway::{Group, over_rate_limit};
use crate::http::codec::RequestHead;
use crate::http::server::{ReceivedBody, RequestBodyError};
use crate::policy::{AdmittedShare, QuotaKey};
use crate::protocol::json::depth_within;
use crate::protocol::{self, Id, Incoming, Invalid, Message, Method, Request};
use crate::recorder::Mark;
use crate::session::{
    BeginCallError, Session, SessionId, SessionOwner, SessionTransport, StreamError, StreamReader, StreamTarget,
};
use crate::store::EventId;
use crate::timer::WorkerTimer;

/// An admitted request to one group.
pub(super) struct RequestContext<'r> {
    pub(super) inbound: &'r Arc<Inbound>,
    pub(super) group: Arc<Group>,
    pub(super) caller: Arc<Caller>,
    pub(super) route: &'r Route<'r>,
    pub(super) session_in_path: Option<&'r str>,
    pub(super) head: &'r RequestHead,
    /// Another node relayed this request; it must not be relayed again.
    pub(super) is_relayed: bool,
    /// The request body once read, kept for a relay or a retry. Set only in a cluster.
    pub(super) body: RetainedBody,
}

/// What a stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// It brings what comes, or what was missed: GET, `subscriptions/listen`, HTTP+SSE.
    Listening,
    /// It brings the answer of a call.
    Call,
}

type ServeResult = Result<HttpResponse<ResponseContent>, Rejection>;

impl Inbound {
    /// The body of a request, or the rejection of one that could not be read.
    pub(super) fn check_body(&self, body: ReceivedBody) -> Result<Bytes, Rejection> {
        body.map_err(|error| match error {
            RequestBodyError::TooLarge => Rejection::BodyTooLarge(self.settings().limits.body_bytes),
            RequestBodyError::Incomplete => Rejection::BodyIncomplete,
            RequestBodyError::TimedOut => Rejection::BodyTimeout,
        })
    }

    /// Parses a body into its message or batch, within the depth and batch limits.
    pub(super) fn read_messages(&self, body: &Bytes) -> Result<Incoming, Rejection> {
        let settings = self.settings();
        let limits = &settings.limits;
        if !depth_within(body, limits.json_depth) {
            return Err(Rejection::JsonTooDeep(limits.json_depth));
        }
        Incoming::parse(body, limits.batch_length).map_err(Rejection::InvalidMessage)
    }
}

impl RequestContext<'_> {
    /// Serves the request on this node. Rare routes are boxed to keep the future of a POST small.
    pub(super) async fn serve_locally(&self, body: ReceivedBody) -> ServeResult {
        match (self.route, &self.head.verb) {
            (Route::Streamable { .. }, &Verb::POST) => self.post(body).await,
            (Route::Streamable { .. }, &Verb::GET) => Box::pin(self.open_get_stream()).await,
            (Route::Streamable { .. }, &Verb::DELETE) => Box::pin(self.delete_session()).await,
            (Route::SseStream { group }, &Verb::GET) => {
                let path = group.map_or_else(|| "/message".to_owned(), |group| format!("/message/{group}"));
                Box::pin(sse::open_stream(self, &self.public_path_of(&path))).await
            }
            (Route::SseCombined { group }, &Verb::GET) => {
                let path = self.public_path_of(&format!("/{group}/mcp/sse"));
                Box::pin(sse::open_stream(self, &path)).await
            }
            (Route::SseMessages { .. } | Route::SseCombined { .. }, &Verb::POST) => {
                Box::pin(sse::post_message(self, body)).await
            }
            _ => Err(Rejection::MethodNotAllowed(self.route.allowed_methods())),
        }
    }

    /// Serves the request again on this node, after its session was not on the node it was relayed to.
    pub(super) async fn retry_locally(&self) -> ServeResult {
        self.serve_locally(Ok(self.body.get().cloned().unwrap_or_default())).await
    }

    /// The body of the request, retained for a relay.
    pub(super) fn retain_body(&self, body: ReceivedBody) -> Result<Bytes, Rejection> {
        let body = self.inbound.check_body(body)?;
        if self.inbound.cluster.is_some() {
            let _ = self.body.set(body.clone());
        }
        Ok(body)
    }

    async fn post(&self, body: ReceivedBody) -> ServeResult {
        let headers = &self.head.headers;
        if !is_json(headers) {
            return Err(Rejection::NotJson);
        }
        if !accepts_json_and_events(headers) {
            return Err(Rejection::NotAcceptable("application/json and text/event-stream"));
        }
        let body = self.retain_body(body)?;
        let message = match self.inbound.read_messages(&body)? {
            Incoming::Batch(items) => return Box::pin(self.handle_batch(items)).await,
            Incoming::One(message) => message,
        };
        note_message(self.caller.access.as_ref(), &message);
        // During shutdown responses and notifications are still accepted: running calls need them.
        if self.inbound.refuses_new_calls() && matches!(message, Message::Request(_)) {
            return Err(Rejection::ShuttingDown);
        }
        match classify::classify(&message, &self.head.headers).map_err(Rejection::Refused)? {
            MessageClass::PerRequest(meta) => per_request::serve(self, message, meta).await,
            MessageClass::Handshake => Box::pin(self.open_session(message)).await,
            MessageClass::Session => {
                let id = match &message {
                    Message::Request(request) => Some(request.id.clone()),
                    _ => None,
                };
                let result = self.handle_in_session(message).await;
                result.map_err(|rejection| match id {
                    Some(id) => Rejection::ForRequest(id, Box::new(rejection)),
                    None => rejection,
                })
            }
        }
    }

    /// Handles `initialize`: opens a session.
    async fn open_session(&self, message: Message) -> ServeResult {
        let Message::Request(request) = message else { return Err(Rejection::SessionRequired) };
        let mut operation = self.group.begin_operation((&request.method, None), None, &self.caller);
        let opened = self.open_session_for(request).await;
        match &opened {
            Ok((_, revision)) => operation.succeed(*revision),
            Err(_) => operation.reject(),
        }
        opened.map(|(response, _)| response)
    }

    async fn open_session_for(&self, request: Request) -> Result<(HttpResponse<ResponseContent>, Revision), Rejection> {
        if self.requested_session_id().is_some() {
            self.require_session().await?;
            let why = "this session is initialized already; leave `Mcp-Session-Id` out to open another";
            return Err(Rejection::InvalidMessage(Invalid::request(Some(request.id), why)));
        }
        if let Some(cluster) = self.inbound.cluster.as_ref().filter(|_| self.inbound.shutdown.is_draining()) {
            return Err(cluster.any_other_node().await?.map_or(Rejection::ShuttingDown, Rejection::OnOtherNode));
        }
        let share =
            session_messages::admit_request(self.inbound, &self.caller, (&self.group, &request.method), || false).await;
        let _share = share.map_err(|wait| for_request(&request.id, Rejection::OverRateLimit(wait)))?;
        let max_kept_bytes = self.inbound.settings().limits.initialize_bytes;
        let client = session_messages::parse_initialize(request.params.as_deref(), max_kept_bytes);
        let client = Arc::new(client.map_err(|error| Rejection::Refused(request.refuse(error)))?);
        let revision = client.revision;
        note_client(self.caller.access.as_ref(), Some(&client));
        let result = session_messages::initialize_result(&self.group, &client, (&request, &self.caller)).await;
        self.inbound.check_lease()?;
        let session =
            self.inbound.sessions.open(self.session_owner(), client).map_err(|reached| {
                Rejection::ForRequest(request.id.clone(), Box::new(Rejection::QuotaReached(reached)))
            })?;
        // No client knows the session id yet: close the session if this future is dropped before the response.
        let close_guard =
            CloseSessionOnDrop { sessions: Arc::clone(&self.inbound.sessions), session: Some(Arc::clone(&session)) };
        session.record_known_lists(None, &self.group.list_fingerprints_of(session.identity()));
        self.inbound.persist_new(&session).await?;
        close_guard.disarm();
        self.inbound.record_session(&self.caller, &session);
        note_session(self.caller.access.as_ref(), &session);
        tracing::debug!(session = %session.id().log_tag(), group = %session.group(), "session opened");
        let response = protocol::Response::new(Some(request.id), Ok(result.into()));
        Ok((respond::with_session_id(respond::json(response.encode()), session.id()), revision))
    }

    /// The owner of a session that this request opens.
    pub(super) fn session_owner(&self) -> SessionOwner {
        SessionOwner {
            identity: Arc::clone(&self.caller.identity),
            group: Arc::clone(self.group.name()),
            quota_key: QuotaKey::of(&self.caller),
        }
    }

    fn requested_session_id(&self) -> Option<std::borrow::Cow<'_, str>> {
        session_id(self.session_in_path, &self.head.headers, &self.head.uri)
    }

    /// The session that the request names, if it belongs to the caller.
    async fn require_session(&self) -> Result<Arc<Session>, Rejection> {
        let given = self.requested_session_id().ok_or(Rejection::SessionRequired)?;
        self.find_session(SessionId::parse(&given, SessionTransport::Http), &given).await
    }

    /// The session of the request, after checking that `MCP-Protocol-Version` is a revision with sessions.
    async fn require_session_and_version(&self) -> Result<Arc<Session>, Rejection> {
        let session = self.require_session().await?;
        let checked = classify::check_session_version(&self.head.headers);
        checked.map_err(|error| Rejection::Refused(classify::RefusedRequest { id: None, error }))?;
        Ok(session)
    }

    async fn handle_in_session(&self, message: Message) -> ServeResult {
        let session = self.require_session_and_version().await?;
        note_client(self.caller.access.as_ref(), session.client());
        note_session(self.caller.access.as_ref(), &session);
        let changes_session = match &message {
            Message::Request(request) => {
                matches!(request.method, Method::SetLevel | Method::Subscribe | Method::Unsubscribe)
            }
            _ => true,
        };
        let saves_before = session.upstream_session_saves();
        let response = match message {
            Message::Request(request) => self.answer_request(&session, request).await,
            message => {
                let arrived = ArrivedMessage::of(&self.caller);
                session_messages::on_message(self.inbound, &session, &self.group, (message, &arrived));
                Ok(respond::accepted())
            }
        };
        if session.upstream_session_saves() != saves_before {
            // The call has opened an upstream session. Whoever has its answer finds that session again if this node
            // dies now; a store that does not take it in time does not make the call fail.
            let _ = Box::pin(session.flush()).await;
        }
        // A change is acknowledged only once the store has it, so that it survives this node.
        match changes_session && !Box::pin(session.flush()).await {
            true => Err(Rejection::StoreUnavailable),
            false => response,
        }
    }

    /// How the result of a single call may be delivered. One that was relayed goes through the store, piece by piece anyway.
    pub(super) fn delivery(&self) -> AnswerDelivery {
        if self.is_relayed { AnswerDelivery::Whole } else { AnswerDelivery::InPieces }
    }

    /// Answers a request with JSON if the final response is the first reply; with an SSE stream if another reply
    /// comes first or none comes within `sse_after`.
    async fn answer_request(&self, session: &Arc<Session>, request: Request) -> ServeResult {
        let begun = match session_messages::may_run_upstream(&request.method) {
            true => Some(self.begin_call(session, &request.id)?),
            false => None,
        };
        let share =
            session_messages::admit_request(self.inbound, &self.caller, (&self.group, &request.method), || false).await;
        let share = share.map_err(Rejection::OverRateLimit)?;
        let by = (&self.caller, share.clone(), self.delivery());
        let mut encoder = ReplyEncoder::in_session(session, &request, &self.group, &self.caller);
        let mut replies = session_messages::handle_request(
            self.inbound,
            session,
            &self.group,
            &request,
            by,
            encoder.operation.target(),
        );
        if let Some(answer) = replies.take_ready() {
            return self.answer(&mut encoder, answer);
        }
        let (guard, mut in_flight) = match begun {
            Some(begun) => begun,
            None => self.begin_call(session, &request.id)?,
        };
        in_flight.keep_share(share);
        let sse_after = self.inbound.settings().sse_after;
        let mut pending = DetachOnDrop(Some(RunningCall { guard, replies, encoder, in_flight }));
        let Some(call) = &mut pending.0 else { return Ok(respond::accepted()) };
        let first = loop {
            tokio::select! {
                biased;
                () = call.guard.cancelled() => {
                    pending.0 = None;
                    if let Some(access) = &self.caller.access {
                        access.note_end(AccessEnd::Cancelled);
                    }
                    if session.has_moved() {
                        return Err(Rejection::RelayPeerLost);
                    }
                    // The client cancelled the call, so it gets no response; 202 ends the POST.
                    return Ok(respond::accepted());
                }
                reply = call.replies.next() => break reply,
                // A full store cannot retain stream events, so wait for the final response alone.
                () = WorkerTimer::after(sse_after) => {
                    if !self.inbound.is_store_full() {
                        break None;
                    }
                }
            }
        };
        let Some(mut call) = pending.0.take() else { return Ok(respond::accepted()) };
        match first {
            Some(Reply::End(answer)) => self.answer(&mut call.encoder, answer),
            Some(Reply::Piece(piece)) => Ok(respond::json_in_pieces(PiecesBody::for_session(call, piece))),
            first => Box::pin(self.stream_replies(session, call, first)).await,
        }
    }

    /// Answers with the final response as JSON, or challenges a caller that lacks scopes.
    fn answer(&self, encoder: &mut ReplyEncoder, answer: Answer) -> ServeResult {
        match respond::insufficient_scope(&self.caller, encoder.revision, &answer) {
            Some(rejection) => {
                encoder.operation.end(&encoder.method, &answer.outcome);
                Err(rejection)
            }
            None => Ok(respond::json(encoder.response(answer))),
        }
    }

    /// The number of the call for the recorder.
    fn mark(&self) -> Mark {
        self.caller.access.as_ref().map_or(Mark::NONE, |access| access.mark())
    }

    /// Answers with an SSE stream of the replies of a call, beginning with the one that is there already.
    async fn stream_replies(&self, session: &Arc<Session>, mut call: RunningCall, first: Option<Reply>) -> ServeResult {
        if self.inbound.is_store_full() {
            return Err(Rejection::StoreFull);
        }
        let refused = |why| stream_refused(session, why, Rejection::RelayPeerLost);
        let (stream, reader) = session.open_stream(self.mark()).map_err(refused)?;
        session.expect_response(stream, || vec![call.encoder.id.clone()]);
        if let Some(reply) = first {
            call.send(stream, reply).await;
        }
        tokio::spawn(call.run_and_close_stream(stream));
        Ok(self.session_stream(reader, StreamKind::Call))
    }

    fn begin_call(&self, session: &Arc<Session>, id: &Id) -> Result<BegunCall, Rejection> {
        session_messages::begin_call(self.inbound, session, id.clone()).map_err(|why| match why {
            BeginCallError::DuplicateId => {
                Rejection::InvalidMessage(Invalid::request(Some(id.clone()), why.to_string()))
            }
            BeginCallError::QuotaReached(reached) => Rejection::QuotaReached(reached),
            BeginCallError::SessionEnded if self.inbound.cluster.is_some() => Rejection::SessionMoving,
            BeginCallError::SessionEnded => Rejection::StreamRefused(StreamError::SessionEnded),
        })
    }

    /// Handles a batch: notifications and responses at once, requests with one array or one SSE stream.
    async fn handle_batch(&self, items: Vec<Result<Message, Invalid>>) -> ServeResult {
        if self.inbound.refuses_new_calls()
            && items.iter().flatten().any(|message| matches!(message, Message::Request(_)))
        {
            return Err(Rejection::ShuttingDown);
        }
        let is_response = |message: &&Message| matches!(message, Message::Response(_));
        if let Some(access) = &self.caller.access {
            access.note_message("batch", None);
        }
        let response_count = items.iter().flatten().filter(is_response).count();
        if response_count > 0 && response_count < items.len() {
            return Err(Rejection::MixedBatch);
        }
        let is_per_request = |message: &Message| {
            matches!(classify::classify(message, &self.head.headers), Ok(MessageClass::PerRequest(_)))
        };
        if items.iter().flatten().any(is_per_request) {
            return Err(Rejection::BatchNotSupported);
        }
        let session = self.require_session_and_version().await?;
        note_client(self.caller.access.as_ref(), session.client());
        note_session(self.caller.access.as_ref(), &session);
        if !session.client().is_some_and(|client| client.revision.allows_batches()) {
            return Err(Rejection::BatchNotSupported);
        }
        let (mut responses, mut calls) = (Vec::<Bytes>::new(), Vec::new());
        for item in items {
            match item {
                Err(invalid) => responses.push(invalid.response().encode()),
                Ok(Message::Request(request)) => match self.begin_batched_call(&session, &request).await {
                    Ok(((guard, in_flight), share)) => {
                        let by = (&self.caller, share, AnswerDelivery::Whole);
                        let mut encoder = ReplyEncoder::in_session(&session, &request, &self.group, &self.caller);
                        let mut replies = session_messages::handle_request(
                            self.inbound,
                            &session,
                            &self.group,
                            &request,
                            by,
                            encoder.operation.target(),
                        );
                        match replies.take_ready() {
                            Some(answer) => responses.push(encoder.response(answer)),
                            None => calls.push(RunningCall { guard, replies, encoder, in_flight }),
                        }
                    }
                    // Others of the batch may run already, so each request that cannot has an error of its own.
                    Err(Rejection::InvalidMessage(invalid)) => responses.push(invalid.response().encode()),
                    Err(Rejection::QuotaReached(reached)) => {
                        let response = protocol::Response::new(Some(request.id), Err(respond::quota_error(reached)));
                        responses.push(response.encode());
                    }
                    Err(Rejection::OverRateLimit(wait)) => {
                        let response = protocol::Response::new(Some(request.id), Err(over_rate_limit(wait)));
                        responses.push(response.encode());
                    }
                    Err(other) => return Err(other),
                },
                Ok(message) => {
                    let arrived = ArrivedMessage::of(&self.caller);
                    session_messages::on_message(self.inbound, &session, &self.group, (message, &arrived));
                }
            }
        }
        match (responses.is_empty(), calls.is_empty()) {
            (true, true) => Ok(respond::accepted()),
            (false, true) => Ok(respond::json(json_array(&responses))),
            _ => self.stream_batch(&session, responses, calls).await,
        }
    }

    /// Begins one call of a batch, with its share in the rate limits.
    async fn begin_batched_call(
        &self,
        session: &Arc<Session>,
        request: &Request,
    ) -> Result<(BegunCall, AdmittedShare), Rejection> {
        let (guard, mut in_flight) = self.begin_call(session, &request.id)?;
        let share =
            session_messages::admit_request(self.inbound, &self.caller, (&self.group, &request.method), || false).await;
        let share = share.map_err(Rejection::OverRateLimit)?;
        in_flight.keep_share(share.clone());
        Ok(((guard, in_flight), share))
    }

    async fn stream_batch(
        &self,
        session: &Arc<Session>,
        responses: Vec<Bytes>,
        calls: Vec<RunningCall>,
    ) -> ServeResult {
        let refused = |why| stream_refused(session, why, Rejection::RelayPeerLost);
        let (stream, reader) = session.open_stream(self.mark()).map_err(refused)?;
        session.expect_response(stream, || calls.iter().map(|call| call.encoder.id.clone()).collect());
        for response in responses {
            note_sent(self.caller.access.as_ref(), &response);
            session.deliver(stream, response).await;
        }
        let session = Arc::clone(session);
        tokio::spawn(async move {
            let mut tasks = tokio::task::JoinSet::new();
            for call in calls {
                tasks.spawn(call.run(stream));
            }
            while tasks.join_next().await.is_some() {}
            session.finish_stream(stream);
        });
        Ok(self.session_stream(reader, StreamKind::Call))
    }

    /// Handles GET: opens the listening stream, or resumes a stream after `Last-Event-ID`.
    async fn open_get_stream(&self) -> ServeResult {
        if self.requested_session_id().is_none() {
            return Err(Rejection::MethodRefused("GET belongs to a session and needs its `Mcp-Session-Id` header"));
        }
        if !accepts(&self.head.headers, EVENT_STREAM) {
            return Err(Rejection::NotAcceptable(EVENT_STREAM));
        }
        let session = self.require_session_and_version().await?;
        note_session(self.caller.access.as_ref(), &session);
        let reader = match self.head.headers.get(&LAST_EVENT_ID) {
            None => session.listen(),
            Some(id) => match str::from_utf8(id).ok().and_then(EventId::parse) {
                Some(id) => session.resume(id),
                None => Err(StreamError::UnknownEvent),
            },
        };
        let reader = reader.map_err(|why| stream_refused(&session, why, Rejection::SessionMoving))?;
        Ok(self.session_stream(reader, StreamKind::Listening))
    }

    fn session_stream(&self, reader: StreamReader, kind: StreamKind) -> HttpResponse<ResponseContent> {
        // Sessions of anonymous callers end with the admission of such callers, and their streams with them.
        let end = match self.caller.identity.is_anonymous() {
            true => StreamEnd::default(),
            false => self.stream_end(kind),
        };
        respond::event_stream(EventStreamBody::for_session(reader, end, self.inbound.settings().sse_heartbeat))
    }

    /// What ends a stream of this request: the revocation of the credential and, where the stream only listens, its
    /// expiry. A running call is not cut when its token expires.
    pub(super) fn stream_end(&self, kind: StreamKind) -> StreamEnd {
        let identity = &self.caller.identity;
        let revocation = self.inbound.policy().revocation(identity).or_else(|| {
            // The credential was revoked after the request was admitted. Other nodes may know more than this one.
            let revoked = CancellationToken::new();
            revoked.cancel();
            Some(revoked).filter(|_| !self.is_relayed)
        });
        let lifetime = match kind {
            StreamKind::Call => None,
            StreamKind::Listening => identity.expires_at.map(|end| end.duration_since(SystemTime::now())),
        };
        StreamEnd::new(revocation, lifetime.map(Result::unwrap_or_default))
    }

    /// A path of this gateway as clients know it.
    fn public_path_of(&self, path: &str) -> String {
        format!("{}{path}", self.inbound.policy().public_path())
    }

    /// Handles DELETE: closes the session and waits for its deletion in the store.
    async fn delete_session(&self) -> ServeResult {
        if self.requested_session_id().is_none() {
            return Err(Rejection::MethodRefused("DELETE belongs to a session and needs its `Mcp-Session-Id` header"));
        }
        if !self.inbound.settings().allow_session_delete {
            return Err(Rejection::MethodRefused("sessions are not ended by clients here"));
        }
        let session = self.require_session_and_version().await?;
        self.inbound.sessions.close(&session);
        if let Some(persister) = self.inbound.sessions.persister() {
            // Spawned, because the deletes of other sessions are in the same batch: a client that disconnects must
            // not abort them.
            let persister = Arc::clone(persister);
            let deleted = tokio::spawn(async move { persister.finish_deletes().await }).await;
            deleted.unwrap_or(Ok(()))?;
        }
        Ok(respond::session_deleted())
    }

    /// Canonical id of the session that the request names, on either HTTP transport.
    pub(super) fn session_key(&self) -> Option<String> {
        let id = match self.route {
            Route::Streamable { .. } => SessionId::parse(&self.requested_session_id()?, SessionTransport::Http),
            _ => SessionId::parse(&super::sse::session_parameter(self)?, SessionTransport::Sse),
        };
        id.map(|id| id.to_string())
    }
}

/// Owns a call while its POST waits for the first reply. A client that disconnects has not cancelled the call, so
/// dropping this lets the call run on, with its replies discarded.
struct DetachOnDrop(Option<RunningCall>);

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            tokio::spawn(call.run_and_close_stream(StreamTarget::Discard));
        }
    }
}

fn for_request(id: &Id, rejection: Rejection) -> Rejection {
    Rejection::ForRequest(id.clone(), Box::new(rejection))
}

/// Joins encoded messages into a JSON array.
fn json_array(responses: &[Bytes]) -> Bytes {
    let mut out = vec![b'['];
    for (n, response) in responses.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        out.extend_from_slice(response);
    }
    out.push(b']');
    out.into()
}

/// Why a session refuses a stream; `moving` if it ended here only because it goes on at another node.
fn stream_refused(session: &Session, why: StreamError, moving: Rejection) -> Rejection {
    match why {
        StreamError::SessionEnded if session.has_moved() => moving,
        why => Rejection::StreamRefused(why),
    }
}
