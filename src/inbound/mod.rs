//! Client-facing transports: Streamable HTTP and HTTP+SSE on one listener, and stdio.

mod body;
mod cors;
mod headers;
mod http;
mod per_request;
mod relay;
mod request_id;
mod respond;
mod response_encoder;
mod resubscribe;
mod route;
mod service;
mod session_messages;
mod sse;
mod stdio;
mod takeover;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::ORIGIN;
use ::http::{HeaderMap, HeaderValue, Method as Verb, Response};
use arc_swap::{ArcSwap, Guard};
use tokio::io::{AsyncBufRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

pub use body::ResponseContent;

use crate::admin::Admin;
use crate::call::{Caller, ChangeEvent, ClientSink, REQUEST_ID};
use crate::cluster::Cluster;
use crate::failure::QuotaReached;
use crate::gateway::{Gateway, Group, GroupChange, GroupEvent};
use crate::http::header_text;
use crate::http::server::{Http1Implementation, ReceivedBody};
use crate::policy::{CallerPermit, Limits, OperationsListener, Permit, Policy, QuotaKey};
use crate::session::{SESSION_SHARDS, Session, Sessions};
use crate::shutdown::Shutdown;
use crate::workers::Workers;
use http::RequestContext;
use respond::Rejection;
use route::Route;
pub(crate) use takeover::{LocalSessions, StripedLocks};

/// Transport settings.
#[derive(Debug, Clone)]
pub struct InboundSettings {
    /// Size limits of requests.
    pub limits: Limits,
    /// How long a call may go without a reply before its response becomes an SSE stream.
    pub sse_after: Duration,
    /// Interval of heartbeat comments on an idle SSE stream.
    pub sse_heartbeat: Duration,
    /// Timeout for a request head, from its first byte.
    pub header_timeout: Duration,
    /// Timeout for a request body.
    pub body_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub keep_alive_timeout: Duration,
    /// A client that accepts no byte for this long is disconnected.
    pub write_stall_timeout: Duration,
    /// What serves HTTP/1.1.
    pub http1: Http1Implementation,
    /// Whether clients may close their sessions with DELETE.
    pub allow_session_delete: bool,
    /// How long a shutdown waits for running calls.
    pub shutdown_timeout: Duration,
    /// Callbacks for programs that embed the gateway.
    pub hooks: Hooks,
}

/// Callbacks for programs that embed the gateway.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Runs once per session, when its client has sent `notifications/initialized` or its first request.
    pub on_initialized: Option<SessionHook>,
}

/// A callback for a session. It runs on the request path and must not block.
pub type SessionHook = Arc<dyn Fn(&Session) + Send + Sync>;

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooks")
    }
}

/// The inbound side: everything that serving a request needs.
#[derive(Debug)]
pub struct Inbound {
    /// The groups and their upstreams.
    pub gateway: Arc<Gateway>,
    /// The sessions of this node.
    pub sessions: Arc<Sessions>,
    /// Host, origin and token rules.
    pub(crate) policy: ArcSwap<Policy>,
    /// Transport settings.
    pub(crate) settings: ArcSwap<InboundSettings>,
    /// Shutdown stages.
    pub shutdown: Shutdown,
    /// Health, metrics and status.
    pub admin: Admin,
    /// The cluster, when a shared store is configured.
    pub cluster: Option<Arc<Cluster>>,
    /// Serializes takeovers of one session on this node.
    pub(crate) takeover_locks: StripedLocks,
    /// Bounds the connections over the quota that still read their refusal.
    pub(crate) refusing: Arc<Semaphore>,
}

/// Which routes a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerRole {
    /// Clients and operators.
    Combined,
    /// Clients only; operators have their own listener.
    Clients,
    /// Operators only: health, metrics and status.
    Operators,
}

/// Outcome of admission.
enum Admission<'r> {
    /// An admitted request to an MCP route.
    Call(Route<'r>, Arc<Caller>),
    /// The response is complete without a body: probes and CORS preflight.
    Answered(Response<ResponseContent>),
    /// Metrics or status for an operator; no page may read it.
    Operations(Response<ResponseContent>),
}

