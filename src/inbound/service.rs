//! The gateway as an [`HttpService`] on one client connection.

use std::net::SocketAddr;
use std::sync::Arc;

use ::http::header::CONTENT_LENGTH;
use ::http::request::Parts;
use ::http::{HeaderName, Method as Verb, Response};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::body::ResponseContent;
use super::respond::{Rejection, refused_connection};
use super::{ACCEPT_DRAIN_TIME, Admission, Inbound, ListenerRole, RequestTag};
use crate::failure::QuotaReached;
use crate::http::codec::{HeadRules, RequestError};
use crate::http::server::{self, HttpService, ReceivedBody, ServerSettings};
use crate::policy::ScopedPermit;

/// Serves one client connection.
#[derive(Clone)]
struct ClientService {
    inbound: Arc<Inbound>,
    role: ListenerRole,
    peer: SocketAddr,
}

/// A request whose head was looked at.
struct AdmittedRequest<'r> {
    parts: &'r Parts,
    tag: RequestTag,
    admission: Result<Admission<'r>, Rejection>,
    /// Share of the bytes in flight that the body has; taken before it is read.
    body_permit: Option<ScopedPermit<'r>>,
}

/// Lower bound of the request head limit, whatever `header_bytes` says.
const MIN_HEAD_LIMIT: usize = 8 << 10;
/// Header names that MCP clients send with most requests.
static FREQUENT_NAMES: [HeaderName; 6] = [
    HeaderName::from_static("mcp-protocol-version"),
    HeaderName::from_static("mcp-session-id"),
    HeaderName::from_static("mcp-method"),
    HeaderName::from_static("mcp-name"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("traceparent"),
];

/// Serves a connection until it closes.
pub(super) async fn serve_connection(inbound: Arc<Inbound>, role: ListenerRole, stream: TcpStream, peer: SocketAddr) {
    let service = ClientService { inbound, role, peer };
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
    /// The size of a request body as its head tells it; the limit where it does not.
    fn announced_body(&self, parts: &Parts) -> usize {
        let limit = self.inbound.settings().limits.body_bytes;
        let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        length.map_or(limit, |length: usize| length.min(limit))
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
                frequent_names: &FREQUENT_NAMES,
            },
            max_body_bytes: settings.limits.body_bytes,
            header_timeout: settings.header_timeout,
            body_timeout: settings.body_timeout,
            keep_alive_timeout: settings.keep_alive_timeout,
            write_stall_timeout: settings.write_stall_timeout,
            http1: settings.http1,
        }
    }

    fn admit<'r>(&'r self, parts: &'r mut Parts) -> AdmittedRequest<'r> {
        let tag = self.inbound.tag_request(&mut parts.headers);
        let mut admission = self.inbound.admit(parts, &tag, self.role, self.peer);
        let mut body_permit = None;
        if matches!(admission, Ok(Admission::Call(..))) && parts.method == Verb::POST {
            match self.inbound.sessions.quotas().body_bytes.acquire_scoped(self.announced_body(parts)) {
                Ok(permit) => body_permit = Some(permit),
                Err(reached) => admission = Err(Rejection::QuotaReached(reached)),
            }
        }
        AdmittedRequest { parts, tag, admission, body_permit }
    }

    fn wants_body(request: &AdmittedRequest<'_>) -> bool {
        request.body_permit.is_some()
    }

    fn respond<'r>(
        &'r self,
        request: AdmittedRequest<'r>,
        body: ReceivedBody,
    ) -> impl Future<Output = Response<ResponseContent>> + Send + 'r {
        let AdmittedRequest { parts, tag, admission, mut body_permit } = request;
        if let Some(permit) = &mut body_permit {
            permit.shrink_to(body.as_ref().map_or(0, |body| body.len()));
        }
        async move {
            let _permit = body_permit;
            self.inbound.respond(parts, tag, admission, body).await
        }
    }

    fn reject_head(&self, error: RequestError) -> Response<ResponseContent> {
        Rejection::from(error).respond()
    }

    fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        let (inbound, role) = (Arc::clone(&self.inbound), self.role);
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
