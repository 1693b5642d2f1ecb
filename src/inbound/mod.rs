//! Transports in: Streamable HTTP and HTTP+SSE on one listener, and standard input and output.

mod body;
mod connection;
mod cors;
mod date_header;
mod headers;
mod http;
mod http1;
mod per_request;
mod relay;
mod request_id;
mod respond;
mod response_encoder;
mod route;
mod session_messages;
mod sse;
mod stdio;
mod wake_gated;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::ORIGIN;
use ::http::{HeaderMap, HeaderValue, Method as Verb, Request, Response};
use hyper::body::Incoming;
use tokio::io::{AsyncBufRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

pub use body::ResponseContent;

use crate::admin::Admin;
use crate::call::{Caller, ChangeEvent, ClientSink, REQUEST_ID};
use crate::cluster::Cluster;
use crate::gateway::{Gateway, Group, GroupEvent};
use crate::policy::{Limits, Policy};
use crate::session::{Session, Sessions};
use crate::shutdown::Shutdown;
use crate::workers::Workers;
use http::{RequestBody, RequestContext};
pub(crate) use relay::{LocalSessions, StripedLocks};
use respond::Rejection;
use route::Route;

/// What governs the transports.
#[derive(Debug, Clone)]
pub struct InboundSettings {
    /// How large things may be.
    pub limits: Limits,
    /// How long a call may be quiet before its answer becomes a stream.
    pub sse_after: Duration,
    /// How long a stream may be quiet before a comment keeps it open.
    pub sse_heartbeat: Duration,
    /// How long a head or a body may take to arrive.
    pub body_timeout: Duration,
    /// Whether clients may end their sessions by DELETE.
    pub allow_session_delete: bool,
    /// How long running calls may take to finish when the process stops.
    pub shutdown_timeout: Duration,
    /// What others want to know of.
    pub hooks: Hooks,
}

/// What those who embed the gateway want to know of.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Runs once for each session, when its client has initialized it.
    pub initialized: Option<SessionHook>,
}

/// Something that runs for a session. It must not wait for anything.
pub type SessionHook = Arc<dyn Fn(&Session) + Send + Sync>;

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooks")
    }
}

/// Everything that a request may need.
#[derive(Debug)]
pub struct Inbound {
    /// The groups.
    pub gateway: Arc<Gateway>,
    /// The sessions.
    pub sessions: Arc<Sessions>,
    /// Who may do what.
    pub policy: Policy,
    /// What governs the transports.
    pub settings: InboundSettings,
    /// The stages of a stop.
    pub shutdown: Shutdown,
    /// What the gateway tells of itself.
    pub admin: Admin,
    /// The other nodes, where there are any.
    pub cluster: Option<Arc<Cluster>>,
    /// Held by the one who takes a session over.
    pub(crate) adopting: StripedLocks,
}

/// Who calls at a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerRole {
    /// Everybody.
    Everybody,
    /// Clients; those who operate the gateway have a listener of their own.
    Clients,
    /// Those who operate the gateway.
    Operators,
}

/// A request that came through the door.
enum Admission<'r> {
    /// By a caller who may call.
    Call(Route<'r>, Arc<Caller>),
    /// It has its answer already.
    Answered(Response<ResponseContent>),
}

/// What a request is called, and whether its head is as small as it has to be.
struct RequestTag {
    name: HeaderValue,
    fits: bool,
}

/// How long to wait before accepting again after accepting failed, for want of descriptors say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long clients are still let in once others take what they send.
const ACCEPT_DRAIN_TIME: Duration = Duration::from_millis(200);
/// How many are let in at last; there is no end where more come all the time.
const LAST_GUESTS: usize = 1024;
/// The kind of text that figures are.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How often sessions are looked through.
const SWEEP: Duration = Duration::from_secs(5);