/// Request id, and whether the head is within the limits.
struct RequestTag {
    request_id: HeaderValue,
    head_fits: bool,
}

/// Delay after a failed accept, for example when file descriptors have run out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long a leaving node still accepts connections that clients are opening.
const ACCEPT_DRAIN_TIME: Duration = Duration::from_millis(200);
/// Bound on connections accepted from the backlog just before the listener closes.
const MAX_FINAL_ACCEPTS: usize = 1024;
/// Media type of OpenMetrics text.
const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How often idle sessions are looked for.
const SESSION_SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Connections over the quota that may read their refusal at one time; further ones are closed at once.
pub(crate) const MAX_REFUSING_CONNECTIONS: usize = 64;

impl Inbound {
    /// The transport settings in use.
    pub fn settings(&self) -> Guard<Arc<InboundSettings>> {
        self.settings.load()
    }

    /// The host, origin and token rules in use.
    pub fn policy(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// Replaces the transport settings. Connections that are open keep the HTTP limits they began with.
    pub fn set_settings(&self, settings: InboundSettings) {
        self.settings.store(Arc::new(settings));
    }

    /// Replaces the host, origin and token rules. Sessions and streams of callers whose token is no longer accepted
    /// end.
    pub fn set_policy(&self, mut policy: Policy) {
        let before = self.policy.load_full();
        let revoked = policy.tokens.succeed(&before.tokens);
        self.policy.store(Arc::new(policy));
        // After the store, so that no session can be opened with a revoked token once these are closed.
        revoked.cancel();
        let closed = self.sessions.close_owned_by(|principal| revoked.contains(principal));
        if closed > 0 {
            tracing::info!(sessions = closed, "sessions of revoked tokens closed");
        }
    }

    /// Accepts connections until the `closing` stage of a shutdown: while running calls finish, their clients may
    /// have to answer server requests, cancel, or resume.
    ///
    /// Client connections go to `workers`, if there are any. An error on one connection does not affect the listener.
    pub async fn listen(self: Arc<Self>, role: ListenerRole, listener: TcpListener, workers: Arc<Workers>) {
        // The shutdown waits until this listener has closed.
        let _listener = self.shutdown.connections().token();
        loop {
            let accepted = tokio::select! {
                biased; // shutdown first: `closing` may follow `leaving` at once
                () = self.shutdown.leaving().cancelled(), if role != ListenerRole::Operators => {
                    return self.drain_accept_queue(role, listener, &workers).await;
                }
                () = self.shutdown.closing().cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.spawn_connection(role, stream, peer, &workers),
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Accepts the connections that are already in the backlog: closing the listener would reset them and lose their
    /// requests.
    async fn drain_accept_queue(self: &Arc<Self>, role: ListenerRole, listener: TcpListener, workers: &Workers) {
        let end = tokio::time::Instant::now() + ACCEPT_DRAIN_TIME;
        while tokio::time::Instant::now() < end {
            let Ok(Ok((stream, peer))) = tokio::time::timeout(ACCEPT_DRAIN_TIME / 10, listener.accept()).await else {
                break;
            };
            self.spawn_connection(role, stream, peer, workers);
        }
        // Non-blocking from here on: nothing may join the backlog between the last accept and the close.
        let Ok(listener) = listener.into_std() else { return };
        for _ in 0..MAX_FINAL_ACCEPTS {
            let Ok((stream, peer)) = listener.accept() else { return };
            if stream.set_nonblocking(true).is_ok()
                && let Ok(stream) = TcpStream::from_std(stream)
            {
                self.spawn_connection(role, stream, peer, workers);
            }
        }
    }

    /// Serves a connection on the least loaded worker, or on this runtime without workers. Connections to the
    /// operators' listener stay on this runtime, so that they are served even when all workers are busy.
    fn spawn_connection(self: &Arc<Self>, role: ListenerRole, stream: TcpStream, peer: SocketAddr, workers: &Workers) {
        let (inbound, connections) = (Arc::clone(self), self.shutdown.connections());
        // Operators must be able to look when clients have taken everything.
        let permits = match role {
            ListenerRole::Operators => None,
            ListenerRole::Combined | ListenerRole::Clients => match self.admit_connection(peer) {
                Ok(permits) => Some(permits),
                Err(reached) => {
                    if let Ok(slot) = Arc::clone(&self.refusing).try_acquire_owned() {
                        connections.spawn(service::refuse_connection(stream, reached, slot));
                    }
                    return;
                }
            },
        };
        let Some(worker) = workers.least_loaded().filter(|_| role != ListenerRole::Operators) else {
            connections.spawn(async move {
                let _permits = permits;
                service::serve_connection(inbound, role, stream, peer).await;
            });
            return;
        };
        // Register the socket with the worker's reactor, not with this thread's.
        let stream = stream.into_std();
        let connection = async move {
            let _permits = permits;
            match stream.and_then(TcpStream::from_std) {
                Ok(stream) => service::serve_connection(inbound, role, stream, peer).await,
                Err(error) => tracing::warn!(%error, "moving a connection to its worker failed"),
            }
        };
        connections.spawn_on(worker.track_load(connection), worker.runtime());
    }

    fn admit_connection(&self, peer: SocketAddr) -> Result<(CallerPermit, Permit), QuotaReached> {
        let quotas = self.sessions.quotas();
        let own = quotas.connections_per_address.acquire(QuotaKey::address(peer))?;
        Ok((own, quotas.connections.acquire(1)?))
    }

    /// Assigns the request id. The limits apply to the headers as the client sent them, without the id.
    fn tag_request(&self, headers: &mut HeaderMap) -> RequestTag {
        let head_fits = self.settings().limits.head_fits(headers);
        RequestTag { head_fits, request_id: request_id::ensure(headers) }
    }

    /// Admits a request by its head alone.
    fn admit<'r>(
        &self,
        parts: &'r ::http::request::Parts,
        tag: &RequestTag,
        role: ListenerRole,
        peer: SocketAddr,
    ) -> Result<Admission<'r>, Rejection> {
        match tag.head_fits {
            true => self.admit_route(parts, role, peer),
            false => Err(Rejection::HeadTooLarge),
        }
    }

    /// Serves an admitted request or encodes its rejection; adds the request id and CORS headers.
    async fn respond(
        self: &Arc<Self>,
        parts: &::http::request::Parts,
        tag: RequestTag,
        admission: Result<Admission<'_>, Rejection>,
        body: ReceivedBody,
    ) -> Response<ResponseContent> {
        let request_id = tag.request_id;
        let result = match admission {
            Ok(Admission::Call(route, caller)) => self.dispatch(parts, &route, caller, body, false).await,
            Ok(Admission::Answered(response)) => Ok(response),
            Ok(Admission::Operations(mut response)) => {
                response.headers_mut().insert(REQUEST_ID, request_id);
                return response;
            }
            Err(rejection) => Err(rejection),
        };
        let mut response = result.unwrap_or_else(|rejection| {
            tracing::debug!(request = request_id.to_str().unwrap_or("-"), ?rejection, "a request was turned away");
            rejection.respond()
        });
        response.headers_mut().insert(REQUEST_ID, request_id);
        if let Some(origin) = parts.headers.get(ORIGIN)
            && self.policy().host_origin.origin_allowed(&header_text(origin))
        {
            cors::allow_origin(&mut response, origin);
        }
        response
    }

    /// Routes a request; answers operations routes and CORS preflight without a body.
    fn admit_route<'r>(
        &self,
        parts: &'r ::http::request::Parts,
        role: ListenerRole,
        peer: SocketAddr,
    ) -> Result<Admission<'r>, Rejection> {
        let route = Route::parse(parts.uri.path()).ok_or(Rejection::NotFound)?;
        if matches!(route, Route::Health | Route::Ready | Route::Metrics | Route::Status) {
            return self.serve_operations(&route, parts, role, peer);
        }
        if role == ListenerRole::Operators {
            return Err(Rejection::NotFound);
        }
        if parts.method == Verb::OPTIONS {
            self.policy().host_origin.admit(&parts.uri, &parts.headers).map_err(Rejection::Denied)?;
            return Ok(Admission::Answered(cors::preflight(&parts.headers)));
        }
        let caller = self.policy().admit(&parts.uri, &parts.headers, Some(peer)).map_err(Rejection::Denied)?;
        Ok(Admission::Call(route, Arc::new(caller)))
    }

