//! Sessions that live on other nodes: finding them, carrying requests to them, taking them over.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::body::ResponseContent;
use super::headers::LAST_EVENT_ID;
use super::http::RequestContext;
use super::respond::{self, Rejection};
use super::session_messages;
use super::{Inbound, Route};
use crate::call::{Caller, ChangeEvent, ClientSink, Replies, Reply};
use crate::cluster::{AnyBody, Cluster, IncarnationObserver, RelayOutcome, RelayedRequest};
use crate::dialect::classify;
use crate::gateway::Group;
use crate::protocol::{Method, Raw, Request};
use crate::session::{Record, Session, SessionId, Sessions};
use crate::store::traits::{StoreFuture, WriteOutcome};
use crate::store::{EventId, NodeId, StoreError};

/// How often a request is carried on before it is given up. Each time its session has moved meanwhile.
const MAX_RELAY_ATTEMPTS: usize = 8;
/// How long one waits at first for a session that is between two nodes; twice as long each time.
const MOVING: Duration = Duration::from_millis(5);
/// How many sessions are handed over at a time: one after the other, each would wait for the store twice.
const HANDOVER_BATCH: usize = 64;
/// How often a session that is between two nodes is looked for.
const LOOKS: usize = 16;

/// How long to wait at first before a resource is subscribed to again; twice as long each time.
const RESUBSCRIBING: Duration = Duration::from_millis(100);
/// The longest such wait.
const RESUBSCRIBING_CAP: Duration = Duration::from_secs(5);
/// How often that is tried, for a minute and a half.
const RESUBSCRIPTIONS: usize = 22;

/// Whether a call ends well.
async fn succeeded(mut replies: Replies) -> bool {
    while let Some(reply) = replies.next().await {
        if let Reply::End(answer) = reply {
            return answer.outcome.is_ok();
        }
    }
    false
}

/// What holds sessions in this node's name.
#[derive(Debug)]
pub(crate) struct LocalSessions {
    pub(crate) sessions: Arc<Sessions>,
}

