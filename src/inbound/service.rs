//! The gateway as an [`HttpService`] on one client connection.

use std::net::SocketAddr;
use std::sync::Arc;

use ::http::header::{CONTENT_LENGTH, STRICT_TRANSPORT_SECURITY};
use ::http::{HeaderMap, Method as Verb, Response};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::access_hook::logged;
use super::admission::{Admission, ArrivedRequest};
use super::body::ResponseContent;
use super::connection::ClientConnection;
use super::recorder_hook::note_request;
use super::respond::{Rejection, refused_connection};
use super::{ACCEPT_DRAIN_TIME, Inbound, ListenerRole, request_id};
use crate::access_log::AccessGuard;
use crate::failure::QuotaReached;
use crate::http::codec::{HeadRules, RequestError, RequestHead};
use crate::http::server::{self, HttpService, ReceivedBody, ServerSettings};
use crate::metrics::HTTP_TRAFFIC;
use crate::policy::ScopedPermit;

/// Serves one client connection.
#[derive(Clone)]
pub(super) struct ClientService {
    inbound: Arc<Inbound>,
    connection: ClientConnection,
}

/// A request whose head was looked at.
pub(super) struct AdmittedRequest<'r> {
    request: ArrivedRequest<'r>,
    admission: Result<Admission<'r>, Rejection>,
    /// Share of the bytes in flight that the body has; taken before it is read.
    body_permit: Option<ScopedPermit<'r>>,
}

/// Lower bound of the request head limit, whatever `header_bytes` says.
const MIN_HEAD_LIMIT: usize = 8 << 10;

/// Serves a connection until it closes.
pub(super) async fn serve_connection(inbound: Arc<Inbound>, role: ListenerRole, stream: TcpStream, peer: SocketAddr) {
    let served_port = stream.local_addr().ok().map(|address| address.port());
    let connection = ClientConnection { role, peer, served_port, tls: None, last_credential: Arc::default() };
    if !matches!(role, ListenerRole::Operators | ListenerRole::Console)
        && let Some(tls) = inbound.tls.load_full()
    {
        // Boxed, because plain connections need not have room for it.
        return Box::pin(inbound.serve_tls(tls, connection, stream)).await;
    }
    let service = ClientService { inbound, connection };
    if let Err(error) = server::serve(service, stream, ACCEPT_DRAIN_TIME).await {
        tracing::debug!(%peer, %error, "client connection failed");
    }
}

/// Tells a client that it cannot be served, and closes the connection once the client has, or after a moment. `_slot` is
/// its place among those that may be told.
pub(super) async fn refuse_connection(stream: TcpStream, reached: QuotaReached, _slot: OwnedSemaphorePermit) {
    if let Err(error) = server::refuse(stream, &refused_connection(reached)).await {
        tracing::debug!(%error, "refusing a connection failed");
    }
}

impl ClientService {
    pub(super) fn new(inbound: Arc<Inbound>, connection: ClientConnection) -> Self {
        Self { inbound, connection }
    }

    /// The size of a request body as its head tells it; the limit where it does not.
    fn announced_body(&self, head: &RequestHead) -> usize {
        let limit = self.inbound.settings().limits.body_bytes;
        let length = head.headers.get(CONTENT_LENGTH).and_then(|length| str::from_utf8(length).ok()?.parse().ok());
        length.map_or(limit, |length: usize| length.min(limit))
    }

    /// Records what was decided, and takes the share of the bytes in flight for the body of a call that was admitted.
    fn with_body_permit<'r>(
        &'r self,
        request: ArrivedRequest<'r>,
        mut admission: Result<Admission<'r>, Rejection>,
    ) -> AdmittedRequest<'r> {
        let mut body_permit = None;
        self.inbound.record_admission(&request, &mut admission);
        let wants_body = match &admission {
            Ok(Admission::Call(..)) => request.head.verb == Verb::POST,
            Ok(Admission::Console(..)) => !matches!(request.head.verb, Verb::GET | Verb::HEAD),
            _ => false,
        };
        if wants_body {
            match self.inbound.sessions.quotas().body_bytes.acquire_scoped(self.announced_body(request.head)) {
                Ok(permit) => body_permit = Some(permit),
                Err(reached) => admission = Err(Rejection::QuotaReached(reached)),
            }
        }
        AdmittedRequest { request, admission, body_permit }
    }
}