    /// Serves an admitted request to an MCP route, here or on the node that owns its session.
    async fn dispatch(
        self: &Arc<Self>,
        parts: &::http::request::Parts,
        route: &Route<'_>,
        caller: Arc<Caller>,
        body: ReceivedBody,
        is_relayed: bool,
    ) -> Result<Response<ResponseContent>, Rejection> {
        let (group, session_in_path) = match *route {
            Route::Streamable { group, ref session } => (group, session.as_deref()),
            Route::SseStream { group } | Route::SseMessages { group } => (group, None),
            Route::SseCombined { group } => (Some(group), None),
            Route::Health | Route::Ready | Route::Metrics | Route::Status => (None, None),
        };
        let context = RequestContext {
            inbound: self,
            group: self.gateway.group(group).ok_or(Rejection::NotFound)?,
            caller,
            route,
            session_in_path,
            parts,
            is_relayed,
            body: std::sync::OnceLock::new(),
        };
        match context.serve_locally(body).await {
            // Rare and large: boxed to keep the future of every other request small.
            Err(rejection) if self.cluster.is_some() => {
                let result = Box::pin(context.serve_or_relay(rejection)).await;
                result.or_else(|rejection| context.reconnect_later(rejection))
            }
            result => result,
        }
    }

    /// Whether new calls are refused. A draining node in a cluster relays them instead.
    fn refuses_new_calls(&self) -> bool {
        self.shutdown.is_draining() && self.cluster.is_none()
    }