impl Inbound {
    /// Accepts connections until the streams are closed: while a stop waits for running calls, their
    /// clients may still have to answer questions, cancel, or resume. Never fails: what goes wrong
    /// with one connection is that connection's matter. Connections of clients go to `workers`, if there are any.
    pub async fn listen(self: Arc<Self>, side: ListenerRole, listener: TcpListener, workers: Arc<Workers>) {
        // A stop waits until the door is closed in order.
        let _door = self.shutdown.connections().token();
        loop {
            let accepted = tokio::select! {
                biased; // a stop may be further than this has seen
                () = self.shutdown.leaving().cancelled(), if side != ListenerRole::Operators => {
                    return self.listen_out(side, listener, &workers).await;
                }
                () = self.shutdown.closing().cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.enter(side, stream, peer, &workers),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Lets those in who are at the door already; closing it would turn them away, and what they bring with
    /// them would be lost.
    async fn listen_out(self: &Arc<Self>, side: ListenerRole, listener: TcpListener, workers: &Workers) {
        let end = tokio::time::Instant::now() + ACCEPT_DRAIN_TIME;
        while tokio::time::Instant::now() < end {
            let Ok(Ok((stream, peer))) = tokio::time::timeout(ACCEPT_DRAIN_TIME / 10, listener.accept()).await else {
                break;
            };
            self.enter(side, stream, peer, workers);
        }
        // Nobody may be left there in the moment in which it is closed, so this does not wait for anything.
        let Ok(listener) = listener.into_std() else { return };
        for _ in 0..LAST_GUESTS {
            let Ok((stream, peer)) = listener.accept() else { return };
            if stream.set_nonblocking(true).is_ok()
                && let Ok(stream) = TcpStream::from_std(stream)
            {
                self.enter(side, stream, peer, workers);
            }
        }
    }

    /// Serves a connection: by a worker, or here. Those who operate the gateway by a listener of their own are
    /// served even when all workers are busy.
    fn enter(self: &Arc<Self>, side: ListenerRole, stream: TcpStream, peer: SocketAddr, workers: &Workers) {
        let (inbound, connections) = (Arc::clone(self), self.shutdown.connections());
        let Some(worker) = workers.least_loaded().filter(|_| side != ListenerRole::Operators) else {
            connections.spawn(connection::serve(inbound, side, stream, peer));
            return;
        };
        // The worker has to wait for it, and not this thread.
        let stream = stream.into_std();
        let connection = async move {
            match stream.and_then(TcpStream::from_std) {
                Ok(stream) => connection::serve(inbound, side, stream, peer).await,
                Err(error) => tracing::warn!(%error, "a connection could not be taken over"),
            }
        };
        connections.spawn_on(worker.keeping(connection), worker.runtime());
    }

    /// Serves one request.
    async fn serve(
        self: &Arc<Self>,
        request: Request<Incoming>,
        side: ListenerRole,
        peer: SocketAddr,
    ) -> Response<ResponseContent> {
        let (mut parts, body) = request.into_parts();
        let named = self.name(&mut parts.headers);
        let entered = self.admit(&parts, &named, side, peer);
        self.respond(&parts, named, entered, RequestBody::Wire(body)).await
    }

    /// Gives a request a name. What the client sent is judged without it.
    fn name(&self, headers: &mut HeaderMap) -> RequestTag {
        let fits = self.settings.limits.admit_head(headers);
        RequestTag { fits, name: request_id::name(headers) }
    }

    /// Lets a request in, or says why not. Its body is not needed for that.
    fn admit<'r>(
        &self,
        parts: &'r ::http::request::Parts,
        named: &RequestTag,
        side: ListenerRole,
        peer: SocketAddr,
    ) -> Result<Admission<'r>, Rejection> {
        match named.fits {
            true => self.admit_route(parts, side, peer),
            false => Err(Rejection::HeadTooLarge),
        }
    }

    /// Answers a request, whether it was let in or not.
    async fn respond(
        self: &Arc<Self>,
        parts: &::http::request::Parts,
        named: RequestTag,
        entered: Result<Admission<'_>, Rejection>,
        body: RequestBody,
    ) -> Response<ResponseContent> {
        let name = named.name;
        let served = match entered {
            Ok(Admission::Call(route, caller)) => self.dispatch(parts, &route, caller, body, false).await,
            Ok(Admission::Answered(response)) => Ok(response),
            Err(problem) => Err(problem),
        };
        let mut response = served.unwrap_or_else(|problem| {
            tracing::debug!(request = name.to_str().unwrap_or("-"), ?problem, "a request was turned away");
            problem.respond()
        });
        response.headers_mut().insert(REQUEST_ID, name);
        let allowed = |origin: &&HeaderValue| {
            let origin = String::from_utf8_lossy(origin.as_bytes());
            self.policy.doors.origin_allowed(&origin)
        };
        cors::decorate(&mut response, parts.headers.get(ORIGIN).filter(allowed));
        response
    }

    /// Lets a request in, or answers it at the door.
    fn admit_route<'r>(
        &self,
        parts: &'r ::http::request::Parts,
        side: ListenerRole,
        peer: SocketAddr,
    ) -> Result<Admission<'r>, Rejection> {
        let route = Route::of(parts.uri.path()).ok_or(Rejection::NotFound)?;
        if matches!(route, Route::Health | Route::Ready | Route::Metrics | Route::Status) {
            return self.tell(&route, parts, side, peer).map(Admission::Answered);
        }
        if side == ListenerRole::Operators {
            return Err(Rejection::NotFound);
        }
        if parts.method == Verb::OPTIONS {
            self.policy.doors.admit(&parts.uri, &parts.headers).map_err(Rejection::Denied)?;
            return Ok(Admission::Answered(cors::preflight(&parts.headers)));
        }
        let caller = self.policy.admit(&parts.uri, &parts.headers, Some(peer)).map_err(Rejection::Denied)?;
        Ok(Admission::Call(route, Arc::new(caller)))
    }

    /// Serves a request of a caller who may call.
    async fn dispatch(
        self: &Arc<Self>,
        parts: &::http::request::Parts,
        route: &Route<'_>,
        caller: Arc<Caller>,
        body: RequestBody,
        carried: bool,
    ) -> Result<Response<ResponseContent>, Rejection> {
        let (group, session_in_path) = match *route {
            Route::Streamable { group, ref session } => (group, session.as_deref()),
            Route::SseStream { group } | Route::SseMessages { group } => (group, None),
            Route::SseBoth { group } => (Some(group), None),
            Route::Health | Route::Ready | Route::Metrics | Route::Status => (None, None),
        };
        let visit = RequestContext {
            inbound: self,
            group: self.gateway.group(group).ok_or(Rejection::NotFound)?,
            caller,
            route,
            session_in_path,
            parts,
            carried,
            body: std::sync::OnceLock::new(),
        };
        match visit.serve_here(body).await {
            // Seldom, and large: in a box it is not part of every request.
            Err(problem) if self.cluster.is_some() => {
                let served = Box::pin(visit.serve_anywhere(problem)).await;
                served.or_else(|problem| visit.reconnect_later(problem))
            }
            served => served,
        }
    }

    /// Whether new work is refused. In a cluster others take it.
    fn refuses(&self) -> bool {
        self.shutdown.is_draining() && self.cluster.is_none()
    }

    /// Nothing is begun in this node's name while it cannot say that it is there.
    fn check_sure(&self) -> Result<(), Rejection> {
        match &self.cluster {
            Some(cluster) if !cluster.holds_lease() => Err(Rejection::StoreUnavailable),
            _ => Ok(()),
        }
    }

    /// Whether the store has no room for more.
    fn is_full(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.store().is_full())
    }

    /// Tells those who operate the gateway how it is. Whether it is alive and ready is no secret;
    /// anything else is for operators, or for callers who may call.
    fn tell(
        &self,
        route: &Route<'_>,
        parts: &::http::request::Parts,
        side: ListenerRole,
        peer: SocketAddr,
    ) -> Result<Response<ResponseContent>, Rejection> {
        if !matches!(parts.method, Verb::GET | Verb::HEAD) {
            return Err(Rejection::Verb(route.verbs()));
        }
        match (route, side) {
            (Route::Health, _) => return Ok(respond::state(true, "alive\n")),
            (Route::Ready, _) => {
                let ready = self.admin.ready();
                return Ok(respond::state(ready.is_ok(), ready.err().unwrap_or("ready\n")));
            }
            (_, ListenerRole::Clients) => return Err(Rejection::NotFound),
            // No page of any site has business here.
            (_, ListenerRole::Operators) if !parts.headers.contains_key(ORIGIN) => {
                self.policy.doors.admit_operator(&parts.uri, &parts.headers).map_err(Rejection::Denied)?;
            }
            _ => {
                self.policy.admit(&parts.uri, &parts.headers, Some(peer)).map_err(Rejection::Denied)?;
            }
        }
        Ok(match route {
            Route::Metrics => respond::text(METRICS, self.admin.metrics()),
            _ => respond::text(headers::JSON, serde_json::to_string(&self.admin.status()).unwrap_or_default()),
        })
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

    /// Tells sessions of changes, and ends those that nobody uses, until the streams are closed.
    pub async fn look_after_sessions(self: Arc<Self>) {
        let publishing = tokio::spawn(publish(Arc::clone(&self.sessions), Arc::clone(&self.gateway)));
        let mut ticks = tokio::time::interval(SWEEP.min(self.sessions.settings().idle));
        loop {
            tokio::select! {
                _ = ticks.tick() => self.sessions.sweep(),
                () = self.shutdown.closing().cancelled() => return publishing.abort(),
            }
        }
    }

    /// A client has shown that it is ready; what waits for that runs once.
    fn note_initialized(&self, session: &Session) {
        if session.initialized() {
            tracing::debug!(session = %session.id(), group = %session.group(), "a session is initialized");
            if let Some(hook) = &self.settings.hooks.initialized {
                hook(session);
            }
        }
    }
}