impl HttpService for ClientService {
    type Admission<'r> = AdmittedRequest<'r>;
    type ResponseBody = ResponseContent;

    fn settings(&self) -> ServerSettings {
        let settings = self.inbound.settings();
        ServerSettings {
            head: HeadRules {
                max_headers: settings.limits.header_count,
                max_bytes: settings.limits.header_bytes.max(MIN_HEAD_LIMIT),
            },
            max_body_bytes: settings.limits.body_bytes,
            header_timeout: settings.header_timeout,
            body_timeout: settings.body_timeout,
            keep_alive_timeout: settings.keep_alive_timeout,
            write_stall_timeout: settings.write_stall_timeout,
            http1: settings.http1,
        }
    }

    fn admit<'r>(&'r self, head: &'r RequestHead) -> AdmittedRequest<'r> {
        let request_id = request_id::of(&head.headers);
        let access = self.inbound.begin_access(head, &request_id, self.connection.peer);
        let request = ArrivedRequest { head, request_id, connection: &self.connection, access };
        let admission = self.inbound.admit(&request);
        self.with_body_permit(request, admission)
    }

    fn is_undecided(request: &AdmittedRequest<'_>) -> bool {
        matches!(request.admission, Ok(Admission::Undecided(..)))
    }

    async fn complete<'r>(&'r self, undecided: AdmittedRequest<'r>) -> AdmittedRequest<'r> {
        match undecided {
            AdmittedRequest { request, admission: Ok(Admission::Undecided(route, token)), .. } => {
                let admission = self.inbound.validate_token(&request, (route, token)).await;
                self.with_body_permit(request, admission)
            }
            decided => decided,
        }
    }

    fn wants_body(request: &AdmittedRequest<'_>) -> bool {
        request.body_permit.is_some()
    }

    fn respond<'r>(
        &'r self,
        request: AdmittedRequest<'r>,
        body: ReceivedBody,
    ) -> impl Future<Output = Response<ResponseContent>> + Send + 'r {
        let AdmittedRequest { request, admission, mut body_permit } = request;
        if let Some(permit) = &mut body_permit {
            permit.shrink_to(body.as_ref().map_or(0, |body| body.len()));
        }
        let access = AccessGuard::new(request.access.as_ref());
        match (&admission, access.record()) {
            (Ok(Admission::Answered(_) | Admission::Complete(_) | Admission::Console(..)), Some(record)) => {
                record.leave_unrecorded();
            }
            (_, record) => note_request(record, request.head, body.as_deref().unwrap_or_default()),
        }
        if let (Some(record), Ok(body)) = (access.record(), &body) {
            record.note_received(body.len());
        }
        HTTP_TRAFFIC.received.add(body.as_ref().map_or(0, |body| body.len() as u64));
        async move {
            let response = self.inbound.respond(request, admission, body, body_permit).await;
            self.inbound.gateway.metrics().record_http_request(response.status().as_u16());
            logged(response, access)
        }
    }

    fn reject_head(&self, error: RequestError) -> Response<ResponseContent> {
        let response = Rejection::from(error).respond();
        self.inbound.log_unreadable_head(response.status().as_u16(), self.connection.peer);
        self.inbound.gateway.metrics().record_http_request(response.status().as_u16());
        response
    }

    fn decorate(&self, headers: &mut HeaderMap) {
        if let Some(hsts) = self.connection.tls.as_ref().and_then(|tls| tls.hsts.clone()) {
            headers.insert(STRICT_TRANSPORT_SECURITY, hsts);
        }
    }

    fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        let (inbound, role) = (Arc::clone(&self.inbound), self.connection.role);
        async move {
            tokio::select! {
                () = inbound.shutdown.closing().cancelled() => {}
                () = inbound.shutdown.leaving().cancelled(), if role != ListenerRole::Operators => {}
            }
        }
    }

    fn closing(&self) -> impl Future<Output = ()> + Send + 'static {
        let inbound = Arc::clone(&self.inbound);
        async move { inbound.shutdown.closing().cancelled().await }
    }
}