    /// Refuses to open sessions while this node's lease is not held.
    fn check_lease(&self) -> Result<(), Rejection> {
        match &self.cluster {
            Some(cluster) if !cluster.holds_lease() => Err(Rejection::StoreUnavailable),
            _ => Ok(()),
        }
    }

    /// Whether the store refuses writes because it is out of memory.
    fn is_store_full(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.store().is_full())
    }

    /// Serves health, readiness, metrics and status. Health and readiness are public; for anyone but operators, metrics
    /// and status do not exist.
    fn serve_operations(
        &self,
        route: &Route<'_>,
        parts: &::http::request::Parts,
        role: ListenerRole,
        peer: SocketAddr,
    ) -> Result<Admission<'static>, Rejection> {
        let is_public = matches!(route, Route::Health | Route::Ready);
        let listener = match role {
            ListenerRole::Operators => Some(OperationsListener::Operators),
            ListenerRole::Combined => Some(OperationsListener::Clients),
            ListenerRole::Clients => None,
        };
        let is_operator = |listener| self.policy().is_operator(listener, &parts.uri, &parts.headers, peer);
        if !is_public && !listener.is_some_and(is_operator) {
            return Err(Rejection::NotFound);
        }
        let response = match route {
            _ if !matches!(parts.method, Verb::GET | Verb::HEAD) => {
                Rejection::MethodNotAllowed(route.allowed_methods()).respond()
            }
            Route::Health => respond::probe(true, "alive\n"),
            Route::Ready => {
                let ready = self.admin.ready();
                respond::probe(ready.is_ok(), ready.err().unwrap_or("ready\n"))
            }
            Route::Metrics => respond::text(METRICS_CONTENT_TYPE, self.admin.metrics()),
            _ => respond::text(headers::JSON, serde_json::to_string(&self.admin.status()).unwrap_or_default()),
        };
        Ok(if is_public { Admission::Answered(response) } else { Admission::Operations(response) })
    }

    /// Serves one client on a pair of byte streams, as `rialto stdio` does.
    ///
    /// # Errors
    /// When reading or writing fails.
    pub async fn serve_stdio<R, W>(self: Arc<Self>, group: Arc<Group>, input: R, output: W) -> std::io::Result<()>
    where
        R: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        stdio::serve(self, group, input, output).await
    }

    /// Publishes group changes to sessions and closes idle sessions, until the `closing` stage of a shutdown.
    pub async fn maintain_sessions(self: Arc<Self>) {
        let publishing = tokio::spawn(publish_changes(Arc::clone(&self)));
        loop {
            let interval = SESSION_SWEEP_INTERVAL.min(self.sessions.settings().idle_timeout);
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = self.shutdown.closing().cancelled() => return publishing.abort(),
            }
            for shard in 0..SESSION_SHARDS {
                self.sessions.sweep_shard(shard);
                tokio::task::yield_now().await;
            }
        }
    }

    /// Marks a session as initialized; the first time runs the `on_initialized` hook.
    fn mark_initialized(&self, session: &Session) {
        if session.mark_initialized() {
            tracing::debug!(session = %session.id().log_tag(), group = %session.group(), "session initialized");
            if let Some(hook) = &self.settings().hooks.on_initialized {
                hook(session);
            }
        }
    }
}

