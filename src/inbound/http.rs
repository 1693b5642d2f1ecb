//! Streamable HTTP: both eras on one address.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method as Verb, Response as HttpResponse};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming as HttpBody;

use super::body::{CloseSessionOnDrop, Events, ResponseContent};
use super::headers::{EVENTS, JSON, LAST_EVENT_ID, accepts, is_json, session_id};
use super::relay::Once;
use super::respond::{self, Rejection};
use super::response_encoder::ReplyEncoder;
use super::route::Route;
use super::session_messages::{self, RunningCall};
use super::{Inbound, per_request, sse};
use crate::call::{Caller, Replies, Reply};
use crate::dialect::classify::{self, Path};
use crate::gateway::Group;
use crate::protocol::json::depth_within;
use crate::protocol::{Incoming, Invalid, Message, Method, Request};
use crate::session::{NotBegun, Session, SessionId, SessionOwner, SessionTransport, StreamError, StreamTarget};
use crate::store::EventId;
use crate::timer::PooledTimer;

/// A request to one group, admitted.
pub(super) struct RequestContext<'r> {
    pub(super) inbound: &'r Arc<Inbound>,
    pub(super) group: Arc<Group>,
    pub(super) caller: Arc<Caller>,
    pub(super) route: &'r Route<'r>,
    pub(super) session_in_path: Option<&'r str>,
    pub(super) parts: &'r http::request::Parts,
    /// Another node has brought it.
    pub(super) carried: bool,
    /// Its body, once that was read.
    pub(super) body: Once,
}

/// A body on its way in.
pub(super) enum RequestBody {
    /// It is still being sent.
    Wire(HttpBody),
    /// It is here.
    Whole(Bytes),
    /// It could not be read.
    Refused(Rejection),
}

type ServeResult = Result<HttpResponse<ResponseContent>, Rejection>;

impl Inbound {
    /// Reads a body, no more of it than allowed, no longer than allowed.
    pub(super) async fn read_body(&self, body: RequestBody) -> Result<Bytes, Rejection> {
        let body = match body {
            RequestBody::Whole(body) => return Ok(body),
            RequestBody::Refused(problem) => return Err(problem),
            RequestBody::Wire(body) => body,
        };
        let limit = self.settings.limits.body_bytes;
        let declared = http_body::Body::size_hint(&body).lower();
        if declared > limit as u64 {
            return Err(Rejection::BodyTooLarge(limit));
        }
        let collected = Limited::new(body, limit).collect();
        match tokio::time::timeout(self.settings.body_timeout, collected).await {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Rejection::BodyTooLarge(limit)),
            Ok(Err(_)) => Err(Rejection::BodyBroken),
            Err(_) => Err(Rejection::BodyTooSlow),
        }
    }

    /// Reads the message or messages in a body.
    pub(super) fn read_messages(&self, body: &Bytes) -> Result<Incoming, Rejection> {
        let limits = &self.settings.limits;
        if !depth_within(body, limits.json_depth) {
            return Err(Rejection::TooDeep(limits.json_depth));
        }
        Incoming::parse(body, limits.batch_length).map_err(Rejection::Invalid)
    }
}

