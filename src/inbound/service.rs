//! The gateway as an [`HttpService`] on one client connection.

use std::net::SocketAddr;
use std::sync::Arc;

use ::http::request::Parts;
use ::http::{HeaderName, Method as Verb, Response};
use tokio::net::TcpStream;

use super::body::ResponseContent;
use super::respond::Rejection;
use super::{ACCEPT_DRAIN_TIME, Admission, Inbound, ListenerRole, RequestTag};
use crate::http::codec::{HeadRules, RequestError};
use crate::http::server::{self, HttpService, ReceivedBody, ServerSettings};

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

impl HttpService for ClientService {
    type Admission<'r> = AdmittedRequest<'r>;
    type ResponseBody = ResponseContent;

    fn settings(&self) -> ServerSettings {
        let settings = &self.inbound.settings;
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
        let admission = self.inbound.admit(parts, &tag, self.role, self.peer);
        AdmittedRequest { parts, tag, admission }
    }

    fn wants_body(request: &AdmittedRequest<'_>) -> bool {
        matches!(request.admission, Ok(Admission::Call(..))) && request.parts.method == Verb::POST
    }

    fn respond<'r>(
        &'r self,
        request: AdmittedRequest<'r>,
        body: ReceivedBody,
    ) -> impl Future<Output = Response<ResponseContent>> + Send + 'r {
        let AdmittedRequest { parts, tag, admission } = request;
        self.inbound.respond(parts, tag, admission, body)
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