impl RequestContext<'_> {
    /// The session of that id, if it is the caller's and lives here.
    ///
    /// # Errors
    /// When there is none, or it lives elsewhere.
    pub(super) async fn find(&self, id: Option<SessionId>, named: &str) -> Result<Arc<Session>, Rejection> {
        let unknown = || Rejection::SessionNotFound(named.to_owned());
        let id = id.ok_or_else(unknown)?;
        let here = || self.inbound.sessions.find(id, &self.caller.principal, self.group.name());
        let Some(cluster) = &self.inbound.cluster else { return here().ok_or_else(unknown) };
        if let Some(session) = here() {
            return match cluster.holds_lease() {
                true => Ok(session),
                false => Err(Rejection::StoreUnavailable),
            };
        }
        if let Some(session) = self.inbound.sessions.get(id) {
            // It is just going to another node, or somebody else's.
            let leaves = session.is_moving_for(&self.caller.principal, self.group.name());
            return Err(if leaves { Rejection::SessionMoving } else { unknown() });
        }
        let key = id.to_string();
        if let Some(home) = cluster.owner_of(&key).filter(|_| !self.carried) {
            return Err(Rejection::OnOtherNode(home));
        }
        match Box::pin(self.look_for(cluster, id, &key)).await? {
            Some(session) => Ok(session),
            None if cluster.is_resynced().await? => Err(unknown()),
            None => Err(Rejection::StoreUnavailable),
        }
    }

    /// Looks in the store where a session lives, and takes it over when nobody has it.
    async fn look_for(
        &self,
        cluster: &Arc<Cluster>,
        id: SessionId,
        key: &str,
    ) -> Result<Option<Arc<Session>>, Rejection> {
        if !cluster.holds_lease() {
            return Err(Rejection::StoreUnavailable);
        }
        let Some((owner, record)) = self.unclaimed(cluster, key).await? else { return Ok(None) };
        if !record.can_move(id) {
            self.end_orphaned(cluster, key, owner.as_ref()).await?;
            return Ok(None);
        }
        if self.inbound.shutdown.is_draining() {
            let another = cluster.another().await?;
            return Err(another.map_or(Rejection::ShuttingDown, Rejection::OnOtherNode));
        }
        // Those who want the same session wait for the first of them.
        let _adopting = self.inbound.adopting.of(key).lock().await;
        for _ in 0..LOOKS {
            if !cluster.holds_lease() {
                return Err(Rejection::StoreUnavailable);
            }
            if let Some(session) = self.inbound.sessions.find(id, &self.caller.principal, self.group.name()) {
                return Ok(Some(session));
            }
            let Some((owner, record)) = self.unclaimed(cluster, key).await? else { return Ok(None) };
            if let Some(session) = self.adopt(cluster, id, owner, record).await? {
                return Ok(Some(session));
            }
        }
        Err(Rejection::StoreUnavailable)
    }

    /// Ends a session that lives by one connection and whose owner let its lease expire, before anybody is told
    /// that it has ended.
    ///
    /// An expired owner may be alive: halted, or cut off from the store. It then still has the client's stream, and
    /// would claim the session again under its next incarnation. A client that was told 404 meanwhile, for the answer
    /// to an elicitation for example, would keep that stream and wait on it for ever: its answer was thrown away, and
    /// the call that asked still runs. So 404 is decided in the store: the record is deleted on condition that the
    /// expired incarnation still owns it. Then the claim of the next incarnation fails and the stream ends there, or
    /// it came first and the request is relayed to it.
    ///
    /// # Errors
    /// When the owner came back first, or the store may not have heard of it yet.
    async fn end_orphaned(&self, cluster: &Cluster, key: &str, owner: Option<&NodeId>) -> Result<(), Rejection> {
        let Some(owner) = owner.filter(|owner| **owner != *cluster.node()) else { return Ok(()) };
        if !cluster.is_resynced().await? {
            return Err(Rejection::StoreUnavailable);
        }
        match cluster.store().delete(key, owner).await? {
            WriteOutcome::Applied | WriteOutcome::NotFound => Ok(()),
            WriteOutcome::NotOwner => Err(Rejection::SessionMoving),
        }
    }

    /// The session of that name, if it is the caller's and no other node has it, with whom it was kept for last.
    ///
    /// # Errors
    /// When another node has it.
    async fn unclaimed(&self, cluster: &Cluster, key: &str) -> Result<Option<(Option<NodeId>, Record)>, Rejection> {
        if self.inbound.sessions.persister().is_some_and(|keeper| keeper.is_ending(key)) {
            return Ok(None);
        }
        let Some(kept) = cluster.store().load(key).await? else { return Ok(None) };
        let Some(record) = Record::read(&kept.record) else { return Ok(None) };
        if *record.principal != *self.caller.principal || *record.group != **self.group.name() {
            return Ok(None);
        }
        if let Some(owner) = kept.owner.as_ref().filter(|owner| **owner != *cluster.node())
            && cluster.is_alive(owner).await?
        {
            cluster.note_owner(key, Some(owner));
            return Err(Rejection::OnOtherNode(owner.clone()));
        }
        Ok(Some((kept.owner, record)))
    }

    /// Takes a session over; nothing when another node was faster.
    async fn adopt(
        &self,
        cluster: &Cluster,
        id: SessionId,
        owner: Option<NodeId>,
        record: Record,
    ) -> Result<Option<Arc<Session>>, Rejection> {
        let (store, me, key) = (cluster.store(), cluster.node(), id.to_string());
        // Others may have room.
        if self.inbound.sessions.is_full() {
            return Err(Rejection::SessionsFull);
        }
        if owner.as_ref() != Some(&*me) && store.claim(&key, owner.as_ref(), Some(&me)).await? != WriteOutcome::Applied
        {
            return Ok(None);
        }
        // What was written between the look and the claim counts, too.
        let Some(kept) = store.load(&key).await? else { return Ok(None) };
        let record = Record::read(&kept.record).unwrap_or(record);
        let events = store.read(&key).await?;
        cluster.note_owner(&key, None);
        let Ok(session) = self.inbound.sessions.adopt(id, &record, events) else {
            store.claim(&key, Some(&me), None).await?;
            return Err(Rejection::SessionsFull);
        };
        cluster.count_takeover();
        tracing::info!(session = %id, from = owner.map(|owner| owner.to_string()), "a session was taken over");
        self.inbound.subscribe_again(&session, &self.group, &self.caller);
        self.list_again(&session);
        Ok(Some(session))
    }

    /// Tells the client of lists that changed while the session had no home.
    fn list_again(&self, session: &Arc<Session>) {
        let (session, group) = (Arc::clone(session), Arc::clone(&self.group));
        tokio::spawn(async move {
            group.wait_ready().await;
            session.compare_lists(&group.view().prints());
        });
    }

    /// Carries the request to another node, and tells what that answers; nothing when the session has
    /// moved on meanwhile.
    async fn relay(
        &self,
        cluster: &Arc<Cluster>,
        home: &NodeId,
    ) -> Result<Option<Response<ResponseContent>>, Rejection> {
        let request = RelayedRequest {
            verb: self.parts.method.clone(),
            uri: self.parts.uri.clone(),
            headers: self.parts.headers.clone(),
            principal: self.caller.principal.to_string(),
            peer: self.caller.peer,
            body: self.body.get().cloned().unwrap_or_default(),
        };
        Ok(match cluster.relay(home, request).await? {
            RelayOutcome::Whole(status, headers, body) => {
                Some(respond::carried(status, headers, ResponseContent::Full(body)))
            }
            RelayOutcome::Stream(status, headers, rest) => {
                // Whoever listens can do so elsewhere when this node goes. A call comes to its end.
                let rest = match self.parts.method {
                    http::Method::GET => rest.until(self.inbound.shutdown.leaving().clone()),
                    _ => rest,
                };
                Some(respond::carried(status, headers, ResponseContent::Carried(Box::new(rest))))
            }
            RelayOutcome::NotThere => None,
            RelayOutcome::Lost => return Err(Rejection::RelayPeerLost),
        })
    }

    /// Has the node serve a request where its session lives, or serves it here once more, if that is the problem.
    pub(super) async fn serve_anywhere(&self, problem: Rejection) -> Result<Response<ResponseContent>, Rejection> {
        let Some(cluster) = &self.inbound.cluster else { return Err(problem) };
        let mut served = Err(problem);
        for round in 0..MAX_RELAY_ATTEMPTS {
            let (id, home) = match served {
                Err(problem) if !self.carried => match problem.elsewhere() {
                    Ok(found) => found,
                    Err(other) => return Err(other),
                },
                served => return served,
            };
            let about = |problem: Rejection| match &id {
                Some(id) => Rejection::About(id.clone(), Box::new(problem)),
                None => problem,
            };
            let moving = home.is_none() || round > 0;
            if let Some(home) = home {
                match self.relay(cluster, &home).await {
                    Ok(Some(response)) => {
                        if let Some(named) = self.named().filter(|_| response.status() == StatusCode::NOT_FOUND) {
                            cluster.note_owner(&named, None);
                        }
                        return Ok(response);
                    }
                    Ok(None) => cluster.forget_places_of(&home),
                    Err(problem) => {
                        // It is not known that the node is still there: the next one looks.
                        if let Some(named) = self.named() {
                            cluster.note_owner(&named, None);
                        }
                        return Err(about(problem));
                    }
                }
            }
            if let Some(named) = self.named() {
                cluster.note_owner(&named, None);
            }
            if moving {
                // It is between two nodes, and that takes a moment.
                tokio::time::sleep(MOVING * (1 << round)).await;
            }
            served = self.serve_again().await;
        }
        Err(Rejection::StoreUnavailable)
    }
}