impl RequestContext<'_> {
    /// Serves it as far as this node can. What is seldom is in a box, so that it is no part of every request.
    pub(super) async fn serve_here(&self, body: RequestBody) -> ServeResult {
        match (self.route, &self.parts.method) {
            (Route::Streamable { .. }, verb) => self.serve(verb, body).await,
            (Route::SseStream { group }, &Verb::GET) => {
                let path = group.map_or_else(|| "/message".to_owned(), |group| format!("/message/{group}"));
                Box::pin(sse::open(self, &path)).await
            }
            (Route::SseBoth { .. }, &Verb::GET) => Box::pin(sse::open(self, self.parts.uri.path())).await,
            (Route::SseMessages { .. } | Route::SseBoth { .. }, &Verb::POST) => {
                Box::pin(sse::message(self, body)).await
            }
            _ => Err(Rejection::Verb(self.route.verbs())),
        }
    }

    /// Serves it once more, after its session was not where it had been.
    pub(super) async fn serve_again(&self) -> ServeResult {
        self.serve_here(RequestBody::Whole(self.body.get().cloned().unwrap_or_default())).await
    }

    async fn serve(&self, verb: &Verb, body: RequestBody) -> ServeResult {
        match *verb {
            Verb::POST => self.post(body).await,
            Verb::GET => Box::pin(self.get()).await,
            Verb::DELETE => Box::pin(self.delete()).await,
            _ => Err(Rejection::Verb("POST, GET, DELETE, OPTIONS")),
        }
    }

    /// Reads the body, and keeps it for whoever may have to send it on.
    pub(super) async fn read_body(&self, body: RequestBody) -> Result<Bytes, Rejection> {
        let body = self.inbound.read_body(body).await?;
        if self.inbound.cluster.is_some() {
            let _ = self.body.set(body.clone());
        }
        Ok(body)
    }

    async fn post(&self, body: RequestBody) -> ServeResult {
        let headers = &self.parts.headers;
        if !is_json(headers) {
            return Err(Rejection::NotJson);
        }
        if !accepts(headers, JSON) || !accepts(headers, EVENTS) {
            return Err(Rejection::NotAcceptable("application/json and text/event-stream"));
        }
        let body = self.read_body(body).await?;
        match self.inbound.read_messages(&body)? {
            Incoming::Batch(items) => Box::pin(self.batch(items)).await,
            Incoming::One(message) => {
                // A stop lets running calls finish, and what they need still comes in.
                if self.inbound.refuses() && matches!(message, Message::Request(_)) {
                    return Err(Rejection::ShuttingDown);
                }
                self.one(message).await
            }
        }
    }

    async fn one(&self, message: Message) -> ServeResult {
        match classify::classify(&message, &self.parts.headers).map_err(Rejection::Refused)? {
            Path::PerRequest(told) => per_request::serve(self, message, told).await,
            Path::Handshake => Box::pin(self.open(message)).await,
            Path::Session => {
                let id = match &message {
                    Message::Request(request) => Some(request.id.clone()),
                    _ => None,
                };
                let answered = self.in_session(message).await;
                answered.map_err(|problem| match id {
                    Some(id) => Rejection::About(id, Box::new(problem)),
                    None => problem,
                })
            }
        }
    }

    /// `initialize`: opens a session.
    async fn open(&self, message: Message) -> ServeResult {
        let Message::Request(request) = message else { return Err(Rejection::SessionRequired) };
        if self.named_session().is_some() {
            self.session().await?;
            let why = "this session is initialized already; leave `Mcp-Session-Id` out to open another";
            return Err(Rejection::Invalid(Invalid::request(Some(request.id), why)));
        }
        if let Some(cluster) = self.inbound.cluster.as_ref().filter(|_| self.inbound.shutdown.is_draining()) {
            return Err(cluster.another().await?.map_or(Rejection::ShuttingDown, Rejection::OnOtherNode));
        }
        let client = session_messages::introduction(request.params.as_ref());
        let client = Arc::new(client.map_err(|error| Rejection::Refused(request.refused(error)))?);
        let opening = SessionOwner { principal: self.caller.principal.clone(), group: Arc::clone(self.group.name()) };
        let result = session_messages::welcome(&self.group, &client).await;
        self.inbound.check_sure()?;
        let session = self.inbound.sessions.open(opening, client).map_err(|_| Rejection::SessionsFull)?;
        // Nobody knows of it before its client is told, so it ends with whoever would tell.
        let ending =
            CloseSessionOnDrop { sessions: Arc::clone(&self.inbound.sessions), session: Some(Arc::clone(&session)) };
        session.knows_lists(None, &self.group.view().prints());
        self.inbound.keep(&session).await?;
        ending.stays();
        tracing::debug!(session = %session.id(), group = %session.group(), "a session was opened");
        let response = crate::protocol::Response::new(Some(request.id), Ok(result));
        Ok(respond::in_session(respond::json(response.encode()), session.id()))
    }

    fn named_session(&self) -> Option<std::borrow::Cow<'_, str>> {
        session_id(self.session_in_path, &self.parts.headers, &self.parts.uri)
    }

    /// The session that the request names, if it is the caller's.
    async fn session(&self) -> Result<Arc<Session>, Rejection> {
        let named = self.named_session().ok_or(Rejection::SessionRequired)?;
        self.find(SessionId::parse(&named, SessionTransport::Http), &named).await
    }

    /// The session, and that the request speaks a revision that has sessions.
    async fn session_and_version(&self) -> Result<Arc<Session>, Rejection> {
        let session = self.session().await?;
        let checked = classify::check_session_version(&self.parts.headers);
        checked.map_err(|error| Rejection::Refused(classify::RefusedRequest { id: None, error }))?;
        Ok(session)
    }

    async fn in_session(&self, message: Message) -> ServeResult {
        let session = self.session_and_version().await?;
        let changes = match &message {
            Message::Request(request) => {
                matches!(request.method, Method::SetLevel | Method::Subscribe | Method::Unsubscribe)
            }
            _ => true,
        };
        let answered = match message {
            Message::Request(request) => self.answer(&session, request).await,
            message => {
                session_messages::on_message(self.inbound, &session, &self.group, message);
                Ok(respond::accepted())
            }
        };
        // What the client is told has changed must not be lost with this node.
        match changes && !Box::pin(session.flush()).await {
            true => Err(Rejection::StoreUnavailable),
            false => answered,
        }
    }

    fn answering(&self, session: &Session, request: &Request) -> ReplyEncoder {
        let revision = session.client().map_or(crate::dialect::Revision::NEWEST_HANDSHAKE, |client| client.revision);
        ReplyEncoder {
            id: request.id.clone(),
            method: request.method.clone(),
            revision,
            group: Arc::clone(&self.group),
        }
    }

    /// Answers a request: with JSON when the answer is the first thing that comes, with a stream
    /// when something comes before it or nothing comes for a while.
    async fn answer(&self, session: &Arc<Session>, request: Request) -> ServeResult {
        let mut replies = session_messages::request(self.inbound, session, &self.group, &request, &self.caller);
        let answering = self.answering(session, &request);
        if let Some(answer) = replies.take_ready() {
            return Ok(respond::json(answering.response(answer)));
        }
        let mut call = DetachOnDrop(Some(self.begin(session, request, replies, answering)?));
        let Some(work) = &mut call.0 else { return Ok(respond::accepted()) };
        let first = loop {
            tokio::select! {
                biased;
                () = work.running.unwanted() => {
                    call.0 = None;
                    if session.has_moved() {
                        return Err(Rejection::RelayPeerLost);
                    }
                    // The client wants no answer; the request still has to end somehow.
                    return Ok(respond::accepted());
                }
                reply = work.replies.next() => break reply,
                // Where a stream could not be kept, its answer alone is waited for.
                () = PooledTimer::after(self.inbound.settings.sse_after) => {
                    if !self.inbound.is_full() {
                        break None;
                    }
                }
            }
        };
        let Some(mut work) = call.0.take() else { return Ok(respond::accepted()) };
        if let Some(Reply::End(answer)) = first {
            return Ok(respond::json(work.answering.response(answer)));
        }
        if self.inbound.is_full() {
            return Err(Rejection::StoreFull);
        }
        let (stream, attachment) = session.open_stream().map_err(Rejection::NotResumable)?;
        session.expect_response(stream, || vec![work.answering.id.clone()]);
        if let Some(reply) = first {
            work.send(stream, reply).await;
        }
        tokio::spawn(work.run_alone(stream));
        Ok(respond::events(Events::of_session(attachment, self.inbound.settings.sse_heartbeat)))
    }

    fn begin(
        &self,
        session: &Arc<Session>,
        request: Request,
        replies: Replies,
        answering: ReplyEncoder,
    ) -> Result<RunningCall, Rejection> {
        let id = request.id;
        let running = session.begin(id.clone()).map_err(|why| match why {
            NotBegun::Duplicate => Rejection::Invalid(Invalid::request(Some(id), why.to_string())),
            NotBegun::TooMany => Rejection::TooManyCalls(id),
            NotBegun::Ended if self.inbound.cluster.is_some() => Rejection::SessionMoving,
            NotBegun::Ended => Rejection::NotResumable(StreamError::Ended),
        })?;
        Ok(RunningCall { running, replies, answering, counted: self.inbound.shutdown.call() })
    }

    /// A batch: what wants no answer is taken, the rest is answered together.
    async fn batch(&self, items: Vec<Result<Message, Invalid>>) -> ServeResult {
        if self.inbound.refuses() && items.iter().flatten().any(|message| matches!(message, Message::Request(_))) {
            return Err(Rejection::ShuttingDown);
        }
        let is_response = |message: &&Message| matches!(message, Message::Response(_));
        let responses = items.iter().flatten().filter(is_response).count();
        if responses > 0 && responses < items.len() {
            return Err(Rejection::MixedBatch);
        }
        let modern =
            |message: &Message| matches!(classify::classify(message, &self.parts.headers), Ok(Path::PerRequest(_)));
        if items.iter().flatten().any(modern) {
            return Err(Rejection::NoBatches);
        }
        let session = self.session_and_version().await?;
        if !session.client().is_some_and(|client| client.revision.facts().batches) {
            return Err(Rejection::NoBatches);
        }
        let mut answers: Vec<Bytes> = Vec::new();
        let mut works = Vec::new();
        for item in items {
            match item {
                Err(invalid) => answers.push(invalid.response().encode()),
                Ok(Message::Request(request)) => {
                    let mut replies =
                        session_messages::request(self.inbound, &session, &self.group, &request, &self.caller);
                    let answering = self.answering(&session, &request);
                    match replies.take_ready() {
                        Some(answer) => answers.push(answering.response(answer)),
                        None => match self.begin(&session, request, replies, answering) {
                            Ok(work) => works.push(work),
                            Err(Rejection::Invalid(invalid)) => answers.push(invalid.response().encode()),
                            Err(other) => return Err(other),
                        },
                    }
                }
                Ok(message) => session_messages::on_message(self.inbound, &session, &self.group, message),
            }
        }
        match (answers.is_empty(), works.is_empty()) {
            (true, true) => Ok(respond::accepted()),
            (false, true) => Ok(respond::json(joined(&answers))),
            _ => self.stream_batch(&session, answers, works).await,
        }
    }

    async fn stream_batch(&self, session: &Arc<Session>, answers: Vec<Bytes>, works: Vec<RunningCall>) -> ServeResult {
        let (stream, attachment) = session.open_stream().map_err(Rejection::NotResumable)?;
        session.expect_response(stream, || works.iter().map(|work| work.answering.id.clone()).collect());
        for answer in answers {
            session.deliver(stream, answer).await;
        }
        let session = Arc::clone(session);
        tokio::spawn(async move {
            let mut all = tokio::task::JoinSet::new();
            for work in works {
                all.spawn(work.run(stream));
            }
            while all.join_next().await.is_some() {}
            session.finish(stream);
        });
        Ok(respond::events(Events::of_session(attachment, self.inbound.settings.sse_heartbeat)))
    }

    /// The stream that listens, or the rest of one that broke.
    async fn get(&self) -> ServeResult {
        if self.named_session().is_none() {
            return Err(Rejection::NoSession("GET belongs to a session and needs its `Mcp-Session-Id` header"));
        }
        if !accepts(&self.parts.headers, EVENTS) {
            return Err(Rejection::NotAcceptable(EVENTS));
        }
        let session = self.session_and_version().await?;
        let attachment = match self.parts.headers.get(&LAST_EVENT_ID) {
            None => session.listen(),
            Some(id) => match id.to_str().ok().and_then(EventId::parse) {
                Some(id) => session.resume(id),
                None => Err(StreamError::Unknown),
            },
        };
        let attachment = attachment.map_err(Rejection::NotResumable)?;
        Ok(respond::events(Events::of_session(attachment, self.inbound.settings.sse_heartbeat)))
    }

    /// Ends a session.
    async fn delete(&self) -> ServeResult {
        if self.named_session().is_none() {
            return Err(Rejection::NoSession("DELETE belongs to a session and needs its `Mcp-Session-Id` header"));
        }
        if !self.inbound.settings.allow_session_delete {
            return Err(Rejection::NoSession("sessions are not ended by clients here"));
        }
        let session = self.session_and_version().await?;
        self.inbound.sessions.close(&session);
        if let Some(keeper) = self.inbound.sessions.persister() {
            // In a task of its own: it is for other sessions, too, and must not end half way because this client
            // hangs up.
            let keeper = Arc::clone(keeper);
            let forgotten = tokio::spawn(async move { keeper.finish_deletes().await }).await;
            forgotten.unwrap_or(Ok(()))?;
        }
        Ok(respond::ended())
    }

    /// The session that the request names, on whatever transport.
    pub(super) fn named(&self) -> Option<String> {
        let id = match self.route {
            Route::Streamable { .. } => SessionId::parse(&self.named_session()?, SessionTransport::Http),
            _ => SessionId::parse(&super::sse::named(self)?, SessionTransport::Sse),
        };
        id.map(|id| id.to_string())
    }
}

/// Holds a call while its request waits for the first reply. A client that goes away meanwhile
/// has not cancelled the call, so it goes on, though nobody will hear of it.
struct DetachOnDrop(Option<RunningCall>);

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            tokio::spawn(work.run_alone(StreamTarget::Nowhere));
        }
    }
}

/// Answers as one array.
fn joined(answers: &[Bytes]) -> Bytes {
    let mut out = vec![b'['];
    for (n, answer) in answers.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        out.extend_from_slice(answer);
    }
    out.push(b']');
    out.into()
}
