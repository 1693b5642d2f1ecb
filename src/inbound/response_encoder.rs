//! Encodes replies for one client request: with its id, in its revision, with the group's server info.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::access_log::AccessRecord;
use crate::call::{Answer, Call, Caller, Reply};
use crate::dialect::{Revision, to_client};
use crate::gateway::Group;
use crate::protocol::{ErrorObject, Id, Method, Outcome, Raw, Request, Response, code};
use crate::session::Session;

/// Encodes the replies to one call.
#[derive(Debug, Clone)]
pub(super) struct ReplyEncoder {
    pub(super) id: Id,
    pub(super) method: Method,
    pub(super) revision: Revision,
    pub(super) group: Arc<Group>,
    /// The pieces of the result so far, where the response cannot be written in pieces any more.
    pub(super) gathered: BytesMut,
    /// The record of the request in the access log.
    pub(super) access: Option<Arc<AccessRecord>>,
}

impl ReplyEncoder {
    /// Encodes the replies to a call of the per-request era.
    pub(super) fn of_call(call: Call, group: &Arc<Group>) -> Self {
        Self {
            id: call.id,
            method: call.method,
            revision: call.client.revision,
            group: Arc::clone(group),
            gathered: BytesMut::new(),
            access: call.caller.access.clone(),
        }
    }

    /// Encodes the replies to a request of a session.
    pub(super) fn in_session(session: &Session, request: &Request, group: &Arc<Group>, caller: &Caller) -> Self {
        Self {
            id: request.id.clone(),
            method: request.method.clone(),
            revision: session.client().map_or(Revision::NEWEST_HANDSHAKE, |client| client.revision),
            group: Arc::clone(group),
            gathered: BytesMut::new(),
            access: caller.access.clone(),
        }
    }

    /// Converts an outcome to the client's revision.
    pub(super) fn outcome(&self, answer: Answer) -> Outcome {
        to_client::convert_outcome(
            answer.outcome,
            &self.method,
            answer.revision,
            self.revision,
            &self.group.view(self.revision).server,
        )
    }

    /// Encodes the final response.
    pub(super) fn response(&self, answer: Answer) -> Bytes {
        self.encode_outcome(self.outcome(answer))
    }

    pub(super) fn encode_outcome(&self, outcome: Outcome) -> Bytes {
        let error = outcome.as_ref().err().map(ErrorObject::code);
        let reason = self.access.as_ref().and_then(|_| Some(outcome.as_ref().err()?.failure()?.kind().name()));
        let encoded = Response::new(Some(self.id.clone()), outcome).encode();
        if let Some(access) = &self.access {
            if let Some(reason) = reason {
                access.note_reason(reason);
            }
            access.note_reply(encoded.len(), error);
        }
        encoded
    }

    /// Encodes a reply; pieces of a result are gathered until its end. A server request cannot be sent to a per-request client: it is answered with an error, and
    /// the result is `None`.
    pub(super) fn encode(&mut self, reply: Reply) -> Option<Bytes> {
        match reply {
            Reply::Notification(notification) => {
                Some(to_client::convert_notification(notification, self.revision).encode())
            }
            Reply::Piece(piece) => {
                self.gathered.extend_from_slice(&piece);
                None
            }
            Reply::End(mut answer) => {
                if answer.outcome.is_ok() && !self.gathered.is_empty() {
                    // Every piece was checked as it arrived, and the end came only after the last.
                    answer.outcome = Ok(Raw::trusted(self.gathered.split().freeze()).into());
                }
                Some(self.response(answer))
            }
            Reply::ServerRequest(question) => {
                let why = format!("the client cannot be asked {}", question.method);
                // The upstream may have cancelled the request; then the error is not needed.
                let _ = question.responder.send(Err(ErrorObject::new(code::METHOD_NOT_FOUND, why)));
                None
            }
        }
    }
}
