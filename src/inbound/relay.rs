//! Requests whose session lives on another node: finding the owner, relaying to it, and serving relayed requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, Response, StatusCode, Version};

use super::access_hook::logged;
use super::body::{ResponseContent, UnbrokenBody};
use super::headers::{LAST_EVENT_ID, X_SESSION_ID};
use super::http::RequestContext;
use super::relay_trace::relay_span;
use super::respond::{self, GivenSessionId, Rejection};
use super::{Inbound, Route};
use crate::access_log::{AccessEnd, AccessGuard};
use crate::call::REQUEST_ID;
use crate::cluster::{BoxedBody, Cluster, RelayOutcome, RelayedRequest};
use crate::dialect::classify;
use crate::http::codec::RequestHead;
use crate::session::{Session, SessionId};
use crate::store::{EventId, NodeId, StoreError};

/// Bound on relays and local retries of one request. Each follows a move of its session.
const MAX_RELAY_ATTEMPTS: usize = 8;
/// First delay before a moving session is looked up again; doubles with every attempt.
const SESSION_MOVE_BACKOFF: Duration = Duration::from_millis(5);

impl RequestContext<'_> {
    /// The session with that id, if it belongs to the caller and lives on this node or was adopted by it.
    ///
    /// # Errors
    /// When it does not exist, lives on another node, or the store is needed and unavailable.
    pub(super) async fn find_session(&self, id: Option<SessionId>, given: &str) -> Result<Arc<Session>, Rejection> {
        let unknown = || Rejection::SessionNotFound(GivenSessionId(given.to_owned()));
        let id = id.ok_or_else(unknown)?;
        let local = || self.inbound.sessions.find(id, self.caller.id(), self.group.name());
        let Some(cluster) = &self.inbound.cluster else { return local().ok_or_else(unknown) };
        if let Some(session) = local() {
            return match cluster.holds_lease() {
                true => Ok(session),
                false => Err(Rejection::StoreUnavailable),
            };
        }
        if let Some(session) = self.inbound.sessions.get(id) {
            // The session is being handed over, or belongs to another principal or group.
            let is_moving = session.is_moving_for(self.caller.id(), self.group.name());
            return Err(if is_moving { Rejection::SessionMoving } else { unknown() });
        }
        let key = id.to_string();
        if let Some(owner) = cluster.cached_owner(&key).filter(|_| !self.is_relayed) {
            return Err(Rejection::OnOtherNode(owner));
        }
        match Box::pin(self.locate_or_adopt(cluster, id, &key)).await? {
            Some(session) => Ok(session),
            None if cluster.is_resynced().await? => Err(unknown()),
            None => Err(Rejection::StoreUnavailable),
        }
    }

    /// Relays the request to `owner` and returns its response; `None` when the session has moved on.
    async fn relay(
        &self,
        cluster: &Arc<Cluster>,
        owner: &NodeId,
    ) -> Result<Option<Response<ResponseContent>>, Rejection> {
        let mut headers = self.relayed_headers();
        let spans = self.begin_relay(owner, &mut headers);
        let request = RelayedRequest {
            method: self.head.verb.clone(),
            uri: self.head.uri.clone(),
            headers,
            identity: Arc::clone(&self.caller.identity),
            peer: self.caller.peer,
            body: self.body.get().cloned().unwrap_or_default(),
        };
        let outcome = cluster.relay(owner, request).await?;
        if let Some(access) = &self.caller.access
            && !matches!(outcome, RelayOutcome::NotOwner | RelayOutcome::Busy)
        {
            access.note_relayed_to(owner.name());
        }
        if !matches!(outcome, RelayOutcome::NotOwner) {
            cluster.record_client_relay(owner);
        }
        Ok(match outcome {
            RelayOutcome::Complete(status, headers, body) => {
                if let Some(spans) = spans {
                    spans.end(status, &body);
                }
                Some(respond::relayed(status, headers, ResponseContent::Full(body)))
            }
            RelayOutcome::Streaming(status, headers, body) => {
                // A listening stream ends when this node leaves: the client can reopen it elsewhere. A call stream
                // runs to its end.
                let body = match self.head.verb {
                    http::Method::GET => body.until_cancelled(self.inbound.shutdown.leaving().clone()),
                    _ => body.holding(spans.map(|spans| Box::new(spans) as _)),
                };
                Some(respond::relayed(status, headers, ResponseContent::Relayed(Box::new(body))))
            }
            RelayOutcome::NotOwner => {
                if let Some(spans) = spans {
                    spans.discard();
                }
                None
            }
            RelayOutcome::Busy => {
                spans.iter().for_each(|spans| spans.fail("busy"));
                return Err(Rejection::RelayPeerBusy);
            }
            RelayOutcome::Lost => {
                spans.iter().for_each(|spans| spans.fail("lost"));
                return Err(Rejection::RelayPeerLost);
            }
        })
    }

    /// The headers that the owner needs: those of the protocol, and those that are forwarded to upstreams. Credentials of
    /// the client stay on this node, which has checked them.
    fn relayed_headers(&self) -> HeaderMap {
        let is_needed = |name: &HeaderName| {
            name.as_str().starts_with("mcp-")
                || [&ACCEPT, &CONTENT_TYPE, &LAST_EVENT_ID, &X_SESSION_ID].contains(&name)
                || self.caller.headers.contains_key(name)
        };
        let all = self.head.headers.to_map();
        let needed = all.iter().filter(|(name, _)| is_needed(name));
        let mut relayed: HeaderMap = needed.map(|(name, value)| (name.clone(), value.clone())).collect();
        relayed.extend(self.caller.request_id.clone().map(|id| (REQUEST_ID, id)));
        relayed
    }

    /// Serves a request that failed because its session lives elsewhere: relays it to the owner, or retries here once
    /// the session has moved. Other rejections are returned as they are.
    pub(super) async fn serve_or_relay(&self, rejection: Rejection) -> Result<Response<ResponseContent>, Rejection> {
        let Some(cluster) = &self.inbound.cluster else { return Err(rejection) };
        let mut result = Err(rejection);
        for attempt in 0..MAX_RELAY_ATTEMPTS {
            let (id, owner) = match result {
                Err(rejection) if !self.is_relayed => match rejection.relay_target() {
                    Ok(target) => target,
                    Err(rejection) => return Err(rejection),
                },
                result => return result,
            };
            let for_request = |rejection: Rejection| match &id {
                Some(id) => Rejection::ForRequest(id.clone(), Box::new(rejection)),
                None => rejection,
            };
            let is_moving = owner.is_none() || attempt > 0;
            if let Some(owner) = owner {
                match self.relay(cluster, &owner).await {
                    Ok(Some(response)) => {
                        if let Some(key) = self.session_key().filter(|_| response.status() == StatusCode::NOT_FOUND) {
                            cluster.cache_owner(&key, None);
                        }
                        return Ok(response);
                    }
                    Ok(None) => cluster.forget_affinities_to(&owner),
                    Err(rejection) => {
                        // The owner may be gone: forget it, so that the next request asks the store.
                        if let Some(key) = self.session_key() {
                            cluster.cache_owner(&key, None);
                        }
                        return Err(for_request(rejection));
                    }
                }
            }
            if let Some(key) = self.session_key() {
                cluster.cache_owner(&key, None);
            }
            if is_moving {
                // The session is being handed over; give the store time to show the new owner.
                tokio::time::sleep(SESSION_MOVE_BACKOFF * (1 << attempt)).await;
            }
            result = self.retry_locally().await;
        }
        Err(Rejection::StoreUnavailable)
    }

    /// Answers a GET whose session is temporarily unavailable with a stream that ends at once, so that the client
    /// reconnects after its `retry` time for as long as the outage lasts.
    ///
    /// Official SDKs request their first listening stream once, and a broken one twice more. A client that gets 503
    /// each time stays without a stream for the body of its session and misses every notification. The event repeats
    /// the client's `Last-Event-ID`: some clients forget it when a stream brings none.
    pub(super) fn reconnect_later(&self, rejection: Rejection) -> Result<Response<ResponseContent>, Rejection> {
        let headers = &self.head.headers;
        let is_listening = self.head.verb == http::Method::GET && matches!(self.route, Route::Streamable { .. });
        let is_temporary =
            matches!(rejection, Rejection::StoreUnavailable | Rejection::RelayPeerLost | Rejection::ShuttingDown);
        if !(is_listening && is_temporary && classify::accepts_priming_events(headers)) {
            return Err(rejection);
        }
        let last_event_id = headers.get(&LAST_EVENT_ID).and_then(|id| str::from_utf8(id).ok()).and_then(EventId::parse);
        let retry = self.inbound.sessions.settings().sse_retry_ms;
        tracing::debug!(?rejection, "listening stream unavailable; client told to reconnect");
        Ok(respond::reconnect_later(last_event_id.map(|id| id.to_string()).as_deref(), retry))
    }
}