impl RequestContext<'_> {
    /// Answers a GET whose session cannot be had just now with a stream that ends at once, so that the client
    /// reconnects after its `retry` time for as long as it takes.
    ///
    /// Official SDKs ask for their first listening stream once, and for a broken one two times more. One that gets 503
    /// as often stays without a stream for the rest of its session, and never hears of a change again. The event names
    /// the position that the client came with: some clients forget it when a stream brings none.
    pub(super) fn reconnect_later(&self, problem: Rejection) -> Result<Response<ResponseContent>, Rejection> {
        let headers = &self.parts.headers;
        let resumable = self.parts.method == http::Method::GET && matches!(self.route, Route::Streamable { .. });
        let temporary =
            matches!(problem, Rejection::StoreUnavailable | Rejection::RelayPeerLost | Rejection::ShuttingDown);
        if !(resumable && temporary && classify::takes_priming_events(headers)) {
            return Err(problem);
        }
        let last = headers.get(&LAST_EVENT_ID).and_then(|id| id.to_str().ok()).and_then(EventId::parse);
        let retry = self.inbound.sessions.settings().sse_retry;
        tracing::debug!(?problem, "listening stream refused for now; its client reconnects");
        Ok(respond::reconnect_later(last.map(|id| id.to_string()).as_deref(), retry))
    }
}

impl Inbound {
    /// From now on answers what other nodes bring.
    pub(crate) fn answer_others(self: &Arc<Self>) {
        let Some(cluster) = &self.cluster else { return };
        let weak = Arc::downgrade(self);
        cluster.answer_with(Arc::new(move |request| {
            let inbound = weak.upgrade();
            Box::pin(async move {
                let response = inbound?.serve_carried(request).await?;
                Some(response.map(|body| Box::pin(body) as AnyBody))
            })
        }));
    }