/// Publishes list and resource changes of groups to their sessions, and closes the sessions of removed groups.
async fn publish_changes(inbound: Arc<Inbound>) {
    use tokio::sync::broadcast::error::RecvError;
    let (sessions, gateway) = (&inbound.sessions, &inbound.gateway);
    let mut changes = gateway.changes();
    loop {
        match changes.recv().await {
            Ok(GroupEvent { group, change: GroupChange::Content(change) }) => {
                let shown = gateway.group(Some(&*group));
                sessions.publish_with(&group, &change, |session| {
                    Some(shown.as_ref()?.list_fingerprints_for(session.key()))
                });
            }
            Ok(GroupEvent { group, change: GroupChange::UpstreamReplaced(upstream) }) => {
                if let Some(group) = gateway.group(Some(&*group)) {
                    inbound.renew_subscriptions(&group, Some(&upstream));
                }
            }
            Ok(GroupEvent { group, change: GroupChange::Removed }) => {
                close_removed_groups(sessions, gateway, |name| *name == *group);
            }
            Err(RecvError::Lagged(_)) => {
                close_removed_groups(sessions, gateway, |_| true);
                sessions.publish_all_updates();
                for group in gateway.groups() {
                    inbound.renew_subscriptions(&group, None);
                    for change in ChangeEvent::LISTS {
                        sessions.publish_with(group.name(), &change, |session| {
                            Some(group.list_fingerprints_for(session.key()))
                        });
                    }
                }
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Closes the sessions of those groups selected by `concerns` that no longer exist.
fn close_removed_groups(sessions: &Sessions, gateway: &Gateway, concerns: impl Fn(&str) -> bool) {
    sessions.close_groups(|group| concerns(group) && gateway.group(Some(group)).is_none());
}

impl Default for InboundSettings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            sse_after: Duration::from_secs(1),
            sse_heartbeat: Duration::from_secs(15),
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            keep_alive_timeout: Duration::from_secs(75),
            write_stall_timeout: Duration::from_secs(60),
            http1: Http1Implementation::default(),
            allow_session_delete: true,
            shutdown_timeout: Duration::from_secs(10),
            hooks: Hooks::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size of the future that a function returns, without calling it.
    fn future_size<A, B, C, D, R>(_: impl FnOnce(A, B, C, D) -> R) -> usize {
        size_of::<R>()
    }

    /// The future of a request is moved once and then stays in memory for as long as the request waits.
    #[test]
    fn request_future_stays_below_its_size_limit() {
        let size = future_size(|(inbound, parts): (&'static Arc<Inbound>, &'static _), tag, admission, body| {
            inbound.respond(parts, tag, admission, body)
        });
        assert!(size <= 4864, "{size} bytes");
    }
}
