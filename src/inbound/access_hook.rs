//! Tells the access log what requests are about and how they end.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response};

use super::Inbound;
use super::body::ResponseContent;
use super::recorder_hook::{note_request, note_response};
use crate::access_log::{AccessEnd, AccessGuard, AccessRecord};
use crate::call::{Caller, ClientInfo};
use crate::gateway::request_target;
use crate::http::codec::RequestHead;
use crate::protocol::{Message, Method};
use crate::session::Session;

/// Hexadecimal digits at the end of a session id.
const SESSION_ID_DIGITS: usize = 32;

impl Inbound {
    /// The record of an HTTP request whose head has arrived; `None` where there is no access log.
    #[inline]
    pub(super) fn begin_access(
        &self,
        head: &RequestHead,
        request_id: &HeaderValue,
        peer: SocketAddr,
    ) -> Option<Arc<AccessRecord>> {
        let record = self.access_log.begin()?;
        record.note_peer(peer.ip(), || Some((head.version, head.headers.get("user-agent"))));
        let path = without_session_id(head.uri.path());
        record.note_http(head.verb.as_str(), path, Some(request_id), head.headers.get("traceparent"));
        Some(record)
    }

    /// The record of a request that another node relays here; `None` where nobody watches.
    pub(super) fn begin_relayed_access(
        &self,
        head: &RequestHead,
        caller: &Caller,
        body: &Bytes,
    ) -> Option<Arc<AccessRecord>> {
        let record = self.access_log.begin_relayed()?;
        let path = without_session_id(head.uri.path());
        record.note_http(head.verb.as_str(), path, caller.request_id.as_ref(), None);
        record.note_identity(&caller.identity);
        record.note_relayed();
        record.note_received(body.len());
        note_request(Some(&record), head, body);
        Some(record)
    }

    /// The record of an HTTP request whose head cannot be read.
    pub(super) fn log_unreadable_head(&self, status: u16, peer: SocketAddr) {
        if let Some(record) = self.access_log.begin() {
            record.note_peer(peer.ip(), || None);
            record.note_status(status);
            AccessGuard::new(Some(&record)).finish(AccessEnd::Answered);
        }
    }
}

/// Logs a response that is whole, or has the end of a streamed one logged.
#[inline]
pub(super) fn logged(mut response: Response<ResponseContent>, mut access: AccessGuard) -> Response<ResponseContent> {
    let Some(record) = access.record() else { return response };
    record.note_status(response.status().as_u16());
    note_response(record, &response);
    match response.body() {
        ResponseContent::Empty => access.finish(AccessEnd::Answered),
        ResponseContent::Full(bytes) => {
            record.note_sent(bytes.len());
            access.finish(AccessEnd::Answered);
        }
        _ => {
            let content = std::mem::replace(response.body_mut(), ResponseContent::Empty);
            *response.body_mut() = ResponseContent::Logged(Box::new((content, access)));
        }
    }
    response
}

/// Notes the method of a message, and what it is about.
pub(super) fn note_message(access: Option<&Arc<AccessRecord>>, message: &Message) {
    let Some(record) = access else { return };
    match message {
        Message::Request(request) => {
            let target = match &request.method {
                Method::Other(_) => None,
                method => request_target(method, request.params.as_ref()),
            };
            record.note_message(request.method.as_str(), target.as_deref());
        }
        Message::Notification(notification) => record.note_message(notification.method.as_str(), None),
        Message::Response(_) => record.note_message("response", None),
    }
}

/// Notes the program of the client.
pub(super) fn note_client(access: Option<&Arc<AccessRecord>>, client: Option<&Arc<ClientInfo>>) {
    if let (Some(record), Some(client)) = (access, client) {
        record.note_client(client.info.as_ref(), client.revision.as_str());
    }
}

/// Notes the session of a request that may be recorded. The access log does without the tag, which is a hash.
pub(super) fn note_session(access: Option<&Arc<AccessRecord>>, session: &Session) {
    if let Some(record) = access.filter(|record| record.mark().is_some()) {
        record.note_session(session.tag());
    }
}

/// A path without the session id that it may end with.
fn without_session_id(path: &str) -> &str {
    let trimmed = path.trim_end_matches('/');
    let is_id = |tail: &[u8]| tail.iter().all(u8::is_ascii_hexdigit);
    let tail = trimmed.len().checked_sub(SESSION_ID_DIGITS).map(|start| &trimmed.as_bytes()[start..]);
    let end = if tail.is_some_and(is_id) { trimmed.rfind('/') } else { None };
    end.map_or(path, |slash| &trimmed[..slash])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_logged_without_its_session_id() {
        let id = "0123456789abcdef0123456789ABCDEF";
        for (path, logged) in [
            ("/mcp".to_owned(), "/mcp"),
            (format!("/mcp/research/http:{id}"), "/mcp/research"),
            (format!("/mcp/research/http%3A{id}/"), "/mcp/research"),
            (format!("/mcp/streamable/{id}"), "/mcp/streamable"),
            (id.to_owned(), id),
            (format!("/ä{}", &id[1..]), &*format!("/ä{}", &id[1..])),
        ] {
            assert_eq!(without_session_id(&path), logged);
        }
    }
}