impl Inbound {
    /// Registers the handler for requests that other nodes relay to this one.
    pub(crate) fn serve_relays(self: &Arc<Self>) {
        let Some(cluster) = &self.cluster else { return };
        let weak = Arc::downgrade(self);
        cluster.set_handler(Arc::new(move |request| {
            let inbound = weak.upgrade();
            Box::pin(async move {
                let response = inbound?.serve_relayed(request).await?;
                Some(response.map(|body| Box::pin(UnbrokenBody(body)) as BoxedBody))
            })
        }));
    }

    /// Serves a relayed request; `None` when its session is not on this node.
    pub(super) async fn serve_relayed(self: Arc<Self>, request: RelayedRequest) -> Option<Response<ResponseContent>> {
        let request_id = request.headers.get(REQUEST_ID).cloned();
        let (verb, version, uri) = (request.method, Version::HTTP_11, request.uri);
        let head = RequestHead { verb, version, uri, headers: (&request.headers).into() };
        let policy = self.policy.load_full();
        if let Some(route @ Route::Console { .. }) = Route::parse(head.uri.path(), policy.public_path()) {
            let (path, identity) = (route.console_path().to_owned(), request.identity);
            return self.serve_relayed_console(head, path, &identity, (request_id, request.body)).await;
        }
        let mut caller = policy.caller(request.identity, &head.headers, request_id, request.peer);
        caller.relay_span = relay_span(&head.headers);
        caller.access = self.begin_relayed_access(&head, &caller, &request.body);
        let mut access = AccessGuard::new(caller.access.as_ref());
        let caller = Arc::new(caller);
        let result = match Route::parse(head.uri.path(), policy.public_path()) {
            Some(route) => {
                let group = self.gateway.group(route.group());
                self.dispatch(&head, &route, (group, caller), Ok(request.body), true).await
            }
            None => Err(Rejection::NotFound),
        };
        let response = match result.map_err(Rejection::relay_target) {
            Ok(response) => response,
            Err(Err(rejection)) => rejection.respond(),
            Err(Ok(_)) => {
                if let Some(record) = access.record() {
                    record.note_status(StatusCode::MISDIRECTED_REQUEST.as_u16());
                    record.note_reason("session_moved");
                }
                access.finish(AccessEnd::Answered);
                return None;
            }
        };
        Some(logged(response, access))
    }

    /// Writes a new session to the store, so that other nodes can find it.
    ///
    /// # Errors
    /// When the store is unavailable; the session is closed then.
    pub(super) async fn persist_new(&self, session: &Session) -> Result<(), Rejection> {
        let Some(persister) = self.sessions.persister() else { return Ok(()) };
        if let Err(error) = persister.create(session).await {
            self.sessions.close(session);
            return Err(error.into());
        }
        Ok(())
    }
}

impl From<StoreError> for Rejection {
    fn from(error: StoreError) -> Self {
        tracing::debug!(%error, "store request failed");
        Self::StoreUnavailable
    }
}

/// A request body that was read once and may be needed for a relay or a retry.
pub(super) type RetainedBody = std::sync::OnceLock<Bytes>;