    /// Serves a request that another node brought; nothing when it is not for this node to serve.
    pub(super) async fn serve_carried(self: Arc<Self>, request: RelayedRequest) -> Option<Response<ResponseContent>> {
        let (mut parts, ()) = http::Request::new(()).into_parts();
        (parts.method, parts.uri, parts.headers) = (request.verb, request.uri, request.headers);
        let caller = Arc::new(self.policy.caller(request.principal.as_str().into(), &parts.headers, request.peer));
        let served = match super::Route::of(parts.uri.path()) {
            Some(route) => {
                self.dispatch(&parts, &route, caller, super::http::RequestBody::Whole(request.body), true).await
            }
            None => Err(Rejection::NotFound),
        };
        match served {
            Ok(response) => Some(response),
            Err(problem) => match problem.elsewhere() {
                Ok(_) => None,
                Err(problem) => Some(problem.respond()),
            },
        }
    }

    /// Subscribes anew to what a session was subscribed to on another node.
    fn subscribe_again(self: &Arc<Self>, session: &Arc<Session>, group: &Arc<Group>, caller: &Arc<Caller>) {
        let uris = session.pending_subscriptions();
        if uris.is_empty() {
            return;
        }
        let (inbound, session) = (Arc::clone(self), Arc::clone(session));
        let (group, caller) = (Arc::clone(group), Arc::clone(caller));
        tokio::spawn(async move {
            for uri in uris {
                let params = Raw::empty().edit().set("uri", Raw::of(&uri)).finish();
                let request = Request::new(0.into(), Method::Subscribe, Some(params));
                let mut wait = RESUBSCRIBING;
                for _ in 0..RESUBSCRIPTIONS {
                    if !session.pending_subscriptions().contains(&uri) || session.has_moved() {
                        break; // the client has done so itself, or does not want it any more
                    }
                    let replies = session_messages::request(&inbound, &session, &group, &request, &caller);
                    if succeeded(replies).await {
                        session.resubscribed(&uri);
                        // What happened in between is not known.
                        session.notify(ChangeEvent::Updated(uri.as_str().into()).notification());
                        break;
                    }
                    tracing::debug!(session = %session.id(), uri, "a subscription is not renewed yet");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(RESUBSCRIBING_CAP);
                }
            }
        });
    }

    /// Keeps a new session where other nodes find it.
    ///
    /// # Errors
    /// When the store is away; the session has ended then.
    pub(super) async fn keep(&self, session: &Session) -> Result<(), Rejection> {
        let Some(keeper) = self.sessions.persister() else { return Ok(()) };
        if let Err(error) = keeper.create(session).await {
            self.sessions.close(session);
            return Err(error.into());
        }
        Ok(())
    }

    /// Lets sessions go that nothing runs in, for other nodes to take over; true when none is left that could.
    pub(crate) async fn hand_over(&self, all: bool) -> bool {
        let Some(keeper) = self.sessions.persister() else { return true };
        let mut done = true;
        for some in self.sessions.all().chunks(HANDOVER_BATCH) {
            let each = some.iter().map(async |session| {
                if session.id().transport() != crate::session::SessionTransport::Http {
                    // Its client opens another, elsewhere.
                    return Ok(self.sessions.close_idle(session));
                }
                keeper.release(&self.sessions, session, all).await
            });
            for released in futures_util::future::join_all(each).await {
                match released {
                    Ok(released) => done &= released,
                    Err(error) => {
                        // The store is away, and will not have the others either.
                        tracing::warn!(%error, "sessions could not be handed over");
                        return false;
                    }
                }
            }
        }
        done
    }
}

impl IncarnationObserver for LocalSessions {
    fn on_new_incarnation<'a>(&'a self, from: &'a NodeId, to: &'a NodeId) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            match self.sessions.persister() {
                Some(keeper) => keeper.on_new_incarnation(&self.sessions, from, to).await,
                None => Ok(()),
            }
        })
    }

    fn on_lease_lost(&self) {
        self.sessions.disconnect_all_readers();
    }
}

impl From<StoreError> for Rejection {
    fn from(away: StoreError) -> Self {
        tracing::debug!(%away, "a request cannot be served");
        Self::StoreUnavailable
    }
}

/// Locks for things that are done once for each of many names.
#[derive(Debug, Default)]
pub(crate) struct StripedLocks([tokio::sync::Mutex<()>; 32]);

impl StripedLocks {
    fn of(&self, name: &str) -> &tokio::sync::Mutex<()> {
        let sum = name.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        &self.0[sum % self.0.len()]
    }
}

/// A body that was read once, for those who need it again.
pub(super) type Once = std::sync::OnceLock<Bytes>;
