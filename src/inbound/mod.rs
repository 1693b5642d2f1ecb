//! Client-facing transports: Streamable HTTP and HTTP+SSE on one listener, and stdio.

mod access_hook;
mod admission;
mod audit_hook;
mod body;
mod challenge;
mod connection;
mod console;
mod cors;
mod headers;
mod http;
mod per_request;
mod pieces;
mod relay;
mod relay_trace;
mod request_id;
mod resource_metadata;
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
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use ::http::Response;
use ::http::header::ORIGIN;
use arc_swap::{ArcSwap, Guard};
use tokio::io::{AsyncBufRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

pub use body::ResponseContent;
pub use connection::TlsSlot;
pub use console::{ConsoleAdmission, ConsoleCaller, ConsoleFuture, ConsoleHead, ConsoleRequest, ConsoleService};

use crate::access_log::AccessLog;
use crate::admin::Admin;
use crate::call::{Caller, ChangeEvent, ClientSink, REQUEST_ID};
use crate::cluster::Cluster;
use crate::dialect::Revision;
use crate::failure::QuotaReached;
use crate::gateway::{Gateway, Group, GroupChange, GroupEvent};
use crate::http::codec::RequestHead;
use crate::http::server::{Http1Implementation, ReceivedBody};
use crate::metrics::ConnectionOrigin;
use crate::policy::{CallerPermit, FailedCredentials, Limits, Permit, Policy, QuotaKey, ScopedPermit};
use crate::session::{SESSION_SHARDS, Session, Sessions};
use crate::shutdown::Shutdown;
use crate::workers::Workers;
use admission::{Admission, ArrivedRequest};
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
    /// The rules of admission.
    pub(crate) policy: ArcSwap<Policy>,
    /// Notified when there are other rules.
    pub(crate) policy_changed: Notify,
    /// Invalid credentials by address.
    pub(crate) failed_credentials: FailedCredentials,
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
    /// The certificate in use, if clients speak TLS.
    pub(crate) tls: TlsSlot,
    /// Cancelled when other authorities of client certificates are accepted.
    pub(crate) client_ca_revoked: ArcSwap<CancellationToken>,
    /// The access log.
    pub access_log: AccessLog,
    /// What serves the console, once it is installed.
    pub(crate) console: OnceLock<Arc<dyn ConsoleService>>,
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
    /// Calls that operators make from the console, on this machine.
    Console,
}

/// Delay after a failed accept, for example when file descriptors have run out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long a leaving node still accepts connections that clients are opening.
const ACCEPT_DRAIN_TIME: Duration = Duration::from_millis(200);
/// Bound on connections accepted from the backlog just before the listener closes.
const MAX_FINAL_ACCEPTS: usize = 1024;
/// How often expired API keys and withdrawn keys of issuers are looked for, while there can be any.
const KEY_EXPIRY_INTERVAL: Duration = Duration::from_millis(500);
/// How often idle sessions are looked for.
const SESSION_SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Connections over the quota that may read their refusal at one time; further ones are closed at once.
pub(crate) const MAX_REFUSING_CONNECTIONS: usize = 64;

impl Inbound {
    /// The transport settings in use.
    pub fn settings(&self) -> Guard<Arc<InboundSettings>> {
        self.settings.load()
    }