/// Passes the changes of groups on to their sessions, which end with their group.
async fn publish(sessions: Arc<Sessions>, gateway: Arc<Gateway>) {
    use tokio::sync::broadcast::error::RecvError;
    let mut changes = gateway.changes();
    loop {
        match changes.recv().await {
            Ok(GroupEvent { group, change: Some(change) }) => {
                let shown = gateway.group(Some(&*group));
                sessions.publish_with(&group, &change, |session| Some(shown.as_ref()?.prints_for(session.key())));
            }
            Ok(GroupEvent { group, change: None }) => close_with(&sessions, &gateway, |name| *name == *group),
            Err(RecvError::Lagged(_)) => {
                close_with(&sessions, &gateway, |_| true);
                sessions.publish_all_updates();
                for group in gateway.groups() {
                    for change in ChangeEvent::LISTS {
                        sessions.publish_with(group.name(), &change, |session| Some(group.prints_for(session.key())));
                    }
                }
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Ends the sessions of some groups, if those are no more.
fn close_with(sessions: &Sessions, gateway: &Gateway, concerns: impl Fn(&str) -> bool) {
    sessions.close_where(|group| concerns(group) && gateway.group(Some(group)).is_none());
}

impl Default for InboundSettings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            sse_after: Duration::from_secs(1),
            sse_heartbeat: Duration::from_secs(15),
            body_timeout: Duration::from_secs(30),
            allow_session_delete: true,
            shutdown_timeout: Duration::from_secs(10),
            hooks: Hooks::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what a function gives, which is not called.
    fn size<A, B, C, D, R>(_: impl FnOnce(A, B, C, D) -> R) -> usize {
        size_of::<R>()
    }

    /// What serves a request is moved to where it stays, and is there as long as the request waits.
    #[test]
    fn a_request_takes_little_room() {
        let size = size(|(inbound, parts): (&'static Arc<Inbound>, &'static _), named, entered, body| {
            inbound.respond(parts, named, entered, body)
        });
        assert!(size <= 4352, "{size} bytes");
    }
}