    /// The rules of admission in use.
    pub fn policy(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// Replaces the transport settings. Connections that are open keep the HTTP limits they began with.
    pub fn set_settings(&self, settings: InboundSettings) {
        self.settings.store(Arc::new(settings));
    }

    /// Replaces the rules of admission. What callers have open ends where their credential is no longer accepted.
    pub fn set_policy(&self, mut policy: Policy) {
        let revoked = policy.succeed(&self.policy.load_full());
        self.policy.store(Arc::new(policy));
        // After the store, so that no session can be opened with a revoked credential once these are closed.
        self.end_revoked(&revoked);
        self.policy_changed.notify_one();
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
        let metrics = self.gateway.metrics();
        // Operators must be able to look when clients have taken everything.
        let permits = match role {
            ListenerRole::Operators | ListenerRole::Console => None,
            ListenerRole::Combined | ListenerRole::Clients => match self.admit_connection(peer) {
                Ok(permits) => Some(permits),
                Err((reached, quota)) => {
                    metrics.record_refused_connection(quota);
                    // Before a TLS handshake, which is too costly for a refusal, no response can be sent.
                    if self.tls.load().is_none()
                        && let Ok(slot) = Arc::clone(&self.refusing).try_acquire_owned()
                    {
                        connections.spawn(service::refuse_connection(stream, reached, slot));
                    }
                    return;
                }
            },
        };
        let counted = metrics.record_connection(match role {
            ListenerRole::Operators | ListenerRole::Console => ConnectionOrigin::Operators,
            ListenerRole::Combined | ListenerRole::Clients => ConnectionOrigin::Clients,
        });
        let permits = (permits, counted);
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

    /// # Errors
    /// Which quota is used up, and its name.
    fn admit_connection(&self, peer: SocketAddr) -> Result<(CallerPermit, Permit), (QuotaReached, &'static str)> {
        let quotas = self.sessions.quotas();
        let own = quotas.connections_per_address.acquire(QuotaKey::address(peer));
        let own = own.map_err(|reached| (reached, "connections_per_address"))?;
        Ok((own, quotas.connections.acquire(1).map_err(|reached| (reached, "connections"))?))
    }

    /// Serves an admitted request or encodes its rejection; adds the request id and CORS headers. The body has its permit
    /// until the response is known.
    async fn respond(
        self: &Arc<Self>,
        request: ArrivedRequest<'_>,
        admission: Result<Admission<'_>, Rejection>,
        body: ReceivedBody,
        _body_permit: Option<ScopedPermit<'_>>,
    ) -> Response<ResponseContent> {
        let head = request.head;
        let result = match admission {
            Ok(Admission::Call(route, caller, rules)) => {
                // Looked up before the rules are compared: a reload sets the rules first, so that no group of the new
                // file is served by the rules of the old one, however long the body took.
                let group = self.gateway.group(route.group());
                match rules == self.policy().number {
                    true => self.dispatch(head, &route, (group, caller), body, false).await,
                    false => Box::pin(self.readmit_and_dispatch(&request, body)).await,
                }
            }
            Ok(Admission::Answered(response)) => Ok(response),
            Ok(Admission::Console(route, caller)) => {
                // Rare and large: boxed to keep the future of every other request small.
                let mut response = Box::pin(self.serve_console(&request, &route, *caller, body)).await;
                response.headers_mut().insert(REQUEST_ID, request.request_id);
                return response;
            }
            // The server completes an admission before it asks for the response.
            Ok(Admission::Undecided(..)) => Err(Rejection::ShuttingDown),
            Ok(Admission::Complete(mut response)) => {
                response.headers_mut().insert(REQUEST_ID, request.request_id);
                return response;
            }
            Err(rejection) => Err(rejection),
        };
        let mut response = result.unwrap_or_else(|rejection| {
            tracing::debug!(
                request = request.request_id.to_str().unwrap_or("-"),
                ?rejection,
                "a request was turned away"
            );
            rejection.respond_logged(request.access.as_deref())
        });
        self.complete_challenge(&request, &mut response);
        response.headers_mut().insert(REQUEST_ID, request.request_id);
        if let Some(origin) = head.headers.get(ORIGIN)
            && self.policy().host_origin.origin_allowed(&String::from_utf8_lossy(origin))
        {
            cors::allow_origin(&mut response, origin);
        }
        response
    }

    /// Serves a request that arrived while a reload changed the rules.
    async fn readmit_and_dispatch(
        self: &Arc<Self>,
        request: &ArrivedRequest<'_>,
        body: ReceivedBody,
    ) -> Result<Response<ResponseContent>, Rejection> {
        match self.readmit(request).await? {
            Admission::Call(route, caller, _) => {
                let group = self.gateway.group(route.group());
                self.dispatch(request.head, &route, (group, caller), body, false).await
            }
            Admission::Answered(response) | Admission::Complete(response) => Ok(response),
            // The path is that of a call.
            Admission::Console(..) => Err(Rejection::NotFound),
            Admission::Undecided(..) => Err(Rejection::ShuttingDown),
        }
    }

    /// Serves an admitted request to an MCP route, here or on the node that owns its session.
    async fn dispatch(
        self: &Arc<Self>,
        head: &RequestHead,
        route: &Route<'_>,
        (group, caller): (Option<Arc<Group>>, Arc<Caller>),
        body: ReceivedBody,
        is_relayed: bool,
    ) -> Result<Response<ResponseContent>, Rejection> {
        let session_in_path = match route {
            Route::Streamable { session, .. } => session.as_deref(),
            _ => None,
        };
        let group = group.ok_or(Rejection::NotFound)?;
        if !self.gateway.may_use(&group, &caller.identity) {
            return Err(Rejection::GroupForbidden);
        }
        let context = RequestContext {
            inbound: self,
            group,
            caller,
            route,
            session_in_path,
            head,
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
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(publish_changes(Arc::clone(&self)));
        tasks.spawn(end_expired_keys(Arc::clone(&self)));
        loop {
            let interval = SESSION_SWEEP_INTERVAL.min(self.sessions.settings().idle_timeout);
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = self.shutdown.closing().cancelled() => return,
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

/// Ends what callers have open with API keys that expire, and with tokens whose issuer withdraws its key.
async fn end_expired_keys(inbound: Arc<Inbound>) {
    loop {
        let may_end = {
            let policy = inbound.policy();
            policy.keys.has_expiring() || policy.issuers.is_some()
        };
        tokio::select! {
            () = tokio::time::sleep(KEY_EXPIRY_INTERVAL), if may_end => {}
            () = inbound.policy_changed.notified() => {}
        }
        let (expired, withdrawn) = {
            let policy = inbound.policy();
            (policy.keys.expired(SystemTime::now()), policy.withdrawn_keys())
        };
        inbound.end_revoked(&expired);
        inbound.end_revoked(&withdrawn);
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
                let Some(shown) = gateway.group(Some(&*group)) else { continue };
                sessions.publish_with(
                    &group,
                    &change.change,
                    |session| Some(shown.list_fingerprints_for(session.key(), &session.latest_identity())),
                    |session| shown.concerns(Revision::NEWEST_HANDSHAKE, &session.latest_identity(), &change),
                );
            }
            Ok(GroupEvent { group, change: GroupChange::Rules }) => {
                if let Some(group) = gateway.group(Some(&*group)) {
                    inbound.end_hidden_subscriptions(&group);
                }
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
                    inbound.end_hidden_subscriptions(&group);
                    inbound.renew_subscriptions(&group, None);
                    for change in ChangeEvent::LISTS {
                        let fingerprints = |session: &Session| {
                            Some(group.list_fingerprints_for(session.key(), &session.latest_identity()))
                        };
                        sessions.publish_with(group.name(), &change, fingerprints, |_| true);
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
        let size = future_size(|inbound: &'static Arc<Inbound>, request, admission, body| {
            inbound.respond(request, admission, body, None)
        });
        assert!(size <= 4864, "{size} bytes");
    }
}
